//! Copies the data of a file in a volume to another file in a volume, many chunks at once. Holes stay holes.

use super::copy_progress::CopyProgress;
use super::exit_codes::with_io_code;
use super::files::{Files, OpenFile};
use super::pipeline::{CHUNK_BYTES, DEVICE_TOO_SHORT, FinishedChunk, Pipeline};
use super::volume_path::{VolumePath, as_path, message, with_path};
use std::io;
use uringfs::{Buffer, Errno};
use uringfs_fuse::control::Opening;
use uringfs_lab::Error;

/// The chunks in flight of one copy at a time.
pub struct FileData(Pipeline<Step>);

/// A chunk is read, and then written at the same offset.
enum Step {
    Read { offset: u64 },
    Write { length: u64 },
}

/// An error, and the file that it concerns.
enum Failed {
    Source(io::Error),
    Copy(Errno),
}

impl FileData {
    pub fn new() -> Result<Self, Error> {
        Pipeline::new().map(Self)
    }

    /// Copies the data to the existing empty file at a path, which is shown as `to`.
    pub fn copy(
        &mut self,
        (source, from): (&Files, &VolumePath),
        (volume, path, to): (&Files, &[u8], &VolumePath),
        progress: &mut CopyProgress,
    ) -> Result<(), Error> {
        let file = source.open(as_path(&from.bytes), Opening::Read);
        let file = file.map_err(|error| with_path(from, error))?;
        let copy = volume.open(as_path(path), Opening::Write);
        let copy = copy.map_err(|error| with_path(to, error))?;
        let copied = self.request_all(&file, &copy, progress);
        // In any case, so that no write is in flight when the file is removed.
        let drained = self.drain(&copy);
        let size = || self.0.set_len(&copy, file.len()).map_err(Failed::Copy);
        let done = copied.and_then(|is_stopped| {
            drained?;
            if !is_stopped && copy.len() < file.len() {
                size()?;
            }
            Ok(())
        });
        progress.check_stop()?;
        done.map_err(|failed| match failed {
            Failed::Source(error) => Error::run(format!("{from}: cannot be read")).because(error),
            Failed::Copy(Errno::NOSPC) => {
                let full = Error::run(format!("{to}: cannot be written"));
                with_io_code(full, &Errno::NOSPC.into()).because(message(&volume.shortage()))
            }
            Failed::Copy(errno) => Error::run(format!("{to}: cannot be written")).because(errno),
        })
    }

    /// Requests all data. Returns whether the user has stopped the command.
    fn request_all(
        &mut self,
        file: &OpenFile,
        copy: &OpenFile,
        progress: &mut CopyProgress,
    ) -> Result<bool, Failed> {
        let mut at = 0;
        loop {
            let data = file.next_data(at).map_err(|errno| Failed::Source(errno.into()))?;
            let Some(data) = data else { return Ok(false) };
            at = data.end;
            for offset in data.step_by(CHUNK_BYTES) {
                if progress.check_stop().is_err() {
                    return Ok(true);
                }
                let finished = self.0.wait_for_slot().map_err(Failed::Source)?;
                self.on_finished(finished, copy)?;
                let buffer = Buffer::zeroed((at - offset).min(CHUNK_BYTES as u64) as usize);
                progress.add_chunk(buffer.len() as u64);
                let started = self.0.read(file, buffer, offset, Step::Read { offset });
                started.map_err(Failed::Source)?;
            }
        }
    }

    /// Writes the chunks that were read.
    fn on_finished(
        &mut self,
        finished: Vec<FinishedChunk<Step>>,
        copy: &OpenFile,
    ) -> Result<(), Failed> {
        for FinishedChunk { context, result, buffer } in finished {
            match (context, result) {
                (Step::Read { offset }, Ok(read)) if read == buffer.len() as u64 => {
                    let step = Step::Write { length: read };
                    let started = self.0.write(copy, buffer, offset, step);
                    started.map_err(Failed::Source)?;
                }
                (Step::Read { .. }, Ok(_)) => {
                    return Err(Failed::Source(io::Error::other(DEVICE_TOO_SHORT)));
                }
                (Step::Read { .. }, Err(errno)) => return Err(Failed::Source(errno.into())),
                (Step::Write { length }, Ok(written)) if written == length => {}
                (Step::Write { .. }, Ok(_)) => return Err(Failed::Copy(Errno::IO)),
                (Step::Write { .. }, Err(errno)) => return Err(Failed::Copy(errno)),
            }
        }
        Ok(())
    }

    /// Waits until all chunks are read and written. Returns the first error.
    fn drain(&mut self, copy: &OpenFile) -> Result<(), Failed> {
        let mut done = Ok(());
        loop {
            let finished = self.0.drain().map_err(Failed::Source)?;
            if finished.is_empty() {
                return done;
            }
            done = done.and(self.on_finished(finished, copy));
        }
    }
}
