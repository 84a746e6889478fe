//! The calls that are named as in `std::fs`, blocking and in tasks.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::process::{getegid, geteuid};
use uringfs_buffer::Buffer;
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::File;
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{
    Error, FileTimes, FileType, Follow, Inode, InodeNumber, OpenOptions, Time, Volume,
};

use crate::fixture::formatted;

fn volume() -> Volume {
    formatted(&Sim::new(SimOptions::new(64 << 20)))
}

fn errno<T>(result: Result<T, Error>) -> Errno {
    result.err().expect("the call is refused").errno()
}

fn names(volume: &Volume, path: &str) -> Vec<String> {
    let entries = volume.read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn whole_files_are_written_read_and_copied() {
    let volume = volume();
    let long: Vec<u8> = (0..2_500_000_u32).map(|n| (n / 7) as u8).collect();
    for content in [&b""[..], b"short", &long] {
        volume.write("/a", content).unwrap();
        assert!(volume.read("/a").unwrap() == content);
        assert_eq!(volume.copy("/a", "/b").unwrap(), content.len() as u64);
        assert!(volume.read("/b").unwrap() == content);
    }
    assert_eq!(volume.metadata("/a").unwrap().mode(), 0o100_644);
    volume.set_permissions("/a", Permissions::from_mode(0o600)).unwrap();
    volume.copy("/a", "/b").unwrap();
    assert_eq!(volume.metadata("/b").unwrap().permissions().mode(), 0o100_600);
    assert_eq!(errno(volume.copy("/a", "/a")), Errno::INVAL);
    assert!(volume.read("/a").unwrap() == long);
    assert_eq!(errno(volume.read("/none")), Errno::NOENT);
    volume.create_dir("/d").unwrap();
    assert_eq!(errno(volume.read("/d")), Errno::ISDIR);
    assert_eq!(errno(volume.write("/d", "x")), Errno::ISDIR);
}

#[test]
fn an_error_has_the_path_that_it_is_about() {
    let volume = volume();
    volume.write("/file", "x").unwrap();
    volume.create_dir("/directory").unwrap();
    // Not UTF-8.
    let odd = Path::new(OsStr::from_bytes(b"/none/\xff"));
    let errors = [
        (volume.read(odd).map(drop), odd),
        (volume.write(odd, "x"), odd),
        (volume.open_file(odd).map(drop), odd),
        (volume.open_with("/file", OpenOptions::new()).map(drop), Path::new("/file")),
        (volume.metadata(odd).map(drop), odd),
        (volume.read_link("/file").map(drop), Path::new("/file")),
        (volume.read_dir(odd).map(drop), odd),
        (volume.create_dir("/file"), Path::new("/file")),
        (volume.create_dir_all("/file/a/b"), Path::new("/file/a/b")),
        (volume.remove_dir_all(odd), odd),
        (volume.remove_file("/directory"), Path::new("/directory")),
        (volume.remove_dir("/file"), Path::new("/file")),
        (volume.set_times(odd, FileTimes::new()), odd),
        (volume.get_xattr("/file", Follow::Yes, "user.a").map(drop), Path::new("/file")),
        // Of two paths, the one that is the reason.
        (volume.copy(odd, "/file").map(drop), odd),
        (volume.copy("/file", odd).map(drop), odd),
        (volume.hard_link(odd, "/new"), odd),
        (volume.hard_link("/file", "/directory"), Path::new("/directory")),
        (volume.rename(odd, "/new"), odd),
        (volume.rename("/none", "/new"), Path::new("/none")),
        (volume.rename("/file", odd), odd),
        (volume.rename("/file", "/directory"), Path::new("/directory")),
    ];
    for (n, (result, path)) in errors.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert_eq!(error.path(), Some(path), "{n}: {error}");
        // The whole path once, and in the message without it only the part that matters.
        let shown = format!("'{}'", path.as_os_str().as_bytes().escape_ascii());
        assert_eq!(error.to_string().matches(&shown).count(), 1, "{n}: {error}");
        assert!(!error.message().contains("/none/"), "{n}: {error}");
    }
    let named = Volume::open("/none/image").unwrap_err();
    assert_eq!(named.path(), Some(Path::new("/none/image")));
    assert_eq!(named.to_string().matches("/none/image").count(), 1, "{named}");
    assert_eq!(volume.resize(1).unwrap_err().path(), None);

    let volume = volume.as_async();
    Reactor::new(ReactorOptions::default()).unwrap().block_on(async {
        assert_eq!(volume.rename(odd, "/new").await.unwrap_err().path(), Some(odd));
        assert_eq!(
            volume.mknod("/file", &Inode::symlink(b"a").unwrap()).await.unwrap_err().path(),
            Some(Path::new("/file"))
        );
    });
}

#[test]
fn a_copy_keeps_holes() {
    let volume = volume();
    let create = OpenOptions::new().read(true).write(true).create(true).direct(true);
    let file = volume.open_with("/sparse", create).unwrap();
    file.write_at(Buffer::copy_of(&[1; 4096]), 8 << 20).wait().0.unwrap();
    file.set_len(32 << 20).wait().unwrap();
    assert_eq!(volume.copy("/sparse", "/copy").unwrap(), 32 << 20);
    volume.sync().unwrap();
    let copy = volume.metadata("/copy").unwrap();
    assert_eq!((copy.len(), copy.blocks()), (32 << 20, 8));
    assert!(volume.read("/copy").unwrap() == volume.read("/sparse").unwrap());
}

#[test]
fn a_thread_with_a_reactor_reads_and_writes_whole_files() {
    let _reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let volume = volume();
    volume.write("/a", "text").unwrap();
    assert_eq!(volume.read("/a").unwrap(), b"text");
}

#[test]
fn trees_are_created_and_removed() {
    let volume = volume();
    volume.create_dir_all("/a/b/c").unwrap();
    volume.create_dir_all("/a/b/c").unwrap();
    volume.create_dir_all("a/b/d/").unwrap();
    volume.create_dir_all("/").unwrap();
    volume.write("/a/file", "").unwrap();
    // The last one begins with a directory that it creates.
    for path in ["/a/file", "/a/file/x", "/a/new/../file"] {
        assert_eq!(errno(volume.create_dir_all(path)), Errno::NOTDIR, "{path}");
    }
    volume.create_dir("/kept").unwrap();
    volume.write("/kept/file", "").unwrap();
    volume.symlink("/kept", "/a/b/link").unwrap();
    for n in 0..3000 {
        let (directory, file) = (format!("/a/many-{n}"), format!("/a/b/{n}"));
        volume.mknod(file, &Inode::new(FileType::File, 0o644)).unwrap();
        volume.create_dir(directory).unwrap();
    }
    assert_eq!(errno(volume.remove_dir_all("/a/file")), Errno::NOTDIR);
    assert_eq!(errno(volume.remove_dir_all("/a/b/link")), Errno::NOTDIR);
    assert_eq!(errno(volume.remove_dir_all("/none")), Errno::NOENT);
    assert_eq!(errno(volume.remove_dir_all("/")), Errno::BUSY);
    volume.remove_dir_all("/a").unwrap();
    assert_eq!(
        (names(&volume, "/"), names(&volume, "/kept")),
        (vec!["kept".into()], vec!["file".into()])
    );
}

#[test]
fn read_dir_returns_all_names_in_order() {
    let volume = volume();
    volume.create_dir("/d").unwrap();
    let expected: Vec<_> = (0..5000).map(|n| format!("{n:04}")).collect();
    for name in expected.iter().rev() {
        volume.mknod(format!("/d/{name}"), &Inode::new(FileType::File, 0o644)).unwrap();
    }
    assert_eq!(names(&volume, "/d"), expected);
    assert_eq!(names(&volume, "/"), ["d"]);
    let entry = volume.read_dir("/d").unwrap().next().unwrap().unwrap();
    assert_eq!((entry.path().as_path(), entry.name().len()), (Path::new("/d/0000"), 4));
    assert_eq!(entry.ino(), volume.metadata("/d/0000").unwrap().ino());
    assert!(entry.file_type().is_file());
    assert_eq!(errno(volume.read_dir("/none")), Errno::NOENT);
    assert_eq!(errno(volume.read_dir("/d/0000")), Errno::NOTDIR);

    // A listing goes on in a directory that moves, and ends in one that is removed.
    let mut listing = volume.read_dir("/d").unwrap();
    listing.next().unwrap().unwrap();
    volume.rename("/d", "/e").unwrap();
    assert_eq!(listing.count(), 4999);
    let mut listing = volume.read_dir("/e").unwrap();
    listing.next().unwrap().unwrap();
    volume.remove_dir_all("/e").unwrap();
    assert!(listing.map(Result::unwrap).count() < 5000);
}

#[test]
fn attributes_have_stds_names() {
    let volume = volume();
    volume.write("/a", "12345").unwrap();
    volume.symlink("a", "/s").unwrap();
    volume.hard_link("/a", "/b").unwrap();
    let day = SystemTime::UNIX_EPOCH + Duration::from_secs(24 * 3600);
    volume.set_times("/s", FileTimes::new().set_modified(day)).unwrap();
    volume.chown("/s", Some(7), None).unwrap();
    volume.lchown("/s", None, Some(8)).unwrap();
    let (file, link) = (volume.metadata("/s").unwrap(), volume.symlink_metadata("/s").unwrap());
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    assert_eq!((file.len(), file.nlink(), file.uid(), file.gid()), (5, 2, 7, group));
    assert!(file.is_file() && !file.is_dir() && !file.is_symlink());
    assert_eq!(file.modified(), day);
    assert!(file.accessed() > day && file.created() > day && file.changed() > day);
    assert_eq!(file.ino(), volume.metadata("/b").unwrap().ino());
    assert!(link.is_symlink() && link.mode() == 0o120_777);
    assert_eq!((link.len(), link.uid(), link.gid()), (1, user, 8));
    assert_eq!(volume.read_link("/s").unwrap(), Path::new("a"));
    assert_eq!(errno(volume.read_link("/a")), Errno::INVAL);
    volume.mknod("/device", &Inode::new(FileType::CharacterDevice(0x103), 0o600)).unwrap();
    assert_eq!(volume.metadata("/device").unwrap().rdev(), 0x103);

    assert!(volume.exists("/s").unwrap() && !volume.exists("/none").unwrap());
    volume.remove_file("/a").unwrap();
    assert!(!volume.exists("/s").unwrap());
    assert_eq!(errno(volume.exists("/b/x")), Errno::NOTDIR);
}

#[test]
fn tasks_have_the_same_calls() {
    let (volume, reactor) = (volume(), Reactor::new(ReactorOptions::default()).unwrap());
    let tasks = volume.as_async();
    reactor.block_on(async {
        tasks.create_dir_all("/a/b").await.unwrap();
        tasks.write("/a/file", "text").await.unwrap();
        assert_eq!(tasks.copy("/a/file", "/a/b/copy").await.unwrap(), 4);
        assert_eq!(tasks.read("/a/b/copy").await.unwrap(), b"text");
        tasks.symlink("file", "/a/link").await.unwrap();
        assert_eq!(tasks.read_link("/a/link").await.unwrap(), Path::new("file"));
        tasks.hard_link("/a/file", "/a/hard").await.unwrap();
        tasks.rename("/a/hard", "/a/moved").await.unwrap();
        tasks.set_permissions("/a/moved", Permissions::from_mode(0o400)).await.unwrap();
        tasks
            .set_times("/a/moved", FileTimes::new().set_accessed(SystemTime::UNIX_EPOCH))
            .await
            .unwrap();
        tasks.chown("/a/link", Some(1), Some(2)).await.unwrap();
        tasks.lchown("/a/link", Some(3), Some(4)).await.unwrap();
        let (file, link) =
            (tasks.metadata("/a/link").await, tasks.symlink_metadata("/a/link").await);
        assert_eq!(file.unwrap().permissions().mode(), 0o100_400);
        assert_eq!(link.unwrap().uid(), 3);
        assert_eq!(tasks.list_xattrs("/a/link", Follow::Yes).await.unwrap().len(), 0);
        let (mut entries, mut found) = (tasks.read_dir("/a").await.unwrap(), Vec::new());
        while let Some(entry) = entries.next_entry().await.unwrap() {
            found.push(entry.file_name().into_string().unwrap());
        }
        assert_eq!(found, ["b", "file", "link", "moved"]);
        tasks.remove_file("/a/moved").await.unwrap();
        assert!(!tasks.exists("/a/moved").await.unwrap());
        tasks.remove_dir_all("/a").await.unwrap();
        assert!(!tasks.exists("/a").await.unwrap());
    });
}

fn is_send<T: Send>(_: &T) {}

#[test]
fn futures_can_move_between_threads() {
    let tasks = volume().as_async();
    is_send(&tasks.read("/a"));
    is_send(&tasks.write("/a", "b"));
    is_send(&tasks.copy("/a", "/b"));
    is_send(&tasks.remove_dir_all("/a"));
    is_send(&tasks.create_dir_all("/a"));
    is_send(&tasks.read_dir("/a"));
}

#[test]
fn attributes_of_an_open_file_do_not_depend_on_its_name() {
    let (volume, other) = (volume(), volume());
    let options = OpenOptions::new().read(true).write(true).create(true).mode(0o640);
    let file = options.open(&volume, "/a").unwrap();
    file.write_at("12345", 0).wait().0.unwrap();
    volume.rename("/a", "/b").unwrap();
    volume.write("/a", "another file").unwrap();
    let named = volume.metadata("/b").unwrap();
    let open = volume.metadata_of(&file).unwrap();
    assert_eq!((open.ino(), open.mode(), open.nlink()), (named.ino(), 0o100_640, 1));
    assert_eq!((named.len(), open.len()), (5, 5));

    volume.remove_file("/b").unwrap();
    let reactor = Reactor::new(ReactorOptions::new()).unwrap();
    let open = reactor.block_on(volume.as_async().metadata_of(&file)).unwrap();
    assert_eq!((open.ino(), open.nlink(), open.len()), (named.ino(), 0, 5));

    assert_eq!(errno(other.metadata_of(&file)), Errno::XDEV);
    let whole = File::from_device(Device::new(Memory::new(4096).unwrap()).unwrap(), <_>::default());
    assert_eq!(errno(volume.metadata_of(&whole)), Errno::XDEV);
}

#[test]
fn an_entry_has_the_attributes_of_the_file_it_was_found_with() {
    let volume = volume();
    volume.write("/a", "12345").unwrap();
    volume.create_dir("/directory").unwrap();
    volume.symlink("/a", "/link").unwrap();
    let entries: Vec<_> = volume.read_dir("/").unwrap().map(Result::unwrap).collect();
    volume.rename("/a", "/b").unwrap();
    volume.write("/a", "another file").unwrap();
    let [file, link] = [0, 2].map(|entry: usize| entries[entry].metadata(&volume).unwrap());
    assert_eq!((file.len(), link.file_type()), (5, FileType::Symlink));
    volume.remove_dir("/directory").unwrap();
    let error = entries[1].metadata(&volume).unwrap_err();
    assert_eq!((error.errno(), error.path()), (Errno::NOENT, Some(Path::new("/directory"))));
    volume.close().unwrap();
}

#[test]
fn attributes_have_the_names_and_types_of_std() {
    use std::os::unix::fs::MetadataExt;
    let volume = volume();
    volume.write("/a", vec![7; 5000]).unwrap();
    let time = Time::new(-1, 999_999_999).unwrap();
    volume.set_times("/a", FileTimes::new().set_modified(time).set_accessed(time)).unwrap();
    let ours = volume.metadata("/a").unwrap();
    let changed = ours.changed().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!((ours.size(), ours.blksize()), (5000, 4096));
    assert_eq!((ours.mtime(), ours.mtime_nsec()), (-1, 999_999_999));
    assert_eq!((ours.atime(), ours.atime_nsec()), (-1, 999_999_999));
    assert_eq!(ours.ctime() as u64, changed.as_secs());
    assert_eq!(ours.ctime_nsec(), i64::from(changed.subsec_nanos()));
    // The same types: each pair of names is an array.
    let std = std::fs::metadata("/").unwrap();
    let _ = [[ours.size(), ours.blksize()], [std.size(), std.blksize()]];
    let _ = [[ours.atime(), ours.mtime(), ours.ctime()], [std.atime(), std.mtime(), std.ctime()]];
    let nanoseconds = [ours.atime_nsec(), ours.mtime_nsec(), ours.ctime_nsec()];
    let _ = [nanoseconds, [std.atime_nsec(), std.mtime_nsec(), std.ctime_nsec()]];
    assert_eq!(InodeNumber::from(u64::from(InodeNumber::ROOT)), InodeNumber::ROOT);
}

#[test]
fn a_file_that_is_created_without_write_access_says_what_to_do() {
    let volume = volume();
    for options in [OpenOptions::new(), OpenOptions::new().read(true)] {
        let error = options.create(true).open(&volume, "/a").unwrap_err();
        let text = "'/a': a file is created or truncated only if it is opened with `.write(true)`";
        assert_eq!((error.errno(), error.to_string()), (Errno::INVAL, text.to_owned()));
    }
    let error = OpenOptions::new().open(&volume, "/a").unwrap_err();
    let text = "'/a': a file is opened with `.read(true)`, `.write(true)` or both";
    assert_eq!(error.to_string(), text);
    assert!(!volume.exists("/a").unwrap());
}
