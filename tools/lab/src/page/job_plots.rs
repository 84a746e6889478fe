//! The plots of one job: paired ratios, every run's rate and CPU time, latencies.

use super::plot::{Marks, Plot, Point, Series, Side, Values};
use super::scale::{is_drawable, round_step};
use crate::compare::{FigureComparison, JobComparison, Unit, number};
use crate::stats::median;

/// The distance of two marks at one place, from the middle.
const BESIDE: f64 = 0.12;

/// The plots of a job. Those without a value are not written.
pub(super) fn plots(job: &JobComparison) -> Vec<Plot> {
    let ratios = (!job.rate().again.is_empty()).then(|| ratios(job.rate()));
    let cpu = job.figures.iter().find(|figure| figure.name == "CPU per I/O");
    let latencies = ["read", "write", "trim"].map(|way| latencies(job, way));
    ratios.into_iter().chain([runs(job.rate())]).chain(latencies).chain(cpu.map(runs)).collect()
}

/// The ratio of each pair.
fn ratios(rate: &FigureComparison) -> Plot {
    let series = |name: &str, side, sample: &[f64], beside: f64| {
        let pairs = rate.a.iter().zip(sample).enumerate();
        let point = |(index, (a, other)): (usize, (&f64, &f64))| {
            // Equal values, also zeros, have the ratio 1.
            let ratio = if a == other { 1.0 } else { other / a };
            let words = format!("pair {}, {name}: {}", index + 1, number(ratio));
            Point { x: (index + 1) as f64 + beside, y: ratio, low: ratio, high: ratio, words }
        };
        Series { name: name.into(), side, points: pairs.map(point).collect() }
    };
    Plot {
        title: format!("{} b / a, pair by pair", rate.name),
        explanation: "Hollow circles are a once more, by a: the noise. The band is the interval of b / a, the dashed line its estimate.",
        x_name: "pair".into(),
        x_labels: labels_of_runs(rate.a.len()),
        values: Values::Ratios(rate.ratio),
        marks: Marks::Apart,
        series: vec![
            series("a again / a", Side::Again, &rate.again, -BESIDE),
            series("b / a", Side::B, &rate.b, BESIDE),
        ],
    }
}

/// A figure of every run.
fn runs(figure: &FigureComparison) -> Plot {
    let x_name = if figure.again.is_empty() { "run" } else { "pair" };
    let series = |name: &str, side, sample: &[f64]| {
        let point = |(index, value): (usize, &f64)| {
            let words = format!("{x_name} {}, {name}: {}", index + 1, figure.unit.amount(*value));
            Point { x: (index + 1) as f64, y: *value, low: *value, high: *value, words }
        };
        Series { name: name.into(), side, points: sample.iter().enumerate().map(point).collect() }
    };
    Plot {
        title: format!("{}, {x_name} by {x_name}", figure.name),
        explanation: match figure.unit {
            Unit::PerSecond => "More is better.",
            Unit::Nanoseconds | Unit::PerIo => "Less is better.",
        },
        x_name: x_name.into(),
        x_labels: labels_of_runs(figure.a.len().max(figure.b.len())),
        values: Values::Figure(figure.unit),
        marks: Marks::Joined,
        series: vec![
            series("a", Side::A, &figure.a),
            series("b", Side::B, &figure.b),
            series("bare ring", Side::Control, &figure.control),
        ],
    }
}

/// The percentiles of the latency of reads, writes or trims.
fn latencies(job: &JobComparison, way: &str) -> Plot {
    let percentile = |figure: &FigureComparison| {
        figure.name.strip_prefix(way)?.strip_prefix(' ').map(str::to_owned)
    };
    let figures: Vec<(String, &FigureComparison)> = job
        .figures
        .iter()
        .filter_map(|figure| percentile(figure).map(|name| (name, figure)))
        .collect();
    let series = |name: &str, side, pick: fn(&FigureComparison) -> &Vec<f64>, beside: f64| {
        let point = |(index, (percentile, figure)): (usize, &(String, &FigureComparison))| {
            let values: Vec<f64> =
                pick(figure).iter().copied().filter(|value| is_drawable(*value)).collect();
            let y = median(&values);
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let [least, middle, most] = [low, y, high].map(|value| figure.unit.amount(value));
            let words = format!("{percentile}, {name}: {middle} ({least} to {most})");
            Point { x: index as f64 + beside, y, low, high, words }
        };
        Series { name: name.into(), side, points: figures.iter().enumerate().map(point).collect() }
    };
    let label = |(index, (name, _)): (usize, &(String, _))| (index as f64, name.clone());
    Plot {
        title: format!("{way} latency"),
        explanation: "Medians over the runs, with the span from the least to the greatest run. Less is better.",
        x_name: "percentile".into(),
        x_labels: figures.iter().enumerate().map(label).collect(),
        values: Values::Figure(Unit::Nanoseconds),
        marks: Marks::Apart,
        series: vec![
            series("a", Side::A, |figure| &figure.a, -BESIDE),
            series("b", Side::B, |figure| &figure.b, BESIDE),
        ],
    }
}

/// Numbers of runs, from 1, as many as have room.
fn labels_of_runs(runs: usize) -> Vec<(f64, String)> {
    const MOST: f64 = 10.0;
    let step = round_step((runs as f64 / MOST).max(1.0)) as usize;
    (1..=runs)
        .filter(|run| run.is_multiple_of(step))
        .map(|run| (run as f64, run.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_labelled_by_round_numbers() {
        let labels =
            |runs| labels_of_runs(runs).into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(3), ["1", "2", "3"]);
        assert_eq!(labels(30), ["5", "10", "15", "20", "25", "30"]);
        assert_eq!(labels(1_000).len(), 10);
        assert!(labels(0).is_empty());
    }
}
