//! Power cuts with dirty folios in the page cache: synced data are there, other data may be lost,
//! and no other file's data appear.

use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{CrashPlan, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::{FallocateSize, File};
use uringfs_reactor::Reactor;
use uringfs_volume::{CheckOptions, OpenOptions, Volume};

use crate::fixture::{create, formatted, reactor};
use crate::random::{Random, scaled};

const MAX_LENGTH: usize = 400_000;
const SECTOR: usize = 512;
const STEPS: usize = 30;

/// A file's content after each step, and the steps from which on it is durable, by event.
struct Past {
    file: File,
    contents: Vec<Vec<u8>>,
    durable: Vec<(u64, usize)>,
}

impl Past {
    fn new(file: File) -> Past {
        Past { file, contents: vec![Vec::new()], durable: vec![(0, 0)] }
    }

    fn now(&self) -> &Vec<u8> {
        self.contents.last().unwrap()
    }

    /// A step that changes the content.
    fn change(&mut self, how: impl FnOnce(&mut Vec<u8>)) {
        let mut next = self.now().clone();
        how(&mut next);
        self.contents.push(next);
    }

    /// Returns why this content is impossible after a power cut at this event.
    fn judge(&self, found: &[u8], cut: u64, step: usize) -> Result<(), String> {
        let synced = self.durable.iter().rev().find(|(event, _)| *event <= cut);
        let (_, first) = synced.expect("the first step is durable");
        let possible = &self.contents[*first..=step.min(self.contents.len() - 1)];
        let sizes = || possible.iter().map(Vec::len);
        let (least, most) = (sizes().min().unwrap(), sizes().max().unwrap());
        if !(least..=most).contains(&found.len()) {
            return Err(format!("{} bytes instead of {least} to {most}", found.len()));
        }
        for (number, sector) in found.chunks(SECTOR).enumerate() {
            let start = number * SECTOR;
            let was = |content: &Vec<u8>| {
                // Bytes past the end are zeros.
                let at = |n: usize| content.get(start + n).copied().unwrap_or(0);
                sector.iter().enumerate().all(|(n, byte)| at(n) == *byte)
            };
            if !possible.iter().any(was) {
                return Err(format!("at {start}: {:?}", &sector[..sector.len().min(8)]));
            }
        }
        Ok(())
    }
}

struct Run<'r> {
    sim: Sim,
    volume: Volume,
    files: [Past; 2],
    reactor: &'r Reactor,
    random: Random,
    /// Number of events after each step.
    ends: Vec<u64>,
}

impl Run<'_> {
    fn step(&mut self, byte: u8) {
        let (one, reactor) = (self.random.below(2) as usize, self.reactor);
        let unit = [1, 100, 512, 4096][self.random.below(4) as usize];
        let length = (1 + self.random.below(9000) as usize).next_multiple_of(unit);
        let offset = self.random.below(20_000) as usize / unit * unit;
        let kind = self.random.below(20);
        let past = &mut self.files[one];
        let (file, range) = (past.file.clone(), offset..offset + length);
        match kind {
            0..10 => {
                let write = file.write_at(Buffer::copy_of(&vec![byte; length]), offset as u64);
                assert_eq!(reactor.block_on(write).0, Ok(length));
                past.change(|bytes| {
                    bytes.resize(bytes.len().max(range.end), 0);
                    bytes[range].fill(byte);
                });
            }
            10 => {
                let bytes = vec![byte; length];
                assert!(reactor.block_on(file.append(Buffer::copy_of(&bytes))).0.is_ok());
                past.change(|now| now.extend(bytes));
            }
            11 | 12 => {
                assert_eq!(reactor.block_on(file.set_len(offset as u64)), Ok(()));
                past.change(|bytes| bytes.resize(offset, 0));
            }
            13 => {
                let punch = file.punch_hole(offset as u64, length as u64);
                assert_eq!(reactor.block_on(punch), Ok(()));
                past.change(|bytes| {
                    let size = bytes.len();
                    bytes[range.start.min(size)..range.end.min(size)].fill(0);
                });
            }
            14 => {
                let zero = file.zero_range(offset as u64, length as u64, FallocateSize::Extend);
                assert_eq!(reactor.block_on(zero), Ok(()));
                past.change(|bytes| {
                    bytes.resize(bytes.len().max(range.end), 0);
                    bytes[range].fill(0);
                });
            }
            15..17 => {
                let sync = if kind == 15 { file.sync_all() } else { file.sync_data() };
                assert_eq!(reactor.block_on(sync), Ok(()));
                self.mark_durable(&[one]);
            }
            17 => {
                self.volume.sync().unwrap();
                self.mark_durable(&[0, 1]);
            }
            _ => {
                let read = file.read_at(Buffer::zeroed(MAX_LENGTH), 0);
                let (read, found) = reactor.block_on(read);
                assert_eq!(found[..read.unwrap()], past.now()[..]);
            }
        }
        self.ends.push(self.events());
        // Every file has one more content after each step.
        let steps = self.ends.len() + 1;
        for past in &mut self.files {
            let last = past.now().clone();
            past.contents.resize(steps, last);
        }
    }

    /// Writes both files from their beginning on.
    fn write_each(&mut self, byte: u8, length: usize) {
        for past in &mut self.files {
            let write = past.file.write_at(Buffer::copy_of(&vec![byte; length]), 0);
            assert_eq!(self.reactor.block_on(write).0, Ok(length));
            past.change(|bytes| {
                bytes.resize(bytes.len().max(length), 0);
                bytes[..length].fill(byte);
            });
        }
        self.ends.push(self.events());
    }

    fn mark_durable(&mut self, files: &[usize]) {
        let event = self.events();
        for file in files {
            let past = &mut self.files[*file];
            past.durable.push((event, past.contents.len() - 1));
        }
    }

    fn events(&self) -> u64 {
        self.sim.events()
    }
}

fn content_of(volume: &Volume, path: &str, reactor: &Reactor) -> Vec<u8> {
    let file =
        volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true)).unwrap();
    let (read, found) = reactor.block_on(file.read_at(Buffer::zeroed(MAX_LENGTH), 0));
    found[..read.unwrap()].to_vec()
}

const PATHS: [&str; 2] = ["/a", "/b"];

/// Begins a run on a volume whose free blocks hold foreign bytes.
fn begin<'r>(seed: u64, cache: &Cache, reactor: &'r Reactor) -> Run<'r> {
    let sim = Sim::new(SimOptions::new(16 << 20));
    let volume = formatted(&sim);
    let foreign = create(&volume, "/foreign");
    let bytes = Buffer::copy_of(&vec![0xee; 1 << 20]);
    assert!(reactor.block_on(foreign.write_at(bytes, 0)).0.is_ok());
    volume.sync().unwrap();
    volume.remove_file("/foreign").unwrap();
    drop(foreign);
    let files = PATHS.map(|path| Past::new(create(&volume, path).buffered(cache)));
    volume.sync().unwrap();
    sim.restart_record();
    Run { sim, volume, files, reactor, random: Random(seed), ends: Vec::new() }
}

/// Cuts the power at every event of a run. Returns the number of images, and of those in which a
/// file differs from its last content.
fn cut(run: &Run<'_>, seed: u64) -> (usize, usize) {
    let (mut images, mut lost) = (0, 0);
    let plan = CrashPlan { exhaustive_up_to: 3, samples: 3, seed };
    for image in run.sim.crash_images(plan) {
        images += 1;
        let place = format!("seed {seed}, cut {} {:?}", image.cut, image.crash);
        let device = Device::new(image.sim).unwrap();
        let checked = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
        let has_two_copies = |line: &String| {
            ["superblock", "catalog head"].iter().any(|start| line.starts_with(start))
        };
        let mut lines = checked.findings.iter().map(ToString::to_string);
        assert_eq!(lines.find(|line| !has_two_copies(line)), None, "{place}");
        let volume = Volume::open_on(device).unwrap();
        // The step in progress at the power cut may be there.
        let step = run.ends.partition_point(|end| *end < image.cut) + 1;
        for (path, past) in PATHS.into_iter().zip(&run.files) {
            let found = content_of(&volume, path, run.reactor);
            let judged = past.judge(&found, image.cut, step);
            assert_eq!(judged, Ok(()), "{place}: {path}");
            lost += usize::from(found != *past.now());
        }
    }
    (images, lost)
}

#[test]
fn a_power_cut_keeps_synced_data_and_reveals_no_other() {
    let reactor = reactor();
    let (mut images, mut lost) = (0, 0);
    for seed in 0..scaled(6) as u64 {
        let cache = Cache::new([8, 64][seed as usize % 2] * 4096);
        let mut run = begin(seed, &cache, &reactor);
        (0..STEPS).for_each(|step| run.step(step as u8 + 1));
        let counts = cut(&run, seed);
        (images, lost) = (images + counts.0, lost + counts.1);
    }
    eprintln!("{images} images of power cuts with bytes in the page cache");
    assert!(lost > 0, "no image lost anything");
}

#[test]
fn written_data_can_be_synced_after_the_volume_filled_up() {
    let reactor = reactor();
    for seed in 0..scaled(2) as u64 {
        let cache = Cache::new(2048 * 4096);
        let mut run = begin(seed, &cache, &reactor);
        // Leaves blocks for the final sizes of both files, and for some names.
        let big = create(&run.volume, "/big");
        let blocks = run.volume.statistics().free_blocks - 300;
        reactor.block_on(big.allocate(0, blocks * 4096, FallocateSize::Extend)).unwrap();
        (0..STEPS / 2).for_each(|step| run.step(step as u8 + 1));
        run.write_each(0xbb, MAX_LENGTH / 2);
        let target = "t".repeat(4000);
        let refused = (0..).find_map(|n| run.volume.symlink(&target, format!("/name {n}")).err());
        assert_eq!(refused.unwrap().errno(), Errno::NOSPC);
        // Cuts begin here.
        run.sim.restart_record();
        run.volume.sync().unwrap();
        run.mark_durable(&[0, 1]);
        cut(&run, seed);
    }
}
