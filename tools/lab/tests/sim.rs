//! Tests the run loop on this stack's engine and the simulated device against a model: the blocks, their
//! order and number, and the device's content afterwards.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use uringfs::Errno;
use uringfs_lab::Error;
use uringfs_lab::engine::{
    Capabilities, Engine, EngineKind, EngineReport, Io, IoCompletion, ReapBounds, Setup, SyncKind,
    WithEngine,
};
use uringfs_lab::fill_pattern::FillPattern;
use uringfs_lab::job::{Options, Parser, SyncWrites, UnknownKeys};
use uringfs_lab::run::{LoopResult, Observers, ThreadProgress, run_io_loop};
use uringfs_lab::targets::{Access, Target, Volumes};
use uringfs_lab::workload::{Amount, IoOp, Region, Workload};

const SIZE: u64 = 1 << 20;

/// An engine that records all requests.
struct RecordingEngine<E> {
    engine: E,
    ios: Vec<Io>,
    syncs: Vec<usize>,
    in_flight: u32,
    deepest: u32,
}

impl<E: Engine> Engine for RecordingEngine<E> {
    const CAPABILITIES: Capabilities = E::CAPABILITIES;

    fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        let engine = E::open(setup)?;
        Ok(Self { engine, ios: Vec::new(), syncs: Vec::new(), in_flight: 0, deepest: 0 })
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.engine.buffer(slot)
    }

    fn push(&mut self, io: Io) -> Result<(), Errno> {
        self.ios.push(io);
        self.in_flight += 1;
        self.deepest = self.deepest.max(self.in_flight);
        self.engine.push(io)
    }

    fn submit(&mut self) -> Result<(), Errno> {
        self.engine.submit()
    }

    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        let before = done.len();
        let reaped = self.engine.reap(bounds, done);
        self.in_flight -= (done.len() - before) as u32;
        reaped
    }

    fn sync(&mut self, file: u32, kind: SyncKind) -> Result<(), Errno> {
        self.syncs.push(self.ios.len());
        self.engine.sync(file, kind)
    }

    fn sync_and_drop_cache(&mut self, file: u32) -> Result<(), Errno> {
        self.engine.sync_and_drop_cache(file)
    }

    fn report(&self) -> EngineReport {
        self.engine.report()
    }
}

/// The record of a job.
struct Recording {
    result: LoopResult,
    ios: Vec<Io>,
    syncs: Vec<usize>,
    deepest: u32,
    /// The content of the device after the job.
    device: Vec<u8>,
}

struct OnDevice<'a> {
    options: &'a Options,
    target: Target,
}

impl WithEngine for OnDevice<'_> {
    type Output = Recording;

    fn call<E: Engine>(self) -> Recording {
        let options = self.options;
        let targets = [self.target];
        let setup = Setup {
            targets: &targets,
            volumes: &Volumes::default(),
            access: Access { writes: true, direct: true, sync: SyncWrites::No },
            depth: options.depth,
            block: options.largest_block() as usize,
            options,
            settings: &[],
        };
        let mut engine = RecordingEngine::<E>::open(&setup).unwrap();
        let mut fill_pattern = FillPattern::new(options, 1, 1);
        (0..options.depth).for_each(|slot| fill_pattern.fill(engine.buffer(slot)));
        let region = Region { begin: 0, length: SIZE };
        let mut workload = Workload::new(options, &[region], Amount::Bytes(SIZE), 1);
        let (stop, progress) = (AtomicBool::new(false), ThreadProgress::default());
        let result = run_io_loop(
            &mut engine,
            &mut workload,
            fill_pattern,
            options,
            &stop,
            &progress,
            Observers::default(),
        );
        let mut device = Vec::new();
        let RecordingEngine { mut engine, ios, syncs, deepest, .. } = engine;
        while (device.len() as u64) < SIZE {
            let length = options.smallest_block() as u32;
            let offset = device.len() as u64;
            engine.push(Io { slot: 0, file: 0, op: IoOp::Read, offset, length }).unwrap();
            let mut done = Vec::new();
            while done.is_empty() {
                engine.reap(ReapBounds { min: 1, max: 1 }, &mut done).unwrap();
            }
            device.extend_from_slice(&engine.buffer(0)[..length as usize]);
        }
        Recording { result, ios, syncs, deepest, device }
    }
}

/// Runs a job with these keys on a simulated device of 1 MiB.
fn on_sim(keys: &str, device: &str) -> Recording {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    parser.bytes(format!("[j]\n{keys}\n").as_bytes(), "test").unwrap();
    let options = &parser.finish().unwrap().jobs.remove(0).options;
    let target = Target::parse(&format!("sim:{SIZE},seed=1{device}"));
    EngineKind::Uringfs.with(OnDevice { options, target }).unwrap()
}

/// The offsets and lengths of one direction.
fn of(ios: &[Io], op: IoOp) -> Vec<(u64, u32)> {
    ios.iter().filter(|io| io.op == op).map(|io| (io.offset, io.length)).collect()
}

#[test]
fn sequential_blocks_come_in_order_at_any_depth() {
    for (depth, batch) in [(1, 1), (8, 1), (32, 8), (7, 7)] {
        let keys = format!("rw=write\niodepth={depth}\niodepth_batch={batch}\nloops=2\nfsync=100");
        let recording = on_sim(&keys, ",latency=10us-200us");
        let pass = (0..256).map(|block| (block * 4096, 4096));
        let model: Vec<(u64, u32)> = pass.clone().chain(pass).collect();
        assert_eq!(of(&recording.ios, IoOp::Write), model);
        assert_eq!((recording.deepest, recording.ios.len()), (depth, 512));
        assert_eq!(recording.syncs, [100, 200, 300, 400, 500]);
        let writes = &recording.result.stats.directions[1];
        assert_eq!((writes.ios, writes.bytes), (512, 2 * SIZE));
    }
}

#[test]
fn random_blocks_come_once_per_pass_in_all_sizes() {
    for bs in ["bs=4k", "bsrange=512-8k", "bs=32k"] {
        let keys = format!("rw=randwrite\niodepth=16\nloops=3\n{bs}");
        let recording = on_sim(&keys, ",latency=10us-200us");
        let mut visits: BTreeMap<u64, u32> = BTreeMap::new();
        for (offset, length) in of(&recording.ios, IoOp::Write) {
            let sectors = offset / 512..(offset + u64::from(length)) / 512;
            sectors.for_each(|sector| *visits.entry(sector).or_default() += 1);
        }
        assert_eq!(visits, (0..2048).map(|sector| (sector, 3)).collect(), "{bs}");
        assert_eq!(recording.result.stats.directions[1].bytes, 3 * SIZE);
        let written = |chunk: &[u8]| chunk.iter().any(|byte| *byte != 0);
        assert!(recording.device.chunks(512).all(written), "{bs}");
    }
}

#[test]
fn writes_are_on_the_device_and_verify() {
    for rw in ["write", "randwrite", "randrw"] {
        let keys = format!("rw={rw}\niodepth=8\nverify=crc32c\nbsrange=4k-16k");
        let recording = on_sim(&keys, ",latency=10us-200us,short=5");
        assert_eq!(recording.result.failure, None, "{rw}");
        let writes = of(&recording.ios, IoOp::Write);
        let reads = of(&recording.ios, IoOp::Read);
        assert_eq!(
            reads[reads.len() - writes.len()..],
            writes,
            "{rw}: read back in the same order"
        );
        for (offset, length) in writes {
            let block = &recording.device[offset as usize..][..length as usize];
            assert_eq!(block[8..16], offset.to_le_bytes(), "{rw}: its header");
        }
    }
}

#[test]
fn a_pattern_fills_the_device() {
    let recording = on_sim("rw=write\nbs=8k\nverify_pattern=0xdeadbeef", "");
    assert_eq!(recording.result.failure, None);
    assert!(recording.device.chunks(4).all(|four| four == [0xde, 0xad, 0xbe, 0xef]));
    let zeros = on_sim("rw=write\nzero_buffers", "").device;
    assert!(zeros.iter().all(|byte| *byte == 0));
}

#[test]
fn a_device_error_ends_the_job() {
    let recording = on_sim("rw=write\niodepth=4", ",errors=50");
    assert_eq!(recording.result.failure.unwrap().errno, Errno::IO);
    assert!(recording.ios.len() < 256);
}
