//! Block devices that a job must not write to, under any name. The tests need root, to create and mount
//! devices; each device is removed with its test, even if that panics.

use super::failed::{failed, failed_with};
use super::{ChildProcess, bench, command, folder, json_of, refused};
use crate::process::{tool, wait_until};
use crate::root::as_root;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device over the file `disk` in its own directory, apart from the directory of the jobs.
pub struct LoopDisk {
    pub device: String,
    /// Keeps the device: it was detached at once, and the kernel completes that at the last close.
    open: Option<File>,
    pub folder: tempfile::TempDir,
}

const SIZE: u64 = 16 << 20;

impl LoopDisk {
    pub fn new() -> Self {
        let folder = folder();
        let mut image = File::create(folder.path().join("disk")).unwrap();
        image.write_all(&vec![0; SIZE as usize]).unwrap();
        let image = folder.path().join("disk");
        Self::over(&image, folder)
    }

    /// A loop device over a file or another device.
    pub fn over(lower: &Path, folder: tempfile::TempDir) -> Self {
        let lower = lower.to_str().unwrap();
        let device = tool("losetup", &["--partscan", "--find", "--show", lower]).trim().to_owned();
        let open = Some(File::open(&device).unwrap());
        tool("losetup", &["--detach", &device]);
        Self { device, open, folder }
    }

    /// Adds a partition of 4 MiB, known only to the kernel: there is no partition table on the disk.
    pub fn partition(&self) -> String {
        tool("addpart", &[&self.device, "1", "2048", "8192"]);
        let partition = format!("{}p1", self.device);
        wait_until("the partition", || Path::new(&partition).exists());
        partition
    }

    /// The first sector, which no file system uses but every job would write.
    fn first_sector(&self, device: &str) -> Vec<u8> {
        let mut sector = vec![1; 512];
        File::open(device).unwrap().read_exact(&mut sector).unwrap();
        sector
    }

    pub fn image(&self) -> PathBuf {
        self.folder.path().join("disk")
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        if Path::new(&format!("{}p1", self.device)).exists() {
            // A child of another test has this one's files open between its fork and its exec.
            wait_until("the partition is free", || {
                Command::new("delpart").args([&self.device, "1"]).status().unwrap().success()
            });
        }
        self.open = None;
    }
}

/// A mounted device. Unmounted on drop.
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn new(device: &str, mount_point: &Path) -> Self {
        std::fs::create_dir(mount_point).unwrap();
        tool("mount", &[device, mount_point.to_str().unwrap()]);
        Self(mount_point.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        tool("umount", &[self.0.to_str().unwrap()]);
    }
}

/// Expects that jobs that write to `device` are refused under each of its names, with and without --overwrite.
fn assert_never_written(disk: &LoopDisk, device: &str, part: &str) {
    let folder = folder();
    let here = folder.path();
    symlink(device, here.join("link")).unwrap();
    let relative = format!("../../../../../../../../..{device}");
    for name in [device, "link", &relative] {
        let filename = format!("--filename={name}");
        for engine in ["--engine=psync", "--engine=uringfs"] {
            let arguments = ["--name=x", "--rw=write", "--size=64k", &filename, engine];
            refused(here, &arguments, part);
            refused(here, &[&arguments[..], &["--overwrite"]].concat(), part);
        }
    }
    let job = format!("# words\n[x]\nrw=randwrite\nsize=64k\nfilename={device}\n");
    std::fs::write(here.join("job.fio"), job).unwrap();
    refused(here, &["job.fio", "--overwrite"], &format!("job.fio:2: job `x`: {device}: "));
    refused(here, &["job.fio", "--overwrite"], part);
    assert_eq!(disk.first_sector(device), [0; 512]);
}

#[test]
fn as_root_a_mounted_device_is_read_and_never_written() {
    if !as_root() {
        return;
    }
    let disk = LoopDisk::new();
    tool("mkfs.ext4", &["-q", &disk.device]);
    let mount_point = disk.folder.path().join("place");
    let _mounted = Mounted::new(&disk.device, &mount_point);
    assert_never_written(&disk, &disk.device, &format!("is mounted at {}", mount_point.display()));
    let keys = ["--name=x", "--rw=randread", "--size=1m", "--direct=1", "--output-format=json"];
    let filename = format!("--filename={}", disk.device);
    for engine in ["--engine=psync", "--engine=uringfs", "--engine=ring"] {
        let folder = folder();
        let report = json_of(&bench(folder.path(), &[&keys[..], &[&filename, engine]].concat()));
        assert_eq!(report["jobs"][0]["read"]["total_ios"], 256);
    }
}

#[test]
fn as_root_trims_discard_the_blocks_of_a_device() {
    if !as_root() {
        return;
    }
    let disk = LoopDisk::new();
    // A loop device punches a hole into its file.
    let allocated = || disk.image().metadata().unwrap().blocks() * 512;
    let filename = format!("--filename={}", disk.device);
    for (quarter, engine) in ["psync", "threads", "ring", "uringfs"].into_iter().enumerate() {
        let (folder, before) = (folder(), allocated());
        let (offset, engine) = (format!("--offset={}m", 4 * quarter), format!("--engine={engine}"));
        let keys = ["--name=x", "--rw=randtrim", "--bs=64k", "--size=4m", "--direct=1"];
        let more = ["--iodepth=4", "--output-format=json", &filename, &offset, &engine];
        let report = json_of(&bench(folder.path(), &[&keys[..], &more].concat()));
        assert_eq!(report["jobs"][0]["trim"]["total_ios"], 64, "{engine}");
        let freed = before - allocated();
        // The file system needs blocks to list the holes, and frees them when holes become one.
        assert!(freed.abs_diff(4 << 20) <= 65_536, "{engine}: {freed}");
    }
}

#[test]
fn as_root_a_disk_with_a_mounted_partition_is_never_written() {
    if !as_root() {
        return;
    }
    let disk = LoopDisk::new();
    let partition = disk.partition();
    tool("mkfs.ext4", &["-q", &partition]);
    let mount_point = disk.folder.path().join("place");
    let _mounted = Mounted::new(&partition, &mount_point);
    assert_never_written(&disk, &partition, &format!("is mounted at {}", mount_point.display()));
    assert_never_written(&disk, &disk.device, "p1, which is mounted at ");
}

/// Swap devices are held like this, as are all devices that the kernel or a program has claimed.
#[test]
fn as_root_a_device_held_exclusively_is_never_written() {
    if !as_root() {
        return;
    }
    let disk = LoopDisk::new();
    let partition = disk.partition();
    let held = File::options().read(true).custom_flags(nix::libc::O_EXCL).open(&partition);
    let _held = held.unwrap();
    assert_never_written(&disk, &partition, "is in use");
    assert_never_written(&disk, &disk.device, "is in use");
}

#[test]
fn as_root_a_device_with_data_is_written_only_with_overwrite() {
    if !as_root() {
        return;
    }
    let disk = LoopDisk::new();
    let partition = disk.partition();
    let folder = folder();
    let write = |device: &str, more: &[&str]| {
        let filename = format!("--filename={device}");
        let arguments = ["--name=x", "--rw=write", "--size=64k", "--engine=psync", &filename];
        let arguments: Vec<String> =
            arguments.iter().chain(more).map(|word| (*word).to_owned()).collect();
        arguments
    };
    for (device, tool_name, holder) in [
        (&disk.device, "mkfs.ext4", "holds an ext2/3/4 file system; --overwrite destroys it"),
        (&partition, "mkswap", "holds a swap area; --overwrite destroys it"),
    ] {
        tool(tool_name, &["-q", device]);
        let arguments = write(device, &[]);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let part = format!("job `x`: {device}: {holder}");
        refused(folder.path(), &words, &part);
        assert_eq!(disk.first_sector(device), [0; 512]);
        let arguments = write(device, &["--overwrite"]);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        assert!(bench(folder.path(), &words).status.success());
        assert_ne!(disk.first_sector(device), [0; 512]);
    }
}

#[test]
fn as_root_writes_to_an_empty_device_show_in_disk_util() {
    if !as_root() {
        return;
    }
    let disk = LoopDisk::new();
    let partition = disk.partition();
    let name = disk.device.strip_prefix("/dev/").unwrap();
    let folder = folder();
    for device in [&disk.device, &partition] {
        let filename = format!("--filename={device}");
        let keys = ["--name=x", "--rw=randrw", "--size=1m", "--direct=1", "--output-format=json"];
        let arguments = [&keys[..], &[&filename, "--engine=psync", "--overwrite"]].concat();
        let report = json_of(&bench(folder.path(), &arguments));
        let disks = report["disk_util"].as_array().unwrap();
        // The statistics of a partition are those of its disk.
        assert_eq!((disks.len(), &disks[0]["name"]), (1, &name.into()));
        for way in ["read", "write"] {
            let ios = report["jobs"][0][way]["total_ios"].as_u64().unwrap();
            assert!(disks[0][format!("{way}_ios")].as_u64().unwrap() >= ios, "{disks:?}");
        }
    }
    let keys = ["--name=x", "--rw=read", "--filename=null:1m", "--output-format=json"];
    assert!(json_of(&bench(folder.path(), &keys)).get("disk_util").is_none());
}

/// The file under a loop device is truncated: after that the device returns errors.
#[test]
fn as_root_a_device_lost_during_the_run_fails_it() {
    if !as_root() {
        return;
    }
    // With a fixed queue: calibration would read before the job does.
    const OURS: &[&str] = &["--engine=uringfs", "--set", "device.queue=ring"];
    for engine in [&["--engine=psync"][..], &["--engine=ring"], OURS] {
        let disk = LoopDisk::new();
        let folder = folder();
        let filename = format!("--filename={}", disk.device);
        let keys = ["--name=x", &filename, "--rw=randread", "--direct=1", "--time_based"];
        let more = ["--runtime=600", "--output-format=json"];
        let keys = [&keys[..], &more, engine].concat();
        let run = ChildProcess::start(&mut command(folder.path(), &keys));
        let used = format!("/sys/block/{}/stat", disk.device.strip_prefix("/dev/").unwrap());
        let reads = || {
            let stat = std::fs::read_to_string(&used).unwrap();
            stat.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let before = reads();
        wait_until("reads of the device", || reads() > before + 1000);
        File::options().write(true).open(disk.image()).unwrap().set_len(0).unwrap();
        let output = run.end();
        let part = format!("job `x`: {}: read of 4096 bytes at ", disk.device);
        let report = failed(&output, &[&part]);
        assert!(report["jobs"][0]["read"]["total_ios"].as_u64().unwrap() > 0, "{engine:?}");
    }
}

/// The file can be laid out sparse, but there is no space for its blocks.
#[test]
fn as_root_a_full_file_system_fails_the_run() {
    if !as_root() {
        return;
    }
    let disk = LoopDisk::new();
    tool("mkfs.ext4", &["-q", &disk.device]);
    let mount_point = disk.folder.path().join("place");
    let mounted = Mounted::new(&disk.device, &mount_point);
    for engine in ["psync", "threads", "ring", "uringfs"] {
        let engine = format!("--engine={engine}");
        let keys = ["--name=x", "--rw=write", "--size=32m", "--fallocate=none", "--direct=1"];
        let more = ["--bs=64k", "--output-format=json", &engine];
        let output = bench(&mounted.0, &[&keys[..], &more].concat());
        let parts =
            ["job `x`: x.0.0: write of ", "No space left on device", "(the target is full)"];
        let report = failed_with(2, &output, &parts);
        assert_eq!(report["jobs"][0]["error"], nix::errno::Errno::ENOSPC as i32);
        assert!(report["jobs"][0]["write"]["io_bytes"].as_u64().unwrap() > 0);
        assert!(!mounted.0.join("x.0.0").exists(), "the run has created it");
    }
    // With blocks allocated at layout the job fails before it begins.
    let output = bench(&mounted.0, &["--name=x", "--rw=write", "--size=32m"]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{line}");
    let part = "job `x`: cannot lay out x.0.0 of 33554432 bytes (the file system is full)";
    assert!(line.contains(part) && line.lines().count() == 1, "{line}");
    assert!(!mounted.0.join("x.0.0").exists());
}
