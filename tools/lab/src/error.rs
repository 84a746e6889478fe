//! What can go wrong in the lab, told in one line, and what the program's exit code says about it.

use std::fmt;

/// Whose turn it is after an error: the user's, or the machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The job, the target or the command line cannot be used. Nothing has been written.
    Input,
    /// The run began and failed.
    Run,
    /// The user stopped it.
    Interrupted,
}

/// An error of the lab. `Display` gives one line fit for a terminal.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Something given to the lab cannot be used.
    pub fn input(context: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Input, context: context.into(), source: None }
    }

    /// The run failed.
    pub fn run(context: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Run, context: context.into(), source: None }
    }

    /// The user stopped the run before there was anything to report.
    pub fn interrupted() -> Self {
        Self { kind: ErrorKind::Interrupted, context: "stopped by Ctrl-C".into(), source: None }
    }

    /// Says in front where it was, or whose.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.context = format!("{place}: {}", self.context);
        self
    }

    /// Adds the error that caused this one; it is printed after the context.
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Which kind it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The exit code of a program that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Run => 1,
            ErrorKind::Input => 2,
            ErrorKind::Interrupted => 130,
        }
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
