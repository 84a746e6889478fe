//! Commands on volumes that `uringfs serve` has open, mounted or not.

use super::serve::Server;
use super::{command, run, run_ok, volume, write};
use crate::process::{ChildProcess, tool, wait_until};
use crate::root::as_root;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::thread;

/// The output of a command that must succeed, and that finds the servers of this folder.
fn asks(folder: &Path, arguments: &[&str]) -> String {
    let mut command = command(folder, arguments);
    let output = ChildProcess::start(command.env("XDG_RUNTIME_DIR", folder)).end();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Expects that a command fails with this in its error.
fn asks_in_vain(folder: &Path, arguments: &[&str], part: &str) {
    let mut command = command(folder, arguments);
    let output = ChildProcess::start(command.env("XDG_RUNTIME_DIR", folder)).end();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains(part), "{text}");
}

/// Writes a block of a disk.
fn write_block(uri: &str, byte: u8) {
    let script = format!("h.connect_uri(uri); h.pwrite(bytes([{byte}]) * 4096, 0); h.flush()");
    tool("/usr/bin/python3", &["-m", "nbd", "-c", &format!("uri = '{uri}'"), "-c", &script]);
}

#[test]
fn commands_reach_a_volume_whose_files_are_disks() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/disk"]);
    write(folder, "source", "content");
    let mut server = Server::start(folder, &["v:/disk", "--unix", "nbd"]);
    let uri = server.uri();
    assert_eq!(asks(folder, &["ls", "v:/"]), "disk\n");
    asks(folder, &["put", "-q", "source", "v:/new"]);
    asks(folder, &["put", "-q", "source", "v:/more"]);
    asks(folder, &["mv", "v:/more", "v:/moved"]);
    assert_eq!(asks(folder, &["ls", "v:/"]), "disk\nmoved\nnew\n");
    asks(folder, &["get", "-q", "v:/new", "copy"]);
    assert_eq!(fs::read(folder.join("copy")).unwrap(), b"content");
    write_block(&uri, 7);
    assert_eq!(asks(folder, &["cat", "v:/disk"]).as_bytes()[..4096], [7; 4096]);
    assert!(asks(folder, &["df", "--json", "v"]).contains("33554432"));
    assert!(asks(folder, &["counters", "v"]).contains("commits"));
    let info: serde_json::Value =
        serde_json::from_str(&asks(folder, &["info", "--json", "v"])).unwrap();
    assert!(info.to_string().contains("\"mount\":null"), "{info}");
    asks(folder, &["check", "--online", "v"]);
    let image = fs::File::options().write(true).open(folder.join("v")).unwrap();
    image.set_len(64 << 20).unwrap();
    asks(folder, &["resize", "-q", "v", "max"]);
    assert!(asks(folder, &["df", "--json", "v"]).contains("67108864"));
    // It holds back the disk, too.
    asks(folder, &["ctl", "freeze", "v"]);
    let writer = {
        let uri = uri.clone();
        thread::spawn(move || write_block(&uri, 8))
    };
    assert_eq!(asks(folder, &["cat", "v:/disk"]).as_bytes()[..4096], [7; 4096]);
    asks(folder, &["ctl", "thaw", "v"]);
    writer.join().unwrap();
    asks_in_vain(folder, &["ctl", "thaw", "v"], "is not frozen");
    // The end does not wait for a freeze.
    asks(folder, &["ctl", "freeze", "--timeout=3600", "v"]);
    server.stop();
    assert_eq!(run(folder, ["cat", "v:/disk"]).stdout[..4096], [8; 4096]);
    assert_eq!(run_ok(folder, ["cat", "v:/moved"]), "content");
    run_ok(folder, ["check", "v"]);
}

#[test]
fn a_volume_that_is_served_for_reading_is_not_changed() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/disk"]);
    write(folder, "source", "content");
    let mut server = Server::start(folder, &["v:/disk", "--unix", "nbd", "--read-only"]);
    server.uri();
    assert_eq!(asks(folder, &["ls", "v:/"]), "disk\n");
    asks_in_vain(folder, &["put", "source", "v:/new"], "v:/: Read-only file system");
    server.stop();
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "disk\n");
}

#[test]
fn a_target_that_is_served_as_one_file_is_no_volume_for_commands() {
    let folder = volume();
    let folder = folder.path();
    let mut server = Server::start(folder, &["v", "--unix", "nbd"]);
    server.uri();
    asks_in_vain(folder, &["ls", "v:/"], "another program has the volume open");
    asks_in_vain(folder, &["ctl", "freeze", "v"], "another program has the volume open");
    server.stop();
}

const DISKS: &str = "[[nbd]]\nunix = \"nbd\"\ntargets = [\"v:/disk\"]\n";

#[test]
fn each_volume_of_a_configuration_is_named_by_its_commands() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "-q", "w", "--size", "48M"]);
    for name in ["v", "w"] {
        run_ok(folder, ["truncate", "-s", "1M", &format!("{name}:/disk")]);
        write(folder, "source", name);
        run_ok(folder, ["put", "-q", "source", &format!("{name}:/name")]);
    }
    let other = "[[nbd]]\nunix = \"other\"\ntargets = [\"w:/disk\"]\n";
    write(folder, "serve.toml", format!("{DISKS}{other}"));
    let mut server = Server::serve(folder, &["--config", "serve.toml"]);
    let uri = server.uri();
    server.uri();
    for name in ["v", "w"] {
        assert_eq!(asks(folder, &["cat", &format!("{name}:/name")]), name);
    }
    asks(folder, &["ctl", "freeze", "w"]);
    write_block(&uri, 7);
    // Without its disks the volume is closed, and a command opens it.
    asks(folder, &["ctl", "thaw", "w"]);
    write(folder, "serve.toml", DISKS);
    asks(folder, &["ctl", "reload", "serve.toml"]);
    assert_eq!(run_ok(folder, ["cat", "w:/name"]), "w");
    asks_in_vain(folder, &["ctl", "freeze", "w"], "neither mounted nor served");
    assert_eq!(asks(folder, &["cat", "v:/name"]), "v");
    server.stop();
}

/// The metrics at the socket in a folder.
fn page(folder: &Path) -> String {
    let mut stream = UnixStream::connect(folder.join("metrics")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn the_end_does_not_wait_for_a_freeze_that_holds_up_a_reload() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/disk"]);
    write(folder, "serve.toml", format!("metrics = \"./metrics\"\n{DISKS}"));
    let notified = UnixDatagram::bind(folder.join("notify")).unwrap();
    let mut serve = command(folder, ["serve", "--config", "serve.toml"]);
    serve.env("NOTIFY_SOCKET", folder.join("notify")).env("XDG_RUNTIME_DIR", folder);
    let mut server = Server::spawn(&mut serve);
    let uri = server.uri();
    assert_eq!(notified.recv(&mut [0; 256]).unwrap(), b"READY=1\n".len());
    asks(folder, &["ctl", "freeze", "--timeout=3600", "v"]);
    let writer = thread::spawn(move || write_block(&uri, 7));
    wait_until("the disk has a client", || {
        page(folder)
            .lines()
            .any(|line| line.starts_with("uringfs_disk_connections{") && line.ends_with(" 1"))
    });
    write(folder, "serve.toml", "");
    let mut reload = command(folder, ["ctl", "reload", "serve.toml"]);
    let mut reload = reload.env("XDG_RUNTIME_DIR", folder).spawn().unwrap();
    let mut bytes = [0; 256];
    let length = notified.recv(&mut bytes).unwrap();
    assert!(bytes[..length].starts_with(b"RELOADING=1"));
    server.stop();
    reload.wait().unwrap();
    // It was answered, or its connection was closed before.
    let _ = writer.join();
    run_ok(folder, ["check", "v"]);
}

#[test]
fn as_root_a_mounted_volume_beside_disks_is_reached_too() {
    if !as_root() {
        return;
    }
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "-q", "w", "--size", "32M"]);
    run_ok(folder, ["truncate", "-s", "1M", "v:/disk"]);
    write(folder, "source", "content");
    fs::create_dir(folder.join("m")).unwrap();
    let mount = "[[mount]]\ntarget = \"w\"\ndirectory = \"m\"\n";
    write(folder, "serve.toml", format!("{DISKS}{mount}"));
    let mut server = Server::serve(folder, &["--config", "serve.toml"]);
    server.uri();
    assert_eq!(server.line(), "m");
    for name in ["v", "w"] {
        asks(folder, &["put", "-q", "source", &format!("{name}:/new")]);
    }
    assert_eq!(asks(folder, &["ls", "v:/"]), "disk\nnew\n");
    assert_eq!(asks(folder, &["ls", "w:/"]), "new\n");
    assert_eq!(fs::read(folder.join("m/new")).unwrap(), b"content");
    assert!(asks(folder, &["info", "w"]).contains("mounted on"));
    assert!(!asks(folder, &["info", "v"]).contains("mounted on"));
    asks(folder, &["ctl", "freeze", "v"]);
    write(folder, "m/other", "content");
    asks(folder, &["ctl", "thaw", "v"]);
    write(folder, "serve.toml", DISKS);
    asks(folder, &["ctl", "reload", "serve.toml"]);
    wait_until("the volume is free", || run(folder, ["cat", "w:/other"]).stdout == b"content");
    server.stop();
    run_ok(folder, ["check", "v"]);
    run_ok(folder, ["check", "w"]);
}
