//! Files by reference: names in directories without paths, files without names, whiteouts, and positions in
//! directories whose names change.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::mem;
use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;
use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Crash, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{
    DirectoryPositions, DirectoryStream, Error, FileType, Follow, Inode, InodeRef, Link,
    OpenOptions, Rename, SetXattr, Volume,
};

use crate::fixture::formatted;

const SIZE: u64 = 64 << 20;

/// Runs a test in a task.
fn run(test: impl AsyncFnOnce(Volume, Sim)) {
    let sim = Sim::new(SimOptions::new(SIZE));
    let volume = formatted(&sim);
    Reactor::new(ReactorOptions::default()).unwrap().block_on(test(volume, sim));
}

fn file() -> Inode {
    Inode::new(FileType::File, 0o644)
}

fn directory() -> Inode {
    Inode::new(FileType::Directory, 0o755)
}

fn read_write() -> OpenOptions {
    OpenOptions::new().read(true).write(true)
}

async fn make(directory: &InodeRef, name: &str, inode: &Inode) -> InodeRef {
    directory.create(name, inode).await.unwrap().0
}

async fn write(file: &InodeRef, content: &'static str) {
    let file = file.open(read_write()).await.unwrap();
    let (written, _) = file.write_at(Buffer::copy_of(content.as_bytes()), 0).await;
    assert_eq!(written, Ok(content.len()));
}

async fn content(file: &InodeRef) -> Vec<u8> {
    let file = file.open(OpenOptions::new().read(true)).await.unwrap();
    let (read, buffer) = file.read_at(Buffer::zeroed(100), 0).await;
    buffer[..read.unwrap()].to_vec()
}

fn errno<T>(result: Result<T, Error>) -> Errno {
    result.map(drop).unwrap_err().errno()
}

#[test]
fn names_are_looked_up_in_their_directory() {
    run(async |volume, _| {
        let root = volume.root();
        let inner = make(&root, "inner", &directory()).await;
        let made = make(&inner, "file", &file()).await;
        let (found, metadata) = inner.lookup("file").await.unwrap();
        assert_eq!((found.clone(), metadata.ino()), (made.clone(), made.number().0));
        assert_eq!(volume.metadata("/inner/file").unwrap(), metadata);
        assert_eq!(inner.lookup(".").await.unwrap().0, inner);
        assert_eq!(inner.lookup("..").await.unwrap().0, root);
        assert_eq!(root.lookup("..").await.unwrap().0, root);
        assert_eq!(errno(inner.lookup("missing").await), Errno::NOENT);
        assert_eq!(errno(found.lookup("file").await), Errno::NOTDIR);
        assert_eq!(errno(found.lookup("..").await), Errno::NOTDIR);
        assert_eq!(errno(inner.lookup("a/b").await), Errno::INVAL);
        assert_eq!(errno(inner.lookup("x".repeat(256)).await), Errno::NAMETOOLONG);
        assert_eq!(errno(found.read_dir().await), Errno::NOTDIR);
        assert_eq!(errno(found.create("a", &file()).await), Errno::NOTDIR);
        assert_eq!(errno(inner.open(read_write()).await), Errno::ISDIR);
        assert_eq!(errno(found.open(read_write().create_new(true)).await), Errno::EXIST);
        let not_utf8 = OsStr::from_bytes(b"\xff");
        inner.create(not_utf8, &Inode::symlink(b"file").unwrap()).await.unwrap();
        let (link, _) = inner.lookup(not_utf8).await.unwrap();
        assert_eq!(link.read_link().await.unwrap().as_os_str(), "file");
        assert_eq!(errno(inner.read_link().await), Errno::INVAL);
        assert_eq!(errno(link.open(read_write()).await), Errno::NXIO);
    });
}

#[test]
fn a_reference_follows_its_file_to_other_names() {
    run(async |volume, _| {
        let root = volume.root();
        let inner = make(&root, "inner", &directory()).await;
        let made = make(&root, "file", &file()).await;
        write(&made, "hello").await;
        made.link_into(&inner, "link").await.unwrap();
        root.rename("file", &inner, "renamed", Rename::NoReplace).await.unwrap();
        assert_eq!(volume.read("/inner/renamed").unwrap(), b"hello");
        assert_eq!(made.metadata().await.unwrap().nlink(), 2);
        assert_eq!(
            errno(inner.rename("link", &inner, "renamed", Rename::NoReplace).await),
            Errno::EXIST
        );
        made.set_attributes(|inode| inode.permissions = 0o600).await.unwrap();
        made.set_xattr("user.note", b"value", SetXattr::Create).await.unwrap();
        assert_eq!(made.list_xattrs().await.unwrap(), [b"user.note"]);
        assert_eq!(made.get_xattr("user.note").await.unwrap(), b"value");
        made.remove_xattr("user.note").await.unwrap();
        assert_eq!(errno(made.get_xattr("user.note").await), Errno::NODATA);
        assert_eq!(volume.metadata("/inner/link").unwrap().mode(), 0o100_600);
        inner.remove_file("link").await.unwrap();
        assert_eq!(errno(root.remove_dir("inner").await), Errno::NOTEMPTY);
        assert_eq!(errno(root.remove_file("inner").await), Errno::ISDIR);
        inner.remove_file("renamed").await.unwrap();
        root.remove_dir("inner").await.unwrap();
        // A removed directory takes no more names.
        assert_eq!(errno(inner.create("late", &file()).await), Errno::NOENT);
        assert_eq!(errno(made.link_into(&root, "late").await), Errno::NOENT);
    });
}

#[test]
fn directories_of_different_volumes_do_not_mix() {
    run(async |volume, _| {
        let other = formatted(&Sim::new(SimOptions::new(SIZE)));
        let made = make(&volume.root(), "file", &file()).await;
        assert_eq!(errno(made.link_into(&other.root(), "file").await), Errno::XDEV);
        let moved = volume.root().rename("file", &other.root(), "file", Rename::Replace).await;
        assert_eq!(errno(moved), Errno::XDEV);
    });
}

#[test]
fn a_rename_of_an_expected_file_moves_no_other() {
    run(async |volume, _| {
        let root = volume.root();
        let inner = make(&root, "inner", &directory()).await;
        let (first, second) = (make(&root, "a", &file()).await, make(&root, "b", &file()).await);
        let move_a = async |expected: &InodeRef, how| {
            root.rename_only("a", expected.number(), &inner, "new", how).await
        };
        assert_eq!(errno(move_a(&second, Rename::Replace).await), Errno::STALE);
        assert_eq!(errno(inner.lookup("new").await), Errno::NOENT);
        move_a(&first, Rename::NoReplace).await.unwrap();
        assert_eq!(inner.lookup("new").await.unwrap().0, first);
        assert_eq!(errno(move_a(&first, Rename::Replace).await), Errno::NOENT);
        // A directory that has the name by now stays.
        make(&root, "a", &directory()).await;
        assert_eq!(errno(move_a(&first, Rename::Replace).await), Errno::STALE);
    });
}

#[test]
fn a_file_without_a_name_lives_as_long_as_a_reference() {
    run(async |volume, sim| {
        let free = async || {
            volume.as_async().sync().await.unwrap();
            volume.as_async().sync().await.unwrap();
            volume.statistics().free_blocks
        };
        let root = volume.root();
        let before = free().await;
        let made = make(&root, "file", &file()).await;
        let number = made.number();
        write(&made, "kept").await;
        volume.as_async().sync().await.unwrap();
        root.remove_file("file").await.unwrap();
        // Neither a name nor a handle is left, and commits pass.
        assert_eq!(free().await, before - 1);
        assert_eq!(content(&made).await, b"kept");
        let (again, metadata) = volume.inode(number).await.unwrap();
        assert_eq!((&again, metadata.nlink()), (&made, 0));
        drop(made);
        assert_eq!(content(&again).await, b"kept");
        drop(again);
        assert_eq!(free().await, before);
        assert_eq!(errno(volume.inode(number).await), Errno::NOENT);
        assert!(volume.warnings().is_empty());
        drop(sim);
    });
}

#[test]
fn bytes_that_were_not_written_back_outlive_the_last_handle_of_a_referenced_file() {
    run(async |volume, _| {
        let root = volume.root();
        let made = make(&root, "file", &file()).await;
        let handle = made.open(read_write()).await.unwrap();
        root.remove_file("file").await.unwrap();
        let (written, _) = handle.write_at(Buffer::copy_of(b"cached"), 0).await;
        assert_eq!(written, Ok(6));
        drop(handle);
        assert_eq!(content(&made).await, b"cached");
    });
}

#[test]
fn changes_of_a_referenced_file_without_a_name_outlive_commits() {
    run(async |volume, _| {
        let root = volume.root();
        let made = make(&root, "file", &file()).await;
        volume.as_async().sync().await.unwrap();
        root.remove_file("file").await.unwrap();
        let direct = made.open(read_write().direct(true)).await.unwrap();
        let (written, _) = direct.write_at(Buffer::copy_of(b"kept"), 0).await;
        assert_eq!(written, Ok(4));
        drop(direct);
        for _ in 0..2 {
            volume.as_async().sync().await.unwrap();
            assert_eq!(content(&made).await, b"kept");
        }
    });
}

#[test]
fn a_file_is_created_with_its_attributes_or_not_at_all() {
    run(async |volume, sim| {
        let root = volume.root();
        let attributes: [(&[u8], &[u8]); 2] = [(b"security.selinux", b"label"), (b"user.a", b"")];
        root.create_with("name", &file(), &attributes).await.unwrap();
        let (unnamed, _) = root.create_unnamed_with(&file(), &attributes).await.unwrap();
        unnamed.link_into(&root, "unnamed").await.unwrap();
        let large = vec![0; 65_537];
        let refused: [(&[u8], &[u8]); 2] = [(b"user.a", b"small"), (b"user.b", &large)];
        assert_eq!(errno(root.create_with("none", &file(), &refused).await), Errno::TOOBIG);
        assert_eq!(errno(root.lookup("none").await), Errno::NOENT);
        // A change in between makes no commit of a half.
        volume.as_async().sync().await.unwrap();
        let crashed = Device::new(sim.crash_image(Crash::LoseAll)).unwrap();
        let recovered = Volume::open_on(crashed).unwrap();
        for name in ["/name", "/unnamed"] {
            let names = recovered.list_xattrs(name, Follow::No).unwrap();
            assert_eq!(names, [&b"security.selinux"[..], b"user.a"], "{name}");
        }
    });
}

#[test]
fn an_unnamed_file_gets_its_first_name() {
    run(async |volume, sim| {
        let root = volume.root();
        let inner = make(&root, "inner", &directory()).await;
        let (unnamed, metadata) = inner.create_unnamed(&file()).await.unwrap();
        assert_eq!(metadata.nlink(), 0);
        write(&unnamed, "published").await;
        unnamed.link_into(&inner, "name").await.unwrap();
        assert_eq!(unnamed.metadata().await.unwrap().nlink(), 1);
        volume.as_async().sync().await.unwrap();
        unnamed.link_into(&inner, "again").await.unwrap();
        inner.remove_file("name").await.unwrap();
        volume.as_async().sync().await.unwrap();
        assert_eq!(errno(inner.create_unnamed(&directory()).await), Errno::INVAL);
        assert_eq!(errno(unnamed.create_unnamed(&file()).await), Errno::NOTDIR);
        let crashed = Device::new(sim.crash_image(Crash::LoseAll)).unwrap();
        let recovered = Volume::open_on(crashed).unwrap();
        assert_eq!(recovered.read("/inner/again").unwrap(), b"published");
        // As on Linux, only the first name comes from nothing.
        inner.remove_file("again").await.unwrap();
        assert_eq!(errno(unnamed.link_into(&inner, "late").await), Errno::NOENT);
    });
}

#[test]
fn a_link_replaces_the_file_of_a_name_or_only_the_expected_one() {
    run(async |volume, sim| {
        let root = volume.root();
        make(&root, "inner", &directory()).await;
        let old = make(&root, "name", &file()).await;
        write(&old, "old").await;
        let mut files = Vec::new();
        for content in ["first", "second", "third"] {
            let (unnamed, _) = root.create_unnamed(&file()).await.unwrap();
            write(&unnamed, content).await;
            files.push(unnamed);
        }
        let [first, second, third] = &files[..] else { unreachable!("there are three") };
        let only = |file: &InodeRef| Link::ReplaceOnly(file.number());
        let link = async |file: &InodeRef, name: &str, how| file.link_with(&root, name, how).await;
        assert_eq!(errno(link(first, "name", Link::NoReplace).await), Errno::EXIST);
        assert_eq!(errno(link(first, "inner", Link::Replace).await), Errno::ISDIR);
        assert_eq!(errno(link(first, "none", only(&old)).await), Errno::NOENT);
        link(first, "name", only(&old)).await.unwrap();
        assert_eq!(errno(link(second, "name", only(&old)).await), Errno::STALE);
        link(second, "name", Link::Replace).await.unwrap();
        link(second, "name", Link::Replace).await.unwrap();
        link(third, "new", Link::Replace).await.unwrap();
        assert_eq!(second.metadata().await.unwrap().nlink(), 1);
        assert_eq!(old.metadata().await.unwrap().nlink(), 0);
        assert_eq!(content(&old).await, b"old");
        volume.as_async().sync().await.unwrap();
        let recovered =
            Volume::open_on(Device::new(sim.crash_image(Crash::LoseAll)).unwrap()).unwrap();
        assert_eq!(recovered.read("/name").unwrap(), b"second");
        assert_eq!(recovered.read("/new").unwrap(), b"third");
        for gone in [&old, first] {
            assert_eq!(errno(recovered.inode(gone.number()).await), Errno::NOENT);
        }
    });
}

#[test]
fn an_unnamed_file_is_gone_after_a_crash() {
    run(async |volume, sim| {
        let before = volume.statistics().free_blocks;
        let (unnamed, _) = volume.root().create_unnamed(&file()).await.unwrap();
        write(&unnamed, "lost").await;
        volume.as_async().sync().await.unwrap();
        let crashed = Device::new(sim.crash_image(Crash::LoseAll)).unwrap();
        let recovered = Volume::open_on(crashed).unwrap();
        recovered.sync().unwrap();
        recovered.sync().unwrap();
        assert_eq!(errno(recovered.inode(unnamed.number()).await), Errno::NOENT);
        assert_eq!(recovered.statistics().free_blocks, before);
    });
}

#[test]
fn a_whiteout_stays_under_the_old_name() {
    run(async |volume, _| {
        let root = volume.root();
        for (number, kind) in [file(), directory()].iter().enumerate() {
            let (old, new) = (format!("old {number}"), format!("new {number}"));
            let made = make(&root, &old, kind).await;
            root.rename(&old, &root, &new, Rename::Whiteout).await.unwrap();
            assert_eq!(root.lookup(&new).await.unwrap().0, made);
            let (whiteout, metadata) = root.lookup(&old).await.unwrap();
            assert_eq!(metadata.file_type(), FileType::CharacterDevice(0));
            assert_eq!(metadata.mode(), 0o020_000);
            assert_ne!(whiteout, made);
        }
        assert_eq!(
            errno(root.rename("new 0", &root, "old 0", Rename::WhiteoutNoReplace).await),
            Errno::EXIST
        );
        root.rename("new 0", &root, "old 0", Rename::Whiteout).await.unwrap();
        assert_eq!(root.metadata().await.unwrap().nlink(), 3);
    });
}

async fn names(stream: &mut DirectoryStream, at_most: usize) -> Vec<String> {
    let mut names = Vec::new();
    while names.len() < at_most
        && let Some(entry) = stream.next_entry().await.unwrap()
    {
        names.push(String::from_utf8(entry.name).unwrap());
    }
    names
}

#[test]
fn a_stream_returns_to_a_position_whose_name_was_removed() {
    run(async |volume, _| {
        let root = volume.root();
        for name in ["a", "b", "c", "d"] {
            make(&root, name, &file()).await;
        }
        let mut stream = root.read_dir().await.unwrap();
        assert_eq!(names(&mut stream, 2).await, ["a", "b"]);
        let behind_b = stream.position();
        assert_eq!(names(&mut stream, 9).await, ["c", "d"]);
        root.remove_file("b").await.unwrap();
        root.remove_file("a").await.unwrap();
        make(&root, "bb", &file()).await;
        stream.seek(behind_b).unwrap();
        assert_eq!(names(&mut stream, 9).await, ["bb", "c", "d"]);
        assert_eq!(stream.peek().await.unwrap(), None);
        stream.seek(0).unwrap();
        assert_eq!(names(&mut stream, 9).await, ["bb", "c", "d"]);
        assert_eq!(errno(stream.seek(4)), Errno::INVAL);
        assert_eq!(errno(stream.seek(u64::MAX)), Errno::INVAL);
    });
}

#[test]
fn a_stream_of_an_empty_directory_starts_again() {
    run(async |volume, _| {
        let root = volume.root();
        let mut stream = root.read_dir().await.unwrap();
        assert_eq!(names(&mut stream, 9).await, [""; 0]);
        make(&root, "b", &file()).await;
        assert_eq!(names(&mut stream, 9).await, [""; 0]);
        stream.seek(0).unwrap();
        assert_eq!(stream.peek().await.unwrap().unwrap().name, b"b");
        // Also before the first entry is passed.
        make(&root, "a", &file()).await;
        stream.seek(0).unwrap();
        assert_eq!(names(&mut stream, 9).await, ["a", "b"]);
    });
}

#[test]
fn a_stream_goes_on_where_another_has_ended() {
    run(async |volume, _| {
        let root = volume.root();
        for name in ["a", "b", "c", "d"] {
            make(&root, name, &file()).await;
        }
        let positions = DirectoryPositions::default();
        let mut one = root.read_dir_with(&positions).await.unwrap();
        assert_eq!(names(&mut one, 2).await, ["a", "b"]);
        let behind_b = one.position();
        root.remove_file("a").await.unwrap();
        make(&root, "bb", &file()).await;
        let mut other = root.read_dir_with(&positions).await.unwrap();
        assert_eq!(names(&mut other, 9).await, ["b", "bb", "c", "d"]);
        other.seek(0).unwrap();
        assert_eq!(names(&mut other, 1).await, ["b"]);
        assert_eq!(other.position(), behind_b);
        drop(one);
        let mut third = root.read_dir_with(&positions).await.unwrap();
        third.seek(behind_b).unwrap();
        assert_eq!(names(&mut third, 9).await, ["bb", "c", "d"]);
        assert_eq!(positions.count(), 5);
        assert_eq!(errno(third.seek(6)), Errno::INVAL);
    });
}

/// A step of [`positions_stay_valid`].
#[derive(Clone, Debug)]
enum Step {
    Create(u8),
    Remove(u8),
    Read(usize),
    /// Returns to one of the positions so far.
    Seek(prop::sample::Index),
    /// Goes on with the other stream.
    Switch,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<u8>().prop_map(Step::Create),
        any::<u8>().prop_map(Step::Remove),
        (1usize..20).prop_map(Step::Read),
        any::<prop::sample::Index>().prop_map(Step::Seek),
        Just(Step::Switch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// From each position a stream returns the names after the position's name, and no other. A name that was created
    /// since the last batch may be missing.
    #[test]
    fn positions_stay_valid(steps in prop::collection::vec(step(), 1..60)) {
        run(async |volume, _| {
            let root = volume.root();
            // Names that exist, and when they were created.
            let mut there: BTreeMap<String, usize> = BTreeMap::new();
            let shared = DirectoryPositions::default();
            let mut stream = root.read_dir_with(&shared).await.unwrap();
            // Each position, and the name before it.
            let mut positions = vec![(0, String::new())];
            let (mut at, mut read_ahead) = (String::new(), 0);
            // The other stream, and its place.
            let mut other = (root.read_dir_with(&shared).await.unwrap(), String::new(), 0);
            for (time, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Create(name) => {
                        let name = format!("{name:03}");
                        if root.create(&name, &file()).await.is_ok() {
                            there.insert(name, time);
                        }
                    }
                    Step::Remove(name) => {
                        let name = format!("{name:03}");
                        let removed = root.remove_file(&name).await.is_ok();
                        assert_eq!(removed, there.remove(&name).is_some());
                    }
                    Step::Seek(index) => {
                        let (position, name) = positions[index.index(positions.len())].clone();
                        if position != stream.position() {
                            read_ahead = time;
                        }
                        stream.seek(position).unwrap();
                        at = name;
                    }
                    Step::Switch => {
                        other = (mem::replace(&mut stream, other.0), mem::replace(&mut at, other.1),
                            mem::replace(&mut read_ahead, other.2));
                    }
                    Step::Read(count) => for _ in 0..count {
                        let next = stream.next_entry().await.unwrap();
                        let name = next.map(|entry| String::from_utf8(entry.name).unwrap());
                        let after = (std::ops::Bound::Excluded(at.clone()), std::ops::Bound::Unbounded);
                        let old = there.range::<String, _>(after).find(|(_, created)| **created < read_ahead);
                        if let Some((must, _)) = old {
                            let name = name.as_ref().expect("an old name is missing");
                            assert!(name <= must, "{name} instead of {must} after {at}");
                        }
                        let Some(name) = name else { break };
                        assert!(name > at);
                        at = name;
                        match positions.iter_mut().find(|(position, _)| *position == stream.position()) {
                            Some((_, known)) => assert_eq!(*known, at),
                            None => positions.push((stream.position(), at.clone())),
                        }
                    },
                }
            }
        });
    }
}
