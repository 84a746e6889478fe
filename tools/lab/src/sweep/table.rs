//! The cells of the tables as texts, which text and Markdown print.

use super::results::{CellFigure, FigureCells, JobCells, Results};
use super::shown::ShownFigure;
use crate::compare::Unit;
use crate::stats::{RatioInterval, median};

/// A table of one job and figure. All rows have as many cells as the header.
#[derive(Debug)]
pub(crate) struct Table {
    /// The job and the figure.
    pub title: String,
    /// The names of the columns; none if no cell has the figure.
    pub header: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

/// The tables of all jobs.
pub(super) fn tables(results: &Results, shown: ShownFigure) -> Vec<Table> {
    results.jobs.iter().flat_map(|job| tables_of_job(results, job, shown)).collect()
}

fn tables_of_job(results: &Results, job: &JobCells, shown: ShownFigure) -> Vec<Table> {
    let figures = job.figures.iter().filter(|figure| shown.includes(&figure.name));
    let tables: Vec<Table> =
        figures.map(|figure| figure_table(results, &job.job, figure)).collect();
    if tables.is_empty() {
        let title = format!("job `{}`: no cell has the figure {shown}", job.job);
        return vec![Table { title, header: Vec::new(), rows: Vec::new() }];
    }
    tables
}

/// The table of one figure of a job.
pub(crate) fn figure_table(results: &Results, job: &str, figure: &FigureCells) -> Table {
    let grid = &results.grid;
    let columns = grid.columns();
    // More of a cost is no gain.
    let gain_name = if figure.unit == Unit::PerSecond { "gain" } else { "change" };
    let mut header = vec!["case".to_owned()];
    for column in 0..columns {
        header.extend(grid.keys(column).last().map(|(key, value)| format!("{key}={value}")));
        header.extend((column > 0).then(|| gain_name.to_owned()));
    }
    let row = |(index, cells): (usize, &[CellFigure])| -> Vec<String> {
        let keys = grid.keys(index * columns);
        let (_, row_keys) = keys.split_last().expect("a grid has a key");
        let case: Vec<String> =
            row_keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let case = if case.is_empty() { job.to_owned() } else { case.join(" ") };
        let cells = cells.iter().flat_map(|cell| {
            let value = figure.unit.amount(median(&cell.values));
            [Some(value), cell.gain.as_ref().map(gain)].into_iter().flatten()
        });
        std::iter::once(case).chain(cells).collect()
    };
    Table {
        title: format!("job `{job}`: {}", figure.name),
        header,
        rows: figure.cells.chunks(columns).enumerate().map(row).collect(),
    }
}

/// `+12.3 % [10.1, 14.0]`.
fn gain(ratio: &RatioInterval) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    match ratio {
        ratio if ratio.ratio.is_nan() => "-".into(),
        ratio if ratio.low.is_nan() => format!("{:+.1} %", percent(ratio.ratio)),
        RatioInterval { ratio, low, high } => {
            format!("{:+.1} % [{:.1}, {:.1}]", percent(*ratio), percent(*low), percent(*high))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::results::tests::results;

    fn shown(rounds: usize, figure: &str) -> Table {
        let mut tables = tables(&results(rounds), figure.parse().unwrap());
        assert_eq!(tables.len(), 1);
        tables.remove(0)
    }

    #[test]
    fn a_table_has_the_case_the_columns_and_the_gains() {
        let table = shown(6, "rate");
        assert_eq!(table.title, "job `x`: rate");
        let header = ["case", "engine=uringfs", "engine=ring", "gain", "engine=exec|\"x\"", "gain"];
        assert_eq!(table.header, header);
        let first = ["bs=4k", "97.5 k/s", "109 k/s", "+12.0 % [12.0, 12.0]"];
        assert_eq!(table.rows[0][..4], first);
        assert_eq!(table.rows[0][5], "-50.0 % [-50.0, -50.0]");
        assert_eq!(table.rows[1][0], "bs=64k");
        assert!(table.rows.iter().all(|row| row.len() == header.len()));
    }

    #[test]
    fn a_cost_has_changes_and_what_is_missing_a_dash() {
        let table = shown(5, "p99");
        assert_eq!((&*table.title, &*table.header[3]), ("job `x`: read p99", "change"));
        assert_eq!(table.rows[0][1..], ["80.0 us", "60.0 us", "-25.0 %", "-", "-"]);
        let none = shown(5, "cpu");
        assert_eq!(none.title, "job `x`: no cell has the figure cpu");
        assert!(none.header.is_empty() && none.rows.is_empty());
    }
}
