//! [`View`]: the state that the last commit left, for all who read until the next one has. Beginning a
//! transaction and finding a table cost several times what a record does.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use redb::{ReadOnlyTable, ReadTransaction, TableError, TransactionError};

use super::record::Table;
use super::redb_error::Trouble;

type Records = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// One state of the catalog.
pub(super) struct View {
    transaction: ReadTransaction,
    tables: [OnceLock<Records>; Table::ALL.len()],
}

impl View {
    /// The records of a table, which is found once.
    pub(super) fn table(&self, table: Table) -> Result<&Records, TableError> {
        let found = &self.tables[table.index()];
        if let Some(records) = found.get() {
            return Ok(records);
        }
        let records = self.transaction.open_table(table.definition())?;
        Ok(found.get_or_init(|| records))
    }
}

/// The newest view, made when somebody reads.
#[derive(Default)]
pub(super) struct Newest(Mutex<Option<Arc<View>>>);

impl Newest {
    pub(super) fn get(
        &self,
        begin: impl FnOnce() -> Result<ReadTransaction, TransactionError>,
    ) -> Result<Arc<View>, Trouble> {
        let mut newest = self.0.lock();
        if let Some(view) = &*newest {
            return Ok(view.clone());
        }
        let transaction = begin()?;
        let view = Arc::new(View { transaction, tables: Default::default() });
        *newest = Some(view.clone());
        Ok(view)
    }

    /// There is a newer state, and pages that only the old one had are wanted.
    pub(super) fn pass(&self) {
        *self.0.lock() = None;
    }
}
