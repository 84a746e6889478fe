//! [`Snapshot`]: the state that the last commit left, for all who read until the next one has. Beginning a
//! transaction and finding a table cost several times what a record does.

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
    /// The records of a table, which is found once.
    pub(super) fn table(&self, table: Table) -> Result<&TableReader, TableError> {
        let found = &self.tables[table.index()];
        if let Some(records) = found.get() {
            return Ok(records);
        }
        let records = self.transaction.open_table(table.definition())?;
        Ok(found.get_or_init(|| records))
    }
}

/// The newest snapshot, made when somebody reads.
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

    /// There is a newer state, and pages that only the old one had are wanted.
    pub(super) fn invalidate(&self) {
        *self.0.lock() = None;
    }
}
