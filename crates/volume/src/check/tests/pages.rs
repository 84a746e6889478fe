//! Damaged superblocks and pages of the catalog.

use uringfs_device::backend::sim::{Fault, Rule, When};

use super::*;
use crate::superblock::SLOTS;

#[test]
fn a_bad_superblock_slot_is_rewritten() {
    let fixture = TestVolume::new();
    for slot in SLOTS {
        fixture.sim.flip_bit(slot * BLOCK + 300, 2);
        fixture.assert_repairs(&format!("superblock in block {slot}: wrong checksum"));
    }
    let backup = fixture.superblock().backup_block().unwrap();
    fixture.sim.flip_bit(backup * BLOCK + 300, 2);
    fixture.assert_repairs(&format!("superblock in block {backup}: wrong checksum"));
    for place in SLOTS.into_iter().chain([backup]) {
        fixture.sim.flip_bit(place * BLOCK + 300, 2);
    }
    let error = Volume::check(&fixture.device, REPAIR, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

#[test]
fn an_older_superblock_slot_is_rewritten_by_check_and_open() {
    let fixture = TestVolume::new();
    let blocks = BlockIo::new(&fixture.device);
    let old = SLOTS.map(|slot| blocks.read(slot, BLOCK as usize).unwrap());
    fixture.superblock().write(&blocks).unwrap();
    for (slot, old) in SLOTS.into_iter().zip(old) {
        let put_back = || blocks.write(slot, Buffer::copy_of(&old)).unwrap();
        put_back();
        let line = format!("superblock in block {slot}: older than the newest");
        fixture.assert_repairs(&line);
        put_back();
        assert_eq!(fixture.open().warnings(), Vec::<String>::new());
        fixture.assert_sound();
    }
}

#[test]
fn a_superblock_without_its_catalog_does_not_replace_the_other() {
    let fixture = TestVolume::new();
    let blocks = BlockIo::new(&fixture.device);
    let mut superblock = fixture.superblock();
    superblock.catalog[0].length = 4;
    superblock.write(&blocks).unwrap();
    fixture.sim.flip_bit(SLOTS[0] * BLOCK + 300, 2);
    let before = fixture.sim.record().len();
    let error = Volume::check(&fixture.device, REPAIR, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert_eq!(fixture.sim.record().len(), before, "nothing was written");
}

#[test]
fn records_that_a_new_catalog_loses_are_named() {
    let fixture = TestVolume::new();
    let two = fixture.number("/a/two");
    super::planted::corrupt(&fixture, Key::Inode(two));
    let (blocks, mut superblock) = (BlockIo::new(&fixture.device), fixture.superblock());
    let mut findings = Findings::new(true);
    let old = open(&blocks, &superblock, LostPages::Empty).unwrap();
    rebuild::rebuild(&blocks, &mut superblock, &old, SMALL, LeakedBlocks::Free, &mut findings)
        .unwrap();
    let new = open(&blocks, &superblock, LostPages::Fail).unwrap();
    findings.resolve_paths(&new, &paths::Parents::new()).unwrap();
    let lines = text(&findings.into_report(CheckReport::default()));
    assert!(lines.contains(&format!("inode {two}): its inode cannot be read")), "{lines}");
}

/// The blocks that the catalog's last commit reaches, found by flipping two bits in each block.
pub(super) fn pages_in_use(fixture: &TestVolume) -> Vec<u64> {
    let runs = fixture.superblock().catalog;
    let blocks = runs.into_iter().flat_map(|run| run.start..run.end());
    let is_in_use = |block: &u64| {
        let spoilt = fixture.sim.crash_image(uringfs_device::backend::sim::Crash::KeepAll);
        spoilt.flip_bit(block * BLOCK + 100, 0);
        spoilt.flip_bit(block * BLOCK + 700, 0);
        let device = Device::new(spoilt).unwrap();
        let checked = Volume::check(&device, CHECK, &mut |_, _| {});
        checked.map_or(true, |report| !report.is_sound())
    };
    blocks.take(200).filter(is_in_use).collect()
}

#[test]
fn a_flipped_bit_is_corrected_and_a_lost_page_costs_its_records() {
    let fixture = TestVolume::new();
    let used = pages_in_use(&fixture);
    assert!(used.len() > 8, "{used:?}");
    let mut refused = 0;
    for block in used {
        let of = |bits: &[(u64, u32)]| {
            let sim = fixture.sim.crash_image(uringfs_device::backend::sim::Crash::KeepAll);
            bits.iter().for_each(|(byte, bit)| sim.flip_bit(block * BLOCK + byte, *bit));
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
    // The page that leads to all tables, and the header, which has damage in both of its sectors.
    assert!(refused <= 2, "{refused} refused");
}

#[test]
fn lost_checksums_are_rebuilt_and_cost_nothing() {
    let files = ["/one", "/a/two", "/a/b/three", "/a/b/c/four", "/d/five"];
    for byte in [0, 0x5a] {
        let fixture = TestVolume::new();
        let (blocks, sums) = (BlockIo::new(&fixture.device), fixture.superblock().catalog[0].start);
        let mut bytes = blocks.read(sums, BLOCK as usize).unwrap();
        bytes[..512].fill(byte);
        blocks.write(sums, bytes).unwrap();
        let lines = fixture.assert_repairs(&format!("catalog block {sums}: the checksum of block"));
        assert!(lines.lines().all(|line| line.contains("the checksum of block")), "{lines}");
        let volume = fixture.open();
        assert!(files.iter().all(|path| fixture.is_whole(&volume, path, path)));
    }
}

#[test]
fn a_read_that_fails_once_costs_nothing() {
    let mut failed = 0;
    for nth in 1..60 {
        let fixture = TestVolume::new();
        fixture.sim.fail_nth(uringfs_device::Op::Read, nth, uringfs_device::Errno::IO);
        match Volume::check(&fixture.device, REPAIR, &mut |_, _| {}) {
            Ok(report) => assert!(report.is_repaired(), "read {nth}: {}", text(&report)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io(uringfs_device::Errno::IO), "{error}");
                failed += 1;
            }
        }
        fixture.sim.clear_faults();
        fixture.assert_sound();
        let volume = fixture.open();
        for path in ["/one", "/a/two", "/a/b/three", "/a/b/c/four", "/d/five"] {
            assert!(fixture.is_whole(&volume, path, path), "read {nth}: {path}");
        }
    }
    assert!(failed > 0);
}

#[test]
fn a_repair_is_advised_only_if_the_backup_superblock_is_of_use() {
    let fixture = TestVolume::new();
    let blocks = BlockIo::new(&fixture.device);
    let zero = |block| blocks.write(block, Buffer::zeroed(BLOCK as usize)).unwrap();
    let error = |options| Volume::check(&fixture.device, options, &mut |_, _| {}).unwrap_err();
    let catalog = fixture.superblock().catalog;
    [0, 16].into_iter().for_each(zero);
    let text = error(CHECK).to_string();
    assert!(text.ends_with("is good: run uringfs check --repair"), "{text}");
    catalog.iter().flat_map(|run| run.start..run.end()).for_each(zero);
    for options in [CHECK, REPAIR] {
        let error = error(options);
        assert_eq!(error.kind(), ErrorKind::Damaged);
        let text = error.to_string();
        assert!(!text.contains("run uringfs"), "{text}");
        assert_eq!(text.matches("; this cannot be repaired: restore").count(), 1, "{text}");
    }
    // Of a slot that cannot be read, too.
    let errno = uringfs_device::Errno::IO;
    let rule = Rule::new(uringfs_device::Op::Read, When::Every(1), Fault::Error(errno));
    fixture.sim.inject(rule.within(0, 1));
    let unread = error(CHECK);
    assert_eq!(unread.kind(), ErrorKind::Io(errno));
    assert!(!unread.to_string().contains("run uringfs"), "{unread}");
    fixture.sim.clear_faults();
    // Whether the backup is of use is unknown while its catalog cannot be read.
    let rule = Rule::new(uringfs_device::Op::Read, When::Every(1), Fault::Error(errno));
    fixture.sim.inject(rule.within(catalog[0].start * BLOCK, catalog[0].end() * BLOCK));
    let unread = error(CHECK);
    assert_eq!(unread.kind(), ErrorKind::Io(errno), "{unread}");
    assert!(!unread.to_string().contains("cannot be repaired"), "{unread}");
}

#[test]
fn a_superblock_from_before_a_resize_drops_no_files() {
    let fixture = TestVolume::new();
    let mut superblock = fixture.superblock();
    let total = superblock.total_blocks;
    superblock.total_blocks -= 1000;
    superblock.write(&BlockIo::new(&fixture.device)).unwrap();
    let error = Volume::open_on(fixture.device.clone()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains("--repair"), "{error}");
    fixture.assert_repairs(&format!("says {} blocks, the volume has {total}", total - 1000));
    assert_eq!(fixture.superblock().total_blocks, total);
}
