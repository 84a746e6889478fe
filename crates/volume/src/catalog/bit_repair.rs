//! Corrects one flipped bit of a page. The checksum of a page with one flipped bit differs from the
//! right one in a way that identifies the bit. Does no I/O.
//!
//! About one in 130,000 pages with more damage looks as if only one bit had flipped. The checksums
//! of the records detect that. So reads use a corrected page and report it, but nothing is written
//! back before the whole catalog is verified.

use std::fmt;

use super::checksum::{UNWRITTEN, checksum_entry};

/// CRC32C's polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A damaged page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadPage {
    pub(crate) page: u64,
    pub(crate) block: u64,
    /// The block of its checksum.
    pub(crate) checksum_block: u64,
    pub(crate) damage: PageDamage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageDamage {
    /// One bit of the page, which was corrected.
    FlippedBit { byte: usize, bit: u32 },
    /// One bit of its checksum.
    FlippedChecksumBit,
    /// Its checksum is lost. redb's own checksum says that the page is good.
    ChecksumLost,
    /// More damage than can be corrected.
    Lost(String),
    /// The device failed to read it. The page may be good.
    Unreadable(String),
}

impl fmt::Display for BadPage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (block, checksum_block) = (self.block, self.checksum_block);
        match &self.damage {
            PageDamage::FlippedBit { byte, bit } => write!(
                out,
                "catalog block {block}: bit {bit} of byte {byte} has flipped, and is corrected on read"
            ),
            PageDamage::FlippedChecksumBit => write!(
                out,
                "catalog block {checksum_block}: a bit in the checksum of block {block} has flipped"
            ),
            PageDamage::ChecksumLost => write!(
                out,
                "catalog block {checksum_block}: the checksum of block {block} is lost; the block is good"
            ),
            PageDamage::Lost(why) => write!(out, "catalog block {block} is lost: {why}"),
            PageDamage::Unreadable(why) => {
                write!(out, "catalog block {block} cannot be read: {why}")
            }
        }
    }
}

/// A flipped bit, by where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlippedBit {
    /// In the page. It was corrected.
    Page { byte: usize, bit: u32 },
    /// In the page's entry, which should have this value.
    Entry(u32),
}

/// Corrects the one bit by which a page and its entry do not match. `None` if more bits differ.
pub(super) fn correct_flipped_bit(page: &mut [u8], entry: u32) -> Option<FlippedBit> {
    let found = checksum_entry(page);
    if (found ^ entry).count_ones() == 1 {
        return Some(FlippedBit::Entry(found));
    }
    // An entry is a checksum or its inverse; see `checksum_entry`.
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

/// The bit that changes a checksum by `change`, in a page of `length` bytes. Every bit after the
/// flipped one shifts its effect on the checksum by one place.
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
    fn every_single_bit_of_a_page_or_its_entry_is_corrected() {
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
    fn a_page_with_an_inverted_entry_is_corrected() {
        // A page whose checksum has fewer than two bits set, so that its entry is the inverse.
        let mut good = page();
        let target = 1u32 << 9;
        let tail = good.len() - 4;
        good[tail..].fill(0);
        // Four last bytes can produce any checksum: undo 32 steps from the target.
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
    fn two_flipped_bits_are_not_corrected() {
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
