//! `--log-format` of servers.

use super::mount::umount;
use super::serve::Server;
use super::serve_vhost_user_blk::front_end::{Driver, FLUSH, Queue, feature};
use super::{command, run, run_ok, volume, write};
use crate::process::{ChildProcess, tool, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

/// A server whose log goes to the file `log`.
fn serve(folder: &Path, arguments: &[&str]) -> Server {
    let log = fs::File::create(folder.join("log")).unwrap();
    let mut command = command(folder, [&["serve"], arguments].concat());
    Server::spawn(command.env("XDG_RUNTIME_DIR", folder).stderr(log))
}

fn lines(folder: &Path) -> Vec<String> {
    let log = fs::read_to_string(folder.join("log")).unwrap();
    log.lines().map(str::to_owned).collect()
}

/// The events of a log, each with a time, a level, a name and a message.
fn events(lines: &[String]) -> Vec<Value> {
    let parse = |line: &String| {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        for field in ["time", "level", "event", "message"] {
            assert!(event[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {line}");
        }
        event
    };
    lines.iter().map(parse).collect()
}

/// Waits until so many events of a name are in the log.
fn wait_for(folder: &Path, name: &str, count: usize) {
    let name = format!("\"event\":\"{name}\"");
    let found = || lines(folder).iter().filter(|line| line.contains(&name)).count();
    wait_until(&name, || found() >= count);
}

#[test]
fn clients_that_come_and_go_are_logged_in_their_order() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/disk"]);
    let json = ["nbd", "v:/disk", "--unix", "socket", "--log-format", "json"];
    let mut server = serve(folder, &json);
    let uri = server.uri();
    for count in 1..=2 {
        tool("nbdinfo", &["--size", &uri]);
        wait_for(folder, "nbd_client_left", count);
    }
    let other = uri.replace("///disk", "///other");
    let refused = Command::new("nbdinfo").args(["--size", &other]).output().unwrap();
    assert!(!refused.status.success());
    wait_for(folder, "nbd_client_refused", 1);
    let mut stream = UnixStream::connect(folder.join("socket")).unwrap();
    stream.write_all(&[0xff; 64]).unwrap();
    wait_for(folder, "nbd_client_failed", 1);
    server.stop();
    let events = events(&lines(folder));
    assert_eq!(
        (&events[0]["event"], &events[0]["protocol"], &events[0]["address"]),
        (&"server_started".into(), &"nbd".into(), &uri.into())
    );
    let peer = format!("unix:{}", folder.join("socket").display());
    let of = |client: u64| -> Vec<(&str, Option<&str>)> {
        let its = events.iter().filter(|event| event["client"] == client);
        let its =
            its.inspect(|event| assert!(peer.ends_with(&event["peer"].as_str().unwrap()[5..])));
        its.map(|event| (event["event"].as_str().unwrap(), event["export"].as_str())).collect()
    };
    for client in [1, 2] {
        let expected = [
            ("nbd_client_connected", None),
            ("nbd_client_negotiated", Some("disk")),
            ("nbd_client_left", Some("disk")),
        ];
        assert_eq!(of(client), expected);
    }
    let refused = [("nbd_client_connected", None), ("nbd_client_refused", Some("other"))];
    assert_eq!(of(3)[..2], refused);
    let last = events.iter().rev().find_map(|event| event["client"].as_u64()).unwrap();
    assert_eq!(of(last), [("nbd_client_connected", None), ("nbd_client_failed", None)]);
}

#[test]
fn as_text_the_log_has_lines_for_people() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/disk"]);
    let mut server = serve(folder, &["nbd", "v:/disk", "--unix", "socket", "--log-format", "text"]);
    let uri = server.uri();
    tool("nbdinfo", &["--size", &uri]);
    wait_until("three lines", || lines(folder).len() >= 3);
    server.stop();
    let lines = lines(folder);
    let begins =
        ["connected: client 1, peer unix:", "uses an export: client 1, ", "left: client 1, "];
    assert_eq!(lines.len(), begins.len(), "{lines:?}");
    for (line, begin) in lines.iter().zip(begins) {
        assert!(line.starts_with(&format!("uringfs: NBD client {begin}")), "{line}");
    }
    assert!(lines[1].ends_with(", export disk"), "{}", lines[1]);
}

#[test]
fn reloads_guests_and_a_shrunken_device_are_logged() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/a", "v:/b"]);
    let guest = "[[vhost-user-blk]]\nsocket = \"guest\"\ntarget = \"v:/b\"\n";
    write(folder, "serve.toml", guest);
    let mut server = serve(folder, &["--config", "serve.toml", "--log-format", "json"]);
    server.line();
    let driver = Driver::new(&folder.join("guest"), feature::FLUSH, Queue::split(0, 64));
    drop(driver);
    wait_for(folder, "vhost_front_end_left", 1);
    write(folder, "serve.toml", format!("{guest}[[nbd]]\nunix = \"nbd\"\ntargets = [\"v:/a\"]\n"));
    server.signal(Signal::SIGHUP);
    wait_for(folder, "reloaded", 1);
    write(folder, "serve.toml", "nonsense");
    server.signal(Signal::SIGHUP);
    wait_for(folder, "reload_failed", 1);
    let image = fs::File::options().write(true).open(folder.join("v")).unwrap();
    image.set_len(16 << 20).unwrap();
    let mut driver = Driver::new(&folder.join("guest"), feature::FLUSH, Queue::split(0, 64));
    driver.run(FLUSH, 0, 0);
    wait_for(folder, "device_shrunk", 1);
    drop(driver);
    drop(server);
    let events = events(&lines(folder));
    let place = |name: &str| events.iter().position(|event| event["event"] == name).unwrap();
    let order = [
        "server_started",
        "vhost_front_end_connected",
        "vhost_front_end_left",
        "reloaded",
        "reload_failed",
        "device_shrunk",
    ];
    assert!(order.map(place).is_sorted(), "{events:?}");
    assert_eq!(events[place("server_started")]["protocol"], "vhost-user-blk");
    assert!(events[place("vhost_front_end_left")]["socket"].as_str().unwrap().ends_with("guest"));
    assert_eq!(events[place("reload_failed")]["level"], "error");
    let message = events[place("reload_failed")]["message"].as_str().unwrap();
    assert!(message.ends_with("; nothing has changed"), "{message}");
    let started: Vec<_> =
        events.iter().filter(|event| event["event"] == "server_started").collect();
    assert_eq!((started.len(), &started[1]["protocol"]), (2, &"nbd".into()));
}

#[test]
fn the_error_of_a_server_is_the_last_line_of_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let arguments = ["serve", "nbd", "nothing", "--unix", "s"];
    let plain = run(folder, arguments);
    let json = run(folder, [&arguments[..], &["--log-format", "json"]].concat());
    assert_eq!(plain.status.code(), json.status.code());
    let [plain, json] = [plain, json].map(|output| String::from_utf8(output.stderr).unwrap());
    let event = &events(&[json])[0];
    assert_eq!((&event["level"], &event["event"]), (&"error".into(), &"error".into()));
    assert_eq!(format!("uringfs: {}\n", event["message"].as_str().unwrap()), plain);
}

/// Unmounts, also if the test panics.
struct UnmountLazily<'f>(&'f Path);

impl Drop for UnmountLazily<'_> {
    fn drop(&mut self) {
        let _ = command(self.0, ["umount", "-l", "m"]).output();
    }
}

#[test]
fn a_mount_in_the_foreground_has_a_log() {
    let folder = volume();
    let folder = folder.path();
    fs::create_dir(folder.join("m")).unwrap();
    let arguments = ["mount", "v", "m", "--log-format", "json"];
    let background = run(folder, arguments);
    let message = String::from_utf8(background.stderr).unwrap();
    assert!(!background.status.success() && message.contains("--foreground"), "{message}");
    let _unmount = UnmountLazily(folder);
    let mut server = ChildProcess::start(&mut command(folder, [&arguments[..], &["-f"]].concat()));
    let directory = folder.join("m").canonicalize().unwrap();
    let mounted = format!(" {} fuse", directory.display());
    wait_until("the mount", || {
        assert!(!server.has_ended(), "it has failed");
        fs::read_to_string("/proc/mounts").unwrap().contains(&mounted)
    });
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    umount(folder, "m");
    let output = server.end();
    assert!(output.status.success());
    let lines: Vec<String> =
        String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect();
    let event = &events(&lines)[0];
    assert_eq!(
        (&event["event"], &event["protocol"], &event["address"]),
        (&"server_started".into(), &"fuse".into(), &"m".into())
    );
}
