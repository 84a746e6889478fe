//! Reads and writes of a whole buffer, as std's `read_exact_at` and `write_all_at`: several transfers if one is short.

use std::io;

use uringfs_buffer::{Buffer, IoBuf, IoBufMut, TooLong};
use uringfs_device::Errno;

use crate::state::file::File;

impl File {
    /// Reads at `offset` until `buffer` is full: a `Vec` up to its capacity.
    ///
    /// Errors: `UnexpectedEof` at the end of the file, with what there is at the front of the buffer; else as
    /// [`Self::read_at`].
    pub async fn read_exact_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> (io::Result<()>, B) {
        let mut parts = match buffer.lend_for_read() {
            Ok(buffer) => Parts::new(buffer),
            Err(TooLong(buffer)) => return (Err(Errno::INVAL.into()), B::take_back(buffer, 0)),
        };
        let result = loop {
            if parts.rest.is_empty() {
                break Ok(());
            }
            let at = offset.saturating_add(parts.done());
            let (read, rest) = self.read_at(parts.rest, at).await;
            parts.rest = rest;
            match read {
                Ok(0) => break Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Ok(read) => parts.advance(read),
                Err(errno) => break Err(errno.into()),
            }
        };
        let done = parts.done() as usize;
        (result, B::take_back(parts.into_whole(), done))
    }

    /// Writes all of `buffer` at `offset`.
    ///
    /// Errors: `WriteZero` if a write makes no progress; else as [`Self::write_at`]. After an error a front part of the
    /// bytes may have been written.
    pub async fn write_all_at<B: IoBuf>(&self, buffer: B, offset: u64) -> (io::Result<()>, B) {
        let mut parts = match buffer.lend_for_write() {
            Ok(buffer) => Parts::new(buffer),
            Err(TooLong(buffer)) => return (Err(Errno::INVAL.into()), B::take_back(buffer, 0)),
        };
        let result = loop {
            if parts.rest.is_empty() {
                break Ok(());
            }
            let at = offset.saturating_add(parts.done());
            let (written, rest) = self.write_at(parts.rest, at).await;
            parts.rest = rest;
            match written {
                Ok(0) => break Err(io::Error::from(io::ErrorKind::WriteZero)),
                Ok(written) => parts.advance(written),
                Err(errno) => break Err(errno.into()),
            }
        };
        let done = parts.done() as usize;
        (result, B::take_back(parts.into_whole(), done))
    }
}

/// A buffer in two parts: the bytes that were transferred, and the rest.
struct Parts {
    /// `None` before the first transfer.
    front: Option<Buffer>,
    rest: Buffer,
}

impl Parts {
    fn new(buffer: Buffer) -> Parts {
        Parts { front: None, rest: buffer }
    }

    fn done(&self) -> u64 {
        self.front.as_ref().map_or(0, |front| front.len() as u64)
    }

    fn advance(&mut self, bytes: usize) {
        let rest = self.rest.split_off(bytes);
        let moved = std::mem::replace(&mut self.rest, rest);
        match &mut self.front {
            Some(front) => front.join(moved).expect("the parts are of one buffer"),
            None => self.front = Some(moved),
        }
    }

    fn into_whole(self) -> Buffer {
        let Some(mut front) = self.front else { return self.rest };
        // The rest is not the caller's memory if the operation that had it was lost.
        let _ = front.join(self.rest);
        front
    }
}
