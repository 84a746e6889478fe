//! What an engine is to the run loop: it owns one buffer a slot; the loop names a slot, pushes an I/O on it and gets
//! its completion under that name.

use super::thread_cost::ThreadCost;
use crate::Error;
use crate::job::Options;
use crate::targets::{Access, Target, Volumes};
use crate::workload::IoOp;
use rustix::io::Errno;

/// One I/O handed to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Io {
    /// Which buffer, from 0; not in flight.
    pub slot: u32,
    /// Which of the job's files, from 0.
    pub file: u32,
    /// The direction.
    pub op: IoOp,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// How many bytes, from the buffer's beginning.
    pub length: u32,
}

/// The end of one I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoCompletion {
    /// The slot, free again.
    pub slot: u32,
    /// Bytes moved.
    pub result: Result<u32, Errno>,
}

/// How many completions a reap is to bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReapBounds {
    /// Wait for so many; never more than are in flight.
    pub min: usize,
    /// Bring no more than so many.
    pub max: usize,
}

/// Which sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncKind {
    /// fsync
    Full,
    /// fdatasync
    Data,
}

/// What an engine can do, known before it is opened.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities {
    /// An I/O is complete when its push returns; the depth is 1.
    pub synchronous: bool,
    /// direct=0 goes through a page cache.
    pub buffered: bool,
    /// Direct I/O of any offset and length is served.
    pub any_alignment: bool,
    /// A write past the end of a file makes it longer.
    pub extends_files: bool,
    /// `null:`, `memory:` and `sim:` are served.
    pub virtual_targets: bool,
    /// Files in volumes are served.
    pub volumes: bool,
    /// Keys that have no effect, and why; reports say so.
    pub ignored_keys: &'static [(&'static str, &'static str)],
}

/// What an engine is opened with, in the thread that will use it.
pub struct Setup<'a> {
    /// The job's files; `Io::file` counts them.
    pub targets: &'a [Target],
    /// The volumes that some of them are in, open.
    pub volumes: &'a Volumes,
    /// How to open them.
    pub access: Access,
    /// Slots.
    pub depth: u32,
    /// Bytes of a slot's buffer.
    pub block: usize,
    /// All keys of the job.
    pub options: &'a Options,
    /// `--set` and the dotted lines of the job file, the last of a name counting.
    pub settings: &'a [(String, String)],
}

impl Setup<'_> {
    /// An error if there are settings, for an engine that has no switches.
    pub(super) fn no_settings(&self, engine: &str) -> Result<(), Error> {
        match self.settings.first() {
            Some((name, _)) => {
                Err(Error::input(format!("{name}: engine {engine} has no switches")))
            }
            None => Ok(()),
        }
    }
}

/// What an engine says about itself; counters and system calls since it was opened.
#[derive(Debug, Clone, Default)]
pub struct EngineReport {
    /// The queue its I/O goes through.
    pub queue: String,
    /// What the machine gave it, with the reason.
    pub tier: String,
    /// Calls into the kernel for I/O.
    pub system_calls: u64,
    /// Of threads the engine started, beside the issuing one.
    pub helper_threads: ThreadCost,
    /// Whatever it counts.
    pub counters: Vec<(String, u64)>,
    /// Lines for the user.
    pub notes: Vec<String>,
}

impl EngineReport {
    /// What came after `earlier`.
    pub fn since(mut self, earlier: &Self) -> Self {
        self.system_calls -= earlier.system_calls.min(self.system_calls);
        self.helper_threads = self.helper_threads.since(earlier.helper_threads);
        for (name, value) in &mut self.counters {
            let before = earlier.counters.iter().find(|(other, _)| other == name);
            *value -= before.map_or(0, |(_, before)| *before).min(*value);
        }
        self
    }

    /// Adds the figures of another thread's engine.
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

/// Adds counters by name.
pub fn add_counters(into: &mut Vec<(String, u64)>, from: &[(String, u64)]) {
    for (name, value) in from {
        match into.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += value,
            None => into.push((name.clone(), *value)),
        }
    }
}

/// A way to carry out I/O, used by one thread.
pub trait Engine: Sized {
    /// What it can do.
    const CAPABILITIES: Capabilities;

    /// Opens the targets and gets the memory.
    fn open(setup: &Setup<'_>) -> Result<Self, Error>;

    /// The buffer of a slot that is not in flight: what its next push writes, or what its last
    /// read brought.
    ///
    /// # Panics
    /// When the slot is in flight.
    fn buffer(&mut self, slot: u32) -> &mut [u8];

    /// Takes an I/O; it may wait for [`Engine::submit`] or [`Engine::reap`].
    fn push(&mut self, io: Io) -> Result<(), Errno>;

    /// Hands over what was pushed, without waiting.
    fn submit(&mut self) -> Result<(), Errno>;

    /// Hands over what was pushed and adds completions to `done`; fewer than wanted if a signal
    /// ends the wait.
    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno>;

    /// Makes a file's writes durable; nothing is in flight.
    fn sync(&mut self, file: u32, kind: SyncKind) -> Result<(), Errno>;

    /// Makes a file's writes durable and forgets what is cached of it, so that reads bring what the
    /// device has; nothing is in flight. Direct I/O has nothing cached.
    fn sync_and_drop_cache(&mut self, file: u32) -> Result<(), Errno>;

    /// Its account of itself.
    fn report(&self) -> EngineReport;
}

/// Work that runs with whichever engine was asked for.
pub trait WithEngine {
    /// What it gives back.
    type Output;
    /// Does it with this engine.
    fn call<E: Engine>(self) -> Self::Output;
}
