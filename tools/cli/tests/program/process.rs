//! Child processes of tests. They end with the test, even if it panics, and every wait has a
//! timeout.

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

/// Longer than any step takes on a busy machine, and shorter than the runs that tests stop.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A running program. Dropping it kills the program and all its children.
pub struct ChildProcess {
    child: Child,
    stdout: File,
    stderr: File,
}

impl ChildProcess {
    /// Starts a program. Its output goes to files, so it never blocks on a full pipe.
    pub fn start(command: &mut Command) -> Self {
        Self::start_with(command, None)
    }

    /// Starts a program, with its standard error on a terminal if one is given.
    pub fn start_with(command: &mut Command, terminal: Option<OwnedFd>) -> Self {
        let [stdout, stderr] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let stderr_target = terminal.unwrap_or_else(|| stderr.try_clone().unwrap().into());
        command.stdin(Stdio::null()).stdout(stdout.try_clone().unwrap()).stderr(stderr_target);
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

    /// Waits for the end. Returns the exit status and the output.
    pub fn end(mut self) -> Output {
        if !self.has_ended() {
            let pid = rustix::process::Pid::from_child(&self.child);
            let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
            assert!(Deadline::new().readable(&process), "it did not end");
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

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if !self.has_ended() {
            kill_tree(self.id());
            let _ = self.child.wait();
        }
    }
}

/// Kills a process and its children. fio's jobs outlive their parent and have their own sessions.
fn kill_tree(process: u32) {
    children(process).into_iter().for_each(kill_tree);
    let _ = kill(Pid::from_raw(process as i32), Signal::SIGKILL);
}

/// The children of all threads of a process.
pub fn children(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.flat_map(|task| std::fs::read_to_string(task.path().join("children")));
    lists
        .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect()
}

/// The time at which a wait fails.
#[derive(Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    pub fn new() -> Self {
        Self(Instant::now() + TEST_TIMEOUT)
    }

    /// Waits until the source is readable, or all writers have closed it; for a pidfd, until the process
    /// has ended. Returns false on a timeout.
    pub fn readable(self, source: &impl AsFd) -> bool {
        let left = self.0.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap();
        poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&left)).unwrap() > 0
    }
}

/// Runs a tool of the system. Returns its output.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let output = ChildProcess::start(Command::new(program).args(arguments)).end();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Creates an executable shell script. Another process writes it: children that other tests fork
/// inherit the open files of this process until they exec, and a file that is open for writing
/// cannot be executed.
pub fn make_script(path: &Path, text: &str) {
    let mut source = tempfile::NamedTempFile::new().unwrap();
    write!(source, "#!/bin/sh\n{text}\n").unwrap();
    tool("install", &["-m", "755", source.path().to_str().unwrap(), path.to_str().unwrap()]);
}

/// Creates the script `slow` in a folder, in place of this program: it runs the program so many times, and its next run never ends.
pub fn make_script_that_waits(folder: &Path, runs: u32) {
    let program = env!("CARGO_BIN_EXE_uringfs");
    make_script(
        &folder.join("slow"),
        &format!(
            "case $1 in --version) echo uringfs 0.0.1; exit;; esac\n\
             n=$(($(cat runs 2>/dev/null || echo 0) + 1)); echo $n >runs\n\
             [ $n -le {runs} ] || {{ touch waiting; exec sleep 1000; }}\n\
             exec '{program}' \"$@\""
        ),
    );
}

/// Runs a command that runs that script in the folder, and interrupts it when the script waits. Another command may follow.
pub fn interrupt_when_waiting(command: &mut Command, folder: &Path) -> Output {
    let run = ChildProcess::start(command);
    let waiting = folder.join("waiting");
    wait_until("the run that waits", || waiting.exists());
    run.signal(Signal::SIGINT);
    let output = run.end();
    for name in ["waiting", "runs"] {
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    output
}

/// Waits until a condition is true.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Deadline::new();
    while !condition() {
        assert!(Instant::now() < deadline.0, "waited for {what}");
        std::thread::yield_now();
    }
}
