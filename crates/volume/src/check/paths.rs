//! Paths for findings: one pass over the names finds those of all requested inodes, a second those of the
//! directories above.

use std::collections::{BTreeMap, BTreeSet};

use super::reader::{RecordIter, name_of};
use crate::catalog::{Catalog, Table};
use crate::error::Error;
use crate::records::inode::InodeNumber;

/// The parent of each directory, by its inode.
pub(super) type Parents = BTreeMap<u64, u64>;

/// The most directories in a path: one more would make it longer than any valid path.
const MAX_DEPTH: usize = 4096;

/// A name of each requested inode, and of the directories above it.
#[derive(Default)]
pub(super) struct Paths {
    names: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl Paths {
    pub(super) fn find(
        catalog: &Catalog,
        parents: &Parents,
        inodes: BTreeSet<u64>,
    ) -> Result<Paths, Error> {
        let mut paths = Paths::default();
        paths.collect(catalog, &inodes)?;
        let mut above = BTreeSet::new();
        let directories = paths.names.values().map(|(directory, _)| *directory);
        for directory in directories.chain(inodes) {
            let mut at = Some(directory);
            while let Some(directory) = at
                && above.insert(directory)
            {
                at = parents.get(&directory).copied();
            }
        }
        paths.collect(catalog, &above)?;
        Ok(paths)
    }

    fn collect(&mut self, catalog: &Catalog, wanted: &BTreeSet<u64>) -> Result<(), Error> {
        if wanted.iter().all(|inode| self.names.contains_key(inode)) {
            return Ok(());
        }
        for found in RecordIter::new(catalog, Table::Names) {
            if let Some(name) = name_of(found?)
                && wanted.contains(&name.inode)
            {
                self.names.entry(name.inode).or_insert((name.directory, name.name));
            }
        }
        Ok(())
    }

    /// A path of an inode, if it has a name.
    pub(super) fn of(&self, inode: u64) -> Option<Vec<u8>> {
        if inode == InodeNumber::ROOT.0 {
            return Some(b"/".to_vec());
        }
        self.names.get(&inode).map(|(directory, name)| self.of_name(*directory, name))
    }

    /// The path of a name. It begins with an inode's number if the directories above are lost.
    pub(super) fn of_name(&self, directory: u64, name: &[u8]) -> Vec<u8> {
        let mut parts = vec![name];
        let mut at = directory;
        while at != InodeNumber::ROOT.0
            && parts.len() < MAX_DEPTH
            && let Some((above, name)) = self.names.get(&at)
        {
            parts.push(name);
            at = *above;
        }
        let mut path = match at == InodeNumber::ROOT.0 {
            true => Vec::new(),
            false => format!("(inode {at})").into_bytes(),
        };
        for part in parts.into_iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        path
    }
}
