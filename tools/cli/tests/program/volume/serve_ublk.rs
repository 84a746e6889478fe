//! `serve ublk`. The tests that need the driver run in a guest, by `scripts/ublk-guest`.

use super::{command, refused, run_ok, volume, write};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

/// It exists where the driver is loaded.
const CONTROL: &str = "/dev/ublk-control";

#[test]
fn a_block_device_is_made_or_the_error_says_what_is_missing() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "8M", "v:/disk"]);
    if !Path::new(CONTROL).exists() {
        let advice = "load the driver with `modprobe ublk_drv`";
        refused(folder, ["serve", "ublk", "v:/disk"], advice);
        refused(folder, ["serve", "ublk", "memory:8M"], advice);
        refused(folder, ["serve", "ublk", "--remove", "/dev/ublkb0"], advice);
    } else if !nix::unistd::geteuid().is_root() {
        refused(folder, ["serve", "ublk", "v:/disk"], "be root");
    } else {
        let mut command = command(folder, ["serve", "ublk", "v:/disk"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert!(line.starts_with("/dev/ublkb"), "{line:?}");
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(!Path::new(line.trim_end()).exists());
    }
}

#[test]
fn a_configuration_needs_the_driver_for_its_block_devices() {
    if Path::new(CONTROL).exists() {
        return;
    }
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/a", "v:/b"]);
    let nbd = "[[nbd]]\nunix = \"nbd\"\ntargets = [\"v:/a\"]\n";
    write(folder, "serve.toml", format!("{nbd}[[ublk]]\nqueues = 2\ntarget = \"v:/b\"\n"));
    let config = ["serve", "--config", "serve.toml"];
    let line = "serve.toml:6: target: /dev/ublk-control: No such file";
    refused(folder, config, line);
    refused(folder, config, "load the driver with `modprobe ublk_drv`");
    assert!(!folder.join("nbd").exists());
    run_ok(folder, ["check", "v"]);
}

#[test]
fn only_one_file_and_only_ublk_devices_are_named() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkdir", "v:/folder"]);
    refused(folder, ["serve", "ublk", "v:/folder"], "is a directory");
    refused(folder, ["serve", "ublk", "v:/none"], "does not exist");
    write(folder, "image", vec![0; 4096]);
    let remove = |device| ["serve", "ublk", "--remove", device];
    refused(folder, remove("/dev/ublkc0"), "not the path of a ublk device");
    refused(folder, remove("image"), "not the path of a ublk device");
}
