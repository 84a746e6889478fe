//! Blocks that belong to two, to nobody, or that are free and in use.

use rustix::io::Errno;
use uringfs_device::Op;
use uringfs_device::backend::sim::{Fault, Rule, When};

use super::*;

#[test]
fn leaked_blocks_are_free_again() {
    let patient = Patient::new();
    let free = patient.open().statistics().free_blocks;
    let two = patient.number("/a/two");
    patient.plant(|_, batch| batch.delete(Key::Extent(two, 40)));
    let lines = patient.is_cured_of("2 blocks of region 0");
    let lost = format!("/a/two (inode {two}): 8192 bytes that it had on the device are lost");
    assert!(lines.contains(&lost), "{lines}");
    assert_eq!(patient.open().statistics().free_blocks, free + 2);
}

#[test]
fn files_that_lost_blocks_are_named() {
    let patient = Patient::new();
    let [one, two, five] = ["/one", "/a/two", "/d/five"].map(|path| patient.number(path));
    patient.plant(|catalog, batch| {
        // The first file and the last have none left.
        for file in [one, five] {
            batch.delete(Key::Extent(file, 0));
        }
        let mut inode = inode_of(catalog, two);
        inode.blocks = 1;
        batch.put(Key::Inode(two), &inode.to_record());
    });
    let lines = patient.is_cured_of(&format!("(inode {one}): 12288 bytes that it had"));
    assert!(lines.contains(&format!("(inode {five}): 12288 bytes that it had")), "{lines}");
    let said = format!("(inode {two}): it says it has 1 blocks, and has 5; set");
    assert!(lines.contains(&said), "{lines}");
    assert_eq!(patient.open().inode("/a/two", Follow::No).unwrap().1.blocks, 5);
}

#[test]
fn blocks_in_use_that_count_as_free_are_taken() {
    let patient = Patient::new();
    let five = patient.number("/d/five");
    patient.plant(|_, batch| batch.delete(Key::Region(0)));
    let report = text(&patient.check(CHECK));
    assert!(report.contains("blocks in use, from block 0 on, count as free in region 0"));
    patient.is_cured_of("count as free");
    // Of a file alone, it is named.
    patient.plant(|catalog, batch| {
        let extent = first_extent(catalog, five);
        let record = catalog.get(Key::Region(0)).unwrap().unwrap();
        let (_, rest) = crate::core::state::summary_of(&record).unwrap();
        let mut bits = crate::space::allocator::free_bits(rest, SIZE / BLOCK).unwrap();
        bits[extent.start as usize / 64] |= 1 << (extent.start % 64);
        let (summary, record) = crate::space::allocator::record_of(&bits);
        let changed = crate::space::allocator::ChangedRegion { index: 0, summary, record };
        batch.put(Key::Region(0), &crate::core::state::region_record(&changed));
    });
    patient.is_cured_of(&format!("/d/five (inode {five}): 1 blocks in use"));
}

#[test]
fn damaged_records_of_free_blocks_are_made_again_and_the_volume_works_meanwhile() {
    let patient = Patient::new();
    let plants: [fn(&[u8], &mut Batch); 3] = [
        |record, batch| batch.put_with_wrong_sum(Key::Region(0), record),
        |record, batch| batch.put(Key::Region(0), &record[..record.len() - 1]),
        |record, batch| {
            let mut record = record.to_vec();
            record[1] ^= 1;
            batch.put(Key::Region(0), &record);
        },
    ];
    for (index, plant) in plants.into_iter().enumerate() {
        patient.plant(|catalog, batch| {
            plant(&catalog.get(Key::Region(0)).unwrap().unwrap(), batch);
        });
        if index == 0 {
            let volume = patient.open();
            assert!(volume.flaws()[0].contains("region 0"), "{:?}", volume.flaws());
            assert!(patient.is_whole(&volume, "/one", "/one"));
        }
        patient.is_cured_of("the record of free blocks in region 0");
    }
}

#[test]
fn a_block_of_two_files_is_told_for_both_and_left() {
    let patient = Patient::new();
    let (five, four) = (patient.number("/d/five"), patient.number("/a/b/c/four"));
    patient.plant(|catalog, batch| {
        let shared = Extent { offset: 100, ..first_extent(catalog, five) };
        batch.put(Key::Extent(four, 100), &extent_record(shared));
    });
    for options in [CHECK, REPAIR] {
        let report = patient.check(options);
        assert!(!report.is_repaired());
        for owner in [format!("/d/five (inode {five})"), format!("/a/b/c/four (inode {four})")] {
            let line = format!("{owner}: 3 of its blocks");
            assert!(text(&report).contains(&line), "{}", text(&report));
        }
    }
    // What it says helps.
    for path in ["/d/five", "/a/b/c/four"] {
        // The second frees what is free already, and is refused where that is noticed.
        let _ = patient.open().remove(path);
    }
    assert!(patient.check(REPAIR).is_repaired());
    patient.assert_sound();
}

#[test]
fn blocks_that_count_as_free_are_taken_however_many_are_shared() {
    let patient = Patient::new();
    let (five, four) = (patient.number("/d/five"), patient.number("/a/b/c/four"));
    patient.plant(|_, batch| {
        for index in 0..1001 {
            let (offset, start) = (100 + index, 9000 + 2 * index);
            let shared = Extent { offset, start, length: 1, state: State::Written };
            for file in [five, four] {
                batch.put(Key::Extent(file, offset), &extent_record(shared));
            }
        }
        batch.delete(Key::Region(0));
    });
    let count = |options| {
        let report = patient.check(options);
        assert_eq!((report.is_repaired(), report.unlisted), (false, 1), "{}", text(&report));
        text(&report).matches("count as free in region 0").count()
    };
    assert_eq!([count(CHECK), count(REPAIR), count(CHECK)], [1, 1, 0]);
}

#[test]
fn extents_where_none_can_be_are_dropped() {
    let patient = Patient::new();
    let [five, a] = ["/d/five", "/a"].map(|path| patient.number(path));
    let catalog_block = patient.superblock().catalog[0].start;
    let extent = |offset, start| Extent { offset, start, length: 2, state: State::Written };
    patient.plant(|_, batch| {
        let mut put = |inode, extent: Extent| {
            batch.put(Key::Extent(inode, extent.offset), &extent_record(extent));
        };
        put(five, extent(1, 9000));
        put(five, extent(50, catalog_block));
        put(five, extent(60, 16));
        put(five, extent(70, SIZE / BLOCK - 1));
        put(a, extent(0, 9100));
    });
    let lines =
        patient.is_cured_of("it has two blocks for the same bytes: 8192 bytes from byte 4096");
    assert_eq!(
        lines.matches("it has blocks of the superblock, the catalog or its log").count(),
        2,
        "{lines}"
    );
    assert!(lines.contains("an extent exceeds the device"), "{lines}");
    assert!(lines.contains(&format!("/a (inode {a}): it has blocks, and holds no bytes")));
    assert!(patient.is_whole(&patient.open(), "/d/five", "/d/five"));
}

#[test]
fn all_extents_of_what_is_no_file_are_dropped_at_once() {
    let patient = Patient::new();
    let a = patient.number("/a");
    patient.plant(|_, batch| {
        for offset in 0..101 {
            let extent =
                Extent { offset, start: 9000 + 2 * offset, length: 1, state: State::Written };
            batch.put(Key::Extent(a, offset), &extent_record(extent));
        }
    });
    let lines = patient.is_cured_of("it has blocks, and holds no bytes");
    assert_eq!(lines.matches("holds no bytes").count(), 101, "{lines}");
}

#[test]
fn blocks_of_a_file_that_is_gone_make_it_again() {
    let patient = Patient::new();
    let (d, five) = (patient.number("/d"), patient.number("/d/five"));
    patient.plant(|_, batch| {
        batch.delete(Key::Name(d, b"five"));
        batch.delete(Key::Inode(five));
    });
    patient.is_cured_of(&format!("inode {five}: the file's inode is lost"));
    let volume = patient.open();
    assert!(patient.is_whole(&volume, &format!("/lost+found/#{five}"), "/d/five"));
    assert_eq!(volume.inode(format!("/lost+found/#{five}"), Follow::No).unwrap().1.size, 12288);
}

#[test]
fn bytes_that_cannot_be_read_are_told_with_file_and_offset() {
    let patient = Patient::new();
    let extent = first_extent(&patient.catalog(), patient.number("/a/b/three"));
    let bad = (extent.start + 1) * BLOCK;
    let rule = Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO));
    patient.sim.inject(rule.within(bad, bad + 1));
    let deep = |repair| patient.check(CheckOptions { deep: true, repair, ..CHECK });
    for repair in [false, true] {
        let report = deep(repair);
        assert_eq!(report.findings.len(), 1, "{}", text(&report));
        let line = report.findings[0].to_string();
        assert!(line.starts_with("/a/b/three (inode "), "{line}");
        assert!(line.contains("4096 bytes from byte 4096 on cannot be read"), "{line}");
        assert!(!report.is_repaired());
    }
    patient.sim.clear_faults();
    assert!(deep(false).is_sound());
}
