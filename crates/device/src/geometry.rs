//! The geometry of a device: sizes, alignments, limits, and guarantees.

/// The properties of a device. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Addresses run from 0 to here.
    pub size: u64,
    /// Addresses and lengths of requests are multiples of this.
    pub block_size: u32,
    /// The smallest write that needs no read first; 4096 on "512e" drives.
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
    /// The bounds of its short transfers.
    pub fn bounds(&self) -> Bounds {
        Bounds { block_size: self.block_size, size: self.size }
    }
}

/// The places where transfers of a device may end short, in bytes: between blocks, to be resumed there, and at its end.
/// See [`Request::advance`](crate::Request::advance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// As [`Geometry::block_size`].
    pub block_size: u32,
    /// As [`Geometry::size`].
    pub size: u64,
}

/// The discards of a device. All sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    /// Smaller pieces may be ignored.
    pub granularity: u32,
    /// The longest discard in one request.
    pub max_bytes: u64,
}
