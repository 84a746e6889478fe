//! `mount` and `umount`.

use super::{command, run, run_ok, volume};
use crate::root::is_root;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A folder with a mounted volume. It is unmounted at the end, even if the test panics.
struct Mounted(TempDir);

impl Mounted {
    fn new(options: &[&str]) -> Mounted {
        let folder = volume();
        fs::create_dir(folder.path().join("m")).unwrap();
        run_ok(folder.path(), [&["mount", "v", "m"], options].concat());
        Mounted(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// The process that serves the mount, as the error of a command in its way names it.
    fn server(&self) -> Pid {
        let refused = run(self.path(), ["ls", "v"]);
        assert_eq!(refused.status.code(), Some(6));
        let message = String::from_utf8(refused.stderr).unwrap();
        let (_, behind) = message.split_once("process ").expect("it names the process");
        let digits = behind.split(|character: char| !character.is_ascii_digit()).next();
        Pid::from_raw(digits.unwrap().parse().unwrap())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = command(self.path(), ["umount", "-l", "m"]).output();
    }
}

#[test]
fn a_mount_is_used_and_unmounted() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    fs::write(folder.join("m/file"), "content").unwrap();
    mounted.server();
    let twice = run(folder, ["mount", "v", "m"]);
    assert_eq!(twice.status.code(), Some(6));
    run_ok(folder, ["umount", "m"]);
    // The volume is closed when umount returns.
    assert_eq!(run_ok(folder, ["cat", "v:/file"]), "content");
    assert_eq!(run(folder, ["umount", "m"]).status.code(), Some(3));
}

#[test]
fn umount_refuses_while_a_program_uses_the_mount() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    let open = fs::File::create(folder.join("m/file")).unwrap();
    let busy = run(folder, ["umount", "m"]);
    assert_eq!(busy.status.code(), Some(6), "{busy:?}");
    drop(open);
    run_ok(folder, ["umount", "m"]);
}

#[test]
fn a_signal_unmounts_and_loses_nothing() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    fs::write(folder.join("m/file"), "content").unwrap();
    kill(mounted.server(), Signal::SIGTERM).unwrap();
    let volume = fs::File::open(folder.join("v")).unwrap();
    // The lock of the process that serves the volume.
    volume.lock().unwrap();
    drop(volume);
    assert_eq!(run_ok(folder, ["cat", "v:/file"]), "content");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let mounted = Mounted::new(&["-o", "ro"]);
    let refused = fs::write(mounted.path().join("m/file"), "content").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn what_cannot_be_mounted_is_named() {
    let folder = volume();
    let missing = run(folder.path(), ["mount", "v", "missing"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("missing: No such file"));
    let option = run(folder.path(), ["mount", "v", "missing", "-o", "rwx"]);
    assert_eq!(option.status.code(), Some(2));
    let path = run(folder.path(), ["mount", "v:/inner", "missing"]);
    assert_eq!(path.status.code(), Some(5));
}

/// Runs a script as an ordinary user, which needs `fusermount3`.
#[test]
fn an_ordinary_user_mounts() {
    let folder = tempfile::tempdir().unwrap();
    let script = "$U mkfs v --size 32M -q && mkdir m && $U mount v m && echo content > m/file && cat m/file && $U umount m && $U cat v:/file";
    let mut shell = match is_root() {
        true => {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
            let mut setpriv = Command::new("setpriv");
            setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec", script]);
            setpriv
        }
        false => {
            let mut shell = Command::new("sh");
            shell.args(["-ec", script]);
            shell
        }
    };
    let program = folder.path().join("uringfs");
    fs::copy(env!("CARGO_BIN_EXE_uringfs"), &program).unwrap();
    let output = shell.env("U", &program).current_dir(folder.path()).output().unwrap();
    let _ = command(folder.path(), ["umount", "-l", "m"]).output();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "content\ncontent\n", "{output:?}");
}
