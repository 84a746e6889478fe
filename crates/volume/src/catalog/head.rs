//! Page 0 of the catalog's storage, of which redb uses the first 320 bytes: they lie in one sector,
//! with the storage's length and a checksum over both, so that a power cut leaves the old or the
//! new one.

use crc_fast::{CrcAlgorithm, checksum};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Error, ErrorKind};

/// Bytes of page 0 that can be written; the others read as zeros.
const ROOM: usize = 448;

const MAGIC: [u8; 8] = *b"urcatlog";

/// A head as it lies at the beginning of its block.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Sector {
    bytes: [u8; ROOM],
    magic: [u8; 8],
    /// Bytes of the storage.
    length: U64,
    spare: [u8; 44],
    /// CRC32C of every byte before it.
    sum: U32,
}

const SECTOR: usize = 512;
const _: () = assert!(size_of::<Sector>() == SECTOR);

/// What redb has in page 0.
#[derive(Clone)]
pub(super) struct Head([u8; ROOM]);

impl Default for Head {
    fn default() -> Head {
        Head([0; ROOM])
    }
}

impl Head {
    /// Fills in a page, or its beginning.
    pub(super) fn read(&self, out: &mut [u8]) {
        let (head, rest) = out.split_at_mut(out.len().min(ROOM));
        head.copy_from_slice(&self.0[..head.len()]);
        rest.fill(0);
    }

    /// # Errors
    /// When anything but zeros would lie behind the room there is.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let (inside, behind) = bytes.split_at(ROOM.saturating_sub(at).min(bytes.len()));
        if behind.iter().any(|byte| *byte != 0) {
            let context = format!("the catalog's first page has room for {ROOM} bytes only");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        if !inside.is_empty() {
            self.0[at..at + inside.len()].copy_from_slice(inside);
        }
        Ok(())
    }

    /// Its sector, for a storage of `length` bytes.
    pub(super) fn sector(&self, length: u64) -> [u8; SECTOR] {
        let mut sector = Sector {
            bytes: self.0,
            magic: MAGIC,
            length: length.into(),
            spare: [0; 44],
            sum: 0.into(),
        };
        sector.sum = sum_of(&sector).into();
        let mut bytes = [0; SECTOR];
        bytes.copy_from_slice(sector.as_bytes());
        bytes
    }
}

fn sum_of(sector: &Sector) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, &sector.as_bytes()[..SECTOR - 4]) as u32
}

/// The head at the beginning of `block`, and the storage's length in bytes.
pub(super) fn parse(block: &[u8]) -> Option<(Head, u64)> {
    let sector = Sector::ref_from_prefix(block).ok()?.0;
    let good = sector.magic == MAGIC && sector.sum.get() == sum_of(sector);
    good.then(|| (Head(sector.bytes), sector.length.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back_and_a_flipped_bit_does_not() {
        let mut head = Head::default();
        head.write(0, &[7; 320]).unwrap();
        head.write(320, &[0; 4096 - 320]).unwrap();
        let sector = head.sector(12 << 12);
        let (found, length) = parse(&sector).unwrap();
        assert_eq!((found.0, length), (head.0, 12 << 12));
        let mut page = [1; 4096];
        found.read(&mut page);
        assert_eq!(page[..320], [7; 320]);
        assert_eq!(page[320..], [0; 4096 - 320]);
        for bit in 0..SECTOR * 8 {
            let mut flipped = sector;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&flipped).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn what_has_no_room_is_refused() {
        assert!(Head::default().write(440, &[1; 9]).is_err());
        assert!(Head::default().write(440, &[1; 8]).is_ok());
        assert!(Head::default().write(1000, &[1]).is_err());
    }
}
