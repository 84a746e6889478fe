//! Exact measurements in a Linux guest in which one instruction takes one nanosecond. QEMU counts the
//! instructions of a virtual processor, and the count is its clock. So the cost of an I/O, of program and
//! kernel together, is the same on any machine, busy or not.
//!
//! - [`GuestRunner`] runs guests: it has the cache of [`packages`], the kernel and the program.
//! - [`standard`] measures the standard table: device, file systems and this stack.
//! - [`passthrough`] measures NVMe passthrough beside the block device.
//! - [`jobs`] runs the user's jobs and experiments.
//! - [`functional`] runs tests under each kernel, without counting.

mod apt;
mod archive;
mod cache;
mod measurement;
mod file_name;
pub mod functional;
pub mod guest;
pub mod jobs;
mod machine;
pub mod packages;
pub mod passthrough;
mod process;
pub mod program;
mod reference_figures;
pub mod standard;

use crate::Error;
use crate::run::RunProgress;
use guest::{Guest, GuestDevice, Step, StepResult};
use machine::Profile;
use packages::{Kernel, Packages};
use process::ProcessLimits;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The user's options for guests.
#[derive(Debug)]
pub struct GuestOptions<'a> {
    /// The cache directory of packages.
    pub cache: &'a Path,
    /// The beginning of the kernel's release; `None` is the newest kernel.
    pub kernel: Option<&'a str>,
    /// Time limit of one guest.
    pub limit: Duration,
    /// Set by Ctrl-C; ends the guest.
    pub stop: &'a AtomicBool,
    /// Receives the current activity.
    pub progress: &'a RunProgress,
}

/// Runs guests.
#[derive(Debug)]
pub struct GuestRunner<'a> {
    packages: Packages,
    program: PathBuf,
    options: &'a GuestOptions<'a>,
}

impl<'a> GuestRunner<'a> {
    /// A runner of guests with the static program at `program`; see [`program::find`].
    ///
    /// # Errors
    /// The packages are not in the cache and cannot be fetched, or there is no such kernel.
    pub fn open(options: &'a GuestOptions<'a>, program: PathBuf) -> Result<Self, Error> {
        let packages = Packages::open(options.cache, options.stop, options.progress)?;
        packages.kernel(options.kernel)?;
        Ok(Self { packages, program, options })
    }

    fn limits(&self) -> ProcessLimits<'a> {
        ProcessLimits { stop: self.options.stop, limit: self.options.limit }
    }

    fn kernel(&self) -> Result<&Kernel, Error> {
        self.packages.kernel(self.options.kernel)
    }

    /// Runs steps of our program in a counting guest. A failed step is an error.
    fn count(&self, devices: &[GuestDevice], steps: Vec<Step>) -> Result<Vec<StepResult>, Error> {
        self.count_in(Profile::Counting, devices, "", steps)
    }

    /// The same with a profile, and with shell lines before the steps.
    fn count_in(
        &self,
        profile: Profile,
        devices: &[GuestDevice],
        script: &str,
        steps: Vec<Step>,
    ) -> Result<Vec<StepResult>, Error> {
        let programs = [("uringfs".to_owned(), self.program.clone())];
        let guest = Guest {
            packages: &self.packages,
            kernel: self.kernel()?,
            profile,
            devices,
            programs: &programs,
            environment: &[],
            script,
            steps,
        };
        let results = guest.run(self.limits(), self.options.progress)?;
        match results.iter().find(|result| result.code != 0) {
            None => Ok(results),
            Some(failed) => {
                let why = failed.output.lines().last().unwrap_or("it printed no error");
                let why = why.trim_start_matches("uringfs: ");
                let text = format!("in the guest, {}: {why}", failed.step);
                Err(if failed.code == 2 { Error::input(text) } else { Error::run(text) })
            }
        }
    }

    /// Runs commands of our program that print JSON in a counting guest, each with a name.
    pub(crate) fn reports(
        &self,
        device: GuestDevice,
        commands: Vec<(String, Vec<String>)>,
    ) -> Result<Vec<Value>, Error> {
        let steps = commands.into_iter().map(|(name, command)| Step { name, command }).collect();
        let report = |result: StepResult| {
            serde_json::from_str(&result.output).map_err(|error| {
                Error::run(format!("in the guest, {}: its report is not JSON", result.step))
                    .because(error)
            })
        };
        self.count(&[device], steps)?.into_iter().map(report).collect()
    }

    /// The provenance of figures: versions of kernel, QEMU and program.
    pub(crate) fn provenance(&self) -> Result<Value, Error> {
        let Kernel { release, package, version, .. } = self.kernel()?;
        Ok(json!({
            "kernel": release,
            "kernel_package": format!("{package} {version}"),
            "qemu": self.packages.qemu().version(self.limits())?,
            "program": program::identity(&self.program, self.limits())?,
        }))
    }
}

/// The heading of figures: their provenance.
fn heading(provenance: &Value) -> String {
    let program = &provenance["program"];
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!(
        "Linux {} ({})\n{}\n{} ({}, CRC32C {})\n",
        word(&provenance["kernel"]),
        word(&provenance["kernel_package"]),
        word(&provenance["qemu"]),
        word(&program["version"]),
        word(&program["path"]),
        word(&program["crc32c"])
    )
}

/// The default cache directory: `$XDG_CACHE_HOME/uringfs`, or `~/.cache/uringfs`.
pub fn default_cache() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let cache = cache.or_else(|| folder("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("uringfs"))
}
