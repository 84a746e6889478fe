//! An image of a stranger in which directories have two names each, so that a walk which enters by every name
//! doubles at each level: every command that walks tells of the second name, enters once, and ends.

use super::{command, done, run, volume, write};
use crate::running::Running;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Each in the one before. Few enough that a walk by every name ends, too, and fails by its count.
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

/// A change of the catalog's log that gives an inode the name `twin`.
fn change(directory: u64, inode: u64, kind: u16) -> Vec<u8> {
    let key = [&directory.to_be_bytes()[..], b"twin"].concat();
    let value = [&inode.to_be_bytes()[..], &kind.to_be_bytes()].concat();
    let stored = [&sum(&[&[NAMES][..], &key, &value].concat())[..], &value].concat();
    let lengths = [&(key.len() as u16).to_le_bytes()[..], &(stored.len() as u32).to_le_bytes()];
    [&[NAMES, 1][..], &lengths.concat(), &key, &stored].concat()
}

/// Commits changes as the volume itself would: as the log's next record, in both halves.
fn commit(image: &Path, changes: &[u8]) {
    let bytes = std::fs::read(image).unwrap();
    let begins = |what: &[u8]| {
        let blocks = bytes.chunks(BLOCK).enumerate();
        Vec::from_iter(blocks.filter(|(_, block)| block.starts_with(what)).map(|(at, _)| at))
    };
    // Behind the head's mark: its length, its sequence, and the last record that the catalog has.
    let head = bytes.windows(8).position(|found| found == b"urcatlog").unwrap();
    let last = u64::from_le_bytes(*bytes[head + 24..].first_chunk().unwrap());
    // One has been written to each half's beginning, and nothing of several blocks.
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

/// The directory of each level, from the first on.
fn levels() -> Vec<String> {
    (1..=DEPTH).map(|depth| format!("v:{}", "/d".repeat(depth))).collect()
}

/// A volume of directories in each other, of which all but the first have a second name, of this kind, beside
/// their own. A file lies in the innermost.
fn doubled(kind: u16) -> tempfile::TempDir {
    let folder = volume();
    let path = folder.path();
    let levels = levels();
    write(path, "file", "of a");
    done(path, ["mkdir", "-p", &levels[DEPTH - 1]]);
    done(path, ["put", "file", &levels[DEPTH - 1]]);
    let stat = ["stat", "--json"].into_iter().chain(levels.iter().map(String::as_str));
    let stat: Value = serde_json::from_str(&done(path, stat)).unwrap();
    let number = |one: &Value| one["inode"].as_u64().unwrap();
    let numbers: Vec<u64> = stat.as_array().unwrap().iter().map(number).collect();
    let changes = numbers.windows(2).flat_map(|pair| change(pair[0], pair[1], kind));
    commit(&path.join("v"), &Vec::from_iter(changes));
    folder
}

/// Runs a command that walks: it ends with 1. Gives its output and its lines of complaint.
fn walk(folder: &Path, arguments: &[&str]) -> (String, Vec<String>) {
    let output = run(folder, arguments);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
    (String::from_utf8(output.stdout).unwrap(), told.lines().map(str::to_owned).collect())
}

/// One line for each directory of two names, which says what to do.
fn assert_told_of_each(arguments: &[&str], told: &[String]) {
    assert_eq!(told.len(), DEPTH - 1, "{arguments:?}: {told:#?}");
    for path in &levels()[..DEPTH - 1] {
        let line = format!(
            "uringfs: {path}/twin: the directory is linked twice: the volume is damaged, run uringfs check"
        );
        assert!(told.contains(&line), "{arguments:?}: {line} in {told:#?}");
    }
}

#[test]
fn a_directory_of_two_names_is_entered_once_by_whatever_walks() {
    let folder = doubled(DIRECTORY);
    let folder = folder.path();
    // What each prints of the innermost file or directory, which is met once.
    for (arguments, once) in [
        (&["ls", "-R", "v:/"][..], "file\n"),
        (&["ls", "-lR", "v:/d"], " file\n"),
        (&["tree", "v:/"], "-- file\n"),
        (&["du", "v:/"], "\t/d\n"),
        (&["du", "-s", "v:/"], "\t/\n"),
        (&["get", "v:/d", "."], "1 files"),
        (&["chown", "-R", "7:8", "v:/d"], ""),
    ] {
        let (text, told) = walk(folder, arguments);
        assert_told_of_each(arguments, &told);
        assert!(once.is_empty() || text.matches(once).count() == 1, "{arguments:?}: {text}");
    }
    assert!(folder.join("d".to_owned() + &"/d".repeat(DEPTH - 1)).join("file").is_file());
    assert!(!folder.join("d/twin").exists());
    // A walk from each of several places enters anew.
    let (_, told) = walk(folder, &["du", "-s", "v:/", "v:/d"]);
    assert_eq!(told.len(), 2 * (DEPTH - 1), "{told:#?}");
    let (text, told) = walk(folder, &["ls", "-R", "v:/", "v:/d"]);
    assert_eq!((text.matches("file\n").count(), told.len()), (2, 2 * (DEPTH - 1)), "{told:#?}");
}

#[test]
fn a_directory_of_two_names_is_removed_once_and_check_mends_what_is_left() {
    let folder = doubled(DIRECTORY);
    let folder = folder.path();
    let arguments = ["rm", "-r", "v:/d"];
    assert_told_of_each(&arguments, &walk(folder, &arguments).1);
    let check = || Running::start(&mut command(folder, ["check", "v", "--repair"])).end();
    assert_eq!(check().status.code(), Some(1));
    assert_eq!(check().status.code(), Some(0));
    done(folder, ["rm", "-r", "v:/d"]);
}

#[test]
fn check_finds_a_directory_of_two_names_and_repairs_it() {
    let folder = doubled(DIRECTORY);
    let folder = folder.path();
    let output = run(folder, ["check", "v"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let found = text.matches("/twin: the directory has another name, too").count();
    assert_eq!((output.status.code(), found), (Some(4), DEPTH - 1), "{text}");
    assert_eq!(run(folder, ["check", "v", "--repair"]).status.code(), Some(1));
    assert_eq!(done(folder, ["du", "v:/"]).lines().count(), DEPTH + 1);
}

#[test]
fn a_second_name_that_says_it_is_a_files_is_not_entered_either() {
    let folder = doubled(FILE);
    let folder = folder.path();
    for arguments in [&["du", "v:/"][..], &["get", "v:/d", "."]] {
        assert_told_of_each(arguments, &walk(folder, arguments).1);
    }
}
