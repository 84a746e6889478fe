//! Programs on a mounted volume: std's file API against what the volume has afterwards.

mod harness;

use std::collections::BTreeSet;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use harness::{CACHES, Mounted, UnmountOnDrop, simulated, threads};
use rustix::fs::{
    FallocateFlags, RawDir, SeekFrom as FileSeek, XattrFlags, copy_file_range, fallocate, getxattr,
    removexattr, setxattr, statvfs,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use uringfs::{FormatOptions, Volume};
use uringfs_fuse::{Mount, MountCache};

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn files_are_written_and_read_back() {
    let mounted = Mounted::new(&threads(2));
    let path = mounted.path("file");
    fs::write(&path, "hello").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(100_000)).unwrap();
    file.write_all(&[7; 300_000]).unwrap();
    file.write_all_at(b"J", 0).unwrap();
    // tar takes a file without blocks for one hole.
    assert!(file.metadata().unwrap().blocks() * 512 >= 300_000);
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), 400_000);
    let mut content = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut content).unwrap();
    assert_eq!((&content[..5], content.len()), (&b"Jello"[..], 400_000));
    assert!(content[5..100_000].iter().all(|byte| *byte == 0));
    assert!(content[100_000..].iter().all(|byte| *byte == 7));
    file.set_len(3).unwrap();
    drop(file);
    let (_folder, volume) = mounted.unmount();
    assert_eq!(volume.read("/file").unwrap(), b"Jel");
}

#[test]
fn data_are_found_before_they_are_written_back() {
    const DATA: u64 = 1 << 20;
    for (cache, writeback) in CACHES {
        let mounted = Mounted::new(&threads(1).cache(cache).writeback(writeback));
        let file = File::create_new(mounted.path("file")).unwrap();
        file.write_all_at(b"data", DATA).unwrap();
        let found = |from| rustix::fs::seek(&file, from);
        assert!(found(FileSeek::Data(0)).unwrap() <= DATA);
        assert_eq!(found(FileSeek::Data(DATA)), Ok(DATA));
        assert_eq!(found(FileSeek::Hole(DATA)), Ok(DATA + 4));
        assert_eq!(found(FileSeek::Data(DATA + 4)), Err(Errno::NXIO));
    }
}

#[test]
fn names_behave_as_on_a_local_file_system() {
    let mounted = Mounted::new(&threads(1));
    let (dir, file) = (mounted.path("dir"), mounted.path("dir/file"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "content").unwrap();
    fs::hard_link(&file, mounted.path("link")).unwrap();
    symlink("dir/file", mounted.path("symlink")).unwrap();
    assert_eq!(fs::read_link(mounted.path("symlink")).unwrap(), Path::new("dir/file"));
    assert_eq!(fs::read(mounted.path("symlink")).unwrap(), b"content");
    assert_eq!(fs::metadata(&file).unwrap().nlink(), 2);
    fs::rename(&file, mounted.path("renamed")).unwrap();
    assert!(!file.exists());
    assert_eq!(fs::remove_file(&dir).unwrap_err().raw_os_error(), Some(21));
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
    let listed = names(&mounted.path(""));
    assert_eq!(listed, ["dir", "link", "renamed", "symlink"]);
    let open = File::open(mounted.path("link")).unwrap();
    fs::remove_file(mounted.path("link")).unwrap();
    fs::remove_file(mounted.path("renamed")).unwrap();
    let mut content = [0; 7];
    open.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"content");
    drop(open);
    fs::remove_dir(&dir).unwrap();
    let (_folder, volume) = mounted.unmount();
    assert_eq!(volume.read_dir("/").unwrap().count(), 1);
}

#[test]
fn a_large_directory_is_listed_while_it_is_emptied() {
    let mounted = Mounted::new(&threads(2));
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..3000 {
        File::create(dir.join(format!("{number:05}"))).unwrap();
    }
    assert_eq!(names(&dir).len(), 3000);
    fs::remove_dir_all(&dir).unwrap();
    let (_folder, volume) = mounted.unmount();
    assert_eq!(volume.read_dir("/").unwrap().count(), 0);
}

#[test]
fn a_listing_goes_on_after_another_and_after_a_change() {
    let mounted = Mounted::new(&threads(1));
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..3000 {
        File::create(dir.join(format!("{number:04}"))).unwrap();
    }
    // The kernel would cache this listing, if it may, and the next one would begin there.
    assert_eq!(names(&dir).len(), 3000);
    let mut listing = fs::read_dir(&dir).unwrap();
    let first = listing.next().unwrap().unwrap().file_name();
    File::create(dir.join("new")).unwrap();
    fs::read_dir(&dir).unwrap().next().unwrap().unwrap();
    let others = listing.map(|entry| entry.unwrap().file_name()).filter(|name| name != "new");
    let listed = std::iter::once(first).chain(others).collect::<BTreeSet<_>>();
    assert_eq!(listed.len(), 3000);
    mounted.unmount();
}

#[test]
fn a_listing_that_began_before_a_change_does_not_hide_it_from_later_ones() {
    let mounted = Mounted::new(&threads(1));
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..100 {
        File::create(dir.join(format!("{number:03}"))).unwrap();
    }
    // Each part is one reply of the server, with less than half of the names.
    let open = || File::open(&dir).unwrap();
    let (files, mut parts) = ([open(), open()], [[MaybeUninit::uninit(); 4096]; 2]);
    let [part, other_part] = &mut parts;
    let mut early = RawDir::new(&files[0], part);
    early.next().unwrap().unwrap();
    assert_eq!(names(&dir).len(), 100, "the kernel has the whole listing");
    fs::remove_file(dir.join("090")).unwrap();
    File::create(dir.join("zz")).unwrap();
    // The kernel begins to gather a new one, of which the older listing brings the rest.
    let mut late = RawDir::new(&files[1], other_part);
    late.next().unwrap().unwrap();
    while let Some(entry) = early.next() {
        entry.unwrap();
    }
    drop(files);
    for _ in 0..2 {
        let names = names(&dir);
        assert_eq!(names.len(), 100);
        assert!(names.contains(&"zz".into()) && !names.contains(&"090".into()));
    }
    mounted.unmount();
}

#[test]
fn programs_copy_a_tree_and_find_it_equal() {
    let mounted = Mounted::new(&threads(2));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let target = mounted.path("src");
    let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
    run(Command::new("cp").arg("-a").args([&source, &target]));
    run(Command::new("diff").arg("-r").args([&source, &target]));
    let (folder, volume) = mounted.unmount();
    let mounted = Mounted::with(folder, volume, &threads(1));
    run(Command::new("diff").arg("-r").args([&source, &mounted.path("src")]));
    mounted.unmount();
}

#[test]
fn as_root_a_file_that_another_has_just_created_is_opened_with_all_checks() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let format = FormatOptions::new().size(64 << 20);
    let volume = Volume::create(folder.path().join("image"), &format).unwrap();
    let mounted = Mounted::with(folder, volume.clone(), &threads(1).allow_other(true));
    let directory = mounted.path("");
    for open in directory.ancestors().take(3) {
        fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
    }
    // The kernel asks no more whether the file is there.
    let appears = |name: &str| {
        let path = mounted.path(name);
        assert!(!path.exists());
        volume.write(format!("/{name}"), "content").unwrap();
        path
    };
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let mut content = String::new();
    options.open(appears("kept")).unwrap().read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    let emptied = File::create(appears("emptied")).unwrap();
    assert_eq!(emptied.metadata().unwrap().len(), 0);
    let refused = File::create_new(appears("new")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
    let closed = appears("closed");
    let refused = as_other_user(move || File::create(closed)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(volume.read("/closed").unwrap(), b"content");
    drop((emptied, volume));
    mounted.unmount();
}

/// A tmpfs over a mounted volume, or in its place. It has one file.
struct OtherMount<'d>(&'d Path);

impl OtherMount<'_> {
    fn new(directory: &Path) -> OtherMount<'_> {
        rustix::mount::mount("other", directory, "tmpfs", MountFlags::empty(), None).unwrap();
        let mount = OtherMount(directory);
        File::create(directory.join("other")).unwrap();
        mount
    }

    fn is_there(&self) -> bool {
        self.0.join("other").exists()
    }
}

impl Drop for OtherMount<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn as_root_no_other_mount_is_unmounted_for_a_volume() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (_, volume) = simulated();
    let mount = Mount::new(volume, folder.path(), &threads(1)).unwrap();
    let unmount = UnmountOnDrop(mount.unmounter());
    let server = thread::spawn(|| mount.serve());
    let file = File::create(folder.path().join("file")).unwrap();
    // First over the volume, then in its place, while a program still has a file of that open.
    let over = OtherMount::new(folder.path());
    unmount.0.unmount().unwrap_err();
    unmount.0.unmount_lazily().unwrap_err();
    assert!(over.is_there());
    drop(over);
    unmount.0.unmount_lazily().unwrap();
    let after = OtherMount::new(folder.path());
    unmount.0.unmount_lazily().unwrap_err();
    assert!(after.is_there());
    drop(file);
    server.join().unwrap().unwrap();
    unmount.0.unmount_lazily().unwrap_err();
    assert!(after.is_there());
}

#[test]
fn a_program_that_runs_is_not_emptied_by_an_open() {
    let mounted = Mounted::new(&threads(2));
    let program = mounted.path("sleep");
    let length = fs::copy("/bin/sleep", &program).unwrap();
    let mut running = Command::new(&program).arg("600").spawn().unwrap();
    let opened = OpenOptions::new().write(true).truncate(true).open(&program);
    let still = fs::metadata(&program).unwrap().len();
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(opened.unwrap_err().kind(), std::io::ErrorKind::ExecutableFileBusy);
    assert_eq!(still, length);
    mounted.unmount();
}

#[test]
fn no_program_runs_on_a_mount_that_excludes_them() {
    let mounted = Mounted::new(&threads(1).executable(false));
    let program = mounted.path("true");
    fs::copy("/bin/true", &program).unwrap();
    let refused = Command::new(&program).status().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    mounted.unmount();
}

#[test]
fn reads_leave_access_times_alone_where_that_is_asked_for() {
    const O_NOATIME: i32 = rustix::fs::OFlags::NOATIME.bits() as i32;
    let old = UNIX_EPOCH + Duration::from_secs(1_000_000);
    for (access_times, flags, is_kept) in
        [(true, 0, false), (true, O_NOATIME, true), (false, 0, true)]
    {
        // Each read is a request.
        let options = threads(1).cache(MountCache::Volume).access_times(access_times);
        let mounted = Mounted::new(&options);
        let path = mounted.path("file");
        fs::write(&path, "content").unwrap();
        let times = FileTimes::new().set_accessed(old).set_modified(old);
        File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        let mut file = File::options().read(true).custom_flags(flags).open(&path).unwrap();
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
        drop(file);
        let (_folder, volume) = mounted.unmount();
        let accessed = volume.metadata("/file").unwrap().accessed();
        assert_eq!(accessed == old, is_kept, "{access_times} {flags}");
    }
}

#[test]
fn the_space_of_a_removed_file_is_free_some_time_after_its_last_close() {
    let folder = tempfile::tempdir().unwrap();
    let format = FormatOptions::new().size(64 << 20);
    let volume = Volume::create(folder.path().join("image"), &format).unwrap();
    let options = threads(1).commit_interval(Duration::from_millis(1));
    let mounted = Mounted::with(folder, volume.clone(), &options);
    let path = mounted.path("file");
    fs::write(&path, vec![7; 8 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    let full = volume.statistics();
    fs::remove_file(&path).unwrap();
    // The commit that the removal has asked for is made. Then come many intervals in which requests change nothing.
    while volume.statistics().commits == full.commits {
        thread::yield_now();
    }
    for _ in 0..5000 {
        statvfs(mounted.path("")).unwrap();
    }
    assert_eq!(file.metadata().unwrap().len(), 8 << 20);
    drop(file);
    while volume.statistics().free_blocks < full.free_blocks + 2048 {
        thread::yield_now();
    }
    drop(volume);
    mounted.unmount();
}

#[test]
fn a_change_by_an_ordinary_user_ends_set_id_bits() {
    let is_root = rustix::process::geteuid().is_root();
    let mounted = Mounted::new(&threads(2).allow_other(is_root));
    let allocate: fn(&File) = |file| fallocate(file, FallocateFlags::empty(), 0, 8192).unwrap();
    let copy: fn(&File) = |file| {
        let copied = copy_file_range(file, Some(&mut 0), file, Some(&mut 8192), 7).unwrap();
        assert_eq!(copied, 7);
    };
    for (name, change) in [("allocated", allocate), ("copied", copy)] {
        let path = mounted.path(name);
        fs::write(&path, "content").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let changed = thread::spawn(move || {
            if is_root {
                let user = Uid::from_raw(OTHER_USER);
                set_thread_res_uid(user, user, user).unwrap();
            }
            change(&file);
        });
        changed.join().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{name}");
    }
    mounted.unmount();
}

/// The user of tests that need a second one.
const OTHER_USER: u32 = 65534;

/// An access control list that grants permissions to one user by name.
fn acl(owner: u16, user: u32, granted: u16, mask: u16) -> Vec<u8> {
    const UNNAMED: u32 = u32::MAX;
    let entries = [
        (1u16, owner, UNNAMED),
        (2, granted, user),
        (4, 0, UNNAMED),
        (16, mask, UNNAMED),
        (32, 0, UNNAMED),
    ];
    let entry = |(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let version = 2u32.to_le_bytes().to_vec();
    [version].into_iter().chain(entries.map(entry)).flatten().collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn as_other_user<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let acted = thread::spawn(move || {
        let (user, group) = (Uid::from_raw(OTHER_USER), Gid::from_raw(OTHER_USER));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        act()
    });
    acted.join().unwrap()
}

/// Whether the other user may read a file.
fn other_user_reads(path: &Path) -> bool {
    let path = path.to_owned();
    match as_other_user(move || fs::read(path)) {
        Ok(content) => content == b"content",
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            false
        }
    }
}

#[test]
fn acls_are_one_with_modes_and_inherited_instead_of_the_mask() {
    const ACCESS: &str = "system.posix_acl_access";
    let mounted = Mounted::new(&threads(1));
    let (dir, path) = (mounted.path("dir"), mounted.path("file"));
    fs::create_dir(&dir).unwrap();
    fs::write(&path, "content").unwrap();
    let set = |path: &Path, name, acl: &[u8]| setxattr(path, name, acl, XattrFlags::empty());
    set(&path, ACCESS, &acl(7, OTHER_USER, 4, 5)).unwrap();
    // The group's bits are the mask's.
    assert_eq!(mode(&path), 0o750);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let value = |path: &Path| {
        let mut value = vec![0; 1000];
        let length = getxattr(path, ACCESS, &mut value[..]);
        length.map(|length| value[..length].to_vec())
    };
    assert_eq!(value(&path), Ok(acl(6, OTHER_USER, 4, 4)));
    removexattr(&path, ACCESS).unwrap();
    assert_eq!(value(&path), Err(Errno::NODATA));

    // A program's mask takes permissions away, but not where the directory has a list.
    let create = |path: PathBuf| {
        OpenOptions::new().write(true).create_new(true).mode(0o666).open(&path).unwrap();
        path
    };
    let local = create(dir.parent().unwrap().with_file_name("local"));
    let before = create(dir.join("before"));
    assert_eq!(mode(&before), mode(&local));
    set(&dir, "system.posix_acl_default", &acl(7, OTHER_USER, 7, 7)).unwrap();
    let (after, inner) = (create(dir.join("after")), dir.join("inner"));
    fs::create_dir(&inner).unwrap();
    assert_eq!(value(&before), Err(Errno::NODATA));
    assert_eq!(value(&after), Ok(acl(6, OTHER_USER, 7, 6)));
    assert_eq!((mode(&after), mode(&inner)), (0o660, 0o770));
    mounted.unmount();
}

#[test]
fn as_root_acls_are_enforced() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mounted = Mounted::new(&threads(1).allow_other(true));
    let folder = mounted.path("");
    for closed in folder.ancestors().skip(1).take(2) {
        fs::set_permissions(closed, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = mounted.path("file");
    fs::write(&path, "content").unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!other_user_reads(&path));
    let list = acl(6, OTHER_USER, 4, 4);
    setxattr(&path, "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    assert!(other_user_reads(&path));
    // A mode without the group's bits closes the mask.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!other_user_reads(&path));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(other_user_reads(&path));
    removexattr(&path, "system.posix_acl_access").unwrap();
    assert!(!other_user_reads(&path));
    mounted.unmount();
}
