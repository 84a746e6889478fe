//! A guest: its files, its steps, and their results. `init.sh`, its first process, is the other side of this
//! protocol.

use super::archive::Archive;
use super::file_name::file_name;
use super::machine::{Machine, Profile};
use super::packages::{Kernel, Packages};
use super::process::ProcessLimits;
use crate::Error;
use crate::run::RunProgress;
use std::io::{self, Seek, Write};
use std::path::PathBuf;

/// MiB of each target that are written before the steps, so that reads find blocks.
pub const PREPARED_MIB: u64 = 128;

/// Parameters of the RAM device. It has more tags than the depth of any job, because a polled request
/// without a tag goes to a worker thread. Its blocks are pages, so that each copy is a whole page.
const NULL_BLK: &str = "queue_mode=2 poll_queues=1 irqmode=0 memory_backed=1 bs=4096 gb=1 \
                        nr_devices=4 hw_queue_depth=1024";

/// The storage of a target in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageKind {
    /// The device itself.
    Raw,
    /// A file on ext4.
    Ext4,
    /// A file on XFS.
    Xfs,
    /// A file in a volume of this program.
    Volume,
}

/// A kind of device in the guest. There are four of it, one for each [`StorageKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestDevice {
    /// The kernel's RAM device, which copies each block, without interrupts and with a queue for polling.
    NullBlk,
    /// QEMU's NVMe device, with a queue for polling.
    Nvme,
}

impl GuestDevice {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::NullBlk => "null_blk",
            Self::Nvme => "nvme",
        }
    }

    /// The path of the target on this storage.
    pub fn target(self, storage: StorageKind) -> &'static str {
        match (self, storage) {
            (Self::NullBlk, StorageKind::Raw) => "/dev/nullb0",
            (Self::NullBlk, StorageKind::Ext4) => "/null_blk/ext4/file",
            (Self::NullBlk, StorageKind::Xfs) => "/null_blk/xfs/file",
            (Self::NullBlk, StorageKind::Volume) => "/dev/nullb3:/file",
            (Self::Nvme, StorageKind::Raw) => "/dev/nvme0n1",
            (Self::Nvme, StorageKind::Ext4) => "/nvme/ext4/file",
            (Self::Nvme, StorageKind::Xfs) => "/nvme/xfs/file",
            (Self::Nvme, StorageKind::Volume) => "/dev/nvme0n4:/file",
        }
    }

    /// The heading of a table of its nanoseconds per I/O.
    pub fn heading(self) -> String {
        format!("{}: nanoseconds per I/O, which are instructions\n{}", self.name(), self.caveat())
    }

    /// A caveat for all its figures: one line, or nothing.
    pub fn caveat(self) -> &'static str {
        match self {
            Self::NullBlk => "",
            Self::Nvme => {
                "nvme is emulated, and its latency is the host's, so that times are not exact: a polling processor \
                 counts while it waits, a sleeping one skips to its next timer\n"
            }
        }
    }

    /// The script lines that prepare its targets.
    fn prepare(self) -> &'static str {
        match self {
            Self::NullBlk => {
                "insert null_blk $null_blk\n\
                 prepare null_blk /dev/nullb0 /dev/nullb1 /dev/nullb2 /dev/nullb3\n"
            }
            Self::Nvme => "prepare nvme /dev/nvme0n1 /dev/nvme0n2 /dev/nvme0n3 /dev/nvme0n4\n",
        }
    }
}

impl std::str::FromStr for GuestDevice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let all = [Self::NullBlk, Self::Nvme];
        all.into_iter()
            .find(|device| device.name() == name)
            .ok_or_else(|| Error::input(format!("unknown device `{name}` (known: null_blk, nvme)")))
    }
}

/// A command that the guest runs.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its name in reports. In the guest it has a number.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// The result of a step.
#[derive(Debug, Clone)]
pub struct StepResult {
    /// Its name.
    pub step: String,
    /// Its exit code.
    pub code: i32,
    /// Its standard output; with an exit code other than 0 also its standard error.
    pub output: String,
}

/// The description of a guest.
#[derive(Debug)]
pub struct Guest<'a> {
    /// The kernels and tools.
    pub packages: &'a Packages,
    /// The kernel to boot.
    pub kernel: &'a Kernel,
    /// The machine's profile.
    pub profile: Profile,
    /// The devices to prepare.
    pub devices: &'a [GuestDevice],
    /// Static programs, by their names in `/bin`.
    pub programs: &'a [(String, PathBuf)],
    /// Environment variables of its processes.
    pub environment: &'a [(String, String)],
    /// Shell lines to run before the steps.
    pub script: &'a str,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Guest<'_> {
    /// Boots the guest and runs all steps. The activity is published for each.
    ///
    /// # Errors
    /// The machine fails, the guest does not complete all steps in time, or Ctrl-C.
    pub fn run(
        &self,
        limits: ProcessLimits<'_>,
        progress: &RunProgress,
    ) -> Result<Vec<StepResult>, Error> {
        let initial = tempfile::tempfile()
            .and_then(|file| self.write(file))
            .map_err(|error| Error::run("cannot write the guest's files").because(error))?;
        let qemu = self.packages.qemu();
        let machine = Machine { qemu, kernel: self.kernel, profile: self.profile, initial };
        let kernel = &self.kernel.release;
        progress.set_activity(&format!("Linux {kernel}: booting"));
        let mut results = StepResults::new(&self.steps);
        let console = machine.run(limits, &mut |line| {
            let (done, all) = (results.done.len() + 1, self.steps.len());
            if let Some(name) = results.push_line(line) {
                progress.set_activity(&format!("Linux {kernel}: {name} ({done}/{all})"));
            }
        })?;
        match self.steps.get(results.done.len()) {
            None => Ok(results.done),
            Some(step) => Err(Error::run(format!(
                "the guest (Linux {kernel}) did not complete `{}`: {}",
                step.name,
                console.error_line()
            ))),
        }
    }

    fn write<W: Write + Seek>(&self, out: W) -> io::Result<W> {
        let mut archive = Archive::new(io::BufWriter::new(out));
        for folder in ["bin", "sbin", "usr", "dev", "proc", "sys", "tmp", "modules"] {
            archive.folder(folder)?;
        }
        archive.program("init", include_bytes!("init.sh"))?;
        archive.data("steps", self.script().as_bytes())?;
        self.packages.add_tools(&mut archive)?;
        for module in &self.kernel.modules {
            archive.data(&format!("modules/{}", file_name(module)), &std::fs::read(module)?)?;
        }
        for (name, path) in self.programs {
            archive.program(&format!("bin/{name}"), &std::fs::read(path)?)?;
        }
        let mut out = archive.finish()?.into_inner().map_err(|error| error.into_error())?;
        out.rewind()?;
        Ok(out)
    }

    fn script(&self) -> String {
        let mut script = format!("size_mib={PREPARED_MIB}\nnull_blk='{NULL_BLK}'\n");
        for (name, value) in self.environment {
            script += &format!("export {name}={}\n", quoted(value));
        }
        for device in self.devices {
            script += device.prepare();
        }
        script += self.script;
        for (number, step) in self.steps.iter().enumerate() {
            let words: Vec<_> = step.command.iter().map(|word| quoted(word)).collect();
            script += &format!("step {number} {}\n", words.join(" "));
        }
        script
    }
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Parses the results, line by line. Steps run in order, so that the number of the running step is the
/// number of completed ones.
struct StepResults<'a> {
    steps: &'a [Step],
    done: Vec<StepResult>,
    open: Option<StepResult>,
}

impl<'a> StepResults<'a> {
    fn new(steps: &'a [Step]) -> Self {
        Self { steps, done: Vec::new(), open: None }
    }

    /// Parses a line. If it begins a step, returns the step's name.
    fn push_line(&mut self, line: &str) -> Option<&'a str> {
        let number = self.done.len().to_string();
        if line.strip_prefix("::begin ") == Some(&number) {
            let name = self.steps.get(self.done.len())?.name.as_str();
            self.open = Some(StepResult { step: name.to_owned(), code: 0, output: String::new() });
            return Some(name);
        }
        let mut open = self.open.take()?;
        let end = line.strip_prefix("::end ").and_then(|end| end.split_once(' '));
        match end.filter(|(ended, _)| *ended == number) {
            Some((_, code)) => {
                open.code = code.parse().unwrap_or(-1);
                open.output.truncate(open.output.trim_end().len());
                self.done.push(open);
            }
            None => {
                open.output += line;
                open.output.push('\n');
                self.open = Some(open);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_and_end_lines_separate_the_results() {
        let steps = ["a", "b; c"].map(|name| Step { name: name.to_owned(), command: Vec::new() });
        let mut results = StepResults::new(&steps);
        let began: Vec<_> = ["noise", "::begin 0", "{", "}", "", "::end 0 0", "::begin 1"]
            .into_iter()
            .filter_map(|line| results.push_line(line))
            .collect();
        assert_eq!(began, ["a", "b; c"]);
        for line in ["::end 0 0", "bad", "::end 1 2", "::begin 2"] {
            results.push_line(line);
        }
        let done: Vec<_> = results
            .done
            .iter()
            .map(|result| (result.step.as_str(), result.code, result.output.as_str()))
            .collect();
        assert_eq!(done, [("a", 0, "{\n}"), ("b; c", 2, "::end 0 0\nbad")]);
    }

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(quoted("a'b $c"), r"'a'\''b $c'");
    }
}
