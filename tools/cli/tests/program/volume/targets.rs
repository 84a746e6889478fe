//! The forms of a target and of a path in its volume, on files and on exports of NBD servers.

use super::mount::{Mounted, umount};
use super::serve::Server;
use super::{refused, run, run_ok, volume, write};
use crate::process::tool;
use crate::root::is_root;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use uringfs::Volume;

/// QEMU's server, which by default has room for one client. It ends with the test.
struct QemuNbd {
    process: Pid,
}

impl QemuNbd {
    fn start(folder: &Path, image: &str, socket: &str, options: &[&str]) -> QemuNbd {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let (socket, pid_file) = (path(socket), path("qemu.pid"));
        let arguments = ["--fork", "--persistent", "--format=raw", "--export-name=disk"];
        let place = [&format!("--socket={socket}")[..], &format!("--pid-file={pid_file}")];
        tool("qemu-nbd", &[&arguments[..], &place, options, &[&path(image)]].concat());
        let process = fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
        QemuNbd { process: Pid::from_raw(process) }
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = kill(self.process, Signal::SIGKILL);
    }
}

#[test]
fn a_file_has_the_same_bytes_by_every_form_of_its_path() {
    let folder = volume();
    let folder = folder.path();
    fs::create_dir(folder.join("a:")).unwrap();
    write(folder, "source", "content");
    run_ok(folder, ["mkdir", "v:/d"]);
    run_ok(folder, ["put", "source", "v:/d/f"]);
    fs::copy(folder.join("v"), folder.join("a:/v")).unwrap();
    let nbd = |place: &[&str]| {
        let mut server =
            Server::start(folder, &[&["a:/v", "--read-only", "--name=v"], place].concat());
        let uri = server.uri();
        (server, uri)
    };
    let (_unix, unix) = nbd(&["--unix", "so cket"]);
    let (_tcp, tcp) = nbd(&["--tcp", "127.0.0.1:0"]);
    let relative = "nbd+unix:///v?socket=so%20cket";
    for (target, path) in [
        ("v", "/d/f"),
        ("./v", "/d/f"),
        ("v", "//d/./f"),
        ("a:/v", "/d/f"),
        (&unix, "/d/f"),
        (&tcp, "/d/f"),
        (relative, "/d/f"),
        (&format!("{relative}&timeout=5"), "/d/f"),
    ] {
        assert_eq!(run_ok(folder, ["cat", &format!("{target}:{path}")]), "content", "{target}");
        assert_eq!(run_ok(folder, ["cat", target, "--path", path]), "content", "{target}");
        assert_eq!(run_ok(folder, ["cat", target, &format!("--path={path}")]), "content");
        assert_eq!(run_ok(folder, ["ls", &format!("{target}:/")]), "d\n", "{target}");
    }
    for root in ["v", "v:", &unix, &tcp, relative] {
        assert_eq!(run_ok(folder, ["ls", root]), "d\n", "{root}");
    }
    refused(folder, ["ls", "a:/v"], "did you mean a:/v:/?");
}

#[test]
fn names_with_colons_need_the_option_path() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "source", "content");
    run_ok(folder, ["mkdir", "v", "--path", "/a:", "v:/b"]);
    run_ok(folder, ["put", "source", "v", "--path", "/a:/f"]);
    run_ok(folder, ["cp", "v", "--path", "/a:/f", "v", "--path", "/b"]);
    assert_eq!(run_ok(folder, ["cat", "v", "--path", "/a:/f", "v:/b/f"]), "contentcontent");
    run_ok(folder, ["get", "v", "--path", "/a:/f", "copy"]);
    assert_eq!(fs::read(folder.join("copy")).unwrap(), b"content");
    assert_eq!(run_ok(folder, ["find", "v", "--path", "/a:", "-type", "f"]), "v:/a:/f\n");
    let mut server =
        Server::start(folder, &["v", "--path", "/a:/f", "--unix", "socket", "--read-only"]);
    assert_eq!(tool("nbdinfo", &["--size", &server.uri()]), "7\n");
    server.stop();
    refused(folder, ["cat", "--path", "/a:/f", "v"], "TARGET --path PATH");
    refused(folder, ["cat", "w", "--path", "/a"], "w: does not exist");
    refused(folder, ["cat", "source", "--path", "/a"], "is a file without a volume");
}

#[test]
fn every_command_works_on_an_export() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "image", vec![0; 64 << 20]);
    write(folder, "source", "content");
    let _server = QemuNbd::start(folder, "image", "socket", &[]);
    let uri = "nbd+unix:///disk?socket=socket";
    let at = |path: &str| format!("{uri}:{path}");
    let created = run_ok(folder, ["mkfs", uri, "--label", "far", "--size", "32M"]);
    assert!(created.contains("created a volume of 32.0 MiB"), "{created}");
    refused(folder, ["mkfs", uri], "holds a uringfs volume; --force destroys it");
    run_ok(folder, ["mkdir", &at("/d")]);
    run_ok(folder, ["put", "source", &at("/d/f")]);
    assert_eq!(run_ok(folder, ["cat", &at("/d/f")]), "content");
    run_ok(folder, ["cp", &at("/d/f"), &at("/g")]);
    run_ok(folder, ["mv", &at("/g"), &at("/d/h")]);
    run_ok(folder, ["ln", &at("/d/h"), &at("/d/i")]);
    run_ok(folder, ["truncate", "-s", "3", &at("/d/i")]);
    run_ok(folder, ["chmod", "600", &at("/d/i")]);
    run_ok(folder, ["touch", &at("/empty")]);
    run_ok(folder, ["xattr", "set", "user.a", "b", &at("/d/f")]);
    assert_eq!(run_ok(folder, ["ls", "-R", uri]), "/:\nd\nempty\n\n/d:\nf\nh\ni\n");
    assert_eq!(
        run_ok(folder, ["find", uri, "-name", "[fh]"]),
        format!("{}\n{}\n", at("/d/f"), at("/d/h"))
    );
    assert!(run_ok(folder, ["du", "-s", uri]).ends_with("\t/\n"));
    assert!(run_ok(folder, ["df", uri]).contains(uri));
    run_ok(folder, ["get", &at("/d/h"), "copy"]);
    assert_eq!(fs::read(folder.join("copy")).unwrap(), b"con");
    run_ok(folder, ["rm", "-r", &at("/d/h"), &at("/d/i")]);
    let info = run_ok(folder, ["info", uri]);
    assert!(info.contains("67108864") && info.contains("far"), "{info}");
    assert_eq!(run_ok(folder, ["label", uri]), "far\n");
    run_ok(folder, ["label", uri, "near"]);
    let resized = run_ok(folder, ["resize", uri]);
    assert!(resized.contains("resized to 64.0 MiB"), "{resized}");
    let checked = run_ok(folder, ["check", uri]);
    assert!(checked.contains("metadata is clean"), "{checked}");
    let read = ["bench", "run", "--name=r", "--rw=randread", "--bs=4k", "--size=1m"];
    run_ok(folder, [&read[..], &[&format!("--filename={uri}")]].concat());
    run_ok(folder, [&read[..], &[&format!("--volume={uri}")]].concat());
    let write = ["bench", "run", "--name=w", "--rw=write", "--bs=4k", "--size=1m"];
    let filename = format!("--filename={uri}");
    refused(folder, [&write[..], &[&filename]].concat(), "--overwrite destroys it");
    assert!(run_ok(folder, ["wipe", uri]).contains("erased the superblocks"));
    refused(folder, ["ls", uri], "not a uringfs volume");
}

#[test]
fn a_volume_on_an_export_has_one_writer() {
    let folder = volume();
    let folder = folder.path();
    // Unlike our own server, it keeps no second writer away.
    let _server = QemuNbd::start(folder, "v", "socket", &["--shared=4"]);
    let uri = format!("nbd+unix:///disk?socket={}", folder.join("socket").display());
    let here = Volume::open(&uri).unwrap();
    let process = format!("process {}", std::process::id());
    for command in [&["ls", &uri][..], &["put", "v", &format!("{uri}:/a")], &["check", &uri]] {
        let output = run(folder, command);
        assert_eq!(output.status.code(), Some(6), "{command:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("has the volume open") && message.contains(&process), "{message}");
    }
    here.close().unwrap();
    assert_eq!(run_ok(folder, ["ls", &uri]), "");
}

#[test]
fn a_volume_on_an_export_is_mounted() {
    if !is_root() {
        return;
    }
    let folder = volume();
    let _server = QemuNbd::start(folder.path(), "v", "socket", &[]);
    let uri = "nbd+unix:///disk?socket=socket";
    let mounted = Mounted::of_target(uri, folder, &[]);
    let folder = mounted.path();
    fs::write(folder.join("m/f"), "content").unwrap();
    // By the socket of its server, since QEMU has room for one client.
    assert_eq!(run_ok(folder, ["cat", &format!("{uri}:/f")]), "content");
    refused(folder, ["check", uri], "has the volume open");
    umount(folder, uri);
    assert_eq!(run_ok(folder, ["ls", uri]), "f\n");
    run_ok(folder, ["mount", uri, "m"]);
    assert_eq!(fs::read(folder.join("m/f")).unwrap(), b"content");
    umount(folder, "m");
}
