//! Frames: equal ranges of memory. Many readers share a frame while its bytes do not change; one exclusive owner at a
//! time may write it, or lend it to a request as a buffer. The frames of a chunk share one region of memory, which is
//! mapped and unmapped as a whole.

// Top down: a module imports only from those below it.

// Shared and exclusive access to frames.
mod guards;

// The table of frames and the memory of their chunks.
mod frames;

// The state word of a frame.
mod state;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use frames::{Slab, Zeroable, prefer_huge_pages};
pub use guards::{ExclusiveFrames, SharedFrame, Snapshot, Snapshots};
pub use state::FrameState;
