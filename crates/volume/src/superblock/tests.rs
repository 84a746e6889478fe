//! Slots and the backup: torn, stale, forged, erased.

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::sim::{CrashPlan, Sim, SimOptions};
use zerocopy::IntoBytes;

use super::layout::*;
use super::slots::*;
use super::superblock::*;
use crate::blocks::{BLOCK, BlockIo, Run};
use crate::error::{Error, ErrorKind};

const TOTAL: u64 = 1024;
const LOG: Run = Run { start: 160, length: 8 };

fn blocks_of(sim: &Sim) -> BlockIo {
    BlockIo::new(&Device::new(sim.clone()).unwrap())
}

fn new_sim() -> Sim {
    Sim::new(SimOptions::new(TOTAL * BLOCK))
}

fn runs(of: &[(u64, u64)]) -> Vec<Run> {
    of.iter().map(|&(start, length)| Run { start, length }).collect()
}

fn volume() -> (Sim, Superblock) {
    let sim = new_sim();
    let catalog = runs(&[(100, 50), (40, 10)]);
    let mut superblock = Superblock::new(TOTAL, "données", catalog, LOG).unwrap();
    superblock.write(&blocks_of(&sim)).unwrap();
    (sim, superblock)
}

fn kind_of(result: Result<LoadedSuperblock, Error>) -> ErrorKind {
    result.expect_err("an unusable superblock is refused").kind()
}

#[test]
fn a_written_superblock_is_read_back() {
    let (sim, mut superblock) = volume();
    let found = Superblock::read(&blocks_of(&sim)).unwrap();
    assert_eq!(found.superblock, superblock);
    assert!(found.bad_slots.is_empty());
    superblock.label = "x".repeat(MAX_LABEL_BYTES);
    superblock.write(&blocks_of(&sim)).unwrap();
    let again = Superblock::read(&blocks_of(&sim)).unwrap().superblock;
    assert_eq!((again.label, again.generation), (superblock.label, 2));
}

#[test]
fn a_foreign_device_differs_from_a_damaged_volume() {
    assert_eq!(kind_of(Superblock::read(&blocks_of(&new_sim()))), ErrorKind::NotAVolume);
    let (sim, _) = volume();
    for slot in SLOTS {
        sim.flip_bit(slot * BLOCK + 2000, 1);
    }
    let error = Superblock::read(&blocks_of(&sim)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("block 16: wrong checksum"), "{error}");
}

#[test]
fn a_crash_at_any_moment_leaves_the_old_or_the_new_superblock() {
    let (sim, old) = volume();
    sim.restart_record();
    let mut new = old.clone();
    new.catalog.push(Run { start: 500, length: 7 });
    new.write(&blocks_of(&sim)).unwrap();
    let plan = CrashPlan { exhaustive_up_to: 4, samples: 64, seed: 11 };
    let (mut olds, mut news) = (0, 0);
    for image in sim.crash_images(plan) {
        let found = Superblock::read(&blocks_of(&image.sim));
        let LoadedSuperblock { mut superblock, .. } = found.unwrap_or_else(|error| {
            panic!("seed 11, cut {}, {:?}: {error}", image.cut, image.crash)
        });
        superblock.slot = old.slot;
        match superblock.generation {
            1 => olds += usize::from(superblock == old),
            _ => news += usize::from(superblock == new),
        }
        // Recovery leaves two valid slots.
        superblock.write(&blocks_of(&image.sim)).unwrap();
        assert!(Superblock::read(&blocks_of(&image.sim)).unwrap().bad_slots.is_empty());
    }
    assert!(olds > 10 && news > 10, "{olds} old, {news} new");
}

#[test]
fn a_slot_torn_at_any_sector_falls_back_to_the_other() {
    let (sim, old) = volume();
    let mut new = old.clone();
    new.label = "another".into();
    new.catalog.extend((0..200).map(|n| Run { start: 200 + 2 * n, length: 1 }));
    new.write(&blocks_of(&sim)).unwrap();
    let mut written = vec![0; BLOCK as usize];
    sim.peek(0, &mut written);
    for torn in SLOTS {
        for cut in 0..8 {
            for keep_head in [true, false] {
                let mut bytes = old.to_raw().as_bytes().to_vec();
                let range = if keep_head { 0..cut * 512 } else { cut * 512..BLOCK as usize };
                bytes[range.clone()].copy_from_slice(&written[range]);
                let whole = bytes == written;
                let blocks = blocks_of(&sim);
                blocks.write(torn, Buffer::copy_of(&bytes)).unwrap();
                let found = Superblock::read(&blocks).unwrap();
                assert_eq!(found.superblock.label, "another", "{torn} at {cut}");
                assert_eq!(found.bad_slots.len(), usize::from(!whole), "{torn} at {cut}");
                blocks.write(torn, Buffer::copy_of(&written)).unwrap();
            }
        }
    }
}

#[test]
fn a_slot_with_the_highest_generation_is_invalid() {
    let (sim, mut forged) = volume();
    forged.generation = u64::MAX;
    let blocks = blocks_of(&sim);
    for slot in SLOTS {
        blocks.write(slot, Buffer::copy_of(forged.to_raw().as_bytes())).unwrap();
    }
    assert_eq!(Superblock::read(&blocks).unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn an_older_slot_is_reported() {
    let (sim, old) = volume();
    let blocks = blocks_of(&sim);
    let mut new = old.clone();
    new.write(&blocks).unwrap();
    for slot in SLOTS {
        blocks.write(slot, Buffer::copy_of(old.to_raw().as_bytes())).unwrap();
        let mut found = Superblock::read(&blocks).unwrap();
        assert_eq!(found.bad_slots, [BadSlot { block: slot, defect: SlotDefect::Older }]);
        assert_eq!(found.superblock.generation, new.generation);
        found.superblock.write(&blocks).unwrap();
        assert!(Superblock::read(&blocks).unwrap().bad_slots.is_empty());
        new = found.superblock;
    }
}

#[test]
fn one_flipped_bit_is_reported_and_harmless() {
    let (sim, superblock) = volume();
    let blocks = blocks_of(&sim);
    for (slot, &block) in SLOTS.iter().enumerate() {
        for byte in 0..BLOCK {
            let address = block * BLOCK + byte;
            let bit = (byte * 7 % 8) as u32;
            sim.flip_bit(address, bit);
            let found = Superblock::read(&blocks).unwrap();
            assert_eq!(found.bad_slots.len(), 1, "slot {slot}, byte {byte}");
            assert_eq!(found.bad_slots[0].block, block);
            assert_eq!(found.superblock.to_raw().as_bytes(), superblock.to_raw().as_bytes());
            sim.flip_bit(address, bit);
        }
    }
}

/// A volume whose slots were forged with valid checksums.
fn forged(change: impl Fn(&mut RawSlot)) -> BlockIo {
    let (sim, superblock) = volume();
    let blocks = blocks_of(&sim);
    for block in SLOTS {
        let mut slot = superblock.to_raw();
        change(&mut slot);
        slot.checksum = checksum_of(&slot).into();
        blocks.write(block, Buffer::copy_of(slot.as_bytes())).unwrap();
    }
    blocks
}

#[test]
fn invalid_fields_are_refused() {
    type Change = fn(&mut RawSlot);
    let changes: [Change; 16] = [
        |slot| slot.reserved = 31.into(),
        |slot| slot.reserved = 41.into(),
        |slot| slot.catalog[1] = RawRun { start: (TOTAL - 1).into(), length: 1.into() },
        |slot| slot.log.length = 7.into(),
        |slot| slot.log.start = 45.into(),
        |slot| slot.log.length = 514.into(),
        |slot| slot.block_size = 512.into(),
        |slot| slot.label[3] = 0xff,
        |slot| slot.total_blocks = 0.into(),
        |slot| slot.total_blocks = (MAX_BLOCKS + 1).into(),
        |slot| slot.catalog_runs = 0.into(),
        |slot| slot.catalog_runs = 241.into(),
        |slot| slot.catalog[0].start = 31.into(),
        |slot| slot.catalog[0].length = u64::MAX.into(),
        |slot| slot.catalog[0].length = (TOTAL - 99).into(),
        |slot| slot.catalog[1] = RawRun { start: 149.into(), length: 1.into() },
    ];
    for (which, change) in changes.into_iter().enumerate() {
        let kind = kind_of(Superblock::read(&forged(change)));
        assert_eq!(kind, ErrorKind::Damaged, "change {which}");
    }
}

#[test]
fn newer_and_older_volumes_are_refused_or_read_only() {
    let newer = Superblock::read(&forged(|slot| slot.version = (VERSION + 1).into()));
    assert_eq!(kind_of(newer), ErrorKind::Unsupported);
    let older = Superblock::read(&forged(|slot| slot.version = 1.into())).unwrap_err();
    assert_eq!(older.kind(), ErrorKind::Unsupported);
    assert!(older.to_string().contains("older uringfs"), "{older}");
    let unknown = Superblock::read(&forged(|slot| slot.incompatible = 4.into()));
    assert_eq!(kind_of(unknown), ErrorKind::Unsupported);
    let found = Superblock::read(&forged(|slot| slot.read_only_compatible = 2.into()));
    assert!(found.unwrap().superblock.is_read_only());
    let found = Superblock::read(&forged(|slot| slot.compatible = 1.into())).unwrap();
    assert!(!found.superblock.is_read_only());
}

#[test]
fn a_shortened_device_is_refused_with_both_sizes() {
    let (sim, superblock) = volume();
    let short = Sim::new(SimOptions::new((TOTAL - 1) * BLOCK));
    let blocks = blocks_of(&short);
    blocks.write(SLOTS[0], Buffer::copy_of(superblock.to_raw().as_bytes())).unwrap();
    let error = Superblock::read(&blocks).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for size in [TOTAL * BLOCK, (TOTAL - 1) * BLOCK] {
        assert!(error.to_string().contains(&size.to_string()), "{error}");
    }
    drop(sim);
}

#[test]
fn an_erased_superblock_does_not_outlive_a_new_one() {
    let (sim, mut old) = volume();
    let blocks = blocks_of(&sim);
    for _ in 0..5 {
        old.write(&blocks).unwrap();
    }
    sim.restart_record();
    let mut new = Superblock::new(TOTAL, "new", runs(&[(40, 10)]), LOG).unwrap();
    new.erase(&blocks).unwrap();
    let erased = sim.events();
    new.write(&blocks).unwrap();
    for image in sim.crash_images(CrashPlan { exhaustive_up_to: 4, samples: 8, seed: 12 }) {
        match Superblock::read(&blocks_of(&image.sim)) {
            Ok(found) if image.cut >= erased => assert_eq!(found.superblock.label, "new"),
            Ok(found) => assert_eq!(found.superblock.uuid, old.uuid),
            Err(error) => assert!(error.kind() != ErrorKind::Unsupported, "{error}"),
        }
    }
    assert_eq!(Superblock::read(&blocks).unwrap().superblock.label, "new");
}

#[test]
fn invalid_parameters_are_refused() {
    for (total, label, catalog) in [
        (TOTAL, "x".repeat(65).as_str(), runs(&[(40, 10)])),
        (TOTAL, "a\0b", runs(&[(40, 10)])),
        (TOTAL, "", runs(&[(10, 10)])),
        (TOTAL, "", runs(&[])),
        (MAX_BLOCKS + 1, "", runs(&[(40, 10)])),
    ] {
        let error = Superblock::new(total, label, catalog, LOG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input, "{error}");
    }
}

#[test]
fn a_device_that_is_too_short_is_not_a_volume() {
    for size in [512, 4096, RESERVED_BLOCKS * BLOCK] {
        let error = Superblock::read(&blocks_of(&Sim::new(SimOptions::new(size)))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAVolume, "{error}");
    }
}
