//! The system calls that a reactor counts, compared with those that `strace -c` counts.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use uringfs_buffer::BufferPool;
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Access, Device};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{Counter, Reactor, ReactorOptions, Token};

const TEST: &str = "counted_system_calls_agree_with_strace_where_it_may_trace";
/// The environment variable of a traced run: the path of a file, the queue, and the number of batches.
const TRACED: &str = "URINGFS_TEST_TRACED";
/// The words that a traced run prints before its count.
const COUNTED: &str = "system calls counted: ";
/// Reads in a batch.
const BATCH: u64 = 32;
/// The system calls of I/O. Those to sleep are those of queues' threads.
const CALLS: &str = "io_uring_enter,io_submit,io_getevents,io_cancel,pread64,preadv,preadv2,read,write,\
                     epoll_wait,epoll_pwait,epoll_pwait2";

/// Reads batches, and prints how many system calls the reactor has counted.
fn read_batches(traced: &str) {
    let words: Vec<_> = traced.split(' ').collect();
    let [path, queue, batches] = words[..] else { panic!("{traced}") };
    let queue: QueueKind = queue.parse().unwrap();
    let device = Device::open(Path::new(path), Access::Read).unwrap();
    let file = File::from_device(device, FileOptions::default());
    let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
    let pool = BufferPool::new(4096, BATCH as usize).unwrap();
    let mut completed = Vec::new();
    for _ in 0..batches.parse::<u64>().unwrap() {
        for token in 0..BATCH {
            let buffer = pool.get().expect("the last batch has ended");
            reactor.read_at(&file, buffer, 4096 * token, Token::new(token)).unwrap();
        }
        reactor.reap(BATCH as usize, None, &mut completed).unwrap();
        assert!(completed.drain(..).all(|read| read.result() == Ok(4096)));
    }
    let counters = reactor.counters();
    let counted = counters.get(Counter::Enters) + counters.get(Counter::OtherCalls);
    println!("{COUNTED}{counted}");
}

/// The calls that a reactor has counted, and those that strace has, by name.
struct Counts {
    counted: u64,
    traced: BTreeMap<String, u64>,
}

/// The counts of a run of its own. `None` if this machine has no strace, or forbids it.
fn trace(folder: &Path, calls: &str, queue: &str, batches: u64) -> Option<Counts> {
    let table = folder.join("table");
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-e", &format!("trace={calls}"), "-o"]).arg(&table);
    command.arg(std::env::current_exe().unwrap()).args([TEST, "--exact", "--nocapture"]);
    command.env(TRACED, format!("{} {queue} {batches}", folder.join("data").display()));
    let output = command.output().ok()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() && error.contains("ptrace") {
        return None;
    }
    let counted = out.split_once(COUNTED).and_then(|(_, rest)| rest.lines().next()?.parse().ok());
    let counted = counted.unwrap_or_else(|| panic!("{queue}: {out}{error}"));
    let table = std::fs::read_to_string(table).unwrap();
    // Columns: time in percent, seconds, microseconds a call, calls, errors if there are any, and the name.
    let line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let calls = words.get(3)?.parse().ok()?;
        Some(((*words.last()?).to_owned(), calls)).filter(|(name, _)| name != "total")
    };
    Some(Counts { counted, traced: table.lines().filter_map(line).collect() })
}

/// Runs of different length are subtracted, so that what a program does at its start and at its end cancels.
#[test]
fn counted_system_calls_agree_with_strace_where_it_may_trace() {
    if let Ok(traced) = std::env::var(TRACED) {
        return read_batches(&traced);
    }
    let folder = tempfile::tempdir().unwrap();
    let size = 4096 * BATCH;
    ImageFile::create(&folder.path().join("data"), size, Allocation::Written).unwrap();
    let with_sleeps = format!("{CALLS},futex");
    let (few, many) = (4, 44);
    let reads = (many - few) * BATCH;
    // The threads of a queue make a few more calls where they meet at a lock.
    for (queue, calls, tolerance) in [
        ("ring", CALLS, 0.01),
        ("sync", CALLS, 0.01),
        ("aio", CALLS, 0.01),
        ("threads", &with_sleeps, 0.25),
    ] {
        let counts = [few, many].map(|batches| trace(folder.path(), calls, queue, batches));
        let [Some(short), Some(long)] = counts else {
            println!("not exercised: strace");
            return;
        };
        let counted = long.counted - short.counted;
        let sum = |counts: &Counts| counts.traced.values().sum::<u64>();
        let traced = sum(&long) - sum(&short);
        let allowed = tolerance * traced.max(reads) as f64;
        assert!(
            counted.abs_diff(traced) as f64 <= allowed,
            "{queue}: {counted} counted, {traced} traced: {:?}, without {:?}",
            long.traced,
            short.traced,
        );
        println!("{queue}: {counted} counted, {traced} traced");
        if queue == "aio" {
            // The first half of a batch starts the device early.
            let submitted = long.traced["io_submit"] - short.traced["io_submit"];
            let batches = many - few;
            assert!((batches..=2 * batches).contains(&submitted), "{submitted} for {batches}");
        }
    }
}
