//! Splits a job file into lines, each with its position: sections, keys, comments, `include`. Does not
//! know the meaning of keys.

use crate::Error;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest line; fio's limit is smaller.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Largest job file.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Depth limit of `include`.
const MAX_INCLUDE_DEPTH: usize = 16;

/// The position of a key or section, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceLocation {
    /// A line of a file, counted from 1.
    Line(Arc<str>, usize),
    /// The command line.
    CommandLine,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(file, line) => write!(f, "{file}:{line}"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// A parsed line of a job file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// `[name]`
    Section(&'a str),
    /// `key` or `key=value`
    Key(&'a str, Option<&'a str>),
}

/// Reads a job file (`-` is standard input) and calls `each` with every line, included files
/// included.
pub fn read_file(
    path: &Path,
    each: &mut dyn FnMut(Line<'_>, SourceLocation) -> Result<(), Error>,
) -> Result<(), Error> {
    read_nested(path, &mut Vec::new(), each)
}

/// Checks that a job file and the files that it includes can be read line by line. Keys may have any meaning.
///
/// # Errors
/// A file cannot be read, or has a line that is none of a job file.
pub fn check_file(path: &Path) -> Result<(), Error> {
    read_file(path, &mut |_, _| Ok(()))
}

fn read_nested(
    path: &Path,
    open: &mut Vec<PathBuf>,
    each: &mut dyn FnMut(Line<'_>, SourceLocation) -> Result<(), Error>,
) -> Result<(), Error> {
    let bytes = read_bounded(path)?;
    // The canonical path, so that `a/../job` and `job` are one file.
    let identity = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let shown: Arc<str> = path.display().to_string().into();
    open.push(identity);
    read_bytes(&bytes, &shown, &mut |line, location| {
        let Line::Key(key, None) = line else { return each(line, location) };
        let Some(name) = key.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t']))
        else {
            return each(line, location);
        };
        let target = path.parent().unwrap_or(Path::new("")).join(name.trim());
        if open.len() >= MAX_INCLUDE_DEPTH {
            return Err(Error::input(format!(
                "{location}: include is more than {MAX_INCLUDE_DEPTH} files deep"
            )));
        }
        if target.canonicalize().is_ok_and(|identity| open.contains(&identity)) {
            return Err(Error::input(format!("{location}: {} includes itself", target.display())));
        }
        read_nested(&target, open, each).map_err(|error| match error.kind() {
            crate::ErrorKind::Input if !target.exists() => {
                Error::input(format!("{location}: {error}"))
            }
            _ => error,
        })
    })?;
    open.pop();
    Ok(())
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, Error> {
    let bad =
        |error: std::io::Error| Error::input(format!("job file {}", path.display())).because(error);
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(bad)?;
    } else {
        let file = std::fs::File::open(path).map_err(bad)?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(bad)?;
    }
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let limit = MAX_FILE_BYTES >> 20;
        return Err(Error::input(format!("job file {}: larger than {limit} MiB", path.display())));
    }
    Ok(bytes)
}

/// Calls `each` with every line of a job file in memory.
pub fn read_bytes(
    bytes: &[u8],
    file: &Arc<str>,
    each: &mut dyn FnMut(Line<'_>, SourceLocation) -> Result<(), Error>,
) -> Result<(), Error> {
    for (index, raw) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let location = SourceLocation::Line(Arc::clone(file), index + 1);
        match parse_line(raw) {
            Ok(Some(line)) => each(line, location)?,
            Ok(None) => {}
            Err(problem) => return Err(Error::input(format!("{location}: {problem}"))),
        }
    }
    Ok(())
}

/// Parses one line; `None` is an empty line or a comment.
fn parse_line(raw: &[u8]) -> Result<Option<Line<'_>>, String> {
    if raw.len() > MAX_LINE_BYTES {
        return Err(format!("line of {} bytes; at most {MAX_LINE_BYTES}", raw.len()));
    }
    if raw.contains(&0) {
        return Err("line has a NUL byte: not a job file".into());
    }
    let text = std::str::from_utf8(raw)
        .map_err(|error| format!("not UTF-8 from byte {} on", error.valid_up_to() + 1))?;
    // A comment may follow a value, and fio cannot quote `;` and `#`.
    let end = raw.iter().position(|byte| matches!(byte, b';' | b'#')).unwrap_or(raw.len());
    let text = text[..end].trim_ascii();
    if text.is_empty() {
        return Ok(None);
    }
    let line = if let Some(rest) = text.strip_prefix('[') {
        let name = rest.strip_suffix(']').ok_or("section without a closing `]`")?.trim_ascii();
        if name.is_empty() {
            return Err("section without a name".into());
        }
        Line::Section(name)
    } else {
        match text.split_once('=') {
            Some((key, value)) => Line::Key(key.trim_ascii(), Some(value.trim_ascii())),
            None => Line::Key(text, None),
        }
    };
    // Messages repeat parts of a line, and a terminal would interpret control characters in them.
    let parts = match &line {
        Line::Section(name) => [*name, ""],
        Line::Key(key, value) => [*key, value.unwrap_or("")],
    };
    match parts.iter().flat_map(|part| part.chars()).find(|letter| letter.is_control()) {
        Some(control) => {
            Err(format!("line has the control character {}", control.escape_default()))
        }
        None => Ok(Some(line)),
    }
}
