//! What has changed since the last commit. Asked before the catalog, whose records are older, and
//! drained into it by the committer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::catalog::{Batch, Key, Table};

/// A record's new value, or none where it is to go.
type Value = Option<Box<[u8]>>;

/// Records that are to be changed together, in the order of their keys.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    records: BTreeMap<(Table, Box<[u8]>), Value>,
}

impl Changes {
    /// Sets a record; the last counts.
    pub(crate) fn put(&mut self, key: Key<'_>, value: Vec<u8>) {
        self.records.insert((key.table(), key.bytes().into()), Some(value.into()));
    }

    /// Has a record go.
    pub(crate) fn delete(&mut self, key: Key<'_>) {
        self.records.insert((key.table(), key.bytes().into()), None);
    }

    /// How many records change.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// All of them, for the catalog.
    pub(crate) fn to_batch(&self) -> Batch {
        let mut batch = Batch::default();
        for ((table, key), value) in &self.records {
            batch.change(*table, key, value.as_deref());
        }
        batch
    }

    fn get(&self, record: &(Table, Box<[u8]>)) -> Option<&Value> {
        self.records.get(record)
    }

    /// Those of a table from one key on and before another.
    fn range(&self, table: Table, keys: &Range<Vec<u8>>) -> impl Iterator<Item = (&[u8], &Value)> {
        let [from, to] = [&keys.start, &keys.end].map(|key| (table, Box::from(&key[..])));
        self.records.range(from..to).map(|((_, key), value)| (&key[..], value))
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

    /// Records that wait for a commit to begin.
    pub(crate) fn waiting(&self) -> usize {
        self.current.len()
    }

    /// What is known of a record.
    pub(crate) fn get(&self, key: Key<'_>) -> Known<'_> {
        let record = (key.table(), key.bytes().into());
        let older = || self.committing.as_ref().and_then(|changes| changes.get(&record));
        match self.current.get(&record).or_else(older) {
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
        assert_eq!(committing.len(), 2);
        pending.current().delete(name("a"));
        assert_eq!(pending.get(name("a")), Known::Gone);
        assert_eq!(pending.get(name("b")), Known::Value(b"1"));
        assert_eq!(pending.get(Key::Xattr(7, b"b")), Known::Nothing);
        pending.end_commit();
        assert_eq!(pending.get(name("b")), Known::Nothing);
        assert_eq!((pending.get(name("a")), pending.waiting()), (Known::Gone, 1));
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
