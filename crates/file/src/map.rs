//! Where a file's bytes lie. A map only answers, and hears what was done; it moves nothing.

use std::ops::Range;
use std::pin::Pin;

use rustix::io::Errno;

/// What lies behind a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing: reads as zeros.
    Hole,
    /// Allocated at this address on the device, never written: reads as zeros.
    Unwritten(u64),
    /// Written at this address on the device.
    Written(u64),
}

/// The answer for one offset: from there on, this many bytes lie so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Bytes; 0 only behind the size.
    pub length: u64,
    /// Where they lie.
    pub place: Place,
}

/// Ends when what a file's map knows is durable.
pub type Commit = Pin<Box<dyn Future<Output = Result<(), Errno>> + Send>>;

/// Where the bytes of one file lie. Asked from any thread; answers from memory.
pub trait Map: Send + Sync + 'static {
    /// What lies at `offset`, and how far. Behind the size there is nothing but what was prepared.
    fn map(&self, offset: u64) -> Mapping;

    /// The address of `length` bytes from `offset` on, when they lie in one
    /// written extent inside the size: all that a simple transfer asks.
    fn written(&self, offset: u64, length: u64) -> Option<u64> {
        if offset.checked_add(length)? > self.size() {
            return None;
        }
        let mapping = self.map(offset);
        match mapping.place {
            Place::Written(address) if mapping.length >= length => Some(address),
            _ => None,
        }
    }

    /// The file's size in bytes.
    fn size(&self) -> u64;

    /// The block that is allocated and becomes written as a whole, in bytes: a power of two. A
    /// write of part of a new one brings zeros for the rest.
    fn block_size(&self) -> u64 {
        1
    }

    /// True when writes behind the size make the file longer.
    fn grows(&self) -> bool {
        false
    }

    /// Has every byte of a range lie somewhere, so that it can be written: what was a hole is
    /// unwritten then. Asked before anything of a write is issued that does not lie in one written
    /// extent.
    ///
    /// # Errors
    /// ENOSPC and its like; nothing has changed then.
    fn prepare(&self, _range: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }

    /// What has to follow a flush for everything that was written to be durable, under names and
    /// sizes as they are now; none while nothing has changed but bytes in place. It flushes itself.
    fn commit(&self) -> Option<Commit> {
        None
    }

    /// Hears that a range which was prepared has been written: it reads as what was written, and
    /// the file is at least as long.
    fn wrote(&self, _range: Range<u64>) {}
}

/// The map of one file: the usual ones without a call through a table.
pub(crate) enum AnyMap {
    Flat(Flat),
    Other(Box<dyn Map>),
}

impl AnyMap {
    #[inline(always)]
    pub(crate) fn map(&self, offset: u64) -> Mapping {
        match self {
            AnyMap::Flat(flat) => flat.map(offset),
            AnyMap::Other(map) => map.map(offset),
        }
    }

    #[inline(always)]
    pub(crate) fn written(&self, offset: u64, length: u64) -> Option<u64> {
        match self {
            AnyMap::Flat(flat) => flat.written(offset, length),
            AnyMap::Other(map) => map.written(offset, length),
        }
    }

    #[inline(always)]
    pub(crate) fn size(&self) -> u64 {
        match self {
            AnyMap::Flat(flat) => flat.size(),
            AnyMap::Other(map) => map.size(),
        }
    }

    /// How many of the bytes that a write of this range brings have a place in the file.
    pub(crate) fn room(&self, range: Range<u64>) -> u64 {
        let grows = match self {
            AnyMap::Flat(_) => false,
            AnyMap::Other(map) => map.grows(),
        };
        let end = if grows { range.end } else { range.end.min(self.size()) };
        end.saturating_sub(range.start)
    }

    /// See [`Map::prepare`]. What is written in place needs no more.
    #[inline]
    pub(crate) fn prepare(&self, range: Range<u64>) -> Result<Preparation, Errno> {
        match self {
            AnyMap::Other(map) if map.written(range.start, range.end - range.start).is_none() => {
                map.prepare(range).map(|()| Preparation::Allocated(map.block_size()))
            }
            _ => Ok(Preparation::InPlace),
        }
    }

    /// See [`Map::commit`].
    pub(crate) fn commit(&self) -> Option<Commit> {
        match self {
            AnyMap::Flat(_) => None,
            AnyMap::Other(map) => map.commit(),
        }
    }

    /// See [`Map::wrote`].
    pub(crate) fn wrote(&self, preparation: Preparation, range: Range<u64>) {
        if let (AnyMap::Other(map), Preparation::Allocated(_)) = (self, preparation) {
            map.wrote(range);
        }
    }
}

/// What has to follow a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preparation {
    /// Nothing: it lay in one written extent.
    InPlace,
    /// It goes by blocks of this size, and the map hears of it.
    Allocated(u64),
}

/// The map of an image or a bare device: one written extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flat {
    /// Where the file begins on the device.
    pub address: u64,
    /// Its size in bytes.
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
