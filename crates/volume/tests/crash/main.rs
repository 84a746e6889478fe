//! Power cuts: every operation alone, every pair of a small alphabet, and long runs drawn from seeds, cut at
//! every event, with unflushed writes kept, lost, reordered and torn at 512 bytes, and again while that is
//! recovered. What is found is opened by the production open, checked, and compared in full with what a model
//! says it may be.
//!
//! `CRASH_IMAGES` different contents are opened. The seed of the first long run is drawn and printed, the others follow it.
//! `CRASH_SEED` sets the first seed; without `CRASH_IMAGES` only the long run of that seed is cut.
//! `CRASH_RUNS` long runs are cut and nothing else, from the drawn or given seed on.

#[path = "../drive/mod.rs"]
mod drive;

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
use uringfs_device::backend::sim::{Cache, CrashPlan, Promises, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{FileKind, FormatOptions, Inode, OpenOptions, Volume};

/// Operations of a long run.
const LONG: usize = 40;
/// Different contents that are usual in the midst of all other tests.
const IMAGES: usize = 4000;
/// Behind the variables that repeat a run.
const AGAIN: &str = "cargo test -p uringfs-volume --test crash power_cut";

/// Volumes to begin with.
struct Bases([Sim; 2]);

impl Bases {
    fn new() -> Bases {
        let of = |cache| with_foreign_bytes(|options| options.cache(cache));
        Bases([of(Cache::VolatileWithFua), of(Cache::Volatile)])
    }

    fn begin<'r>(&self, seed: u64, reactor: &'r Reactor) -> Run<'r> {
        let (discard, cache) = (seed % 2 == 1, seed as usize / 2 % 2);
        Run::on(&self.0[cache], discard, reactor, |sim| Device::new(sim).unwrap())
    }

    /// Does some operations that are not cut, then those whose every event is.
    fn run(
        &self,
        seed: u64,
        before: &[Operation],
        operations: &[Operation],
        reactor: &Reactor,
    ) -> History {
        let mut run = self.begin(seed, reactor);
        run.perform_all(before);
        run.begin_here();
        run.perform_all(operations);
        run.end()
    }
}

/// Every operation of the alphabet, and every pair: those first in which each comes as often as every other.
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

/// Past the harness, which keeps what a test prints.
fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Has every core take one after another.
fn side_by_side<T: Send>(items: impl Iterator<Item = T> + Send, work: impl Fn(T, &Reactor) + Sync) {
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

/// Another at each call, short enough to be typed.
fn draw_seed() -> u64 {
    u64::from(RandomState::new().hash_one(()) as u32)
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

#[test]
fn what_a_power_cut_leaves_is_a_state_that_may_be() {
    let (given, images) = (number("CRASH_SEED"), number("CRASH_IMAGES"));
    let runs = number("CRASH_RUNS");
    let (bases, campaign) = (Bases::new(), Campaign::default());
    let long = |seed: u64, reactor: &Reactor| {
        let operations = drawn(seed, LONG);
        let plan = CrashPlan { exhaustive_up_to: 3, samples: 2, seed };
        let checked = campaign.check(&bases.run(seed, &[], &operations, reactor), plan, reactor);
        checked.unwrap_or_else(|flaw| panic!("CRASH_SEED={seed} {AGAIN}: {flaw}\n{operations:?}"));
    };
    if let (Some(seed), None, None) = (given, images, runs) {
        return long(seed, &Reactor::new(ReactorOptions::default()).unwrap());
    }
    let first = given.unwrap_or_else(draw_seed);
    if let Some(runs) = runs {
        tell(&format!("long runs begin with CRASH_SEED={first} CRASH_RUNS={runs} {AGAIN}"));
        side_by_side(first..first + runs, long);
        let last = first + runs.saturating_sub(1);
        return tell(&format!("power cuts: long runs of seeds {first} to {last}: {campaign}"));
    }
    let goal = images.map_or(drive::scaled(IMAGES), |images| images as usize);
    tell(&format!("long runs begin with CRASH_SEED={first} CRASH_IMAGES={goal} {AGAIN}"));
    // Half of what is asked for, if all of it is more.
    let words = words().zip(0..).take_while(|_| campaign.distinct() < goal / 2);
    let tried = AtomicU64::new(0);
    side_by_side(words, |(operations, seed), reactor| {
        let plan = CrashPlan { exhaustive_up_to: 2, samples: 1, seed };
        let checked =
            campaign.check(&bases.run(seed, &BEFORE, &operations, reactor), plan, reactor);
        checked.unwrap_or_else(|flaw| panic!("{operations:?}: {flaw}"));
        tried.fetch_add(1, Ordering::Relaxed);
    });
    let seeds = (first..).take_while(|_| campaign.distinct() < goal);
    let last = AtomicU64::new(first);
    side_by_side(seeds, |seed, reactor| {
        long(seed, reactor);
        last.fetch_max(seed, Ordering::Relaxed);
    });
    let [tried, last] = [tried, last].map(AtomicU64::into_inner);
    let told =
        format!("{tried} words of one or two operations, long runs of seeds {first} to {last}");
    tell(&format!("power cuts: {told}: {campaign}"));
}

/// What the checks say of operations on a device that does something wrong from then on.
fn found_on(planted: Planted, operations: &[Operation]) -> Result<(), String> {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let mut device = None;
    let mut run = Run::on(&with_foreign_bytes(|options| options), false, &reactor, |sim| {
        Device::new(device.insert(Faulty::over(sim)).clone()).unwrap()
    });
    run.perform_all(&BEFORE);
    run.begin_here();
    device.expect("the run is on it").plant(planted);
    run.perform_all(operations);
    check_all(&run.end(), &reactor)
}

fn check_all(history: &History, reactor: &Reactor) -> Result<(), String> {
    let plan = CrashPlan { exhaustive_up_to: 3, samples: 4, seed: 1 };
    Campaign::default().check(history, plan, reactor)
}

#[test]
fn while_the_catalog_grows_no_block_is_given_to_two() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let sim = Sim::new(SimOptions::new(32 << 20));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    sim.restart_record();
    const COUNT: usize = 20_000;
    let name = |file: usize| format!("{file:0100}");
    for file in 0..COUNT {
        volume.make(name(file), Inode::new(FileKind::File, 0o600)).unwrap();
    }
    // After the large commit some small ones.
    (0..4).for_each(|_| volume.sync().unwrap());
    let (mut none, mut grown) = (0, 0);
    let images = sim.crash_images(CrashPlan { exhaustive_up_to: 0, samples: 0, seed: 7 });
    for image in images.step_by((150 / drive::scaled(20)).max(1)) {
        let place = format!("cut {} {:?}", image.cut, image.crash);
        let device = Device::new(image.sim.clone()).unwrap();
        let volume = Volume::open_on(device.clone()).unwrap();
        // Every block that counts as free gets other bytes.
        let create = OpenOptions { create: Some(0o600), ..OpenOptions::direct() };
        let file = volume.open("/all", create).unwrap();
        let full = (0..).find_map(|part| {
            let bytes = Buffer::copy_of(&[0xee; 64 << 10]);
            reactor.block_on(file.write(bytes, part * (64 << 10))).1.err()
        });
        assert_eq!(full, Some(Errno::NOSPC), "{place}");
        drop((file, volume));
        let volume = Volume::open_on(device).unwrap();
        assert_eq!(volume.flaws(), Vec::<String>::new(), "{place}");
        let mut there: Vec<Vec<u8>> = Vec::new();
        loop {
            let after = there.last().map_or(&b""[..], |name| name);
            let entries = volume.entries("/", after).unwrap();
            if entries.is_empty() {
                break;
            }
            there.extend(entries.into_iter().map(|entry| entry.name));
        }
        assert_eq!(there.pop().unwrap(), b"all");
        assert!(there.iter().enumerate().all(|(file, found)| *found == name(file).into_bytes()));
        none += usize::from(there.is_empty());
        // As many as these do not fit what the catalog begins with.
        grown += usize::from(there.len() > COUNT / 2);
    }
    assert!(none > 0 && grown > 0, "{none}, {grown}");
}

const OVERWRITE: Operation =
    Operation::Write { path: "/a", offset: 0, length: 4096, ends: Ends::Volatile };
const NEW: Operation =
    Operation::Write { path: "/c", offset: 0, length: 9000, ends: Ends::Volatile };

#[test]
fn a_flush_that_is_dropped_is_found() {
    let datasync = [OVERWRITE, Operation::Datasync { path: "/a" }];
    assert_eq!(found_on(Planted::Nothing, &datasync), Ok(()));
    found_on(Planted::DroppedFlush(1), &datasync).unwrap_err();
    let commit = [NEW, Operation::SyncAll];
    assert_eq!(found_on(Planted::Nothing, &commit), Ok(()));
    // That of the catalog's pages, and that of its head. The first, of the data, is made good by the next.
    for nth in 2..=3 {
        found_on(Planted::DroppedFlush(nth), &commit).unwrap_err();
    }
}

#[test]
fn a_commit_before_its_data_is_found() {
    // Together with the head that leads to what leads to them.
    let late = Planted::LateData { flushes: 1 };
    found_on(late, &[NEW, Operation::SyncAll]).unwrap_err();
}

#[test]
fn a_block_that_is_used_again_before_it_is_free_is_found() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let base = with_foreign_bytes(|options| options);
    let mut run = Run::on(&base, false, &reactor, |sim| Device::new(sim).unwrap());
    run.perform_all(&BEFORE);
    run.begin_here();
    run.remove_and_use_again("/a");
    run.perform(Operation::SyncAll);
    check_all(&run.end(), &reactor).unwrap_err();
}

#[test]
fn a_device_that_drops_all_flushes_is_found() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let base = with_foreign_bytes(|options| options.promises(Promises::Broken));
    let mut run = Run::on(&base, false, &reactor, |sim| Device::new(sim).unwrap());
    run.perform_all(&BEFORE);
    run.begin_here();
    run.perform_all(&[NEW, Operation::SyncAll]);
    check_all(&run.end(), &reactor).unwrap_err();
}
