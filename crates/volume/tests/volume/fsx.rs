//! As fsx does for file systems: after any operations on a file, by one thread or by several,
//! buffered and direct, each byte is what was last written there. If requests fail now and then,
//! successful writes are there, and each byte of a failed one is old or new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Barrier;

use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, When};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Access, Device, Errno, Op};
use uringfs_file::{Advice, FallocateSize, File};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{Follow, FormatOptions, Inode, OpenOptions, Time, Volume};

use crate::fixture::{self, create, formatted};
use crate::random::{Random, scaled};

const BLOCK: u64 = 4096;
/// Bytes of the file for each thread.
const PART: u64 = 64 * BLOCK;
const MAX_LENGTH: u64 = 5 * BLOCK;
/// Operations of a thread between comparisons.
const ROUND: u64 = 200;

/// A thread's part of the file, and its expected content.
struct Part {
    start: u64,
    bytes: Vec<u8>,
    /// Other values that a byte may have, since a write of it failed.
    unsure: BTreeMap<u64, BTreeSet<u8>>,
}

impl Part {
    fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        let mut behind = self.unsure.split_off(&offset);
        self.unsure.append(&mut behind.split_off(&(offset + bytes.len() as u64)));
    }

    /// The first wrong byte: its offset, the value found, and the expected one.
    fn wrong(&self, offset: u64, found: &[u8]) -> Option<(u64, u8, u8)> {
        let expected = (offset..).zip(&self.bytes[offset as usize..]).zip(found);
        let mut wrong = expected.filter(|((at, expected), found)| {
            let may_be = || self.unsure.get(at).is_some_and(|unsure| unsure.contains(found));
            expected != found && !may_be()
        });
        wrong.next().map(|((at, expected), found)| (at, *found, *expected))
    }
}

/// A thread and its part of the file.
struct Worker<'t> {
    volume: &'t Volume,
    cache: &'t Cache,
    files: [File; 3],
    reactor: Reactor,
    random: Random,
    part: Part,
    /// The end of all threads' parts.
    end: u64,
    faults: Option<Faults<'t>>,
    steps: u64,
}

/// Injects failing requests.
#[derive(Clone, Copy)]
struct Faults<'t> {
    sim: &'t Sim,
    /// The addresses of file data, without the catalog.
    first_address: u64,
}

impl Faults<'_> {
    /// Makes one of the next requests fail, or none.
    fn inject(&self, random: &mut Random) {
        let (op, fault) = match random.below(12) {
            0 => (Op::Read, Fault::Error(Errno::IO)),
            1 => (Op::Write, Fault::Torn),
            2 | 3 => (Op::Write, Fault::Error(Errno::IO)),
            _ => return,
        };
        let rule = Rule::new(op, When::Nth(1 + random.below(3)), fault);
        self.sim.inject(rule.within(self.first_address, u64::MAX));
    }
}

impl Worker<'_> {
    fn file(&mut self) -> File {
        self.files[self.random.below(3) as usize].clone()
    }

    /// A range of its part.
    fn range(&mut self) -> (u64, usize) {
        let unit = [1, 512, BLOCK][self.random.below(3) as usize];
        let length = (1 + self.random.below(MAX_LENGTH / unit)) * unit;
        let offset = self.random.below((PART - length) / unit + 1) * unit;
        (offset, length as usize)
    }

    /// A whole block of its part, near an address.
    fn block_around(&self, at: u64) -> u64 {
        at.next_multiple_of(BLOCK).min((self.part.start + PART) / BLOCK * BLOCK - BLOCK)
    }

    /// Records the result of a write, or of an operation that writes zeros. It may fail if requests
    /// fail.
    fn wrote(&mut self, offset: u64, bytes: &[u8], result: Result<usize, Errno>) {
        let written = match (result, self.faults) {
            (Ok(written), Some(_)) => written,
            (Err(Errno::IO), Some(_)) => 0,
            (result, _) => {
                assert_eq!(result, Ok(bytes.len()), "step {}", self.steps);
                bytes.len()
            }
        };
        self.part.put(offset, &bytes[..written]);
        for (at, byte) in (offset..).zip(bytes).skip(written) {
            self.part.unsure.entry(at).or_default().insert(*byte);
        }
    }

    /// Checks the result of an operation that changes no bytes.
    fn ended(&self, result: Result<(), Errno>) {
        let may_fail = self.faults.is_some();
        assert!(result.is_ok() || may_fail && result == Err(Errno::IO), "{result:?}");
    }

    fn step(&mut self) {
        if let Some(faults) = self.faults {
            faults.inject(&mut self.random);
        }
        self.act();
        if let Some(faults) = self.faults {
            faults.sim.clear_faults();
        }
    }

    fn act(&mut self) {
        self.steps += 1;
        let byte = (self.steps % 251) as u8 + 1;
        let (file, (offset, length)) = (self.file(), self.range());
        let (at, zeros) = (self.part.start + offset, vec![0; length]);
        let bytes: Vec<u8> = (0..length).map(|n| byte ^ (n / 512) as u8).collect();
        let on = |operation| self.reactor.block_on(operation);
        match self.random.below(40) {
            0..12 => {
                let write = file.write_at(Buffer::copy_of(&bytes), at);
                let written = self.reactor.block_on(write).0;
                self.wrote(offset, &bytes, written);
            }
            12 => {
                let write = file.write_durably(Buffer::copy_of(&bytes), at);
                let written = self.reactor.block_on(write).0;
                self.wrote(offset, &bytes, written);
            }
            13 => {
                let (at, bytes) = (self.block_around(at), vec![byte; BLOCK as usize]);
                let write = file.write_atomic(Buffer::copy_of(&bytes), at);
                let written = self.reactor.block_on(write).0;
                self.wrote(at - self.part.start, &bytes, written);
            }
            14 => {
                let zeroed = on(file.punch_hole(at, length as u64)).map(|()| length);
                self.wrote(offset, &zeros, zeroed);
            }
            15 => {
                let zeroed =
                    on(file.zero_range(at, length as u64, FallocateSize::Keep)).map(|()| length);
                self.wrote(offset, &zeros, zeroed);
            }
            16 => {
                let zeroed = on(file.write_zeroes(at, length as u64)).map(|()| length);
                self.wrote(offset, &zeros, zeroed);
            }
            17 => self.ended(on(file.allocate(at, length as u64, FallocateSize::Keep))),
            18 => {
                let behind = self.random.below(3 * BLOCK);
                self.ended(on(file.set_len(self.end + behind)));
            }
            19 => {
                // Copies from one place to another, as a program does.
                let (read, found) = self.reactor.block_on(file.read_at(Buffer::zeroed(length), at));
                let bytes = found[..self.found(offset, &found, read, length)].to_vec();
                let to = self.range().0.min(PART - length as u64);
                let write = file.write_at(Buffer::copy_of(&bytes), self.part.start + to);
                let written = self.reactor.block_on(write).0;
                self.wrote(to, &bytes, written);
            }
            20 => self.ended(on(file.sync_all())),
            21 => self.ended(on(file.sync_data())),
            22 => self.ended(on(file.sync_range(at, length as u64))),
            23 => self.ended(self.volume.sync().map_err(|error| error.errno())),
            24 => self.ended(on(file.advise(Advice::DoNotNeed, at, length as u64))),
            25 => self.ended(on(file.advise(Advice::WillNeed, at, length as u64))),
            26 => drop(self.cache.shrink(self.random.below(8) * BLOCK)),
            27 => {
                let opened = self
                    .volume
                    .open_with("/file", OpenOptions::new().read(true).write(true).direct(true))
                    .unwrap();
                let one = self.random.below(3) as usize;
                self.files[one] = if one == 0 { opened } else { opened.buffered(self.cache) };
            }
            28 => {
                let at = self.block_around(at);
                match file.page(at) {
                    Ok(page) => self.look(at - self.part.start, &page, BLOCK as usize),
                    Err(error) => assert!([Errno::AGAIN, Errno::NOBUFS].contains(&error)),
                }
            }
            29 => {
                let mut found = zeros;
                match file.try_read_at(&mut found, at) {
                    Ok(read) => self.look(offset, &found[..read], length),
                    Err(error) => assert_eq!(error, Errno::AGAIN),
                }
            }
            30 => {
                let advice = [
                    Advice::Normal,
                    Advice::Sequential,
                    Advice::Random,
                    Advice::NoReuse,
                    Advice::DontCache,
                ][self.random.below(5) as usize];
                assert_eq!(on(file.advise(advice, 0, 0)), Ok(()));
            }
            _ => {
                let (read, found) = self.reactor.block_on(file.read_at(Buffer::zeroed(length), at));
                self.found(offset, &found, read, length);
            }
        }
    }

    /// Checks a read and returns its length. It is complete unless requests fail.
    fn found(&self, offset: u64, bytes: &[u8], read: Result<usize, Errno>, length: usize) -> usize {
        let read = match (read, self.faults) {
            (Err(Errno::IO), Some(_)) => 0,
            (read, None) => {
                assert_eq!(read, Ok(length));
                length
            }
            (read, Some(_)) => read.unwrap(),
        };
        self.look(offset, &bytes[..read], read);
        read
    }

    fn look(&self, offset: u64, found: &[u8], length: usize) {
        let place = self.part.wrong(offset, found);
        assert!(
            place.is_none() && found.len() == length,
            "{place:?} (where, found, expected) of {length} at {offset} of the part at {}, step {}",
            self.part.start,
            self.steps
        );
    }

    /// Faults are off.
    fn look_at_all(&self) {
        for file in &self.files {
            let read = file.read_at(Buffer::zeroed(PART as usize), self.part.start);
            let (read, found) = self.reactor.block_on(read);
            self.look(0, &found[..read.unwrap()], PART as usize);
            // Each handle reports an earlier failure once.
            self.ended(self.reactor.block_on(file.sync_data()));
            assert_eq!(self.reactor.block_on(file.sync_data()), Ok(()));
        }
    }
}

/// Threads that work on one file.
#[derive(Clone, Copy)]
struct Run<'r> {
    seed: u64,
    threads: u64,
    operations: u64,
    faults: Option<Faults<'r>>,
}

impl Run<'_> {
    /// Each thread has its own part. A folio at the border may hold data of two threads. Ends with
    /// a sync.
    fn on(self, volume: &Volume) -> Vec<Part> {
        const QUEUES: [QueueKind; 4] =
            [QueueKind::Ring, QueueKind::Aio, QueueKind::Threads, QueueKind::Sync];
        let Run { seed, threads, operations, faults } = self;
        let cache = Cache::new([3, 20, 100, 1000][seed as usize % 4] * BLOCK);
        let file = create(volume, "/file");
        let reactor = fixture::reactor();
        // Parts of whole folios, and parts that share folios.
        let skew = [0, 100][(seed + threads) as usize % 2];
        let end = skew + threads * PART;
        assert_eq!(reactor.block_on(file.set_len(end)), Ok(()));
        let barrier = Barrier::new(threads as usize);
        let left = std::thread::scope(|scope| {
            let work = |thread| {
                let (cache, barrier, file) = (&cache, &barrier, &file);
                scope.spawn(move || {
                    let queue = QUEUES[(seed + thread) as usize % 4];
                    let options = ReactorOptions::new().queue(queue);
                    let (start, bytes) = (skew + thread * PART, vec![0; PART as usize]);
                    let mut worker = Worker {
                        volume,
                        cache,
                        files: [file.clone(), file.buffered(cache), file.buffered(cache)],
                        reactor: Reactor::new(options).unwrap(),
                        random: Random(seed * 100 + thread),
                        part: Part { start, bytes, unsure: BTreeMap::new() },
                        end,
                        faults,
                        steps: 0,
                    };
                    for _ in 0..operations.div_ceil(ROUND) {
                        (0..ROUND).for_each(|_| worker.step());
                        barrier.wait();
                        worker.look_at_all();
                        barrier.wait();
                    }
                    worker.part
                })
            };
            let workers: Vec<_> = (0..threads).map(work).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        volume.sync().unwrap();
        left
    }
}

/// Synced data survive a power cut, and a crash without one.
fn judge(sim: &Sim, left: &[Part], seed: u64) {
    let reactor = fixture::reactor();
    for crash in [Crash::LoseAll, Crash::KeepAll] {
        let after = Device::new(sim.crash_image(crash)).unwrap();
        let file = Volume::open_on(after)
            .unwrap()
            .open_with("/file", OpenOptions::new().read(true).write(true).direct(true))
            .unwrap();
        for part in left {
            let read = file.read_at(Buffer::zeroed(part.bytes.len()), part.start);
            let (read, found) = reactor.block_on(read);
            assert_eq!(read, Ok(part.bytes.len()), "seed {seed}, {crash:?}");
            assert_eq!(part.wrong(0, &found), None, "seed {seed}, {crash:?}");
        }
    }
}

#[test]
fn each_byte_is_the_last_one_written() {
    for seed in 0..4 {
        for threads in 1..=4 {
            let sim = Sim::new(SimOptions::new(32 << 20));
            let (seed, operations) = (seed * 10 + threads, scaled(6300) as u64);
            let run = Run { seed, threads, operations, faults: None };
            judge(&sim, &run.on(&formatted(&sim)), seed);
        }
    }
}

/// The simulated device has its own queue. An ordinary image is tried with all queues.
#[test]
fn each_byte_of_an_image_is_the_last_one_written() {
    for seed in 0..4 {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(32 << 20).unwrap();
        let device = Device::open(image.path(), Access::ReadWrite).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        Run { seed, threads: 1 + seed, operations: scaled(800) as u64, faults: None }.on(&volume);
    }
}

#[test]
fn failing_requests_lose_no_successful_write() {
    let mut failed = 0;
    // In caches with free frames: if write-back fails, a writer that waits for frames waits a
    // second.
    for seed in [2, 3, 6, 7, 10, 11] {
        let sim = Sim::new(SimOptions::new(32 << 20).seed(seed));
        let volume = formatted(&sim);
        let threads = 1 + seed % 3;
        let faults = Some(Faults { sim: &sim, first_address: first_address(&sim, &volume) });
        let run = Run { seed, threads, operations: scaled(2000) as u64, faults };
        judge(&sim, &run.on(&volume), seed);
        failed += sim.faults_hit();
    }
    assert!(failed > 0, "no request has failed");
}

/// The address of the first byte of a volume's first file.
fn first_address(sim: &Sim, volume: &Volume) -> u64 {
    const BYTES: [u8; 16] = *b"the first bytes.";
    let (reactor, file) = (fixture::reactor(), create(volume, "/first"));
    assert!(reactor.block_on(file.write_at(Buffer::copy_of(&BYTES), 0)).0.is_ok());
    let mut found = [0; 16];
    let is_there = |address: &u64| {
        sim.peek(*address, &mut found);
        found == BYTES
    };
    (0..32 << 20).step_by(BLOCK as usize).find(is_there).expect("the bytes are on the device")
}

/// The file stays open a moment longer than its last clone, until all is written back.
#[test]
fn unsynced_data_are_there_after_the_volume_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let device = || Device::open(&path, Access::ReadWrite).unwrap();
    Volume::format(&device(), &FormatOptions::default()).unwrap();
    let reactor = fixture::reactor();
    for round in 0..10 {
        let volume = loop {
            match Volume::open_on(device()) {
                Ok(volume) => break volume,
                Err(error) => assert_eq!(error.errno(), Errno::BUSY, "{error}"),
            }
        };
        let file = create(&volume, "/file").buffered(&Cache::new(1 << 20));
        let (read, found) = reactor.block_on(file.read_at(Buffer::zeroed(5000), 100));
        let expected = if round == 0 { 0 } else { 4900 };
        assert!(read == Ok(expected) && found[..expected].iter().all(|byte| *byte == round));
        let write = file.write_at(Buffer::copy_of(&[round + 1; 5000]), 0);
        assert_eq!(reactor.block_on(write).0, Ok(5000));
    }
}

#[test]
fn write_back_keeps_a_time_that_was_set_after_the_write() {
    let volume = formatted(&Sim::new(SimOptions::new(16 << 20)));
    let (cache, reactor) = (Cache::new(1 << 20), fixture::reactor());
    let file = create(&volume, "/file").buffered(&cache);
    assert_eq!(reactor.block_on(file.write_at(Buffer::copy_of(&[1; 5000]), 0)).0, Ok(5000));
    let set = |inode: &mut Inode| inode.modified = Time::from_nanoseconds(7);
    volume.set_attributes("/file", Follow::Yes, set).unwrap();
    let found = || volume.metadata("/file").unwrap().into_inode();
    assert_eq!((found().modified, found().size), (Time::from_nanoseconds(7), 5000));
    assert_eq!(reactor.block_on(file.sync_all()), Ok(()));
    assert_eq!((found().modified, found().size), (Time::from_nanoseconds(7), 5000));
    assert_eq!(reactor.block_on(file.write_at(Buffer::copy_of(&[2]), 0)).0, Ok(1));
    assert!(found().modified > Time::from_nanoseconds(7));
}
