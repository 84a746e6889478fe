//! Changes to the catalog that happen together, and how redb is made to do them.

use std::ops::Add;

use redb::{Database, TableDefinition, WriteTransaction};

use super::grown;
use super::record::{Key, Table, seal};
use super::store::Store;
use super::trouble::Trouble;
use crate::blocks::BLOCK;
use crate::error::{Error, ErrorKind};

/// Puts and deletes, in their order. Plain data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    changes: Vec<Change>,
    reserve: Reserve,
    /// All tables are made, so that readers find them.
    of_new_catalog: bool,
}

/// What a batch leaves free when the catalog's blocks run out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// Enough for batches that free something.
    #[default]
    Keep,
    /// What a commit itself needs: this batch frees something.
    Use,
}

/// How much is to be committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Records that are put or deleted.
    pub(crate) changes: u64,
    /// Bytes of their keys and values.
    pub(crate) bytes: u64,
}

impl Add for Size {
    type Output = Size;

    fn add(self, other: Size) -> Size {
        Size { changes: self.changes + other.changes, bytes: self.bytes + other.bytes }
    }
}

impl Size {
    /// Pages that committing it takes at the most, from a storage of so many. A page that changes is
    /// copied, once, with those above it. New records fill pages by a half at least.
    pub(super) fn most_pages(self, pages: u64) -> u64 {
        let copied = (self.changes * TREE_DEPTH).min(pages);
        let new = (2 * (self.bytes + self.changes * RECORD_OVERHEAD)).div_ceil(BLOCK);
        copied + new + pages / MAPPED_BY_A_PAGE + self.pages_of_commit() + 3 * COMMIT_PAGES
    }

    /// Pages that the commit itself takes, when all changes are made, besides the map of free pages.
    fn pages_of_commit(self) -> u64 {
        COMMIT_PAGES + self.changes / CHANGES_A_PAGE
    }
}

/// Pages from the root of a table to a record: four hold some millions.
const TREE_DEPTH: u64 = 4;
/// Bytes of a record in its page beside key and value: sum, offsets, its share of the branches.
const RECORD_OVERHEAD: u64 = 24;
/// Pages of the storage that one page of the map of free pages tells of: four bits each.
const MAPPED_BY_A_PAGE: u64 = 2 * BLOCK;

#[derive(Clone, Debug)]
struct Change {
    table: Table,
    key: Vec<u8>,
    /// With its sum; none deletes.
    stored: Option<Vec<u8>>,
}

impl Batch {
    /// Sets a record, whatever was there.
    pub(crate) fn put(&mut self, key: Key<'_>, value: &[u8]) {
        let (table, bytes) = (key.table(), key.bytes());
        let stored = Some(seal(table, &bytes, value));
        self.changes.push(Change { table, key: bytes, stored });
    }

    /// Deletes a record, if there is one.
    #[cfg(test)]
    pub(crate) fn delete(&mut self, key: Key<'_>) {
        self.changes.push(Change { table: key.table(), key: key.bytes(), stored: None });
    }

    /// Sets a record as no writer would.
    #[cfg(test)]
    pub(crate) fn put_with_wrong_sum(&mut self, key: Key<'_>, value: &[u8]) {
        let (table, bytes) = (key.table(), key.bytes());
        let mut stored = seal(table, &bytes, value);
        stored[0] ^= 1;
        self.changes.push(Change { table, key: bytes, stored: Some(stored) });
    }

    /// Sets or deletes a record by its key's bytes.
    pub(crate) fn change(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        let stored = value.map(|value| seal(table, key, value));
        self.changes.push(Change { table, key: key.to_vec(), stored });
    }

    /// How much it is.
    pub(crate) fn size(&self) -> Size {
        let bytes = |change: &Change| change.key.len() + change.stored.as_ref().map_or(0, Vec::len);
        Size {
            changes: self.changes.len() as u64,
            bytes: self.changes.iter().map(|change| bytes(change) as u64).sum(),
        }
    }

    /// What it leaves free.
    pub(crate) fn reserve(&mut self, reserve: Reserve) {
        self.reserve = reserve;
    }

    pub(super) fn of_new_catalog() -> Batch {
        Batch { of_new_catalog: true, ..Batch::default() }
    }
}

/// Does a batch in one transaction, durable when it returns; undone if it errs before the commit.
///
/// Quick repair: each commit stores which pages are free, so that opening after a crash reads that
/// and not every page; it commits in two phases, which the store's checksums rely on anyway.
pub(super) fn apply(database: &Database, store: &Store, batch: &Batch) -> Result<(), Trouble> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    let fits = change(&transaction, store, batch)? && leaves_room(&transaction, store, batch)?;
    if fits {
        return Ok(transaction.commit()?);
    }
    transaction.abort()?;
    let has = store.capacity();
    let context = format!("the catalog's {has} bytes are full: free files, or enlarge the volume");
    Err(Trouble::Mine(Error::new(ErrorKind::NoSpace, context)))
}

/// Applies all changes, as long as the blocks suffice.
fn change(transaction: &WriteTransaction, store: &Store, batch: &Batch) -> Result<bool, Trouble> {
    for table in Table::ALL {
        let mut changes = batch.changes.iter().filter(|change| change.table == table).peekable();
        if changes.peek().is_none() && !batch.of_new_catalog {
            continue;
        }
        let mut records = transaction.open_table(table.definition())?;
        for change in changes {
            match &change.stored {
                Some(stored) => records.insert(change.key.as_slice(), stored.as_slice())?,
                None => records.remove(change.key.as_slice())?,
            };
            if store.is_short() {
                return Ok(false);
            }
        }
    }
    Ok(!store.is_short())
}

/// Pages that committing a small batch takes at most, besides the map of free pages.
const COMMIT_PAGES: u64 = 24;
/// Changes for which committing takes one page more: it lists what they freed, 400 pages to one.
const CHANGES_A_PAGE: u64 = 64;
const FILLER: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("filler");

/// Whether the transaction can commit without growing past the blocks, which redb would not
/// survive. Nobody says how many pages are free, so it is tried: pages are taken and given back.
fn leaves_room(
    transaction: &WriteTransaction,
    store: &Store,
    batch: &Batch,
) -> Result<bool, Trouble> {
    if grown(store.length()) <= store.capacity() {
        return Ok(true);
    }
    let needed = batch.size().pages_of_commit();
    let pages = match batch.reserve {
        Reserve::Keep => needed + 3 * COMMIT_PAGES,
        Reserve::Use => needed,
    };
    {
        let mut filler = transaction.open_table(FILLER)?;
        // The map of free pages: four bits a page, in a row.
        let map = vec![0; (store.length() / 4096 / 2) as usize];
        filler.insert(0, map.as_slice())?;
        for page in 1..=pages {
            filler.insert(page, [0; 4000].as_slice())?;
            if store.is_short() {
                return Ok(false);
            }
        }
    }
    transaction.delete_table(FILLER)?;
    Ok(!store.is_short())
}
