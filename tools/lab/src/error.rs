//! The lab's error: one line for a terminal, and the program's exit code.

use std::fmt;
use std::io::ErrorKind as IoErrorKind;
use uringfs::Errno;

/// The cause of an error; it decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The job, the target or the command line cannot be used. Nothing has been written.
    Input,
    /// The run began and failed.
    Run,
    /// The user stopped the run.
    Interrupted,
}

/// The errors of a target that is full or gone, which is no fault of the job.
pub(crate) const LOST_TARGET: [Errno; 4] = [Errno::NOSPC, Errno::DQUOT, Errno::NODEV, Errno::NXIO];

/// An error of the lab. `Display` writes one line.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// Replaces the exit code of the kind.
    exit_code: Option<u8>,
    /// Further lines, if the error has several causes.
    details: Vec<String>,
}

impl Error {
    fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None, exit_code: None, details: Vec::new() }
    }

    /// An error in the user's input.
    pub fn input(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Input, context)
    }

    /// The target is in use.
    pub fn in_use(context: impl Into<String>) -> Self {
        const EXIT_CODE: u8 = 6;
        Self::input(context).exiting_with(EXIT_CODE)
    }

    /// A failure during the run.
    pub fn run(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Run, context)
    }

    /// The user stopped the run, and there is nothing to report.
    pub fn interrupted() -> Self {
        Self::new(ErrorKind::Interrupted, "stopped by Ctrl-C, SIGTERM or SIGHUP")
    }

    /// Puts a place in front of the message: a file and line, a job, a target.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.context = format!("{place}: {}", self.context);
        self
    }

    /// Adds the error that caused this one. `Display` writes it after the context.
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds the state that an interrupt has left; changes no other error.
    pub fn when_interrupted(self, state: &'static str) -> Self {
        match self.kind {
            ErrorKind::Interrupted => self.because(state),
            _ => self,
        }
    }

    /// Sets the exit code, where programs tell causes of one kind apart.
    pub fn exiting_with(mut self, exit_code: u8) -> Self {
        self.exit_code = Some(exit_code);
        self
    }

    /// Adds a line for each of several causes.
    pub fn with_details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }

    /// The lines to print after the error; none unless it has several causes.
    pub fn details(&self) -> &[String] {
        &self.details
    }

    /// Whether it happened because a file system, a device or a quota is full.
    pub fn is_disk_full(&self) -> bool {
        let Some(source) = &self.source else { return false };
        let kind = source.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        matches!(kind, Some(IoErrorKind::StorageFull | IoErrorKind::QuotaExceeded))
            || matches!(source.downcast_ref(), Some(&(Errno::NOSPC | Errno::DQUOT)))
    }

    /// The cause.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The program's exit code: unless one was set, 1 for a failed run, 2 for bad input, 130 for an interrupt.
    pub fn exit_code(&self) -> u8 {
        self.exit_code.unwrap_or(match self.kind {
            ErrorKind::Run => 1,
            ErrorKind::Input => 2,
            ErrorKind::Interrupted => 130,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}
