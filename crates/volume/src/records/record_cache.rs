//! Records as the catalog has them, of those that were asked for last: a bounded number of bytes.

use std::cell::Cell;
use std::collections::HashMap;

use crate::catalog::Table;

/// Some of the catalog's records, and of some keys that it has none.
#[derive(Debug)]
pub(crate) struct RecordCache {
    tables: [HashMap<Box<[u8]>, CachedRecord>; Table::ALL.len()],
    /// What the entries take, about.
    bytes: usize,
    /// What they may take.
    limit: usize,
}

#[derive(Debug)]
struct CachedRecord {
    value: Option<Box<[u8]>>,
    /// How often it was asked for since others had to go.
    hits: Cell<u8>,
}

/// What an entry takes besides its key and value.
const ENTRY_OVERHEAD: usize = size_of::<(Box<[u8]>, CachedRecord)>() + 32;

impl RecordCache {
    pub(crate) fn new(limit: usize) -> RecordCache {
        RecordCache { tables: Default::default(), bytes: 0, limit }
    }

    /// The value of a record, or that there is none; nothing where that is not known here.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Option<Option<&[u8]>> {
        let entry = self.tables[table.index()].get(key)?;
        entry.hits.set(entry.hits.get().saturating_add(1));
        Some(entry.value.as_deref())
    }

    /// At the limit those go that were not asked for again since others last had to; where that makes
    /// little room, all.
    pub(crate) fn insert(&mut self, table: Table, key: Box<[u8]>, value: Option<Box<[u8]>>) {
        self.remove(table, &key);
        let entry = CachedRecord { value, hits: Cell::new(0) };
        let bytes = entry_bytes(&key, &entry);
        if self.bytes + bytes > self.limit {
            // Once is who had it read.
            self.retain(|entry| entry.hits.replace(0) > 1);
            if self.bytes + bytes > self.limit / 4 * 3 {
                self.retain(|_| false);
            }
        }
        self.bytes += bytes;
        self.tables[table.index()].insert(key, entry);
    }

    /// The catalog is going to have another value.
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
    key.len() + entry.value.as_ref().map_or(0, |value| value.len()) + ENTRY_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Box<[u8]> {
        number.to_be_bytes().into()
    }

    #[test]
    fn what_is_asked_for_again_and_again_stays_while_others_come_and_go() {
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
    fn what_is_larger_than_all_room_is_kept_alone() {
        let mut cache = RecordCache::new(1000);
        cache.insert(Table::Names, key(1), None);
        cache.insert(Table::Regions, key(2), Some([0; 4096].into()));
        assert_eq!(cache.get(Table::Names, &key(1)), None);
        assert_eq!(cache.get(Table::Regions, &key(2)), Some(Some(&[0; 4096][..])));
        cache.insert(Table::Names, key(1), None);
        assert_eq!(cache.get(Table::Names, &key(1)), Some(None));
    }
}
