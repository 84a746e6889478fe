//! `touch` sets the times that `touch` of coreutils sets.

use super::mirror::Mirror;
use super::{command, refused, run, run_ok, volume};
use crate::process::ChildProcess;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

#[test]
fn dates_are_read_as_in_coreutils() {
    let mirror = Mirror::new();
    let folder = mirror.folder();
    std::fs::write(mirror.tree().join("f"), "").unwrap();
    mirror.put();
    for zone in ["UTC", "Europe/Paris", "America/New_York"] {
        for date in [
            "2026-11-22",
            "2026-11-22 07:40",
            "2026-07-01 07:40:05.25",
            "2026-11-22T07:40:05",
            "2026-11-22T07:40:05Z",
            "2026-11-22 07:40:05 +0530",
            "2026-11-22 07:40:05.123456789 -0300",
            "1904-01-01 00:00:00 +0000",
            "@1795333265",
            "@-1.5",
        ] {
            let theirs = ["-d", date, "f"];
            let mut touch = Command::new("touch");
            let touch = touch.args(theirs).current_dir(mirror.tree()).env("TZ", zone);
            assert!(ChildProcess::start(touch).end().status.success(), "{date}");
            let mut touch = command(folder, ["touch", "-d", date, "v:/f"]);
            let output = ChildProcess::start(touch.env("TZ", zone)).end();
            assert!(output.status.success(), "{date}: {output:?}");
            let stat: serde_json::Value =
                serde_json::from_str(&run_ok(folder, ["stat", "--json", "v:/f"])).unwrap();
            let found = std::fs::metadata(mirror.tree().join("f")).unwrap();
            for (name, seconds, nanoseconds) in [
                ("modified", found.mtime(), found.mtime_nsec()),
                ("accessed", found.atime(), found.atime_nsec()),
            ] {
                let time = &stat["files"][0][name];
                let time = (time["seconds"].as_i64(), time["nanoseconds"].as_i64());
                assert_eq!(time, (Some(seconds), Some(nanoseconds)), "{date} in {zone}");
            }
        }
    }
    let output = run(folder, ["touch", "-d", "never", "v:/f"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn touch_creates_files_unless_told_not_to() {
    let mirror = Mirror::new();
    std::fs::create_dir(mirror.tree().join("d")).unwrap();
    mirror.put();
    for arguments in [
        &["touch", "@a", "@d/b", "@d"][..],
        &["touch", "-c", "@none"],
        &["touch", "--no-create", "@none", "@a"],
        &["touch", "@none/x", "@c"],
        &["touch", "-r", "@a", "@e"],
        &["touch", "-r", "@none", "@x"],
    ] {
        mirror.run(arguments);
    }
}

#[test]
fn one_time_is_changed_alone_or_copied() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["touch", "-d", "@1000", "v:/a"]);
    run_ok(folder, ["touch", "-m", "-d", "@2000", "v:/a"]);
    run_ok(folder, ["touch", "-a", "--date=@3000", "v:/a"]);
    run_ok(folder, ["touch", "--reference", "v:/a", "v:/b"]);
    for path in ["v:/a", "v:/b"] {
        let stat: serde_json::Value =
            serde_json::from_str(&run_ok(folder, ["stat", "--json", path])).unwrap();
        assert_eq!(stat["files"][0]["modified"]["seconds"], 2000);
        assert_eq!(stat["files"][0]["accessed"]["seconds"], 3000);
    }
    refused(folder, ["touch", "-r", "w:/a", "v:/b"], "name paths of one volume");
}
