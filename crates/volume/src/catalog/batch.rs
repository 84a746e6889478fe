//! Changes to the catalog that happen together, and their application to redb.

use redb::{Database, WriteTransaction};

use super::page_budget::{BatchSize, Reserve, leaves_reserve};
use super::record::{Key, Table, with_checksum};
use super::redb_error::RedbError;
use super::store::Store;
use crate::error::{Error, ErrorKind};

/// Puts and deletes, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    changes: Vec<Change>,
    reserve: Reserve,
    /// Creates all tables, so that readers find them.
    creates_tables: bool,
}

#[derive(Clone, Debug)]
struct Change {
    table: Table,
    key: Vec<u8>,
    /// The value with its checksum; `None` deletes.
    stored: Option<Vec<u8>>,
}

impl Batch {
    /// Sets a record, whether or not it exists.
    pub(crate) fn put(&mut self, key: Key<'_>, value: &[u8]) {
        let (table, bytes) = (key.table(), key.bytes());
        let stored = Some(with_checksum(table, &bytes, value));
        self.changes.push(Change { table, key: bytes, stored });
    }

    /// Deletes a record if it exists.
    #[cfg(test)]
    pub(crate) fn delete(&mut self, key: Key<'_>) {
        self.changes.push(Change { table: key.table(), key: key.bytes(), stored: None });
    }

    /// Sets a record with a wrong checksum.
    #[cfg(test)]
    pub(crate) fn put_with_wrong_sum(&mut self, key: Key<'_>, value: &[u8]) {
        let (table, bytes) = (key.table(), key.bytes());
        let mut stored = with_checksum(table, &bytes, value);
        stored[0] ^= 1;
        self.changes.push(Change { table, key: bytes, stored: Some(stored) });
    }

    /// Sets or deletes a record by the bytes of its key.
    pub(crate) fn change(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        let stored = value.map(|value| with_checksum(table, key, value));
        self.changes.push(Change { table, key: key.to_vec(), stored });
    }

    /// As [`Self::change`], with a value that already carries its checksum.
    pub(super) fn set_stored(&mut self, table: Table, key: &[u8], stored: Option<Vec<u8>>) {
        self.changes.push(Change { table, key: key.to_vec(), stored });
    }

    /// Appends the changes of another batch, and takes over its reserve.
    pub(super) fn append(&mut self, next: &Batch) {
        self.changes.extend_from_slice(&next.changes);
        self.reserve = next.reserve;
        self.creates_tables |= next.creates_tables;
    }

    /// All changes, in order. Values carry their checksums.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Table, &[u8], Option<&[u8]>)> {
        self.changes.iter().map(|change| (change.table, &change.key[..], change.stored.as_deref()))
    }

    pub(crate) fn size(&self) -> BatchSize {
        let bytes = |change: &Change| change.key.len() + change.stored.as_ref().map_or(0, Vec::len);
        BatchSize {
            changes: self.changes.len() as u64,
            bytes: self.changes.iter().map(|change| bytes(change) as u64).sum(),
        }
    }

    /// Sets what the commit leaves free.
    pub(crate) fn set_reserve(&mut self, reserve: Reserve) {
        self.reserve = reserve;
    }

    pub(super) fn creating_tables() -> Batch {
        Batch { creates_tables: true, ..Batch::default() }
    }
}

/// Applies a batch in one transaction, which is durable when this returns. An error before the
/// commit undoes it.
///
/// Quick repair: each commit stores which pages are free. So opening after a crash reads that and
/// not every page. Quick repair commits in two phases, which the store's checksums rely on anyway.
pub(super) fn apply(database: &Database, store: &Store, batch: &Batch) -> Result<(), RedbError> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    let fits = apply_changes(&transaction, store, batch)?
        && leaves_reserve(&transaction, store, batch.size(), batch.reserve)?;
    if fits {
        return Ok(transaction.commit()?);
    }
    transaction.abort()?;
    let has = store.capacity();
    let context =
        format!("the catalog's {has} bytes are full: remove files, or enlarge the volume");
    Err(RedbError::Ours(Error::new(ErrorKind::NoSpace, context)))
}

/// Applies all changes. False if the blocks do not suffice.
fn apply_changes(
    transaction: &WriteTransaction,
    store: &Store,
    batch: &Batch,
) -> Result<bool, RedbError> {
    for table in Table::ALL {
        let mut changes = batch.changes.iter().filter(|change| change.table == table).peekable();
        if changes.peek().is_none() && !batch.creates_tables {
            continue;
        }
        let mut records = transaction.open_table(table.definition())?;
        for change in changes {
            match &change.stored {
                Some(stored) => records.insert(change.key.as_slice(), stored.as_slice())?,
                None => records.remove(change.key.as_slice())?,
            };
            if store.exceeds_blocks() {
                return Ok(false);
            }
        }
    }
    Ok(!store.exceeds_blocks())
}
