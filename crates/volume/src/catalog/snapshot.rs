//! [`Snapshot`]: the state of the last commit, shared by all readers until the next commit.
//! Beginning a transaction and finding a table cost several times as much as reading a record.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use redb::{ReadOnlyTable, ReadTransaction, TableError, TransactionError};

use super::record::Table;
use super::redb_error::RedbError;

type TableReader = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// One state of the catalog.
pub(super) struct Snapshot {
    transaction: ReadTransaction,
    tables: [OnceLock<TableReader>; Table::ALL.len()],
}

impl Snapshot {
    /// The records of a table. The table is looked up once.
    pub(super) fn table(&self, table: Table) -> Result<&TableReader, TableError> {
        let found = &self.tables[table.index()];
        if let Some(records) = found.get() {
            return Ok(records);
        }
        let records = self.transaction.open_table(table.definition())?;
        Ok(found.get_or_init(|| records))
    }
}

/// The newest snapshot, made at the first read.
#[derive(Default)]
pub(super) struct SnapshotCache(Mutex<Option<Arc<Snapshot>>>);

impl SnapshotCache {
    pub(super) fn get(
        &self,
        begin: impl FnOnce() -> Result<ReadTransaction, TransactionError>,
    ) -> Result<Arc<Snapshot>, RedbError> {
        let mut newest = self.0.lock();
        if let Some(snapshot) = &*newest {
            return Ok(snapshot.clone());
        }
        let transaction = begin()?;
        let snapshot = Arc::new(Snapshot { transaction, tables: Default::default() });
        *newest = Some(snapshot.clone());
        Ok(snapshot)
    }

    /// Drops the snapshot: a newer state exists, and redb needs the pages that only the old one
    /// holds.
    pub(super) fn invalidate(&self) {
        *self.0.lock() = None;
    }
}
