//! Owned, aligned memory that may be in the kernel's hands.
//!
//! A [`Buffer`] owns a range of bytes: whoever holds it is the only one who can
//! read or write them, so handing it to a request hands the memory to the
//! kernel, and the completion hands it back. A [`BufferPool`] carves a fixed
//! number of equal buffers out of one [`Region`], which a ring can register once.
//! The frames of a [`Slab`] many may read at once, and one at a time may change or lend as a buffer.
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
//! This crate does no I/O and knows no ring.

#![allow(unsafe_code)]

// Top down: a module imports only from those below it.

// A fixed number of equal buffers out of one region.
mod pool;

// Frames that many may read, or that one may change or lend as a buffer.
mod slab;

// One owned range of bytes.
mod buffer;

// Memory allocated or mapped as one, with a name for rings.
mod region;

// The free slots of a region that is divided for a pool.
mod slots;

pub use buffer::{ALIGNMENT, Buffer, MAX_LENGTH};
pub use pool::BufferPool;
pub use region::{Backing, Region, RegionId};
pub use slab::{FrameState, Hold, Share, Slab, Snapshot, Snapshots, Zeroable, prefer_huge_pages};
