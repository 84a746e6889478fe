//! Checks of open volumes: they find what a check of the closed volume finds, and nothing else.

use std::ops::ControlFlow;

use uringfs_device::backend::sim::{Crash, Fault, Rule, When};
use uringfs_device::{Errno, Op};

use super::*;
use crate::check::online::check_online_within;

fn check_online(volume: &Volume, options: CheckOptions) -> Result<CheckReport, Error> {
    check_online_within(&volume.shared, options, SMALL, &mut |_, _| Ok(()))
}

fn sorted_lines(report: &CheckReport) -> Vec<String> {
    let mut lines: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    lines.sort();
    lines
}

/// Opens a copy of a volume, and asserts that a check of it finds what a check of the same state finds when it is
/// closed. Some damage does not let a volume open.
pub(super) fn assert_same_online(fixture: &TestVolume) {
    let copy = fixture.sim.crash_image(Crash::KeepAll);
    let Ok(volume) = Volume::open_on(Device::new(copy.clone()).unwrap()) else { return };
    for deep in [false, true] {
        let options = CheckOptions { deep, ..CHECK };
        let closed = Device::new(copy.crash_image(Crash::KeepAll)).unwrap();
        let closed = check_within(&closed, options, SMALL, &mut |_, _| Ok(())).unwrap();
        let open = check_online(&volume, options).unwrap();
        assert_eq!(sorted_lines(&open), sorted_lines(&closed));
        let counts = |report: &CheckReport| {
            let CheckReport { unlisted, files, directories, used_blocks, read_blocks, .. } =
                *report;
            (unlisted, files, directories, used_blocks, read_blocks)
        };
        assert_eq!(counts(&open), counts(&closed));
    }
}

#[test]
fn a_sound_open_volume_is_found_sound_and_counted() {
    let fixture = TestVolume::new();
    let volume = fixture.open();
    volume.create_dir("/new").unwrap();
    let options = CheckOptions { deep: true, ..CHECK };
    let report = check_online(&volume, options).unwrap();
    assert!(report.is_sound(), "{}", text(&report));
    assert_eq!((report.directories, report.files), (5, 7), "/new is not committed");
    volume.sync().unwrap();
    let before = fixture.sim.record().len();
    let report = check_online(&volume, options).unwrap();
    assert!(report.is_sound(), "{}", text(&report));
    assert_eq!((report.directories, report.files), (6, 7));
    assert_eq!((report.used_blocks, report.read_blocks), (5 * 3 + 2, 5 * 3 + 2));
    assert_eq!(fixture.sim.record().len(), before, "nothing was written");
}

#[test]
fn an_open_volume_is_not_repaired_online() {
    let fixture = TestVolume::new();
    let error = check_online(&fixture.open(), REPAIR).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Input);
    assert!(error.to_string().contains("close it"), "{error}");
}

#[test]
fn damage_that_appears_while_the_volume_is_open_is_found() {
    let fixture = TestVolume::new();
    let number = fixture.number("/a");
    let volume = fixture.open();
    let mut batch = Batch::default();
    batch.put(Key::Name(number, b"ghost"), &encode_entry(InodeNumber(2), FileType::Fifo));
    volume.shared.catalog.checkpoint(&batch).unwrap();
    let report = check_online(&volume, CHECK).unwrap();
    assert!(text(&report).contains("/a/ghost: "), "{}", text(&report));
}

#[test]
fn a_read_of_the_catalog_that_fails_is_an_error_and_no_finding() {
    let mut failed = 0;
    for nth in 1.. {
        let fixture = TestVolume::new();
        let volume = fixture.open();
        fixture.sim.fail_nth(Op::Read, nth, Errno::IO);
        let outcome = check_online(&volume, CHECK);
        if fixture.sim.faults_hit() == 0 {
            assert!(outcome.unwrap().is_sound());
            break;
        }
        match outcome {
            // Read again, or read from the other copy.
            Ok(report) => assert!(report.findings.len() <= 1, "read {nth}: {}", text(&report)),
            Err(error) => {
                failed += 1;
                assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "read {nth}: {error}");
            }
        }
        fixture.sim.clear_faults();
        let report = check_online(&volume, CHECK).unwrap();
        assert!(report.is_sound(), "read {nth}: {}", text(&report));
    }
    assert!(failed > 0);
}

#[test]
fn a_page_that_cannot_be_read_is_an_error_and_no_finding() {
    let fixture = TestVolume::new();
    let volume = fixture.open();
    for block in pages::pages_in_use(&fixture) {
        let rule = Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO));
        fixture.sim.inject(rule.within(block * BLOCK, (block + 1) * BLOCK));
        match check_online(&volume, CHECK) {
            // A page in which the catalog keeps its own free space.
            Ok(report) => assert!(report.is_sound(), "block {block}: {}", text(&report)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "block {block}: {error}");
                assert!(error.to_string().contains(&format!("block {block}")), "{error}");
            }
        }
        fixture.sim.clear_faults();
    }
    assert!(check_online(&volume, CHECK).unwrap().is_sound());
    assert_eq!(volume.warnings(), [""; 0]);
}

#[test]
fn unreadable_bytes_are_found_unless_their_file_is_gone() {
    let fixture = TestVolume::new();
    let number = fixture.number("/a/b/three");
    let extent = first_extent(&fixture.catalog(), number);
    let volume = fixture.open();
    let bad = (extent.start + 1) * BLOCK;
    let rule = Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO));
    fixture.sim.inject(rule.within(bad, bad + 1));
    let deep = CheckOptions { deep: true, ..CHECK };
    let report = check_online(&volume, deep).unwrap();
    let line = format!("/a/b/three (inode {number}): 4096 bytes from byte 4096 on cannot be read");
    assert!(text(&report).starts_with(&line), "{}", text(&report));
    assert_eq!(report.findings.len(), 1, "{}", text(&report));
    // The extents are known by the first block that is read.
    let mut removed = false;
    let report = volume
        .check_online(deep, &mut |step, blocks| {
            if step == CheckStep::Data && blocks > 0 && !std::mem::replace(&mut removed, true) {
                volume.remove_file("/a/b/three").unwrap();
                volume.sync().unwrap();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(removed && report.is_sound(), "{}", text(&report));
    assert!(fixture.sim.faults_hit() > 2);
}
