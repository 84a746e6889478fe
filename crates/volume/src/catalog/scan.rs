//! Records in the order of their keys, a bounded number a call. The next call continues after the
//! last key.

use redb::ReadableTable;

use super::catalog::Catalog;
use super::record::{self, Table};
use crate::error::Error;

/// The most records that one call returns.
pub(crate) const MAX_RECORDS: usize = 4096;

/// A record's key and value.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// A record's key, and its value or the error of reading it.
#[derive(Debug)]
pub(crate) struct ScanEntry {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Result<Vec<u8>, Error>,
}

impl Catalog {
    /// Returns records from a key on, at most `limit` and [`MAX_RECORDS`]; only those of one inode,
    /// if given.
    ///
    /// # Errors
    /// As [`Catalog::get`], for any record in the range.
    pub(crate) fn scan(
        &self,
        table: Table,
        from: Vec<u8>,
        inode: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
        let found = self.scan_entries(table, from, inode, limit)?;
        found.into_iter().map(|ScanEntry { key, value }| Ok((key, value?))).collect()
    }

    /// As [`Self::scan`], but a damaged record does not hide the ones after it.
    ///
    /// # Errors
    /// Those of pages: nothing after a damaged page is found; the device's.
    pub(crate) fn scan_entries(
        &self,
        table: Table,
        from: Vec<u8>,
        inode: Option<u64>,
        limit: usize,
    ) -> Result<Vec<ScanEntry>, Error> {
        let prefix = inode.map_or(Vec::new(), |inode| inode.to_be_bytes().to_vec());
        self.scan_with_prefix(table, &prefix, &from, limit)
    }

    /// As [`Self::scan_entries`], only records whose keys begin with `prefix`.
    ///
    /// # Errors
    /// As [`Self::scan_entries`].
    pub(crate) fn scan_with_prefix(
        &self,
        table: Table,
        prefix: &[u8],
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<ScanEntry>, Error> {
        // The log first, then redb: a checkpoint drops a record from the log only when redb has it.
        let logged = self.logged.lock().range_with_prefix(table, from, prefix);
        self.read(|snapshot| {
            let mut found = Vec::new();
            let mut add = |key: &[u8], stored: &[u8]| {
                let value = record::verified_value(table, key, stored).map(<[u8]>::to_vec);
                found.push(ScanEntry { key: key.to_vec(), value });
                found.len() == limit.min(MAX_RECORDS)
            };
            let mut logged = logged.iter().peekable();
            for record in snapshot.table(table)?.range(from..)? {
                let (key, stored) = record?;
                let key = key.value();
                if !key.starts_with(prefix) {
                    break;
                }
                while let Some((newer, stored)) = logged.next_if(|(newer, _)| &newer[..] < key) {
                    if stored.as_ref().is_some_and(|stored| add(newer, stored)) {
                        return Ok(found);
                    }
                }
                let is_full = match logged.next_if(|(newer, _)| newer == key) {
                    Some((_, Some(newer))) => add(key, newer),
                    Some((_, None)) => false,
                    None => add(key, stored.value()),
                };
                if is_full {
                    return Ok(found);
                }
            }
            for (key, stored) in logged {
                if stored.as_ref().is_some_and(|stored| add(key, stored)) {
                    break;
                }
            }
            Ok(found)
        })
    }

    /// A key that is not less than any key of a table: mostly its last key.
    ///
    /// # Errors
    /// As [`Self::scan_entries`].
    pub(crate) fn last_key(&self, table: Table) -> Result<Option<Vec<u8>>, Error> {
        let logged = self.logged.lock().last_key(table);
        self.read(|snapshot| {
            let last = snapshot.table(table)?.last()?.map(|(key, _)| key.value().to_vec());
            Ok(last.max(logged.clone()))
        })
    }
}
