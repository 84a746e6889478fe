//! `wipe` removes a volume, so that nothing finds it any more, and refuses a target in use.

use super::{refused, run, run_ok, volume, write};
use std::fs::File;
use std::os::unix::fs::FileExt;
use uringfs::Volume;
use uringfs::device::{Access, Device};

#[test]
fn a_wiped_volume_is_gone_with_its_backup() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "a", "of a");
    for (size, backup) in [("32M", 8191), ("96M", 16_384)] {
        run_ok(folder, ["mkfs", "-q", "-f", "--sparse", "v", "--size", size]);
        run_ok(folder, ["put", "-q", "a", "v:/"]);
        let line = format!("the superblocks in blocks 0, 16, {backup}\n");
        assert_eq!(run_ok(folder, ["wipe", "-n", "v"]), format!("v: would erase {line}"));
        assert_eq!(run_ok(folder, ["cat", "v:/a"]), "of a");
        assert_eq!(run_ok(folder, ["wipe", "v"]), format!("v: erased {line}"));
        let output = run(folder, ["check", "-y", "v"]);
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("not a uringfs volume"));
        refused(folder, ["wipe", "v"], "v: holds no uringfs volume; nothing was changed");
        std::fs::remove_file(folder.join("v")).unwrap();
    }
    refused(folder, ["wipe", "none"], "none does not exist");
    refused(folder, ["wipe", "a"], "a: holds no uringfs volume");
}

#[test]
fn a_volume_with_only_its_backup_is_wiped_too() {
    let folder = volume();
    let folder = folder.path();
    let file = File::options().write(true).open(folder.join("v")).unwrap();
    file.write_all_at(&vec![0; 1 << 20], 0).unwrap();
    assert_eq!(run_ok(folder, ["wipe", "v"]), "v: erased the superblocks in blocks 8191\n");
    assert_eq!(run(folder, ["check", "-y", "v"]).status.code(), Some(4));
}

#[test]
fn a_volume_that_is_open_is_not_wiped() {
    let folder = volume();
    let folder = folder.path();
    for access in [Access::Read, Access::ReadWrite] {
        let device = Device::open(folder.join("v"), access).unwrap();
        let open = Volume::open_on(device).unwrap();
        let output = run(folder, ["wipe", "v"]);
        assert_eq!(output.status.code(), Some(6), "{output:?}");
        drop(open);
    }
    run_ok(folder, ["ls", "v"]);
}
