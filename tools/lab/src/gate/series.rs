//! The figures of a job over the rounds, beside those of the control.

use crate::compare::{JobFigures, Unit};
use crate::stats::median;

/// One figure of a job, one value a round.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureSeries {
    /// Its name: `rate`, `read p99`.
    pub name: String,
    /// Its unit.
    pub unit: Unit,
    /// The values.
    pub values: Vec<f64>,
    /// The bare ring's in the same rounds; empty without a control.
    pub control: Vec<f64>,
}

impl FigureSeries {
    /// The logarithms of the values as multiples of the control's.
    pub fn logs(&self) -> Vec<f64> {
        self.values
            .iter()
            .zip(&self.control)
            .map(|(value, control)| (value / control).ln())
            .collect()
    }

    /// The median of the multiples; NaN without a control.
    pub fn multiple(&self) -> f64 {
        let multiples: Vec<f64> =
            self.values.iter().zip(&self.control).map(|(a, b)| a / b).collect();
        if multiples.is_empty() { f64::NAN } else { median(&multiples) }
    }
}

/// A counter of the engine, as events per I/O, one value a round.
#[derive(Debug, Clone, PartialEq)]
pub struct CounterSeries {
    /// Its name.
    pub name: String,
    /// Events per I/O.
    pub per_io: Vec<f64>,
}

/// A job over the rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSeries {
    /// Its name.
    pub job: String,
    /// Its figures; the rate is the first.
    pub figures: Vec<FigureSeries>,
    /// The counters that some round has counted.
    pub counters: Vec<CounterSeries>,
    /// Whether the engine has counters: fio has none.
    pub has_counters: bool,
}

/// The figures of one round; the control has none if there is no control.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub side: Vec<JobFigures>,
    pub control: Vec<JobFigures>,
}

impl JobSeries {
    /// The series of all jobs.
    pub(super) fn from_rounds(rounds: &[Round]) -> Vec<Self> {
        let first = rounds.first().map_or(&[][..], |round| &round.side);
        first.iter().map(|job| Self::of_job(job, rounds)).collect()
    }

    fn of_job(first: &JobFigures, rounds: &[Round]) -> Self {
        fn named<'a>(jobs: &'a [JobFigures], name: &str) -> Option<&'a JobFigures> {
            jobs.iter().find(|job| job.job == name)
        }
        let runs: Vec<&JobFigures> =
            rounds.iter().filter_map(|round| named(&round.side, &first.job)).collect();
        let controls: Vec<&JobFigures> =
            rounds.iter().filter_map(|round| named(&round.control, &first.job)).collect();
        let figures = first.figures.iter().map(|figure| {
            let of =
                |jobs: &[&JobFigures]| jobs.iter().map(|job| job.value(&figure.name)).collect();
            FigureSeries {
                name: figure.name.clone(),
                unit: figure.unit,
                values: of(&runs),
                control: of(&controls),
            }
        });
        let mut names: Vec<&String> = runs
            .iter()
            .flat_map(|job| &job.counters)
            .filter(|(_, n)| *n > 0)
            .map(|(name, _)| name)
            .collect();
        names.sort();
        names.dedup();
        let counters = names.into_iter().map(|name| CounterSeries {
            name: name.clone(),
            per_io: runs.iter().map(|job| job.counter(name) as f64 / job.ios.max(1.0)).collect(),
        });
        Self {
            job: first.job.clone(),
            figures: figures.collect(),
            counters: counters.collect(),
            has_counters: runs.iter().any(|job| !job.counters.is_empty()),
        }
    }

    /// Whether a gate has something to compare.
    pub fn is_comparable(&self) -> bool {
        self.has_counters || self.figures.iter().any(|figure| !figure.control.is_empty())
    }

    /// A counter's events per I/O; zeros if no round has counted it.
    pub fn counter(&self, name: &str) -> Vec<f64> {
        let rounds = self.figures.first().map_or(0, |rate| rate.values.len());
        let found = self.counters.iter().find(|counter| counter.name == name);
        found.map_or_else(|| vec![0.0; rounds], |counter| counter.per_io.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Figure;

    #[test]
    fn rounds_become_series() {
        let job = |name: &str, rate: f64, count: u64| JobFigures {
            job: name.into(),
            figures: vec![Figure { name: "rate".into(), unit: Unit::PerSecond, value: rate }],
            counters: vec![("zero".into(), 0), ("some".into(), count)],
            ios: 10.0,
            notes: Vec::new(),
        };
        let round = |rate: f64, count| Round {
            side: vec![job("x", rate, count), job("y", 1.0, 0)],
            control: vec![job("y", 2.0, 0), job("x", 2.0 * rate, 7)],
        };
        let series = JobSeries::from_rounds(&[round(10.0, 0), round(20.0, 5)]);
        assert_eq!(series.iter().map(|job| job.job.as_str()).collect::<Vec<_>>(), ["x", "y"]);
        let rate = &series[0].figures[0];
        assert_eq!((&rate.values[..], &rate.control[..]), (&[10.0, 20.0][..], &[20.0, 40.0][..]));
        assert_eq!((rate.multiple(), rate.logs()[1]), (0.5, 0.5_f64.ln()));
        assert_eq!(series[0].counter("some"), [0.0, 0.5]);
        assert_eq!((series[0].counter("zero"), series[0].counters.len()), (vec![0.0, 0.0], 1));
        assert!(series[1].counters.is_empty() && series[1].has_counters);
        assert!(JobSeries::from_rounds(&[]).is_empty());
    }
}
