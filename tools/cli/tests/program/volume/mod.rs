//! Tests of the commands on volumes.

mod attributes;
mod changes;
mod check;
mod common_options;
mod control;
mod copies;
mod crafted_image;
mod exit_codes;
mod find;
mod full;
mod in_use;
mod interrupted;
mod json;
mod label;
mod literal_paths;
mod ls;
mod messages;
mod mirror;
mod mkfs;
mod modes;
mod mount;
mod mounted_files;
mod neighbours;
mod other_names;
mod other_format;
mod overwrite;
mod paths;
mod privileges;
mod resize;
mod round_trip;
pub mod serve;
mod serve_config;
mod serve_log;
mod serve_metrics;
mod serve_vhost_user_blk;
mod serve_ublk;
mod served_volumes;
mod sizes;
mod sources;
mod stat;
mod targets;
pub mod terminal;
mod terminal_interrupt;
mod touch;
mod truncated_image;
mod udev;
mod warnings;
mod wipe;

use crate::process::ChildProcess;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder with a volume in the file `v`.
fn volume() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    run_ok(folder.path(), ["mkfs", "v", "--size", "32M", "--label", "of a test"]);
    folder
}

fn command<S: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    command.args(arguments).current_dir(folder);
    command
}

fn run<S: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = S>) -> Output {
    ChildProcess::start(&mut command(folder, arguments)).end()
}

/// The output of a command that must succeed without errors.
fn run_ok<S: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = S>) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Expects an exit code for a refusal and one line on standard error that contains `part`.
fn refused<S: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = S>, part: &str) {
    let output = run(folder, arguments);
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(2..=6)), "{:?}: {line}", output.status);
    assert!(line.contains(part) && line.starts_with("uringfs: "), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(output.stdout.is_empty());
}

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(folder.join(name), bytes).unwrap();
}

#[test]
fn names_are_created_moved_and_removed() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["mkdir", "-p", "v:/d/e", "v:/d/e"]);
    run_ok(folder, ["put", "a", "v:/d"]);
    run_ok(folder, ["put", "a", "v:/d/b"]);
    assert_eq!(run_ok(folder, ["ls", "v:/d"]), "a\nb\ne\n");
    run_ok(folder, ["mv", "v:/d/b", "v:/d/e"]);
    run_ok(folder, ["ln", "v:/d/a", "v:/same"]);
    run_ok(folder, ["ln", "-s", "d/e", "v:/there"]);
    run_ok(folder, ["chmod", "4751", "v:/same"]);
    assert_eq!(run_ok(folder, ["cat", "v:/there/b", "v:/same"]), "of aof a");
    let long = run_ok(folder, ["ls", "-l", "v:/"]);
    let long: Vec<&str> = long.lines().collect();
    assert_eq!(long[0], "total 4");
    assert!(long[1].starts_with("drwxr-xr-x 3 ") && long[1].ends_with(" d"), "{long:?}");
    assert!(long[2].starts_with("-rwsr-x--x 2 ") && long[2].ends_with(" same"), "{long:?}");
    assert!(long[3].starts_with("lrwxrwxrwx 1 ") && long[3].ends_with(" there -> d/e"), "{long:?}");
    assert_eq!(run_ok(folder, ["ls", "-R", "v:/d"]), "/d:\na\ne\n\n/d/e:\nb\n");
    let tree = "/\n|-- d\n|   |-- a\n|   `-- e\n|       `-- b\n|-- same\n`-- there -> d/e\n\n\
                2 directories, 4 files\n";
    assert_eq!(run_ok(folder, ["tree", "v:/"]), tree);
    let stat: serde_json::Value =
        serde_json::from_str(&run_ok(folder, ["stat", "--json", "v:/d/a"])).unwrap();
    assert_eq!(
        (&stat["files"][0]["links"], &stat["files"][0]["mode"]),
        (&2.into(), &"4751".into())
    );
    run_ok(folder, ["rm", "-r", "v:/d", "v:/there"]);
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "same\n");
}

#[test]
fn a_trailing_slash_requires_a_directory() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "m1", "of m1");
    write(folder, "m2", "of m2");
    std::fs::create_dir(folder.join("tree")).unwrap();
    write(folder, "tree/in", "of in");
    run_ok(folder, ["put", "m1", "m2", "v:/"]);
    run_ok(folder, ["mkdir", "v:/d/"]);
    run_ok(folder, ["put", "m1", "v:/d/"]);
    run_ok(folder, ["ln", "-s", "d", "v:/link"]);
    let before = run_ok(folder, ["ls", "-R", "v:/"]);
    for (arguments, part) in [
        (&["mv", "v:/m1", "v:/archive/"][..], "v:/m1 to v:/archive/: "),
        (&["mv", "v:/m1/", "v:/new"], "'m1' is not a directory"),
        (&["ln", "v:/m1", "v:/archive/"], "there is no directory 'archive'"),
        (&["ln", "-s", "m1", "v:/archive/"], "there is no directory 'archive'"),
        (&["truncate", "-s", "1", "v:/archive/"], "there is no directory 'archive'"),
        (&["truncate", "-s", "1", "v:/m1/"], "m1/: is not a directory"),
        (&["rm", "v:/m1/"], "v:/m1/: is not a directory"),
        (&["rm", "-r", "v:/m1/"], "v:/m1/: is not a directory"),
        (&["rm", "-r", "v:/link/"], "v:/link/: is not a directory"),
        (&["cat", "v:/m1/"], "v:/m1/: is not a directory"),
        (&["stat", "v:/m1/"], "m1/: is not a directory"),
        (&["ls", "v:/m1/"], "m1/: is not a directory"),
        (&["chmod", "600", "v:/m1/"], "m1/: is not a directory"),
        (&["xattr", "set", "user.a", "b", "v:/m1/"], "m1/: is not a directory"),
        (&["get", "v:/m1/", "out"], "m1/: is not a directory"),
        (&["put", "m1", "v:/archive/"], "v:/archive/: is not a directory"),
        (&["put", "tree", "m1", "v:/archive/"], "v:/archive/: is not a directory"),
        (&["put", "m1", "v:/m2/"], "v:/m2/: is not a directory"),
    ] {
        let output = run(folder, arguments);
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && line.contains(part), "{arguments:?}: {line}");
        assert_eq!(run_ok(folder, ["ls", "-R", "v:/"]), before, "{arguments:?}");
    }
    assert_eq!(run_ok(folder, ["cat", "v:/m1", "v:/m2", "v:/link/m1"]), "of m1of m2of m1");
    run_ok(folder, ["put", "tree", "v:/new/"]);
    assert_eq!(run_ok(folder, ["cat", "v:/new/in"]), "of in", "as cp -r tree new/");
    run_ok(folder, ["rm", "-r", "v:/new"]);
    assert_eq!(run_ok(folder, ["ls", "--glob", "v:/*/m1"]), "/d/m1\n/link/m1\n");
    assert_eq!(
        run_ok(folder, ["du", "-s", "--glob", "v:/[dm]*/"]).lines().count(),
        1,
        "only directories fit"
    );
    run_ok(folder, ["mv", "v:/d/", "v:/archive/"]);
    run_ok(folder, ["mv", "v:/m1", "v:/archive/"]);
    run_ok(folder, ["rm", "-r", "v:/archive/"]);
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "link\nm2\n");
}

#[test]
fn an_error_of_one_path_does_not_stop_the_others() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    write(folder, "b", "of b");
    run_ok(folder, ["put", "a", "b", "v:/"]);
    let some = ["--glob", "v:/a", "v:/none/x", "v:/no*", "v:/b"];
    for (command, stdout) in [
        (&["cat"][..], Some("of aof b")),
        (&["ls"], Some("/a\n/b\n")),
        (&["du"], Some("4\t/a\n4\t/b\n")),
        (&["stat"], None),
        (&["chmod", "640"], Some("")),
        (&["chown", "7:8"], Some("")),
        (&["xattr", "set", "user.x", "y"], Some("")),
        (&["xattr", "list"], Some("/a:\nuser.x\n/b:\nuser.x\n")),
        (&["xattr", "remove", "user.x"], Some("")),
        (&["truncate", "-s", "7"], Some("")),
    ] {
        let (text, stderr) = incomplete(folder, [command, &some].concat());
        assert_eq!(stderr.lines().count(), 2, "{command:?}: {stderr}");
        assert!(stderr.contains("v:/none/x: ") && stderr.contains("'v:/no*': no name"), "{stderr}");
        assert_eq!(stdout.unwrap_or(&text), text, "{command:?}");
        if command == ["stat"] {
            assert!(text.contains("/a\n") && text.contains("/b\n"), "{text}");
        }
    }
    let stat: serde_json::Value =
        serde_json::from_str(&run_ok(folder, ["stat", "--json", "v:/a", "v:/b"])).unwrap();
    for found in [&stat["files"][0], &stat["files"][1]] {
        let changed = [&found["mode"], &found["user"], &found["group"], &found["size"]];
        assert_eq!(changed, [&"0640".into(), &7.into(), &8.into(), &serde_json::json!(7)]);
    }
    incomplete(folder, ["mkdir", "v:/c", "v:/none/x", "v:/a", "v:/d"]);
    incomplete(folder, ["mkdir", "-p", "v:/e", "v:/a/x", "v:/f/g"]);
    incomplete(folder, ["rm", "--glob", "v:/a", "v:/none/x", "v:/no*", "v:/c", "v:/b"]);
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "c\nd\ne\nf\n");
}

#[test]
fn wildcards_match_names() {
    let folder = volume();
    let folder = folder.path();
    for name in ["a1.h", "a2.h", "b1.h", "a*.h", ".a3.h"] {
        write(folder, name, name);
        run_ok(folder, ["put", name, "v:/"]);
    }
    assert_eq!(run_ok(folder, ["cat", "--glob", "v:/a[12].h"]), "a1.ha2.h");
    assert_eq!(run_ok(folder, ["cat", "v:/a*.h"]), "a*.h", "without --glob, a name is itself");
    assert_eq!(run_ok(folder, ["ls", "--glob", "v:/?1.h"]), "/a1.h\n/b1.h\n");
    std::fs::create_dir(folder.join("out")).unwrap();
    run_ok(folder, ["get", "--glob", "v:/[!b]?.h", "out"]);
    assert!(folder.join("out/a1.h").exists() && !folder.join("out/b1.h").exists());
    refused(folder, ["rm", "--glob", "v:/c*"], "'v:/c*': no name matches this pattern");
    run_ok(folder, ["rm", "--glob", "v:/?1.*"]);
    assert_eq!(run_ok(folder, ["ls", "-A", "v:/"]), ".a3.h\na*.h\na2.h\n");
}

#[test]
fn wildcards_match_damaged_files_too() {
    let folder = volume();
    let folder = folder.path();
    // Enough that names and inodes are in separate pages.
    for at in 0..300 {
        let directory = folder.join(format!("tree/d{}", at % 2));
        std::fs::create_dir_all(&directory).unwrap();
        let target = format!("{at:03}").repeat(30);
        std::os::unix::fs::symlink(target, directory.join(format!("{at:03}"))).unwrap();
    }
    run_ok(folder, ["put", "tree", "v:/"]);
    let mut image = std::fs::read(folder.join("v")).unwrap();
    let target = "150".repeat(30);
    let at = |image: &[u8]| image.windows(90).position(|found| found == target.as_bytes());
    while let Some(at) = at(&image) {
        image[at..at + 90].fill(b'?');
    }
    write(folder, "v", image);
    std::fs::create_dir(folder.join("out")).unwrap();
    for (pattern, fit) in [("v:/tree/d0/1*", 50), ("v:/tree/d0/150/*", 1), ("v:/tree/*/150/*", 1)] {
        let stderr = incomplete(folder, ["get", "--glob", pattern, "out"]).1;
        let got = folder.join("out").read_dir().unwrap().count();
        let is_below = |line: &str| line.replace('\'', "").starts_with("uringfs: v:/tree/d0/1");
        assert!(stderr.lines().all(is_below), "{stderr}");
        assert_eq!(stderr.lines().count(), if fit == 1 { 1 } else { fit - got }, "{stderr}");
        assert!(got > 0);
    }
}

/// The output and the errors of a command that must fail for some paths with exit code 1, or for its only path
/// because of damage with exit code 4.
fn incomplete<S: AsRef<OsStr>>(
    folder: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> (String, String) {
    let output = run(folder, arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(1 | 4)), "{:?}: {stderr}", output.status);
    assert!(!stderr.is_empty());
    (String::from_utf8(output.stdout).unwrap(), stderr)
}

#[test]
fn recursive_commands_report_damaged_files_and_continue() {
    let folder = volume();
    let folder = folder.path();
    let name = |directory: usize, file: usize| format!("{directory:02}{file:03}-").repeat(16);
    for directory in 0..12 {
        let path = folder.join(format!("tree/{directory:02}"));
        std::fs::create_dir_all(&path).unwrap();
        for file in 0..40 {
            std::fs::write(path.join(name(directory, file)), "some bytes").unwrap();
        }
    }
    run_ok(folder, ["put", "tree", "v:/"]);
    let mut image = std::fs::read(folder.join("v")).unwrap();
    let damaged = name(6, 20).into_bytes();
    let at = |image: &[u8]| image.windows(damaged.len()).position(|found| found == damaged);
    while let Some(at) = at(&image) {
        image[at..at + damaged.len()].fill(b'?');
    }
    write(folder, "v", image);
    let is_reported =
        |stderr: &str| stderr.lines().all(|line| line.starts_with("uringfs: v:/tree/0"));
    for command in [["ls", "-R"].as_slice(), &["tree"], &["du"]] {
        let (text, stderr) = incomplete(folder, [command, &["v:/tree"]].concat());
        assert!(is_reported(&stderr), "{command:?}: {stderr}");
        for directory in [0, 11] {
            let shown =
                if command[0] == "du" { format!("{directory:02}") } else { name(directory, 39) };
            assert!(text.contains(&shown), "{command:?}: {text}");
        }
    }
    let (_, stderr) = incomplete(folder, ["get", "v:/tree", "out"]);
    assert!(is_reported(&stderr), "{stderr}");
    for directory in [0, 11] {
        assert_eq!(folder.join(format!("out/{directory:02}")).read_dir().unwrap().count(), 40);
    }
    let (_, stderr) = incomplete(folder, ["rm", "-r", "v:/tree"]);
    assert!(is_reported(&stderr), "{stderr}");
    let (left, _) = incomplete(folder, ["ls", "-R", "v:/tree"]);
    assert!(left.contains("/tree/06:") && !left.contains("/tree/00") && !left.contains("/tree/11"));
}

#[test]
fn an_input_error_is_one_line_with_the_path() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["mkdir", "v:/d"]);
    run_ok(folder, ["put", "a", "v:/d"]);
    refused(folder, ["cat", "v:/none"], "v:/none: ");
    refused(folder, ["cat", "v:/d"], "v:/d: is a directory");
    refused(folder, ["ls", ":/a"], ":/a: expected a path in a volume, as in TARGET:/path");
    refused(folder, ["ls", "none:/"], "none does not exist");
    write(folder, "text", vec![b'x'; 1 << 20]);
    refused(folder, ["ls", "text:/"], "check the path");
    refused(folder, ["rm", "v:/d"], "v:/d: is a directory; use rm -r to remove it");
    refused(folder, ["rm", "-r", "v:/"], "v:/: is the root directory, and cannot be removed");
    refused(folder, ["mv", "v:/d", "v:/d/e"], "v:/d to v:/d/e: ");
    refused(folder, ["mv", "v:/d", "w:/e"], "w:/e is in another volume than v:/d; ");
    refused(folder, ["mkdir", "v:/d"], "v:/d: ");
    refused(folder, ["put", "none", "v:/"], "none: cannot be read");
    refused(folder, ["put", "a", "a", "v:/none"], "v:/none: is not a directory");
    refused(folder, ["put", "-", "v:/d"], "give a file name for standard input");
    assert_eq!(run_ok(folder, ["ls", "-R", "v:/"]), "/:\nd\n\n/d:\na\n");
}
