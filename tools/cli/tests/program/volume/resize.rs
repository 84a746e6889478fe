//! `resize` enlarges a volume and its file, or changes nothing.

use super::{command, refused, run_ok, volume, write};
use crate::process::{ChildProcess, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;

#[test]
fn resize_extends_the_file_and_the_volume() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", vec![9; 3 << 20]);
    run_ok(folder, ["put", "a", "v:/"]);
    assert_eq!(run_ok(folder, ["resize", "v", "48M"]), "v: resized to 48.0 MiB\n");
    let status = std::fs::metadata(folder.join("v")).unwrap();
    assert_eq!(status.len(), 48 << 20);
    assert!(status.blocks() * 512 >= 48 << 20, "its blocks are reserved");
    let df: Value = serde_json::from_str(&run_ok(folder, ["df", "v", "--json"])).unwrap();
    assert_eq!(df["volumes"][0]["size"], 48 << 20);
    run_ok(folder, ["put", "a", "v:/b"]);
    assert!(run_ok(folder, ["check", "v", "--deep"]).contains("clean"));
    run_ok(folder, ["resize", "v", "48M"]);
}

#[test]
fn without_a_size_a_volume_grows_to_the_size_of_its_file() {
    let folder = volume();
    let folder = folder.path();
    assert_eq!(run_ok(folder, ["resize", "v"]), "v: has 32.0 MiB already\n");
    let file = std::fs::File::options().write(true).open(folder.join("v")).unwrap();
    for (arguments, mebibytes) in [(&["resize", "v"][..], 40), (&["resize", "v", "max"], 48)] {
        file.set_len((mebibytes << 20) + 1000).unwrap();
        let line = format!("v: resized to {mebibytes}.0 MiB\n");
        assert_eq!(run_ok(folder, arguments), line);
        let df: Value = serde_json::from_str(&run_ok(folder, ["df", "v", "--json"])).unwrap();
        assert_eq!(df["volumes"][0]["size"], mebibytes << 20);
    }
    assert_eq!(file.metadata().unwrap().len(), (48 << 20) + 1000);
    assert!(run_ok(folder, ["check", "v"]).contains("clean"));
}

#[test]
fn a_refused_resize_changes_nothing() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "text", vec![b'x'; 1 << 20]);
    let before = std::fs::read(folder.join("v")).unwrap();
    refused(folder, ["resize", "v", "16M"], "a volume cannot shrink");
    refused(folder, ["resize", "text", "16M"], "check the path");
    refused(folder, ["resize", "none", "16M"], "none does not exist");
    assert!(std::fs::read(folder.join("v")).unwrap() == before);
}

#[test]
fn other_programs_are_refused_during_a_resize() {
    let folder = volume();
    let folder = folder.path();
    let file = folder.join("v");
    let length = || std::fs::metadata(&file).unwrap().len();
    let resize = ChildProcess::start(&mut command(folder, ["resize", "v", "1G"]));
    wait_until("a longer file", || length() > 32 << 20);
    // Stop the resize until the other programs have run.
    resize.signal(Signal::SIGSTOP);
    refused(folder, ["resize", "v", "40M"], "another program has the volume open");
    refused(folder, ["mkdir", "v:/d"], "another program has the volume open");
    resize.signal(Signal::SIGINT);
    resize.signal(Signal::SIGCONT);
    let output = resize.end();
    assert_eq!(output.status.code(), Some(130));
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line, "uringfs: stopped by Ctrl-C, SIGTERM or SIGHUP: the volume is as it was\n");
    assert_eq!(length(), 32 << 20);
    assert!(run_ok(folder, ["check", "v"]).contains("clean"));
}
