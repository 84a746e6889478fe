//! Traces of I/O in fio's text format, versions 2 and 3: `read_iolog`. A trace names files, and has a line for each I/O.

use super::direction::IoOp;
use super::replay_options::ReplayOptions;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

/// The largest trace.
const MAX_BYTES: u64 = 1 << 30;
/// The most files of a trace, as of a job.
const MAX_FILES: usize = 4096;
/// The longest I/O. One Linux request carries less.
const MAX_IO_BYTES: u64 = 1 << 30;
/// Shorter waits are left out, as by fio.
const MIN_WAIT_US: u64 = 100;

/// A trace: files, and what is done to them, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IoLog {
    /// The files that have I/O, as the trace names them.
    pub files: Vec<String>,
    /// The steps. No step is due before the one before it.
    pub steps: Vec<ReplayStep>,
    /// The offsets and lengths of each file.
    extents: Vec<Extent>,
}

/// The offsets and lengths of a file's I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Extent {
    /// The end of the last byte.
    end: u64,
    /// All bits of offsets and lengths: a power of two that divides this divides each of them.
    bits: u64,
    /// The same of trims alone.
    trim_bits: u64,
}

/// A step of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayStep {
    /// The time since the first step, in nanoseconds.
    pub due_ns: u64,
    /// The action.
    pub action: ReplayAction,
    /// Index of the file.
    pub file: u32,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes; 0 for syncs.
    pub length: u32,
}

/// The action of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayAction {
    /// An I/O.
    Io(IoOp),
    /// fsync of the file.
    Sync,
    /// fdatasync of the file.
    DataSync,
}

impl IoLog {
    /// Reads a trace from a file.
    ///
    /// # Errors
    /// The file cannot be read or is larger than 1 GiB; those of [`IoLog::parse`].
    pub fn read(path: &str, options: &ReplayOptions) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.escape_debug());
        let file = File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(format!("{}: a trace of more than 1 GiB; split it", path.escape_debug()));
        }
        Self::parse(&bytes, options)
            .map_err(|problem| format!("{}: {problem}", path.escape_debug()))
    }

    /// Parses a trace. Times, offsets, files and actions follow the options.
    ///
    /// # Errors
    /// In one line: the bytes are no such trace, with the number of the line; or no I/O is left.
    ///
    /// ```
    /// use uringfs_lab::job::{IoLog, ReplayOptions};
    ///
    /// let text = b"fio version 3 iolog\n0 /a add\n0 /a open\n10 /a read 0 4096\n30 /a write 8192 512\n";
    /// let log = IoLog::parse(text, &ReplayOptions::default())?;
    /// assert_eq!((log.files.len(), log.steps[1].due_ns, log.steps[1].offset), (1, 20_000, 8192));
    /// # Ok::<(), String>(())
    /// ```
    pub fn parse(bytes: &[u8], options: &ReplayOptions) -> Result<Self, String> {
        if is_blktrace(bytes) {
            return Err("a binary trace of blktrace; blkparse prints it: write its requests as lines \
                        `MICROSECONDS FILE ACTION OFFSET LENGTH` after the line `fio version 3 iolog`"
                .into());
        }
        let mut lines = bytes.split(|byte| *byte == b'\n').zip(1u64..);
        let version = lines.next().and_then(|(line, _)| version(line));
        let version = version
            .ok_or("does not begin with the line `fio version 2 iolog` or `fio version 3 iolog`")?;
        let mut reader = Reader {
            options,
            version,
            log: Self::default(),
            known: HashMap::new(),
            last: 0,
            now_us: 0,
            first_us: None,
        };
        for (line, number) in lines {
            reader.line(line).map_err(|problem| format!("line {number}: {problem}"))?;
        }
        let is_io = |step: &ReplayStep| matches!(step.action, ReplayAction::Io(_));
        if !reader.log.steps.iter().any(is_io) {
            return Err("has no I/O to replay".into());
        }
        Ok(reader.log)
    }

    /// Whether it has I/O in this direction.
    pub fn has(&self, op: IoOp) -> bool {
        self.steps.iter().any(|step| step.action == ReplayAction::Io(op))
    }

    /// The shortest and the longest I/O in this direction, in bytes; `None` without any.
    pub fn lengths(&self, op: IoOp) -> Option<(u64, u64)> {
        let those = || self.steps.iter().filter(|step| step.action == ReplayAction::Io(op));
        let lengths = || those().map(|step| u64::from(step.length));
        Some((lengths().min()?, lengths().max()?))
    }

    /// The end of the last byte that the trace uses of a file.
    pub fn end_of(&self, file: u32) -> u64 {
        self.extent(file).end
    }

    fn extent(&self, file: u32) -> Extent {
        self.extents.get(file as usize).copied().unwrap_or_default()
    }

    /// The bytes of all I/O.
    pub fn bytes(&self) -> u64 {
        self.steps.iter().map(|step| u64::from(step.length)).fold(0, u64::saturating_add)
    }

    /// An offset or a length in a file that is no multiple of `unit`, a power of two.
    pub fn unaligned(&self, file: u32, unit: u64) -> Option<u64> {
        let is_unaligned = !self.extent(file).bits.is_multiple_of(unit);
        is_unaligned.then(|| self.first_unaligned(file, unit, |_| true)).flatten()
    }

    /// The same, of trims alone.
    pub fn unaligned_trim(&self, file: u32, unit: u64) -> Option<u64> {
        let is_trim = |step: &ReplayStep| step.action == ReplayAction::Io(IoOp::Trim);
        let is_unaligned = !self.extent(file).trim_bits.is_multiple_of(unit);
        is_unaligned.then(|| self.first_unaligned(file, unit, is_trim)).flatten()
    }

    fn first_unaligned(
        &self,
        file: u32,
        unit: u64,
        counts: impl Fn(&ReplayStep) -> bool,
    ) -> Option<u64> {
        let steps = self.steps.iter().filter(|step| step.file == file && counts(step));
        steps.flat_map(|step| [step.offset, step.length.into()]).find(|value| value % unit != 0)
    }
}

/// The magic number of blktrace in the first bytes, in either byte order; the last byte is its version.
fn is_blktrace(bytes: &[u8]) -> bool {
    const MAGIC: [u8; 3] = [0x65, 0x61, 0x74];
    match bytes {
        [a, b, c, d, ..] => [*a, *b, *c] == MAGIC || [*d, *c, *b] == MAGIC,
        _ => false,
    }
}

fn version(line: &[u8]) -> Option<Version> {
    match line {
        line if line.starts_with(b"fio version 2 iolog") => Some(Version::Two),
        line if line.starts_with(b"fio version 3 iolog") => Some(Version::Three),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Lines have no time; waits are lines.
    Two,
    /// Each line begins with its time in microseconds.
    Three,
}

struct Reader<'a> {
    options: &'a ReplayOptions,
    version: Version,
    log: IoLog,
    /// The indexes of the files by name, and the file that was meant last.
    known: HashMap<String, u32>,
    last: u32,
    /// The time of the last line.
    now_us: u64,
    /// The time of the first step.
    first_us: Option<u64>,
}

impl Reader<'_> {
    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let Ok(text) = std::str::from_utf8(line) else { return Err("is not UTF-8".into()) };
        let mut words = text.split_ascii_whitespace();
        if self.version == Version::Three {
            let Some(time) = words.next() else { return Ok(()) };
            // A time before the last one is that of the last one.
            self.now_us = self.now_us.max(number(time, "time")?);
        }
        let Some(file) = words.next() else {
            return match self.version {
                Version::Two => Ok(()),
                Version::Three => Err("has a time and nothing else".into()),
            };
        };
        let action = words.next().ok_or_else(|| format!("{} has no action", shown(file)))?;
        if matches!(action, "add" | "open" | "close") {
            // The files of a job are open during all of it.
            return Ok(());
        }
        let mut argument = |name| {
            let word = words.next().ok_or_else(|| format!("{} has no {name}", shown(action)))?;
            number(word, name)
        };
        let (offset, length) = (argument("offset")?, argument("length")?);
        let skip = self.options.skip;
        let (action, is_skipped) = match action {
            "read" => (ReplayAction::Io(IoOp::Read), skip.reads),
            "write" => (ReplayAction::Io(IoOp::Write), skip.writes),
            "trim" => (ReplayAction::Io(IoOp::Trim), skip.trims),
            "sync" => (ReplayAction::Sync, skip.syncs),
            "datasync" => (ReplayAction::DataSync, skip.syncs),
            "wait" if self.version == Version::Two => {
                let wait_us = if offset < MIN_WAIT_US { 0 } else { offset };
                self.now_us = self.now_us.saturating_add(wait_us);
                return Ok(());
            }
            _ => {
                return Err(format!(
                    "{} is not one of add, open, close, read, write, trim, sync, datasync{}",
                    shown(action),
                    if self.version == Version::Two { ", wait" } else { "" }
                ));
            }
        };
        if is_skipped {
            return Ok(());
        }
        self.step(file, action, offset, length)
    }

    fn step(
        &mut self,
        file: &str,
        action: ReplayAction,
        offset: u64,
        length: u64,
    ) -> Result<(), String> {
        let is_io = matches!(action, ReplayAction::Io(_));
        if is_io && !(1..=MAX_IO_BYTES).contains(&length) {
            return Err(format!("a length of {length} is out of range: 1 to {MAX_IO_BYTES}"));
        }
        let length = if is_io { length as u32 } else { 0 };
        let offset = if is_io { self.options.offset(offset) } else { 0 };
        let end = offset.checked_add(length.into()).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or("reaches beyond what a file can hold")?;
        let Some(file) = self.file(file, is_io)? else { return Ok(()) };
        let since_us = self.now_us - *self.first_us.get_or_insert(self.now_us);
        let due_ns = self.options.due_ns(since_us);
        let extent = &mut self.log.extents[file as usize];
        let bits = offset | u64::from(length);
        extent.end = extent.end.max(end);
        extent.bits |= bits;
        if action == ReplayAction::Io(IoOp::Trim) {
            extent.trim_bits |= bits;
        }
        self.log.steps.push(ReplayStep { due_ns, action, file, offset, length });
        Ok(())
    }

    /// The index of a file. Only an I/O adds one: a sync of another file has nothing to do.
    fn file(&mut self, name: &str, adds: bool) -> Result<Option<u32>, String> {
        let name = self.options.redirect.as_deref().unwrap_or(name);
        let files = &mut self.log.files;
        // The last file is most often meant again.
        if files.get(self.last as usize).is_some_and(|last| last == name) {
            return Ok(Some(self.last));
        }
        if let Some(&file) = self.known.get(name) {
            self.last = file;
            return Ok(Some(file));
        }
        if !adds {
            return Ok(None);
        }
        if files.len() >= MAX_FILES {
            return Err(format!("more than {MAX_FILES} files"));
        }
        self.last = files.len() as u32;
        self.known.insert(name.to_owned(), self.last);
        self.log.extents.push(Extent::default());
        files.push(name.to_owned());
        Ok(Some(self.last))
    }
}

fn number(word: &str, name: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("{} is no {name}", shown(word)))
}

/// The beginning of a word, for messages.
fn shown(word: &str) -> String {
    const MAX_SHOWN: usize = 80;
    let begin: String = word.chars().take(MAX_SHOWN).collect();
    format!("`{}`", begin.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::ReplaySkip;
    use proptest::prelude::*;

    fn parse(text: &str, options: &ReplayOptions) -> Result<IoLog, String> {
        IoLog::parse(text.as_bytes(), options)
    }

    const THREE: &str = "fio version 3 iolog\n\
        0 /a add\n0 /b add\n0 /a open\n0 /b open\n\
        100 /a read 0 4096\n150 /b write 8192 512\n150 /a sync 0 0\n\n350 /a trim 4096 8192\n\
        360 /b datasync 0 0\n400 /a close\n";

    fn step(due_us: u64, action: ReplayAction, file: u32, offset: u64, length: u32) -> ReplayStep {
        ReplayStep { due_ns: due_us * 1000, action, file, offset, length }
    }

    #[test]
    fn a_trace_of_version_3_has_times_since_its_first_step() {
        let log = parse(THREE, &ReplayOptions::default()).unwrap();
        assert_eq!(log.files, ["/a", "/b"]);
        let expected = [
            step(0, ReplayAction::Io(IoOp::Read), 0, 0, 4096),
            step(50, ReplayAction::Io(IoOp::Write), 1, 8192, 512),
            step(50, ReplayAction::Sync, 0, 0, 0),
            step(250, ReplayAction::Io(IoOp::Trim), 0, 4096, 8192),
            step(260, ReplayAction::DataSync, 1, 0, 0),
        ];
        assert_eq!(log.steps, expected);
        assert_eq!((log.end_of(0), log.end_of(1), log.bytes()), (12_288, 8704, 12_800));
        assert_eq!((log.unaligned(0, 4096), log.unaligned(1, 4096)), (None, Some(512)));
        assert_eq!((log.unaligned_trim(0, 8192), log.unaligned_trim(1, 4096)), (Some(4096), None));
        assert_eq!(log.lengths(IoOp::Write), Some((512, 512)));
    }

    #[test]
    fn waits_of_version_2_add_up_and_short_ones_are_left_out() {
        let text = "fio version 2 iolog\n/a add\n/a open\n/a wait 500 0\n/a read 0 512\n\
            /a wait 99 0\n/a read 512 512\n/a wait 1000 0\n/a wait 200 0\n/a read 0 512\n/a close\n";
        let log = parse(text, &ReplayOptions::default()).unwrap();
        let due: Vec<u64> = log.steps.iter().map(|step| step.due_ns / 1000).collect();
        assert_eq!(due, [0, 0, 1200]);
    }

    #[test]
    fn options_change_times_offsets_files_and_actions() {
        let options = ReplayOptions {
            time_scale: 200,
            scale: 2,
            align: 4096,
            redirect: Some("/c".into()),
            skip: ReplaySkip { trims: true, syncs: true, ..ReplaySkip::default() },
            ..ReplayOptions::default()
        };
        let text = "fio version 3 iolog\n0 /a read 8192 512\n100 /b write 20000 512\n100 /a trim 0 512\n200 /b sync 0 0\n";
        let log = parse(text, &options).unwrap();
        assert_eq!(log.files, ["/c"]);
        let expected = [
            step(0, ReplayAction::Io(IoOp::Read), 0, 4096, 512),
            // Half of 20,000 is 10,000.
            step(50, ReplayAction::Io(IoOp::Write), 0, 8192, 512),
        ];
        assert_eq!(log.steps, expected);
        let log = parse(THREE, &ReplayOptions { no_stall: true, ..ReplayOptions::default() });
        assert!(log.unwrap().steps.iter().all(|step| step.due_ns == 0));
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let long = format!("0 /a {} 0 0", "x".repeat(1000));
        for (line, problem) in [
            ("0", "line 2: has a time and nothing else"),
            ("x /a read 0 512", "line 2: `x` is no time"),
            ("0 /a", "line 2: `/a` has no action"),
            ("0 /a read 0", "line 2: `read` has no length"),
            ("0 /a read -1 512", "line 2: `-1` is no offset"),
            ("0 /a read 0 0", "line 2: a length of 0 is out of range"),
            ("0 /a read 0 4294967296", "line 2: a length of 4294967296 is out of range"),
            ("0 /a write 18446744073709551615 512", "line 2: reaches beyond"),
            ("0 /a wait 100 0", "line 2: `wait` is not one of add, open"),
            ("0 /a open", "has no I/O to replay"),
            (&long, "line 2: `xxxx"),
        ] {
            let text = format!("fio version 3 iolog\n{line}\n");
            let error = parse(&text, &ReplayOptions::default()).unwrap_err();
            assert!(error.starts_with(problem) && error.len() < 300, "{line}: {error}");
        }
        for bytes in [&b""[..], b"fio version 1 iolog\n", b"\xff\xfe"] {
            let error = IoLog::parse(bytes, &ReplayOptions::default()).unwrap_err();
            assert!(error.starts_with("does not begin with"), "{error}");
        }
        for magic in [0x6561_7407_u32.to_le_bytes(), 0x6561_7407_u32.to_be_bytes()] {
            let error = IoLog::parse(&magic, &ReplayOptions::default()).unwrap_err();
            assert!(error.contains("blkparse prints it"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_lines_are_parsed_or_refused(
            version in 1..4u8,
            lines in prop::collection::vec(
                "([0-9]{0,20} )?(/[ab]|\\PC{0,3}) (add|read|write|trim|sync|wait|x)( [0-9]{0,20}){0,3}",
                0..20,
            ),
        ) {
            let text = format!("fio version {version} iolog\n{}", lines.join("\n"));
            if let Ok(log) = parse(&text, &ReplayOptions::default()) {
                prop_assert!(log.steps.is_sorted_by_key(|step| step.due_ns));
                let is_known = |step: &ReplayStep| (step.file as usize) < log.files.len();
                prop_assert!(log.steps.iter().all(is_known));
            }
        }
    }
}
