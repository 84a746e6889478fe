//! Parallel writers of one file: overwriters take no lock, an operation that excludes them gets its
//! turn, and no block shows another file's data.

use std::sync::atomic::{AtomicBool, Ordering};

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_file::{FallocateSize, File, FileOptions, Tokens, WriteLocking};
use uringfs_reactor::{Counter, Reactor, Token};
use uringfs_volume::{CheckOptions, FormatOptions, OpenOptions, Volume};

use crate::fixture::reactor;
use crate::random::{Random, scaled};

const SIZE: u64 = 32 << 20;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

/// All reasons for an exclusive lock.
const EXCLUSIVE: [Counter; 8] = [
    Counter::WriteUnaligned,
    Counter::WriteGap,
    Counter::WriteAppend,
    Counter::WriteResize,
    Counter::WriteFallocate,
    Counter::WriteStripPrivileges,
    Counter::WriteAlways,
    Counter::WriteRangeLocked,
];

fn new_volume() -> (Device, Volume) {
    let device = Device::new(Sim::new(SimOptions::new(SIZE))).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    (device.clone(), Volume::open_on(device).unwrap())
}

fn open(volume: &Volume, path: &str, file: FileOptions) -> File {
    let create = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .mode(0o600)
        .switches(file)
        .direct(true);
    volume.open_with(path, create).unwrap()
}

/// Overwrites whole blocks with a byte by token, 16 at a time, `count` times or until `stop`.
fn overwrite(reactor: &Reactor, file: &File, byte: u8, count: u64, stop: &AtomicBool) {
    let (mut random, mut completed) = (Random(u64::from(byte)), Vec::new());
    let mut asked = 0;
    while asked < count && !stop.load(Ordering::Relaxed) {
        for _ in 0..16 {
            let bytes = Buffer::copy_of(&[byte; BLOCK]);
            let offset = random.below(BLOCKS) * BLOCK as u64;
            reactor.write_at(file, bytes, offset, Token::new(asked)).unwrap();
            asked += 1;
        }
        reactor.reap(16, None, &mut completed).unwrap();
        for one in completed.drain(..) {
            assert_eq!(one.result(), Ok(BLOCK as u64));
        }
    }
}

/// Counts of exclusive acquisitions by reason, and of lock-free writes.
fn counted(write_lock: WriteLocking, is_written: bool) -> ([u64; 8], u64) {
    const WRITES: u64 = 640;
    let (_device, volume) = new_volume();
    let options = FileOptions::new().write_lock(write_lock);
    let file = open(&volume, "/a", options);
    {
        let reactor = reactor();
        let bytes = BLOCKS * BLOCK as u64;
        assert_eq!(reactor.block_on(file.allocate(0, bytes, FallocateSize::Extend)), Ok(()));
        let written = if is_written { bytes as usize } else { BLOCK };
        assert!(reactor.block_on(file.write_at(Buffer::zeroed(written), 0)).0.is_ok());
    }
    let never = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let threads = [1, 2, 3, 4].map(|byte| {
            let (file, never) = (&file, &never);
            scope.spawn(move || {
                let reactor = reactor();
                overwrite(&reactor, file, byte, WRITES, never);
                let count = |counter| reactor.counters().get(counter);
                (EXCLUSIVE.map(count), count(Counter::WriteUnlocked))
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    let sum = |place: usize| counts.iter().map(|(exclusive, _)| exclusive[place]).sum();
    (std::array::from_fn(sum), counts.iter().map(|(_, shared)| shared).sum())
}

#[test]
fn writers_of_whole_blocks_take_no_lock() {
    for is_written in [true, false] {
        assert_eq!(counted(WriteLocking::Shared, is_written), ([0; 8], 4 * 640));
        let (exclusive, shared) = counted(WriteLocking::Exclusive, is_written);
        assert_eq!((exclusive.iter().sum::<u64>(), shared), (4 * 640, 0));
        assert_eq!(exclusive[6], 4 * 640, "all have one reason");
    }
}

#[test]
fn exclusive_operations_get_their_turn_among_busy_writers() {
    let (_device, volume) = new_volume();
    for write_lock in [WriteLocking::Shared, WriteLocking::Exclusive] {
        let options = FileOptions::new().write_lock(write_lock);
        let file = open(&volume, "/a", options);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for byte in 1..4 {
                let (file, stop) = (&file, &stop);
                scope.spawn(move || overwrite(&reactor(), file, byte, u64::MAX, stop));
            }
            let reactor = reactor();
            for round in 0..20 {
                assert_eq!(reactor.block_on(file.set_len(round * 1000)), Ok(()));
                let part = Buffer::copy_of(&[9; 100]);
                assert_eq!(reactor.block_on(file.write_at(part, 5000 + round)).0, Ok(100));
                assert_eq!(reactor.block_on(file.punch_hole(8192, 8192)), Ok(()));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn no_block_shows_data_of_another_file() {
    const FOREIGN: u8 = 0xee;
    let (device, volume) = new_volume();
    let file = open(&volume, "/a", FileOptions::default());
    let rounds = scaled(40) as u64;
    let stop = AtomicBool::new(false);
    let is_own = |bytes: &[u8]| bytes.iter().all(|byte| *byte < 10);
    std::thread::scope(|scope| {
        for byte in 1..3 {
            let (file, stop) = (&file, &stop);
            scope.spawn(move || overwrite(&reactor(), file, byte, u64::MAX, stop));
        }
        // Freed blocks go to the other file at once, and back.
        scope.spawn(|| {
            let reactor = reactor();
            while !stop.load(Ordering::Relaxed) {
                let other = open(&volume, "/other", FileOptions::default());
                let bytes = Buffer::copy_of(&[FOREIGN; 64 * BLOCK]);
                assert!(reactor.block_on(other.write_at(bytes, 0)).0.is_ok());
                let (read, bytes) = reactor.block_on(other.read_at(Buffer::zeroed(64 * BLOCK), 0));
                assert!(read == Ok(64 * BLOCK) && bytes.iter().all(|byte| *byte == FOREIGN));
                drop(other);
                volume.remove_file("/other").unwrap();
                volume.sync().unwrap();
            }
        });
        let reactor = reactor();
        let mut random = Random(7);
        for _ in 0..rounds {
            let at = random.below(BLOCKS) * BLOCK as u64;
            let done = match random.below(5) {
                0 => reactor.block_on(file.set_len(at + 77)),
                1 => reactor.block_on(file.punch_hole(at, 20_000)),
                2 => reactor.block_on(file.zero_range(at + 5, 9000, FallocateSize::Keep)),
                3 => {
                    let part = Buffer::copy_of(&[3; 5000]);
                    reactor.block_on(file.write_at(part, at + 33)).0.map(drop)
                }
                _ => {
                    let bytes = Buffer::copy_of(&[4; 3 * BLOCK]);
                    reactor.block_on(file.write_atomic(bytes, at)).0.map(drop)
                }
            };
            assert_eq!(done, Ok(()));
            let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(64 * BLOCK), at));
            assert!(is_own(&bytes[..read.unwrap()]));
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop((file, volume));
    let options = CheckOptions::new().deep(true);
    let report = Volume::check(&device, options, &mut |_, _| {}).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}

#[test]
fn an_opened_file_without_set_id_bits_takes_no_lock() {
    let (device, volume) = new_volume();
    let reactor = reactor();
    let file = open(&volume, "/a", FileOptions::default());
    assert!(reactor.block_on(file.write_at(Buffer::zeroed(64 * BLOCK), 0)).0.is_ok());
    drop((file, volume));
    let volume = Volume::open_on(device).unwrap();
    let file = open(&volume, "/a", FileOptions::default());
    for number in 0..64 {
        let bytes = Buffer::zeroed(BLOCK);
        reactor.write_at(&file, bytes, number * BLOCK as u64, Token::new(number)).unwrap();
    }
    let mut completed = Vec::new();
    reactor.reap(64, None, &mut completed).unwrap();
    assert!(completed.len() == 64 && completed.iter().all(|one| one.result() == Ok(BLOCK as u64)));
    assert_eq!(EXCLUSIVE.map(|counter| reactor.counters().get(counter)), [0; 8]);
}
