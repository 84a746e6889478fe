//! Blocks that belong to two files or to none, and blocks that are in use and count as free.
use uringfs_device::backend::sim::{Fault, Rule, When};
use uringfs_device::{Errno, Op};

use super::*;

#[test]
fn leaked_blocks_are_freed() {
    let fixture = TestVolume::new();
    let free = fixture.open().statistics().free_blocks;
    let two = fixture.number("/a/two");
    fixture.plant(|_, batch| batch.delete(Key::Extent(two, 40)));
    let lines = fixture.assert_repairs("2 blocks of region 0");
    let lost = format!("/a/two (inode {two}): 8192 bytes that it had on the device are lost");
    assert!(lines.contains(&lost), "{lines}");
    assert_eq!(fixture.open().statistics().free_blocks, free + 2);
}

#[test]
fn a_repair_after_a_power_cut_while_the_volume_grew_finds_only_what_is_damaged() {
    let fixture = TestVolume::of_size(SIZE / 4 * 3);
    let one = fixture.number("/one");
    // A growing volume writes the superblock first.
    let mut superblock = fixture.superblock();
    superblock.total_blocks = SIZE / BLOCK;
    superblock.write(&BlockIo::new(&fixture.device)).unwrap();
    fixture.assert_sound();
    fixture.plant(|catalog, batch| {
        let mut inode = inode_of(catalog, one);
        inode.links += 1;
        batch.put(Key::Inode(one), &inode.to_record());
    });
    let lines = fixture.assert_repairs("it has 3 links, and should have 2");
    assert_eq!(lines.lines().count(), 1, "{lines}");
}

#[test]
fn files_that_lost_blocks_are_named() {
    let fixture = TestVolume::new();
    let [one, two, five] = ["/one", "/a/two", "/d/five"].map(|path| fixture.number(path));
    fixture.plant(|catalog, batch| {
        // The first file and the last have no extents left.
        for file in [one, five] {
            batch.delete(Key::Extent(file, 0));
        }
        let mut inode = inode_of(catalog, two);
        inode.blocks = 1;
        batch.put(Key::Inode(two), &inode.to_record());
    });
    let lines = fixture.assert_repairs(&format!("(inode {one}): 12288 bytes that it had"));
    assert!(lines.contains(&format!("(inode {five}): 12288 bytes that it had")), "{lines}");
    let expected =
        format!("(inode {two}): its inode counts 1 blocks, its extents have 5; corrected");
    assert!(lines.contains(&expected), "{lines}");
    assert_eq!(fixture.open().symlink_metadata("/a/two").unwrap().inode().blocks, 5);
}

#[test]
fn blocks_in_use_that_count_as_free_are_taken() {
    let fixture = TestVolume::new();
    let five = fixture.number("/d/five");
    fixture.plant(|_, batch| batch.delete(Key::Region(0)));
    let report = text(&fixture.check(CHECK));
    assert!(report.contains("blocks in use, from block 0 on, count as free in region 0"));
    fixture.assert_repairs("count as free");
    // The owner is named if there is only one.
    fixture.plant(|catalog, batch| {
        let extent = first_extent(catalog, five);
        let record = catalog.get(Key::Region(0)).unwrap().unwrap();
        let (_, rest) = crate::core::state::parse_region(&record).unwrap();
        let mut bits = crate::space::allocator::free_bits(rest, SIZE / BLOCK).unwrap();
        bits[extent.start as usize / 64] |= 1 << (extent.start % 64);
        let (summary, record) = crate::space::allocator::encode_free_bits(&bits);
        let changed = crate::space::allocator::ChangedRegion { index: 0, summary, record };
        batch.put(Key::Region(0), &crate::core::state::encode_region(&changed));
    });
    fixture.assert_repairs(&format!("/d/five (inode {five}): 1 blocks in use"));
}

#[test]
fn damaged_region_records_are_rebuilt_and_the_volume_works_before() {
    let fixture = TestVolume::new();
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
        fixture.plant(|catalog, batch| {
            plant(&catalog.get(Key::Region(0)).unwrap().unwrap(), batch);
        });
        if index == 0 {
            let volume = fixture.open();
            assert!(volume.warnings()[0].contains("region 0"), "{:?}", volume.warnings());
            assert!(fixture.is_whole(&volume, "/one", "/one"));
        }
        fixture.assert_repairs("the record of free blocks in region 0");
    }
}

#[test]
fn a_block_of_two_files_is_reported_for_both_and_left() {
    let fixture = TestVolume::new();
    let (five, four) = (fixture.number("/d/five"), fixture.number("/a/b/c/four"));
    fixture.plant(|catalog, batch| {
        let shared = Extent { offset: 100, ..first_extent(catalog, five) };
        batch.put(Key::Extent(four, 100), &extent_record(shared));
    });
    for options in [CHECK, REPAIR] {
        let report = fixture.check(options);
        assert!(!report.is_repaired());
        for owner in [format!("/d/five (inode {five})"), format!("/a/b/c/four (inode {four})")] {
            let line = format!("{owner}: 3 of its blocks");
            assert!(text(&report).contains(&line), "{}", text(&report));
        }
    }
    // The advice in the finding helps.
    for path in ["/d/five", "/a/b/c/four"] {
        // The second removal frees blocks that are free already: it is refused if that is noticed.
        let _ = fixture.open().remove_file(path);
    }
    assert!(fixture.check(REPAIR).is_repaired());
    fixture.assert_sound();
}

#[test]
fn many_shared_blocks_do_not_hide_blocks_that_count_as_free() {
    let fixture = TestVolume::new();
    let (five, four) = (fixture.number("/d/five"), fixture.number("/a/b/c/four"));
    fixture.plant(|_, batch| {
        for index in 0..1001 {
            let (offset, start) = (100 + index, 9000 + 2 * index);
            let shared = Extent { offset, start, length: 1, state: ExtentState::Written };
            for file in [five, four] {
                batch.put(Key::Extent(file, offset), &extent_record(shared));
            }
        }
        batch.delete(Key::Region(0));
    });
    let count = |options| {
        let report = fixture.check(options);
        assert_eq!((report.is_repaired(), report.unlisted), (false, 1), "{}", text(&report));
        text(&report).matches("count as free in region 0").count()
    };
    assert_eq!([count(CHECK), count(REPAIR), count(CHECK)], [1, 1, 0]);
}

#[test]
fn impossible_extents_are_dropped() {
    let fixture = TestVolume::new();
    let [five, a] = ["/d/five", "/a"].map(|path| fixture.number(path));
    let catalog_block = fixture.superblock().catalog[0].start;
    let extent = |offset, start| Extent { offset, start, length: 2, state: ExtentState::Written };
    fixture.plant(|_, batch| {
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
        fixture.assert_repairs("it has two blocks for the same bytes: 8192 bytes from byte 4096");
    assert_eq!(
        lines.matches("it has blocks of the superblock, the catalog or its log").count(),
        2,
        "{lines}"
    );
    assert!(lines.contains("an extent exceeds the device"), "{lines}");
    assert!(lines.contains(&format!("/a (inode {a}): it has blocks, but is not a regular file")));
    assert!(fixture.is_whole(&fixture.open(), "/d/five", "/d/five"));
}

#[test]
fn all_extents_of_a_directory_are_dropped_at_once() {
    let fixture = TestVolume::new();
    let a = fixture.number("/a");
    fixture.plant(|_, batch| {
        for offset in 0..101 {
            let extent =
                Extent { offset, start: 9000 + 2 * offset, length: 1, state: ExtentState::Written };
            batch.put(Key::Extent(a, offset), &extent_record(extent));
        }
    });
    let lines = fixture.assert_repairs("it has blocks, but is not a regular file");
    assert_eq!(lines.matches("not a regular file").count(), 101, "{lines}");
}

#[test]
fn a_file_without_an_inode_is_recreated_from_its_extents() {
    let fixture = TestVolume::new();
    let (d, five) = (fixture.number("/d"), fixture.number("/d/five"));
    fixture.plant(|_, batch| {
        batch.delete(Key::Name(d, b"five"));
        batch.delete(Key::Inode(five));
    });
    fixture.assert_repairs(&format!("inode {five}: the file's inode is lost"));
    let volume = fixture.open();
    assert!(fixture.is_whole(&volume, &format!("/lost+found/#{five}"), "/d/five"));
    assert_eq!(
        volume.symlink_metadata(format!("/lost+found/#{five}")).unwrap().inode().size,
        12288
    );
}

#[test]
fn unreadable_bytes_are_reported_with_file_and_offset() {
    let fixture = TestVolume::new();
    let extent = first_extent(&fixture.catalog(), fixture.number("/a/b/three"));
    let bad = (extent.start + 1) * BLOCK;
    let rule = Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO));
    fixture.sim.inject(rule.within(bad, bad + 1));
    let deep = |repair| fixture.check(CheckOptions { deep: true, repair, ..CHECK });
    for repair in [false, true] {
        let report = deep(repair);
        assert_eq!(report.findings.len(), 1, "{}", text(&report));
        let line = report.findings[0].to_string();
        assert!(line.starts_with("/a/b/three (inode "), "{line}");
        assert!(line.contains("4096 bytes from byte 4096 on cannot be read"), "{line}");
        assert!(!report.is_repaired());
    }
    fixture.sim.clear_faults();
    assert!(deep(false).is_sound());
}
