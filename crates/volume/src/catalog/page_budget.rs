//! How many pages committing something takes, and whether the catalog has them: redb must never find
//! that it has not.

use std::ops::Add;

use redb::{Database, TableDefinition, WriteTransaction};

use super::page_layout::GROUP_PAGES;
use super::redb_error::RedbError;
use super::store::Store;
use crate::blocks::BLOCK;

/// Pages that committing a small batch takes at most, besides the map of free pages.
const COMMIT_PAGES: u64 = 24;
/// What is kept for batches that free something.
const RESERVED_PAGES: u64 = 3 * COMMIT_PAGES;
/// Changes for which committing takes one page more: it lists what they freed, 400 pages to one.
const CHANGES_PER_PAGE: u64 = 64;
/// Pages from the root of a table to a record: four hold some millions.
const TREE_DEPTH: u64 = 4;
/// Bytes of a record in its page beside key and value: sum, offsets, its share of the branches.
const RECORD_OVERHEAD: u64 = 24;
/// Pages of the storage that one page of the map of free pages tells of: four bits each.
const PAGES_PER_MAP_PAGE: u64 = 2 * BLOCK;
/// Free pages that are counted at most. Nobody says how many there are, so that it takes time.
const MAX_COUNTED_PAGES: u64 = 256;
/// Bytes of an inode's record with its key, and of an extent's.
const INODE_BYTES: u64 = 8 + 80;
const EXTENT_BYTES: u64 = 16 + 24;

/// Extents that are allocated in one step. Between two steps a commit may make room.
pub(crate) const EXTENTS_A_STEP: u64 = 4;
/// Steps for which a promise keeps room: pages that one commit frees are free when the next has ended.
const RESERVED_STEPS: u64 = 3;

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
    /// Of the records of so many files in which so many extents were allocated, with those that the
    /// extents lie beside and the regions they lie in.
    pub(crate) fn of_files(files: u64, extents: u64) -> Size {
        const REGION_BYTES: u64 = 4 + 4104;
        let regions = extents.min(8);
        Size {
            changes: files + 3 * extents + regions,
            bytes: files * INODE_BYTES + 3 * extents * EXTENT_BYTES + regions * REGION_BYTES,
        }
    }

    /// Of the records that stay when promised blocks are redeemed, each as an extent of its own.
    pub(crate) fn of_redeemed(blocks: u64) -> Size {
        Size { changes: 0, bytes: blocks * (EXTENT_BYTES + RECORD_OVERHEAD) }
    }

    /// Kept as long as so many blocks are promised: with it they can be redeemed, step by step, though the
    /// catalog gets no block more.
    pub(crate) fn of_promises(blocks: u64) -> Size {
        match blocks {
            0 => Size::default(),
            _ => Size::of_redeemed(blocks) + Size::of_files(1, RESERVED_STEPS * EXTENTS_A_STEP),
        }
    }

    /// Pages that committing it takes at the most, from a storage of so many. A page that changes is
    /// copied, once, with those above it. New records fill pages by a half at least.
    pub(super) fn max_pages(self, pages: u64, reserve: Reserve) -> u64 {
        let copied = (self.changes * TREE_DEPTH).min(pages);
        let new = (2 * (self.bytes + self.changes * RECORD_OVERHEAD)).div_ceil(BLOCK);
        copied + new + pages / PAGES_PER_MAP_PAGE + self.commit_pages(reserve)
    }

    /// Pages that the commit itself takes, when all changes are made, and what it leaves, besides the
    /// map of free pages.
    fn commit_pages(self, reserve: Reserve) -> u64 {
        let needed = COMMIT_PAGES + self.changes / CHANGES_PER_PAGE;
        match reserve {
            Reserve::Keep => needed + RESERVED_PAGES,
            Reserve::Use => needed,
        }
    }
}

/// What the catalog has for the next commits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CatalogRoom {
    /// Pages of the storage.
    pub(super) pages: u64,
    /// Of these, and of those that the storage may have more, free ones, as far as it is known.
    pub(super) free: u64,
    /// What the next commit takes from the log besides.
    logged: Size,
}

impl CatalogRoom {
    /// The same, with so much in the log.
    pub(crate) fn beside(self, logged: Size) -> CatalogRoom {
        CatalogRoom { logged, ..self }
    }

    /// What the next commit takes from the log.
    pub(crate) fn logged(self) -> Size {
        self.logged
    }

    /// Blocks that the catalog has to get before so much can be committed.
    pub(crate) fn missing_for(self, coming: Size, reserve: Reserve) -> u64 {
        let coming = coming + self.logged;
        match coming.max_pages(self.pages, reserve).saturating_sub(self.free) {
            0 => 0,
            pages => pages + pages.div_ceil(GROUP_PAGES) + 1,
        }
    }
}

/// What there is for the next commits.
pub(super) fn measure(database: &Database, store: &Store) -> Result<CatalogRoom, RedbError> {
    let pages = store.length() / BLOCK;
    let behind = store.capacity() / BLOCK - pages;
    let inside = match behind < MAX_COUNTED_PAGES {
        true => {
            let transaction = database.begin_write()?;
            let inside = free_pages(&transaction, store, MAX_COUNTED_PAGES)?;
            transaction.abort()?;
            inside
        }
        false => 0,
    };
    Ok(CatalogRoom { pages, free: behind + inside, logged: Size::default() })
}

/// Whether the transaction can commit without growing past the blocks, which redb would not
/// survive.
pub(super) fn leaves_reserve(
    transaction: &WriteTransaction,
    store: &Store,
    size: Size,
    reserve: Reserve,
) -> Result<bool, RedbError> {
    if length_after_growth(store.length()) <= store.capacity() {
        return Ok(true);
    }
    let needed = size.commit_pages(reserve);
    Ok(free_pages(transaction, store, needed)? == needed)
}

/// The bytes that redb would make of a storage of `length` bytes that is full: twice as many, above
/// 4 GiB two of its regions more.
pub(super) fn length_after_growth(length: u64) -> u64 {
    const REDB_REGION_BYTES: u64 = 4 << 30;
    if length < REDB_REGION_BYTES { 2 * length } else { length + 2 * REDB_REGION_BYTES }
}

const FILLER: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("filler");

/// Free pages besides the map of free pages, but no more than `most`: they are taken and given back.
fn free_pages(transaction: &WriteTransaction, store: &Store, limit: u64) -> Result<u64, RedbError> {
    let mut free = 0;
    {
        let mut filler = transaction.open_table(FILLER)?;
        // The map of free pages: four bits a page, in a row.
        let map = vec![0; (store.length() / BLOCK / 2) as usize];
        filler.insert(0, map.as_slice())?;
        while free < limit && !store.exceeds_blocks() {
            filler.insert(free + 1, [0; 4000].as_slice())?;
            free += u64::from(!store.exceeds_blocks());
        }
    }
    if store.exceeds_blocks() {
        return Ok(free);
    }
    transaction.delete_table(FILLER)?;
    Ok(if store.exceeds_blocks() { 0 } else { free })
}
