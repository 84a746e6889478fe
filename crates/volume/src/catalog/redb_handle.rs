//! An open redb database and its newest snapshot. Contains redb's panics, also those of its
//! shutdown.

use std::sync::Arc;

use redb::{Database, ReadOnlyDatabase, ReadableDatabase};

use super::redb_error::{RedbError, catch_panic};
use super::snapshot::{Snapshot, SnapshotCache};

/// redb as it was opened, and its newest snapshot. Dropping it catches panics, too: after a panic
/// redb's locks may be poisoned.
pub(super) struct RedbHandle {
    opened: Option<OpenDatabase>,
    snapshots: SnapshotCache,
}

pub(super) enum OpenDatabase {
    ReadWrite(Database),
    ReadOnly(ReadOnlyDatabase),
}

impl RedbHandle {
    pub(super) fn new(opened: OpenDatabase) -> RedbHandle {
        RedbHandle { opened: Some(opened), snapshots: SnapshotCache::default() }
    }

    /// The state of the last commit.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>, RedbError> {
        self.snapshots.get(|| match self.opened.as_ref().expect("it is taken only to be dropped") {
            OpenDatabase::ReadWrite(database) => database.begin_read(),
            OpenDatabase::ReadOnly(database) => database.begin_read(),
        })
    }

    /// Call after each commit.
    pub(super) fn invalidate_snapshot(&self) {
        self.snapshots.invalidate();
    }

    /// The database. Only for a catalog that is open for writing.
    pub(super) fn writer(&self) -> &Database {
        match &self.opened {
            Some(OpenDatabase::ReadWrite(database)) => database,
            _ => unreachable!("a read-only catalog refuses writes earlier"),
        }
    }

    /// The database, with exclusive access.
    pub(super) fn writer_mut(&mut self) -> &mut Database {
        self.invalidate_snapshot();
        match &mut self.opened {
            Some(OpenDatabase::ReadWrite(database)) => database,
            _ => unreachable!("a read-only catalog refuses writes earlier"),
        }
    }
}

impl Drop for RedbHandle {
    fn drop(&mut self) {
        let opened = self.opened.take();
        // The store keeps the error.
        let _ = catch_panic(|| {
            self.snapshots.invalidate();
            drop(opened);
            Ok(())
        });
    }
}
