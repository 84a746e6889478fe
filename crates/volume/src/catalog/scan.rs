//! Records in order, a bounded number a call: the next call goes on behind the last.

use super::Catalog;
use super::record::{self, Key, Table};
use super::trouble::Trouble;
use crate::error::Error;

/// The most records one call answers.
pub(crate) const MAX_RECORDS: usize = 4096;

impl Catalog {
    /// Inodes from `first` on.
    ///
    /// # Errors
    /// As [`Catalog::get`], for any record it meets; so all below.
    pub(crate) fn inodes(&self, first: u64, limit: usize) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        numbered(self.scan(Table::Inodes, Key::Inode(first).bytes(), None, limit)?)
    }

    /// Inodes without a name, from `first` on.
    ///
    /// # Errors
    /// See [`Self::inodes`].
    pub(crate) fn orphans(&self, first: u64, limit: usize) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        numbered(self.scan(Table::Orphans, Key::Orphan(first).bytes(), None, limit)?)
    }

    /// Regions from `first` on.
    ///
    /// # Errors
    /// See [`Self::inodes`].
    pub(crate) fn regions(&self, first: u32, limit: usize) -> Result<Vec<(u32, Vec<u8>)>, Error> {
        let found = self.scan(Table::Regions, Key::Region(first).bytes(), None, limit)?;
        found
            .into_iter()
            .map(|(key, value)| Ok((u32::from_be_bytes(number(&key)?), value)))
            .collect()
    }

    /// Extents of an inode, from the record of block `first` of the file on.
    ///
    /// # Errors
    /// See [`Self::inodes`].
    pub(crate) fn extents(
        &self,
        inode: u64,
        first: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let from = Key::Extent(inode, first).bytes();
        let found = self.scan(Table::Extents, from, Some(inode), limit)?;
        found
            .into_iter()
            .map(|(key, value)| Ok((u64::from_be_bytes(number(&key[8..])?), value)))
            .collect()
    }

    /// Names in a directory, behind `after` if given, in the order of their bytes.
    ///
    /// # Errors
    /// See [`Self::inodes`].
    pub(crate) fn names(
        &self,
        directory: u64,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.named(Table::Names, directory, after, limit)
    }

    /// Extended attributes of an inode, behind `after` if given, in the order of their names.
    ///
    /// # Errors
    /// See [`Self::inodes`].
    pub(crate) fn xattrs(
        &self,
        inode: u64,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.named(Table::Xattrs, inode, after, limit)
    }

    fn named(
        &self,
        table: Table,
        inode: u64,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let mut from = Key::Name(inode, after.unwrap_or_default()).bytes();
        if after.is_some() {
            // The least name behind it.
            from.push(0);
        }
        let found = self.scan(table, from, Some(inode), limit)?;
        Ok(found.into_iter().map(|(mut key, value)| (key.split_off(8), value)).collect())
    }

    /// Records from a key on, at most `limit` and [`MAX_RECORDS`]; of one inode, if given.
    pub(crate) fn scan(
        &self,
        table: Table,
        from: Vec<u8>,
        inode: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let prefix = inode.map(u64::to_be_bytes);
        self.read(|transaction| {
            let records = transaction.open_table(table.definition())?;
            let mut found = Vec::new();
            for record in records.range(from.as_slice()..)?.take(limit.min(MAX_RECORDS)) {
                let (key, stored) = record?;
                let key = key.value();
                if prefix.is_some_and(|prefix| !key.starts_with(&prefix)) {
                    break;
                }
                let value = record::open(table, key, stored.value()).map_err(Trouble::Mine)?;
                found.push((key.to_vec(), value.to_vec()));
            }
            Ok(found)
        })
    }
}

fn numbered(found: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    found.into_iter().map(|(key, value)| Ok((u64::from_be_bytes(number(&key)?), value))).collect()
}

/// # Errors
/// `Damaged` for a key of another length: its sum was right, but nobody writes such a one.
fn number<const N: usize>(key: &[u8]) -> Result<[u8; N], Error> {
    key.try_into().map_err(|_| {
        Error::damaged(format!("the catalog has a key of {} bytes instead of {N}", key.len()))
    })
}
