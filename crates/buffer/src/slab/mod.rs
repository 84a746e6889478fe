//! Frames: equal pieces of memory that many may read while nobody changes them, and that one at a time may change,
//! or lend to a request. So many of them, a chunk, lie together in a region, which comes and goes as a whole.

// Top down: a module imports only from those below it.

// Shares and holds of frames.
mod guards;

// The table of frames and the memory of their chunks.
mod frames;

// A frame's word.
mod state;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use frames::{Slab, Zeroable, prefer_huge_pages};
pub use guards::{Hold, Share, Snapshot, Snapshots};
pub use state::FrameState;
