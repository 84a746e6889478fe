//! A cache of catalog records, bounded in bytes.

use std::cell::Cell;
use std::collections::HashMap;

use crate::catalog::Table;

/// Some of the catalog's records, and some keys without a record.
#[derive(Debug)]
pub(crate) struct RecordCache {
    tables: [HashMap<Box<[u8]>, CachedRecord>; Table::ALL.len()],
    /// Approximate size of the entries.
    bytes: usize,
    /// Limit of `bytes`.
    limit: usize,
}

#[derive(Debug)]
struct CachedRecord {
    value: Option<Box<[u8]>>,
    /// Hits since the last eviction.
    hits: Cell<u8>,
}

/// Bytes of an entry besides key and value.
const ENTRY_OVERHEAD: usize = size_of::<(Box<[u8]>, CachedRecord)>() + 32;

impl RecordCache {
    pub(crate) fn new(limit: usize) -> RecordCache {
        RecordCache { tables: Default::default(), bytes: 0, limit }
    }

    /// The value of a record; `Some(None)` if the catalog has none; `None` if this is not cached.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Option<Option<&[u8]>> {
        let entry = self.tables[table.index()].get(key)?;
        entry.hits.set(entry.hits.get().saturating_add(1));
        Some(entry.value.as_deref())
    }

    /// Whether a record is cached. Counts as no hit.
    pub(crate) fn contains(&self, table: Table, key: &[u8]) -> bool {
        self.tables[table.index()].contains_key(key)
    }

    /// The most bytes that one read ahead may insert. Some of them fit between two evictions, so that none evicts what
    /// an operation has just read.
    pub(crate) fn max_bytes_ahead(&self) -> usize {
        self.limit / 16
    }

    /// Inserts a record. At the limit, entries with at most one hit since the last eviction are evicted.
    /// If that frees little, all entries are.
    pub(crate) fn insert(&mut self, table: Table, key: Box<[u8]>, value: Option<Box<[u8]>>) {
        self.remove(table, &key);
        let entry = CachedRecord { value, hits: Cell::new(0) };
        let bytes = entry_bytes(&key, &entry);
        if self.bytes + bytes > self.limit {
            // The read that inserted the entry accounts for one hit.
            self.retain(|entry| entry.hits.replace(0) > 1);
            if self.bytes + bytes > self.limit / 4 * 3 {
                self.retain(|_| false);
            }
        }
        self.bytes += bytes;
        self.tables[table.index()].insert(key, entry);
    }

    /// Removes a record that is about to change.
    pub(crate) fn remove(&mut self, table: Table, key: &[u8]) {
        if let Some((key, entry)) = self.tables[table.index()].remove_entry(key) {
            self.bytes -= entry_bytes(&key, &entry);
        }
    }

    fn retain(&mut self, predicate: impl Fn(&CachedRecord) -> bool) {
        let mut bytes = 0;
        for records in &mut self.tables {
            records.retain(|key, entry| {
                let keep = predicate(entry);
                bytes += if keep { entry_bytes(key, entry) } else { 0 };
                keep
            });
        }
        self.bytes = bytes;
    }
}

fn entry_bytes(key: &[u8], entry: &CachedRecord) -> usize {
    record_bytes(key, entry.value.as_deref())
}

/// Approximate size of a cached record.
pub(crate) fn record_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    key.len() + value.map_or(0, <[u8]>::len) + ENTRY_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Box<[u8]> {
        number.to_be_bytes().into()
    }

    #[test]
    fn records_with_many_hits_survive_evictions() {
        let mut cache = RecordCache::new(100 * (ENTRY_OVERHEAD + 8 + 4));
        cache.insert(Table::Inodes, key(0), Some([7; 4].into()));
        for number in 1..10_000 {
            cache.insert(Table::Names, key(number), None);
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
        cache.insert(Table::Names, key(1), None);
        cache.insert(Table::Regions, key(2), Some([0; 4096].into()));
        assert_eq!(cache.get(Table::Names, &key(1)), None);
        assert_eq!(cache.get(Table::Regions, &key(2)), Some(Some(&[0; 4096][..])));
        cache.insert(Table::Names, key(1), None);
        assert_eq!(cache.get(Table::Names, &key(1)), Some(None));
    }
}
