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
pub(super) struct BlockSplit(Box<[BlockShare]>);

impl BlockSplit {
    /// The sizes of a direction.
    pub(super) fn new(shares: &[BlockShare]) -> Self {
        let mut shares: Box<[BlockShare]> = shares.into();
        // fio's order, which decides what takes the place of a size that does not fit.
        shares.sort_by_key(|share| share.percent);
        Self(shares)
    }

    /// A size that fits into `room` bytes; `None` if there is none. As with fio, a size that does not fit leaves its percentage to the
    /// next one that does. After the last one that fits, another is drawn.
    #[inline(never)]
    pub(super) fn draw(&self, room: u64, random: &mut Random) -> Option<u64> {
        let fits = |share: &BlockShare| share.bytes <= room;
        let last = self.0.iter().rposition(fits)?;
        let within = &self.0[..=last];
        let drawn = random.below(within.iter().map(|share| u64::from(share.percent)).sum());
        let mut end = 0;
        let found = within.iter().find(|share| {
            end += u64::from(share.percent);
            drawn < end && fits(share)
        });
        found.map(|share| share.bytes)
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

    /// A size that fits into `room` bytes, of which there is at least a unit.
    #[inline]
    pub(super) fn draw(self, room: u64, split: &BlockSplit, random: &mut Random) -> u64 {
        match self {
            Self::Fixed(length) => length.into(),
            Self::Between { unit, steps } => {
                let (unit, steps) = (u64::from(unit), u64::from(steps));
                // A division takes as long as all the rest.
                let fitting = if unit * steps <= room { steps } else { room / unit };
                unit * (random.below(fitting) + 1)
            }
            Self::Split { unit } => split.draw(room, random).unwrap_or(unit.into()),
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
