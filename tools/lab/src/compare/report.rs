//! Prints a comparison as text or JSON. In the text the word comes last, where the eye rests on a terminal.

use super::machine::Machine;
use super::results::{FigureComparison, JobComparison, Results};
use crate::stats::{RatioInterval, Verdict, median};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

/// The comparison as text: a table and a word for each job.
pub fn text(results: &Results) -> String {
    let mut text = String::new();
    for (letter, given) in ["a", "b"].iter().zip(&results.sides) {
        let keys = if given.is_empty() { "the jobs as they are" } else { given };
        text += &format!("{letter}: {keys}\n");
    }
    text.extend(pairs_line(results).map(|line| line + "\n"));
    for job in &results.jobs {
        text += &format!("\njob `{}`\n{}\n", job.job, job_table(job));
        text.extend(control_line(job).map(|line| line + "\n"));
        for (letter, names) in ["a", "b"].iter().zip(counters_of_one_side(job)) {
            if !names.is_empty() {
                text += &format!("counters of {letter} only: {}\n", names.join(", "));
            }
        }
        text += &format!("{}\n", sentence(job, results.effect));
    }
    let notes = notes(results);
    if !notes.is_empty() {
        text += &format!(
            "\n{}\n",
            notes.iter().map(|line| format!("note: {line}")).collect::<Vec<_>>().join("\n")
        );
    }
    if !results.files_made.is_empty() {
        text += &format!("Laid out {}\n", results.files_made.join(", "));
    }
    if results.incomplete {
        text += &format!("Incomplete: stopped after {} pairs\n", results.pairs);
    }
    text
}

/// How many pairs ran; `None` of separate runs.
pub(crate) fn pairs_line(results: &Results) -> Option<String> {
    let (pairs, seconds) = (results.pairs, results.seconds);
    let seed = results.seed?;
    Some(format!("{pairs} pairs in {seconds:.0} s, in random order (--seed {seed})"))
}

/// The notes, and what makes the machine noisy.
pub(crate) fn notes(results: &Results) -> Vec<String> {
    let warnings = results.machine.iter().flat_map(|machine| machine.warnings());
    results.notes.iter().cloned().chain(warnings).collect()
}

/// The heads of the columns of [`rows`].
pub(crate) const HEADS: [&str; 6] = ["", "a", "b", "b / a", "95 % interval", "a / a"];

/// The figures of a job, one a row.
pub(crate) fn rows(job: &JobComparison) -> impl Iterator<Item = [String; 6]> {
    job.figures.iter().map(|figure| {
        [
            figure.name.clone(),
            figure.unit.amount(median(&figure.a)),
            figure.unit.amount(median(&figure.b)),
            number(figure.ratio.ratio),
            range(&figure.ratio),
            range(&figure.noise),
        ]
    })
}

fn job_table(job: &JobComparison) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(HEADS);
    table.add_rows(rows(job));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The rate of the control, and the sides' shares of it; `None` without a control.
pub(crate) fn control_line(job: &JobComparison) -> Option<String> {
    let rate = job.rate();
    let control = median(&rate.control);
    (!rate.control.is_empty()).then(|| {
        format!(
            "bare ring: {}, of which a has {:.2} and b {:.2}",
            rate.unit.amount(control),
            median(&rate.a) / control,
            median(&rate.b) / control
        )
    })
}

/// The counters that only `a`, and only `b`, has counted; none if a side has no counters at all.
pub(crate) fn counters_of_one_side(job: &JobComparison) -> [Vec<&str>; 2] {
    let counted = |side: usize, name: &str| {
        job.counters[side].iter().any(|(known, count)| known == name && *count > 0)
    };
    if job.counters.iter().any(Vec::is_empty) {
        return [Vec::new(), Vec::new()];
    }
    [(0, 1), (1, 0)].map(|(side, other)| {
        let names = job.counters[side].iter().filter(|(_, count)| *count > 0);
        names.map(|(name, _)| name.as_str()).filter(|name| !counted(other, name)).collect()
    })
}

/// The word, as a sentence.
pub(crate) fn sentence(job: &JobComparison, effect: f64) -> String {
    let ratio = &job.rate().ratio;
    let percent = |ratio: f64| format!("{:.1} %", (ratio - 1.0) * 100.0);
    let effect = effect_percent(effect);
    match job.verdict {
        Verdict::Faster => {
            let (low, high) = (percent(ratio.low), percent(ratio.high));
            format!("b is faster: its rate is {} higher ({low} to {high})", percent(ratio.ratio))
        }
        Verdict::Slower => {
            let lower = |ratio: f64| format!("{:.1} %", (1.0 - ratio) * 100.0);
            let (low, high) = (lower(ratio.high), lower(ratio.low));
            format!("b is slower: its rate is {} lower ({low} to {high})", lower(ratio.ratio))
        }
        Verdict::NoDifference => {
            format!("no difference shown: less than {effect} either way")
        }
        Verdict::TooNoisy => {
            let ending = format!("would probably show a difference of {effect}");
            let more = job.more_pairs.map(|more| match more {
                1 => format!(": one more pair {ending}"),
                more => format!(": {more} more pairs {ending}"),
            });
            format!("{}{}", job.verdict, more.unwrap_or_default())
        }
        Verdict::TooFewRuns => job.verdict.to_string(),
    }
}

/// The smallest difference that matters: four digits at most, without the error of the binary fraction.
pub(crate) fn effect_percent(effect: f64) -> String {
    format!("{} %", (effect * 1e6).round() / 1e4)
}

/// A ratio.
pub(crate) fn number(ratio: f64) -> String {
    if ratio.is_nan() { "-".into() } else { format!("{ratio:.3}") }
}

fn range(interval: &RatioInterval) -> String {
    match interval.low.is_nan() {
        true => "-".into(),
        false => format!("{:.3} to {:.3}", interval.low, interval.high),
    }
}

/// The comparison as JSON.
pub fn json(results: &Results) -> Value {
    let jobs: Vec<Value> = results.jobs.iter().map(job_json).collect();
    json!({
        "a": results.sides[0],
        "b": results.sides[1],
        "jobs": jobs,
        "pairs": results.pairs,
        "effect": results.effect,
        "seed": results.seed,
        "seconds": results.seconds,
        "machine": results.machine.as_ref().map(machine_json),
        "files_made": results.files_made,
        "notes": results.notes,
        "incomplete": results.incomplete,
    })
}

/// The machine as JSON.
pub(crate) fn machine_json(machine: &Machine) -> Value {
    json!({
        "model": machine.model,
        "processors": machine.processors,
        "governors": machine.governors,
        "clock_source": machine.clock_source,
        "clock_ns": machine.clock_ns,
        "load_before": machine.load_before,
        "stolen": machine.stolen,
    })
}

fn job_json(job: &JobComparison) -> Value {
    let figures = job.figures.iter().map(|figure| (figure.name.clone(), figure_json(figure)));
    json!({
        "jobname": job.job,
        "verdict": job.verdict.name(),
        "more_pairs": job.more_pairs,
        "figures": figures.collect::<Map<_, _>>(),
        "counters": {"a": counters_json(&job.counters[0]), "b": counters_json(&job.counters[1])},
    })
}

/// Counters as JSON.
pub(crate) fn counters_json(counters: &[(String, u64)]) -> Value {
    let pairs = counters.iter().map(|(name, count)| (name.clone(), json!(count)));
    Value::Object(pairs.collect())
}

fn figure_json(figure: &FigureComparison) -> Value {
    json!({
        "unit": figure.unit.name(),
        "a": figure.a,
        "a_again": figure.again,
        "b": figure.b,
        "control": figure.control,
        "b_by_a": interval_json(&figure.ratio),
        "noise": interval_json(&figure.noise),
        "sign_test": figure.sign_test,
    })
}

/// A ratio and its interval as JSON, with null where there is none.
pub(crate) fn interval_json(interval: &RatioInterval) -> Value {
    json!({"ratio": interval.ratio, "low": interval.low, "high": interval.high})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Unit;

    fn results(low: f64, high: f64) -> Results {
        let interval = |low: f64, high: f64| RatioInterval { ratio: (low + high) / 2.0, low, high };
        let figure = FigureComparison {
            name: "rate".into(),
            unit: Unit::PerSecond,
            a: vec![200_000.0; 6],
            again: vec![200_000.0; 6],
            b: vec![190_000.0; 6],
            control: vec![250_000.0; 6],
            ratio: interval(low, high),
            noise: interval(0.99, 1.01),
            sign_test: 0.03,
        };
        let counters = [
            vec![("fast".into(), 3), ("both".into(), 1)],
            vec![("fast".into(), 0), ("both".into(), 1)],
        ];
        Results {
            sides: ["engine=fio".into(), String::new()],
            jobs: vec![JobComparison::new("x".into(), vec![figure], counters, 0.05)],
            pairs: 6,
            effect: 0.05,
            seed: Some(7),
            seconds: 12.3,
            machine: None,
            files_made: vec!["x.0.0".into()],
            notes: vec!["a note".into()],
            incomplete: true,
        }
    }

    #[test]
    fn the_text_has_sides_table_control_counters_and_word() {
        let text = text(&results(0.94, 0.96));
        for part in [
            "a: engine=fio\nb: the jobs as they are\n6 pairs in 12 s",
            "200 k/s",
            "0.940 to 0.960",
            "bare ring: 250 k/s, of which a has 0.80 and b 0.76",
            "counters of a only: fast\n",
            "b is slower: its rate is 5.0 % lower (4.0 % to 6.0 %)",
            "note: a note",
            "Laid out x.0.0",
            "Incomplete",
        ] {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
        assert!(!text.contains("of b only"));
    }

    #[test]
    fn each_word_has_a_sentence() {
        for (low, high, part) in [
            (1.1, 1.3, "b is faster: its rate is 20.0 % higher (10.0 % to 30.0 %)"),
            (0.98, 1.01, "no difference shown: less than 5 % either way"),
            (0.9, 1.1, "too noisy to say"),
            (f64::NAN, f64::NAN, "too few runs to say: an interval needs 6 of each side"),
        ] {
            let text = text(&results(low, high));
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
    }

    #[test]
    fn json_has_every_value_and_null_for_what_is_missing() {
        let json = json(&results(f64::NAN, f64::NAN));
        let rate = &json["jobs"][0]["figures"]["rate"];
        assert_eq!(
            (rate["a"][5].as_f64(), &rate["b_by_a"]["low"]),
            (Some(200_000.0), &Value::Null)
        );
        assert_eq!(json["jobs"][0]["verdict"], "too few runs to say");
        assert_eq!(json["jobs"][0]["counters"]["a"]["fast"], 3);
    }
}
