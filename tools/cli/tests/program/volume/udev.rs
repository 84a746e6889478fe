//! `info --udev` prints the properties of a volume for udev.

use super::{run, run_ok, volume, write};
use std::fs::File;
use std::os::unix::fs::FileExt;
use uringfs::Volume;
use uringfs::device::{Access, Device};

#[test]
fn udev_gets_type_uuid_label_and_version_also_of_an_open_volume() {
    let folder = volume();
    let folder = folder.path();
    let of_info: serde_json::Value =
        serde_json::from_str(&run_ok(folder, ["info", "--json", "v"])).unwrap();
    let uuid = of_info["volume"]["uuid"].as_str().unwrap();
    let expected = format!(
        "ID_FS_TYPE=uringfs\nID_FS_USAGE=filesystem\nID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\nID_FS_VERSION=2\n\
         ID_FS_LABEL=of_a_test\nID_FS_LABEL_ENC=of\\x20a\\x20test\n"
    );
    assert_eq!(run_ok(folder, ["info", "--udev", "v"]), expected);
    for access in [Access::Read, Access::ReadWrite] {
        let device = Device::open(folder.join("v"), access).unwrap();
        let _open = Volume::open_on(device).unwrap();
        assert_eq!(run_ok(folder, ["info", "--udev", "v"]), expected);
    }
    // One good superblock is enough.
    let file = File::options().write(true).open(folder.join("v")).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    assert_eq!(run_ok(folder, ["info", "--udev", "v"]), expected);
    file.write_all_at(&[0; 4096], 16 * 4096).unwrap();
    assert_no_volume(folder, "v");
}

#[test]
fn udev_gets_nothing_of_other_data() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "zeros", vec![0; 1 << 20]);
    write(folder, "short", "uringfs");
    write(folder, "empty", "");
    for target in ["zeros", "short", "empty", "memory:1M"] {
        assert_no_volume(folder, target);
    }
    let missing = run(folder, ["info", "--udev", "missing"]);
    assert!(missing.status.code() == Some(2) && missing.stdout.is_empty());
}

fn assert_no_volume(folder: &std::path::Path, target: &str) {
    let output = run(folder, ["info", "--udev", target]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && error.is_empty(), "{target}: {error}");
    assert!(output.stdout.is_empty());
}
