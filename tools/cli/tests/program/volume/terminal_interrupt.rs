//! Ctrl-C while a command draws its progress on a terminal: it says what it leaves, and exits with 130.

use super::terminal::read_screen;
use super::{command, run, run_ok, volume, write};
use crate::process::{ChildProcess, wait_until};
use nix::pty::openpty;
use nix::sys::signal::Signal;
use nix::sys::termios::{FlowArg, tcflow};
use std::path::Path;

/// The screen of a command that is stopped at the first line of its progress.
fn stopped(folder: &Path, arguments: &[&str]) -> String {
    let size = nix::pty::Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(&size, None).unwrap();
    // The first output waits until the terminal goes on.
    tcflow(&terminal.slave, FlowArg::TCOOFF).unwrap();
    let control = terminal.slave.try_clone().unwrap();
    let mut command = command(folder, arguments);
    let child = ChildProcess::start_with(command.env("TERM", "xterm"), Some(terminal.slave));
    // Only the program, and the test until it lets the output go on, keep the terminal open.
    drop(command);
    wait_until("a handler of Ctrl-C", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (Signal::SIGINT as u64 - 1)) != 0
    });
    child.signal(Signal::SIGINT);
    tcflow(&control, FlowArg::TCOON).unwrap();
    drop(control);
    let shown = read_screen(terminal.master);
    let output = child.end();
    assert_eq!(output.status.code(), Some(130), "{arguments:?}: {shown}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(
        shown.contains("uringfs: stopped by Ctrl-C, SIGTERM or SIGHUP: "),
        "{arguments:?}: {shown:?}"
    );
    shown
}

#[test]
fn a_command_that_is_stopped_says_what_it_leaves() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "large", vec![1; 8 << 20]);
    run_ok(folder, ["put", "-q", "large", "v:/"]);
    let shown = stopped(folder, &["mkfs", "new", "--size", "256M"]);
    assert!(shown.contains("the new file was removed"), "{shown}");
    assert!(!folder.join("new").exists());
    for arguments in
        [["put", "large", "v:/b"], ["cp", "v:/large", "v:/b"], ["get", "v:/large", "b"]]
    {
        let shown = stopped(folder, &arguments);
        assert!(shown.contains("no file is incomplete"), "{shown}");
    }
    assert_eq!(run_ok(folder, ["ls", "-A", "v:/"]), "large\n");
    assert!(!folder.join("b").exists());
    let shown = stopped(folder, &["resize", "v", "+256M"]);
    assert!(shown.contains("the volume is as it was"), "{shown}");
    assert_eq!(folder.join("v").metadata().unwrap().len(), 32 << 20);
    let shown = stopped(folder, &["check", "--deep", "v"]);
    assert!(shown.contains("nothing was changed"), "{shown}");
    let shown = stopped(folder, &["check", "--repair", "v"]);
    assert!(shown.contains("run uringfs check again"), "{shown}");
    assert_eq!(run(folder, ["check", "v"]).status.code(), Some(0));
}
