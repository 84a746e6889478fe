//! Opens files and pins inodes, in the transaction that finds them. Opening a file reads its extent map from the records.

use std::sync::Arc;

use uringfs_device::Errno;

use crate::catalog::Table;
use crate::core::blocking::WaitMode;
use crate::core::state::{VolumeShared, VolumeState, validated_extent};
use crate::error::{Error, quoted};
use crate::namespace::pins::Pin;
use crate::namespace::transaction::{Retry, Transaction};
use crate::open_file::open_file::OpenFile;
use crate::records::inode::{FileType, InodeNumber};
use crate::records::overlay::CommitNumber;
use crate::space::extent_map::ExtentMap;
use crate::space::system_zone::SystemZone;

impl VolumeShared {
    /// Opens the file that `find` returns for `path` (of a file found by number, its number), in the same transaction: so a file cannot lose
    /// the name by which it was found before it is open.
    pub(crate) async fn open(
        self: &Arc<Self>,
        mode: WaitMode,
        path: &[u8],
        mut find: impl FnMut(&mut Transaction<'_>) -> Result<InodeNumber, Retry>,
    ) -> Result<Arc<OpenFile>, Error> {
        self.with_retries(mode, |state, results| {
            let (total_blocks, last_commit) =
                (state.superblock.total_blocks, self.group_commit.next() - 1);
            let zone = state.system_zone.clone();
            let open = self.try_transaction(state, results, |transaction| {
                let number = find(transaction)?;
                transaction.open_file(path, number, total_blocks, &zone, last_commit)
            })?;
            state.register_open(&open);
            Ok(open)
        })
        .await
    }

    /// Runs a transaction that returns an inode, and pins the inode in the same step: so it cannot be reclaimed in
    /// between.
    pub(crate) async fn run_and_pin<T>(
        self: &Arc<Self>,
        mode: WaitMode,
        mut operation: impl FnMut(&mut Transaction<'_>) -> Result<(InodeNumber, T), Retry>,
    ) -> Result<(Arc<Pin>, T), Error> {
        self.with_retries(mode, |state, results| {
            let (number, found) = self.try_transaction(state, results, &mut operation)?;
            Ok((state.pins.pin(number), found))
        })
        .await
    }
}

impl VolumeState {
    /// Registers an open file. Drops closed files from the table when it would have to grow, so it has at most
    /// twice as many entries as there are open files.
    fn register_open(&mut self, file: &Arc<OpenFile>) {
        if self.open.len() == self.open.capacity() {
            self.open.retain(|_, file| file.strong_count() > 0);
            self.open.reserve(self.open.len());
        }
        self.open.insert(file.number, Arc::downgrade(file));
    }
}

impl Transaction<'_> {
    /// Loads a regular file with its extent map. `last_commit` is the last commit that may hold changes of it.
    ///
    /// # Errors
    /// EISDIR, ENXIO; errors of the catalog.
    fn open_file(
        &self,
        path: &[u8],
        number: InodeNumber,
        total_blocks: u64,
        zone: &SystemZone,
        last_commit: CommitNumber,
    ) -> Result<Arc<OpenFile>, Retry> {
        let of_file = |error: Error| Retry::from(error.context(format!("inode {}", number.0)));
        let inode = self.inode(number)?;
        match inode.kind {
            FileType::File => {}
            FileType::Directory => {
                let what = format!("{} is a directory", quoted(path));
                return Err(Error::refused(Errno::ISDIR, what).into());
            }
            _ => {
                let what = format!("{} is not a regular file", quoted(path));
                return Err(Error::refused(Errno::NXIO, what).into());
            }
        }
        if let Some(open) = self.find_open(number) {
            return Ok(open);
        }
        if inode.links == 0 && !self.pins.contains(number) {
            // Its blocks may be free already.
            return Err(of_file(Error::damaged("it has a name, and its link count is 0")));
        }
        let mut map = ExtentMap::new();
        for record in self.all(Table::Extents, number)? {
            let extent = validated_extent(&record, total_blocks, zone).map_err(of_file)?;
            map.push(extent).map_err(|flaw| of_file(Error::damaged(flaw.to_string())))?;
        }
        let has_capability = self.has_capability(number)?;
        Ok(Arc::new(OpenFile::new(number, map, &inode, has_capability, last_commit)))
    }
}
