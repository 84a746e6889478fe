//! `mkfs` overwrites data only with `--force`; `info` and `df` describe the new volume.

use super::{command, refused, run, run_ok, volume, write};
use crate::process::{ChildProcess, tool, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

#[test]
fn mkfs_refuses_a_target_with_data_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = folder.join("ext4");
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    tool("mkfs.ext4", &["-q", path.to_str().unwrap()]);
    write(folder, "text", vec![b'x'; 16 << 20]);
    write(folder, "empty", "");
    let before = std::fs::read(&path).unwrap();
    refused(folder, ["mkfs", "ext4"], "ext4: holds an ext2/3/4 file system; --force destroys it");
    refused(folder, ["mkfs", "text"], "text: holds data");
    refused(folder, ["mkfs", "empty"], "empty: is empty; give --size");
    refused(folder, ["mkfs", "."], "is a directory");
    assert!(std::fs::read(&path).unwrap() == before);
    run_ok(folder, ["mkfs", "ext4", "--force"]);
    refused(folder, ["mkfs", "ext4"], "ext4: holds a uringfs volume");
    assert_eq!(run_ok(folder, ["ls", "ext4:/"]), "");
}

#[test]
fn mkfs_fills_an_empty_file_and_leaves_it_empty_if_that_fails() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let size = || folder.join("v").metadata().unwrap().len();
    write(folder, "v", "");
    refused(folder, ["mkfs", "v", "--size", "1M"], "a volume needs at least");
    assert_eq!(size(), 0);
    run_ok(folder, ["mkfs", "-n", "v", "--size", "16M"]);
    assert_eq!(size(), 0);
    for option in ["--sparse", "--force"] {
        write(folder, "v", "");
        run_ok(folder, ["mkfs", "v", "--size", "16M", option]);
        assert_eq!((size(), run_ok(folder, ["ls", "v"])), (16 << 20, String::new()));
    }
}

#[test]
fn a_size_without_its_option_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), ["mkfs", "a.img", "1G"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && error.contains("--size 1G sets the size"),
        "{error}"
    );
    let output = run(folder.path(), ["mkfs", "a.img", "--label"]);
    assert!(!String::from_utf8(output.stderr).unwrap().contains("sets the size"));
}

#[test]
fn mkfs_erases_partition_tables_at_both_ends() {
    for size in [16 << 20, (16 << 20) + 512] {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = vec![0; size];
        let header = |sector: usize| sector * 512..sector * 512 + 8;
        let (last, entries) = (size / 512 - 1, size / 512 - 33);
        for sector in [1, 2, entries, last] {
            bytes[header(sector)].copy_from_slice(b"EFI PART");
        }
        write(folder.path(), "gpt", &bytes);
        refused(folder.path(), ["mkfs", "gpt"], "--force destroys it");
        run_ok(folder.path(), ["mkfs", "gpt", "--force"]);
        let made = std::fs::read(folder.path().join("gpt")).unwrap();
        assert!(!made.windows(8).any(|found| found == b"EFI PART"));
        assert_eq!(made.len(), size);
    }
}

#[test]
fn mkfs_detects_and_erases_a_raid_superblock() {
    let size = 16 << 20;
    // The position in mdadm versions 0.90 and 1.0.
    for at in [size - (64 << 10), size - (8 << 10)] {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = vec![0; size];
        bytes[at..at + 4].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9]);
        write(folder.path(), "md", &bytes);
        refused(folder.path(), ["mkfs", "md"], "md: holds an MD RAID member; --force destroys it");
        run_ok(folder.path(), ["mkfs", "md", "--force"]);
        let made = std::fs::read(folder.path().join("md")).unwrap();
        // The last block holds the backup superblock.
        assert!(made[at..size - 4096].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn mkfs_accepts_a_file_of_zeros() {
    let folder = tempfile::tempdir().unwrap();
    File::create(folder.path().join("zeros")).unwrap().set_len(16 << 20).unwrap();
    run_ok(folder.path(), ["mkfs", "zeros"]);
    assert_eq!(run_ok(folder.path(), ["ls", "zeros:/"]), "");
}

#[test]
fn a_failed_mkfs_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    refused(folder, ["mkfs", "v"], "v does not exist; give --size");
    refused(
        folder,
        ["mkfs", "v", "--size", "1M"],
        "v: cannot make a volume of 1048576 bytes: a volume needs at least",
    );
    refused(folder, ["mkfs", "v", "--size", "16M", "--label", &"x".repeat(65)], "label");
    // The error is found before the file is filled, for which there is no space.
    refused(folder, ["mkfs", "v", "--size", "4T", "--label", &"x".repeat(65)], "label");
    refused(folder, ["mkfs", "no/v", "--size", "16M"], "does not exist");
    assert_eq!(folder.read_dir().unwrap().count(), 0);
}

#[test]
fn ctrl_c_ends_mkfs_and_leaves_no_file() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let folder = tempfile::tempdir().unwrap();
        let mkfs = ChildProcess::start(&mut command(folder.path(), ["mkfs", "v", "--size", "1G"]));
        let process = format!("/proc/{}", mkfs.id());
        let written = || -> u64 {
            let io = std::fs::read_to_string(format!("{process}/io")).unwrap();
            io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
        };
        wait_until("8 MiB of its zeros", || written() >= 8 << 20);
        mkfs.signal(signal);
        wait_until("its end", || {
            let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
            status.contains("State:\tZ")
        });
        assert!(written() < 1 << 30, "mkfs has written everything");
        let output = mkfs.end();
        assert_eq!(output.status.code(), Some(130));
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            line,
            "uringfs: stopped by Ctrl-C, SIGTERM or SIGHUP: the new file was removed\n"
        );
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}

#[test]
fn info_and_df_describe_the_volume() {
    let folder = volume();
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&run_ok(folder.path(), arguments)).unwrap()
    };
    let info = json(&["info", "v", "--json"]);
    assert_eq!(
        (&info["volume"]["label"], &info["volume"]["size"]),
        (&"of a test".into(), &(32 << 20).into())
    );
    assert_eq!(info["volume"]["uuid"].as_str().unwrap().len(), 36);
    assert!(run_ok(folder.path(), ["info", "v"]).contains("of a test"));
    let free = |df: Value| df["volumes"][0]["free"].as_u64().unwrap();
    let before = free(json(&["df", "v", "--json"]));
    write(folder.path(), "a", vec![1; 1 << 20]);
    run_ok(folder.path(), ["put", "a", "v:/"]);
    assert_eq!(free(json(&["df", "v", "--json"])), before - (1 << 20));
}

#[test]
fn a_dry_run_checks_everything_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert_eq!(
        run_ok(folder, ["mkfs", "-n", "v", "--size", "16M"]),
        "v: would create a volume of 16.0 MiB\n"
    );
    refused(folder, ["mkfs", "-n", "v"], "v does not exist; give --size");
    refused(folder, ["mkfs", "--dry-run", "v", "--size", "1M"], "a volume needs at least");
    refused(folder, ["mkfs", "-n", "v", "--size", "16M", "-L", &"x".repeat(65)], "label");
    refused(folder, ["mkfs", "-n", "no/v", "--size", "16M"], "the directory no does not exist");
    assert_eq!(folder.read_dir().unwrap().count(), 0);
    write(folder, "text", vec![b'x'; 16 << 20]);
    refused(folder, ["mkfs", "-n", "text"], "text: holds data");
    run_ok(folder, ["mkfs", "-nf", "text"]);
    assert!(std::fs::read(folder.join("text")).unwrap() == vec![b'x'; 16 << 20]);
}

#[test]
fn a_sparse_volume_takes_space_only_for_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "--sparse", "v", "--size", "1G", "-L", "thin"]);
    let found = std::fs::metadata(folder.join("v")).unwrap();
    assert_eq!(found.len(), 1 << 30);
    assert!(found.blocks() * 512 < 64 << 20, "{} blocks", found.blocks());
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v"]);
    assert_eq!(run_ok(folder, ["cat", "v:/a"]), "of a");
    assert!(run_ok(folder, ["info", "v"]).contains("thin"));
    refused(folder, ["mkfs", "--sparse", "w", "--size", "1M"], "a volume needs at least");
    assert!(!folder.join("w").exists());
}

#[test]
fn what_is_in_the_way_of_a_new_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for arguments in [&["mkfs", "none/v"][..], &["mkfs", "none/v", "--size", "1G"]] {
        refused(folder, arguments, "the directory none does not exist; create it first");
        assert_eq!(run(folder, arguments).status.code(), Some(3));
    }
    // As a killed mkfs leaves it.
    write(folder, "zeros", vec![0; 10 << 20]);
    let less = "zeros: has 10.0 MiB, which is less than --size; remove it first";
    refused(folder, ["mkfs", "zeros", "--size", "16M"], less);
    run_ok(folder, ["mkfs", "zeros"]);
}

#[test]
fn as_root_a_read_only_file_system_is_named() {
    if !crate::root::as_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("ro");
    std::fs::create_dir(&place).unwrap();
    tool("mount", &["-t", "tmpfs", "-o", "ro", "none", place.to_str().unwrap()]);
    let output = run(folder.path(), ["mkfs", "ro/new", "--size", "16M"]);
    tool("umount", &[place.to_str().unwrap()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(5) && !stderr.contains("for reading only"), "{stderr}");
}
