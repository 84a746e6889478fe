//! `serve`.

use super::{command, refused, run, run_ok, volume, write};
use crate::process::tool;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

/// A server, which is killed with the test.
pub struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    pub fn start(folder: &Path, arguments: &[&str]) -> Server {
        Server::serve(folder, &[&["nbd"], arguments].concat())
    }

    pub fn serve(folder: &Path, arguments: &[&str]) -> Server {
        let mut command = command(folder, [&["serve"], arguments].concat());
        // Where the control sockets of ordinary users are.
        command.env("XDG_RUNTIME_DIR", folder);
        Server::spawn(&mut command)
    }

    pub fn spawn(command: &mut Command) -> Server {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Server { child, stdout }
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next URI that it prints.
    pub fn uri(&mut self) -> String {
        let line = self.line();
        assert!(line.starts_with("nbd"), "{line:?}");
        line
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Stops it, and expects that it succeeds.
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_file_of_a_volume_is_a_disk() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "8M", "v:/disk"]);
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 99) as u8).collect();
    write(folder, "source", &bytes);
    let mut server = Server::start(folder, &["v:/disk", "--unix", "socket"]);
    let uri = server.uri();
    let mode = fs::metadata(folder.join("socket")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let source = folder.join("source");
    tool("nbdcopy", &["--flush", source.to_str().unwrap(), &uri]);

    server.stop();
    assert!(!folder.join("socket").exists());
    let content = run(folder, ["cat", "v:/disk"]).stdout;
    assert!(content.len() == 8 << 20 && content[..bytes.len()] == bytes);
}

#[test]
fn a_whole_image_and_memory_are_disks_on_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "image", vec![7; 1 << 20]);
    let mut server =
        Server::start(folder, &["image", "memory:1M", "--tcp", "127.0.0.1:0", "--read-only"]);
    let (image, memory) = (server.uri(), server.uri());
    assert!(image.starts_with("nbd://127.0.0.1:") && image.ends_with("/image"), "{image}");
    assert!(memory.ends_with("/memory%3A1M"), "{memory}");
    let copy = folder.join("copy");
    tool("nbdcopy", &[&image, copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == vec![7; 1 << 20]);
    assert_eq!(tool("nbdinfo", &["--size", &memory]), "1048576\n");
    assert_eq!(tool("nbdinfo", &["--is", "readonly", &image]), "");
    // Readers share it, and keep writers out.
    refused(folder, ["serve", "nbd", "image", "--unix", "s"], "another program has");
    let mut second = Server::start(folder, &["image", "--unix", "s", "--read-only"]);
    second.uri();
    second.stop();
    server.stop();
}

#[test]
fn a_whole_export_of_another_server_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "image", vec![7; 64 << 20]);
    let mut origin = Server::start(folder, &["image", "--unix", "origin"]);
    let uri = origin.uri();
    let mut server = Server::start(folder, &[&uri, "--name", "disk", "--unix", "first"]);
    let disk = server.uri();
    // Also by another name, over another protocol, and for what writes without serving.
    let relative = "nbd+unix:///image?socket=origin";
    for arguments in [
        &["serve", "nbd", relative, "--unix", "second"][..],
        &["serve", "nbd", relative, "--unix", "second", "--read-only"],
        &["serve", "vhost-user-blk", relative, "--socket", "second"],
        &["mkfs", "--force", relative],
        &["wipe", relative],
        &["put", "image", "nbd+unix:///image?socket=origin:/"],
    ] {
        let output = run(folder, arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.lines().count() == 1, "{arguments:?}: {errors}");
        assert!(errors.contains("another program has"), "{arguments:?}: {errors}");
        assert!(errors.contains("(uringfs, process "), "{arguments:?}: {errors}");
        assert!(!folder.join("second").exists());
    }
    tool("nbdinfo", &[&disk]);
    server.stop();
    // Readers share it, and keep writers out.
    let readers = ["first", "second"].map(|socket| {
        let arguments = [&uri, "--name", "disk", "--unix", socket, "--read-only"];
        let mut server = Server::start(folder, &arguments);
        server.uri();
        server
    });
    refused(folder, ["serve", "nbd", relative, "--unix", "third"], "another program has");
    readers.into_iter().for_each(Server::stop);
    run_ok(folder, ["mkfs", "--force", relative]);
    refused(folder, ["wipe", "image"], "another program has");
    run_ok(folder, ["wipe", relative]);
    origin.stop();
}

#[test]
fn all_files_of_a_directory_are_disks() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkdir", "v:/disks", "v:/disks/directory"]);
    run_ok(folder, ["truncate", "-s", "1M", "v:/disks/a", "v:/disks/b"]);
    let mut server = Server::start(folder, &["v:/disks", "--all", "--unix", "socket"]);
    let (a, b) = (server.uri(), server.uri());
    assert!(a.contains("///a?") && b.contains("///b?"), "{a} {b}");
    let list = tool("nbdinfo", &["--list", &a]);
    assert!(list.contains("description: v:/disks/b"), "{list}");
    server.stop();
    refused(folder, ["serve", "nbd", "v:/disks", "--unix", "s"], "--all serves the files in it");
    let none = ["serve", "nbd", "v:/disks/directory", "--all", "--unix", "s"];
    refused(folder, none, "has no files to serve");
    assert!(!folder.join("s").exists());
}

#[test]
fn what_is_in_the_way_is_named() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/disk"]);
    let nbd = |arguments: &[&'static str]| [&["serve", "nbd", "v:/disk"], arguments].concat();
    write(folder, "file", "content");
    refused(folder, nbd(&["--unix", "file"]), "exists, and is no socket");
    assert_eq!(fs::read(folder.join("file")).unwrap(), b"content");
    let listener = UnixListener::bind(folder.join("taken")).unwrap();
    refused(folder, nbd(&["--unix", "taken"]), "another server listens there");
    drop(listener);
    // Now it is what a killed server has left.
    let mut server = Server::start(folder, &["v:/disk", "--unix", "taken"]);
    server.uri();
    refused(folder, nbd(&["--unix", "other"]), "another program has the volume open");
    refused(folder, ["serve", "nbd", "v", "--unix", "other"], "another program has");
    server.stop();
    // Another server's socket stays.
    let mut server = Server::start(folder, &["v:/disk", "--unix", "replaced"]);
    server.uri();
    fs::remove_file(folder.join("replaced")).unwrap();
    let other = UnixListener::bind(folder.join("replaced")).unwrap();
    server.stop();
    assert!(folder.join("replaced").exists());
    drop(other);
    refused(folder, nbd(&["--tcp", "0.0.0.0:0"]), "or --insecure");
    let tls = ["--tcp", "0.0.0.0:0", "--tls-cert", "no.pem", "--tls-key", "no.pem"];
    refused(folder, nbd(&tls), "no.pem: No such file");
    refused(folder, nbd(&["--tcp", "127.0.0.1:nbd:1"]), "write HOST:PORT");
    refused(folder, nbd(&["v:/other", "--unix", "s"]), "does not exist");
    refused(folder, nbd(&["v:/disk", "--unix", "s"]), "has the name \"disk\" already");
    refused(folder, nbd(&["v:/disk", "--name", "a", "--unix", "s"]), "--name");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = port.local_addr().unwrap().to_string();
    refused(folder, ["serve", "nbd", "v:/disk", "--tcp", &taken], "Address already in use");
}

/// Writes are acknowledged and flushed while the server is killed.
#[test]
fn a_killed_server_loses_nothing_that_was_flushed() {
    const SCRIPT: &str = "
h.connect_uri(uri)
n = 0
while True:
    h.pwrite(n.to_bytes(8, 'big') * 512, n % 512 * 4096)
    h.flush()
    print(n, flush=True)
    n += 1
";
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "2M", "v:/disk"]);
    let mut server = Server::start(folder, &["v:/disk", "--unix", "socket"]);
    let uri = server.uri();
    let mut client = Command::new("/usr/bin/python3")
        .args(["-m", "nbd", "-c", &format!("uri = '{uri}'"), "-c", SCRIPT])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let mut flushed: Vec<u64> =
        lines.by_ref().take(700).map(|line| line.unwrap().parse().unwrap()).collect();
    server.signal(Signal::SIGKILL);
    flushed.extend(lines.map(|line| line.unwrap().parse::<u64>().unwrap()));
    client.wait().unwrap();
    drop(server);
    assert!(flushed.len() >= 700);
    run_ok(folder, ["check", "v"]);
    let content = run(folder, ["cat", "v:/disk"]).stdout;
    for number in flushed.iter().rev().take(512) {
        let at = (number % 512 * 4096) as usize;
        let found = u64::from_be_bytes(content[at..at + 8].try_into().unwrap());
        // The next round may have begun to overwrite it.
        assert!(found == *number || found == number + 512, "{found} at {number}");
    }
}

#[test]
fn a_server_with_clients_that_stall_stops() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut server = Server::start(folder, &["memory:64M", "--unix", "s", "--tcp", "127.0.0.1:0"]);
    let (_, tcp) = (server.uri(), server.uri());
    let address = tcp.strip_prefix("nbd://").unwrap().split('/').next().unwrap().to_owned();
    let mut greeting = [0; 18];
    // One has sent nothing, one half an option.
    let mut first = UnixStream::connect(folder.join("s")).unwrap();
    first.read_exact(&mut greeting).unwrap();
    let mut second = TcpStream::connect(address).unwrap();
    second.read_exact(&mut greeting).unwrap();
    second.write_all(&[0, 0, 0, 3, b'I', b'H', b'A']).unwrap();
    let ends =
        [thread::spawn(move || first.read(&mut [0])), thread::spawn(move || second.read(&mut [0]))];
    server.stop();
    for end in ends {
        assert!(matches!(end.join().unwrap(), Ok(0) | Err(_)));
    }
}

/// A group that a socket of the user of the tests can have.
pub fn other_group() -> u32 {
    match nix::unistd::geteuid().is_root() {
        true => 65534,
        false => nix::unistd::getgid().as_raw(),
    }
}

#[test]
fn a_socket_gets_its_group_and_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let group = other_group();
    let disk = ["memory:1M", "--mode", "660", "--group", &group.to_string()];
    for (command, option) in [("nbd", "--unix"), ("vhost-user-blk", "--socket")] {
        let mut server = Server::serve(folder, &[&[command, option, "s"], &disk[..]].concat());
        server.line();
        let found = fs::metadata(folder.join("s")).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (0o660, group), "{command}");
        server.stop();
        let none = ["serve", command, "memory:1M", option, "s", "--group", "no such group"];
        let output = run(folder, none);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains("unknown group"), "{text}");
    }
}
