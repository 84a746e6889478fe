//! Volumes with records in the catalog's log, and damage in the log.
use uringfs_device::backend::sim::{Crash, Fault, Rule, When};
use uringfs_device::{Errno, Op};

use super::*;
use crate::catalog::BatchSize;

impl TestVolume {
    /// The volume after a kill: durable changes are in the log.
    fn killed(&self) -> TestVolume {
        let volume = self.open();
        for n in 0..5 {
            volume.create_dir(format!("/logged {n}")).unwrap();
            volume.sync().unwrap();
        }
        self.image()
    }

    /// The volume after a kill, with one new directory in the log.
    fn killed_after(&self, path: &str) -> TestVolume {
        let volume = self.open();
        volume.create_dir(path).unwrap();
        volume.sync().unwrap();
        self.image()
    }

    fn image(&self) -> TestVolume {
        let sim = self.sim.crash_image(Crash::KeepAll);
        let device = Device::new(sim.clone()).unwrap();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        TestVolume { sim, device, reactor }
    }

    fn logged(&self) -> BatchSize {
        open(&BlockIo::new(&self.device), &self.superblock(), LostPages::Fail)
            .unwrap()
            .logged_size()
    }

    /// The numbers of the logged directories that exist.
    fn directories(&self) -> Vec<u64> {
        let volume = self.open();
        let is_there = |n: &u64| volume.symlink_metadata(format!("/logged {n}")).is_ok();
        (0..10).filter(is_there).collect()
    }

    /// Flips a bit of the record that begins in a block, in both halves.
    fn lose_record(&self, block: u64) {
        let log = self.superblock().log;
        for half in [log.start, log.start + log.length / 2] {
            self.sim.flip_bit((half + block) * BLOCK + 40, 1);
        }
    }
}

#[test]
fn a_volume_with_records_in_its_log_is_sound_and_nothing_is_written() {
    let fixture = TestVolume::new().killed();
    assert!(fixture.logged() != BatchSize::default());
    let before = fixture.sim.record().len();
    for options in [CHECK, REPAIR] {
        assert!(fixture.check(options).is_sound());
    }
    assert_eq!(fixture.sim.record().len(), before, "nothing was written");
    assert_eq!(fixture.directories(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_bad_copy_of_a_log_record_is_reported_and_costs_nothing() {
    let fixture = TestVolume::new().killed();
    let log = fixture.superblock().log;
    for (half, block) in [(0, 1), (1, 2)] {
        let fixture = fixture.image();
        let block = log.start + half * log.length / 2 + block;
        fixture.sim.flip_bit(block * BLOCK + 40, 1);
        fixture.assert_repairs(&format!("catalog log, block {block}: this copy of record"));
        assert_eq!(fixture.directories(), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn a_lost_log_record_before_others_is_reported_and_cut_off_by_repair() {
    let fixture = TestVolume::new().killed();
    fixture.lose_record(2);
    let error = Volume::open_on(fixture.device.clone()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    let block = fixture.superblock().log.start + 2;
    let message = error.to_string();
    assert!(message.contains(&format!("block {block}")), "{message}");
    assert!(message.contains("uringfs check --repair"), "{message}");
    fixture.assert_repairs(&format!("catalog log, block {block}: record"));
    assert_eq!(fixture.directories(), [0, 1]);
    // New records come after the lost one.
    let volume = fixture.open();
    for n in 5..8 {
        volume.create_dir(format!("/logged {n}")).unwrap();
        volume.sync().unwrap();
    }
    let again = fixture.image();
    assert!(again.logged() != BatchSize::default());
    again.assert_sound();
    assert_eq!(again.directories(), [0, 1, 5, 6, 7]);
}

#[test]
fn the_end_of_the_log_is_no_damage() {
    let fixture = TestVolume::new().killed();
    fixture.lose_record(4);
    fixture.assert_sound();
    assert_eq!(fixture.directories(), [0, 1, 2, 3]);
}

#[test]
fn a_new_catalog_takes_over_the_log_and_no_old_record_returns() {
    let killed = TestVolume::new().killed();
    let runs = killed.superblock().catalog;
    let blocks: Vec<u64> = runs.into_iter().flat_map(|run| run.start..run.end()).take(60).collect();
    let mut rebuilt = 0;
    for (block, is_lost) in blocks.into_iter().flat_map(|block| [(block, false), (block, true)]) {
        let fixture = killed.image();
        let before = fixture.superblock().catalog;
        for byte in [100, 700] {
            fixture.sim.flip_bit(block * BLOCK + byte, 0);
        }
        if is_lost {
            fixture.lose_record(2);
        }
        let Ok(report) = Volume::check(&fixture.device, REPAIR, &mut |_, _| {}) else { continue };
        assert!(report.is_repaired(), "block {block}: {}", text(&report));
        if fixture.superblock().catalog == before {
            continue;
        }
        rebuilt += 1;
        assert_eq!(fixture.logged(), BatchSize::default(), "block {block}");
        fixture.assert_sound();
        let mut right = if is_lost { vec![0, 1] } else { vec![0, 1, 2, 3, 4] };
        assert_eq!(fixture.directories(), right, "block {block}");
        right.push(5);
        let again = fixture.killed_after("/logged 5");
        assert!(again.logged() != BatchSize::default(), "block {block}");
        again.assert_sound();
        assert_eq!(again.directories(), right, "block {block}");
    }
    assert!(rebuilt >= 6, "{rebuilt}");
}

#[test]
fn an_unreadable_log_is_no_reason_to_drop_records() {
    let fixture = TestVolume::new().killed();
    let log = fixture.superblock().log;
    let (start, end) = (log.start * BLOCK, log.end() * BLOCK);
    let rule = Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO));
    fixture.sim.inject(rule.within(start, end));
    for options in [CHECK, REPAIR] {
        let error = Volume::check(&fixture.device, options, &mut |_, _| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{error}");
    }
    fixture.sim.clear_faults();
    fixture.assert_sound();
    assert_eq!(fixture.directories(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_new_volume_ignores_the_log_of_an_old_one() {
    let fixture = TestVolume::new().killed();
    Volume::format(&fixture.device, &FormatOptions::default()).unwrap();
    assert_eq!(fixture.logged(), BatchSize::default());
    let volume = fixture.open();
    volume.create_dir("/new").unwrap();
    volume.sync().unwrap();
    let again = fixture.image();
    assert!(again.logged() != BatchSize::default());
    again.assert_sound();
    assert_eq!(again.directories(), [] as [u64; 0]);
    assert!(again.open().symlink_metadata("/new").is_ok());
}

#[test]
fn a_read_only_volume_shows_its_log_and_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("v");
    let fixture = TestVolume::new().killed();
    let mut bytes = vec![0; SIZE as usize];
    fixture.sim.peek(0, &mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    let device = Device::open(&path, uringfs_device::Access::Read).unwrap();
    let volume = Volume::open_on(device).unwrap();
    assert_eq!(volume.warnings(), Vec::<String>::new());
    assert!((0..5).all(|n| volume.symlink_metadata(format!("/logged {n}")).is_ok()));
    drop(volume);
    assert!(std::fs::read(&path).unwrap() == bytes);
}

#[test]
fn closing_moves_the_log_into_the_pages() {
    let fixture = TestVolume::new().killed();
    let volume = fixture.open();
    volume.create_dir("/logged 5").unwrap();
    drop(volume);
    assert_eq!(fixture.logged(), BatchSize::default());
    assert_eq!(fixture.directories(), [0, 1, 2, 3, 4, 5]);
    // Also without a new change.
    let killed = fixture.killed_after("/logged 6");
    drop(killed.open());
    assert_eq!(killed.logged(), BatchSize::default());
    assert_eq!(killed.directories(), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_volume_grows_through_its_log() {
    let fixture = TestVolume::new();
    let options = FormatOptions::new().size(SIZE / 2);
    Volume::format(&fixture.device, &options).unwrap();
    let volume = fixture.open();
    for n in 0..3 {
        volume.create_dir(format!("/logged {n}")).unwrap();
        volume.sync().unwrap();
    }
    volume.resize(SIZE).unwrap();
    let grown = fixture.image();
    assert!(grown.logged() != BatchSize::default());
    grown.assert_sound();
    assert_eq!(grown.open().statistics().blocks, SIZE / BLOCK);
    assert_eq!(grown.directories(), [0, 1, 2]);
}
