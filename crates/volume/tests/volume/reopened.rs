//! A commit that may not be durable, since its flush failed or the process was killed before it.
//! Reopening the volume shows the commit, so it makes it durable before a block is allocated or a
//! sync completes.

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{
    Action, Crash, CrashPlan, Event, Fault, Rule, Sim, SimOptions, When, WriteCache,
};
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{File, FileOptions};
use uringfs_reactor::Reactor;
use uringfs_volume::{FormatOptions, OpenOptions, Rename, Volume};

use crate::fixture::{create, formatted, reactor};

const SIZE: u64 = 16 << 20;
const SEEDS: u64 = 40;

/// With FUA a commit flushes the data only, without it also the log.
const CACHES: [WriteCache; 2] = [WriteCache::VolatileWithFua, WriteCache::Volatile];

fn new_sim(cache: WriteCache) -> Sim {
    Sim::new(SimOptions::new(SIZE).cache(cache))
}

fn open(sim: &Sim) -> Volume {
    Volume::open_on(Device::new(sim.clone()).unwrap()).unwrap()
}

fn fill(reactor: &Reactor, file: &File, byte: u8, bytes: usize) {
    let write = file.write_at(Buffer::copy_of(&vec![byte; bytes]), 0);
    assert_eq!(reactor.block_on(write).0, Ok(bytes));
}

/// The number of bytes of `/f`, if it exists, that are not its own.
fn foreign_bytes(image: Sim, reactor: &Reactor) -> usize {
    let Ok(file) =
        open(&image).open_with("/f", OpenOptions::new().read(true).write(true).direct(true))
    else {
        return 0;
    };
    let size = file.len() as usize;
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(size), 0));
    assert_eq!(read, Ok(size));
    bytes.iter().filter(|byte| **byte != 0xaa).count()
}

/// A volume in which the durable file `/f` has nearly all blocks, and the number of its bytes.
fn filled(cache: WriteCache, reactor: &Reactor) -> (Sim, Volume, usize) {
    let sim = new_sim(cache);
    let volume = formatted(&sim);
    let file = create(&volume, "/f");
    let bytes = (volume.statistics().free_blocks as usize - 200) * 4096;
    fill(reactor, &file, 0xaa, bytes);
    volume.sync().unwrap();
    (sim, volume, bytes)
}

/// Writes `/g` to a reopened volume, into former blocks of `/f`, and cuts the power.
fn nothing_of_g_is_in_f(sim: &Sim, bytes: usize, reactor: &Reactor) {
    let volume = open(sim);
    assert_eq!(
        volume
            .open_with("/f", OpenOptions::new().read(true).write(true).direct(true))
            .unwrap_err()
            .errno(),
        Errno::NOENT
    );
    fill(reactor, &create(&volume, "/g"), 0xbb, bytes / 2);
    for seed in 0..SEEDS {
        let image = sim.crash_image(Crash::Seeded(seed));
        assert_eq!(foreign_bytes(image, reactor), 0, "of {bytes}, seed {seed}");
    }
}

#[test]
fn blocks_freed_by_a_commit_with_a_failed_log_record_are_not_reused() {
    let reactor = reactor();
    // The first flush is that of the data, the second that of the log. By FUA the first write is durable, the second
    // not.
    for (cache, op) in CACHES.into_iter().zip([Op::Write, Op::Flush]) {
        let (sim, volume, bytes) = filled(cache, &reactor);
        volume.remove_file("/f").unwrap();
        sim.fail_nth(op, 2, Errno::IO);
        volume.sync().unwrap_err();
        drop(volume);
        sim.clear_faults();
        nothing_of_g_is_in_f(&sim, bytes, &reactor);
    }
}

#[test]
fn blocks_freed_by_the_commit_of_a_killed_writer_are_not_reused() {
    let reactor = reactor();
    let (sim, volume, bytes) = filled(WriteCache::Volatile, &reactor);
    let killed = sim.crash_image(Crash::KeepAll);
    sim.restart_record();
    volume.remove_file("/f").unwrap();
    volume.sync().unwrap();
    drop(volume);
    // The writes between the first flush, that of the data, and the second.
    let events = sim.record().into_iter().filter_map(|event| match event {
        Event::Begin { action, .. } => Some(action),
        Event::End { .. } => None,
    });
    let writes = events.skip_while(|action| !matches!(action, Action::Flush)).skip(1);
    let raw = File::from_device(Device::new(killed.clone()).unwrap(), FileOptions::default());
    for action in writes.take_while(|action| !matches!(action, Action::Flush)) {
        let Action::Write { address, bytes } = action else { panic!("{action:?}") };
        let wrote = reactor.block_on(raw.write_at(Buffer::copy_of(&bytes), address)).0;
        assert_eq!(wrote, Ok(bytes.len()));
    }
    drop(raw);
    assert!(killed.unstable_writes() > 0);
    nothing_of_g_is_in_f(&killed, bytes, &reactor);
}

#[test]
fn a_sync_after_reopening_covers_a_commit_with_a_failed_flush() {
    let reactor = reactor();
    // Each flush of the sync, and those of the checkpoint that closes the volume.
    for (nth, cache) in (1..8).flat_map(|nth| CACHES.map(|cache| (nth, cache))) {
        let sim = new_sim(cache);
        let volume = formatted(&sim);
        create(&volume, "/old");
        volume.sync().unwrap();
        volume.rename_with("/old", "/new", Rename::NoReplace).unwrap();
        sim.fail_nth(Op::Flush, nth, Errno::IO);
        let synced = volume.sync();
        drop(volume);
        sim.clear_faults();
        let volume = open(&sim);
        let path = ["/new", "/old"].into_iter().find(|path| {
            let opened =
                volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true));
            opened.is_ok_and(|file| reactor.block_on(file.sync_all()).is_ok())
        });
        let path = path.expect("the file has one of its names");
        assert!(synced.is_err() || path == "/new", "{cache:?}, flush {nth}");
        for seed in 0..SEEDS {
            let volume = open(&sim.crash_image(Crash::Seeded(seed)));
            volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true)).unwrap();
        }
    }
}

#[test]
fn a_read_only_volume_is_not_written_after_a_failed_flush() {
    let sim = new_sim(WriteCache::Volatile);
    let volume = formatted(&sim);
    create(&volume, "/a");
    sim.fail_nth(Op::Flush, 2, Errno::IO);
    volume.sync().unwrap_err();
    drop(volume);
    sim.restart_record();
    let device = Device::new(sim.clone()).unwrap();
    Volume::check(&device, Default::default(), &mut |_, _| {}).unwrap();
    assert!(sim.record().is_empty());
}

/// A superblock of a larger volume, in one slot, and not durable.
#[test]
fn a_power_cut_after_reopening_keeps_one_superblock() {
    for (op, nth) in (1..8).flat_map(|nth| [(Op::Flush, nth), (Op::Write, nth)]) {
        let sim = Sim::new(SimOptions::new(2 * SIZE));
        let device = Device::new(sim.clone()).unwrap();
        let options = FormatOptions::new().size(SIZE);
        Volume::format(&device, &options).unwrap();
        let volume = Volume::open_on(device.clone()).unwrap();
        sim.inject(Rule::new(op, When::Nth(nth), Fault::Error(Errno::IO)));
        let resized = volume.resize(2 * SIZE);
        drop(volume);
        sim.clear_faults();
        sim.restart_record();
        let volume = open(&sim);
        let blocks = volume.statistics().blocks;
        assert!(resized.is_err() || blocks == 2 * SIZE / 4096, "{op:?} {nth}");
        let opened_at = sim.events();
        drop(volume);
        let plan = CrashPlan { exhaustive_up_to: 2, samples: 3, seed: nth };
        for image in sim.crash_images(plan) {
            let place = format!("{op:?} {nth} failed, cut {} {:?}", image.cut, image.crash);
            let opened = Volume::open_on(Device::new(image.sim.clone()).unwrap());
            let volume = opened.unwrap_or_else(|error| panic!("{place}: {error}"));
            // Either size; from then on the size that the reopened volume had.
            let is_kept = volume.statistics().blocks == blocks;
            assert!(is_kept || image.cut < opened_at, "{place}");
        }
    }
}
