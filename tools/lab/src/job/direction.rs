//! The directions of I/O.

/// The number of directions: reads, writes and trims, in this order wherever each has a value.
pub const DIRECTIONS: usize = 3;

/// Read, write or trim: the index of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoOp {
    /// From the target into the slot's buffer.
    Read,
    /// From the slot's buffer to the target.
    Write,
    /// Discards bytes of the target; moves none.
    Trim,
}

impl IoOp {
    /// All, in the order of directions.
    pub const ALL: [Self; DIRECTIONS] = [Self::Read, Self::Write, Self::Trim];

    /// fio's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Trim => "trim",
        }
    }
}
