//! A cache of catalog records, bounded in bytes.

use std::cell::Cell;
use std::hash::{Hash, Hasher};

use indexmap::{Equivalent, IndexSet};

use crate::catalog::Table;

/// The most used records that the hand passes before it evicts one.
const MAX_PASSED: usize = 64;

/// Some of the catalog's records, and some keys without a record.
///
/// Eviction is CLOCK: a hand goes round, evicts what was not used since it last came by, and spares the rest.
#[derive(Debug)]
pub(crate) struct RecordCache {
    /// The hand goes in this order. An evicted entry's place is taken by the last one.
    entries: IndexSet<CachedRecord>,
    hand: usize,
    /// Approximate size of the entries.
    bytes: usize,
    /// Limit of `bytes`.
    limit: usize,
}

/// Key and value in one allocation: there may be a million of them.
#[derive(Debug)]
struct CachedRecord {
    bytes: Box<[u8]>,
    key_bytes: u16,
    table: Table,
    /// False if the catalog has no such record.
    has_value: bool,
    is_used: Cell<bool>,
}

/// Bytes of an entry besides key and value: its place in a vector that grows by doubling, its hash, and its allocation.
const ENTRY_OVERHEAD: usize = 2 * size_of::<CachedRecord>() + 32;

impl RecordCache {
    pub(crate) fn new(limit: usize) -> RecordCache {
        RecordCache { entries: IndexSet::new(), hand: 0, bytes: 0, limit }
    }

    /// The value of a record; `Some(None)` if the catalog has none; `None` if this is not cached.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Option<Option<&[u8]>> {
        let entry = self.entries.get(&RecordKey { table, key })?;
        entry.is_used.set(true);
        Some(entry.value())
    }

    /// Whether a record is cached. Does not count as use.
    pub(crate) fn contains(&self, table: Table, key: &[u8]) -> bool {
        self.entries.contains(&RecordKey { table, key })
    }

    /// The most bytes that one read ahead may insert: a part of the cache, so that it does not evict what an operation
    /// has just read.
    pub(crate) fn max_bytes_ahead(&self) -> usize {
        self.limit / 16
    }

    /// Inserts a record that an operation has read.
    pub(crate) fn insert(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        self.insert_unused(table, key, value);
        self.get(table, key);
    }

    /// Inserts a record that may be read. It is evicted before those that were. A longer key than any record has is
    /// not inserted: only a crafted catalog has such keys.
    pub(crate) fn insert_unused(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        let Ok(key_bytes) = u16::try_from(key.len()) else { return };
        self.remove(table, key);
        let bytes = record_bytes(key, value);
        while self.bytes + bytes > self.limit && !self.entries.is_empty() {
            self.evict();
        }
        self.bytes += bytes;
        self.entries.insert(CachedRecord::new(table, (key, key_bytes), value));
    }

    /// Removes a record that is about to change.
    pub(crate) fn remove(&mut self, table: Table, key: &[u8]) {
        if let Some(at) = self.entries.get_index_of(&RecordKey { table, key }) {
            self.remove_at(at);
        }
    }

    fn evict(&mut self) {
        for _ in 0..MAX_PASSED {
            self.hand = if self.hand < self.entries.len() { self.hand } else { 0 };
            if !self.entries[self.hand].is_used.replace(false) {
                break;
            }
            self.hand += 1;
        }
        self.remove_at(self.hand % self.entries.len());
    }

    fn remove_at(&mut self, at: usize) {
        if let Some(entry) = self.entries.swap_remove_index(at) {
            self.bytes -= record_bytes(entry.key(), entry.value());
        }
    }
}

/// Approximate size of a cached record.
pub(crate) fn record_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    key.len() + value.map_or(0, <[u8]>::len) + ENTRY_OVERHEAD
}

impl CachedRecord {
    fn new(table: Table, (key, key_bytes): (&[u8], u16), value: Option<&[u8]>) -> CachedRecord {
        let bytes = [key, value.unwrap_or_default()].concat().into();
        let (has_value, is_used) = (value.is_some(), Cell::new(false));
        CachedRecord { bytes, key_bytes, table, has_value, is_used }
    }

    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes.into()]
    }

    fn value(&self) -> Option<&[u8]> {
        self.has_value.then(|| &self.bytes[self.key_bytes.into()..])
    }

    fn record_key(&self) -> RecordKey<'_> {
        RecordKey { table: self.table, key: self.key() }
    }
}

/// The table and the key, which tell records apart.
#[derive(PartialEq, Eq, Hash)]
struct RecordKey<'a> {
    table: Table,
    key: &'a [u8],
}

impl Equivalent<CachedRecord> for RecordKey<'_> {
    fn equivalent(&self, entry: &CachedRecord) -> bool {
        *self == entry.record_key()
    }
}

impl Hash for CachedRecord {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.record_key().hash(state);
    }
}

impl PartialEq for CachedRecord {
    fn eq(&self, other: &CachedRecord) -> bool {
        self.record_key() == other.record_key()
    }
}

impl Eq for CachedRecord {}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> [u8; 8] {
        number.to_be_bytes()
    }

    #[test]
    fn a_record_in_use_survives_evictions() {
        let mut cache = RecordCache::new(100 * (ENTRY_OVERHEAD + 8 + 4));
        cache.insert(Table::Inodes, &key(0), Some(&[7; 4]));
        for number in 1..10_000 {
            cache.insert(Table::Names, &key(number), None);
            assert!(cache.bytes <= cache.limit);
            assert_eq!(cache.get(Table::Names, &key(number)), Some(None));
            assert_eq!(cache.get(Table::Inodes, &key(0)), Some(Some(&[7; 4][..])), "{number}");
        }
        cache.remove(Table::Inodes, &key(0));
        assert_eq!(cache.get(Table::Inodes, &key(0)), None);
        for table in Table::ALL {
            (0..10_000).for_each(|number| cache.remove(table, &key(number)));
        }
        assert_eq!(cache.bytes, 0);
    }

    #[test]
    fn a_record_larger_than_the_limit_is_cached_alone() {
        let mut cache = RecordCache::new(1000);
        cache.insert(Table::Names, &key(1), None);
        cache.insert(Table::Regions, &key(2), Some(&[0; 4096]));
        assert_eq!(cache.get(Table::Names, &key(1)), None);
        assert_eq!(cache.get(Table::Regions, &key(2)), Some(Some(&[0; 4096][..])));
        cache.insert(Table::Names, &key(1), None);
        assert_eq!(cache.get(Table::Names, &key(1)), Some(None));
    }

    #[test]
    fn used_records_outlive_those_that_nothing_used() {
        let mut cache = RecordCache::new(1000 * (ENTRY_OVERHEAD + 8));
        (0..500).for_each(|number| cache.insert(Table::Names, &key(number), None));
        (500..1400).for_each(|number| cache.insert_unused(Table::Names, &key(number), None));
        let is_cached = |number: &usize| cache.contains(Table::Names, &key(*number));
        let used = (0..500).filter(is_cached).count();
        assert!(used > 400 && (500..1400).filter(is_cached).count() == 1000 - used, "{used}");
    }

    #[test]
    fn an_insertion_into_a_cache_of_used_records_passes_few_of_them() {
        let mut cache = RecordCache::new(1000 * (ENTRY_OVERHEAD + 8));
        (0..1000).for_each(|number| cache.insert(Table::Names, &key(number), None));
        cache.insert(Table::Names, &key(1000), None);
        let used = cache.entries.iter().filter(|entry| entry.is_used.get()).count();
        assert_eq!((cache.entries.len(), used), (1000, 1000 - MAX_PASSED));
    }
}
