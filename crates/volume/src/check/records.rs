//! Pass: each record by itself, its checksum, key and value. A damaged record is reported for the file that it belongs
//! to.

use super::findings::{FindingTarget, Findings};
use super::fixes::{Change, put};
use super::reader::{RecordIter, number_of, parse_extent};
use super::report::CheckStep;
use super::round::Round;
use crate::catalog::{Key, ScanEntry, Table};
use crate::core::state::{NEXT_INODE_KEY, SUPERBLOCK_KEY};
use crate::error::{Error, ErrorKind};
use crate::namespace::directory::{check_name, parse_entry};
use crate::records::inode::{Inode, InodeNumber};

impl Round<'_> {
    /// Checks every record but those of regions, which have a pass of their own.
    pub(super) fn check_records(&mut self) -> Result<(), Error> {
        let mut done = 0;
        let mut last_inode = InodeNumber::ROOT.0;
        for table in Table::ALL.into_iter().filter(|table| *table != Table::Regions) {
            for found in RecordIter::new(self.catalog, table) {
                let found = found?;
                done += 1;
                if done % 1024 == 0 {
                    (self.progress)(CheckStep::Records, done)?;
                }
                match self.flaw_of(table, &found) {
                    Some(flaw) => self.drop_record(table, &found.key, &flaw),
                    None => last_inode = last_inode.max(highest_inode(table, &found)),
                }
            }
        }
        (self.progress)(CheckStep::Records, done)?;
        self.check_next_inode(last_inode)?;
        self.check_identity()
    }

    /// The flaw of a record by itself, if it has one.
    fn flaw_of(&self, table: Table, found: &ScanEntry) -> Option<String> {
        let value = match &found.value {
            Ok(value) => value,
            Err(error) => return Some(error.to_string()),
        };
        let key = &found.key;
        let is_of_inode = !matches!(table, Table::Regions | Table::State);
        if is_of_inode && key.len() >= 8 && number_of(key).is_none() {
            return Some("its inode number is invalid".into());
        }
        let odd_key = || "its key has an unknown form".to_string();
        match table {
            Table::Inodes => match Inode::from_record(value) {
                Err(error) => Some(error.to_string()),
                Ok(_) => (key.len() != 8).then(odd_key),
            },
            Table::Names => match parse_entry(value) {
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

    /// The value of a record; `None` if it is damaged, which this pass has reported.
    pub(super) fn get_sound(&self, key: Key<'_>) -> Result<Option<Vec<u8>>, Error> {
        match self.catalog.get(key) {
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(None),
            got => got,
        }
    }

    /// Reports an invalid record and deletes it.
    fn drop_record(&mut self, table: Table, key: &[u8], flaw: &str) {
        let changes = vec![((table, key.to_vec()), None)];
        report_unreadable(&mut self.findings, table, key, flaw, changes);
    }

    /// Checks that the catalog is of the same volume as the superblock.
    fn check_identity(&mut self) -> Result<(), Error> {
        let identity = self.get_sound(Key::State(SUPERBLOCK_KEY))?;
        if identity.is_some_and(|identity| !identity.ends_with(&self.superblock.uuid)) {
            let what = "the catalog is of another volume than the superblock".to_owned();
            let identity = self.superblock.identity(self.superblock.generation);
            let changes = vec![put(Key::State(SUPERBLOCK_KEY), identity)];
            self.findings.fixable(
                FindingTarget::Volume,
                what,
                "the catalog now belongs to the superblock's volume",
                changes,
            );
        }
        Ok(())
    }

    /// Checks that the next inode's number is above all others.
    fn check_next_inode(&mut self, last: u64) -> Result<(), Error> {
        let mut records = RecordIter::new(self.catalog, Table::State);
        let next = records.find_map(|found| match found {
            Ok(found) if found.key == NEXT_INODE_KEY => Some(found.value),
            _ => None,
        });
        let number = match next {
            Some(Ok(value)) => value.as_slice().try_into().map(u64::from_be_bytes).ok(),
            Some(Err(_)) => None,
            None => Some(InodeNumber::ROOT.0 + 1),
        };
        let right = last.saturating_add(1);
        // The largest number means that no numbers are left.
        let is_right = |number| number > last && (number < u64::MAX || number == right);
        if !number.is_some_and(is_right) {
            let what = match number {
                Some(u64::MAX) => {
                    "the number of the next inode says that no inode numbers are left, but some are"
                        .into()
                }
                _ => format!(
                    "the number of the next inode is not above {last}, the highest inode number in use"
                ),
            };
            let changes = vec![put(Key::State(NEXT_INODE_KEY), right.to_be_bytes().to_vec())];
            self.findings.fixable(FindingTarget::Volume, what, "corrected", changes);
        }
        Ok(())
    }
}

/// Reports an unreadable record by what it belonged to; `changes` delete it.
pub(super) fn report_unreadable(
    findings: &mut Findings,
    table: Table,
    key: &[u8],
    flaw: &str,
    changes: Vec<Change>,
) {
    let (target, what, cure) = match (table, number_of(key)) {
        (Table::Inodes, Some(inode)) => (FindingTarget::Inode(inode), "its inode", "dropped"),
        (Table::Names, Some(directory)) => (
            FindingTarget::Name(directory, key[8..].to_vec()),
            "the record of this name",
            "dropped: what it named is found under another name, or in /lost+found",
        ),
        (Table::Extents, Some(inode)) => (
            FindingTarget::Inode(inode),
            "one of its extent records",
            "dropped: it has a hole there",
        ),
        (Table::Xattrs, Some(inode)) => {
            (FindingTarget::Inode(inode), "one of its attributes", "dropped")
        }
        (Table::Orphans, Some(inode)) => {
            (FindingTarget::Inode(inode), "its orphan record", "dropped")
        }
        _ => (FindingTarget::Volume, "a record", "dropped"),
    };
    findings.fixable(target, format!("{what} cannot be read: {flaw}"), cure, changes);
}

/// The highest inode number in a record.
fn highest_inode(table: Table, found: &ScanEntry) -> u64 {
    let key = match table {
        Table::Regions | Table::State => None,
        _ => number_of(&found.key),
    };
    let named = match (table, &found.value) {
        (Table::Names, Ok(value)) => parse_entry(value).ok().map(|(inode, _)| inode.0),
        _ => None,
    };
    key.max(named).unwrap_or(0)
}
