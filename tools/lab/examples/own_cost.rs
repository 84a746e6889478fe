//! Measures the cost of the run loop per I/O: the loop runs an engine that does nothing, and so does a bare
//! loop. The difference is the cost of the run loop.
//!
//! `cargo run --release -p uringfs-lab --example own_cost`

use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use uringfs::Errno;
use uringfs_lab::Error;
use uringfs_lab::engine::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, ReapBounds, Setup, SyncKind,
};
use uringfs_lab::fill_pattern::FillPattern;
use uringfs_lab::job::{Parser, UnknownKeys};
use uringfs_lab::run::{Observers, ThreadProgress, Usage, run_io_loop};
use uringfs_lab::workload::{Amount, IoOp, Region, Workload};

/// I/Os per measurement.
const IOS: u64 = 20_000_000;

/// An engine that completes all I/Os at once, in order.
struct NoopEngine {
    pushed: Vec<Io>,
}

impl Engine for NoopEngine {
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

    fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        Ok(Self { pushed: Vec::with_capacity(setup.depth as usize) })
    }

    fn buffer(&mut self, _slot: u32) -> &mut [u8] {
        &mut []
    }

    #[inline]
    fn push(&mut self, io: Io) -> Result<(), Errno> {
        self.pushed.push(black_box(io));
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    #[inline]
    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        // As many as a real queue returns at a time.
        let count = bounds.min.max(1).min(self.pushed.len());
        let ended = self
            .pushed
            .drain(..count)
            .map(|io| IoCompletion { slot: io.slot, result: Ok(io.length) });
        done.extend(ended);
        Ok(())
    }

    fn sync(&mut self, _file: u32, _kind: SyncKind) -> Result<(), Errno> {
        Ok(())
    }

    fn sync_and_drop_cache(&mut self, _file: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn report(&self) -> EngineReport {
        EngineReport::default()
    }
}

/// The cost of a minimal loop: the same engine, the same batches, fixed offsets.
fn bare(depth: u32, batch: u32) -> f64 {
    let mut engine = NoopEngine { pushed: Vec::with_capacity(depth as usize) };
    let mut free: Vec<u32> = (0..depth).collect();
    let mut done = Vec::with_capacity(depth as usize);
    let bounds = ReapBounds { min: batch as usize, max: depth as usize };
    let before = Usage::current_thread();
    let mut completed = 0;
    while completed < IOS {
        while let Some(slot) = free.pop() {
            let io = Io { slot, file: 0, op: IoOp::Read, offset: 0, length: 4096 };
            // This engine has no errors.
            let _ = engine.push(io);
        }
        let _ = engine.reap(bounds, &mut done);
        completed += done.len() as u64;
        free.extend(done.drain(..).map(|done: IoCompletion| done.slot));
    }
    cpu_ns(Usage::current_thread().since(before)) / completed as f64
}

/// CPU time, which other load on the machine affects less than elapsed time.
fn cpu_ns(usage: Usage) -> f64 {
    usage.cpu_ns as f64
}

fn run_job(keys: &str) -> Result<f64, Error> {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    parser.bytes(format!("[cost]\nrw=randread\n{keys}").as_bytes(), "own_cost")?;
    let options = parser.finish()?.jobs.remove(0).options;
    let region = Region { begin: 0, length: 1 << 30 };
    let mut workload = Workload::new(&options, &[region], Amount::Bytes(IOS * 4096), 1);
    let mut engine = NoopEngine { pushed: Vec::with_capacity(options.depth as usize) };
    let fill_pattern = FillPattern::new(&options, 1, 1);
    let (stop, progress) = (AtomicBool::new(false), ThreadProgress::default());
    let result = run_io_loop(
        &mut engine,
        &mut workload,
        fill_pattern,
        &options,
        &stop,
        &progress,
        Observers::default(),
    );
    Ok(cpu_ns(result.usage) / result.stats.ios() as f64)
}

fn main() -> Result<(), Error> {
    println!("ns per I/O          bare   gtod_reduce  + random map  full latencies");
    for (depth, batch) in [(1, 1), (32, 8), (128, 32), (64, 1)] {
        let shape = format!(
            "iodepth={depth}\niodepth_batch_submit={batch}\niodepth_batch_complete_min={batch}\n"
        );
        let base = bare(depth, batch);
        let drawn = run_job(&format!("{shape}gtod_reduce=1\nnorandommap\n"))?;
        let mapped = run_job(&format!("{shape}gtod_reduce=1\n"))?;
        let timed = run_job(&format!("{shape}norandommap\n"))?;
        println!(
            "depth {depth:3}, batch {batch:2}  {base:5.1}  {drawn:11.1}  {mapped:12.1}  {timed:14.1}"
        );
    }
    Ok(())
}
