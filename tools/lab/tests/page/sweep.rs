//! Pages of sweeps.

use super::html::Page;
use super::{HOSTILE, NONE};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use uringfs_lab::compare::{Machine, Unit};
use uringfs_lab::page::{self, Source};
use uringfs_lab::stats::RatioInterval;
use uringfs_lab::sweep::{CellFigure, FigureCells, Grid, JobCells, Results, json};

const COMMAND: &str = "uringfs bench sweep job.fio --over iodepth=1,8 --html page.html";

/// A figure of all cells, with noise; the last cell does not have it.
fn figure(name: &str, unit: Unit, value: f64, cells: usize, rounds: usize) -> FigureCells {
    let gain = RatioInterval { ratio: 1.1, low: 1.05, high: 1.15 };
    let cell = |cell: usize| CellFigure {
        values: (0..rounds)
            .map(|round| match cell + 1 == cells {
                true => f64::NAN,
                false => value * (1.0 + 0.1 * cell as f64 + 0.01 * (round % 5) as f64),
            })
            .collect(),
        gain: (cell % 2 == 1).then_some(if rounds < 6 {
            RatioInterval { ratio: 1.1, ..NONE }
        } else {
            gain
        }),
    };
    FigureCells { name: name.into(), unit, cells: (0..cells).map(cell).collect() }
}

fn job(name: &str, cells: usize, rounds: usize) -> JobCells {
    JobCells {
        job: name.into(),
        figures: vec![
            figure("rate", Unit::PerSecond, 210_000.0, cells, rounds),
            figure("read p99", Unit::Nanoseconds, 300_000.0, cells, rounds),
            figure("CPU per I/O", Unit::Nanoseconds, 1_900.0, cells, rounds),
            figure("system calls per I/O", Unit::PerIo, 0.04, cells, rounds),
        ],
        counters: vec![vec![("ring.enters".into(), 40), ("direct.fast".into(), 9)]; cells],
    }
}

fn results(lists: &[&str], rounds: usize) -> Results {
    let lists: Vec<String> = lists.iter().map(|list| (*list).to_owned()).collect();
    let grid = Grid::parse(&lists).unwrap();
    Results {
        jobs: vec![job("x", grid.cells(), rounds)],
        grid,
        shared_keys: vec!["target=/dev/disk".into(), "bs=8k".into()],
        rounds,
        seed: 7,
        seconds: 61.2,
        machine: Machine::before(),
        files_made: vec!["x.0.0".into()],
        notes: vec!["a note".into()],
        incomplete: false,
    }
}

/// The page, after it has been read.
fn read(results: &Results) -> Page {
    let document = json(results).to_string();
    Page::parse(&page::sweep_html(results, Source { command: COMMAND, document: &document }))
}

const LISTS: [&str; 3] = ["iodepth=1,8,64", "numjobs=1,2", "engine=uringfs,ring"];

#[test]
fn keys_come_first_then_plots_tables_machine_command_and_samples() {
    let page = read(&results(&LISTS, 6));
    let body = &page.only("body").text;
    let mut rest = body.as_str();
    for part in [
        "iodepth",
        "1, 8, 64",
        "uringfs, ring",
        "target=/dev/disk bs=8k",
        "rounds: 6, each of 12 cells in random order (--seed 7), in 61 s",
        "rate by iodepth, for each engine; numjobs=1",
        "engine=ring",
        "+10.0 % [5.0, 15.0]",
        "system calls per I/O",
        "Counters of all rounds",
        "clock source",
        "a note",
        "Laid out x.0.0",
        COMMAND,
        "samples.json",
        "Every round of job x",
        "iodepth=64 numjobs=2 engine=ring",
    ] {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("no `{part}` in\n{rest}")).1;
    }
    assert_eq!(page.title(), "Sweep over iodepth, numjobs, engine");
}

#[test]
fn every_figure_but_counts_has_a_plot_for_each_value_of_the_other_keys() {
    let page = read(&results(&LISTS, 6));
    let plots = page.all("svg");
    assert_eq!(plots.len(), 3 * 2);
    assert!(plots.iter().all(|plot| plot.attribute("role") == Some("img")));
    assert!(page.all("desc").iter().all(|element| element.text.contains("uringfs: 3 from ")));
    let words = words_of_marks(&page);
    // One cell has no value.
    assert_eq!(words.len(), 3 * (12 - 1), "{words:?}");
    assert!(words.iter().all(|words| words.contains(" to ")), "an interval each: {words:?}");
    assert!(words[0].starts_with("iodepth=1, uringfs: 213 k/s (21"), "{words:?}");
}

/// The words that a pointer above each mark shows.
fn words_of_marks(page: &Page) -> Vec<&str> {
    let marks = page.0.iter().filter(|element| {
        element.name == "title" && element.within.iter().any(|around| around == "g")
    });
    marks.map(|element| element.text.as_str()).collect()
}

#[test]
fn many_values_have_several_plots() {
    let page = read(&results(&["engine=a,b,c,d,e,f,g,h", "bs=4k,8k"], 6));
    assert_eq!(page.all("svg").len(), 3 * 2, "six series at most in each");
    let one_row = read(&results(&["engine=a,b"], 6));
    assert_eq!(one_row.all("svg").len(), 3);
}

#[test]
fn few_rounds_have_no_intervals_and_none_have_no_jobs() {
    let page = read(&results(&LISTS, 2));
    let words = words_of_marks(&page);
    assert!(words.len() == 3 * (12 - 1) && !words.iter().any(|words| words.contains(" to ")));
    // A spread is upright; the lines of the axes are not.
    let lines = page.all("line");
    assert!(lines.iter().all(|line| line.attribute("x1") != line.attribute("x2")));
    let mut empty = results(&LISTS, 0);
    (empty.jobs, empty.incomplete) = (Vec::new(), true);
    assert_eq!(read(&empty).of_class("incomplete")[0].text, "Incomplete: stopped after round 0");
}

#[test]
fn the_download_is_the_document() {
    let results = results(&LISTS, 6);
    let page = read(&results);
    let links = page.all("a");
    let link = links.iter().find(|link| link.attribute("download").is_some()).unwrap();
    let (_, data) = link.attribute("href").unwrap().split_once(',').unwrap();
    let document: serde_json::Value =
        serde_json::from_slice(&STANDARD.decode(data).unwrap()).unwrap();
    assert_eq!(document, json(&results));
}

#[test]
fn texts_from_outside_stay_text() {
    for hostile in HOSTILE {
        let list = format!("target={hostile},other");
        let mut results = results(&["iodepth=1,2", &list], 6);
        results.jobs[0].job = hostile.into();
        results.jobs[0].figures[0].name = hostile.into();
        results.jobs[0].counters[0].push((hostile.into(), 1));
        results.shared_keys.push(hostile.into());
        results.notes.push(hostile.into());
        results.files_made.push(hostile.into());
        results.machine.model = hostile.into();
        let source = Source { command: hostile, document: hostile };
        let page = Page::parse(&page::sweep_html(&results, source));
        let body = &page.only("body").text;
        assert!(body.matches(hostile).count() >= 12, "{hostile}: {body}");
        assert_eq!(page.only("pre").text, hostile);
    }
}

proptest! {
    /// The page can be read, whatever the values are.
    #[test]
    fn any_values_have_a_page(
        name in any::<String>(),
        values in proptest::collection::vec(proptest::collection::vec(super::value(), 0..8), 4),
        ratio in proptest::array::uniform3(super::value()),
    ) {
        let [ratio, low, high] = ratio;
        let gain = Some(RatioInterval { ratio, low, high });
        let cells = values.into_iter().map(|values| CellFigure { values, gain }).collect();
        let figure = FigureCells { name: name.clone(), unit: Unit::Nanoseconds, cells };
        let job = JobCells { job: name.clone(), figures: vec![figure], counters: vec![Vec::new(); 4] };
        let results = Results { jobs: vec![job], ..results(&["bs=4k,8k", "engine=a,b"], 6) };
        let source = Source { command: &name, document: &json(&results).to_string() };
        Page::parse(&page::sweep_html(&results, source));
    }
}
