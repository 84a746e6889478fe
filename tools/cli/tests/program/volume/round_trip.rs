//! A tree is unchanged after `put` and `get`.

use super::{command, refused, run, run_ok, volume};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Creates a tree with odd names, sizes near those of blocks and chunks, modes, times, links, a FIFO and holes.
fn make_tree(top: &Path) {
    let foreign = top.join(OsStr::from_bytes(b"not \xff UTF-8\n"));
    std::fs::create_dir_all(foreign.join("deep/er")).unwrap();
    let long = "n".repeat(255);
    for (name, size) in
        [("empty", 0), (" ", 1), ("-", 4096), ("*", 4097), (&*long, (1 << 20) + 5), ("'", 3 << 20)]
    {
        let bytes: Vec<u8> = (0..size).map(|at| (at / 7 % 251) as u8 + 1).collect();
        std::fs::write(foreign.join(name), bytes).unwrap();
    }
    for (at, mode) in [("empty", 0o000), (" ", 0o4755), ("deep", 0o500)] {
        std::fs::set_permissions(foreign.join(at), Permissions::from_mode(mode)).unwrap();
    }
    symlink("deep/../ ", foreign.join("link")).unwrap();
    symlink("/no/such\n", foreign.join("nowhere")).unwrap();
    std::fs::hard_link(foreign.join("*"), top.join("same")).unwrap();
    mknodat(CWD, top.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    let holes = File::create(top.join("holes")).unwrap();
    holes.write_all_at(&[7; 100], 5 << 20).unwrap();
    holes.set_len((9 << 20) + 1).unwrap();
    let time = Timespec { tv_sec: 1_234_567_890, tv_nsec: 123_456_789 };
    let times = Timestamps { last_access: time, last_modification: time };
    for path in [foreign.join("'"), top.join("fifo"), foreign.join("deep"), foreign] {
        utimensat(CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }
}

/// Every path below `top`, relative to it, sorted.
fn paths(top: &Path) -> Vec<PathBuf> {
    let mut all = vec![top.to_owned()];
    let mut at = 0;
    while at < all.len() {
        if all[at].symlink_metadata().unwrap().is_dir() {
            let inner = all[at].read_dir().unwrap().map(|entry| entry.unwrap().path());
            all.extend(inner.collect::<Vec<_>>());
        }
        at += 1;
    }
    all.sort();
    all.iter().map(|path| path.strip_prefix(top).unwrap().to_owned()).collect()
}

fn assert_same(one: &Path, other: &Path) {
    assert_eq!(paths(one), paths(other));
    for path in paths(one) {
        let [one, other] = [one.join(&path), other.join(&path)];
        let [was, is] = [&one, &other].map(|path| path.symlink_metadata().unwrap());
        let of = |found: &std::fs::Metadata| {
            (found.mode(), found.uid(), found.gid(), found.mtime(), found.mtime_nsec())
        };
        assert_eq!(of(&was), of(&is), "{path:?}");
        if was.is_symlink() {
            assert_eq!(one.read_link().unwrap(), other.read_link().unwrap());
        } else if was.is_file() {
            assert_eq!((was.nlink(), was.len()), (is.nlink(), is.len()), "{path:?}");
            if crate::root::is_root() || was.mode() & 0o400 != 0 {
                assert!(std::fs::read(&one).unwrap() == std::fs::read(&other).unwrap(), "{path:?}");
            }
        }
    }
}

#[test]
fn a_tree_is_unchanged_after_put_and_get() {
    let folder = volume();
    let folder = folder.path();
    let tree = folder.join("tree");
    std::fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    if !crate::root::is_root() {
        // A file that its owner may not read cannot be copied.
        let empty = tree.join(OsStr::from_bytes(b"not \xff UTF-8\n")).join("empty");
        std::fs::set_permissions(empty, Permissions::from_mode(0o400)).unwrap();
    }
    run_ok(folder, ["put", "tree", "v:/"]);
    run_ok(folder, ["get", "v:/tree", "out"]);
    assert_same(&tree, &folder.join("out"));
    assert!(folder.join("out/holes").metadata().unwrap().blocks() * 512 < 1 << 20, "it has holes");
    // Copy again over the existing tree: the same files, and nothing else.
    run_ok(folder, ["put", "tree", "v:/"]);
    run_ok(folder, ["get", "v:/", "again"]);
    assert_same(&tree, &folder.join("again/tree"));
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "tree\n");
}

#[test]
fn put_reads_standard_input_and_cat_and_get_print_it() {
    let folder = volume();
    let folder = folder.path();
    let bytes: Vec<u8> = (0..3_000_001u32).map(|at| (at / 3) as u8).collect();
    let mut source = tempfile::tempfile().unwrap();
    source.write_all(&bytes).unwrap();
    std::io::Seek::rewind(&mut source).unwrap();
    let mut put = command(folder, ["put", "-", "v:/a"]);
    let output = put.stdin(Stdio::from(source)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(run(folder, ["cat", "v:/a"]).stdout == bytes);
    assert!(run(folder, ["get", "v:/a", "-"]).stdout == bytes);
}

#[test]
fn a_file_does_not_replace_a_directory() {
    let folder = volume();
    let folder = folder.path();
    std::fs::write(folder.join("a"), "of a").unwrap();
    run_ok(folder, ["mkdir", "-p", "v:/d/a"]);
    refused(folder, ["put", "a", "v:/d"], "v:/d/a: ");
    assert_eq!(run_ok(folder, ["ls", "-R", "v:/"]), "/:\nd\n\n/d:\na\n\n/d/a:\n");
}

#[test]
fn get_does_not_follow_links_that_came_from_the_volume() {
    let folder = volume();
    let folder = folder.path();
    let elsewhere = folder.join("elsewhere");
    for name in ["elsewhere", "out", "again"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("a"), "of a").unwrap();
    run_ok(folder, ["mkdir", "-p", "v:/1", "v:/2/a"]);
    run_ok(folder, ["ln", "-s", elsewhere.to_str().unwrap(), "v:/1/a"]);
    run_ok(folder, ["put", "a", "v:/2/a"]);
    let fails = |arguments: &[&str]| {
        let output = run(folder, arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("/a: cannot be created"), "{stderr}");
        assert_eq!(elsewhere.read_dir().unwrap().count(), 0);
    };
    fails(&["get", "--glob", "v:/*/a", "out"]);
    // The same if an earlier command created the link.
    run_ok(folder, ["get", "v:/1/a", "again"]);
    fails(&["get", "v:/2/a", "again"]);
    // A link in the destination that the user names is followed.
    run_ok(folder, ["get", "v:/2/a", "again/a"]);
    assert_eq!(std::fs::read(elsewhere.join("a/a")).unwrap(), b"of a");
}
