//! What memory knows of records: what has changed since the last commit, which the committer drains
//! into the catalog, and some that are as the catalog has them.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::catalog::{Batch, Key, Record, Reserve, Size, Table};
use crate::clean::Clean;

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

    /// Whether they may use the room that is kept: not where there are going to be more names, or
    /// attributes with a name, than before.
    pub(crate) fn reserve(&self) -> Reserve {
        let records = [Table::Names, Table::Xattrs].map(|table| &self.tables[table.index()]);
        let (put, gone): (Vec<_>, Vec<_>) =
            records.into_iter().flat_map(BTreeMap::values).partition(|value| value.is_some());
        if put.len() > gone.len() { Reserve::Keep } else { Reserve::Use }
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

    /// Sets a record, or has it go.
    pub(crate) fn set(&mut self, table: Table, key: Box<[u8]>, value: Value) {
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

    /// What a record is to become, if it changes.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Option<&Value> {
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

/// What has changed and is not committed: what is being committed now, and what came after. And
/// records that have not, as far as there is room for them.
#[derive(Debug)]
pub(crate) struct Pending {
    current: Changes,
    committing: Option<Arc<Changes>>,
    clean: Clean,
    generation: u64,
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
    /// Nothing; clean records are going to take so many bytes at the most.
    pub(crate) fn new(clean_bytes: usize) -> Pending {
        Pending {
            current: Changes::default(),
            committing: None,
            clean: Clean::new(clean_bytes),
            generation: 0,
        }
    }

    /// Changes records.
    pub(crate) fn apply(&mut self, changes: Changes) {
        for (table, records) in Table::ALL.iter().zip(changes.tables) {
            for (key, value) in records {
                self.clean.remove(*table, &key);
                self.current.set(*table, key, value);
            }
        }
    }

    /// How much waits for a commit to begin.
    pub(crate) fn waiting(&self) -> Size {
        self.current.size()
    }

    /// How much is not committed.
    pub(crate) fn size(&self) -> Size {
        self.committing.as_ref().map_or(Size::default(), |changes| changes.size()) + self.waiting()
    }

    /// Counts the commits that have ended: what the catalog was asked for before, and did not share
    /// with [`Self::learn`], may be old.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// What is known of a record.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Known<'_> {
        match self.changed(table, key).map(Option::as_deref).or_else(|| self.clean.get(table, key))
        {
            Some(Some(value)) => Known::Value(value),
            Some(None) => Known::Gone,
            None => Known::Nothing,
        }
    }

    /// Takes note of a record that the catalog was asked for in a generation, if that is still so.
    pub(crate) fn learn(
        &mut self,
        generation: u64,
        table: Table,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
    ) {
        if generation == self.generation && self.changed(table, &key).is_none() {
            self.clean.insert(table, key.into(), value.map(Into::into));
        }
    }

    fn changed(&self, table: Table, key: &[u8]) -> Option<&Value> {
        let older = || self.committing.as_ref().and_then(|changes| changes.get(table, key));
        self.current.get(table, key).or_else(older)
    }

    /// Lays what has changed, `own` uppermost, over `records`, which are all that the catalog has of
    /// these `keys`, in order.
    pub(crate) fn lay_over(
        &self,
        own: &Changes,
        table: Table,
        keys: &Range<Vec<u8>>,
        records: &[Record],
    ) -> Vec<Record> {
        let layers = || self.committing.as_deref().into_iter().chain([&self.current, own]);
        if layers().all(|changes| changes.range(table, keys).next().is_none()) {
            return records.to_vec();
        }
        let mut merged: BTreeMap<Vec<u8>, Vec<u8>> = records.iter().cloned().collect();
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
        self.generation += 1;
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
        let records: Vec<Record> = records.collect();
        let laid = pending.lay_over(&Changes::default(), Table::Names, &keys, &records);
        let words = laid.iter().map(|(key, value)| {
            format!("{}={}", String::from_utf8_lossy(&key[8..]), String::from_utf8_lossy(value))
        });
        words.collect::<Vec<_>>().join(" ")
    }

    fn name(name: &str) -> Key<'_> {
        Key::Name(7, name.as_bytes())
    }

    fn put(pending: &mut Pending, key: Key<'_>, value: &str) {
        let mut changes = Changes::default();
        changes.put(key, value.as_bytes().to_vec());
        pending.apply(changes);
    }

    fn delete(pending: &mut Pending, key: Key<'_>) {
        let mut changes = Changes::default();
        changes.delete(key);
        pending.apply(changes);
    }

    fn known<'a>(pending: &'a Pending, key: Key<'_>) -> Known<'a> {
        pending.get(key.table(), &key.bytes())
    }

    #[test]
    fn the_newest_is_known_and_what_is_committed_is_forgotten() {
        let mut pending = Pending::new(1 << 20);
        put(&mut pending, name("a"), "1");
        put(&mut pending, name("b"), "1");
        let committing = pending.begin_commit();
        assert_eq!(committing.size(), Size { changes: 2, bytes: 2 * (8 + 1 + 1) });
        delete(&mut pending, name("a"));
        assert_eq!(known(&pending, name("a")), Known::Gone);
        assert_eq!(known(&pending, name("b")), Known::Value(b"1"));
        assert_eq!(known(&pending, Key::Xattr(7, b"b")), Known::Nothing);
        pending.end_commit();
        assert_eq!(known(&pending, name("b")), Known::Nothing);
        assert_eq!((known(&pending, name("a")), pending.waiting().changes), (Known::Gone, 1));
    }

    #[test]
    fn what_could_not_be_committed_waits_beneath_what_came_since() {
        let mut pending = Pending::new(1 << 20);
        put(&mut pending, name("a"), "old");
        put(&mut pending, name("b"), "old");
        delete(&mut pending, name("c"));
        pending.begin_commit();
        delete(&mut pending, name("a"));
        pending.undo_commit();
        let changes = pending.begin_commit();
        assert_eq!(changes.size(), Size { changes: 3, bytes: 3 * (8 + 1) + 3 });
        assert_eq!(laid(&pending, "a".."d", &["a", "c"]), "b=old");
    }

    #[test]
    fn changes_lie_over_the_catalogs_records_in_order() {
        let mut pending = Pending::new(1 << 20);
        put(&mut pending, name("b"), "1");
        delete(&mut pending, name("d"));
        pending.begin_commit();
        put(&mut pending, name("b"), "2");
        put(&mut pending, name("d"), "2");
        delete(&mut pending, name("c"));
        put(&mut pending, name("z"), "2");
        put(&mut pending, Key::Xattr(7, b"bb"), "2");
        put(&mut pending, Key::Name(8, b"bb"), "2");
        assert_eq!(laid(&pending, "a".."zz", &["a", "c", "e"]), "a=old b=2 d=2 e=old z=2");
        assert_eq!(laid(&pending, "a".."e", &["a", "c"]), "a=old b=2 d=2");
        assert_eq!(laid(&pending, "c".."zz", &[]), "d=2 z=2");
        assert_eq!(laid(&pending, "e".."y", &["e"]), "e=old");
    }

    #[test]
    fn what_the_catalog_said_is_known_until_it_changes_unless_a_commit_ended_meanwhile() {
        let mut pending = Pending::new(1 << 20);
        let learn = |pending: &mut Pending, generation, value: Option<&[u8]>| {
            let (table, key) = (Table::Names, name("a").bytes());
            pending.learn(generation, table, key, value.map(<[u8]>::to_vec));
        };
        learn(&mut pending, 0, None);
        assert_eq!(known(&pending, name("a")), Known::Gone);
        // What was read before a change, and arrives after it, is old.
        put(&mut pending, name("a"), "new");
        learn(&mut pending, 0, None);
        assert_eq!(known(&pending, name("a")), Known::Value(b"new"));
        pending.begin_commit();
        learn(&mut pending, 0, None);
        pending.end_commit();
        learn(&mut pending, 0, None);
        assert_eq!(known(&pending, name("a")), Known::Nothing);
        let generation = pending.generation();
        learn(&mut pending, generation, Some(b"new"));
        assert_eq!(known(&pending, name("a")), Known::Value(b"new"));
    }
}
