//! All commands take and print sizes as coreutils does; `--json` prints them in bytes.

use super::{refused, run, run_ok, volume, write};
use crate::process::tool;
use serde_json::Value;
use std::path::Path;

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&run_ok(folder, arguments)).unwrap()
}

#[test]
fn mkfs_and_resize_take_units_and_round_to_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let size = || json(folder, &["df", "v", "--json"])["volumes"][0]["size"].as_u64().unwrap();
    for (text, bytes) in [
        ("16MiB", 16 << 20),
        ("16M", 16 << 20),
        ("20MB", 20_000_000 / 4096 * 4096),
        ("17000001", 17_000_001 / 4096 * 4096),
        ("0.02GiB", 21_474_836 / 4096 * 4096),
    ] {
        run_ok(folder, ["mkfs", "v", "--size", text]);
        assert_eq!(size(), bytes, "{text}");
        assert_eq!(std::fs::metadata(folder.join("v")).unwrap().len(), bytes, "{text}");
        std::fs::remove_file(folder.join("v")).unwrap();
    }
    run_ok(folder, ["mkfs", "v", "--size", "16M"]);
    for (text, bytes) in [
        ("17MiB", 17 << 20),
        ("18MB", 18_000_000 / 4096 * 4096),
        ("+1M", (18_000_000 / 4096 * 4096) + (1 << 20)),
        ("0.03GiB", 32_212_254 / 4096 * 4096),
    ] {
        run_ok(folder, ["resize", "v", text]);
        assert_eq!(size(), bytes, "{text}");
        assert_eq!(std::fs::metadata(folder.join("v")).unwrap().len(), bytes, "{text}");
    }
}

#[test]
fn truncate_takes_the_sizes_of_coreutils() {
    let folder = volume();
    let folder = folder.path();
    let size = || json(folder, &["stat", "--json", "v:/f"])["files"][0]["size"].as_u64().unwrap();
    let system = folder.join("f");
    write(folder, "f", "");
    for text in
        ["10KiB", "10kB", "10KB", "10K", "+1K", "-1kB", "<8K", ">9K", "/1kB", "%4K", "-1M", "1m"]
    {
        run_ok(folder, ["truncate", "-s", text, "v:/f"]);
        tool("truncate", &["-s", text, system.to_str().unwrap()]);
        assert_eq!(size(), std::fs::metadata(&system).unwrap().len(), "{text}");
    }
}

#[test]
fn invalid_sizes_are_refused() {
    let folder = volume();
    let folder = folder.path();
    for text in ["1kb", "1mib", "1b", "0x10", "(4k*2)", "-"] {
        for command in [
            &["truncate", "-s", text, "v:/f"][..],
            &["mkfs", "w", "--size", text],
            &["resize", "v", text],
        ] {
            let output = run(folder, command);
            let line = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{command:?}: {line}");
            assert!(
                line.contains("invalid size") || line.contains("unexpected"),
                "{command:?}: {line}"
            );
        }
        refused(folder, ["info", &format!("memory:{text}")], "invalid size");
    }
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "");
}

#[test]
fn memory_targets_take_the_same_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (text, bytes) in [("memory:512kB", 512_000), ("null:1MiB", 1 << 20), ("sim:2m", 2 << 20)] {
        let info = json(folder, &["info", text, "--json"]);
        assert_eq!(info["geometry"]["size"], bytes, "{text}: {info}");
        let filename = format!("--filename={text}");
        let keys = ["bench", "run", "--name=x", "--rw=read", "--bs=512", &filename];
        let report = json(folder, &[&keys[..], &["--output-format=json"]].concat());
        assert_eq!(report["jobs"][0]["read"]["io_bytes"], bytes, "{text}");
    }
}

/// The output of a tool of the system, in the C locale and without block sizes from the environment.
fn system(arguments: &[&str]) -> String {
    tool("env", &[&["-i", "LC_ALL=C", "PATH=/usr/bin:/bin:/usr/sbin:/sbin"], arguments].concat())
}

#[test]
fn ls_and_du_print_sizes_as_coreutils() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir(folder.join("t")).unwrap();
    for size in
        [0, 1, 1023, 1024, 1025, 1536, 10_239, 10_240, 10_241, 102_300, 1_047_553, 1_572_864]
    {
        write(folder, &format!("t/{size}"), vec![1; size]);
    }
    run_ok(folder, ["put", "t", "v:/"]);
    let tree = folder.join("t").display().to_string();
    let sizes = |listing: &str| -> Vec<(String, String)> {
        let lines = listing.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let files = lines.filter(|words| words.len() > 7);
        files.map(|words| (words[4].to_owned(), words[words.len() - 1].to_owned())).collect()
    };
    for options in ["-l", "-lh"] {
        let ours = run_ok(folder, ["ls", options, "v:/t"]);
        assert_eq!(sizes(&ours).len(), 12);
        assert_eq!(sizes(&ours), sizes(&system(&["ls", options, &tree])));
    }
    assert_eq!(
        run_ok(folder, ["ls", "-l", "--human-readable", "v:/t"]),
        run_ok(folder, ["ls", "-lh", "v:/t"])
    );
    // The bytes of these files fill whole blocks, whatever the blocks of the file system below are.
    for size in [0, 4096, 8192, 40_960, 1_572_864] {
        write(folder, "whole", vec![1; size]);
        run_ok(folder, ["put", "whole", "v:/"]);
        let file = folder.join("whole").display().to_string();
        for options in [&["-s"][..], &["-h"], &["-sh"], &["-hs"]] {
            let ours = run_ok(folder, [&["du"], options, &["v:/whole"]].concat());
            let theirs = system(&[&["du", "--apparent-size"], options, &[&file]].concat());
            assert_eq!(ours.split('\t').next(), theirs.split('\t').next(), "{options:?}");
        }
    }
}

#[test]
fn df_prints_the_columns_of_coreutils() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", vec![1; 3 << 20]);
    run_ok(folder, ["put", "a", "v:/"]);
    let space = json(folder, &["df", "v", "--json"])["volumes"][0].clone();
    let kilobytes = |name: &str| (space[name].as_u64().unwrap() / 1024).to_string();
    let words = |text: &str| -> Vec<Vec<String>> {
        let line = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        text.lines().map(line).collect()
    };
    for options in [&["-k"][..], &["-h"]] {
        let theirs = words(&system(&[&["df"], options, &["."]].concat()));
        let options = if options == ["-k"] { &[][..] } else { options };
        let ours = words(&run_ok(folder, [&["df", "v"], options].concat()));
        assert_eq!(ours[0], theirs[0][..5]);
        assert_eq!((ours.len(), ours[1].len()), (2, 5), "{ours:?}");
        assert_eq!(ours[1][0], "v");
        if options.is_empty() {
            assert_eq!(ours[1][1..4], ["size", "used", "free"].map(kilobytes));
        } else {
            assert_eq!(ours[1][1], "32M");
            assert!(ours[1][2].ends_with(['K', 'M']), "{ours:?}");
        }
        let used = space["used"].as_u64().unwrap() * 100;
        let percent = used.div_ceil(space["size"].as_u64().unwrap());
        assert_eq!(ours[1][4], format!("{percent}%"));
    }
}

#[test]
fn df_lists_several_volumes() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "w", "--size", "16M"]);
    let text = run_ok(folder, ["df", "-h", "v", "w"]);
    let sizes: Vec<&str> =
        text.lines().skip(1).map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(sizes, ["32M", "16M"]);
    let (text, stderr) = super::incomplete(folder, ["df", "none", "w"]);
    assert_eq!((text.lines().count(), stderr.lines().count()), (2, 1), "{text} {stderr}");
}

#[test]
fn the_help_of_commands_with_human_readable_sizes_is_under_its_long_name() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["ls", "du", "df"] {
        let help = run_ok(folder.path(), [command, "--help"]);
        assert!(help.contains("-h, --human-readable") && help.contains("--help"), "{help}");
        assert!(!help.contains("-h, --help"), "{help}");
    }
    assert!(run_ok(folder.path(), ["stat", "-h"]).contains("-h, --help"));
}

#[test]
fn a_copy_counts_files_of_all_kinds_and_the_bytes_that_moved() {
    let folder = volume();
    let folder = folder.path();
    let tree = folder.join("tree");
    std::fs::create_dir(&tree).unwrap();
    let holes = std::fs::File::create(tree.join("holes")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, &[7; 4096], 1 << 30).unwrap();
    std::fs::hard_link(tree.join("holes"), tree.join("same")).unwrap();
    std::os::unix::fs::symlink("holes", tree.join("link")).unwrap();
    tool("mkfifo", &[tree.join("fifo").to_str().unwrap()]);
    run_ok(folder, ["mkfs", "-q", "w", "--size", "32M"]);
    for arguments in [
        &["put", "tree", "v:/"][..],
        &["get", "v:/tree", "out"],
        &["cp", "-a", "-v", "v:/tree", "w:/"],
    ] {
        let text = run_ok(folder, arguments);
        if arguments[0] != "cp" {
            assert!(text.starts_with("4 files, 4.0 KiB in "), "{arguments:?}: {text}");
        }
    }
    let json = run_ok(folder, ["put", "--json", "tree", "v:/again"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let counts =
        ["files", "links", "others", "directories", "bytes"].map(|name| json[name].as_u64());
    assert_eq!(counts, [1, 1, 2, 1, 4096].map(Some));
}
