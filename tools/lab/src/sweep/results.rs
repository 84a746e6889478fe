//! The figures of a sweep, by job and cell, with the ratios to the first column.

use super::grid::Grid;
use crate::compare::{JobFigures, Machine, Unit, logs, of_job};
use crate::engine::add_counters;
use crate::stats::{RatioInterval, Stopping};

/// The figures of all cells of a round, in the order of the grid.
pub(super) type Round = Vec<Vec<JobFigures>>;

/// One figure in one cell.
#[derive(Debug, Clone)]
pub struct CellFigure {
    /// Its values, one a round; NaN where the cell does not have the figure.
    pub values: Vec<f64>,
    /// Its ratio to the cell of the first column in the same row; `None` in the first column.
    pub gain: Option<RatioInterval>,
}

/// One figure in all cells.
#[derive(Debug, Clone)]
pub struct FigureCells {
    /// Its name: `rate`, `read p99`.
    pub name: String,
    /// Its unit.
    pub unit: Unit,
    /// The cells, in the order of the grid.
    pub cells: Vec<CellFigure>,
}

/// One job in all cells.
#[derive(Debug, Clone)]
pub struct JobCells {
    /// The job's name.
    pub job: String,
    /// The figures that at least one cell has; the rate is the first.
    pub figures: Vec<FigureCells>,
    /// The counters of each cell, summed over the rounds.
    pub counters: Vec<Vec<(String, u64)>>,
}

/// The results of a sweep.
#[derive(Debug, Clone)]
pub struct Results {
    /// The cells.
    pub grid: Grid,
    /// The keys of every cell, `KEY=VALUE` each, as they were given.
    pub shared_keys: Vec<String>,
    /// The jobs.
    pub jobs: Vec<JobCells>,
    /// The number of rounds.
    pub rounds: usize,
    /// The seed of the order within the rounds.
    pub seed: u64,
    /// The time that it took.
    pub seconds: f64,
    /// The machine.
    pub machine: Machine,
    /// Files that were laid out and left.
    pub files_made: Vec<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Whether the user stopped it.
    pub incomplete: bool,
}

impl Results {
    /// The notes, with those of the machine.
    pub(crate) fn all_notes(&self) -> Vec<String> {
        self.notes.iter().cloned().chain(self.machine.warnings()).collect()
    }
}

/// The jobs of the rounds, each of which has as many cells.
pub(super) fn jobs(rounds: &[Round], columns: usize) -> Vec<JobCells> {
    let all = rounds.iter().flatten().flatten();
    let mut jobs: Vec<JobCells> = Vec::new();
    for JobFigures { job, .. } in all {
        if jobs.iter().all(|known| known.job != *job) {
            jobs.push(JobCells::new(job, rounds, columns));
        }
    }
    jobs
}

impl JobCells {
    fn new(job: &str, rounds: &[Round], columns: usize) -> Self {
        let cells = rounds.first().map_or(0, Vec::len);
        // A cell may lack figures that others have: fio does not count system calls.
        let runs = |cell: usize| rounds.iter().map(move |round| of_job(&round[cell], job));
        let mut figures: Vec<FigureCells> = Vec::new();
        for figure in (0..cells).flat_map(runs).flatten().flat_map(|run| &run.figures) {
            if figures.iter().any(|known| known.name == figure.name) {
                continue;
            }
            let values = |cell: usize| -> Vec<f64> {
                runs(cell).map(|run| run.map_or(f64::NAN, |run| run.value(&figure.name))).collect()
            };
            let cell = |cell: usize| {
                let (own, first) = (values(cell), cell - cell % columns);
                let gain = (cell != first).then(|| {
                    RatioInterval::of_pairs(&logs(&values(first), &own), Stopping::Planned)
                });
                CellFigure { values: own, gain }
            };
            figures.push(FigureCells {
                name: figure.name.clone(),
                unit: figure.unit,
                cells: (0..cells).map(cell).collect(),
            });
        }
        let counters = |cell: usize| {
            let mut sum = Vec::new();
            runs(cell).flatten().for_each(|run| add_counters(&mut sum, &run.counters));
            sum
        };
        Self { job: job.to_owned(), figures, counters: (0..cells).map(counters).collect() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// The figures of a job `x` in one run: a rate, and a latency in some.
    fn run(rate: f64, p99: Option<f64>) -> Vec<JobFigures> {
        let percentiles = p99.map_or(json!({}), |p99| json!({"99.000000": p99}));
        let read = json!({"iops": rate, "total_ios": 1, "clat_ns": {"percentile": percentiles}});
        let costs = json!({"counters": {"ring.enters": 2}});
        let job = json!({"jobname": "x", "error": 0, "read": read, "uringfs": costs});
        JobFigures::from_report(&json!({"jobs": [job]})).unwrap()
    }

    /// Results of two rows, 4k and 64k, and three columns, of which the last has no latencies. Round `n` is slower by `n` percent
    /// in all cells. A value has all that formats must quote.
    pub fn results(rounds: usize) -> Results {
        let lists = ["bs=4k,64k", "engine=uringfs,ring,exec|\"x\""].map(str::to_owned);
        let round = |number: usize| -> Round {
            let slower = 1.0 - number as f64 / 100.0;
            let cell = |rate: f64, p99: Option<f64>| run(rate * slower, p99);
            vec![
                cell(100_000.0, Some(80_000.0)),
                cell(112_000.0, Some(60_000.0)),
                cell(50_000.0, None),
                cell(1_000.0, Some(9_000.0)),
                cell(1_000.0, Some(9_000.0)),
                cell(999.0, None),
            ]
        };
        let rounds: Vec<Round> = (0..rounds).map(round).collect();
        Results {
            grid: Grid::parse(&lists).unwrap(),
            shared_keys: vec!["bs=8k".into(), "target=a=b".into()],
            jobs: jobs(&rounds, 3),
            rounds: rounds.len(),
            seed: 7,
            seconds: 12.3,
            machine: Machine::before(),
            files_made: vec!["x.0.0".into()],
            notes: vec!["a note".into()],
            incomplete: true,
        }
    }

    #[test]
    fn a_gain_is_the_ratio_to_the_first_column_of_the_row() {
        let job = &results(6).jobs[0];
        assert_eq!(
            job.figures.iter().map(|figure| &*figure.name).collect::<Vec<_>>(),
            ["rate", "read p99"]
        );
        let gain = |figure: usize, cell: usize| job.figures[figure].cells[cell].gain;
        assert!(gain(0, 0).is_none() && gain(0, 3).is_none());
        for (figure, cell, ratio) in [(0, 1, 1.12), (0, 2, 0.5), (0, 4, 1.0), (1, 1, 0.75)] {
            let gain = gain(figure, cell).unwrap();
            for value in [gain.low, gain.ratio, gain.high] {
                assert!((value - ratio).abs() < 1e-9, "{figure} {cell}: {gain:?}");
            }
        }
        // This cell has no latency.
        assert!(gain(1, 2).unwrap().ratio.is_nan() && job.figures[1].cells[2].values[0].is_nan());
        assert_eq!(job.counters[5], [("ring.enters".to_owned(), 12)]);
    }

    #[test]
    fn few_rounds_have_gains_without_intervals_and_none_have_no_jobs() {
        let gain = results(5).jobs[0].figures[0].cells[1].gain.unwrap();
        assert!((gain.ratio - 1.12).abs() < 1e-9 && gain.low.is_nan() && gain.high.is_nan());
        assert!(results(0).jobs.is_empty());
    }
}
