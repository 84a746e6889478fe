//! A file for threads that may block.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Mutex;

use uringfs_buffer::Buffer;
use uringfs_file::File;

use crate::compat::cursor::{WriteMode, join_buffer, seek_position, take_buffer};

/// A file with a cursor, as [`std::fs::File`]: for code that takes [`io::Read`], [`io::Write`] or [`io::Seek`].
///
/// Each call is one operation of the file, of at most 1 MiB unless it reads cached bytes, and blocks the thread until it
/// has ended. Nothing is kept back: a write is where writes of the file are (in the page cache, or on the device), and `flush` does nothing.
/// [`File::sync_all`] makes it durable. For many small reads or writes use [`io::BufReader`] and [`io::BufWriter`].
/// No call fails with `Interrupted`.
///
/// ```
/// use std::io::{BufRead, BufReader, Seek, Write};
///
/// use uringfs::compat::BlockingFile;
/// use uringfs::{FormatOptions, OpenOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
/// let file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "/lines")?;
/// let mut file = BlockingFile::new(file);
/// writeln!(file, "one")?;
/// writeln!(file, "two")?;
/// file.rewind()?;
/// let lines: Vec<_> = BufReader::new(file).lines().collect::<Result<_, _>>()?;
/// assert_eq!(lines, ["one", "two"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BlockingFile {
    file: File,
    position: u64,
    mode: WriteMode,
    /// Memory of earlier calls.
    kept: Mutex<Option<Buffer>>,
}

impl BlockingFile {
    /// With the cursor at the beginning.
    pub fn new(file: File) -> BlockingFile {
        BlockingFile { file, position: 0, mode: WriteMode::AtCursor, kept: Mutex::default() }
    }

    /// The same, but each [`io::Write::write`] appends, and leaves the cursor behind its bytes (`O_APPEND`). Only for
    /// a volume's file.
    pub fn append(file: File) -> BlockingFile {
        BlockingFile { mode: WriteMode::Append, ..BlockingFile::new(file) }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file, without the cursor.
    pub fn into_inner(self) -> File {
        self.file
    }

    /// Reads at `offset`, wherever the cursor is: 0 bytes at the end of the file. One call moves up to
    /// 1 MiB, or what is in the page cache.
    ///
    /// # Errors
    /// Those of [`File::read_at`].
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Ok(read) = self.file.try_read_at(into, offset) {
            return Ok(read);
        }
        let (buffer, rest) = self.take_buffer(into.len());
        let (read, buffer) = self.file.read_at(buffer, offset).wait();
        if let Ok(read) = read {
            into[..read].copy_from_slice(&buffer[..read]);
        }
        self.keep(buffer, rest);
        Ok(read?)
    }

    /// Writes at `offset`, wherever the cursor is, and also if writes append: up to 1 MiB in one call.
    ///
    /// # Errors
    /// Those of [`File::write_at`].
    pub fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        self.write_with(from, |buffer| self.file.write_at(buffer, offset).wait())
    }

    fn write_with<T>(
        &self,
        from: &[u8],
        write: impl FnOnce(Buffer) -> uringfs_file::BufResult<T>,
    ) -> io::Result<T> {
        let (mut buffer, rest) = self.take_buffer(from.len());
        let length = buffer.len();
        buffer.copy_from_slice(&from[..length]);
        let (written, buffer) = write(buffer);
        self.keep(buffer, rest);
        Ok(written?)
    }

    fn take_buffer(&self, length: usize) -> (Buffer, Option<Buffer>) {
        let kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        take_buffer(kept, length)
    }

    fn keep(&self, buffer: Buffer, rest: Option<Buffer>) {
        let replaced = self
            .kept
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .replace(join_buffer(buffer, rest));
        drop(replaced);
    }
}

impl Read for BlockingFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(into, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Write for BlockingFile {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if self.mode == WriteMode::AtCursor {
            let written = self.write_at(from, self.position)?;
            self.position += written as u64;
            return Ok(written);
        }
        let mut length = 0;
        let offset = self.write_with(from, |buffer| {
            length = buffer.len();
            self.file.append(buffer).wait()
        })?;
        if length > 0 {
            self.position = offset + length as u64;
        }
        Ok(length)
    }

    /// Does nothing: no bytes are kept back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for BlockingFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = seek_position(&self.file, self.position, to)?;
        Ok(self.position)
    }
}
