//! Compares the figures of now with the recorded ones. A figure that got worse is measured twice, as what else the machine does
//! can shift a measurement as a whole, which the noise within it does not show.

use super::baseline::Baseline;
use super::rounds::Measured;
use super::series::{FigureSeries, JobSeries};
use crate::Error;
use crate::compare::{Machine, Unit};
use crate::stats::{MIN_PAIRS, RatioInterval, min_runs, pooled_deviation, smallest_found};

/// The probability that a figure got worse in a measurement although nothing has changed, over all jobs and judged figures, as far as
/// the noise within it shows. A gate fails more rarely, by two measurements.
pub const FALSE_ALARMS: f64 = 0.005;

/// The figures that a gate judges. It only reports the others: percentiles have too much noise.
const JUDGED: [&str; 2] = ["rate", "CPU per I/O"];

/// A counter is regular if it counts at least one in so many I/Os.
const REGULAR: f64 = 0.01;

/// How far apart the runs of a rare and a regular counter are, so that no noise lies between them.
const APART: f64 = 10.0;

/// One figure, as a multiple of the bare ring's in the same rounds.
#[derive(Debug, Clone)]
pub struct FigureJudgement {
    /// Its name.
    pub name: String,
    /// Its unit, which has the better direction.
    pub unit: Unit,
    /// The recorded median.
    pub recorded: f64,
    /// The median of now.
    pub now: f64,
    /// Now by recorded. Over all judged figures together, [`FALSE_ALARMS`] bounds the probability of an interval that misses.
    ///
    /// Of two measurements it is the second's, as are `now` and `smallest_found`: it was made because the first said worse, so that
    /// the first says more than is true. Pairs of both together would count a shift between them as noise.
    pub ratio: RatioInterval,
    /// The first measurement's ratio, if there were two.
    pub first_ratio: Option<f64>,
    /// The smallest change for the worse that 19 of 20 gates find, in both measurements: 0.05 is 5 %. `None` if the figure is not judged.
    pub smallest_found: Option<f64>,
    /// Whether it got worse: both measurements say so.
    pub is_worse: bool,
}

/// A counter that changed its kind.
#[derive(Debug, Clone, PartialEq)]
pub struct CounterChange {
    /// Its name.
    pub name: String,
    /// Events per I/O, the mean of the recorded runs.
    pub recorded: f64,
    /// The mean of now.
    pub now: f64,
}

/// One job.
#[derive(Debug, Clone)]
pub struct JobJudgement {
    /// Its name.
    pub job: String,
    /// Its figures; the rate is the first.
    pub figures: Vec<FigureJudgement>,
    /// The counters that changed their kind.
    pub counters: Vec<CounterChange>,
}

/// The results of a gate.
#[derive(Debug, Clone)]
pub struct GateResults {
    /// When the baseline was recorded, and by which program.
    pub recorded: String,
    /// The rounds of the baseline.
    pub recorded_pairs: usize,
    /// The jobs.
    pub jobs: Vec<JobJudgement>,
    /// The rounds of the gate: those of both measurements if there were two.
    pub pairs: usize,
    /// Whether a figure got worse in the first measurement, so that there was a second.
    pub measured_twice: bool,
    /// The smallest difference that matters.
    pub effect: f64,
    /// The seed of the order within the rounds.
    pub seed: u64,
    /// The time that it took.
    pub seconds: f64,
    /// The machine; `None` for a guest.
    pub machine: Option<Machine>,
    /// Files that were laid out and left.
    pub files_made: Vec<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Whether the user stopped it.
    pub incomplete: bool,
}

impl JobJudgement {
    /// Whether the job fails the gate.
    pub fn fails(&self) -> bool {
        !self.counters.is_empty() || self.figures.iter().any(|figure| figure.is_worse)
    }
}

impl GateResults {
    /// Whether nothing got worse.
    pub fn passed(&self) -> bool {
        !self.incomplete && !self.jobs.iter().any(JobJudgement::fails)
    }

    /// The figures that were judged in some job, each with the smallest change for the worse that 19 of 20 gates find in all jobs.
    pub fn smallest_found(&self) -> Vec<(&'static str, Unit, f64)> {
        let of_name = |name: &&'static str| {
            let figures = self.jobs.iter().flat_map(|job| &job.figures);
            let found = figures.filter(|figure| figure.name == *name);
            let found =
                found.filter_map(|figure| Some((*name, figure.unit, figure.smallest_found?)));
            found.max_by(|a, b| a.2.total_cmp(&b.2))
        };
        JUDGED.iter().filter_map(of_name).collect()
    }

    /// Compares.
    ///
    /// # Errors
    /// A job has nothing to compare: its gate would pass whatever happened.
    pub(super) fn judge(
        baseline: &Baseline,
        measured: Measured,
        effect: f64,
        seed: u64,
    ) -> Result<Self, Error> {
        let recorded_pairs = baseline.jobs[0].figures[0].values.len();
        let mut notes = measured.notes;
        if measured.processor != baseline.processor {
            notes.push(format!(
                "this is `{}`, and the baseline is of `{}`: other instructions may be slow on it",
                measured.processor, baseline.processor
            ));
        }
        let pairs = beside_recorded(baseline, &measured.jobs);
        let tests = all_judged_figures(&pairs);
        let mut jobs = judge_jobs(baseline, &measured.jobs, effect);
        let measured_twice = !measured.incomplete && !measured.second.is_empty();
        if measured_twice {
            let second = judge_jobs(baseline, &measured.second, effect);
            notes
                .extend(jobs.iter_mut().zip(second).flat_map(|(job, second)| confirm(job, second)));
        } else if measured.incomplete {
            notes.extend(jobs.iter_mut().flat_map(withdraw));
        }
        let unjudged = |figure: &FigureJudgement| {
            JUDGED.contains(&figure.name.as_str())
                && figure.ratio.low.is_nan()
                && figure.ratio.ratio.is_finite()
        };
        let needed = pairs_needed(recorded_pairs, tests);
        if !measured.incomplete {
            for ((recorded, now), job) in pairs.iter().zip(&jobs) {
                check_compared(recorded, now, job, &needed)?;
            }
        }
        for job in &jobs {
            let lost = job.figures.iter().filter(|figure| {
                JUDGED.contains(&figure.name.as_str())
                    && !figure.recorded.is_nan()
                    && figure.ratio.ratio.is_nan()
            });
            notes.extend(lost.map(|figure| {
                format!(
                    "job `{}`: {} is not judged, as a run has no value of it",
                    job.job, figure.name
                )
            }));
        }
        if jobs.iter().flat_map(|job| &job.figures).any(unjudged) {
            let ran = match measured.pairs {
                1 => "1 pair ran".to_owned(),
                pairs => format!("{pairs} pairs ran"),
            };
            notes.push(format!("counters alone were judged: {ran}, and {needed}"));
        }
        Ok(Self {
            recorded: format!("{}, {}", baseline.recorded, baseline.program),
            recorded_pairs,
            jobs,
            pairs: measured.pairs,
            measured_twice,
            effect,
            seed,
            seconds: measured.seconds,
            machine: measured.machine,
            files_made: measured.files_made,
            notes,
            incomplete: measured.incomplete,
        })
    }
}

/// How many pairs judge `tests` figures, in words: of the gate or, if no number would do, of the recording.
fn pairs_needed(recorded_pairs: usize, tests: usize) -> String {
    match (min_runs(recorded_pairs, error(tests)), tests) {
        (Some(needed), 1) => format!("1 figure needs {needed}"),
        (Some(needed), _) => format!("{tests} figures need {needed}"),
        (None, _) if recorded_pairs == 1 => "1 recorded pair judges none; record more".into(),
        (None, _) => format!("{recorded_pairs} recorded pairs judge none; record more"),
    }
}

fn check_compared(
    recorded: &JobSeries,
    now: &JobSeries,
    job: &JobJudgement,
    needed: &str,
) -> Result<(), Error> {
    let judges = job.figures.iter().any(|figure| figure.smallest_found.is_some());
    if judges || recorded.has_counters && now.has_counters {
        return Ok(());
    }
    let why = match judged_figures(recorded, now) {
        0 => "no figures beside a bare ring's".to_owned(),
        _ => format!("too few pairs: {needed}"),
    };
    Err(Error::input(format!(
        "job `{}`: there is nothing to compare: no counters of both programs, and {why}",
        job.job
    )))
}

/// The share of intervals that may miss, at both ends together. One end of each can raise a false alarm.
fn error(tests: usize) -> f64 {
    2.0 * FALSE_ALARMS / tests.max(1) as f64
}

/// Each job of a measurement that the baseline has, after the recorded one.
fn beside_recorded<'a>(
    baseline: &'a Baseline,
    jobs: &'a [JobSeries],
) -> Vec<(&'a JobSeries, &'a JobSeries)> {
    let recorded = |now: &JobSeries| baseline.jobs.iter().find(|job| job.job == now.job);
    jobs.iter().filter_map(|now| Some((recorded(now)?, now))).collect()
}

fn all_judged_figures(pairs: &[(&JobSeries, &JobSeries)]) -> usize {
    pairs.iter().map(|(recorded, now)| judged_figures(recorded, now)).sum()
}

/// The figures of a job that a gate judges.
fn judged_figures(recorded: &JobSeries, now: &JobSeries) -> usize {
    let has_both = |name: &&&str| {
        let has =
            |job: &JobSeries| figure(job, name).is_some_and(|figure| !figure.control.is_empty());
        has(recorded) && has(now)
    };
    JUDGED.iter().filter(has_both).count()
}

fn figure<'a>(job: &'a JobSeries, name: &str) -> Option<&'a FigureSeries> {
    job.figures.iter().find(|figure| figure.name == name)
}

/// Whether a figure got worse, so that the jobs have to be measured once more. A counter that changed its kind is no noise.
pub(super) fn says_worse(baseline: &Baseline, jobs: &[JobSeries], effect: f64) -> bool {
    let judged = judge_jobs(baseline, jobs, effect);
    judged.iter().flat_map(|job| &job.figures).any(|figure| figure.is_worse)
}

/// Judges one measurement.
fn judge_jobs(baseline: &Baseline, jobs: &[JobSeries], effect: f64) -> Vec<JobJudgement> {
    let pairs = beside_recorded(baseline, jobs);
    let tests = all_judged_figures(&pairs);
    pairs.iter().map(|(recorded, now)| judge_job(recorded, now, tests, effect)).collect()
}

/// Judges a job's figures by both measurements. Returns a note of each figure that got worse in one of them alone.
fn confirm(job: &mut JobJudgement, mut second: JobJudgement) -> Vec<String> {
    let mut notes = Vec::new();
    for figure in &mut second.figures {
        let Some(first) = job.figures.iter().find(|first| first.name == figure.name) else {
            figure.is_worse = false;
            continue;
        };
        if first.is_worse != figure.is_worse {
            let which = if first.is_worse { "first" } else { "second" };
            notes.push(format!(
                "job `{}`: {} got worse in the {which} of two measurements alone, so that it passes: now / recorded was {:.3}, then {:.3}",
                job.job, figure.name, first.ratio.ratio, figure.ratio.ratio
            ));
        }
        figure.first_ratio = Some(first.ratio.ratio);
        figure.is_worse &= first.is_worse;
    }
    job.figures = second.figures;
    notes
}

/// Takes back that figures got worse, as no second measurement has ended. Returns a note of each.
fn withdraw(job: &mut JobJudgement) -> Vec<String> {
    let worse = job.figures.iter_mut().filter(|figure| figure.is_worse);
    let note = |figure: &mut FigureJudgement| {
        figure.is_worse = false;
        format!(
            "job `{}`: {} got worse (now / recorded is {:.3}), which no second measurement has confirmed",
            job.job, figure.name, figure.ratio.ratio
        )
    };
    worse.map(note).collect()
}

fn judge_job(recorded: &JobSeries, now: &JobSeries, tests: usize, effect: f64) -> JobJudgement {
    let both = now.figures.iter().filter_map(|now| Some((figure(recorded, &now.name)?, now)));
    JobJudgement {
        job: now.job.clone(),
        figures: both.map(|(recorded, now)| judge_figure(recorded, now, tests, effect)).collect(),
        counters: changed_counters(recorded, now),
    }
}

/// A figure got worse if its interval excludes 1 on that side, and the estimate is further from 1 than half of the
/// smallest difference that matters: there, a change of that size and none are equally far away.
fn judge_figure(
    recorded: &FigureSeries,
    now: &FigureSeries,
    tests: usize,
    effect: f64,
) -> FigureJudgement {
    let (old_logs, logs) = (recorded.logs(), now.logs());
    let ratio = RatioInterval::of_separate_runs(&old_logs, &logs, error(tests));
    let is_judged = JUDGED.contains(&now.name.as_str()) && !ratio.low.is_nan();
    let least = (effect / 2.0).ln_1p();
    let is_worse = match now.unit {
        Unit::PerSecond => ratio.high < 1.0 && -ratio.ratio.ln() >= least,
        Unit::Nanoseconds | Unit::PerIo => ratio.low > 1.0 && ratio.ratio.ln() >= least,
    };
    let found = || {
        let deviation = pooled_deviation(&old_logs, &logs);
        smallest_found(deviation, (old_logs.len(), logs.len()), error(tests), least)
    };
    FigureJudgement {
        name: now.name.clone(),
        unit: now.unit,
        recorded: recorded.multiple(),
        now: now.multiple(),
        ratio,
        first_ratio: None,
        smallest_found: is_judged.then(found),
        is_worse: is_judged && is_worse,
    }
}

/// The counters whose kind changed, in either direction.
fn changed_counters(recorded: &JobSeries, now: &JobSeries) -> Vec<CounterChange> {
    // fio counts nothing; then there is nothing to compare.
    if !(recorded.has_counters && now.has_counters) {
        return Vec::new();
    }
    let mut names: Vec<&String> =
        recorded.counters.iter().chain(&now.counters).map(|counter| &counter.name).collect();
    names.sort();
    names.dedup();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let change = |name: &String| {
        let (old, new) = (recorded.counter(name), now.counter(name));
        (rises(&old, &new) || rises(&new, &old)).then(|| CounterChange {
            name: name.clone(),
            recorded: mean(&old),
            now: mean(&new),
        })
    };
    names.into_iter().filter_map(change).collect()
}

/// Whether a counter is of a higher kind in every run of `to` than in all of `from`: it counts where nothing was counted, or
/// regularly where it was rare. A rare event that some runs have and others have not is no change: where nothing was counted, a few
/// runs tell only if they count regularly.
fn rises(from: &[f64], to: &[f64]) -> bool {
    let most = from.iter().copied().fold(0.0, f64::max);
    let least = to.iter().copied().fold(f64::INFINITY, f64::min);
    match most {
        _ if from.is_empty() || to.is_empty() => false,
        0.0 if from.len().min(to.len()) >= MIN_PAIRS => least > 0.0,
        0.0 => least >= REGULAR,
        most => least >= REGULAR && least >= most * APART,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::series::CounterSeries;

    fn series(job: &str, rates: &[f64], cpu: f64, counters: &[(&str, f64)]) -> JobSeries {
        let figure = |name: &str, unit, values: Vec<f64>, control: f64| FigureSeries {
            name: name.into(),
            unit,
            control: vec![control; values.len()],
            values,
        };
        let costs =
            rates.iter().enumerate().map(|(at, _)| cpu * (1.0 + at as f64 * 1e-3)).collect();
        let counter = |(name, per_io): &(&str, f64)| CounterSeries {
            name: (*name).into(),
            per_io: vec![*per_io; rates.len()],
        };
        JobSeries {
            job: job.into(),
            figures: vec![
                figure("rate", Unit::PerSecond, rates.to_vec(), 200.0),
                figure("read p99", Unit::Nanoseconds, vec![900.0; rates.len()], 300.0),
                figure("CPU per I/O", Unit::Nanoseconds, costs, 10.0),
            ],
            counters: counters.iter().map(counter).collect(),
            has_counters: true,
        }
    }

    fn steady(mean: f64, count: usize) -> Vec<f64> {
        (0..count).map(|at| mean * (1.0 + (at % 5) as f64 * 2e-3)).collect()
    }

    fn try_judged(recorded: JobSeries, now: JobSeries) -> Result<GateResults, Error> {
        let baseline = Baseline {
            recorded: "then".into(),
            program: "uringfs 0".into(),
            place: "host".into(),
            processor: "old".into(),
            keys: Vec::new(),
            jobs_words: vec![Vec::new()],
            jobs: vec![recorded],
        };
        let measured = Measured {
            pairs: now.figures[0].values.len(),
            jobs: vec![now],
            second: Vec::new(),
            seconds: 1.0,
            machine: None,
            processor: "new".into(),
            files_made: Vec::new(),
            notes: Vec::new(),
            incomplete: false,
        };
        GateResults::judge(&baseline, measured, 0.05, 1)
    }

    fn judged(recorded: JobSeries, now: JobSeries) -> GateResults {
        try_judged(recorded, now).unwrap()
    }

    #[test]
    fn each_direction_of_a_figure_is_judged() {
        let recorded = || series("x", &steady(100.0, 20), 10.0, &[]);
        for (rate, cpu, worse) in [
            (100.0, 10.0, &[][..]),
            (94.0, 10.0, &["rate"][..]),
            (106.0, 10.0, &[]),
            (100.0, 10.6, &["CPU per I/O"]),
            (100.0, 9.4, &[]),
            // Less than half of what matters.
            (98.5, 10.15, &[]),
        ] {
            let results = judged(recorded(), series("x", &steady(rate, 10), cpu, &[]));
            let job = &results.jobs[0];
            let found: Vec<_> = job
                .figures
                .iter()
                .filter(|figure| figure.is_worse)
                .map(|figure| figure.name.as_str())
                .collect();
            assert_eq!((&found[..], results.passed()), (worse, worse.is_empty()), "{rate} {cpu}");
            let found = results.smallest_found();
            assert!(found.len() == 2 && found.iter().all(|found| (0.025..0.05).contains(&found.2)));
            assert!(job.figures[1].smallest_found.is_none(), "a percentile is only reported");
            assert!(
                (job.figures[0].recorded - 0.502).abs() < 1e-9
                    && job.figures[0].ratio.ratio.is_finite()
            );
        }
    }

    #[test]
    fn few_pairs_judge_counters_alone_and_say_so() {
        let recorded = series("x", &steady(100.0, 20), 10.0, &[("shared", 1.0)]);
        let now = |counter| series("x", &[50.0], 20.0, &[(counter, 1.0)]);
        let same = judged(recorded.clone(), now("shared"));
        assert!(same.passed() && same.smallest_found().is_empty());
        assert!(
            same.notes.iter().any(|note| note.ends_with("1 pair ran, and 2 figures need 3")),
            "{:?}",
            same.notes
        );
        assert!(same.notes.iter().any(|note| note.contains("`new`") && note.contains("`old`")));
        let other = judged(recorded, now("exclusive"));
        let names: Vec<_> =
            other.jobs[0].counters.iter().map(|change| change.name.as_str()).collect();
        assert_eq!((names, other.passed()), (vec!["exclusive", "shared"], false));
    }

    /// No number of pairs of the gate makes up for it.
    #[test]
    fn a_recording_of_one_pair_asks_for_a_longer_recording() {
        let one = || series("x", &[100.0], 10.0, &[("n", 1.0)]);
        let results = judged(one(), series("x", &steady(50.0, 10), 20.0, &[("n", 1.0)]));
        let expected = "counters alone were judged: 10 pairs ran, and 1 recorded pair judges none; record more";
        assert_eq!(results.notes.last().map(String::as_str), Some(expected));
    }

    #[test]
    fn a_job_without_control_has_counters_alone() {
        let without = |job: JobSeries| JobSeries {
            figures: job
                .figures
                .into_iter()
                .map(|figure| FigureSeries { control: Vec::new(), ..figure })
                .collect(),
            ..job
        };
        let recorded = without(series("x", &steady(100.0, 20), 10.0, &[("n", 1.0)]));
        let results =
            judged(recorded, without(series("x", &steady(50.0, 10), 20.0, &[("n", 1.0)])));
        assert!(results.passed() && results.jobs[0].figures[0].ratio.ratio.is_nan());
    }

    #[test]
    fn fio_has_no_counters_to_change() {
        let mut now = series("x", &steady(100.0, 10), 10.0, &[]);
        now.has_counters = false;
        assert!(judged(series("x", &steady(100.0, 20), 10.0, &[("n", 1.0)]), now).passed());
    }

    #[test]
    fn a_gate_that_compares_nothing_is_an_error() {
        let recorded = || series("x", &steady(100.0, 20), 10.0, &[]);
        let without_counters = |count| JobSeries {
            has_counters: false,
            ..series("x", &steady(50.0, count), 20.0, &[])
        };
        let error = try_judged(recorded(), without_counters(1)).unwrap_err().to_string();
        assert!(error.contains("too few pairs: 2 figures need 3"), "{error}");
        let mut now = without_counters(10);
        now.figures.iter_mut().for_each(|figure| figure.control.clear());
        let error = try_judged(recorded(), now).unwrap_err().to_string();
        assert!(error.contains("no figures beside a bare ring's"), "{error}");
    }

    #[test]
    fn a_figure_that_a_run_lacks_is_named() {
        let mut now = series("x", &steady(100.0, 10), 10.0, &[]);
        now.figures[2].values[3] = f64::NAN;
        let results = judged(series("x", &steady(100.0, 20), 10.0, &[]), now);
        let note = "job `x`: CPU per I/O is not judged, as a run has no value of it";
        assert!(results.notes.iter().any(|line| line == note), "{:?}", results.notes);
        assert_eq!(results.smallest_found().len(), 1);
    }

    #[test]
    fn kinds_of_counters() {
        let rare = [0.001, 0.002, 0.0, 0.001, 0.001, 0.001];
        for (from, to, expected) in [
            (&[0.0; 6][..], &[1.0][..], true),
            (&[0.0; 6], &[0.001], false),
            (&[0.0; 6], &[0.001; 6], true),
            (&[0.0; 6], &rare, false),
            (&rare, &[0.5; 6], true),
            (&rare, &[0.015; 6], false),
            (&[0.5], &[0.9], false),
            (&[0.5], &[], false),
            (&[], &[0.5], false),
        ] {
            assert_eq!(rises(from, to), expected, "{from:?} {to:?}");
        }
    }
}
