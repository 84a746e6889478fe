//! No command and no option writes to a target in use, neither through a loop device over it nor through its
//! backing file. The tests with loop devices need root; each device is removed with its test.

use super::{refused, run_ok, volume};
use crate::bench_run::devices::{LoopDisk, Mounted};
use crate::bench_run::folder;
use crate::process::tool;
use crate::root::as_root;
use std::path::Path;
use uringfs::device::{Access, Device};
use uringfs::{FormatOptions, Volume};

/// Every command that would overwrite the target refuses it and does not change it.
fn assert_never_overwritten(target: &str, part: &str) {
    let here = folder();
    let before = std::fs::read(target).unwrap();
    let filename = format!("--filename={target}");
    refused(here.path(), ["mkfs", target, "--force"], part);
    refused(here.path(), ["wipe", target], part);
    for engine in ["--engine=psync", "--engine=uringfs"] {
        let keys = ["bench", "run", "--overwrite", "--name=x", "--rw=write", "--size=64k", engine];
        refused(here.path(), [&keys[..], &[&filename]].concat(), part);
    }
    assert!(std::fs::read(target).unwrap() == before);
}

/// The same for a volume that is open elsewhere; commands on volumes refuse it, too.
fn assert_never_changed(target: &str, part: &str) {
    assert_never_overwritten(target, part);
    let here = folder();
    refused(here.path(), ["mkdir", &format!("{target}:/d")], part);
    refused(here.path(), ["check", target, "--repair"], part);
    refused(here.path(), ["resize", target, "+1M"], part);
}

fn open(path: &str, access: Access) -> Result<Volume, String> {
    let device = Device::open(path, access).map_err(|error| error.to_string())?;
    Volume::open_on(device).map_err(|error| error.to_string())
}

#[test]
fn an_open_volume_is_never_overwritten() {
    let folder = volume();
    let path = folder.path().join("v").display().to_string();
    for access in [Access::ReadWrite, Access::Read] {
        let volume = open(&path, access).unwrap();
        assert_never_changed(&path, "another program has the volume open (");
        assert_never_overwritten(
            &path,
            &format!(", process {}); close it there", std::process::id()),
        );
        drop(volume);
    }
    run_ok(folder.path(), ["mkdir", "v:/d"]);
    let keys = ["bench", "run", "--overwrite", "--name=x", "--rw=write", "--size=64k"];
    run_ok(folder.path(), [&keys[..], &["--filename=v", "--output-format=json"]].concat());
}

#[test]
fn as_root_a_volume_opens_under_only_one_device_name() {
    if !as_root() {
        return;
    }
    let disk = LoopDisk::new();
    let upper = LoopDisk::over(Path::new(&disk.device), folder());
    let image = disk.image().display().to_string();
    let device = Device::open(&image, Access::ReadWrite).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    drop(device);
    let names = [image.as_str(), &disk.device, &upper.device];
    for own in names {
        let _volume = open(own, Access::ReadWrite).unwrap();
        for other in names.into_iter().filter(|other| *other != own) {
            assert_never_changed(other, other);
            assert!(open(other, Access::Read).is_err_and(|line| line.contains("the volume open")));
            assert!(open(other, Access::ReadWrite).is_err());
        }
    }
    let readers = names.map(|name| open(name, Access::Read).unwrap());
    refused(
        folder().path(),
        ["mkdir", &format!("{image}:/d")],
        "another program has the volume open",
    );
    drop(readers);
    run_ok(folder().path(), ["mkdir", &format!("{image}:/d")]);
}

#[test]
fn as_root_the_file_of_a_mounted_device_is_never_written() {
    if !as_root() {
        return;
    }
    let disk = LoopDisk::new();
    let upper = LoopDisk::over(Path::new(&disk.device), folder());
    let beside = LoopDisk::over(&disk.image(), folder());
    tool("mkfs.ext4", &["-q", &upper.device]);
    let mount_point = upper.folder.path().join("place");
    let _mounted = Mounted::new(&upper.device, &mount_point);
    let mounted = format!("{}, which is mounted at {}", upper.device, mount_point.display());
    let image = disk.image().display().to_string();
    assert_never_overwritten(&disk.device, &format!("backs {mounted}"));
    assert_never_overwritten(&image, &format!("backs {}, which backs {mounted}", disk.device));
    let part = format!("lies in {image}, which backs {}, which backs {mounted}", disk.device);
    assert_never_overwritten(&beside.device, &part);
}

#[test]
fn as_root_the_file_of_a_disk_with_a_mounted_partition_is_never_written() {
    if !as_root() {
        return;
    }
    let disk = LoopDisk::new();
    let partition = disk.partition();
    tool("mkfs.ext4", &["-q", &partition]);
    let mount_point = disk.folder.path().join("place");
    let _mounted = Mounted::new(&partition, &mount_point);
    let image = disk.image().display().to_string();
    let part = format!(
        "backs {}, which has partition {partition}, which is mounted at {}",
        disk.device,
        mount_point.display()
    );
    assert_never_overwritten(&image, &part);
    // Another part of the same disk can be used.
    let free = ["--offset", "6291456", "--find", "--show", &image];
    let beside = tool("losetup", &free).trim().to_owned();
    let opened = Device::open(&beside, Access::ReadWrite);
    tool("losetup", &["--detach", &beside]);
    opened.unwrap();
}
