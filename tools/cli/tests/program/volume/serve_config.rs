//! `serve --config`, and `ctl reload`.

#[path = "../../../../../exports/nbd/tests/harness/certificates.rs"]
mod certificates;

use super::serve::Server;
use super::serve_vhost_user_blk::front_end::feature;
use super::serve_vhost_user_blk::front_end::{Driver, FLUSH, Queue, READ, WRITE_OUT, data_at};
use super::{command, run, run_ok, volume, write};
use crate::process::{ChildProcess, tool, wait_until};
use crate::root::{as_root, is_root};
use certificates::certificates;
use nix::sys::signal::Signal;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn serve(folder: &Path, config: &str) -> Server {
    write(folder, "serve.toml", config);
    Server::serve(folder, &["--config", "serve.toml"])
}

fn reload(folder: &Path) -> Output {
    let mut command = command(folder, ["ctl", "reload", "serve.toml"]);
    ChildProcess::start(command.env("XDG_RUNTIME_DIR", folder)).end()
}

fn reload_with(folder: &Path, config: &str) {
    write(folder, "serve.toml", config);
    let output = reload(folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Expects that the file is refused with one line.
fn refused_with(folder: &Path, config: &str, line: &str) {
    write(folder, "serve.toml", config);
    let output = reload(folder);
    let found = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && found.lines().count() == 1, "{found}");
    assert!(found.contains(line), "{found}");
}

fn disk_driver(folder: &Path, socket: &str) -> Driver {
    Driver::new(&folder.join(socket), feature::FLUSH, Queue::split(0, 64))
}

/// A client of the disk `a` at the socket `nbd` that writes one block after the other, until it is killed or fails.
fn busy_client(uri: &str) -> (ChildProcessWithLines, impl FnMut() -> u64) {
    const SCRIPT: &str = "
h.connect_uri(uri)
n = 0
while True:
    h.pwrite(n.to_bytes(8, 'big') * 512, n % 16 * 4096)
    print(n, flush=True)
    n += 1
";
    let mut client = Command::new("/usr/bin/python3");
    client.args(["-m", "nbd", "-c", &format!("uri = '{uri}'"), "-c", SCRIPT]);
    let mut child = client.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let next = move || lines.next().expect("the client goes on").unwrap().parse().unwrap();
    (ChildProcessWithLines(child), next)
}

struct ChildProcessWithLines(std::process::Child);

impl Drop for ChildProcessWithLines {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const NBD: &str = "[[nbd]]\nunix = \"nbd\"\ntargets = [\"v:/a\"]\n";
const GUEST: &str = "[[vhost-user-blk]]\nsocket = \"b\"\ntarget = \"v:/b\"\n";

#[test]
fn disks_come_and_go_while_others_are_busy() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/a", "v:/b", "v:/c"]);
    write(folder, "image", vec![7; 1 << 20]);
    let mut server = serve(folder, &format!("{NBD}{GUEST}"));
    let uri = server.uri();
    assert!(server.line().ends_with("/b"));
    let (_client, mut next) = busy_client(&uri);
    let mut guest = disk_driver(folder, "b");
    let begun = next();

    // Another file of the same volume by the same server, and an image by a new one.
    let more = NBD.replace("\"v:/a\"", "\"v:/c\", \"v:/a\"");
    let image = "[[nbd]]\nunix = \"image.sock\"\ntargets = [\"image\"]\nread-only = true\n";
    reload_with(folder, &format!("{more}{image}{GUEST}"));
    let (added, image_uri) = (server.uri(), server.uri());
    assert!(added.contains("///c?") && image_uri.contains("///image?"), "{added} {image_uri}");
    assert_eq!(tool("nbdinfo", &["--size", &added]), "1048576\n");
    assert_eq!(tool("nbdinfo", &["--is", "readonly", &image_uri]), "");
    guest.memory.write(data_at(0), &[9; 4096]);
    assert_eq!(guest.run(WRITE_OUT, 0, 4096).0, 0);

    // They go again, by a signal.
    write(folder, "serve.toml", format!("{GUEST}{NBD}"));
    server.signal(Signal::SIGHUP);
    wait_until("the image is closed", || !folder.join("image.sock").exists());
    wait_until("the image is free", || {
        fs::File::open(folder.join("image")).unwrap().try_lock().is_ok()
    });
    let list = tool("nbdinfo", &["--list", "--json", &uri]);
    assert!(list.contains("\"a\"") && !list.contains("\"c\""), "{list}");
    assert_eq!(guest.run(FLUSH, 0, 0).0, 0);
    assert_eq!(guest.run(READ, 0, 4096).0, 0);
    assert_eq!(guest.memory.read(data_at(0), 4096), [9; 4096]);
    let now = next();
    assert!(now > begun, "the client has one connection all the time");

    // The last disk of the volume closes it.
    drop(guest);
    reload_with(folder, "");
    assert!(!folder.join("nbd").exists() && !folder.join("b").exists());
    assert_eq!(run(folder, ["cat", "v:/b"]).stdout[..4096], [9; 4096]);
    server.stop();
}

#[test]
fn a_reload_tells_a_guest_that_its_disk_has_grown() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "image", vec![7; 1 << 20]);
    let config = "[[vhost-user-blk]]\nsocket = \"s\"\ntarget = \"image\"\n";
    let mut server = serve(folder, config);
    server.line();
    let mut guest = disk_driver(folder, "s");
    let last = (2 << 20) / 512 - 8;
    assert_ne!(guest.run(READ, last, 4096).0, 0);
    let image = fs::File::options().write(true).open(folder.join("image")).unwrap();
    image.set_len(2 << 20).unwrap();
    reload_with(folder, config);
    assert_eq!(guest.run(READ, last, 4096).0, 0);
    drop(guest);
    server.stop();
}

#[test]
fn an_error_in_the_file_changes_nothing() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/a", "v:/b"]);
    write(folder, "image", vec![7; 1 << 20]);
    write(folder, "file", "content");
    let mut server = serve(folder, NBD);
    let uri = server.uri();
    let (_client, mut next) = busy_client(&uri);
    let image = "[[nbd]]\nunix = \"i\"\ntargets = [\"image\"]\n";
    for (config, line) in [
        ("[[nbd]\n".to_owned(), "serve.toml:1: "),
        (format!("{GUEST}sockets = 1\n"), "serve.toml:4: sockets: unknown field `sockets`"),
        (format!("{image}mode = \"9\"\n"), "serve.toml:4: mode: write up to three octal digits"),
        (format!("{image}tls-key = \"k\"\n"), "serve.toml:4: tls-key: only with --tls-cert"),
        (format!("{NBD}{NBD}"), "serve.toml:5: unix: nbd stands in this file already"),
        // Entries that fail when they are opened, after others have been.
        (
            format!("{image}{GUEST}[[nbd]]\nunix = \"x\"\ntargets = [\"v:/x\"]\n"),
            "serve.toml:9: targets: v:/x",
        ),
        (
            format!("{image}{}", GUEST.replace("\"b\"", "\"file\"")),
            "serve.toml:5: socket: file: exists",
        ),
        (format!("{GUEST}{}", image.replace("image", "v")), "this server has it open as a volume"),
        (format!("{image}tcp = \"0.0.0.0:0\"\n"), "serve.toml:4: tcp: 0.0.0.0:0: every program"),
        (format!("{NBD}mode = \"660\"\n"), "its socket keeps its mode"),
        (format!("{image}[[ublk]]\ntarget = \"v:/x\"\n"), "serve.toml:5: target: v:/x"),
    ] {
        refused_with(folder, &config, line);
        assert!(!folder.join("i").exists() && !folder.join("b").exists(), "{config}");
        fs::File::open(folder.join("image")).unwrap().try_lock().expect("the image is closed");
        assert!(tool("nbdinfo", &["--list", &uri]).contains("export=\"a\""), "{config}");
        next();
    }
    let longer = format!("{NBD}#{}", "x".repeat(1 << 20));
    refused_with(folder, &longer, "serve.toml: is longer than");
    fs::remove_file(folder.join("serve.toml")).unwrap();
    assert!(!reload(folder).status.success());
    // It takes the next change.
    reload_with(folder, &format!("{NBD}{GUEST}"));
    assert!(server.line().ends_with("/b"));
    next();
    server.stop();
    assert_eq!(fs::read(folder.join("file")).unwrap(), b"content");
    for (config, line) in [
        ("", "no server was started with it"),
        ("[[disk]]\n", "serve.toml:1: disk: unknown field `disk`"),
    ] {
        write(folder, "serve.toml", config);
        let output = match config {
            "" => reload(folder),
            _ => run(folder, ["serve", "--config", "serve.toml"]),
        };
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(line), "{text}");
    }
}

#[test]
fn an_option_that_changes_restarts_its_server_alone() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["truncate", "-s", "1M", "v:/a", "v:/b"]);
    let mut server = serve(folder, &format!("{NBD}{GUEST}"));
    let uri = server.uri();
    server.line();
    let (_client, mut next) = busy_client(&uri);
    let mut guest = disk_driver(folder, "b");
    assert_eq!(guest.run(WRITE_OUT, 0, 512).0, 0);
    // The next server listens at the same socket.
    reload_with(folder, &format!("{NBD}{GUEST}serial = \"new\"\nread-only = true\n"));
    assert!(guest.front_end.is_closed());
    let mut guest = disk_driver(folder, "b");
    assert_eq!(guest.run(WRITE_OUT, 0, 512).0, 1);
    assert_eq!(guest.run(READ, 0, 512).0, 0);
    next();
    server.stop();
}

#[test]
fn a_signal_that_comes_while_disks_are_opened_leaves_no_socket() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "image", vec![7; 1 << 20]);
    let mut origin = Server::start(folder, &["image", "--unix", "origin"]);
    let uri = origin.uri();
    // It lets clients connect, and says nothing.
    origin.signal(Signal::SIGSTOP);
    let first = "[[nbd]]\nunix = \"first\"\ntargets = [\"memory:1M\"]\n";
    let server = serve(folder, &format!("{first}[[nbd]]\nunix = \"s\"\ntargets = [\"{uri}\"]\n"));
    wait_until("the first disk is there", || folder.join("first").exists());
    server.signal(Signal::SIGTERM);
    origin.signal(Signal::SIGCONT);
    server.stop();
    assert!(!folder.join("first").exists() && !folder.join("s").exists());
    origin.stop();
}

#[test]
fn a_reload_takes_a_renewed_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for name in ["old", "new"] {
        // Clients know the authority, and have no certificate.
        fs::create_dir_all(folder.join(name).join("client")).unwrap();
        certificates(&folder.join(name));
        let authority = folder.join(name).join("ca-cert.pem");
        fs::copy(authority, folder.join(name).join("client/ca-cert.pem")).unwrap();
    }
    let renew = |from: &str| {
        for name in ["server-cert.pem", "server-key.pem"] {
            fs::copy(folder.join(from).join(name), folder.join(name)).unwrap();
        }
    };
    renew("old");
    let config = "[[nbd]]\ntcp = \"127.0.0.1:0\"\ntargets = [\"memory:1M\"]\n\
        tls-cert = \"server-cert.pem\"\ntls-key = \"server-key.pem\"\n";
    let mut server = serve(folder, config);
    let uri = server.uri();
    let is_trusted_by = |client: &str| {
        let uri = format!("{uri}?tls-certificates={}/{client}/client", folder.display());
        Command::new("nbdinfo").args(["--size", &uri]).output().unwrap().status.success()
    };
    assert!(is_trusted_by("old") && !is_trusted_by("new"));
    renew("new");
    assert!(is_trusted_by("old"), "the files are not read again before");
    reload_with(folder, config);
    assert!(is_trusted_by("new") && !is_trusted_by("old"));
    write(folder, "server-cert.pem", "");
    refused_with(folder, config, "serve.toml:4: tls-cert: server-cert.pem: has no certificate");
    assert!(is_trusted_by("new"));
    server.stop();
}

#[test]
fn only_the_owner_reloads() {
    if !as_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    write(folder, "serve.toml", "[[nbd]]\nunix = \"s\"\ntargets = [\"memory:1M\"]\n");
    // Another user does not learn where the server's relative paths begin.
    let config = folder.join("serve.toml");
    let mut server = Server::serve(folder, &["--config", config.to_str().unwrap()]);
    server.uri();
    // The program itself may be where only root can run it.
    let program = folder.join("program");
    fs::copy(env!("CARGO_BIN_EXE_uringfs"), &program).unwrap();
    let mut other = Command::new("/usr/bin/setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    other.args(["ctl", "reload", "serve.toml"]).current_dir(folder);
    let output = other.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("of this user"), "{text}");
    reload_with(folder, "");
    server.stop();
}

/// Runs a command with sockets that it gets from this script, as systemd passes them.
const ACTIVATE: &str = "
import os, socket, sys
sockets = []
for path in sys.argv[1].split(','):
    if path == 'tcp':
        sockets.append(socket.create_server(('127.0.0.1', 0)))
    else:
        sockets.append(socket.socket(socket.AF_UNIX))
        sockets[-1].bind(os.path.abspath(path))
        sockets[-1].listen()
for number, passed in enumerate(sockets):
    os.dup2(passed.fileno(), 20 + number)
for number in range(len(sockets)):
    os.dup2(20 + number, 3 + number, inheritable=True)
port = str(sockets[-1].getsockname()[1])
os.environ |= {'LISTEN_FDS': str(len(sockets)), 'LISTEN_PID': str(os.getpid())}
os.execv(sys.argv[2], [word.replace('PORT', port) for word in sys.argv[2:]])
";

#[test]
fn sockets_that_systemd_passes_are_used_and_stay() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let activated = |sockets: &str, arguments: &[&str]| {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", ACTIVATE, sockets, env!("CARGO_BIN_EXE_uringfs"), "serve"]);
        Server::spawn(command.args(arguments).current_dir(folder))
    };
    let at = ["--unix", "one", "--tcp", "127.0.0.1:PORT"];
    let mut server = activated("one,tcp", &[&["nbd", "memory:1M"], &at[..]].concat());
    for uri in [server.uri(), server.uri()] {
        assert_eq!(tool("nbdinfo", &["--size", &uri]), "1048576\n");
    }
    server.stop();
    assert!(folder.join("one").exists());
    write(
        folder,
        "serve.toml",
        "[[vhost-user-blk]]\ntarget = \"memory:1M\"\nsocket = \"two\"\n[[nbd]]\ntargets = [\"memory:1M\"]\nunix = \"own\"",
    );
    let mut server = activated("two,three", &["--config", "serve.toml"]);
    assert!(server.uri().contains("own") && server.line().ends_with("/two"));
    assert_eq!(disk_driver(folder, "two").run(READ, 0, 512).0, 0);
    server.stop();
    assert!(folder.join("two").exists() && !folder.join("own").exists());
}

#[test]
fn the_service_manager_learns_of_each_step() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
    write(folder, "serve.toml", "[[nbd]]\nunix = \"s\"\ntargets = [\"memory:1M\"]\n");
    let mut command = command(folder, ["serve", "--config=serve.toml"]);
    command.env("NOTIFY_SOCKET", folder.join("notify")).env("XDG_RUNTIME_DIR", folder);
    let server = Server::spawn(&mut command);
    let next = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    assert_eq!(next(), "READY=1\n");
    assert!(reload(folder).status.success());
    assert!(next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(next(), "READY=1\n");
    server.stop();
    assert_eq!(next(), "STOPPING=1\n");
}

/// The example of docs/guide/serve.md, with paths of the test.
fn example() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/serve.md");
    let page = fs::read_to_string(page).unwrap();
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    example
        .replace("/srv/disks.img", "v")
        .replace("/dev/disk/by-id/ata-example-part1", "image")
        .replace("/run/uringfs/main/", "")
        .replace("\"127.0.0.1:10810\"", "\"127.0.0.1:0\"")
        .replace("\"127.0.0.1\"", "\"localhost:0\"")
        .replace("group = \"kvm\"", &format!("group = \"{}\"", super::serve::other_group()))
}

#[test]
fn the_example_of_the_guide_is_served() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkdir", "v:/shared"]);
    run_ok(folder, ["truncate", "-s", "1M", "v:/vm1", "v:/vm2", "v:/shared/a", "v:/shared/b"]);
    write(folder, "image", vec![0; 1 << 20]);
    let example = example();
    let disks = example.split("# A mount.").next().unwrap();
    let mut server = serve(folder, disks);
    // Two disks, two of a directory, one of a guest, and the metrics.
    let lines = [(); 6].map(|()| server.line());
    assert!(lines.iter().all(|line| !line.is_empty()), "{lines:?}");
    for line in lines.iter().filter(|line| line.starts_with("nbd")) {
        assert_eq!(tool("nbdinfo", &["--size", line]), "1048576\n");
    }
    server.stop();
    // The rest is right, too, but for its volume, which is not there.
    write(folder, "serve.toml", &example);
    let line = disks.lines().count() + 3;
    let output = run(folder, ["serve", "--config", "serve.toml"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&format!("serve.toml:{line}: target: ")), "{text}");
}

#[test]
fn where_permitted_a_volume_is_mounted_beside_disks() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "w", "--size", "32M"]);
    run_ok(folder, ["truncate", "-s", "1M", "v:/a"]);
    fs::create_dir(folder.join("m")).unwrap();
    let mount = "[[mount]]\ntarget = \"w\"\ndirectory = \"m\"\noptions = [\"noatime\"]\n";
    let mut server = serve(folder, &format!("{NBD}{mount}"));
    let first = server.line();
    if first.is_empty() && !is_root() {
        // Without fusermount3 or /dev/fuse.
        return;
    }
    assert_eq!(server.line(), "m");
    write(folder, "m/file", "content");
    refused_with(folder, &mount.replace("noatime", "noexec"), "serve.toml:3: directory: m: ");
    reload_with(folder, NBD);
    wait_until("the volume is free", || run(folder, ["cat", "w:/file"]).stdout == b"content");
    reload_with(folder, &format!("{NBD}{mount}"));
    assert_eq!(server.line(), "m");
    // Unmounted by another program, it is mounted again by the next reload.
    run_ok(folder, ["umount", "m"]);
    reload_with(folder, &format!("{NBD}{mount}"));
    assert_eq!(server.line(), "m");
    assert_eq!(fs::read(folder.join("m/file")).unwrap(), b"content");
    server.stop();
    assert_eq!(fs::read_dir(folder.join("m")).unwrap().count(), 0);
    run_ok(folder, ["check", "w"]);
}
