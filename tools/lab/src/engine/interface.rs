//! The interface of engines to the run loop. An engine owns one buffer per slot. The loop pushes an I/O
//! on a free slot, and the completion names the slot.

use uringfs::Errno;

use super::thread_cost::ThreadCost;
use crate::Error;
use crate::job::Options;
use crate::targets::{Access, Target, TargetInfo, Volumes};
use crate::workload::IoOp;
use std::ops::Range;

/// Why `batch` has no effect with an engine.
pub(super) const NO_BATCH: &str = "only engine uringfs has a batch interface";

/// One I/O of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Io {
    /// Index of a slot that is not in flight; it selects the buffer.
    pub slot: u32,
    /// Index of the file among the job's files.
    pub file: u32,
    /// Read, write or trim.
    pub op: IoOp,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes, from the beginning of the buffer. A trim has no bytes there, and may be longer.
    pub length: u32,
}

/// The completion of one I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoCompletion {
    /// The slot, which is free now.
    pub slot: u32,
    /// Bytes transferred, or trimmed.
    pub result: Result<u32, Errno>,
}

/// The number of completions that a reap returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReapBounds {
    /// Wait for this many; at most the number in flight. With 0 a reap takes what is there.
    pub min: usize,
    /// Return at most this many.
    pub max: usize,
}

/// The kind of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncKind {
    /// fsync
    Full,
    /// fdatasync
    Data,
}

/// The capabilities of an engine, known before it is opened.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities {
    /// An I/O is complete when its push returns. The depth is 1.
    pub synchronous: bool,
    /// direct=0 goes through a page cache.
    pub buffered: bool,
    /// Direct I/O may have any offset and length.
    pub any_alignment: bool,
    /// A write past the end of a file extends it.
    pub extends_files: bool,
    /// The targets `null:`, `memory:` and `sim:` work.
    pub virtual_targets: bool,
    /// Files in volumes work.
    pub volumes: bool,
    /// Finds out what a target is before the run, and whether it may be used: [`inspect`](crate::targets::inspect), unless
    /// the engine has targets of its own. The flag says that the job writes.
    pub inspect: fn(&Target, bool, &mut Volumes) -> Result<TargetInfo, Error>,
    /// Keys without effect, with the reason; the report has a note for each.
    pub ignored_keys: &'static [(&'static str, &'static str)],
}

/// The arguments of [`Engine::open`], which runs in the thread that uses the engine.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The job's files; `Io::file` is the index.
    pub targets: &'a [Target],
    /// The open volumes of files in volumes.
    pub volumes: &'a Volumes,
    /// How to open the files.
    pub access: Access,
    /// The number of slots.
    pub depth: u32,
    /// Size of a slot's buffer in bytes.
    pub block: usize,
    /// All keys of the job.
    pub options: &'a Options,
    /// The dotted keys of the job file, then `--set`. The last value of a name wins.
    pub settings: &'a [(String, String)],
}

impl Setup<'_> {
    /// For an engine without switches: an error if there are settings.
    pub(super) fn no_settings(&self, engine: &str) -> Result<(), Error> {
        match self.settings.first() {
            Some((name, _)) => {
                Err(Error::input(format!("{name}: engine {engine} has no switches")))
            }
            None => Ok(()),
        }
    }
}

/// The report of an engine. Counters and system calls count from its opening.
#[derive(Debug, Clone, Default)]
pub struct EngineReport {
    /// The queue of its I/O.
    pub queue: String,
    /// The features of this machine that it uses, and why.
    pub tier: String,
    /// System calls for I/O.
    pub system_calls: u64,
    /// The cost of threads that the engine started.
    pub helper_threads: ThreadCost,
    /// Counters of the engine, by name.
    pub counters: Vec<(String, u64)>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl EngineReport {
    /// The difference to an earlier report.
    pub fn since(mut self, earlier: &Self) -> Self {
        self.system_calls -= earlier.system_calls.min(self.system_calls);
        self.helper_threads = self.helper_threads.since(earlier.helper_threads);
        for (name, value) in &mut self.counters {
            let before = earlier.counters.iter().find(|(other, _)| other == name);
            *value -= before.map_or(0, |(_, before)| *before).min(*value);
        }
        self
    }

    /// Adds the report of another thread's engine.
    pub fn merge(&mut self, other: &Self) {
        if self.queue.is_empty() {
            self.queue.clone_from(&other.queue);
            self.tier.clone_from(&other.tier);
        }
        self.system_calls += other.system_calls;
        self.helper_threads = self.helper_threads + other.helper_threads;
        add_counters(&mut self.counters, &other.counters);
        let new = other.notes.iter().filter(|note| !self.notes.contains(note));
        let new: Vec<String> = new.cloned().collect();
        self.notes.extend(new);
    }
}

/// Adds the counters of `from` to those of the same name in `into`.
pub fn add_counters(into: &mut Vec<(String, u64)>, from: &[(String, u64)]) {
    for (name, value) in from {
        match into.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += value,
            None => into.push((name.clone(), *value)),
        }
    }
}

/// A way to do I/O, used by one thread.
pub trait Engine: Sized {
    /// Its capabilities.
    const CAPABILITIES: Capabilities;

    /// Opens the targets and allocates the buffers.
    fn open(setup: &Setup<'_>) -> Result<Self, Error>;

    /// The buffer of a slot that is not in flight: the data of its next write or of its last read.
    ///
    /// # Panics
    /// When the slot is in flight.
    fn buffer(&mut self, slot: u32) -> &mut [u8];

    /// Queues an I/O. It may start only at [`Engine::submit`] or [`Engine::reap`].
    fn push(&mut self, io: Io) -> Result<(), Errno>;

    /// Submits the queued I/Os, without waiting.
    fn submit(&mut self) -> Result<(), Errno>;

    /// Submits the queued I/Os, waits, and adds completions to `done`. A signal may end the wait early.
    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno>;

    /// Makes the writes of a file durable. Nothing may be in flight.
    fn sync(&mut self, file: u32, kind: SyncKind) -> Result<(), Errno>;

    /// Writes a range of a file back, as `sync_file_range` does with these flags (see [`SyncRange`](crate::job::SyncRange)). An engine without that
    /// call makes the file's writes durable. Nothing may be in flight.
    fn write_back(&mut self, file: u32, _range: Range<u64>, _flags: u32) -> Result<(), Errno> {
        self.sync(file, SyncKind::Data)
    }

    /// Makes the writes of a file durable and drops its cached data, so that reads come from the device.
    /// Nothing may be in flight. Without a cache, as with direct I/O, nothing is dropped.
    fn sync_and_drop_cache(&mut self, file: u32) -> Result<(), Errno>;

    /// Counters, system calls and notes since the engine was opened.
    fn report(&self) -> EngineReport;
}

/// Work that is generic over the engine.
pub trait WithEngine {
    /// The result of the work.
    type Output;
    /// Runs the work with this engine.
    fn call<E: Engine>(self) -> Self::Output;
}
