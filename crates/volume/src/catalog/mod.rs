//! The catalog: all that a volume knows of its files, as records in a few tables, changed by whole
//! batches. A batch is durable when [`Catalog::commit`] returns, and after a power cut it is there
//! in full or not at all. redb lives here and nowhere else.
//!
//! ```text
//! let mut batch = Batch::default();
//! batch.put(Key::Inode(7), attributes);
//! batch.put(Key::Name(1, b"log"), &7u64.to_le_bytes());
//! catalog.commit(&batch)?;
//! ```
//!
//! What is committed goes into redb's pages, or, where it is little, first into a log beside them, which costs
//! one flush: see [`Catalog::log`]. Whoever reads finds the one laid over the other.
//!
//! Calls block on the device: the committer and a catalog thread make them, never a reactor.
//!
//! RedbError stays inside. A damaged page or record is an error of whoever asked for it; since redb
//! answers nothing more after an error, it is opened anew, from the same state. After a write or
//! flush that failed, or a panic, the catalog stops: each call says why.

// What a check asks: whether every page is as it was written.
mod inspect;

// Records in order.
mod scan;

// The catalog: opened, read, committed to.
#[allow(clippy::module_inception, reason = "the room is named after its main type")]
mod catalog;

// Batches that are durable in the log, and not in pages yet.
mod redo_log;

// Changes that happen together.
mod batch;

// Pages that a commit takes, and whether they are there.
mod page_budget;

// redb, and the newest snapshot of it.
mod redb_handle;

// The state that the last commit left.
mod snapshot;

// What may go wrong inside redb.
mod redb_error;

// The store as redb calls it.
mod backend;

// Pages under checksums.
mod store;

// Page 0, kept twice in one sector.
mod header;

// One flipped bit of a page is put right.
mod bit_repair;

// Checksums of pages.
mod checksum;

// Where pages and their checksums lie.
mod page_layout;

// Tables, keys, and the checksum of a value.
mod record;

#[cfg(test)]
mod tests;

pub(crate) use batch::Batch;
pub(crate) use bit_repair::{BadPage, PageFlaw};
pub(crate) use catalog::{Catalog, CatalogOptions, MIN_BLOCKS};
pub(crate) use inspect::Verified;
pub(crate) use page_budget::{CatalogRoom, EXTENTS_A_STEP, Reserve, Size};
pub(crate) use record::{Key, Table};
pub(crate) use scan::{Found, MAX_RECORDS, Record};
pub(crate) use store::{Access, LostPages};
