//! A `put` that is killed or stopped in the middle of a file leaves the old file.

use super::{command, run, run_ok, volume, write};
use crate::process::{ChildProcess, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::io::ioctl_fionread;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// A `put` that waits for more standard input. Dropping it kills the process.
struct StdinPut(Child);

impl StdinPut {
    /// Starts to put standard input. The process has read several chunks when this returns.
    fn start(folder: &Path, path: &str) -> Self {
        end_children_at_hangup();
        let mut command = command(folder, ["put", "-", path]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let mut put = Self(child);
        put.0.stdin.as_mut().unwrap().write_all(&vec![0xab; 8 << 20]).unwrap();
        put
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }
}

/// Programs that are started from now on get SIGHUP's default effect, also if nohup has started the tests: a program does not
/// inherit a handler.
fn end_children_at_hangup() {
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::default()).unwrap();
}

impl Drop for StdinPut {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn with_a_file() -> tempfile::TempDir {
    let folder = volume();
    write(folder.path(), "a", "as it was");
    run_ok(folder.path(), ["put", "a", "v:/"]);
    folder
}

#[test]
fn a_killed_put_leaves_the_old_file() {
    let folder = with_a_file();
    let folder = folder.path();
    for path in ["v:/a", "v:/new"] {
        let put = StdinPut::start(folder, path);
        put.signal(Signal::SIGKILL);
        drop(put);
        assert_eq!(run_ok(folder, ["cat", "v:/a"]), "as it was");
        assert_eq!(run(folder, ["cat", "v:/new"]).status.code(), Some(3));
    }
    // The next command removes the partial files.
    run_ok(folder, ["put", "a", "v:/b"]);
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "a\nb\n");
}

#[test]
fn after_a_killed_put_each_file_is_complete_or_absent() {
    const FILES: u8 = 200;
    let bytes = |file: u8| vec![file + 1; 100_000];
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir(folder.join("tree")).unwrap();
    for file in 0..FILES {
        write(folder, &format!("tree/{file:03}"), bytes(file));
    }
    for file in [0, 30, 120] {
        let put = ChildProcess::start(&mut command(folder, ["put", "tree", "v:/"]));
        wait_until("a file's bytes on the volume", || {
            let image = std::fs::read(folder.join("v")).unwrap();
            image.chunks(4096).any(|block| block.iter().all(|byte| *byte == file + 1))
        });
        // Kills the process.
        drop(put);
        if run(folder, ["get", "v:/tree", "out"]).status.success() {
            for entry in folder.join("out").read_dir().unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(std::fs::read(&path).unwrap() == bytes(name.parse().unwrap()), "{name}");
            }
            std::fs::remove_dir_all(folder.join("out")).unwrap();
        }
    }
    run_ok(folder, ["put", "tree", "v:/"]);
    run_ok(folder, ["get", "v:/tree", "out"]);
    assert_eq!(folder.join("out").read_dir().unwrap().count(), usize::from(FILES));
}

#[test]
fn ctrl_c_removes_partial_files() {
    let folder = with_a_file();
    let folder = folder.path();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut put = StdinPut::start(folder, "v:/a");
        put.signal(signal);
        // Ctrl-C in a shell also ends the writer of the pipe.
        drop(put.0.stdin.take());
        assert_eq!(put.0.wait().unwrap().code(), Some(130));
        assert_eq!(run_ok(folder, ["cat", "v:/a"]), "as it was");
        assert_eq!(run_ok(folder, ["ls", "v:/"]), "a\n");
    }
}

#[test]
fn ctrl_c_does_not_wait_for_more_input() {
    let folder = with_a_file();
    let folder = folder.path();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut put = StdinPut::start(folder, "v:/a");
        let input = put.0.stdin.as_mut().unwrap();
        input.write_all(b"the beginning of a chunk").unwrap();
        wait_until("all input to be read", || ioctl_fionread(&*input).unwrap() == 0);
        put.signal(signal);
        // The input stays open without data.
        wait_until("its end", || put.0.try_wait().unwrap().is_some());
        assert_eq!(put.0.wait().unwrap().code(), Some(130));
        assert_eq!(run_ok(folder, ["cat", "v:/a"]), "as it was");
        assert_eq!(run_ok(folder, ["ls", "v:/"]), "a\n");
    }
}

#[test]
fn the_end_of_the_terminal_stops_a_get_and_leaves_nothing_partial() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "-q", "--sparse", "v", "--size", "256M"]);
    write(folder, "large", vec![7; 160 << 20]);
    run_ok(folder, ["put", "-q", "large", "v:/"]);
    std::fs::create_dir(folder.join("out")).unwrap();
    end_children_at_hangup();
    let names = || folder.join("out").read_dir().unwrap().count();
    let mut get = ChildProcess::start(&mut command(folder, ["get", "v:/large", "out"]));
    wait_until("a partial file", || names() > 0 || get.has_ended());
    get.signal(Signal::SIGHUP);
    match get.end().status.code() {
        Some(0) => assert!(folder.join("out/large").exists()),
        code => assert_eq!((code, names()), (Some(130), 0)),
    }
}

#[test]
fn nohup_keeps_a_command_running() {
    let folder = with_a_file();
    let folder = folder.path();
    let mut shell = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" put - v:/new";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_uringfs")]).current_dir(folder);
    let child = shell.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut put = StdinPut(child);
    put.0.stdin.as_mut().unwrap().write_all(&vec![7; 8 << 20]).unwrap();
    put.signal(Signal::SIGHUP);
    drop(put.0.stdin.take());
    assert!(put.0.wait().unwrap().success());
    assert_eq!(run_ok(folder, ["stat", "-c", "%s", "v:/new"]), format!("{}\n", 8 << 20));
}

#[test]
fn a_second_program_is_refused_while_one_writes() {
    let folder = with_a_file();
    let folder = folder.path();
    let mut put = StdinPut::start(folder, "v:/new");
    for arguments in [["ls", "v:/"], ["mkdir", "v:/d"]] {
        let output = run(folder, arguments);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), line.lines().count()), (Some(6), 1), "{line}");
    }
    drop(put.0.stdin.take());
    assert!(put.0.wait().unwrap().success());
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "a\nnew\n");
}

#[test]
fn user_files_with_staging_names_are_left_alone() {
    let folder = with_a_file();
    let folder = folder.path();
    write(folder, "b", "precious");
    run_ok(folder, ["mkdir", "v:/important"]);
    run_ok(folder, ["put", "b", "v:/important"]);
    // First a link, then a directory that is not empty.
    run_ok(folder, ["ln", "-s", "/important", "v:/.uringfs-put"]);
    for _ in 0..2 {
        let put = StdinPut::start(folder, "v:/a");
        put.signal(Signal::SIGKILL);
        drop(put);
        run_ok(folder, ["put", "a", "v:/new"]);
        assert_eq!(
            run_ok(folder, ["cat", "v:/important/b", "v:/.uringfs-put/b"]),
            "preciousprecious"
        );
        assert_eq!(run_ok(folder, ["ls", "-A", "v:/"]), ".uringfs-put\na\nimportant\nnew\n");
        run_ok(folder, ["rm", "-r", "v:/.uringfs-put"]);
        run_ok(folder, ["mkdir", "v:/.uringfs-put"]);
        run_ok(folder, ["put", "b", "v:/.uringfs-put"]);
    }
    run_ok(folder, ["mkdir", "v:/harmless"]);
    assert_eq!(run_ok(folder, ["ls", "v:/.uringfs-put"]), "b\n");
}
