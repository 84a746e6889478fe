//! Volumes with records in the catalog's log, and damage there.

use rustix::io::Errno;
use uringfs_device::Op;
use uringfs_device::backend::sim::{Crash, Fault, Rule, When};

use super::*;
use crate::catalog::Size;

impl TestVolume {
    /// As a kill leaves it: changes that were made durable lie in the log.
    fn killed(&self) -> TestVolume {
        let volume = self.open();
        for n in 0..5 {
            volume.make_directory(format!("/logged {n}"), 0o755).unwrap();
            volume.sync().unwrap();
        }
        self.image()
    }

    /// The same, of one directory.
    fn killed_after(&self, path: &str) -> TestVolume {
        let volume = self.open();
        volume.make_directory(path, 0o755).unwrap();
        volume.sync().unwrap();
        self.image()
    }

    fn image(&self) -> TestVolume {
        let sim = self.sim.crash_image(Crash::KeepAll);
        let device = Device::new(sim.clone()).unwrap();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        TestVolume { sim, device, reactor }
    }

    fn logged(&self) -> Size {
        open(&Blocks::of(&self.device), &self.superblock(), LostPages::Refuse).unwrap().logged()
    }

    /// Which of the logged directories are there.
    fn directories(&self) -> Vec<u64> {
        let volume = self.open();
        let is_there = |n: &u64| volume.inode(format!("/logged {n}"), Follow::No).is_ok();
        (0..10).filter(is_there).collect()
    }

    /// Flips a bit of the record that begins in a block, in both halves.
    fn lose_record(&self, block: u64) {
        let log = self.superblock().log;
        for half in [log.start, log.start + log.length / 2] {
            self.sim.rot((half + block) * BLOCK + 40, 1);
        }
    }
}

#[test]
fn a_volume_with_records_in_its_log_is_sound_and_nothing_is_written() {
    let patient = TestVolume::new().killed();
    assert!(patient.logged() != Size::default());
    let before = patient.sim.record().len();
    for options in [CHECK, REPAIR] {
        assert!(patient.check(options).is_sound());
    }
    assert_eq!(patient.sim.record().len(), before, "nothing was written");
    assert_eq!(patient.directories(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_bad_copy_of_a_record_is_told_and_costs_nothing() {
    let patient = TestVolume::new().killed();
    let log = patient.superblock().log;
    for (half, block) in [(0, 1), (1, 2)] {
        let patient = patient.image();
        let block = log.start + half * log.length / 2 + block;
        patient.sim.rot(block * BLOCK + 40, 1);
        patient.assert_repairs(&format!("catalog log, block {block}: record"));
        assert_eq!(patient.directories(), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn a_record_that_is_lost_with_one_behind_it_is_told_and_a_repair_goes_on_before_it() {
    let patient = TestVolume::new().killed();
    patient.lose_record(2);
    let error = Volume::open_on(patient.device.clone()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    let block = patient.superblock().log.start + 2;
    let message = error.to_string();
    assert!(message.contains(&format!("block {block}")), "{message}");
    assert!(message.contains("uringfs check --repair"), "{message}");
    patient.assert_repairs(&format!("catalog log, block {block}: record"));
    assert_eq!(patient.directories(), [0, 1]);
    // What is logged from now on stands above what was lost.
    let volume = patient.open();
    for n in 5..8 {
        volume.make_directory(format!("/logged {n}"), 0o755).unwrap();
        volume.sync().unwrap();
    }
    let again = patient.image();
    assert!(again.logged() != Size::default());
    again.assert_sound();
    assert_eq!(again.directories(), [0, 1, 5, 6, 7]);
}

#[test]
fn what_leads_to_no_more_records_is_no_damage() {
    let patient = TestVolume::new().killed();
    patient.lose_record(4);
    patient.assert_sound();
    assert_eq!(patient.directories(), [0, 1, 2, 3]);
}

#[test]
fn a_new_catalog_has_what_was_in_the_log_and_none_of_it_comes_back_later() {
    let killed = TestVolume::new().killed();
    let runs = killed.superblock().catalog;
    let blocks: Vec<u64> = runs.into_iter().flat_map(|run| run.start..run.end()).take(60).collect();
    let mut rebuilt = 0;
    for (block, is_lost) in blocks.into_iter().flat_map(|block| [(block, false), (block, true)]) {
        let patient = killed.image();
        let before = patient.superblock().catalog;
        for byte in [100, 700] {
            patient.sim.rot(block * BLOCK + byte, 0);
        }
        if is_lost {
            patient.lose_record(2);
        }
        let Ok(report) = Volume::check(&patient.device, REPAIR, &mut |_, _| {}) else { continue };
        assert!(report.is_repaired(), "block {block}: {}", text(&report));
        if patient.superblock().catalog == before {
            continue;
        }
        rebuilt += 1;
        assert_eq!(patient.logged(), Size::default(), "block {block}");
        patient.assert_sound();
        let mut right = if is_lost { vec![0, 1] } else { vec![0, 1, 2, 3, 4] };
        assert_eq!(patient.directories(), right, "block {block}");
        right.push(5);
        let again = patient.killed_after("/logged 5");
        assert!(again.logged() != Size::default(), "block {block}");
        again.assert_sound();
        assert_eq!(again.directories(), right, "block {block}");
    }
    assert!(rebuilt >= 6, "{rebuilt}");
}

#[test]
fn a_log_that_cannot_be_read_is_no_reason_to_drop_records() {
    let patient = TestVolume::new().killed();
    let log = patient.superblock().log;
    let (start, end) = (log.start * BLOCK, log.end() * BLOCK);
    let rule = Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO));
    patient.sim.inject(rule.within(start, end));
    for options in [CHECK, REPAIR] {
        let error = Volume::check(&patient.device, options, &mut |_, _| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{error}");
    }
    patient.sim.clear_faults();
    patient.assert_sound();
    assert_eq!(patient.directories(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_new_volume_on_the_same_device_has_nothing_of_the_old_log() {
    let patient = TestVolume::new().killed();
    Volume::format(&patient.device, &FormatOptions::default()).unwrap();
    assert_eq!(patient.logged(), Size::default());
    let volume = patient.open();
    volume.make_directory("/new", 0o755).unwrap();
    volume.sync().unwrap();
    let again = patient.image();
    assert!(again.logged() != Size::default());
    again.assert_sound();
    assert_eq!(again.directories(), [] as [u64; 0]);
    assert!(again.open().inode("/new", Follow::No).is_ok());
}

#[test]
fn a_volume_that_is_only_read_shows_what_is_in_its_log_and_leaves_it_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("v");
    let patient = TestVolume::new().killed();
    let mut bytes = vec![0; SIZE as usize];
    patient.sim.peek(0, &mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    let device = Device::open(&path, uringfs_device::Access::Read).unwrap();
    let volume = Volume::open_on(device).unwrap();
    assert_eq!(volume.flaws(), Vec::<String>::new());
    assert!((0..5).all(|n| volume.inode(format!("/logged {n}"), Follow::No).is_ok()));
    drop(volume);
    assert!(std::fs::read(&path).unwrap() == bytes);
}

#[test]
fn closing_takes_all_of_the_log_into_the_pages() {
    let patient = TestVolume::new().killed();
    let volume = patient.open();
    volume.make_directory("/logged 5", 0o755).unwrap();
    drop(volume);
    assert_eq!(patient.logged(), Size::default());
    assert_eq!(patient.directories(), [0, 1, 2, 3, 4, 5]);
    // Without any change, too.
    let killed = patient.killed_after("/logged 6");
    drop(killed.open());
    assert_eq!(killed.logged(), Size::default());
    assert_eq!(killed.directories(), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_volume_grows_by_way_of_its_log() {
    let patient = TestVolume::new();
    let blocks = Some(SIZE / BLOCK / 2);
    let options = FormatOptions { blocks, ..FormatOptions::default() };
    Volume::format(&patient.device, &options).unwrap();
    let volume = patient.open();
    for n in 0..3 {
        volume.make_directory(format!("/logged {n}"), 0o755).unwrap();
        volume.sync().unwrap();
    }
    volume.resize(SIZE).unwrap();
    let grown = patient.image();
    assert!(grown.logged() != Size::default());
    grown.assert_sound();
    assert_eq!(grown.open().statistics().blocks, SIZE / BLOCK);
    assert_eq!(grown.directories(), [0, 1, 2]);
}
