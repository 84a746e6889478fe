//! redb behind a fence: what it panics with ends here, and so does its shutdown.

use std::sync::Arc;

use redb::{Database, ReadOnlyDatabase, ReadableDatabase};

use super::redb_error::{RedbError, catch_panic};
use super::snapshot::{Snapshot, SnapshotCache};

/// redb as it was opened, and the snapshots snapshot of it; its end stays inside, too: after a panic its locks
/// may be poisoned.
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

    /// What the last commit left.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>, RedbError> {
        self.snapshots.get(|| match self.opened.as_ref().expect("it is taken only to be dropped") {
            OpenDatabase::ReadWrite(database) => database.begin_read(),
            OpenDatabase::ReadOnly(database) => database.begin_read(),
        })
    }

    /// To be called after each commit.
    pub(super) fn invalidate_snapshot(&self) {
        self.snapshots.invalidate();
    }

    /// What was opened to write.
    pub(super) fn writer(&self) -> &Database {
        match &self.opened {
            Some(OpenDatabase::ReadWrite(database)) => database,
            _ => unreachable!("who only reads is sent away before"),
        }
    }

    /// The same, with nobody beside.
    pub(super) fn writer_mut(&mut self) -> &mut Database {
        self.invalidate_snapshot();
        match &mut self.opened {
            Some(OpenDatabase::ReadWrite(database)) => database,
            _ => unreachable!("who only reads is sent away before"),
        }
    }
}

impl Drop for RedbHandle {
    fn drop(&mut self) {
        let opened = self.opened.take();
        // What goes wrong in there shows in the store.
        let _ = catch_panic(|| {
            self.snapshots.invalidate();
            drop(opened);
            Ok(())
        });
    }
}
