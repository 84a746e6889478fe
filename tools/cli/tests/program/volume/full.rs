//! Out of space: errors say whether the volume or the host file system of its image is full.

use super::{run, run_ok, write};
use crate::bench_run::folder;
use crate::root::{SmallTmpfs, as_root};

#[test]
fn put_into_a_full_volume_stops_and_says_how_many_files_are_left() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "-q", "v", "--size", "16M"]);
    std::fs::create_dir(folder.join("t")).unwrap();
    for at in 0..100 {
        write(folder, &format!("t/{at}"), vec![1; 300_000]);
    }
    write(folder, "t/100.tmp", vec![1; 300_000]);
    let output = run(folder, ["put", "--exclude", "*.tmp", "t", "v:/"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(7), 1), "{stderr}");
    assert!(stderr.contains("the volume is full"), "{stderr}");
    let copied = run_ok(folder, ["find", "v:/t", "-type", "f"]).lines().count();
    let end = format!("; {copied} files were copied, {} are left\n", 100 - copied);
    assert!(stderr.ends_with(&end) && copied > 0, "{copied}: {stderr}");
    assert!(run_ok(folder, ["check", "v"]).contains("clean"));
}

#[test]
fn cp_in_a_full_volume_stops_at_the_first_file_that_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "-q", "v", "--size", "16M"]);
    std::fs::create_dir(folder.join("t")).unwrap();
    for at in 0..20 {
        write(folder, &format!("t/{at}"), vec![1; 300_000]);
    }
    run_ok(folder, ["put", "-q", "t", "v:/"]);
    let output = run(folder, ["cp", "-r", "v:/t", "v:/u"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(7), 1), "{stderr}");
    assert!(stderr.contains("the volume is full"), "{stderr}");
    let copied = run_ok(folder, ["find", "v:/u", "-type", "f"]).lines().count();
    let end = format!("; {copied} files were copied, {} are left\n", 20 - copied);
    assert!(stderr.ends_with(&end) && copied > 0, "{copied}: {stderr}");
    assert!(run_ok(folder, ["check", "v"]).contains("clean"));
}

#[test]
fn as_root_a_full_host_file_system_is_not_reported_as_a_full_volume() {
    if !as_root() {
        return;
    }
    let folder = folder();
    let here = folder.path();
    let small = SmallTmpfs::new(&here.join("small"), "8m");
    std::fs::File::create(small.path().join("v")).unwrap().set_len(128 << 20).unwrap();
    run_ok(here, ["mkfs", "small/v"]);
    write(here, "large", vec![1; 20 << 20]);
    for command in [&["put", "large", "small/v:/"][..], &["mkdir", "small/v:/d"]] {
        let output = run(here, command);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(matches!(output.status.code(), Some(7 | 8)), "{:?}: {stderr}", output.status);
        let full = "the device or file system below the volume is full, not the volume";
        assert!(stderr.contains(full), "{stderr}");
        assert!(!stderr.replace(full, "").contains("volume is full"), "{stderr}");
    }
}
