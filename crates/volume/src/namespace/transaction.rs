//! [`Transaction`]: the records that one operation reads and changes. It reads from memory, and collects its changes
//! until the operation has succeeded, so that all of them apply or none. If a record is not in memory the operation
//! stops, the catalog is read, and the operation runs again. Nothing here waits.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use uringfs_device::Errno;

use crate::catalog::{Key, Record, Table};
use crate::error::Error;
use crate::namespace::pins::Pins;
use crate::open_file::open_file::OpenFile;
use crate::open_file::uncommitted::InodeDelta;
use crate::records::inode::{Inode, InodeNumber};
use crate::records::overlay::{ChangeSet, Lookup, Overlay, RangeWatch};
use crate::space::allocator::InvalidRegion;

/// The most records in a chunk: the part of an inode's records that one read returns.
pub(crate) const CHUNK_RECORDS: usize = 1024;

/// Why an operation did not succeed. It has changed nothing.
#[derive(Debug)]
pub(crate) enum Retry {
    /// It fails.
    Fail(Error),
    /// Run it again after this read of the catalog.
    NeedsRead(ReadRequest),
    /// Run it again after a commit.
    NeedsCommit,
}

impl Retry {
    /// Adds the path that a failure is about.
    pub(crate) fn of_path(self, path: &[u8]) -> Retry {
        match self {
            Retry::Fail(error) => Retry::Fail(error.of_path(path)),
            again => again,
        }
    }
}

impl From<Error> for Retry {
    fn from(error: Error) -> Retry {
        Retry::Fail(error)
    }
}

impl From<InvalidRegion> for Retry {
    fn from(flaw: InvalidRegion) -> Retry {
        Retry::Fail(flaw.into())
    }
}

/// Records that are not in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReadRequest {
    /// One record.
    Record { table: Table, key: Vec<u8> },
    /// Up to [`CHUNK_RECORDS`] records of an inode, from a key on.
    Chunk { table: Table, inode: InodeNumber, from: Vec<u8> },
    /// All records of an inode.
    All { table: Table, inode: InodeNumber },
}

impl ReadRequest {
    /// The table, and the range of keys.
    pub(crate) fn keys(&self) -> (Table, Range<Vec<u8>>) {
        match self {
            ReadRequest::Record { table, key } => (*table, key.clone()..[key, &[0][..]].concat()),
            ReadRequest::Chunk { table, inode, from } => (*table, from.clone()..end_of(*inode)),
            ReadRequest::All { table, inode } => {
                (*table, inode.0.to_be_bytes().into()..end_of(*inode))
            }
        }
    }
}

/// Records that were read from the catalog for one operation. They stay until it ends, however small the cache of records is.
#[derive(Debug, Default)]
pub(crate) struct ReadResults {
    pub(crate) reads: HashMap<ReadRequest, ReadResult>,
    /// Decide without another commit: the retry limit is reached, or a commit had no room.
    pub(crate) is_last_try: bool,
}

/// Records that were read. Newer changes are in `watch`, if a commit took them, or in the overlay.
#[derive(Debug)]
pub(crate) struct ReadResult {
    pub(crate) records: Vec<Record>,
    /// The key where more may follow.
    pub(crate) next: Option<Vec<u8>>,
    pub(crate) watch: Arc<RangeWatch>,
}

/// An inode without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orphan(pub(crate) InodeNumber);

/// The volume's records in memory, under the changes of one operation.
pub(crate) struct Transaction<'v> {
    overlay: &'v Overlay,
    open: &'v HashMap<InodeNumber, Weak<OpenFile>>,
    pub(crate) pins: &'v Pins,
    results: &'v ReadResults,
    /// The catalog has no inode from this number on.
    first_uncommitted_inode: u64,
    pub(crate) effects: TransactionEffects,
}

/// The changes of an operation.
#[derive(Default)]
pub(crate) struct TransactionEffects {
    pub(crate) changes: ChangeSet,
    /// The number of the next new inode.
    pub(crate) next_inode: u64,
    pub(crate) orphans: Vec<Orphan>,
    /// An inode that was created without a name and gets its first one.
    pub(crate) named: Option<Orphan>,
    /// An inode that was put with the delta of its open file applied.
    pub(crate) delta_applied: Option<(Arc<OpenFile>, Inode, InodeDelta)>,
}

impl<'v> Transaction<'v> {
    pub(crate) fn new(
        overlay: &'v Overlay,
        open: &'v HashMap<InodeNumber, Weak<OpenFile>>,
        pins: &'v Pins,
        results: &'v ReadResults,
        first_uncommitted_inode: u64,
        next_inode: u64,
    ) -> Transaction<'v> {
        let effects = TransactionEffects { next_inode, ..TransactionEffects::default() };
        Transaction { overlay, open, pins, results, first_uncommitted_inode, effects }
    }

    /// The current value of a record.
    pub(crate) fn get(&self, key: Key<'_>) -> Result<Option<&[u8]>, Retry> {
        let (table, bytes) = (key.table(), key.bytes());
        match self.effects.changes.get(table, &bytes) {
            Some(value) => Ok(value.as_deref()),
            None => match self.overlay.cached(table, bytes) {
                Err(Retry::NeedsRead(_)) if self.is_new(key.inode()) => Ok(None),
                Err(Retry::NeedsRead(request)) => self.read_record(request),
                known => known,
            },
        }
    }

    /// True if the inode is newer than the last commit, so that the catalog has no record of it.
    fn is_new(&self, inode: Option<u64>) -> bool {
        inode.is_some_and(|inode| inode >= self.first_uncommitted_inode)
    }

    pub(crate) fn put(&mut self, key: Key<'_>, value: Vec<u8>) {
        self.effects.changes.put(key, value);
    }

    pub(crate) fn delete(&mut self, key: Key<'_>) {
        self.effects.changes.delete(key);
    }

    /// A chunk of an inode's records from a key on, in order, and the key where more may follow.
    pub(crate) fn chunk(
        &self,
        table: Table,
        inode: InodeNumber,
        from: Vec<u8>,
    ) -> Result<(Vec<Record>, Option<Vec<u8>>), Retry> {
        if self.has_none_of(table, inode) {
            return Ok((self.changes_alone(table, from..end_of(inode)), None));
        }
        let found = self.read_result(ReadRequest::Chunk { table, inode, from: from.clone() })?;
        // Changes after the last record belong to the next chunk.
        let end = found.next.clone().unwrap_or_else(|| end_of(inode));
        Ok((self.with_changes(found, from..end), found.next.clone()))
    }

    /// All records of an inode in a table, in order.
    pub(crate) fn all(&self, table: Table, inode: InodeNumber) -> Result<Vec<Record>, Retry> {
        let keys = inode.0.to_be_bytes().to_vec()..end_of(inode);
        if self.is_new(Some(inode.0)) || self.has_none_of(table, inode) {
            return Ok(self.changes_alone(table, keys));
        }
        let found = self.read_result(ReadRequest::All { table, inode })?;
        Ok(self.with_changes(found, keys))
    }

    fn has_none_of(&self, table: Table, inode: InodeNumber) -> bool {
        self.overlay.has_none_of(table, &inode.0.to_be_bytes())
    }

    /// The records of an inode of which the catalog has none.
    fn changes_alone(&self, table: Table, keys: Range<Vec<u8>>) -> Vec<Record> {
        let nothing = RangeWatch::new(table, keys.clone());
        self.overlay.merge_over(&self.effects.changes, &nothing, &keys, &[])
    }

    fn with_changes(&self, found: &ReadResult, keys: Range<Vec<u8>>) -> Vec<Record> {
        self.overlay.merge_over(&self.effects.changes, &found.watch, &keys, &found.records)
    }

    fn read_result(&self, request: ReadRequest) -> Result<&'v ReadResult, Retry> {
        self.results.reads.get(&request).ok_or(Retry::NeedsRead(request))
    }

    /// A record that memory had, and has evicted again.
    fn read_record(&self, request: ReadRequest) -> Result<Option<&'v [u8]>, Retry> {
        let found = self.read_result(request.clone())?;
        match found.watch.has_changes() {
            true => Err(Retry::NeedsRead(request)),
            false => Ok(found.records.first().map(|(_, value)| &value[..])),
        }
    }

    /// The inode as its record has it.
    ///
    /// # Errors
    /// ENOENT when there is none; errors of the catalog.
    pub(crate) fn inode(&self, number: InodeNumber) -> Result<Inode, Retry> {
        match self.get(Key::Inode(number.0))? {
            Some(record) => {
                let inode = Inode::from_record(record);
                Ok(inode.map_err(|error| error.context(format!("inode {}", number.0)))?)
            }
            None => {
                let what = format!("there is no inode {}", number.0);
                Err(Error::refused(Errno::NOENT, what).into())
            }
        }
    }

    /// The inode with the newer fields of its open file.
    ///
    /// # Errors
    /// As [`Self::inode`].
    pub(crate) fn current_inode(&self, number: InodeNumber) -> Result<Inode, Retry> {
        let mut inode = self.inode(number)?;
        if let Some(open) = self.find_open(number) {
            open.shown_delta().apply_to(&mut inode);
            inode.size = open.size();
            inode.blocks += open.delayed_blocks();
        }
        Ok(inode)
    }

    /// Changes an inode, with the newer fields of its open file applied first.
    ///
    /// # Errors
    /// As [`Self::inode`].
    pub(crate) fn change_inode(
        &mut self,
        number: InodeNumber,
        change: impl FnOnce(&mut Inode),
    ) -> Result<(), Retry> {
        let mut inode = self.inode(number)?;
        // Reads and writes of the file go on meanwhile: take the delta once.
        let open = self.find_open(number).map(|open| (open.inode_delta(), open));
        if let Some((delta, _)) = &open {
            delta.apply_to(&mut inode);
        }
        change(&mut inode);
        self.put_inode(number, &inode);
        self.effects.delta_applied = open.map(|(delta, open)| (open, inode, delta));
        Ok(())
    }

    pub(crate) fn put_inode(&mut self, number: InodeNumber, inode: &Inode) {
        self.put(Key::Inode(number.0), inode.to_record());
    }

    /// The file, if it is open.
    pub(crate) fn find_open(&self, number: InodeNumber) -> Option<Arc<OpenFile>> {
        self.open.get(&number).and_then(Weak::upgrade)
    }
}

impl Overlay {
    /// The current value of a record, if memory knows it.
    pub(crate) fn cached(&self, table: Table, key: Vec<u8>) -> Result<Option<&[u8]>, Retry> {
        match self.get(table, &key) {
            Lookup::Value(value) => Ok(Some(value)),
            Lookup::Absent => Ok(None),
            Lookup::Unknown => Err(Retry::NeedsRead(ReadRequest::Record { table, key })),
        }
    }
}

/// The first key after those of an inode.
fn end_of(inode: InodeNumber) -> Vec<u8> {
    (inode.0 + 1).to_be_bytes().to_vec()
}
