//! A crafted image in which directories have two names each, so a walk that follows every name doubles at each
//! level. Every recursive command reports the second name, visits the directory once, and ends.

use super::{command, run, run_ok, volume, write};
use crate::process::ChildProcess;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The depth of nesting. Small enough that a walk by every name also ends, and fails by its count.
const DEPTH: usize = 10;

const BLOCK: usize = 4096;
const NAMES: u8 = 2;
const DIRECTORY: u16 = 0o040_000;
const FILE: u16 = 0o100_000;

/// CRC32C, bit by bit.
fn sum(bytes: &[u8]) -> [u8; 4] {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg());
        }
    }
    (!sum).to_le_bytes()
}

/// A change record of the catalog's log that gives an inode the name `twin`.
fn change(directory: u64, inode: u64, kind: u16) -> Vec<u8> {
    let key = [&directory.to_be_bytes()[..], b"twin"].concat();
    let value = [&inode.to_be_bytes()[..], &kind.to_be_bytes()].concat();
    let stored = [&sum(&[&[NAMES][..], &key, &value].concat())[..], &value].concat();
    let lengths = [&(key.len() as u16).to_le_bytes()[..], &(stored.len() as u32).to_le_bytes()];
    [&[NAMES, 1][..], &lengths.concat(), &key, &stored].concat()
}

/// Commits changes as the volume would: as the next record of the log, in both halves.
fn commit(image: &Path, changes: &[u8]) {
    let bytes = std::fs::read(image).unwrap();
    let begins = |what: &[u8]| {
        let blocks = bytes.chunks(BLOCK).enumerate();
        Vec::from_iter(blocks.filter(|(_, block)| block.starts_with(what)).map(|(at, _)| at))
    };
    // After the magic of the header: its length, its sequence number, and the last record that the catalog has.
    let head = bytes.windows(8).position(|found| found == b"urcatlog").unwrap();
    let last = u64::from_le_bytes(*bytes[head + 24..].first_chunk().unwrap());
    // A record was written to the beginning of each half, and none has several blocks.
    let records = begins(b"urlogrec");
    let halves = [records[0], records[records.len() / 2]];
    assert!(records.len().is_multiple_of(2) && begins(b"urlogmor").is_empty(), "{records:?}");
    let length = (changes.len() as u32).to_le_bytes();
    let covered = [&length[..], &(last + 1).to_le_bytes(), changes].concat();
    let mut record = [&b"urlogrec"[..], &sum(&covered), &covered].concat();
    assert!(record.len() <= BLOCK);
    record.resize(BLOCK, 0);
    let file = File::options().write(true).open(image).unwrap();
    for half in halves {
        file.write_all_at(&record, (half * BLOCK) as u64).unwrap();
    }
}

/// The directories, one per level, the outermost first.
fn levels() -> Vec<String> {
    (1..=DEPTH).map(|depth| format!("v:{}", "/d".repeat(depth))).collect()
}

/// A volume of nested directories. All but the first have a second name, whose entry has this kind, beside
/// the first name. The innermost contains a file.
fn doubled(kind: u16) -> tempfile::TempDir {
    let folder = volume();
    let path = folder.path();
    let levels = levels();
    write(path, "file", "of a");
    run_ok(path, ["mkdir", "-p", &levels[DEPTH - 1]]);
    run_ok(path, ["put", "file", &levels[DEPTH - 1]]);
    let stat = ["stat", "--json"].into_iter().chain(levels.iter().map(String::as_str));
    let stat: Value = serde_json::from_str(&run_ok(path, stat)).unwrap();
    let number = |one: &Value| one["inode"].as_u64().unwrap();
    let numbers: Vec<u64> = stat["files"].as_array().unwrap().iter().map(number).collect();
    let changes = numbers.windows(2).flat_map(|pair| change(pair[0], pair[1], kind));
    commit(&path.join("v"), &Vec::from_iter(changes));
    folder
}

/// Runs a recursive command, which must exit with 1. Returns its output and its error lines.
fn walk(folder: &Path, arguments: &[&str]) -> (String, Vec<String>) {
    let output = run(folder, arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
    (String::from_utf8(output.stdout).unwrap(), stderr.lines().map(str::to_owned).collect())
}

/// Expects one line for each directory of two names, which says what to do.
fn assert_each_reported(arguments: &[&str], stderr: &[String]) {
    assert_eq!(stderr.len(), DEPTH - 1, "{arguments:?}: {stderr:#?}");
    for path in &levels()[..DEPTH - 1] {
        let line = format!(
            "uringfs: {path}/twin: the directory has two names; the volume is damaged: run uringfs check"
        );
        assert!(stderr.contains(&line), "{arguments:?}: {line} in {stderr:#?}");
    }
}

#[test]
fn recursive_commands_visit_a_directory_of_two_names_once() {
    let folder = doubled(DIRECTORY);
    let folder = folder.path();
    // The output of each command for the innermost file or directory, which is visited once.
    for (arguments, once) in [
        (&["ls", "-R", "v:/"][..], "file\n"),
        (&["ls", "-lR", "v:/d"], " file\n"),
        (&["tree", "v:/"], "-- file\n"),
        (&["du", "v:/"], "\t/d\n"),
        (&["du", "-s", "v:/"], "\t/\n"),
        (&["get", "v:/d", "."], "1 file,"),
        (&["chown", "-R", "7:8", "v:/d"], ""),
    ] {
        let (text, stderr) = walk(folder, arguments);
        assert_each_reported(arguments, &stderr);
        assert!(once.is_empty() || text.matches(once).count() == 1, "{arguments:?}: {text}");
    }
    assert!(folder.join("d".to_owned() + &"/d".repeat(DEPTH - 1)).join("file").is_file());
    assert!(!folder.join("d/twin").exists());
    // The walks from several paths are independent.
    let (_, stderr) = walk(folder, &["du", "-s", "v:/", "v:/d"]);
    assert_eq!(stderr.len(), 2 * (DEPTH - 1), "{stderr:#?}");
    let (text, stderr) = walk(folder, &["ls", "-R", "v:/", "v:/d"]);
    assert_eq!((text.matches("file\n").count(), stderr.len()), (2, 2 * (DEPTH - 1)), "{stderr:#?}");
}

#[test]
fn check_repairs_what_rm_leaves_of_a_directory_with_two_names() {
    let folder = doubled(DIRECTORY);
    let folder = folder.path();
    let arguments = ["rm", "-r", "v:/d"];
    assert_each_reported(&arguments, &walk(folder, &arguments).1);
    let check = || ChildProcess::start(&mut command(folder, ["check", "v", "--repair"])).end();
    assert_eq!(check().status.code(), Some(1));
    assert_eq!(check().status.code(), Some(0));
    run_ok(folder, ["rm", "-r", "v:/d"]);
}

#[test]
fn check_repairs_a_directory_of_two_names() {
    let folder = doubled(DIRECTORY);
    let folder = folder.path();
    let output = run(folder, ["check", "v"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let found = text.matches("/twin: the directory has a second name").count();
    assert_eq!((output.status.code(), found), (Some(4), DEPTH - 1), "{text}");
    assert_eq!(run(folder, ["check", "v", "--repair"]).status.code(), Some(1));
    assert_eq!(run_ok(folder, ["du", "v:/"]).lines().count(), DEPTH + 1);
}

#[test]
fn a_second_name_that_claims_to_be_a_file_is_not_visited() {
    let folder = doubled(FILE);
    let folder = folder.path();
    for arguments in [&["du", "v:/"][..], &["get", "v:/d", "."]] {
        assert_each_reported(arguments, &walk(folder, arguments).1);
    }
}
