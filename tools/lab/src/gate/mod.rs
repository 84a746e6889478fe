//! Finds what got slower since a baseline was recorded.
//!
//! [`record`] runs jobs in rounds, each beside a bare ring on the same targets, and keeps the figures as multiples of the
//! ring's. So a baseline carries from one machine to another. [`gate`] runs the same jobs in the same way, and compares.
//! If a figure got worse it measures once more, as a busy machine can shift a measurement as a whole: both have to say so.

mod report;
mod judge;
mod baseline;
mod guest;
mod rounds;
mod series;

pub use baseline::Baseline;
pub use judge::{CounterChange, FALSE_ALARMS, FigureJudgement, GateResults, JobJudgement};
pub use report::{json, recorded_text, text};
pub use rounds::Conditions;
pub use series::{CounterSeries, FigureSeries, JobSeries};

use crate::Error;
use crate::compare::{Side, SideSource, job_words};
use crate::job::{Job, JobSet, Parser, UnknownKeys, environment};
use crate::vm::GuestRunner;
use judge::says_worse;
use rounds::{Measured, Repeats};
use std::path::PathBuf;

/// The place where the jobs run.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// Here.
    Host,
    /// In guests whose clock counts instructions, each pair in a new one: on a file in a volume on the kernel's RAM device.
    Guest(&'a GuestRunner<'a>),
}

impl Place<'_> {
    /// The name of [`Place::Host`] in a baseline.
    pub const HOST: &'static str = "host";
    /// The name of [`Place::Guest`].
    pub const GUEST: &'static str = "vm";

    fn name(self) -> &'static str {
        match self {
            Self::Host => Self::HOST,
            Self::Guest(_) => Self::GUEST,
        }
    }

    fn jobs(self, side: &Side, files: &[PathBuf], unknown: UnknownKeys) -> Result<JobSet, Error> {
        match self {
            Self::Host => side.jobs(files, &environment, unknown),
            Self::Guest(_) => guest::jobs(side, files, unknown),
        }
    }

    fn measure(
        self,
        side: &Side,
        set: &JobSet,
        conditions: &Conditions<'_>,
        repeats: Repeats<'_>,
    ) -> Result<Measured, Error> {
        match self {
            Self::Host => rounds::measure_rounds(side, set, conditions, repeats),
            Self::Guest(runner) => guest::measure_rounds(runner, side, set, conditions, repeats),
        }
    }
}

/// The results of a recording.
#[derive(Debug)]
pub struct Recording {
    /// The baseline.
    pub baseline: Baseline,
    /// Its pairs.
    pub pairs: usize,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The files that were laid out and left.
    pub files_made: Vec<String>,
    /// Whether the user stopped it: then it has fewer pairs than were wanted, and is no baseline to keep.
    pub incomplete: bool,
}

/// Runs job files for a baseline.
///
/// # Errors
/// A key is unknown, the jobs cannot run, or one failed. After Ctrl-C there is no error if a round has ended.
pub fn record(
    place: Place<'_>,
    files: &[PathBuf],
    keys: &[String],
    unknown: UnknownKeys,
    conditions: &Conditions<'_>,
) -> Result<Recording, Error> {
    let side = parse_side(keys)?;
    let set = place.jobs(&side, files, unknown)?;
    check_names(&set)?;
    let mut measured = place.measure(&side, &set, conditions, &|_| false)?;
    if let Some(job) = measured.jobs.iter().find(|job| !job.is_comparable()) {
        let line =
            "it has no counters, and no bare ring beside it, so that a gate could compare nothing";
        return Err(Error::input(format!("job `{}`: {line}", job.job)));
    }
    let notes = std::mem::take(&mut measured.notes);
    let files_made = std::mem::take(&mut measured.files_made);
    let (pairs, incomplete) = (measured.pairs, measured.incomplete);
    let baseline = Baseline::new(place.name(), keys, &set, measured);
    Ok(Recording { baseline, pairs, notes, files_made, incomplete })
}

/// Runs the jobs of a baseline again, or those of them that `files` have, and compares. `keys` override the recorded ones;
/// `unknown` says what becomes of unknown keys of the files.
///
/// # Errors
/// The jobs are not those of the baseline, cannot run, or failed. After Ctrl-C there is no error if a round has ended.
pub fn gate(
    place: Place<'_>,
    baseline: &Baseline,
    files: &[PathBuf],
    keys: &[String],
    unknown: UnknownKeys,
    effect: f64,
    conditions: &Conditions<'_>,
) -> Result<GateResults, Error> {
    let keys: Vec<String> = baseline.keys.iter().chain(keys).cloned().collect();
    let side = parse_side(&keys)?;
    let set = match files {
        [] => recorded_jobs(baseline, &side)?,
        files => place.jobs(&side, files, unknown)?,
    };
    for job in &set.jobs {
        check_job(baseline, job)?;
    }
    let measured =
        place.measure(&side, &set, conditions, &|jobs| says_worse(baseline, jobs, effect))?;
    GateResults::judge(baseline, measured, effect, conditions.seed)
}

/// A side that runs.
fn parse_side(keys: &[String]) -> Result<Side, Error> {
    let side = Side::parse(keys).map_err(|error| error.at("--set"))?;
    match side.source {
        SideSource::Files(_) => {
            Err(Error::input("--set: results= is of runs that have ended; give jobs to run"))
        }
        SideSource::Engine(_) | SideSource::Program { .. } => Ok(side),
    }
}

/// Whether each job has a report of its own, by which a baseline knows it.
fn check_names(set: &JobSet) -> Result<(), Error> {
    for (index, job) in set.jobs.iter().enumerate() {
        if set.jobs[..index].iter().any(|other| other.name == job.name) {
            let line =
                format!("two jobs have the name `{}`; a baseline needs a name for each", job.name);
            return Err(Error::input(line));
        }
    }
    match set.jobs.len() > 1 && set.jobs.iter().any(|job| job.options.group_reporting) {
        true => Err(Error::input(
            "group_reporting sums several jobs; a baseline needs each job's own figures",
        )),
        false => Ok(()),
    }
}

/// The jobs as they were recorded, with the keys of a side.
fn recorded_jobs(baseline: &Baseline, side: &Side) -> Result<JobSet, Error> {
    let nothing = |_: &str| None;
    let mut parser = Parser::new(&nothing, UnknownKeys::Refuse);
    side.replace_keys(&mut parser);
    for word in baseline.jobs_words.iter().flatten() {
        let (key, value) = word.split_once('=').unwrap_or((word, "1"));
        parser.argument(key.trim_start_matches("--"), Some(value))?;
    }
    parser.finish().map_err(|error| error.at("the baseline's jobs"))
}

/// Whether a job is as it was recorded, but for its target.
fn check_job(baseline: &Baseline, job: &Job) -> Result<(), Error> {
    let again = "record it again with bench record";
    let name = format!("--name={}", job.name);
    let recorded = baseline.jobs_words.iter().find(|words| words.contains(&name));
    let recorded = recorded.ok_or_else(|| {
        Error::input(format!("job `{}` is not in the baseline; {again}", job.name))
    })?;
    let now = job_words(job);
    // The first job of a further file waits for those before, which is no key of its own.
    let is_target =
        |word: &&String| word.starts_with("--filename=") || word.as_str() == "--stonewall=1";
    let differs = |word: &&String| !(recorded.contains(word) && now.contains(word));
    match now.iter().chain(recorded).filter(|word| !is_target(word)).find(differs) {
        Some(word) => Err(Error::input(format!(
            "job `{}` is not as it was recorded ({word}); {again}",
            job.name
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::compare::{Figure, JobFigures, Unit};
    use rounds::Rounds;
    use series::Round;

    const PAIRS: u32 = 10;

    /// The pair of this number, with a CPU time per I/O, and a counter's events in 100 I/Os.
    fn round(number: usize, cpu: f64, count: u64) -> Round {
        let noise = 1.0 + (number % 5) as f64 * 2e-3;
        let figure = |name: &str, unit, value| Figure { name: name.into(), unit, value };
        let job = |cpu, count| JobFigures {
            job: "x".into(),
            figures: vec![
                figure("rate", Unit::PerSecond, 100.0),
                figure("CPU per I/O", Unit::Nanoseconds, cpu),
            ],
            counters: vec![("exclusive".into(), count)],
            ios: 100.0,
            notes: Vec::new(),
        };
        Round { side: vec![job(cpu * noise, count)], control: vec![job(10.0, 0)] }
    }

    fn measured(rounds: &Rounds, incomplete: bool) -> Measured {
        let [jobs, second] = rounds.series();
        Measured {
            jobs,
            second,
            pairs: rounds.len(),
            seconds: 1.0,
            machine: None,
            processor: "the same".into(),
            files_made: Vec::new(),
            notes: Vec::new(),
            incomplete,
        }
    }

    /// A gate whose baseline has a CPU time of 10. Each measurement has its own, and Ctrl-C ends it after so many pairs.
    fn gated(cpu: [f64; 2], count: u64, stop_after: usize) -> GateResults {
        let mut recorded = Rounds::default();
        let mut number = 0;
        let record = |_: &str| {
            number += 1;
            Ok(round(number, 10.0, 0))
        };
        recorded.run(2 * PAIRS, &|_| false, record).unwrap();
        let baseline =
            Baseline::new(Place::HOST, &[], &JobSet::default(), measured(&recorded, false));

        let (mut rounds, mut number) = (Rounds::default(), 0);
        let ended = rounds.run(PAIRS, &|jobs| says_worse(&baseline, jobs, 0.05), |_| {
            if number == stop_after {
                return Err(Error::interrupted());
            }
            number += 1;
            Ok(round(number, cpu[(number - 1) / PAIRS as usize], count))
        });
        let incomplete = ended.is_err_and(|error| error.kind() == ErrorKind::Interrupted);
        GateResults::judge(&baseline, measured(&rounds, incomplete), 0.05, 1).unwrap()
    }

    fn worse(results: &GateResults) -> Vec<&str> {
        let figures = results.jobs[0].figures.iter().filter(|figure| figure.is_worse);
        figures.map(|figure| figure.name.as_str()).collect()
    }

    #[test]
    fn a_gate_that_passes_measures_once() {
        let results = gated([10.0, 11.0], 0, usize::MAX);
        assert!(results.passed() && results.notes.is_empty(), "{:?}", results.notes);
        assert_eq!((results.pairs, results.measured_twice), (10, false));
        assert_eq!(results.jobs[0].figures[1].first_ratio, None);
    }

    #[test]
    fn a_measurement_that_was_shifted_as_a_whole_is_not_confirmed() {
        let results = gated([10.4, 10.0], 0, usize::MAX);
        assert!(results.passed() && worse(&results).is_empty());
        assert_eq!((results.pairs, results.measured_twice), (20, true));
        let note = "job `x`: CPU per I/O got worse in the first of two measurements alone, so that it passes: now / recorded was 1.040, then 1.000";
        assert_eq!(results.notes, [note]);
    }

    #[test]
    fn a_figure_that_is_worse_twice_fails_with_the_second_ratio() {
        let results = gated([10.6, 10.4], 0, usize::MAX);
        assert!(!results.passed() && results.notes.is_empty(), "{:?}", results.notes);
        assert_eq!((results.pairs, worse(&results)), (20, vec!["CPU per I/O"]));
        let cpu = &results.jobs[0].figures[1];
        assert!((cpu.ratio.ratio - 1.04).abs() < 1e-9, "{cpu:?}");
        assert!(cpu.first_ratio.is_some_and(|first| (first - 1.06).abs() < 1e-9), "{cpu:?}");
    }

    #[test]
    fn a_counter_that_changed_its_kind_is_measured_once() {
        let results = gated([10.0, 10.0], 100, usize::MAX);
        assert!(!results.passed() && worse(&results).is_empty());
        assert_eq!((results.pairs, results.jobs[0].counters.len()), (10, 1));
    }

    #[test]
    fn an_interrupted_second_measurement_leaves_the_gate_incomplete() {
        for pairs in [10, 14] {
            let results = gated([10.4, 10.4], 0, pairs);
            assert!(results.incomplete && !results.passed() && !results.measured_twice);
            assert_eq!((results.pairs, worse(&results).len()), (pairs, 0));
            let note = "job `x`: CPU per I/O got worse (now / recorded is 1.040), which no second measurement has confirmed";
            assert_eq!(results.notes, [note]);
        }
    }
}
