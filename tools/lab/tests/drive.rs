//! The run loop against an engine that keeps books: depth, batches, order, amounts, syncs, and
//! what happens when transfers come short or fail.

use rustix::io::Errno;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::AtomicBool;
use uringfs_lab::Error;
use uringfs_lab::engine::{Done, Engine, EngineReport, Facts, Io, Setup, SyncKind, Wanted};
use uringfs_lab::job::{Parser, UnknownKeys};
use uringfs_lab::run::{Drove, LiveThread, drive};
use uringfs_lab::workload::{Amount, Region, Workload};

const BLOCK: u32 = 4096;
const BLOCKS: u64 = 256;

/// What becomes of the n-th I/O that ends, from 0.
type Fate = fn(u64, Io) -> Result<u32, Errno>;

struct Books {
    fate: Fate,
    pushed: Vec<Io>,
    flying: VecDeque<Io>,
    ended: u64,
    largest_batch: usize,
    deepest: usize,
    /// Everything handed over, in order.
    ios: Vec<Io>,
    /// How many I/Os had ended at each sync.
    syncs: Vec<u64>,
}

impl Engine for Books {
    const FACTS: Facts =
        Facts { synchronous: false, buffered: true, any_alignment: true, virtual_targets: true };

    fn open(_setup: &Setup<'_>) -> Result<Self, Error> {
        Err(Error::input("made by the tests alone"))
    }

    fn buffer(&mut self, _slot: u32) -> &mut [u8] {
        &mut []
    }

    fn push(&mut self, io: Io) -> Result<(), Errno> {
        let mut busy = self.flying.iter().chain(&self.pushed);
        assert!(busy.all(|other| other.slot != io.slot), "slot is in flight");
        self.pushed.push(io);
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        self.largest_batch = self.largest_batch.max(self.pushed.len());
        self.ios.extend(&self.pushed);
        self.flying.extend(self.pushed.drain(..));
        self.deepest = self.deepest.max(self.flying.len());
        Ok(())
    }

    fn reap(&mut self, wanted: Wanted, done: &mut Vec<Done>) -> Result<(), Errno> {
        self.submit()?;
        assert!(wanted.min >= 1 && wanted.min <= self.flying.len() && wanted.max >= wanted.min);
        for io in self.flying.drain(..wanted.min) {
            let result = (self.fate)(self.ended, io);
            self.ended += 1;
            done.push(Done { slot: io.slot, result });
        }
        Ok(())
    }

    fn sync(&mut self, _file: u32, _kind: SyncKind) -> Result<(), Errno> {
        assert!(self.flying.is_empty() && self.pushed.is_empty(), "a sync passed an I/O");
        self.syncs.push(self.ended);
        Ok(())
    }

    fn report(&self) -> EngineReport {
        EngineReport::default()
    }
}

fn whole(_: u64, io: Io) -> Result<u32, Errno> {
    Ok(io.length)
}

fn driven(keys: &str, fate: Fate) -> (Drove, Books) {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    parser.bytes(format!("[j]\n{keys}").as_bytes(), "test").unwrap();
    let options = parser.finish().unwrap().jobs.remove(0).options;
    let length = BLOCKS * u64::from(BLOCK);
    let region = Region { begin: 0, length };
    let mut workload = Workload::new(&options, &[region], Amount::Bytes(length), 1);
    let mut books = Books {
        fate,
        pushed: Vec::new(),
        flying: VecDeque::new(),
        ended: 0,
        largest_batch: 0,
        deepest: 0,
        ios: Vec::new(),
        syncs: Vec::new(),
    };
    let (stop, live) = (AtomicBool::new(false), LiveThread::default());
    let drove = drive(&mut books, &mut workload, &options, &stop, &live);
    assert!(books.flying.is_empty() && books.pushed.is_empty(), "left in flight");
    (drove, books)
}

#[test]
fn every_block_is_done_once_within_depth_and_batch() {
    for measured in ["", "gtod_reduce=1\n"] {
        let keys = "rw=randread\niodepth=16\niodepth_batch=4\niodepth_batch_complete_min=3\n";
        let (drove, books) = driven(&format!("{keys}{measured}"), whole);
        let offsets: HashSet<u64> = books.ios.iter().map(|io| io.offset).collect();
        assert_eq!((offsets.len(), books.ios.len()), (256, 256));
        assert_eq!((books.deepest, books.largest_batch), (16, 4));
        let read = &drove.tally.directions[0];
        assert_eq!((read.ios, read.bytes), (256, 1 << 20));
        assert_eq!(read.clat.spread().count(), if measured.is_empty() { 256 } else { 0 });
        assert!(drove.failure.is_none());
    }
}

#[test]
fn with_a_low_water_mark_the_queue_empties_before_it_fills() {
    let (_, books) = driven("rw=read\niodepth=8\niodepth_batch=8\niodepth_low=2\n", whole);
    let offsets: Vec<u64> = books.ios.iter().map(|io| io.offset).collect();
    assert!(offsets.is_sorted(), "sequential");
    assert_eq!((books.deepest, books.largest_batch), (8, 8));
}

#[test]
fn syncs_come_after_so_many_writes_with_nothing_in_flight() {
    let (drove, books) = driven("rw=randwrite\niodepth=16\nfsync=10\nend_fsync=1\n", whole);
    let expected: Vec<u64> = (1..=25).map(|n| n * 10).chain([256]).collect();
    assert_eq!(books.syncs, expected);
    assert_eq!(drove.tally.sync.spread().count(), 26);
}

#[test]
fn short_and_interrupted_transfers_go_on_where_they_stopped() {
    fn fate(n: u64, io: Io) -> Result<u32, Errno> {
        match n % 7 {
            0 if io.length == BLOCK => Ok(512),
            1 => Err(Errno::AGAIN),
            2 => Err(Errno::INTR),
            _ => Ok(io.length),
        }
    }
    let (drove, books) = driven("rw=randwrite\niodepth=8\n", fate);
    let write = &drove.tally.directions[1];
    assert_eq!((write.ios, write.bytes), (256, 1 << 20));
    let rests: Vec<&Io> = books.ios.iter().filter(|io| io.length == BLOCK - 512).collect();
    assert!(write.short > 10 && rests.len() as u64 >= write.short);
    assert!(rests.iter().all(|io| io.offset % u64::from(BLOCK) == 512));
    assert!(drove.failure.is_none());
}

#[test]
fn the_first_error_ends_the_run_and_is_told() {
    fn fate(n: u64, io: Io) -> Result<u32, Errno> {
        if n >= 100 { Err(Errno::IO) } else { Ok(io.length) }
    }
    let (drove, books) = driven("rw=read\niodepth=8\n", fate);
    let failure = drove.failure.unwrap();
    assert_eq!(failure.errno, Errno::IO);
    assert_eq!(failure.what, "read of 4096 bytes at 409600");
    assert_eq!(failure.file, Some(0));
    assert_eq!(drove.tally.directions[0].ios, 100);
    assert!(books.ios.len() < 120, "it went on");
}

#[test]
fn the_end_of_the_target_is_an_error() {
    let (drove, _) = driven("rw=read\n", |n, io| Ok(if n == 5 { 0 } else { io.length }));
    assert!(drove.failure.unwrap().what.ends_with("at the end of the target"));
}
