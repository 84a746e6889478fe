//! Programs on a mounted volume: std's file API against what the volume has afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};

use rustix::fs::{FallocateFlags, XattrFlags, copy_file_range, fallocate, setxattr};
use rustix::io::Errno;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use uringfs::{FormatOptions, Volume};
use uringfs_fuse::{Mount, MountOptions, Unmounter};

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

    /// Unmounts, checks the volume and returns it.
    fn unmount(mut self) -> (tempfile::TempDir, Volume) {
        // A child of another test has this one's files open between its fork and its exec.
        while let Err(error) = self.unmounter.unmount() {
            assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{error}");
        }
        self.server.take().unwrap().join().unwrap().unwrap();
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
                let user = Uid::from_raw(65534);
                set_thread_res_uid(user, user, user).unwrap();
            }
            change(&file);
        });
        changed.join().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{name}");
    }
    mounted.unmount();
}

#[test]
fn an_acl_is_refused_because_nothing_would_enforce_it() {
    let mounted = Mounted::new(&threads(1));
    let path = mounted.path("file");
    fs::write(&path, "content").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    // Read for the owner, user 1000, the group and the mask: each a tag, permissions and an ID, behind the version.
    let entries = [(1u16, u32::MAX), (2, 1000), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
    let entry = |(tag, id): (u16, u32)| {
        [&tag.to_le_bytes()[..], &4u16.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let acl = [2u32.to_le_bytes().to_vec()].into_iter().chain(entries.map(entry));
    let acl = acl.flatten().collect::<Vec<_>>();
    let set = setxattr(&path, "system.posix_acl_access", &acl, XattrFlags::empty());
    assert_eq!(set, Err(Errno::OPNOTSUPP));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    mounted.unmount();
}
