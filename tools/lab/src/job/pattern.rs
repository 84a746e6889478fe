//! The directions and the order of a job's I/O.

use super::direction::DIRECTIONS;

/// The directions and the order of a job's I/O: fio's `rw`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Sequential reads and writes mixed.
    ReadWrite,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random reads and writes mixed.
    RandReadWrite,
    /// Sequential trims.
    Trim,
    /// Random trims.
    RandTrim,
    /// Sequential trims, each followed by a write of the same block.
    TrimWrite,
    /// Random trims, each followed by a write of the same block.
    RandTrimWrite,
    /// The directions and the order of the traces of `read_iolog`.
    Replay {
        /// Some I/O reads.
        reads: bool,
        /// Some I/O writes.
        writes: bool,
        /// Some I/O trims.
        trims: bool,
    },
}

impl Pattern {
    /// fio's name of the pattern.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "rw",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::RandReadWrite => "randrw",
            Self::Trim => "trim",
            Self::RandTrim => "randtrim",
            Self::TrimWrite => "trimwrite",
            Self::RandTrimWrite => "randtrimwrite",
            Self::Replay { .. } => "replay",
        }
    }

    /// Whether offsets are random.
    pub fn random(self) -> bool {
        let reads_or_writes =
            matches!(self, Self::RandRead | Self::RandWrite | Self::RandReadWrite);
        reads_or_writes || matches!(self, Self::RandTrim | Self::RandTrimWrite)
    }

    /// Whether the pattern has reads.
    pub fn reads(self) -> bool {
        match self {
            Self::Read | Self::RandRead | Self::ReadWrite | Self::RandReadWrite => true,
            Self::Replay { reads, .. } => reads,
            _ => false,
        }
    }

    /// Whether the pattern has writes.
    pub fn writes(self) -> bool {
        match self {
            Self::Write | Self::RandWrite | Self::ReadWrite | Self::RandReadWrite => true,
            Self::Replay { writes, .. } => writes,
            other => other.writes_trimmed(),
        }
    }

    /// Whether the pattern has trims.
    pub fn trims(self) -> bool {
        match self {
            Self::Trim | Self::RandTrim => true,
            Self::Replay { trims, .. } => trims,
            other => other.writes_trimmed(),
        }
    }

    /// Whether each trim is followed by a write of the same block.
    pub fn writes_trimmed(self) -> bool {
        matches!(self, Self::TrimWrite | Self::RandTrimWrite)
    }

    /// Whether the pattern changes what is on the target: a trim destroys it, as a write does.
    pub fn modifies(self) -> bool {
        self.writes() || self.trims()
    }

    /// The directions whose blocks are chosen. The writes that follow trims have the blocks of the trims.
    pub fn chosen(self) -> [bool; DIRECTIONS] {
        [self.reads(), self.writes() && !self.writes_trimmed(), self.trims()]
    }
}
