//! Iterators over records, with a bounded number in memory.

use crate::catalog::{Catalog, MAX_RECORDS, ScanEntry, Table};
use crate::error::Error;
use crate::namespace::directory::{check_name, parse_entry};
use crate::records::inode::{FileType, Inode, InodeNumber};
use crate::space::extent::{Extent, ExtentRecord};

/// All records of a table, in order.
pub(super) struct RecordIter<'c> {
    catalog: &'c Catalog,
    table: Table,
    /// The key of the next batch, unless all were read.
    from: Option<Vec<u8>>,
    inode: Option<u64>,
    batch: std::vec::IntoIter<ScanEntry>,
}

impl<'c> RecordIter<'c> {
    pub(super) fn new(catalog: &'c Catalog, table: Table) -> RecordIter<'c> {
        RecordIter {
            catalog,
            table,
            from: Some(Vec::new()),
            inode: None,
            batch: Vec::new().into_iter(),
        }
    }

    /// All records of one inode in a table.
    pub(super) fn for_inode(catalog: &'c Catalog, table: Table, inode: u64) -> RecordIter<'c> {
        let from = Some(inode.to_be_bytes().to_vec());
        RecordIter { from, inode: Some(inode), ..RecordIter::new(catalog, table) }
    }
}

impl Iterator for RecordIter<'_> {
    type Item = Result<ScanEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.len() == 0 {
            let from = self.from.take()?;
            match self.catalog.scan_entries(self.table, from, self.inode, MAX_RECORDS) {
                Ok(batch) => {
                    if batch.len() == MAX_RECORDS {
                        self.from = batch.last().map(|last| [&last.key[..], &[0]].concat());
                    }
                    self.batch = batch.into_iter();
                }
                Err(error) => return Some(Err(error)),
            }
        }
        self.batch.next().map(Ok)
    }
}

/// A cursor over inodes, in order.
pub(super) struct InodeCursor<'c> {
    inodes: std::iter::Peekable<RecordIter<'c>>,
}

impl<'c> InodeCursor<'c> {
    pub(super) fn new(catalog: &'c Catalog) -> InodeCursor<'c> {
        InodeCursor { inodes: RecordIter::new(catalog, Table::Inodes).peekable() }
    }

    /// The inode of a number, which must not be below that of the last call.
    pub(super) fn inode(&mut self, number: u64) -> Result<Option<Inode>, Error> {
        loop {
            match self.front()? {
                Some((other, _)) if other < number => drop(self.inodes.next()),
                found => return Ok(found.filter(|(other, _)| *other == number).map(|(_, it)| it)),
            }
        }
    }

    /// Takes the next inode, if its number is not above `number`.
    pub(super) fn next_up_to(&mut self, number: u64) -> Result<Option<(u64, Inode)>, Error> {
        let found = self.front()?.filter(|(other, _)| *other <= number);
        if found.is_some() {
            self.inodes.next();
        }
        Ok(found)
    }

    /// The next inode, without taking it.
    fn front(&mut self) -> Result<Option<(u64, Inode)>, Error> {
        loop {
            match self.inodes.peek() {
                Some(Ok(found)) => {
                    if let Some(found) = inode_of(found) {
                        return Ok(Some(found));
                    }
                }
                Some(Err(_)) => {}
                None => return Ok(None),
            }
            self.inodes.next().transpose()?;
        }
    }
}

/// The inode number at the front of a key, if it is valid.
pub(super) fn number_of(key: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(*key.first_chunk()?);
    InodeNumber::new(number).map(|InodeNumber(number)| number)
}

/// The number and inode of a record, if it is valid.
pub(super) fn inode_of(found: &ScanEntry) -> Option<(u64, Inode)> {
    let value = found.value.as_ref().ok()?;
    let inode = Inode::from_record(value).ok()?;
    (found.key.len() == 8).then_some((number_of(&found.key)?, inode))
}

/// A valid name.
pub(super) struct Name {
    pub(super) directory: u64,
    pub(super) name: Vec<u8>,
    pub(super) inode: u64,
    pub(super) kind: FileType,
}

pub(super) fn name_of(found: ScanEntry) -> Option<Name> {
    let (InodeNumber(inode), kind) = parse_entry(&found.value.ok()?).ok()?;
    let directory = number_of(&found.key)?;
    let name = found.key[8..].to_vec();
    check_name(&name).ok()?;
    Some(Name { directory, name, inode, kind })
}

/// The inode number and extent of a record, if it is valid.
pub(super) fn extent_of(found: &ScanEntry, total_blocks: u64) -> Option<(u64, Extent)> {
    parse_extent(&found.key, found.value.as_ref().ok()?, total_blocks).ok()
}

pub(super) fn parse_extent(
    key: &[u8],
    value: &[u8],
    total_blocks: u64,
) -> Result<(u64, Extent), String> {
    let extent = ExtentRecord::parse(value, total_blocks).map_err(|flaw| flaw.to_string())?;
    match (number_of(key), key.get(8..)) {
        (Some(inode), Some(offset)) if offset == extent.offset.to_be_bytes() => Ok((inode, extent)),
        _ => Err("the record of an extent does not match its key".into()),
    }
}
