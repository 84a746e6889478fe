//! Every record by itself: its checksum, its key, and whether it says something. What is damaged is
//! named by the file it belongs to.

use super::findings::{Change, Findings, put};
use super::{About, CheckStep, Round};
use crate::catalog::{Catalog, Found, Key, MAX_RECORDS, Table};
use crate::core::state::NEXT_INODE;
use crate::error::{Error, ErrorKind};
use crate::namespace::directory::{check_name, entry_of};
use crate::records::inode::{FileKind, Inode, InodeNumber};
use crate::space::extent::{Extent, ExtentRecord};

/// All records of a table in order, a few at a time in memory.
pub(super) struct All<'c> {
    catalog: &'c Catalog,
    table: Table,
    /// Where the next begins, unless all have been read.
    from: Option<Vec<u8>>,
    inode: Option<u64>,
    batch: std::vec::IntoIter<Found>,
}

impl<'c> All<'c> {
    pub(super) fn of(catalog: &'c Catalog, table: Table) -> All<'c> {
        All { catalog, table, from: Some(Vec::new()), inode: None, batch: Vec::new().into_iter() }
    }

    /// Those of one inode.
    pub(super) fn of_inode(catalog: &'c Catalog, table: Table, inode: u64) -> All<'c> {
        let from = Some(inode.to_be_bytes().to_vec());
        All { from, inode: Some(inode), ..All::of(catalog, table) }
    }
}

impl Iterator for All<'_> {
    type Item = Result<Found, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.len() == 0 {
            let from = self.from.take()?;
            match self.catalog.scan_each(self.table, from, self.inode, MAX_RECORDS) {
                Ok(batch) => {
                    if batch.len() == MAX_RECORDS {
                        self.from = batch.last().map(|last| [&last.key[..], &[0]].concat());
                    }
                    self.batch = batch.into_iter();
                }
                Err(error) => return Some(Err(error)),
            }
        }
        self.batch.next().map(Ok)
    }
}

/// Inodes in order.
pub(super) struct InOrder<'c> {
    inodes: std::iter::Peekable<All<'c>>,
}

impl<'c> InOrder<'c> {
    pub(super) fn of(catalog: &'c Catalog) -> InOrder<'c> {
        InOrder { inodes: All::of(catalog, Table::Inodes).peekable() }
    }

    /// The inode of a number that is not below the last one asked for.
    pub(super) fn inode(&mut self, number: u64) -> Result<Option<Inode>, Error> {
        loop {
            match self.front()? {
                Some((other, _)) if other < number => drop(self.inodes.next()),
                found => return Ok(found.filter(|(other, _)| *other == number).map(|(_, it)| it)),
            }
        }
    }

    /// Takes the next one, if its number is not above this.
    pub(super) fn next_up_to(&mut self, number: u64) -> Result<Option<(u64, Inode)>, Error> {
        let found = self.front()?.filter(|(other, _)| *other <= number);
        if found.is_some() {
            self.inodes.next();
        }
        Ok(found)
    }

    /// The next one, which stays.
    fn front(&mut self) -> Result<Option<(u64, Inode)>, Error> {
        loop {
            match self.inodes.peek() {
                Some(Ok(found)) => {
                    if let Some(found) = inode_of(found) {
                        return Ok(Some(found));
                    }
                }
                Some(Err(_)) => {}
                None => return Ok(None),
            }
            self.inodes.next().transpose()?;
        }
    }
}

/// The inode's number that a key begins with, if it is one that an inode can have.
pub(super) fn number_of(key: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(*key.first_chunk()?);
    InodeNumber::of(number).map(|InodeNumber(number)| number)
}

/// A record of an inode, if it is one.
pub(super) fn inode_of(found: &Found) -> Option<(u64, Inode)> {
    let value = found.value.as_ref().ok()?;
    let inode = Inode::of_record(value).ok()?;
    (found.key.len() == 8).then_some((number_of(&found.key)?, inode))
}

/// A name, if it is one.
pub(super) struct Name {
    pub(super) directory: u64,
    pub(super) name: Vec<u8>,
    pub(super) inode: u64,
    pub(super) kind: FileKind,
}

pub(super) fn name_of(found: Found) -> Option<Name> {
    let (InodeNumber(inode), kind) = entry_of(&found.value.ok()?).ok()?;
    let directory = number_of(&found.key)?;
    let name = found.key[8..].to_vec();
    check_name(&name).ok()?;
    Some(Name { directory, name, inode, kind })
}

/// An extent of an inode, if it is one.
pub(super) fn extent_of(found: &Found, total_blocks: u64) -> Option<(u64, Extent)> {
    parse_extent(&found.key, found.value.as_ref().ok()?, total_blocks).ok()
}

fn parse_extent(key: &[u8], value: &[u8], total_blocks: u64) -> Result<(u64, Extent), String> {
    let extent = ExtentRecord::parse(value, total_blocks).map_err(|flaw| flaw.to_string())?;
    match (number_of(key), key.get(8..)) {
        (Some(inode), Some(offset)) if offset == extent.offset.to_be_bytes() => Ok((inode, extent)),
        _ => Err("an extent is not where its key says".into()),
    }
}

impl Round<'_> {
    /// Reads every record but those of free space, whose pass does that.
    pub(super) fn check_records(&mut self) -> Result<(), Error> {
        let mut done = 0;
        let mut last_inode = InodeNumber::ROOT.0;
        for table in Table::ALL.into_iter().filter(|table| *table != Table::Regions) {
            for found in All::of(self.catalog, table) {
                let found = found?;
                done += 1;
                if done % 1024 == 0 {
                    (self.progress)(CheckStep::Records, done);
                }
                match self.flaw_of(table, &found) {
                    Some(flaw) => self.drop_record(table, &found.key, &flaw),
                    None => last_inode = last_inode.max(numbers_in(table, &found)),
                }
            }
        }
        (self.progress)(CheckStep::Records, done);
        self.check_next_inode(last_inode)
    }

    /// What is wrong with a record by itself.
    fn flaw_of(&self, table: Table, found: &Found) -> Option<String> {
        let value = match &found.value {
            Ok(value) => value,
            Err(error) => return Some(error.to_string()),
        };
        let key = &found.key;
        let is_of_inode = !matches!(table, Table::Regions | Table::State);
        if is_of_inode && key.len() >= 8 && number_of(key).is_none() {
            return Some("it has a number that no inode has".into());
        }
        let odd_key = || "the catalog has a key of no known form".to_string();
        match table {
            Table::Inodes => match Inode::of_record(value) {
                Err(error) => Some(error.to_string()),
                Ok(_) => (key.len() != 8).then(odd_key),
            },
            Table::Names => match entry_of(value) {
                Err(error) => Some(error.to_string()),
                Ok(_) if key.len() < 8 => Some(odd_key()),
                Ok(_) => check_name(&key[8..]).err().map(|error| error.to_string()),
            },
            Table::Extents => parse_extent(key, value, self.total).err(),
            Table::Xattrs => (key.len() <= 8).then(odd_key),
            Table::Orphans => (key.len() != 8).then(odd_key),
            Table::Regions | Table::State => None,
        }
    }

    /// The value of a record, unless it is damaged: then it has been told of.
    pub(super) fn get_sound(&self, key: Key<'_>) -> Result<Option<Vec<u8>>, Error> {
        match self.catalog.get(key) {
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(None),
            got => got,
        }
    }

    /// Has a record go that says nothing.
    fn drop_record(&mut self, table: Table, key: &[u8], flaw: &str) {
        let changes = vec![((table, key.to_vec()), None)];
        tell_unreadable(&mut self.findings, table, key, flaw, changes);
    }

    /// New inodes have to get numbers that none has.
    fn check_next_inode(&mut self, last: u64) -> Result<(), Error> {
        let mut records = All::of(self.catalog, Table::State);
        let next = records.find_map(|found| match found {
            Ok(found) if found.key == NEXT_INODE => Some(found.value),
            _ => None,
        });
        let number = match next {
            Some(Ok(value)) => value.as_slice().try_into().map(u64::from_be_bytes).ok(),
            Some(Err(_)) => None,
            None => Some(InodeNumber::ROOT.0 + 1),
        };
        let right = last.saturating_add(1);
        // The largest number says that all were given.
        let is_right = |number| number > last && (number < u64::MAX || number == right);
        if !number.is_some_and(is_right) {
            let what = match number {
                Some(u64::MAX) => "the number of the next inode says that all were given".into(),
                _ => format!("the number of the next inode is not above {last}, the last"),
            };
            let changes = vec![put(Key::State(NEXT_INODE), right.to_be_bytes().to_vec())];
            self.findings.fixable(About::Volume, what, "set", changes);
        }
        Ok(())
    }
}

/// Names what loses a record; the changes are those that have it go.
pub(super) fn tell_unreadable(
    findings: &mut Findings,
    table: Table,
    key: &[u8],
    flaw: &str,
    changes: Vec<Change>,
) {
    let (about, what, cure) = match (table, number_of(key)) {
        (Table::Inodes, Some(inode)) => (About::Inode(inode), "its inode", "dropped"),
        (Table::Names, Some(directory)) => (
            About::Name(directory, key[8..].to_vec()),
            "its name",
            "dropped: what it named is found under another name, or in /lost+found",
        ),
        (Table::Extents, Some(inode)) => {
            (About::Inode(inode), "some of its blocks", "dropped: it has a hole there")
        }
        (Table::Xattrs, Some(inode)) => (About::Inode(inode), "one of its attributes", "dropped"),
        (Table::Orphans, Some(inode)) => (About::Inode(inode), "that it is unused", "dropped"),
        _ => (About::Volume, "a record", "dropped"),
    };
    findings.fixable(about, format!("{what} cannot be read: {flaw}"), cure, changes);
}

/// The highest inode that a record speaks of.
fn numbers_in(table: Table, found: &Found) -> u64 {
    let key = match table {
        Table::Regions | Table::State => None,
        _ => number_of(&found.key),
    };
    let named = match (table, &found.value) {
        (Table::Names, Ok(value)) => entry_of(value).ok().map(|(inode, _)| inode.0),
        _ => None,
    };
    key.max(named).unwrap_or(0)
}
