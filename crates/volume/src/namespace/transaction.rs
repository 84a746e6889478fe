//! An operation on records. It reads what memory knows, and what it changes is kept apart until all of
//! it has succeeded: so it happens as a whole or not at all, and where memory does not know something
//! it begins anew when the catalog has been asked. Nothing here waits.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use rustix::io::Errno;

use crate::catalog::{Key, Record, Table};
use crate::error::Error;
use crate::open_file::open_file::{Newer, OpenFile};
use crate::records::inode::{Inode, InodeNumber};
use crate::records::overlay::{Changes, Known, Pending, Watch};
use crate::space::allocator::InvalidRegion;

/// Records that are asked of the catalog at once.
pub(crate) const BATCH: usize = 1024;

/// Why an operation did not come to its end. Nothing has changed.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It cannot be done.
    Refused(Error),
    /// The catalog is to be asked for this first.
    Unknown(Wanted),
    /// What has changed so far is to be committed first.
    Uncommitted,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Refused(error)
    }
}

impl From<InvalidRegion> for Stop {
    fn from(flaw: InvalidRegion) -> Stop {
        Stop::Refused(flaw.into())
    }
}

/// What memory does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// One record.
    Record { table: Table, key: Vec<u8> },
    /// Those of an inode from a key on: [`BATCH`] of them.
    Batch { table: Table, inode: InodeNumber, from: Vec<u8> },
    /// All of an inode.
    All { table: Table, inode: InodeNumber },
}

impl Wanted {
    /// Where it stands.
    pub(crate) fn keys(&self) -> (Table, Range<Vec<u8>>) {
        match self {
            Wanted::Record { table, key } => (*table, key.clone()..[key, &[0][..]].concat()),
            Wanted::Batch { table, inode, from } => (*table, from.clone()..behind(*inode)),
            Wanted::All { table, inode } => (*table, inode.0.to_be_bytes().into()..behind(*inode)),
        }
    }
}

/// What the catalog has answered to this operation, besides single records, which all share.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) batches: Vec<Answered>,
    /// As many commits were waited for as can be: it is decided now.
    pub(crate) has_waited: bool,
}

/// Records that were asked for. Those missing here have been committed since, or are going to go.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) wanted: Wanted,
    pub(crate) records: Vec<Record>,
    /// Where more may follow.
    pub(crate) next: Option<Vec<u8>>,
    pub(crate) watch: Arc<Watch>,
}

/// What has lost its last name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orphan(pub(crate) InodeNumber);

/// The volume's records, as they are now and as an operation has changed them so far.
pub(crate) struct Records<'v> {
    pending: &'v Pending,
    open: &'v HashMap<InodeNumber, Weak<OpenFile>>,
    answers: &'v Answers,
    /// Of inodes from this number on the catalog knows nothing.
    first_new: u64,
    pub(crate) effects: Effects,
}

/// What an operation changes.
#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) changes: Changes,
    /// The number of the next inode that is made.
    pub(crate) next_inode: u64,
    pub(crate) orphans: Vec<Orphan>,
    /// An inode that has what its open file knew better.
    pub(crate) settled: Option<(Arc<OpenFile>, Inode, Newer)>,
}

impl<'v> Records<'v> {
    pub(crate) fn new(
        pending: &'v Pending,
        open: &'v HashMap<InodeNumber, Weak<OpenFile>>,
        answers: &'v Answers,
        first_new: u64,
        next_inode: u64,
    ) -> Records<'v> {
        let effects = Effects { next_inode, ..Effects::default() };
        Records { pending, open, answers, first_new, effects }
    }

    /// A record as it is now.
    pub(crate) fn get(&self, key: Key<'_>) -> Result<Option<Vec<u8>>, Stop> {
        let (table, bytes) = (key.table(), key.bytes());
        match self.effects.changes.get(table, &bytes) {
            Some(value) => Ok(value.as_ref().map(|value| value.to_vec())),
            None => match self.pending.known(table, bytes) {
                Err(Stop::Unknown(_)) if self.is_new(key.inode()) => Ok(None),
                known => known,
            },
        }
    }

    /// Whether an inode was made since the last commit began: there is no need to ask the catalog.
    fn is_new(&self, inode: Option<u64>) -> bool {
        inode.is_some_and(|inode| inode >= self.first_new)
    }

    pub(crate) fn put(&mut self, key: Key<'_>, value: Vec<u8>) {
        self.effects.changes.put(key, value);
    }

    pub(crate) fn delete(&mut self, key: Key<'_>) {
        self.effects.changes.delete(key);
    }

    /// Some of an inode's records from a key on, in order, and where more may follow.
    pub(crate) fn batch(
        &self,
        table: Table,
        inode: InodeNumber,
        from: Vec<u8>,
    ) -> Result<(Vec<Record>, Option<Vec<u8>>), Stop> {
        let found = self.answer(Wanted::Batch { table, inode, from: from.clone() })?;
        // Changes behind the last are told with the records there.
        let end = found.next.clone().unwrap_or_else(|| behind(inode));
        Ok((self.as_now(found, from..end), found.next.clone()))
    }

    /// All of an inode's records in a table, in order.
    pub(crate) fn all(&self, table: Table, inode: InodeNumber) -> Result<Vec<Record>, Stop> {
        let keys = inode.0.to_be_bytes().to_vec()..behind(inode);
        if self.is_new(Some(inode.0)) {
            let nothing = Watch::new(table, keys.clone());
            return Ok(self.pending.lay_over(&self.effects.changes, &nothing, &keys, &[]));
        }
        let found = self.answer(Wanted::All { table, inode })?;
        Ok(self.as_now(found, keys))
    }

    fn as_now(&self, found: &Answered, keys: Range<Vec<u8>>) -> Vec<Record> {
        self.pending.lay_over(&self.effects.changes, &found.watch, &keys, &found.records)
    }

    fn answer(&self, wanted: Wanted) -> Result<&'v Answered, Stop> {
        let mut batches = self.answers.batches.iter();
        batches.find(|answered| answered.wanted == wanted).ok_or(Stop::Unknown(wanted))
    }

    /// An inode as it stands in its record.
    ///
    /// # Errors
    /// ENOENT when there is none; what the catalog says.
    pub(crate) fn inode(&self, number: InodeNumber) -> Result<Inode, Stop> {
        match self.get(Key::Inode(number.0))? {
            Some(record) => {
                let inode = Inode::of_record(&record);
                Ok(inode.map_err(|error| error.of(format!("inode {}", number.0)))?)
            }
            None => {
                let what = format!("there is no inode {}", number.0);
                Err(Error::refused(Errno::NOENT, what).into())
            }
        }
    }

    /// An inode, with what an open file knows better.
    ///
    /// # Errors
    /// As [`Self::inode`].
    pub(crate) fn inode_now(&self, number: InodeNumber) -> Result<Inode, Stop> {
        let mut inode = self.inode(number)?;
        if let Some(open) = self.opened(number) {
            open.newer().lay_over(&mut inode);
            inode.size = open.size();
        }
        Ok(inode)
    }

    /// Changes an inode, with what an open file knows better.
    ///
    /// # Errors
    /// As [`Self::inode`].
    pub(crate) fn change_inode(
        &mut self,
        number: InodeNumber,
        change: impl FnOnce(&mut Inode),
    ) -> Result<(), Stop> {
        let mut inode = self.inode(number)?;
        // The file goes on being read and written meanwhile: what is laid over is looked at once.
        let open = self.opened(number).map(|open| (open.newer(), open));
        if let Some((newer, _)) = &open {
            newer.lay_over(&mut inode);
        }
        change(&mut inode);
        self.put_inode(number, &inode);
        self.effects.settled = open.map(|(newer, open)| (open, inode, newer));
        Ok(())
    }

    pub(crate) fn put_inode(&mut self, number: InodeNumber, inode: &Inode) {
        self.put(Key::Inode(number.0), inode.to_record());
    }

    /// A file that is open.
    pub(crate) fn opened(&self, number: InodeNumber) -> Option<Arc<OpenFile>> {
        self.open.get(&number).and_then(Weak::upgrade)
    }
}

impl Pending {
    /// A record as it is now.
    pub(crate) fn known(&self, table: Table, key: Vec<u8>) -> Result<Option<Vec<u8>>, Stop> {
        match self.get(table, &key) {
            Known::Value(value) => Ok(Some(value.to_vec())),
            Known::Gone => Ok(None),
            Known::Nothing => Err(Stop::Unknown(Wanted::Record { table, key })),
        }
    }
}

/// The first key that is no inode's any more.
fn behind(inode: InodeNumber) -> Vec<u8> {
    (inode.0 + 1).to_be_bytes().to_vec()
}
