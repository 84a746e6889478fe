//! Runs a child process and passes its output on line by line. It is killed at its time limit, on Ctrl-C,
//! and in any case when this process ends.

use crate::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The result of a child.
#[derive(Debug)]
pub struct ProcessResult {
    /// Its exit status; `None` if it exceeded its time limit.
    pub status: Option<ExitStatus>,
    /// Its standard error.
    pub stderr: String,
}

impl ProcessResult {
    /// Whether it exited with 0.
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The last line of its standard error, or what is known instead.
    pub fn error_line(&self) -> &str {
        match (self.stderr.trim().lines().last(), self.status) {
            (Some(line), Some(_)) => line,
            (None, Some(_)) => "it printed no error",
            (_, None) => "it exceeded its time limit",
        }
    }
}

/// The limits of a child.
#[derive(Clone, Copy, Debug)]
pub struct ProcessLimits<'a> {
    /// Set by Ctrl-C; kills the child.
    pub stop: &'a AtomicBool,
    /// Time limit.
    pub limit: Duration,
}

/// A child that is killed and reaped on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both fail only for a child that has exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end and calls `on_line` with each line of its standard output. Its standard input
/// is empty.
///
/// # Errors
/// A child cannot be created, or Ctrl-C. A missing program is a failed child with an error line.
pub fn run(
    command: &Command,
    limits: ProcessLimits<'_>,
    on_line: &mut dyn FnMut(&str),
) -> Result<ProcessResult, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| Error::run(format!("cannot run {name}")).because(error);
    let started = Instant::now();
    let stderr = tempfile::tempfile().map_err(failed)?;
    let mut bound = bound_to_this_process(command);
    bound.stdin(Stdio::null()).stdout(Stdio::piped());
    bound.stderr(stderr.try_clone().map_err(failed)?);
    let child = bound.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::run("cannot find setpriv; install Debian package util-linux"),
        _ => failed(error),
    })?;
    let mut child = KillOnDrop(child);
    let mut output = child.0.stdout.take().expect("standard output is a pipe");
    let (mut line, mut bytes) = (Vec::new(), [0; 64 << 10]);
    loop {
        if limits.stop.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        if started.elapsed() > limits.limit {
            return Ok(ProcessResult { status: None, stderr: text(stderr).map_err(failed)? });
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
                on_line(String::from_utf8_lossy(&line).trim_end_matches('\r'));
                line.clear();
            } else {
                line.push(byte);
            }
        }
    }
    if !line.is_empty() {
        on_line(&String::from_utf8_lossy(&line));
    }
    let status = Some(child.0.wait().map_err(failed)?);
    Ok(ProcessResult { status, stderr: text(stderr).map_err(failed)? })
}

/// The first line of a program's output; `None` if it fails.
///
/// # Errors
/// Those of [`run`].
pub fn first_line(command: &Command, limits: ProcessLimits<'_>) -> Result<Option<String>, Error> {
    let mut first = None;
    let ended = run(command, limits, &mut |line| {
        first.get_or_insert_with(|| line.to_owned());
    })?;
    Ok(first.filter(|_| ended.succeeded()))
}

/// The same command, run by `setpriv`, so that the kernel kills it when this process is killed.
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
    bound
}

/// Waits at most a moment for output or its end, so that the caller can check for Ctrl-C between.
fn readable_soon(output: &impl std::os::fd::AsFd) -> std::io::Result<bool> {
    const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    match poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&POLL_INTERVAL)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The whole text of a file that a child has written; bytes that are not UTF-8 are replaced.
pub fn text(mut file: File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
