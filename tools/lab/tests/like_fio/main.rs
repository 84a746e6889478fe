//! Compares the workload with the installed fio, which logs its I/Os on engine `null`: the same offsets and
//! lengths, in the same order if the order is defined.

mod depths;
mod keys;
mod traces;
mod zipf;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use uringfs_lab::engine::EngineKind;
use uringfs_lab::job::{Job, Parser, UnknownKeys};
use uringfs_lab::run::{Overwrite, Plan};
use uringfs_lab::workload::{IoOp, Workload};

/// An I/O: file, whether it writes, offset, length.
type LoggedIo = (u32, bool, u64, u64);

/// Creates two files of different lengths, to read.
fn unequal_files(folder: &Path) {
    for (name, size) in [("x.0", 64 << 10), ("x.1", 16 << 10)] {
        File::create(folder.join(name)).unwrap().set_len(size).unwrap();
    }
}

/// The trace that fio writes of its I/Os for these keys.
pub fn fio_trace(keys: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    unequal_files(folder.path());
    let log = folder.path().join("log");
    let mut command = Command::new("fio");
    command.current_dir(folder.path()).args(["--name=j", "--ioengine=null", "--thread"]);
    command.args(keys.split(' ').map(|key| format!("--{key}")));
    let output = command.arg(format!("--write_iolog={}", log.display())).output();
    let output = output.expect("fio must be installed");
    assert!(output.status.success(), "{keys}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(log).unwrap()
}

/// fio's I/Os for these keys.
pub fn fio_ios(keys: &str) -> Vec<LoggedIo> {
    let done = |line: &str| {
        // TIME FILE read OFFSET LENGTH; other lines are shorter.
        let words: Vec<&str> = line.split(' ').collect();
        let [_, file, action, offset, length] = words[..] else { return None };
        let file = file.rsplit('.').next().unwrap().parse().unwrap();
        let [offset, length] = [offset, length].map(|number| number.parse().unwrap());
        Some((file, action == "write", offset, length))
    };
    fio_trace(keys).lines().filter_map(done).collect()
}

/// Our I/Os for these keys.
pub fn our_ios(keys: &str) -> Vec<LoggedIo> {
    let folder = tempfile::tempdir().unwrap();
    unequal_files(folder.path());
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    let lines = keys.replace(' ', "\n");
    let text = format!("[j]\ndirectory={}\n{lines}\n", folder.path().display());
    parser.bytes(text.as_bytes(), "test").unwrap();
    let jobs: Vec<Job> = parser.finish().unwrap().jobs;
    let plan = Plan::new(&jobs, EngineKind::Psync.capabilities(), Overwrite::Refuse).unwrap();
    let options = &jobs[0].options;
    let thread = &plan.threads[0];
    let mut workload = Workload::new(options, &thread.regions, thread.amount, 1);
    let mut all = Vec::new();
    for _ in 0..options.loops {
        let pass = std::iter::from_fn(|| workload.next_io());
        all.extend(pass.map(|s| (s.file, s.op == IoOp::Write, s.offset, u64::from(s.length))));
        workload.begin_pass();
    }
    all
}

#[test]
fn sequential_jobs_do_fio_s_ios_in_the_same_order() {
    for keys in [
        "rw=read size=256k",
        "rw=write bs=8k size=100k",
        "rw=read size=42k loops=3",
        "rw=read size=64k io_size=16k loops=2",
        "rw=read size=64k io_size=160k",
        "rw=read size=64k io_size=50%",
        "rw=read size=64k io_size=1k loops=3",
        "rw=read size=64k io_size=10k",
        "rw=read size=64k io_size=10k loops=3",
        "rw=read size=64k io_size=66k",
        "rw=read size=64k io_size=70k",
        "rw=read bs=8k size=100k io_size=190k",
        "rw=read nrfiles=3 size=30k",
        "rw=read filename=x.0:x.1 ioengine=psync",
        "rw=read filename=x.0:x.1 ioengine=psync loops=2",
        "rw=read filename=x.0:x.1 ioengine=psync io_size=100k",
        "rw=read nrfiles=3 size=30k io_size=34k",
        "rw=read offset=8k size=64k",
        "rw=read filesize=100k size=100k offset=33%",
        "rw=read bs=16k,4k filesize=400k size=400k offset=33%",
        "rw=read bs=16k filesize=400k size=400k offset=33% offset_align=8k",
        "rw=read filesize=100k size=50%",
        "rw=write nrfiles=3 size=96k",
        "rw=read nrfiles=2 filesize=32k",
        "rw=read filesize=256k size=64k",
        "rw=read filesize=256k size=64k io_size=128k",
        "rw=read filesize=100k size=40k offset=16k",
        "rw=read filesize=64k size=50k loops=2",
        "rw=read filesize=64k size=128k",
        "rw=read filesize=64k size=40k io_size=25%",
        "rw=read filesize=64k size=8k io_size=25%",
        "rw=read nrfiles=2 filesize=32k size=40k",
        "rw=read nrfiles=2 size=40k io_size=12k loops=3",
        "rw=trim size=64k",
        "rw=trim bs=4k,4k,16k size=64k loops=2",
        "rw=read bs=,16k size=64k",
        "rw=write bs=16k, size=64k",
        "rw=write bs=4k,16k size=64k",
        "rw=randread percentage_random=0 size=64k",
        "rw=read nrfiles=3 size=48k file_service_type=roundrobin:2",
        "rw=read nrfiles=3 size=48k file_service_type=sequential",
        "rw=read size=64k number_ios=7",
        "rw=read size=64k number_ios=10 loops=2",
    ] {
        assert_eq!(our_ios(keys), fio_ios(keys), "{keys}");
    }
}

/// The number of visits of each block: (file, block) to count.
fn visits(all: &[LoggedIo]) -> BTreeMap<(u32, u64), u32> {
    let mut visits = BTreeMap::new();
    for (file, _, offset, length) in all {
        for block in offset / 4096..(offset + length) / 4096 {
            *visits.entry((*file, block)).or_default() += 1;
        }
    }
    visits
}

#[test]
fn random_jobs_visit_fio_s_blocks_as_often() {
    for keys in [
        "rw=randread size=1m",
        "rw=randwrite size=1m loops=2",
        "rw=randtrim size=1m",
        "rw=randread size=1m io_size=3m",
        "rw=randread size=1m io_size=256k loops=8",
        "rw=randread nrfiles=4 size=1m",
        "rw=randrw rwmixread=70 size=1m",
        "rw=randread offset=64k size=256k",
        "rw=randread bsrange=4k-32k size=1m",
        "rw=randread bs=12k size=1m",
        "rw=randread bssplit=4k/50:8k/30:32k/20 size=1m",
        "rw=randread nrfiles=4 size=1m file_service_type=random",
        "rw=randread filename=x.0:x.1 ioengine=psync",
        "rw=randread filename=x.0:x.1 ioengine=psync io_size=160k",
    ] {
        let (ours, fios) = (our_ios(keys), fio_ios(keys));
        assert_eq!(visits(&ours), visits(&fios), "{keys}");
        assert_ne!(ours, fios, "{keys}: the orders differ");
    }
}

/// A figure of an I/O.
type Figure = fn(&LoggedIo) -> f64;

/// The mean of a figure of each file's I/Os, and the variance of that mean.
fn mean_of_files(all: &[LoggedIo], figure: Figure) -> (f64, f64) {
    let mut sums = BTreeMap::new();
    all.iter().for_each(|io| *sums.entry(io.0).or_insert(0.0) += figure(io));
    let count = sums.len() as f64;
    let mean = sums.values().sum::<f64>() / count;
    let squares: f64 = sums.values().map(|sum| (sum - mean).powi(2)).sum();
    (mean, squares / (count - 1.0) / count)
}

#[test]
fn ios_that_meet_visited_blocks_are_as_short_as_fio_s() {
    for sizes in ["bssplit=4k/50:8k/30:128k/10:1m/10", "bsrange=4k-256k"] {
        let keys = format!("rw=randread {sizes} nrfiles=100 size=100m");
        let [ours, fios] = [our_ios(&keys), fio_ios(&keys)];
        let figures: [(&str, Figure); 4] = [
            ("I/Os", |_| 1.0),
            ("I/Os of 4 KiB", |io| f64::from(u8::from(io.3 == 4096))),
            ("I/Os of sizes between", |io| f64::from(u8::from((8193..131_072).contains(&io.3)))),
            ("bytes of the first half", |io| if io.2 < 512 << 10 { io.3 as f64 } else { 0.0 }),
        ];
        for (what, figure) in figures {
            let [(a, a_variance), (b, b_variance)] =
                [&ours, &fios].map(|all| mean_of_files(all, figure));
            // Five standard deviations.
            let most = 5.0 * (a_variance + b_variance).sqrt();
            assert!((a - b).abs() <= most, "{keys}: {what}: {a} and {b}, at most {most} apart");
        }
    }
}

#[test]
fn jobs_without_a_map_do_as_many_ios_as_fio() {
    for keys in
        ["rw=randread norandommap size=1m", "rw=randread random_distribution=zipf:1.2 size=1m"]
    {
        for all in [our_ios(keys), fio_ios(keys)] {
            assert_eq!(all.len(), 256, "{keys}");
            assert!(all.iter().all(|(_, _, offset, _)| offset % 4096 == 0 && *offset < 1 << 20));
            assert!(visits(&all).len() < 220, "{keys}: some blocks are visited again");
        }
    }
}

#[test]
fn a_size_beside_filesize_is_no_region() {
    for keys in [
        "rw=randread norandommap filesize=1m size=64k",
        "rw=randread filesize=1m size=64k",
        "rw=randwrite nrfiles=2 filesize=512k size=128k",
    ] {
        let [ours, fios] = [our_ios(keys), fio_ios(keys)];
        assert_eq!(ours.len(), fios.len(), "{keys}");
        for all in [ours, fios] {
            // One of 16 blocks or more is below 64 KiB by a chance of 1/16 or 1/8.
            assert!(all.iter().any(|io| io.2 >= 64 << 10), "{keys}: {all:?}");
        }
    }
}

#[test]
fn aligned_blocks_are_where_fio_s_are() {
    for keys in
        ["rw=randread bs=4k blockalign=16k size=1m", "rw=randwrite ba=2k bsrange=1k-8k size=1m"]
    {
        let unit = if keys.contains("16k") { 16 << 10 } else { 2 << 10 };
        for all in [our_ios(keys), fio_ios(keys)] {
            assert!(all.len() > 100, "{keys}");
            assert!(all.iter().all(|(_, _, offset, _)| offset % unit == 0), "{keys}");
            // 64 of the first, 508 of the other can be drawn.
            let drawn: std::collections::BTreeSet<u64> = all.iter().map(|io| io.2).collect();
            assert!(drawn.len() < all.len() && drawn.len() > 50, "{keys}: some are drawn again");
        }
    }
}

#[test]
fn a_mix_has_fio_s_share_of_reads() {
    let keys = "rw=randrw rwmixread=70 size=16m";
    for all in [our_ios(keys), fio_ios(keys)] {
        let reads = all.iter().filter(|(_, writes, ..)| !writes).count();
        // 2867 of 4096; five standard deviations are 147.
        assert!(reads.abs_diff(2867) < 147, "{reads}");
    }
}

/// The share of I/Os that satisfy a condition, of ours and of fio's.
fn shares(keys: &str, holds: impl Fn(&[LoggedIo]) -> bool) -> [f64; 2] {
    [our_ios(keys), fio_ios(keys)].map(|all| {
        let pairs = all.windows(2);
        assert!(all.len() > 1000, "{keys}");
        pairs.filter(|pair| holds(pair)).count() as f64 / (all.len() - 1) as f64
    })
}

#[test]
fn block_sizes_have_fio_s_shares() {
    let keys = "rw=randread norandommap bssplit=4k/50:8k/:32k/ size=64m";
    for (length, expected) in [(4096, 0.5), (8192, 0.25), (32_768, 0.25)] {
        for share in shares(keys, |pair| pair[0].3 == length) {
            // Five standard deviations of 5,000 I/Os.
            assert!((share - expected).abs() < 0.036, "{length}: {share}");
        }
    }
}

#[test]
fn a_percentage_of_the_blocks_is_random_as_with_fio() {
    let keys = "rw=randread percentage_random=30 size=64m";
    for share in shares(keys, |pair| pair[1].2 == pair[0].2 + 4096) {
        // Five standard deviations of 16,384 I/Os.
        assert!((share - 0.7).abs() < 0.018, "{share}");
    }
}

#[test]
fn turns_of_random_files_are_as_long_as_fio_s() {
    let keys = "rw=read nrfiles=4 size=16m file_service_type=random:8";
    for share in shares(keys, |pair| pair[1].0 != pair[0].0) {
        // One of eight I/Os begins a turn, and three of four turns go to another file.
        assert!((share - 0.75 / 8.0).abs() < 0.02, "{share}");
    }
}

#[test]
fn zones_have_fio_s_shares_of_the_ios() {
    for zones in [
        "zoned:60/10:30/20:10/70",
        "zoned:60/10:30/20:10",
        "zoned_abs:60/6400k:30/12800k:10/44800k",
    ] {
        let keys = format!("rw=randread random_distribution={zones} size=64000k");
        for (blocks, expected) in [(0..6400, 0.6), (6400..19_200, 0.3), (19_200..64_000, 0.1)] {
            for share in shares(&keys, |pair| blocks.contains(&(pair[0].2 >> 10))) {
                // Five standard deviations of 16,000 I/Os.
                assert!((share - expected).abs() < 0.02, "{keys}: {share} of {expected}");
            }
        }
    }
}
