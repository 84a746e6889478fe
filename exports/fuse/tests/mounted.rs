//! Programs on a mounted volume: std's file API against what the volume has afterwards.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{
    FallocateFlags, OFlags, XattrFlags, copy_file_range, fallocate, getxattr, removexattr, setxattr,
};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use uringfs::device::backend::memory::Memory;
use uringfs::device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, When};
use uringfs::device::{Backend, Device, Geometry, Op};
use uringfs::{Buffer, FormatOptions, Volume};
use uringfs_device::{KernelTarget, Request};
use uringfs_fuse::{Mount, MountCache, MountOptions, Unmounter};

/// A mounted volume in a file.
struct Mounted {
    unmounter: Unmounter,
    server: Option<JoinHandle<std::io::Result<()>>>,
    folder: Option<tempfile::TempDir>,
}

impl Mounted {
    fn new(options: &MountOptions) -> Mounted {
        let folder = tempfile::tempdir().unwrap();
        let format = FormatOptions::new().size(256 << 20);
        let volume = Volume::create(folder.path().join("image"), &format).unwrap();
        Mounted::with(folder, volume, options)
    }

    fn with(folder: tempfile::TempDir, volume: Volume, options: &MountOptions) -> Mounted {
        let directory = folder.path().join("mount");
        fs::create_dir_all(&directory).unwrap();
        let mount = Mount::new(volume, &directory, options).unwrap();
        let unmounter = mount.unmounter();
        let server = Some(thread::spawn(|| mount.serve()));
        Mounted { unmounter, server, folder: Some(folder) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().unwrap().path().join("mount").join(name)
    }

    fn end(&mut self) {
        // A child of another test has this one's files open between its fork and its exec.
        while let Err(error) = self.unmounter.unmount() {
            assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{error}");
        }
        self.server.take().unwrap().join().unwrap().unwrap();
    }

    /// Unmounts, checks the volume and returns it.
    fn unmount(mut self) -> (tempfile::TempDir, Volume) {
        self.end();
        let folder = self.folder.take().unwrap();
        let volume = Volume::open(folder.path().join("image")).unwrap();
        assert!(volume.flaws().is_empty());
        (folder, volume)
    }
}

impl Drop for Mounted {
    /// A test that fails leaves no mount.
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = self.unmounter.unmount_lazily();
            let _ = server.join();
        }
    }
}

fn threads(threads: usize) -> MountOptions {
    MountOptions::new().threads(threads)
}

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

/// Flags to open a file with, and what changes its content.
type Way<'a> = (i32, &'a dyn Fn(&File));

#[test]
fn what_a_synchronous_write_has_acknowledged_survives_a_power_cut() {
    const O_DSYNC: i32 = 0o10_000;
    const O_SYNC: i32 = 0o4_010_000;
    let o_direct = OFlags::DIRECT.bits() as i32;
    let content = Buffer::copy_of(&[7; 8192]);
    let write_with = |file: &File, flags| {
        let written = pwritev2(file, &[IoSlice::new(&content)], 0, flags);
        assert_eq!(written, Ok(8192));
    };
    let write = |file: &File| write_with(file, ReadWriteFlags::empty());
    let write_dsync = |file: &File| write_with(file, ReadWriteFlags::DSYNC);
    for (cache, writeback) in [
        (MountCache::Kernel, false),
        (MountCache::Kernel, true),
        (MountCache::Volume, false),
        (MountCache::None, false),
    ] {
        let sim = Sim::new(SimOptions::new(64 << 20));
        let device = Device::new(sim.clone()).unwrap();
        Volume::format(&device, &FormatOptions::new()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        volume.write("/source", &content[..]).unwrap();
        // Nothing becomes durable by time.
        let options = threads(1).cache(cache).writeback(writeback);
        let options = options.commit_interval(Duration::from_secs(3600));
        let mut mounted = Mounted::with(tempfile::tempdir().unwrap(), volume, &options);
        let source = File::open(mounted.path("source")).unwrap();
        let copy = |file: &File| {
            assert_eq!(copy_file_range(&source, Some(&mut 0), file, Some(&mut 0), 8192), Ok(8192));
        };
        let ways: [Way; 7] = [
            (O_DSYNC, &write),
            (O_SYNC, &write),
            (O_DSYNC | o_direct, &write),
            (O_SYNC | o_direct, &write),
            (0, &write_dsync),
            (o_direct, &write_dsync),
            (O_SYNC, &copy),
        ];
        for (number, (flags, change)) in ways.into_iter().enumerate() {
            let mut open = OpenOptions::new();
            let open = open.write(true).create(true).custom_flags(flags);
            let file = open.open(mounted.path(&number.to_string())).unwrap();
            // The name is no concern of these calls.
            File::open(mounted.path("")).unwrap().sync_all().unwrap();
            change(&file);
            let after_a_cut = Device::new(sim.crash_image(Crash::LoseAll)).unwrap();
            let found = Volume::open_on(after_a_cut).unwrap().read(format!("/{number}")).unwrap();
            assert!(found == content[..], "{cache:?}, write-back {writeback}, way {number}");
        }
        drop(source);
        mounted.end();
    }
}

#[test]
fn errors_of_the_device_reach_programs_once() {
    let eio = |result: std::io::Result<()>, what: &str| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(5), "{what}");
    };
    for (cache, writeback) in [
        (MountCache::Kernel, false),
        (MountCache::Kernel, true),
        (MountCache::Volume, false),
        (MountCache::None, false),
    ] {
        let sim = Sim::new(SimOptions::new(64 << 20));
        let device = Device::new(sim.clone()).unwrap();
        Volume::format(&device, &FormatOptions::new()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        for name in ["/cold", "/kept", "/closed"] {
            volume.write(name, vec![7; 64 << 10]).unwrap();
        }
        volume.sync().unwrap();
        let options = threads(1).cache(cache).writeback(writeback);
        let options = options.commit_interval(Duration::from_secs(3600));
        let mut mounted = Mounted::with(tempfile::tempdir().unwrap(), volume.clone(), &options);
        let kind = format!("{cache:?}, write-back {writeback}");

        sim.inject(Rule::new(Op::Read, When::From(1), Fault::Error(uringfs::Errno::IO)));
        eio(fs::read(mounted.path("cold")).map(drop), &kind);
        sim.clear_faults();
        assert_eq!(fs::read(mounted.path("cold")).unwrap(), [7; 64 << 10], "{kind}");

        // The writer learns it, from its write or from its sync.
        let failing = || {
            sim.inject(Rule::new(Op::Write, When::Nth(1), Fault::Error(uringfs::Errno::IO)));
        };
        let file = OpenOptions::new().write(true).open(mounted.path("kept")).unwrap();
        failing();
        let written = file.write_all_at(&[8; 64 << 10], 0);
        eio(written.and_then(|()| file.sync_all()), &kind);
        sim.clear_faults();
        file.write_all_at(&[9; 64 << 10], 0).unwrap();
        file.sync_all().unwrap();
        drop(file);

        // A program that did not ask leaves the error to the next one that does.
        let file = OpenOptions::new().write(true).open(mounted.path("closed")).unwrap();
        failing();
        let written = file.write_all_at(&[8; 64 << 10], 0);
        drop(file);
        // Writes back what the server has; the kernel has written back its own at the close.
        let _ = volume.sync();
        sim.clear_faults();
        let file = OpenOptions::new().write(true).open(mounted.path("closed")).unwrap();
        if written.is_ok() {
            eio(file.sync_all(), &kind);
        }
        file.sync_all().unwrap();
        drop((file, volume));
        mounted.end();
    }
}

/// Memory on which the thread that reads the catalog can be held up.
struct Gated {
    memory: Memory,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    waiting: usize,
}

impl Gate {
    fn set_closed(&self, is_closed: bool) {
        self.state.lock().unwrap().is_closed = is_closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.is_closed).unwrap();
        state.waiting -= 1;
    }

    /// Waits until a thread is held up.
    fn wait_for_one(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting == 0).unwrap());
    }
}

impl Backend for Gated {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn description(&self) -> String {
        "memory with a gate".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, uringfs::Errno> {
        if thread::current().name() == Some("uringfs-catalog") {
            self.gate.pass();
        }
        self.memory.perform(request)
    }
}

#[test]
fn a_request_that_waits_for_the_catalog_blocks_no_other() {
    let (memory, gate) = (Memory::new(64 << 20).unwrap(), Arc::<Gate>::default());
    let device = Device::new(Gated { memory, gate: gate.clone() }).unwrap();
    let volume = Volume::create_on(device.clone(), &FormatOptions::new()).unwrap();
    volume.write("/warm", vec![7; 64 << 10]).unwrap();
    volume.create_dir("/cold").unwrap();
    for number in 0..2000 {
        volume.write(format!("/cold/{number}"), "").unwrap();
    }
    volume.close().unwrap();
    let volume = Volume::open_on(device).unwrap();
    // One thread serves the mount.
    let options = threads(1).cache(MountCache::None);
    let mut mounted = Mounted::with(tempfile::tempdir().unwrap(), volume, &options);
    let warm = File::open(mounted.path("warm")).unwrap();
    gate.set_closed(true);
    let cold = mounted.path("cold/1000");
    let waiting = thread::spawn(move || fs::metadata(cold).unwrap().len());
    gate.wait_for_one();
    for block in 0..16 {
        let mut content = [0; 4096];
        warm.read_exact_at(&mut content, block * 4096).unwrap();
        assert_eq!(content, [7; 4096]);
    }
    assert_eq!(fs::metadata(mounted.path("warm")).unwrap().len(), 64 << 10);
    gate.set_closed(false);
    assert_eq!(waiting.join().unwrap(), 0);
    drop(warm);
    mounted.end();
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

/// Whether the other user may read a file.
fn other_user_reads(path: &Path) -> bool {
    let path = path.to_owned();
    let read = thread::spawn(move || {
        let (user, group) = (Uid::from_raw(OTHER_USER), Gid::from_raw(OTHER_USER));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        fs::read(path)
    });
    match read.join().unwrap() {
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
