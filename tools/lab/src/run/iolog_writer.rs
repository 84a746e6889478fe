//! Writes the I/O of a thread as a trace, fio's iolog of version 3: `write_iolog`.

use super::failure::Failure;
use crate::Error;
use crate::engine::SyncKind;
use crate::workload::NextIo;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use uringfs::Errno;

/// The buffer of a trace.
const BUFFER_BYTES: usize = 1 << 20;

/// A trace that is being written. Times are those of the monotonic clock in nanoseconds.
#[derive(Debug)]
pub struct IoLogWriter {
    path: PathBuf,
    out: BufWriter<File>,
    files: Vec<String>,
    began_ns: Option<u64>,
    last_ns: u64,
    error: Option<io::Error>,
}

impl IoLogWriter {
    /// Creates the file, for I/O to files of these names, which have no blanks. An older one is replaced.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path, files: Vec<String>) -> Result<Self, Error> {
        let out = File::create(path)
            .map_err(|error| Error::input(path.display().to_string()).because(error))?;
        let mut writer = Self {
            path: path.to_owned(),
            out: BufWriter::with_capacity(BUFFER_BYTES, out),
            files,
            began_ns: None,
            last_ns: 0,
            error: None,
        };
        writer.write(format_args!("fio version 3 iolog"));
        for action in ["add", "open"] {
            writer.file_action(action);
        }
        Ok(writer)
    }

    /// Records an I/O that is issued.
    pub fn record(&mut self, io: &NextIo, now_ns: u64) {
        let NextIo { file, op, offset, length } = *io;
        self.step(file, op.name(), offset, length, now_ns);
    }

    /// Records a sync.
    pub fn record_sync(&mut self, file: u32, kind: SyncKind, now_ns: u64) {
        let action = match kind {
            SyncKind::Full => "sync",
            SyncKind::Data => "datasync",
        };
        self.step(file, action, 0, 0, now_ns);
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// The first write that has failed.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.file_action("close");
        let flushed = self.out.flush();
        match self.error.or(flushed.err()) {
            None => Ok(()),
            Some(error) => {
                let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
                let what = format!("write of the trace {}", self.path.display());
                // A part of a trace would look like the trace of a shorter run. It may be gone already.
                let _ = std::fs::remove_file(&self.path);
                Err(Failure::new(errno, what, None))
            }
        }
    }

    fn step(&mut self, file: u32, action: &str, offset: u64, length: u32, now_ns: u64) {
        self.last_ns = now_ns.saturating_sub(*self.began_ns.get_or_insert(now_ns));
        let us = self.last_ns / 1000;
        let name = &self.files[file as usize];
        let written = writeln!(self.out, "{us} {name} {action} {offset} {length}");
        self.note(written);
    }

    fn file_action(&mut self, action: &str) {
        let us = self.last_ns / 1000;
        for name in std::mem::take(&mut self.files) {
            self.write(format_args!("{us} {name} {action}"));
            self.files.push(name);
        }
    }

    fn write(&mut self, line: std::fmt::Arguments<'_>) {
        let written = writeln!(self.out, "{line}");
        self.note(written);
    }

    fn note(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.error.get_or_insert(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{IoLog, ReplayAction, ReplayOptions};
    use crate::workload::IoOp;

    #[test]
    fn a_written_trace_can_be_replayed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let mut writer = IoLogWriter::create(&path, vec!["/a".into(), "/b".into()]).unwrap();
        let io = |file, op, offset| NextIo { file, op, offset, length: 4096 };
        writer.record(&io(1, IoOp::Read, 8192), 7_000_000);
        writer.record(&io(0, IoOp::Write, 0), 7_500_000);
        writer.record_sync(0, SyncKind::Data, 7_600_000);
        writer.record(&io(0, IoOp::Trim, 4096), 8_000_000);
        writer.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = "fio version 3 iolog\n0 /a add\n0 /b add\n0 /a open\n0 /b open\n\
            0 /b read 8192 4096\n500 /a write 0 4096\n600 /a datasync 0 0\n1000 /a trim 4096 4096\n\
            1000 /a close\n1000 /b close\n";
        assert_eq!(text, expected);
        let log = IoLog::read(path.to_str().unwrap(), &ReplayOptions::default()).unwrap();
        assert_eq!((log.files.len(), log.steps.len()), (2, 4));
        assert_eq!(log.steps[2].action, ReplayAction::DataSync);
    }

    #[test]
    fn a_trace_that_cannot_be_written_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let mut writer = IoLogWriter::create(&path, vec!["/a".into()]).unwrap();
        writer.note(Err(Errno::NOSPC.into()));
        let failure = writer.finish().unwrap_err();
        assert_eq!(failure.errno, Errno::NOSPC);
        assert!(!path.exists());
    }
}
