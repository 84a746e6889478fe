//! Keys of the catalog's records, and the checksum that each value carries. redb verifies nothing
//! on read; this checksum detects a changed record.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};
use redb::TableDefinition;

use crate::error::Error;

/// The catalog's tables. Their numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Table {
    /// inode -> attributes
    Inodes = 1,
    /// directory's inode, name -> inode and kind
    Names = 2,
    /// inode, first block in the file -> extent
    Extents = 3,
    /// region -> free blocks
    Regions = 4,
    /// inode, name -> value
    Xattrs = 5,
    /// inodes without a name that are still open or not yet reclaimed
    Orphans = 6,
    /// name -> counters and other state of the volume
    State = 7,
}

impl Table {
    pub(crate) const ALL: [Table; 7] = [
        Table::Inodes,
        Table::Names,
        Table::Extents,
        Table::Regions,
        Table::Xattrs,
        Table::Orphans,
        Table::State,
    ];

    /// Index in [`Self::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize - 1
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Table::Inodes => "inodes",
            Table::Names => "names",
            Table::Extents => "extents",
            Table::Regions => "regions",
            Table::Xattrs => "xattrs",
            Table::Orphans => "orphans",
            Table::State => "state",
        }
    }

    pub(super) fn definition(self) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
        TableDefinition::new(self.name())
    }
}

/// The key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    Inode(u64),
    /// Directory and name.
    Name(u64, &'a [u8]),
    /// Inode, and first block of the extent in the file.
    Extent(u64, u64),
    Region(u32),
    /// Inode and attribute name.
    Xattr(u64, &'a [u8]),
    Orphan(u64),
    State(&'a [u8]),
}

impl Key<'_> {
    pub(crate) fn table(&self) -> Table {
        match self {
            Key::Inode(_) => Table::Inodes,
            Key::Name(..) => Table::Names,
            Key::Extent(..) => Table::Extents,
            Key::Region(_) => Table::Regions,
            Key::Xattr(..) => Table::Xattrs,
            Key::Orphan(_) => Table::Orphans,
            Key::State(_) => Table::State,
        }
    }

    /// The inode that the record belongs to. `None` for regions and state.
    pub(crate) fn inode(&self) -> Option<u64> {
        match *self {
            Key::Inode(inode)
            | Key::Name(inode, _)
            | Key::Extent(inode, _)
            | Key::Xattr(inode, _)
            | Key::Orphan(inode) => Some(inode),
            Key::Region(_) | Key::State(_) => None,
        }
    }

    /// The key's bytes. Numbers are big-endian, so that bytes sort as the numbers do.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match *self {
            Key::Inode(inode) | Key::Orphan(inode) => inode.to_be_bytes().to_vec(),
            Key::Name(inode, name) | Key::Xattr(inode, name) => {
                [&inode.to_be_bytes()[..], name].concat()
            }
            Key::Extent(inode, block) => [inode.to_be_bytes(), block.to_be_bytes()].concat(),
            Key::Region(region) => region.to_be_bytes().to_vec(),
            Key::State(name) => name.to_vec(),
        }
    }
}

const CHECKSUM_BYTES: usize = 4;

/// CRC32C over the table's number, the key and the value.
fn checksum_of(table: Table, key: &[u8], value: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&[table as u8]);
    digest.update(key);
    digest.update(value);
    (digest.finalize() as u32).to_le_bytes()
}

/// A value as it is stored: checksum, then value.
pub(super) fn with_checksum(table: Table, key: &[u8], value: &[u8]) -> Vec<u8> {
    [&checksum_of(table, key, value)[..], value].concat()
}

/// The value in the bytes stored under `key`.
///
/// # Errors
/// `Damaged` when the checksum does not match.
pub(super) fn verified_value<'a>(
    table: Table,
    key: &[u8],
    stored: &'a [u8],
) -> Result<&'a [u8], Error> {
    match stored.split_at_checked(CHECKSUM_BYTES) {
        Some((checksum, value)) if checksum == checksum_of(table, key, value) => Ok(value),
        _ => Err(Error::damaged(format!(
            "the catalog's record {} {} has a wrong checksum",
            table.name(),
            Hex(key)
        ))),
    }
}

/// A key in hexadecimal, for messages.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_their_numbers_and_names() {
        let sorted = [
            Key::Name(1, b""),
            Key::Name(1, b"\xff\xff"),
            Key::Name(2, b"a"),
            Key::Name(255, b"a"),
            Key::Name(256, b"a"),
            Key::Name(256, b"a\0"),
        ];
        assert!(sorted.windows(2).all(|pair| pair[0].bytes() < pair[1].bytes()));
        assert!(Key::Extent(1, u64::MAX).bytes() < Key::Extent(2, 0).bytes());
        assert!(Key::Region(255).bytes() < Key::Region(256).bytes());
    }

    #[test]
    fn the_checksum_detects_a_changed_table_key_or_value() {
        let stored = with_checksum(Table::Names, b"key", b"value");
        assert_eq!(verified_value(Table::Names, b"key", &stored).unwrap(), b"value");
        assert!(verified_value(Table::Xattrs, b"key", &stored).is_err());
        let error = verified_value(Table::Names, b"kez", &stored).unwrap_err();
        assert!(error.to_string().contains("names 6b657a"), "{error}");
        for bit in 0..stored.len() * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(verified_value(Table::Names, b"key", &flipped).is_err(), "bit {bit}");
        }
        for length in 0..stored.len() {
            assert!(verified_value(Table::Names, b"key", &stored[..length]).is_err());
        }
    }
}
