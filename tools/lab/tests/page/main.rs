//! Pages of comparisons, and in `sweep` of sweeps: each is read strictly, for results of every kind and for texts that try to be
//! more than text.

mod html;
mod sweep;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use html::Page;
use proptest::prelude::*;
use uringfs_lab::compare::{FigureComparison, JobComparison, Machine, Results, Unit, json, text};
use uringfs_lab::experiments::{CompletedComparison, ExperimentResults};
use uringfs_lab::page::{self, Source};
use uringfs_lab::stats::{RatioInterval, Verdict};

const NONE: RatioInterval = RatioInterval { ratio: f64::NAN, low: f64::NAN, high: f64::NAN };

/// A figure of `rounds` pairs, with noise and a control.
fn figure(name: &str, unit: Unit, value: f64, rounds: usize) -> FigureComparison {
    let sample = |factor: f64| -> Vec<f64> {
        (0..rounds).map(|round| value * factor * (1.0 + 0.01 * (round % 5) as f64)).collect()
    };
    FigureComparison {
        name: name.into(),
        unit,
        a: sample(1.0),
        again: sample(1.004),
        b: sample(0.94),
        control: sample(1.3),
        ratio: RatioInterval { ratio: 0.94, low: 0.93, high: 0.95 },
        noise: RatioInterval { ratio: 1.004, low: 0.99, high: 1.01 },
        sign_test: 0.03,
    }
}

fn job(name: &str, rounds: usize) -> JobComparison {
    JobComparison {
        job: name.into(),
        figures: vec![
            figure("rate", Unit::PerSecond, 210_000.0, rounds),
            figure("read p50", Unit::Nanoseconds, 80_000.0, rounds),
            figure("read p99", Unit::Nanoseconds, 300_000.0, rounds),
            figure("read p99.9", Unit::Nanoseconds, 2_500_000.0, rounds),
            figure("CPU per I/O", Unit::Nanoseconds, 1_900.0, rounds),
            figure("system calls per I/O", Unit::PerIo, 0.04, rounds),
        ],
        counters: [
            vec![("ring.enters".into(), 40), ("direct.fast".into(), 9)],
            vec![("ring.enters".into(), 41)],
        ],
        verdict: Verdict::Slower,
        more_pairs: None,
    }
}

fn results(jobs: Vec<JobComparison>) -> Results {
    let pairs = jobs.first().map_or(0, |job| job.rate().a.len());
    Results {
        sides: [String::new(), "direct.simple_read=off".into()],
        jobs,
        pairs,
        effect: 0.05,
        seed: Some(7),
        seconds: 61.2,
        machine: None,
        files_made: vec!["x.0.0".into()],
        notes: vec!["a note".into()],
        incomplete: false,
    }
}

const COMMAND: &str = "uringfs bench compare job.fio --b direct.simple_read=off --html page.html";

/// The page, after it has been read.
fn read(results: &Results) -> Page {
    let document = json(results).to_string();
    Page::parse(&page::html(results, Source { command: COMMAND, document: &document }))
}

#[test]
fn the_verdict_comes_first_then_tables_plots_machine_command_and_samples() {
    let mut results = results(vec![job("x", 30)]);
    results.machine = Some(Machine::before());
    let page = read(&results);
    let body = &page.only("body").text;
    let mut rest = body.as_str();
    for part in [
        "b is slower: its rate is 6.0 % lower (5.0 % to 7.0 %)",
        "the jobs as they are",
        "direct.simple_read=off",
        "30 pairs in 61 s, in random order (--seed 7)",
        "0.930 to 0.950",
        "bare ring: 278 k/s",
        "counters of a only: direct.fast",
        "clock source",
        "a note",
        "Laid out x.0.0",
        COMMAND,
        "samples.json",
        "Every run of job x",
    ] {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("no `{part}` in\n{rest}")).1;
    }
    assert_eq!(page.title(), "x: slower");
}

#[test]
fn every_plot_has_a_title_and_a_description() {
    let page = read(&results(vec![job("x", 30)]));
    let plots = page.all("svg");
    let titles: Vec<_> = plots.iter().map(|plot| &plot.attributes).collect();
    assert_eq!(plots.len(), 4, "{titles:?}");
    assert!(plots.iter().all(|plot| plot.attribute("role") == Some("img")));
    let described = page.all("desc");
    assert_eq!(described.len(), 4);
    assert!(described.iter().all(|element| element.text.contains("b")), "{described:?}");
    let captions: Vec<_> = page.all("figcaption").iter().map(|found| found.text.clone()).collect();
    for (caption, begin) in captions.iter().zip([
        "rate b / a, pair by pair. ",
        "rate, pair by pair. ",
        "read latency. ",
        "CPU per I/O, pair by pair. ",
    ]) {
        assert!(caption.starts_with(begin), "{captions:?}");
    }
    // One mark a pair of both ratios, of both sides' rates and the control's, and of both sides' percentiles.
    let marks = page.0.iter().filter(|element| {
        element.name == "title" && element.within.iter().any(|around| around == "g")
    });
    assert_eq!(marks.count(), 2 * 30 + 3 * 30 + 2 * 3 + 3 * 30);
}

#[test]
fn the_download_is_the_document() {
    let results = results(vec![job("x", 6)]);
    let page = read(&results);
    let links = page.all("a");
    let link = links.iter().find(|link| link.attribute("download").is_some()).unwrap();
    let (_, data) = link.attribute("href").unwrap().split_once(',').unwrap();
    let document = STANDARD.decode(data).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
    assert_eq!(document, json(&results));
}

#[test]
fn one_pair_has_a_page_without_an_interval() {
    let mut one = job("x", 1);
    one.verdict = Verdict::TooFewRuns;
    one.figures.iter_mut().for_each(|figure| {
        (figure.ratio, figure.noise) = (RatioInterval { ratio: 0.94, ..NONE }, NONE);
    });
    let page = read(&results(vec![one]));
    assert!(page.only("body").text.contains("too few runs to say"));
    assert_eq!((page.of_class("band").len(), page.all("svg").len()), (0, 4));
}

#[test]
fn runs_that_ended_before_have_no_pairs() {
    let mut job = job("x", 6);
    for figure in &mut job.figures {
        (figure.again, figure.control, figure.noise) = (Vec::new(), Vec::new(), NONE);
        figure.b.truncate(4);
    }
    let results = Results { seed: None, ..results(vec![job]) };
    let page = read(&results);
    let body = &page.only("body").text;
    assert!(body.contains("rate, run by run") && !body.contains("pair"), "{body}");
    assert!(!body.contains("bare ring"), "{body}");
    assert_eq!(page.all("svg").len(), 3);
}

#[test]
fn values_that_are_no_numbers_are_left_out() {
    let mut job = job("x", 6);
    let kinds = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, 0.0, -1.0];
    for figure in &mut job.figures {
        figure.ratio = NONE;
        for sample in [&mut figure.a, &mut figure.again, &mut figure.b, &mut figure.control] {
            sample.copy_from_slice(&kinds);
        }
    }
    let page = read(&results(vec![job]));
    let points = page.all("polyline");
    assert!(!points.is_empty());
    let plain = |text: &str| !text.contains("NaN") && !text.contains("inf");
    let attributes = page.0.iter().flat_map(|element| &element.attributes);
    // The data of the download may spell anything.
    let mut shown = attributes.filter(|(name, _)| name != "href");
    assert!(shown.all(|(_, value)| plain(value)));
}

#[test]
fn an_incomplete_comparison_says_so_and_one_without_jobs_has_a_page() {
    let mut stopped = results(vec![job("x", 2)]);
    stopped.incomplete = true;
    let page = read(&stopped);
    assert_eq!(page.of_class("incomplete")[0].text, "Incomplete: stopped after 2 pairs");
    assert!(read(&results(Vec::new())).only("body").text.contains("No job is on both sides"));
}

#[test]
fn each_job_has_its_section_and_each_verdict_its_link() {
    let page = read(&results(vec![job("x", 6), job("y", 6), job("x", 6)]));
    let verdicts = page.of_class("verdicts");
    assert_eq!(verdicts[0].text.matches("b is slower").count(), 3);
    let links = page.all("a");
    let targets: Vec<_> = links.iter().filter_map(|link| link.attribute("href")).collect();
    assert_eq!(targets[..3], ["#job-1", "#job-2", "#job-3"]);
}

/// Texts that would be more than text if they were not escaped.
const HOSTILE: [&str; 9] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "</title></style></code></pre><h1>",
    "<!-- ]]> <![CDATA[",
    "&lt;&amp;&#60;",
    "https://example.org/ //example.org",
    "javascript:alert(1)",
    "größe ⟂ 大",
];

#[test]
fn texts_from_outside_stay_text() {
    for hostile in HOSTILE {
        let mut results = results(vec![job(hostile, 2)]);
        results.jobs[0].figures[0].name = hostile.into();
        results.jobs[0].counters[0].push((hostile.into(), 1));
        results.sides = [hostile.into(), hostile.into()];
        results.notes.push(hostile.into());
        results.files_made.push(hostile.into());
        let mut machine = Machine::before();
        machine.clock_source = hostile.into();
        machine.governors = vec![hostile.into()];
        results.machine = Some(machine);
        let source = Source { command: hostile, document: hostile };
        let page = Page::parse(&page::html(&results, source));
        let body = &page.only("body").text;
        assert!(body.matches(hostile).count() >= 12, "{hostile}: {body}");
        assert!(page.title().starts_with(hostile), "{hostile}");
        assert_eq!(page.only("pre").text, hostile);
    }
}

/// An experiment with a comparison of the mechanism, and one of a side beside it.
fn experiment(name: &'static str, beside: &str) -> ExperimentResults {
    let comparison = |case: &str, a: &str, is_beside| CompletedComparison {
        case: case.into(),
        names: [a.into(), "on".into()],
        is_beside,
        threads: 1,
        why: "it is close",
        results: results(vec![job(name, 6)]),
    };
    ExperimentResults {
        experiment: name,
        about: "two paths",
        target: "image".into(),
        names: ["off".into(), "on".into()],
        comparisons: vec![
            comparison("depth 512", "off", false),
            comparison("depth 512", beside, true),
        ],
        counters: &["direct."],
        incomplete: false,
    }
}

#[test]
fn a_page_of_experiments_has_the_tables_the_words_the_reasons_and_all_comparisons() {
    let mut experiments =
        [experiment("simple-read", "ext4"), experiment("fixed-files", "<script>alert(1)</script>")];
    experiments[1].incomplete = true;
    let source = Source { command: "uringfs bench experiment all", document: "{}" };
    let page = Page::parse(&page::experiments_html(&experiments, source));
    let body = &page.only("body").text;
    let mut rest = body.as_str();
    for part in [
        "Incomplete: fixed-files was stopped after 2 comparisons",
        "a: off (",
        "b is slower: its rate is 6.0 % lower (5.0 % to 7.0 %)",
        "depth 512, beside ext4",
        "why: possibly: it is close. The costs per I/O stand above",
        "published b",
        "+14.1 % [1]",
        "[1] Fengnan Chang, 2026-06-30: ",
        "counters of off: direct.fast 9",
        "no published table: ",
        "simple-read, depth 512",
        "fixed-files, depth 512, beside <script>alert(1)</script>",
        "Conditions",
        "uringfs bench experiment all",
        "Every run of fixed-files, depth 512",
    ] {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("no `{part}` in\n{rest}")).1;
    }
    let links = page.all("a");
    let targets: Vec<_> = links.iter().filter_map(|link| link.attribute("href")).collect();
    let expected = ["#simple-read-1", "#simple-read-2", "#fixed-files-1", "#fixed-files-2"];
    assert_eq!(targets[..4], expected);
    for target in expected {
        let sections = page.all("section");
        let has_id = |section: &&html::Element| section.attribute("id") == Some(&target[1..]);
        assert_eq!(sections.iter().filter(|section| has_id(section)).count(), 1, "{target}");
    }
    assert_eq!(page.title(), "2 experiments");
    assert_eq!(page.all("svg").len(), 4 * 4);
}

#[test]
fn invisible_characters_are_seen() {
    let results = results(vec![job("a\x1b[2J\r\n\u{202e}b", 2)]);
    let page = read(&results);
    assert!(page.title().starts_with("a␛[2J␍␊\\u{202e}b"), "{}", page.title());
}

fn value() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), 0.0..1e7f64, Just(0.0), Just(f64::NAN)]
}

fn sample() -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec(value(), 0..8)
}

prop_compose! {
    fn any_figure()(
        name in prop_oneof![Just("rate".to_owned()), Just("read p99".to_owned()), Just("CPU per I/O".to_owned()), any::<String>()],
        unit in prop_oneof![Just(Unit::PerSecond), Just(Unit::Nanoseconds), Just(Unit::PerIo)],
        samples in proptest::array::uniform4(sample()),
        ratio in proptest::array::uniform3(value()),
    ) -> FigureComparison {
        let [a, again, b, control] = samples;
        let [ratio, low, high] = ratio;
        let ratio = RatioInterval { ratio, low, high };
        FigureComparison { name, unit, a, again, b, control, ratio, noise: ratio, sign_test: low }
    }
}

proptest! {
    /// The page can be read, and so can the text and the JSON, whatever the texts and the values are.
    #[test]
    fn any_results_have_a_page(
        name in any::<String>(),
        figures in proptest::collection::vec(any_figure(), 1..5),
        counters in proptest::collection::vec((any::<String>(), any::<u64>()), 0..3),
        effect in value(),
    ) {
        let job = JobComparison {
            job: name.clone(),
            figures,
            counters: [counters.clone(), counters],
            verdict: Verdict::TooNoisy,
            more_pairs: None,
        };
        let results = Results { effect, ..results(vec![job]) };
        let source = Source { command: &name, document: &json(&results).to_string() };
        Page::parse(&page::html(&results, source));
        prop_assert!(text(&results).contains("too noisy to say"));
    }
}
