//! Prints a sweep as CSV, for spreadsheets: a row for each job, figure and cell. Fields are quoted as in RFC 4180.

use super::results::Results;
use super::shown::ShownFigure;
use crate::stats::{RatioInterval, median};

/// The columns after those of the keys.
const FIGURE_COLUMNS: [&str; 9] = [
    "figure",
    "unit",
    "rounds",
    "median",
    "least",
    "greatest",
    "gain_percent",
    "gain_low_percent",
    "gain_high_percent",
];

/// A figure as CSV. A field without a value is empty: the gains of the first column, and intervals of few rounds.
pub fn csv(results: &Results, shown: ShownFigure) -> String {
    let keys = results.grid.axes().iter().map(|axis| axis.key.as_str());
    let header = std::iter::once("job").chain(keys).chain(FIGURE_COLUMNS);
    let mut text = line(header.map(str::to_owned));
    for job in &results.jobs {
        for figure in job.figures.iter().filter(|figure| shown.includes(&figure.name)) {
            for (index, cell) in figure.cells.iter().enumerate() {
                let values = cell.values.iter().copied();
                let none = RatioInterval { ratio: f64::NAN, low: f64::NAN, high: f64::NAN };
                let gain = cell.gain.unwrap_or(none);
                let numbers = [
                    median(&cell.values),
                    values.clone().fold(f64::NAN, f64::min),
                    values.fold(f64::NAN, f64::max),
                    percent(gain.ratio),
                    percent(gain.low),
                    percent(gain.high),
                ];
                let keys = results.grid.keys(index).into_iter().map(|(_, value)| value.to_owned());
                let figure_fields =
                    [figure.name.clone(), figure.unit.name().into(), results.rounds.to_string()];
                let fields = std::iter::once(job.job.clone()).chain(keys).chain(figure_fields);
                text += &line(fields.chain(numbers.map(number)));
            }
        }
    }
    text
}

fn line(fields: impl Iterator<Item = String>) -> String {
    fields.map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

fn quoted(field: String) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    }
}

/// The change in percent, to four digits after the point.
fn percent(ratio: f64) -> f64 {
    // Zero has no sign.
    ((ratio - 1.0) * 1e6).round() / 1e4 + 0.0
}

fn number(value: f64) -> String {
    if value.is_nan() { String::new() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::results::tests::results;

    #[test]
    fn each_cell_has_a_row_and_missing_values_are_empty() {
        let text = csv(&results(5), "p99".parse().unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "job,bs,engine,figure,unit,rounds,median,least,greatest,gain_percent,gain_low_percent,gain_high_percent",
                "x,4k,uringfs,read p99,ns,5,80000,80000,80000,,,",
                "x,4k,ring,read p99,ns,5,60000,60000,60000,-25,,",
                "x,4k,\"exec|\"\"x\"\"\",read p99,ns,5,,,,,,",
            ]
        );
        assert_eq!(lines.len(), 7);
    }

    #[test]
    fn values_of_all_rounds_have_a_median_and_bounds() {
        let text = csv(&results(6), "rate".parse().unwrap());
        let row = text.lines().nth(2).unwrap();
        let fields: Vec<&str> = row.split(',').collect();
        assert_eq!(fields[..6], ["x", "4k", "ring", "rate", "1/s", "6"]);
        let numbers: Vec<f64> = fields[6..].iter().map(|field| field.parse().unwrap()).collect();
        for (number, expected) in
            numbers.iter().zip([109_200.0, 106_400.0, 112_000.0, 12.0, 12.0, 12.0])
        {
            assert!((number - expected).abs() < 1e-6, "{row}");
        }
    }

    #[test]
    fn fields_are_quoted_only_if_they_must_be() {
        for (field, expected) in
            [("a b", "a b"), ("a,b", "\"a,b\""), ("a\"b", "\"a\"\"b\""), ("a\nb", "\"a\nb\"")]
        {
            assert_eq!(quoted(field.to_owned()), expected);
        }
    }
}
