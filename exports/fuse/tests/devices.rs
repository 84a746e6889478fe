//! Mounts of volumes on simulated devices: what survives power cuts, which errors programs see, and what waits for whom.

#[path = "../../../crates/device/tests/harness/random.rs"]
mod random;
mod harness;

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use harness::{CACHES, Mounted, simulated, threads};
use random::{Random, scaled};
use rustix::fs::{OFlags, copy_file_range};
use rustix::io::{ReadWriteFlags, pwritev2};
use uringfs::device::backend::memory::Memory;
use uringfs::device::backend::sim::{Crash, Fault, Rule, Sim, When};
use uringfs::device::{Backend, Device, Geometry, Op};
use uringfs::volume::CheckOptions;
use uringfs::{Buffer, Errno, FormatOptions, Volume};
use uringfs_device::{KernelTarget, Request};
use uringfs_fuse::MountCache;

/// Flags to open a file with, and what changes its content.
type Way<'a> = (i32, &'a dyn Fn(&File));

#[test]
fn what_a_synchronous_write_has_acknowledged_survives_a_power_cut() {
    const O_DSYNC: i32 = 0o10_000;
    const O_SYNC: i32 = 0o4_010_000;
    let o_direct = OFlags::DIRECT.bits() as i32;
    let content = Buffer::copy_of(&[7; 8192]);
    let write_with = |file: &File, flags| {
        let written = pwritev2(file, &[IoSlice::new(&content)], 0, flags);
        assert_eq!(written, Ok(8192));
    };
    let write = |file: &File| write_with(file, ReadWriteFlags::empty());
    let write_dsync = |file: &File| write_with(file, ReadWriteFlags::DSYNC);
    for (cache, writeback) in CACHES {
        let (sim, volume) = simulated();
        volume.write("/source", &content[..]).unwrap();
        // Nothing becomes durable by time.
        let options = threads(1).cache(cache).writeback(writeback);
        let options = options.commit_interval(Duration::from_secs(3600));
        let mut mounted = Mounted::with(tempfile::tempdir().unwrap(), volume, &options);
        let source = File::open(mounted.path("source")).unwrap();
        let copy = |file: &File| {
            assert_eq!(copy_file_range(&source, Some(&mut 0), file, Some(&mut 0), 8192), Ok(8192));
        };
        let ways: [Way; 7] = [
            (O_DSYNC, &write),
            (O_SYNC, &write),
            (O_DSYNC | o_direct, &write),
            (O_SYNC | o_direct, &write),
            (0, &write_dsync),
            (o_direct, &write_dsync),
            (O_SYNC, &copy),
        ];
        for (number, (flags, change)) in ways.into_iter().enumerate() {
            let mut open = OpenOptions::new();
            let open = open.write(true).create(true).custom_flags(flags);
            let file = open.open(mounted.path(&number.to_string())).unwrap();
            // The name is no concern of these calls.
            File::open(mounted.path("")).unwrap().sync_all().unwrap();
            change(&file);
            let after_a_cut = Device::new(sim.crash_image(Crash::LoseAll)).unwrap();
            let found = Volume::open_on(after_a_cut).unwrap().read(format!("/{number}")).unwrap();
            assert!(found == content[..], "{cache:?}, write-back {writeback}, way {number}");
        }
        drop(source);
        mounted.end();
    }
}

#[test]
fn a_synchronous_write_is_flushed_once() {
    const O_DSYNC: i32 = 0o10_000;
    const O_SYNC: i32 = 0o4_010_000;
    const WRITES: u64 = 20;
    let o_direct = OFlags::DIRECT.bits() as i32;
    for (cache, writeback) in CACHES {
        let (_, volume) = simulated();
        let device = volume.device().clone();
        let options = threads(1).cache(cache).writeback(writeback);
        let options = options.commit_interval(Duration::from_secs(3600));
        let mut mounted = Mounted::with(tempfile::tempdir().unwrap(), volume.clone(), &options);
        for flags in [O_DSYNC, O_SYNC, O_DSYNC | o_direct, O_SYNC | o_direct] {
            let kind = format!("{cache:?}, write-back {writeback}, flags {flags:o}");
            let mut open = OpenOptions::new();
            let open = open.write(true).create(true).custom_flags(flags);
            let file = open.open(mounted.path("file")).unwrap();
            let content = Buffer::copy_of(&[7; 4096]);
            file.write_all_at(&content, 0).unwrap();
            let issued = || {
                let statistics = volume.statistics();
                [device.flushes(), statistics.commits, statistics.checkpoints]
            };
            for times_change in [false, true] {
                let before = issued();
                for write in 0..WRITES {
                    if times_change {
                        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(write);
                        file.set_modified(time).unwrap();
                    }
                    file.write_all_at(&content, 0).unwrap();
                }
                let after = issued();
                let [flushes, commits, checkpoints] = [0, 1, 2].map(|at| after[at] - before[at]);
                // A commit, for a changed time, flushes once more. A checkpoint flushes twice more: for new blocks of the
                // catalog, and for its second header.
                assert!(
                    flushes <= WRITES + commits + 2 * checkpoints,
                    "{kind}: {flushes} flushes, {commits} commits, {checkpoints} checkpoints"
                );
            }

            // A file that has not changed is not flushed.
            file.sync_all().unwrap();
            let before = issued();
            for _ in 0..WRITES {
                file.sync_all().unwrap();
                file.sync_data().unwrap();
            }
            assert_eq!(issued(), before, "{kind}");
        }
        // The log was full at least once.
        assert!(volume.statistics().checkpoints > 0);
        drop(volume);
        mounted.end();
    }
}

#[test]
fn errors_of_the_device_reach_programs_once() {
    let eio = |result: std::io::Result<()>, what: &str| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(5), "{what}");
    };
    for (cache, writeback) in CACHES {
        let (sim, volume) = simulated();
        for name in ["/cold", "/kept", "/closed"] {
            volume.write(name, vec![7; 64 << 10]).unwrap();
        }
        volume.sync().unwrap();
        let options = threads(1).cache(cache).writeback(writeback);
        let options = options.commit_interval(Duration::from_secs(3600));
        let mut mounted = Mounted::with(tempfile::tempdir().unwrap(), volume.clone(), &options);
        let kind = format!("{cache:?}, write-back {writeback}");

        sim.inject(Rule::new(Op::Read, When::From(1), Fault::Error(Errno::IO)));
        eio(fs::read(mounted.path("cold")).map(drop), &kind);
        sim.clear_faults();
        assert_eq!(fs::read(mounted.path("cold")).unwrap(), [7; 64 << 10], "{kind}");

        // The writer learns it, from its write or from its sync.
        let failing = || {
            sim.inject(Rule::new(Op::Write, When::Nth(1), Fault::Error(Errno::IO)));
        };
        let file = OpenOptions::new().write(true).open(mounted.path("kept")).unwrap();
        failing();
        let written = file.write_all_at(&[8; 64 << 10], 0);
        eio(written.and_then(|()| file.sync_all()), &kind);
        sim.clear_faults();
        file.write_all_at(&[9; 64 << 10], 0).unwrap();
        file.sync_all().unwrap();
        drop(file);

        // A program that did not ask leaves the error to the next one that does.
        let file = OpenOptions::new().write(true).open(mounted.path("closed")).unwrap();
        failing();
        let written = file.write_all_at(&[8; 64 << 10], 0);
        drop(file);
        // Writes back what the server has; the kernel has written back its own at the close.
        let _ = volume.sync();
        sim.clear_faults();
        let file = OpenOptions::new().write(true).open(mounted.path("closed")).unwrap();
        if written.is_ok() {
            eio(file.sync_all(), &kind);
        }
        file.sync_all().unwrap();
        drop((file, volume));
        mounted.end();
    }
}

/// Memory on which the thread that reads the catalog can be held up.
struct Gated {
    memory: Memory,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    waiting: usize,
}

impl Gate {
    fn set_closed(&self, is_closed: bool) {
        self.state.lock().unwrap().is_closed = is_closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.is_closed).unwrap();
        state.waiting -= 1;
    }

    /// Waits until a thread is held up.
    fn wait_for_one(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting == 0).unwrap());
    }
}

impl Backend for Gated {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn description(&self) -> String {
        "memory with a gate".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        if thread::current().name() == Some("uringfs-catalog") {
            self.gate.pass();
        }
        self.memory.perform(request)
    }
}

#[test]
fn a_request_that_waits_for_the_catalog_blocks_no_other() {
    let (memory, gate) = (Memory::new(64 << 20).unwrap(), Arc::<Gate>::default());
    let device = Device::new(Gated { memory, gate: gate.clone() }).unwrap();
    let volume = Volume::create_on(device.clone(), &FormatOptions::new()).unwrap();
    volume.write("/warm", vec![7; 64 << 10]).unwrap();
    volume.create_dir("/cold").unwrap();
    for number in 0..2000 {
        volume.write(format!("/cold/{number}"), "").unwrap();
    }
    volume.close().unwrap();
    let volume = Volume::open_on(device).unwrap();
    // One thread serves the mount.
    let options = threads(1).cache(MountCache::None);
    let mut mounted = Mounted::with(tempfile::tempdir().unwrap(), volume, &options);
    let warm = File::open(mounted.path("warm")).unwrap();
    gate.set_closed(true);
    let cold = mounted.path("cold/1000");
    let waiting = thread::spawn(move || fs::metadata(cold).unwrap().len());
    gate.wait_for_one();
    for block in 0..16 {
        let mut content = [0; 4096];
        warm.read_exact_at(&mut content, block * 4096).unwrap();
        assert_eq!(content, [7; 4096]);
    }
    assert_eq!(fs::metadata(mounted.path("warm")).unwrap().len(), 64 << 10);
    gate.set_closed(false);
    assert_eq!(waiting.join().unwrap(), 0);
    drop(warm);
    mounted.end();
}

/// The files that the workload of the power cuts replaces again and again.
const SLOTS: usize = 4;
const LINE: usize = 32;

/// The versions and lines that the workload has begun, and those that it knows to be durable.
#[derive(Default)]
struct Progress {
    begun: [AtomicU64; SLOTS],
    durable: [AtomicU64; SLOTS],
    log_begun: AtomicU64,
    log_durable: AtomicU64,
    is_over: AtomicBool,
}

impl Progress {
    fn load(counts: &[AtomicU64; SLOTS]) -> [u64; SLOTS] {
        counts.each_ref().map(|count| count.load(Ordering::SeqCst))
    }
}

/// The content of version `number` of a slot: each version has another length.
fn version(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize % 1500)
}

/// As editors and databases write: a new file, synced, renamed over the old one; and a log, each line of which is synced.
fn replace_and_append(mounted: &Mounted, progress: &Progress) {
    let directory = File::open(mounted.path("")).unwrap();
    let mut log = OpenOptions::new().append(true).create(true).open(mounted.path("log")).unwrap();
    directory.sync_all().unwrap();
    for number in 1.. {
        if progress.is_over.load(Ordering::SeqCst) {
            return;
        }
        let slot = number as usize % SLOTS;
        progress.begun[slot].store(number, Ordering::SeqCst);
        let (new, name) = (mounted.path("new"), mounted.path(&slot.to_string()));
        let mut file = File::create(&new).unwrap();
        file.write_all(&version(number)).unwrap();
        file.sync_all().unwrap();
        drop(file);
        fs::rename(&new, &name).unwrap();
        directory.sync_all().unwrap();
        progress.durable[slot].store(number, Ordering::SeqCst);
        progress.log_begun.store(number, Ordering::SeqCst);
        log.write_all(format!("{number:0>width$}\n", width = LINE - 1).as_bytes()).unwrap();
        match number % 2 {
            0 => log.sync_data().unwrap(),
            _ => log.sync_all().unwrap(),
        }
        progress.log_durable.store(number, Ordering::SeqCst);
    }
}

/// Cuts the power, and compares what is left.
fn cut(sim: &Sim, progress: &Progress, seed: u64) {
    let (durable, log_durable) =
        (Progress::load(&progress.durable), progress.log_durable.load(Ordering::SeqCst));
    let image = Device::new(sim.crash_image(Crash::Seeded(seed))).unwrap();
    let (begun, log_begun) =
        (Progress::load(&progress.begun), progress.log_begun.load(Ordering::SeqCst));
    let checked = Volume::check(&image, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(checked.findings.is_empty(), "seed {seed}: {:?}", checked.findings);
    let volume = Volume::open_on(image).unwrap();
    for slot in 0..SLOTS {
        let found = volume.read(format!("/{slot}")).unwrap_or_default();
        let number = found.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let is_known = (durable[slot]..=begun[slot]).contains(&number);
        let is_whole = number == 0 || found == version(number);
        assert!(
            is_known && is_whole,
            "seed {seed}: version {number} of {slot}: {durable:?} {begun:?}"
        );
    }
    let log = volume.read("/log").unwrap_or_default();
    let lines = log.chunks(LINE).zip(1..=log_durable);
    for (line, number) in lines {
        let expected = format!("{number:0>width$}\n", width = LINE - 1);
        assert_eq!(String::from_utf8_lossy(line), expected, "seed {seed}");
    }
    let length = log.len() as u64 / LINE as u64;
    assert!((log_durable..=log_begun).contains(&length), "seed {seed}: {length} lines of the log");
}

#[test]
fn what_a_program_has_synced_survives_power_cuts() {
    for (cache, writeback) in CACHES {
        let (sim, volume) = simulated();
        let options = threads(2).cache(cache).writeback(writeback);
        let mut mounted = Mounted::with(tempfile::tempdir().unwrap(), volume, &options);
        let progress = Progress::default();
        thread::scope(|scope| {
            scope.spawn(|| replace_and_append(&mounted, &progress));
            let _over = SetOnDrop(&progress.is_over);
            let mut random = Random(cache as u64);
            for _ in 0..scaled(40) {
                // Between two cuts the workload goes on.
                let reached = progress.log_durable.load(Ordering::SeqCst) + random.below(4);
                while progress.log_durable.load(Ordering::SeqCst) < reached {
                    thread::yield_now();
                }
                cut(&sim, &progress, random.below(u64::MAX));
            }
        });
        mounted.end();
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn after_a_failed_commit_a_mount_is_read_only() {
    for (cache, writeback) in CACHES {
        let kind = format!("{cache:?}, write-back {writeback}");
        let (sim, volume) = simulated();
        volume.create_dir("/cold").unwrap();
        for number in 0..500 {
            volume.write(format!("/cold/{number}"), vec![number as u8; 5000]).unwrap();
        }
        volume.close().unwrap();
        // Nothing of it is in memory.
        let volume = Volume::open_on(Device::new(sim.clone()).unwrap()).unwrap();
        let options = threads(1).cache(cache).writeback(writeback);
        let options = options.commit_interval(Duration::from_secs(3600));
        let mut mounted = Mounted::with(tempfile::tempdir().unwrap(), volume, &options);
        let synced = File::create(mounted.path("synced")).unwrap();
        synced.write_all_at(b"durable", 0).unwrap();
        synced.sync_all().unwrap();
        File::open(mounted.path("")).unwrap().sync_all().unwrap();
        let [first, second] =
            [(); 2].map(|()| OpenOptions::new().write(true).open(mounted.path("synced")).unwrap());

        sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)));
        fs::create_dir(mounted.path("lost")).unwrap();
        synced.sync_data().unwrap();
        let eio = |file: &File| {
            assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(5), "{kind}");
        };
        eio(&first);

        // Every later fsync fails, through any handle.
        eio(&second);
        let again = synced.sync_data().unwrap_err();
        assert_eq!(
            again.raw_os_error(),
            Some(5),
            "{kind}: nothing has changed since the last sync"
        );
        let erofs = |result: std::io::Result<()>, what: &str| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(30), "{kind}: {what}");
        };
        erofs(fs::create_dir(mounted.path("new")), "mkdir");
        erofs(File::create(mounted.path("new")).map(drop), "create");
        erofs(fs::remove_file(mounted.path("cold/1")), "unlink");
        erofs(fs::rename(mounted.path("cold/2"), mounted.path("renamed")), "rename");
        erofs(second.set_len(0), "truncate");
        erofs(OpenOptions::new().write(true).open(mounted.path("cold/3")).map(drop), "open");
        // The kernel's own write-back accepts a write, and reports it at the sync.
        let written = second.write_all_at(b"refused", 0);
        match writeback {
            true => drop(second.sync_all().unwrap_err()),
            false => erofs(written, "write"),
        }

        // All can be read, whether it was in memory or not, and also after a read has failed.
        let read = |number: i32| {
            let content = fs::read(mounted.path(&format!("cold/{number}"))).unwrap();
            assert_eq!(content, [number as u8; 5000], "{kind}");
        };
        (0..250).for_each(read);
        assert_eq!(fs::read_dir(mounted.path("cold")).unwrap().count(), 500);
        assert!(fs::metadata(mounted.path("lost")).unwrap().is_dir());
        sim.inject(Rule::new(Op::Read, When::Nth(1), Fault::Error(Errno::IO)));
        let _ = fs::read(mounted.path("cold/499"));
        (250..499).for_each(read);

        drop((synced, first, second));
        // The device works again, but the volume does not trust it until it is opened again.
        sim.clear_faults();
        erofs(fs::create_dir(mounted.path("new")), "mkdir");
        mounted.fail();
        let device = Device::new(sim).unwrap();
        let checked = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(checked.findings.is_empty(), "{:?}", checked.findings);
        let volume = Volume::open_on(device).unwrap();
        assert_eq!(volume.read("/cold/7").unwrap(), [7; 5000]);
        assert!(volume.read("/synced").unwrap().starts_with(b"durable"), "{kind}");
        volume.create_dir("/new").unwrap();
        volume.close().unwrap();
    }
}
