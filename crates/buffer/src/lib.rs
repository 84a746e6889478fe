//! Owned, aligned memory that may be in the kernel's hands.
//!
//! A [`Buffer`] owns a range of bytes: only its holder can read or write them.
//! So a request that takes the buffer hands the memory to the kernel, and the
//! completion hands it back. A [`BufferPool`] carves a fixed number of equal
//! buffers out of one [`Region`], which a ring can register once.
//! A frame of a [`Slab`] has many readers, or one owner that may write it or lend it as a buffer.
//!
//! ```
//! use uringfs_buffer::{Buffer, BufferPool};
//!
//! let mut block = Buffer::zeroed(8192);
//! block[..5].copy_from_slice(b"hello");
//! let tail = block.split_off(4096);
//! assert_eq!((block.len(), tail.len()), (4096, 4096));
//! block.join(tail).unwrap();
//!
//! let pool = BufferPool::new(4096, 64).unwrap();
//! let buffer = pool.get().expect("64 are free");
//! assert_eq!(buffer.len(), 4096);
//! ```
//!
//! An operation also takes values of other types ([`IoBuf`], [`IoBufMut`]), such as `Vec<u8>`.
//!
//! This crate does no I/O and does not depend on a ring.

#![allow(unsafe_code)]

// Top down: a module imports only from those below it.

// Buffers of callers in other languages, who hold memory by its address alone.
mod raw;

// A fixed number of equal buffers out of one region.
mod pool;

// Values of other types as memory of requests.
mod io_buf;

// Memory that others change while it is in use.
mod shared;

// Frames with many readers, or one owner that may write or lend them.
mod slab;

// One owned range of bytes.
mod buffer;

// Memory that is allocated or mapped as one, with an id for rings.
mod region;

// The free slots of a region that a pool divides, and who waits for one.
mod slots;

pub use buffer::{ALIGNMENT, Buffer, MAX_LENGTH};
pub use io_buf::{IoBuf, IoBufMut, OpMemory, TooLong};
pub use pool::{Acquire, BufferPool, VisitUnreaped, set_visit_unreaped};
pub use raw::{ForeignBuffers, ForeignMemory, RawPool};
pub use region::{Region, RegionId};
pub use shared::{Registration, SharedMemory};
pub use slab::{
    ExclusiveFrames, FrameState, SharedFrame, Slab, Snapshot, Snapshots, Zeroable,
    prefer_huge_pages,
};
