//! The geometry of a device: sizes, alignments, limits, and guarantees.

/// The properties of a device. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The size when the device was opened. [`Device::size`](crate::Device::size) is the size now.
    pub size: u64,
    /// The device's logical block size, which may be 512. Addresses and lengths of requests must be multiples of this.
    /// Elsewhere a "block" is 4096 bytes.
    pub block_size: u32,
    /// The smallest write for which the device reads nothing first; 4096 on "512e" drives.
    pub physical_block_size: u32,
    /// The memory of requests must begin at a multiple of this.
    pub memory_alignment: u32,
    /// The longest read or write in one step; a multiple of `block_size`.
    pub max_transfer: u32,
    /// Completed writes may be lost until a flush.
    pub volatile_cache: bool,
    /// The volatile cache is memory of this process: completed writes may be lost until a flush when the process ends, too.
    pub cached_in_process: bool,
    /// A durable write needs no flush: FUA, or no volatile cache.
    pub fua: bool,
    /// A write may be durable on completion ([`Durability::Durable`](crate::Durability::Durable)). Without `fua` it is
    /// followed by a flush in the same request (`RWF_DSYNC`), so for several writes one flush after them costs less. Of
    /// files only those on file systems that are known to execute it.
    pub durable_writes: bool,
    /// The limits of discards, if they have an effect.
    pub discard: Option<Discard>,
    /// Zeroing a range is faster than writing zeros.
    pub write_zeroes: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// Seeks are slow.
    pub rotational: bool,
    /// Requests bypass the kernel's page cache.
    pub direct: bool,
}

/// The points at which a device may end a transfer short: between blocks, and then the transfer is resumed there; and
/// at the end of the device. Sizes in bytes. See [`Request::advance`](crate::Request::advance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// As [`Geometry::block_size`].
    pub block_size: u32,
    /// The largest size that the device has had.
    pub size: u64,
}

/// The limits of discards. All sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    /// The device may ignore parts that are not whole multiples of this.
    pub granularity: u32,
    /// The longest discard in one request.
    pub max_bytes: u64,
}
