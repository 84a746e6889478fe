//! The map of one file: of an image or a bare device, fixed, or resizable (a file of a volume).

use std::ops::Range;
use std::sync::Arc;

use uringfs_device::{Device, DeviceInner, Errno};

use crate::map::change_gate::ChangeGate;
use crate::map::hot_extent::{ExtentWindow, HotExtentReader};
use crate::map::mapping::{
    AllocOutcome, CommitFuture, Map, Mapping, MappingState, ResizableMap, SpaceReservation,
    SyncScope, TruncateGeneration, WriteKind, WriteOrigin,
};
use crate::map::refusal::Refusal;

/// The map of an image or a bare device: all bytes of the device, which may grow. A size that the device has lost stays the
/// file's: reads of what is gone fail there, and nothing is written.
#[derive(Clone)]
pub(crate) struct DeviceMap(Arc<DeviceInner>);

impl DeviceMap {
    /// The map of all bytes of a device.
    pub(crate) fn new(device: &Device) -> DeviceMap {
        DeviceMap(device.core().clone())
    }

    /// [`Map::written_address`] for a write.
    #[inline]
    fn writable_address(&self, offset: u64, length: u64) -> Option<u64> {
        let fits = self.0.size().saturating_sub(offset) >= length;
        fits.then_some(offset)
    }
}

impl Map for DeviceMap {
    #[inline]
    fn written_address(&self, offset: u64, length: u64) -> Option<u64> {
        let fits = self.size().saturating_sub(offset) >= length;
        fits.then_some(offset)
    }

    #[inline]
    fn map(&self, offset: u64) -> Mapping {
        let length = self.size().saturating_sub(offset);
        Mapping { length, state: MappingState::Written(offset) }
    }

    #[inline]
    fn size(&self) -> u64 {
        self.0.largest_size()
    }
}

/// The map of one file. An enum, so that the map of a device needs no virtual call.
#[derive(Clone)]
pub(crate) enum FileMap {
    Device(DeviceMap),
    /// Fixed size and extents.
    Fixed(Arc<dyn Map>),
    /// Changing size and extents, and the reader of the hot extent.
    Resizable(Arc<dyn ResizableMap>, HotExtentReader),
}

impl FileMap {
    /// See [`Map::map`].
    #[inline(always)]
    pub(crate) fn map(&self, offset: u64) -> Mapping {
        match self {
            FileMap::Device(map) => map.map(offset),
            FileMap::Fixed(map) => map.map(offset),
            FileMap::Resizable(map, _) => map.map(offset),
        }
    }

    /// See [`Map::written_address`].
    #[inline(always)]
    pub(crate) fn written_address(&self, offset: u64, length: u64) -> Option<u64> {
        match self {
            FileMap::Device(map) => map.written_address(offset, length),
            FileMap::Fixed(map) => map.written_address(offset, length),
            FileMap::Resizable(map, _) => map.written_address(offset, length),
        }
    }

    /// See [`Map::size`].
    #[inline(always)]
    pub(crate) fn size(&self) -> u64 {
        match self {
            FileMap::Device(map) => map.size(),
            FileMap::Fixed(map) => map.size(),
            FileMap::Resizable(map, _) => map.size(),
        }
    }

    /// The map of a file whose size and space can change. `None` where both are fixed: then there is nothing to
    /// allocate, commit, note or truncate.
    pub(crate) fn resizable(&self) -> Option<&dyn ResizableMap> {
        match self {
            FileMap::Device(_) | FileMap::Fixed(_) => None,
            FileMap::Resizable(map, _) => Some(&**map),
        }
    }

    /// The same for operations that need one.
    ///
    /// # Errors
    /// EOPNOTSUPP where size and space are fixed: an image or a device.
    pub(crate) fn require_resizable(&self) -> Result<&dyn ResizableMap, Errno> {
        self.resizable().ok_or(Errno::OPNOTSUPP)
    }

    /// See [`ResizableMap::read_refusal`].
    pub(crate) fn read_refusal(&self) -> Option<Errno> {
        self.resizable().and_then(ResizableMap::read_refusal)
    }

    /// See [`ResizableMap::write_refusal`].
    pub(crate) fn write_refusal(&self) -> Option<Errno> {
        self.resizable().and_then(ResizableMap::write_refusal)
    }

    /// See [`ResizableMap::block_size`]; 1 where nothing is allocated.
    pub(crate) fn block_size(&self) -> u64 {
        self.resizable().map_or(1, ResizableMap::block_size)
    }

    /// Bytes of a write to this range that fit in the file: all of them if the file is resizable.
    pub(crate) fn writable_length(&self, range: Range<u64>) -> u64 {
        let end = match self.resizable() {
            Some(_) => range.end,
            None => range.end.min(self.size()),
        };
        end.saturating_sub(range.start)
    }

    /// True if a range lies in one written extent, so that a write needs no allocation.
    #[inline]
    pub(crate) fn is_in_place(&self, range: &Range<u64>) -> bool {
        match self {
            FileMap::Device(_) => true,
            FileMap::Fixed(_) | FileMap::Resizable(..) => {
                self.written_address(range.start, range.end - range.start).is_some()
            }
        }
    }

    /// See [`ResizableMap::allocate`]. EOPNOTSUPP for a hole of a fixed map.
    pub(crate) fn allocate(
        &self,
        range: Range<u64>,
        reservation: &mut SpaceReservation,
        generation: TruncateGeneration,
    ) -> Result<AllocOutcome, Errno> {
        self.require_resizable()?.allocate(range, reservation, generation)
    }

    /// See [`ResizableMap::reserve_space`]. EOPNOTSUPP for a hole of a fixed map.
    pub(crate) fn reserve_space(
        &self,
        bytes: u64,
    ) -> Result<AllocOutcome<SpaceReservation>, Errno> {
        self.require_resizable()?.reserve_space(bytes)
    }

    /// See [`ResizableMap::retire_if_unlinked`]. False while other clones of this map exist.
    pub(crate) fn retire_if_unlinked(&self) -> bool {
        match self {
            FileMap::Device(_) | FileMap::Fixed(_) => false,
            FileMap::Resizable(map, _) => Arc::strong_count(map) == 1 && map.retire_if_unlinked(),
        }
    }

    /// See [`ResizableMap::allocated`].
    pub(crate) fn allocated(&self) -> u64 {
        self.resizable().map_or(self.size(), ResizableMap::allocated)
    }

    /// See [`ResizableMap::generation`]; 0 where nothing is truncated.
    #[inline]
    pub(crate) fn generation(&self) -> TruncateGeneration {
        self.resizable().map_or(0, ResizableMap::generation)
    }

    /// See [`ResizableMap::generation_and_size`].
    pub(crate) fn generation_and_size(&self) -> (TruncateGeneration, u64) {
        self.resizable().map_or((0, self.size()), ResizableMap::generation_and_size)
    }

    /// See [`ResizableMap::commit`].
    pub(crate) fn commit(&self, what: SyncScope) -> Option<CommitFuture> {
        self.resizable().and_then(|map| map.commit(what))
    }

    /// See [`ResizableMap::note_flush_failure`]. A device that is opened as one file keeps no note of it.
    pub(crate) fn note_flush_failure(&self) {
        if let Some(map) = self.resizable() {
            map.note_flush_failure();
        }
    }

    /// See [`ResizableMap::has_flush_failed`].
    pub(crate) fn has_flush_failed(&self) -> bool {
        self.resizable().is_some_and(ResizableMap::has_flush_failed)
    }

    /// See [`ResizableMap::note_lost_writes`].
    pub(crate) fn note_lost_writes(&self) {
        if let Some(map) = self.resizable() {
            map.note_lost_writes();
        }
    }

    /// See [`ResizableMap::take_lost_writes`].
    pub(crate) fn take_lost_writes(&self) -> bool {
        self.resizable().is_some_and(ResizableMap::take_lost_writes)
    }

    /// See [`ResizableMap::fast_read_address`]. A refusal goes to `refuse`.
    #[inline(always)]
    pub(crate) fn fast_read_address(
        &self,
        offset: u64,
        length: u64,
        refuse: impl Fn(Refusal),
    ) -> Option<u64> {
        let missed = match self {
            FileMap::Device(map) => match map.written_address(offset, length) {
                Some(address) => return Some(address),
                None => Err(Refusal::Size),
            },
            FileMap::Fixed(map) => fixed_address(&**map, offset, length),
            FileMap::Resizable(map, hot_extent) => match hot_extent.address(offset, length) {
                Some(address) => return Some(address),
                None => map.fast_read_address(offset, length),
            },
        };
        missed.map_err(refuse).ok()
    }

    /// A written extent inside the file's size, in which most of its reads lie, for reads that were put in the epoch. Empty
    /// where there is no such extent, or [`Self::fast_read_address`] has more to do.
    #[inline(always)]
    pub(crate) fn fast_read_window(&self) -> ExtentWindow {
        match self {
            FileMap::Device(map) => ExtentWindow { start: 0, end: map.size(), address: 0 },
            FileMap::Fixed(_) => ExtentWindow::default(),
            FileMap::Resizable(_, hot_extent) => hot_extent.window(),
        }
    }

    /// The same for overwrites: empty also where [`Self::fast_write_address`] has more to do.
    #[inline(always)]
    pub(crate) fn fast_write_window(&self) -> ExtentWindow {
        match self {
            FileMap::Device(map) => ExtentWindow { start: 0, end: map.0.size(), address: 0 },
            FileMap::Fixed(_) => ExtentWindow::default(),
            FileMap::Resizable(map, _) => map.fast_write_window(),
        }
    }

    /// See [`ResizableMap::fast_write_address`].
    #[inline(always)]
    pub(crate) fn fast_write_address(&self, offset: u64, length: u64) -> Option<u64> {
        match self {
            FileMap::Device(map) => map.writable_address(offset, length),
            FileMap::Fixed(map) => map.written_address(offset, length),
            FileMap::Resizable(map, _) => map.fast_write_address(offset, length),
        }
    }

    /// Updates the access time: see [`ResizableMap::touch_atime`].
    #[inline]
    pub(crate) fn touch_atime(&self) {
        if let Some(map) = self.resizable() {
            map.touch_atime();
        }
    }

    /// See [`ResizableMap::change_gate`].
    #[inline]
    pub(crate) fn change_gate(&self) -> Option<&ChangeGate> {
        self.resizable().and_then(ResizableMap::change_gate)
    }

    /// See [`ResizableMap::check_process`].
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Errno> {
        self.resizable().map_or(Ok(()), ResizableMap::check_process)
    }

    /// Prepares the file for a change: see [`ResizableMap::prepare_write`].
    #[inline]
    pub(crate) fn prepare_write(&self) -> Option<CommitFuture> {
        self.resizable().and_then(ResizableMap::prepare_write)
    }

    /// See [`ResizableMap::mark_written`]; nothing for a write in place.
    pub(crate) fn mark_written(
        &self,
        kind: WriteKind,
        range: Range<u64>,
        generation: TruncateGeneration,
        origin: WriteOrigin,
    ) {
        if let (Some(map), WriteKind::Allocated) = (self.resizable(), kind) {
            map.mark_written(range, generation, origin);
        }
    }
}

fn fixed_address(map: &dyn Map, offset: u64, length: u64) -> Result<u64, Refusal> {
    map.written_address(offset, length).ok_or_else(|| {
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= map.size());
        if is_inside { Refusal::Extent } else { Refusal::Size }
    })
}
