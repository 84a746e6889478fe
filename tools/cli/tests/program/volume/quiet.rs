//! `-q` prints nothing but errors; progress is drawn on a terminal only.

use super::{command, refused, run_ok, write};
use crate::process::{ChildProcess, Deadline};
use nix::pty::openpty;
use std::fs::File;
use std::io::Read;

#[test]
fn quiet_commands_print_errors_only() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "a", "of a");
    for arguments in [
        &["mkfs", "-q", "v", "--size", "16M"][..],
        &["put", "-q", "a", "v"],
        &["get", "--quiet", "v:/a", "out"],
        &["check", "-q", "v"],
        &["resize", "-q", "v", "+1M"],
        &["cp", "-q", "v:/a", "v:/b"],
    ] {
        assert_eq!(run_ok(folder, arguments), "", "{arguments:?}");
    }
    refused(folder, ["put", "-q", "none", "v"], "none: cannot be read");
}

#[test]
fn a_terminal_shows_percent_rate_and_time_left() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let size = nix::pty::Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    for (quiet, is_shown) in [(&[][..], true), (&["-q"], false)] {
        let terminal = openpty(&size, None).unwrap();
        let mut mkfs = command(folder, [&["mkfs", "v", "--size", "256M"], quiet].concat());
        let child = ChildProcess::start_with(mkfs.env("TERM", "xterm"), Some(terminal.slave));
        let mut screen = File::from(terminal.master);
        let mut shown = Vec::new();
        // Ends when the program and with it the terminal closes.
        drop(mkfs);
        let mut some = [0; 4096];
        while Deadline::new().readable(&screen) {
            match screen.read(&mut some) {
                Ok(length) if length > 0 => shown.extend_from_slice(&some[..length]),
                _ => break,
            }
        }
        assert!(child.end().status.success());
        let shown = String::from_utf8_lossy(&shown);
        let has_all = ["% of 256", "/s", " left"].iter().all(|part| shown.contains(part));
        assert_eq!((has_all, shown.is_empty()), (is_shown, !is_shown), "{shown}");
        std::fs::remove_file(folder.join("v")).unwrap();
    }
}
