//! pread and pwrite in one thread for each I/O of the depth, as a program without asynchronous I/O does.
//! Requests and results pass through one lock. A buffer travels with its I/O.

use super::aligned_buffer::AlignedBuffer;
use super::files::Files;
use super::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, NO_BATCH, ReapBounds, Setup, SyncKind,
    ThreadCost,
};
use crate::Error;
use crate::targets::inspect_files;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use uringfs::Errno;

/// More threads than this do not serve a deeper queue better, and exhaust the machine.
const MAX_THREADS: u32 = 1024;

/// The engine.
pub struct Threads {
    shared: Arc<WorkQueue>,
    workers: Vec<JoinHandle<()>>,
    /// The buffers of slots that are not in flight.
    slots: Vec<AlignedBuffer>,
    pushed: Vec<(Io, AlignedBuffer)>,
    submissions: u64,
}

struct WorkQueue {
    files: Files,
    state: Mutex<QueueState>,
    work: Condvar,
    results: Condvar,
}

#[derive(Default)]
struct QueueState {
    work: VecDeque<(Io, AlignedBuffer)>,
    results: VecDeque<(IoCompletion, AlignedBuffer)>,
    /// Thread ids of the workers, to read their CPU time.
    workers: Vec<i32>,
    system_calls: u64,
    closing: bool,
}

const NO_RING: &str = "this engine has no ring";

impl Engine for Threads {
    const CAPABILITIES: Capabilities = Capabilities {
        synchronous: false,
        buffered: true,
        any_alignment: false,
        extends_files: true,
        volumes: false,
        virtual_targets: false,
        inspect: inspect_files,
        ignored_keys: &[
            ("registerfiles", NO_RING),
            ("fixedbufs", NO_RING),
            ("hipri", NO_RING),
            ("sqthread_poll", NO_RING),
            ("force_async", NO_RING),
            ("batch", NO_BATCH),
        ],
    };

    fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        setup.no_settings("threads")?;
        let shared = Arc::new(WorkQueue {
            files: Files::open(setup)?,
            state: Mutex::default(),
            work: Condvar::new(),
            results: Condvar::new(),
        });
        let mut engine = Self {
            shared,
            workers: Vec::new(),
            slots: (0..setup.depth).map(|_| AlignedBuffer::new(setup.block)).collect(),
            pushed: Vec::new(),
            submissions: 0,
        };
        for index in 0..setup.depth.min(MAX_THREADS) {
            let shared = Arc::clone(&engine.shared);
            let thread = std::thread::Builder::new().name(format!("io-{index}"));
            let worker = thread.spawn(move || shared.run_worker());
            engine
                .workers
                .push(worker.map_err(|error| Error::run("cannot start a thread").because(error))?);
        }
        Ok(engine)
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.slots[slot as usize].bytes()
    }

    fn push(&mut self, io: Io) -> Result<(), Errno> {
        let buffer = std::mem::take(&mut self.slots[io.slot as usize]);
        self.pushed.push((io, buffer));
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        if self.pushed.is_empty() {
            return Ok(());
        }
        self.submissions += 1;
        let count = self.pushed.len();
        self.shared.state.lock().work.extend(self.pushed.drain(..));
        if count == 1 {
            self.shared.work.notify_one();
        } else {
            self.shared.work.notify_all();
        }
        Ok(())
    }

    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        self.submit()?;
        let mut state = self.shared.state.lock();
        while state.results.len() < bounds.min {
            self.shared.results.wait(&mut state);
        }
        let count = state.results.len().min(bounds.max);
        for (result, buffer) in state.results.drain(..count) {
            self.slots[result.slot as usize] = buffer;
            done.push(result);
        }
        Ok(())
    }

    fn sync(&mut self, file: u32, kind: SyncKind) -> Result<(), Errno> {
        self.shared.state.lock().system_calls += 1;
        self.shared.files.sync(file, kind)
    }

    fn write_back(&mut self, file: u32, range: Range<u64>, flags: u32) -> Result<(), Errno> {
        self.shared.state.lock().system_calls += 1;
        self.shared.files.write_back(file, range, flags)
    }

    fn sync_and_drop_cache(&mut self, file: u32) -> Result<(), Errno> {
        self.shared.files.sync_and_drop_cache(file)
    }

    fn report(&self) -> EngineReport {
        let state = self.shared.state.lock();
        EngineReport {
            queue: "threads".into(),
            tier: format!("pread and pwrite in {} threads", self.workers.len()),
            system_calls: state.system_calls,
            helper_threads: state.workers.iter().map(|&id| ThreadCost::read_thread(id)).sum(),
            counters: vec![("hand_overs".into(), self.submissions)],
            notes: Vec::new(),
        }
    }
}

impl WorkQueue {
    /// The loop of a worker: takes an I/O, transfers, returns the result, until closing.
    fn run_worker(&self) {
        let mut state = self.state.lock();
        state.workers.push(rustix::thread::gettid().as_raw_nonzero().get());
        while !state.closing {
            let Some((io, mut buffer)) = state.work.pop_front() else {
                self.work.wait(&mut state);
                continue;
            };
            drop(state);
            let result = self.files.perform(io, buffer.bytes());
            state = self.state.lock();
            state.system_calls += 1;
            state.results.push_back((IoCompletion { slot: io.slot, result }, buffer));
            self.results.notify_one();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // The panic hook has already reported a panic of a worker.
            let _ = worker.join();
        }
    }
}
