//! A frozen volume: its device gets no write, changes wait, and it thaws by itself.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Crash, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::{FallocateSize, Tokens};
use uringfs_reactor::{Reactor, Token};
use uringfs_volume::{
    CheckOptions, FileType, Follow, FormatOptions, Inode, OpenOptions, SetXattr, Volume,
    VolumeOptions,
};

use crate::fixture::{create, formatted, reactor};

const SIZE: u64 = 64 << 20;
const BLOCK: usize = 4096;
/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

fn new_volume() -> (Sim, Volume) {
    let sim = Sim::new(SimOptions::new(SIZE));
    let volume = formatted(&sim);
    (sim, volume)
}

fn block(byte: u8) -> Buffer {
    Buffer::copy_of(&[byte; BLOCK])
}

/// A change of a volume by a thread with a reactor, in its n-th round.
type Change = fn(&Volume, &Reactor, u64);

/// Every kind of change.
const CHANGES: [Change; 9] = [
    // On the fast path, from the second round on.
    |volume, reactor, round| {
        let file = create(volume, "/overwritten");
        assert_eq!(reactor.block_on(file.write_at(block(round as u8), 0)).0, Ok(BLOCK));
    },
    |volume, reactor, round| {
        let file = create(volume, "/grown");
        let offset = (round % 1000) * BLOCK as u64;
        assert_eq!(reactor.block_on(file.write_at(block(7), offset)).0, Ok(BLOCK));
        assert_eq!(reactor.block_on(file.write_at(vec![8; 10], offset + 5)).0, Ok(10));
    },
    |volume, reactor, round| {
        let options = OpenOptions::new().write(true).create(true);
        let file = volume.open_with("/buffered", options).unwrap();
        let offset = (round % 1000) * 100;
        assert_eq!(reactor.block_on(file.write_at(vec![9; 100], offset)).0, Ok(100));
    },
    |volume, reactor, round| {
        let file = create(volume, "/log");
        reactor.block_on(file.append(vec![1; 10])).0.unwrap();
        if round % 100 == 99 {
            reactor.block_on(file.set_len(0)).unwrap();
        }
    },
    |volume, reactor, _| {
        let file = create(volume, "/atomic");
        assert_eq!(reactor.block_on(file.write_atomic(block(3), 0)).0, Ok(BLOCK));
    },
    |volume, reactor, _| {
        let file = create(volume, "/space");
        reactor.block_on(file.allocate(0, 1 << 16, FallocateSize::Extend)).unwrap();
        reactor.block_on(file.punch_hole(0, 1 << 15)).unwrap();
        reactor.block_on(file.discard(1 << 15, 1 << 15)).unwrap();
    },
    |volume, _, round| {
        volume.create_dir(format!("/directory {round}")).unwrap();
        volume.rename(format!("/directory {round}"), "/directory").unwrap();
        volume.remove_dir("/directory").unwrap();
    },
    |volume, _, round| {
        let _truncated = volume.create_file("/attributes").unwrap();
        let (value, how) = (round.to_le_bytes(), SetXattr::Either);
        volume.set_xattr("/attributes", Follow::Yes, "user.round", &value, how).unwrap();
        let permissions = Permissions::from_mode(0o600 + round as u32 % 8);
        volume.set_permissions("/attributes", permissions).unwrap();
    },
    |volume, reactor, _| {
        let unnamed = async {
            let file = Inode::new(FileType::File, 0o600);
            let (made, _) = volume.root().create("made", &file).await.unwrap();
            made.link_into(&volume.root(), "linked").await.unwrap();
            volume.root().remove_file("made").await.unwrap();
            volume.root().remove_file("linked").await.unwrap();
        };
        reactor.block_on(unnamed);
    },
];

/// Runs all changes, each in a thread, while `what` runs. It gets the number of rounds of each thread so far.
fn under_changes(volume: &Volume, what: impl FnOnce(&[AtomicU64; CHANGES.len()])) {
    let rounds = [const { AtomicU64::new(0) }; CHANGES.len()];
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for (change, rounds) in CHANGES.iter().zip(&rounds) {
            let is_done = &is_done;
            scope.spawn(move || {
                let reactor = reactor();
                while !is_done.load(Ordering::Relaxed) {
                    change(volume, &reactor, rounds.load(Ordering::Relaxed));
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        what(&rounds);
        is_done.store(true, Ordering::Relaxed);
    });
}

/// Waits until each thread has made rounds from now on.
fn wait_for_rounds(rounds: &[AtomicU64]) {
    let before: Vec<u64> = rounds.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    for (count, before) in rounds.iter().zip(before) {
        while count.load(Ordering::Relaxed) < before + 2 {
            thread::yield_now();
        }
    }
}

fn is_sound(sim: &Sim) -> bool {
    let device = Device::new(sim.clone()).unwrap();
    Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap().is_sound()
}

#[test]
fn the_device_of_a_frozen_volume_gets_no_write_and_changes_wait() {
    let (sim, volume) = new_volume();
    volume.write("/read", "content").unwrap();
    under_changes(&volume, |rounds| {
        for _ in 0..2 {
            wait_for_rounds(rounds);
            volume.freeze(LONG).unwrap();
            let (events, digest) = (sim.events(), sim.digest());
            let before: Vec<u64> = rounds.iter().map(|it| it.load(Ordering::Relaxed)).collect();
            // Reads go on, and access times wait in memory.
            for _ in 0..1000 {
                assert_eq!(volume.read("/read").unwrap(), b"content");
            }
            assert!(is_sound(&sim.crash_image(Crash::LoseAll)));
            for (count, before) in rounds.iter().zip(before) {
                // A change may have ended before the freeze and be counted after it.
                assert!(count.load(Ordering::Relaxed) <= before + 1);
            }
            assert_eq!((sim.events(), sim.digest()), (events, digest));
            assert!(volume.thaw());
        }
        wait_for_rounds(rounds);
    });
    volume.close().unwrap();
    assert!(is_sound(&sim));
}

#[test]
fn a_freeze_makes_durable_what_is_only_in_the_page_cache() {
    let (sim, volume) = new_volume();
    let file = volume.create_file("/f").unwrap();
    reactor().block_on(file.write_at(b"content".to_vec(), 0)).0.unwrap();
    volume.freeze(LONG).unwrap();
    let cut = Volume::open_on(Device::new(sim.crash_image(Crash::LoseAll)).unwrap()).unwrap();
    assert_eq!(cut.read("/f").unwrap(), b"content");
}

#[test]
fn a_frozen_volume_thaws_at_its_deadline() {
    let (_, volume) = new_volume();
    let mut time = Duration::from_millis(50);
    // On a busy machine it may take longer to freeze.
    while let Err(error) = volume.freeze(time) {
        assert_eq!(error.errno(), Errno::TIMEDOUT);
        time *= 2;
    }
    // Returns only after the thaw.
    volume.write("/f", "content").unwrap();
    assert!(!volume.thaw());
    volume.sync().unwrap();
}

#[test]
fn a_second_freeze_is_refused_until_the_first_has_ended() {
    let (_, volume) = new_volume();
    assert!(!volume.thaw());
    volume.freeze(LONG).unwrap();
    assert_eq!(volume.freeze(LONG).unwrap_err().errno(), Errno::BUSY);
    assert!(volume.thaw() && !volume.thaw());
    volume.freeze(LONG).unwrap();
    // The end of the volume is the end of the freeze.
    drop(volume);
}

#[test]
fn a_volume_that_is_open_for_reading_only_is_not_frozen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    Volume::create(&path, &FormatOptions::new().size(SIZE)).unwrap().close().unwrap();
    let volume = VolumeOptions::new().read_only(true).open(&path).unwrap();
    assert_eq!(volume.freeze(LONG).unwrap_err().errno(), Errno::ROFS);
}

#[test]
fn a_change_that_does_not_end_makes_a_freeze_fail() {
    let (_, volume) = new_volume();
    let reactor = reactor();
    let file = create(&volume, "/f");
    thread::scope(|scope| {
        // Nothing turns this reactor until the freeze has failed.
        reactor.start(file.append(block(1)), Token::new(1)).unwrap();
        let freeze = scope.spawn(|| volume.freeze(Duration::from_millis(50)));
        assert_eq!(freeze.join().unwrap().unwrap_err().errno(), Errno::TIMEDOUT);
    });
    let mut completed = Vec::new();
    reactor.reap(1, None, &mut completed).unwrap();
    assert_eq!(completed.len(), 1);
    volume.freeze(LONG).unwrap();
    assert!(volume.thaw());
}
