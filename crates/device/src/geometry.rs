//! What a device is like: sizes, alignments, limits, and what it promises.

/// What a device is like. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Addresses run from 0 to here.
    pub size: u64,
    /// Addresses and lengths of requests are multiples of this.
    pub block_size: u32,
    /// What the device writes without reading first; 4096 on "512e" drives.
    pub physical_block_size: u32,
    /// Memory of requests begins at a multiple of this.
    pub memory_alignment: u32,
    /// The longest read or write in one step; a multiple of `block_size`.
    pub max_transfer: u32,
    /// Completed writes may be lost until a flush.
    pub volatile_cache: bool,
    /// A durable write costs no flush of its own: FUA, or no volatile cache.
    pub fua: bool,
    /// Present when discards do something.
    pub discard: Option<Discard>,
    /// Zeroing a range is faster than writing zeros.
    pub write_zeroes: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// Seeks cost time.
    pub rotational: bool,
    /// Requests go around the page cache of the kernel.
    pub direct: bool,
}

impl Geometry {
    /// Where its transfers may break off.
    pub fn bounds(&self) -> Bounds {
        Bounds { block_size: self.block_size, size: self.size }
    }
}

/// Where transfers of a device may break off, in bytes: between blocks, to be resumed there, and at its end.
/// See [`Request::advance`](crate::Request::advance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// As [`Geometry::block_size`].
    pub block_size: u32,
    /// As [`Geometry::size`].
    pub size: u64,
}

/// How a device discards. All sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    /// Smaller pieces may be ignored.
    pub granularity: u32,
    /// The longest discard in one request.
    pub max_bytes: u64,
}
