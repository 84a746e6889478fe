//! Uncommitted changes of records, over a cache of committed ones. Reads look here before the
//! catalog. A commit drains the changes into the catalog.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::catalog::{Batch, BatchSize, Key, Record, Reserve, ScanEntry, Table};
use crate::error::Error;
use crate::records::readahead::{GROUP_KEY_BYTES, GroupReadahead};
use crate::records::record_cache::{RecordCache, record_bytes};

/// The number of a commit, from 1.
pub(crate) type CommitNumber = u64;
/// Stands for no commit.
pub(crate) const NO_COMMIT: CommitNumber = 0;

/// A record's new value; `None` deletes it.
type Value = Option<Box<[u8]>>;

/// Changes of records that happen together, in the order of their keys.
#[derive(Debug, Default)]
pub(crate) struct ChangeSet {
    tables: [BTreeMap<Box<[u8]>, Value>; Table::ALL.len()],
    size: BatchSize,
}

impl ChangeSet {
    /// Sets a record. The last change counts.
    pub(crate) fn put(&mut self, key: Key<'_>, value: Vec<u8>) {
        self.set(key.table(), key.bytes().into(), Some(value.into()));
    }

    /// Deletes a record.
    pub(crate) fn delete(&mut self, key: Key<'_>) {
        self.set(key.table(), key.bytes().into(), None);
    }

    pub(crate) fn size(&self) -> BatchSize {
        self.size
    }

    /// Whether the commit may use the reserved pages: not if it puts more records of names
    /// and extended attributes than it deletes.
    pub(crate) fn reserve_policy(&self) -> Reserve {
        let records = [Table::Names, Table::Xattrs].map(|table| &self.tables[table.index()]);
        let (put, gone): (Vec<_>, Vec<_>) =
            records.into_iter().flat_map(BTreeMap::values).partition(|value| value.is_some());
        if put.len() > gone.len() { Reserve::Keep } else { Reserve::Use }
    }

    /// All changes, for the catalog.
    pub(crate) fn to_batch(&self) -> Batch {
        let mut batch = Batch::default();
        for (table, records) in Table::ALL.iter().zip(&self.tables) {
            for (key, value) in records {
                batch.change(*table, key, value.as_deref());
            }
        }
        batch
    }

    /// Sets or deletes a record.
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

    /// The change of a record, if there is one.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Option<&Value> {
        self.tables[table.index()].get(key)
    }

    /// The records to keep in memory after the commit: of a small one all, since the next mostly changes the same inodes;
    /// of any other the names and inodes that exist now.
    pub(crate) fn to_cache(&self) -> impl Iterator<Item = (Table, &[u8], Option<&[u8]>)> {
        let is_small = self.size.changes <= MAX_SMALL_COMMIT;
        let records = Table::ALL.into_iter().zip(&self.tables).flat_map(|(table, records)| {
            records.iter().map(move |(key, value)| (table, &key[..], value.as_deref()))
        });
        records.filter(move |(table, _, value)| {
            is_small || value.is_some() && matches!(table, Table::Names | Table::Inodes)
        })
    }

    /// The changes of a table with keys in a range.
    fn range(&self, table: Table, keys: &Range<Vec<u8>>) -> impl Iterator<Item = (&[u8], &Value)> {
        let keys = (Bound::Included(&keys.start[..]), Bound::Excluded(&keys.end[..]));
        self.tables[table.index()].range::<[u8], _>(keys).map(|(key, value)| (&key[..], value))
    }

    /// Adds older changes, where there is no newer one.
    fn merge_under(&mut self, older: &ChangeSet) {
        for (table, records) in Table::ALL.iter().zip(&older.tables) {
            for (key, value) in records {
                if self.get(*table, key).is_none() {
                    self.set(*table, key.clone(), value.clone());
                }
            }
        }
    }
}

/// The most changes of a small commit.
const MAX_SMALL_COMMIT: u64 = 256;
/// Approximate size of a group's inodes in the cache.
const GROUP_BYTES: usize = 64 << 10;

/// Changes that are not committed: those being committed, and newer ones. Also a bounded cache of
/// unchanged records.
#[derive(Debug)]
pub(crate) struct Overlay {
    current: ChangeSet,
    committing: Option<Arc<ChangeSet>>,
    /// Also has groups of inodes without extended attributes, as a key of [`GROUP_KEY_BYTES`] without a value.
    cache: RecordCache,
    /// Records of inodes that the next commit needs, whether or not the cache has them.
    for_commit: BTreeMap<Box<[u8]>, Value>,
    inode_readahead: GroupReadahead,
    xattr_readahead: GroupReadahead,
    /// Watches of readers, and some that are no longer used.
    watches: Vec<Weak<RangeWatch>>,
    /// How often names have changed.
    name_changes: u64,
}

/// The changes of some records that were committed since a read of the catalog began. Merged over
/// the result of the read, whenever it happened, they give the committed records. So concurrent
/// commits never make a read start again.
#[derive(Debug)]
pub(crate) struct RangeWatch {
    table: Table,
    keys: Range<Vec<u8>>,
    since: Mutex<ChangeSet>,
}

/// The state of a record in memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup<'a> {
    /// The current value.
    Value(&'a [u8]),
    /// The record does not exist.
    Absent,
    /// Only the catalog knows.
    Unknown,
}

impl Overlay {
    /// An empty overlay. Cached records take at most `cache_bytes` bytes.
    pub(crate) fn new(cache_bytes: usize) -> Overlay {
        Overlay {
            current: ChangeSet::default(),
            committing: None,
            cache: RecordCache::new(cache_bytes),
            for_commit: BTreeMap::new(),
            inode_readahead: GroupReadahead::default(),
            xattr_readahead: GroupReadahead::default(),
            watches: Vec::new(),
            name_changes: 0,
        }
    }

    /// Applies changes.
    pub(crate) fn apply(&mut self, changes: ChangeSet) {
        self.name_changes += u64::from(!changes.tables[Table::Names.index()].is_empty());
        for (table, records) in Table::ALL.iter().zip(changes.tables) {
            for (key, value) in records {
                self.cache.remove(*table, &key);
                if *table == Table::Inodes {
                    self.for_commit.remove(&key);
                }
                if *table == Table::Xattrs {
                    self.cache.remove(*table, &key[..GROUP_KEY_BYTES]);
                }
                self.current.set(*table, key, value);
            }
        }
    }

    /// How often names have changed, in any directory.
    pub(crate) fn name_changes(&self) -> u64 {
        self.name_changes
    }

    /// Size of the changes that no commit has taken yet.
    pub(crate) fn current_size(&self) -> BatchSize {
        self.current.size()
    }

    /// Size of all uncommitted changes.
    pub(crate) fn size(&self) -> BatchSize {
        self.committing.as_ref().map_or(BatchSize::default(), |changes| changes.size())
            + self.current_size()
    }

    /// Watches these records. Call it before reading them from the catalog.
    pub(crate) fn watch(&mut self, table: Table, keys: Range<Vec<u8>>) -> Arc<RangeWatch> {
        if self.watches.len() == self.watches.capacity() {
            self.watches.retain(|watch| watch.strong_count() > 0);
            // Doubles the capacity, so that each call pays for the scan of a few entries.
            self.watches.reserve(self.watches.len() + 1);
        }
        let watch = Arc::new(RangeWatch::new(table, keys));
        self.watches.push(Arc::downgrade(&watch));
        watch
    }

    /// The state of a record.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Lookup<'_> {
        let kept = || {
            let kept = self.for_commit.get(key).filter(|_| table == Table::Inodes);
            kept.map(Option::as_deref)
        };
        let changed = self.changed(table, key).map(Option::as_deref);
        match changed.or_else(|| self.cache.get(table, key)).or_else(kept) {
            Some(Some(value)) => Lookup::Value(value),
            Some(None) => Lookup::Absent,
            None if self.has_none_of(table, key) => Lookup::Absent,
            None => Lookup::Unknown,
        }
    }

    /// Whether it is known that the inode of a key has no record in a table.
    pub(crate) fn has_none_of(&self, table: Table, key: &[u8]) -> bool {
        table == Table::Xattrs && self.cache.get(table, &key[..GROUP_KEY_BYTES]).is_some()
    }

    /// Notes that records from a key on are read from the catalog. Returns a watch of the group that is to be read
    /// with them, if any.
    pub(crate) fn watch_group(&mut self, table: Table, key: &[u8]) -> Option<Arc<RangeWatch>> {
        if self.cache.max_bytes_ahead() < GROUP_BYTES {
            return None;
        }
        let keys = self.readahead(table)?.miss(key)?;
        Some(self.watch(table, keys))
    }

    fn readahead(&mut self, table: Table) -> Option<&mut GroupReadahead> {
        match table {
            Table::Inodes => Some(&mut self.inode_readahead),
            Table::Xattrs => Some(&mut self.xattr_readahead),
            _ => None,
        }
    }

    /// Caches the value that the catalog returned for the one watched record.
    pub(crate) fn insert_read(&mut self, watch: &RangeWatch, value: Option<Vec<u8>>) {
        if let Some(value) = self.value_now(watch, &watch.keys.start, value) {
            self.cache.insert(watch.table, &watch.keys.start, value.as_deref());
        }
    }

    /// Keeps an inode of a watched range until the next commit takes its changes.
    pub(crate) fn keep_for_commit(
        &mut self,
        watch: &RangeWatch,
        key: &[u8],
        value: Option<Vec<u8>>,
    ) {
        if let Some(value) = self.value_now(watch, key, value) {
            self.for_commit.insert(key.into(), value.map(Vec::into_boxed_slice));
        }
    }

    /// Caches what the catalog returned for a watched group: its inodes, or that there are no extended attributes. If
    /// that cannot be, the group is not read again.
    pub(crate) fn insert_group(
        &mut self,
        watch: &RangeWatch,
        found: Result<Vec<ScanEntry>, Error>,
    ) {
        let (table, group) = (watch.table, &watch.keys.start);
        match found {
            Ok(found) if table == Table::Inodes => {
                let read =
                    found.into_iter().filter_map(|inode| Some((inode.key, inode.value.ok()?)));
                self.insert_ahead(watch, read);
            }
            Ok(found) if found.is_empty() => {
                if self.is_unchanged(watch) {
                    self.cache.insert(table, group, None);
                }
            }
            _ => {
                if let Some(readahead) = self.readahead(table) {
                    readahead.exclude(group);
                }
            }
        }
    }

    /// Caches records of a watched range that are likely to be needed, up to a part of the cache. They are the
    /// catalog's at some moment since the watch began, or newer.
    pub(crate) fn insert_ahead(
        &mut self,
        watch: &RangeWatch,
        records: impl IntoIterator<Item = Record>,
    ) {
        let mut room = self.cache.max_bytes_ahead();
        for (key, value) in records {
            if self.cache.contains(watch.table, &key) {
                continue;
            }
            let Some(left) = room.checked_sub(record_bytes(&key, Some(&value))) else { break };
            room = left;
            if let Some(value) = self.value_now(watch, &key, Some(value)) {
                self.cache.insert_unused(watch.table, &key, value.as_deref());
            }
        }
    }

    /// The catalog's value of a watched record that was read as `value`. `None` if a change is to be committed yet.
    fn value_now(
        &self,
        watch: &RangeWatch,
        key: &[u8],
        value: Option<Vec<u8>>,
    ) -> Option<Option<Vec<u8>>> {
        if self.changed(watch.table, key).is_some() {
            return None;
        }
        let newer = watch.since.lock().get(watch.table, key).cloned();
        Some(newer.map_or(value, |newer| newer.map(Vec::from)))
    }

    /// Caches records of a commit that the catalog has now.
    pub(crate) fn insert_committed<'a>(
        &mut self,
        records: impl IntoIterator<Item = (Table, &'a [u8], Option<&'a [u8]>)>,
    ) {
        for (table, key, value) in records {
            if self.current.get(table, key).is_none() {
                self.cache.insert_unused(table, key, value);
            }
        }
    }

    /// Whether the watched records are those that the catalog had when the watch began.
    fn is_unchanged(&self, watch: &RangeWatch) -> bool {
        let since = watch.since.lock();
        let mut layers = [&*since, &self.current].into_iter().chain(self.committing.as_deref());
        layers.all(|changes| changes.range(watch.table, &watch.keys).next().is_none())
    }

    fn changed(&self, table: Table, key: &[u8]) -> Option<&Value> {
        let older = || self.committing.as_ref().and_then(|changes| changes.get(table, key));
        self.current.get(table, key).or_else(older)
    }

    /// Merges all changes over `records`, `own` last. `records` are all that the catalog had in
    /// `keys`, in order, at some moment since the watch began.
    pub(crate) fn merge_over(
        &self,
        own: &ChangeSet,
        watch: &RangeWatch,
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

    /// Takes the changes to commit. Reads still see them until [`Self::end_commit`].
    pub(crate) fn begin_commit(&mut self) -> Arc<ChangeSet> {
        assert!(self.committing.is_none(), "one commit at a time");
        self.for_commit.clear();
        let changes = Arc::new(std::mem::take(&mut self.current));
        self.committing = Some(changes.clone());
        changes
    }

    /// The catalog has the changes now.
    pub(crate) fn end_commit(&mut self) {
        let Some(committed) = self.committing.take() else { return };
        self.watches.retain(|watch| match watch.upgrade() {
            Some(watch) => {
                watch.note(&committed);
                true
            }
            None => false,
        });
    }

    /// The commit failed with nothing changed. Its changes wait for the next commit.
    pub(crate) fn undo_commit(&mut self) {
        if let Some(changes) = self.committing.take() {
            self.current.merge_under(&changes);
        }
    }
}

impl RangeWatch {
    /// The table, and the first key.
    pub(crate) fn start(&self) -> (Table, &[u8]) {
        (self.table, &self.keys.start)
    }

    /// A watch of records without commits so far.
    pub(crate) fn new(table: Table, keys: Range<Vec<u8>>) -> RangeWatch {
        RangeWatch { table, keys, since: Mutex::default() }
    }

    /// Whether one of the records was changed by a commit since.
    pub(crate) fn has_changes(&self) -> bool {
        self.since.lock().size.changes > 0
    }

    fn note(&self, committed: &ChangeSet) {
        let mut since = self.since.lock();
        for (key, value) in committed.range(self.table, &self.keys) {
            since.set(self.table, key.into(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of directory 7 in a range, merged over those of the catalog.
    fn merged(overlay: &mut Overlay, between: Range<&str>, catalog: &[&str]) -> String {
        let keys = name(between.start).bytes()..name(between.end).bytes();
        let watch = overlay.watch(Table::Names, keys);
        merged_since(overlay, &watch, catalog)
    }

    fn merged_since(overlay: &Overlay, watch: &RangeWatch, catalog: &[&str]) -> String {
        let records = catalog.iter().map(|key| (name(key).bytes(), b"old".to_vec()));
        let records: Vec<Record> = records.collect();
        let merged = overlay.merge_over(&ChangeSet::default(), watch, &watch.keys, &records);
        let words = merged.iter().map(|(key, value)| {
            format!("{}={}", String::from_utf8_lossy(&key[8..]), String::from_utf8_lossy(value))
        });
        words.collect::<Vec<_>>().join(" ")
    }

    fn name(name: &str) -> Key<'_> {
        Key::Name(7, name.as_bytes())
    }

    fn put(overlay: &mut Overlay, key: Key<'_>, value: &str) {
        let mut changes = ChangeSet::default();
        changes.put(key, value.as_bytes().to_vec());
        overlay.apply(changes);
    }

    fn delete(overlay: &mut Overlay, key: Key<'_>) {
        let mut changes = ChangeSet::default();
        changes.delete(key);
        overlay.apply(changes);
    }

    fn end_commit(overlay: &mut Overlay) {
        let committed = overlay.committing.clone().unwrap();
        overlay.insert_committed(committed.to_cache());
        overlay.end_commit();
    }

    fn known<'a>(overlay: &'a Overlay, key: Key<'_>) -> Lookup<'a> {
        overlay.get(key.table(), &key.bytes())
    }

    #[test]
    fn reads_see_the_newest_change_and_small_commits_stay_cached() {
        let mut overlay = Overlay::new(1 << 20);
        put(&mut overlay, name("a"), "1");
        put(&mut overlay, name("b"), "1");
        let committing = overlay.begin_commit();
        assert_eq!(committing.size(), BatchSize { changes: 2, bytes: 2 * (8 + 1 + 1) });
        delete(&mut overlay, name("a"));
        assert_eq!(known(&overlay, name("a")), Lookup::Absent);
        assert_eq!(known(&overlay, name("b")), Lookup::Value(b"1"));
        assert_eq!(known(&overlay, Key::Xattr(7, b"b")), Lookup::Unknown);
        end_commit(&mut overlay);
        assert_eq!(known(&overlay, name("b")), Lookup::Value(b"1"));
        assert_eq!(
            (known(&overlay, name("a")), overlay.current_size().changes),
            (Lookup::Absent, 1)
        );
        overlay.begin_commit();
        end_commit(&mut overlay);
        assert_eq!(known(&overlay, name("a")), Lookup::Absent);
    }

    #[test]
    fn of_a_large_commit_names_and_inodes_that_exist_stay_cached() {
        let mut overlay = Overlay::new(1 << 20);
        for n in 0..=MAX_SMALL_COMMIT {
            put(&mut overlay, Key::Inode(n), "1");
        }
        put(&mut overlay, name("a"), "1");
        put(&mut overlay, Key::Xattr(7, b"a"), "1");
        delete(&mut overlay, name("b"));
        overlay.begin_commit();
        put(&mut overlay, Key::Inode(1), "2");
        end_commit(&mut overlay);
        assert_eq!(known(&overlay, Key::Inode(0)), Lookup::Value(b"1"));
        assert_eq!(known(&overlay, Key::Inode(1)), Lookup::Value(b"2"));
        assert_eq!(known(&overlay, name("a")), Lookup::Value(b"1"));
        assert_eq!(known(&overlay, name("b")), Lookup::Unknown);
        assert_eq!(known(&overlay, Key::Xattr(7, b"a")), Lookup::Unknown);
        // The change that superseded it is not committed.
        overlay.current = ChangeSet::default();
        assert_eq!(known(&overlay, Key::Inode(1)), Lookup::Unknown);
    }

    #[test]
    fn changes_of_a_failed_commit_merge_under_newer_ones() {
        let mut overlay = Overlay::new(1 << 20);
        put(&mut overlay, name("a"), "old");
        put(&mut overlay, name("b"), "old");
        delete(&mut overlay, name("c"));
        overlay.begin_commit();
        delete(&mut overlay, name("a"));
        overlay.undo_commit();
        let changes = overlay.begin_commit();
        assert_eq!(changes.size(), BatchSize { changes: 3, bytes: 3 * (8 + 1) + 3 });
        assert_eq!(merged(&mut overlay, "a".."d", &["a", "c"]), "b=old");
    }

    #[test]
    fn changes_merge_over_the_catalogs_records_in_order() {
        let mut overlay = Overlay::new(1 << 20);
        put(&mut overlay, name("b"), "1");
        delete(&mut overlay, name("d"));
        overlay.begin_commit();
        put(&mut overlay, name("b"), "2");
        put(&mut overlay, name("d"), "2");
        delete(&mut overlay, name("c"));
        put(&mut overlay, name("z"), "2");
        put(&mut overlay, Key::Xattr(7, b"bb"), "2");
        put(&mut overlay, Key::Name(8, b"bb"), "2");
        assert_eq!(merged(&mut overlay, "a".."zz", &["a", "c", "e"]), "a=old b=2 d=2 e=old z=2");
        assert_eq!(merged(&mut overlay, "a".."e", &["a", "c"]), "a=old b=2 d=2");
        assert_eq!(merged(&mut overlay, "c".."zz", &[]), "d=2 z=2");
        assert_eq!(merged(&mut overlay, "e".."y", &["e"]), "e=old");
    }

    #[test]
    fn a_read_merges_commits_that_happened_meanwhile() {
        let mut overlay = Overlay::new(1 << 20);
        let watch = overlay.watch(Table::Names, name("a").bytes()..name("z").bytes());
        for (key, value) in [("a", "1"), ("b", "1"), ("z", "1")] {
            put(&mut overlay, name(key), value);
        }
        overlay.begin_commit();
        delete(&mut overlay, name("b"));
        end_commit(&mut overlay);
        overlay.begin_commit();
        put(&mut overlay, name("c"), "2");
        end_commit(&mut overlay);
        // The catalog was read before the two commits, between them, or after them.
        for catalog in [&["b", "c", "d"][..], &["a", "b", "c", "d"], &["a", "d"]] {
            assert_eq!(
                merged_since(&overlay, &watch, catalog).replace("a=old", "a=1"),
                "a=1 c=2 d=old"
            );
        }
        assert_eq!(merged(&mut overlay, "a".."z", &["a"]), "a=old c=2");
    }

    #[test]
    fn an_old_read_never_replaces_a_newer_value() {
        let mut overlay = Overlay::new(1 << 20);
        let watched = |overlay: &mut Overlay| {
            let key = name("a").bytes();
            overlay.watch(Table::Names, key.clone()..[&key[..], &[0]].concat())
        };
        let old = watched(&mut overlay);
        overlay.insert_read(&old, None);
        assert_eq!(known(&overlay, name("a")), Lookup::Absent);
        // A value that was read before a change and arrives after it is old.
        put(&mut overlay, name("a"), "new");
        overlay.insert_read(&old, None);
        assert_eq!(known(&overlay, name("a")), Lookup::Value(b"new"));
        overlay.begin_commit();
        overlay.insert_read(&old, None);
        end_commit(&mut overlay);
        // The cached record may be evicted.
        overlay.cache.remove(Table::Names, &name("a").bytes());
        assert_eq!(known(&overlay, name("a")), Lookup::Unknown);
        overlay.insert_read(&old, None);
        assert_eq!(known(&overlay, name("a")), Lookup::Value(b"new"));
        let new = watched(&mut overlay);
        overlay.insert_read(&new, Some(b"newer".to_vec()));
        assert_eq!(known(&overlay, name("a")), Lookup::Value(b"newer"));
    }

    #[test]
    fn unused_watches_are_dropped() {
        let mut overlay = Overlay::new(1 << 20);
        let watch = |overlay: &mut Overlay| overlay.watch(Table::Names, vec![0]..vec![1]);
        let held: Vec<_> = (0..10).map(|_| watch(&mut overlay)).collect();
        for _ in 0..1000 {
            watch(&mut overlay);
        }
        assert!(overlay.watches.len() < 50, "{}", overlay.watches.len());
        overlay.begin_commit();
        end_commit(&mut overlay);
        assert_eq!(overlay.watches.len(), held.len());
    }

    fn inode(number: u64) -> Record {
        (Key::Inode(number).bytes(), vec![number as u8])
    }

    #[test]
    fn records_read_ahead_do_not_replace_newer_ones() {
        let mut overlay = Overlay::new(1 << 20);
        let watch = overlay.watch(Table::Inodes, vec![0; 7]..vec![0, 0, 0, 0, 0, 0, 1]);
        put(&mut overlay, Key::Inode(1), "committed");
        delete(&mut overlay, Key::Inode(2));
        for other in 300..=300 + MAX_SMALL_COMMIT {
            put(&mut overlay, Key::Inode(other), "");
        }
        overlay.begin_commit();
        end_commit(&mut overlay);
        put(&mut overlay, Key::Inode(3), "new");
        overlay.insert_ahead(&watch, (1..5).map(inode));
        assert_eq!(known(&overlay, Key::Inode(1)), Lookup::Value(b"committed"));
        assert_eq!(known(&overlay, Key::Inode(2)), Lookup::Absent);
        assert_eq!(known(&overlay, Key::Inode(3)), Lookup::Value(b"new"));
        assert_eq!(known(&overlay, Key::Inode(4)), Lookup::Value(&[4]));
        assert_eq!(known(&overlay, Key::Inode(5)), Lookup::Unknown);
    }

    #[test]
    fn one_read_ahead_takes_a_part_of_the_cache() {
        let mut overlay = Overlay::new(1 << 20);
        let watch = overlay.watch(Table::Inodes, Key::Inode(0).bytes()..Key::Inode(9999).bytes());
        overlay.insert_ahead(&watch, (0..5000).map(inode));
        let cached = |number: &u64| known(&overlay, Key::Inode(*number)) != Lookup::Unknown;
        let count = (0..5000).filter(cached).count();
        assert!((100..1000).contains(&count) && (0..count as u64).all(|number| cached(&number)));
        // A cache without room for a group reads none.
        let mut overlay = Overlay::new(100_000);
        for _ in 0..4 {
            assert!(overlay.watch_group(Table::Inodes, &Key::Inode(1).bytes()).is_none());
        }
    }

    /// A watch of the group of inodes 0 to 255, which two misses begin.
    fn group(overlay: &mut Overlay, table: Table) -> Option<Arc<RangeWatch>> {
        assert!(overlay.watch_group(table, &Key::Inode(1).bytes()).is_none());
        overlay.watch_group(table, &Key::Inode(2).bytes())
    }

    #[test]
    fn a_group_without_attributes_is_known_until_one_is_set() {
        let (one, other) = (Key::Xattr(7, b"user.a"), Key::Xattr(9, b"user.b"));
        let mut overlay = Overlay::new(1 << 20);
        let watch = group(&mut overlay, Table::Xattrs).unwrap();
        assert_eq!(known(&overlay, one), Lookup::Unknown);
        overlay.insert_group(&watch, Ok(Vec::new()));
        assert_eq!(known(&overlay, one), Lookup::Absent);
        assert_eq!(known(&overlay, Key::Xattr(256, b"user.a")), Lookup::Unknown);
        assert_eq!(known(&overlay, Key::Inode(7)), Lookup::Unknown);
        put(&mut overlay, one, "1");
        assert_eq!(known(&overlay, one), Lookup::Value(b"1"));
        assert_eq!(known(&overlay, other), Lookup::Unknown);
        // Not while the change is uncommitted, nor if it was committed during the read.
        for step in 0..3 {
            match step {
                1 => drop(overlay.begin_commit()),
                2 => end_commit(&mut overlay),
                _ => {}
            }
            overlay.insert_group(&watch, Ok(Vec::new()));
            assert_eq!(known(&overlay, other), Lookup::Unknown, "{step}");
        }
    }

    #[test]
    fn a_group_that_cannot_be_used_is_read_once() {
        let damage = || Error::damaged("as a test says");
        for table in [Table::Inodes, Table::Xattrs] {
            let mut overlay = Overlay::new(1 << 20);
            let watch = group(&mut overlay, table).unwrap();
            overlay.insert_group(&watch, Err(damage()));
            assert!(group(&mut overlay, table).is_none());
        }
        let mut overlay = Overlay::new(1 << 20);
        let some = ScanEntry { key: Key::Xattr(7, b"user.a").bytes(), value: Err(damage()) };
        let watch = group(&mut overlay, Table::Xattrs).unwrap();
        overlay.insert_group(&watch, Ok(vec![some]));
        assert_eq!(known(&overlay, Key::Xattr(9, b"user.b")), Lookup::Unknown);
        assert!(group(&mut overlay, Table::Xattrs).is_none());
        // A damaged inode does not hide its neighbours.
        let mut overlay = Overlay::new(1 << 20);
        let watch = group(&mut overlay, Table::Inodes).unwrap();
        let inodes = [(5, Err(damage())), (6, Ok(vec![6]))];
        let found = inodes.map(|(number, value)| ScanEntry { key: inode(number).0, value });
        overlay.insert_group(&watch, Ok(found.into()));
        assert_eq!(known(&overlay, Key::Inode(5)), Lookup::Unknown);
        assert_eq!(known(&overlay, Key::Inode(6)), Lookup::Value(&[6]));
        assert!(group(&mut overlay, Table::Inodes).is_some());
    }
}
