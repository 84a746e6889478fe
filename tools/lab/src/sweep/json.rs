//! Prints a sweep as JSON, with every figure and value.

use super::results::{JobCells, Results};
use crate::compare::{counters_json, interval_json, machine_json};
use crate::stats::median;
use serde_json::{Map, Value, json};

/// The sweep as JSON.
pub fn json(results: &Results) -> Value {
    let axes = results.grid.axes().iter();
    let over: Vec<Value> =
        axes.map(|axis| json!({"key": axis.key, "values": axis.values})).collect();
    let shared = results.shared_keys.iter().filter_map(|pair| pair.split_once('='));
    let set: Vec<Value> = shared.map(|(key, value)| json!({"key": key, "value": value})).collect();
    json!({
        "over": over,
        "set": set,
        "jobs": results.jobs.iter().map(|job| job_json(results, job)).collect::<Vec<_>>(),
        "rounds": results.rounds,
        "seed": results.seed,
        "seconds": results.seconds,
        "machine": machine_json(&results.machine),
        "files_made": results.files_made,
        "notes": results.notes,
        "incomplete": results.incomplete,
    })
}

fn job_json(results: &Results, job: &JobCells) -> Value {
    let cells = (0..results.grid.cells()).map(|cell| {
        let keys = results.grid.keys(cell).into_iter();
        let keys = keys.map(|(key, value)| (key.to_owned(), json!(value)));
        let figures = job.figures.iter().map(|figure| {
            let in_cell = &figure.cells[cell];
            let value = json!({
                "unit": figure.unit.name(),
                "values": in_cell.values,
                "median": median(&in_cell.values),
                "by_first": in_cell.gain.as_ref().map(interval_json),
            });
            (figure.name.clone(), value)
        });
        json!({
            "keys": keys.collect::<Map<_, _>>(),
            "figures": figures.collect::<Map<_, _>>(),
            "counters": counters_json(&job.counters[cell]),
        })
    });
    json!({"jobname": job.job, "cells": cells.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::results::tests::results;

    #[test]
    fn each_cell_has_every_figure_and_null_for_what_is_missing() {
        let json = json(&results(6));
        assert_eq!(json["over"][0], json!({"key": "bs", "values": ["4k", "64k"]}));
        let set = json!([{"key": "bs", "value": "8k"}, {"key": "target", "value": "a=b"}]);
        assert_eq!(json["set"], set);
        let cells = json["jobs"][0]["cells"].as_array().unwrap();
        assert_eq!(cells.len(), 6);
        assert_eq!(cells[4]["keys"], json!({"bs": "64k", "engine": "ring"}));
        assert_eq!(cells[0]["figures"]["rate"]["by_first"], Value::Null);
        let p99 = &cells[1]["figures"]["read p99"];
        assert_eq!((&p99["unit"], p99["values"].as_array().unwrap().len()), (&json!("ns"), 6));
        assert!((p99["by_first"]["high"].as_f64().unwrap() - 0.75).abs() < 1e-9, "{p99}");
        let none = &cells[2]["figures"]["read p99"];
        assert_eq!((&none["median"], &none["by_first"]["ratio"]), (&Value::Null, &Value::Null));
        assert_eq!(cells[5]["counters"], json!({"ring.enters": 12}));
        assert_eq!((&json["rounds"], &json["incomplete"]), (&json!(6), &json!(true)));
    }
}
