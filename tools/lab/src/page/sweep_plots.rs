//! The plots of a sweep: each figure against the values of one key, with a series for each value of another one. Each
//! combination of values of the other keys has plots of its own.

use super::plot::{Marks, Plot, Point, SWEPT_SIDES, Series, Side, Values};
use super::scale::is_drawable;
use crate::compare::Unit;
use crate::stats::median_interval;
use crate::sweep::{CellFigure, FigureCells, Grid, JobCells, Results};

/// The plots of a job: of its rate, its latencies and its CPU time. Those without a value are not written.
pub(super) fn plots(results: &Results, job: &JobCells) -> Vec<Plot> {
    let figures = job.figures.iter().filter(|figure| figure.unit != Unit::PerIo);
    figures.flat_map(|figure| plots_of_figure(results, figure)).collect()
}

/// The keys that have a place in a plot.
#[derive(Debug, PartialEq)]
struct Roles {
    /// The key along the axis.
    along: usize,
    /// The key of the series; `None` if there is no other one.
    series: Option<usize>,
}

impl Roles {
    /// The first key of several numbers lies along the axis, or else the first key. The last other one forms the series.
    fn new(grid: &Grid) -> Self {
        let is_number = |value: &String| value.starts_with(|first: char| first.is_ascii_digit());
        let mut axes = grid.axes().iter();
        let along =
            axes.position(|axis| axis.values.len() > 1 && axis.values.iter().all(is_number));
        let along = along.unwrap_or(0);
        Self { along, series: (0..grid.axes().len()).rev().find(|axis| *axis != along) }
    }
}

/// The cells of one plot: the values of the other keys in words, and the points of each series with its name.
type Panel = (String, Vec<(String, Vec<Point>)>);

fn plots_of_figure(results: &Results, figure: &FigureCells) -> Vec<Plot> {
    let grid = &results.grid;
    let roles = Roles::new(grid);
    let axis = &grid.axes()[roles.along];
    let by = match roles.series {
        Some(series) => {
            format!("{} by {}, for each {}", figure.name, axis.key, grid.axes()[series].key)
        }
        None => format!("{} by {}", figure.name, axis.key),
    };
    let labels = || {
        let places = axis.values.iter().enumerate();
        places.map(|(at, value)| (at as f64, fitting(value, axis.values.len()))).collect()
    };
    let mut plots = Vec::new();
    for (others, series) in panels(results, figure, &roles) {
        // More series would not be told apart.
        for part in series.chunks(SWEPT_SIDES) {
            let series = part.iter().enumerate().map(|(at, (name, points))| Series {
                name: name.clone(),
                side: Side::Swept(at),
                points: points.clone(),
            });
            plots.push(Plot {
                title: if others.is_empty() { by.clone() } else { format!("{by}; {others}") },
                explanation: match figure.unit {
                    Unit::PerSecond => {
                        "Medians of the rounds; bars are their 95 % intervals, if there are six rounds. More is better."
                    }
                    Unit::Nanoseconds | Unit::PerIo => {
                        "Medians of the rounds; bars are their 95 % intervals, if there are six rounds. Less is better."
                    }
                },
                x_name: axis.key.clone(),
                x_labels: labels(),
                values: Values::Figure(figure.unit),
                marks: Marks::Joined,
                series: series.collect(),
            });
        }
    }
    plots
}

fn panels(results: &Results, figure: &FigureCells, roles: &Roles) -> Vec<Panel> {
    let grid = &results.grid;
    let mut panels: Vec<Panel> = Vec::new();
    for (index, cell) in figure.cells.iter().enumerate() {
        let keys = grid.keys(index);
        let is_other = |at: &usize| *at != roles.along && Some(*at) != roles.series;
        let others =
            (0..keys.len()).filter(is_other).map(|at| format!("{}={}", keys[at].0, keys[at].1));
        let others = others.collect::<Vec<_>>().join(" ");
        let name = roles.series.map_or("median", |series| keys[series].1);
        let value = keys[roles.along].1;
        let place = grid.axes()[roles.along].values.iter().position(|known| known == value);
        let words = format!("{}={value}, {name}", keys[roles.along].0);
        let point = point(cell, figure.unit, place.unwrap_or(0), &words);
        let panel = entry(&mut panels, others);
        entry(panel, name.to_owned()).push(point);
    }
    panels
}

/// The entry of a name in a list, which is added if it is new.
fn entry<T: Default>(list: &mut Vec<(String, T)>, name: String) -> &mut T {
    let at = list.iter().position(|(known, _)| *known == name).unwrap_or(list.len());
    if at == list.len() {
        list.push((name, T::default()));
    }
    &mut list[at].1
}

fn point(cell: &CellFigure, unit: Unit, place: usize, words: &str) -> Point {
    let values: Vec<f64> =
        cell.values.iter().copied().filter(|value| is_drawable(*value)).collect();
    let interval = median_interval(&values);
    let [low, median, high] = [interval.low, interval.median, interval.high];
    let amount = |value| unit.amount(value);
    let words = match low.is_nan() {
        true => format!("{words}: {}", amount(median)),
        false => format!("{words}: {} ({} to {})", amount(median), amount(low), amount(high)),
    };
    let end = |value: f64| if value.is_nan() { median } else { value };
    Point { x: place as f64, y: median, low: end(low), high: end(high), words }
}

/// A label of one of so many places: its beginning, if there is no room for all of it.
fn fitting(value: &str, places: usize) -> String {
    // Letters in the width of a plot.
    const LETTERS: usize = 48;
    let room = (LETTERS / places.max(1)).saturating_sub(1).max(2);
    match value.chars().count() {
        letters if letters <= room => value.to_owned(),
        _ => value.chars().take(room - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(lists: &[&str]) -> Roles {
        let lists: Vec<String> = lists.iter().map(|list| (*list).to_owned()).collect();
        Roles::new(&Grid::parse(&lists).unwrap())
    }

    #[test]
    fn numbers_lie_along_the_axis() {
        for (lists, along, series) in [
            (&["iodepth=1,64", "engine=uringfs,ring"][..], 0, Some(1)),
            (&["engine=uringfs,ring", "iodepth=1,64"], 1, Some(0)),
            (&["engine=uringfs,ring", "bs=4k,8k", "target=a,b"], 1, Some(2)),
            (&["numjobs=1", "bs=4k,8k"], 1, Some(0)),
            (&["engine=uringfs,ring", "target=a,b"], 0, Some(1)),
            (&["engine=uringfs,ring"], 0, None),
        ] {
            assert_eq!(roles(lists), Roles { along, series }, "{lists:?}");
        }
    }

    #[test]
    fn labels_have_room() {
        assert_eq!(fitting("/dev/nvme0n1", 2), "/dev/nvme0n1");
        assert_eq!(fitting("/dev/nvme0n1", 6), "/dev/n…");
        assert_eq!((fitting("128", 40), fitting("16", 40)), ("1…".into(), "16".into()));
    }
}
