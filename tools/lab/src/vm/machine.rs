//! The virtual machine: QEMU's command line for each profile, and one run from boot to power-off.
//! What the guest answers comes over its second serial port, which is QEMU's standard output. Files
//! of a run have no names: they are handed over as open descriptors, and go with the last of them.

use super::packages::{Kernel, Qemu};
use super::process::{ProcessLimits, run, text};
use crate::Error;
use rustix::io::FdFlags;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

/// What a guest is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// One processor whose clock is its count of instructions: one is a nanosecond.
    Counting,
    /// Two processors as fast as can be, for tests of what works.
    Functional,
}

/// A machine that can be run once.
pub struct Machine<'a> {
    /// The program that is the machine.
    pub qemu: &'a Qemu,
    /// What it boots.
    pub kernel: &'a Kernel,
    /// How it runs.
    pub profile: Profile,
    /// The archive with the guest's files.
    pub initial: File,
}

/// Drives of the NVMe controller, and bytes of each; sparse.
const DRIVES: u32 = 4;
const DRIVE_SIZE: u64 = 1 << 30;

impl Machine<'_> {
    /// Boots, hears every line that the guest answers, and waits for the end.
    ///
    /// # Errors
    /// QEMU cannot be run, or fails, or Ctrl-C. A time that has run out is no error here: what is
    /// missing shows in the answers.
    pub fn run(
        self,
        limits: ProcessLimits<'_>,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<Console, Error> {
        let failed = |error| Error::run("the guest's files").because(error);
        let console = inherited(tempfile::tempfile().map_err(failed)?)?;
        let mut command = self.qemu.command();
        match self.profile {
            Profile::Counting => {
                command.args(["-accel", "tcg", "-icount", "shift=0,sleep=off", "-smp", "1"]);
                // These two decide how the kernel copies memory: figures compare only with one way.
                command.args(["-cpu", "max,-erms,-fsrm", "-m", "3072"]);
            }
            Profile::Functional => {
                command.args(["-accel", "tcg,thread=multi", "-smp", "2"]);
                command.args(["-cpu", "max", "-m", "3072"]);
            }
        }
        command.args("-no-user-config -nodefaults -display none -no-reboot".split(' '));
        command.args(["-rtc", "base=2026-01-01,clock=vm", "-seed", "1"]);
        let initial = inherited(self.initial)?;
        command.arg("-kernel").arg(&self.kernel.image);
        command.args(["-initrd", &path(initial.as_raw_fd())]);
        // Nothing that differs from boot to boot: no address is drawn, no offset of a stack.
        command.args([
            "-append",
            "console=ttyS0 quiet panic=-1 mitigations=off nokaslr norandmaps \
             randomize_kstack_offset=off nvme.poll_queues=1",
        ]);
        command.args(["-chardev", &format!("file,id=console,path={}", path(console.as_raw_fd()))]);
        command.args(["-serial", "chardev:console"]);
        command.args(["-chardev", "stdio,id=answers,signal=off", "-serial", "chardev:answers"]);
        command.args(["-device", "nvme,id=nvme,serial=uringfs"]);
        let mut drives = Vec::new();
        for drive in 0..DRIVES {
            let file = inherited(tempfile::tempfile().map_err(failed)?)?;
            file.set_len(DRIVE_SIZE).map_err(failed)?;
            let path = path(file.as_raw_fd());
            drives.push(file);
            let options = "if=none,format=raw,cache=unsafe,file.locking=off,discard=unmap";
            command.args(["-drive", &format!("id=drive{drive},file={path},{options}")]);
            let blocks = "logical_block_size=4096,physical_block_size=4096";
            let number = drive + 1;
            command.args([
                "-device",
                &format!("nvme-ns,drive=drive{drive},bus=nvme,nsid={number},{blocks}"),
            ]);
        }
        let ended = run(&command, limits, on_line)?;
        if ended.status.is_some() && !ended.succeeded() {
            return Err(Error::run(format!("QEMU failed: {}", ended.error_line())));
        }
        Ok(Console { text: text(console).map_err(failed)?, timed_out: ended.status.is_none() })
    }
}

/// What the kernel had to say, and how the machine ended.
pub struct Console {
    text: String,
    timed_out: bool,
}

impl Console {
    /// Why the guest has not answered, in a line.
    pub fn error_line(&self) -> String {
        const LAST: usize = 3;
        let lines: Vec<&str> =
            self.text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LAST)..].join(" / ");
        let how = match self.timed_out {
            true => "it took longer than it may (--timeout)",
            false => "it ended too early",
        };
        if last.is_empty() { how.to_owned() } else { format!("{how}; its console: {last}") }
    }
}

/// Lets the child have a descriptor.
fn inherited(file: File) -> Result<File, Error> {
    rustix::io::fcntl_setfd(&file, FdFlags::empty())
        .map_err(|errno| Error::run("a descriptor for QEMU").because(errno))?;
    Ok(file)
}

/// A descriptor as a path, for the process that has inherited it.
fn path(descriptor: RawFd) -> String {
    format!("/proc/self/fd/{descriptor}")
}
