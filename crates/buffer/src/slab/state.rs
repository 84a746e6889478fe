//! The state word of a frame: free, exclusive or shared, with the count of its shares; and 32 flags, which the user of
//! the slab defines. Both change in one atomic step.

/// One share. The bits of [`SHARE_MASK`] count the shares.
pub(super) const ONE_SHARE: u64 = 1;
pub(super) const SHARE_MASK: u64 = (1 << 24) - 1;
/// The frame is exclusive or open to sharing. A word of zeros is a free frame, as fresh memory is.
pub(super) const ALLOCATED: u64 = 1 << 30;
/// The frame has one exclusive owner.
pub(super) const EXCLUSIVE: u64 = 1 << 31;
/// The first bit of the user's flags.
pub(super) const FLAG_SHIFT: u32 = 32;

/// A loaded state word of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameState(pub(super) u64);

impl FrameState {
    /// The user's flags.
    #[inline]
    pub fn flags(self) -> u32 {
        (self.0 >> FLAG_SHIFT) as u32
    }

    /// True if the frame has an exclusive owner.
    #[inline]
    pub fn is_exclusive(self) -> bool {
        self.0 & EXCLUSIVE != 0
    }

    /// True if the frame is not allocated; its bytes have no meaning.
    #[inline]
    pub fn is_free(self) -> bool {
        self.0 & ALLOCATED == 0
    }

    /// The number of shares. It may include readers that were refused and are about to drop their share.
    #[inline]
    pub fn shares(self) -> u32 {
        (self.0 & SHARE_MASK) as u32
    }
}
