//! Prints results: fio's text report, fio's JSON, or both.

mod date;
mod entry;
mod human;
mod json;
mod latency_classes;
mod progress;
mod units;

pub use entry::{ReportEntry, ReportGroup, entries};
pub use json::add_uringfs_objects;
pub use progress::progress_line;

use crate::Error;
use crate::run::Results;
use serde_json::Value;

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The text report.
    Normal,
    /// JSON.
    Json,
}

/// Parses `--output-format`, as in `normal,json`.
pub fn parse_formats(text: &str) -> Result<Vec<Format>, Error> {
    let mut formats = Vec::new();
    for name in text.split(',') {
        let format = match name.trim() {
            "normal" => Format::Normal,
            "json" => Format::Json,
            other => {
                return Err(Error::input(format!(
                    "output format `{other}` is neither normal nor json"
                )));
            }
        };
        if !formats.contains(&format) {
            formats.push(format);
        }
    }
    Ok(formats)
}

/// The report in the requested formats. As with fio, JSON comes first.
pub fn render(results: &Results, formats: &[Format]) -> String {
    let mut out = String::new();
    if formats.contains(&Format::Json) {
        out.push_str(&format!("{:#}\n", json(results)));
    }
    if formats.contains(&Format::Normal) {
        if !out.is_empty() {
            out.push('\n');
        }
        match results {
            Results::Ours(outcome) => out.push_str(&human::report(outcome)),
            Results::Fio(output) => out.push_str(&output.text),
        }
    }
    out
}

/// The JSON report.
pub fn json(results: &Results) -> Value {
    match results {
        Results::Ours(outcome) => json::report(outcome),
        Results::Fio(output) => json::with_uringfs_object(output),
    }
}
