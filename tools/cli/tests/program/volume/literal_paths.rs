//! A path is one file, whatever characters its name has: only `--glob` expands wildcards. So names that another command
//! has printed never lead to a different file, even if theirs is gone.

use super::{command, refused, run, run_ok, volume, write};
use crate::process::ChildProcess;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names of which each, read as a pattern, matches `ab`.
const NAMES: [&str; 5] = ["a*", "a?", "[a]b", "?b", r"\ab"];

fn with_names() -> tempfile::TempDir {
    let folder = volume();
    write(folder.path(), "ab", "of ab");
    run_ok(folder.path(), ["put", "ab", "v:/"]);
    for name in NAMES {
        run_ok(folder.path(), ["put", "ab", &format!("v:/{name}")]);
    }
    folder
}

/// The paths that `find -print0` prints.
fn found(folder: &Path) -> Vec<u8> {
    run(folder, ["find", "v:/", "-type", "f", "!", "-name", "ab", "-print0"]).stdout
}

/// Passes paths to a command, as `xargs -0` does.
fn xargs(folder: &Path, paths: &[u8], arguments: &[&str]) {
    write(folder, "list", paths);
    let mut xargs = Command::new("xargs");
    xargs.args(["-0", env!("CARGO_BIN_EXE_uringfs")]).args(arguments).current_dir(folder);
    let list = std::fs::File::open(folder.join("list")).unwrap();
    let status = xargs.stdin(list).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.unwrap();
}

#[test]
fn the_names_that_find_printed_are_removed_and_no_others_even_twice() {
    let folder = with_names();
    let folder = folder.path();
    let paths = found(folder);
    for arguments in [&["rm"][..], &["rm", "-f"], &["rm", "-rf"]] {
        xargs(folder, &paths, arguments);
        assert_eq!(run_ok(folder, ["ls", "v:/"]), "ab\n", "{arguments:?}");
        xargs(folder, &paths, arguments);
        assert_eq!(run_ok(folder, ["cat", "v:/ab"]), "of ab", "{arguments:?}");
        for name in NAMES {
            run_ok(folder, ["put", "ab", &format!("v:/{name}")]);
        }
    }
}

#[test]
fn a_pipe_of_names_is_removed_while_find_prints_them() {
    let folder = volume();
    let folder = folder.path();
    let tree = folder.join("t");
    std::fs::create_dir(&tree).unwrap();
    // More than xargs gives to one command.
    for number in 0..3000 {
        write(&tree, &format!("{number:060}"), "");
    }
    run_ok(folder, ["put", "t", "v:/"]);
    let program = env!("CARGO_BIN_EXE_uringfs");
    let pipe = format!("{program} find v:/t -type f -print0 | xargs -0 {program} rm");
    let output =
        ChildProcess::start(Command::new("sh").args(["-c", &pipe]).current_dir(folder)).end();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(run_ok(folder, ["ls", "v:/t"]), "");
}

#[test]
fn no_command_reads_a_name_that_is_gone_as_a_pattern() {
    let folder = with_names();
    let folder = folder.path();
    run_ok(folder, ["mkdir", "v:/to"]);
    run_ok(folder, ["xattr", "set", "user.x", "y", "v:/ab"]);
    xargs(folder, &found(folder), &["rm"]);
    let before = run_ok(folder, ["ls", "-lR", "--full-time", "v:/"]);
    let out = folder.join("out");
    std::fs::create_dir(&out).unwrap();
    for name in NAMES {
        let path = &*format!("v:/{name}");
        for arguments in [
            &["cat", path][..],
            &["chmod", "600", path],
            &["chmod", "-R", "600", path],
            &["chown", "7:8", path],
            &["chgrp", "8", path],
            &["df", path],
            &["cp", path, "v:/to"],
            &["cp", "-a", path, "v:/to"],
            &["du", path],
            &["find", path],
            &["get", path, "out"],
            &["get", path, "-"],
            &["ln", path, "v:/to"],
            &["ls", path],
            &["mv", path, "v:/to"],
            &["mv", "v:/none", path, "v:/to"],
            &["rm", path],
            &["rm", "-r", path],
            &["rmdir", path],
            &["stat", path],
            &["stat", "-c", "%n", path],
            &["touch", "-r", path, "v:/to"],
            &["tree", path],
            &["xattr", "get", "user.x", path],
            &["xattr", "list", path],
            &["xattr", "remove", "user.x", path],
            &["xattr", "set", "user.x", "z", path],
        ] {
            let output = run(folder, arguments);
            let stdout = String::from_utf8(output.stdout).unwrap();
            assert!(!output.status.success(), "{arguments:?}: {stdout}");
            let is_other = |line: &str| line == "ab" || line.ends_with("/ab") || line == "of ab";
            assert!(!stdout.lines().any(is_other), "{arguments:?}: {stdout}");
        }
        run_ok(folder, ["rm", "-f", path]);
        run_ok(folder, ["touch", "-c", path]);
        run_ok(folder, ["truncate", "-c", "-s", "1", path]);
        assert_eq!(run_ok(folder, ["ls", "-lR", "--full-time", "v:/"]), before, "{name}");
        assert_eq!(out.read_dir().unwrap().count(), 0, "{name}");
    }
    assert_eq!(run_ok(folder, ["xattr", "get", "user.x", "v:/ab"]), "y");
    for arguments in [&["touch"][..], &["truncate", "-s", "0"], &["mkdir"]] {
        run_ok(folder, [arguments, &["v:/a*"]].concat());
        assert!(run_ok(folder, ["ls", "v:/"]).starts_with("a*\nab\n"), "{arguments:?}");
        run_ok(folder, ["rm", "-r", "v:/a*"]);
        assert_eq!(run_ok(folder, ["cat", "v:/ab"]), "of ab");
    }
    refused(folder, ["rm", "v:/a*"], "'v:/a*': no such file; --glob expands wildcards");
    refused(folder, ["rm", "v:/none"], "v:/none: ");
}

#[test]
fn glob_expands_wildcards_and_a_backslash_makes_them_literal() {
    let folder = with_names();
    let folder = folder.path();
    let expanded = |path: &str| run_ok(folder, ["ls", "--glob", path]);
    assert_eq!(expanded("v:/a*"), "/a*\n/a?\n/ab\n");
    assert_eq!(expanded(r"v:/a\*"), "/a*\n");
    assert_eq!(expanded(r"v:/\\a*"), "/\\ab\n");
    assert_eq!(expanded(r"v:/\a\b"), "/ab\n", "as in a shell");
    assert_eq!(expanded("v:/[a]b"), "/ab\n");
    for arguments in [["find", "--glob", "v:/a?"], ["find", "v:/a?", "--glob"]] {
        assert_eq!(run_ok(folder, arguments), "v:/a*\nv:/a?\nv:/ab\n");
    }
    refused(folder, ["rm", "--glob", "v:/c*"], "'v:/c*': no name matches this pattern");
    assert_eq!(run_ok(folder, ["rm", "-f", "--glob", "v:/c*"]), "");
    let mut rm = command(folder, ["rm", "--glob", "v:/*"]);
    assert!(ChildProcess::start(&mut rm).end().status.success());
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "");
}
