//! The program under the names `mkfs.uringfs` and `fsck.uringfs`.

use super::{run_ok, volume, write};
use crate::process::ChildProcess;
use std::fs::File;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use uringfs::Volume;

/// Runs the program through a link in the folder. Returns the exit code and all output.
fn run_as(name: &str, folder: &Path, arguments: &[&str]) -> (i32, String) {
    let link = folder.join(name);
    if !link.exists() {
        symlink(env!("CARGO_BIN_EXE_uringfs"), &link).unwrap();
    }
    let mut command = Command::new(link);
    let output = ChildProcess::start(command.args(arguments).current_dir(folder)).end();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), text)
}

/// Changes a bit of a superblock, which a repair restores.
fn damage(folder: &Path) {
    let file = File::options().read(true).write(true).open(folder.join("v")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 300).unwrap();
    file.write_all_at(&[byte[0] ^ 4], 300).unwrap();
}

#[test]
fn mkfs_creates_a_volume() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (code, text) = run_as("mkfs.uringfs", folder, &["-L", "of mkfs", "--size", "32M", "v"]);
    assert_eq!(code, 0, "{text}");
    assert!(run_ok(folder, ["info", "v"]).contains("of mkfs"));
    let (code, text) = run_as("mkfs.uringfs", folder, &[]);
    assert!(code == 2 && text.contains("Usage: mkfs.uringfs "), "{text}");
    let (code, text) = run_as("mkfs.uringfs", folder, &["v"]);
    assert!(code == 5 && text.contains("--force"), "{code}, {text}");
}

#[test]
fn fsck_repairs_only_if_it_may() {
    let folder = volume();
    let folder = folder.path();
    for arguments in [&["v"][..], &["-n", "v"], &["-a", "v"], &["-f", "-y", "v"]] {
        let (code, text) = run_as("fsck.uringfs", folder, arguments);
        assert!(code == 0 && text.contains("metadata is clean"), "{arguments:?}: {code}, {text}");
    }
    for option in ["-a", "-p", "-y"] {
        damage(folder);
        for arguments in [&["v"][..], &["-n", "v"], &["-f", "v"]] {
            assert_eq!(run_as("fsck.uringfs", folder, arguments).0, 4, "{arguments:?}");
        }
        let (code, text) = run_as("fsck.uringfs", folder, &[option, "v"]);
        assert!(code == 1 && text.contains("all repaired"), "{option}: {code}, {text}");
        assert_eq!(run_as("fsck.uringfs", folder, &["v"]).0, 0);
    }
}

#[test]
fn fsck_tells_why_it_cannot_check() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "none", vec![0; 16 << 20]);
    for target in ["none", "missing"] {
        let (code, text) = run_as("fsck.uringfs", folder, &["-a", target]);
        assert!(code == 8 && text.starts_with("uringfs: "), "{target}: {code}, {text}");
    }
    let open = Volume::open(folder.join("v")).unwrap();
    let (code, text) = run_as("fsck.uringfs", folder, &["-y", "v"]);
    assert!(code == 8 && text.contains("has the volume open"), "{code}, {text}");
    drop(open);
    for arguments in [&[][..], &["-x", "v"], &["-n", "-y", "v"], &["-n", "-a", "v"], &["v", "v"]] {
        let (code, text) = run_as("fsck.uringfs", folder, arguments);
        assert!(
            code == 16 && text.contains("Usage: fsck.uringfs"),
            "{arguments:?}: {code}, {text}"
        );
    }
    let (code, text) = run_as("fsck.uringfs", folder, &["--help"]);
    assert!(code == 0 && text.contains("Exit codes") && text.contains("\n  -p"), "{code}, {text}");
    let (code, text) = run_as("fsck.uringfs", folder, &["--version"]);
    assert!(code == 0 && text.contains(env!("CARGO_PKG_VERSION")), "{code}, {text}");
}
