//! Copies the bytes of files. A file is written under a staging name and renamed when it is complete; a commit
//! contains a name only together with the file's data.

use super::super::exit_codes::with_io_code;
use crate::volume::host::{FileId, file_id};
use crate::volume::mode_change::new_file_mode;
use crate::volume::overwrite::NameAction;
use crate::volume::pipeline::{CHUNK_BYTES, FinishedChunk};
use crate::volume::put_staging::remove_staging_directory;
use crate::volume::source_file::{SourceFile, data_ranges};
use crate::volume::volume_path::{as_path, join, message};
use rustix::fs::{FileType as HostType, OFlags, fcntl_getfl, fstat, makedev};
use std::fs::File as HostFile;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use uringfs::volume::{FileType, Follow, Inode, Rename};
use uringfs::{Buffer, Errno, Error as VolumeError};
use uringfs_fuse::control::Opening;
use uringfs_lab::Error;

use super::job::{Chunk, NewName, PartialFile, PutJob, refuse_image};

impl PutJob<'_> {
    pub(super) fn put_file(
        &mut self,
        source: &SourceFile,
        name: NewName,
        inode: Inode,
    ) -> Result<(), Error> {
        let host = source.open()?;
        let ranges =
            data_ranges(&host, &source.metadata).map_err(|error| source.cannot_read(error))?;
        let xattrs = source.xattrs()?;
        let id = self.begin_file(Some(file_id(&source.metadata)), name, inode)?;
        self.files.get_mut(&id).expect("the file has begun").xattrs = xattrs;
        let copied = self.copy(id, &host, source, &ranges);
        let ended = self.end_of_input(id, copied.is_ok());
        copied.and(ended)
    }

    /// Copies the data ranges, and then everything after the size from the metadata: a file may grow, and files of
    /// `/proc` have a size of 0.
    pub(super) fn copy(
        &mut self,
        id: u64,
        host: &HostFile,
        source: &SourceFile,
        ranges: &[Range<u64>],
    ) -> Result<(), Error> {
        let found = source.metadata.len();
        for range in ranges {
            self.copy_range(id, host, source, range.clone())?;
        }
        // Probe one block first: a file that has not grown costs only this read.
        let probe = found..found + 4096;
        if self.copy_range(id, host, source, probe.clone())? {
            self.copy_range(id, host, source, probe.end..u64::MAX)?;
        }
        if ranges.last().map_or(0, |range| range.end) < found {
            // The file ends with a hole, or was truncated meanwhile.
            let size = host.metadata().map_err(|error| source.cannot_read(error))?.len();
            self.files.get_mut(&id).expect("the file has begun").size = size.min(found);
        }
        Ok(())
    }

    /// Copies a range. Returns whether the whole range could be read.
    fn copy_range(
        &mut self,
        id: u64,
        host: &HostFile,
        source: &SourceFile,
        range: Range<u64>,
    ) -> Result<bool, Error> {
        let mut at = range.start;
        while at < range.end {
            if self.files[&id].has_failed {
                return Ok(false);
            }
            self.progress.check_stop()?;
            let mut buffer = Buffer::zeroed((range.end - at).min(CHUNK_BYTES as u64) as usize);
            let read = read_full(&mut buffer, |part, done| host.read_at(part, at + done as u64));
            let read = read.map_err(|error| source.cannot_read(error))?;
            let is_end = read < buffer.len();
            if read > 0 {
                drop(buffer.split_off(read));
                self.write_chunk(id, buffer, at)?;
                at += read as u64;
            }
            if is_end {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn put_stdin(&mut self, target: Vec<u8>) -> Result<(), Error> {
        let unreadable =
            |error: io::Error| Error::run("standard input: cannot be read").because(error);
        let input = io::stdin();
        require_open(&input).map_err(unreadable)?;
        if self.image.contains_open_file(&input).map_err(unreadable)? {
            return Err(refuse_image("standard input"));
        }
        let action = self.action(&target, FileType::File)?;
        if action == NameAction::Skip {
            return self.skip(&target);
        }
        let inode = Inode::new(FileType::File, new_file_mode());
        let (id, mut at) = (self.begin_file(None, NewName { target, action }, inode)?, 0);
        loop {
            let mut buffer = Buffer::zeroed(CHUNK_BYTES);
            let read = read_full(&mut buffer, |part, _| {
                self.progress.wait_readable(&input)?;
                Ok(rustix::io::read(&input, part)?)
            });
            // Also at the end of input: Ctrl-C ends the writer of the pipe, too.
            self.progress.check_stop()?;
            let read = read.map_err(unreadable)?;
            if read == 0 || self.files[&id].has_failed {
                return self.end_of_input(id, true);
            }
            drop(buffer.split_off(read));
            self.write_chunk(id, buffer, at)?;
            at += read as u64;
        }
    }

    /// Creates a file under a staging name.
    fn begin_file(
        &mut self,
        source: Option<FileId>,
        name: NewName,
        inode: Inode,
    ) -> Result<u64, Error> {
        let (staged, id) = (self.new_staged_path(), self.next);
        let number = self.with_path(&name.target, self.volume.mknod(as_path(&staged), &inode))?;
        let file =
            self.with_path(&name.target, self.volume.open(as_path(&staged), Opening::Write))?;
        let partial = PartialFile {
            file,
            number,
            source,
            staged,
            name,
            inode,
            size: 0,
            xattrs: Vec::new(),
            chunks: 0,
            is_fully_read: false,
            has_failed: false,
        };
        self.files.insert(id, partial);
        Ok(id)
    }

    fn write_chunk(&mut self, id: u64, buffer: Buffer, offset: u64) -> Result<(), Error> {
        let finished = self.pipeline.wait_for_slot();
        self.on_finished(finished)?;
        let chunk = Chunk { file: id, length: buffer.len() as u64 };
        let partial = self.files.get_mut(&id).expect("the file has begun");
        partial.chunks += 1;
        let started = self.pipeline.write(&partial.file, buffer, offset, chunk);
        started.map_err(|error| self.write_error(error))
    }

    /// The source was read to its end, or failed.
    fn end_of_input(&mut self, id: u64, is_whole: bool) -> Result<(), Error> {
        let partial = self.files.get_mut(&id).expect("the file has begun");
        partial.is_fully_read = true;
        partial.has_failed |= !is_whole;
        self.finish_if_written(id)
    }

    pub(super) fn on_finished(
        &mut self,
        finished: io::Result<Vec<FinishedChunk<Chunk>>>,
    ) -> Result<(), Error> {
        for FinishedChunk { context: chunk, result, .. } in
            finished.map_err(|error| self.write_error(error))?
        {
            let partial = self.files.get_mut(&chunk.file).expect("the file has chunks in flight");
            partial.chunks -= 1;
            self.progress.add_chunk(chunk.length);
            if result != Ok(chunk.length) && !partial.has_failed {
                partial.has_failed = true;
                let path = self.destination.in_same_volume(partial.name.target.clone());
                let why = match result {
                    Err(Errno::NOSPC) => message(&self.volume.shortage()),
                    Err(errno) => errno.to_string(),
                    Ok(written) => format!("short write: {written} of {} bytes", chunk.length),
                };
                let failed = Error::run(format!("{path}: cannot be written: {why}"));
                match result {
                    // The files that are left would fail, too.
                    Err(Errno::NOSPC) => return Err(with_io_code(failed, &Errno::NOSPC.into())),
                    Err(errno) => self.errors.report(with_io_code(failed, &errno.into())),
                    Ok(_) => self.errors.report(failed),
                }
            }
            let done = self.finish_if_written(chunk.file);
            self.continue_after(done)?;
        }
        Ok(())
    }

    /// Renames the file if it is complete; removes it if it has failed.
    fn finish_if_written(&mut self, id: u64) -> Result<(), Error> {
        let partial = &self.files[&id];
        if partial.chunks > 0 || !partial.is_fully_read {
            return Ok(());
        }
        let partial = self.files.remove(&id).expect("the file has begun");
        let (source, name) = (partial.source, partial.name.clone());
        if !partial.has_failed {
            let done = self.finish_file(partial);
            if done.is_ok() {
                return done;
            }
            self.continue_after(done)?;
        } else {
            self.with_path(&name.target, self.volume.remove_file(as_path(&partial.staged)))?;
        }
        source.map_or(Ok(()), |source| self.copy_failed(source, &name))
    }

    fn finish_file(&mut self, partial: PartialFile) -> Result<(), Error> {
        let PartialFile { file, number, source, staged, name, inode, size, xattrs, .. } = partial;
        let target = &name.target;
        if file.len() < size {
            let longer = self.pipeline.set_len(&file, size);
            longer.map_err(|errno| self.write_error(errno.into()))?;
        }
        if file.len() > 0 {
            // Writes have changed the times.
            self.with_path(target, self.set_attributes(&staged, &inode))?;
        }
        self.set_xattrs(&xattrs, &staged, Follow::No, target)?;
        self.rename_into_place(&staged, &name)?;
        self.progress.add_file();
        self.copy_done(number, source, &name)
    }

    /// Renames a complete file to its path.
    pub(super) fn rename_into_place(&mut self, staged: &[u8], name: &NewName) -> Result<(), Error> {
        let how =
            if name.action == NameAction::Create { Rename::NoReplace } else { Rename::Replace };
        self.with_path(
            &name.target,
            self.volume.rename_with(as_path(staged), as_path(&name.target), how),
        )
    }

    /// Sets the attributes of a file, or of a directory, which may exist as a link to one.
    pub(super) fn set_attributes(&self, path: &[u8], inode: &Inode) -> Result<(), VolumeError> {
        self.volume.set_attributes(as_path(path), Follow::Yes, |its| {
            its.permissions = inode.permissions;
            (its.user, its.group) = (inode.user, inode.group);
            (its.accessed, its.modified) = (inode.accessed, inode.modified);
        })
    }

    /// A new unique staging path.
    pub(super) fn new_staged_path(&mut self) -> Vec<u8> {
        self.next += 1;
        join(&self.staging, self.next.to_string().as_bytes())
    }

    /// Removes partial files.
    pub(super) fn clean_up(&mut self) -> Result<(), Error> {
        // No write may be in flight to a file that is about to be removed.
        let _ = self.pipeline.drain();
        self.files.clear();
        match self.staging.is_empty() {
            true => Ok(()),
            false => {
                let removed = remove_staging_directory(self.volume, &self.staging);
                self.with_path(&self.staging, removed)
            }
        }
    }
}

/// Checks that the program was started with a standard input. In place of a closed one, Rust's runtime opens `/dev/null`
/// for reading and writing; a shell opens it for reading only.
///
/// # Errors
/// EBADF.
fn require_open(input: &io::Stdin) -> io::Result<()> {
    let found = fstat(input)?;
    let is_device = HostType::from_raw_mode(found.st_mode) == HostType::CharacterDevice;
    let is_null = is_device && found.st_rdev == makedev(1, 3);
    match is_null && fcntl_getfl(input)? & OFlags::RWMODE == OFlags::RDWR {
        true => Err(rustix::io::Errno::BADF.into()),
        false => Ok(()),
    }
}

/// Reads until the buffer is full or the input ends. Returns the number of bytes.
fn read_full(
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], usize) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read(&mut buffer[done..], done) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
