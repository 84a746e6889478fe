//! Damaged superblocks and pages of the catalog.

use super::*;
use crate::superblock::SLOTS;

#[test]
fn a_bad_superblock_is_written_again() {
    let patient = TestVolume::new();
    for slot in SLOTS {
        patient.sim.rot(slot * BLOCK + 300, 2);
        patient.assert_repairs(&format!("superblock in block {slot}: wrong checksum"));
    }
    let copy = patient.superblock().copy().unwrap();
    patient.sim.rot(copy * BLOCK + 300, 2);
    patient.assert_repairs(&format!("superblock in block {copy}: wrong checksum"));
    for place in SLOTS.into_iter().chain([copy]) {
        patient.sim.rot(place * BLOCK + 300, 2);
    }
    let error = Volume::check(&patient.device, REPAIR, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

#[test]
fn an_older_superblock_is_written_again_by_a_check_and_by_opening() {
    let patient = TestVolume::new();
    let blocks = Blocks::of(&patient.device);
    let old = SLOTS.map(|slot| blocks.read(slot, BLOCK as usize).unwrap());
    patient.superblock().write(&blocks).unwrap();
    for (slot, old) in SLOTS.into_iter().zip(old) {
        let put_back = || blocks.write(slot, Buffer::copy_of(&old)).unwrap();
        put_back();
        let line = format!("superblock in block {slot}: older than the other");
        patient.assert_repairs(&line);
        put_back();
        assert_eq!(patient.open().flaws(), Vec::<String>::new());
        patient.assert_sound();
    }
}

#[test]
fn a_superblock_without_its_catalog_is_not_written_over_the_other() {
    let patient = TestVolume::new();
    let blocks = Blocks::of(&patient.device);
    let mut superblock = patient.superblock();
    superblock.catalog[0].length = 4;
    superblock.write(&blocks).unwrap();
    patient.sim.rot(SLOTS[0] * BLOCK + 300, 2);
    let before = patient.sim.record().len();
    let error = Volume::check(&patient.device, REPAIR, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert_eq!(patient.sim.record().len(), before, "nothing was written");
}

#[test]
fn damaged_records_that_a_new_catalog_does_not_get_are_named() {
    let patient = TestVolume::new();
    let two = patient.number("/a/two");
    super::planted::spoil(&patient, Key::Inode(two));
    let (blocks, mut superblock) = (Blocks::of(&patient.device), patient.superblock());
    let mut findings = Findings::new(true);
    let old = open(&blocks, &superblock, LostPages::Empty).unwrap();
    rebuild::rebuild(&blocks, &mut superblock, &old, SMALL, LeakedBlocks::Free, &mut findings)
        .unwrap();
    let new = open(&blocks, &superblock, LostPages::Refuse).unwrap();
    findings.resolve_paths(&new, &paths::Parents::new()).unwrap();
    let lines = text(&findings.into_report(CheckReport::default()));
    assert!(lines.contains(&format!("inode {two}): its inode cannot be read")), "{lines}");
}

/// Blocks that the catalog's last commit reaches, as two flipped bits in each tell.
pub(super) fn pages_in_use(patient: &TestVolume) -> Vec<u64> {
    let runs = patient.superblock().catalog;
    let blocks = runs.into_iter().flat_map(|run| run.start..run.end());
    let is_in_use = |block: &u64| {
        let spoilt = patient.sim.crash_image(uringfs_device::backend::sim::Crash::KeepAll);
        spoilt.rot(block * BLOCK + 100, 0);
        spoilt.rot(block * BLOCK + 700, 0);
        let device = Device::new(spoilt).unwrap();
        let checked = Volume::check(&device, CHECK, &mut |_, _| {});
        checked.map_or(true, |report| !report.is_sound())
    };
    blocks.take(200).filter(is_in_use).collect()
}

#[test]
fn a_flipped_bit_is_put_right_and_a_lost_page_costs_what_is_in_it() {
    let patient = TestVolume::new();
    let used = pages_in_use(&patient);
    assert!(used.len() > 8, "{used:?}");
    let mut refused = 0;
    for block in used {
        let of = |bits: &[(u64, u32)]| {
            let sim = patient.sim.crash_image(uringfs_device::backend::sim::Crash::KeepAll);
            bits.iter().for_each(|(byte, bit)| sim.rot(block * BLOCK + byte, *bit));
            let device = Device::new(sim.clone()).unwrap();
            let reactor = Reactor::new(ReactorOptions::default()).unwrap();
            TestVolume { sim, device, reactor }
        };
        let one = of(&[(100, 0)]);
        one.assert_repairs(&format!("block {block}"));
        assert!(one.is_whole(&one.open(), "/a/b/c/four", "/a/b/c/four"));
        let many = of(&[(100, 0), (700, 0), (2148, 0)]);
        match Volume::check(&many.device, REPAIR, &mut |_, _| {}) {
            Ok(report) => {
                assert!(report.is_repaired() && !report.is_sound(), "{}", text(&report));
                assert!(text(&report).contains(&format!("block {block}")), "{}", text(&report));
                many.assert_sound();
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "block {block}: {error}");
                assert!(error.to_string().contains(&format!("block {block}")), "{error}");
                refused += 1;
            }
        }
    }
    // What leads to all tables is one page; and the head, in two sectors that both were spoilt.
    assert!(refused <= 2, "{refused} refused");
}

#[test]
fn checksums_that_are_lost_are_made_again_and_cost_nothing() {
    let files = ["/one", "/a/two", "/a/b/three", "/a/b/c/four", "/d/five"];
    for byte in [0, 0x5a] {
        let patient = TestVolume::new();
        let (blocks, sums) = (Blocks::of(&patient.device), patient.superblock().catalog[0].start);
        let mut bytes = blocks.read(sums, BLOCK as usize).unwrap();
        bytes[..512].fill(byte);
        blocks.write(sums, bytes).unwrap();
        let told = patient.assert_repairs(&format!("catalog block {sums}: the checksum of block"));
        assert!(told.lines().all(|line| line.contains("the checksum of block")), "{told}");
        let volume = patient.open();
        assert!(files.iter().all(|path| patient.is_whole(&volume, path, path)));
    }
}

#[test]
fn a_read_that_fails_once_costs_nothing() {
    let mut failed = 0;
    for nth in 1..60 {
        let patient = TestVolume::new();
        patient.sim.fail_nth(uringfs_device::Op::Read, nth, rustix::io::Errno::IO);
        match Volume::check(&patient.device, REPAIR, &mut |_, _| {}) {
            Ok(report) => assert!(report.is_repaired(), "read {nth}: {}", text(&report)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io(rustix::io::Errno::IO), "{error}");
                failed += 1;
            }
        }
        patient.sim.clear_faults();
        patient.assert_sound();
        let volume = patient.open();
        for path in ["/one", "/a/two", "/a/b/three", "/a/b/c/four", "/d/five"] {
            assert!(patient.is_whole(&volume, path, path), "read {nth}: {path}");
        }
    }
    assert!(failed > 0);
}

#[test]
fn a_superblock_of_before_the_volume_grew_is_no_reason_to_drop_files() {
    let patient = TestVolume::new();
    let mut superblock = patient.superblock();
    let total = superblock.total_blocks;
    superblock.total_blocks -= 1000;
    superblock.write(&Blocks::of(&patient.device)).unwrap();
    let error = Volume::open_on(patient.device.clone()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains("--repair"), "{error}");
    patient.assert_repairs(&format!("says {} blocks, the volume has {total}", total - 1000));
    assert_eq!(patient.superblock().total_blocks, total);
}
