//! Transfers: an operation, its memory, its file.

use rustix::io::Errno;
use uringfs_buffer::Buffer;

use crate::segment::Piece;

/// The memory of a transfer's next step.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    /// One piece.
    One(Piece),
    /// `length` bytes of `buffers`, one after the other, after the first `skip`.
    Many {
        /// Owned by the transfer.
        buffers: &'a [Buffer],
        /// Bytes done before.
        skip: u64,
        /// Bytes of this step.
        length: u64,
    },
}

/// The next operation of a transfer.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// From the file's `offset` to memory.
    Read(u64, Memory<'a>),
    /// From memory to the file's `offset`.
    Write(u64, Memory<'a>),
    /// The same, durable on completion (`RWF_DSYNC`).
    WriteDurably(u64, Memory<'a>),
    /// Everything written becomes durable (`fdatasync`).
    Flush,
}

impl Step<'_> {
    #[inline]
    pub(crate) fn length(&self) -> u32 {
        match self {
            Step::Read(_, memory) | Step::Write(_, memory) | Step::WriteDurably(_, memory) => {
                match memory {
                    Memory::One(piece) => piece.length,
                    Memory::Many { length, .. } => *length as u32,
                }
            }
            Step::Flush => 0,
        }
    }
}

/// The kernel's result of a step: bytes, or a negative errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepResult(pub(crate) i32);

impl StepResult {
    /// True if the step moved exactly `bytes`, which are fewer than 2^31. One comparison: an error, taken
    /// as unsigned, is larger than any of them.
    #[inline(always)]
    pub fn is(self, bytes: u32) -> bool {
        debug_assert!(bytes <= i32::MAX as u32);
        self.0 as u32 == bytes
    }

    /// Bytes, or the error.
    #[inline]
    pub fn get(self) -> Result<u32, Errno> {
        match self.0 {
            0.. => Ok(self.0 as u32),
            error => Err(Errno::from_raw_os_error(-error)),
        }
    }
}

/// Something a ring can carry out.
///
/// # Safety
/// The memory that [`step`](Transfer::step) names must be owned by `self`, stay
/// where it is when `self` is moved, and not be reachable from elsewhere while
/// `self` exists.
pub unsafe trait Transfer {
    /// The next step.
    fn step(&self) -> Step<'_>;
    /// The place of the file concerned, see [`Ring::install`](crate::Ring::install).
    fn file(&self) -> u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_is_a_number_of_bytes() {
        for bytes in [0, 1, 4096, 1 << 30, i32::MAX] {
            let result = StepResult(bytes);
            assert!(result.is(bytes as u32) && !result.is(bytes as u32 ^ 1));
            assert_eq!(result.get(), Ok(bytes as u32));
        }
        let failed = StepResult(-libc::EIO);
        assert_eq!(failed.get(), Err(Errno::IO));
        assert!([0, libc::EIO as u32, i32::MAX as u32].iter().all(|bytes| !failed.is(*bytes)));
    }
}
