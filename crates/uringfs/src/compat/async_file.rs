//! A file for asynchronous code. The traits of tokio and futures-io call the same functions.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use uringfs_buffer::Buffer;
use uringfs_file::{BufResult, File, FileOp};

use crate::compat::cursor::{WriteMode, join_buffer, seek_position, take_buffer};

/// A file with a cursor, as `tokio::fs::File`: for code that takes the traits of tokio (feature `tokio`) or of
/// futures-io (feature `futures`). It works in any runtime.
///
/// One operation runs at a time, of at most 1 MiB. As with `tokio::fs::File`, a write returns when its bytes are copied,
/// before they are written. The next call waits for it; if it failed, the next write, flush or shutdown returns the
/// error. So `flush` at the end: only then all bytes are where writes of the file are (in the page cache, or on the
/// device). [`File::sync_all`] makes them durable after that. A handle that is dropped without a flush still writes
/// what it has accepted, unless the process ends before, but nobody learns of an error.
///
/// Calls are cancel-safe: a write that returned no length has accepted no byte, and bytes that a dropped read had
/// received are returned by the next read. A seek drops them.
///
/// For many small reads or writes use the `BufReader` and `BufWriter` of your runtime: each operation that the page
/// cache cannot answer wakes two threads, where no reactor is on this one.
///
/// ```
/// # #[cfg(feature = "tokio")]
/// # mod with_tokio {
/// use tokio::io::{AsyncBufReadExt, AsyncSeekExt, AsyncWriteExt, BufReader};
/// use uringfs::compat::AsyncFile;
/// use uringfs::{FormatOptions, OpenOptions, Volume};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # pub async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
/// let file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "/lines")?;
/// let mut file = AsyncFile::new(file);
/// file.write_all(b"one\ntwo\n").await?;
/// file.flush().await?;
/// file.rewind().await?;
/// let mut lines = BufReader::new(file).lines();
/// assert_eq!(lines.next_line().await?.as_deref(), Some("one"));
/// # Ok(())
/// # }
/// # }
/// # fn main() {
/// #     #[cfg(feature = "tokio")]
/// #     with_tokio::main().unwrap();
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncFile {
    file: File,
    /// Of the next byte that is returned or accepted.
    position: u64,
    mode: WriteMode,
    state: State,
    /// The error of a write that had been accepted.
    failure: Option<io::Error>,
    /// The target of a seek that tokio has begun.
    #[cfg(feature = "tokio")]
    pub(crate) seek: Option<SeekFrom>,
}

/// The operation in flight. `rest` is the part of the memory that it does not use.
#[derive(Debug)]
enum State {
    Idle {
        kept: Option<Buffer>,
    },
    /// Bytes `begin..end` of a finished read have not been returned.
    Unread {
        buffer: Buffer,
        begin: usize,
        end: usize,
        rest: Option<Buffer>,
    },
    Reading {
        op: FileOp<BufResult<usize>>,
        rest: Option<Buffer>,
    },
    Writing {
        op: FileOp<BufResult<usize>>,
        offset: u64,
        rest: Option<Buffer>,
    },
    Appending {
        op: FileOp<BufResult<u64>>,
        rest: Option<Buffer>,
    },
}

impl AsyncFile {
    /// With the cursor at the beginning.
    pub fn new(file: File) -> AsyncFile {
        AsyncFile {
            file,
            position: 0,
            mode: WriteMode::AtCursor,
            state: State::Idle { kept: None },
            failure: None,
            #[cfg(feature = "tokio")]
            seek: None,
        }
    }

    /// The same, but each write appends, and leaves the cursor behind its bytes (`O_APPEND`). Only for a volume's
    /// file.
    pub fn append(file: File) -> AsyncFile {
        AsyncFile { mode: WriteMode::Append, ..AsyncFile::new(file) }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file, without the cursor. Flush first: the error of a write in flight is lost.
    pub fn into_inner(self) -> File {
        self.file
    }

    /// Reads at the cursor: 0 bytes at the end of the file.
    pub(crate) fn poll_read_into(
        &mut self,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(context));
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if let State::Idle { .. } = self.state {
            if let Ok(read) = self.file.try_read_at(into, self.position) {
                self.position += read as u64;
                return Poll::Ready(Ok(read));
            }
            let (buffer, rest) = take_buffer(self.take_kept(), into.len());
            self.state = State::Reading { op: self.file.read_at(buffer, self.position), rest };
        }
        if let State::Reading { op, rest } = &mut self.state {
            let (read, buffer) = ready!(Pin::new(op).poll(context));
            let rest = rest.take();
            match read {
                Ok(end) => self.state = State::Unread { buffer, begin: 0, end, rest },
                Err(error) => {
                    self.state = State::Idle { kept: Some(join_buffer(buffer, rest)) };
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
        Poll::Ready(Ok(self.return_unread(into)))
    }

    /// Accepts bytes, and starts to write them.
    pub(crate) fn poll_write_from(
        &mut self,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(context));
        if let Some(error) = self.failure.take() {
            return Poll::Ready(Err(error));
        }
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let (mut buffer, rest) = take_buffer(self.take_kept(), from.len());
        let length = buffer.len();
        buffer.copy_from_slice(&from[..length]);
        let before = self.position;
        self.position += length as u64;
        self.state = match self.mode {
            WriteMode::AtCursor => {
                State::Writing { op: self.file.write_at(buffer, before), offset: before, rest }
            }
            WriteMode::Append => State::Appending { op: self.file.append(buffer), rest },
        };
        // Starts it. If it has failed at once, the caller hears of it now.
        if self.poll_written(context).is_ready()
            && let Some(error) = self.failure.take()
        {
            self.position = before;
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(length))
    }

    /// Waits until all accepted bytes are written.
    pub(crate) fn poll_flushed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_written(context));
        Poll::Ready(self.failure.take().map_or(Ok(()), Err))
    }

    /// Moves the cursor, once all accepted bytes are written: they may move the end.
    pub(crate) fn poll_seek_to(
        &mut self,
        context: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        ready!(self.poll_written(context));
        let position = seek_position(&self.file, self.position, to)?;
        let kept = self.take_kept();
        self.state = State::Idle { kept };
        self.position = position;
        Poll::Ready(Ok(position))
    }

    /// Waits for a write in flight, and notes its error.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.state {
                State::Writing { op, offset, rest } => {
                    let (written, mut buffer) = ready!(Pin::new(&mut *op).poll(context));
                    let length = buffer.len();
                    match written {
                        Ok(written) if written == length => {}
                        Ok(0) => self.failure = Some(io::ErrorKind::WriteZero.into()),
                        Ok(written) => {
                            *offset += written as u64;
                            *op = self.file.write_at(buffer.split_off(written), *offset);
                            continue;
                        }
                        Err(error) => self.failure = Some(error.into()),
                    }
                    self.state = State::Idle { kept: Some(join_buffer(buffer, rest.take())) };
                }
                State::Appending { op, rest } => {
                    let (appended, buffer) = ready!(Pin::new(op).poll(context));
                    match appended {
                        Ok(offset) => self.position = offset + buffer.len() as u64,
                        Err(error) => self.failure = Some(error.into()),
                    }
                    self.state = State::Idle { kept: Some(join_buffer(buffer, rest.take())) };
                }
                State::Idle { .. } | State::Unread { .. } | State::Reading { .. } => {
                    return Poll::Ready(());
                }
            }
        }
    }

    /// Returns bytes of a finished read.
    fn return_unread(&mut self, into: &mut [u8]) -> usize {
        let State::Unread { buffer, begin, end, .. } = &mut self.state else { return 0 };
        let length = into.len().min(*end - *begin);
        into[..length].copy_from_slice(&buffer[*begin..*begin + length]);
        *begin += length;
        self.position += length as u64;
        if begin == end {
            let kept = self.take_kept();
            self.state = State::Idle { kept };
        }
        length
    }

    /// The memory of earlier operations. Gives up what a read has received or is receiving.
    fn take_kept(&mut self) -> Option<Buffer> {
        match std::mem::replace(&mut self.state, State::Idle { kept: None }) {
            State::Idle { kept } => kept,
            State::Unread { buffer, rest, .. } => Some(join_buffer(buffer, rest)),
            State::Reading { .. } | State::Writing { .. } | State::Appending { .. } => None,
        }
    }
}
