//! Records that are wrong: names, inodes, links, attributes.

use super::*;

#[test]
fn wrong_link_counts_are_set() {
    let patient = TestVolume::new();
    let numbers = ["/one", "/a", "/"].map(|path| patient.number(path));
    patient.plant(|catalog, batch| {
        for number in numbers {
            let mut inode = inode_of(catalog, number);
            inode.links += 5;
            batch.put(Key::Inode(number), &inode.to_record());
        }
    });
    let lines = patient.assert_repairs("it has 7 links, and should have 2");
    assert!(lines.contains(&format!("(inode {}): it has 8 links, and should have 3", numbers[1])));
    assert!(lines.contains("/ (inode 1): it has 9 links, and should have 4"), "{lines}");
    let volume = patient.open();
    assert_eq!(volume.inode("/one", Follow::No).unwrap().1.links, 2);
}

#[test]
fn a_name_that_names_nothing_is_removed() {
    let patient = TestVolume::new();
    let number = patient.number("/a");
    patient.plant(|_, batch| {
        let record = encode_entry(InodeNumber(999), FileKind::File);
        batch.put(Key::Name(number, b"ghost"), &record);
        batch.put(Key::State(crate::core::state::NEXT_INODE_KEY), &2000u64.to_be_bytes());
    });
    patient.assert_repairs("/a/ghost: it names nothing");
    assert!(patient.open().inode("/a/ghost", Follow::No).is_err());
}

#[test]
fn files_and_directories_without_a_name_are_found_again() {
    let patient = TestVolume::new();
    let numbers = ["/", "/d", "/a", "/a/two", "/a/b"].map(|path| patient.number(path));
    let [root, d, a, two, b] = numbers;
    patient.plant(|_, batch| {
        batch.delete(Key::Name(root, b"d"));
        batch.delete(Key::Name(a, b"two"));
        batch.delete(Key::Name(a, b"b"));
    });
    let lines = patient.assert_repairs(&format!("inode {two}: it has no name"));
    assert!(lines.contains(&format!("put into /lost+found as #{d}")), "{lines}");
    let volume = patient.open();
    assert!(patient.is_whole(&volume, &format!("/lost+found/#{two}"), "/a/two"));
    assert!(patient.is_whole(&volume, &format!("/lost+found/#{d}/five"), "/d/five"));
    assert!(patient.is_whole(&volume, &format!("/lost+found/#{b}/c/four"), "/a/b/c/four"));
    drop(volume);
    // The next ones go where those are.
    patient.plant(|_, batch| batch.delete(Key::Name(root, b"a")));
    patient.assert_repairs(&format!("inode {a}: it has no name"));
    assert!(patient.open().inode(format!("/lost+found/#{a}/link"), Follow::No).is_ok());
}

#[test]
fn a_name_of_another_kind_is_set() {
    let patient = TestVolume::new();
    let (root, one) = (patient.number("/"), patient.number("/one"));
    patient.plant(|_, batch| {
        let record = encode_entry(InodeNumber(one), FileKind::Socket);
        batch.put(Key::Name(root, b"one"), &record);
    });
    patient.assert_repairs("/one: it is of another kind than its name says");
    assert!(patient.is_whole(&patient.open(), "/one", "/one"));
}

#[test]
fn a_name_in_a_file_is_taken_from_there() {
    let patient = TestVolume::new();
    let (one, five) = (patient.number("/one"), patient.number("/d/five"));
    patient.plant(|catalog, batch| {
        let record = encode_entry(InodeNumber(five), FileKind::File);
        batch.put(Key::Name(one, b"inside"), &record);
        let mut inode = inode_of(catalog, five);
        inode.links = 2;
        batch.put(Key::Inode(five), &inode.to_record());
    });
    patient.assert_repairs("/one/inside: it stands in what is no directory");
    assert!(patient.is_whole(&patient.open(), "/d/five", "/d/five"));
}

#[test]
fn a_directory_has_one_name_and_the_right_parent() {
    let patient = TestVolume::new();
    let [root, a, b, d] = ["/", "/a", "/a/b", "/d"].map(|path| patient.number(path));
    patient.plant(|catalog, batch| {
        let record = encode_entry(InodeNumber(b), FileKind::Directory);
        batch.put(Key::Name(d, b"again"), &record);
        batch.put(Key::Name(a, b"twice"), &record);
        batch.put(Key::Name(a, b"root"), &encode_entry(InodeNumber(root), FileKind::Directory));
        let mut inode = inode_of(catalog, d);
        inode.parent = InodeNumber(a);
        batch.put(Key::Inode(d), &inode.to_record());
    });
    let lines = patient.assert_repairs("/d/again: the directory has another name, too");
    assert!(lines.contains("/a/twice: the directory has another name, too"), "{lines}");
    assert!(lines.contains("/a/root: the directory has another name, too"), "{lines}");
    assert!(lines.contains("/d: the directory says that it is in another"), "{lines}");
    let volume = patient.open();
    assert_eq!(volume.inode("/d/..", Follow::No).unwrap().0, InodeNumber::ROOT);
    assert!(patient.is_whole(&volume, "/a/b/three", "/a/b/three"));
}

#[test]
fn directories_that_lie_in_themselves_are_found_again() {
    let patient = TestVolume::new();
    let [a, b, c] = ["/a", "/a/b", "/a/b/c"].map(|path| patient.number(path));
    patient.plant(|catalog, batch| {
        batch.delete(Key::Name(a, b"b"));
        batch.put(Key::Name(c, b"b"), &encode_entry(InodeNumber(b), FileKind::Directory));
        for (number, parent, links) in [(a, 1, 2), (b, c, 3), (c, b, 3)] {
            let mut inode = inode_of(catalog, number);
            (inode.parent, inode.links) = (InodeNumber(parent), links);
            batch.put(Key::Inode(number), &inode.to_record());
        }
    });
    patient.assert_repairs("the directory lies in itself");
    let volume = patient.open();
    assert!(patient.is_whole(&volume, &format!("/lost+found/#{b}/c/four"), "/a/b/c/four"));
}

#[test]
fn orphans_are_what_they_are_noted_as() {
    let patient = TestVolume::new();
    let (five, four) = (patient.number("/d/five"), patient.number("/a/b/c/four"));
    patient.plant(|catalog, batch| {
        // With a name, not there, and without a name but not noted.
        batch.put(Key::Orphan(five), b"");
        batch.put(Key::Orphan(777), b"");
        let mut inode = inode_of(catalog, four);
        inode.links = 0;
        batch.put(Key::Inode(four), &inode.to_record());
    });
    let lines = patient.assert_repairs("/d/five (inode");
    assert!(lines.contains("would be destroyed, but has a name"), "{lines}");
    assert!(lines.contains("inode 777: it is noted as unused, and is not there"), "{lines}");
    let volume = patient.open();
    assert!(patient.is_whole(&volume, "/d/five", "/d/five"));
    assert!(patient.is_whole(&volume, "/a/b/c/four", "/a/b/c/four"));
}

#[test]
fn an_orphan_after_a_crash_is_no_damage() {
    let patient = TestVolume::new();
    let volume = patient.open();
    let file = volume.open("/d/five", OpenOptions::direct()).unwrap();
    volume.remove("/d/five").unwrap();
    volume.sync().unwrap();
    // As a kill would leave it.
    let image = patient.sim.crash_image(uringfs_device::backend::sim::Crash::KeepAll);
    drop((file, volume));
    let device = Device::new(image).unwrap();
    let report = Volume::check(&device, CHECK, &mut |_, _| {}).unwrap();
    assert!(report.is_sound() && report.files == 7, "{}", text(&report));
    drop(Volume::open_on(device.clone()).unwrap());
    let report = Volume::check(&device, CHECK, &mut |_, _| {}).unwrap();
    assert!(report.is_sound() && report.files == 6, "{}", text(&report));
}

#[test]
fn more_than_are_listed_are_repaired() {
    let patient = TestVolume::new();
    patient.plant(|_, batch| {
        (5000..15_001).for_each(|number| batch.put(Key::Orphan(number), b""));
    });
    let check = |options| Volume::check(&patient.device, options, &mut |_, _| {}).unwrap();
    let found = check(CHECK);
    let all = found.findings.len() as u64 + found.unlisted;
    assert!(all > 10_000 && found.unlisted > 0 && !found.is_repaired(), "{all}");
    let repaired = check(REPAIR);
    assert_eq!(repaired.findings.len() as u64 + repaired.unlisted, all);
    assert!(repaired.is_repaired() && !repaired.is_sound());
    assert!(check(CHECK).is_sound());
}

#[test]
fn attributes_of_nobody_are_removed() {
    let patient = TestVolume::new();
    patient.plant(|_, batch| batch.put(Key::Xattr(888, b"user.x"), b"value"));
    patient.assert_repairs("inode 888: an attribute belongs to it, and it is not there");
}

#[test]
fn the_next_inode_is_behind_the_last() {
    let patient = TestVolume::new();
    for planted in [Some(3u64.to_be_bytes().to_vec()), Some(vec![1]), None] {
        patient.plant(|_, batch| {
            let key = Key::State(crate::core::state::NEXT_INODE_KEY);
            match planted {
                Some(value) => batch.put(key, &value),
                None => batch.delete(key),
            }
        });
        patient.assert_repairs("the number of the next inode is not above");
        let before = patient.number("/one");
        patient.open().make_directory(format!("/new{before}"), 0o700).err();
        patient.assert_sound();
    }
}

/// Puts a record where its checksum does not fit.
pub(super) fn spoil(patient: &TestVolume, key: Key<'_>) {
    patient.plant(|catalog, batch| {
        let value = catalog.get(key).unwrap().unwrap();
        batch.put_with_wrong_sum(key, &value);
    });
}

#[test]
fn a_damaged_record_costs_one_file_and_the_others_are_listed_and_read() {
    let patient = TestVolume::new();
    let [a, d, two] = ["/a", "/d", "/a/two"].map(|path| patient.number(path));
    spoil(&patient, Key::Name(a, b"link"));
    spoil(&patient, Key::Name(a, b"pipe"));
    spoil(&patient, Key::Inode(two));
    let volume = patient.open();
    let (mut listed, mut damaged, mut after) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        match volume.entries("/a", &after) {
            Ok(entries) => {
                let Some(last) = entries.last() else { break };
                after.clone_from(&last.name);
                listed.extend(entries.into_iter().map(|entry| entry.name));
            }
            Err(error) => {
                after = error.damaged_name().unwrap().to_vec();
                damaged.push(after.clone());
            }
        }
    }
    assert_eq!(listed, [b"b".to_vec(), b"two".to_vec()]);
    assert_eq!(damaged, [b"link".to_vec(), b"pipe".to_vec()]);
    for bad in ["/a/link", "/a/two"] {
        let error = volume.inode(bad, Follow::No).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{bad}: {error}");
    }
    assert!(patient.is_whole(&volume, "/a/b/three", "/a/b/three"));
    patient.write(&volume, "/a/new", 0, 9000);
    volume.remove("/d/five").unwrap();
    drop(volume);
    let volume = patient.open();
    assert!(patient.is_whole(&volume, "/a/new", "/a/new"));
    assert!(volume.inode("/d/five", Follow::No).is_err());
    drop(volume);
    patient.assert_repairs(&format!("/a/two (inode {two}): its inode cannot be read"));
    assert_eq!(patient.number("/d"), d);
}

#[test]
fn damaged_records_are_dropped_with_the_file_named() {
    let patient = TestVolume::new();
    let [root, a, d, two, four, b, link] =
        ["/", "/a", "/d", "/a/two", "/a/b/c/four", "/a/b", "/a/link"].map(|p| patient.number(p));
    // A name: what it named is found again.
    spoil(&patient, Key::Name(d, b"five"));
    patient.assert_repairs("/d/five: its name cannot be read");
    // A file's inode: made again of its blocks.
    spoil(&patient, Key::Inode(four));
    let lines = patient.assert_repairs(&format!("inode {four}): its inode cannot be read"));
    assert!(lines.contains("/a/b/c/four: the file's inode is lost; made again"), "{lines}");
    assert!(patient.is_whole(&patient.open(), "/a/b/c/four", "/a/b/c/four"));
    // A directory's inode.
    spoil(&patient, Key::Inode(b));
    patient.assert_repairs(&format!("(inode {b}): its inode cannot be read"));
    assert!(patient.is_whole(&patient.open(), "/a/b/three", "/a/b/three"));
    // A symbolic link's inode: nothing is left of it.
    spoil(&patient, Key::Inode(link));
    patient.assert_repairs(&format!("/a/link (inode {link}): its inode cannot be read"));
    assert!(patient.open().inode("/a/link", Follow::No).is_err());
    // Blocks: a hole.
    spoil(&patient, Key::Extent(two, 40));
    patient.assert_repairs(&format!("/a/two (inode {two}): some of its blocks cannot be read"));
    assert!(patient.is_whole(&patient.open(), "/a/two", "/a/two"));
    // The root itself.
    spoil(&patient, Key::Inode(root));
    patient.assert_repairs("(inode 1): its inode cannot be read");
    assert!(patient.is_whole(&patient.open(), "/a/b/three", "/a/b/three"));
    assert_eq!(patient.open().inode("/", Follow::No).unwrap().1.permissions, 0o755);
    spoil(&patient, Key::Name(root, b"a"));
    patient.assert_repairs("/a: its name cannot be read");
    assert!(patient.is_whole(&patient.open(), &format!("/lost+found/#{a}/two"), "/a/two"));
}

#[test]
fn what_is_lost_is_found_again_where_lost_and_found_needs_repair_too() {
    let patient = TestVolume::new();
    let [root, a, b, d, four] =
        ["/", "/a", "/a/b", "/d", "/a/b/c/four"].map(|path| patient.number(path));
    let lose_name = |directory, name: &[u8]| {
        patient.plant(|_, batch| batch.delete(Key::Name(directory, name)));
    };
    // The root, which is to hold it, and the number that it is to get.
    lose_name(d, b"five");
    spoil(&patient, Key::Inode(root));
    patient.assert_repairs("(inode 1): its inode cannot be read");
    patient.plant(|catalog, batch| {
        let found = catalog.get(Key::Name(root, b"lost+found")).unwrap().unwrap();
        let (number, _) = crate::namespace::directory::parse_entry(&found).unwrap();
        batch.delete(Key::Name(root, b"lost+found"));
        batch.delete(Key::Inode(number.0));
    });
    patient.check(REPAIR);
    lose_name(a, b"two");
    spoil(&patient, Key::State(crate::core::state::NEXT_INODE_KEY));
    patient.assert_repairs("the number of the next inode is not above");
    // Its own name.
    lose_name(b, b"three");
    spoil(&patient, Key::Name(root, b"lost+found"));
    patient.assert_repairs("/lost+found: its name cannot be read");
    assert_eq!(patient.number("/a/b/c/four"), four);
    // No number is left for it.
    patient.plant(|catalog, batch| {
        let found = catalog.get(Key::Name(root, b"lost+found")).unwrap().unwrap();
        let (number, _) = crate::namespace::directory::parse_entry(&found).unwrap();
        batch.delete(Key::Name(root, b"lost+found"));
        batch.delete(Key::Inode(number.0));
        let last = Inode::new(FileKind::File, 0o600);
        batch.put(Key::Inode(u64::MAX - 1), &last.to_record());
        batch.put(Key::State(crate::core::state::NEXT_INODE_KEY), &u64::MAX.to_be_bytes());
    });
    assert!(!patient.check(REPAIR).is_repaired());
}

#[test]
fn records_that_say_nothing_are_dropped() {
    let patient = TestVolume::new();
    let a = patient.number("/a");
    patient.plant(|_, batch| {
        for table in Table::ALL.into_iter().filter(|table| *table != Table::State) {
            batch.change(table, b"odd", Some(b"odd"));
        }
        batch.put(Key::Name(a, b"../x"), &encode_entry(InodeNumber(a), FileKind::Directory));
        batch.put(Key::Inode(5000), b"short");
        batch.put(Key::Extent(6000, 1), &[9; 24]);
        batch.put(Key::Region(70_000), b"");
    });
    let lines =
        patient.assert_repairs("a record cannot be read: the catalog has a key of no known form");
    assert!(lines.contains("inode 5000: its inode cannot be read: an inode's record is too short"));
    assert!(lines.contains("is not a valid name"), "{lines}");
    assert!(lines.contains("free blocks that the volume does not have"), "{lines}");
}
