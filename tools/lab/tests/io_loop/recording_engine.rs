//! An engine over a file in memory, which records all requests.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use uringfs::Errno;
use uringfs_lab::Error;
use uringfs_lab::engine::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, ReapBounds, Setup, SyncKind,
};
use uringfs_lab::fill_pattern::FillPattern;
use uringfs_lab::job::{Parser, UnknownKeys};
use uringfs_lab::run::{LoopResult, Observers, ThreadProgress, run_io_loop};
use uringfs_lab::workload::{Amount, IoOp, Region, Workload};

pub const BLOCK: u32 = 4096;
pub const BLOCKS: u64 = 256;

/// The result of the n-th I/O to complete, counted from 0.
pub type CompletionRule = fn(u64, Io) -> Result<u32, Errno>;

pub struct RecordingEngine {
    rule: CompletionRule,
    /// The number of a write that reports success, but is lost.
    pub lost: Option<u64>,
    pushed: Vec<Io>,
    in_flight: VecDeque<Io>,
    ended: u64,
    pub largest_batch: usize,
    pub deepest: usize,
    /// The I/Os in flight at each submission, and the minimum of each reap.
    pub depths: Vec<usize>,
    pub waits: Vec<usize>,
    /// All submitted I/Os, in order.
    pub ios: Vec<Io>,
    /// The slots' buffers.
    buffers: Vec<Vec<u8>>,
    pub file: Vec<u8>,
    /// The time that a sync takes.
    pub sync_time: Duration,
    /// The time that the push of a trim takes.
    pub trim_time: Duration,
    /// The number of completed I/Os at each sync.
    pub syncs: Vec<u64>,
    /// The ranges that were written back, with the flags.
    pub write_backs: Vec<(Range<u64>, u32)>,
    /// The number of completed I/Os each time the cache was dropped.
    pub cache_drops: Vec<u64>,
}

impl RecordingEngine {
    /// An engine over a file of zeros.
    pub fn new(rule: CompletionRule) -> Self {
        Self {
            rule,
            lost: None,
            pushed: Vec::new(),
            in_flight: VecDeque::new(),
            ended: 0,
            largest_batch: 0,
            deepest: 0,
            depths: Vec::new(),
            waits: Vec::new(),
            ios: Vec::new(),
            buffers: Vec::new(),
            file: vec![0; BLOCK as usize * BLOCKS as usize],
            sync_time: Duration::ZERO,
            trim_time: Duration::ZERO,
            syncs: Vec::new(),
            write_backs: Vec::new(),
            cache_drops: Vec::new(),
        }
    }

    /// The blocks of one direction, in the order of submission.
    pub fn blocks(&self, op: IoOp) -> Vec<u64> {
        let ios = self.ios.iter().filter(|io| io.op == op);
        ios.map(|io| io.offset / u64::from(BLOCK)).collect()
    }
}

/// Runs a job with these keys on the file.
pub fn run_job(keys: &str, mut engine: RecordingEngine) -> (LoopResult, RecordingEngine) {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    parser.bytes(format!("[j]\n{keys}").as_bytes(), "test").unwrap();
    let options = parser.finish().unwrap().jobs.remove(0).options;
    let length = BLOCKS * u64::from(BLOCK);
    let region = Region { begin: 0, length };
    let mut workload = Workload::new(&options, &[region], Amount::Bytes(length), 1);
    if let Some(log) = options.replay_of(0) {
        workload = workload.replaying(log.clone());
    }
    engine.buffers = vec![vec![0; options.buffer_bytes() as usize]; options.depth as usize];
    let (stop, progress) = (AtomicBool::new(false), ThreadProgress::default());
    let fill_pattern = FillPattern::new(&options, 1, 1);
    let result = run_io_loop(
        &mut engine,
        &mut workload,
        fill_pattern,
        &options,
        &stop,
        &progress,
        Observers::default(),
    );
    assert!(engine.in_flight.is_empty() && engine.pushed.is_empty(), "I/Os are left in flight");
    (result, engine)
}

impl Engine for RecordingEngine {
    const CAPABILITIES: Capabilities = Capabilities {
        synchronous: false,
        buffered: true,
        any_alignment: true,
        extends_files: true,
        virtual_targets: true,
        volumes: false,
        inspect: uringfs_lab::targets::inspect,
        ignored_keys: &[],
    };

    fn open(_setup: &Setup<'_>) -> Result<Self, Error> {
        Err(Error::input("only tests construct this engine"))
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        let mut busy = self.in_flight.iter().chain(&self.pushed);
        assert!(busy.all(|other| other.slot != slot), "slot is in flight");
        &mut self.buffers[slot as usize]
    }

    fn push(&mut self, io: Io) -> Result<(), Errno> {
        let mut busy = self.in_flight.iter().chain(&self.pushed);
        assert!(busy.all(|other| other.slot != io.slot), "slot is in flight");
        if io.op == IoOp::Trim {
            std::thread::sleep(self.trim_time);
        }
        self.pushed.push(io);
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        self.largest_batch = self.largest_batch.max(self.pushed.len());
        if !self.pushed.is_empty() {
            self.depths.push(self.in_flight.len());
        }
        self.ios.extend(&self.pushed);
        self.in_flight.extend(self.pushed.drain(..));
        self.deepest = self.deepest.max(self.in_flight.len());
        Ok(())
    }

    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        self.submit()?;
        assert!(bounds.min >= 1 && bounds.min <= self.in_flight.len() && bounds.max >= bounds.min);
        self.waits.push(bounds.min);
        for io in self.in_flight.drain(..bounds.min) {
            let result = (self.rule)(self.ended, io);
            let lost = self.lost == Some(self.ended);
            if let (Ok(bytes), false) = (result, lost) {
                let file = &mut self.file[io.offset as usize..][..bytes as usize];
                let buffer = &mut self.buffers[io.slot as usize];
                match io.op {
                    IoOp::Read => buffer[..bytes as usize].copy_from_slice(file),
                    IoOp::Write => file.copy_from_slice(&buffer[..bytes as usize]),
                    IoOp::Trim => file.fill(0),
                }
            }
            self.ended += 1;
            done.push(IoCompletion { slot: io.slot, result });
        }
        Ok(())
    }

    fn sync(&mut self, _file: u32, _kind: SyncKind) -> Result<(), Errno> {
        assert!(self.in_flight.is_empty() && self.pushed.is_empty(), "a sync with I/Os in flight");
        std::thread::sleep(self.sync_time);
        self.syncs.push(self.ended);
        Ok(())
    }

    fn write_back(&mut self, _file: u32, range: Range<u64>, flags: u32) -> Result<(), Errno> {
        assert!(
            self.in_flight.is_empty() && self.pushed.is_empty(),
            "write-back with I/Os in flight"
        );
        self.write_backs.push((range, flags));
        Ok(())
    }

    fn sync_and_drop_cache(&mut self, _file: u32) -> Result<(), Errno> {
        assert!(
            self.in_flight.is_empty() && self.pushed.is_empty(),
            "a cache drop with I/Os in flight"
        );
        self.cache_drops.push(self.ended);
        Ok(())
    }

    fn report(&self) -> EngineReport {
        EngineReport::default()
    }
}

/// A complete transfer.
pub fn whole(_: u64, io: Io) -> Result<u32, Errno> {
    Ok(io.length)
}
