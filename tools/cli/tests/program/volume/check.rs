//! `check` reports errors, repairs them with `--repair`, and sets its exit code accordingly.

use super::{command, refused, run, run_ok, volume, write};
use flate2::read::GzDecoder;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The exit code and the output of `check`.
fn check(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = run(folder, [&["check", "v"], arguments].concat());
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), text)
}

pub(super) fn flip(folder: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(folder.join("v")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
}

#[test]
fn a_repair_is_advised_only_if_it_can_help() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let overwrite = |bytes| {
        run_ok(folder, ["mkfs", "-q", "-f", "--sparse", "v", "--size", "120M"]);
        let image = File::options().write(true).open(folder.join("v")).unwrap();
        image.write_all_at(&vec![0; bytes], 0).unwrap();
    };
    run_ok(folder, ["mkfs", "-q", "--sparse", "v", "--size", "120M"]);
    std::fs::create_dir(folder.join("m")).unwrap();
    let commands = [&["ls", "v"][..], &["get", "v:/a", "a"], &["mount", "v", "m"]];
    overwrite(8_192_000);
    for command in commands {
        refused(folder, command, "; this cannot be repaired: ");
        let stderr = String::from_utf8(run(folder, command).stderr).unwrap();
        assert!(!stderr.contains("--repair"), "{stderr}");
    }
    assert_eq!(check(folder, &["-y"]).0, 4);
    overwrite(4 << 20);
    for command in commands {
        refused(folder, command, ": run uringfs check --repair");
    }
    assert_eq!(check(folder, &["-y"]).0, 1);
}

#[test]
fn check_of_a_clean_volume_reports_no_errors() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", vec![7; 100_000]);
    run_ok(folder, ["mkdir", "v:/d"]);
    run_ok(folder, ["put", "a", "v:/d"]);
    assert_eq!(
        check(folder, &[]),
        (
            0,
            "v: metadata is clean: 2 directories, 1 file, 100.0 KiB in use; \
             file data was not verified\n"
                .into()
        )
    );
    let (code, text) = check(folder, &["--deep", "--repair"]);
    assert!(code == 0 && text.contains("all blocks of files can be read"), "{code}, {text}");
    let json: Value = serde_json::from_str(&check(folder, &["--json"]).1).unwrap();
    assert_eq!((&json["sound"], &json["files"]), (&true.into(), &1.into()));
}

/// File data has no checksums, so `check` must not claim to verify it.
#[test]
fn check_does_not_claim_to_verify_file_data() {
    let folder = volume();
    let folder = folder.path();
    let bytes = b"as it was written".repeat(1000);
    write(folder, "a", &bytes);
    run_ok(folder, ["put", "a", "v:/"]);
    let image = std::fs::read(folder.join("v")).unwrap();
    let at = image.windows(bytes.len()).position(|found| found == bytes).unwrap();
    flip(folder, at as u64);
    assert_ne!(run_ok(folder, ["cat", "v:/a"]).into_bytes(), bytes);
    let (code, text) = check(folder, &["--deep"]);
    let unverified = "their contents were not verified";
    assert!(code == 0 && text.contains(unverified) && !text.contains(": clean"), "{code}, {text}");
    let json: Value = serde_json::from_str(&check(folder, &["--deep", "--json"]).1).unwrap();
    assert_eq!((&json["read"], &json["sound"]), (&20_480.into(), &true.into()));
    let verified = serde_json::json!({"metadata": true, "readable": true, "contents": false});
    assert_eq!(json["verified"], verified);
    let help = run_ok(folder, ["check", "--help"]);
    let words: Vec<&str> = help.split_whitespace().collect();
    assert!(words.join(" ").contains("there are no checksums"), "{help}");
}

#[test]
fn each_error_is_one_line_and_repair_fixes_it() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/"]);
    let flips = [300, 16 * 4096 + 300, 1025 * 4096 + 100, (32 << 20) - 4096 + 300];
    for offset in flips {
        flip(folder, offset);
        let block = format!("block {}", offset / 4096);
        let (code, text) = check(folder, &[]);
        assert!(code == 4 && text.contains(&block), "{code}, {text}");
        assert!(
            text.ends_with(
                "v: errors found: 1; run with --repair to repair what can be repaired\n"
            ),
            "{text}"
        );
        let json: Value = serde_json::from_str(&check(folder, &["--json"]).1).unwrap();
        assert_eq!(
            (&json["sound"], &json["findings"][0]["repaired"]),
            (&false.into(), &false.into())
        );
        // The volume can be used as it is, with a warning.
        let output = run(folder, ["cat", "v:/a"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"of a"[..]), "{stderr}");
        assert!(stderr.starts_with("uringfs: warning: v: ") && stderr.contains(&block), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        let (code, text) = check(folder, &["--repair"]);
        assert!(code == 1 && text.starts_with("repaired: "), "{code}, {text}");
        assert!(text.ends_with("v: errors found: 1, all repaired\n"), "{text}");
        assert_eq!(check(folder, &[]).0, 0);
    }
    for offset in flips.into_iter().filter(|offset| offset / 4096 != 1025) {
        flip(folder, offset);
    }
    let (code, text) = check(folder, &["--repair"]);
    assert!(code == 4 && text.starts_with("uringfs: v: the volume cannot be opened"), "{text}");
}

#[test]
fn an_overwritten_beginning_is_restored_from_the_backup_superblock() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/"]);
    let file = File::options().write(true).open(folder.join("v")).unwrap();
    file.write_all_at(&vec![0; 4 << 20], 0).unwrap();
    let says = "the backup superblock in block 8191 is good: run uringfs check --repair";
    let (code, text) = check(folder, &[]);
    assert!(code == 4 && text.contains(says), "{code}, {text}");
    assert!(String::from_utf8_lossy(&run(folder, ["ls", "v:/"]).stderr).contains(says));
    refused(
        folder,
        ["mkfs", "v"],
        "v: holds a uringfs volume without good superblocks except the backup",
    );
    let (code, text) = check(folder, &["--repair"]);
    assert!(code == 1 && text.ends_with("v: errors found: 2, all repaired\n"), "{code}, {text}");
    assert_eq!(run_ok(folder, ["cat", "v:/a"]), "of a");
}

#[test]
fn an_older_version_is_read_only_until_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let image = include_bytes!("../../../../../crates/volume/tests/images/version2-small.gz");
    let mut bytes = Vec::new();
    GzDecoder::new(&image[..]).read_to_end(&mut bytes).unwrap();
    let number = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().unwrap());
    let file = File::create(folder.join("v")).unwrap();
    file.set_len(number(&bytes)).unwrap();
    for block in bytes[8..].chunks_exact(8 + 4096) {
        file.write_all_at(&block[8..], number(block) * 4096).unwrap();
    }
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "a\nempty\none\n");
    assert_eq!(check(folder, &[]).0, 0);
    let says = "v: the volume is of an older version, and this uringfs only reads such volumes: to write, run \
                uringfs check --upgrade";
    for writer in [["mkdir", "v:/b"], ["rm", "v:/one"]] {
        refused(folder, writer, says);
    }
    refused(folder, ["check", "v", "--repair"], says);
    let (code, text) = check(folder, &["--upgrade"]);
    assert!(code == 0 && text.starts_with("v: upgraded\nv: metadata is clean: "), "{code}, {text}");
    run_ok(folder, ["mkdir", "v:/b"]);
    let (code, text) = check(folder, &["--upgrade"]);
    assert!(code == 0 && text.starts_with("v: metadata is clean: "), "{code}, {text}");
}

#[test]
fn check_refuses_a_target_without_volume_or_in_use() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "text", vec![b'x'; 1 << 20]);
    refused(folder, ["check", "text"], "text: ");
    refused(folder, ["check", "none"], "none does not exist");
    // A reader that is blocked on its output has the volume open.
    write(folder, "large", vec![1; 4 << 20]);
    run_ok(folder, ["put", "large", "v:/"]);
    let mut reader = command(folder, ["cat", "v:/large"]);
    let mut reader = reader.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    std::io::Read::read_exact(reader.stdout.as_mut().unwrap(), &mut first).unwrap();
    refused(folder, ["check", "v", "--repair"], "has the volume open");
    assert_eq!(check(folder, &[]).0, 0);
    drop(reader.stdout.take());
    reader.wait().unwrap();
}

#[test]
fn check_takes_the_options_of_fsck() {
    let folder = volume();
    let folder = folder.path();
    assert!(run_ok(folder, ["check", "-n", "v"]).contains("clean"));
    assert!(run_ok(folder, ["check", "-y", "v"]).contains("clean"));
    assert_eq!(run(folder, ["check", "-n", "-y", "v"]).status.code(), Some(2));
}
