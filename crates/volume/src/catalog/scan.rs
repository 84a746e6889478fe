//! Records in order, a bounded number a call: the next call goes on behind the last.

use super::Catalog;
use super::record::{self, Key, Table};
use super::trouble::Trouble;
use crate::error::Error;

/// The most records one call answers.
pub(crate) const MAX_RECORDS: usize = 4096;

/// A record's key and value.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

impl Catalog {
    /// Inodes without a name, from `first` on.
    ///
    /// # Errors
    /// As [`Catalog::get`], for any record it meets; so all below.
    pub(crate) fn orphans(&self, first: u64, limit: usize) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let found = self.scan(Table::Orphans, Key::Orphan(first).bytes(), None, limit)?;
        found
            .into_iter()
            .map(|(key, value)| Ok((u64::from_be_bytes(number(&key)?), value)))
            .collect()
    }

    /// Regions from `first` on.
    ///
    /// # Errors
    /// See [`Self::orphans`].
    pub(crate) fn regions(&self, first: u32, limit: usize) -> Result<Vec<(u32, Vec<u8>)>, Error> {
        let found = self.scan(Table::Regions, Key::Region(first).bytes(), None, limit)?;
        found
            .into_iter()
            .map(|(key, value)| Ok((u32::from_be_bytes(number(&key)?), value)))
            .collect()
    }

    /// Records from a key on, at most `limit` and [`MAX_RECORDS`]; of one inode, if given.
    pub(crate) fn scan(
        &self,
        table: Table,
        from: Vec<u8>,
        inode: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
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

/// # Errors
/// `Damaged` for a key of another length: its sum was right, but nobody writes such a one.
fn number<const N: usize>(key: &[u8]) -> Result<[u8; N], Error> {
    key.try_into().map_err(|_| {
        Error::damaged(format!("the catalog has a key of {} bytes instead of {N}", key.len()))
    })
}
