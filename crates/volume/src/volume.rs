//! [`Volume`]: a device that holds files under names. How it is made and opened stands in `format`, what
//! its clones share in `shared`.

use std::sync::Arc;

use rustix::io::Errno;
use uringfs_device::Device;
use uringfs_file::{Commit, Durable, File, FileOptions, Map};

use crate::catalog::Access;
use crate::committer::Committer;
use crate::credentials::{AccessTime, Credentials};
use crate::error::{Error, ErrorKind};
use crate::inode::{FileKind, Inode, InodeNumber, Time};
use crate::names::{DirectoryEntry, Rename};
use crate::open_file::OpenFile;
use crate::path::Follow;
use crate::shared::{MOST_WAITING, Shared, VolumeState};
use crate::volume_map::VolumeMap;

/// A device, or an ordinary file, that holds files under names. Clones are the same volume; it can
/// be used from any thread.
///
/// Names and attributes are read from memory or, where they are not there, from the device by the
/// calling thread. What was changed is durable after [`Volume::sync`], or [`File::sync`] of the
/// file, or when the last clone is dropped.
#[derive(Clone)]
pub struct Volume {
    pub(crate) shared: Arc<Shared>,
    /// None where the volume is only read.
    pub(crate) committer: Option<Arc<Committer>>,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Made when it is not there, with these permissions.
    pub create: Option<u16>,
    /// EEXIST when it is there.
    pub exclusive: bool,
    /// Emptied.
    pub truncate: bool,
    /// In whose name.
    pub credentials: Credentials,
    /// When the time of access moves.
    pub access_time: AccessTime,
    /// Switches of the file.
    pub file: FileOptions,
}

/// Space and files of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// Of these, free ones.
    pub free_blocks: u64,
    /// Freed, and free when that is committed and nobody reads them any more.
    pub pending_blocks: u64,
    /// Those of the catalog, which takes more as it grows.
    pub catalog_blocks: u64,
}

impl Volume {
    /// Sixteen bytes that no other volume has.
    pub fn uuid(&self) -> [u8; 16] {
        self.shared.uuid
    }

    /// The name it was given.
    pub fn label(&self) -> &str {
        &self.shared.label
    }

    /// What was found damaged so far though nothing is lost, and why it has stopped, if it has: a
    /// line each.
    pub fn flaws(&self) -> Vec<String> {
        let failure = self.shared.catalog.failure().map(|error| error.to_string());
        let found = self.shared.flaws.iter().cloned().chain(self.shared.catalog.flaws());
        found.chain(failure).collect()
    }

    /// The device it lies on.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Space.
    pub fn statistics(&self) -> Statistics {
        let state = self.shared.state.lock();
        let space = state.allocator.space();
        Statistics {
            catalog_blocks: state.superblock.catalog.iter().map(|run| run.length).sum(),
            blocks: space.total,
            free_blocks: space.free - space.reserved,
            pending_blocks: space.pending,
        }
    }

    /// Opens a file, which a symbolic link at the path's end may lead to.
    ///
    /// # Errors
    /// ENOENT, EEXIST, EISDIR and what else paths meet; what the catalog says.
    pub fn open(&self, path: impl AsRef<[u8]>, options: OpenOptions) -> Result<File, Error> {
        let number = match (self.inode(&path, Follow::Yes), options.create) {
            (Ok(_), Some(_)) if options.exclusive => {
                return Err(Error::refused(Errno::EXIST, "it is there already"));
            }
            (Err(error), Some(permissions)) if error.errno() == Errno::NOENT => {
                let mut inode = Inode::new(FileKind::File, permissions);
                if let Credentials::Of { user, group } = options.credentials {
                    (inode.user, inode.group) = (user, group);
                }
                self.make(path, inode)?
            }
            (found, _) => found?.0,
        };
        let inode = self.shared.inode(number)?;
        match inode.kind {
            FileKind::File => {}
            FileKind::Directory => {
                return Err(Error::refused(Errno::ISDIR, "it is a directory"));
            }
            _ => return Err(Error::refused(Errno::NXIO, "it holds no bytes")),
        }
        let open = self.shared.open(number)?;
        if options.truncate && !open.is_empty() {
            if self.is_read_only() {
                return Err(read_only());
            }
            self.shared.empty(&open)?;
        }
        let (device, lock) = (self.shared.device.clone(), open.lock.clone());
        let map = VolumeMap {
            file: open,
            volume: self.clone(),
            is_trusted: options.credentials == Credentials::Trusted,
            access_time: options.access_time,
        };
        if options.truncate {
            map.note_write().map_err(|errno| Error::io("emptying it", errno))?;
        }
        Ok(File::with_map(device, map, lock, options.file))
    }

    /// Makes a file of any kind, a directory or a symbolic link among them. Nothing has bytes yet.
    ///
    /// # Errors
    /// EEXIST, ENOENT and what else paths meet; what the catalog says.
    pub fn make(&self, path: impl AsRef<[u8]>, mut inode: Inode) -> Result<InodeNumber, Error> {
        (inode.size, inode.blocks) = (inode.target.len() as u64, 0);
        self.change(|state, shared| state.create_at(&shared.catalog, path.as_ref(), inode))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn make_directory(&self, path: impl AsRef<[u8]>, permissions: u16) -> Result<(), Error> {
        self.make(path, Inode::new(FileKind::Directory, permissions)).map(drop)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Self::make`]; EINVAL for an empty target.
    pub fn make_symlink(&self, target: &[u8], path: impl AsRef<[u8]>) -> Result<(), Error> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::refused(Errno::INVAL, "a symbolic link has to lead somewhere"));
        }
        let mut inode = Inode::new(FileKind::Symlink, 0o777);
        (inode.size, inode.target) = (target.len() as u64, target.into());
        self.make(path, inode).map(drop)
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// EEXIST, EPERM for a directory, and what else paths meet.
    pub fn link(&self, path: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<(), Error> {
        self.change(|state, shared| {
            let records = &mut state.records(&shared.catalog);
            let number = records.resolve(path.as_ref(), Follow::No)?;
            let parent = records.parent(new.as_ref())?;
            records.link(number, parent.directory, &parent.name)
        })
    }

    /// Takes a file's name away, and the file with its last one; who has it open keeps it so long.
    ///
    /// # Errors
    /// ENOENT, EISDIR, and what else paths meet.
    pub fn remove(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        self.change(|state, shared| {
            let records = &mut state.records(&shared.catalog);
            let parent = records.parent(path.as_ref())?;
            let orphan = records.unlink(parent.directory, &parent.name)?;
            state.bury(shared, orphan)
        })
    }

    /// Removes a directory that holds nothing.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, and what else paths meet.
    pub fn remove_directory(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        self.change(|state, shared| {
            let records = &mut state.records(&shared.catalog);
            let parent = records.parent(path.as_ref())?;
            let orphan = records.remove_directory(parent.directory, &parent.name)?;
            state.bury(shared, orphan)
        })
    }

    /// Moves a name, and what it names.
    ///
    /// # Errors
    /// As [`Self::make`] and [`Self::remove_directory`]; EINVAL for a directory into itself.
    pub fn rename(
        &self,
        path: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
        how: Rename,
    ) -> Result<(), Error> {
        self.change(|state, shared| {
            let records = &mut state.records(&shared.catalog);
            let source = records.parent(path.as_ref())?;
            let target = records.parent(new.as_ref())?;
            let orphan = records.rename(
                (source.directory, &source.name),
                (target.directory, &target.name),
                how,
            )?;
            state.bury(shared, orphan)
        })
    }

    /// What is known of a file.
    ///
    /// # Errors
    /// ENOENT and what else paths meet.
    pub fn inode(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
    ) -> Result<(InodeNumber, Inode), Error> {
        let number = {
            let mut state = self.shared.state.lock();
            state.records(&self.shared.catalog).resolve(path.as_ref(), follow)?
        };
        Ok((number, self.shared.inode(number)?))
    }

    /// Changes what is known of a file: permissions, owners, times. Kind, size, links and target
    /// stay what they are.
    ///
    /// # Errors
    /// ENOENT and what else paths meet.
    pub fn set_attributes(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
        set: impl FnOnce(&mut Inode),
    ) -> Result<(), Error> {
        self.change(|state, shared| {
            let records = &mut state.records(&shared.catalog);
            let number = records.resolve(path.as_ref(), follow)?;
            let mut was = records.inode(number)?;
            let open = state.opened(number);
            if let Some(open) = &open {
                // What it tells was before this, and must not come after it.
                open.newer().lay_over(&mut was);
            }
            let mut inode = was.clone();
            inode.changed = Time::now();
            set(&mut inode);
            (inode.kind, inode.size, inode.blocks) = (was.kind, was.size, was.blocks);
            (inode.links, inode.target, inode.parent) = (was.links, was.target, was.parent);
            inode.permissions &= 0o7777;
            state.records(&shared.catalog).put_inode(number, &inode);
            if let Some(open) = open {
                open.was_put(&inode);
            }
            Ok(())
        })
    }

    /// Names in a directory behind `after`, in order of their bytes: some of them, or none when
    /// there are no more.
    ///
    /// # Errors
    /// `Damaged` where the next name is; [`Error::damaged_name`] says which, to go on behind it.
    /// ENOENT, ENOTDIR, and what else paths meet.
    pub fn entries(
        &self,
        path: impl AsRef<[u8]>,
        after: &[u8],
    ) -> Result<Vec<DirectoryEntry>, Error> {
        let state = &mut *self.shared.state.lock();
        let records = state.records(&self.shared.catalog);
        let number = records.resolve(path.as_ref(), Follow::Yes)?;
        if records.inode(number)?.kind != FileKind::Directory {
            return Err(Error::refused(Errno::NOTDIR, "it is no directory"));
        }
        records.entries(number, after)
    }

    /// Makes everything that was changed and written durable.
    ///
    /// # Errors
    /// ENOSPC when the catalog has no room for it: remove something, then try again. EIO when the
    /// device or the catalog failed, now or before.
    pub fn sync(&self) -> Result<(), Error> {
        if self.committer.is_none() {
            return Ok(());
        }
        let failed = |errno| Error::io("making the volume's changes durable", errno);
        self.shared.board.wait(self.shared.board.next()).map_err(failed)
    }

    /// Does something to names; asks for a commit when much waits.
    pub(crate) fn change<T>(
        &self,
        how: impl FnOnce(&mut VolumeState, &Shared) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.is_read_only() {
            return Err(read_only());
        }
        if self.shared.board.has_failed() {
            let what = "a commit has failed and the volume has stopped; open it anew";
            return Err(Error::new(ErrorKind::Io(Errno::IO), what));
        }
        let state = &mut *self.shared.state.lock();
        let done = how(state, &self.shared)?;
        if state.pending.waiting().changes > MOST_WAITING as u64 {
            self.shared.board.ask(self.shared.board.next());
        }
        Ok(done)
    }
}

impl Volume {
    pub(crate) fn is_read_only(&self) -> bool {
        self.shared.access == Access::ReadOnly
    }

    /// Notes that a file is to be committed; asks for that when many are.
    pub(crate) fn note_dirty(&self, file: &Arc<OpenFile>) {
        let state = &mut *self.shared.state.lock();
        state.dirty.insert(file.number, file.clone());
        if state.dirty.len() > MOST_WAITING {
            self.shared.board.ask(self.shared.board.next());
        }
    }

    /// Has a file not run as its owner or group any more.
    pub(crate) fn take_rights(&self, file: &OpenFile) -> Result<(), Error> {
        self.change(|state, shared| {
            let mut records = state.records(&shared.catalog);
            let mut inode = records.inode(file.number)?;
            inode.take_rights();
            inode.changed = Time::now();
            records.put_inode(file.number, &inode);
            file.took_rights();
            Ok(())
        })
    }

    /// What makes durable what is not of a file; with everything, also names and attributes.
    pub(crate) fn commit_of(&self, file: &OpenFile, what: Durable) -> Option<Commit> {
        let board = &self.shared.board;
        let next = board.next();
        let mut number = file.durable_with(next, what);
        if what == Durable::Everything {
            let waits = self.shared.state.lock().pending.waiting().changes > 0;
            number = number.max(if waits { next } else { next - 1 });
        }
        let number = board.pending(number)?;
        Some(board.clone().wait_in_task(number))
    }
}

fn read_only() -> Error {
    Error::refused(Errno::ROFS, "the volume is open for reading only")
}
