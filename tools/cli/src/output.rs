//! The destination of a report: standard output, or the file of `--output`. The destination is
//! checked before the run.

use crate::log;
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use uringfs_lab::Error;
use uringfs_lab::job::JobSet;
use uringfs_lab::targets::Target;

/// A checked destination.
pub struct ReportOutput(Option<PathBuf>);

impl ReportOutput {
    /// Checks that `path` can be written and is not a target of a job. Does not create or change it.
    pub fn new(path: Option<&Path>, set: &JobSet) -> Result<Self, Error> {
        let Some(path) = path else { return Ok(Self(None)) };
        let error = |why: &str| Error::input(format!("--output {}: {why}", path.display()));
        if path.is_dir() {
            return Err(error("is a directory"));
        }
        // A device or a pipe is opened only when the report is written.
        let metadata = path.metadata();
        if metadata.as_ref().is_ok_and(|found| found.is_file()) {
            let opened = std::fs::File::options().append(true).open(path);
            opened.map_err(|cause| error("cannot be written").because(cause))?;
        } else if metadata.is_err() {
            let parent = parent_directory(path);
            if !parent.is_dir() {
                return Err(error(&format!("there is no directory {}", parent.display())));
            }
            let mode = nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK;
            nix::unistd::access(parent, mode)
                .map_err(|errno| error("cannot be created").because(errno))?;
        }
        let resolved_path = resolved(path);
        for job in &set.jobs {
            for thread in 0..job.options.jobs {
                let targets = Target::from_job(&job.name, &job.options, thread);
                let same = |path| resolved(path) == resolved_path;
                if targets.iter().filter_map(Target::path).any(same) {
                    return Err(error(&format!("is a target of job `{}`", job.name)));
                }
            }
        }
        Ok(Self(Some(path.to_owned())))
    }

    /// Writes the report. On failure, prints it on standard output and returns the error.
    pub fn write(&self, text: &str) -> Result<(), Error> {
        let Some(path) = &self.0 else { return print(text) };
        std::fs::write(path, text).map_err(|error| {
            let _ = print(text);
            Error::run(format!("cannot write {}; the report is on standard output", path.display()))
                .because(error)
        })
    }
}

fn parent_directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// The canonical path; of a file that does not exist, its name in the canonical directory.
fn resolved(path: &Path) -> Option<PathBuf> {
    let in_parent = || {
        let name = path.file_name().unwrap_or(OsStr::new(""));
        parent_directory(path).canonicalize().map(|parent| parent.join(name))
    };
    path.canonicalize().or_else(|_| in_parent()).ok()
}

/// Prints to standard output. A broken pipe is not an error.
pub fn print(text: &str) -> Result<(), Error> {
    print_bytes(text.as_bytes())
}

/// The same for bytes that need not be UTF-8, such as file names.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    written(out.write_all(bytes).and_then(|()| out.flush()))
}

/// The result of a write to standard output. A broken pipe is not an error.
pub fn written(result: std::io::Result<()>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::run("cannot write to standard output").because(error))
        }
        _ => Ok(()),
    }
}

/// Prints a line on standard error, or logs it in a server. Ignores a failure to print: the exit code reports the error.
pub fn print_error(message: &str) {
    match log::is_running() {
        true => tracing::error!(event = "error", "{message}"),
        false => {
            let _ = std::io::stderr().write_all(log::line_of(message).as_bytes());
        }
    }
}

/// The same for what is no error.
pub fn print_warning(message: &str) {
    match log::is_running() {
        true => tracing::warn!(event = "warning", "{message}"),
        false => print_error(&format!("warning: {message}")),
    }
}
