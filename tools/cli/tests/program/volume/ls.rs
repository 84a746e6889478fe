//! `ls` prints what `ls` of coreutils prints.

use super::mirror::Mirror;
use super::{run_ok, volume, write};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, makedev, mknodat, utimensat};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

fn set_modified(path: &Path, seconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Files of all kinds below `files`, and directories below `dirs`.
fn mirror() -> Mirror {
    let mirror = Mirror::new();
    let tree = mirror.tree();
    for directory in ["files", "dirs/a/aa", "dirs/b/.hidden", "dirs/.c"] {
        std::fs::create_dir_all(tree.join(directory)).unwrap();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    for (at, (name, size)) in
        [("one", 1), ("two", 20_000), (".three", 4096), ("four", 123_456)].into_iter().enumerate()
    {
        let path = tree.join("files").join(name);
        std::fs::write(&path, vec![b'x'; size]).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640 + at as u32)).unwrap();
        set_modified(&path, now - 100_000 * 100_i64.pow(at as u32) / 10);
    }
    std::fs::write(tree.join("files/future"), "").unwrap();
    set_modified(&tree.join("files/future"), now + 1_000_000);
    std::fs::hard_link(tree.join("files/one"), tree.join("files/same")).unwrap();
    symlink("one", tree.join("files/link")).unwrap();
    symlink("a", tree.join("dirs/to-a")).unwrap();
    mknodat(CWD, tree.join("files/fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    if crate::root::is_root() {
        for (name, number, user) in [("disk", makedev(8, 1), 1), ("big", makedev(259, 12_345), 0)] {
            let path = tree.join("files").join(name);
            mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR, number).unwrap();
            chown(path, Some(user), Some(424_242)).unwrap();
        }
    }
    mirror.put();
    mirror
}

#[test]
fn names_have_the_order_of_coreutils() {
    let mirror = mirror();
    for options in
        ["-1", "-a", "-A", "-r", "-t", "-rt", "-tA", "-aA", "-Aa", "-d", "-R", "-RA", "-aR", "-rR"]
    {
        mirror.run_in_order(&["ls", options, "@files", "@dirs"]);
        mirror.run_in_order(&["ls", options, "@dirs"]);
    }
    for options in
        [&["--all"][..], &["--almost-all", "--reverse"], &["--recursive"], &["--directory"]]
    {
        mirror.run_in_order(
            &[&["ls"], options, &["@dirs", "@files/one", "@dirs/to-a", "@none"]].concat(),
        );
    }
}

#[test]
fn the_long_format_has_the_columns_of_coreutils() {
    let mirror = mirror();
    for options in ["-l", "-lA", "-ln", "-n", "-lh", "-lrt", "-ltrh", "-lS", "--full-time"] {
        mirror.run_in_order(&["ls", options, "@files"]);
    }
    mirror.run_in_order(&["ls", "-l", "@files/one", "@files/link", "@files/four"]);
    mirror.run_in_order(&["ls", "-ld", "@files/fifo", "@dirs/to-a"]);
    mirror.run_in_order(&["ls", "-l", "--human-readable", "@files"]);
}

/// Sets other access times than modification times, in another order.
fn set_access_times(mirror: &Mirror) {
    for (at, name) in ["four", "one", "two", "future"].into_iter().enumerate() {
        let time = format!("2025-0{}-01 01:02:03", at + 1);
        mirror.run(&["touch", "-a", "-d", &time, &format!("@files/{name}")]);
    }
}

#[test]
fn times_are_chosen_as_in_coreutils() {
    let mirror = mirror();
    set_access_times(&mirror);
    let files = ["@files/four", "@files/one", "@files/two", "@files/future"];
    for options in [
        &["-lu"][..],
        &["-u"],
        &["-tu"],
        &["-ltu"],
        &["--time=atime"],
        &["-l", "--time=access"],
        &["-l", "--time=use", "-S"],
        &["-lu", "--full-time"],
        &["-uS"],
        &["-ur"],
    ] {
        mirror.run_in_order(&[&["ls", "-1"], options, &files].concat());
    }
    let folder = mirror.folder();
    run_ok(folder, ["chmod", "600", "v:/files/two"]);
    let by_change = run_ok(folder, ["ls", "-c", "v:/files/one", "v:/files/two"]);
    assert_eq!(by_change, "/files/two\n/files/one\n");
    let stat = run_ok(folder, ["stat", "-c", "%z", "v:/files/two"]);
    for option in ["-lc", "-c", "--time=ctime", "--time=status"] {
        let line = run_ok(folder, ["ls", option, "--full-time", "v:/files/two"]);
        assert!(line.contains(stat.trim()), "{option}: {line}");
    }
    let birth = run_ok(folder, ["ls", "--time=birth", "--full-time", "v:/files/two"]);
    assert!(birth.contains(run_ok(folder, ["stat", "-c", "%w", "v:/files/two"]).trim()), "{birth}");
}

#[test]
fn columns_marks_and_directories_are_chosen_as_in_coreutils() {
    let mirror = mirror();
    for options in [
        "-lg",
        "-lo",
        "-lG",
        "-g",
        "-o",
        "-go",
        "-gn",
        "-lp",
        "-p",
        "-pF",
        "-Fp",
        "-X",
        "-sk",
        "--si",
        "-l --si",
        "-lh --si",
        "-l --si -h",
        "-s --si",
        "-lG -n",
    ] {
        let options: Vec<&str> = options.split(' ').collect();
        mirror.run_in_order(&[&["ls", "-1"], &options[..], &["@files"]].concat());
    }
    for options in [&["-1"][..], &["-1r"], &["-1t"], &["-1X"]] {
        let first = ["--group-directories-first", "@dirs/to-a", "@dirs/a", "@files/one"];
        mirror.run_in_order(&[&["ls", "-d"], options, &first].concat());
    }
    assert_eq!(run_ok(mirror.folder(), ["ls", "-U", "v:/dirs"]), "a\nb\nto-a\n");
    assert_eq!(run_ok(mirror.folder(), ["ls", "-Ur", "v:/dirs"]), "a\nb\nto-a\n");
}

#[test]
fn special_characters_are_shown_as_in_coreutils() {
    let mirror = Mirror::new();
    for name in
        ["a b", "a\nb", "a\tb", "q\"r", "back\\s", "'", "plain", "ü", "\u{7f}", "a\u{1b}[31m"]
    {
        std::fs::write(mirror.tree().join(name), "").unwrap();
    }
    mirror.put();
    for option in ["-b", "-Q", "-q", "-bQ", "-Qb", "-lb", "-lQ", "-Nb", "-bq", "--escape"] {
        mirror.run_in_order(&["ls", "-1", option, "@."]);
    }
    assert_eq!(run_ok(mirror.folder(), ["ls", "-Qd", "v:/plain"]), "\"/plain\"\n");
}

#[test]
fn colors_are_those_of_coreutils() {
    let mirror = mirror();
    // Of devices and FIFOs, releases of coreutils have different ones.
    for paths in [&["files/four", "files/future", "files/link", "files/two"][..], &["-d", "dirs"]] {
        let theirs = Command::new("ls")
            .arg("--color=always")
            .args(paths)
            .current_dir(mirror.tree())
            .env_remove("LS_COLORS")
            .envs([("LC_ALL", "C.UTF-8"), ("TERM", "xterm")])
            .output()
            .unwrap();
        // coreutils begins with a reset.
        let theirs = String::from_utf8(theirs.stdout).unwrap().replacen("\x1b[0m", "", 1);
        let in_volume = paths.iter().map(|path| match path.starts_with('-') {
            true => (*path).to_owned(),
            false => format!("v:/{path}"),
        });
        let arguments = ["ls".to_owned(), "--color".to_owned()].into_iter().chain(in_volume);
        let ours = run_ok(mirror.folder(), arguments).replace("m/", "m").replace("\n/", "\n");
        assert_eq!(ours, theirs);
    }
    assert!(!run_ok(mirror.folder(), ["ls", "v:/files"]).contains('\x1b'), "no terminal");
}

#[test]
fn inode_numbers_are_those_of_stat() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/a"]);
    run_ok(folder, ["mkdir", "v:/d"]);
    let number = |path: &str| {
        let stat: serde_json::Value =
            serde_json::from_str(&run_ok(folder, ["stat", "--json", path])).unwrap();
        stat["files"][0]["inode"].as_u64().unwrap()
    };
    let (a, d) = (number("v:/a"), number("v:/d"));
    assert_eq!(run_ok(folder, ["ls", "-i", "v:/"]), format!("{a} a\n{d} d\n"));
    assert!(run_ok(folder, ["ls", "-lid", "v:/d"]).starts_with(&format!("{d} drwx")));
}
