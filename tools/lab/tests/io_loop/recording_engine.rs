//! An engine that keeps books, over a file in memory.

use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use uringfs_lab::Error;
use uringfs_lab::engine::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, ReapBounds, Setup, SyncKind,
};
use uringfs_lab::fill_pattern::FillPattern;
use uringfs_lab::job::{Parser, UnknownKeys};
use uringfs_lab::run::{LoopResult, ThreadProgress, run_io_loop};
use uringfs_lab::workload::{Amount, IoOp, Region, Workload};

pub const BLOCK: u32 = 4096;
pub const BLOCKS: u64 = 256;

/// What becomes of the n-th I/O that ends, from 0.
pub type CompletionRule = fn(u64, Io) -> Result<u32, Errno>;

pub struct RecordingEngine {
    rule: CompletionRule,
    /// The write that ends as this one says it is done, and is not there.
    pub lost: Option<u64>,
    pushed: Vec<Io>,
    in_flight: VecDeque<Io>,
    ended: u64,
    pub largest_batch: usize,
    pub deepest: usize,
    /// What was in flight at each hand-over, and for how many completions each reap waited.
    pub depths: Vec<usize>,
    pub waits: Vec<usize>,
    /// Everything handed over, in order.
    pub ios: Vec<Io>,
    /// The slots' buffers, and the file.
    buffers: Vec<Vec<u8>>,
    pub file: Vec<u8>,
    /// How many I/Os had ended at each sync.
    pub syncs: Vec<u64>,
    /// The same at each time that what is cached was forgotten.
    pub cache_drops: Vec<u64>,
}

impl RecordingEngine {
    /// Over a file of zeros.
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
            syncs: Vec::new(),
            cache_drops: Vec::new(),
        }
    }

    /// The blocks of this direction in the order they were handed over.
    pub fn blocks(&self, op: IoOp) -> Vec<u64> {
        let ios = self.ios.iter().filter(|io| io.op == op);
        ios.map(|io| io.offset / u64::from(BLOCK)).collect()
    }
}

/// Runs a job of these keys over the file, once or as often as it has loops.
pub fn run_job(keys: &str, mut engine: RecordingEngine) -> (LoopResult, RecordingEngine) {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    parser.bytes(format!("[j]\n{keys}").as_bytes(), "test").unwrap();
    let options = parser.finish().unwrap().jobs.remove(0).options;
    let length = BLOCKS * u64::from(BLOCK);
    let region = Region { begin: 0, length };
    let mut workload = Workload::new(&options, &[region], Amount::Bytes(length), 1);
    engine.buffers = vec![vec![0; options.largest_block() as usize]; options.depth as usize];
    let (stop, live) = (AtomicBool::new(false), ThreadProgress::default());
    let fill_pattern = FillPattern::new(&options, 1, 1);
    let result = run_io_loop(&mut engine, &mut workload, fill_pattern, &options, &stop, &live);
    assert!(engine.in_flight.is_empty() && engine.pushed.is_empty(), "left in flight");
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
        ignored_keys: &[],
    };

    fn open(_setup: &Setup<'_>) -> Result<Self, Error> {
        Err(Error::input("made by the tests alone"))
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        let mut busy = self.in_flight.iter().chain(&self.pushed);
        assert!(busy.all(|other| other.slot != slot), "slot is in flight");
        &mut self.buffers[slot as usize]
    }

    fn push(&mut self, io: Io) -> Result<(), Errno> {
        let mut busy = self.in_flight.iter().chain(&self.pushed);
        assert!(busy.all(|other| other.slot != io.slot), "slot is in flight");
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
                let buffer = &mut self.buffers[io.slot as usize][..bytes as usize];
                match io.op {
                    IoOp::Read => buffer.copy_from_slice(file),
                    IoOp::Write => file.copy_from_slice(buffer),
                }
            }
            self.ended += 1;
            done.push(IoCompletion { slot: io.slot, result });
        }
        Ok(())
    }

    fn sync(&mut self, _file: u32, _kind: SyncKind) -> Result<(), Errno> {
        assert!(self.in_flight.is_empty() && self.pushed.is_empty(), "a sync passed an I/O");
        self.syncs.push(self.ended);
        Ok(())
    }

    fn sync_and_drop_cache(&mut self, _file: u32) -> Result<(), Errno> {
        assert!(self.in_flight.is_empty() && self.pushed.is_empty(), "it passed an I/O");
        self.cache_drops.push(self.ended);
        Ok(())
    }

    fn report(&self) -> EngineReport {
        EngineReport::default()
    }
}

/// All of it, at once.
pub fn whole(_: u64, io: Io) -> Result<u32, Errno> {
    Ok(io.length)
}
