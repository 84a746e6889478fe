//! The comparison of the rounds' figures, job by job.

use super::figures::{JobFigures, Unit};
use super::machine::Machine;
use crate::engine::add_counters;
use crate::stats::{RatioInterval, Stopping, Verdict, pairs_to_find, sign_test};

/// The figures of one round. The control has none if there is no control.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    pub a: Vec<JobFigures>,
    pub again: Vec<JobFigures>,
    pub b: Vec<JobFigures>,
    pub control: Vec<JobFigures>,
}

/// The values of one figure, one a run.
pub type Sample = Vec<f64>;

/// One figure of both sides.
#[derive(Debug, Clone)]
pub struct FigureComparison {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: Unit,
    /// Side `a`.
    pub a: Sample,
    /// Side `a` again, for the noise.
    pub again: Sample,
    /// Side `b`.
    pub b: Sample,
    /// The control; empty without one.
    pub control: Sample,
    /// `b / a`.
    pub ratio: RatioInterval,
    /// `a` again, by `a`.
    pub noise: RatioInterval,
    /// The probability of the signs of the pairs' differences, if the sides are equal.
    pub sign_test: f64,
}

/// One job of both sides.
#[derive(Debug, Clone)]
pub struct JobComparison {
    /// The job's name.
    pub job: String,
    /// Its figures; the rate is the first.
    pub figures: Vec<FigureComparison>,
    /// The counters of `a` and `b`, summed over the runs.
    pub counters: [Vec<(String, u64)>; 2],
    /// The verdict on the rate.
    pub verdict: Verdict,
    /// How many pairs more would probably tell, if the verdict is that it is too noisy.
    pub more_pairs: Option<usize>,
}

/// The results of a comparison.
#[derive(Debug, Clone)]
pub struct Results {
    /// The keys of `a` and `b`, as given.
    pub sides: [String; 2],
    /// The jobs.
    pub jobs: Vec<JobComparison>,
    /// The number of pairs; of separate runs the smaller number.
    pub pairs: usize,
    /// The smallest difference that matters.
    pub effect: f64,
    /// The seed of the order; `None` for separate runs.
    pub seed: Option<u64>,
    /// The time that it took.
    pub seconds: f64,
    /// The machine; `None` for runs that ended before.
    pub machine: Option<Machine>,
    /// Files that were laid out and left.
    pub files_made: Vec<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Whether the user stopped it.
    pub incomplete: bool,
}

impl JobComparison {
    /// The rate.
    pub fn rate(&self) -> &FigureComparison {
        &self.figures[0]
    }

    /// A job from its figures and counters.
    pub(super) fn new(
        job: String,
        figures: Vec<FigureComparison>,
        counters: [Vec<(String, u64)>; 2],
        effect: f64,
    ) -> Self {
        let rate = &figures[0];
        let verdict = Verdict::new(&rate.ratio, &rate.noise, effect);
        let noisy = matches!(verdict, Verdict::TooNoisy | Verdict::TooFewRuns);
        let wanted = pairs_to_find(effect, &logs(&rate.a, &rate.b)).filter(|_| noisy);
        let more_pairs = wanted.map(|wanted| wanted.saturating_sub(rate.a.len()).max(1));
        Self { job, figures, counters, verdict, more_pairs }
    }
}

impl Results {
    /// Compares the sides of the rounds, for each job that both have.
    pub(super) fn compare(rounds: &[Round], stopping: Stopping, effect: f64) -> Vec<JobComparison> {
        let Some(first) = rounds.first() else { return Vec::new() };
        let in_both = |job: &&JobFigures| of_job(&first.b, &job.job).is_some();
        let jobs = first.a.iter().filter(in_both);
        let compare = |job: &JobFigures| {
            let figures = job.figures.iter().map(|figure| {
                let sample = |pick: fn(&Round) -> &Vec<JobFigures>| -> Sample {
                    let jobs = rounds.iter().filter_map(|round| of_job(pick(round), &job.job));
                    jobs.map(|job| job.value(&figure.name)).collect()
                };
                let (a, b) = (sample(|round| &round.a), sample(|round| &round.b));
                let (again, control) =
                    (sample(|round| &round.again), sample(|round| &round.control));
                let (pairs, noise) = (logs(&a, &b), logs(&a, &again));
                FigureComparison {
                    name: figure.name.clone(),
                    unit: figure.unit,
                    ratio: RatioInterval::of_pairs(&pairs, stopping),
                    noise: RatioInterval::of_pairs(&noise, stopping),
                    sign_test: sign_test(&pairs),
                    a,
                    again,
                    b,
                    control,
                }
            });
            let mut counters = [Vec::new(), Vec::new()];
            for round in rounds {
                for (sum, side) in counters.iter_mut().zip([&round.a, &round.b]) {
                    of_job(side, &job.job).iter().for_each(|job| add_counters(sum, &job.counters));
                }
            }
            JobComparison::new(job.job.clone(), figures.collect(), counters, effect)
        };
        jobs.map(compare).collect()
    }

    /// Whether the interval of every job's rate is narrow.
    pub(super) fn is_narrow(rounds: &[Round], effect: f64) -> bool {
        let Some(first) = rounds.first() else { return false };
        let rates = |job: &str, pick: fn(&Round) -> &Vec<JobFigures>| -> Sample {
            let jobs = rounds.iter().filter_map(|round| of_job(pick(round), job));
            jobs.map(|job| job.value("rate")).collect()
        };
        let jobs = first.a.iter().map(|job| &job.job);
        let mut in_both = jobs.filter(|job| of_job(&first.b, job).is_some());
        in_both.all(|job| {
            let pairs = logs(&rates(job, |round| &round.a), &rates(job, |round| &round.b));
            RatioInterval::of_pairs(&pairs, Stopping::WhenNarrow).is_narrow(effect)
        })
    }
}

/// The figures of a job in a run.
pub(crate) fn of_job<'a>(figures: &'a [JobFigures], job: &str) -> Option<&'a JobFigures> {
    figures.iter().find(|figures| figures.job == job)
}

/// The logarithms of `b / a`. Equal values, also zeros, have the ratio 1.
pub(crate) fn logs(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| if a == b { 0.0 } else { (b / a).ln() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::figures::Figure;

    fn job(name: &str, rate: f64) -> JobFigures {
        let figure = Figure { name: "rate".into(), unit: Unit::PerSecond, value: rate };
        JobFigures {
            job: name.into(),
            figures: vec![figure],
            counters: vec![("n".into(), 1)],
            ios: 1.0,
            notes: Vec::new(),
        }
    }

    fn rounds(ratios: &[f64]) -> Vec<Round> {
        let round = |ratio: &f64| Round {
            a: vec![job("x", 100.0), job("only a", 1.0)],
            again: vec![job("x", 100.5)],
            b: vec![job("x", 100.0 * ratio)],
            control: Vec::new(),
        };
        ratios.iter().map(round).collect()
    }

    #[test]
    fn a_slower_side_is_found_and_its_counters_are_summed() {
        let rounds = rounds(&[0.95, 0.94, 0.96, 0.95, 0.93, 0.95]);
        let jobs = Results::compare(&rounds, Stopping::Planned, 0.05);
        assert_eq!((jobs.len(), jobs[0].verdict), (1, Verdict::Slower));
        assert_eq!(jobs[0].counters[1], [("n".to_owned(), 6)]);
        assert_eq!(jobs[0].rate().sign_test, 2.0 / 64.0);
        assert!(jobs[0].rate().control.is_empty() && jobs[0].more_pairs.is_none());
    }

    #[test]
    fn noise_asks_for_more_pairs() {
        let jobs =
            Results::compare(&rounds(&[1.3, 0.8, 1.1, 0.9, 1.2, 0.7]), Stopping::Planned, 0.05);
        assert_eq!(jobs[0].verdict, Verdict::TooNoisy);
        assert!(jobs[0].more_pairs.unwrap() > 50, "{:?}", jobs[0].more_pairs);
        let few = Results::compare(&rounds(&[1.0, 1.01]), Stopping::Planned, 0.05);
        assert_eq!((few[0].verdict, few[0].more_pairs), (Verdict::TooFewRuns, Some(6)));
    }

    #[test]
    fn rounds_are_narrow_when_every_job_is() {
        let quiet = rounds(&[1.0, 1.01, 0.99, 1.0, 1.005, 0.995]);
        assert!(Results::is_narrow(&quiet, 0.05) && !Results::is_narrow(&quiet, 0.002));
        assert!(!Results::is_narrow(&quiet[..5], 0.05), "too few");
    }
}
