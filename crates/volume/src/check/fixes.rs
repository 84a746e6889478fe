//! Changes of records that a repair commits.

use std::collections::BTreeMap;

use crate::catalog::{Batch, Key, Table};

/// Bytes of keys and values in one commit, approximately.
pub(super) const BATCH_BYTES: usize = 256 << 10;

/// A record's key and its new value; `None` deletes it.
pub(super) type Change = ((Table, Vec<u8>), Option<Vec<u8>>);

/// Sets a record.
pub(super) fn put(key: Key<'_>, value: Vec<u8>) -> Change {
    ((key.table(), key.bytes()), Some(value))
}

/// Deletes a record.
pub(super) fn delete(key: Key<'_>) -> Change {
    ((key.table(), key.bytes()), None)
}

/// All changes of a round, by key.
pub(super) type Fixes = BTreeMap<(Table, Vec<u8>), Option<Vec<u8>>>;

/// Splits the changes into commits of a moderate size.
pub(super) fn batches(fixes: Fixes) -> impl Iterator<Item = Batch> {
    let mut fixes = fixes.into_iter().peekable();
    std::iter::from_fn(move || {
        fixes.peek()?;
        let (mut batch, mut bytes) = (Batch::default(), 0);
        while bytes < BATCH_BYTES
            && let Some(((table, key), value)) = fixes.next()
        {
            bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            batch.change(table, &key, value.as_deref());
        }
        Some(batch)
    })
}
