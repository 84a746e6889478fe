//! The sections of the page of a sweep, in their order.

use super::html::Html;
use super::sections::{Source, command, condition_table, download, job_name, note_list, table};
use super::sweep_plots::plots;
use crate::sweep::{FigureCells, JobCells, Results, figure_table, summary};

/// The name of the page in a browser's tabs.
pub(super) fn title(results: &Results) -> String {
    let keys: Vec<&str> = results.grid.axes().iter().map(|axis| axis.key.as_str()).collect();
    format!("Sweep over {}", keys.join(", "))
}

/// Everything that a reader sees.
pub(super) fn body(html: &mut Html, results: &Results, source: Source<'_>) {
    html.element("header", &[], |html| {
        html.text_element("h1", &[], "uringfs bench sweep");
        if results.incomplete {
            let line = format!("Incomplete: stopped after round {}", results.rounds);
            html.text_element("p", &[("class", &"incomplete")], line);
        }
        keys(html, results);
        html.text_element("p", &[], summary(results));
    });
    for job in &results.jobs {
        html.element("section", &[], |html| job_section(html, results, job));
    }
    html.element("section", &[], |html| {
        html.text_element("h2", &[], "Conditions");
        condition_table(html, None, Some(&results.machine));
        note_list(html, &results.all_notes(), &results.files_made);
    });
    html.element("section", &[], |html| command(html, source.command));
    html.element("section", &[], |html| samples(html, results, source.document));
}

/// The keys and their values, and those of every cell.
fn keys(html: &mut Html, results: &Results) {
    html.element("dl", &[], |html| {
        for axis in results.grid.axes() {
            html.element("dt", &[], |html| html.text_element("code", &[], &axis.key));
            html.element("dd", &[], |html| html.text_element("code", &[], axis.values.join(", ")));
        }
        if !results.shared_keys.is_empty() {
            html.text_element("dt", &[], "all cells");
            let shared = results.shared_keys.join(" ");
            html.element("dd", &[], |html| html.text_element("code", &[], shared));
        }
    });
}

fn job_section(html: &mut Html, results: &Results, job: &JobCells) {
    html.element("h2", &[], |html| job_name(html, &job.job));
    html.element("div", &[("class", &"plots")], |html| {
        plots(results, job).iter().for_each(|plot| plot.write(html));
    });
    for figure in &job.figures {
        html.text_element("h3", &[], &figure.name);
        let shown = figure_table(results, &job.job, figure);
        table(html, shown.header, shown.rows);
    }
    counters(html, results, job);
}

/// The counters of each cell.
fn counters(html: &mut Html, results: &Results, job: &JobCells) {
    let mut names: Vec<&String> = job.counters.iter().flatten().map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        return;
    }
    let count = |cell: &Vec<(String, u64)>, name: &String| {
        cell.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count).to_string()
    };
    html.element("details", &[], |html| {
        html.text_element("summary", &[], "Counters of all rounds");
        let heads =
            std::iter::once("cell".to_owned()).chain(names.iter().map(|name| (*name).clone()));
        let rows = job.counters.iter().enumerate().map(|(index, cell)| {
            let counts = names.iter().map(|name| count(cell, name));
            std::iter::once(cell_name(results, index)).chain(counts).collect::<Vec<_>>()
        });
        table(html, heads, rows);
    });
}

/// Every value, to read and to download.
fn samples(html: &mut Html, results: &Results, document: &str) {
    download(html, document);
    for job in &results.jobs {
        html.element("details", &[], |html| {
            html.element("summary", &[], |html| {
                html.text("Every round of ");
                job_name(html, &job.job);
            });
            job.figures.iter().for_each(|figure| figure_samples(html, results, figure));
        });
    }
}

fn figure_samples(html: &mut Html, results: &Results, figure: &FigureCells) {
    html.text_element("h3", &[], format!("{} ({})", figure.name, figure.unit.name()));
    let rounds = (1..=results.rounds).map(|round| format!("round {round}"));
    let heads = std::iter::once("cell".to_owned()).chain(rounds);
    let value = |value: &f64| if value.is_nan() { "-".to_owned() } else { value.to_string() };
    let rows = figure.cells.iter().enumerate().map(|(index, cell)| {
        let values = cell.values.iter().map(value);
        std::iter::once(cell_name(results, index)).chain(values).collect::<Vec<_>>()
    });
    table(html, heads, rows);
}

/// `iodepth=64 engine=ring`
fn cell_name(results: &Results, index: usize) -> String {
    let keys = results.grid.keys(index).into_iter().map(|(key, value)| format!("{key}={value}"));
    keys.collect::<Vec<_>>().join(" ")
}
