//! The reason why a read does not take the fast path.

/// The reason why a read does not take the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)] // As wide as an address: a `Result` of the two is returned in registers.
pub enum Refusal {
    /// It is empty, or longer than the limit. The limit is 0 where the fast path is switched off.
    Length,
    /// Its offset, length or memory is not aligned for the device.
    Alignment,
    /// Dirty folios are newer than the device.
    Dirty,
    /// It exceeds the file's size.
    Size,
    /// It does not lie in one written extent.
    Extent,
    /// The access time needs an update first.
    NeedsUpdate,
}
