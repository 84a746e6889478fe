//! Damage with which a volume can be used: each command warns once, and `check` reports each damage once.

use super::{run, run_ok, volume, write};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK: u64 = 4096;
/// Where the catalog of a new volume of 32 MiB is.
const CATALOG: std::ops::Range<u64> = 1024..1400;

fn zero(folder: &Path, block: u64) {
    let file = File::options().write(true).open(folder.join("v")).unwrap();
    file.write_all_at(&[0; BLOCK as usize], block * BLOCK).unwrap();
}

#[test]
fn a_damaged_superblock_is_warned_of_once_until_it_is_written_again() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkdir", "v:/d"]);
    let warning = |arguments: &[&str]| {
        let output = run(folder, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    zero(folder, 0);
    let begin = "uringfs: warning: v: superblock in block 0: no superblock; ";
    for arguments in [&["ls", "v"][..], &["find", "v:/"], &["df", "v"], &["cp", "--help"]] {
        let expected = match arguments[0] {
            "cp" => String::new(),
            _ => format!("{begin}run uringfs check --repair\n"),
        };
        assert_eq!(warning(arguments), expected, "{arguments:?}");
    }
    for arguments in [&["touch", "v:/a"][..], &["resize", "v", "+1M"]] {
        zero(folder, 0);
        let line = warning(arguments);
        assert!(line.starts_with(begin) && line.lines().count() == 1, "{arguments:?}: {line}");
    }
    zero(folder, 0);
    assert_eq!(warning(&["touch", "v:/b"]), format!("{begin}written again from a good one\n"));
    assert_eq!(warning(&["touch", "v:/b"]), "");
    assert!(run_ok(folder, ["check", "v"]).contains("clean"));
}

/// A volume with files that has lost one block of the catalog, with the inodes of files, and also of directories or not.
fn with_lost_inodes(of_directories: bool) -> tempfile::TempDir {
    let folder = volume();
    let path = folder.path();
    for at in 0..120 {
        let directory = path.join(format!("t/d{}", at % 3));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(format!("file{at}")), "hello").unwrap();
    }
    run_ok(path, ["put", "-q", "t", "v:/"]);
    let image = std::fs::read(path.join("v")).unwrap();
    for block in CATALOG {
        write(path, "v", &image);
        zero(path, block);
        let output = run(path, ["check", "v"]);
        let text = String::from_utf8(output.stdout).unwrap();
        if text.contains("the file's inode is lost")
            && text.contains("the directory's inode is lost") == of_directories
        {
            return folder;
        }
    }
    panic!("no block has such inodes");
}

fn check(folder: &Path, arguments: &[&str]) -> String {
    String::from_utf8(run(folder, [&["check", "v"], arguments].concat()).stdout).unwrap()
}

#[test]
fn each_lost_inode_is_one_error_and_its_repair_says_what_is_lost() {
    let folder = with_lost_inodes(false);
    let folder = folder.path();
    let before = check(folder, &[]);
    let lost = before.lines().filter(|line| line.ends_with("the file's inode is lost")).count();
    // And the block of the catalog.
    let errors = lost + 1;
    assert!(lost > 10 && before.lines().count() == errors + 1, "{before}");
    assert!(before.contains(&format!("v: errors found: {errors}; run with --repair")), "{before}");
    let json: serde_json::Value = serde_json::from_str(&check(folder, &["--json"])).unwrap();
    assert_eq!(json["findings"].as_array().unwrap().len(), errors);
    let repaired = check(folder, &["-y"]);
    let what = format!("owners, modes, times and exact sizes of {lost} files are lost");
    let last = format!("v: errors found: {errors}, all repaired; {what}\n");
    assert!(repaired.ends_with(&last), "{repaired}");
    assert_eq!(run_ok(folder, ["find", "v:/t", "-type", "f"]).lines().count(), 120);
}

#[test]
fn a_lost_directory_is_one_error_however_many_names_are_in_it() {
    let folder = with_lost_inodes(true);
    let text = check(folder.path(), &[]);
    let lost = text.lines().filter_map(|line| line.strip_suffix("inode is lost"));
    let mut paths: Vec<&str> = lost.filter_map(|line| line.split([' ', ':']).next()).collect();
    let count = paths.len();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), count, "{text}");
}

#[test]
fn a_volume_without_a_catalog_cannot_be_repaired_and_says_what_is_left() {
    let folder = volume();
    let folder = folder.path();
    zero(folder, 1025);
    for arguments in [&["check", "v"][..], &["check", "-y", "v"], &["check", "--repair", "v"]] {
        let output = run(folder, arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{stderr}");
        let advice =
            "; this cannot be repaired: restore the volume from a copy. Without the catalog";
        assert!(stderr.contains(advice) && stderr.lines().count() == 1, "{stderr}");
        assert!(!stderr.contains("backup"), "{stderr}");
    }
    // A good backup superblock does not help either: it leads to the same catalog.
    zero(folder, 0);
    zero(folder, 16);
    let stderr = String::from_utf8(run(folder, ["check", "-y", "v"]).stderr).unwrap();
    assert!(stderr.contains("this cannot be repaired"), "{stderr}");
    assert!(!stderr.contains("run uringfs check --repair"), "{stderr}");
}
