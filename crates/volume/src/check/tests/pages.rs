//! Damaged superblocks and pages of the catalog.

use super::*;
use crate::superblock::SLOTS;

#[test]
fn a_bad_superblock_is_written_again() {
    let patient = Patient::new();
    for slot in SLOTS {
        patient.sim.rot(slot * BLOCK + 300, 2);
        patient.is_cured_of(&format!("superblock in block {slot}: wrong checksum"));
    }
    for slot in SLOTS {
        patient.sim.rot(slot * BLOCK + 300, 2);
    }
    let error = Volume::check(&patient.device, REPAIR, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

#[test]
fn an_older_superblock_is_written_again_by_a_check_and_by_opening() {
    let patient = Patient::new();
    let blocks = Blocks::of(&patient.device);
    let old = SLOTS.map(|slot| blocks.read(slot, BLOCK as usize).unwrap());
    patient.superblock().write(&blocks).unwrap();
    for (slot, old) in SLOTS.into_iter().zip(old) {
        let put_back = || blocks.write(slot, Buffer::copy_of(&old)).unwrap();
        put_back();
        let line = format!("superblock in block {slot}: older than the other");
        patient.is_cured_of(&line);
        put_back();
        assert_eq!(patient.open().flaws(), Vec::<String>::new());
        patient.assert_sound();
    }
}

#[test]
fn a_superblock_without_its_catalog_is_not_written_over_the_other() {
    let patient = Patient::new();
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
    let patient = Patient::new();
    let two = patient.number("/a/two");
    super::planted::spoil(&patient, Key::Inode(two));
    let (blocks, mut superblock) = (Blocks::of(&patient.device), patient.superblock());
    let mut findings = Findings::new(true);
    let old = open(&blocks, &superblock.catalog).unwrap();
    rebuild::rebuild(&blocks, &mut superblock, &old, SMALL, &mut findings).unwrap();
    let new = open(&blocks, &superblock.catalog).unwrap();
    findings.name(&new, &paths::Parents::new()).unwrap();
    let lines = text(&findings.into_report(CheckReport::default()));
    assert!(lines.contains(&format!("inode {two}): its inode cannot be read")), "{lines}");
}

/// Blocks that the catalog's last commit reaches, as two flipped bits in each tell.
fn pages_in_use(patient: &Patient) -> Vec<u64> {
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
    let patient = Patient::new();
    let used = pages_in_use(&patient);
    assert!(used.len() > 8, "{used:?}");
    let (mut rebuilt, mut refused) = (0, 0);
    for block in used {
        let of = |bits: &[(u64, u32)]| {
            let sim = patient.sim.crash_image(uringfs_device::backend::sim::Crash::KeepAll);
            bits.iter().for_each(|(byte, bit)| sim.rot(block * BLOCK + byte, *bit));
            let device = Device::new(sim.clone()).unwrap();
            let reactor = Reactor::new(ReactorOptions::default()).unwrap();
            Patient { sim, device, reactor }
        };
        let one = of(&[(100, 0)]);
        one.is_cured_of(&format!("block {block}"));
        assert!(one.is_whole(&one.open(), "/a/b/c/four", "/a/b/c/four"));
        let many = of(&[(100, 0), (700, 0), (2148, 0)]);
        match Volume::check(&many.device, REPAIR, &mut |_, _| {}) {
            Ok(report) => {
                assert!(report.is_repaired() && !report.is_sound(), "{}", text(&report));
                assert!(text(&report).contains(&format!("block {block}")), "{}", text(&report));
                many.assert_sound();
                rebuilt += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "block {block}: {error}");
                refused += 1;
            }
        }
    }
    assert!(rebuilt > refused, "{rebuilt} rebuilt, {refused} refused");
}
