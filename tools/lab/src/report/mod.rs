//! Prints results as fio does: text, JSON, and terse lines.

mod date;
mod entry;
mod human;
mod json;
mod latency_bins;
mod latency_classes;
mod depth_shares;
mod progress;
mod terse;
mod units;

pub(crate) use date::ctime;
pub use entry::{Latency, ReportEntry, ReportGroup, entries};
pub use json::{add_uringfs_objects, directions_of};
pub use progress::progress_line;

use crate::Error;
use crate::run::{Outcome, Results};
use json::Bins;
use serde_json::Value;

/// The format of one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text.
    Normal,
    /// JSON.
    Json,
}

/// The formats of a report, printed one after the other: `--output-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Formats {
    /// fio's text.
    pub normal: bool,
    /// fio's JSON.
    pub json: bool,
    /// The JSON has the bins of latencies, and so is `json+`.
    pub bins: bool,
    /// fio's terse lines, version 3.
    pub terse: bool,
}

impl std::str::FromStr for Formats {
    type Err = Error;

    /// Parses a list such as `normal,json`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut formats = Self::default();
        for name in text.split(',') {
            match name.trim() {
                "normal" => formats.normal = true,
                "json" => formats.json = true,
                "json+" => (formats.json, formats.bins) = (true, true),
                "terse" => formats.terse = true,
                other => {
                    return Err(Error::input(format!(
                        "output format `{other}` is not one of normal, json, json+, terse"
                    )));
                }
            }
        }
        Ok(formats)
    }
}

/// The report in the requested formats, in fio's order.
pub fn render(results: &Results, formats: Formats) -> String {
    render_with(results, formats, human::report)
}

/// The results of a run that goes on, in the requested formats: fio's `--status-interval`. The text has no lines about the jobs
/// before their results.
pub fn render_status(results: &Results, formats: Formats) -> String {
    render_with(results, formats, human::results)
}

fn render_with(results: &Results, formats: Formats, text: fn(&Outcome) -> String) -> String {
    let mut out = String::new();
    if formats.terse {
        match results {
            Results::Ours(outcome) => out.push_str(&terse::report(outcome)),
            Results::Fio(output) => out.push_str(&output.terse),
        }
    }
    if formats.json {
        let json = match (results, formats.bins) {
            (Results::Ours(outcome), true) => json::report(outcome, Bins::All),
            _ => json(results),
        };
        out.push_str(&format!("{json:#}\n"));
    }
    if formats.normal {
        if !out.is_empty() {
            out.push('\n');
        }
        match results {
            Results::Ours(outcome) => out.push_str(&text(outcome)),
            Results::Fio(output) => out.push_str(&output.text),
        }
    }
    out
}

/// The JSON report.
pub fn json(results: &Results) -> Value {
    match results {
        Results::Ours(outcome) => json::report(outcome, Bins::None),
        // With bins, if fio was asked for them.
        Results::Fio(output) => json::with_uringfs_object(output),
    }
}
