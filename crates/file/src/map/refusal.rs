//! Why a transfer does not take the fast path, learned where that is decided.

/// What keeps a transfer from the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)] // As wide as an address: a `Result` of the two is returned in registers.
pub enum Refusal {
    /// It is empty or longer than the fast path allows: not at all where that is switched off.
    Length,
    /// Its offset, length or memory is not aligned as the device needs it.
    Alignment,
    /// The device is closed.
    Closed,
    /// The file's write lock is in use.
    Locked,
    /// Dirty folios hold newer bytes than the device.
    Dirty,
    /// It reaches behind the end of the file.
    FallocateSize,
    /// It does not lie in one written extent.
    Extent,
    /// The map has to note it: a time moves, or rights go.
    Noted,
}
