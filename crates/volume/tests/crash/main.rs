//! Power cuts: every operation alone, every pair of a small alphabet, and long runs drawn from
//! seeds. Each is cut at every event, with unflushed writes kept, lost, reordered and torn at 512
//! bytes, and cut again during recovery. Each image is opened with the production code, checked,
//! and compared in full with the states that a model allows.
//!
//! `CRASH_IMAGES` sets the number of different contents to open. The seed of the first long run is
//! drawn and printed; the others follow it. `CRASH_SEED` sets the first seed; without
//! `CRASH_IMAGES` only the long run of that seed is cut. `CRASH_RUNS` sets the number of long runs
//! to cut, and nothing else, from the drawn or given seed on.

#[path = "../../../device/tests/harness/random.rs"]
mod random;

mod campaign;
mod found;
mod history;
mod model;
mod operation;
mod planted;
mod reopened;

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use campaign::Campaign;
use history::{History, Run, with_foreign_bytes};
use operation::{ALPHABET, BEFORE, Ends, Operation, drawn};
use planted::{Faulty, Planted};
use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{CrashPlan, FlushMode, Sim, SimOptions, WriteCache};
use uringfs_device::{Device, Errno};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{FileType, FormatOptions, Inode, OpenOptions, Volume};

/// Operations of a long run.
const LONG: usize = 40;
/// Different contents in an ordinary test run.
const IMAGES: usize = 4000;
/// The command after the variables that repeat a run.
const REPEAT_COMMAND: &str = "cargo test -p uringfs-volume --test crash power_cut";

/// Volumes to start from.
struct Bases([Sim; 3]);

impl Bases {
    fn new() -> Bases {
        let of = |cache| with_foreign_bytes(|options| options.cache(cache));
        let caches =
            [WriteCache::VolatileWithFua, WriteCache::Volatile, WriteCache::VolatileWithDsync];
        Bases(caches.map(of))
    }

    fn begin<'r>(&self, seed: u64, reactor: &'r Reactor) -> Run<'r> {
        let (discard, cache) = (seed % 2 == 1, seed as usize / 2 % 3);
        Run::on(&self.0[cache], discard, reactor, |sim| Device::new(sim).unwrap())
    }

    /// Performs some operations without cuts, then the ones to cut.
    fn run(
        &self,
        seed: u64,
        before: &[Operation],
        operations: &[Operation],
        reactor: &Reactor,
    ) -> History {
        let mut run = self.begin(seed, reactor);
        run.perform_all(before);
        run.begin_cuts();
        run.perform_all(operations);
        run.end()
    }
}

/// Every operation of the alphabet, and every pair. Pairs come in an order in which all operations
/// occur equally often.
fn words() -> impl Iterator<Item = Vec<Operation>> + Send {
    let count = ALPHABET.len();
    let alone = ALPHABET.iter().map(|one| vec![*one, Operation::SyncAll]);
    let pairs = (0..count).flat_map(move |apart| (0..count).map(move |one| (one, apart)));
    let pairs = pairs.map(move |(one, apart)| {
        let (one, other) = (ALPHABET[one], ALPHABET[(one + apart) % count]);
        match apart % 2 {
            0 => vec![one, other, Operation::SyncAll],
            _ => vec![one, Operation::SyncAll, other],
        }
    });
    alone.chain(pairs)
}

/// To stderr, since the harness captures printed output.
fn print_line(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Distributes the items over all cores.
fn run_in_parallel<T: Send>(
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T, &Reactor) + Sync,
) {
    let items = Mutex::new(items);
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let take_all = || {
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let next = || items.lock().unwrap().next();
        while let Some(item) = next() {
            work(item, &reactor);
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(take_all))));
}

/// A different seed at each call, short enough to type.
fn draw_seed() -> u64 {
    u64::from(RandomState::new().hash_one(()) as u32)
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

#[test]
fn a_power_cut_leaves_an_allowed_state() {
    let (given, images) = (number("CRASH_SEED"), number("CRASH_IMAGES"));
    let runs = number("CRASH_RUNS");
    let (bases, campaign) = (Bases::new(), Campaign::default());
    let long = |seed: u64, reactor: &Reactor| {
        let operations = drawn(seed, LONG);
        let plan = CrashPlan { exhaustive_up_to: 3, samples: 2, seed };
        let checked = campaign.check(&bases.run(seed, &[], &operations, reactor), plan, reactor);
        checked.unwrap_or_else(|flaw| {
            panic!("CRASH_SEED={seed} {REPEAT_COMMAND}: {flaw}\n{operations:?}")
        });
    };
    if let (Some(seed), None, None) = (given, images, runs) {
        return long(seed, &Reactor::new(ReactorOptions::default()).unwrap());
    }
    let first = given.unwrap_or_else(draw_seed);
    if let Some(runs) = runs {
        print_line(&format!(
            "long runs begin with CRASH_SEED={first} CRASH_RUNS={runs} {REPEAT_COMMAND}"
        ));
        run_in_parallel(first..first + runs, long);
        let last = first + runs.saturating_sub(1);
        return print_line(&format!(
            "power cuts: long runs of seeds {first} to {last}: {campaign}"
        ));
    }
    let goal = images.map_or(random::scaled(IMAGES), |images| images as usize);
    print_line(&format!(
        "long runs begin with CRASH_SEED={first} CRASH_IMAGES={goal} {REPEAT_COMMAND}"
    ));
    // At most half of the goal.
    let words = words().zip(0..).take_while(|_| campaign.distinct() < goal / 2);
    let tried = AtomicU64::new(0);
    run_in_parallel(words, |(operations, seed), reactor| {
        let plan = CrashPlan { exhaustive_up_to: 2, samples: 1, seed };
        let checked =
            campaign.check(&bases.run(seed, &BEFORE, &operations, reactor), plan, reactor);
        checked.unwrap_or_else(|flaw| panic!("{operations:?}: {flaw}"));
        tried.fetch_add(1, Ordering::Relaxed);
    });
    let seeds = (first..).take_while(|_| campaign.distinct() < goal);
    let last = AtomicU64::new(first);
    run_in_parallel(seeds, |seed, reactor| {
        long(seed, reactor);
        last.fetch_max(seed, Ordering::Relaxed);
    });
    let [tried, last] = [tried, last].map(AtomicU64::into_inner);
    let summary =
        format!("{tried} words of one or two operations, long runs of seeds {first} to {last}");
    print_line(&format!("power cuts: {summary}: {campaign}"));
}

/// The result of the checks after operations on a device with a planted fault.
fn check_with_fault(
    cache: WriteCache,
    planted: Planted,
    operations: &[Operation],
) -> Result<(), String> {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let mut device = None;
    let base = with_foreign_bytes(|options| options.cache(cache));
    let mut run = Run::on(&base, false, &reactor, |sim| {
        Device::new(device.insert(Faulty::over(sim)).clone()).unwrap()
    });
    run.perform_all(&BEFORE);
    run.begin_cuts();
    device.expect("the run has opened the device").plant(planted);
    run.perform_all(operations);
    check_all(&run.end(), &reactor)
}

fn check_all(history: &History, reactor: &Reactor) -> Result<(), String> {
    let plan = CrashPlan { exhaustive_up_to: 3, samples: 4, seed: 1 };
    Campaign::default().check(history, plan, reactor)
}

#[test]
fn no_block_has_two_owners_while_the_catalog_grows() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let sim = Sim::new(SimOptions::new(32 << 20));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    sim.restart_record();
    const COUNT: usize = 20_000;
    let name = |file: usize| format!("{file:0100}");
    for file in 0..COUNT {
        volume.mknod(name(file), &Inode::new(FileType::File, 0o600)).unwrap();
    }
    // Some small commits after the large one.
    (0..4).for_each(|_| volume.sync().unwrap());
    let (mut none, mut grown) = (0, 0);
    let images = sim.crash_images(CrashPlan { exhaustive_up_to: 0, samples: 0, seed: 7 });
    // Longer steps could leave out the few cuts after the large commit.
    for image in images.step_by((150 / random::scaled(20)).clamp(1, 7)) {
        let place = format!("cut {} {:?}", image.cut, image.crash);
        let device = Device::new(image.sim.clone()).unwrap();
        let volume = Volume::open_on(device.clone()).unwrap();
        // Overwrites every block that counts as free.
        let create =
            OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
        let file = volume.open_with("/all", create).unwrap();
        let full = (0..).find_map(|part| {
            let bytes = Buffer::copy_of(&[0xee; 64 << 10]);
            reactor.block_on(file.write_at(bytes, part * (64 << 10))).0.err()
        });
        assert_eq!(full, Some(Errno::NOSPC), "{place}");
        drop((file, volume));
        let volume = Volume::open_on(device).unwrap();
        assert_eq!(volume.warnings(), Vec::<String>::new(), "{place}");
        let entries = volume.read_dir("/").unwrap();
        let mut there: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(there.pop().unwrap(), "all");
        assert!(there.iter().enumerate().all(|(file, found)| *found == *name(file)));
        none += usize::from(there.is_empty());
        // So many names exceed the initial catalog.
        grown += usize::from(there.len() > COUNT / 2);
    }
    assert!(none > 0 && grown > 0, "{none}, {grown}");
}

const OVERWRITE: Operation =
    Operation::Write { path: "/a", offset: 0, length: 4096, ends: Ends::Volatile };
const NEW: Operation =
    Operation::Write { path: "/c", offset: 0, length: 9000, ends: Ends::Volatile };

#[test]
fn a_dropped_flush_is_detected() {
    let datasync = [OVERWRITE, Operation::Datasync { path: "/a" }];
    let commit = [NEW, Operation::SyncAll];
    // The flush of the data, which is the only one of a commit whose log record is written by FUA. Without FUA also the
    // flush of the log record, and the first one of the checkpoint that closes the volume.
    for (cache, flushes) in [(WriteCache::VolatileWithFua, 1), (WriteCache::Volatile, 3)] {
        assert_eq!(check_with_fault(cache, Planted::Nothing, &datasync), Ok(()));
        check_with_fault(cache, Planted::DroppedFlush(1), &datasync).unwrap_err();
        assert_eq!(check_with_fault(cache, Planted::Nothing, &commit), Ok(()));
        for nth in 1..=flushes {
            check_with_fault(cache, Planted::DroppedFlush(nth), &commit).unwrap_err();
        }
    }
}

#[test]
fn a_commit_before_its_data_is_detected() {
    // Late by one flush: together with the header that leads to them.
    let late = Planted::LateData { flushes: 1 };
    check_with_fault(WriteCache::Volatile, late, &[NEW, Operation::SyncAll]).unwrap_err();
}

#[test]
fn a_block_reused_too_early_is_detected() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let base = with_foreign_bytes(|options| options);
    let mut run = Run::on(&base, false, &reactor, |sim| Device::new(sim).unwrap());
    run.perform_all(&BEFORE);
    run.begin_cuts();
    run.remove_and_reuse("/a");
    run.perform(Operation::SyncAll);
    check_all(&run.end(), &reactor).unwrap_err();
}

#[test]
fn a_device_that_drops_all_flushes_is_detected() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let base = with_foreign_bytes(|options| options.flush_mode(FlushMode::Broken));
    let mut run = Run::on(&base, false, &reactor, |sim| Device::new(sim).unwrap());
    run.perform_all(&BEFORE);
    run.begin_cuts();
    run.perform_all(&[NEW, Operation::SyncAll]);
    check_all(&run.end(), &reactor).unwrap_err();
}
