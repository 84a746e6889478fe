//! The map of one file: linear (an image or a bare device), or a `dyn Map`.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use crate::map::hot_extent::HotExtentReader;
use crate::map::mapping::{
    AllocOutcome, CommitFuture, Map, Mapping, Place, SpaceReservation, SyncScope,
    TruncateGeneration, WriteKind,
};
use crate::map::refusal::Refusal;

/// The map of an image or a bare device: one written extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearMap {
    /// Address of the file's first byte on the device, in bytes.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

impl Map for LinearMap {
    #[inline]
    fn written_address(&self, offset: u64, length: u64) -> Option<u64> {
        let fits = self.size.saturating_sub(offset) >= length;
        fits.then(|| self.address.wrapping_add(offset))
    }

    #[inline]
    fn map(&self, offset: u64) -> Mapping {
        let length = self.size.saturating_sub(offset);
        Mapping { length, place: Place::Written(self.address.wrapping_add(offset)) }
    }

    #[inline]
    fn size(&self) -> u64 {
        self.size
    }
}

/// The map of one file. An enum, so that the linear map needs no virtual call.
#[derive(Clone)]
pub(crate) enum FileMap {
    Linear(LinearMap),
    /// A map, and the reader of its hot extent.
    Mapped(Arc<dyn Map>, HotExtentReader),
}

impl FileMap {
    #[inline(always)]
    pub(crate) fn map(&self, offset: u64) -> Mapping {
        match self {
            FileMap::Linear(linear) => linear.map(offset),
            FileMap::Mapped(map, _) => map.map(offset),
        }
    }

    #[inline(always)]
    pub(crate) fn written_address(&self, offset: u64, length: u64) -> Option<u64> {
        match self {
            FileMap::Linear(linear) => linear.written_address(offset, length),
            FileMap::Mapped(map, _) => map.written_address(offset, length),
        }
    }

    #[inline(always)]
    pub(crate) fn size(&self) -> u64 {
        match self {
            FileMap::Linear(linear) => linear.size(),
            FileMap::Mapped(map, _) => map.size(),
        }
    }

    /// `None` for the linear map, where every write is in place.
    fn mapped(&self) -> Option<&dyn Map> {
        match self {
            FileMap::Linear(_) => None,
            FileMap::Mapped(map, _) => Some(&**map),
        }
    }

    /// True when writes beyond the size extend the file.
    pub(crate) fn is_resizable(&self) -> bool {
        self.mapped().is_some_and(Map::is_resizable)
    }

    /// See [`Map::is_read_only`].
    pub(crate) fn is_read_only(&self) -> bool {
        self.mapped().is_some_and(Map::is_read_only)
    }

    /// The map of a file whose size and space can change.
    ///
    /// # Errors
    /// EOPNOTSUPP for an image or a device: their size is fixed.
    pub(crate) fn resizable(&self) -> Result<&dyn Map, Errno> {
        self.mapped().filter(|map| map.is_resizable()).ok_or(Errno::OPNOTSUPP)
    }

    /// See [`Map::block_size`].
    pub(crate) fn block_size(&self) -> u64 {
        self.mapped().map_or(1, Map::block_size)
    }

    /// Bytes of a write to this range that fit in the file: all of them if the file is resizable.
    pub(crate) fn writable_length(&self, range: Range<u64>) -> u64 {
        let end = if self.is_resizable() { range.end } else { range.end.min(self.size()) };
        end.saturating_sub(range.start)
    }

    /// True if a range lies in one written extent, so that a write needs no allocation.
    #[inline]
    pub(crate) fn is_in_place(&self, range: &Range<u64>) -> bool {
        match self {
            FileMap::Linear(_) => true,
            FileMap::Mapped(map, _) => {
                map.written_address(range.start, range.end - range.start).is_some()
            }
        }
    }

    /// See [`Map::allocate`].
    pub(crate) fn allocate(
        &self,
        range: Range<u64>,
        reservation: &mut SpaceReservation,
        generation: TruncateGeneration,
    ) -> Result<AllocOutcome, Errno> {
        self.mapped()
            .map_or(Ok(AllocOutcome::Ready(())), |map| map.allocate(range, reservation, generation))
    }

    /// See [`Map::reserve_space`].
    pub(crate) fn reserve_space(
        &self,
        bytes: u64,
    ) -> Result<AllocOutcome<SpaceReservation>, Errno> {
        self.mapped().map_or(Ok(AllocOutcome::Ready(SpaceReservation::default())), |map| {
            map.reserve_space(bytes)
        })
    }

    /// See [`Map::retire_if_unlinked`]. False while other clones of this map exist.
    pub(crate) fn retire_if_unlinked(&self) -> bool {
        match self {
            FileMap::Linear(_) => false,
            FileMap::Mapped(map, _) => Arc::strong_count(map) == 1 && map.retire_if_unlinked(),
        }
    }

    /// See [`Map::allocated`].
    pub(crate) fn allocated(&self) -> u64 {
        self.mapped().map_or(self.size(), Map::allocated)
    }

    /// See [`Map::generation`].
    #[inline]
    pub(crate) fn generation(&self) -> TruncateGeneration {
        self.mapped().map_or(0, Map::generation)
    }

    /// See [`Map::generation_and_size`].
    pub(crate) fn generation_and_size(&self) -> (TruncateGeneration, u64) {
        self.mapped().map_or((0, self.size()), Map::generation_and_size)
    }

    /// See [`Map::commit`].
    pub(crate) fn commit(&self, what: SyncScope) -> Option<CommitFuture> {
        self.mapped().and_then(|map| map.commit(what))
    }

    /// See [`Map::note_flush_failure`].
    pub(crate) fn note_flush_failure(&self) {
        if let Some(map) = self.mapped() {
            map.note_flush_failure();
        }
    }

    /// See [`Map::has_flush_failed`].
    pub(crate) fn has_flush_failed(&self) -> bool {
        self.mapped().is_some_and(Map::has_flush_failed)
    }

    /// See [`Map::note_lost_writes`].
    pub(crate) fn note_lost_writes(&self) {
        if let Some(map) = self.mapped() {
            map.note_lost_writes();
        }
    }

    /// See [`Map::take_lost_writes`].
    pub(crate) fn take_lost_writes(&self) -> bool {
        self.mapped().is_some_and(Map::take_lost_writes)
    }

    /// See [`Map::fast_read_address`].
    #[inline(always)]
    pub(crate) fn fast_read_address(&self, offset: u64, length: u64) -> Result<u64, Refusal> {
        // Each arm returns by itself: a joined result would be tested twice.
        Ok(match self {
            FileMap::Linear(linear) => {
                linear.written_address(offset, length).ok_or(Refusal::Size)?
            }
            FileMap::Mapped(map, view) => match view.address(offset, length) {
                Some(address) => address,
                None => map.fast_read_address(offset, length)?,
            },
        })
    }

    /// See [`Map::fast_write_address`].
    #[inline(always)]
    pub(crate) fn fast_write_address(&self, offset: u64, length: u64) -> Result<u64, Refusal> {
        match self {
            FileMap::Linear(linear) => linear.written_address(offset, length).ok_or(Refusal::Size),
            FileMap::Mapped(map, _) => map.fast_write_address(offset, length),
        }
    }

    /// See [`Map::note_read`].
    #[inline]
    pub(crate) fn note_read(&self) {
        if let FileMap::Mapped(map, _) = self {
            map.note_read();
        }
    }

    /// See [`Map::note_write`].
    #[inline]
    pub(crate) fn note_write(&self) -> Option<CommitFuture> {
        self.mapped().and_then(Map::note_write)
    }

    /// See [`Map::mark_written_back`].
    pub(crate) fn mark_written_back(
        &self,
        kind: WriteKind,
        range: Range<u64>,
        generation: TruncateGeneration,
    ) {
        if let (FileMap::Mapped(map, _), WriteKind::Allocated) = (self, kind) {
            map.mark_written_back(range, generation);
        }
    }

    /// See [`Map::mark_written`].
    pub(crate) fn mark_written(
        &self,
        kind: WriteKind,
        range: Range<u64>,
        generation: TruncateGeneration,
    ) {
        if let (FileMap::Mapped(map, _), WriteKind::Allocated) = (self, kind) {
            map.mark_written(range, generation);
        }
    }
}
