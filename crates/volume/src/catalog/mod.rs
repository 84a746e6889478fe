//! The catalog: all metadata of a volume, as records in a few tables, changed by whole batches. A
//! batch is durable when [`Catalog::append_to_log`] or [`Catalog::checkpoint`] returns. After a
//! power cut the batch is there in full or not at all. Only this module uses redb.
//!
//! ```text
//! let mut batch = Batch::default();
//! batch.put(Key::Inode(7), attributes);
//! batch.put(Key::Name(1, b"log"), &7u64.to_le_bytes());
//! if !catalog.append_to_log(&batch)? {
//!     catalog.checkpoint(&batch)?;
//! }
//! ```
//!
//! A batch for which the log has room goes into the redo log, which costs one flush. A checkpoint
//! moves the whole log into redb's pages, together with one more batch. A read merges the log over
//! redb.
//!
//! Calls block on the device. Only threads that may block make them: the commit thread, the catalog
//! thread, and callers with `WaitMode::Blocking`.
//!
//! An error affects as little as possible. A damaged page or record is an error of the call that
//! needs it. After an error redb serves nothing more, so it is reopened from the same state. After
//! a failed write or flush, or a panic, the catalog stops, and each call returns the reason.

// Verification of every page, for a check.
mod inspect;

// Records in the order of their keys.
mod scan;

// The catalog: open, read, append to the log, checkpoint.
#[allow(clippy::module_inception, reason = "the module is named after its main type")]
mod catalog;

// Batches that are durable in the log and not in redb yet.
mod redo_log;

// Changes that happen together.
mod batch;

// Pages that a commit takes, and whether the catalog has them.
mod page_budget;

// redb, and its newest snapshot.
mod redb_handle;

// Pages that a long read keeps from being reused.
mod pin;

// The state of the last commit.
mod snapshot;

// Errors of redb.
mod redb_error;

// redb's storage trait on top of the store.
mod backend;

// Pages under checksums.
mod store;

// Page 0, in two copies of one sector each.
mod header;

// Correction of one flipped bit in a page.
mod bit_repair;

// Checksums of pages.
mod checksum;

// The addresses of pages and their checksums.
mod page_layout;

// Tables, keys, and the checksum of a value.
mod record;

#[cfg(test)]
mod tests;

pub(crate) use batch::Batch;
pub(crate) use bit_repair::{BadPage, PageDamage};
pub(crate) use catalog::{Catalog, CatalogOptions, MIN_BLOCKS};
pub(crate) use inspect::Verification;
pub(crate) use page_budget::{BatchSize, EXTENTS_PER_STEP, INODE_BYTES, PageBudget, Reserve};
pub(crate) use pin::PagePin;
pub(crate) use record::{Key, Table};
pub(crate) use scan::{MAX_RECORDS, Record, ScanEntry};
pub(crate) use store::{Access, LostPages};
