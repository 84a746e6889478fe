//! Every engine finds and reports a wrong block, and keys without effect are reported.

use super::{bench, folder, json_of};
use std::os::unix::fs::FileExt;

const ENGINES: [&str; 4] = ["psync", "threads", "ring", "uringfs"];

#[test]
fn every_engine_reports_a_wrong_block() {
    for engine in ENGINES {
        let folder = folder();
        let engine = format!("--engine={engine}");
        let common =
            ["--name=x", "--filename=f", "--verify=crc32c", "--bs=8k", "--iodepth=4", &engine];
        let write = ["--rw=randwrite", "--size=256k", "--loops=2"];
        let output = bench(folder.path(), &[&common[..], &write].concat());
        assert_eq!(output.status.code(), Some(0), "{engine}: {output:?}");

        let file = std::fs::File::options().read(true).write(true).open(folder.path().join("f"));
        let file = file.unwrap();
        let mut block = [0; 8192];
        file.read_exact_at(&mut block, 40960).unwrap();
        file.write_all_at(&block, 131_072).unwrap();
        file.write_all_at(b"rotten", 81_920 + 5000).unwrap();
        let output = bench(folder.path(), &[&common[..], &["--rw=randread"]].concat());
        assert_eq!(output.status.code(), Some(1), "{engine}");
        let text = String::from_utf8(output.stderr).unwrap();
        for part in [
            "job `x`: f: wrong block at offset 81920: expected crc32c ",
            "job `x`: f: wrong block at offset 131072: expected the block of this offset, \
             found that of offset 40960",
            "job `x`: verify found 2 wrong blocks (EILSEQ)",
        ] {
            assert!(text.contains(part), "{engine}: no `{part}` in\n{text}");
        }
        assert_eq!(text.lines().count(), 3, "{text}");

        // Depth 1: of several in flight the later one may complete first, and both are reported.
        let fatal = ["--rw=read", "--verify_fatal=1", "--iodepth=1", "--output-format=json"];
        let output = bench(folder.path(), &[&common[..], &fatal].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.contains("f: wrong block at offset 81920: "), "{text}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["jobs"][0]["error"], nix::errno::Errno::EILSEQ as i32, "{engine}");
    }
}

#[test]
fn a_simulated_device_with_short_transfers_verifies() {
    let folder = folder();
    let keys = "--name=x --rw=randrw --bsrange=4k-64k --iodepth=8 --verify=crc32c --loops=3";
    let mut keys: Vec<&str> = keys.split(' ').collect();
    keys.extend(["--filename=sim:1m,latency=20us-200us,short=7", "--output-format=json"]);
    let report = json_of(&bench(folder.path(), &keys));
    let of = |way: &str| report["jobs"][0][way]["io_bytes"].as_u64().unwrap();
    // The mix is read, and everything that it wrote is read again.
    assert_eq!(of("read"), 3 << 20);
    assert!((1 << 20..2 << 20).contains(&of("write")));
}

#[test]
fn a_key_without_effect_is_reported() {
    let folder = folder();
    let keys = ["--name=x", "--rw=read", "--size=64k", "--direct=1"];
    for (engine, key, is_reported) in [
        ("psync", "--hipri=1", true),
        ("psync", "--hipri=0", false),
        ("threads", "--force_async=4", true),
        ("ring", "--force_async=4", false),
        ("uringfs", "--sqthread_poll=1", true),
        ("uringfs", "--registerfiles=1", true),
    ] {
        let engine = format!("--engine={engine}");
        let output = bench(folder.path(), &[&keys[..], &[key, &engine]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        let line = format!("{} has no effect", &key[2..key.len() - 2]);
        assert_eq!(text.contains(&line), is_reported, "{engine} {key}\n{text}");
    }
}
