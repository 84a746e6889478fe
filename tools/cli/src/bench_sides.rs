//! The options that `bench compare`, `bench sweep` and `bench experiment` share, and the keys by which their runs differ.

use std::path::{Path, PathBuf};
use std::time::Duration;
use uringfs_lab::Error;
use uringfs_lab::job::UnknownKeys;
use uringfs_lab::run::Overwrite;

/// The options of interleaved runs.
#[derive(clap::Args)]
pub struct RunOptions {
    /// Begin no pair or round that would end more than SECONDS after the first one began
    #[arg(long, value_name = "SECONDS")]
    max_time: Option<f64>,

    /// The seed of the order of the runs in each pair or round
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Allow writes to existing files, and to devices that hold a file system
    #[arg(long)]
    overwrite: bool,
}

/// The options of pairs of runs.
#[derive(clap::Args)]
pub struct PairOptions {
    /// The smallest difference that matters, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    effect: f64,

    /// Run this many pairs; otherwise until the interval is narrow, at most 30
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub pairs: Option<u32>,
}

/// The options of job files.
#[derive(clap::Args)]
pub struct JobFileOptions {
    /// Warn about unknown keys of job files instead of failing
    #[arg(long)]
    ignore_unknown: bool,
}

/// The keys by which runs differ, for the help.
pub const KEYS: &str =
    "  engine=NAME       uringfs (the default), ring, nvme-passthru, psync, threads, or
                    fio; io_uring, io_uring_cmd and libaio are fio with this ioengine
  exec=PATH         another build of uringfs, or a fio
  target=TARGET     the key filename of each job, and ${TARGET} in job files
  SWITCH=VALUE      a switch of uringfs, as in direct.simple_read=off
  KEY=VALUE         any key of job files, in place of the value there";

impl RunOptions {
    /// The limit of time.
    pub fn max_time(&self) -> Result<Option<Duration>, Error> {
        let limit = |seconds| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|error| Error::input(format!("--max-time {seconds}")).because(error))
        };
        self.max_time.map(limit).transpose()
    }

    /// Whether existing data may be overwritten.
    pub fn overwrite(&self) -> Overwrite {
        if self.overwrite { Overwrite::Allow } else { Overwrite::Refuse }
    }
}

impl PairOptions {
    /// The smallest difference that matters: 0.05 is 5 %.
    pub fn effect(&self) -> Result<f64, Error> {
        let effect = self.effect / 100.0;
        match effect > 0.0 && effect <= 1.0 {
            true => Ok(effect),
            false => Err(Error::input("--effect needs a percentage above 0, at most 100")),
        }
    }
}

impl JobFileOptions {
    /// The treatment of unknown keys.
    pub fn unknown_keys(&self) -> UnknownKeys {
        if self.ignore_unknown { UnknownKeys::Ignore } else { UnknownKeys::Refuse }
    }
}

/// Refuses standard input as a job file: each way of running the jobs reads it.
pub fn refuse_standard_input(jobs: &[PathBuf]) -> Result<(), Error> {
    match jobs.iter().any(|path| path == Path::new("-")) {
        true => Err(Error::input(
            "the job file is read once for each way of running it; - can be read once",
        )),
        false => Ok(()),
    }
}
