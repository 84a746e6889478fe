//! An extent: adjacent blocks of a file that are adjacent blocks of the device. Its intersection
//! and merging, and its record on disk, whose bytes may be forged.

use std::fmt;
use std::ops::Range;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::blocks::{BLOCK, Run};

/// Blocks of the largest file: byte offsets have the range of `off_t`, below 2^63.
pub const FILE_BLOCKS: u64 = (1 << 63) / BLOCK;

/// Whether an extent holds data of the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExtentState {
    /// The blocks hold the file's data.
    Written,
    /// The file reads as zeros. The blocks hold whatever was there before.
    Unwritten,
}

/// Adjacent blocks of a file that are adjacent blocks of the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The first block in the file.
    pub offset: u64,
    /// The first block on the device.
    pub start: u64,
    /// Number of blocks, never 0.
    pub length: u64,
    /// Whether the blocks hold data of the file.
    pub state: ExtentState,
}

impl Extent {
    /// The first block of the file after the extent.
    #[inline]
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// The blocks of the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }

    /// The blocks of the device.
    pub fn run(&self) -> Run {
        Run { start: self.start, length: self.length }
    }

    /// The part of it in `range`, a range of blocks of the file.
    pub fn intersection(&self, range: &Range<u64>) -> Option<Extent> {
        let offset = self.offset.max(range.start);
        let end = self.end().min(range.end);
        (offset < end).then(|| Extent {
            offset,
            start: self.start + (offset - self.offset),
            length: end - offset,
            state: self.state,
        })
    }

    /// Both extents as one, if `next` continues this one in the file, on the device and in state.
    pub fn join(&self, next: &Extent) -> Option<Extent> {
        let joins = self.end() == next.offset
            && self.start + self.length == next.start
            && self.state == next.state;
        joins.then(|| Extent { length: self.length + next.length, ..*self })
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}@{:?} {:?}", self.range(), self.start, self.state)
    }
}

/// An extent on disk: 24 bytes, little-endian, unaligned.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtentRecord {
    offset: U64,
    start: U64,
    /// The lower 48 bits are the length. [`UNWRITTEN`] is a flag. The other bits are zero.
    length: U64,
}

/// Set in the third word of an unwritten extent.
const UNWRITTEN: u64 = 1 << 63;
/// Zero in the third word of every extent.
const RESERVED: u64 = !(UNWRITTEN | ((1 << 48) - 1));

impl ExtentRecord {
    /// Bytes of a record.
    pub const SIZE: usize = size_of::<ExtentRecord>();

    /// Parses a record on a device of `device_blocks` blocks.
    ///
    /// # Errors
    /// When the record is not valid: see [`InvalidExtent`].
    pub fn parse(bytes: &[u8], device_blocks: u64) -> Result<Extent, InvalidExtent> {
        let record = ExtentRecord::read_from_bytes(bytes).map_err(|_| InvalidExtent::Size)?;
        let word = record.length.get();
        if word & RESERVED != 0 {
            return Err(InvalidExtent::Reserved);
        }
        let (offset, start, length) = (record.offset.get(), record.start.get(), word & !UNWRITTEN);
        let lies_within = |first: u64, limit: u64| first <= limit && length <= limit - first;
        if length == 0 {
            Err(InvalidExtent::Empty)
        } else if !lies_within(offset, FILE_BLOCKS) {
            Err(InvalidExtent::File)
        } else if !lies_within(start, device_blocks) {
            Err(InvalidExtent::Device)
        } else {
            let state =
                if word & UNWRITTEN == 0 { ExtentState::Written } else { ExtentState::Unwritten };
            Ok(Extent { offset, start, length, state })
        }
    }
}

impl From<&Extent> for ExtentRecord {
    fn from(extent: &Extent) -> ExtentRecord {
        let state = match extent.state {
            ExtentState::Written => 0,
            ExtentState::Unwritten => UNWRITTEN,
        };
        assert!(extent.length & (RESERVED | UNWRITTEN) == 0, "{extent:?} is longer than a device");
        ExtentRecord {
            offset: extent.offset.into(),
            start: extent.start.into(),
            length: (extent.length | state).into(),
        }
    }
}

/// Why an extent is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidExtent {
    /// The record has the wrong size.
    Size,
    /// A reserved bit is set.
    Reserved,
    /// It has no blocks.
    Empty,
    /// It exceeds the largest file.
    File,
    /// It exceeds the device.
    Device,
    /// It lies on blocks that no file may map.
    System,
    /// It begins before the end of the previous one.
    Order,
}

impl fmt::Display for InvalidExtent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            InvalidExtent::Size => "an extent's record has the wrong size",
            InvalidExtent::Reserved => "an extent's record has reserved bits set",
            InvalidExtent::Empty => "an extent has no blocks",
            InvalidExtent::File => "an extent exceeds the largest file",
            InvalidExtent::Device => "an extent exceeds the device",
            InvalidExtent::System => {
                "an extent lies on blocks of the superblock, the catalog or its log"
            }
            InvalidExtent::Order => "an extent begins before the end of the previous one",
        })
    }
}

impl std::error::Error for InvalidExtent {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEVICE: u64 = 1 << 34;

    fn bytes(words: [u64; 3]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_record_is_three_little_endian_words() {
        let extent = Extent { offset: 7, start: 0x0102, length: 3, state: ExtentState::Unwritten };
        let expected = bytes([7, 0x0102, 3 | 1 << 63]);
        assert_eq!(ExtentRecord::from(&extent).as_bytes(), expected);
        assert_eq!(ExtentRecord::parse(&expected, DEVICE), Ok(extent));
    }

    #[test]
    fn invalid_records_are_refused_with_the_reason() {
        let refused = |words| ExtentRecord::parse(&bytes(words), DEVICE).unwrap_err();
        assert_eq!(refused([0, 0, 0]), InvalidExtent::Empty);
        assert_eq!(refused([0, 0, 1 << 63]), InvalidExtent::Empty);
        assert_eq!(refused([0, 0, 1 | 1 << 48]), InvalidExtent::Reserved);
        assert_eq!(refused([0, 0, 1 | 1 << 62]), InvalidExtent::Reserved);
        assert_eq!(refused([FILE_BLOCKS, 0, 1]), InvalidExtent::File);
        assert_eq!(refused([FILE_BLOCKS - 1, 0, 2]), InvalidExtent::File);
        assert_eq!(refused([u64::MAX, 0, 1]), InvalidExtent::File);
        assert_eq!(refused([0, DEVICE, 1]), InvalidExtent::Device);
        assert_eq!(refused([0, DEVICE - 1, 2]), InvalidExtent::Device);
        assert_eq!(refused([0, u64::MAX, 1]), InvalidExtent::Device);
        assert!(ExtentRecord::parse(&bytes([FILE_BLOCKS - 1, DEVICE - 1, 1]), DEVICE).is_ok());
        for length in [0, 23, 25] {
            let record = ExtentRecord::parse(&vec![0; length], DEVICE);
            assert_eq!(record, Err(InvalidExtent::Size));
        }
    }

    #[test]
    fn a_split_extent_joins_again() {
        let whole = Extent { offset: 10, start: 100, length: 5, state: ExtentState::Written };
        for cut in 11..15 {
            let (left, right) =
                (whole.intersection(&(0..cut)).unwrap(), whole.intersection(&(cut..99)).unwrap());
            assert_eq!(left.join(&right), Some(whole));
            assert_eq!(right.join(&left), None);
            assert_eq!(left.join(&Extent { start: right.start + 1, ..right }), None);
            assert_eq!(left.join(&Extent { state: ExtentState::Unwritten, ..right }), None);
        }
        assert_eq!(whole.intersection(&(0..10)), None);
        assert_eq!(whole.intersection(&(15..99)), None);
        assert_eq!(whole.intersection(&(10..15)), Some(whole));
    }

    proptest! {
        #[test]
        fn a_parsed_record_is_encoded_unchanged(words: [u64; 3], shifts in [0u32..64, 0..64, 0..64]) {
            let words = [words[0] >> shifts[0], words[1] >> shifts[1], words[2] >> shifts[2]];
            if let Ok(extent) = ExtentRecord::parse(&bytes(words), DEVICE) {
                let record = ExtentRecord::from(&extent);
                prop_assert_eq!(record.as_bytes(), bytes(words));
            }
        }
    }
}
