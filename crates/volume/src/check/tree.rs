//! Passes: every directory is reachable from the root, and every extended attribute has an inode.

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
    /// Finds cycles of directories. An earlier pass has found directories without a parent.
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

    /// Breaks a cycle by removing a directory's name; the next round moves it to `/lost+found`.
    fn cut_loop(&mut self, directory: u64, parents: &Parents) -> Result<(), Error> {
        let target = FindingTarget::Inode(directory);
        let what = "the directory is inside itself, and unreachable";
        for found in RecordIter::for_inode(self.catalog, Table::Names, parents[&directory]) {
            let Some(name) = name_of(found?) else { continue };
            if name.inode == directory {
                let changes = vec![delete(Key::Name(name.directory, &name.name))];
                self.findings.fixable(target, what, "the name removed", changes);
                return Ok(());
            }
        }
        // If it has no name there, an earlier pass has found that.
        Ok(())
    }

    pub(super) fn check_xattrs(&mut self) -> Result<(), Error> {
        let mut inodes = InodeCursor::new(self.catalog);
        for found in RecordIter::new(self.catalog, Table::Xattrs) {
            let found = found?;
            let Some(number) = number_of(&found.key) else { continue };
            let is_there = inodes.inode(number)?.is_some();
            if !is_there && !self.findings.is_known_lost(number) {
                let changes = vec![((Table::Xattrs, found.key), None)];
                let what = "it has an extended attribute, but does not exist";
                self.findings.fixable(FindingTarget::Inode(number), what, "removed", changes);
            }
        }
        Ok(())
    }
}
