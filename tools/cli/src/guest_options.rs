//! The options of commands that boot Linux guests.

use crate::progress::Progress;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use uringfs_lab::Error;
use uringfs_lab::run::{RunProgress, stop_on_interrupt};
use uringfs_lab::vm::{self, GuestOptions, GuestRunner, program};

const DEFAULT_TIMEOUT: u64 = 600;

/// The options.
#[derive(clap::Args)]
pub struct GuestArguments {
    /// Prefix of the guest kernel's release, as in 6.1 [default: the newest]
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,

    /// A static build of this program for x86-64, to run in the guest
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,

    /// Directory for downloaded packages of guests [default: $XDG_CACHE_HOME/uringfs or ~/.cache/uringfs]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Timeout of one guest, in seconds [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
}

impl GuestArguments {
    /// The first given option, by its name.
    pub fn first_given(&self) -> Option<&'static str> {
        let options = [
            (self.kernel.is_some(), "--kernel"),
            (self.program.is_some(), "--program"),
            (self.cache.is_some(), "--cache"),
            (self.timeout.is_some(), "--timeout"),
        ];
        options.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
    }

    /// Runs something with guests, a progress line, and Ctrl-C.
    pub fn run<T>(
        self,
        run: impl FnOnce(&GuestRunner<'_>, &AtomicBool, &RunProgress) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let program = program::find(self.program.as_deref())?;
        let cache = self.cache.or_else(vm::default_cache);
        let cache = cache
            .ok_or_else(|| Error::input("no home directory for the cache; give --cache DIR"))?;
        let stop = stop_on_interrupt()?;
        let live = Arc::new(RunProgress::default());
        let progress = Progress::start(&live);
        let options = GuestOptions {
            cache: &cache,
            kernel: self.kernel.as_deref(),
            limit: Duration::from_secs(self.timeout.unwrap_or(DEFAULT_TIMEOUT)),
            stop: &stop,
            progress: &live,
        };
        let result = run(&GuestRunner::open(&options, program)?, &stop, &live);
        drop(progress);
        result
    }
}
