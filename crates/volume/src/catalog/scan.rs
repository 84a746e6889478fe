//! Records in order, a bounded number a call: the next call goes on behind the last.

use redb::ReadableTable;

use super::Catalog;
use super::record::{self, Table};
use crate::error::Error;

/// The most records one call answers.
pub(crate) const MAX_RECORDS: usize = 4096;

/// A record's key and value.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// A record, or what is wrong with it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Result<Vec<u8>, Error>,
}

impl Catalog {
    /// Records from a key on, at most `limit` and [`MAX_RECORDS`]; of one inode, if given.
    ///
    /// # Errors
    /// As [`Catalog::get`], for any record it meets.
    pub(crate) fn scan(
        &self,
        table: Table,
        from: Vec<u8>,
        inode: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
        let found = self.scan_each(table, from, inode, limit)?;
        found.into_iter().map(|Found { key, value }| Ok((key, value?))).collect()
    }

    /// The same, and a damaged record does not hide those behind it.
    ///
    /// # Errors
    /// Those of pages, behind which nothing is found; the device's.
    pub(crate) fn scan_each(
        &self,
        table: Table,
        from: Vec<u8>,
        inode: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Found>, Error> {
        let prefix = inode.map(u64::to_be_bytes);
        self.read(|view| {
            let records = view.table(table)?;
            let mut found = Vec::new();
            for record in records.range(from.as_slice()..)?.take(limit.min(MAX_RECORDS)) {
                let (key, stored) = record?;
                let key = key.value();
                if prefix.is_some_and(|prefix| !key.starts_with(&prefix)) {
                    break;
                }
                let value = record::open(table, key, stored.value()).map(<[u8]>::to_vec);
                found.push(Found { key: key.to_vec(), value });
            }
            Ok(found)
        })
    }

    /// The last key of a table.
    ///
    /// # Errors
    /// As [`Self::scan_each`].
    pub(crate) fn last_key(&self, table: Table) -> Result<Option<Vec<u8>>, Error> {
        self.read(|view| Ok(view.table(table)?.last()?.map(|(key, _)| key.value().to_vec())))
    }
}
