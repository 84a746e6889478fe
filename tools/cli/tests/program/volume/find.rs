//! `find` finds what `find` of findutils finds.

use super::mirror::Mirror;
use super::{refused, run_ok};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

fn mirror() -> Mirror {
    let mirror = Mirror::new();
    let tree = mirror.tree();
    for directory in ["d/e/f", "d/.hidden", "empty"] {
        std::fs::create_dir_all(tree.join(directory)).unwrap();
    }
    for (name, size) in [
        ("a.log", 0),
        ("b.LOG", 1),
        ("d/c.log", 512),
        ("d/e/.x.log", 513),
        ("d/e/f/big", 2 << 20),
        ("d/.hidden/y", 1024),
    ] {
        std::fs::write(tree.join(name), vec![b'x'; size]).unwrap();
        std::fs::set_permissions(tree.join(name), PermissionsExt::from_mode(0o644)).unwrap();
    }
    std::fs::set_permissions(tree.join("a.log"), PermissionsExt::from_mode(0o4750)).unwrap();
    let old = std::fs::File::options().write(true).open(tree.join("d/c.log")).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(3 * 86_400 + 100)).unwrap();
    symlink("e", tree.join("d/link")).unwrap();
    std::fs::hard_link(tree.join("b.LOG"), tree.join("d/same")).unwrap();
    mirror.put();
    mirror
}

#[test]
fn tests_accept_what_find_accepts() {
    let mirror = mirror();
    for tests in [
        &[][..],
        &["-name", "*.log"],
        &["-iname", "*.log"],
        &["-name", "?.log"],
        &["-path", "*d/*"],
        &["-type", "f"],
        &["-type", "d,l"],
        &["!", "-type", "d"],
        &["-not", "-name", "*.log", "-type", "f"],
        &["-maxdepth", "1"],
        &["-mindepth", "2"],
        &["-mindepth", "1", "-maxdepth", "2", "-name", "*e*"],
        &["-maxdepth", "0"],
        &["-size", "1", "-type", "f"],
        &["-size", "+1", "-type", "f"],
        &["-size", "-2k", "-type", "f"],
        &["-size", "512c"],
        &["-size", "+1M", "-type", "f"],
        &["-size", "2M", "-type", "f"],
        &["-size", "0", "-type", "f"],
        &["-empty"],
        &["-newer", "@d/c.log", "-type", "f"],
        &["-mtime", "+1"],
        &["-mtime", "3"],
        &["-mtime", "0", "-type", "f"],
        &["-mmin", "-60", "-type", "f"],
        &["-perm", "644"],
        &["-perm", "-4000"],
        &["-perm", "/4001", "-type", "f"],
        &["-links", "2", "-type", "f"],
        &["-uid", "0", "-print"],
        &["-uid", "-1", "-maxdepth", "0", "-print0"],
        &["-type", "f", "-maxdepth", "0", "-print0"],
        &["-user", "root", "-group", "0", "-maxdepth", "1"],
        &["-user", "12345"],
        &["-name", "*.log", "-o", "-type", "d"],
        &["-name", "*.log", "-or", "-type", "l", "-a", "-name", "link"],
        &["(", "-name", "*.log", "-o", "-name", "big", ")", "-size", "+1"],
        &["!", "(", "-type", "d", "-o", "-name", "big", ")"],
        &["!", "!", "-type", "d"],
        &["-type", "d", "-print", "-o", "-name", "big", "-print"],
        &["-name", "e", "-prune", "-o", "-print"],
        &["-path", "*.hidden", "-prune", "-o", "-type", "f", "-print"],
        &["-ipath", "*D/*LOG"],
        &["-true", "-false", "-o", "-type", "l"],
        &["-newermt", "yesterday", "-type", "f"],
        &["!", "-newermt", "2020-01-01"],
        &["-newermt", "1990-01-01", "-name", "c.log"],
        &["-depth", "-type", "d"],
        &["-print", "-print", "-maxdepth", "0"],
        &["-name", "*.log", ",", "-name", "big"],
        &["-ctime", "0", "-cmin", "-60", "-type", "l"],
    ] {
        mirror.run(&[&["find", "@d", "@a.log", "@b.LOG"], tests].concat());
    }
    mirror.run(&["find", "@none", "@empty"]);
    mirror.run(&["find", "@d/link", "@d/link/"]);
}

#[test]
fn matching_files_are_deleted_and_no_others() {
    let mirror = mirror();
    for arguments in [
        // Refused: contents come first, so that -prune would keep nothing.
        &["find", "@d", "-name", "e", "-prune", "-o", "-delete"][..],
        &["find", "@d", "-depth", "-name", "f", "-prune", "-o", "-name", ".x.log", "-delete"],
        &["find", "@d", "-name", "*.log", "-size", "0", "-delete"],
        &["find", "@d", "-name", "*.log", "-print", "-delete"],
        &["find", "@d", "-type", "d", "-empty", "-delete"],
        &["find", "@d", "(", "-name", "big", "-o", "-name", "f", ")", "-delete"],
        &["find", "@d/e", "-delete", "-print"],
        // A directory that is not empty.
        &["find", "@d", "-maxdepth", "0", "-delete"],
        &["find", "@d", "-delete"],
        &["find", "@empty", "@a.log", "-delete"],
    ] {
        mirror.run(arguments);
    }
    let folder = mirror.folder();
    assert_eq!(run_ok(folder, ["find", "v:/", "-delete"]), "", "the root directory stays");
    assert_eq!(run_ok(folder, ["ls", "-A", "v:/"]), "");
}

#[test]
fn the_lines_of_ls_are_those_of_find() {
    let mirror = mirror();
    let folder = mirror.folder();
    let columns = |text: String| {
        // Without inode and path, and the space of directories.
        let line = |line: &str| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ");
        let mut lines: Vec<String> =
            text.lines().map(line).map(|line| line.replace("v:/", "").replace("t/", "")).collect();
        lines.sort();
        lines
    };
    let theirs = crate::process::tool(
        "env",
        &[
            "-C",
            folder.to_str().unwrap(),
            "LC_ALL=C",
            "find",
            "t/a.log",
            "t/d",
            "!",
            "-type",
            "d",
            "-ls",
        ],
    );
    let ours = run_ok(folder, ["find", "v:/a.log", "v:/d", "!", "-type", "d", "-ls"]);
    assert_eq!(columns(ours), columns(theirs));
}

#[test]
fn a_wrong_test_is_refused() {
    let mirror = mirror();
    let folder = mirror.folder();
    for (arguments, part) in [
        (&["find", "-name", "x"][..], "the path is missing"),
        (&["find", "v", "-nam", "x"], "-nam: unknown test"),
        (&["find", "v", "-name"], "-name: the value is missing"),
        (&["find", "v", "-size", "x"], "-size x: expected a number"),
        (&["find", "v", "-type", "x"], "-type: expected letters of"),
        (&["find", "v", "-perm", "u+x"], "expected octal digits"),
        (&["find", "v", "-newer", "v:/none"], "v:/none: "),
        (&["find", "v", "(", "-name", "x"], "find: ( without )"),
        (&["find", "v", "-name", "x", ")"], "find: ) without ("),
        (&["find", "v", "-name", "x", "-o"], "find: -o: a test is missing after it"),
        (&["find", "v", "!"], "find: !: a test is missing after it"),
        (&["find", "v", "(", ")"], "find: (: a test is missing after it"),
        (&["find", "v", "-o", "-print"], "find: -o: a test is missing before it"),
        (&["find", "v", "-user", "no such"], "find: -user: unknown user no such"),
        (&["find", "v", "-newermt", "never"], "invalid date 'never'"),
        (&["find", "v", "-exec", "rm"], "-exec: unknown test"),
    ] {
        refused(folder, arguments, part);
    }
    assert!(run_ok(folder, ["find", "--help"]).contains("-maxdepth N"));
    assert_eq!(run_ok(folder, ["find", "--glob", "v:/*.log"]), "v:/a.log\n");
}
