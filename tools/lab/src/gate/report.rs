//! Prints a recording and a gate, as text or JSON.

use super::baseline::Baseline;
use super::judge::{CounterChange, FALSE_ALARMS, FigureJudgement, GateResults, JobJudgement};
use super::series::JobSeries;
use crate::compare::{Machine, Unit, machine_json};
use crate::stats::{RatioInterval, median};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

/// The figures of a baseline, as multiples of the bare ring's, and its counters.
pub fn recorded_text(baseline: &Baseline) -> String {
    let mut text = String::new();
    for job in &baseline.jobs {
        text += &format!("job `{}`\n{}\n", job.job, recorded_table(job));
        let counters: Vec<_> = job.counters.iter().map(|counter| counter.name.as_str()).collect();
        if !counters.is_empty() {
            text += &format!("counters: {}\n", counters.join(", "));
        }
        text += "\n";
    }
    text
}

fn recorded_table(job: &JobSeries) -> Table {
    let mut table = empty_table(["", "median", "by the bare ring's"]);
    for figure in &job.figures {
        table.add_row([
            figure.name.clone(),
            figure.unit.amount(median(&figure.values)),
            multiple(figure.multiple()),
        ]);
    }
    aligned(table)
}

/// The gate as text: a table and a sentence for each job, and the outcome in the last line.
pub fn text(results: &GateResults) -> String {
    let mut text = format!("baseline: {} pairs, {}\n", results.recorded_pairs, results.recorded);
    text += &format!(
        "{} pairs in {:.0} s, in random order (--seed {}); figures by the bare ring's\n",
        results.pairs, results.seconds, results.seed
    );
    if results.measured_twice {
        text += "measured twice, as a figure got worse in the first measurement; the tables are of the second\n";
    }
    for job in &results.jobs {
        text += &format!("\njob `{}`\n{}\n", job.job, job_table(job));
        for line in sentences(job) {
            text += &format!("{line}\n");
        }
    }
    text += "\n";
    let warnings = results.machine.iter().flat_map(Machine::warnings);
    for line in results.notes.iter().cloned().chain(warnings) {
        text += &format!("note: {line}\n");
    }
    if !results.files_made.is_empty() {
        text += &format!("Laid out {}\n", results.files_made.join(", "));
    }
    text + &outcome(results)
}

fn job_table(job: &JobJudgement) -> Table {
    let mut table = empty_table(["", "recorded", "now", "now / recorded", "interval", "finds"]);
    for figure in &job.figures {
        table.add_row([
            figure.name.clone(),
            multiple(figure.recorded),
            multiple(figure.now),
            multiple(figure.ratio.ratio),
            range(&figure.ratio),
            figure.smallest_found.map_or("-".into(), |found| percent(worse(figure.unit, found))),
        ]);
    }
    aligned(table)
}

/// A line for each figure that is worse and each counter that changed; `passed` without any.
fn sentences(job: &JobJudgement) -> Vec<String> {
    let mut lines: Vec<String> =
        job.figures.iter().filter(|figure| figure.is_worse).map(worse_figure).collect();
    lines.extend(job.counters.iter().map(changed_counter));
    if lines.is_empty() {
        lines.push("passed".into());
    }
    lines
}

fn worse_figure(figure: &FigureJudgement) -> String {
    let RatioInterval { ratio, low, high } = figure.ratio;
    let (word, sign, [least, most]) = match figure.unit {
        Unit::PerSecond => ("lower", -1.0, [high, low]),
        Unit::Nanoseconds | Unit::PerIo => ("higher", 1.0, [low, high]),
    };
    let change = |ratio: f64| percent(sign * (ratio - 1.0));
    let confirmed = figure.first_ratio.map_or(String::new(), |first| {
        format!("; in the first measurement it was {} {word}", change(first))
    });
    let [middle, least, most] = [ratio, least, most].map(change);
    format!("FAILED: {} is {middle} {word} ({least} to {most}){confirmed}", figure.name)
}

fn changed_counter(change: &CounterChange) -> String {
    let amount = |per_io: f64| match per_io {
        0.0 => "never".to_owned(),
        per_io if per_io < 0.01 => format!("{:.1e} per I/O", per_io),
        per_io => format!("{per_io:.2} per I/O"),
    };
    let CounterChange { name, recorded, now } = change;
    format!("FAILED: counter {name}: {} when recorded, {} now", amount(*recorded), amount(*now))
}

/// The last line.
fn outcome(results: &GateResults) -> String {
    let failed = results.jobs.iter().filter(|job| job.fails()).count();
    let found: Vec<_> = results.smallest_found().into_iter().map(smallest).collect();
    let finds = match found.is_empty() {
        true => "it compared counters alone".to_owned(),
        false => format!("19 of 20 gates like this find {}", found.join(" or ")),
    };
    match failed {
        _ if results.incomplete => format!("Incomplete: stopped after {} pairs\n", results.pairs),
        0 => format!("gate passed: nothing got worse; {finds}\n"),
        1 => "gate FAILED: 1 job got worse\n".into(),
        failed => format!("gate FAILED: {failed} jobs got worse\n"),
    }
}

/// The smallest change that a gate finds, in words.
fn smallest((name, unit, found): (&str, Unit, f64)) -> String {
    let way = if unit == Unit::PerSecond { "lower" } else { "higher" };
    format!("{name} {} {way}", percent(worse(unit, found)))
}

/// A change for the worse by a factor 1 + `change`, as a share of the figure.
fn worse(unit: Unit, change: f64) -> f64 {
    match unit {
        Unit::PerSecond => change / (1.0 + change),
        Unit::Nanoseconds | Unit::PerIo => change,
    }
}

fn empty_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(header);
    table
}

fn aligned(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn multiple(value: f64) -> String {
    if value.is_nan() { "-".into() } else { format!("{value:.3}") }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn range(interval: &RatioInterval) -> String {
    match interval.low.is_nan() {
        true => "-".into(),
        false => format!("{:.3} to {:.3}", interval.low, interval.high),
    }
}

/// The gate as JSON.
pub fn json(results: &GateResults) -> Value {
    let found = results.smallest_found().into_iter();
    let found = found.map(|(name, _, found)| (name.to_owned(), json!(found)));
    json!({
        "passed": results.passed(),
        "baseline": results.recorded,
        "recorded_pairs": results.recorded_pairs,
        "pairs": results.pairs,
        "measured_twice": results.measured_twice,
        "effect": results.effect,
        "false_alarms": FALSE_ALARMS,
        "smallest_found": found.collect::<serde_json::Map<_, _>>(),
        "seed": results.seed,
        "seconds": results.seconds,
        "jobs": results.jobs.iter().map(job_json).collect::<Vec<_>>(),
        "machine": results.machine.as_ref().map(machine_json),
        "files_made": results.files_made,
        "notes": results.notes,
        "incomplete": results.incomplete,
    })
}

fn job_json(job: &JobJudgement) -> Value {
    let figures = job.figures.iter().map(|figure| {
        let RatioInterval { ratio, low, high } = figure.ratio;
        json!({
            "name": figure.name,
            "unit": figure.unit.name(),
            "recorded": figure.recorded,
            "now": figure.now,
            "ratio": ratio,
            "low": low,
            "high": high,
            "first_ratio": figure.first_ratio,
            "smallest_found": figure.smallest_found,
            "is_worse": figure.is_worse,
        })
    });
    let counters = job.counters.iter().map(|change| {
        json!({"name": change.name, "recorded_per_io": change.recorded, "now_per_io": change.now})
    });
    json!({
        "jobname": job.job,
        "passed": !job.fails(),
        "figures": figures.collect::<Vec<_>>(),
        "changed_counters": counters.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(unit: Unit, ratio: f64, is_worse: bool) -> FigureJudgement {
        FigureJudgement {
            name: if unit == Unit::PerSecond { "rate" } else { "CPU per I/O" }.into(),
            unit,
            recorded: 0.8,
            now: 0.8 * ratio,
            ratio: RatioInterval { ratio, low: ratio - 0.01, high: ratio + 0.01 },
            first_ratio: is_worse.then_some(ratio + 0.02),
            smallest_found: Some(0.05),
            is_worse,
        }
    }

    fn results(jobs: Vec<JobJudgement>) -> GateResults {
        GateResults {
            recorded: "then".into(),
            recorded_pairs: 20,
            jobs,
            pairs: 10,
            measured_twice: false,
            effect: 0.05,
            seed: 7,
            seconds: 12.3,
            machine: None,
            files_made: vec!["x.0.0".into()],
            notes: vec!["a note".into()],
            incomplete: false,
        }
    }

    #[test]
    fn a_failed_gate_names_what_got_worse() {
        let change = CounterChange { name: "lock".into(), recorded: 0.0, now: 1.0 };
        let figures =
            vec![figure(Unit::PerSecond, 0.8, true), figure(Unit::Nanoseconds, 1.3, true)];
        let failed = JobJudgement { job: "x".into(), figures, counters: vec![change] };
        let good = figure(Unit::PerSecond, 1.0, false);
        let passed = JobJudgement { job: "y".into(), figures: vec![good], counters: Vec::new() };
        let twice = |jobs| GateResults { measured_twice: true, ..results(jobs) };
        let text = text(&twice(vec![failed.clone(), passed.clone()]));
        for part in [
            "baseline: 20 pairs, then\n10 pairs in 12 s",
            "\nmeasured twice, as a figure got worse in the first measurement; the tables are of the second\n",
            "FAILED: rate is 20.0 % lower (19.0 % to 21.0 %); in the first measurement it was 18.0 % lower\n",
            "FAILED: CPU per I/O is 30.0 % higher (29.0 % to 31.0 %); in the first measurement it was 32.0 % higher\n",
            "FAILED: counter lock: never when recorded, 1.00 per I/O now",
            "job `y`",
            "\npassed\n",
            "note: a note",
            "Laid out x.0.0",
        ] {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
        assert!(text.ends_with("gate FAILED: 1 job got worse\n"), "{text}");
        let json = json(&twice(vec![failed, passed]));
        assert_eq!((&json["passed"], &json["jobs"][1]["passed"]), (&json!(false), &json!(true)));
        assert_eq!(json["jobs"][0]["changed_counters"][0]["now_per_io"], 1.0);
        assert_eq!(
            (&json["measured_twice"], &json["jobs"][0]["figures"][0]["first_ratio"]),
            (&json!(true), &json!(0.8 + 0.02))
        );
        assert_eq!(json["jobs"][1]["figures"][0]["first_ratio"], Value::Null);
    }

    #[test]
    fn a_passed_gate_says_what_it_finds() {
        let job = |smallest_found| JobJudgement {
            job: "x".into(),
            figures: vec![FigureJudgement {
                smallest_found,
                ..figure(Unit::PerSecond, 1.0, false)
            }],
            counters: Vec::new(),
        };
        let finding = text(&results(vec![job(Some(0.25))]));
        // A quarter more time is a fifth less of the rate.
        assert!(finding.ends_with("find rate 20.0 % lower\n"), "{finding}");
        assert!(text(&results(vec![job(None)])).ends_with("it compared counters alone\n"));
        let stopped = GateResults { incomplete: true, ..results(vec![job(None)]) };
        assert!(
            text(&stopped).ends_with("Incomplete: stopped after 10 pairs\n") && !stopped.passed()
        );
    }
}
