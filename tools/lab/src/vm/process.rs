//! A child process whose lines are heard as they come, which ends with its time, with Ctrl-C, and,
//! whatever happens, with this process.

use crate::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How a child came to its end.
#[derive(Debug)]
pub enum End {
    /// By itself.
    Exited(ExitStatus),
    /// Ended here, for it took longer than it may.
    TimedOut,
}

/// What bounds a child's life.
#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// No child runs longer.
    pub limit: Duration,
}

/// A child that is killed and waited for when this goes.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // Either fails only for a child that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end; `hear` gets each line of its standard output. Its standard input is
/// empty, its standard error is what `command` says.
///
/// # Errors
/// The program is not there, or Ctrl-C.
pub fn run(
    command: &Command,
    bounds: Bounds<'_>,
    hear: &mut dyn FnMut(&str),
) -> Result<End, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| Error::run(format!("cannot run {name}")).because(error);
    let begun = Instant::now();
    let child = bound_to_this_process(command).spawn().map_err(failed)?;
    let mut child = Guarded(child);
    let mut output = child.0.stdout.take().expect("it is piped");
    let (mut line, mut bytes) = (Vec::new(), [0; 64 << 10]);
    loop {
        if bounds.stop.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        if begun.elapsed() > bounds.limit {
            return Ok(End::TimedOut);
        }
        if !readable_soon(&output).map_err(failed)? {
            continue;
        }
        let count = output.read(&mut bytes).map_err(failed)?;
        if count == 0 {
            break;
        }
        for &byte in &bytes[..count] {
            if byte == b'\n' {
                hear(String::from_utf8_lossy(&line).trim_end_matches('\r'));
                line.clear();
            } else {
                line.push(byte);
            }
        }
    }
    if !line.is_empty() {
        hear(&String::from_utf8_lossy(&line));
    }
    child.0.wait().map(End::Exited).map_err(failed)
}

/// The same command, run by `setpriv`, so that the kernel kills it should this process be killed.
fn bound_to_this_process(command: &Command) -> Command {
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        bound.current_dir(folder);
    }
    bound.stdin(Stdio::null()).stdout(Stdio::piped());
    bound
}

/// Whether there is something to read, or the end, within a moment: Ctrl-C is looked for between.
fn readable_soon(output: &impl std::os::fd::AsFd) -> std::io::Result<bool> {
    const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    match poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&MOMENT)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// All that is in a file that a child has written, whatever it is.
pub fn text(mut file: File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
