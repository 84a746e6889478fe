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
use crate::core::blocking::{WaitMode, run_blocking};
use crate::core::events::{DEVICE_FULL, ErrorEvent, Errors};
use crate::core::group_commit::CommitThread;
use crate::core::state::{COMMIT_THRESHOLD_RECORDS, Shared, VolumeState};
use crate::error::{Error, ErrorKind};
use crate::namespace::directory::{DirectoryEntry, Rename};
use crate::namespace::open_options::OpenOptions;
use crate::namespace::operations::{
    entries, inode, link, make, remove, remove_directory, rename, set_attributes,
};
use crate::namespace::path::Follow;
use crate::namespace::transaction::{Retry, Transaction};
use crate::open_file::open_file::{OpenFile, WriteOrigin};
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
    commit_thread: Option<CommitThread>,
}

impl Threads {
    pub(crate) fn new(shared: Arc<Shared>, commit_thread: Option<CommitThread>) -> Threads {
        Threads { shared, commit_thread }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if !self.shared.group_commit.is_forked() {
            self.shared.state.lock().wants_checkpoint = true;
        }
        drop(self.commit_thread.take());
        self.shared.catalog_thread.stop();
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
        let mut warnings = self.shared.state.lock().warnings.lines().to_vec();
        warnings.extend(self.shared.catalog.flaws());
        warnings.extend(failure);
        warnings
    }

    /// Every I/O error from now on, everything of the metadata that is found damaged, and in the end that what was
    /// changed last is lost, if so: each once, of inline and deferred completions alike. Who listens is kept the last thousand or so.
    pub fn errors(&self) -> Errors {
        let volume: Weak<Shared> = Arc::downgrade(&self.shared);
        self.shared.publisher.subscribe(volume)
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
            commits: self.shared.group_commit.next() - 1,
            checkpoints: state.checkpoints,
            catalog_blocks: state.superblock.catalog.iter().map(|run| run.length).sum::<u64>()
                + state.preallocated.blocks(),
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
        run_blocking(self.open_in_mode(WaitMode::Blocking, path.as_ref(), options))
    }

    /// Makes a file of any kind, a directory or a symbolic link among them. Nothing has bytes yet. Its
    /// directory hands on what it does on Linux: its group, if its set-group-ID bit is set, and its
    /// default access control list.
    ///
    /// # Errors
    /// EEXIST, ENOENT and what else paths meet; ENOSPC where the catalog has no room for one more
    /// name; what the catalog says.
    pub fn make(&self, path: impl AsRef<[u8]>, inode: Inode) -> Result<InodeNumber, Error> {
        run_blocking(self.change(WaitMode::Blocking, make(path.as_ref(), &inode)))
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
        run_blocking(self.change(WaitMode::Blocking, link(path.as_ref(), new.as_ref())))
    }

    /// Takes a file's name away, and the file with its last one; who has it open keeps it so long.
    ///
    /// # Errors
    /// ENOENT, EISDIR, and what else paths meet.
    pub fn remove(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        run_blocking(self.change(WaitMode::Blocking, remove(path.as_ref())))
    }

    /// Removes a directory that holds nothing.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, and what else paths meet.
    pub fn remove_directory(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        run_blocking(self.change(WaitMode::Blocking, remove_directory(path.as_ref())))
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
        run_blocking(self.change(WaitMode::Blocking, rename(path.as_ref(), new.as_ref(), how)))
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
        run_blocking(self.shared.run_transaction(WaitMode::Blocking, inode(path.as_ref(), follow)))
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
        run_blocking(self.change(WaitMode::Blocking, set_attributes(path.as_ref(), follow, set)))
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
        run_blocking(self.shared.run_transaction(WaitMode::Blocking, entries(path.as_ref(), after)))
    }

    /// Makes everything that was changed and written durable, through page caches, too. What a reactor of the calling
    /// thread is writing back of a file just now has to end without it: then sync the file, or [`Self::in_tasks`].
    ///
    /// # Errors
    /// ENOSPC when the catalog has no room for it: remove something, then try again. EIO when the
    /// device or the catalog failed, now or before; once when a file that was closed has lost what was written to it
    /// through a page cache.
    pub fn sync(&self) -> Result<(), Error> {
        run_blocking(self.sync_in_mode(WaitMode::Blocking))
    }
}

impl Volume {
    /// An operation that changes something.
    pub(crate) async fn change<T>(
        &self,
        mode: WaitMode,
        operation: impl FnMut(&mut Transaction<'_>) -> Result<T, Retry>,
    ) -> Result<T, Error> {
        self.check_changeable()?;
        self.shared.run_transaction(mode, operation).await
    }

    pub(super) fn check_changeable(&self) -> Result<(), Error> {
        if self.is_read_only() {
            return Err(read_only());
        }
        self.shared.check_process()?;
        if self.shared.group_commit.has_failed() {
            let what = "a commit has failed and the volume has stopped; open it anew";
            return Err(Error::new(ErrorKind::Io(Errno::IO), what));
        }
        Ok(())
    }

    pub(crate) async fn sync_in_mode(&self, mode: WaitMode) -> Result<(), Error> {
        self.shared.check_process()?;
        if self.is_read_only() {
            return Ok(());
        }
        let failed = |doing: &str, errno| match self.is_device_full() {
            true => Error::io(doing, errno).because(DEVICE_FULL),
            false => Error::io(doing, errno),
        };
        self.write_back_files(mode).await.map_err(|errno| failed("writing back files", errno))?;
        let synced = self.shared.wait_for_commit(mode).await;
        synced.map_err(|errno| failed("making the volume's changes durable", errno))?;
        match self.shared.has_lost_writes.swap(false, Ordering::AcqRel) {
            true => Err(Error::io("writing back a file that was closed", Errno::IO)),
            false => Ok(()),
        }
    }

    /// Writes back what was written to files through a page cache.
    async fn write_back_files(&self, mode: WaitMode) -> Result<(), Errno> {
        let open: Vec<_> =
            self.shared.state.lock().open.values().filter_map(Weak::upgrade).collect();
        let mut saved = Ok(());
        for file in open {
            if let Some(save) = file.lock.save() {
                saved = saved.and(mode.wait(save).await);
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
    pub(crate) fn mark_dirty(&self, file: &Arc<OpenFile>) {
        self.mark_dirty_locked(&mut self.shared.state.lock(), file);
    }

    fn mark_dirty_locked(&self, state: &mut VolumeState, file: &Arc<OpenFile>) {
        state.dirty.insert(file.number, file.clone());
        file.queue();
        if state.dirty.len() as u64 > COMMIT_THRESHOLD_RECORDS {
            self.shared.group_commit.request(self.shared.group_commit.next());
        }
    }

    /// Makes a range of a file written, for the next commit.
    pub(crate) fn mark_written(
        &self,
        file: &Arc<OpenFile>,
        bytes: Range<u64>,
        begun: Generation,
        origin: WriteOrigin,
    ) {
        if file.mark_written(bytes.clone(), begun, origin).is_err() {
            // No commit begins between the two: it would take the one and not the other.
            let state = &mut *self.shared.state.lock();
            self.mark_dirty_locked(state, file);
            file.mark_written(bytes, begun, origin).expect("it was noted a moment ago");
        }
    }

    /// What makes durable what is not of a file; with everything, also names and attributes.
    pub(crate) fn commit_for(&self, file: &OpenFile, what: Durable) -> Option<Commit> {
        if self.is_read_only() {
            return None;
        }
        let group_commit = &self.shared.group_commit;
        if group_commit.is_forked() {
            // It says so.
            return Some(group_commit.clone().wait_async(CommitNumber::MAX));
        }
        let (next, number) = {
            // Commits begin under this lock, so that what is found here is in the next or in one before.
            let state = self.shared.state.lock();
            let next = group_commit.next();
            let of_file = file.commit_to_await(next, what);
            let has_changes = state.overlay.waiting().changes > 0;
            let of_all = if has_changes { next } else { next - 1 };
            (next, if what == Durable::Everything { of_file.max(of_all) } else { of_file })
        };
        // One that has begun may have sent its last flush before what was written since.
        let number = group_commit.commit_to_await(number)?.max(next);
        Some(group_commit.clone().wait_async(number))
    }
}

pub(super) fn read_only() -> Error {
    Error::refused(Errno::ROFS, "the volume is open for reading only")
}
