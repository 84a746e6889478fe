//! Where a report goes: standard output, or the file of `--output`. That it can go there is known
//! before the run.

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use uringfs_lab::Error;
use uringfs_lab::job::JobSet;
use uringfs_lab::targets::Target;

/// A place that was found fit.
pub struct ReportOutput(Option<PathBuf>);

impl ReportOutput {
    /// Looks whether `path` can be written, without making or changing it. It must be none of the
    /// jobs' targets.
    pub fn new(path: Option<&Path>, set: &JobSet) -> Result<Self, Error> {
        let Some(path) = path else { return Ok(Self(None)) };
        let refuse = |why: &str| Error::input(format!("--output {}: {why}", path.display()));
        if path.is_dir() {
            return Err(refuse("is a directory"));
        }
        // A device, a pipe and the like is opened when there is something to say.
        let found = path.metadata();
        if found.as_ref().is_ok_and(|found| found.is_file()) {
            let opened = std::fs::File::options().append(true).open(path);
            opened.map_err(|error| refuse("cannot be written").because(error))?;
        } else if found.is_err() {
            let folder = parent_directory(path);
            if !folder.is_dir() {
                return Err(refuse(&format!("there is no directory {}", folder.display())));
            }
            let mode = nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK;
            nix::unistd::access(folder, mode)
                .map_err(|errno| refuse("cannot be made there").because(errno))?;
        }
        let here = resolved(path);
        for job in &set.jobs {
            for thread in 0..job.options.jobs {
                let targets = Target::of_job(&job.name, &job.options, thread);
                let same = |path| resolved(path) == here;
                if targets.iter().filter_map(Target::path).any(same) {
                    return Err(refuse(&format!("is a target of job `{}`", job.name)));
                }
            }
        }
        Ok(Self(Some(path.to_owned())))
    }

    /// Puts the report there; on standard output if the place has become unfit.
    pub fn write(&self, text: &str) -> Result<(), Error> {
        let Some(path) = &self.0 else { return print(text) };
        std::fs::write(path, text).map_err(|error| {
            // Better there than nowhere; the error is told either way.
            let _ = print(text);
            Error::run(format!("cannot write {}; the report is on standard output", path.display()))
                .because(error)
        })
    }
}

fn parent_directory(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// A path as the system sees it, whether or not something is there.
fn resolved(path: &Path) -> Option<PathBuf> {
    let in_parent = || {
        let name = path.file_name().unwrap_or(OsStr::new(""));
        parent_directory(path).canonicalize().map(|parent| parent.join(name))
    };
    path.canonicalize().or_else(|_| in_parent()).ok()
}

/// Prints to standard output; a reader who has gone away is no error worth a word.
pub fn print(text: &str) -> Result<(), Error> {
    print_bytes(text.as_bytes())
}

/// The same for what is not all text, such as names.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::run("cannot write to standard output").because(error))
        }
        _ => Ok(()),
    }
}

/// Says a line on standard error; if nobody hears it, the exit code has to do. Names and what other
/// programs said stand in it as they came: their control characters are shown, not sent.
pub fn print_error(words: &str) {
    let mut line = String::with_capacity(words.len());
    for character in words.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    let _ = writeln!(std::io::stderr(), "uringfs: {line}");
}
