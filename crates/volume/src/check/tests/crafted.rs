//! Records that no volume of ours writes, under right sums, as an image of a stranger may have them: each is told of
//! as damaged, and what uses the volume all the same neither goes round in circles nor writes where no file lies.

use super::*;
use crate::blocks::Run;
use crate::core::state::NEXT_INODE_KEY;
use crate::error::Error;
use crate::namespace::directory::{DirectoryEntry, Rename};
use crate::space::system_zone::SystemZone;

impl TestVolume {
    /// Gives a file of one extent, `/d/five`, an extent behind it.
    fn plant_extent(&self, extent: Extent) {
        let number = self.number("/d/five");
        self.plant(|catalog, batch| {
            let mut inode = inode_of(catalog, number);
            inode.size = extent.end() * BLOCK;
            batch.put(Key::Inode(number), &inode.to_record());
            batch.put(Key::Extent(number, extent.offset), &extent_record(extent));
        });
    }

    /// Gives a directory a name as no call would.
    fn plant_name(&self, directory: u64, name: &[u8], number: u64, kind: FileKind) {
        self.plant(|_, batch| {
            batch.put(Key::Name(directory, name), &encode_entry(InodeNumber(number), kind));
        });
    }
}

/// The names of a directory, and those that are damaged.
fn list(volume: &Volume, path: &str) -> (Vec<Vec<u8>>, Vec<Error>) {
    let (mut names, mut damaged, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..1000 {
        match volume.entries(path, &after) {
            Ok(entries) => {
                let Some(DirectoryEntry { name, .. }) = entries.last() else {
                    return (names, damaged);
                };
                after.clone_from(name);
                names.extend(entries.into_iter().map(|entry| entry.name));
            }
            Err(error) => {
                after = error.damaged_name().expect("the listing goes on").to_vec();
                damaged.push(error);
            }
        }
    }
    panic!("the names of {path} do not end");
}

#[test]
fn an_extent_on_blocks_that_no_file_can_have_is_damaged_and_not_written_to() {
    let superblock = TestVolume::new().superblock();
    let (catalog, log) = (superblock.catalog[0], superblock.log);
    let places = [
        Run { start: 0, length: 1 },
        Run { start: 31, length: 1 },
        Run { start: catalog.start, length: 2 },
        Run { start: catalog.end() - 1, length: 1 },
        Run { start: log.start, length: 1 },
        // Free, but for its first block.
        Run { start: log.end() - 1, length: 8 },
    ];
    for Run { start, length } in places {
        let patient = TestVolume::new();
        patient.plant_extent(Extent { offset: 8, start, length, state: State::Written });
        let volume = patient.open();
        let error = volume.open("/d/five", OpenOptions::direct()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{start}: {error}");
        let number = volume.inode("/d/five", Follow::No).unwrap().0.0;
        assert!(error.to_string().contains(&format!("inode {number}")), "{error}");
        // Nor are the blocks anybody's when the file goes.
        volume.remove("/d/five").unwrap();
        patient.write(&volume, "/new", 0, 9000);
        drop(volume);
        let volume = patient.open();
        assert!(patient.is_whole(&volume, "/new", "/new"));
        drop(volume);
        patient.assert_repairs("it has blocks of the superblock, the catalog or its log");
    }
}

#[test]
fn blocks_that_no_file_can_have_are_not_given_out_though_they_count_as_free() {
    let patient = TestVolume::new();
    patient.plant(|_, batch| batch.delete(Key::Region(0)));
    let volume = patient.open();
    let zone = SystemZone::of(&patient.superblock());
    for n in 0..40 {
        patient.write(&volume, &format!("/d/{n}"), 0, 64 * BLOCK as usize);
    }
    volume.sync().unwrap();
    drop(volume);
    let catalog = patient.catalog();
    for (key, record) in catalog.scan(Table::Extents, Vec::new(), None, 4096).unwrap() {
        let extent = ExtentRecord::parse(&record, SIZE / BLOCK).unwrap();
        assert!(!zone.overlaps(extent.run()), "{key:?}: {extent:?}");
    }
}

#[test]
fn an_extent_outside_of_the_volume_or_over_another_is_damaged() {
    let total = SIZE / BLOCK;
    let written = |offset, start, length| Extent { offset, start, length, state: State::Written };
    for extent in [
        written(8, total, 1),
        written(8, total - 1, 2),
        written(8, 0, (1 << 48) - 1),
        written(8, (1 << 63) - 1, 1),
        // Over the first one of the file.
        written(2, total - 8, 1),
    ] {
        let patient = TestVolume::new();
        patient.plant_extent(extent);
        let volume = patient.open();
        let error = volume.open("/d/five", OpenOptions::direct()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{extent:?}: {error}");
    }
}

#[test]
fn names_of_a_directory_end_though_one_cannot_be() {
    let long = [b'x'; 256];
    let names: [&[u8]; 8] = [b"", b"\0", b".", b"..", b"a/b", b"/", b"zero\0", &long];
    for name in names {
        let patient = TestVolume::new();
        let number = patient.number("/d");
        patient.plant_name(number, name, number, FileKind::Directory);
        let volume = patient.open();
        let (listed, damaged) = list(&volume, "/d");
        assert_eq!(listed, [b"five".to_vec(), b"one".to_vec()], "{name:?}");
        let [error] = &damaged[..] else { panic!("{name:?}: {damaged:?}") };
        assert_eq!(error.kind(), ErrorKind::Damaged, "{name:?}: {error}");
        for path in [&b"/d/"[..], b"/d/x/../"] {
            let found = volume.inode([path, name].concat(), Follow::No);
            assert!(found.is_err() || matches!(name, b"" | b"." | b".." | b"/"), "{name:?}");
        }
        drop(volume);
        patient.assert_repairs("its name cannot be read");
    }
}

#[test]
fn names_that_cannot_be_stand_alone_and_in_a_row() {
    let patient = TestVolume::new();
    let number = patient.number("/d");
    for name in [&b""[..], b".", b".."] {
        patient.plant_name(number, name, number, FileKind::Directory);
    }
    patient.plant(|_, batch| {
        batch.delete(Key::Name(number, b"five"));
        batch.delete(Key::Name(number, b"one"));
    });
    let volume = patient.open();
    let (listed, damaged) = list(&volume, "/d");
    assert_eq!((listed.len(), damaged.len()), (0, 3));
    // It holds what cannot be seen.
    assert!(volume.remove_directory("/d").is_err());
}

#[test]
fn a_directory_in_a_circle_is_damaged_wherever_it_is_met() {
    // The root, the directory itself, one above it, and one elsewhere.
    for inner in ["/", "/a/b/c", "/a", "/d"] {
        let patient = TestVolume::new();
        let (directory, number) = (patient.number("/a/b/c"), patient.number(inner));
        patient.plant_name(directory, b"x", number, FileKind::Directory);
        let volume = patient.open();
        let is_damaged = |what: &str, result: Result<(), Error>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{what} of {inner}: {error}");
        };
        is_damaged("entries", volume.entries("/a/b/c/x", b"").map(drop));
        is_damaged("inode", volume.inode("/a/b/c/x", Follow::No).map(drop));
        is_damaged("deeper", volume.inode("/a/b/c/x/b", Follow::No).map(drop));
        is_damaged("remove", volume.remove("/a/b/c/x"));
        is_damaged("remove_directory", volume.remove_directory("/a/b/c/x"));
        is_damaged("rename", volume.rename("/a/b/c/x", "/y", Rename::Replace));
        is_damaged("rename onto", volume.rename("/d", "/a/b/c/x", Rename::Replace));
        is_damaged("exchange", volume.rename("/one", "/a/b/c/x", Rename::Exchange));
        assert!(volume.inode("/a/b/c/..", Follow::No).is_ok());
        assert_eq!(list(&volume, "/a/b/c").0, [b"four".to_vec(), b"x".to_vec()]);
        drop(volume);
        let repaired = patient.check(REPAIR);
        assert!(repaired.is_repaired() && !repaired.is_sound(), "{}", text(&repaired));
        patient.assert_sound();
    }
    let patient = TestVolume::new();
    patient.plant_name(InodeNumber::ROOT.0, b"x", InodeNumber::ROOT.0, FileKind::Directory);
    let error = patient.open().entries("/x", b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
}

#[test]
fn numbers_that_no_inode_has_are_damage_in_every_table_and_repair_ends() {
    for number in [0, u64::MAX] {
        let file = Inode::new(FileKind::File, 0o600).to_record();
        let mut directory = Inode::new(FileKind::Directory, 0o700);
        directory.parent = InodeNumber(number);
        let directory = directory.to_record();
        let extent = Extent { offset: 0, start: 10_000, length: 1, state: State::Written };
        let name = encode_entry(InodeNumber(2), FileKind::Directory);
        let records: [(Key<'_>, Vec<u8>); 6] = [
            (Key::Inode(number), file),
            (Key::Inode(number), directory),
            (Key::Name(number, b"x"), name),
            (Key::Extent(number, 0), extent_record(extent)),
            (Key::Xattr(number, b"user.x"), Vec::new()),
            (Key::Orphan(number), Vec::new()),
        ];
        for (key, record) in records {
            let patient = TestVolume::new();
            patient.plant(|_, batch| batch.put(key, &record));
            let volume = patient.open();
            volume.make_directory("/new", 0o700).unwrap();
            volume.sync().unwrap();
            drop(volume);
            patient.assert_repairs("number that no inode has");
        }
    }
}

#[test]
fn a_directory_whose_parent_cannot_be_is_damaged() {
    let patient = TestVolume::new();
    let number = patient.number("/d");
    patient.plant(|catalog, batch| {
        let mut inode = inode_of(catalog, number);
        inode.parent = InodeNumber(u64::MAX);
        batch.put(Key::Inode(number), &inode.to_record());
    });
    let volume = patient.open();
    for path in ["/d", "/d/..", "/d/five"] {
        let error = volume.inode(path, Follow::No).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{path}: {error}");
    }
}

#[test]
fn a_new_file_has_a_number_that_none_has_whatever_the_catalog_says() {
    for next in [0, 1, 2, 5] {
        let patient = TestVolume::new();
        let highest = patient.number("/a/pipe");
        patient.plant(|_, batch| batch.put(Key::State(NEXT_INODE_KEY), &u64::to_be_bytes(next)));
        let volume = patient.open();
        assert!(!volume.flaws().is_empty());
        volume.make_directory("/new", 0o700).unwrap();
        assert!(volume.inode("/new", Follow::No).unwrap().0.0 > highest);
        assert!(patient.is_whole(&volume, "/d/five", "/d/five"));
        drop(volume);
        patient.assert_sound();
    }
}

#[test]
fn a_volume_that_says_all_numbers_were_given_is_repaired() {
    let patient = TestVolume::new();
    patient.plant(|_, batch| batch.put(Key::State(NEXT_INODE_KEY), &u64::MAX.to_be_bytes()));
    let error = patient.open().make_directory("/new", 0o700).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    patient.assert_repairs("the number of the next inode");
    patient.open().make_directory("/new", 0o700).unwrap();
}

#[test]
fn links_that_were_miscounted_are_no_panic() {
    for links in [1, u32::MAX] {
        let patient = TestVolume::new();
        let [a, b] = ["/a", "/a/b"].map(|path| patient.number(path));
        patient.plant(|catalog, batch| {
            for number in [a, b] {
                let mut inode = inode_of(catalog, number);
                inode.links = links;
                batch.put(Key::Inode(number), &inode.to_record());
            }
        });
        let volume = patient.open();
        for name in ["/a/new", "/a/newer", "/a/b/new"] {
            let _ = volume.make_directory(name, 0o700);
        }
        let _ = volume.rename("/a/new", "/a/newer", Rename::Replace);
        let _ = volume.rename("/a/b", "/b", Rename::Replace);
        let _ = volume.remove_directory("/a/newer");
        let _ = volume.sync();
        drop(volume);
        let repaired = patient.check(REPAIR);
        assert!(repaired.is_repaired(), "{}", text(&repaired));
        patient.assert_sound();
    }
}
