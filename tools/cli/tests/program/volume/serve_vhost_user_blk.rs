//! `serve vhost-user-blk`, with the driver of the tests of the crate `uringfs-vhost`.

#[path = "../../../../../exports/vhost/tests/harness/front_end.rs"]
pub mod front_end;

use super::serve::Server;
use super::{refused, run, run_ok, volume, write};
use front_end::{Driver, FLUSH, GET_ID, Queue, READ, WRITE_OUT, data_at, feature};
use nix::sys::signal::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The status of a request that failed.
const FAILED: u8 = 1;

/// A server that is ready.
fn serve(folder: &Path, arguments: &[&str]) -> Server {
    let mut server = Server::serve(folder, &[&["vhost-user-blk"], arguments].concat());
    let line = server.line();
    assert!(Path::new(&line).is_absolute() && Path::new(&line).exists(), "{line:?}");
    server
}

fn driver(folder: &Path) -> Driver {
    Driver::new(&folder.join("s"), feature::FLUSH, Queue::split(0, 64))
}

/// Writes a block, and flushes.
fn write_block(driver: &mut Driver, sector: u64, byte: u8) {
    driver.memory.write(data_at(0), &[byte; 4096]);
    assert_eq!(driver.run(WRITE_OUT, sector, 4096).0, 0);
    assert_eq!(driver.run(FLUSH, 0, 0).0, 0);
}

#[test]
fn a_file_of_a_volume_is_the_disk_of_a_guest() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "8M", "v:/disk"]);
    let server = serve(folder, &["v:/disk", "--socket", "s", "--queues", "2", "--serial", "vm-1"]);
    let mode = fs::metadata(folder.join("s")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut driver = driver(folder);
    assert_eq!(driver.front_end.ask_number(front_end::code::GET_QUEUE_NUM), 2);
    write_block(&mut driver, 8, 7);
    assert_eq!(driver.run(READ, 8, 4096), (0, 4097));
    assert_eq!(driver.memory.read(data_at(0), 4096), [7; 4096]);
    assert_eq!(driver.run(GET_ID, 0, 20).0, 0);
    assert_eq!(driver.memory.read(data_at(0), 5), b"vm-1\0");
    // Its guest is still connected.
    server.stop();
    assert!(!folder.join("s").exists());
    let content = run(folder, ["cat", "v:/disk"]).stdout;
    assert!(content.len() == 8 << 20 && content[4096..8192] == [7; 4096]);
    assert_eq!(content[..4096], [0; 4096]);
}

#[test]
fn the_disk_of_a_killed_server_is_served_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "image", vec![1; 1 << 20]);
    let server = serve(folder, &["image", "--socket", "s", "--pin-memory", "off"]);
    write_block(&mut driver(folder), 0, 2);
    server.signal(Signal::SIGKILL);
    drop(server);
    // Its socket is still there.
    let server = serve(folder, &["image", "--socket", "s", "--packed"]);
    let mut driver = Driver::new(&folder.join("s"), feature::PACKED, Queue::packed(0, 64));
    assert_eq!(driver.run(READ, 0, 4096).0, 0);
    assert_eq!(driver.memory.read(data_at(0), 4096), [2; 4096]);
    server.stop();
}

#[test]
fn a_disk_that_is_read_only_refuses_writes_and_is_shared() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "image", vec![7; 1 << 20]);
    let server = serve(folder, &["image", "--socket", "s", "--read-only"]);
    refused(folder, ["serve", "vhost-user-blk", "image", "--socket", "w"], "another program has");
    let second = serve(folder, &["image", "--socket", "r", "--read-only"]);
    let mut driver = driver(folder);
    assert_eq!(driver.run(WRITE_OUT, 0, 4096).0, FAILED);
    assert_eq!(driver.run(READ, 0, 4096).0, 0);
    second.stop();
    server.stop();
    assert!(fs::read(folder.join("image")).unwrap() == vec![7; 1 << 20]);
}

#[test]
fn what_is_in_the_way_is_named() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/disk"]);
    let at = |target: &'static str, socket: &'static str| {
        ["serve", "vhost-user-blk", target, "--socket", socket]
    };
    write(folder, "file", "content");
    refused(folder, at("v:/disk", "file"), "--socket file: exists, and is no socket");
    let listener = UnixListener::bind(folder.join("taken")).unwrap();
    refused(folder, at("v:/disk", "taken"), "another server listens there");
    drop(listener);
    refused(folder, at("v:/disk", "none/s"), "--socket none/s: No such file");
    refused(folder, at("v:/", "s"), "is a directory; a disk is one file in it");
    refused(folder, at("v:/other", "s"), "does not exist");
    let server = serve(folder, &["v:/disk", "--socket", "taken"]);
    refused(folder, at("v:/disk", "s"), "another program has the volume open");
    refused(folder, at("v", "s"), "another program has");
    server.stop();
    assert!(!folder.join("s").exists());
    let long = [&at("v:/disk", "s")[..], &["--serial", "123456789012345678901"]].concat();
    let output = run(folder, long);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("room for 20"), "{text}");
}
