//! Prints the results of an experiment as a table or JSON.

use super::case::SideFigures;
use super::driver::{CaseResult, ExperimentResults};
use crate::engine::add_counters;
use crate::stats::{MIN_VALUES, MedianInterval, median};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

/// The results as a table.
pub fn table(results: &ExperimentResults) -> String {
    let sides = &results.sides;
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let beside = sides.beside.iter().map(|side| side.name.clone());
    let has_words = results.cases.iter().any(|row| !row.case.what.is_empty());
    let mut header = if has_words { vec!["what".into()] } else { Vec::new() };
    header.extend(["depth".into(), "queue".into(), sides.control.name.clone()]);
    header.extend([sides.a.name.clone(), sides.b.name.clone()]);
    header.extend(beside);
    header.push(format!("{} / {}", sides.b.name, sides.a.name));
    header.push("noise".into());
    header.extend(["CPU ns per I/O".into(), "switches per I/O".into()]);
    table.set_header(header);
    for case in &results.cases {
        let mut row = if has_words { vec![case.case.what.to_owned()] } else { Vec::new() };
        row.extend([case.depth.to_string(), case.b.queue.clone()]);
        let measured = [&case.control, &case.a, &case.b].into_iter().chain(&case.beside);
        row.extend(measured.map(|side| side.median().map_or("-".into(), thousands)));
        row.push(verdict(case.ratio, 1.0));
        // There is one ratio less than there are runs.
        let noise = Some(case.noise).filter(|noise| !noise.low.is_nan());
        row.push(noise.map_or("-".into(), |noise| format!("{:.3}-{:.3}", noise.low, noise.high)));
        row.push(costs(case, |side| format!("{:.0}", median(&side.cpu_ns))));
        row.push(costs(case, |side| format!("{:.2}", median(&side.switches))));
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(if has_words { 3 } else { 2 }) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let pairs = results.cases.first().map_or(0, |case| case.a.iops.len());
    let mut text = format!(
        "{} on {}: I/Os a second, medians of {pairs} interleaved pairs; ratio with 95 % interval\n{table}\n",
        results.experiment, results.target
    );
    if pairs < MIN_VALUES {
        text += &format!(
            "no verdict from {pairs} pairs: a 95 % interval needs --pairs {MIN_VALUES} or more\n"
        );
    }
    for (name, counters) in [&sides.a.name, &sides.b.name].into_iter().zip(counters(results)) {
        let texts: Vec<_> =
            results.counters.iter().map(|begin| counter_text(&counters, begin)).collect();
        if !texts.is_empty() {
            text += &format!("counters of {name}: {}\n", texts.join(", "));
        }
    }
    text
}

/// A figure of the off side, the on side and, in parentheses, the further sides.
fn costs(case: &CaseResult, figure: impl Fn(&SideFigures) -> String) -> String {
    let beside: Vec<_> =
        case.beside.iter().map(|side| side.median().map_or("-".into(), |_| figure(side))).collect();
    let sides = format!("{} -> {}", figure(&case.a), figure(&case.b));
    if beside.is_empty() { sides } else { format!("{sides} ({})", beside.join(", ")) }
}

/// The counters of both sides, summed over all cases.
fn counters(results: &ExperimentResults) -> [Vec<(String, u64)>; 2] {
    let mut sums = [Vec::new(), Vec::new()];
    for case in &results.cases {
        add_counters(&mut sums[0], &case.a.counters);
        add_counters(&mut sums[1], &case.b.counters);
    }
    sums
}

/// The counters with this prefix; `PREFIX 0` without any.
fn counter_text(counters: &[(String, u64)], begin: &str) -> String {
    let counted = counters.iter().filter(|(name, _)| name.starts_with(begin));
    let lines: Vec<_> = counted.map(|(name, count)| format!("{name} {count}")).collect();
    if lines.is_empty() { format!("{begin} 0") } else { lines.join(", ") }
}

fn thousands(iops: f64) -> String {
    format!("{:.1}k", iops / 1e3)
}

/// The ratio, and a verdict if its interval excludes `equal`. Without an interval there is no verdict.
fn verdict(ratio: MedianInterval, equal: f64) -> String {
    if ratio.low.is_nan() {
        return format!("{:.3} no verdict", ratio.median);
    }
    let word = if ratio.low > equal {
        "better"
    } else if ratio.high < equal {
        "worse"
    } else {
        "no difference"
    };
    format!("{:.3} [{:.3}, {:.3}] {word}", ratio.median, ratio.low, ratio.high)
}

/// The results as JSON.
pub fn json(results: &ExperimentResults) -> Value {
    let sides = &results.sides;
    let side = |name: &str, measured: &SideFigures| {
        json!({
            "name": name,
            "iops": measured.median(),
            "runs": measured.iops,
            "cpu_ns_per_io": measured.median().map(|_| median(&measured.cpu_ns)),
            "context_switches_per_io": measured.median().map(|_| median(&measured.switches)),
        })
    };
    let interval =
        |MedianInterval { median, low, high }| json!({"median": median, "low": low, "high": high});
    let mut rows = Vec::new();
    for case in &results.cases {
        let mut what = Map::from_iter([
            ("queue".to_owned(), json!(case.b.queue)),
            ("depth".to_owned(), json!(case.depth)),
        ]);
        if !case.case.what.is_empty() {
            what.insert("what".to_owned(), json!(case.case.what));
        }
        what.extend(case.case.keys.iter().map(|(key, value)| ((*key).to_owned(), json!(value))));
        let beside = sides.beside.iter().zip(&case.beside);
        rows.push(json!({
            "case": what,
            "a": side(&sides.a.name, &case.a),
            "b": side(&sides.b.name, &case.b),
            "control": side(&sides.control.name, &case.control),
            "beside": beside.map(|(it, measured)| side(&it.name, measured)).collect::<Vec<_>>(),
            "ratio": interval(case.ratio),
            "noise": interval(case.noise),
        }));
    }
    let object = |counters: &[(String, u64)]| {
        counters.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<Map<_, _>>()
    };
    let [of_a, of_b] = counters(results);
    json!({
        "experiment": results.experiment,
        "target": results.target,
        "cases": rows,
        "counters": {"a": object(&of_a), "b": object(&of_b)},
    })
}
