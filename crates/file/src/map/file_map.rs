//! The map of one file: linear (an image or a bare device), or a `dyn Map`.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use crate::map::hot_extent::View;
use crate::map::mapping::{
    Commit, Durable, Generation, Map, Mapping, Place, Prepared, Promise, WriteKind,
};
use crate::map::refusal::Refusal;

/// The map of an image or a bare device: one written extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flat {
    /// Address of the file's first byte on the device, in bytes.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

impl Map for Flat {
    #[inline]
    fn written(&self, offset: u64, length: u64) -> Option<u64> {
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
    Linear(Flat),
    /// A map, and the reader of its hot extent.
    Mapped(Arc<dyn Map>, View),
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
    pub(crate) fn written(&self, offset: u64, length: u64) -> Option<u64> {
        match self {
            FileMap::Linear(linear) => linear.written(offset, length),
            FileMap::Mapped(map, _) => map.written(offset, length),
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
    pub(crate) fn grows(&self) -> bool {
        self.mapped().is_some_and(Map::grows)
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
        self.mapped().filter(|map| map.grows()).ok_or(Errno::OPNOTSUPP)
    }

    /// See [`Map::block_size`].
    pub(crate) fn block_size(&self) -> u64 {
        self.mapped().map_or(1, Map::block_size)
    }

    /// Bytes of a write to this range that fit in the file: all of them if the file is resizable.
    pub(crate) fn writable_length(&self, range: Range<u64>) -> u64 {
        let end = if self.grows() { range.end } else { range.end.min(self.size()) };
        end.saturating_sub(range.start)
    }

    /// True if a range lies in one written extent, so that a write needs no allocation.
    #[inline]
    pub(crate) fn is_in_place(&self, range: &Range<u64>) -> bool {
        match self {
            FileMap::Linear(_) => true,
            FileMap::Mapped(map, _) => map.written(range.start, range.end - range.start).is_some(),
        }
    }

    /// See [`Map::prepare`].
    pub(crate) fn prepare(
        &self,
        range: Range<u64>,
        reservation: &mut Promise,
        generation: Generation,
    ) -> Result<Prepared, Errno> {
        self.mapped()
            .map_or(Ok(Prepared::Ready(())), |map| map.prepare(range, reservation, generation))
    }

    /// See [`Map::promise`].
    pub(crate) fn promise(&self, bytes: u64) -> Result<Prepared<Promise>, Errno> {
        self.mapped().map_or(Ok(Prepared::Ready(Promise::default())), |map| map.promise(bytes))
    }

    /// See [`Map::abandon`]. False while other clones of this map exist.
    pub(crate) fn abandon(&self) -> bool {
        match self {
            FileMap::Linear(_) => false,
            FileMap::Mapped(map, _) => Arc::strong_count(map) == 1 && map.abandon(),
        }
    }

    /// See [`Map::allocated`].
    pub(crate) fn allocated(&self) -> u64 {
        self.mapped().map_or(self.size(), Map::allocated)
    }

    /// See [`Map::generation`].
    #[inline]
    pub(crate) fn generation(&self) -> Generation {
        self.mapped().map_or(0, Map::generation)
    }

    /// See [`Map::end`].
    pub(crate) fn end(&self) -> (Generation, u64) {
        self.mapped().map_or((0, self.size()), Map::end)
    }

    /// See [`Map::commit`].
    pub(crate) fn commit(&self, what: Durable) -> Option<Commit> {
        self.mapped().and_then(|map| map.commit(what))
    }

    /// See [`Map::flush_failed`].
    pub(crate) fn flush_failed(&self) {
        if let Some(map) = self.mapped() {
            map.flush_failed();
        }
    }

    /// See [`Map::has_flush_failed`].
    pub(crate) fn has_flush_failed(&self) -> bool {
        self.mapped().is_some_and(Map::has_flush_failed)
    }

    /// See [`Map::lost_bytes`].
    pub(crate) fn lost_bytes(&self) {
        if let Some(map) = self.mapped() {
            map.lost_bytes();
        }
    }

    /// See [`Map::take_lost_bytes`].
    pub(crate) fn take_lost_bytes(&self) -> bool {
        self.mapped().is_some_and(Map::take_lost_bytes)
    }

    /// See [`Map::simple_read`].
    #[inline(always)]
    pub(crate) fn simple_read(&self, offset: u64, length: u64) -> Result<u64, Refusal> {
        // Each arm returns by itself: a joined result would be tested twice.
        Ok(match self {
            FileMap::Linear(linear) => linear.written(offset, length).ok_or(Refusal::Size)?,
            FileMap::Mapped(map, view) => match view.address(offset, length) {
                Some(address) => address,
                None => map.simple_read(offset, length)?,
            },
        })
    }

    /// See [`Map::simple_write`].
    #[inline(always)]
    pub(crate) fn simple_write(&self, offset: u64, length: u64) -> Result<u64, Refusal> {
        match self {
            FileMap::Linear(linear) => linear.written(offset, length).ok_or(Refusal::Size),
            FileMap::Mapped(map, _) => map.simple_write(offset, length),
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
    pub(crate) fn note_write(&self) -> Option<Commit> {
        self.mapped().and_then(Map::note_write)
    }

    /// See [`Map::wrote_back`].
    pub(crate) fn wrote_back(&self, kind: WriteKind, range: Range<u64>, generation: Generation) {
        if let (FileMap::Mapped(map, _), WriteKind::Allocated) = (self, kind) {
            map.wrote_back(range, generation);
        }
    }

    /// See [`Map::wrote`].
    pub(crate) fn wrote(&self, kind: WriteKind, range: Range<u64>, generation: Generation) {
        if let (FileMap::Mapped(map, _), WriteKind::Allocated) = (self, kind) {
            map.wrote(range, generation);
        }
    }
}
