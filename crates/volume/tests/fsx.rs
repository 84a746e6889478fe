//! What fsx does to file systems: whatever is done to a file, by one thread or by several at once, through the page
//! cache and beside it, each byte is what was written there last.

mod drive;
mod made;

use std::sync::Barrier;

use drive::{Random, volume as scaled};
use made::{create, formatted};
use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Crash, Sim, SimOptions};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Access, Device, Errno};
use uringfs_file::{Advice, File, Size};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{Follow, FormatOptions, Inode, OpenOptions, Time, Volume};

const BLOCK: u64 = 4096;
/// What each thread has of the file.
const PART: u64 = 64 * BLOCK;
const LONGEST: u64 = 5 * BLOCK;
/// Operations of a thread before all look at what is there.
const ROUND: u64 = 200;

/// A thread, its part of the file, and what is to be there.
struct Worker<'t> {
    volume: &'t Volume,
    cache: &'t Cache,
    files: [File; 3],
    reactor: Reactor,
    random: Random,
    start: u64,
    /// Where the parts of all threads end.
    end: u64,
    bytes: Vec<u8>,
    steps: u64,
}

impl Worker<'_> {
    fn file(&mut self) -> File {
        self.files[self.random.below(3) as usize].clone()
    }

    /// A range of its part.
    fn range(&mut self) -> (u64, usize) {
        let unit = [1, 512, BLOCK][self.random.below(3) as usize];
        let length = (1 + self.random.below(LONGEST / unit)) * unit;
        let offset = self.random.below((PART - length) / unit + 1) * unit;
        (offset, length as usize)
    }

    /// A whole block of its part, near an address.
    fn block_around(&self, at: u64) -> u64 {
        at.next_multiple_of(BLOCK).min((self.start + PART) / BLOCK * BLOCK - BLOCK)
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn step(&mut self) {
        self.steps += 1;
        let byte = (self.steps % 251) as u8 + 1;
        let (file, (offset, length)) = (self.file(), self.range());
        let (at, zeros) = (self.start + offset, vec![0; length]);
        let bytes: Vec<u8> = (0..length).map(|n| byte ^ (n / 512) as u8).collect();
        let on = |ask| self.reactor.block_on(ask);
        match self.random.below(40) {
            0..12 => {
                let write = file.write(Buffer::copy_of(&bytes), at);
                assert_eq!(self.reactor.block_on(write).1, Ok(length));
                self.put(offset, &bytes);
            }
            12 => {
                let write = file.write_durably(Buffer::copy_of(&bytes), at);
                assert_eq!(self.reactor.block_on(write).1, Ok(length));
                self.put(offset, &bytes);
            }
            13 => {
                let (at, bytes) = (self.block_around(at), vec![byte; BLOCK as usize]);
                let write = file.write_atomic(Buffer::copy_of(&bytes), at);
                assert_eq!(self.reactor.block_on(write).1, Ok(bytes.len()));
                self.put(at - self.start, &bytes);
            }
            14 => {
                assert_eq!(on(file.punch_hole(at, length as u64)), Ok(()));
                self.put(offset, &zeros);
            }
            15 => {
                assert_eq!(on(file.zero_range(at, length as u64, Size::Keep)), Ok(()));
                self.put(offset, &zeros);
            }
            16 => {
                assert_eq!(on(file.write_zeroes(at, length as u64)), Ok(()));
                self.put(offset, &zeros);
            }
            17 => assert_eq!(on(file.allocate(at, length as u64, Size::Keep)), Ok(())),
            18 => {
                let behind = self.random.below(3 * BLOCK);
                assert_eq!(on(file.set_size(self.end + behind)), Ok(()));
            }
            19 => {
                // From one place to another, as a program copies.
                let (read, found) = self.reactor.block_on(file.read(Buffer::zeroed(length), at));
                assert_eq!(found, Ok(length));
                let (to, _) = self.range();
                let to = to.min(PART - length as u64);
                let (read, written) = self.reactor.block_on(file.write(read, self.start + to));
                assert_eq!(written, Ok(length));
                self.put(to, &read);
            }
            20 => assert_eq!(on(file.sync()), Ok(())),
            21 => assert_eq!(on(file.datasync()), Ok(())),
            22 => assert_eq!(on(file.sync_range(at, length as u64)), Ok(())),
            23 => self.volume.sync().unwrap(),
            24 => assert_eq!(on(file.advise(Advice::DoNotNeed, at, length as u64)), Ok(())),
            25 => assert_eq!(on(file.advise(Advice::WillNeed, at, length as u64)), Ok(())),
            26 => drop(self.cache.shrink(self.random.below(8) * BLOCK)),
            27 => {
                let opened = self.volume.open("/file", OpenOptions::direct()).unwrap();
                let one = self.random.below(3) as usize;
                self.files[one] = if one == 0 { opened } else { opened.buffered(self.cache) };
            }
            28 => {
                let at = self.block_around(at);
                match file.page(at) {
                    Ok(page) => self.look(at - self.start, &page, BLOCK as usize),
                    Err(error) => assert!([Errno::AGAIN, Errno::NOBUFS].contains(&error)),
                }
            }
            29 => {
                let mut found = zeros;
                match file.try_read(&mut found, at) {
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
                let (found, read) = self.reactor.block_on(file.read(Buffer::zeroed(length), at));
                self.look(offset, &found[..read.unwrap()], length);
            }
        }
    }

    fn look(&self, offset: u64, found: &[u8], length: usize) {
        let expected = &self.bytes[offset as usize..][..length];
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        let place = wrong.map(|at| (at as u64 + offset, found[at], expected[at]));
        assert!(
            place.is_none() && found.len() == length,
            "{place:?} (where, found, expected) of {length} at {offset} of the part at {}, step {}",
            self.start,
            self.steps
        );
    }

    fn look_at_all(&self) {
        for file in &self.files {
            let read = file.read(Buffer::zeroed(PART as usize), self.start);
            let (found, read) = self.reactor.block_on(read);
            self.look(0, &found[..read.unwrap()], PART as usize);
        }
    }
}

/// So many threads, each in a part of its own; what is beside it in the same folio may be another's.
fn run(seed: u64, threads: u64, skew: u64, operations: u64) {
    const QUEUES: [QueueKind; 4] =
        [QueueKind::Auto, QueueKind::Ring, QueueKind::Threads, QueueKind::Sync];
    let sim = Sim::new(SimOptions::new(32 << 20));
    let volume = formatted(&sim);
    let cache = Cache::new([3, 20, 100, 1000][seed as usize % 4] * BLOCK);
    let file = create(&volume, "/file");
    let reactor = made::reactor();
    // Parts that begin in the midst of folios share those with their neighbours.
    let end = skew + threads * PART;
    assert_eq!(reactor.block_on(file.set_size(end)), Ok(()));
    let barrier = Barrier::new(threads as usize);
    let left: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
        let work = |thread| {
            let (volume, cache, barrier, file) = (&volume, &cache, &barrier, &file);
            scope.spawn(move || {
                let options = ReactorOptions {
                    queue: QUEUES[(seed + thread) as usize % 4],
                    ..ReactorOptions::default()
                };
                let mut worker = Worker {
                    volume,
                    cache,
                    files: [file.clone(), file.buffered(cache), file.buffered(cache)],
                    reactor: Reactor::new(options).unwrap(),
                    random: Random(seed * 100 + thread),
                    start: skew + thread * PART,
                    end,
                    bytes: vec![0; PART as usize],
                    steps: 0,
                };
                for _ in 0..operations.div_ceil(ROUND) {
                    (0..ROUND).for_each(|_| worker.step());
                    barrier.wait();
                    worker.look_at_all();
                    barrier.wait();
                }
                (worker.start, worker.bytes)
            })
        };
        let workers: Vec<_> = (0..threads).map(work).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    volume.sync().unwrap();
    // What was synced is there when the power is cut, and when it is not.
    for crash in [Crash::LoseAll, Crash::KeepAll] {
        let after = Device::new(sim.crash_image(crash)).unwrap();
        let file = Volume::open_on(after).unwrap().open("/file", OpenOptions::direct()).unwrap();
        for (start, bytes) in &left {
            let (found, read) = reactor.block_on(file.read(Buffer::zeroed(bytes.len()), *start));
            assert!(read == Ok(bytes.len()) && found[..] == bytes[..], "seed {seed}, {crash:?}");
        }
    }
}

#[test]
fn each_byte_is_what_was_written_there_last() {
    for seed in 0..4 {
        for threads in 1..=4 {
            // In whole folios, and across them.
            let skew = [0, 100][(seed + threads) as usize % 2];
            run(seed * 10 + threads, threads, skew, scaled(6300) as u64);
        }
    }
}

/// It stays open a moment longer than its last clone, until all is written back.
#[test]
fn what_nobody_synced_is_there_when_the_volume_was_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let device = || Device::open(&path, Access::ReadWrite).unwrap();
    Volume::format(&device(), &FormatOptions::default()).unwrap();
    let reactor = made::reactor();
    for round in 0..10 {
        let volume = loop {
            match Volume::open_on(device()) {
                Ok(volume) => break volume,
                Err(error) => assert_eq!(error.errno(), Errno::BUSY, "{error}"),
            }
        };
        let file = create(&volume, "/file").buffered(&Cache::new(1 << 20));
        let (found, read) = reactor.block_on(file.read(Buffer::zeroed(5000), 100));
        let expected = if round == 0 { 0 } else { 4900 };
        assert!(read == Ok(expected) && found[..expected].iter().all(|byte| *byte == round));
        let write = file.write(Buffer::copy_of(&[round + 1; 5000]), 0);
        assert_eq!(reactor.block_on(write).1, Ok(5000));
    }
}

#[test]
fn a_time_that_was_set_after_a_write_stays_when_that_is_written_back() {
    let volume = formatted(&Sim::new(SimOptions::new(16 << 20)));
    let (cache, reactor) = (Cache::new(1 << 20), made::reactor());
    let file = create(&volume, "/file").buffered(&cache);
    assert_eq!(reactor.block_on(file.write(Buffer::copy_of(&[1; 5000]), 0)).1, Ok(5000));
    let set = |inode: &mut Inode| inode.modified = Time(7);
    volume.set_attributes("/file", Follow::Yes, set).unwrap();
    let found = || volume.inode("/file", Follow::Yes).unwrap().1;
    assert_eq!((found().modified, found().size), (Time(7), 5000));
    assert_eq!(reactor.block_on(file.sync()), Ok(()));
    assert_eq!((found().modified, found().size), (Time(7), 5000));
    assert_eq!(reactor.block_on(file.write(Buffer::copy_of(&[2]), 0)).1, Ok(1));
    assert!(found().modified > Time(7));
}
