//! Moves a byte range between a caller's memory and the addresses that the file's map gives.
//!
//! A [`File`] is a device and a [`Map`]. Its operations are awaited ([`File::read_at`] and the rest), or started
//! by token on a reactor ([`Tokens`]). Small aligned reads and overwrites take the fast path; everything else
//! is an operation.

// The modules, top down: each imports only from those below it.

// The operations of a file, awaited or started by token.
mod api;
// Reads and writes through the page cache.
mod buffered;
// Direct I/O: the fast path, reads, writes and their locks, appends, space.
mod direct;
// Write-back of dirty folios, and durability.
mod writeback;
// Data requests, bounce buffers, waits for free space.
mod io;
// State of a file: locks, dirty folios, cache state, options.
mod state;
// Extents: offsets of a file to addresses of the device.
mod map;

pub use api::batch::Batch;
pub use api::exact::ExactOp;
pub use api::operation::{BufResult, BufferOutput, FileOp, OpOutput};
pub use api::tokens::Tokens;
pub use api::uncommitted::{UncommittedChange, UncommittedChanges};
pub use direct::atomic_write::MAX_ATOMIC_WRITE_BYTES;
pub use direct::fallocate::FallocateSize;
pub use map::change_gate::{ChangeGate, ChangeGuard, Opened};
pub use map::hot_extent::{AtimeUpdates, ExtentWindow, HotExtent, HotExtentReader};
pub use map::mapping::{
    AllocOutcome, CommitFuture, FileExtent, Map, Mapping, MappingState, OutOfPlaceExtents,
    ResizableMap, SpaceReservation, SyncScope, TruncateGeneration, WriteOrigin,
};
pub use map::refusal::Refusal;
pub use state::buffered_handle::Advice;
pub use state::file::File;
pub use state::file_state::FileState;
pub use state::options::{BufferedWait, FileOptions, WriteLocking};
