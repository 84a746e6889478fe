//! The guarantees of a sync of one file while others commit. Each acknowledgement is followed by a
//! power cut that loses all unflushed data.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Instant;

use uringfs_buffer::Buffer;
use uringfs_cache::Cache as PageCache;
use uringfs_device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, When, WriteCache};
use uringfs_device::{Backend, Device, Errno, Geometry, KernelTarget, Op, Queue, Request};
use uringfs_file::File;
use uringfs_reactor::Reactor;
use uringfs_volume::{BlockOwner, ErrorEvent, FormatOptions, InodeNumber, OpenOptions, Volume};

use crate::fixture::{create, formatted, reactor};

const BLOCK: usize = 4096;

fn new_volume(size: u64) -> (Sim, Volume) {
    new_volume_on(Sim::new(SimOptions::new(size)))
}

fn new_volume_on(sim: Sim) -> (Sim, Volume) {
    let volume = formatted(&sim);
    (sim, volume)
}

fn write(reactor: &Reactor, file: &File, byte: u8, offset: u64) {
    let (written, _) = reactor.block_on(file.write_at(Buffer::copy_of(&[byte; BLOCK]), offset));
    assert_eq!(written, Ok(BLOCK));
}

/// The volume after a power cut now.
fn after_a_cut(sim: &Sim) -> Volume {
    Volume::open_on(Device::new(sim.crash_image(Crash::LoseAll)).unwrap()).unwrap()
}

/// The first byte of a file.
fn first_byte(reactor: &Reactor, volume: &Volume, path: &str) -> Result<u8, Errno> {
    let file = volume
        .open_with(path, OpenOptions::new().read(true).write(true).direct(true))
        .map_err(|error| error.errno())?;
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(BLOCK), 0));
    assert_eq!(read, Ok(BLOCK), "{path}");
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    Ok(bytes[0])
}

/// Runs `what` while a thread commits changes continuously.
fn while_others_commit(volume: &Volume, what: impl FnOnce()) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (reactor, log) = (reactor(), create(volume, "/f"));
            let mut block = 0;
            while !is_done.load(Ordering::Relaxed) {
                // Behind the first block. The oldest ones are overwritten, so that the volume does
                // not fill up.
                block = block % 64 + 1;
                reactor.block_on(log.punch_hole(block * BLOCK as u64, BLOCK as u64)).unwrap();
                write(&reactor, &log, 0xff, block * BLOCK as u64);
                reactor.block_on(log.sync_data()).unwrap();
            }
        });
        struct Done<'d>(&'d AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _done = Done(&is_done);
        what();
    });
}

#[test]
fn an_overwrite_is_durable_after_its_datasync() {
    let (sim, volume) = new_volume(16 << 20);
    let (reactor, reading) = (reactor(), self::reactor());
    let file = create(&volume, "/f");
    write(&reactor, &file, 1, 0);
    volume.sync().unwrap();
    while_others_commit(&volume, || {
        for round in 0..600u32 {
            let byte = (round % 250) as u8 + 1;
            write(&reactor, &file, byte, 0);
            reactor.block_on(file.sync_data()).unwrap();
            let found = first_byte(&reading, &after_a_cut(&sim), "/f");
            assert_eq!(found, Ok(byte), "round {round}");
        }
    });
}

#[test]
fn a_rename_is_durable_after_a_sync_of_the_file() {
    let (sim, volume) = new_volume(16 << 20);
    let (reactor, reading) = (reactor(), self::reactor());
    while_others_commit(&volume, || {
        for round in 0..400u32 {
            let byte = (round % 250) as u8 + 1;
            let file = create(&volume, "/new");
            write(&reactor, &file, byte, 0);
            reactor.block_on(file.sync_all()).unwrap();
            volume.rename("/new", "/named").unwrap();
            reactor.block_on(file.sync_all()).unwrap();
            let found = first_byte(&reading, &after_a_cut(&sim), "/named");
            assert_eq!(found, Ok(byte), "round {round}");
        }
    });
}

#[test]
fn a_datasync_covers_writes_of_a_closed_handle() {
    let (sim, volume) = new_volume(16 << 20);
    let (reactor, reading) = (reactor(), self::reactor());
    while_others_commit(&volume, || {
        for round in 0..400u32 {
            let byte = (round % 250) as u8 + 1;
            let path = format!("/{}", round % 8);
            if volume
                .open_with(&path, OpenOptions::new().read(true).write(true).direct(true))
                .is_ok()
            {
                volume.remove_file(&path).unwrap();
            }
            write(&reactor, &create(&volume, &path), byte, 0);
            let again = volume
                .open_with(&path, OpenOptions::new().read(true).write(true).direct(true))
                .unwrap();
            reactor.block_on(again.sync_data()).unwrap();
            let found = first_byte(&reading, &after_a_cut(&sim), &path);
            assert_eq!(found, Ok(byte), "round {round}");
        }
    });
}

#[test]
fn a_durable_write_over_an_uncommitted_one_is_durable() {
    for cache in [WriteCache::Volatile, WriteCache::VolatileWithDsync, WriteCache::None] {
        let (sim, volume) = new_volume_on(Sim::new(SimOptions::new(16 << 20).cache(cache)));
        let reactor = reactor();
        let file = create(&volume, "/f");
        write(&reactor, &file, 1, 0);
        let durable = file.write_durably(Buffer::copy_of(&[2; BLOCK]), 0);
        assert_eq!(reactor.block_on(durable).0, Ok(BLOCK));
        let found = first_byte(&reactor, &after_a_cut(&sim), "/f");
        assert_eq!(found, Ok(2), "{cache:?}");
    }
}

#[test]
fn a_failed_flush_stops_the_volume_for_all() {
    let (sim, volume) = new_volume(16 << 20);
    let reactor = reactor();
    let (one, other) = (create(&volume, "/one"), create(&volume, "/other"));
    for file in [&one, &other] {
        write(&reactor, file, 1, 0);
    }
    volume.sync().unwrap();
    for file in [&one, &other] {
        write(&reactor, file, 2, 0);
    }
    sim.inject(Rule::new(Op::Flush, When::Nth(1), Fault::Error(Errno::IO)));
    assert_eq!(reactor.block_on(one.sync_data()), Err(Errno::IO));
    // The other file's data may have been lost with the same cache.
    assert_eq!(reactor.block_on(other.sync_data()), Err(Errno::IO));
    assert!(volume.sync().is_err());
    assert!(volume.create_dir_with_mode("/d", 0o700).is_err());
}

/// A volume on a device without FUA whose durable writes flush, and a durable file.
fn new_volume_with_dsync(reactor: &Reactor) -> (Sim, Volume, File) {
    let options = SimOptions::new(16 << 20).cache(WriteCache::VolatileWithDsync);
    let (sim, volume) = new_volume_on(Sim::new(options));
    let file = create(&volume, "/f");
    write(reactor, &file, 1, 0);
    volume.sync().unwrap();
    (sim, volume, file)
}

#[test]
fn a_failed_flush_of_a_durable_write_stops_the_volume() {
    // The request writes and flushes, and EIO does not say which of them has failed, also if it fails again.
    for when in [When::Nth(1), When::From(1)] {
        let reactor = reactor();
        let (sim, volume, file) = new_volume_with_dsync(&reactor);
        sim.inject(Rule::new(Op::Write, when, Fault::Error(Errno::IO)));
        let durable = file.write_durably(Buffer::copy_of(&[2; BLOCK]), 0);
        assert_eq!(reactor.block_on(durable).0, Err(Errno::IO));
        sim.clear_faults();
        assert!(volume.is_read_only() && volume.sync().is_err());
        assert_eq!(reactor.block_on(file.sync_data()), Err(Errno::IO));
        assert_eq!(first_byte(&reactor, &after_a_cut(&sim), "/f"), Ok(1));
    }
}

#[test]
fn a_durable_write_that_cannot_be_written_fails_alone() {
    let reactor = reactor();
    let (sim, volume, file) = new_volume_with_dsync(&reactor);
    sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(Errno::NOSPC)));
    let durable = file.write_durably(Buffer::copy_of(&[2; BLOCK]), 0);
    assert_eq!(reactor.block_on(durable).0, Err(Errno::NOSPC));
    sim.clear_faults();
    assert!(!volume.is_read_only());
    let durable = file.write_durably(Buffer::copy_of(&[3; BLOCK]), 0);
    assert_eq!(reactor.block_on(durable).0, Ok(BLOCK));
    assert_eq!(first_byte(&reactor, &after_a_cut(&sim), "/f"), Ok(3));
}

/// A simulated device with a gate for the flushes of commits: those outside of its queues.
struct Gated {
    sim: Sim,
    is_open: Arc<(Mutex<bool>, Condvar)>,
    arrived: Mutex<Sender<()>>,
}

impl Backend for Gated {
    fn geometry(&self) -> &Geometry {
        self.sim.geometry()
    }

    fn description(&self) -> String {
        self.sim.description()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        self.sim.kernel_target()
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let (is_open, opened) = &*self.is_open;
        if request.op == Op::Flush {
            let open = is_open.lock().unwrap();
            if !*open {
                self.arrived.lock().unwrap().send(()).unwrap();
            }
            drop(opened.wait_while(open, |open| !*open).unwrap());
        }
        self.sim.perform(request)
    }

    fn own_queue(&self, depth: usize) -> Option<Box<dyn Queue>> {
        self.sim.own_queue(depth)
    }
}

#[test]
fn a_commit_ends_before_its_log_record_if_another_flush_has_failed() {
    let sim = Sim::new(SimOptions::new(16 << 20));
    let is_open = Arc::new((Mutex::new(true), Condvar::new()));
    let (arrived, arrivals) = channel();
    let gated = Gated { sim: sim.clone(), is_open: is_open.clone(), arrived: Mutex::new(arrived) };
    let volume = Volume::create_on(Device::new(gated).unwrap(), &FormatOptions::new()).unwrap();
    let set_open = |open| {
        *is_open.0.lock().unwrap() = open;
        is_open.1.notify_all();
    };
    let (reactor, file) = (reactor(), create(&volume, "/f"));
    write(&reactor, &file, 1, 0);
    volume.sync().unwrap();
    set_open(false);
    volume.create_dir_with_mode("/made", 0o700).unwrap();
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| volume.sync());
        arrivals.recv().unwrap();
        // The commit has taken its changes, and is about to flush.
        write(&reactor, &file, 2, 0);
        sim.fail_nth(Op::Flush, 1, Errno::IO);
        assert_eq!(reactor.block_on(file.sync_data()), Err(Errno::IO));
        set_open(true);
        assert!(commit.join().unwrap().is_err());
    });
    let image = sim.crash_image(Crash::KeepAll);
    let after = Volume::open_on(Device::new(image).unwrap()).unwrap();
    assert!(after.symlink_metadata("/made").is_err(), "the record was written after the failure");
}

#[test]
fn a_flush_concurrent_with_a_failed_one_fails() {
    let (sim, volume) = new_volume(16 << 20);
    let (reactor, files) = (reactor(), ["/one", "/other"].map(|path| create(&volume, path)));
    for byte in [1, 2] {
        files.iter().for_each(|file| write(&reactor, file, byte, 0));
        if byte == 1 {
            volume.sync().unwrap();
        }
    }
    sim.inject(Rule::new(Op::Flush, When::Nth(1), Fault::Error(Errno::IO)));
    // Both are in flight before the first is awaited.
    let synced = reactor.block_on(async {
        let [mut one, mut other] = files.each_ref().map(File::sync_data);
        poll_fn(|context| {
            assert!(Pin::new(&mut one).poll(context).is_pending());
            assert!(Pin::new(&mut other).poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        [one.await, other.await]
    });
    assert_eq!(synced, [Err(Errno::IO); 2]);
    assert_eq!(first_byte(&reactor, &after_a_cut(&sim), "/other"), Ok(1));
}

#[test]
fn a_cancelled_flush_is_no_failure() {
    let (_, volume) = new_volume(16 << 20);
    let (reactor, file) = (reactor(), create(&volume, "/file"));
    for byte in [1, 2] {
        write(&reactor, &file, byte, 0);
        if byte == 1 {
            volume.sync().unwrap();
        }
    }
    let synced = reactor.block_on(file.sync_data().deadline(Instant::now()));
    assert_eq!(synced, Err(Errno::TIMEDOUT));
    assert_eq!(reactor.block_on(file.sync_data()), Ok(()));
    volume.sync().unwrap();
}

#[test]
fn a_failed_flush_fails_every_kind_of_sync() {
    for errno in [Errno::CANCELED, Errno::TIMEDOUT] {
        let (sim, volume) = new_volume(16 << 20);
        let (reactor, file) = (reactor(), create(&volume, "/file"));
        for byte in [1, 2] {
            write(&reactor, &file, byte, 0);
            if byte == 1 {
                volume.sync().unwrap();
            }
        }
        sim.inject(Rule::new(Op::Flush, When::From(1), Fault::Error(errno)));
        assert_eq!(reactor.block_on(file.sync_data()), Err(errno));
        sim.clear_faults();
        assert_eq!(reactor.block_on(file.sync_data()), Err(Errno::IO), "{errno}");
    }
}

#[test]
fn opening_a_file_while_it_is_replaced_gives_one_of_the_two() {
    let (_, volume) = new_volume(16 << 20);
    let is_done = AtomicBool::new(false);
    create(&volume, "/f");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let reactor = reactor();
            for round in 0..400u32 {
                let file = create(&volume, "/new");
                write(&reactor, &file, (round % 250) as u8 + 1, 0);
                drop(file);
                volume.rename("/new", "/f").unwrap();
                volume.sync().unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        let reactor = reactor();
        while !is_done.load(Ordering::Relaxed) {
            let file = match volume
                .open_with("/f", OpenOptions::new().read(true).write(true).direct(true))
            {
                Ok(file) => file,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOENT, "{error}");
                    continue;
                }
            };
            let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(BLOCK), 0));
            let bytes = &bytes[..read.unwrap()];
            assert!(bytes.iter().all(|byte| *byte == bytes[0] && *byte != 0));
        }
    });
    volume.sync().unwrap();
    assert_eq!(volume.warnings(), Vec::<String>::new());
}

/// Nothing has the file open through the cache that could be notified, or keeps it there.
#[test]
fn a_loss_of_a_closed_file_is_reported_by_volume_and_handles() {
    let (sim, volume) = new_volume(16 << 20);
    let (reactor, cache) = (reactor(), PageCache::new(1 << 20));
    let direct = create(&volume, "/file");
    write(&reactor, &direct, 1, 0);
    volume.sync().unwrap();
    let errors = volume.errors();
    sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)));
    let file = direct.buffered(&cache);
    write(&reactor, &file, 2, 0);
    drop(file);
    while cache.statistics().dirty_bytes > 0 {
        std::thread::yield_now();
    }
    sim.clear_faults();
    let late = volume.open_with("/file", OpenOptions::new().read(true).write(true)).unwrap();
    let synced = || volume.sync().map_err(|error| error.errno());
    assert_eq!([synced(), synced()], [Err(Errno::IO), Ok(())]);
    let sync = |file: &File| reactor.block_on(file.sync_data());
    assert_eq!([sync(&direct), sync(&direct)], [Err(Errno::IO), Ok(())]);
    // It was opened before any handle was notified.
    assert_eq!([sync(&late), sync(&late)], [Err(Errno::IO), Ok(())]);
    assert_eq!(
        sync(&volume.open_with("/file", OpenOptions::new().read(true).write(true)).unwrap()),
        Ok(())
    );
    assert_eq!(first_byte(&reactor, &volume, "/file"), Ok(1));
    let inode = InodeNumber(volume.metadata("/file").unwrap().ino());
    let of = BlockOwner::File { inode, offset: 0 };
    let events: Vec<_> = std::iter::from_fn(|| errors.try_next()).collect();
    let is_that = |event: &ErrorEvent| matches!(event, ErrorEvent::Request { owner: found, op: Op::Write, .. } if *found == of);
    assert!(events.len() == 1 && events.iter().all(is_that), "{events:?}");
}

#[test]
fn a_loss_of_a_closed_file_is_reported_to_its_next_sync_once() {
    let (sim, volume) = new_volume(16 << 20);
    let (reactor, cache) = (reactor(), PageCache::new(1 << 20));
    for path in ["/lost", "/other"] {
        write(&reactor, &create(&volume, path), 1, 0);
    }
    volume.sync().unwrap();
    sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)));
    let file = volume
        .open_with("/lost", OpenOptions::new().read(true).write(true).direct(true))
        .unwrap()
        .buffered(&cache);
    write(&reactor, &file, 2, 0);
    drop(file);
    while cache.statistics().dirty_bytes > 0 {
        std::thread::yield_now();
    }
    sim.clear_faults();
    // The file is not open, so its state is dropped. The volume remembers the loss.
    let synced = || volume.sync().map_err(|error| error.errno());
    assert_eq!([synced(), synced()], [Err(Errno::IO), Ok(())]);
    let open = |path| volume.open_with(path, OpenOptions::new().read(true).write(true)).unwrap();
    let sync = |file: &File| reactor.block_on(file.sync_data());
    assert_eq!(sync(&open("/other")), Ok(()));
    // This handle has not synced.
    drop(open("/lost"));
    let next = open("/lost");
    assert_eq!([sync(&next), sync(&next)], [Err(Errno::IO), Ok(())]);
    drop(next);
    assert_eq!(sync(&open("/lost")), Ok(()));
}

#[test]
fn a_sync_of_names_writes_nothing_back_and_leaves_the_report_of_a_loss() {
    let (sim, volume) = new_volume(16 << 20);
    let (reactor, cache) = (reactor(), PageCache::new(1 << 20));
    for path in ["/lost", "/dirty", "/removed"] {
        write(&reactor, &create(&volume, path), 1, 0);
    }
    volume.sync().unwrap();
    let direct =
        |path| volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true));
    sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)));
    let lost = direct("/lost").unwrap().buffered(&cache);
    write(&reactor, &lost, 2, 0);
    drop(lost);
    while cache.statistics().dirty_bytes > 0 {
        std::thread::yield_now();
    }
    sim.clear_faults();
    let dirty = direct("/dirty").unwrap().buffered(&cache);
    write(&reactor, &dirty, 2, 0);
    let dirty_bytes = cache.statistics().dirty_bytes;
    assert!(dirty_bytes > 0);
    reactor.block_on(async {
        let root = volume.root();
        root.remove_file("removed").await.unwrap();
        root.sync_metadata().await.unwrap();
    });
    assert_eq!(cache.statistics().dirty_bytes, dirty_bytes);
    let cut = after_a_cut(&sim);
    assert_eq!(first_byte(&reactor, &cut, "/removed"), Err(Errno::NOENT));
    assert_eq!(first_byte(&reactor, &cut, "/dirty"), Ok(1));
    let synced = || volume.sync().map_err(|error| error.errno());
    assert_eq!([synced(), synced()], [Err(Errno::IO), Ok(())]);
    assert_eq!(first_byte(&reactor, &after_a_cut(&sim), "/dirty"), Ok(2));
}
