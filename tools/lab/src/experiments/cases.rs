//! The experiments: switches and cases. Each compares the off and on sides of one mechanism in engine `uringfs`.

use super::case::{Beside, Case, Experiment, NamedSide, TargetChoice};
use crate::Error;
use crate::engine::EngineKind;
use crate::job::nearest;

/// Constructs an experiment.
type Constructor = fn() -> Experiment;

/// All experiments, by name.
const CASES: &[(&str, Constructor)] = &[
    ("simple-read", simple_read),
    ("buffered-read", buffered_read),
    ("parallel-write", parallel_write),
    ("completion", completion),
    ("fixed-files", fixed_files),
];

/// The experiment of this name; `all` gives all.
///
/// # Errors
/// There is none.
///
/// ```
/// let found = uringfs_lab::experiments::find("simple-read")?;
/// assert_eq!(found[0].off.keys, ["direct.simple_read=off"]);
/// assert_eq!(uringfs_lab::experiments::find("all")?.len(), 5);
/// # Ok::<(), uringfs_lab::Error>(())
/// ```
pub fn find(name: &str) -> Result<Vec<Experiment>, Error> {
    let wanted = CASES.iter().filter(|(known, _)| name == "all" || name == *known);
    let found: Vec<Experiment> = wanted.map(|(_, construct)| construct()).collect();
    if found.is_empty() {
        let hint = nearest(name, names());
        let hint = hint.map_or(String::new(), |near| format!("; the nearest is `{near}`"));
        let known: Vec<_> = names().collect();
        let line = format!("no experiment `{name}`{hint} (known: {})", known.join(", "));
        return Err(Error::input(line));
    }
    Ok(found)
}

/// Keeps the cases of these names, and the experiments that have one; without any name, all.
///
/// # Errors
/// A name is that of no case.
pub(super) fn keep_cases(experiments: &mut Vec<Experiment>, names: &[String]) -> Result<(), Error> {
    let cases = || experiments.iter().flat_map(|experiment| &experiment.cases);
    let is_known = |name: &String| cases().any(|case| case.name == *name);
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        let mut known: Vec<&str> = Vec::new();
        for case in cases() {
            if !known.contains(&case.name.as_str()) {
                known.push(&case.name);
            }
        }
        let line = format!("no case `{unknown}` (known: {})", known.join("; "));
        return Err(Error::input(line));
    }
    if !names.is_empty() {
        for experiment in experiments.iter_mut() {
            experiment.cases.retain(|case| names.contains(&case.name));
        }
        experiments.retain(|experiment| !experiment.cases.is_empty());
    }
    Ok(())
}

/// The names of the experiments, and of all together.
pub fn names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|(name, _)| *name).chain(["all"])
}

/// A side of engine `uringfs`.
fn side(name: &str, keys: &[&str]) -> NamedSide {
    NamedSide::new(name, EngineKind::Uringfs, keys)
}

/// A case at one depth, in batches of at most 32, as `t/io_uring -s32 -c32`.
fn at_depth(depth: u32, why: &'static str) -> Case {
    let batch = depth.min(32).to_string();
    let keys = vec![
        ("iodepth", depth.to_string()),
        ("iodepth_batch_submit", batch.clone()),
        ("iodepth_batch_complete_min", batch),
        // The lab's default. fio's default is the minimum.
        ("iodepth_batch_complete_max", depth.to_string()),
    ];
    Case { name: format!("depth {depth}"), target: TargetChoice::Target, keys, why }
}

fn reads() -> Vec<(&'static str, String)> {
    [
        ("rw", "randread"),
        ("bs", "4k"),
        ("direct", "1"),
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
fn simple_read() -> Experiment {
    const WHY: &str = "the fast path saves some hundred instructions a read, which are little beside a read that takes many \
                       thousand, as of a compressed RAM disk";
    Experiment {
        name: "simple-read",
        about: "4 KiB random reads by the slow path and by the fast path",
        off: side("slow path", &["direct.simple_read=off"]),
        on: side("fast path", &["direct.simple_read=on"]),
        beside: Vec::new(),
        keys: reads(),
        cases: [1, 32, 128, 512].map(|depth| at_depth(depth, WHY)).into(),
        kernel_engine: EngineKind::Fio,
        counters: &["direct.fast_path", "direct.slow_path"],
    }
}

/// Buffered reads that miss the cache: a callback, compared with a thread that waits. Each
/// block is read at most once, and the cache is emptied before each run.
fn buffered_read() -> Experiment {
    const CACHE: &str = "buffered.cache_bytes=16777216";
    const WHY: &str = "a thread that waits costs switches of contexts. With few reads in flight, on a target that answers at once, \
                       there are few to save";
    let mut keys = reads();
    keys.extend([("norandommap", "0".to_owned()), ("time_based", "0".to_owned())]);
    let direct = Beside {
        side: side("direct", &[]),
        why: "a direct read copies nothing and looks up no folio: it is the upper bound",
    };
    Experiment {
        name: "buffered-read",
        about: "4 KiB random reads of uncached data through 16 MiB of page cache: a thread waits for each, or a callback",
        off: side("thread", &["direct=0", CACHE, "buffered.wait=thread"]),
        on: side("callback", &["direct=0", CACHE, "buffered.wait=callback"]),
        beside: vec![direct],
        keys,
        cases: [1, 2, 4, 8, 16, 32].map(|depth| one_by_one(depth, WHY)).into(),
        kernel_engine: EngineKind::Fio,
        counters: &["buffered."],
    }
}

/// A case at one depth, in which each completion is followed by the next I/O.
fn one_by_one(depth: u32, why: &'static str) -> Case {
    let mut case = at_depth(depth, why);
    case.keys[1].1 = "1".into();
    case.keys[2].1 = "1".into();
    // The ramp ends when the cache has allocated all its memory; the kernel zeroes each page first.
    case.keys.push(("ramp_time", format!("{}ms", (500 / depth).max(100))));
    case
}

/// Concurrent writers of one file, compared with an exclusive lock.
fn parallel_write() -> Experiment {
    const WHY: &str = "writers wait for the lock only while another one holds it. With few of them, or few processors, that is \
                       seldom; and where a kernel worker does the write, the lock is held for the hand-over alone";
    let mut keys = writes();
    keys.extend([("thread", "1".to_owned()), ("group_reporting", "1".to_owned())]);
    let case = |threads: u32| {
        let mut case = at_depth(64, WHY);
        case.name = format!("{threads} threads, {}", case.name);
        case.keys.push(("numjobs", threads.to_string()));
        case
    };
    Experiment {
        name: "parallel-write",
        about: "4 KiB random overwrites of one file from several threads: under one lock, or in parallel",
        off: side("one lock", &["direct.write_lock=exclusive"]),
        on: side("in parallel", &["direct.write_lock=shared"]),
        beside: Vec::new(),
        keys,
        cases: [2, 8, 32].map(case).into(),
        kernel_engine: EngineKind::Fio,
        counters: &["direct.write.unlocked", "direct.write.range_locked", "direct.write.exclusive"],
    }
}

/// Completions in the reaping thread, compared with a worker thread. psync is compared, too: without
/// the mechanism the stack is slower than psync at low depth.
fn completion() -> Experiment {
    const WHY: &str = "a hand-over to the worker wakes a thread. With many writes in flight one wake-up serves many of them";
    let in_place = [1, 16, 32].map(|depth| named("in place", at_depth(depth, WHY)));
    let others = [durable, unwritten, unwritten_durable];
    let others = others.iter().flat_map(|case| [1, 32].map(|depth| case(at_depth(depth, WHY))));
    let psync = Beside {
        side: NamedSide::new("psync", EngineKind::Psync, &[]),
        why: "pwrite is one system call and no queue: at depth 1 nothing is shorter",
    };
    Experiment {
        name: "completion",
        about: "4 KiB random writes, completed by a worker thread or by the thread that reaps them",
        off: side("worker", &["completion=worker"]),
        on: side("inline", &["completion=inline"]),
        beside: vec![psync],
        keys: writes(),
        cases: in_place.into_iter().chain(others).collect(),
        kernel_engine: EngineKind::Psync,
        counters: &["completion."],
    }
}

/// A case with more words in its name.
fn named(words: &str, case: Case) -> Case {
    Case { name: format!("{words}, {}", case.name), ..case }
}

/// Overwrites in place, each durable at its completion.
fn durable(case: Case) -> Case {
    named("in place, durable", with_durable_writes(case))
}

/// Writes into allocated, unwritten blocks, each once, so that all writes are alike. A run ends with the
/// last block, or with its time.
fn unwritten(case: Case) -> Case {
    named("unwritten", into_new_file(case))
}

/// Writes into unwritten blocks, each durable at its completion.
fn unwritten_durable(case: Case) -> Case {
    named("unwritten, durable", with_durable_writes(into_new_file(case)))
}

fn with_durable_writes(mut case: Case) -> Case {
    case.keys.push(("sync", "dsync".into()));
    case.why =
        "a durable write waits until the device has its bytes, which takes longer than a hand-over";
    case
}

fn into_new_file(mut case: Case) -> Case {
    let keys = [("fallocate", "posix"), ("norandommap", "0"), ("time_based", "0"), ("unlink", "1")];
    case.keys.extend(keys.map(|(key, value)| (key, value.to_owned())));
    case.target = TargetChoice::NewFile;
    case.why = "the first write into a block makes it a written one, on both sides alike, which takes longer than a hand-over";
    case
}

/// Registered files and buffers, compared with unregistered ones.
fn fixed_files() -> Experiment {
    const WHY: &str = "a registration saves the look-up of the file and the pinning of the buffer, a small part of a read";
    Experiment {
        name: "fixed-files",
        about: "4 KiB random reads with plain and with registered files and buffers",
        off: side("plain", &["ring.fixed_files=off", "ring.fixed_buffers=off"]),
        on: side("registered", &["ring.fixed_files=on", "ring.fixed_buffers=on"]),
        beside: Vec::new(),
        keys: reads(),
        cases: [1, 32, 128].map(|depth| at_depth(depth, WHY)).into(),
        kernel_engine: EngineKind::Fio,
        counters: &["ring.fixed", "ring.plain"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_has_a_hint() {
        let error = find("simple-reed").unwrap_err().to_string();
        assert!(
            error.contains("nearest is `simple-read`") && error.contains("fixed-files"),
            "{error}"
        );
    }

    #[test]
    fn each_case_has_a_name_of_its_own_and_a_reason() {
        for experiment in find("all").unwrap() {
            for case in &experiment.cases {
                let same = experiment.cases.iter().filter(|other| other.name == case.name);
                assert_eq!(same.count(), 1, "{}", case.name);
                assert!(!case.why.is_empty());
            }
            assert!(experiment.beside.iter().all(|beside| !beside.why.is_empty()));
        }
    }

    #[test]
    fn cases_are_kept_by_their_names() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut experiments = find("completion").unwrap();
        let error = keep_cases(&mut experiments, &names(&["depth 1"])).unwrap_err().to_string();
        assert!(error.starts_with("no case `depth 1` (known: in place, depth 1; "), "{error}");
        let mut experiments = find("all").unwrap();
        keep_cases(&mut experiments, &[]).unwrap();
        assert_eq!(experiments.len(), 5);
        keep_cases(&mut experiments, &names(&["in place, depth 16", "depth 128"])).unwrap();
        let kept: Vec<_> = experiments.iter().map(|it| (it.name, it.cases.len())).collect();
        assert_eq!(kept, [("simple-read", 1), ("completion", 1), ("fixed-files", 1)]);
    }
}
