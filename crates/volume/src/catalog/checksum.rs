//! Checksums of catalog pages: each page has an entry in its group's block of checksums.

use crc_fast::{CrcAlgorithm, checksum};

/// The entry of a page that was never written.
pub(super) const UNWRITTEN: u32 = 0;

/// A page's entry: its CRC32C, inverted if one flipped bit could turn it into [`UNWRITTEN`].
pub(super) fn checksum_entry(page: &[u8]) -> u32 {
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, page) as u32;
    if sum.count_ones() < 2 { !sum } else { sum }
}
