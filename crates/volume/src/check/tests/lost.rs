//! Lost inodes: names, extents and attributes are left of them.

use super::*;

/// A volume of which the inode of a file is lost that has two names, extents and two attributes.
fn without_inode_of_one() -> (TestVolume, u64) {
    let fixture = TestVolume::new();
    let one = fixture.number("/one");
    fixture.plant(|_, batch| {
        batch.delete(Key::Inode(one));
        batch.put(Key::Xattr(one, b"user.x"), b"value");
        batch.put(Key::Xattr(one, b"user.y"), b"value");
    });
    (fixture, one)
}

#[test]
fn a_lost_inode_with_names_extents_and_attributes_is_one_finding() {
    let (fixture, one) = without_inode_of_one();
    let found = fixture.check(CHECK);
    assert_eq!(text(&found), format!("/one (inode {one}): the file's inode is lost\n"));
    assert_eq!(found.recreated, 0);
    let repaired = fixture.check(REPAIR);
    let lost = "the file's inode is lost; recreated, with mode 0600 and 12288 bytes";
    assert!(text(&repaired).contains(&format!("/one (inode {one}): {lost}")));
    // And the count of its links.
    assert_eq!((repaired.findings.len(), repaired.recreated), (2, 1), "{}", text(&repaired));
    fixture.assert_sound();
    assert!(fixture.is_whole(&fixture.open(), "/d/one", "/one"));
}

#[test]
fn a_lost_inode_without_names_is_one_finding() {
    let (fixture, one) = without_inode_of_one();
    let (root, d) = (fixture.number("/"), fixture.number("/d"));
    fixture.plant(|_, batch| {
        batch.delete(Key::Name(root, b"one"));
        batch.delete(Key::Name(d, b"one"));
    });
    assert_eq!(text(&fixture.check(CHECK)), format!("inode {one}: the file's inode is lost\n"));
    assert_eq!(fixture.check(REPAIR).recreated, 1);
    fixture.assert_sound();
}

#[test]
fn a_lost_directory_is_one_finding_however_many_names_are_in_it() {
    let fixture = TestVolume::new();
    let (a, b) = (fixture.number("/a"), fixture.number("/a/b"));
    fixture.plant(|_, batch| {
        batch.delete(Key::Inode(a));
        batch.delete(Key::Inode(b));
        batch.put(Key::Xattr(a, b"user.x"), b"value");
    });
    let found = fixture.check(CHECK);
    let lines = [a, b].map(|inode| {
        let is_of = |finding: &&Finding| finding.inode == Some(InodeNumber(inode));
        found.findings.iter().filter(is_of).count()
    });
    assert_eq!((found.findings.len(), lines), (2, [1, 1]), "{}", text(&found));
    assert_eq!(fixture.check(REPAIR).recreated, 2);
    fixture.assert_sound();
}

#[test]
fn a_recreated_root_counts_as_recreated() {
    let fixture = TestVolume::new();
    fixture.plant(|_, batch| batch.put(Key::Xattr(1, b"user.x"), b"value"));
    for planted in [None, Some(Inode::new(FileType::File, 0o600))] {
        fixture.plant(|_, batch| match planted {
            Some(file) => batch.put(Key::Inode(1), &file.to_record()),
            None => batch.delete(Key::Inode(1)),
        });
        let found = text(&fixture.check(CHECK));
        assert!(!found.contains("extended attribute"), "{found}");
        assert_eq!(fixture.check(REPAIR).recreated, 1);
        fixture.assert_sound();
    }
}

#[test]
fn other_repairs_recreate_nothing() {
    let fixture = TestVolume::new();
    let d = fixture.number("/d");
    fixture.plant(|_, batch| batch.delete(Key::Name(d, b"five")));
    let repaired = fixture.check(REPAIR);
    assert_eq!((repaired.is_sound(), repaired.recreated), (false, 0), "{}", text(&repaired));
}
