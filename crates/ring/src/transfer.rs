//! A transfer: an operation with its memory and its file.
use uringfs_buffer::Buffer;

use uringfs_errno::Errno;

use crate::segment::IoSegment;

/// The memory of a transfer's next step.
#[derive(Clone, Copy, Debug)]
pub enum TransferMemory<'a> {
    /// One segment.
    Single(IoSegment),
    /// `length` bytes of the concatenated `buffers`, after the first `skip` bytes.
    Vectored {
        /// Owned by the transfer.
        buffers: &'a [Buffer],
        /// Bytes done before.
        skip: u64,
        /// Bytes of this step.
        length: u64,
    },
}

impl TransferMemory<'_> {
    /// Its length in bytes.
    #[inline(always)]
    pub(crate) fn length(&self) -> u64 {
        match self {
            TransferMemory::Single(segment) => segment.length.into(),
            TransferMemory::Vectored { length, .. } => *length,
        }
    }
}

/// The next operation of a transfer.
#[derive(Clone, Copy, Debug)]
pub enum NextOp<'a> {
    /// From the file's `offset` to memory.
    Read(u64, TransferMemory<'a>),
    /// From memory to the file's `offset`.
    Write(u64, TransferMemory<'a>),
    /// As [`Self::Write`], durable on completion (`RWF_DSYNC`).
    WriteDurably(u64, TransferMemory<'a>),
    /// All completed writes become durable (`fdatasync`).
    Flush,
}

impl NextOp<'_> {
    #[inline]
    pub(crate) fn length(&self) -> u32 {
        match self {
            NextOp::Read(_, memory)
            | NextOp::Write(_, memory)
            | NextOp::WriteDurably(_, memory) => memory.length() as u32,
            NextOp::Flush => 0,
        }
    }
}

/// The kernel's result of a step: bytes, or a negative errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepResult(pub(crate) i32);

impl StepResult {
    /// True if the step moved exactly `bytes` bytes, fewer than 2^31. This is one comparison: an error, taken
    /// as unsigned, is larger than any such number.
    #[inline(always)]
    pub fn is(self, bytes: u32) -> bool {
        debug_assert!(bytes <= i32::MAX as u32);
        self.0 as u32 == bytes
    }

    /// The bytes moved, or the error.
    #[inline]
    pub fn get(self) -> Result<u32, Errno> {
        match self.0 {
            0.. => Ok(self.0 as u32),
            error => Err(Errno::from_raw_os_error(-error)),
        }
    }
}

/// A request that a ring can execute.
///
/// # Safety
/// The memory that [`step`](Transfer::step) names must be owned by `self`, keep
/// its address when `self` is moved, and be inaccessible to other code while
/// `self` exists.
pub unsafe trait Transfer {
    /// The operation of the next step.
    fn step(&self) -> NextOp<'_>;
    /// The index of the file concerned, see [`Ring::install`](crate::Ring::install).
    fn file(&self) -> u32;
    /// The length of the next step in bytes, as in its operation.
    fn length(&self) -> u32 {
        self.step().length()
    }
    /// How often the step that fails now has been tried.
    fn tries(&self) -> Tries {
        Tries(1)
    }
}

/// The number of successive tries of a step that moved nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tries(pub u8);

impl Tries {
    /// The most that there are.
    pub const ALL: Tries = Tries(100);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_never_compare_equal_to_a_byte_count() {
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
