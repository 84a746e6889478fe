//! A frame's word: vacant, held by one, or shared, with a count of its shares; and 32 flags, whose meaning is the
//! user's. Both change in one step.

/// One who shares; the bits below [`SHARE_MASK`] count them.
pub(super) const ONE_SHARE: u64 = 1;
pub(super) const SHARE_MASK: u64 = (1 << 24) - 1;
/// Somebody has it, or all may. All zeros is a frame that is vacant: memory that was never used.
pub(super) const ALLOCATED: u64 = 1 << 30;
/// One has it alone.
pub(super) const EXCLUSIVE: u64 = 1 << 31;
/// Where the user's flags begin.
pub(super) const FLAG_SHIFT: u32 = 32;

/// What a frame's word said: how it is, and its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameState(pub(super) u64);

impl FrameState {
    /// The user's flags.
    #[inline]
    pub fn flags(self) -> u32 {
        (self.0 >> FLAG_SHIFT) as u32
    }

    /// One has it alone.
    #[inline]
    pub fn is_held(self) -> bool {
        self.0 & EXCLUSIVE != 0
    }

    /// Nobody has it, and its bytes are nothing.
    #[inline]
    pub fn is_free(self) -> bool {
        self.0 & ALLOCATED == 0
    }

    /// How many share it; one more may be a look that is about to be given up.
    #[inline]
    pub fn shares(self) -> u32 {
        (self.0 & SHARE_MASK) as u32
    }
}
