//! Owners, extended attributes, sizes and space of files in a volume; and a `put` that fails for some files.

use super::{command, refused, run, run_ok, volume, write};
use crate::process::ChildProcess;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};
use rustix::io::Errno;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

fn stat(folder: &Path, path: &str) -> serde_json::Value {
    let all: serde_json::Value =
        serde_json::from_str(&run_ok(folder, ["stat", "--json", path])).unwrap();
    all["files"][0].clone()
}

#[test]
fn chown_changes_a_tree_recursively() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["mkdir", "-p", "v:/d/e"]);
    run_ok(folder, ["put", "a", "v:/d/e"]);
    run_ok(folder, ["ln", "-s", "d", "v:/s"]);
    run_ok(folder, ["chmod", "6755", "v:/d/e/a"]);
    let owners = |path: &str| {
        let stat = stat(folder, path);
        (stat["user"].as_u64().unwrap(), stat["group"].as_u64().unwrap())
    };
    run_ok(folder, ["chown", "1000:100", "v:/d"]);
    assert_eq!(owners("v:/d"), (1000, 100));
    assert_ne!(owners("v:/d/e"), (1000, 100));
    run_ok(folder, ["chown", "-R", "7:8", "v:/d"]);
    assert_eq!([owners("v:/d"), owners("v:/d/e"), owners("v:/d/e/a")], [(7, 8); 3]);
    assert_eq!(stat(folder, "v:/d/e/a")["mode"], "0755");
    run_ok(folder, ["chown", ":9", "v:/s"]);
    assert_eq!(owners("v:/d"), (7, 9));
    run_ok(folder, ["chown", "-h", "root", "v:/s"]);
    assert_eq!((owners("v:/s").0, owners("v:/d")), (0, (7, 9)));
    run_ok(folder, ["chown", "root:", "v:/d/e"]);
    assert_eq!(owners("v:/d/e"), (0, 0));
    let output = run(folder, ["chown", "1234:", "v:/d/e"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("give a group, as in 1234:100"), "{stderr}");
    let output = run(folder, ["chown", "no such user", "v:/d"]);
    assert_eq!(output.status.code(), Some(2));
    refused(folder, ["chown", "1", "v:/none"], "v:/none: ");
}

/// The output of a command in the time zone UTC.
fn in_utc<const N: usize>(folder: &Path, arguments: [&str; N]) -> String {
    let output = ChildProcess::start(command(folder, arguments).env("TZ", "UTC")).end();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn times_before_1970_and_after_2262_are_kept_and_printed() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir(folder.join("out")).unwrap();
    for (seconds, date) in [
        (-2_082_844_800, "1904-01-01 00:00:00"),
        (-315_619_200, "1960-01-01 00:00:00"),
        (-63_158_400, "1968-01-01 00:00:00"),
        (13_569_465_600, "2400-01-01 00:00:00"),
    ] {
        let file = std::fs::File::create(folder.join("a")).unwrap();
        let part = std::time::Duration::from_nanos(123_456_789);
        let epoch = std::time::SystemTime::UNIX_EPOCH;
        let whole = std::time::Duration::from_secs(i64::unsigned_abs(seconds));
        let time = if seconds < 0 { epoch - whole } else { epoch + whole } + part;
        file.set_modified(time).unwrap();
        assert_eq!(folder.join("a").metadata().unwrap().modified().unwrap(), time, "of the host");
        run_ok(folder, ["put", "a", "v:/"]);
        let text = in_utc(folder, ["ls", "--full-time", "v:/"]);
        assert!(text.ends_with(&format!(" {date}.123456789 +0000 a\n")), "{text}");
        let text = in_utc(folder, ["stat", "v:/a"]);
        assert!(text.contains(&format!("Modify: {date}.123456789 +0000\n")), "{text}");
        let json = &stat(folder, "v:/a")["modified"];
        assert_eq!(
            (json["seconds"].as_i64(), json["nanoseconds"].as_u64()),
            (Some(seconds), Some(123_456_789))
        );
        run_ok(folder, ["get", "v:/a", "out"]);
        let got = folder.join("out/a").metadata().unwrap();
        assert_eq!((got.mtime(), got.mtime_nsec()), (seconds, 123_456_789));
    }
}

#[test]
fn extended_attributes_are_set_printed_and_removed() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/a"]);
    run_ok(folder, ["put", "a", "v:/b"]);
    run_ok(folder, ["xattr", "set", "user.one", "1", "--glob", "v:/?"]);
    run_ok(folder, ["xattr", "set", "trusted.two", "2", "v:/a"]);
    assert_eq!(run_ok(folder, ["xattr", "get", "user.one", "v:/a"]), "1");
    assert_eq!(run_ok(folder, ["xattr", "list", "v:/a"]), "trusted.two\nuser.one\n");
    run_ok(folder, ["xattr", "remove", "user.one", "v:/a"]);
    assert_eq!(
        run_ok(folder, ["xattr", "list", "--glob", "v:/?"]),
        "/a:\ntrusted.two\n/b:\nuser.one\n"
    );
    refused(folder, ["xattr", "get", "user.one", "v:/a"], "there is no attribute 'user.one'");
    refused(folder, ["xattr", "set", "one", "1", "v:/a"], "names begin with user.");
}

#[test]
fn attributes_are_those_of_the_file_that_a_link_leads_to_except_with_h() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["touch", "v:/a"]);
    run_ok(folder, ["ln", "-s", "a", "v:/link"]);
    run_ok(folder, ["xattr", "set", "user.one", "1", "v:/link"]);
    assert_eq!(run_ok(folder, ["xattr", "get", "user.one", "v:/a"]), "1");
    assert_eq!(run_ok(folder, ["xattr", "list", "v:/link"]), "user.one\n");
    assert_eq!(run_ok(folder, ["xattr", "list", "-h", "v:/link"]), "");
    run_ok(folder, ["xattr", "set", "-h", "trusted.of-link", "2", "v:/link"]);
    assert_eq!(run_ok(folder, ["xattr", "list", "v:/a"]), "user.one\n");
    run_ok(folder, ["xattr", "remove", "user.one", "v:/link"]);
    assert_eq!(run_ok(folder, ["xattr", "list", "v:/a"]), "");
}

#[test]
fn new_files_have_what_the_umask_allows() {
    let folder = volume();
    let folder = folder.path();
    let program = env!("CARGO_BIN_EXE_uringfs");
    let commands = format!(
        "umask 077; {program} truncate -s 1 v:/a && echo b | {program} put - v:/b && {program} touch v:/c"
    );
    run_shell(folder, &commands);
    for path in ["v:/a", "v:/b", "v:/c"] {
        assert_eq!(run_ok(folder, ["stat", "-c", "%a", path]), "600\n", "{path}");
    }
}

fn run_shell(folder: &Path, commands: &str) {
    let mut shell = Command::new("sh");
    let output = ChildProcess::start(shell.args(["-c", commands]).current_dir(folder)).end();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn truncate_changes_sizes_and_du_shows_the_space() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", vec![1; 100_000]);
    run_ok(folder, ["mkdir", "-p", "v:/d/e"]);
    run_ok(folder, ["put", "a", "v:/d/a"]);
    run_ok(folder, ["put", "a", "v:/d/e/b"]);
    run_ok(folder, ["ln", "v:/d/a", "v:/d/e/same"]);
    assert_eq!(stat(folder, "v:/d/a")["blocks"], 200);
    // A file with two names counts once, at its first name.
    assert_eq!(run_ok(folder, ["du", "v:/d"]), "100\t/d/e\n200\t/d\n");
    run_ok(folder, ["truncate", "-s", "5000", "v:/d/e/b"]);
    assert_eq!(run_ok(folder, ["du", "-s", "v:/d", "v:/d/e/b"]), "108\t/d\n8\t/d/e/b\n");
    run_ok(folder, ["truncate", "-s", "1M", "v:/d/e/b", "v:/new"]);
    assert_eq!(
        (&stat(folder, "v:/new")["size"], &stat(folder, "v:/new")["blocks"]),
        (&1_048_576.into(), &0.into())
    );
    let bytes = run(folder, ["cat", "v:/d/e/b"]).stdout;
    assert!(bytes.len() == 1 << 20 && bytes[..5000] == [1; 5000]);
    assert!(bytes[5000..].iter().all(|byte| *byte == 0));
    run_ok(folder, ["truncate", "-c", "-s", "1", "v:/none"]);
    refused(folder, ["cat", "v:/none"], "v:/none: ");
    refused(folder, ["truncate", "-s", "1", "v:/d"], "v:/d: is a directory");
}

#[test]
fn put_and_get_copy_extended_attributes() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir(folder.join("tree")).unwrap();
    write(folder, "tree/a", "of a");
    let names = ["user.uringfs-test", "trusted.uringfs-test"];
    let is_kept = |name: &&str| {
        let set =
            |path: &str| lsetxattr(folder.join(path), *name, b"its value", XattrFlags::empty());
        match set("tree").and_then(|()| set("tree/a")) {
            // The host's file system does not support it, or the user may not set it.
            Err(Errno::OPNOTSUPP | Errno::PERM) => false,
            set => set.is_ok(),
        }
    };
    let kept: Vec<&str> = names.into_iter().filter(is_kept).collect();
    run_ok(folder, ["put", "tree", "v:/"]);
    // Also if the host does not support extended attributes.
    run_ok(folder, ["xattr", "set", "user.more", "more", "v:/tree/a"]);
    run_ok(folder, ["get", "v:/tree", "out"]);
    for path in ["out", "out/a"] {
        for name in &kept {
            let mut value = [0; 100];
            let length = lgetxattr(folder.join(path), *name, &mut value[..]).unwrap();
            assert_eq!(&value[..length], b"its value", "{path} {name}");
        }
    }
    let mut list = [0; 1000];
    let listed = llistxattr(folder.join("out/a"), &mut list[..]).unwrap_or(0);
    let has_more = list[..listed].split(|byte| *byte == 0).any(|name| name == b"user.more");
    assert_eq!(has_more, kept.contains(&"user.uringfs-test"));
}

#[test]
fn holes_stay_holes_and_zeros_stay_data() {
    let folder = volume();
    let folder = folder.path();
    let holes = std::fs::File::create(folder.join("holes")).unwrap();
    holes.set_len(20 << 20).unwrap();
    write(folder, "zeros", vec![0; 1 << 20]);
    run_ok(folder, ["put", "holes", "zeros", "v:/"]);
    assert_eq!(stat(folder, "v:/holes")["blocks"], 0);
    assert_eq!(stat(folder, "v:/holes")["size"], 20 << 20);
    assert_eq!(stat(folder, "v:/zeros")["blocks"], 2048);
    run_ok(folder, ["get", "v:/holes", "out"]);
    let out = folder.join("out").metadata().unwrap();
    assert_eq!((out.len(), out.blocks()), (20 << 20, 0));
}

#[test]
fn put_continues_after_an_error_and_reports_it() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir_all(folder.join("tree/d")).unwrap();
    for name in ["tree/a", "tree/b", "tree/d/c"] {
        write(folder, name, name);
    }
    run_ok(folder, ["mkdir", "-p", "v:/tree/a", "v:/tree/d/c"]);
    let output = run(folder, ["put", "tree", "v:/"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    assert!(lines[0].starts_with("uringfs: v:/tree/a: "), "{stderr}");
    assert!(lines[1].starts_with("uringfs: v:/tree/d/c: "), "{stderr}");
    assert_eq!(run_ok(folder, ["cat", "v:/tree/b"]), "tree/b");
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "tree\n");
}

#[test]
fn a_file_that_does_not_fit_is_reported_and_removed() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir(folder.join("tree")).unwrap();
    write(folder, "tree/a", "of a");
    write(folder, "tree/b", vec![1; 40 << 20]);
    write(folder, "c", vec![2; 10 << 20]);
    let output = run(folder, ["put", "tree", "v:/"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(7), 1), "{stderr}");
    assert!(stderr.contains("v:/tree/b: cannot be written: the volume is full"), "{stderr}");
    assert_eq!(run_ok(folder, ["ls", "v:/tree"]), "a\n");
    run_ok(folder, ["put", "c", "v:/"]);
    assert!(run(folder, ["cat", "v:/c"]).stdout == vec![2; 10 << 20]);
}

#[test]
fn the_next_change_removes_files_of_a_killed_put() {
    let folder = volume();
    let folder = folder.path();
    let mut put = command(folder, ["put", "-", "v:/a"]);
    put.stdin(std::process::Stdio::piped());
    let mut child = put.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, &vec![1; 8 << 20]).unwrap();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    run_ok(folder, ["mkdir", "v:/d"]);
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "d\n");
    assert_eq!(run_ok(folder, ["du", "-s", "v:/"]), "0\t/\n");
}

#[test]
fn no_hard_links_are_made_to_a_failed_copy() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "old", "as it was");
    run_ok(folder, ["mkdir", "v:/tree"]);
    run_ok(folder, ["put", "old", "v:/tree/a"]);
    std::fs::create_dir(folder.join("tree")).unwrap();
    write(folder, "tree/a", vec![1; 40 << 20]);
    std::fs::hard_link(folder.join("tree/a"), folder.join("tree/b")).unwrap();
    let output = run(folder, ["put", "tree", "v:/"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(7), 1), "{stderr}");
    assert!(stderr.ends_with("; 0 files were copied, 2 are left\n"), "{stderr}");
    assert_eq!(run_ok(folder, ["ls", "v:/tree"]), "a\n");
    assert_eq!(run_ok(folder, ["cat", "v:/tree/a"]), "as it was");
}

#[test]
fn a_directory_behind_a_link_gets_the_attributes() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir(folder.join("tree")).unwrap();
    write(folder, "tree/a", "of a");
    let tree = folder.join("tree");
    let set = lsetxattr(&tree, "user.uringfs-test", b"its value", XattrFlags::empty());
    std::fs::set_permissions(&tree, Permissions::from_mode(0o751)).unwrap();
    run_ok(folder, ["mkdir", "v:/real"]);
    run_ok(folder, ["ln", "-s", "real", "v:/tree"]);
    run_ok(folder, ["put", "tree", "v:/"]);
    assert_eq!(run_ok(folder, ["cat", "v:/real/a"]), "of a");
    assert_eq!(stat(folder, "v:/real")["mode"], "0751");
    if set.is_ok() {
        // The host's file system supports extended attributes.
        let value = run_ok(folder, ["xattr", "get", "user.uringfs-test", "v:/real"]);
        assert_eq!(value.trim_end(), "its value");
    }
}

#[test]
fn put_copies_attributes_and_inherits_none() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir_all(folder.join("tree/below")).unwrap();
    write(folder, "tree/below/a", "of a");
    write(folder, "tree/below/empty", "");
    std::os::unix::fs::symlink("a", folder.join("tree/below/link")).unwrap();
    let of = |path: &str| std::fs::symlink_metadata(folder.join(path)).unwrap();
    let other = of("tree").gid() + 1;
    run_ok(folder, ["chown", &format!(":{other}"), "v:/"]);
    run_ok(folder, ["chmod", "2775", "v:/"]);
    run_ok(folder, ["put", "tree", "v:/"]);
    for path in ["tree", "tree/below", "tree/below/a", "tree/below/empty", "tree/below/link"] {
        let found = stat(folder, &format!("v:/{path}"));
        assert_eq!(found["group"], of(path).gid(), "{path}");
        assert_eq!(found["mode"], format!("{:04o}", of(path).mode() & 0o7777), "{path}");
    }
    run_ok(folder, ["mkdir", "v:/made"]);
    let made = stat(folder, "v:/made");
    assert_eq!((&made["group"], &made["mode"]), (&other.into(), &"2755".into()));
}

#[test]
fn put_and_get_copy_capabilities() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    // Allows any user to listen on ports below 1024 (`VFS_CAP_REVISION_2`).
    let value = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let capability = "security.capability";
    let set = lsetxattr(folder.join("a"), capability, &value, XattrFlags::empty());
    run_ok(folder, ["put", "a", "v:/"]);
    run_ok(folder, ["get", "v:/a", "out"]);
    let mut found = [0; 100];
    let length = lgetxattr(folder.join("out"), capability, &mut found[..]);
    match set {
        Ok(()) => assert_eq!(&found[..length.unwrap()], value),
        Err(_) => refused(folder, ["xattr", "get", capability, "v:/a"], "there is no attribute"),
    }
    // A change of the file removes the capability.
    run_ok(folder, ["xattr", "set", capability, "any", "v:/a"]);
    run_ok(folder, ["truncate", "-s", "1", "v:/a"]);
    refused(folder, ["xattr", "get", capability, "v:/a"], "there is no attribute");
}
