//! All commands take sizes as coreutils does; `--json` prints them in bytes.

use super::{refused, run, run_ok, volume, write};
use serde_json::Value;
use std::path::Path;

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&run_ok(folder, arguments)).unwrap()
}

#[test]
fn mkfs_and_resize_take_units_and_round_to_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let size = || json(folder, &["df", "v", "--json"])["size"].as_u64().unwrap();
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
    let size = || json(folder, &["stat", "--json", "v:/f"])[0]["size"].as_u64().unwrap();
    let system = folder.join("f");
    write(folder, "f", "");
    for text in
        ["10KiB", "10kB", "10KB", "10K", "+1K", "-1kB", "<8K", ">9K", "/1kB", "%4K", "-1M", "1m"]
    {
        run_ok(folder, ["truncate", "-s", text, "v:/f"]);
        crate::process::tool("truncate", &["-s", text, system.to_str().unwrap()]);
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
