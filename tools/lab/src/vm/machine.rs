//! The virtual machine: QEMU's command line for each profile, and one run from boot to power-off. The
//! guest's results come over its second serial port, which is QEMU's standard output. Files of a run have no
//! names: QEMU inherits open descriptors, and the files vanish with the last of them.

use super::packages::{Kernel, Qemu};
use super::process::{ProcessLimits, run, text};
use crate::Error;
use rustix::io::FdFlags;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

/// The profile of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// One processor. Its clock counts instructions: one instruction is one nanosecond.
    Counting,
    /// The same, but a guest that sleeps does so in real time, in which its devices complete what they have. For jobs that count their
    /// work apart from their waits.
    CountingWork,
    /// Two processors at full speed, for functional tests.
    Functional,
}

/// A machine, for one run.
pub struct Machine<'a> {
    /// The emulator.
    pub qemu: &'a Qemu,
    /// The kernel to boot.
    pub kernel: &'a Kernel,
    /// The profile.
    pub profile: Profile,
    /// The archive with the guest's files.
    pub initial: File,
}

/// Number of drives of the NVMe controller, and size of each in bytes; they are sparse.
const DRIVES: u32 = 4;
const DRIVE_SIZE: u64 = 1 << 30;

impl Machine<'_> {
    /// Boots, calls `on_line` with each line of the guest's results, and waits for the end.
    ///
    /// # Errors
    /// QEMU cannot be run, or fails, or Ctrl-C. A timeout is not an error here: results are then missing.
    pub fn run(
        self,
        limits: ProcessLimits<'_>,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<Console, Error> {
        let failed = |error| Error::run("cannot create the guest's files").because(error);
        let console = inherited(tempfile::tempfile().map_err(failed)?)?;
        let mut command = self.qemu.command();
        match self.profile {
            Profile::Counting | Profile::CountingWork => {
                let sleeps = if self.profile == Profile::Counting { "off" } else { "on" };
                let icount = format!("shift=0,sleep={sleeps}");
                command.args(["-accel", "tcg", "-icount", &icount, "-smp", "1"]);
                // These two flags decide how the kernel copies memory. Figures are comparable only with
                // the same setting.
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
        // Nothing may differ from boot to boot: no random addresses, no random stack offsets.
        command.args([
            "-append",
            "console=ttyS0 quiet panic=-1 mitigations=off nokaslr norandmaps \
             randomize_kstack_offset=off nvme.poll_queues=1",
        ]);
        command.args(["-chardev", &format!("file,id=console,path={}", path(console.as_raw_fd()))]);
        command.args(["-serial", "chardev:console"]);
        command.args(["-chardev", "stdio,id=answers,signal=off", "-serial", "chardev:answers"]);
        // Doorbells that are writes of the guest, not events of a thread beside it.
        let doorbells = if self.profile == Profile::CountingWork { ",ioeventfd=off" } else { "" };
        command.args(["-device", &format!("nvme,id=nvme,serial=uringfs{doorbells}")]);
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

/// The kernel's console output, and how the machine ended.
pub struct Console {
    text: String,
    timed_out: bool,
}

impl Console {
    /// One line that says why results are missing.
    pub fn error_line(&self) -> String {
        const MAX_LINES: usize = 3;
        let lines: Vec<&str> =
            self.text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(MAX_LINES)..].join(" / ");
        let how = match self.timed_out {
            true => "it exceeded its time limit (--timeout)",
            false => "it ended early",
        };
        if last.is_empty() { how.to_owned() } else { format!("{how}; its console: {last}") }
    }
}

/// Clears close-on-exec, so that the child inherits the descriptor.
fn inherited(file: File) -> Result<File, Error> {
    rustix::io::fcntl_setfd(&file, FdFlags::empty())
        .map_err(|errno| Error::run("cannot pass a descriptor to QEMU").because(errno))?;
    Ok(file)
}

/// The path of a descriptor, in the process that inherits it.
fn path(descriptor: RawFd) -> String {
    format!("/proc/self/fd/{descriptor}")
}
