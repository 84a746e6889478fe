//! Wrong records: names, inodes, links, attributes.

use super::*;
use crate::core::state::SUPERBLOCK_KEY;
use std::os::unix::ffi::OsStringExt;

#[test]
fn wrong_link_counts_are_set() {
    let fixture = TestVolume::new();
    let numbers = ["/one", "/a", "/"].map(|path| fixture.number(path));
    fixture.plant(|catalog, batch| {
        for number in numbers {
            let mut inode = inode_of(catalog, number);
            inode.links += 5;
            batch.put(Key::Inode(number), &inode.to_record());
        }
    });
    let lines = fixture.assert_repairs("it has 7 links, and should have 2");
    assert!(lines.contains(&format!("(inode {}): it has 8 links, and should have 3", numbers[1])));
    assert!(lines.contains("/ (inode 1): it has 9 links, and should have 4"), "{lines}");
    let volume = fixture.open();
    assert_eq!(volume.symlink_metadata("/one").unwrap().inode().links, 2);
}

#[test]
fn a_name_without_an_inode_is_removed() {
    let fixture = TestVolume::new();
    let number = fixture.number("/a");
    fixture.plant(|_, batch| {
        let record = encode_entry(InodeNumber(999), FileType::File);
        batch.put(Key::Name(number, b"ghost"), &record);
        batch.put(Key::State(crate::core::state::NEXT_INODE_KEY), &2000u64.to_be_bytes());
    });
    fixture.assert_repairs("/a/ghost: its inode does not exist");
    assert!(fixture.open().symlink_metadata("/a/ghost").is_err());
}

#[test]
fn files_and_directories_without_a_name_go_to_lost_and_found() {
    let fixture = TestVolume::new();
    let numbers = ["/", "/d", "/a", "/a/two", "/a/b"].map(|path| fixture.number(path));
    let [root, d, a, two, b] = numbers;
    fixture.plant(|_, batch| {
        batch.delete(Key::Name(root, b"d"));
        batch.delete(Key::Name(a, b"two"));
        batch.delete(Key::Name(a, b"b"));
    });
    let lines = fixture.assert_repairs(&format!("inode {two}: it has no name"));
    assert!(lines.contains(&format!("put into /lost+found as #{d}")), "{lines}");
    let volume = fixture.open();
    assert!(fixture.is_whole(&volume, &format!("/lost+found/#{two}"), "/a/two"));
    assert!(fixture.is_whole(&volume, &format!("/lost+found/#{d}/five"), "/d/five"));
    assert!(fixture.is_whole(&volume, &format!("/lost+found/#{b}/c/four"), "/a/b/c/four"));
    drop(volume);
    // The next ones go into the same directory.
    fixture.plant(|_, batch| batch.delete(Key::Name(root, b"a")));
    fixture.assert_repairs(&format!("inode {a}: it has no name"));
    assert!(fixture.open().symlink_metadata(format!("/lost+found/#{a}/link")).is_ok());
}

#[test]
fn a_name_of_another_kind_is_set() {
    let fixture = TestVolume::new();
    let (root, one) = (fixture.number("/"), fixture.number("/one"));
    fixture.plant(|_, batch| {
        let record = encode_entry(InodeNumber(one), FileType::Socket);
        batch.put(Key::Name(root, b"one"), &record);
    });
    fixture.assert_repairs("/one: its inode is of another kind than its entry says");
    assert!(fixture.is_whole(&fixture.open(), "/one", "/one"));
}

#[test]
fn a_name_inside_a_file_is_removed() {
    let fixture = TestVolume::new();
    let (one, five) = (fixture.number("/one"), fixture.number("/d/five"));
    fixture.plant(|catalog, batch| {
        let record = encode_entry(InodeNumber(five), FileType::File);
        batch.put(Key::Name(one, b"inside"), &record);
        let mut inode = inode_of(catalog, five);
        inode.links = 2;
        batch.put(Key::Inode(five), &inode.to_record());
    });
    fixture.assert_repairs("/one/inside: its parent is not a directory");
    assert!(fixture.is_whole(&fixture.open(), "/d/five", "/d/five"));
}

#[test]
fn a_directory_has_one_name_and_the_right_parent() {
    let fixture = TestVolume::new();
    let [root, a, b, d] = ["/", "/a", "/a/b", "/d"].map(|path| fixture.number(path));
    fixture.plant(|catalog, batch| {
        let record = encode_entry(InodeNumber(b), FileType::Directory);
        batch.put(Key::Name(d, b"again"), &record);
        batch.put(Key::Name(a, b"twice"), &record);
        batch.put(Key::Name(a, b"root"), &encode_entry(InodeNumber(root), FileType::Directory));
        let mut inode = inode_of(catalog, d);
        inode.parent = InodeNumber(a);
        batch.put(Key::Inode(d), &inode.to_record());
    });
    let lines = fixture.assert_repairs("/d/again: the directory has a second name");
    assert!(lines.contains("/a/twice: the directory has a second name"), "{lines}");
    assert!(lines.contains("/a/root: the directory has a second name"), "{lines}");
    assert!(lines.contains("/d: the directory's inode has another parent"), "{lines}");
    let volume = fixture.open();
    assert_eq!(volume.symlink_metadata("/d/..").unwrap().ino(), InodeNumber::ROOT.0);
    assert!(fixture.is_whole(&volume, "/a/b/three", "/a/b/three"));
}

#[test]
fn directories_inside_themselves_go_to_lost_and_found() {
    let fixture = TestVolume::new();
    let [a, b, c] = ["/a", "/a/b", "/a/b/c"].map(|path| fixture.number(path));
    fixture.plant(|catalog, batch| {
        batch.delete(Key::Name(a, b"b"));
        batch.put(Key::Name(c, b"b"), &encode_entry(InodeNumber(b), FileType::Directory));
        for (number, parent, links) in [(a, 1, 2), (b, c, 3), (c, b, 3)] {
            let mut inode = inode_of(catalog, number);
            (inode.parent, inode.links) = (InodeNumber(parent), links);
            batch.put(Key::Inode(number), &inode.to_record());
        }
    });
    fixture.assert_repairs("the directory is inside itself");
    let volume = fixture.open();
    assert!(fixture.is_whole(&volume, &format!("/lost+found/#{b}/c/four"), "/a/b/c/four"));
}

#[test]
fn orphan_records_match_orphans() {
    let fixture = TestVolume::new();
    let (five, four) = (fixture.number("/d/five"), fixture.number("/a/b/c/four"));
    fixture.plant(|catalog, batch| {
        // One with a name, one that does not exist, and one without a name and without a record.
        batch.put(Key::Orphan(five), b"");
        batch.put(Key::Orphan(777), b"");
        let mut inode = inode_of(catalog, four);
        inode.links = 0;
        batch.put(Key::Inode(four), &inode.to_record());
    });
    let lines = fixture.assert_repairs("/d/five (inode");
    assert!(lines.contains("would be deleted, but has a name"), "{lines}");
    assert!(
        lines.contains("inode 777: it is recorded as an orphan, but does not exist"),
        "{lines}"
    );
    let volume = fixture.open();
    assert!(fixture.is_whole(&volume, "/d/five", "/d/five"));
    assert!(fixture.is_whole(&volume, "/a/b/c/four", "/a/b/c/four"));
}

#[test]
fn an_orphan_after_a_crash_is_no_damage() {
    let fixture = TestVolume::new();
    let volume = fixture.open();
    let file = volume
        .open_with("/d/five", OpenOptions::new().read(true).write(true).direct(true))
        .unwrap();
    volume.remove_file("/d/five").unwrap();
    volume.sync().unwrap();
    // The image after a kill.
    let image = fixture.sim.crash_image(uringfs_device::backend::sim::Crash::KeepAll);
    drop((file, volume));
    let device = Device::new(image).unwrap();
    let report = Volume::check(&device, CHECK, &mut |_, _| {}).unwrap();
    assert!(report.is_sound() && report.files == 7, "{}", text(&report));
    drop(Volume::open_on(device.clone()).unwrap());
    let report = Volume::check(&device, CHECK, &mut |_, _| {}).unwrap();
    assert!(report.is_sound() && report.files == 6, "{}", text(&report));
}

#[test]
fn unlisted_findings_are_repaired_too() {
    let fixture = TestVolume::new();
    fixture.plant(|_, batch| {
        (5000..15_001).for_each(|number| batch.put(Key::Orphan(number), b""));
    });
    let check = |options| Volume::check(&fixture.device, options, &mut |_, _| {}).unwrap();
    let found = check(CHECK);
    let all = found.findings.len() as u64 + found.unlisted;
    assert!(all > 10_000 && found.unlisted > 0 && !found.is_repaired(), "{all}");
    let repaired = check(REPAIR);
    assert_eq!(repaired.findings.len() as u64 + repaired.unlisted, all);
    assert!(repaired.is_repaired() && !repaired.is_sound());
    assert!(check(CHECK).is_sound());
}

#[test]
fn extended_attributes_without_an_inode_are_removed() {
    let fixture = TestVolume::new();
    fixture.plant(|_, batch| batch.put(Key::Xattr(888, b"user.x"), b"value"));
    fixture.assert_repairs("inode 888: it has an extended attribute, but does not exist");
}

#[test]
fn the_next_inode_number_is_above_the_last() {
    let fixture = TestVolume::new();
    for planted in [Some(3u64.to_be_bytes().to_vec()), Some(vec![1]), None] {
        fixture.plant(|_, batch| {
            let key = Key::State(crate::core::state::NEXT_INODE_KEY);
            match planted {
                Some(value) => batch.put(key, &value),
                None => batch.delete(key),
            }
        });
        fixture.assert_repairs("the number of the next inode is not above");
        let before = fixture.number("/one");
        fixture.open().create_dir_with_mode(format!("/new{before}"), 0o700).err();
        fixture.assert_sound();
    }
}

#[test]
fn a_catalog_of_another_volume_is_refused_and_adopted() {
    let fixture = TestVolume::new();
    fixture.plant(|_, batch| batch.put(Key::State(SUPERBLOCK_KEY), &[7; 24]));
    let error = Volume::open_on(fixture.device.clone()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().ends_with("run uringfs check --repair"), "{error}");
    fixture.assert_repairs("the catalog is of another volume than the superblock");
    let volume = fixture.open();
    assert!(fixture.is_whole(&volume, "/a/b/c/four", "/a/b/c/four"));
}

/// Puts a record with a wrong checksum.
pub(super) fn corrupt(fixture: &TestVolume, key: Key<'_>) {
    fixture.plant(|catalog, batch| {
        let value = catalog.get(key).unwrap().unwrap();
        batch.put_with_wrong_sum(key, &value);
    });
}

#[test]
fn a_damaged_record_costs_one_file_and_no_other() {
    let fixture = TestVolume::new();
    let [a, d, two] = ["/a", "/d", "/a/two"].map(|path| fixture.number(path));
    corrupt(&fixture, Key::Name(a, b"link"));
    corrupt(&fixture, Key::Name(a, b"pipe"));
    corrupt(&fixture, Key::Inode(two));
    let volume = fixture.open();
    let (mut listed, mut damaged) = (Vec::new(), Vec::new());
    for entry in volume.read_dir("/a").unwrap() {
        match entry {
            Ok(entry) => listed.push(entry.file_name().into_vec()),
            Err(error) => damaged.push(error.damaged_name().unwrap().to_vec()),
        }
    }
    assert_eq!(listed, [b"b".to_vec(), b"two".to_vec()]);
    assert_eq!(damaged, [b"link".to_vec(), b"pipe".to_vec()]);
    for bad in ["/a/link", "/a/two"] {
        let error = volume.symlink_metadata(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{bad}: {error}");
    }
    assert!(fixture.is_whole(&volume, "/a/b/three", "/a/b/three"));
    fixture.write(&volume, "/a/new", 0, 9000);
    volume.remove_file("/d/five").unwrap();
    drop(volume);
    let volume = fixture.open();
    assert!(fixture.is_whole(&volume, "/a/new", "/a/new"));
    assert!(volume.symlink_metadata("/d/five").is_err());
    drop(volume);
    fixture.assert_repairs(&format!("/a/two (inode {two}): its inode cannot be read"));
    assert_eq!(fixture.number("/d"), d);
}

#[test]
fn damaged_records_are_dropped_and_their_file_named() {
    let fixture = TestVolume::new();
    let [root, a, d, two, four, b, link] =
        ["/", "/a", "/d", "/a/two", "/a/b/c/four", "/a/b", "/a/link"].map(|p| fixture.number(p));
    // A name: its inode is found again.
    corrupt(&fixture, Key::Name(d, b"five"));
    fixture.assert_repairs("/d/five: the record of this name cannot be read");
    // A file's inode: recreated from its extents.
    corrupt(&fixture, Key::Inode(four));
    let lines = fixture.assert_repairs(&format!("inode {four}): its inode cannot be read"));
    let lost = format!("/a/b/c/four (inode {four}): the file's inode is lost; recreated");
    assert!(lines.contains(&lost), "{lines}");
    assert!(fixture.is_whole(&fixture.open(), "/a/b/c/four", "/a/b/c/four"));
    // A directory's inode.
    corrupt(&fixture, Key::Inode(b));
    fixture.assert_repairs(&format!("(inode {b}): its inode cannot be read"));
    assert!(fixture.is_whole(&fixture.open(), "/a/b/three", "/a/b/three"));
    // A symbolic link's inode: nothing is left of it.
    corrupt(&fixture, Key::Inode(link));
    fixture.assert_repairs(&format!("/a/link (inode {link}): its inode cannot be read"));
    assert!(fixture.open().symlink_metadata("/a/link").is_err());
    // Blocks: a hole.
    corrupt(&fixture, Key::Extent(two, 40));
    fixture
        .assert_repairs(&format!("/a/two (inode {two}): one of its extent records cannot be read"));
    assert!(fixture.is_whole(&fixture.open(), "/a/two", "/a/two"));
    // The root itself.
    corrupt(&fixture, Key::Inode(root));
    fixture.assert_repairs("(inode 1): its inode cannot be read");
    assert!(fixture.is_whole(&fixture.open(), "/a/b/three", "/a/b/three"));
    assert_eq!(fixture.open().symlink_metadata("/").unwrap().inode().permissions, 0o755);
    corrupt(&fixture, Key::Name(root, b"a"));
    fixture.assert_repairs("/a: the record of this name cannot be read");
    assert!(fixture.is_whole(&fixture.open(), &format!("/lost+found/#{a}/two"), "/a/two"));
}

#[test]
fn lost_and_found_is_repaired_before_it_takes_lost_files() {
    let fixture = TestVolume::new();
    let [root, a, b, d, four] =
        ["/", "/a", "/a/b", "/d", "/a/b/c/four"].map(|path| fixture.number(path));
    let lose_name = |directory, name: &[u8]| {
        fixture.plant(|_, batch| batch.delete(Key::Name(directory, name)));
    };
    // The root, which is to hold it, and the next inode's number.
    lose_name(d, b"five");
    corrupt(&fixture, Key::Inode(root));
    fixture.assert_repairs("(inode 1): its inode cannot be read");
    fixture.plant(|catalog, batch| {
        let found = catalog.get(Key::Name(root, b"lost+found")).unwrap().unwrap();
        let (number, _) = crate::namespace::directory::parse_entry(&found).unwrap();
        batch.delete(Key::Name(root, b"lost+found"));
        batch.delete(Key::Inode(number.0));
    });
    fixture.check(REPAIR);
    lose_name(a, b"two");
    corrupt(&fixture, Key::State(crate::core::state::NEXT_INODE_KEY));
    fixture.assert_repairs("the number of the next inode is not above");
    // The name of lost+found.
    lose_name(b, b"three");
    corrupt(&fixture, Key::Name(root, b"lost+found"));
    fixture.assert_repairs("/lost+found: the record of this name cannot be read");
    assert_eq!(fixture.number("/a/b/c/four"), four);
    // No inode number is left for it.
    fixture.plant(|catalog, batch| {
        let found = catalog.get(Key::Name(root, b"lost+found")).unwrap().unwrap();
        let (number, _) = crate::namespace::directory::parse_entry(&found).unwrap();
        batch.delete(Key::Name(root, b"lost+found"));
        batch.delete(Key::Inode(number.0));
        let last = Inode::new(FileType::File, 0o600);
        batch.put(Key::Inode(u64::MAX - 1), &last.to_record());
        batch.put(Key::State(crate::core::state::NEXT_INODE_KEY), &u64::MAX.to_be_bytes());
    });
    assert!(!fixture.check(REPAIR).is_repaired());
}

#[test]
fn malformed_records_are_dropped() {
    let fixture = TestVolume::new();
    let a = fixture.number("/a");
    fixture.plant(|_, batch| {
        for table in Table::ALL.into_iter().filter(|table| *table != Table::State) {
            batch.change(table, b"odd", Some(b"odd"));
        }
        batch.put(Key::Name(a, b"../x"), &encode_entry(InodeNumber(a), FileType::Directory));
        batch.put(Key::Inode(5000), b"short");
        batch.put(Key::Extent(6000, 1), &[9; 24]);
        batch.put(Key::Region(70_000), b"");
    });
    let lines = fixture.assert_repairs("a record cannot be read: its key has an unknown form");
    assert!(lines.contains("inode 5000: its inode cannot be read: an inode's record is too short"));
    assert!(lines.contains("is not a valid name"), "{lines}");
    assert!(lines.contains("free blocks for a region that does not exist"), "{lines}");
}
