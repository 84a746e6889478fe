//! Discards of freed blocks, if enabled: only when the free is durable and no read uses the blocks,
//! and no other blocks.

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{File, Tokens};
use uringfs_reactor::{Reactor, ReactorOptions, Token};
use uringfs_volume::{FormatOptions, OpenOptions, Volume, VolumeOptions};

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;

fn new_volume(sim: &Sim, discard: bool) -> Volume {
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    VolumeOptions::new().discard(discard).open_on(device).unwrap()
}

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

/// A file of 64 blocks filled with a byte.
fn create(volume: &Volume, reactor: &Reactor, path: &str, byte: u8) -> File {
    let create = OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
    let file = volume.open_with(path, create).unwrap();
    let bytes = Buffer::copy_of(&[byte; 64 * BLOCK]);
    assert!(reactor.block_on(file.write_at(bytes, 0)).0.is_ok());
    assert_eq!(reactor.block_on(file.sync_all()), Ok(()));
    file
}

/// Blocks of the device filled with a byte.
fn blocks_of(sim: &Sim, byte: u8) -> usize {
    let mut block = [0; BLOCK];
    let mut is_of = |number: &u64| {
        sim.peek(number * BLOCK as u64, &mut block);
        block.iter().all(|found| *found == byte)
    };
    (0..SIZE / BLOCK as u64).filter(|number| is_of(number)).count()
}

#[test]
fn removed_blocks_are_discarded_after_the_last_read() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let (volume, reactor, reading) = (new_volume(&sim, true), reactor(), self::reactor());
    let (removed, kept) =
        (create(&volume, &reactor, "/removed", 1), create(&volume, &reactor, "/kept", 2));
    assert_eq!((blocks_of(&sim, 1), blocks_of(&sim, 2)), (64, 64));
    // The first read keeps the file open, to update the access time.
    assert!(reactor.block_on(removed.read_at(Buffer::zeroed(BLOCK), 0)).0.is_ok());
    volume.sync().unwrap();
    // In flight until its reactor runs.
    reading.read_at(&removed, Buffer::zeroed(BLOCK), 0, Token::new(1)).unwrap();
    drop(removed);
    volume.remove_file("/removed").unwrap();
    // From another thread: a thread that waits turns its reactors.
    std::thread::scope(|scope| {
        scope.spawn(|| [volume.sync(), volume.sync()].map(Result::unwrap));
    });
    assert_eq!(blocks_of(&sim, 1), 64);
    reading.reap(1, None, &mut Vec::new()).unwrap();
    volume.sync().unwrap();
    assert_eq!((blocks_of(&sim, 1), blocks_of(&sim, 2)), (0, 64));
    // A part of a file, too.
    reactor.block_on(kept.punch_hole(0, 16 * BLOCK as u64)).unwrap();
    volume.sync().unwrap();
    assert_eq!(blocks_of(&sim, 2), 48);
    assert_eq!(volume.warnings(), Vec::<String>::new());
}

#[test]
fn nothing_is_discarded_by_default() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let (volume, reactor) = (new_volume(&sim, false), reactor());
    drop(create(&volume, &reactor, "/removed", 1));
    volume.remove_file("/removed").unwrap();
    drop(volume);
    assert_eq!(blocks_of(&sim, 1), 64);
}

#[test]
fn a_failed_discard_is_reported_once_and_frees_the_blocks() {
    let sim = Sim::new(SimOptions::new(SIZE));
    sim.inject(Rule::new(Op::Discard, When::OneIn(1), Fault::Error(Errno::IO)));
    let (volume, reactor) = (new_volume(&sim, true), reactor());
    let free = volume.statistics().free_blocks;
    for _ in 0..3 {
        drop(create(&volume, &reactor, "/removed", 1));
        volume.remove_file("/removed").unwrap();
        volume.sync().unwrap();
        volume.sync().unwrap();
        assert_eq!(volume.statistics().free_blocks, free);
    }
    let warnings = volume.warnings();
    assert!(matches!(&warnings[..], [one] if one.contains("no longer discarded")), "{warnings:?}");
}
