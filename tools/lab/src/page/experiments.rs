//! The sections of a page of experiments.

use super::html::Html;
use super::sections::{
    Source, command, condition_table, download, job_figures, note_list, samples, table,
    verdict_class,
};
use crate::compare::{pairs_line, sentence};
use crate::experiments::{
    CompletedComparison, ExperimentResults, counter_lines, detail_lines, heads, incomplete_line,
    notes, rows, side_lines, source_lines,
};

/// The name of the page in a browser's tabs.
pub(super) fn title(results: &[ExperimentResults]) -> String {
    match results {
        [one] => format!("{} on {}", one.experiment, one.target),
        several => format!("{} experiments", several.len()),
    }
}

/// Everything that a reader sees.
pub(super) fn body(html: &mut Html, results: &[ExperimentResults], source: Source<'_>) {
    html.element("header", &[], |html| {
        html.text_element("h1", &[], "uringfs bench experiment");
        for line in results.iter().filter_map(incomplete_line) {
            html.text_element("p", &[("class", &"incomplete")], line);
        }
        for experiment in results {
            overview(html, experiment);
        }
    });
    for experiment in results {
        for (index, comparison) in experiment.comparisons.iter().enumerate() {
            let id = comparison_id(experiment, index);
            html.element("section", &[("id", &id)], |html| {
                comparison_section(html, experiment, comparison);
            });
        }
    }
    html.element("section", &[], |html| conditions(html, results));
    html.element("section", &[], |html| command(html, source.command));
    html.element("section", &[], |html| {
        download(html, source.document);
        for experiment in results {
            for comparison in &experiment.comparisons {
                for job in &comparison.results.jobs {
                    samples(html, job, |html| html.text(name(experiment, comparison)));
                }
            }
        }
    });
}

fn comparison_id(experiment: &ExperimentResults, index: usize) -> String {
    format!("{}-{}", experiment.experiment, index + 1)
}

fn name(experiment: &ExperimentResults, comparison: &CompletedComparison) -> String {
    format!("{}, {}", experiment.experiment, comparison.label())
}

/// The verdicts, then the published table beside the measured one.
fn overview(html: &mut Html, results: &ExperimentResults) {
    html.element("h2", &[], |html| {
        html.text_element("code", &[], results.experiment);
        html.text(" on ");
        html.text_element("code", &[], &results.target);
    });
    html.text_element("p", &[], results.about);
    side_lines(results).for_each(|line| html.text_element("p", &[], line));
    html.element("ul", &[("class", &"verdicts")], |html| {
        for (index, comparison) in results.comparisons.iter().enumerate() {
            let Some(job) = comparison.job() else { continue };
            html.element("li", &[("class", &verdict_class(job.verdict))], |html| {
                html.text_element("strong", &[], sentence(job, comparison.results.effect));
                html.raw("<br>");
                let link = format!("#{}", comparison_id(results, index));
                html.text_element("a", &[("href", &link)], comparison.label());
                for line in detail_lines(comparison) {
                    html.raw("<br>");
                    html.text(line);
                }
            });
        }
    });
    table(html, heads(results).iter().copied(), rows(results));
    source_lines(results.experiment).for_each(|line| html.text_element("p", &[], line));
    counter_lines(results).for_each(|line| html.text_element("p", &[], line));
}

/// One comparison: its sides, its figures and its plots.
fn comparison_section(
    html: &mut Html,
    experiment: &ExperimentResults,
    comparison: &CompletedComparison,
) {
    html.text_element("h2", &[], name(experiment, comparison));
    html.element("dl", &[], |html| {
        let sides = ["a", "b"].iter().zip(&comparison.names).zip(&comparison.results.sides);
        for ((letter, name), keys) in sides {
            html.text_element("dt", &[("class", letter)], letter);
            html.element("dd", &[], |html| {
                html.text(format!("{name}: "));
                html.text_element("code", &[], keys);
            });
        }
    });
    if let Some(line) = pairs_line(&comparison.results) {
        html.text_element("p", &[], line);
    }
    comparison.results.jobs.iter().for_each(|job| job_figures(html, job));
}

/// The machine and the rules, which are those of the first comparison, and the notes of all.
fn conditions(html: &mut Html, results: &[ExperimentResults]) {
    html.text_element("h2", &[], "Conditions");
    let mut comparisons = results.iter().flat_map(|experiment| &experiment.comparisons);
    if let Some(first) = comparisons.next() {
        condition_table(html, Some(first.results.effect), first.results.machine.as_ref());
    }
    let mut lines: Vec<String> = Vec::new();
    for line in results.iter().flat_map(notes) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    note_list(html, &lines, &[]);
}
