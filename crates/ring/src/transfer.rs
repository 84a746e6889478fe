//! What a ring carries: what to do, with which memory, to which file.

use uringfs_buffer::Buffer;

use crate::entry::Piece;

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

/// What the kernel is asked to do with a transfer next.
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

/// Something a ring can carry out.
///
/// # Safety
/// The memory that [`step`](Transfer::step) names must be owned by `self`, stay
/// where it is when `self` is moved, and be reachable by nobody else while
/// `self` exists.
pub unsafe trait Transfer {
    /// What to do next.
    fn step(&self) -> Step<'_>;
    /// The place of the file concerned, see [`Ring::install`](crate::Ring::install).
    fn file(&self) -> u32;
}
