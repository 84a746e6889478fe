//! The copy of the superblock. Overwriting the beginning of a device loses no file, whatever older
//! superblocks it holds. The copy is in its place whenever the volume has grown.

mod fixture;

use fixture::{create, reactor};
use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{CrashPlan, Sim, SimOptions};
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{FallocateSize, File, FileOptions};
use uringfs_reactor::Reactor;
use uringfs_volume::{CheckOptions, Error, ErrorKind, Follow, FormatOptions, OpenOptions, Volume};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Blocks of the slots and the copy of a volume above 64 MiB.
const PLACES: [u64; 3] = [0, 16, 16_384];
const FILES: u32 = 10_000;

struct Patient {
    sim: Sim,
    device: Device,
    reactor: Reactor,
}

impl Patient {
    fn new(device_size: u64, size: u64) -> Patient {
        let sim = Sim::new(SimOptions::new(device_size));
        let device = Device::new(sim.clone()).unwrap();
        let options = FormatOptions { blocks: Some(size / BLOCK), ..FormatOptions::default() };
        Volume::format(&device, &options).unwrap();
        Patient { sim, device, reactor: reactor() }
    }

    fn of(sim: &Sim) -> Patient {
        let device = Device::new(sim.clone()).unwrap();
        Patient { sim: sim.clone(), device, reactor: reactor() }
    }

    fn open(&self) -> Result<Volume, Error> {
        Volume::open_on(self.device.clone())
    }

    /// Makes directories of 100 files, whose content is their number.
    fn make_files(&self, count: u32) {
        let volume = self.open().unwrap();
        for number in 0..count {
            if number % 100 == 0 {
                volume.make_directory(format!("/{}", number / 100), 0o755).unwrap();
            }
            let file = create(&volume, &path_of(number));
            let written =
                self.reactor.block_on(file.write(Buffer::copy_of(&bytes_of(number)), 0)).1;
            assert_eq!(written, Ok(bytes_of(number).len()));
        }
    }

    fn assert_has_files(&self, count: u32, place: &str) {
        let volume = self.open().unwrap_or_else(|error| panic!("{place}: {error}"));
        for number in 0..count {
            let file = volume.open(path_of(number), OpenOptions::direct()).unwrap();
            let (bytes, read) = self.reactor.block_on(file.read(Buffer::zeroed(100), 0));
            assert_eq!(&bytes[..read.unwrap()], &bytes_of(number)[..], "{place}: {number}");
        }
        assert_eq!(volume.entries("/0", b"").unwrap().len(), count.min(100) as usize, "{place}");
    }

    fn check(&self, repair: bool) -> Result<Vec<String>, Error> {
        let options = CheckOptions { repair, ..CheckOptions::default() };
        let report = Volume::check(&self.device, options, &mut |_, _| {})?;
        assert!(!repair || report.is_repaired(), "{:?}", report.findings);
        Ok(report.findings.iter().map(ToString::to_string).collect())
    }

    fn assert_sound(&self, place: &str) {
        assert_eq!(self.check(false).unwrap(), Vec::<String>::new(), "{place}");
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let whole = File::over(self.device.clone(), FileOptions::default());
        let written = self.reactor.block_on(whole.write(Buffer::copy_of(bytes), at)).1;
        assert_eq!(written, Ok(bytes.len()));
        self.reactor.block_on(whole.sync()).unwrap();
    }

    fn block(&self, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK as usize];
        self.sim.peek(block * BLOCK, &mut bytes);
        bytes
    }

    fn erase_slots(&self) {
        [0, 16].into_iter().for_each(|slot| self.write(slot * BLOCK, &[0; BLOCK as usize]));
    }

    /// Every command refuses except a repair, and says so. The repair recovers every file.
    fn assert_recoverable(&self, copy: &str, files: u32) {
        for refused in [self.open().map(drop), self.check(false).map(drop)] {
            let error = refused.unwrap_err();
            let says = format!("the superblock copy {copy} is good: run uringfs check --repair");
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            assert!(error.to_string().contains(&says), "{error}");
        }
        let lines = self.check(true).unwrap();
        assert!(lines.len() == 2 && lines[0].starts_with("superblock in block 0: "), "{lines:?}");
        self.assert_sound(copy);
        self.assert_has_files(files, copy);
    }
}

fn path_of(number: u32) -> String {
    format!("/{}/{number}", number / 100)
}

fn bytes_of(number: u32) -> Vec<u8> {
    format!("file {number}").into_bytes()
}

/// Bytes that match nothing.
fn garbage(length: u64) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1).collect()
}

#[test]
fn ten_thousand_files_survive_overwriting_the_first_4_mib() {
    let patient = Patient::new(256 * MIB, 256 * MIB);
    patient.make_files(FILES);
    for length in [MIB, 4 * MIB] {
        for bytes in [vec![0; length as usize], garbage(length)] {
            patient.write(0, &bytes);
            patient.assert_recoverable("at 64 MiB", FILES);
        }
    }
}

#[test]
fn a_small_volume_has_the_copy_in_its_last_block() {
    for (device, size, lost) in [
        (40 * MIB, 40 * MIB, 4 * MIB),
        (300 * MIB, 40 * MIB, 4 * MIB),
        (64 * MIB, 64 * MIB, 4 * MIB),
        (16 * MIB, 16 * MIB, 2 * MIB),
        (9 * MIB, 9 * MIB, MIB),
    ] {
        let patient = Patient::new(device, size);
        patient.make_files(200);
        patient.write(0, &garbage(lost));
        patient.assert_recoverable(&format!("in block {}", size / BLOCK - 1), 200);
    }
}

#[test]
fn nothing_else_uses_the_block_of_the_copy() {
    for size in [40 * MIB, 64 * MIB, 65 * MIB, 200 * MIB] {
        let patient = Patient::new(size, size);
        let volume = patient.open().unwrap();
        let file = create(&volume, "/full");
        let free = volume.statistics().free_blocks;
        let allocated = file.allocate(0, free * BLOCK, FallocateSize::Extend);
        assert_eq!(patient.reactor.block_on(allocated), Ok(()));
        for number in 0.. {
            // The catalog takes the reserve.
            if volume.make_directory(format!("/{number:0200}"), 0o755).is_err() {
                break;
            }
        }
        drop((file, volume));
        patient.assert_sound("full");
        patient.erase_slots();
        patient.check(true).unwrap();
        patient.assert_sound("recovered");
    }
}

/// A volume whose catalog has grown, and its superblock before that.
fn grown_catalog() -> (Patient, Vec<u8>) {
    let patient = Patient::new(256 * MIB, 256 * MIB);
    let before = patient.block(0);
    let had = patient.open().unwrap().statistics().catalog_blocks;
    patient.make_files(FILES);
    let volume = patient.open().unwrap();
    for number in 0..6000 {
        volume.make_directory(format!("/{number:0250}"), 0o755).unwrap();
    }
    assert!(volume.statistics().catalog_blocks > had);
    drop(volume);
    (patient, before)
}

#[test]
fn one_stale_superblock_loses_nothing() {
    let (patient, before) = grown_catalog();
    for place in PLACES {
        let now = patient.block(place);
        patient.write(place * BLOCK, &before);
        let line = format!("superblock in block {place}: older than the other");
        assert_eq!(patient.check(false).unwrap(), [line]);
        patient.assert_has_files(FILES, "stale");
        // Opening for writing has written all three.
        patient.assert_sound("stale");
        assert_ne!(patient.block(place), before);
        assert_ne!(patient.block(place), now);
    }
}

#[test]
fn two_stale_superblocks_are_detected_by_the_third() {
    let (patient, before) = grown_catalog();
    for fresh in PLACES {
        PLACES.iter().filter(|place| **place != fresh).for_each(|place| {
            patient.write(place * BLOCK, &before);
        });
        if fresh == PLACES[2] {
            let error = patient.open().err().unwrap();
            let says = "older than the copy at 64 MiB: run uringfs check --repair";
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(patient.check(true).unwrap().len(), 2);
        patient.assert_sound("stale");
        patient.assert_has_files(FILES, "stale");
    }
}

#[test]
fn a_copy_older_than_the_catalog_is_refused() {
    let (patient, before) = grown_catalog();
    patient.write(PLACES[2] * BLOCK, &before);
    patient.erase_slots();
    let record = patient.sim.record().len();
    let error = patient.check(true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("the copy at 64 MiB: "), "{error}");
    assert_eq!(patient.sim.record().len(), record, "a refused volume is not written");
}

#[test]
fn formatting_erases_the_copy_of_the_previous_volume() {
    for (old, new) in [(40 * MIB, 200 * MIB), (200 * MIB, 40 * MIB), (50 * MIB, 40 * MIB)] {
        let patient = Patient::new(256 * MIB, old);
        patient.make_files(10);
        let options = FormatOptions { blocks: Some(new / BLOCK), ..FormatOptions::default() };
        Volume::format(&patient.device, &options).unwrap();
        patient.make_files(20);
        patient.erase_slots();
        let copy = match new {
            0..=0x400_0000 => format!("in block {}", new / BLOCK - 1),
            _ => "at 64 MiB".into(),
        };
        patient.assert_recoverable(&copy, 20);
    }
}

/// Sizes with which the copy moves to another last block, to 64 MiB, and not at all.
const RESIZES: [(u64, u64); 3] =
    [(40 * MIB, 50 * MIB), (40 * MIB, 100 * MIB), (100 * MIB, 120 * MIB)];

#[test]
fn a_power_cut_while_growing_leaves_usable_superblocks() {
    for (old, new) in RESIZES {
        let patient = Patient::new(new, old);
        patient.make_files(20);
        let volume = patient.open().unwrap();
        volume.sync().unwrap();
        patient.sim.restart_record();
        volume.resize(new).unwrap();
        drop(volume);
        let plan = CrashPlan { exhaustive_up_to: 2, samples: 3, seed: 7 };
        let (mut brought_back, mut sizes) = (0, std::collections::BTreeSet::new());
        for image in patient.sim.crash_images(plan) {
            let place = format!("{old} to {new}, seed 7, cut {}, {:?}", image.cut, image.crash);
            let lost =
                Patient::of(&image.sim.crash_image(uringfs_device::backend::sim::Crash::KeepAll));
            let found = Patient::of(&image.sim);
            let lines = found.check(false).unwrap();
            let is_older = |line: &String| line.ends_with("older than the other");
            assert!(lines.len() <= 2 && lines.iter().all(is_older), "{place}: {lines:?}");
            let volume = found.open().unwrap();
            assert_eq!(volume.flaws(), Vec::<String>::new(), "{place}");
            sizes.insert(volume.statistics().blocks * BLOCK);
            drop(volume);
            found.assert_sound(&place);
            found.assert_has_files(20, &place);
            found.erase_slots();
            found.check(true).unwrap();
            found.assert_sound(&place);
            // The same if the slots are lost before the volume is opened again.
            lost.erase_slots();
            match lost.check(true) {
                Ok(_) => {
                    brought_back += 1;
                    lost.assert_sound(&place);
                    lost.assert_has_files(20, &place);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "{place}: {error}"),
            }
        }
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [old, new]);
        assert!(brought_back > 2, "{old} to {new}: {brought_back}");
    }
}

#[test]
fn a_failed_write_while_growing_loses_nothing() {
    for (old, new) in RESIZES {
        for op in [Op::Write, Op::Flush] {
            for nth in 1.. {
                let patient = Patient::new(new, old);
                patient.make_files(20);
                let volume = patient.open().unwrap();
                patient.sim.fail_nth(op, nth, Errno::IO);
                let has_grown = volume.resize(new).is_ok();
                patient.sim.clear_faults();
                drop(volume);
                let place = format!("{old} to {new}, {op:?} {nth}");
                let volume = patient.open().unwrap();
                assert_eq!(volume.flaws(), Vec::<String>::new(), "{place}");
                volume.resize(new).unwrap();
                assert!(volume.inode("/0/7", Follow::No).is_ok());
                drop(volume);
                patient.assert_sound(&place);
                patient.erase_slots();
                patient.check(true).unwrap();
                patient.assert_sound(&place);
                patient.assert_has_files(20, &place);
                if has_grown {
                    assert!(nth > 2, "{place}");
                    break;
                }
            }
        }
    }
}
