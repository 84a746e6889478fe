//! Records that would be right, as a repair commits them.

use std::collections::BTreeMap;

use crate::catalog::{Batch, Key, Table};

/// Bytes of keys and values that are committed at once, about.
pub(super) const BATCH_BYTES: usize = 256 << 10;

/// A record, and its value; none where it is to go.
pub(super) type Change = ((Table, Vec<u8>), Option<Vec<u8>>);

/// A record that is to be so.
pub(super) fn put(key: Key<'_>, value: Vec<u8>) -> Change {
    ((key.table(), key.bytes()), Some(value))
}

/// A record that is to go.
pub(super) fn delete(key: Key<'_>) -> Change {
    ((key.table(), key.bytes()), None)
}

/// Records that are to be others, or to go.
pub(super) type Fixes = BTreeMap<(Table, Vec<u8>), Option<Vec<u8>>>;

/// Repairs in parts that the catalog takes well.
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
