//! The sections of the page of a comparison, in their order.

use super::html::Html;
use super::job_plots::plots;
use crate::compare::{
    FigureComparison, HEADS, JobComparison, Machine, Results, control_line, counters_of_one_side,
    effect_percent, notes, pairs_line, rows, sentence,
};
use crate::stats::Verdict;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt::Display;

/// The parts of a page beside the results.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The command that measured them, as a shell reads it.
    pub command: &'a str,
    /// The document of `--json`, which the page has for download.
    pub document: &'a str,
}

/// The name of the page in a browser's tabs.
pub(super) fn title(results: &Results) -> String {
    match &results.jobs[..] {
        [job] => format!("{}: {}", job.job, job.verdict.name()),
        jobs => format!("Comparison of {} jobs", jobs.len()),
    }
}

/// Everything that a reader sees.
pub(super) fn body(html: &mut Html, results: &Results, source: Source<'_>) {
    html.element("header", &[], |html| {
        html.text_element("h1", &[], "uringfs bench compare");
        if results.incomplete {
            let line = format!("Incomplete: stopped after {} pairs", results.pairs);
            html.text_element("p", &[("class", &"incomplete")], line);
        }
        verdicts(html, results);
        sides(html, results);
    });
    for (index, job) in results.jobs.iter().enumerate() {
        html.element("section", &[("id", &job_id(index))], |html| job_section(html, job));
    }
    html.element("section", &[], |html| {
        html.text_element("h2", &[], "Conditions");
        condition_table(html, Some(results.effect), results.machine.as_ref());
        note_list(html, &notes(results), &results.files_made);
    });
    html.element("section", &[], |html| command(html, source.command));
    html.element("section", &[], |html| {
        download(html, source.document);
        results.jobs.iter().for_each(|job| samples(html, job, |html| job_name(html, &job.job)));
    });
}

/// The command that measured.
pub(super) fn command(html: &mut Html, command: &str) {
    html.text_element("h2", &[], "Command");
    html.element("pre", &[], |html| html.text_element("code", &[], command));
}

fn job_id(index: usize) -> String {
    format!("job-{}", index + 1)
}

fn verdicts(html: &mut Html, results: &Results) {
    if results.jobs.is_empty() {
        html.text_element("p", &[], "No job is on both sides.");
    }
    html.element("ul", &[("class", &"verdicts")], |html| {
        for (index, job) in results.jobs.iter().enumerate() {
            html.element("li", &[("class", &verdict_class(job.verdict))], |html| {
                html.text_element("strong", &[], sentence(job, results.effect));
                html.raw("<br>");
                let link = format!("#{}", job_id(index));
                html.element("a", &[("href", &link)], |html| job_name(html, &job.job));
            });
        }
    });
}

/// The look of a verdict.
pub(super) fn verdict_class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::NoDifference => "equal",
        Verdict::TooNoisy | Verdict::TooFewRuns => "unknown",
    }
}

pub(super) fn job_name(html: &mut Html, job: &str) {
    html.text("job ");
    html.text_element("code", &[], job);
}

/// The keys of both sides, and how often they ran.
fn sides(html: &mut Html, results: &Results) {
    html.element("dl", &[], |html| {
        for (letter, given) in ["a", "b"].iter().zip(&results.sides) {
            html.text_element("dt", &[("class", letter)], letter);
            html.element("dd", &[], |html| match given.is_empty() {
                true => html.text("the jobs as they are"),
                false => html.text_element("code", &[], given),
            });
        }
    });
    if let Some(line) = pairs_line(results) {
        html.text_element("p", &[], line);
    }
}

fn job_section(html: &mut Html, job: &JobComparison) {
    html.element("h2", &[], |html| job_name(html, &job.job));
    job_figures(html, job);
}

/// The table, the control, the plots and the counters of a job.
pub(super) fn job_figures(html: &mut Html, job: &JobComparison) {
    table(html, HEADS, rows(job));
    if let Some(line) = control_line(job) {
        html.text_element("p", &[], line);
    }
    html.element("div", &[("class", &"plots")], |html| {
        plots(job).iter().for_each(|plot| plot.write(html));
    });
    counters(html, job);
}

/// The counters of both sides, and those that only one has counted.
fn counters(html: &mut Html, job: &JobComparison) {
    let [a, b] = &job.counters;
    if a.is_empty() && b.is_empty() {
        return;
    }
    for (letter, names) in ["a", "b"].iter().zip(counters_of_one_side(job)) {
        if !names.is_empty() {
            let line = format!("counters of {letter} only: {}", names.join(", "));
            html.text_element("p", &[], line);
        }
    }
    let mut names: Vec<&String> = a.iter().chain(b).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let count = |side: &[(String, u64)], name: &String| {
        side.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count).to_string()
    };
    html.element("details", &[], |html| {
        html.text_element("summary", &[], "Counters of all runs");
        let rows = names.into_iter().map(|name| [name.clone(), count(a, name), count(b, name)]);
        table(html, ["counter", "a", "b"], rows);
    });
}

/// The program, the smallest difference that a verdict is about, and the machine.
pub(super) fn condition_table(html: &mut Html, effect: Option<f64>, machine: Option<&Machine>) {
    let mut rows = vec![["program".to_owned(), format!("uringfs {}", env!("CARGO_PKG_VERSION"))]];
    let effect = effect.map(effect_percent);
    rows.extend(effect.map(|effect| ["smallest difference that matters".to_owned(), effect]));
    rows.extend(machine.into_iter().flat_map(machine_rows));
    table(html, ["condition", "value"], rows);
}

/// Notes and the files that were laid out, if there are any.
pub(super) fn note_list(html: &mut Html, notes: &[String], files_made: &[String]) {
    if !notes.is_empty() {
        html.text_element("h3", &[], "Notes");
        html.element("ul", &[], |html| {
            notes.iter().for_each(|note| html.text_element("li", &[], note));
        });
    }
    if !files_made.is_empty() {
        html.text_element("p", &[], format!("Laid out {}", files_made.join(", ")));
    }
}

fn machine_rows(machine: &Machine) -> Vec<[String; 2]> {
    let governors = match machine.governors.is_empty() {
        true => "none: the kernel sets no frequencies".to_owned(),
        false => machine.governors.join(", "),
    };
    let model = if machine.model.is_empty() { "-" } else { &machine.model };
    let rows = [
        ("model", model.to_owned()),
        ("processors", machine.processors.to_string()),
        ("frequency governors", governors),
        ("clock source", machine.clock_source.clone()),
        ("reading of the clock", format!("{} ns", machine.clock_ns)),
        ("load average before", machine.load_before.to_string()),
        ("time taken by the hypervisor", format!("{:.1} %", machine.stolen * 100.0)),
    ];
    rows.map(|(name, value)| [name.to_owned(), value]).into()
}

/// A document with every sample to download.
pub(super) fn download(html: &mut Html, document: &str) {
    html.text_element("h2", &[], "Samples");
    let data = format!("data:application/json;base64,{}", STANDARD.encode(document));
    html.element("p", &[], |html| {
        html.text_element("a", &[("download", &"samples.json"), ("href", &data)], "samples.json");
        html.text(" has all values, as --json prints them.");
    });
}

/// Every sample of a job to read, below a name that is written by `name`.
pub(super) fn samples(html: &mut Html, job: &JobComparison, name: impl FnOnce(&mut Html)) {
    html.element("details", &[], |html| {
        html.element("summary", &[], |html| {
            html.text("Every run of ");
            name(html);
        });
        job.figures.iter().for_each(|figure| figure_samples(html, figure));
    });
}

fn figure_samples(html: &mut Html, figure: &FigureComparison) {
    html.text_element("h3", &[], format!("{} ({})", figure.name, figure.unit.name()));
    let all = [
        ("a", &figure.a),
        ("a again", &figure.again),
        ("b", &figure.b),
        ("bare ring", &figure.control),
    ];
    let samples: Vec<_> = all.into_iter().filter(|(_, sample)| !sample.is_empty()).collect();
    let runs = samples.iter().map(|(_, sample)| sample.len()).max().unwrap_or(0);
    let value = |sample: &[f64], run: usize| match sample.get(run) {
        Some(value) if !value.is_nan() => value.to_string(),
        _ => "-".to_owned(),
    };
    let first = if figure.again.is_empty() { "run" } else { "pair" };
    let heads = [first].into_iter().chain(samples.iter().map(|(name, _)| *name));
    let rows = (0..runs).map(|run| {
        let values = samples.iter().map(|(_, sample)| value(sample, run));
        [(run + 1).to_string()].into_iter().chain(values).collect::<Vec<_>>()
    });
    table(html, heads, rows);
}

/// A table that scrolls by itself if it is wider than the page. The first cell of a row is its head.
pub(super) fn table<Cell: Display, Row: IntoIterator<Item = Cell>>(
    html: &mut Html,
    heads: impl IntoIterator<Item = impl Display>,
    rows: impl IntoIterator<Item = Row>,
) {
    html.element("div", &[("class", &"scroll")], |html| {
        html.element("table", &[], |html| {
            html.element("tr", &[], |html| {
                for head in heads {
                    html.text_element("th", &[("scope", &"col")], head);
                }
            });
            for row in rows {
                html.element("tr", &[], |html| {
                    for (index, cell) in row.into_iter().enumerate() {
                        match index {
                            0 => html.text_element("th", &[("scope", &"row")], cell),
                            _ => html.text_element("td", &[], cell),
                        }
                    }
                });
            }
        });
    });
}
