//! The destination of a report: standard output, or the file of `--output` or `--html`. The destination is
//! checked before the run.

use crate::log;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use uringfs_lab::Error;
use uringfs_lab::job::JobSet;
use uringfs_lab::targets::Target;

/// A checked destination.
pub struct ReportOutput {
    /// Its file; `None` for standard output.
    path: Option<PathBuf>,
    /// Whether it did not exist.
    is_new: bool,
    /// The file, from the first report on.
    file: Mutex<Option<File>>,
}

impl ReportOutput {
    /// Checks that `path` can be written and is not a target of a job. Does not create or change it.
    pub fn new(path: Option<&Path>, set: &JobSet) -> Result<Self, Error> {
        if let Some(path) = path {
            let checked = check_writable(path).and_then(|()| refuse_targets(path, set));
            checked.map_err(|error| error.at(format!("--output {}", path.display())))?;
        }
        let is_new = path.is_some_and(|path| !path.exists());
        Ok(Self { path: path.map(Path::to_owned), is_new, file: Mutex::default() })
    }

    /// Writes the report, after those of [`Self::write_status`]. On failure, prints it on standard output and returns the error.
    pub fn write(&self, text: &str) -> Result<(), Error> {
        let Some(path) = &self.path else { return print(text) };
        self.append(path, text).map_err(|error| {
            if self.is_new {
                // A part of a report is none.
                let _ = std::fs::remove_file(path);
            }
            let _ = print(text);
            Error::run(format!("cannot write {}; the report is on standard output", path.display()))
                .because(error)
        })
    }

    /// Writes a report of a run that goes on. A failure ends no run: the last report has it, too.
    pub fn write_status(&self, text: &str) {
        match &self.path {
            Some(path) => drop(self.append(path, text)),
            None => drop(print(text)),
        }
    }

    fn append(&self, path: &Path, text: &str) -> std::io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &mut *file {
            Some(file) => file,
            none => none.insert(File::create(path)?),
        };
        file.write_all(text.as_bytes())
    }
}

/// The checked file of `--html`. It is replaced as a whole when the page is written, so that a run that fails keeps the page
/// of the run before.
pub struct PageOutput {
    /// As the user has given it.
    given: PathBuf,
    /// The file, where symbolic links have been followed.
    path: PathBuf,
}

impl PageOutput {
    /// Checks that `path` can be replaced or created. Does not create or change it.
    pub fn new(path: &Path) -> Result<Self, Error> {
        let page = Self {
            given: path.to_owned(),
            path: path.canonicalize().unwrap_or_else(|_| path.to_owned()),
        };
        page.check().map_err(|error| page.at(error))?;
        Ok(page)
    }

    fn check(&self) -> Result<(), Error> {
        if self.given == Path::new("-") {
            return Err(Error::input("standard output has the report; give a file"));
        }
        if self.path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            return Err(Error::input("is not a regular file, which the page could replace"));
        }
        check_writable(&self.path)?;
        check_directory(&self.path)
    }

    /// Refuses a page that would replace a file that the command reads.
    pub fn refuse_inputs<'a>(
        &self,
        files: impl IntoIterator<Item = &'a PathBuf>,
    ) -> Result<(), Error> {
        let page = resolved(&self.path);
        match files.into_iter().any(|file| resolved(file) == page) {
            true => Err(self.at(Error::input("is a file that the command reads"))),
            false => Ok(()),
        }
    }

    /// Refuses a page that would replace a target of a job.
    pub fn refuse_targets(&self, set: &JobSet) -> Result<(), Error> {
        refuse_targets(&self.path, set).map_err(|error| self.at(error))
    }

    /// Writes the page beside its file, and renames it.
    pub fn write(&self, page: &str) -> Result<(), Error> {
        let name = format!(".uringfs-page-{}", std::process::id());
        let temporary = parent_directory(&self.path).join(name);
        let written = File::options().write(true).create_new(true).open(&temporary);
        let written = written.and_then(|mut file| {
            let written = file.write_all(page.as_bytes()).and_then(|()| file.sync_all());
            let renamed = written.and_then(|()| std::fs::rename(&temporary, &self.path));
            renamed.inspect_err(|_| drop(std::fs::remove_file(&temporary)))
        });
        written.map_err(|cause| self.at(Error::run("cannot be written").because(cause)))
    }

    fn at(&self, error: Error) -> Error {
        error.at(format!("--html {}", self.given.display()))
    }
}

/// Checks that a file can be written or created, without creating or changing it.
fn check_writable(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Err(Error::input("is a directory"));
    }
    match path.metadata() {
        Ok(found) if found.is_file() => {
            let opened = File::options().append(true).open(path);
            opened.map(drop).map_err(|cause| Error::input("cannot be written").because(cause))
        }
        // A device or a pipe is opened only when the report is written.
        Ok(_) => Ok(()),
        Err(_) => check_directory(path),
    }
}

/// Checks that a file can be created in its directory.
fn check_directory(path: &Path) -> Result<(), Error> {
    let parent = parent_directory(path);
    if !parent.is_dir() {
        return Err(Error::input(format!("there is no directory {}", parent.display())));
    }
    let mode = nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK;
    nix::unistd::access(parent, mode)
        .map_err(|errno| Error::input("cannot be created").because(errno))
}

fn refuse_targets(path: &Path, set: &JobSet) -> Result<(), Error> {
    let path = resolved(path);
    for job in &set.jobs {
        for thread in 0..job.options.jobs {
            let targets = Target::from_job(&job.name, &job.options, thread);
            if targets.iter().filter_map(Target::path).any(|target| resolved(target) == path) {
                return Err(Error::input(format!("is a target of job `{}`", job.name)));
            }
        }
    }
    Ok(())
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
