//! Output on a terminal: progress, colours, lines of trees. `-q` prints nothing but errors.

use super::{command, refused, run, run_ok, volume, write};
use crate::process::{ChildProcess, Deadline};
use nix::pty::openpty;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

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
    for arguments in [&["put", "-q", "--json", "a", "v"][..], &["get", "-v", "--json", "v:/a", "b"]]
    {
        assert_eq!(run(folder, arguments).status.code(), Some(2), "{arguments:?}");
    }
}

/// Reads what a program shows on a terminal, until it ends.
pub fn read_screen(master: OwnedFd) -> String {
    let (mut screen, mut shown) = (File::from(master), Vec::new());
    let mut some = [0; 4096];
    while Deadline::new().readable(&screen) {
        match screen.read(&mut some) {
            Ok(length) if length > 0 => shown.extend_from_slice(&some[..length]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&shown).into_owned()
}

/// The output of a command whose standard output is a terminal.
pub fn on_terminal(folder: &Path, arguments: &[&str], no_color: Option<&str>) -> String {
    let size = nix::pty::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(&size, None).unwrap();
    let mut command = command(folder, arguments);
    command.stdout(terminal.slave).env("TERM", "xterm").env_remove("NO_COLOR");
    if let Some(value) = no_color {
        command.env("NO_COLOR", value);
    }
    let mut child = command.spawn().unwrap();
    // Only the program keeps the terminal open.
    drop(command);
    let shown = read_screen(terminal.master);
    assert!(child.wait().unwrap().success());
    shown.replace("\r\n", "\n")
}

#[test]
fn a_terminal_gets_colors_and_lines() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkdir", "-p", "v:/d/e"]);
    run_ok(folder, ["touch", "v:/f"]);
    let colored = "\x1b[01;34md\x1b[0m\nf\n";
    assert_eq!(on_terminal(folder, &["ls", "v"], None), colored);
    assert_eq!(on_terminal(folder, &["ls", "v"], Some("")), colored);
    assert_eq!(on_terminal(folder, &["ls", "v"], Some("1")), "d\nf\n");
    assert_eq!(on_terminal(folder, &["ls", "--color", "v"], Some("1")), colored);
    assert_eq!(on_terminal(folder, &["ls", "--color=never", "v"], None), "d\nf\n");
    let tree = on_terminal(folder, &["tree", "v"], None);
    assert_eq!(tree, "/\n├── d\n│   └── e\n└── f\n\n2 directories, 1 file\n");
}

/// Names that a shell must not read as they are, or that a terminal must not get.
const ODD_NAMES: [&[u8]; 30] = [
    b"plain",
    b"a b",
    b"a'b",
    b"a\"b",
    b"a'\"b",
    b"a\nb",
    b"a'\nb",
    b"\n'",
    b"a\tb\x1b[31m",
    b"\xff\xfe",
    b"a\xffb",
    "caf\u{e9}".as_bytes(),
    "\u{e9}'".as_bytes(),
    b"a*b",
    b"a$b",
    b"#x",
    b"x#",
    b"~x",
    b"x~",
    b"{",
    b"{x",
    b"a\\b",
    b"a'=b",
    b"a'@b",
    b"a=b",
    b"a'#b",
    b"a'?b",
    b"\xc2\x85",
    b"'",
    b" ",
];

#[test]
fn a_terminal_gets_names_in_quotes_as_from_ls() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir(folder.join("t")).unwrap();
    for name in ODD_NAMES {
        std::fs::write(folder.join("t").join(OsStr::from_bytes(name)), "").unwrap();
    }
    run_ok(folder, ["put", "-q", "t", "v:/"]);
    let ls = |arguments: &[&str]| {
        let mut ls = Command::new("ls");
        ls.args(arguments).env("LC_ALL", "C.UTF-8").env_remove("QUOTING_STYLE").current_dir(folder);
        let output = ChildProcess::start(&mut ls).end().stdout;
        let mut lines: Vec<String> =
            String::from_utf8(output).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let theirs = ls(&["-1", "--quoting-style=shell-escape", "t"]);
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(on_terminal(folder, &["ls", "v:/t"], None)), theirs);
    let long = sorted(on_terminal(folder, &["ls", "-l", "v:/t"], None));
    assert!(long.iter().any(|line| line.ends_with("  plain")), "{long:?}");
    assert!(long.iter().any(|line| line.ends_with(" 'a b'")), "{long:?}");
    // Raw where no terminal is.
    assert!(run(folder, ["ls", "v:/t"]).stdout.windows(3).any(|part| part == b"a\xffb"));
    for command in [
        &["find", "v:/t"][..],
        &["tree", "v:/t"],
        &["du", "v:/t/a\tb\u{1b}[31m"],
        &["stat", "v:/t/a\tb\u{1b}[31m"],
    ] {
        let shown = on_terminal(folder, command, None);
        assert!(
            !shown.contains(|shown: char| shown.is_control() && shown != '\n' && shown != '\t'),
            "{shown:?}"
        );
    }
    let literal = on_terminal(folder, &["ls", "-N", "v:/t"], None);
    assert!(
        literal.contains("\na b\n") && literal.contains("\na?b\n") && !literal.contains('\x1b'),
        "{literal:?}"
    );
    let removed = run_ok(folder, ["rm", "-v", "v:/t/a\nb"]);
    assert_eq!(removed, "removed 'v:/t/a'$'\\n''b'\n");
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
        // Only the program keeps the terminal open.
        drop(mkfs);
        let shown = read_screen(terminal.master);
        assert!(child.end().status.success());
        let has_all = ["% of 256", "/s", " left"].iter().all(|part| shown.contains(part));
        assert_eq!((has_all, shown.is_empty()), (is_shown, !is_shown), "{shown}");
        std::fs::remove_file(folder.join("v")).unwrap();
    }
}
