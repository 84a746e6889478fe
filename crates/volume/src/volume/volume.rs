//! [`Volume`]: a device that holds files under names. How it is made and opened stands in `format`, what
//! its clones share in `shared`, what its operations do in `operations`.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use uringfs_device::Device;
use uringfs_file::{Commit, Durable, File, Generation};
use uringfs_reactor::quiescence;

use crate::blocks::BLOCK;
use crate::catalog::Access;
use crate::core::blocking::{Who, now};
use crate::core::events::{DEVICE_FULL, ErrorEvent, Errors};
use crate::core::group_commit::Committer;
use crate::core::state::{MANY_WAITING, Shared, VolumeState};
use crate::error::{Error, ErrorKind};
use crate::namespace::directory::{DirectoryEntry, Rename};
use crate::namespace::open_options::OpenOptions;
use crate::namespace::operations::{
    entries, inode, link, make, remove, remove_directory, rename, set_attributes,
};
use crate::namespace::path::Follow;
use crate::namespace::transaction::{Records, Stop};
use crate::open_file::open_file::{OpenFile, Written};
use crate::records::inode::{FileKind, Inode, InodeNumber};
use crate::records::overlay::CommitNumber;
use crate::superblock::SLOTS;

/// A device, or an ordinary file, that holds files under names. Clones are the same volume; it can
/// be used from any thread.
///
/// Names and attributes are read from memory or, where they are not there, from the device: the calling
/// thread waits for that. Tasks use [`Self::in_tasks`]. What was changed is durable after [`Volume::sync`], or [`File::sync`] of the
/// file, or when the last clone is dropped; where bytes wait in a page cache then, a moment later.
///
/// In the child of a fork it is the parent's: names, writes and syncs answer ECHILD, and dropping it there changes
/// nothing. What the child reads of a file that was open before may be stale.
#[derive(Clone)]
pub struct Volume {
    pub(crate) shared: Arc<Shared>,
    pub(crate) _threads: Arc<Threads>,
}

/// Those of a volume. They end with its last clone: what has changed is committed then, and nobody reads
/// the device any more.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    /// None where the volume is only read.
    committer: Option<Committer>,
}

impl Threads {
    pub(crate) fn new(shared: Arc<Shared>, committer: Option<Committer>) -> Threads {
        Threads { shared, committer }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if !self.shared.board.is_forked() {
            self.shared.state.lock().wants_checkpoint = true;
        }
        drop(self.committer.take());
        self.shared.reader.stop();
    }
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
    /// Commits since it was opened, each for all who waited.
    pub commits: u64,
    /// Of these, those that went into the pages of the catalog, with all that was in its log.
    pub checkpoints: u64,
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

    /// What was found damaged so far though the volume goes on, and why it has stopped, if it has: a
    /// line each.
    pub fn flaws(&self) -> Vec<String> {
        let failure = self.shared.catalog.failure().map(|error| error.to_string());
        let mut flaws = self.shared.state.lock().flaws.lines().to_vec();
        flaws.extend(self.shared.catalog.flaws());
        flaws.extend(failure);
        flaws
    }

    /// Every I/O error from now on, everything of the metadata that is found damaged, and in the end that what was
    /// changed last is lost, if so: each once, of inline and deferred completions alike. Who listens is kept the last thousand or so.
    pub fn errors(&self) -> Errors {
        let volume: Weak<Shared> = Arc::downgrade(&self.shared);
        self.shared.publisher.listen(volume)
    }

    /// The last of them since it was opened, opening itself included: 64 at the most.
    pub fn recent_errors(&self) -> Vec<ErrorEvent> {
        self.shared.publisher.recent(&*self.shared)
    }

    /// Why a write found no room: how much is free but for what waits, and who holds it; or that it is the
    /// device which has none.
    pub fn shortage(&self) -> Error {
        if self.is_device_full() {
            return Error::new(ErrorKind::NoSpace, DEVICE_FULL);
        }
        let state = self.shared.state.lock();
        let (retired, pending) = (state.retired_blocks(), state.pending_blocks());
        let mut text = String::from("the volume is full; remove something");
        if pending > retired {
            text +=
                &format!("; {} bytes more come free with a commit", (pending - retired) * BLOCK);
        }
        if let Some((epoch, _)) = state.retired.last() {
            let holders = quiescence(self.shared.device.index()).holders(*epoch).join(", ");
            text += &format!(
                "; {} bytes more when {holders} has ended what is in flight",
                retired * BLOCK
            );
        }
        Error::new(ErrorKind::NoSpace, text)
    }

    /// The addresses of its superblocks on the device, in bytes, the lowest first: each has a block of 4096.
    pub fn superblocks(&self) -> Vec<u64> {
        let copy = self.shared.state.lock().superblock.copy();
        SLOTS.into_iter().chain(copy).map(|block| block * BLOCK).collect()
    }

    /// Bytes at the device's beginning that hold nothing but superblocks.
    pub fn reserved_bytes(&self) -> u64 {
        self.shared.state.lock().superblock.reserved() * BLOCK
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
            commits: self.shared.board.next() - 1,
            checkpoints: state.checkpoints,
            catalog_blocks: state.superblock.catalog.iter().map(|run| run.length).sum::<u64>()
                + state.ordered.blocks(),
            blocks: space.total,
            free_blocks: space.available(),
            pending_blocks: state.pending_blocks(),
        }
    }

    /// Opens a file, which a symbolic link at the path's end may lead to. It is asked through the page cache, and what
    /// was written and not synced is lost with the process, unless it is opened [`direct`](OpenOptions::direct); the
    /// other way to ask the same file, for single requests, too, is had from [`File::direct`] and [`File::buffered`].
    ///
    /// # Errors
    /// ENOENT, EEXIST, EISDIR and what else paths meet; what the catalog says.
    pub fn open(&self, path: impl AsRef<[u8]>, options: OpenOptions) -> Result<File, Error> {
        now(self.open_by(Who::Thread, path.as_ref(), options))
    }

    /// Makes a file of any kind, a directory or a symbolic link among them. Nothing has bytes yet. Its
    /// directory hands on what it does on Linux: its group, if its set-group-ID bit is set, and its
    /// default access control list.
    ///
    /// # Errors
    /// EEXIST, ENOENT and what else paths meet; ENOSPC where the catalog has no room for one more
    /// name; what the catalog says.
    pub fn make(&self, path: impl AsRef<[u8]>, inode: Inode) -> Result<InodeNumber, Error> {
        now(self.change(Who::Thread, make(path.as_ref(), &inode)))
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
        self.make(path, Inode::symlink(target)?).map(drop)
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// EEXIST, EPERM for a directory, and what else paths meet; ENOSPC as [`Self::make`].
    pub fn link(&self, path: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<(), Error> {
        now(self.change(Who::Thread, link(path.as_ref(), new.as_ref())))
    }

    /// Takes a file's name away, and the file with its last one; who has it open keeps it so long.
    ///
    /// # Errors
    /// ENOENT, EISDIR, and what else paths meet.
    pub fn remove(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        now(self.change(Who::Thread, remove(path.as_ref())))
    }

    /// Removes a directory that holds nothing.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, and what else paths meet.
    pub fn remove_directory(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        now(self.change(Who::Thread, remove_directory(path.as_ref())))
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
        now(self.change(Who::Thread, rename(path.as_ref(), new.as_ref(), how)))
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
        now(self.shared.operate(Who::Thread, inode(path.as_ref(), follow)))
    }

    /// Changes what is known of a file: permissions, owners, times. Kind, size, links and target
    /// stay what they are, and whether it is a staging directory. `set` may be asked more than once. A file that is given to another user or
    /// group loses its `security.capability`, as with every write. An access control list
    /// (`system.posix_acl_access`) follows changed permissions: its owner, its others, and its mask or, without one,
    /// its group.
    ///
    /// # Errors
    /// ENOENT and what else paths meet.
    pub fn set_attributes(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
        set: impl Fn(&mut Inode),
    ) -> Result<(), Error> {
        now(self.change(Who::Thread, set_attributes(path.as_ref(), follow, set)))
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
        now(self.shared.operate(Who::Thread, entries(path.as_ref(), after)))
    }

    /// Makes everything that was changed and written durable, through page caches, too. What a reactor of the calling
    /// thread is writing back of a file just now has to end without it: then sync the file, or [`Self::in_tasks`].
    ///
    /// # Errors
    /// ENOSPC when the catalog has no room for it: remove something, then try again. EIO when the
    /// device or the catalog failed, now or before; once when a file that was closed has lost what was written to it
    /// through a page cache.
    pub fn sync(&self) -> Result<(), Error> {
        now(self.sync_by(Who::Thread))
    }
}

impl Volume {
    /// An operation that changes something.
    pub(crate) async fn change<T>(
        &self,
        who: Who,
        how: impl FnMut(&mut Records<'_>) -> Result<T, Stop>,
    ) -> Result<T, Error> {
        self.check_changeable()?;
        self.shared.operate(who, how).await
    }

    pub(super) fn check_changeable(&self) -> Result<(), Error> {
        if self.is_read_only() {
            return Err(read_only());
        }
        self.shared.check_process()?;
        if self.shared.board.has_failed() {
            let what = "a commit has failed and the volume has stopped; open it anew";
            return Err(Error::new(ErrorKind::Io(Errno::IO), what));
        }
        Ok(())
    }

    pub(crate) async fn sync_by(&self, who: Who) -> Result<(), Error> {
        self.shared.check_process()?;
        if self.is_read_only() {
            return Ok(());
        }
        let failed = |doing: &str, errno| match self.is_device_full() {
            true => Error::io(doing, errno).because(DEVICE_FULL),
            false => Error::io(doing, errno),
        };
        self.save_files(who).await.map_err(|errno| failed("writing back files", errno))?;
        let synced = self.shared.next_commit(who).await;
        synced.map_err(|errno| failed("making the volume's changes durable", errno))?;
        match self.shared.has_lost_bytes.swap(false, Ordering::AcqRel) {
            true => Err(Error::io("writing back a file that was closed", Errno::IO)),
            false => Ok(()),
        }
    }

    /// Writes back what was written to files through a page cache.
    async fn save_files(&self, who: Who) -> Result<(), Errno> {
        let open: Vec<_> =
            self.shared.state.lock().open.values().filter_map(Weak::upgrade).collect();
        let mut saved = Ok(());
        for file in open {
            if let Some(save) = file.lock.save() {
                saved = saved.and(who.wait(save).await);
            }
        }
        saved
    }

    /// Whether the device had no room lately.
    pub(crate) fn is_device_full(&self) -> bool {
        self.recent_errors().iter().any(ErrorEvent::is_device_full)
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.shared.access == Access::ReadOnly
    }

    /// Notes that a file is to be committed; asks for that when many are.
    pub(crate) fn note_dirty(&self, file: &Arc<OpenFile>) {
        self.note_in(&mut self.shared.state.lock(), file);
    }

    fn note_in(&self, state: &mut VolumeState, file: &Arc<OpenFile>) {
        state.dirty.insert(file.number, file.clone());
        file.note();
        if state.dirty.len() as u64 > MANY_WAITING {
            self.shared.board.ask(self.shared.board.next());
        }
    }

    /// Makes a range of a file written, for the next commit.
    pub(crate) fn wrote(
        &self,
        file: &Arc<OpenFile>,
        bytes: Range<u64>,
        begun: Generation,
        when: Written,
    ) {
        if file.wrote(bytes.clone(), begun, when).is_err() {
            // No commit begins between the two: it would take the one and not the other.
            let state = &mut *self.shared.state.lock();
            self.note_in(state, file);
            file.wrote(bytes, begun, when).expect("it was noted a moment ago");
        }
    }

    /// What makes durable what is not of a file; with everything, also names and attributes.
    pub(crate) fn commit_of(&self, file: &OpenFile, what: Durable) -> Option<Commit> {
        if self.is_read_only() {
            return None;
        }
        let board = &self.shared.board;
        if board.is_forked() {
            // It says so.
            return Some(board.clone().wait_in_task(CommitNumber::MAX));
        }
        let (next, number) = {
            // Commits begin under this lock, so that what is found here is in the next or in one before.
            let state = self.shared.state.lock();
            let next = board.next();
            let of_file = file.durable_with(next, what);
            let has_changes = state.pending.waiting().changes > 0;
            let of_all = if has_changes { next } else { next - 1 };
            (next, if what == Durable::Everything { of_file.max(of_all) } else { of_file })
        };
        // One that has begun may have sent its last flush before what was written since.
        let number = board.pending(number)?.max(next);
        Some(board.clone().wait_in_task(number))
    }
}

pub(super) fn read_only() -> Error {
    Error::refused(Errno::ROFS, "the volume is open for reading only")
}
