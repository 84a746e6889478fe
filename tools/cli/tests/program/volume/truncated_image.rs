//! An image that is truncated while a file is read from it.

use super::{command, refused, run_ok, write};
use std::fs::OpenOptions;
use std::io::Read;
use std::process::Stdio;

/// More than the program reads before the pipe takes its first bytes.
const LENGTH: usize = 48 << 20;

#[test]
fn a_truncated_image_says_how_its_files_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "v", "--size", "96M", "--sparse"]);
    write(folder, "a", "of a");
    run_ok(folder, ["put", "-q", "a", "v:/"]);
    let image = OpenOptions::new().write(true).open(folder.join("v")).unwrap();
    image.set_len(80 << 20).unwrap();
    refused(folder, ["cat", "v:/a"], "; truncate -s 100663296 lengthens the file, ");
    image.set_len(100_663_296).unwrap();
    assert_eq!(run_ok(folder, ["cat", "v:/a"]), "of a");
}

#[test]
fn an_image_truncated_during_cat_is_an_error_not_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "v", "--size", "64M"]);
    write(folder, "big", vec![0xab; LENGTH]);
    run_ok(folder, ["put", "big", "v:/"]);
    let image = std::fs::read(folder.join("v")).unwrap();
    for arguments in [&["cat", "v:/big"][..], &["get", "v:/big", "-"]] {
        write(folder, "v", &image);
        let mut command = command(folder, arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut reader = command.spawn().unwrap();
        let mut out = reader.stdout.take().unwrap();
        out.read_exact(&mut [0]).unwrap();
        // The program blocks on the full pipe.
        OpenOptions::new().write(true).open(folder.join("v")).unwrap().set_len(0).unwrap();
        let mut printed = Vec::new();
        out.read_to_end(&mut printed).unwrap();
        let ended = reader.wait_with_output().unwrap();
        let line = String::from_utf8(ended.stderr).unwrap();
        assert!(!ended.status.success() && line.contains("v:/big: cannot be read"), "{line}");
        assert!(printed.len() + 1 < LENGTH && printed.iter().all(|byte| *byte == 0xab));
    }
}
