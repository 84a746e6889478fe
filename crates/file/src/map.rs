//! Where a file's bytes lie. A map only answers; it moves nothing.

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

/// Where the bytes of one file lie. Asked from any thread; answers from memory.
pub trait Map: Send + Sync + 'static {
    /// What lies at `offset`, and how far; nothing behind the size.
    fn map(&self, offset: u64) -> Mapping;

    /// The address of `length` bytes from `offset` on, when they lie in one
    /// written extent: all that a simple read asks.
    fn written(&self, offset: u64, length: u64) -> Option<u64> {
        let mapping = self.map(offset);
        match mapping.place {
            Place::Written(address) if mapping.length >= length => Some(address),
            _ => None,
        }
    }

    /// The file's size in bytes.
    fn size(&self) -> u64;
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
    fn map(&self, offset: u64) -> Mapping {
        let length = self.size.saturating_sub(offset);
        Mapping { length, place: Place::Written(self.address.wrapping_add(offset)) }
    }

    #[inline]
    fn size(&self) -> u64 {
        self.size
    }
}
