//! The progress line on a terminal during a run.

use super::{ChildProcess, command, folder};
use crate::process::Deadline;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use std::fs::File;
use std::io::Read;

/// Reads the terminal until it shows all parts.
fn read_until(screen: &mut File, parts: &[&str]) -> String {
    read_while(screen, |text| !parts.iter().all(|part| text.contains(part)))
}

fn read_while(screen: &mut File, goes_on: impl Fn(&str) -> bool) -> String {
    let deadline = Deadline::new();
    let mut shown = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&shown).into_owned();
        if !goes_on(&text) {
            return text;
        }
        // The whole of it would be long.
        assert!(deadline.readable(screen), "nothing more after {:?}", text.rsplit('\r').nth(1));
        let mut some = [0; 4096];
        let length = screen.read(&mut some).unwrap();
        shown.extend_from_slice(&some[..length]);
    }
}

#[test]
fn a_terminal_shows_rates_progress_and_remaining_time() {
    let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(&size, None).unwrap();
    let folder = folder();
    for (keys, parts) in [
        (
            &["--rw=randrw", "--size=1m", "--numjobs=2"][..],
            &["Running x", "jobs: 2", "read ", "write ", " IOPS", " %", "eta 09m:"][..],
        ),
        // Also without a clock for every I/O.
        (&["--rw=read", "--size=1m", "--gtod_reduce=1"], &["jobs: 1", "read ", " IOPS"]),
        (&["--filename=null:1m", "--rw=read", "--startdelay=600"], &["jobs: 1", "eta 19m:"]),
    ] {
        let mut arguments = vec!["--name=x", "--time_based", "--runtime=600", "--overwrite"];
        arguments.extend(keys);
        let mut command = command(folder.path(), &arguments);
        // indicatif draws nothing on a terminal that cannot move its cursor.
        command.env("TERM", "xterm").env_remove("NO_COLOR");
        let slave = terminal.slave.try_clone().unwrap();
        let run = ChildProcess::start_with(&mut command, Some(slave));
        let mut screen = File::from(terminal.master.try_clone().unwrap());
        read_until(&mut screen, parts);
        run.signal(Signal::SIGINT);
        let output = run.end();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(130), "{text}");
        assert!(!text.contains('\u{1b}'), "the report has no escape sequences: {text}");
    }
}

/// The columns that a text takes between two moves to the beginning of a line.
fn widest(text: &str) -> usize {
    let width = |line: &str| {
        let mut parts = line.split('\u{1b}');
        let first = parts.next().unwrap_or_default().chars().count();
        // A sequence ends with a letter: `[2K`.
        let after = |part: &str| {
            part.split_once(char::is_alphabetic).map_or(0, |(_, rest)| rest.chars().count())
        };
        first + parts.map(after).sum::<usize>()
    };
    text.split(['\r', '\n']).map(width).max().unwrap_or(0)
}

#[test]
fn the_line_fits_its_terminal() {
    let folder = folder();
    let name = "--name=a-job-whose-name-is-so-long-that-a-small-terminal-has-no-room-for-it";
    let keys = [name, "--filename=null:1m", "--rw=randrw", "--time_based", "--runtime=600"];
    for (columns, part) in
        [(200, " IOPS"), (100, " IOPS"), (60, " IOPS"), (40, "…  eta "), (20, "eta ")]
    {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let terminal = openpty(&size, None).unwrap();
        let mut command = command(folder.path(), &keys);
        command.env("TERM", "xterm").env_remove("NO_COLOR");
        let run = ChildProcess::start_with(&mut command, Some(terminal.slave));
        let mut screen = File::from(terminal.master);
        let text = read_while(&mut screen, |text| {
            text.matches("eta ").count() < 3 || !text.contains(part)
        });
        assert!(widest(&text) <= columns.into(), "{columns}: {text:?}");
        assert!(!text.contains("\u{1b}[1A"), "{columns}: a second line: {text:?}");
        run.signal(Signal::SIGINT);
        assert_eq!(run.end().status.code(), Some(130));
    }
}

#[test]
fn a_pipe_shows_nothing() {
    let folder = folder();
    let keys = ["--name=x", "--filename=null:1m", "--rw=read", "--time_based", "--runtime=600ms"];
    let output = command(folder.path(), &keys).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn eta_decides_where_progress_is_shown() {
    let folder = folder();
    let keys = ["--name=x", "--filename=null:1m", "--rw=read", "--time_based", "--runtime=2"];
    let output = command(folder.path(), &[&keys[..], &["--eta=always"]].concat()).output().unwrap();
    let lines = String::from_utf8(output.stderr).unwrap();
    assert!(lines.lines().any(|line| line.starts_with("Running x  jobs: 1  read ")), "{lines}");
    assert!(lines.lines().all(|line| line.starts_with("Running x")), "{lines}");
    assert!(!lines.contains('\u{1b}'), "a file is no terminal: {lines}");

    let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(&size, None).unwrap();
    let arguments = ["--name=x", "--filename=null:1m", "--rw=read", "--eta=never"];
    let mut command = command(folder.path(), &arguments);
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    let run = ChildProcess::start_with(&mut command, Some(terminal.slave));
    assert_eq!(run.end().status.code(), Some(0));
    drop(command);
    // With the last writer gone, a terminal without output has an error or an end.
    let mut screen = Vec::new();
    let _ = File::from(terminal.master).read_to_end(&mut screen);
    assert_eq!(String::from_utf8_lossy(&screen), "");
}
