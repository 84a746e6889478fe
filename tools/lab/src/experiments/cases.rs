//! The experiments: switches and cases. Each compares the off and on sides of one mechanism in engine
//! `uringfs`, with the bare ring as control (for `buffered-read`, direct reads).

use super::case::{Case, Experiment, Side, Sides, TargetChoice};
use crate::Error;
use crate::engine::EngineKind;

/// Constructs an experiment. An unknown engine is an error.
type Constructor = fn() -> Result<Experiment, Error>;

/// All experiments, by name.
pub const CASES: &[(&str, Constructor)] = &[
    ("simple-read", simple_read),
    ("buffered-read", buffered_read),
    ("parallel-write", parallel_write),
    ("completion", completion),
    ("fixed-files", fixed_files),
];

/// The experiment of this name; `all` gives all.
pub fn find(name: &str) -> Result<Vec<Experiment>, Error> {
    let wanted = CASES.iter().filter(|(known, _)| name == "all" || name == *known);
    let found: Vec<Experiment> =
        wanted.map(|(_, construct)| construct()).collect::<Result<_, _>>()?;
    if found.is_empty() {
        let known: Vec<_> = names().collect();
        return Err(Error::input(format!("no experiment `{name}` (known: {})", known.join(", "))));
    }
    Ok(found)
}

/// The names of the experiments, and of all together.
pub fn names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|(name, _)| *name).chain(["all"])
}

/// A side of engine `uringfs`.
fn side(name: &str, settings: &[(&str, &str)]) -> Result<Side, Error> {
    Side::new(name, "uringfs", settings)
}

/// A case at one depth, in batches of at most 32, as `t/io_uring -s32 -c32`.
fn at_depth(depth: u32) -> Case {
    let batch = depth.min(32).to_string();
    let keys = vec![
        ("iodepth", depth.to_string()),
        ("iodepth_batch_submit", batch.clone()),
        ("iodepth_batch_complete_min", batch),
        // The lab's default. fio's default is the minimum.
        ("iodepth_batch_complete_max", depth.to_string()),
    ];
    Case { what: "", target: TargetChoice::Target, keys }
}

fn reads() -> Vec<(&'static str, String)> {
    [
        ("rw", "randread"),
        ("bs", "4k"),
        ("norandommap", "1"),
        ("registerfiles", "1"),
        ("fixedbufs", "1"),
    ]
    .map(|(key, value)| (key, value.to_owned()))
    .to_vec()
}

fn writes() -> Vec<(&'static str, String)> {
    let mut keys = reads();
    keys[0].1 = "randwrite".into();
    // The same bytes from all engines: on some devices the content makes a difference.
    keys.push(("zero_buffers", "1".into()));
    keys
}

/// Small reads by the fast path, compared with the slow path.
fn simple_read() -> Result<Experiment, Error> {
    Ok(Experiment {
        name: "simple-read",
        sides: Sides {
            a: side("general path", &[("direct.simple_read", "off")])?,
            b: side("simple read", &[("direct.simple_read", "on")])?,
            control: Side::new("bare ring", "ring", &[])?,
            beside: Vec::new(),
        },
        keys: reads(),
        cases: vec![at_depth(1), at_depth(32), at_depth(128)],
        kernel_engine: EngineKind::Fio,
        counters: &["direct.fast_path", "direct.slow_path"],
    })
}

/// Buffered reads that miss the cache: a callback, compared with a thread that waits. Each
/// block is read at most once, and the cache is emptied before each run. Direct reads are the upper bound.
fn buffered_read() -> Result<Experiment, Error> {
    const CACHE: (&str, &str) = ("buffered.cache_bytes", "16777216");
    let buffered = |name, wait| -> Result<Side, Error> {
        let keys = vec![("direct", "0".to_owned())];
        Ok(Side { keys, ..side(name, &[CACHE, ("buffered.wait", wait)])? })
    };
    let mut keys = reads();
    keys.extend([("norandommap", "0".to_owned()), ("time_based", "0".to_owned())]);
    // The ramp ends when the cache has allocated all its memory; the kernel zeroes each page first.
    keys.push(("ramp_time", "500ms".to_owned()));
    Ok(Experiment {
        name: "buffered-read",
        sides: Sides {
            a: buffered("thread", "thread")?,
            b: buffered("callback", "callback")?,
            control: side("direct", &[])?,
            beside: Vec::new(),
        },
        keys,
        cases: [1, 2, 4, 8, 16, 32].map(one_by_one).into(),
        kernel_engine: EngineKind::Fio,
        counters: &["buffered."],
    })
}

/// A case at one depth, in which each completion is followed by the next I/O.
fn one_by_one(depth: u32) -> Case {
    let mut case = at_depth(depth);
    case.keys[1].1 = "1".into();
    case.keys[2].1 = "1".into();
    case
}

/// Concurrent writers of one file, compared with an exclusive lock.
fn parallel_write() -> Result<Experiment, Error> {
    let mut keys = writes();
    keys.extend([("thread", "1".to_owned()), ("numjobs", "32".to_owned())]);
    keys.extend([("group_reporting", "1".to_owned())]);
    Ok(Experiment {
        name: "parallel-write",
        sides: Sides {
            a: side("one lock", &[("direct.write_lock", "exclusive")])?,
            b: side("side by side", &[("direct.write_lock", "shared")])?,
            control: Side::new("bare ring", "ring", &[])?,
            beside: Vec::new(),
        },
        keys,
        cases: vec![at_depth(64)],
        kernel_engine: EngineKind::Fio,
        counters: &["direct.write.unlocked", "direct.write.range_locked", "direct.write.exclusive"],
    })
}

/// Completions in the reaping thread, compared with a worker thread. psync is shown, too: without
/// the mechanism the stack is slower than psync at low depth.
fn completion() -> Result<Experiment, Error> {
    let cases = [in_place, durable, unwritten, unwritten_durable];
    let cases = cases.iter().flat_map(|case| [1, 32].map(|depth| case(at_depth(depth)))).collect();
    Ok(Experiment {
        name: "completion",
        sides: Sides {
            a: side("worker", &[("completion", "worker")])?,
            b: side("inline", &[("completion", "inline")])?,
            control: Side::new("bare ring", "ring", &[])?,
            beside: vec![Side::new("psync", "psync", &[])?],
        },
        keys: writes(),
        cases,
        kernel_engine: EngineKind::Psync,
        counters: &["completion."],
    })
}

/// Overwrites in place.
fn in_place(case: Case) -> Case {
    Case { what: "in place", ..case }
}

/// Overwrites in place, each durable at its completion.
fn durable(mut case: Case) -> Case {
    case.keys.push(("sync", "dsync".into()));
    Case { what: "in place, durable", ..case }
}

/// Writes into allocated, unwritten blocks, each once, so that all writes are alike. A run ends with the
/// last block, or with its time.
fn unwritten(mut case: Case) -> Case {
    let keys = [("fallocate", "posix"), ("norandommap", "0"), ("time_based", "0")];
    case.keys.extend(keys.map(|(key, value)| (key, value.to_owned())));
    case.keys.push(("unlink", "1".into()));
    Case { what: "unwritten", target: TargetChoice::NewFile, ..case }
}

/// Writes into unwritten blocks, each durable at its completion.
fn unwritten_durable(case: Case) -> Case {
    Case { what: "unwritten, durable", ..unwritten(durable(case)) }
}

/// Registered files and buffers, compared with unregistered ones.
fn fixed_files() -> Result<Experiment, Error> {
    let switches = |value| [("ring.fixed_files", value), ("ring.fixed_buffers", value)];
    Ok(Experiment {
        name: "fixed-files",
        sides: Sides {
            a: side("plain", &switches("off"))?,
            b: side("registered", &switches("on"))?,
            control: Side::new("bare ring", "ring", &[])?,
            beside: Vec::new(),
        },
        keys: reads(),
        cases: vec![at_depth(1), at_depth(32), at_depth(128)],
        kernel_engine: EngineKind::Fio,
        counters: &["ring.fixed", "ring.plain"],
    })
}
