//! Volumes on devices whose size others change while they are open. They grow with the device. A device that has become
//! too small makes its volume read-only, with one line; no sync succeeds from then on, and reads return the right bytes
//! or an error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Fault, Recording, Rule, Sim, SimOptions, When};
use uringfs_device::{Access, Backend, Device, Errno};
use uringfs_file::{File, Tokens};
use uringfs_reactor::{Completion, Reactor, ReactorOptions, Token};
use uringfs_volume::{
    AsyncVolume, Error, ErrorEvent, EventStream, FormatOptions, OpenOptions, Volume,
};

use crate::random::Random;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::new()).unwrap()
}

fn direct() -> OpenOptions {
    OpenOptions::new().read(true).write(true).direct(true)
}

fn size_of(sim: &Sim) -> u64 {
    Backend::size(sim).unwrap()
}

fn set_length(path: &Path, bytes: u64) {
    std::fs::File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn image(folder: &Path, bytes: u64) -> PathBuf {
    let path = folder.join("image");
    Volume::create(&path, &FormatOptions::new().size(bytes)).unwrap().close().unwrap();
    path
}

/// Waits for the line about a device that has shrunk. There must be no other.
fn shrunk(reactor: &Reactor, events: &EventStream) -> String {
    loop {
        if let ErrorEvent::DeviceShrunk(line) = reactor.block_on(events.next()) {
            let later = std::iter::from_fn(|| events.try_next()).collect::<Vec<_>>();
            assert!(!later.contains(&ErrorEvent::DeviceShrunk(line.clone())), "{later:?}");
            return line;
        }
    }
}

#[test]
fn a_volume_that_is_open_grows_after_its_image() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), 16 * MIB);
    let volume = Volume::open(&path).unwrap();
    volume.write("/small", [1; 1000]).unwrap();
    assert!(volume.resize(32 * MIB).is_err());
    set_length(&path, 32 * MIB);
    volume.resize(32 * MIB).unwrap();
    assert_eq!(volume.statistics().blocks, 32 * MIB / BLOCK);
    volume.write("/large", vec![2; 20 << 20]).unwrap();
    set_length(&path, 64 * MIB);
    let reactor = reactor();
    reactor.block_on(AsyncVolume::from(volume.clone()).resize(64 * MIB)).unwrap();
    volume.close().unwrap();
    let volume = Volume::open(&path).unwrap();
    assert_eq!(volume.statistics().blocks, 64 * MIB / BLOCK);
    assert_eq!(volume.warnings(), Vec::<String>::new());
    assert_eq!(volume.read("/small").unwrap(), [1; 1000]);
    assert_eq!(volume.read("/large").unwrap(), vec![2; 20 << 20]);
}

#[test]
fn a_volume_is_read_only_once_its_image_was_seen_to_shrink() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), 32 * MIB);
    let (volume, reactor) = (Volume::open(&path).unwrap(), reactor());
    let file = volume.open_with("/file", direct().create(true)).unwrap();
    let write = |byte| reactor.block_on(file.write_at(Buffer::copy_of(&[byte; 8192]), 0)).0;
    assert_eq!(write(1), Ok(8192));
    volume.sync().unwrap();
    let events = volume.errors();
    // An overwrite in place needs no commit: only a flush.
    assert_eq!(write(2), Ok(8192));
    set_length(&path, 16 * MIB);
    assert_eq!(reactor.block_on(file.sync_data()), Err(Errno::IO));
    assert!(volume.is_read_only());
    // Writes are refused on the fast path, on the slow one, and by a new handle.
    reactor.write_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
    let mut completed: Vec<Completion> = Vec::new();
    reactor.reap(1, None, &mut completed).unwrap();
    assert_eq!(completed[0].result(), Err(Errno::ROFS));
    assert_eq!(write(3), Err(Errno::ROFS));
    assert_eq!(volume.open_with("/file", direct()).unwrap_err().errno(), Errno::ROFS);
    let refused = volume.create_dir("/new").unwrap_err();
    assert_eq!(refused.errno(), Errno::ROFS);
    assert!(volume.sync().is_err());
    // The blocks that are left are read.
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(8192), 0));
    assert_eq!((read, &bytes[..]), (Ok(8192), &[2; 8192][..]));
    let line = shrunk(&reactor, &events);
    let path_and_sizes = [path.to_str().unwrap(), "33554432", "16777216"];
    assert!(path_and_sizes.iter().all(|part| line.contains(part)), "{line}");
    assert!(refused.to_string().contains(&line), "{refused}");
    assert!(volume.recent_errors().contains(&ErrorEvent::DeviceShrunk(line.clone())));
    assert_eq!(volume.warnings(), [line]);
    drop(file);
    assert!(volume.close().is_err());
    assert_eq!(path.metadata().unwrap().len(), 16 * MIB);
    assert!(Volume::open(&path).is_err());
    set_length(&path, 32 * MIB);
    assert_eq!(Volume::open(&path).unwrap().read("/file").unwrap(), [2; 8192]);
}

#[test]
fn a_failed_read_notices_that_the_device_has_shrunk() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), 32 * MIB);
    let volume = Volume::open(&path).unwrap();
    volume.write("/large", vec![3; 20 << 20]).unwrap();
    volume.write("/small", [4; 1000]).unwrap();
    volume.close().unwrap();
    for access in [Access::Read, Access::ReadWrite] {
        set_length(&path, 32 * MIB);
        let volume = Volume::open_on(Device::open(&path, access).unwrap()).unwrap();
        let events = volume.errors();
        set_length(&path, 20 * MIB);
        volume.read("/large").unwrap_err();
        volume.read("/large").unwrap_err();
        assert!(volume.is_read_only());
        shrunk(&reactor(), &events);
        let file = volume.open_with("/large", OpenOptions::new().read(true).direct(true)).unwrap();
        let (read, bytes) = reactor().block_on(file.read_at(Buffer::zeroed(4096), 0));
        assert_eq!((read, bytes[0]), (Ok(4096), 3));
    }
}

#[test]
fn a_device_that_shrinks_behind_the_end_of_the_volume_does_no_harm() {
    let sim = Sim::new(SimOptions::new(32 * MIB));
    let options = FormatOptions::new().size(16 * MIB);
    let volume = Volume::create_on(Device::new(sim.clone()).unwrap(), &options).unwrap();
    sim.set_size(20 * MIB);
    volume.write("/file", "content").unwrap();
    volume.sync().unwrap();
    let refused = volume.resize(32 * MIB).unwrap_err().to_string();
    assert!(refused.contains("the device has only 20971520"), "{refused}");
    volume.resize(20 * MIB).unwrap();
    assert!(!volume.is_read_only());
    sim.set_size(20 * MIB - BLOCK);
    assert!(volume.sync().is_err() && volume.is_read_only());
}

/// As `uringfs resize` does to learn the size of a mounted volume's device.
#[test]
fn a_resize_to_the_size_that_a_volume_has_waits_for_no_thaw() {
    let sim = Sim::new(SimOptions::new(16 * MIB));
    let device = Device::new(sim.clone()).unwrap();
    let volume = Volume::create_on(device.clone(), &FormatOptions::new()).unwrap();
    volume.freeze(Duration::from_secs(3600)).unwrap();
    sim.set_size(32 * MIB);
    volume.resize(16 * MIB).unwrap();
    assert_eq!(device.size(), 32 * MIB);
    assert!(volume.thaw());
}

/// Grows and shrinks the device at random requests of random work.
#[test]
fn no_moment_of_a_change_of_size_loses_anything_silently() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    for seed in 0..cases.unwrap_or(256u64).div_ceil(8) {
        println!("seed {seed}");
        let mut work = Work::new(seed);
        for _ in 0..3 {
            let before = size_of(&work.sim);
            let after = before + (1 + work.random.below(9)) * MIB;
            work.resize_at_a_request(after);
            while size_of(&work.sim) == before {
                work.go_on().unwrap();
            }
            work.volume.resize(after).unwrap();
            for _ in 0..10 {
                work.go_on().unwrap();
            }
        }
        work.volume.sync().unwrap();
        let events = work.volume.errors();
        let needed = work.volume.statistics().blocks * BLOCK;
        let smaller = work.random.below(needed / BLOCK) * BLOCK;
        work.resize_at_a_request(smaller);
        while size_of(&work.sim) == needed {
            // The model does not know files of failed operations any more.
            let _ = work.go_on();
        }
        for _ in 0..work.random.below(20) {
            let _ = work.go_on();
        }
        assert!(work.volume.sync().is_err(), "{smaller} of {needed} bytes");
        assert!(work.volume.is_read_only());
        assert_eq!(work.volume.create_dir("/new").unwrap_err().errno(), Errno::ROFS);
        let line = shrunk(&work.reactor, &events);
        assert!(line.contains(&format!("from {needed} to {smaller} bytes")), "{line}");
        // Reads fail or find the right bytes, and nothing is written any more.
        for number in work.files.keys().copied().collect::<Vec<_>>() {
            let _ = work.read(number);
            assert!(work.overwrite(number).is_err());
        }
        while let Some(event) = events.try_next() {
            let is_write = format!("{event}").starts_with("writing");
            assert!(!is_write, "{event}");
        }
        let Work { sim, volume, .. } = work;
        drop(volume);
        assert!(Volume::open_on(Device::new(sim).unwrap()).is_err());
    }
}

/// Random work on a volume, and the content of its files.
struct Work {
    sim: Sim,
    volume: Volume,
    reactor: Reactor,
    random: Random,
    /// The byte of each file, and its length.
    files: BTreeMap<u64, (u8, usize)>,
}

impl Work {
    fn new(seed: u64) -> Work {
        let sim = Sim::new(SimOptions::new(16 * MIB).seed(seed).recording(Recording::Off));
        let device = Device::new(sim.clone()).unwrap();
        let volume = Volume::create_on(device, &FormatOptions::new()).unwrap();
        let (reactor, random) = (reactor(), Random(seed));
        Work { sim, volume, reactor, random, files: BTreeMap::new() }
    }

    fn resize_at_a_request(&mut self, bytes: u64) {
        let when = When::Nth(1 + self.random.below(60));
        self.sim.inject(Rule::new(None, when, Fault::Resized(bytes)));
    }

    fn go_on(&mut self) -> Result<(), Errno> {
        let number = self.random.below(12);
        let is_there = self.files.contains_key(&number);
        match self.random.below(7) {
            0 | 1 => self.write(number),
            2 if is_there => self.overwrite(number),
            3 if is_there => {
                self.files.remove(&number);
                self.volume.remove_file(path(number)).map_err(|error| error.errno())
            }
            4 if is_there => self.sync_file(number),
            5 if is_there => self.read(number),
            _ => {
                let synced = self.volume.sync().map_err(|error| error.errno());
                self.assert_may_succeed(synced)
            }
        }
    }

    fn open(&self, number: u64, options: OpenOptions) -> Result<File, Errno> {
        self.volume.open_with(path(number), options).map_err(|error: Error| error.errno())
    }

    fn write(&mut self, number: u64) -> Result<(), Errno> {
        let (byte, length) =
            (self.random.below(255) as u8 + 1, 1 + self.random.below(200_000) as usize);
        self.files.remove(&number);
        let file = self.open(number, direct().create(true).truncate(true))?;
        let bytes = Buffer::copy_of(&vec![byte; length]);
        assert_eq!(self.reactor.block_on(file.write_at(bytes, 0)).0?, length);
        self.files.insert(number, (byte, length));
        Ok(())
    }

    fn overwrite(&mut self, number: u64) -> Result<(), Errno> {
        let (_, length) = self.files.remove(&number).unwrap();
        let byte = self.random.below(255) as u8 + 1;
        let file = self.open(number, direct())?;
        let bytes = Buffer::copy_of(&vec![byte; length]);
        assert_eq!(self.reactor.block_on(file.write_at(bytes, 0)).0?, length);
        self.files.insert(number, (byte, length));
        Ok(())
    }

    fn sync_file(&mut self, number: u64) -> Result<(), Errno> {
        let file = self.open(number, direct())?;
        let synced = self.reactor.block_on(file.sync_data());
        self.assert_may_succeed(synced)
    }

    /// Finds the right bytes, or an error.
    fn read(&mut self, number: u64) -> Result<(), Errno> {
        let (byte, length) = self.files[&number];
        let file = self.open(number, OpenOptions::new().read(true).direct(true))?;
        let (read, bytes) = self.reactor.block_on(file.read_at(Buffer::zeroed(length), 0));
        assert_eq!(read?, length);
        assert!(bytes.iter().all(|found| *found == byte), "file {number}");
        Ok(())
    }

    /// A sync succeeds only if the device has all blocks of the volume when it ends.
    fn assert_may_succeed(&self, synced: Result<(), Errno>) -> Result<(), Errno> {
        let needed = self.volume.statistics().blocks * BLOCK;
        assert!(synced.is_err() || size_of(&self.sim) >= needed, "{} bytes", size_of(&self.sim));
        synced
    }
}

fn path(number: u64) -> String {
    format!("/{number}")
}
