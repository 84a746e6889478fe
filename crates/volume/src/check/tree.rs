//! What belongs to whom: directories hang together up to the root, attributes belong to a file that is
//! there.

use std::collections::HashSet;

use super::findings::FindingTarget;
use super::fixes::delete;
use super::paths::Parents;
use super::reader::{InodeCursor, RecordIter, name_of, number_of};
use super::round::Round;
use crate::catalog::{Key, Table};
use crate::error::Error;
use crate::records::inode::InodeNumber;

impl Round<'_> {
    /// Finds directories that lie in themselves. One whose parent is not there has been found before.
    pub(super) fn check_tree(&mut self, parents: &Parents) -> Result<(), Error> {
        let mut reached = HashSet::from([InodeNumber::ROOT.0]);
        for directory in parents.keys() {
            let mut way = Vec::new();
            let mut at = *directory;
            while reached.insert(at) {
                way.push(at);
                match parents.get(&at) {
                    Some(parent) => at = *parent,
                    None => break,
                }
            }
            if let Some(begin) = way.iter().position(|passed| *passed == at)
                && parents.contains_key(&at)
            {
                self.cut_loop(way[begin..].iter().copied().min().unwrap_or(at), parents)?;
            }
        }
        Ok(())
    }

    /// Takes a directory out of where it lies in itself; without a name it is found again.
    fn cut_loop(&mut self, directory: u64, parents: &Parents) -> Result<(), Error> {
        let target = FindingTarget::Inode(directory);
        let what = "the directory lies in itself, and cannot be reached";
        for found in RecordIter::for_inode(self.catalog, Table::Names, parents[&directory]) {
            let Some(name) = name_of(found?) else { continue };
            if name.inode == directory {
                let changes = vec![delete(Key::Name(name.directory, &name.name))];
                self.findings.fixable(target, what, "taken out of there", changes);
                return Ok(());
            }
        }
        // Without a name there it was found before.
        Ok(())
    }

    pub(super) fn check_xattrs(&mut self) -> Result<(), Error> {
        let mut inodes = InodeCursor::new(self.catalog);
        for found in RecordIter::new(self.catalog, Table::Xattrs) {
            let found = found?;
            let Some(number) = number_of(&found.key) else { continue };
            let is_there = inodes.inode(number)?.is_some();
            if !is_there && !self.findings.changes_inode(number) {
                let changes = vec![((Table::Xattrs, found.key), None)];
                let what = "an attribute belongs to it, and it is not there";
                self.findings.fixable(FindingTarget::Inode(number), what, "removed", changes);
            }
        }
        Ok(())
    }
}
