//! Another format over a volume: every command that writes leaves it alone, and says what it is.

use super::{run, run_ok, write};
use crate::process::tool;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;

/// A volume of 128 MiB with the file `a`, and the format that a tool then makes over it.
fn under(tool_name: &str, options: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    run_ok(folder.path(), ["mkfs", "v", "--size", "128M", "--sparse"]);
    write(folder.path(), "a", "of a");
    run_ok(folder.path(), ["put", "-q", "a", "v:/"]);
    let path = folder.path().join("v");
    tool(tool_name, &[options, &[path.to_str().unwrap()]].concat());
    folder
}

fn error_of(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn assert_left_alone(folder: &Path, name: &str, commands: &[&[&str]]) {
    let before = std::fs::read(folder.join("v")).unwrap();
    for arguments in commands {
        let output = run(folder, *arguments);
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {error}");
        let says =
            format!("v: holds {name}, which was made over an old uringfs volume: uringfs wipe");
        assert!(error.contains(&says), "{arguments:?}: {error}");
        assert!(std::fs::read(folder.join("v")).unwrap() == before, "{arguments:?}");
    }
    let udev = run(folder, ["info", "--udev", "v"]);
    assert!(udev.status.code() == Some(2) && udev.stdout.is_empty());
    for option in ["-a", "-p", "-y"] {
        let mut fsck = std::process::Command::new(env!("CARGO_BIN_EXE_uringfs"));
        std::os::unix::process::CommandExt::arg0(&mut fsck, "fsck.uringfs");
        let output = fsck.args([option, "v"]).current_dir(folder).output().unwrap();
        assert_eq!(output.status.code(), Some(8), "{output:?}");
        assert!(error_of(&output).contains(name), "{output:?}");
    }
    assert!(std::fs::read(folder.join("v")).unwrap() == before);
}

const WRITERS: [&[&str]; 7] = [
    &["put", "a", "v:/b"],
    &["mkdir", "v:/d"],
    &["check", "-y", "v"],
    &["check", "-y", "--accept-unreadable", "v"],
    &["check", "--upgrade", "v"],
    &["label", "v", "new"],
    &["mount", "v", "."],
];

#[test]
fn an_ext4_over_a_volume_is_not_repaired_away() {
    let folder = under("mkfs.ext4", &["-q", "-F", "-E", "nodiscard"]);
    let folder = folder.path();
    let name = "an ext2/3/4 file system";
    assert_left_alone(folder, name, &WRITERS);
    assert_left_alone(
        folder,
        name,
        &[&["ls", "v"], &["check", "v"], &["get", "v:/a", "b"], &["resize", "v"]],
    );
    assert!(run_ok(folder, ["wipe", "v"]).contains("16384"));
    tool("e2fsck", &["-f", "-n", folder.join("v").to_str().unwrap()]);
    let output = run(folder, ["ls", "v"]);
    assert!(
        output.status.code() == Some(4) && error_of(&output).contains("without a volume"),
        "{output:?}"
    );
}

#[test]
fn a_volume_under_swap_is_read_and_not_written() {
    let folder = under("mkswap", &[]);
    let folder = folder.path();
    assert_left_alone(folder, "a swap area", &WRITERS);
    assert_left_alone(folder, "a swap area", &[&["check", "v"]]);
    let output = run(folder, ["cat", "v:/a"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"of a"[..]));
    let warning = error_of(&output);
    let begin = "uringfs: warning: v: holds a swap area, which was made over the volume: ";
    assert!(warning.starts_with(begin) && warning.lines().count() == 1, "{warning}");
    let output = run(folder, ["mkfs", "v"]);
    assert!(error_of(&output).contains("v: holds a swap area; --force destroys it"), "{output:?}");
}

#[test]
fn a_partition_table_over_a_volume_is_left_until_a_forced_repair() {
    let folder = under("true", &[]);
    let folder = folder.path();
    let file = File::options().write(true).open(folder.join("v")).unwrap();
    let mut table = [0; 17 << 10];
    table[446 + 4] = 0xee;
    table[510..520].copy_from_slice(b"\x55\xaaEFI PART");
    file.write_all_at(&table, 0).unwrap();
    assert_left_alone(folder, "a GPT partition table", &WRITERS);
    let output = run(folder, ["check", "--force", "v"]);
    assert_eq!(output.status.code(), Some(2), "it needs --repair: {output:?}");
    assert_eq!(run(folder, ["check", "-y", "--force", "v"]).status.code(), Some(1));
    assert_eq!(run_ok(folder, ["cat", "v:/a"]), "of a");
    assert!(run_ok(folder, ["check", "v"]).contains("clean"));
}
