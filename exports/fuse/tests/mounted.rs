//! Programs on a mounted volume: std's file API against what the volume has afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use uringfs::{FormatOptions, Volume};
use uringfs_fuse::{Mount, MountOptions, Unmounter};

/// A mounted volume in a file.
struct Mounted {
    unmounter: Unmounter,
    server: Option<JoinHandle<std::io::Result<()>>>,
    folder: Option<tempfile::TempDir>,
}

impl Mounted {
    fn new(threads: usize) -> Mounted {
        let folder = tempfile::tempdir().unwrap();
        let options = FormatOptions::new().size(256 << 20);
        let volume = Volume::create(folder.path().join("image"), &options).unwrap();
        Mounted::with(folder, volume, threads)
    }

    fn with(folder: tempfile::TempDir, volume: Volume, threads: usize) -> Mounted {
        let directory = folder.path().join("mount");
        fs::create_dir_all(&directory).unwrap();
        let mount = Mount::new(volume, &directory, &MountOptions::new().threads(threads)).unwrap();
        let unmounter = mount.unmounter();
        let server = Some(std::thread::spawn(|| mount.serve()));
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

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn files_are_written_and_read_back() {
    let mounted = Mounted::new(2);
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
    let mounted = Mounted::new(1);
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
    let mounted = Mounted::new(2);
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
    let mounted = Mounted::new(2);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let target = mounted.path("src");
    let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
    run(Command::new("cp").arg("-a").args([&source, &target]));
    run(Command::new("diff").arg("-r").args([&source, &target]));
    let (folder, volume) = mounted.unmount();
    let mounted = Mounted::with(folder, volume, 1);
    run(Command::new("diff").arg("-r").args([&source, &mounted.path("src")]));
    mounted.unmount();
}
