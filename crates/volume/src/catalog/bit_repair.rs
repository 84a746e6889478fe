//! Pages that are not as they were written. One flipped bit is put right: the sums of a good page and of
//! the same page with one bit flipped differ in a way that tells which bit it was. Does no I/O.
//!
//! Of pages that are damaged in more than a bit about one in 130,000 looks as if it were only one;
//! what is wrong then shows in the sums that records carry. So reading uses what is put right here,
//! and says so; nothing is written back without the whole catalog having been verified.

use std::fmt;

use super::checksum::{UNWRITTEN, checksum_entry};

/// CRC32C's polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A page that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadPage {
    pub(crate) page: u64,
    /// Its block.
    pub(crate) block: u64,
    /// The block of its checksum.
    pub(crate) checksum_block: u64,
    pub(crate) flaw: PageFlaw,
}

/// What is wrong with a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageFlaw {
    /// One bit of it, which is known.
    Bit { byte: usize, bit: u32 },
    /// One bit of its checksum.
    SumBit,
    /// Its checksum here; redb's own says that the page is good.
    Sum,
    /// More than can be put right.
    Lost(String),
    /// The device did not give it: it may be good.
    Unread(String),
}

impl fmt::Display for BadPage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (block, checksum_block) = (self.block, self.checksum_block);
        match &self.flaw {
            PageFlaw::Bit { byte, bit } => write!(
                out,
                "catalog block {block}: bit {bit} of byte {byte} has flipped, and is read as it was"
            ),
            PageFlaw::SumBit => write!(
                out,
                "catalog block {checksum_block}: a bit in the checksum of block {block} has flipped"
            ),
            PageFlaw::Sum => write!(
                out,
                "catalog block {checksum_block}: the checksum of block {block} is lost, which is good"
            ),
            PageFlaw::Lost(why) => write!(out, "catalog block {block} is lost: {why}"),
            PageFlaw::Unread(why) => write!(out, "catalog block {block} is not readable: {why}"),
        }
    }
}

/// Which bit was another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlippedBit {
    /// Of the page; it is put right.
    Page { byte: usize, bit: u32 },
    /// Of the page's entry, which should be this.
    Entry(u32),
}

/// Puts right the bit by which a page and its entry do not fit, if it is only one.
pub(super) fn correct_flipped_bit(page: &mut [u8], entry: u32) -> Option<FlippedBit> {
    let found = checksum_entry(page);
    if (found ^ entry).count_ones() == 1 {
        return Some(FlippedBit::Entry(found));
    }
    // An entry may stand for itself or for its inverse; see `checksum_entry`.
    [entry, !entry].into_iter().find_map(|sum| {
        let (byte, bit) = flipped_bit(page.len(), checksum_of(page) ^ sum)?;
        page[byte] ^= 1 << bit;
        if entry != UNWRITTEN && checksum_entry(page) == entry {
            return Some(FlippedBit::Page { byte, bit });
        }
        page[byte] ^= 1 << bit;
        None
    })
}

fn checksum_of(page: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, page) as u32
}

/// The bit that changes a sum so, in `length` bytes: as a flipped bit goes through the sum, every
/// bit behind it shifts what it did by one place.
fn flipped_bit(length: usize, change: u32) -> Option<(usize, u32)> {
    let shift = |sum: &u32| Some((sum >> 1) ^ if sum & 1 == 1 { POLYNOMIAL } else { 0 });
    let bits = 8 * length;
    let behind = std::iter::successors(Some(POLYNOMIAL), shift)
        .take(bits)
        .position(|candidate| candidate == change)?;
    let at = bits - 1 - behind;
    Some((at / 8, (at % 8) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Vec<u8> {
        (0..4096u32).map(|n| (n * n / 7) as u8).collect()
    }

    #[test]
    fn every_single_bit_of_a_page_or_its_entry_is_put_right() {
        let (good, entry) = (page(), checksum_entry(&page()));
        let mut bad = good.clone();
        for at in (0..good.len() * 8).step_by(37).chain([0, 32_767]) {
            let (byte, bit) = (at / 8, (at % 8) as u32);
            bad[byte] ^= 1 << bit;
            assert_eq!(correct_flipped_bit(&mut bad, entry), Some(FlippedBit::Page { byte, bit }));
            assert!(bad == good, "bit {at}");
        }
        for bit in 0..32 {
            assert_eq!(
                correct_flipped_bit(&mut bad, entry ^ (1 << bit)),
                Some(FlippedBit::Entry(entry))
            );
            assert!(bad == good);
        }
    }

    #[test]
    fn an_inverted_entry_is_understood() {
        // A page whose sum has fewer than two bits, so that its entry is the inverse.
        let mut good = page();
        let target = 1u32 << 9;
        let tail = good.len() - 4;
        good[tail..].fill(0);
        // Four last bytes can give any sum: undo 32 steps from the one that is wanted.
        let mut wanted = !target;
        for _ in 0..32 {
            let carried = wanted & 0x8000_0000 != 0;
            wanted = if carried { ((wanted ^ POLYNOMIAL) << 1) | 1 } else { wanted << 1 };
        }
        let state = !checksum_of(&good[..tail]);
        good[tail..].copy_from_slice(&(wanted ^ state).to_le_bytes());
        assert_eq!((checksum_of(&good), checksum_entry(&good)), (target, !target));
        let mut bad = good.clone();
        bad[1000] ^= 4;
        assert_eq!(
            correct_flipped_bit(&mut bad, checksum_entry(&good)),
            Some(FlippedBit::Page { byte: 1000, bit: 2 })
        );
        assert!(bad == good);
    }

    #[test]
    fn two_bits_are_too_many() {
        let (good, entry) = (page(), checksum_entry(&page()));
        for (one, other) in [(0, 1), (5, 3000), (4000, 4095)] {
            let mut bad = good.clone();
            bad[one] ^= 1;
            bad[other] ^= 0x80;
            let spoilt = bad.clone();
            assert_eq!(correct_flipped_bit(&mut bad, entry), None);
            assert!(bad == spoilt);
        }
    }
}
