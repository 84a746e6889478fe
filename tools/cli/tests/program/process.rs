//! Programs that a test starts. Whatever becomes of the test they end with it, and nothing is waited
//! for without a bound.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine; shorter than what is to be stopped would run.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program while it runs; killed with this, and so is whatever it has started.
pub struct Running {
    child: Child,
    stdout: File,
    stderr: File,
}

impl Running {
    /// Starts it. What it prints goes to files, which nobody has to empty.
    pub fn start(command: &mut Command) -> Self {
        Self::start_with(command, None)
    }

    /// The same with its standard error on a terminal, if there is one.
    pub fn start_with(command: &mut Command, terminal: Option<OwnedFd>) -> Self {
        let [stdout, stderr] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let told = terminal.unwrap_or_else(|| stderr.try_clone().unwrap().into());
        command.stdin(Stdio::null()).stdout(stdout.try_clone().unwrap()).stderr(told);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, stdout, stderr }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.id() as i32), signal).unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end, and gives what it printed.
    pub fn end(mut self) -> Output {
        if !self.has_ended() {
            let pid = rustix::process::Pid::from_child(&self.child);
            let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
            assert!(Deadline::new().readable(&process), "it runs on");
        }
        let status = self.child.wait().unwrap();
        let [stdout, stderr] = [&mut self.stdout, &mut self.stderr].map(|file| {
            let mut printed = Vec::new();
            file.rewind().and_then(|()| file.read_to_end(&mut printed)).unwrap();
            printed
        });
        Output { status, stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            end_family(self.id());
            let _ = self.child.wait();
        }
    }
}

/// fio's jobs outlive their parent, and have sessions of their own.
fn end_family(process: u32) {
    children(process).into_iter().for_each(end_family);
    let _ = kill(Pid::from_raw(process as i32), Signal::SIGKILL);
}

/// The processes that this one has started, by any of its threads.
pub fn children(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.flat_map(|task| std::fs::read_to_string(task.path().join("children")));
    lists
        .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect()
}

/// When it is no use to wait any longer.
#[derive(Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    pub fn new() -> Self {
        Self(Instant::now() + PATIENCE)
    }

    /// Waits until there is something to read, or nobody left to write it; of a process, until it
    /// has ended. False if nothing comes.
    pub fn readable(self, source: &impl AsFd) -> bool {
        let left = self.0.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap();
        poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&left)).unwrap() > 0
    }
}

/// Runs a tool of the system, and gives what it says.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Running::start(Command::new(program).args(arguments)).end();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Makes a shell script to be run. Another process writes it: what other tests start meanwhile has
/// the files that this one has open, until it is another program, and a file that is open for
/// writing cannot be run.
pub fn make_script(path: &Path, text: &str) {
    let mut source = tempfile::NamedTempFile::new().unwrap();
    write!(source, "#!/bin/sh\n{text}\n").unwrap();
    tool("install", &["-m", "755", source.path().to_str().unwrap(), path.to_str().unwrap()]);
}

/// Waits for something to be so.
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Deadline::new();
    while !so() {
        assert!(Instant::now() < deadline.0, "waited for {what}");
        std::thread::yield_now();
    }
}
