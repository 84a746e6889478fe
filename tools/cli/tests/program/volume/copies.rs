//! `cp` inside a volume and across volumes, as `cp` of coreutils; `rmdir`.

use super::mirror::Mirror;
use super::{command, incomplete, refused, run, run_ok, volume, write};
use crate::process::{ChildProcess, wait_until};
use nix::sys::signal::Signal;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

fn mirror() -> Mirror {
    let mirror = Mirror::new();
    let tree = mirror.tree();
    for directory in ["d/e", "to", "old/d"] {
        std::fs::create_dir_all(tree.join(directory)).unwrap();
    }
    for (name, mode) in
        [("a", 0o640), ("b", 0o4755), ("d/c", 0o600), ("d/e/f", 0o777), ("old/d/c", 0o604)]
    {
        std::fs::write(tree.join(name), name).unwrap();
        std::fs::set_permissions(tree.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    std::fs::set_permissions(tree.join("d/e"), PermissionsExt::from_mode(0o700)).unwrap();
    symlink("a", tree.join("link")).unwrap();
    symlink("e", tree.join("d/link")).unwrap();
    symlink("nowhere", tree.join("dangling")).unwrap();
    std::fs::hard_link(tree.join("d/c"), tree.join("d/e/same")).unwrap();
    mknodat(CWD, tree.join("d/fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let holes = std::fs::File::create(tree.join("holes")).unwrap();
    holes.write_all_at(&[7; 100], 3 << 20).unwrap();
    holes.set_len(5 << 20).unwrap();
    mirror.put();
    mirror
}

#[test]
fn cp_copies_inside_a_volume_as_coreutils_does() {
    let mirror = mirror();
    for arguments in [
        &["cp", "-v", "@a", "@copy"][..],
        &["cp", "-v", "@a", "@b", "@to"],
        &["cp", "-v", "@b", "@old/d/c"],
        &["cp", "-p", "@b", "@to/kept"],
        &["cp", "-nv", "@a", "@to/b"],
        &["cp", "@link", "@dangling", "@to"],
        &["cp", "-P", "@link", "@to/link-itself"],
        &["cp", "@d", "@to"],
        &["cp", "-rv", "@d", "@to"],
        &["cp", "-rv", "@d", "@old"],
        &["cp", "-a", "@d", "@all"],
        &["cp", "--recursive", "@d/.", "@to"],
        &["cp", "-RT", "@d", "@to"],
        &["cp", "@a", "@a"],
        &["cp", "-t", "@to", "@none", "@holes"],
        &["cp", "-r", "@d", "@a"],
        &["cp", "-r", "@a", "@old/d", "@to/d"],
        &["rmdir", "-v", "@to/d/e"],
        &["mkdir", "-p", "@x/y/z", "@u/v"],
        &["rmdir", "-p", "--verbose", "@x/y/z"],
        &["rmdir", "@u"],
        &["rmdir", "@u/v", "@none", "@u"],
        &["rmdir", "@a"],
    ] {
        mirror.run(arguments);
    }
    // coreutils begins to copy before it notices.
    refused(mirror.folder(), ["cp", "-r", "v:/d", "v:/d/e"], "cannot be copied into itself");
    let stat = |path: &str| -> serde_json::Value {
        serde_json::from_str(&run_ok(mirror.folder(), ["stat", "--json", path])).unwrap()
    };
    assert_eq!(stat("v:/to/holes")["files"][0]["blocks"], stat("v:/holes")["files"][0]["blocks"]);
    assert_eq!(stat("v:/to/kept")["files"][0]["modified"], stat("v:/b")["files"][0]["modified"]);
    assert_ne!(stat("v:/copy")["files"][0]["modified"], stat("v:/a")["files"][0]["modified"]);
    assert_eq!(stat("v:/all/c")["files"][0]["inode"], stat("v:/all/e/same")["files"][0]["inode"]);
    assert!(run_ok(mirror.folder(), ["check", "v", "--deep"]).contains("clean"));
}

#[test]
fn cp_copies_from_one_volume_to_another() {
    let mirror = mirror();
    let folder = mirror.folder();
    run_ok(folder, ["mkfs", "w", "--size", "32M"]);
    run_ok(folder, ["xattr", "set", "user.x", "y", "v:/d/c"]);
    run_ok(folder, ["cp", "-a", "--glob", "v:/*", "w"]);
    run_ok(folder, ["get", "v", "of-v"]);
    run_ok(folder, ["get", "w", "of-w"]);
    crate::process::tool(
        "diff",
        &[
            "-r",
            "--no-dereference",
            "--exclude=fifo",
            folder.join("of-v").to_str().unwrap(),
            folder.join("of-w").to_str().unwrap(),
        ],
    );
    assert_eq!(run_ok(folder, ["ls", "-lR", "v"]), run_ok(folder, ["ls", "-lR", "w"]));
    assert_eq!(run_ok(folder, ["xattr", "get", "user.x", "w:/d/c"]), "y");
    assert_eq!(run_ok(folder, ["ls", "-A", "w"]), run_ok(folder, ["ls", "-A", "v"]));
    run_ok(folder, ["cp", "--exclude", "e", "-r", "./v:/d", "w:/part"]);
    assert_eq!(run_ok(folder, ["ls", "w:/part"]), "c\nfifo\nlink\n");
}

#[test]
fn a_copy_that_fails_leaves_the_old_file() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "big", vec![1; 20 << 20]);
    write(folder, "a", "as it was");
    run_ok(folder, ["put", "big", "a", "v"]);
    let (_, stderr) = {
        let output = run(folder, ["cp", "v:/big", "v:/a"]);
        (output.status, String::from_utf8(output.stderr).unwrap())
    };
    assert!(stderr.contains("v:/a: cannot be written: the volume is full"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert_eq!(run_ok(folder, ["cat", "v:/a"]), "as it was");
    assert_eq!(run_ok(folder, ["ls", "-A", "v"]), "a\nbig\n");
    refused(folder, ["cp", "v:/a"], "the destination is missing");
    let (_, stderr) = incomplete(folder, ["cp", "v:/a", "v:/none", "v:/big", "v:/"]);
    assert_eq!(stderr.lines().count(), 3, "{stderr}");
}

#[test]
fn ctrl_c_ends_a_copy_and_removes_the_partial_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "v", "--size", "1200M", "--sparse"]);
    write(folder, "big", vec![1; 500 << 20]);
    run_ok(folder, ["put", "big", "v"]);
    let mut cp = ChildProcess::start(&mut command(folder, ["cp", "v:/big", "v:/copy"]));
    let process = format!("/proc/{}/io", cp.id());
    let has_written = || {
        let io = std::fs::read_to_string(&process).unwrap_or_default();
        let bytes = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or(0) > 1 << 20
    };
    wait_until("some of the copy", || has_written() || cp.has_ended());
    if !cp.has_ended() {
        cp.signal(Signal::SIGINT);
    }
    let output = cp.end();
    let line = String::from_utf8(output.stderr).unwrap();
    let code = output.status.code();
    let names = run_ok(folder, ["ls", "-A", "v"]);
    match code {
        Some(130) => {
            assert_eq!(names, "big\n");
            assert!(line.contains("SIGHUP: the files copied so far stay"), "{line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
        code => assert_eq!((code, &*names), (Some(0), "big\ncopy\n")),
    }
}
