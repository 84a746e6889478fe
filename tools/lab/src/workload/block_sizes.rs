//! The sizes of blocks: one, a range, or several with percentages.

use crate::job::BlockShare;
use crate::random::Random;

#[derive(Debug, Clone, Copy)]
pub(super) enum BlockSizes {
    Fixed(u32),
    Between {
        unit: u32,
        steps: u32,
    },
    /// The sizes of the direction's [`BlockSplit`], all multiples of `unit`.
    Split {
        unit: u32,
    },
}

/// Block sizes with weights: `bssplit`. Empty for a direction without.
#[derive(Debug, Clone)]
pub(super) struct BlockSplit(pub(super) Box<[BlockShare]>);

impl BlockSplit {
    /// A size in bytes.
    #[inline(never)]
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        let mut left = random.below(100);
        for share in &self.0 {
            match left.checked_sub(share.percent.into()) {
                Some(rest) => left = rest,
                None => return share.bytes,
            }
        }
        unreachable!("the percentages add up to 100")
    }

    /// The largest size that fits into `room` bytes.
    fn largest_fitting(&self, room: u64) -> Option<u64> {
        self.0.iter().map(|share| share.bytes).filter(|bytes| *bytes <= room).max()
    }
}

impl BlockSizes {
    /// All sizes are multiples of this.
    #[inline]
    pub(super) fn unit(self) -> u64 {
        match self {
            Self::Fixed(unit) | Self::Between { unit, .. } | Self::Split { unit } => unit.into(),
        }
    }

    /// The largest block that fits into `room` bytes, when the drawn one does not.
    #[cold]
    pub(super) fn largest_fitting(self, room: u64, split: &BlockSplit) -> Option<u64> {
        match self {
            Self::Fixed(_) => None,
            Self::Split { .. } => split.largest_fitting(room),
            Self::Between { unit, .. } => {
                let fitting = room / u64::from(unit) * u64::from(unit);
                (fitting > 0).then_some(fitting)
            }
        }
    }
}
