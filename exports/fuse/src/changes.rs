//! [`Changes`] and [`SyncMarks`]: which syncs have nothing to do. After each write with O_SYNC that the kernel has cached it
//! syncs the file, though the write was durable before its reply.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the changes of a mount: each when it has been made, and before its reply.
#[derive(Default)]
pub(crate) struct Changes(AtomicU64);

impl Changes {
    /// Counts a change. Returns the count before it.
    pub(crate) fn note(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// The changes that a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncScope {
    /// The data of the file, as `fdatasync(2)`.
    Data,
    /// Its attributes and all names, too.
    Everything,
}

/// The first changes of a mount, whose effects an open file's syncs have made durable: those on the file's data, or on
/// everything. Each mark is the number of these changes plus 1, or 0 before the first sync.
#[derive(Default)]
pub(crate) struct SyncMarks {
    data: AtomicU64,
    everything: AtomicU64,
}

impl SyncMarks {
    /// True if a sync has nothing to do after `count` changes.
    pub(crate) fn cover(&self, scope: SyncScope, count: u64) -> bool {
        let mark = match scope {
            SyncScope::Data => &self.data,
            SyncScope::Everything => &self.everything,
        };
        mark.load(Ordering::SeqCst) > count
    }

    /// Notes a sync that has succeeded. It began after `count` changes.
    pub(crate) fn note_sync(&self, scope: SyncScope, count: u64) {
        self.data.fetch_max(count + 1, Ordering::SeqCst);
        if scope == SyncScope::Everything {
            self.everything.fetch_max(count + 1, Ordering::SeqCst);
        }
    }

    /// Notes a durable write that is the change number `count`: the data stay durable if they were before it.
    pub(crate) fn note_durable_write(&self, count: u64) {
        let (before, after) = (count + 1, count + 2);
        let _ = self.data.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_covers_the_changes_before_it() {
        let (changes, marks) = (Changes::default(), SyncMarks::default());
        assert!(!marks.cover(SyncScope::Data, changes.count()), "nothing was synced");
        changes.note();
        marks.note_sync(SyncScope::Data, changes.count());
        assert!(marks.cover(SyncScope::Data, changes.count()));
        assert!(!marks.cover(SyncScope::Everything, changes.count()));
        marks.note_sync(SyncScope::Everything, changes.count());
        assert!(marks.cover(SyncScope::Everything, changes.count()));
        changes.note();
        assert!(!marks.cover(SyncScope::Data, changes.count()));
    }

    #[test]
    fn a_durable_write_covers_itself_if_all_before_it_was_synced() {
        let (changes, marks) = (Changes::default(), SyncMarks::default());
        marks.note_durable_write(changes.note());
        assert!(!marks.cover(SyncScope::Data, changes.count()), "there was no sync");
        marks.note_sync(SyncScope::Data, changes.count());
        for _ in 0..2 {
            marks.note_durable_write(changes.note());
            assert!(marks.cover(SyncScope::Data, changes.count()));
        }
        changes.note();
        marks.note_durable_write(changes.note());
        assert!(!marks.cover(SyncScope::Data, changes.count()), "another change came before");
    }
}
