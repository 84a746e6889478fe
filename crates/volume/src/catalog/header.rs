//! Page 0 of the catalog's storage. redb uses its first 320 bytes. They lie in one sector, with the
//! storage's length and a checksum over both, so a power cut leaves the old sector or the new one.
//! The block holds two copies in separate sectors, in one write: one bad sector loses nothing. After
//! a cut during this write the newer good copy counts.

use crc_fast::{CrcAlgorithm, checksum as crc_checksum};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Error, ErrorKind};

/// Offset of the flags in redb's header, and the flag that is set while the database is open for
/// writing, and remains set after a power cut. The commit that the header names is whole all the
/// same, since commits have two phases.
pub(super) const FLAGS_OFFSET: usize = 9;
pub(super) const RECOVERY_REQUIRED: u8 = 2;

/// Bytes of page 0 that can be written. The others read as zeros.
const PAGE_0_BYTES: usize = 448;

const MAGIC: [u8; 8] = *b"urcatlog";
/// The byte of page 0 whose lowest bit chooses between redb's two commit slots. It changes with the
/// write that makes a commit take effect, and with no other.
const COMMIT_SLOT_BYTE: usize = FLAGS_OFFSET;

/// A header on the device.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderSector {
    bytes: [u8; PAGE_0_BYTES],
    magic: [u8; 8],
    /// Bytes of the storage.
    length: U64,
    /// Number of headers written.
    sequence: U64,
    /// The last log record that the chosen commit contains.
    checkpoint_lsn: U64,
    spare: [u8; 28],
    /// CRC32C of every byte before it.
    checksum: U32,
}

const SECTOR_BYTES: usize = 512;
const _: () = assert!(size_of::<HeaderSector>() == SECTOR_BYTES);
/// Offsets of the copies in the block.
const COPY_OFFSETS: [usize; 2] = [0, 2048];

/// The content of page 0.
#[derive(Clone)]
pub(super) struct Header {
    bytes: [u8; PAGE_0_BYTES],
    sequence: u64,
    /// The last log record that the current commit contains.
    pub(super) checkpoint_lsn: u64,
    /// The last log record that the next commit will contain.
    pub(super) next_checkpoint_lsn: u64,
    /// Byte offsets of damaged copies in the block. The next write repairs them.
    pub(super) bad_copies: Vec<usize>,
}

impl Default for Header {
    fn default() -> Header {
        Header {
            bytes: [0; PAGE_0_BYTES],
            sequence: 0,
            checkpoint_lsn: 0,
            next_checkpoint_lsn: 0,
            bad_copies: Vec::new(),
        }
    }
}

impl Header {
    /// Copies page 0, or its beginning.
    pub(super) fn copy_to(&self, out: &mut [u8]) {
        let (header, rest) = out.split_at_mut(out.len().min(PAGE_0_BYTES));
        header.copy_from_slice(&self.bytes[..header.len()]);
        rest.fill(0);
    }

    /// Whether the header was written while redb was open for writing, and redb was not closed
    /// after that.
    pub(super) fn was_left_open(&self) -> bool {
        self.bytes[FLAGS_OFFSET] & RECOVERY_REQUIRED != 0
    }

    /// Changes bytes of page 0. [`Self::encode_into`] makes them ready to be written.
    ///
    /// # Errors
    /// `Unsupported` when bytes other than zeros exceed [`PAGE_0_BYTES`].
    pub(super) fn update(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let (inside, behind) = bytes.split_at(PAGE_0_BYTES.saturating_sub(at).min(bytes.len()));
        if behind.iter().any(|byte| *byte != 0) {
            let context = format!("the catalog's first page holds only {PAGE_0_BYTES} bytes");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        if !inside.is_empty() {
            let chosen = self.bytes[COMMIT_SLOT_BYTE] & 1;
            self.bytes[at..at + inside.len()].copy_from_slice(inside);
            if self.bytes[COMMIT_SLOT_BYTE] & 1 != chosen {
                self.checkpoint_lsn = self.next_checkpoint_lsn;
            }
        }
        Ok(())
    }

    /// Encodes the next header into its block, for a storage of `length` bytes.
    pub(super) fn encode_into(&mut self, block: &mut [u8], length: u64) {
        // A crafted header may have the highest number. The next ones have it, too: then the first good copy counts.
        self.sequence = self.sequence.saturating_add(1);
        let mut sector = HeaderSector {
            bytes: self.bytes,
            magic: MAGIC,
            length: length.into(),
            sequence: self.sequence.into(),
            checkpoint_lsn: self.checkpoint_lsn.into(),
            spare: [0; 28],
            checksum: 0.into(),
        };
        sector.checksum = checksum_of(&sector).into();
        for copy in COPY_OFFSETS {
            block[copy..copy + SECTOR_BYTES].copy_from_slice(sector.as_bytes());
        }
    }
}

fn checksum_of(sector: &HeaderSector) -> u32 {
    crc_checksum(CrcAlgorithm::Crc32Iscsi, &sector.as_bytes()[..SECTOR_BYTES - 4]) as u32
}

/// The newer of the good headers in a block, and the storage's length in bytes.
pub(super) fn parse(block: &[u8]) -> Option<(Header, u64)> {
    let mut bad_copies = Vec::new();
    let mut newest: Option<&HeaderSector> = None;
    for copy in COPY_OFFSETS {
        let sector = HeaderSector::ref_from_bytes(block.get(copy..copy + SECTOR_BYTES)?).ok()?;
        if sector.magic != MAGIC || sector.checksum.get() != checksum_of(sector) {
            bad_copies.push(copy);
        } else if newest.is_none_or(|best| best.sequence.get() < sector.sequence.get()) {
            newest = Some(sector);
        }
    }
    let newest = newest?;
    let checkpoint_lsn = newest.checkpoint_lsn.get();
    let sequence = newest.sequence.get();
    let header = Header {
        bytes: newest.bytes,
        sequence,
        checkpoint_lsn,
        next_checkpoint_lsn: checkpoint_lsn,
        bad_copies,
    };
    Some((header, newest.length.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block before a write and after it.
    fn blocks() -> [Vec<u8>; 2] {
        let mut header = Header::default();
        header.update(0, &[7; 320]).unwrap();
        let mut old = vec![0; 4096];
        header.encode_into(&mut old, 12 << 12);
        header.update(0, &[8; 320]).unwrap();
        header.update(320, &[0; 4096 - 320]).unwrap();
        let mut new = old.clone();
        header.encode_into(&mut new, 13 << 12);
        [old, new]
    }

    #[test]
    fn a_header_survives_one_flipped_bit() {
        let [_, block] = blocks();
        for bit in 0..block.len() * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (found, length) = parse(&flipped).unwrap();
            let mut page = [1; 4096];
            found.copy_to(&mut page);
            assert_eq!((&page[..320], length), (&[8; 320][..], 13 << 12), "bit {bit}");
            assert_eq!(page[320..], [0; 4096 - 320]);
            let copy = COPY_OFFSETS
                .into_iter()
                .find(|copy| (*copy..copy + SECTOR_BYTES).contains(&(bit / 8)));
            assert_eq!(found.bad_copies, Vec::from_iter(copy), "bit {bit}");
        }
        let mut both = block;
        both[100] ^= 1;
        both[2148] ^= 1;
        assert!(parse(&both).is_none());
    }

    #[test]
    fn a_torn_write_leaves_the_new_header_if_one_copy_is_written() {
        let [old, new] = blocks();
        for kept in 0..256u32 {
            let mut torn = old.clone();
            for sector in (0..8).filter(|sector| kept >> sector & 1 == 1) {
                let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                torn[range.clone()].copy_from_slice(&new[range]);
            }
            let any = kept & 0b1_0001 != 0;
            assert_eq!(parse(&torn).unwrap().1, if any { 13 << 12 } else { 12 << 12 });
        }
    }

    #[test]
    fn a_header_with_the_highest_sequence_is_followed_by_others() {
        let mut header = Header { sequence: u64::MAX - 1, ..Header::default() };
        for byte in 1..4 {
            header.update(0, &[byte; 320]).unwrap();
            let mut block = vec![0; 4096];
            header.encode_into(&mut block, 12 << 12);
            (header, _) = parse(&block).unwrap();
            assert_eq!((header.bytes[0], header.sequence), (byte, u64::MAX));
        }
    }

    #[test]
    fn bytes_beyond_the_sector_are_refused() {
        assert!(Header::default().update(440, &[1; 9]).is_err());
        assert!(Header::default().update(440, &[1; 8]).is_ok());
        assert!(Header::default().update(1000, &[1]).is_err());
    }

    #[test]
    fn the_checkpoint_lsn_changes_only_with_the_commit_slot() {
        let mut header = Header::default();
        let written = |header: &mut Header| {
            let mut block = vec![0; 4096];
            header.encode_into(&mut block, 1 << 20);
            parse(&block).unwrap().0.checkpoint_lsn
        };
        header.next_checkpoint_lsn = 7;
        header.update(0, &[0; 320]).unwrap();
        header.update(64, &[1; 256]).unwrap();
        // Other bits of the same byte.
        header.update(COMMIT_SLOT_BYTE, &[6]).unwrap();
        assert_eq!((header.checkpoint_lsn, written(&mut header)), (0, 0));
        header.update(COMMIT_SLOT_BYTE, &[1]).unwrap();
        assert_eq!((header.checkpoint_lsn, written(&mut header)), (7, 7));
        header.next_checkpoint_lsn = 9;
        header.update(0, &[1; 320]).unwrap();
        assert_eq!(header.checkpoint_lsn, 7);
        header.update(0, &[2; 320]).unwrap();
        assert_eq!((header.checkpoint_lsn, written(&mut header)), (9, 9));
    }
}
