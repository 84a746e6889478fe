//! Full volumes: they refuse only when no more blocks can become free, and they remain usable.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{CrashPlan, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::{FallocateSize, File, Tokens};
use uringfs_reactor::{Reactor, ReactorOptions, Token};
use uringfs_volume::{ErrorKind, OpenOptions, Volume};

use crate::fixture::{create, formatted};

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;

/// Blocks available to files, including those that the catalog has taken since.
fn free_blocks(volume: &Volume) -> u64 {
    let statistics = volume.statistics();
    statistics.free_blocks + statistics.catalog_blocks
}

/// Writes until no single block is free. Returns the bytes written.
fn fill(reactor: &Reactor, file: &File, byte: u8) -> u64 {
    let mut offset = 0;
    for piece in [1 << 20, 16 * BLOCK, BLOCK] {
        loop {
            let bytes = Buffer::copy_of(&vec![byte; piece]);
            match reactor.block_on(file.write_at(bytes, offset)).0 {
                Ok(written) => offset += written as u64,
                Err(error) => break assert_eq!(error, Errno::NOSPC),
            }
        }
    }
    offset
}

fn is_all(reactor: &Reactor, file: &File, byte: u8) -> bool {
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(file.len() as usize), 0));
    assert_eq!(read, Ok(bytes.len()));
    bytes.iter().all(|found| *found == byte)
}

#[test]
fn removed_blocks_are_reused_without_a_sync() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let volume = formatted(&Sim::new(SimOptions::new(SIZE)));
    let mut first = None;
    for round in 0..20u8 {
        let file = create(&volume, "/a");
        let filled = fill(&reactor, &file, round + 1);
        assert!(filled >= *first.get_or_insert(filled), "round {round}: {filled} of {first:?}");
        assert_eq!(volume.statistics().free_blocks, 0);
        assert!(is_all(&reactor, &file, round + 1));
        // A full volume still makes and removes names.
        volume.create_dir_with_mode("/d", 0o700).unwrap();
        volume.remove_dir("/d").unwrap();
        drop(file);
        match round % 3 {
            0 => volume.remove_file("/a").unwrap(),
            1 => reactor.block_on(create(&volume, "/a").set_len(0)).unwrap(),
            _ => reactor.block_on(create(&volume, "/a").punch_hole(0, SIZE)).unwrap(),
        }
    }
    assert!(first.unwrap() > SIZE * 6 / 10);
}

#[test]
fn a_shortage_says_how_much_was_asked_for_and_how_much_is_free() {
    let volume = formatted(&Sim::new(SimOptions::new(SIZE)));
    let file = create(&volume, "/a");
    let allocated = file.allocate(0, 1 << 40, FallocateSize::Keep).wait();
    assert_eq!(allocated, Err(Errno::NOSPC));
    let (shortage, asked) = (volume.shortage().to_string(), 1u64 << 40);
    let begin = format!("the volume is full: {asked} bytes were asked for, and ");
    let free = shortage.strip_prefix(&begin).and_then(|rest| rest.split(' ').next()).unwrap();
    let free = free.parse::<u64>().unwrap() / BLOCK as u64;
    assert!((1..=free_blocks(&volume)).contains(&free), "{shortage}");
}

#[test]
fn an_allocation_waits_for_reads_and_reports_them() {
    let (reactor, reading) = (
        Reactor::new(ReactorOptions::default()).unwrap(),
        Reactor::new(ReactorOptions::default()).unwrap(),
    );
    let volume = formatted(&Sim::new(SimOptions::new(SIZE)));
    let file = create(&volume, "/a");
    fill(&reactor, &file, 1);
    assert_eq!(volume.shortage().kind(), ErrorKind::NoSpace);
    // The first read updates the access time, as an operation that keeps the file open.
    assert!(reactor.block_on(file.read_at(Buffer::zeroed(BLOCK), 0)).0.is_ok());
    // It counts as in flight until its reactor runs, which it does not.
    reading.read_at(&file, Buffer::zeroed(BLOCK), 0, Token::new(1)).unwrap();
    drop(file);
    volume.remove_file("/a").unwrap();
    let next = create(&volume, "/b");
    let write = next.write_at(Buffer::zeroed(BLOCK), 0);
    assert_eq!(reactor.block_on(write).0, Err(Errno::NOSPC));
    let message = volume.shortage().to_string();
    assert!(message.contains("bytes more when") && message.contains("in flight"), "{message}");
    reading.reap(1, None, &mut Vec::new()).unwrap();
    assert!(fill(&reactor, &next, 2) > 0);
}

#[test]
fn threads_fill_the_volume_and_free_space_for_each_other() {
    let volume = formatted(&Sim::new(SimOptions::new(SIZE)));
    let free = free_blocks(&volume);
    std::thread::scope(|scope| {
        for thread in 1..5u8 {
            let volume = volume.clone();
            scope.spawn(move || {
                let reactor = Reactor::new(ReactorOptions::default()).unwrap();
                for round in 0..5 {
                    let path = format!("/{thread}-{round}");
                    let file = create(&volume, &path);
                    fill(&reactor, &file, thread);
                    assert!(is_all(&reactor, &file, thread), "{path}");
                    drop(file);
                    volume.remove_file(&path).unwrap();
                }
            });
        }
    });
    volume.sync().unwrap();
    volume.sync().unwrap();
    assert_eq!(free_blocks(&volume), free);
}

#[test]
fn removed_blocks_are_reused_while_a_commit_reclaims_orphans() {
    const FILES: usize = 800;
    let volume = formatted(&Sim::new(SimOptions::new(SIZE)));
    let blocks = free_blocks(&volume) as usize * 3 / 5 / FILES;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                volume.sync().unwrap();
            }
        });
        scope.spawn(|| {
            let reactor = Reactor::new(ReactorOptions::default()).unwrap();
            let write = |path: &str, blocks: usize| {
                let bytes = Buffer::zeroed(blocks * BLOCK);
                let (written, _) = reactor.block_on(create(&volume, path).write_at(bytes, 0));
                assert_eq!(written, Ok(blocks * BLOCK), "{path}: {}", volume.shortage());
            };
            let all_fits = || {
                for _ in 0..25 {
                    (0..FILES).for_each(|n| write(&format!("/{n}"), blocks));
                    (0..FILES).for_each(|n| volume.remove_file(format!("/{n}")).unwrap());
                    // Nearly all blocks at once.
                    write("/all", FILES * blocks);
                    volume.remove_file("/all").unwrap();
                }
            };
            let result = catch_unwind(AssertUnwindSafe(all_fits));
            is_done.store(true, Ordering::Relaxed);
            result.unwrap();
        });
    });
}

#[test]
fn a_full_volume_can_be_filled_again_after_a_power_cut() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let sim = Sim::new(SimOptions::new(SIZE));
    let volume = formatted(&sim);
    let first = fill(&reactor, &create(&volume, "/a"), 1);
    volume.sync().unwrap();
    sim.restart_record();
    // In the blocks of the files just removed.
    volume.remove_file("/a").unwrap();
    fill(&reactor, &create(&volume, "/b"), 2);
    volume.sync().unwrap();
    drop(volume);
    let images = sim.crash_images(CrashPlan { exhaustive_up_to: 0, samples: 1, seed: 1 });
    let mut found_so_often = [0; 2];
    for (index, image) in images.enumerate() {
        let volume = Volume::open_on(Device::new(image.sim).unwrap()).unwrap();
        for (path, byte) in [("/a", 1), ("/b", 2)] {
            let file = match volume
                .open_with(path, OpenOptions::new().read(true).write(true).direct(true))
            {
                Ok(file) => file,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOENT, "{path}, image {index}: {error}");
                    continue;
                }
            };
            found_so_often[usize::from(byte) - 1] += 1;
            let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(SIZE as usize), 0));
            let is_whole = path == "/b" || read == Ok(first as usize);
            let found = &bytes[..read.unwrap()];
            assert!(is_whole && found.iter().all(|found| *found == byte), "{path}, image {index}");
            drop(file);
            volume.remove_file(path).unwrap();
        }
        if index % 16 == 0 {
            assert!(fill(&reactor, &create(&volume, "/c"), 3) >= first, "image {index}");
        }
    }
    assert!(found_so_often.iter().all(|times| *times > 0), "{found_so_often:?}");
}
