//! Invalid records with valid checksums, as in a crafted image. Each is reported as damage. A volume that is used all
//! the same neither loops nor writes to blocks that belong to no file.

use super::*;
use crate::blocks::Run;
use crate::core::state::NEXT_INODE_KEY;
use crate::error::Error;
use crate::namespace::directory::Rename;
use crate::space::system_zone::SystemZone;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

impl TestVolume {
    /// Adds an extent after the only one of `/d/five`.
    fn plant_extent(&self, extent: Extent) {
        let number = self.number("/d/five");
        self.plant(|catalog, batch| {
            let mut inode = inode_of(catalog, number);
            inode.size = extent.end() * BLOCK;
            batch.put(Key::Inode(number), &inode.to_record());
            batch.put(Key::Extent(number, extent.offset), &extent_record(extent));
        });
    }

    /// Adds an entry that no call would make.
    fn plant_name(&self, directory: u64, name: &[u8], number: u64, kind: FileType) {
        self.plant(|_, batch| {
            batch.put(Key::Name(directory, name), &encode_entry(InodeNumber(number), kind));
        });
    }
}

/// The valid names of a directory, and the errors of the damaged ones.
fn list(volume: &Volume, path: &str) -> (Vec<Vec<u8>>, Vec<Error>) {
    let (mut names, mut damaged) = (Vec::new(), Vec::new());
    for entry in volume.read_dir(path).unwrap() {
        match entry {
            Ok(entry) => names.push(entry.file_name().into_vec()),
            Err(error) => {
                assert!(error.damaged_name().is_some(), "the listing goes on");
                damaged.push(error);
            }
        }
        assert!(names.len() + damaged.len() < 1000, "the names of {path} do not end");
    }
    (names, damaged)
}

#[test]
fn an_extent_in_the_system_zone_is_damage_and_not_written_to() {
    let superblock = TestVolume::new().superblock();
    let (catalog, log) = (superblock.catalog[0], superblock.log);
    let places = [
        Run { start: 0, length: 1 },
        Run { start: 31, length: 1 },
        Run { start: catalog.start, length: 2 },
        Run { start: catalog.end() - 1, length: 1 },
        Run { start: log.start, length: 1 },
        // All but the first block are free.
        Run { start: log.end() - 1, length: 8 },
    ];
    for Run { start, length } in places {
        let fixture = TestVolume::new();
        fixture.plant_extent(Extent { offset: 8, start, length, state: ExtentState::Written });
        let volume = fixture.open();
        let error = volume
            .open_with("/d/five", OpenOptions::new().read(true).write(true).direct(true))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{start}: {error}");
        let number = volume.symlink_metadata("/d/five").unwrap().ino();
        assert!(error.to_string().contains(&format!("inode {number}")), "{error}");
        // Removing the file does not free the blocks.
        volume.remove_file("/d/five").unwrap();
        fixture.write(&volume, "/new", 0, 9000);
        drop(volume);
        let volume = fixture.open();
        assert!(fixture.is_whole(&volume, "/new", "/new"));
        drop(volume);
        fixture.assert_repairs("it has blocks of the superblock, the catalog or its log");
    }
}

#[test]
fn system_blocks_that_count_as_free_are_not_allocated() {
    let fixture = TestVolume::new();
    fixture.plant(|_, batch| batch.delete(Key::Region(0)));
    let volume = fixture.open();
    let zone = SystemZone::from_superblock(&fixture.superblock());
    for n in 0..40 {
        fixture.write(&volume, &format!("/d/{n}"), 0, 64 * BLOCK as usize);
    }
    volume.sync().unwrap();
    drop(volume);
    let catalog = fixture.catalog();
    for (key, record) in catalog.scan(Table::Extents, Vec::new(), None, 4096).unwrap() {
        let extent = ExtentRecord::parse(&record, SIZE / BLOCK).unwrap();
        assert!(!zone.overlaps(extent.run()), "{key:?}: {extent:?}");
    }
}

#[test]
fn an_extent_outside_the_volume_or_over_another_is_damage() {
    let total = SIZE / BLOCK;
    let written =
        |offset, start, length| Extent { offset, start, length, state: ExtentState::Written };
    for extent in [
        written(8, total, 1),
        written(8, total - 1, 2),
        written(8, 0, (1 << 48) - 1),
        written(8, (1 << 63) - 1, 1),
        // Overlaps the first extent of the file.
        written(2, total - 8, 1),
    ] {
        let fixture = TestVolume::new();
        fixture.plant_extent(extent);
        let volume = fixture.open();
        let error = volume
            .open_with("/d/five", OpenOptions::new().read(true).write(true).direct(true))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{extent:?}: {error}");
    }
}

#[test]
fn a_listing_with_an_invalid_name_ends() {
    let long = [b'x'; 256];
    let names: [&[u8]; 8] = [b"", b"\0", b".", b"..", b"a/b", b"/", b"zero\0", &long];
    for name in names {
        let fixture = TestVolume::new();
        let number = fixture.number("/d");
        fixture.plant_name(number, name, number, FileType::Directory);
        let volume = fixture.open();
        let (listed, damaged) = list(&volume, "/d");
        assert_eq!(listed, [b"five".to_vec(), b"one".to_vec()], "{name:?}");
        let [error] = &damaged[..] else { panic!("{name:?}: {damaged:?}") };
        assert_eq!(error.kind(), ErrorKind::Damaged, "{name:?}: {error}");
        for path in [&b"/d/"[..], b"/d/x/../"] {
            let found = volume.symlink_metadata(OsStr::from_bytes(&[path, name].concat()));
            assert!(found.is_err() || matches!(name, b"" | b"." | b".." | b"/"), "{name:?}");
        }
        drop(volume);
        fixture.assert_repairs("the record of this name cannot be read");
    }
}

#[test]
fn a_listing_of_only_invalid_names_ends() {
    let fixture = TestVolume::new();
    let number = fixture.number("/d");
    for name in [&b""[..], b".", b".."] {
        fixture.plant_name(number, name, number, FileType::Directory);
    }
    fixture.plant(|_, batch| {
        batch.delete(Key::Name(number, b"five"));
        batch.delete(Key::Name(number, b"one"));
    });
    let volume = fixture.open();
    let (listed, damaged) = list(&volume, "/d");
    assert_eq!((listed.len(), damaged.len()), (0, 3));
    // It is not empty, though its entries are damaged.
    assert!(volume.remove_dir("/d").is_err());
}

#[test]
fn a_directory_in_a_cycle_is_damage_for_every_call() {
    // The root, the directory itself, one above it, and one elsewhere.
    for inner in ["/", "/a/b/c", "/a", "/d"] {
        let fixture = TestVolume::new();
        let (directory, number) = (fixture.number("/a/b/c"), fixture.number(inner));
        fixture.plant_name(directory, b"x", number, FileType::Directory);
        let volume = fixture.open();
        let is_damaged = |what: &str, result: Result<(), Error>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{what} of {inner}: {error}");
        };
        is_damaged("entries", volume.read_dir("/a/b/c/x").map(drop));
        is_damaged("inode", volume.symlink_metadata("/a/b/c/x").map(drop));
        is_damaged("deeper", volume.symlink_metadata("/a/b/c/x/b").map(drop));
        is_damaged("remove", volume.remove_file("/a/b/c/x"));
        is_damaged("remove_directory", volume.remove_dir("/a/b/c/x"));
        is_damaged("rename", volume.rename("/a/b/c/x", "/y"));
        is_damaged("rename onto", volume.rename("/d", "/a/b/c/x"));
        is_damaged("exchange", volume.rename_with("/one", "/a/b/c/x", Rename::Exchange));
        assert!(volume.symlink_metadata("/a/b/c/..").is_ok());
        assert_eq!(list(&volume, "/a/b/c").0, [b"four".to_vec(), b"x".to_vec()]);
        drop(volume);
        let repaired = fixture.check(REPAIR);
        assert!(repaired.is_repaired() && !repaired.is_sound(), "{}", text(&repaired));
        fixture.assert_sound();
    }
    let fixture = TestVolume::new();
    fixture.plant_name(InodeNumber::ROOT.0, b"x", InodeNumber::ROOT.0, FileType::Directory);
    let error = fixture.open().read_dir("/x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
}

#[test]
fn invalid_inode_numbers_are_damage_in_every_table() {
    for number in [0, u64::MAX] {
        let file = Inode::new(FileType::File, 0o600).to_record();
        let mut directory = Inode::new(FileType::Directory, 0o700);
        directory.parent = InodeNumber(number);
        let directory = directory.to_record();
        let extent = Extent { offset: 0, start: 10_000, length: 1, state: ExtentState::Written };
        let name = encode_entry(InodeNumber(2), FileType::Directory);
        let records: [(Key<'_>, Vec<u8>); 6] = [
            (Key::Inode(number), file),
            (Key::Inode(number), directory),
            (Key::Name(number, b"x"), name),
            (Key::Extent(number, 0), extent_record(extent)),
            (Key::Xattr(number, b"user.x"), Vec::new()),
            (Key::Orphan(number), Vec::new()),
        ];
        for (key, record) in records {
            let fixture = TestVolume::new();
            fixture.plant(|_, batch| batch.put(key, &record));
            let volume = fixture.open();
            volume.create_dir_with_mode("/new", 0o700).unwrap();
            volume.sync().unwrap();
            drop(volume);
            fixture.assert_repairs("inode number is invalid");
        }
    }
}

#[test]
fn a_key_that_no_record_has_is_not_cached() {
    let fixture = TestVolume::new();
    let orphan = fixture.number("/a/pipe") + 1;
    let long = |number: u64| [number.to_be_bytes().to_vec(), vec![1; 70_000]].concat();
    fixture.plant(|_, batch| {
        batch.change(Table::Inodes, &long(5), Some(b"x"));
        // A commit deletes its records.
        batch.put(Key::Inode(orphan), &Inode::new(FileType::File, 0o600).to_record());
        batch.put(Key::Orphan(orphan), b"");
        batch.change(Table::Xattrs, &long(orphan), Some(b"x"));
    });
    let volume = fixture.open();
    // The second look-up reads the inodes of the group.
    for path in ["/one", "/a/two", "/a/b/three", "/d/five"] {
        assert!(volume.symlink_metadata(path).is_ok(), "{path}");
    }
    volume.create_dir("/new").unwrap();
    volume.sync().unwrap();
    drop(volume);
    let repaired = fixture.check(REPAIR);
    assert!(repaired.is_repaired() && !repaired.is_sound(), "{}", text(&repaired));
    fixture.assert_sound();
}

#[test]
fn a_directory_with_an_invalid_parent_is_damage() {
    let fixture = TestVolume::new();
    let number = fixture.number("/d");
    fixture.plant(|catalog, batch| {
        let mut inode = inode_of(catalog, number);
        inode.parent = InodeNumber(u64::MAX);
        batch.put(Key::Inode(number), &inode.to_record());
    });
    let volume = fixture.open();
    for path in ["/d", "/d/..", "/d/five"] {
        let error = volume.symlink_metadata(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{path}: {error}");
    }
}

#[test]
fn a_new_file_gets_an_unused_number_whatever_the_catalog_says() {
    for next in [0, 1, 2, 5] {
        let fixture = TestVolume::new();
        let highest = fixture.number("/a/pipe");
        fixture.plant(|_, batch| batch.put(Key::State(NEXT_INODE_KEY), &u64::to_be_bytes(next)));
        let volume = fixture.open();
        assert!(!volume.warnings().is_empty());
        volume.create_dir_with_mode("/new", 0o700).unwrap();
        assert!(volume.symlink_metadata("/new").unwrap().ino() > highest);
        assert!(fixture.is_whole(&volume, "/d/five", "/d/five"));
        drop(volume);
        fixture.assert_sound();
    }
}

#[test]
fn a_volume_without_inode_numbers_left_is_repaired() {
    let fixture = TestVolume::new();
    fixture.plant(|_, batch| batch.put(Key::State(NEXT_INODE_KEY), &u64::MAX.to_be_bytes()));
    let error = fixture.open().create_dir_with_mode("/new", 0o700).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    fixture.assert_repairs("the number of the next inode");
    fixture.open().create_dir_with_mode("/new", 0o700).unwrap();
}

#[test]
fn wrong_link_counts_do_not_panic() {
    for links in [1, u32::MAX] {
        let fixture = TestVolume::new();
        let [a, b] = ["/a", "/a/b"].map(|path| fixture.number(path));
        fixture.plant(|catalog, batch| {
            for number in [a, b] {
                let mut inode = inode_of(catalog, number);
                inode.links = links;
                batch.put(Key::Inode(number), &inode.to_record());
            }
        });
        let volume = fixture.open();
        for name in ["/a/new", "/a/newer", "/a/b/new"] {
            let _ = volume.create_dir_with_mode(name, 0o700);
        }
        let _ = volume.rename("/a/new", "/a/newer");
        let _ = volume.rename("/a/b", "/b");
        let _ = volume.remove_dir("/a/newer");
        let _ = volume.sync();
        drop(volume);
        let repaired = fixture.check(REPAIR);
        assert!(repaired.is_repaired(), "{}", text(&repaired));
        fixture.assert_sound();
    }
}
