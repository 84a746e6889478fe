//! What memory knows of records: what has changed since the last commit, which the committer drains
//! into the catalog, and some that are as the catalog has them.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::catalog::{Batch, Key, Record, Reserve, Size, Table};
use crate::records::record_cache::RecordCache;

/// Numbers commits, from 1.
pub(crate) type CommitNumber = u64;

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
        let value_bytes = |value: &Value| value.as_ref().map_or(0, |value| value.len() as u64);
        let key_bytes = key.len() as u64;
        self.size.bytes += value_bytes(&value);
        match self.tables[table.index()].insert(key, value) {
            Some(old) => self.size.bytes -= value_bytes(&old),
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
    fn merge_under(&mut self, older: &Changes) {
        for (table, records) in Table::ALL.iter().zip(&older.tables) {
            for (key, value) in records {
                if self.get(*table, key).is_none() {
                    self.set(*table, key.clone(), value.clone());
                }
            }
        }
    }
}

/// Records of a commit that are kept at hand when it has ended, if there are no more.
const MAX_CACHED_CHANGES: u64 = 256;

/// What has changed and is not committed: what is being committed now, and what came after. And
/// records that have not, as far as there is room for them.
#[derive(Debug)]
pub(crate) struct Pending {
    current: Changes,
    committing: Option<Arc<Changes>>,
    cache: RecordCache,
    /// Those that somebody still holds, and some that nobody does.
    watches: Vec<Weak<Watch>>,
}

/// What has been committed of some records since the catalog was asked for them: whatever it says, this
/// laid over it is how they are now. So nobody has to ask again because others commit meanwhile.
#[derive(Debug)]
pub(crate) struct Watch {
    table: Table,
    keys: Range<Vec<u8>>,
    since: Mutex<Changes>,
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
    /// Nothing; cache records are going to take so many bytes at the most.
    pub(crate) fn new(cache_bytes: usize) -> Pending {
        Pending {
            current: Changes::default(),
            committing: None,
            cache: RecordCache::new(cache_bytes),
            watches: Vec::new(),
        }
    }

    /// Changes records.
    pub(crate) fn apply(&mut self, changes: Changes) {
        for (table, records) in Table::ALL.iter().zip(changes.tables) {
            for (key, value) in records {
                self.cache.remove(*table, &key);
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

    /// Follows what is committed of these records, for whoever is going to ask the catalog for them.
    pub(crate) fn watch(&mut self, table: Table, keys: Range<Vec<u8>>) -> Arc<Watch> {
        if self.watches.len() == self.watches.capacity() {
            self.watches.retain(|watch| watch.strong_count() > 0);
            // Room for as many more, so that each pays for looking through a few.
            self.watches.reserve(self.watches.len() + 1);
        }
        let watch = Arc::new(Watch::new(table, keys));
        self.watches.push(Arc::downgrade(&watch));
        watch
    }

    /// What is known of a record.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Known<'_> {
        match self.changed(table, key).map(Option::as_deref).or_else(|| self.cache.get(table, key))
        {
            Some(Some(value)) => Known::Value(value),
            Some(None) => Known::Gone,
            None => Known::Nothing,
        }
    }

    /// Takes note of what the catalog has said of the one record that is watched.
    pub(crate) fn learn(&mut self, watch: &Watch, value: Option<Vec<u8>>) {
        let (table, key) = (watch.table, &watch.keys.start[..]);
        if self.changed(table, key).is_none() {
            let newer = watch.since.lock().get(table, key).cloned();
            let value = newer.unwrap_or_else(|| value.map(Into::into));
            self.cache.insert(table, key.into(), value);
        }
    }

    fn changed(&self, table: Table, key: &[u8]) -> Option<&Value> {
        let older = || self.committing.as_ref().and_then(|changes| changes.get(table, key));
        self.current.get(table, key).or_else(older)
    }

    /// Lays what has changed, `own` uppermost, over `records`, which are all that the catalog had of
    /// these `keys`, in order, at some moment since they are watched.
    pub(crate) fn lay_over(
        &self,
        own: &Changes,
        watch: &Watch,
        keys: &Range<Vec<u8>>,
        records: &[Record],
    ) -> Vec<Record> {
        let since = watch.since.lock();
        let layers = || {
            let committing = self.committing.as_deref();
            [&*since].into_iter().chain(committing).chain([&self.current, own])
        };
        if layers().all(|changes| changes.range(watch.table, keys).next().is_none()) {
            return records.to_vec();
        }
        let mut merged: BTreeMap<Vec<u8>, Vec<u8>> = records.iter().cloned().collect();
        for (key, value) in layers().flat_map(|changes| changes.range(watch.table, keys)) {
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

    /// The catalog has it. A few records are kept at hand: the next commit asks for the same inodes, mostly.
    pub(crate) fn end_commit(&mut self) {
        let Some(committed) = self.committing.take() else { return };
        if committed.size().changes <= MAX_CACHED_CHANGES {
            for (table, records) in Table::ALL.iter().zip(&committed.tables) {
                let old = records.iter().filter(|(key, _)| self.current.get(*table, key).is_none());
                old.for_each(|(key, value)| self.cache.insert(*table, key.clone(), value.clone()));
            }
        }
        self.watches.retain(|watch| match watch.upgrade() {
            Some(watch) => {
                watch.note(&committed);
                true
            }
            None => false,
        });
    }

    /// The catalog has nothing of it: it waits for the next commit.
    pub(crate) fn undo_commit(&mut self) {
        if let Some(changes) = self.committing.take() {
            self.current.merge_under(&changes);
        }
    }
}

impl Watch {
    /// Of records of which nothing is committed, until [`Pending`] notes that something is.
    pub(crate) fn new(table: Table, keys: Range<Vec<u8>>) -> Watch {
        Watch { table, keys, since: Mutex::default() }
    }

    fn note(&self, committed: &Changes) {
        let mut since = self.since.lock();
        for (key, value) in committed.range(self.table, &self.keys) {
            since.set(self.table, key.into(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of the names of directory 7 between two, of which the catalog has some.
    fn laid(pending: &mut Pending, between: Range<&str>, catalog: &[&str]) -> String {
        let keys = name(between.start).bytes()..name(between.end).bytes();
        let watch = pending.watch(Table::Names, keys);
        laid_since(pending, &watch, catalog)
    }

    fn laid_since(pending: &Pending, watch: &Watch, catalog: &[&str]) -> String {
        let records = catalog.iter().map(|key| (name(key).bytes(), b"old".to_vec()));
        let records: Vec<Record> = records.collect();
        let laid = pending.lay_over(&Changes::default(), watch, &watch.keys, &records);
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
    fn the_newest_is_known_and_of_what_is_committed_a_little() {
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
        assert_eq!(known(&pending, name("b")), Known::Value(b"1"));
        assert_eq!((known(&pending, name("a")), pending.waiting().changes), (Known::Gone, 1));
        pending.begin_commit();
        pending.end_commit();
        assert_eq!(known(&pending, name("a")), Known::Gone);
        for n in 0..=MAX_CACHED_CHANGES {
            put(&mut pending, Key::Inode(n), "1");
        }
        pending.begin_commit();
        pending.end_commit();
        assert_eq!(known(&pending, Key::Inode(0)), Known::Nothing);
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
        assert_eq!(laid(&mut pending, "a".."d", &["a", "c"]), "b=old");
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
        assert_eq!(laid(&mut pending, "a".."zz", &["a", "c", "e"]), "a=old b=2 d=2 e=old z=2");
        assert_eq!(laid(&mut pending, "a".."e", &["a", "c"]), "a=old b=2 d=2");
        assert_eq!(laid(&mut pending, "c".."zz", &[]), "d=2 z=2");
        assert_eq!(laid(&mut pending, "e".."y", &["e"]), "e=old");
    }

    #[test]
    fn what_the_catalog_said_is_told_as_it_is_now_whatever_was_committed_meanwhile() {
        let mut pending = Pending::new(1 << 20);
        let watch = pending.watch(Table::Names, name("a").bytes()..name("z").bytes());
        for (key, value) in [("a", "1"), ("b", "1"), ("z", "1")] {
            put(&mut pending, name(key), value);
        }
        pending.begin_commit();
        delete(&mut pending, name("b"));
        pending.end_commit();
        pending.begin_commit();
        put(&mut pending, name("c"), "2");
        pending.end_commit();
        // Whether it was read before the two commits, between them or after them.
        for catalog in [&["b", "c", "d"][..], &["a", "b", "c", "d"], &["a", "d"]] {
            assert_eq!(
                laid_since(&pending, &watch, catalog).replace("a=old", "a=1"),
                "a=1 c=2 d=old"
            );
        }
        assert_eq!(laid(&mut pending, "a".."z", &["a"]), "a=old c=2");
    }

    #[test]
    fn one_record_that_the_catalog_told_is_known_as_it_is_now() {
        let mut pending = Pending::new(1 << 20);
        let watched = |pending: &mut Pending| {
            let key = name("a").bytes();
            pending.watch(Table::Names, key.clone()..[&key[..], &[0]].concat())
        };
        let old = watched(&mut pending);
        pending.learn(&old, None);
        assert_eq!(known(&pending, name("a")), Known::Gone);
        // What was read before a change, and arrives after it, is old.
        put(&mut pending, name("a"), "new");
        pending.learn(&old, None);
        assert_eq!(known(&pending, name("a")), Known::Value(b"new"));
        pending.begin_commit();
        pending.learn(&old, None);
        pending.end_commit();
        // It may have been forgotten.
        pending.cache.remove(Table::Names, &name("a").bytes());
        assert_eq!(known(&pending, name("a")), Known::Nothing);
        pending.learn(&old, None);
        assert_eq!(known(&pending, name("a")), Known::Value(b"new"));
        let new = watched(&mut pending);
        pending.learn(&new, Some(b"newer".to_vec()));
        assert_eq!(known(&pending, name("a")), Known::Value(b"newer"));
    }

    #[test]
    fn what_nobody_watches_any_more_is_forgotten() {
        let mut pending = Pending::new(1 << 20);
        let watch = |pending: &mut Pending| pending.watch(Table::Names, vec![0]..vec![1]);
        let held: Vec<_> = (0..10).map(|_| watch(&mut pending)).collect();
        for _ in 0..1000 {
            watch(&mut pending);
        }
        assert!(pending.watches.len() < 50, "{}", pending.watches.len());
        pending.begin_commit();
        pending.end_commit();
        assert_eq!(pending.watches.len(), held.len());
    }
}
