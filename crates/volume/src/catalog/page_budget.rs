//! The pages that a commit may take, and whether the catalog has them: redb must never run out of
//! pages.

use std::ops::Add;

use redb::{Database, TableDefinition, WriteTransaction};

use super::page_layout::GROUP_PAGES;
use super::redb_error::RedbError;
use super::store::Store;
use crate::blocks::BLOCK;

/// The most pages that committing a small batch takes, without the map of free pages.
const COMMIT_PAGES: u64 = 24;
/// Pages reserved for batches that free something.
const RESERVED_PAGES: u64 = 3 * COMMIT_PAGES;
/// Changes for which a commit takes one page more. The page lists pages that the changes freed, up
/// to 400.
const CHANGES_PER_PAGE: u64 = 64;
/// Pages from the root of a table to a record. Four levels hold some millions of records.
const TREE_DEPTH: u64 = 4;
/// Bytes of a record in its page besides key and value: checksum, offsets, its share of the
/// branches.
const RECORD_OVERHEAD: u64 = 24;
/// Pages of the storage that one page of the map of free pages covers, with four bits each.
const PAGES_PER_MAP_PAGE: u64 = 2 * BLOCK;
/// The most free pages that are counted. redb does not report their number, so counting takes time.
const MAX_COUNTED_PAGES: u64 = 256;
/// Bytes of an inode's record without the target of a link, with its key, and of an extent's.
pub(crate) const INODE_BYTES: u64 = 8 + 96;
const EXTENT_BYTES: u64 = 16 + 24;

/// Extents that are allocated in one step. A commit between two steps may free pages.
pub(crate) const EXTENTS_PER_STEP: u64 = 4;
/// Steps for which a delayed allocation reserves pages: pages that one commit frees are free after
/// the next commit.
const RESERVED_STEPS: u64 = 3;

/// The pages that a batch leaves free when the catalog runs out of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// Enough pages for batches that free something.
    #[default]
    Keep,
    /// Only what a commit itself needs: this batch frees something.
    Use,
}

/// The size of what is to be committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchSize {
    /// Records to put or delete.
    pub(crate) changes: u64,
    /// Bytes of their keys and values.
    pub(crate) bytes: u64,
}

impl Add for BatchSize {
    type Output = BatchSize;

    fn add(self, other: BatchSize) -> BatchSize {
        BatchSize { changes: self.changes + other.changes, bytes: self.bytes + other.bytes }
    }
}

impl BatchSize {
    /// The records of `files` files in which `extents` extents were allocated. Counts the
    /// neighbours of each extent, and the regions.
    pub(crate) fn for_files(files: u64, extents: u64) -> BatchSize {
        const REGION_BYTES: u64 = 4 + 4104;
        let regions = extents.min(8);
        BatchSize {
            changes: files + 3 * extents + regions,
            bytes: files * INODE_BYTES + 3 * extents * EXTENT_BYTES + regions * REGION_BYTES,
        }
    }

    /// The records that remain after delayed allocation of `blocks` blocks, if each becomes an
    /// extent of its own.
    pub(crate) fn for_delayed_extents(blocks: u64) -> BatchSize {
        BatchSize { changes: 0, bytes: blocks * (EXTENT_BYTES + RECORD_OVERHEAD) }
    }

    /// Reserved while `blocks` blocks are reserved for delayed allocation: enough to allocate them
    /// step by step even if the catalog gets no more blocks.
    pub(crate) fn for_delayed_blocks(blocks: u64) -> BatchSize {
        let steps = BatchSize::for_files(1, RESERVED_STEPS * EXTENTS_PER_STEP);
        match blocks {
            0 => BatchSize::default(),
            _ => BatchSize::for_delayed_extents(blocks) + steps,
        }
    }

    /// The most pages that committing takes, in a storage of `pages` pages. A changed page is
    /// copied once, with the pages above it. New records fill their pages at least by half.
    pub(super) fn max_pages(self, pages: u64, reserve: Reserve) -> u64 {
        let copied = (self.changes * TREE_DEPTH).min(pages);
        let new = (2 * (self.bytes + self.changes * RECORD_OVERHEAD)).div_ceil(BLOCK);
        copied + new + pages / PAGES_PER_MAP_PAGE + self.commit_pages(reserve)
    }

    /// Pages that the commit itself takes after all changes are made, and those that it leaves
    /// free. Without the map of free pages.
    fn commit_pages(self, reserve: Reserve) -> u64 {
        let needed = COMMIT_PAGES + self.changes / CHANGES_PER_PAGE;
        match reserve {
            Reserve::Keep => needed + RESERVED_PAGES,
            Reserve::Use => needed,
        }
    }
}

/// Pages that the catalog has for the next commits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageBudget {
    /// Pages of the storage.
    pub(super) pages: u64,
    /// Free pages in the storage, as far as they were counted, and those that it may grow by.
    pub(super) free: u64,
    /// Records of the log, which the next checkpoint moves into redb.
    logged: BatchSize,
}

impl PageBudget {
    /// The same budget, with `logged` in the log.
    pub(crate) fn with_logged(self, logged: BatchSize) -> PageBudget {
        PageBudget { logged, ..self }
    }

    /// The size of the records in the log, which the next checkpoint moves into redb.
    pub(crate) fn logged_size(self) -> BatchSize {
        self.logged
    }

    /// Blocks to add to the catalog before so much can be committed.
    pub(crate) fn blocks_missing_for(self, coming: BatchSize, reserve: Reserve) -> u64 {
        let coming = coming + self.logged;
        match coming.max_pages(self.pages, reserve).saturating_sub(self.free) {
            0 => 0,
            pages => pages + pages.div_ceil(GROUP_PAGES) + 1,
        }
    }
}

/// Measures the pages for the next commits.
pub(super) fn measure(database: &Database, store: &Store) -> Result<PageBudget, RedbError> {
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
    Ok(PageBudget { pages, free: behind + inside, logged: BatchSize::default() })
}

/// Whether the transaction can commit without growing past the blocks, which redb would not
/// survive.
pub(super) fn leaves_reserve(
    transaction: &WriteTransaction,
    store: &Store,
    size: BatchSize,
    reserve: Reserve,
) -> Result<bool, RedbError> {
    if length_after_growth(store.length()) <= store.capacity() {
        return Ok(true);
    }
    let needed = size.commit_pages(reserve);
    Ok(free_pages(transaction, store, needed)? == needed)
}

/// The length to which redb grows a full storage of `length` bytes: twice the length, above 4 GiB
/// two regions of redb more.
pub(super) fn length_after_growth(length: u64) -> u64 {
    const REDB_REGION_BYTES: u64 = 4 << 30;
    if length < REDB_REGION_BYTES { 2 * length } else { length + 2 * REDB_REGION_BYTES }
}

const FILLER: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("filler");

/// Number of free pages, at most `limit`, without the map of free pages. Takes the pages, and gives
/// them back.
fn free_pages(transaction: &WriteTransaction, store: &Store, limit: u64) -> Result<u64, RedbError> {
    let mut free = 0;
    {
        let mut filler = transaction.open_table(FILLER)?;
        // The map of free pages takes four bits a page, in adjacent pages.
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
