//! An operation in progress: what it does, and its memory.

use uringfs_buffer::Buffer;

/// An operation. Offsets and lengths in bytes; reads and writes are as long as their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// From the image at this offset to memory.
    Read(u64),
    /// From memory to the image at this offset.
    Write(u64),
    /// All completed writes become durable.
    Flush,
    /// The content of a range is no longer needed.
    Discard {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// A range reads as zeros from then on.
    WriteZeroes {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
}

/// The memory of an operation, which it owns until its completion. No other code may change that of a write meanwhile (see
/// [`Buffer::is_shared`]): the messages to the cluster have checksums.
#[derive(Debug)]
pub enum Memory {
    /// None.
    None,
    /// One buffer.
    Single(Buffer),
    /// Several, one after the other.
    Several(Box<[Buffer]>),
}

impl Memory {
    pub(crate) fn buffers(&self) -> &[Buffer] {
        match self {
            Memory::None => &[],
            Memory::Single(buffer) => std::slice::from_ref(buffer),
            Memory::Several(buffers) => buffers,
        }
    }
}
