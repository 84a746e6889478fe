//! Prints experiments as text or JSON: the published table beside the measured one, then a word for each comparison.

use super::published::{PublishedRow, PublishedTable, remark, tables};
use super::reason;
use super::run::{CompletedComparison, ExperimentResults};
use crate::compare::{self, Unit, control_line, counters_json, sentence};
use crate::stats::median;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

/// The heads of the columns of [`rows`]; the last three are those of published tables.
const HEADS: &[&str] =
    &["case", "a", "b", "gain", "95 % interval", "pairs", "published a", "published b", "gain"];

/// The columns without published ones.
const MEASURED: usize = 6;

/// An experiment as text.
pub fn text(results: &ExperimentResults) -> String {
    let mut text = format!("{} on {}: {}\n", results.experiment, results.target, results.about);
    text.extend(side_lines(results).map(|line| line + "\n"));
    text += &format!("\n{}\n", table(results).trim_fmt());
    text.extend(source_lines(results.experiment).map(|line| line + "\n"));
    for comparison in &results.comparisons {
        text += &format!("\n{}\n", conclusion(comparison));
        text.extend(detail_lines(comparison).map(|line| format!("  {line}\n")));
    }
    text.push('\n');
    text.extend(counter_lines(results).map(|line| line + "\n"));
    text.extend(notes(results).into_iter().map(|line| format!("note: {line}\n")));
    text.extend(incomplete_line(results).map(|line| line + "\n"));
    text
}

/// The names and keys of the mechanism switched off and on.
pub(crate) fn side_lines(results: &ExperimentResults) -> impl Iterator<Item = String> {
    let mechanism = results.comparisons.iter().find(|comparison| !comparison.is_beside);
    let sides = mechanism.map(|comparison| {
        let letters = ["a", "b"].iter().zip(&results.names).zip(&comparison.results.sides);
        letters.map(|((letter, name), keys)| format!("{letter}: {name} ({keys})"))
    });
    sides.into_iter().flatten()
}

/// How many comparisons of an experiment have ended, if the user stopped them.
pub(crate) fn incomplete_line(results: &ExperimentResults) -> Option<String> {
    let ended = results.comparisons.len();
    let name = results.experiment;
    results.incomplete.then(|| format!("Incomplete: {name} was stopped after {ended} comparisons"))
}

/// The heads of the table: without those of published figures if there are none.
pub(crate) fn heads(results: &ExperimentResults) -> &'static [&'static str] {
    match tables(results.experiment).next() {
        Some(_) => HEADS,
        None => &HEADS[..MEASURED],
    }
}

/// The rows of the table: the comparisons, then published rows of other I/O.
pub(crate) fn rows(results: &ExperimentResults) -> Vec<Vec<String>> {
    let measured = results.comparisons.iter().map(|comparison| {
        let mut row = measured_cells(comparison);
        let of_case = |row: &PublishedRow| {
            !comparison.is_beside && row.case == Some(comparison.case.as_str())
        };
        let published = published_rows(results.experiment).find(|(_, row)| of_case(row));
        row.extend(published.map_or_else(no_cells, |(number, row)| published_cells(number, row)));
        row
    });
    let is_shown = |row: &PublishedRow| {
        results.comparisons.iter().any(|comparison| row.case == Some(comparison.case.as_str()))
    };
    let others = published_rows(results.experiment).filter(|(_, row)| !is_shown(row));
    let others = others.map(|(number, row)| {
        let mut cells = vec![format!("{} [{number}]", row.label)];
        cells.extend(["-"; MEASURED - 1].map(str::to_owned));
        cells.extend(published_cells(number, row));
        cells
    });
    let mut rows: Vec<Vec<String>> = measured.chain(others).collect();
    rows.iter_mut().for_each(|row| row.truncate(heads(results).len()));
    rows
}

/// All published rows, with the numbers of their tables.
fn published_rows(
    experiment: &'static str,
) -> impl Iterator<Item = (usize, &'static PublishedRow)> {
    let numbered = tables(experiment).enumerate();
    numbered.flat_map(|(index, table)| table.rows.iter().map(move |row| (index + 1, row)))
}

fn measured_cells(comparison: &CompletedComparison) -> Vec<String> {
    let mut cells = vec![comparison.label()];
    match comparison.job().map(|job| job.rate()) {
        Some(rate) => cells.extend([
            rate.unit.amount(median(&rate.a)),
            rate.unit.amount(median(&rate.b)),
            gain(rate.ratio.ratio),
            match rate.ratio.low.is_nan() {
                true => "-".into(),
                false => format!("{} to {}", gain(rate.ratio.low), gain(rate.ratio.high)),
            },
        ]),
        None => cells.extend(["-"; 4].map(str::to_owned)),
    }
    cells.push(comparison.results.pairs.to_string());
    cells
}

fn published_cells(number: usize, row: &PublishedRow) -> Vec<String> {
    let rate = |value| Unit::PerSecond.amount(value);
    vec![rate(row.off), rate(row.on), format!("{} [{number}]", gain(row.ratio()))]
}

fn no_cells() -> Vec<String> {
    ["-"; 3].map(str::to_owned).into()
}

/// A ratio as a difference from 1.
fn gain(ratio: f64) -> String {
    if ratio.is_nan() { "-".into() } else { format!("{:+.1} %", (ratio - 1.0) * 100.0) }
}

fn table(results: &ExperimentResults) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(heads(results));
    table.add_rows(rows(results));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The sources of the published tables, or that there is none.
pub(crate) fn source_lines(experiment: &'static str) -> impl Iterator<Item = String> {
    let none = remark(experiment).map(|remark| format!("no published table: {remark}"));
    let numbered = (1..).zip(tables(experiment));
    numbered.flat_map(|(number, table)| lines_of_source(number, table)).chain(none)
}

fn lines_of_source(number: usize, table: &PublishedTable) -> [String; 3] {
    let PublishedTable { title, author, date, source, hardware, workload, beside, .. } = table;
    let rate = |value: f64| Unit::PerSecond.amount(value);
    let beside = beside.iter().map(|(what, value)| format!("; {what}: {}", rate(*value)));
    let beside: String = beside.collect();
    [
        format!("[{number}] {author}, {date}: {title}"),
        format!("    {workload}; {hardware}{beside}"),
        format!("    {source}"),
    ]
}

/// The case and the word.
fn conclusion(comparison: &CompletedComparison) -> String {
    let word = match comparison.job() {
        Some(job) => sentence(job, comparison.results.effect),
        None => "no job is on both sides".into(),
    };
    format!("{}: {word}", comparison.label())
}

/// The costs of both sides, the control, and why the mechanism does not show.
pub(crate) fn detail_lines(comparison: &CompletedComparison) -> impl Iterator<Item = String> {
    let job = comparison.job();
    let costs = job.map(|job| {
        let costs = job.figures.iter().filter(|figure| figure.name.ends_with(" per I/O"));
        let costs = costs.map(|figure| {
            let [a, b] = [&figure.a, &figure.b].map(|sample| figure.unit.amount(median(sample)));
            format!("{} {a} -> {b}", figure.name)
        });
        costs.collect::<Vec<_>>().join("; ")
    });
    let costs = costs.filter(|line| !line.is_empty());
    let control = job.and_then(control_line);
    costs.into_iter().chain(control).chain(why(comparison).map(|why| format!("why: {why}")))
}

/// Why the comparison does not show that the mechanism is faster.
fn why(comparison: &CompletedComparison) -> Option<String> {
    let processors = comparison.results.machine.as_ref().map_or(1, |machine| machine.processors);
    reason::reason(comparison.job()?, comparison.threads, processors, comparison.why)
}

/// The counters of both sides that show which path the I/O took, zeros too.
pub(crate) fn counter_lines(results: &ExperimentResults) -> impl Iterator<Item = String> {
    let sums = results.counter_sums();
    let lines = results.names.iter().zip(sums).filter(|_| !results.counters.is_empty());
    lines.map(move |(name, sum)| {
        let texts = results.counters.iter().map(|begin| counter_text(&sum, begin));
        format!("counters of {name}: {}", texts.collect::<Vec<_>>().join(", "))
    })
}

/// The counters with this prefix; `PREFIX 0` without any.
fn counter_text(counters: &[(String, u64)], begin: &str) -> String {
    let counted = counters.iter().filter(|(name, _)| name.starts_with(begin));
    let lines: Vec<_> = counted.map(|(name, count)| format!("{name} {count}")).collect();
    if lines.is_empty() { format!("{begin} 0") } else { lines.join(", ") }
}

/// The notes of all comparisons, each once, and what makes the machine noisy. Those of sides beside the mechanism name them.
pub(crate) fn notes(results: &ExperimentResults) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for comparison in &results.comparisons {
        for note in &comparison.results.notes {
            let line = match comparison.is_beside {
                true => format!("beside {}: {note}", comparison.names[0]),
                false => note.clone(),
            };
            if !lines.contains(note) && !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    let machine = results.comparisons.first().and_then(|first| first.results.machine.as_ref());
    lines.extend(machine.into_iter().flat_map(|machine| machine.warnings()));
    lines
}

/// An experiment as JSON. Each comparison has the fields of [`compare::json`].
pub fn json(results: &ExperimentResults) -> Value {
    let comparisons: Vec<_> = results
        .comparisons
        .iter()
        .map(|comparison| comparison_json(results.experiment, comparison))
        .collect();
    let [a, b] = results.counter_sums();
    json!({
        "experiment": results.experiment,
        "about": results.about,
        "target": results.target,
        "names": {"a": results.names[0], "b": results.names[1]},
        "comparisons": comparisons,
        "counters": {"a": counters_json(&a), "b": counters_json(&b)},
        "published": tables(results.experiment).map(table_json).collect::<Vec<_>>(),
        "incomplete": results.incomplete,
    })
}

fn comparison_json(experiment: &str, comparison: &CompletedComparison) -> Value {
    let mut document = json!({
        "experiment": experiment,
        "case": comparison.case,
        "names": {"a": comparison.names[0], "b": comparison.names[1]},
        "is_beside": comparison.is_beside,
        "why": why(comparison),
    });
    if let (Value::Object(all), Value::Object(own)) =
        (&mut document, compare::json(&comparison.results))
    {
        all.extend(own);
    }
    document
}

fn table_json(table: &PublishedTable) -> Value {
    let rows = table.rows.iter().map(|row| {
        json!({
            "row": row.label,
            "case": row.case,
            "a": row.off,
            "b": row.on,
            "b_by_a": row.ratio(),
        })
    });
    let beside = table.beside.iter().map(|(what, value)| ((*what).to_owned(), json!(value)));
    json!({
        "title": table.title,
        "author": table.author,
        "date": table.date,
        "source": table.source,
        "hardware": table.hardware,
        "workload": table.workload,
        "unit": Unit::PerSecond.name(),
        "rows": rows.collect::<Vec<_>>(),
        "beside": beside.collect::<Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{FigureComparison, JobComparison, Results};
    use crate::stats::{RatioInterval, Verdict};

    fn comparison(case: &str, is_beside: bool, verdict: Verdict) -> CompletedComparison {
        let interval = |ratio: f64| RatioInterval { ratio, low: ratio - 0.01, high: ratio + 0.01 };
        let figure = |name: &str, unit, value: f64| FigureComparison {
            name: name.into(),
            unit,
            a: vec![value; 6],
            again: vec![value; 6],
            b: vec![value * 1.2; 6],
            control: vec![value * 1.5; 6],
            ratio: interval(1.2),
            noise: interval(1.0),
            sign_test: 0.03,
        };
        let job = JobComparison {
            job: "simple-read".into(),
            figures: vec![
                figure("rate", Unit::PerSecond, 500_000.0),
                figure("CPU per I/O", Unit::Nanoseconds, 1_000.0),
            ],
            counters: [
                vec![("direct.slow_path".into(), 7)],
                vec![("direct.fast_path.taken".into(), 8)],
            ],
            verdict,
            more_pairs: None,
        };
        CompletedComparison {
            case: case.into(),
            names: [if is_beside { "ext4" } else { "slow path" }.into(), "fast path".into()],
            is_beside,
            threads: 1,
            why: "it is close",
            results: Results {
                sides: ["direct.simple_read=off".into(), "direct.simple_read=on".into()],
                jobs: vec![job],
                pairs: 6,
                effect: 0.05,
                seed: Some(7),
                seconds: 12.3,
                machine: None,
                files_made: Vec::new(),
                notes: vec!["a note".into()],
                incomplete: false,
            },
        }
    }

    fn results(experiment: &'static str) -> ExperimentResults {
        ExperimentResults {
            experiment,
            about: "two paths",
            target: "image".into(),
            names: ["slow path".into(), "fast path".into()],
            comparisons: vec![
                comparison("depth 128", false, Verdict::Faster),
                comparison("depth 128", true, Verdict::NoDifference),
                comparison("depth 512", false, Verdict::Faster),
            ],
            counters: &["direct.fast_path", "direct.slow_path"],
            incomplete: true,
        }
    }

    #[test]
    fn the_text_has_both_tables_the_words_the_reasons_and_the_counters() {
        let text = text(&results("simple-read"));
        let mut rest = text.as_str();
        for part in [
            "simple-read on image: two paths\na: slow path (direct.simple_read=off)\nb: fast path (direct",
            "published a",
            "depth 128 ",
            "depth 128, beside ext4 ",
            "depth 512",
            "+20.0 %  +19.0 % to +21.0 %",
            "1920 k/s",
            "+14.1 % [1]",
            "[1] Fengnan Chang, 2026-06-30: ",
            "raw device: 3200 k/s\n    https://",
            "\ndepth 128: b is faster: its rate is 20.0 % higher (19.0 % to 21.0 %)\n  CPU per I/O 1.00 us -> 1.20 us\n",
            "  bare ring: 750 k/s, of which a has 0.67 and b 0.80\n",
            "depth 128, beside ext4: no difference shown: less than 5 % either way\n",
            "  why: possibly: the target limits the rate, as the threads of b compute for 72 % of the time",
            "counters of slow path: direct.fast_path 0, direct.slow_path 14\n",
            "counters of fast path: direct.fast_path.taken 16, direct.slow_path 0\n",
            "note: a note\n",
            "Incomplete: simple-read was stopped after 3 comparisons\n",
        ] {
            rest = rest.split_once(part).unwrap_or_else(|| panic!("no `{part}` in\n{text}")).1;
        }
    }

    #[test]
    fn published_rows_without_a_case_follow_and_an_experiment_without_a_table_says_so() {
        let rows = rows(&results("completion"));
        let labels: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(labels[..3], ["depth 128", "depth 128, beside ext4", "depth 512"]);
        assert_eq!(
            labels[3..],
            ["depth 1", "depth 2", "depth 4", "depth 8", "depth 16"]
                .map(|depth| format!("{depth} [1]"))
        );
        assert_eq!(rows[7][6..], ["615 k/s", "845 k/s", "+37.4 % [1]"]);
        let without = results("fixed-files");
        assert!(super::rows(&without).iter().all(|row| row.len() == MEASURED));
        assert!(text(&without).contains("no published table: "));
    }

    #[test]
    fn json_has_the_fields_of_comparisons_and_the_published_table() {
        let json = json(&results("simple-read"));
        let comparison = &json["comparisons"][1];
        assert_eq!((&comparison["case"], &comparison["pairs"]), (&"depth 128".into(), &6.into()));
        assert_eq!(comparison["experiment"], "simple-read");
        assert_eq!(comparison["jobs"][0]["verdict"], "no difference shown");
        assert_eq!(
            (&comparison["names"]["a"], &comparison["is_beside"]),
            (&"ext4".into(), &true.into())
        );
        assert!(comparison["why"].is_string() && json["comparisons"][0]["why"].is_null());
        assert_eq!(json["published"][0]["rows"][0]["b"], 2.19e6);
        assert_eq!(json["published"][0]["beside"]["raw device"], 3.2e6);
        assert_eq!(json["counters"]["b"]["direct.fast_path.taken"], 16);
    }
}
