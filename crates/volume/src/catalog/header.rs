//! Page 0 of the catalog's storage, of which redb uses the first 320 bytes: they lie in one sector,
//! with the storage's length and a checksum over both, so that a power cut leaves the old or the
//! new one. Its block holds it twice, in sectors apart, written together: one bad sector costs
//! nothing. After a cut between the two the newer holds.

use crc_fast::{CrcAlgorithm, checksum as crc_checksum};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Error, ErrorKind};

/// Where redb's header has its flags, and the one that is set while somebody writes, and stays so after a
/// power cut. The commit that the header names is whole all the same, since commits are of two phases.
pub(super) const FLAGS: usize = 9;
pub(super) const RECOVERY_REQUIRED: u8 = 2;

/// Bytes of page 0 that can be written; the others read as zeros.
const PAGE_0_BYTES: usize = 448;

const MAGIC: [u8; 8] = *b"urcatlog";
/// The byte of page 0 whose lowest bit chooses between redb's two commit slots: it changes with the write
/// that makes a commit hold, and with no other.
const COMMIT_SLOT_BYTE: usize = FLAGS;

/// A header as it lies at the beginning of its block.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderSector {
    bytes: [u8; PAGE_0_BYTES],
    magic: [u8; 8],
    /// Bytes of the storage.
    length: U64,
    /// Counts the writes of a header.
    sequence: U64,
    /// The last record of the log that the chosen commit has.
    log: U64,
    spare: [u8; 28],
    /// CRC32C of every byte before it.
    checksum: U32,
}

const SECTOR_BYTES: usize = 512;
const _: () = assert!(size_of::<HeaderSector>() == SECTOR_BYTES);
/// Where the copies lie in the block.
const COPY_OFFSETS: [usize; 2] = [0, 2048];

/// What redb has in page 0.
#[derive(Clone)]
pub(super) struct Header {
    bytes: [u8; PAGE_0_BYTES],
    sequence: u64,
    /// The last record of the log that the commit which holds has.
    pub(super) log_number: u64,
    /// And the next one that comes to hold.
    pub(super) next_log_number: u64,
    /// Copies that were found bad, in bytes from the block's beginning; the next write mends them.
    pub(super) bad_copies: Vec<usize>,
}

impl Default for Header {
    fn default() -> Header {
        Header {
            bytes: [0; PAGE_0_BYTES],
            sequence: 0,
            log_number: 0,
            next_log_number: 0,
            bad_copies: Vec::new(),
        }
    }
}

impl Header {
    /// Fills in a page, or its beginning.
    pub(super) fn read(&self, out: &mut [u8]) {
        let (header, rest) = out.split_at_mut(out.len().min(PAGE_0_BYTES));
        header.copy_from_slice(&self.bytes[..header.len()]);
        rest.fill(0);
    }

    /// Whether redb was open for writing when it was written, and so was not closed after that.
    pub(super) fn was_left_open(&self) -> bool {
        self.bytes[FLAGS] & RECOVERY_REQUIRED != 0
    }

    /// # Errors
    /// When anything but zeros would lie behind the room there is.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let (inside, behind) = bytes.split_at(PAGE_0_BYTES.saturating_sub(at).min(bytes.len()));
        if behind.iter().any(|byte| *byte != 0) {
            let context =
                format!("the catalog's first page has room for {PAGE_0_BYTES} bytes only");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        if !inside.is_empty() {
            let chosen = self.bytes[COMMIT_SLOT_BYTE] & 1;
            self.bytes[at..at + inside.len()].copy_from_slice(inside);
            if self.bytes[COMMIT_SLOT_BYTE] & 1 != chosen {
                self.log_number = self.next_log_number;
            }
        }
        Ok(())
    }

    /// Puts the next header into its block, for a storage of `length` bytes.
    pub(super) fn encode_into(&mut self, block: &mut [u8], length: u64) {
        self.sequence += 1;
        let mut sector = HeaderSector {
            bytes: self.bytes,
            magic: MAGIC,
            length: length.into(),
            sequence: self.sequence.into(),
            log: self.log_number.into(),
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

/// The newer of the good heads in a block, and the storage's length in bytes.
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
    let log_number = newest.log.get();
    let sequence = newest.sequence.get();
    let header = Header {
        bytes: newest.bytes,
        sequence,
        log_number,
        next_log_number: log_number,
        bad_copies,
    };
    Some((header, newest.length.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block as it was before a write and after it.
    fn blocks() -> [Vec<u8>; 2] {
        let mut header = Header::default();
        header.write(0, &[7; 320]).unwrap();
        let mut old = vec![0; 4096];
        header.encode_into(&mut old, 12 << 12);
        header.write(0, &[8; 320]).unwrap();
        header.write(320, &[0; 4096 - 320]).unwrap();
        let mut new = old.clone();
        header.encode_into(&mut new, 13 << 12);
        [old, new]
    }

    #[test]
    fn a_head_comes_back_though_a_bit_flipped() {
        let [_, block] = blocks();
        for bit in 0..block.len() * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (found, length) = parse(&flipped).unwrap();
            let mut page = [1; 4096];
            found.read(&mut page);
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
    fn a_torn_write_leaves_the_new_head_if_any_of_it_came() {
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
    fn what_has_no_room_is_refused() {
        assert!(Header::default().write(440, &[1; 9]).is_err());
        assert!(Header::default().write(440, &[1; 8]).is_ok());
        assert!(Header::default().write(1000, &[1]).is_err());
    }

    #[test]
    fn what_the_log_is_taken_up_to_changes_with_the_choice_of_a_commit_only() {
        let mut header = Header::default();
        let written = |header: &mut Header| {
            let mut block = vec![0; 4096];
            header.encode_into(&mut block, 1 << 20);
            parse(&block).unwrap().0.log_number
        };
        header.next_log_number = 7;
        header.write(0, &[0; 320]).unwrap();
        header.write(64, &[1; 256]).unwrap();
        // Other bits of the same byte.
        header.write(COMMIT_SLOT_BYTE, &[6]).unwrap();
        assert_eq!((header.log_number, written(&mut header)), (0, 0));
        header.write(COMMIT_SLOT_BYTE, &[1]).unwrap();
        assert_eq!((header.log_number, written(&mut header)), (7, 7));
        header.next_log_number = 9;
        header.write(0, &[1; 320]).unwrap();
        assert_eq!(header.log_number, 7);
        header.write(0, &[2; 320]).unwrap();
        assert_eq!((header.log_number, written(&mut header)), (9, 9));
    }
}
