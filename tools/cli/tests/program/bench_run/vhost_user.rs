//! The engine `vhost-user`, on disks that `uringfs serve vhost-user-blk` serves.

use super::{bench, folder, json_of, refused};
use crate::volume::serve::Server;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

const DISK_BYTES: usize = 1 << 20;

/// A server of the image `name`, at the socket `name.sock`.
fn serve(folder: &Path, name: &str, arguments: &[&str]) -> Server {
    fs::write(folder.join(name), vec![0; DISK_BYTES]).unwrap();
    let socket = format!("{name}.sock");
    let fixed = ["vhost-user-blk", name, "--socket", &socket];
    let mut server = Server::serve(folder, &[&fixed[..], arguments].concat());
    assert!(server.line().ends_with(&socket));
    server
}

#[test]
fn blocks_written_over_vhost_user_are_verified_and_on_the_disk() {
    let folder = folder();
    let folder = folder.path();
    // Through a ring that has room for all requests, and through one that has not; with interrupts, and polling.
    for (depth, ways) in [("1", "--hipri=0"), ("32", "--hipri=0"), ("500", "--hipri=1")] {
        let server = serve(folder, "disk", &[]);
        let depth = format!("--iodepth={depth}");
        let keys = ["--name=x", "--engine=vhost-user", "--filename=disk.sock", "--bs=4k", &depth];
        let write = ["--rw=randwrite", "--verify=crc32c", "--loops=2", "--fsync=32", "--overwrite"];
        let json = ["--direct=1", ways, "--output-format=json"];
        let report = json_of(&bench(folder, &[&keys[..], &write, &json].concat()));
        let job = &report["jobs"][0];
        // Each block is written twice, and read back each time.
        assert_eq!(
            (&job["write"]["total_ios"], &job["error"]),
            (&512.into(), &0.into()),
            "{depth}"
        );
        assert!(job["sync"]["total_ios"].as_u64().unwrap() >= 16);
        assert_eq!(job["uringfs"]["queue"], "vhost-user");
        assert!(job["uringfs"]["counters"]["notifications"].as_u64().unwrap() > 0, "{job}");
        let read = ["--rw=randread", "--verify=crc32c", "--direct=1", ways];
        let output = bench(folder, &[&keys[..], &read].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        server.stop();
        let image = fs::read(folder.join("disk")).unwrap();
        assert!(image.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
    }
}

#[test]
fn each_thread_has_a_server_of_its_own() {
    let folder = folder();
    let folder = folder.path();
    let servers = [serve(folder, "a", &[]), serve(folder, "b", &["--read-only"])];
    let job = "[global]\nbs=4k\nsize=64k\niodepth=4\n[a]\nrw=randwrite\nfilename=a.sock\n[b]\nrw=randread\nfilename=b.sock\n";
    fs::write(folder.join("job"), job).unwrap();
    let keys = ["job", "--engine=vhost-user", "--overwrite", "--output-format=json"];
    let report = json_of(&bench(folder, &keys));
    assert_eq!(report["jobs"][0]["write"]["total_ios"], 16);
    assert_eq!(report["jobs"][1]["read"]["total_ios"], 16);
    servers.into_iter().for_each(Server::stop);
}

#[test]
fn what_is_no_disk_of_a_server_is_named() {
    let folder = folder();
    let folder = folder.path();
    let server = serve(folder, "disk", &["--read-only"]);
    fs::write(folder.join("file"), vec![0; DISK_BYTES]).unwrap();
    drop(UnixListener::bind(folder.join("left")).unwrap());
    let run = |target: &str, way: &str, part: &str| {
        let (target, way) = (format!("--filename={target}"), format!("--rw={way}"));
        let keys = ["--name=x", "--engine=vhost-user", "--bs=4k", &target, &way];
        refused(folder, &keys, part);
    };
    run("none", "read", "none: there is no such socket; start the server first");
    run("file", "read", "file: is no socket");
    run("left", "read", "left: no server listens there");
    run("null:1m", "read", "no virtual targets");
    run("disk.sock", "write", "disk.sock: holds the disk of a server; --overwrite destroys it");
    let keys = ["--name=x", "--engine=vhost-user", "--rw=write", "--bs=4k", "--overwrite"];
    refused(folder, &[&keys[..], &["--filename=disk.sock"]].concat(), "is read-only");
    let keys = ["--name=x", "--engine=vhost-user", "--rw=read", "--bs=4k"];
    refused(folder, &[&keys[..], &["--filename=disk.sock:disk.sock"]].concat(), "name one socket");
    refused(
        folder,
        &[&keys[..], &["--filename=disk.sock", "--bs=1000"]].concat(),
        "multiples of 512",
    );
    let keys = ["--name=x", "--rw=read", "--filename=disk.sock"];
    refused(folder, &keys, "disk.sock: is a socket; --engine vhost-user reaches the disk");
    server.stop();
}
