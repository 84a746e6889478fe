//! The I/Os in logs of `write_bw_log` with `log_offset`, and their comparison: exact where the job defines it, otherwise by
//! chi-square tests with a fixed bound. Both programs draw the same I/Os in each run.

use std::collections::BTreeMap;
use std::path::Path;
use uringfs_lab::job::{Distribution, Options};

/// An I/O: 0 for a read or 1 for a write, its offset and its length.
pub struct LoggedIo {
    op: usize,
    offset: u64,
    length: u64,
}

/// The I/Os of each thread, from the logs `ios_bw.N.log`.
pub fn logged_ios(folder: &Path) -> Vec<Vec<LoggedIo>> {
    let read =
        |thread: usize| std::fs::read_to_string(folder.join(format!("ios_bw.{thread}.log"))).ok();
    let io = |line: &str| {
        // Time, bandwidth, direction, length, offset, priority.
        let words: Vec<&str> = line.split(", ").collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap_or_else(|_| panic!("{line}"));
        LoggedIo { op: number(2) as usize, offset: number(4), length: number(3) }
    };
    (1..).map_while(read).map(|text| text.lines().map(io).collect()).collect()
}

/// Where a thread begins. fio counts the threads of a job in another order.
pub fn first_offset(ios: &[LoggedIo]) -> Option<u64> {
    ios.iter().map(|io| io.offset).min()
}

/// Compares the I/Os of a thread.
pub fn assert_same_ios(theirs: &[LoggedIo], ours: &[LoggedIo], options: &Options, name: &str) {
    let Options { pattern, block, .. } = options;
    let is_mixed = pattern.reads() && pattern.writes();
    let has_map = options.random_map && options.distribution == Distribution::Uniform;
    // A part of a random order is any part.
    let is_whole = options.number_ios == 0 && options.io_size.is_none();
    let has_several_sizes = options.blocks_in_use().any(|range| range.min < range.max);
    if pattern.random() && has_map && is_whole && has_several_sizes {
        assert_eq!(visits(theirs), visits(ours), "{name}: visits of each byte");
        // Where the largest I/Os are as long as a file, five standard deviations are half of the I/Os. `tools/lab/tests/like_fio`
        // compares the numbers of many files.
        let [least, most] = [theirs.len().min(ours.len()), theirs.len().max(ours.len())];
        assert!(least * 2 >= most, "{name}: {least} and {most} I/Os");
    }
    for op in [0, 1] {
        let name = format!("{name}: {}", ["reads", "writes"][op]);
        let [theirs, ours] = [theirs, ours]
            .map(|all| all.iter().filter(|io| io.op == op).collect::<Vec<&LoggedIo>>());
        let is_fixed = block[op].min == block[op].max;
        let is_known = !pattern.random() || has_map && is_whole;
        if !is_mixed && is_fixed && is_known {
            let places = |all: &[&LoggedIo]| {
                let mut places: Vec<_> = all.iter().map(|io| (io.offset, io.length)).collect();
                places.sort_unstable();
                places
            };
            assert_eq!(places(&theirs), places(&ours), "{name}");
            continue;
        }
        let lengths = |all: &[&LoggedIo]| counts(all.iter().map(|io| io.length));
        assert_alike(&lengths(&theirs), &lengths(&ours), &format!("{name}: lengths"));
        let end = theirs.iter().chain(&ours).map(|io| io.offset + 1).max().unwrap_or(1);
        let is_skewed =
            matches!(options.distribution, Distribution::Zipf(_) | Distribution::Pareto(_));
        let places = |all: &[&LoggedIo]| match is_skewed {
            // Each program has hot blocks of its own.
            true => by_rank(&counts(all.iter().map(|io| io.offset))),
            false => counts(all.iter().map(|io| io.offset * 10 / end)),
        };
        assert_alike(&places(&theirs), &places(&ours), &format!("{name}: offsets"));
    }
}

/// How often each byte is visited: the change at each offset where it changes.
fn visits(ios: &[LoggedIo]) -> BTreeMap<u64, i64> {
    let mut changes = BTreeMap::new();
    for LoggedIo { offset, length, .. } in ios {
        *changes.entry(*offset).or_default() += 1;
        *changes.entry(offset + length).or_default() -= 1;
    }
    changes.retain(|_, change| *change != 0);
    changes
}

fn counts(values: impl Iterator<Item = u64>) -> BTreeMap<u64, f64> {
    let mut counts = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1.0);
    counts
}

/// The I/Os by the popularity of their blocks: each of the first eight is a class, and each further class has twice as many
/// blocks.
fn by_rank(counts: &BTreeMap<u64, f64>) -> BTreeMap<u64, f64> {
    let mut sorted: Vec<f64> = counts.values().copied().collect();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut classes = BTreeMap::new();
    for (rank, count) in (0u64..).zip(sorted) {
        let class = if rank < 8 { rank } else { 5 + u64::from(rank.ilog2()) };
        *classes.entry(class).or_default() += count;
    }
    classes
}

/// Requires that two samples may have one distribution: chi-square below its bound in 9,999 of 10,000 cases.
fn assert_alike(theirs: &BTreeMap<u64, f64>, ours: &BTreeMap<u64, f64>, name: &str) {
    let sums = [theirs, ours].map(|sample| sample.values().sum::<f64>());
    if sums == [0.0; 2] {
        return;
    }
    assert!(sums.iter().all(|sum| *sum > 0.0), "{name}: {sums:?} I/Os");
    let ratio = (sums[1] / sums[0]).sqrt();
    let classes = theirs.keys().chain(ours.keys().filter(|class| !theirs.contains_key(*class)));
    let count =
        |sample: &BTreeMap<u64, f64>, class: &u64| sample.get(class).copied().unwrap_or(0.0);
    let pairs = classes.map(|class| (count(theirs, class), count(ours, class)));
    // Rare classes are one.
    let (rare, pairs): (Vec<_>, Vec<_>) = pairs.partition(|(a, b)| a + b < 10.0);
    let rare = rare.iter().fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d));
    let pairs: Vec<(f64, f64)> =
        pairs.into_iter().chain([rare]).filter(|(a, b)| a + b >= 10.0).collect();
    let terms = pairs.iter().map(|(a, b)| (a * ratio - b / ratio).powi(2) / (a + b));
    let (found, freedom) = (terms.sum::<f64>(), pairs.len() as f64 - 1.0);
    if freedom >= 1.0 {
        let most = bound(freedom);
        assert!(found < most, "{name}: {found} of at most {most}: {theirs:?} {ours:?}");
    }
}

/// The bound of chi-square in 9,999 of 10,000 cases (Wilson and Hilferty, 1931).
fn bound(freedom: f64) -> f64 {
    const NORMAL: f64 = 3.719;
    let part = 2.0 / (9.0 * freedom);
    freedom * (1.0 - part + NORMAL * part.sqrt()).powi(3)
}
