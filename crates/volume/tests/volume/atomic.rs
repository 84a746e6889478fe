//! Atomic writes. After a power cut at any write, all of an atomic write is there or nothing; after
//! its completion, all of it. Concurrent writes to the range happen before or after it. No failure
//! loses blocks.

use std::sync::atomic::{AtomicBool, Ordering};

use uringfs_buffer::Buffer;
use uringfs_device::backend::null::Null;
use uringfs_device::backend::sim::{Crash, CrashPlan, Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{File, FileOptions, MAX_ATOMIC_WRITE_BYTES};
use uringfs_reactor::{Counter, Reactor};
use uringfs_volume::{CheckOptions, Volume};

use crate::fixture::{create, formatted, reactor};

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;
const BLOCKS: usize = 24;

fn new_volume() -> (Sim, Volume) {
    let sim = Sim::new(SimOptions::new(SIZE));
    let volume = formatted(&sim);
    (sim, volume)
}

/// A durable file of blocks of ones, whose extents interleave with those of another file.
fn file_of_ones(volume: &Volume, reactor: &Reactor) -> File {
    let (file, other) = (create(volume, "/a"), create(volume, "/other"));
    for block in 0..BLOCKS {
        for file in [&file, &other] {
            let bytes = Buffer::copy_of(&[1; BLOCK]);
            assert!(reactor.block_on(file.write_at(bytes, (block * BLOCK) as u64)).0.is_ok());
        }
    }
    assert_eq!(reactor.block_on(file.sync_all()), Ok(()));
    file
}

fn atomic(
    reactor: &Reactor,
    file: &File,
    byte: u8,
    block: usize,
    blocks: usize,
) -> Result<usize, Errno> {
    let bytes = Buffer::copy_of(&vec![byte; blocks * BLOCK]);
    reactor.block_on(file.write_atomic(bytes, (block * BLOCK) as u64)).0
}

/// The byte that fills each block of the file.
fn bytes_of(reactor: &Reactor, file: &File) -> Vec<u8> {
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(file.len() as usize), 0));
    assert_eq!(read, Ok(bytes.len()));
    let of = |block: &[u8]| {
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    };
    bytes.chunks(BLOCK).map(of).collect()
}

fn with(byte: u8, block: usize, blocks: usize) -> Vec<u8> {
    let mut bytes = vec![1; BLOCKS.max(block + blocks)];
    bytes[block..block + blocks].fill(byte);
    bytes
}

/// The content after a power cut. The volume must be sound.
fn after_a_cut(sim: &Sim, reactor: &Reactor) -> Vec<u8> {
    let device = Device::new(sim.clone()).unwrap();
    let report = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
    let wrong: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    // These have two copies, and one may be torn.
    let has_two_copies =
        |line: &String| ["superblock", "catalog head"].iter().any(|start| line.starts_with(start));
    assert!(wrong.iter().all(has_two_copies), "{wrong:?}");
    let volume = Volume::open_on(device).unwrap();
    bytes_of(reactor, &create(&volume, "/a"))
}

#[test]
fn a_power_cut_leaves_all_of_an_atomic_write_or_nothing() {
    let reactor = reactor();
    // In the middle, across the end, and right past the end.
    for (block, blocks) in [(3, 7), (0, BLOCKS), (BLOCKS - 2, 6), (BLOCKS, 3)] {
        let (sim, volume) = new_volume();
        let file = file_of_ones(&volume, &reactor);
        sim.restart_record();
        assert_eq!(atomic(&reactor, &file, 2, block, blocks), Ok(blocks * BLOCK));
        let (old, new) = (vec![1; BLOCKS], with(2, block, blocks));
        assert_eq!(bytes_of(&reactor, &file), new);
        assert_eq!(after_a_cut(&sim.crash_image(Crash::LoseAll), &reactor), new);
        let mut found = [0; 2];
        let plan = CrashPlan { exhaustive_up_to: 2, samples: 4, seed: 5 };
        for image in sim.crash_images(plan) {
            let is = after_a_cut(&image.sim, &reactor);
            assert!(is == old || is == new, "cut {} {:?}: {is:?}", image.cut, image.crash);
            found[usize::from(is == new)] += 1;
        }
        assert!(found[0] > 0 && found[1] > 0, "{found:?}");
    }
}

#[test]
fn an_atomic_write_counts_as_one_lock_acquisition() {
    let reactor = reactor();
    let (_sim, volume) = new_volume();
    let file = file_of_ones(&volume, &reactor);
    let exclusive = [Counter::WriteUnaligned, Counter::WriteGap, Counter::WriteFallocate];
    let count = |counter| reactor.counters().get(counter);
    let before = exclusive.map(count);
    let refused = reactor.block_on(file.write_atomic(Buffer::zeroed(BLOCK), 1)).0;
    assert_eq!(refused, Err(Errno::INVAL));
    for round in 0..10 {
        assert_eq!(atomic(&reactor, &file, round, 4, 4), Ok(4 * BLOCK));
    }
    assert_eq!((count(Counter::WriteAtomic), exclusive.map(count)), (10, before));
}

#[test]
fn invalid_atomic_writes_are_refused_and_change_nothing() {
    let reactor = reactor();
    let (_sim, volume) = new_volume();
    let file = file_of_ones(&volume, &reactor);
    let write_atomic = |length: usize, offset: u64| {
        reactor.block_on(file.write_atomic(Buffer::zeroed(length), offset)).0
    };
    assert_eq!(write_atomic(100, 0), Err(Errno::INVAL));
    assert_eq!(write_atomic(BLOCK, 512), Err(Errno::INVAL));
    assert_eq!(write_atomic(MAX_ATOMIC_WRITE_BYTES as usize + BLOCK, 0), Err(Errno::INVAL));
    assert_eq!(write_atomic(BLOCK, (i64::MAX as u64 + 1) - BLOCK as u64), Err(Errno::FBIG));
    assert_eq!(write_atomic(BLOCK, u64::MAX - BLOCK as u64 + 1), Err(Errno::FBIG));
    assert_eq!(write_atomic(0, 0), Ok(0));
    assert_eq!(bytes_of(&reactor, &file), vec![1; BLOCKS]);
    let image = File::from_device(Device::new(Null::new(SIZE)).unwrap(), FileOptions::default());
    let written = reactor.block_on(image.write_atomic(Buffer::zeroed(BLOCK), 0)).0;
    assert_eq!(written, Err(Errno::OPNOTSUPP));
    // Memory of any alignment works.
    let bytes = Buffer::copy_of(&[9; 3 * BLOCK + 5]).split_off(5);
    assert_eq!(reactor.block_on(file.write_atomic(bytes, 0)).0, Ok(3 * BLOCK));
    assert_eq!(bytes_of(&reactor, &file), with(9, 0, 3));
    assert_eq!(
        write_atomic(MAX_ATOMIC_WRITE_BYTES as usize, 0),
        Ok(MAX_ATOMIC_WRITE_BYTES as usize)
    );
}

#[test]
fn an_atomic_write_to_a_full_volume_changes_nothing() {
    let reactor = reactor();
    let (sim, volume) = new_volume();
    let file = file_of_ones(&volume, &reactor);
    let filler = create(&volume, "/filler");
    for piece in [1 << 20, BLOCK] {
        while let Ok(written) =
            reactor.block_on(filler.write_at(Buffer::zeroed(piece), filler.len())).0
        {
            assert_eq!(written, piece);
        }
    }
    volume.sync().unwrap();
    for blocks in [1, 4, BLOCKS] {
        assert_eq!(atomic(&reactor, &file, 2, 0, blocks), Err(Errno::NOSPC));
    }
    assert_eq!(bytes_of(&reactor, &file), vec![1; BLOCKS]);
    // As many as the file has: the blocks that the previous write freed suffice for the next.
    assert_eq!(reactor.block_on(filler.set_len(filler.len() - 8 * BLOCK as u64)), Ok(()));
    for round in 2..30 {
        assert_eq!(atomic(&reactor, &file, round, 3, 8), Ok(8 * BLOCK), "{round}");
    }
    assert_eq!(bytes_of(&reactor, &file), with(29, 3, 8));
    drop((file, filler, volume));
    after_a_cut(&sim, &reactor);
}

#[test]
fn a_failed_atomic_write_keeps_the_content_and_all_blocks() {
    let reactor = reactor();
    let (sim, volume) = new_volume();
    let file = file_of_ones(&volume, &reactor);
    volume.sync().unwrap();
    let free = |volume: &Volume| {
        let statistics = volume.statistics();
        (statistics.free_blocks + statistics.catalog_blocks, statistics.pending_blocks)
    };
    let before = free(&volume);
    for _ in 0..20 {
        sim.inject(Rule::new(Op::Write, When::Nth(1), Fault::Error(Errno::IO)));
        assert_eq!(atomic(&reactor, &file, 2, 2, 20), Err(Errno::IO));
        sim.clear_faults();
        assert_eq!(bytes_of(&reactor, &file), vec![1; BLOCKS]);
        assert_eq!(free(&volume), before);
    }
    assert_eq!(atomic(&reactor, &file, 2, 2, 20), Ok(20 * BLOCK));
    drop((file, volume));
    assert_eq!(after_a_cut(&sim, &reactor), with(2, 2, 20));
}

#[test]
fn concurrent_writes_happen_before_or_after_an_atomic_write() {
    const ROUNDS: u8 = 60;
    let (sim, volume) = new_volume();
    let file = file_of_ones(&volume, &reactor());
    sim.restart_record();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Commits happen during all of this.
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                volume.sync().unwrap();
            }
        });
        let writers: Vec<_> = [2, 3]
            .map(|byte| {
                let file = &file;
                scope.spawn(move || {
                    let reactor = reactor();
                    for _ in 0..ROUNDS {
                        assert_eq!(atomic(&reactor, file, byte, 4, 8), Ok(8 * BLOCK));
                    }
                })
            })
            .into();
        let overwriter = scope.spawn(|| {
            let reactor = reactor();
            for round in 0..ROUNDS {
                // In place, whole blocks and partial ones: after the range, and at its end.
                let bytes = Buffer::copy_of(&vec![1; 2 * BLOCK]);
                let at = (12 * BLOCK) as u64;
                assert!(reactor.block_on(file.write_at(bytes, at)).0.is_ok());
                let part = Buffer::copy_of(&[1; 700]);
                assert!(reactor.block_on(file.write_at(part, at + u64::from(round))).0.is_ok());
            }
        });
        for thread in writers {
            thread.join().unwrap();
        }
        overwriter.join().unwrap();
        is_done.store(true, Ordering::Relaxed);
    });
    let reactor = reactor();
    let found = bytes_of(&reactor, &file);
    assert!(found == with(2, 4, 8) || found == with(3, 4, 8), "{found:?}");
    drop((file, volume));
    let plan = CrashPlan { exhaustive_up_to: 0, samples: 0, seed: 1 };
    let mut images = 0;
    for image in sim.crash_images(plan).step_by(7).take(200) {
        let found = after_a_cut(&image.sim, &reactor);
        let legal = [1, 2, 3].map(|byte| with(byte, 4, 8));
        assert!(legal.contains(&found), "cut {} {:?}: {found:?}", image.cut, image.crash);
        images += 1;
    }
    assert!(images > 50, "{images}");
}
