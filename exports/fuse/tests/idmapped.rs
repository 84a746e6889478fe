//! Idmapped mounts of a mounted volume: users of a container see its files as theirs. They need root and Linux 6.12.

#![allow(unsafe_code)] // the call mount_setattr(2)

mod harness;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use harness::{Mounted, threads};
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, fallocate, mknodat};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The first user on the idmapped mount, who is user 0 in the volume; and their number.
const FIRST: u32 = 100_000;
const COUNT: u32 = 1000;

/// A user namespace, as that of a container, which ends with its process.
struct UserNamespace(Child);

impl UserNamespace {
    fn new() -> UserNamespace {
        let mut command = Command::new("unshare");
        command.args(["--user", "sh", "-c", "echo ready; exec cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        for map in ["uid_map", "gid_map"] {
            let path = format!("/proc/{}/{map}", child.id());
            fs::write(path, format!("0 {FIRST} {COUNT}")).unwrap();
        }
        UserNamespace(child)
    }

    fn open(&self) -> File {
        File::open(format!("/proc/{}/ns/user", self.0.id())).unwrap()
    }
}

impl Drop for UserNamespace {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A second mount of a directory, with other IDs.
struct Idmapped(PathBuf);

impl Idmapped {
    /// # Errors
    /// EINVAL if the file system does not permit it.
    fn new(directory: &Path, target: &Path) -> rustix::io::Result<Idmapped> {
        let namespace = UserNamespace::new();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, directory, flags)?;
        set_idmap(&tree, &namespace.open())?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&tree, "", CWD, target, flags)?;
        Ok(Idmapped(target.to_owned()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Idmapped {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn set_idmap(tree: &OwnedFd, namespace: &File) -> rustix::io::Result<()> {
    const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;
    // The fields of `struct mount_attr`: set, clear, propagation, user namespace.
    let attributes: [u64; 4] = [MOUNT_ATTR_IDMAP, 0, 0, namespace.as_raw_fd() as u64];
    // SAFETY: the call reads an empty path and 32 bytes of attributes, and both outlive it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
    }
}

/// Runs with the credentials of an unprivileged user.
fn as_user<T: Send>(user: u32, call: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let called = scope.spawn(move || {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(group, group, group).unwrap();
            set_thread_res_uid(user, user, user).unwrap();
            call()
        });
        called.join().unwrap()
    })
}

fn owner(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.uid(), metadata.gid())
}

#[test]
fn as_root_users_of_an_idmapped_mount_own_what_they_create() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mounted = Mounted::new(&threads(2).allow_other(true));
    let plain = mounted.path("");
    for open in plain.ancestors().take(3) {
        fs::set_permissions(open, Permissions::from_mode(0o777)).unwrap();
    }
    let target = tempfile::tempdir().unwrap();
    fs::set_permissions(target.path(), Permissions::from_mode(0o777)).unwrap();
    let idmapped = match Idmapped::new(&plain, target.path()) {
        Ok(idmapped) => idmapped,
        Err(errno) => {
            assert_eq!(errno, Errno::INVAL);
            println!("not exercised: this kernel has no idmapped mounts of FUSE");
            return;
        }
    };
    let at = |name: &str| idmapped.path(name);
    let names = ["file", "directory", "link", "pipe"];
    as_user(FIRST + 5, || {
        File::create(at("file")).unwrap().write_all(b"content").unwrap();
        fs::set_permissions(at("file"), Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(at("directory")).unwrap();
        symlink("file", at("link")).unwrap();
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        fs::hard_link(at("file"), at("second")).unwrap();
        fs::rename(at("second"), at("directory/second")).unwrap();
        // The requests do not show whether their user is privileged in its user namespace.
        let file = File::options().write(true).open(at("file")).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 8192).unwrap();
        file.set_len(7).unwrap();
    });
    for name in names {
        assert_eq!(owner(&at(name)), (FIRST + 5, FIRST + 5), "{name}");
        assert_eq!(owner(&mounted.path(name)), (5, 5), "{name}");
    }
    assert_eq!(as_user(FIRST + 5, || fs::read(at("file")).unwrap()), b"content");
    let denied = as_user(FIRST + 6, || fs::read(at("file")).unwrap_err());
    assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);

    // Owners are given as the mount shows them.
    chown(at("file"), Some(FIRST + 6), Some(FIRST + 7)).unwrap();
    lchown(at("link"), Some(FIRST + 8), None).unwrap();
    assert_eq!((owner(&mounted.path("file")), owner(&mounted.path("link"))), ((6, 7), (8, 5)));
    assert_eq!(as_user(FIRST + 6, || fs::read(at("file")).unwrap()), b"content");
    assert!(chown(at("file"), Some(FIRST + COUNT), None).is_err());
    // A user that the volume cannot name creates nothing. On the mount itself nothing has changed.
    assert!(File::create(at("by root")).is_err());
    File::create(mounted.path("by root")).unwrap();
    assert_eq!(owner(&mounted.path("by root")), (0, 0));
    drop(idmapped);
    let (_folder, volume) = mounted.unmount();
    assert_eq!(volume.symlink_metadata("/pipe").unwrap().uid(), 5);
}
