//! Progress of `put`, `get` and `cp`: counters, the progress line, and Ctrl-C.

use super::exit_codes::NO_SPACE;
use super::quiet::QuietOptions;
use super::{byte_progress, format};
use crate::json::document;
use indicatif::ProgressBar;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use uringfs_lab::Error;
use uringfs_lab::run::{readable_on_interrupt, stop_on_interrupt};

/// The name and value of an extended attribute.
pub(super) type Xattr = (Vec<u8>, Vec<u8>);

/// The progress of one run.
pub struct CopyProgress {
    stop: Arc<AtomicBool>,
    /// Readable once `stop` is set.
    stop_event: UnixStream,
    /// Draws only on a terminal.
    line: ProgressBar,
    began: Instant,
    pub counts: CopyCounts,
}

/// The number of files and bytes copied.
#[derive(Debug, Default)]
pub struct CopyCounts {
    /// Regular files.
    pub files: u64,
    pub directories: u64,
    /// Symbolic links, devices, FIFOs and sockets.
    pub others: u64,
    /// Hard links: further names of files.
    pub links: u64,
    /// Files that were not copied, because their names exist.
    pub skipped: u64,
    /// Data, without holes.
    pub bytes: u64,
}

impl CopyProgress {
    /// Starts to watch for Ctrl-C, and to draw the progress of a copy of `total_bytes` without holes, which is asked for
    /// only if it is drawn.
    pub fn start(quiet: QuietOptions, total_bytes: impl FnOnce() -> u64) -> Result<Self, Error> {
        Ok(Self {
            stop: stop_on_interrupt()?,
            stop_event: readable_on_interrupt()?,
            line: match byte_progress::is_drawn(quiet) {
                true => byte_progress::bar(total_bytes()),
                false => ProgressBar::hidden(),
            },
            began: Instant::now(),
            counts: CopyCounts::default(),
        })
    }

    /// Returns an error once the user has pressed Ctrl-C.
    pub fn check_stop(&self) -> Result<(), Error> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::interrupted()),
            false => Ok(()),
        }
    }

    /// Waits until a read of `input` does not block.
    ///
    /// # Errors
    /// The user has pressed Ctrl-C, or `poll` failed.
    pub fn wait_readable(&self, input: &impl AsFd) -> io::Result<()> {
        let mut either = [input.as_fd(), self.stop_event.as_fd()]
            .map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN));
        poll(&mut either, None)?;
        match either[1].revents().is_empty() {
            true => Ok(()),
            false => Err(io::Error::other("stopped by Ctrl-C")),
        }
    }

    /// Counts a copied file.
    pub fn add_file(&mut self) {
        self.counts.files += 1;
        if !self.line.is_hidden() {
            self.line.set_message(self.counts.text());
        }
    }

    /// Counts the bytes of a chunk, whose file may not be complete yet.
    pub fn add_chunk(&mut self, bytes: u64) {
        self.counts.bytes += bytes;
        if !self.line.is_hidden() {
            self.line.inc(bytes);
        }
    }

    /// Removes the progress line.
    pub fn finish(&self) {
        self.line.finish_and_clear();
    }

    /// Prints the report at the end. A command that has copied nothing, because of errors, prints none.
    pub fn print_report(self, quiet: QuietOptions, as_json: bool, code: u8) -> Result<(), Error> {
        self.finish();
        match !as_json && code != 0 && self.counts.is_empty() {
            true => Ok(()),
            false => quiet.print(&self.report(as_json)),
        }
    }

    fn report(self, as_json: bool) -> String {
        let seconds = self.began.elapsed().as_secs_f64();
        let counts = self.counts;
        if !as_json {
            return format!("{} in {seconds:.2} s\n", counts.text());
        }
        let json = json!({
            "files": counts.files,
            "directories": counts.directories,
            "others": counts.others,
            "links": counts.links,
            "skipped": counts.skipped,
            "bytes": counts.bytes,
            "seconds": seconds,
        });
        document(json)
    }
}

impl CopyCounts {
    pub fn is_empty(&self) -> bool {
        self.copied() + self.directories == 0
    }

    /// Names of files that were copied, without directories.
    pub fn copied(&self) -> u64 {
        self.files + self.others + self.links
    }

    /// The error of a full volume, which ends a copy of so many files, with the number of files that are not copied if
    /// there are several.
    pub fn with_files_left(&self, error: Error, files: impl FnOnce() -> u64) -> Error {
        match files().saturating_sub(self.copied() + self.skipped) {
            0 | 1 => error,
            left => {
                let copied = format::count(self.copied(), "file was copied", "files were copied");
                Error::run(format!("{error}; {copied}, {left} are left")).exiting_with(NO_SPACE)
            }
        }
    }

    fn text(&self) -> String {
        let files = format::count(self.copied(), "file", "files");
        let kept = match self.skipped {
            0 => String::new(),
            kept => format!(", {} kept", format::count(kept, "existing file", "existing files")),
        };
        format!("{files}, {}{kept}", format::size(self.bytes))
    }
}
