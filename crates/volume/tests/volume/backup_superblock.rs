//! The backup superblock. Overwriting the beginning of a device loses no file, whatever older
//! superblocks it holds. The backup is in its place whenever the volume has grown.

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Crash, CrashPlan, Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{FallocateSize, File, FileOptions};
use uringfs_reactor::Reactor;
use uringfs_volume::{CheckOptions, Error, ErrorKind, FormatOptions, OpenOptions, Volume};

use crate::fixture::{create, reactor};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Blocks of the slots and the backup of a volume above 64 MiB.
const PLACES: [u64; 3] = [0, 16, 16_384];
const FILES: u32 = 10_000;

struct TestVolume {
    sim: Sim,
    device: Device,
    reactor: Reactor,
}

impl TestVolume {
    fn new(device_size: u64, size: u64) -> TestVolume {
        let sim = Sim::new(SimOptions::new(device_size));
        let device = Device::new(sim.clone()).unwrap();
        let options = FormatOptions::new().size(size);
        Volume::format(&device, &options).unwrap();
        TestVolume { sim, device, reactor: reactor() }
    }

    fn of(sim: &Sim) -> TestVolume {
        let device = Device::new(sim.clone()).unwrap();
        TestVolume { sim: sim.clone(), device, reactor: reactor() }
    }

    fn open(&self) -> Result<Volume, Error> {
        Volume::open_on(self.device.clone())
    }

    /// Makes directories of 100 files, whose content is their number.
    fn make_files(&self, count: u32) {
        let volume = self.open().unwrap();
        for number in 0..count {
            if number % 100 == 0 {
                volume.create_dir(format!("/{}", number / 100)).unwrap();
            }
            let file = create(&volume, &path_of(number));
            let written =
                self.reactor.block_on(file.write_at(Buffer::copy_of(&bytes_of(number)), 0)).0;
            assert_eq!(written, Ok(bytes_of(number).len()));
        }
    }

    fn assert_has_files(&self, count: u32, place: &str) {
        let volume = self.open().unwrap_or_else(|error| panic!("{place}: {error}"));
        for number in 0..count {
            let file = volume
                .open_with(path_of(number), OpenOptions::new().read(true).write(true).direct(true))
                .unwrap();
            let (read, bytes) = self.reactor.block_on(file.read_at(Buffer::zeroed(100), 0));
            assert_eq!(&bytes[..read.unwrap()], &bytes_of(number)[..], "{place}: {number}");
        }
        assert_eq!(volume.read_dir("/0").unwrap().count(), count.min(100) as usize, "{place}");
    }

    fn check(&self, repair: bool) -> Result<Vec<String>, Error> {
        let options = CheckOptions::new().repair(repair);
        let report = Volume::check(&self.device, options, &mut |_, _| {})?;
        assert!(!repair || report.is_repaired(), "{:?}", report.findings);
        Ok(report.findings.iter().map(ToString::to_string).collect())
    }

    fn assert_sound(&self, place: &str) {
        assert_eq!(self.check(false).unwrap(), Vec::<String>::new(), "{place}");
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let whole = File::from_device(self.device.clone(), FileOptions::default());
        let written = self.reactor.block_on(whole.write_at(Buffer::copy_of(bytes), at)).0;
        assert_eq!(written, Ok(bytes.len()));
        self.reactor.block_on(whole.sync_all()).unwrap();
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
    fn assert_recoverable(&self, backup: &str, files: u32) {
        for refused in [self.open().map(drop), self.check(false).map(drop)] {
            let error = refused.unwrap_err();
            let says =
                format!("the backup superblock {backup} is good: run uringfs check --repair");
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            assert!(error.to_string().contains(&says), "{error}");
        }
        let lines = self.check(true).unwrap();
        assert!(lines.len() == 2 && lines[0].starts_with("superblock in block 0: "), "{lines:?}");
        self.assert_sound(backup);
        self.assert_has_files(files, backup);
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
    let test_volume = TestVolume::new(256 * MIB, 256 * MIB);
    test_volume.make_files(FILES);
    for length in [MIB, 4 * MIB] {
        for bytes in [vec![0; length as usize], garbage(length)] {
            test_volume.write(0, &bytes);
            test_volume.assert_recoverable("at 64 MiB", FILES);
        }
    }
}

#[test]
fn a_small_volume_has_the_backup_in_its_last_block() {
    for (device, size, lost) in [
        (40 * MIB, 40 * MIB, 4 * MIB),
        (300 * MIB, 40 * MIB, 4 * MIB),
        (64 * MIB, 64 * MIB, 4 * MIB),
        (16 * MIB, 16 * MIB, 2 * MIB),
        (9 * MIB, 9 * MIB, MIB),
    ] {
        let test_volume = TestVolume::new(device, size);
        test_volume.make_files(200);
        test_volume.write(0, &garbage(lost));
        test_volume.assert_recoverable(&format!("in block {}", size / BLOCK - 1), 200);
    }
}

#[test]
fn nothing_else_uses_the_block_of_the_backup() {
    for size in [40 * MIB, 64 * MIB, 65 * MIB, 200 * MIB] {
        let test_volume = TestVolume::new(size, size);
        let volume = test_volume.open().unwrap();
        let file = create(&volume, "/full");
        let free = volume.statistics().free_blocks;
        let allocated = file.allocate(0, free * BLOCK, FallocateSize::Extend);
        assert_eq!(test_volume.reactor.block_on(allocated), Ok(()));
        for number in 0.. {
            // The catalog takes the reserve.
            if volume.create_dir(format!("/{number:0200}")).is_err() {
                break;
            }
        }
        drop((file, volume));
        test_volume.assert_sound("full");
        test_volume.erase_slots();
        test_volume.check(true).unwrap();
        test_volume.assert_sound("recovered");
    }
}

/// A volume whose catalog has grown, and its superblock before that.
fn grown_catalog() -> (TestVolume, Vec<u8>) {
    let test_volume = TestVolume::new(256 * MIB, 256 * MIB);
    let before = test_volume.block(0);
    let had = test_volume.open().unwrap().statistics().catalog_blocks;
    test_volume.make_files(FILES);
    let volume = test_volume.open().unwrap();
    for number in 0..6000 {
        volume.create_dir(format!("/{number:0250}")).unwrap();
    }
    assert!(volume.statistics().catalog_blocks > had);
    drop(volume);
    (test_volume, before)
}

#[test]
fn one_stale_superblock_loses_nothing() {
    let (test_volume, before) = grown_catalog();
    for place in PLACES {
        let now = test_volume.block(place);
        test_volume.write(place * BLOCK, &before);
        let line = format!("superblock in block {place}: older than the newest");
        assert_eq!(test_volume.check(false).unwrap(), [line]);
        test_volume.assert_has_files(FILES, "stale");
        // Opening for writing has written all three.
        test_volume.assert_sound("stale");
        assert_ne!(test_volume.block(place), before);
        assert_ne!(test_volume.block(place), now);
    }
}

#[test]
fn two_stale_superblocks_are_detected_by_the_third() {
    let (test_volume, before) = grown_catalog();
    for fresh in PLACES {
        PLACES.iter().filter(|place| **place != fresh).for_each(|place| {
            test_volume.write(place * BLOCK, &before);
        });
        if fresh == PLACES[2] {
            let error = test_volume.open().err().unwrap();
            let says = "older than the backup superblock at 64 MiB: run uringfs check --repair";
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(test_volume.check(true).unwrap().len(), 2);
        test_volume.assert_sound("stale");
        test_volume.assert_has_files(FILES, "stale");
    }
}

#[test]
fn a_backup_older_than_the_catalog_is_refused() {
    let (test_volume, before) = grown_catalog();
    test_volume.write(PLACES[2] * BLOCK, &before);
    test_volume.erase_slots();
    let record = test_volume.sim.record().len();
    let error = test_volume.check(true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("the backup superblock at 64 MiB: "), "{error}");
    assert_eq!(test_volume.sim.record().len(), record, "a refused volume is not written");
}

#[test]
fn formatting_erases_the_backup_of_the_previous_volume() {
    for (old, new) in [(40 * MIB, 200 * MIB), (200 * MIB, 40 * MIB), (50 * MIB, 40 * MIB)] {
        let test_volume = TestVolume::new(256 * MIB, old);
        test_volume.make_files(10);
        let options = FormatOptions::new().size(new);
        Volume::format(&test_volume.device, &options).unwrap();
        test_volume.make_files(20);
        test_volume.erase_slots();
        let backup = match new {
            0..=0x400_0000 => format!("in block {}", new / BLOCK - 1),
            _ => "at 64 MiB".into(),
        };
        test_volume.assert_recoverable(&backup, 20);
    }
}

/// Sizes with which the backup moves to another last block, to 64 MiB, and not at all.
const RESIZES: [(u64, u64); 3] =
    [(40 * MIB, 50 * MIB), (40 * MIB, 100 * MIB), (100 * MIB, 120 * MIB)];

#[test]
fn a_power_cut_while_growing_leaves_usable_superblocks() {
    for (old, new) in RESIZES {
        let test_volume = TestVolume::new(new, old);
        test_volume.make_files(20);
        let volume = test_volume.open().unwrap();
        volume.sync().unwrap();
        test_volume.sim.restart_record();
        volume.resize(new).unwrap();
        drop(volume);
        let plan = CrashPlan { exhaustive_up_to: 2, samples: 3, seed: 7 };
        let (mut restored, mut sizes) = (0, std::collections::BTreeSet::new());
        for image in test_volume.sim.crash_images(plan) {
            let place = format!("{old} to {new}, seed 7, cut {}, {:?}", image.cut, image.crash);
            let lost = TestVolume::of(&image.sim.crash_image(Crash::KeepAll));
            let found = TestVolume::of(&image.sim);
            let lines = found.check(false).unwrap();
            let is_older = |line: &String| line.ends_with("older than the newest");
            assert!(lines.len() <= 2 && lines.iter().all(is_older), "{place}: {lines:?}");
            let volume = found.open().unwrap();
            assert_eq!(volume.warnings(), Vec::<String>::new(), "{place}");
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
                    restored += 1;
                    lost.assert_sound(&place);
                    lost.assert_has_files(20, &place);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "{place}: {error}"),
            }
        }
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [old, new]);
        assert!(restored > 2, "{old} to {new}: {restored}");
    }
}

#[test]
fn a_failed_write_while_growing_loses_nothing() {
    for (old, new) in RESIZES {
        for op in [Op::Write, Op::Flush] {
            for nth in 1.. {
                let test_volume = TestVolume::new(new, old);
                test_volume.make_files(20);
                let volume = test_volume.open().unwrap();
                test_volume.sim.fail_nth(op, nth, Errno::IO);
                let has_grown = volume.resize(new).is_ok();
                test_volume.sim.clear_faults();
                drop(volume);
                let place = format!("{old} to {new}, {op:?} {nth}");
                let volume = test_volume.open().unwrap();
                assert_eq!(volume.warnings(), Vec::<String>::new(), "{place}");
                volume.resize(new).unwrap();
                assert!(volume.symlink_metadata("/0/7").is_ok());
                drop(volume);
                test_volume.assert_sound(&place);
                test_volume.erase_slots();
                test_volume.check(true).unwrap();
                test_volume.assert_sound(&place);
                test_volume.assert_has_files(20, &place);
                if has_grown {
                    assert!(nth > 2, "{place}");
                    break;
                }
            }
        }
    }
}

/// Gives the device the first bytes of another volume, as `dd` to the wrong device would.
fn overwrite_with_another(test_volume: &TestVolume, size: u64, length: u64) {
    let other = TestVolume::new(size, size);
    let mut bytes = vec![0; length as usize];
    other.sim.peek(0, &mut bytes);
    test_volume.write(0, &bytes);
}

#[test]
fn the_beginning_of_another_volume_is_refused_and_repaired() {
    for (size, other) in [
        (256 * MIB, 256 * MIB),
        (256 * MIB, 80 * MIB),
        (80 * MIB, 256 * MIB),
        (80 * MIB, 40 * MIB),
        (40 * MIB, 80 * MIB),
        (40 * MIB, 40 * MIB),
    ] {
        let test_volume = TestVolume::new(size, size);
        test_volume.make_files(200);
        let uuid = test_volume.open().unwrap().uuid();
        overwrite_with_another(&test_volume, other, MIB);
        let place = format!("{size} {other}");
        for refused in [test_volume.open().map(drop), test_volume.check(false).map(drop)] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{place}: {error}");
            let text = error.to_string();
            let says =
                text.contains("of another volume") && text.ends_with("run uringfs check --repair");
            assert!(says, "{place}: {error}");
        }
        let lines = test_volume.check(true).unwrap();
        assert_eq!(lines.len(), 2, "{place}: {lines:?}");
        assert!(lines.iter().all(|line| line.contains(": of another volume")), "{lines:?}");
        test_volume.assert_sound(&place);
        assert_eq!(test_volume.open().unwrap().uuid(), uuid, "{place}");
        test_volume.assert_has_files(200, &place);
    }
}

#[test]
fn a_refused_volume_that_was_not_closed_is_not_written() {
    let before = TestVolume::new(256 * MIB, 40 * MIB);
    before.make_files(20);
    let volume = before.open().unwrap();
    volume.resize(256 * MIB).unwrap();
    let uuid = volume.uuid();
    // From behind the log on, where the log of a volume that was made so large lies.
    let content = garbage(MIB);
    let file = create(&volume, "/file");
    assert_eq!(
        before.reactor.block_on(file.write_at(Buffer::copy_of(&content), 0)).0,
        Ok(content.len())
    );
    volume.sync().unwrap();
    let test_volume = TestVolume::of(&before.sim.crash_image(Crash::KeepAll));
    overwrite_with_another(&test_volume, 256 * MIB, MIB);
    let record = test_volume.sim.record().len();
    let error = test_volume.open().map(drop).unwrap_err();
    assert!(error.to_string().contains("of another volume"), "{error}");
    assert_eq!(test_volume.sim.record().len(), record, "a refused volume is not written");
    test_volume.check(true).unwrap();
    test_volume.assert_sound("repaired");
    test_volume.assert_has_files(20, "repaired");
    let volume = test_volume.open().unwrap();
    assert_eq!(volume.uuid(), uuid);
    assert!(volume.read("/file").unwrap() == content, "the file is as it was");
}

#[test]
fn a_grown_catalog_is_found_behind_the_beginning_of_another_volume() {
    let (test_volume, _) = grown_catalog();
    let uuid = test_volume.open().unwrap().uuid();
    overwrite_with_another(&test_volume, 256 * MIB, 4 * MIB);
    assert_eq!(test_volume.open().map(drop).unwrap_err().kind(), ErrorKind::Damaged);
    test_volume.check(true).unwrap();
    test_volume.assert_sound("grown");
    assert_eq!(test_volume.open().unwrap().uuid(), uuid);
}

#[test]
fn a_slot_of_another_volume_is_replaced() {
    for generations in [0, 9] {
        let test_volume = TestVolume::new(256 * MIB, 256 * MIB);
        test_volume.make_files(200);
        let uuid = test_volume.open().unwrap().uuid();
        let other = TestVolume::new(256 * MIB, 256 * MIB);
        for _ in 0..generations {
            // A slot that is bad is written again, with the next generation.
            other.write(0, &[0; BLOCK as usize]);
            drop(other.open().unwrap());
        }
        test_volume.write(0, &other.block(0));
        let volume = test_volume.open().unwrap();
        assert_eq!(volume.uuid(), uuid);
        let line = "superblock in block 0: of another volume; written again from a good one";
        assert_eq!(volume.warnings(), [line]);
        drop(volume);
        test_volume.assert_sound("one slot");
        test_volume.assert_has_files(200, "one slot");
    }
}

#[test]
fn an_unreadable_slot_is_replaced_by_the_backup_if_that_is_accepted() {
    let test_volume = TestVolume::new(256 * MIB, 256 * MIB);
    test_volume.make_files(200);
    test_volume.erase_slots();
    let rule = Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO));
    test_volume.sim.inject(rule.within(0, BLOCK));
    for repair in [false, true] {
        let error = test_volume.check(repair).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{error}");
        let says = "at 64 MiB is good: run uringfs check --repair --accept-unreadable";
        assert!(error.to_string().ends_with(says), "{error}");
    }
    let options = CheckOptions::new().repair(true).accept_unreadable(true);
    let report = Volume::check(&test_volume.device, options, &mut |_, _| {}).unwrap();
    assert!(report.is_repaired(), "{:?}", report.findings);
    test_volume.sim.clear_faults();
    test_volume.assert_sound("unreadable");
    test_volume.assert_has_files(200, "unreadable");
}
