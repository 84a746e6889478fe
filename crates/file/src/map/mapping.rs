//! The interface of a map: where a file's bytes lie. A map answers and takes notes; it moves no data.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use uringfs_device::Errno;
use uringfs_reactor::Epoch;

use crate::map::change_gate::ChangeGate;
use crate::map::hot_extent::{ExtentWindow, HotExtentReader};
use crate::map::refusal::Refusal;

/// The state of a range of a file, with its address on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingState {
    /// No blocks. Reads as zeros.
    Hole,
    /// Allocated at this address, never written. Reads as zeros.
    Unwritten(u64),
    /// Written at this address.
    Written(u64),
}

/// The mapping of one offset: the state of this many bytes from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// In bytes. 0 only beyond the size.
    pub length: u64,
    /// State and address of these bytes.
    pub state: MappingState,
}

/// Ends when the map's owner has done the work, which is a commit in most cases.
pub type CommitFuture = Pin<Box<dyn Future<Output = Result<(), Errno>> + Send>>;

/// The outcome of a request for space.
pub enum AllocOutcome<T = ()> {
    /// Every byte has its space.
    Ready(T),
    /// Space may become free when this future ends. Try again then.
    AfterCommit(CommitFuture),
    /// Space may become free when everything in flight now has finished. Try again then.
    AfterQuiescence(Epoch),
}

impl<T: fmt::Debug> fmt::Debug for AllocOutcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            AllocOutcome::Ready(space) => f.debug_tuple("Ready").field(space).finish(),
            AllocOutcome::AfterCommit(_) => f.write_str("AfterCommit"),
            AllocOutcome::AfterQuiescence(epoch) => {
                f.debug_tuple("AfterQuiescence").field(epoch).finish()
            }
        }
    }
}

/// A range of a file and its address on the device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Offset in the file.
    pub offset: u64,
    /// Address on the device.
    pub address: u64,
    /// Length.
    pub length: u64,
}

impl FileExtent {
    /// The range in the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.length
    }
}

/// Returns unused extents to their allocator.
type GiveBack = Box<dyn FnOnce(Vec<FileExtent>) + Send>;

/// Extents that are allocated for a range of a file, but that no map names yet. In file order. Dropping it frees
/// them.
pub struct OutOfPlaceExtents {
    extents: Vec<FileExtent>,
    give_back: Option<GiveBack>,
}

impl fmt::Debug for OutOfPlaceExtents {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("OutOfPlaceExtents").field("extents", &self.extents).finish_non_exhaustive()
    }
}

impl OutOfPlaceExtents {
    /// Takes ownership; `give_back` frees the extents on drop.
    pub fn new(extents: Vec<FileExtent>, give_back: GiveBack) -> OutOfPlaceExtents {
        OutOfPlaceExtents { extents, give_back: Some(give_back) }
    }

    /// In the order of the file.
    pub fn extents(&self) -> &[FileExtent] {
        &self.extents
    }

    /// Takes the extents out: drop no longer frees them.
    pub fn take(mut self) -> Vec<FileExtent> {
        self.give_back = None;
        std::mem::take(&mut self.extents)
    }
}

impl Drop for OutOfPlaceExtents {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take() {
            give_back(std::mem::take(&mut self.extents));
        }
    }
}

/// Space reserved for delayed allocation: bytes whose blocks are chosen at write-back. Dropping it returns the
/// remainder.
#[derive(Default)]
pub struct SpaceReservation {
    bytes: u64,
    /// `None` once no bytes are left: it may hold the volume.
    give_back: Option<Arc<dyn Fn(u64) + Send + Sync>>,
}

impl SpaceReservation {
    /// Reserves this many bytes, whole blocks. `give_back` returns what is left on drop.
    pub fn new(bytes: u64, give_back: Arc<dyn Fn(u64) + Send + Sync>) -> SpaceReservation {
        SpaceReservation { bytes, give_back: (bytes > 0).then_some(give_back) }
    }

    /// Bytes left.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Uses up this many bytes, or all: drop no longer returns them.
    pub fn redeem(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if self.bytes == 0 {
            self.give_back = None;
        }
    }

    /// Moves up to this many bytes into a reservation of their own.
    pub(crate) fn split_off(&mut self, bytes: u64) -> SpaceReservation {
        if bytes >= self.bytes {
            return std::mem::take(self);
        }
        self.bytes -= bytes;
        SpaceReservation { bytes, give_back: self.give_back.clone().filter(|_| bytes > 0) }
    }

    /// Adds another reservation of the same file.
    pub(crate) fn join(&mut self, mut other: SpaceReservation) {
        self.bytes += std::mem::take(&mut other.bytes);
        self.give_back = self.give_back.take().or(other.give_back.take());
    }
}

impl Drop for SpaceReservation {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take() {
            give_back(self.bytes);
        }
    }
}

impl fmt::Debug for SpaceReservation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "reservation of {} bytes", self.bytes)
    }
}

/// Scope of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncScope {
    /// The bytes, and the metadata that finds them (`fdatasync`).
    Data,
    /// All metadata of the file as well (`fsync`).
    Everything,
}

/// Counts truncations to 0 that did not exclude writers.
pub type TruncateGeneration = u64;

/// The extents of one file. Callable from any thread; answers from memory.
///
/// A map with this trait alone has a fixed size and fixed extents: writes go in place, into written extents.
pub trait Map: Send + Sync + 'static {
    /// The mapping at `offset`. Beyond the size: preallocated extents, a hole, or length 0.
    fn map(&self, offset: u64) -> Mapping;

    /// Size in bytes.
    fn size(&self) -> u64;

    /// The address of `length` bytes at `offset`, when they lie in one written extent inside the size: all that
    /// the fast path needs.
    fn written_address(&self, offset: u64, length: u64) -> Option<u64> {
        if offset.checked_add(length)? > self.size() {
            return None;
        }
        let mapping = self.map(offset);
        match mapping.state {
            MappingState::Written(address) if mapping.length >= length => Some(address),
            _ => None,
        }
    }
}

/// The extents of a file whose size and space change: a file of a volume.
pub trait ResizableMap: Map + Any {
    /// Allocation unit in bytes, a power of two. A block becomes written as a whole: a write of part of a new
    /// block supplies zeros for the rest.
    fn block_size(&self) -> u64;

    /// Allocated space in bytes, and space reserved for delayed allocation.
    fn allocated(&self) -> u64;

    /// The error of every read, when the handle may not read.
    fn read_refusal(&self) -> Option<Errno>;

    /// The error of every write, when writes are refused even though the device accepts them.
    fn write_refusal(&self) -> Option<Errno>;

    /// Incremented by each truncation to 0 that does not exclude writers. Such a truncation discards the data
    /// of writes in flight. But if another write allocates blocks for the same range after it, the rest of an
    /// earlier write goes to these blocks, too: the data of either may remain.
    fn generation(&self) -> TruncateGeneration;

    /// The generation and the size in bytes, read at one moment.
    fn generation_and_size(&self) -> (TruncateGeneration, u64);

    /// Allocates what is missing in a range: holes become unwritten extents. Called before the first request of
    /// a write that does not lie in one written extent. Consumes `reservation`; a call that must be repeated may
    /// already have consumed part. Changes nothing if the file has been truncated to 0 since `generation`. Does not
    /// wait: see [`AllocOutcome`].
    ///
    /// # Errors
    /// ENOSPC and its like; part of the range may be allocated then.
    fn allocate(
        &self,
        range: Range<u64>,
        reservation: &mut SpaceReservation,
        generation: TruncateGeneration,
    ) -> Result<AllocOutcome, Errno>;

    /// Reserves space for this many bytes, whole blocks, whose place is chosen later. Does not wait: see
    /// [`AllocOutcome`].
    ///
    /// # Errors
    /// ENOSPC and its like, with nothing changed.
    fn reserve_space(&self, bytes: u64) -> Result<AllocOutcome<SpaceReservation>, Errno>;

    /// Allocates extents for a range of whole blocks, beside the ones it has now. No map names them yet. Does
    /// not wait: see [`AllocOutcome`].
    ///
    /// # Errors
    /// ENOSPC and its like, with nothing changed.
    fn allocate_out_of_place(
        &self,
        range: Range<u64>,
    ) -> Result<AllocOutcome<OutOfPlaceExtents>, Errno>;

    /// Replaces the extents of a range by `reserved`, as written, in one step, and extends the size to the end
    /// of the range. If the file has been truncated to 0 since `generation`, `reserved` stays as it is.
    /// [`Self::commit`] makes the swap durable as a whole. The caller holds the range lock.
    ///
    /// # Errors
    /// ENOSPC and its like, with nothing changed.
    fn swap_extents(
        &self,
        range: Range<u64>,
        reserved: &mut Option<OutOfPlaceExtents>,
        generation: TruncateGeneration,
    ) -> Result<AllocOutcome, Errno>;

    /// Truncates the file, or extends it by a hole. The caller excludes writers. Before an extension it has
    /// zeroed the last block beyond the old end.
    fn set_size(&self, size: u64);

    /// Punches a hole of whole blocks. The caller excludes writers.
    fn punch_hole(&self, range: Range<u64>);

    /// Marks written blocks unwritten, in place. The caller excludes writers.
    fn mark_unwritten(&self, range: Range<u64>);

    /// Marks an allocated range written and extends the size to its end, unless the file has been truncated to
    /// 0 since `generation`.
    fn mark_written(&self, range: Range<u64>, generation: TruncateGeneration, origin: WriteOrigin);

    /// The commit that makes writes durable under the current names and sizes. `None` while only bytes in place
    /// have changed. The future flushes the device itself.
    fn commit(&self, what: SyncScope) -> Option<CommitFuture>;

    /// Notes a failed flush: the device may have lost earlier writes, of any writer, and no later flush reports
    /// it again.
    fn note_flush_failure(&self);

    /// True if a flush has failed. After that a successful flush proves nothing: the device may already have
    /// dropped the lost writes. Also true if the device has become too small for the file.
    fn has_flush_failed(&self) -> bool;

    /// Notes that buffered writes were lost: write-back failed, and no buffered handle is left. Does not wait.
    fn note_lost_writes(&self);

    /// True if buffered writes were lost and no handle has reported it yet. Returns true once for each loss.
    fn take_lost_writes(&self) -> bool;

    /// Forgets the file if it has no name and this map is its last user, so that it cannot be opened again.
    /// Returns whether it was forgotten.
    fn retire_if_unlinked(&self) -> bool;

    /// The hot extent: the file's largest written extent, which fast reads try first. Called once, when the file is
    /// opened. It is as authoritative as the map itself.
    fn hot_extent(&self) -> HotExtentReader;

    /// [`Map::written_address`] for a fast read that missed the hot extent.
    ///
    /// # Errors
    /// [`Refusal::NeedsUpdate`] when [`Self::touch_atime`] has work to do; [`Refusal::Size`]; [`Refusal::Extent`].
    fn fast_read_address(&self, offset: u64, length: u64) -> Result<u64, Refusal>;

    /// [`Map::written_address`] for a fast write; `None` also when [`Self::prepare_write`] has work to do, and while
    /// [`Self::change_gate`] is closed.
    fn fast_write_address(&self, offset: u64, length: u64) -> Option<u64>;

    /// The hot extent, for fast writes that have entered the epoch: those in it have the addresses that it gives. Empty
    /// when [`Self::fast_write_address`] would return `None` for all.
    fn fast_write_window(&self) -> ExtentWindow {
        ExtentWindow::default()
    }

    /// Updates the access time if it is due. Called for every read except a fast one.
    fn touch_atime(&self);

    /// The gate through which every change goes, except a fast write: see [`Self::fast_write_address`].
    fn change_gate(&self) -> Option<&ChangeGate> {
        None
    }

    /// Whether this process may change and sync the file.
    ///
    /// # Errors
    /// ECHILD in the child of a fork, where nothing ends what the parent's threads had begun, nor releases their locks.
    fn check_process(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Prepares the file for a change: updates the modification time. Called before every change except a fast
    /// write. The returned future removes privileges that a write strips, and must end before anything is written.
    /// If it fails, nothing is written.
    fn prepare_write(&self) -> Option<CommitFuture>;
}

/// How the bytes of a write came to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrigin {
    /// A direct write: the file's times move now.
    Direct,
    /// Write-back: the bytes were written to the page cache earlier, and the file keeps the times of then.
    Writeback,
}

/// Kind of a write, for the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// The range lies in one written extent: the map does not change.
    InPlace,
    /// The range was allocated: the map marks it written.
    Allocated,
}
