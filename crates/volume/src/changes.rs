//! What has changed since the last commit. Asked before the catalog, whose records are older, and
//! drained into it by the committer.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::catalog::{Batch, Key, Size, Table};

/// A record's new value, or none where it is to go.
type Value = Option<Box<[u8]>>;

/// Records that are to be changed together, in the order of their keys.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    tables: [BTreeMap<Box<[u8]>, Value>; Table::ALL.len()],
    size: Size,
}

impl Changes {
    /// Sets a record; the last counts.
    pub(crate) fn put(&mut self, key: Key<'_>, value: Vec<u8>) {
        self.set(key.table(), key.bytes().into(), Some(value.into()));
    }

    /// Has a record go.
    pub(crate) fn delete(&mut self, key: Key<'_>) {
        self.set(key.table(), key.bytes().into(), None);
    }

    /// How much there is to commit.
    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// All of them, for the catalog.
    pub(crate) fn to_batch(&self) -> Batch {
        let mut batch = Batch::default();
        for (table, records) in Table::ALL.iter().zip(&self.tables) {
            for (key, value) in records {
                batch.change(*table, key, value.as_deref());
            }
        }
        batch
    }

    fn set(&mut self, table: Table, key: Box<[u8]>, value: Value) {
        let bytes_of = |value: &Value| value.as_ref().map_or(0, |value| value.len() as u64);
        let key_bytes = key.len() as u64;
        self.size.bytes += bytes_of(&value);
        match self.tables[table.index()].insert(key, value) {
            Some(old) => self.size.bytes -= bytes_of(&old),
            None => {
                self.size.changes += 1;
                self.size.bytes += key_bytes;
            }
        }
    }

    fn get(&self, table: Table, key: &[u8]) -> Option<&Value> {
        self.tables[table.index()].get(key)
    }

    /// Those of a table from one key on and before another.
    fn range(&self, table: Table, keys: &Range<Vec<u8>>) -> impl Iterator<Item = (&[u8], &Value)> {
        let keys = (Bound::Included(&keys.start[..]), Bound::Excluded(&keys.end[..]));
        self.tables[table.index()].range::<[u8], _>(keys).map(|(key, value)| (&key[..], value))
    }

    /// Adds what changed before, where it has not changed since.
    fn put_beneath(&mut self, older: &Changes) {
        for (table, records) in Table::ALL.iter().zip(&older.tables) {
            for (key, value) in records {
                if self.get(*table, key).is_none() {
                    self.set(*table, key.clone(), value.clone());
                }
            }
        }
    }
}

/// What has changed and is not committed: what is being committed now, and what came after.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    current: Changes,
    committing: Option<Arc<Changes>>,
}

/// What is known here of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known<'a> {
    /// This is its value.
    Value(&'a [u8]),
    /// It is gone.
    Gone,
    /// Nothing: the catalog has it, or has not.
    Nothing,
}

impl Pending {
    /// Where changes go.
    pub(crate) fn current(&mut self) -> &mut Changes {
        &mut self.current
    }

    /// How much waits for a commit to begin.
    pub(crate) fn waiting(&self) -> Size {
        self.current.size()
    }

    /// What is known of a record.
    pub(crate) fn get(&self, key: Key<'_>) -> Known<'_> {
        let (table, bytes) = (key.table(), key.bytes());
        let older = || self.committing.as_ref().and_then(|changes| changes.get(table, &bytes));
        match self.current.get(table, &bytes).or_else(older) {
            Some(Some(value)) => Known::Value(value),
            Some(None) => Known::Gone,
            None => Known::Nothing,
        }
    }

    /// Lays what has changed over `records`, which are all that the catalog has of these `keys`, in
    /// order.
    pub(crate) fn lay_over(
        &self,
        table: Table,
        keys: &Range<Vec<u8>>,
        records: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let layers = || self.committing.as_deref().into_iter().chain([&self.current]);
        if layers().all(|changes| changes.range(table, keys).next().is_none()) {
            return records;
        }
        let mut merged: BTreeMap<Vec<u8>, Vec<u8>> = records.into_iter().collect();
        for (key, value) in layers().flat_map(|changes| changes.range(table, keys)) {
            match value {
                Some(value) => drop(merged.insert(key.to_vec(), value.to_vec())),
                None => drop(merged.remove(key)),
            }
        }
        merged.into_iter().collect()
    }

    /// Takes what is to be committed now; it stays known until [`Self::end_commit`].
    pub(crate) fn begin_commit(&mut self) -> Arc<Changes> {
        assert!(self.committing.is_none(), "one commit at a time");
        let changes = Arc::new(std::mem::take(&mut self.current));
        self.committing = Some(changes.clone());
        changes
    }

    /// The catalog has it.
    pub(crate) fn end_commit(&mut self) {
        self.committing = None;
    }

    /// The catalog has nothing of it: it waits for the next commit.
    pub(crate) fn undo_commit(&mut self) {
        if let Some(changes) = self.committing.take() {
            self.current.put_beneath(&changes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of the names of directory 7 between two, of which the catalog has some.
    fn laid(pending: &Pending, between: Range<&str>, catalog: &[&str]) -> String {
        let records = catalog.iter().map(|key| (name(key).bytes(), b"old".to_vec()));
        let keys = name(between.start).bytes()..name(between.end).bytes();
        let laid = pending.lay_over(Table::Names, &keys, records.collect());
        let words = laid.iter().map(|(key, value)| {
            format!("{}={}", String::from_utf8_lossy(&key[8..]), String::from_utf8_lossy(value))
        });
        words.collect::<Vec<_>>().join(" ")
    }

    fn name(name: &str) -> Key<'_> {
        Key::Name(7, name.as_bytes())
    }

    #[test]
    fn the_newest_is_known_and_what_is_committed_is_forgotten() {
        let mut pending = Pending::default();
        pending.current().put(name("a"), b"1".to_vec());
        pending.current().put(name("b"), b"1".to_vec());
        let committing = pending.begin_commit();
        assert_eq!(committing.size(), Size { changes: 2, bytes: 2 * (8 + 1 + 1) });
        pending.current().delete(name("a"));
        assert_eq!(pending.get(name("a")), Known::Gone);
        assert_eq!(pending.get(name("b")), Known::Value(b"1"));
        assert_eq!(pending.get(Key::Xattr(7, b"b")), Known::Nothing);
        pending.end_commit();
        assert_eq!(pending.get(name("b")), Known::Nothing);
        assert_eq!((pending.get(name("a")), pending.waiting().changes), (Known::Gone, 1));
    }

    #[test]
    fn what_could_not_be_committed_waits_beneath_what_came_since() {
        let mut pending = Pending::default();
        pending.current().put(name("a"), b"old".to_vec());
        pending.current().put(name("b"), b"old".to_vec());
        pending.current().delete(name("c"));
        pending.begin_commit();
        pending.current().delete(name("a"));
        pending.undo_commit();
        let changes = pending.begin_commit();
        assert_eq!(changes.size(), Size { changes: 3, bytes: 3 * (8 + 1) + 3 });
        assert_eq!(laid(&pending, "a".."d", &["a", "c"]), "b=old");
    }

    #[test]
    fn changes_lie_over_the_catalogs_records_in_order() {
        let mut pending = Pending::default();
        pending.current().put(name("b"), b"1".to_vec());
        pending.current().delete(name("d"));
        pending.begin_commit();
        pending.current().put(name("b"), b"2".to_vec());
        pending.current().put(name("d"), b"2".to_vec());
        pending.current().delete(name("c"));
        pending.current().put(name("z"), b"2".to_vec());
        pending.current().put(Key::Xattr(7, b"bb"), b"2".to_vec());
        pending.current().put(Key::Name(8, b"bb"), b"2".to_vec());
        assert_eq!(laid(&pending, "a".."zz", &["a", "c", "e"]), "a=old b=2 d=2 e=old z=2");
        assert_eq!(laid(&pending, "a".."e", &["a", "c"]), "a=old b=2 d=2");
        assert_eq!(laid(&pending, "c".."zz", &[]), "d=2 z=2");
        assert_eq!(laid(&pending, "e".."y", &["e"]), "e=old");
    }
}
