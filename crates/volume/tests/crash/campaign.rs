//! Power cuts. Each image is opened, checked and compared in full, each content once. During
//! recovery the power is cut again, up to three levels deep.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::sim::{Crash, CrashPlan, Sim};
use uringfs_reactor::Reactor;
use uringfs_volume::{CheckOptions, OpenOptions, Volume};

use crate::found::Found;
use crate::history::History;

/// One image in this many is opened with another power cut.
const RECOVERED: usize = 200;
/// And one in this many of the images after that.
const RECOVERED_AGAIN: usize = 60;
const MAX_DEPTH: usize = 3;
/// One image in this many is used after its comparison.
const USED: usize = 4;

/// Counts of all images and openings.
#[derive(Default)]
pub struct Campaign {
    contents: Mutex<HashSet<u64>>,
    images: AtomicUsize,
    opens: AtomicUsize,
    recoveries: AtomicUsize,
    kinds: [AtomicUsize; 4],
}

/// The kinds of faults, for counting.
const KINDS: [&str; 4] = ["kept", "lost", "reordered", "torn"];

fn kind_of(crash: Crash) -> usize {
    match crash {
        Crash::LoseAll | Crash::Subset(0) => 1,
        Crash::KeepAll => 0,
        // Keeps the writes before some write, and none after it.
        Crash::Subset(bits) if (bits + 1).is_power_of_two() => 0,
        Crash::Subset(_) => 2,
        Crash::Seeded(_) => 3,
    }
}

fn add(counter: &AtomicUsize) -> usize {
    counter.fetch_add(1, Ordering::Relaxed)
}

impl Campaign {
    /// Number of different contents so far.
    pub fn distinct(&self) -> usize {
        self.contents.lock().unwrap().len()
    }

    /// Cuts the power at every event of a history. Returns the first invalid finding.
    pub fn check(
        &self,
        history: &History,
        plan: CrashPlan,
        reactor: &Reactor,
    ) -> Result<(), String> {
        let mut known: HashMap<u64, Rc<Found>> = HashMap::new();
        for image in history.sim.crash_images(plan) {
            let place = |flaw| format!("cut {} {:?}: {flaw}", image.cut, image.crash);
            let digest = image.sim.digest();
            self.count(digest, image.crash);
            if let Some(found) = known.get(&digest) {
                history.judge(found, image.cut).map_err(place)?;
                continue;
            }
            let copy = image.sim.crash_image(Crash::KeepAll);
            let (volume, found) = self.open(&image.sim, reactor).map_err(place)?;
            history.judge(&found, image.cut).map_err(place)?;
            if known.len().is_multiple_of(USED) {
                use_volume(&volume, &found, reactor).map_err(place)?;
            }
            drop(volume);
            if (known.len() + 37 * plan.seed as usize).is_multiple_of(RECOVERED) {
                self.recover(&copy, &found, plan.seed, 1, reactor).map_err(place)?;
            }
            known.insert(digest, Rc::new(found));
        }
        Ok(())
    }

    /// Opens an image and makes a directory. A power cut at any time meanwhile keeps everything
    /// found, and the directory once it is durable.
    fn recover(
        &self,
        sim: &Sim,
        found: &Found,
        seed: u64,
        depth: usize,
        reactor: &Reactor,
    ) -> Result<(), String> {
        let (volume, _) = self.open(sim, reactor)?;
        volume
            .create_dir_with_mode(format!("/recovered {depth}"), 0o700)
            .map_err(|e| e.to_string())?;
        volume.sync().map_err(|error| error.to_string())?;
        let durable_at = sim.events();
        let with_directory = Found::read(&volume, reactor)?;
        drop(volume);
        let mut known: HashMap<u64, Found> = HashMap::new();
        for image in sim.crash_images(CrashPlan { exhaustive_up_to: 1, samples: 1, seed }) {
            let place = |flaw| format!("then cut {} {:?}: {flaw}", image.cut, image.crash);
            let digest = image.sim.digest();
            self.count(digest, image.crash);
            add(&self.recoveries);
            let judge = |again: &Found| match *again == with_directory {
                true => Ok(()),
                false if image.cut < durable_at && again == found => Ok(()),
                false => Err(place(format!("{again:?} was {found:?}"))),
            };
            if let Some(again) = known.get(&digest) {
                judge(again)?;
                continue;
            }
            let copy = image.sim.crash_image(Crash::KeepAll);
            let (_, again) = self.open(&image.sim, reactor).map_err(place)?;
            judge(&again)?;
            let is_cut_again = (known.len() + 7 * seed as usize).is_multiple_of(RECOVERED_AGAIN);
            if depth < MAX_DEPTH && is_cut_again {
                self.recover(&copy, &again, seed, depth + 1, reactor).map_err(place)?;
            }
            known.insert(digest, again);
        }
        Ok(())
    }

    fn count(&self, digest: u64, crash: Crash) {
        self.contents.lock().unwrap().insert(digest);
        add(&self.images);
        add(&self.kinds[kind_of(crash)]);
    }

    /// Checks a volume, opens it and reads all of it.
    fn open(&self, sim: &Sim, reactor: &Reactor) -> Result<(Volume, Found), String> {
        add(&self.opens);
        let device = Device::new(sim.clone()).map_err(|error| error.to_string())?;
        let checked = Volume::check(&device, CheckOptions::default(), &mut |_, _| {});
        let findings = checked.map_err(|error| error.to_string())?.findings;
        // These have two copies, and one may be torn.
        let has_two_copies = |line: &String| {
            ["superblock", "catalog head"].iter().any(|start| line.starts_with(start))
        };
        let mut lines = findings.iter().map(ToString::to_string);
        if let Some(line) = lines.find(|line| !has_two_copies(line)) {
            return Err(line);
        }
        let volume = Volume::open_on(device).map_err(|error| error.to_string())?;
        let found = Found::read(&volume, reactor)?;
        Ok((volume, found))
    }
}

/// Uses a recovered volume: no old bytes appear when a file grows, and new names are kept.
fn use_volume(volume: &Volume, found: &Found, reactor: &Reactor) -> Result<(), String> {
    for (path, _) in found.files() {
        let file = volume
            .open_with(path, OpenOptions::new().read(true).write(true).direct(true))
            .map_err(|error| error.to_string())?;
        // A file with two names grows twice.
        let size = file.len();
        reactor.block_on(file.set_len(size + 10_000)).map_err(|error| error.to_string())?;
        let (read, tail) = reactor.block_on(file.read_at(Buffer::zeroed(20_000), size));
        if read != Ok(10_000) || tail.iter().any(|byte| *byte != 0) {
            return Err(format!("{path}: bytes past the end are not zero: {read:?}"));
        }
    }
    volume.create_dir_with_mode("/after", 0o700).map_err(|error| error.to_string())?;
    volume.sync().map_err(|error| error.to_string())
}

impl fmt::Display for Campaign {
    /// One line.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let (images, opens) = (read(&self.images), read(&self.opens));
        let recoveries = read(&self.recoveries);
        write!(out, "{images} images, {} distinct, {opens} opens, ", self.distinct())?;
        write!(out, "{recoveries} power cuts inside recovery")?;
        for (kind, count) in KINDS.iter().zip(&self.kinds) {
            write!(out, ", {} {kind}", read(count))?;
        }
        Ok(())
    }
}
