//! Permissions during and after a copy: no user can read a partial file of another user, and no user gains
//! privileges from an image.

use super::{command, incomplete, run_ok, volume, write};
use crate::process::{ChildProcess, tool, wait_until};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// An ordinary user, who does not own the files of these tests if they run as root.
const ORDINARY_USER: u32 = 65_534;

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

/// The program as an ordinary user runs it, in a directory that this user can enter.
fn as_ordinary_user(folder: &Path, arguments: &[&str]) -> Command {
    if !crate::root::is_root() {
        return command(folder, arguments);
    }
    set_mode(folder, 0o755);
    set_mode(&folder.join("v"), 0o666);
    let program = folder.join("uringfs");
    if !program.exists() {
        tool("install", &["-m", "755", env!("CARGO_BIN_EXE_uringfs"), program.to_str().unwrap()]);
    }
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).uid(ORDINARY_USER).gid(ORDINARY_USER);
    command
}

#[test]
fn a_partial_file_of_get_is_readable_only_by_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "v", "--size", "128M"]);
    write(folder, "secret", vec![7; 64 << 20]);
    set_mode(&folder.join("secret"), 0o640);
    run_ok(folder, ["put", "secret", "v:/"]);
    let out = folder.join("out");
    let half_made = || {
        let mut names = out.read_dir().unwrap().map(|entry| entry.unwrap());
        names.find(|entry| entry.file_name().to_string_lossy().starts_with(".uringfs-get"))
    };
    // The command may end before the test looks.
    let mut seen = None;
    while seen.is_none() {
        let _ = std::fs::remove_dir_all(&out);
        std::fs::create_dir(&out).unwrap();
        let mut get = ChildProcess::start(&mut command(folder, ["get", "v:/secret", "out"]));
        wait_until("a file half-made", || {
            seen = half_made().and_then(|entry| Some(entry.metadata().ok()?.mode() & 0o7777));
            seen.is_some() || get.has_ended()
        });
    }
    assert_eq!(seen, Some(0o600));
    run_ok(folder, ["get", "v:/secret", "out"]);
    assert_eq!(mode(&folder.join("out/secret")), 0o640);
}

#[test]
fn set_id_bits_are_kept_only_with_their_owner() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir_all(folder.join("t")).unwrap();
    write(folder, "t/prog", "a program");
    set_mode(&folder.join("t/prog"), 0o6755);
    set_mode(&folder.join("t"), 0o2775);
    run_ok(folder, ["put", "t", "v:/"]);
    run_ok(folder, ["chown", "12345:12345", "v:/t/prog", "v:/t"]);
    run_ok(folder, ["chmod", "6755", "v:/t/prog"]);
    run_ok(folder, ["chmod", "2775", "v:/t"]);
    run_ok(folder, ["put", "t/prog", "v:/mine"]);
    std::fs::create_dir(folder.join("out")).unwrap();
    set_mode(&folder.join("out"), 0o777);
    assert!(
        as_ordinary_user(folder, &["get", "v:/t", "v:/mine", "out"]).status().unwrap().success()
    );
    assert_eq!([mode(&folder.join("out/t")), mode(&folder.join("out/t/prog"))], [0o775, 0o755]);
    let mine = folder.join("out/mine");
    match crate::root::is_root() {
        true => assert_eq!(mode(&mine), 0o755),
        false => assert_eq!(mode(&mine), 0o6755),
    }
    if crate::root::is_root() {
        run_ok(folder, ["get", "v:/t", "all"]);
        let found = folder.join("all/prog").metadata().unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (12345, 12345, 0o6755));
        assert_eq!(mode(&folder.join("all")), 0o2775);
    }
}

#[test]
fn no_privileges_drops_set_id_bits_and_capabilities() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir_all(folder.join("t/d")).unwrap();
    write(folder, "t/prog", "a program");
    set_mode(&folder.join("t/prog"), 0o6755);
    set_mode(&folder.join("t/d"), 0o3777);
    let user = lsetxattr(folder.join("t/prog"), "user.kept", b"value", XattrFlags::empty());
    run_ok(folder, ["put", "t", "v:/"]);
    let capability = "security.capability";
    run_ok(folder, ["xattr", "set", capability, "any", "v:/t/prog"]);
    run_ok(folder, ["xattr", "set", "trusted.any", "any", "v:/t/prog"]);
    if crate::root::is_root() {
        run_ok(folder, ["put", "/dev/null", "v:/t/null"]);
    }
    run_ok(folder, ["get", "--no-privileges", "v:/t", "out"]);
    let prog = folder.join("out/prog");
    assert_eq!([mode(&prog), mode(&folder.join("out/d"))], [0o755, 0o1777]);
    assert!(!folder.join("out/null").exists());
    let mut value = [0; 100];
    for name in [capability, "trusted.any"] {
        assert!(lgetxattr(&prog, name, &mut value[..]).is_err(), "{name}");
    }
    if user.is_ok() {
        assert_eq!(lgetxattr(&prog, "user.kept", &mut value[..]), Ok(5));
    }
}

#[test]
fn an_ordinary_user_gets_all_but_devices_and_closed_directories() {
    let folder = volume();
    let folder = folder.path();
    for name in ["t/closed", "t/d", "out/t/closed"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    for name in ["t/a", "t/closed/in", "t/d/in", "t/z"] {
        write(folder, name, name);
    }
    run_ok(folder, ["put", "t", "v:/"]);
    let is_root = crate::root::is_root();
    if is_root {
        run_ok(folder, ["put", "/dev/null", "v:/t/b"]);
    }
    set_mode(&folder.join("out"), 0o777);
    set_mode(&folder.join("out/t"), 0o777);
    set_mode(&folder.join("out/t/closed"), 0o555);
    let output = ChildProcess::start(&mut as_ordinary_user(folder, &["get", "v:/t", "out"])).end();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let is_reported = |name: &str| {
        stderr
            .lines()
            .any(|line| line.starts_with(&format!("uringfs: out/t/{name}: cannot be created:")))
    };
    assert!(is_reported("closed/in"), "{stderr}");
    assert_eq!(is_reported("b"), is_root, "{stderr}");
    for name in ["a", "d/in", "z"] {
        let bytes = std::fs::read_to_string(folder.join("out/t").join(name)).unwrap();
        assert_eq!(bytes, format!("t/{name}"));
    }
    set_mode(&folder.join("out/t/closed"), 0o755);
}

#[test]
fn a_file_is_copied_even_if_an_attribute_cannot_be_set() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir(folder.join("t")).unwrap();
    write(folder, "t/a", "of a");
    write(folder, "t/b", "of b");
    run_ok(folder, ["put", "t", "v:/"]);
    if crate::root::is_root() {
        // The kernel refuses a value that is not a capability.
        run_ok(folder, ["xattr", "set", "security.capability", "any", "v:/t/a"]);
        let (_, stderr) = incomplete(folder, ["get", "v:/t", "out"]);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        let part = "out/a: cannot set attribute security.capability";
        assert!(stderr.starts_with(&format!("uringfs: {part}")), "{stderr}");
    } else {
        // An ordinary user cannot set this one, and that is not an error.
        run_ok(folder, ["xattr", "set", "trusted.any", "any", "v:/t/a"]);
        run_ok(folder, ["get", "v:/t", "out"]);
    }
    for name in ["a", "b"] {
        let bytes = std::fs::read_to_string(folder.join("out").join(name)).unwrap();
        assert_eq!(bytes, format!("of {name}"));
    }
}
