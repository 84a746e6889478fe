//! [`Volume`]: files under names, on a device. `format` formats and opens it, `core::state` has the state that its
//! clones share, `namespace::operations` has its operations.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use uringfs_device::{Device, Errno};
use uringfs_file::{CommitFuture, SyncScope, TruncateGeneration, WriteOrigin};
use uringfs_reactor::{operations_in_flight, quiescence};

use crate::blocks::BLOCK;
use crate::catalog::Access;
use crate::core::blocking::{WaitMode, run_blocking};
use crate::core::events::{DEVICE_FULL, ErrorEvent, EventStream};
use crate::core::group_commit::CommitThread;
use crate::core::state::{COMMIT_THRESHOLD_RECORDS, VolumeShared, VolumeState};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{Retry, Transaction};
use crate::open_file::open_file::OpenFile;
use crate::records::overlay::CommitNumber;
use crate::superblock::{SLOTS, with_repair_advice};

/// Files under names, on a device or in one ordinary file. Clones are the same volume and can be used from any
/// thread.
///
/// Names and attributes come from memory. Those evicted from it are read from the device, and the calling thread
/// blocks meanwhile. Tasks use [`Self::as_async`].
///
/// Changes are durable after [`Volume::close`], after [`Volume::sync`], and after
/// [`File::sync_all`](uringfs_file::File::sync_all) of any file. A drop of the last clone writes page caches back and makes everything
/// durable, too, as far as it can: it reports no error, and in a task whose reactor has operations in flight it does not wait for
/// page caches. Nothing is made durable by time alone: a process that is killed before loses names, sizes and buffered bytes.
///
/// In the child of a fork the volume stays the parent's: names, writes and syncs return ECHILD, and a drop changes
/// nothing. In the child, reads of a file that was open before the fork may be stale.
///
/// ```
/// # use uringfs_volume as uringfs;
/// use uringfs::{FormatOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// let volume = Volume::create(&path, &FormatOptions::new().size(64 << 20).label("photos"))?;
/// volume.create_dir_all("/2026/june")?;
/// volume.write("/2026/june/list", "one\ntwo\n")?;
/// volume.hard_link("/2026/june/list", "/list")?;
/// volume.rename("/2026/june/list", "/2026/june/names")?;
/// assert_eq!(volume.metadata("/list")?.nlink(), 2);
/// volume.remove_dir_all("/2026")?;
/// volume.close()?;
///
/// let volume = Volume::open(&path)?;
/// assert_eq!(volume.label(), "photos");
/// assert_eq!(volume.read("/list")?, b"one\ntwo\n");
/// assert!(volume.statistics().free_blocks > 1000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Volume {
    /// `None` for a file's own clone. The first field: its drop needs the threads.
    _program: Option<Arc<ProgramHandle>>,
    pub(crate) shared: Arc<VolumeShared>,
    pub(crate) _threads: Arc<Threads>,
}

/// What the clones of the program have in common. Files, and the dirty folios of a page cache, have clones of their own, with
/// which the volume stays open.
struct ProgramHandle {
    shared: Weak<VolumeShared>,
    threads: Weak<Threads>,
}

impl Drop for ProgramHandle {
    /// Saves what is in page caches: the program may end next.
    fn drop(&mut self) {
        let (Some(shared), Some(threads)) = (self.shared.upgrade(), self.threads.upgrade()) else {
            return;
        };
        let volume = Volume { _program: None, shared, _threads: threads };
        // In the child of a fork another thread may have had the locks.
        if volume.shared.group_commit.is_forked() {
            return;
        }
        // These end only after the task that runs this, and the wait may be for one of them.
        let stuck = operations_in_flight(volume.device().index()).stuck;
        if stuck == 0 && volume.has_dirty_files() {
            // A failure was published to `Volume::errors`.
            _ = volume.sync();
        }
    }
}

/// The threads of a volume. They end with its last clone, after the last commit.
pub(crate) struct Threads {
    shared: Arc<VolumeShared>,
    /// `None` if the volume is read-only.
    commit_thread: Option<CommitThread>,
}

impl Threads {
    pub(crate) fn new(shared: Arc<VolumeShared>, commit_thread: Option<CommitThread>) -> Threads {
        Threads { shared, commit_thread }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if !self.shared.group_commit.is_forked() {
            self.shared.freeze.thaw();
            self.shared.state.lock().wants_checkpoint = true;
        }
        drop(self.commit_thread.take());
        self.shared.catalog_thread.stop();
    }
}

/// Space and commits of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Blocks that were freed, and become free after a commit, when no read of them is in flight.
    pub pending_blocks: u64,
    /// Blocks of the catalog, which takes more as it grows.
    pub catalog_blocks: u64,
    /// Commits since the volume was opened, each for all its waiters.
    pub commits: u64,
    /// Commits that a thread without reactors made itself while it blocked for them, as no other commit was in
    /// progress or waited for. The commit thread made the others.
    pub commits_in_place: u64,
    /// Commits that were checkpoints: they went into the catalog's pages, with everything in its log.
    pub checkpoints: u64,
    /// For how long the oldest request to the device has been waiting: see [`Device::oldest_request`].
    pub oldest_request: Option<Duration>,
}

/// Files that have lost their last name: see [`Volume::unlinked_files`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlinkedFiles {
    /// There are none.
    None,
    /// All are open, or pinned by a reference.
    InUse,
    /// The next commit frees the blocks of some.
    Closed,
}

impl fmt::Debug for Volume {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Volume {:?} on {:?}", self.shared.label, self.shared.device)
    }
}

impl Volume {
    /// The 16 bytes that identify the volume.
    pub fn uuid(&self) -> [u8; 16] {
        self.shared.uuid
    }

    /// Its label, as given by the format or by [`Self::set_label`].
    pub fn label(&self) -> &str {
        &self.shared.label
    }

    /// The names of the locks by which other processes find the one that has the volume open, as
    /// [`Holder::lock`](crate::Holder::lock): of its file or block device, and of those below. None for a volume in memory.
    pub fn locks(&self) -> Vec<String> {
        self.shared.lock.names()
    }

    /// True if nothing in the volume can be changed: the device is read-only or was opened for reading only, or the
    /// volume is of an older version; and after an error of the device that has stopped the volume, or when the device has
    /// become too small for it, until it is opened again. Until then, everything that could be read before the error
    /// can still be read, as far as the device can.
    pub fn is_read_only(&self) -> bool {
        let shared = &self.shared;
        self.is_opened_read_only()
            || shared.group_commit.has_failed()
            || shared.size_watch.shrunk().is_some()
    }

    /// True if it was read-only from the beginning, so that nothing waits for a commit.
    pub(super) fn is_opened_read_only(&self) -> bool {
        self.shared.access == Access::ReadOnly
    }

    /// Damage that was found so far, one line each; the last line is the reason if the volume has stopped. Lines about
    /// damage that opening or reading the catalog found end with what to do, or with what was done.
    pub fn warnings(&self) -> Vec<String> {
        let failure = self.shared.catalog.failure().map(|error| error.to_string());
        let mut warnings = self.shared.state.lock().warnings.lines().to_vec();
        warnings.extend(self.shared.catalog.warnings().into_iter().map(with_repair_advice));
        warnings.extend(failure);
        warnings.extend(self.shared.size_watch.shrunk().map(str::to_owned));
        warnings
    }

    /// A stream of errors from now on: failed requests, in either completion mode, damaged metadata, a device that has
    /// shrunk, and the loss of the last changes when the volume closes. Each error comes once. The stream keeps the last 1024.
    ///
    /// ```
    /// # mod uringfs {
    /// #     pub use uringfs_device::*;
    /// #     pub use uringfs_volume::*;
    /// #     pub use uringfs_device as device;
    /// #     pub use uringfs_volume as volume;
    /// # }
    /// use uringfs::device::backend::sim::{Sim, SimOptions};
    /// use uringfs::device::{Device, Op};
    /// use uringfs::volume::ErrorEvent;
    /// use uringfs::{Errno, FormatOptions, Volume};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sim = Sim::new(SimOptions::new(64 << 20));
    /// let volume = Volume::create_on(Device::new(sim.clone())?, &FormatOptions::new())?;
    /// let events = volume.errors();
    /// // The device fails its next flush.
    /// sim.fail_nth(Op::Flush, 1, Errno::IO);
    /// volume.create_dir("/new")?;
    /// assert!(volume.sync().is_err());
    /// match events.try_next() {
    ///     Some(ErrorEvent::Request { op, errno, .. }) => assert_eq!((op, errno), (Op::Flush, Errno::IO)),
    ///     other => panic!("no failed request: {other:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn errors(&self) -> EventStream {
        let volume: Weak<VolumeShared> = Arc::downgrade(&self.shared);
        self.shared.publisher.subscribe(volume)
    }

    /// The last errors since the volume was opened, including requests that failed during opening: at most 64.
    /// Damage that opening found is in [`Self::warnings`].
    pub fn recent_errors(&self) -> Vec<ErrorEvent> {
        self.shared.publisher.recent(&*self.shared)
    }

    /// Explains why a write or an allocation got ENOSPC: the volume or the device is full, how many bytes the last one
    /// needed and how many are free, how many become free with a commit, and which reactors' requests keep further bytes
    /// from becoming free.
    pub fn shortage(&self) -> Error {
        if self.is_device_full() {
            return Error::new(ErrorKind::NoSpace, DEVICE_FULL);
        }
        let state = self.shared.state.lock();
        let (retired, pending) = (state.retired_blocks(), state.pending_blocks());
        let (wanted, free) = (state.refused_blocks, state.available());
        let mut text = match wanted > free {
            true => format!(
                "the volume is full: {} bytes were asked for, and {} are free; remove something",
                wanted.saturating_mul(BLOCK),
                free * BLOCK
            ),
            false => "the volume is full; remove something".to_owned(),
        };
        if pending > retired {
            text +=
                &format!("; {} bytes more become free with a commit", (pending - retired) * BLOCK);
        }
        if let Some((epoch, _)) = state.retired.last() {
            let holders = quiescence(self.shared.device.index()).holders(*epoch).join(", ");
            let when = match holders.is_empty() {
                true => "with the next allocation".into(),
                false => format!("when the requests in flight of {holders} have ended"),
            };
            text += &format!("; {} bytes more {when}", retired * BLOCK);
        }
        Error::new(ErrorKind::NoSpace, text)
    }

    /// The device addresses of its superblocks in bytes, the backup included, in ascending order. Each is a block of
    /// 4096 bytes.
    pub fn superblocks(&self) -> Vec<u64> {
        let backup = self.shared.state.lock().superblock.backup_block();
        SLOTS.into_iter().chain(backup).map(|block| block * BLOCK).collect()
    }

    /// Bytes at the start of the device that hold only superblocks.
    pub fn reserved_bytes(&self) -> u64 {
        self.shared.state.lock().superblock.reserved() * BLOCK
    }

    /// The device that the volume is on.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Space and commits.
    ///
    /// ```
    /// # use uringfs_volume as uringfs;
    /// use uringfs::{FormatOptions, Volume};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
    /// let before = volume.statistics();
    /// volume.write("/a", vec![7; 1 << 20])?;
    /// volume.sync()?;
    /// let after = volume.statistics();
    /// assert_eq!(after.blocks, (64 << 20) / 4096);
    /// assert!(before.free_blocks - after.free_blocks >= (1 << 20) / 4096);
    /// assert!(after.commits > before.commits);
    /// # Ok::<_, uringfs_volume::Error>(())
    /// ```
    pub fn statistics(&self) -> Statistics {
        let state = self.shared.state.lock();
        let space = state.allocator.space();
        Statistics {
            commits: self.shared.group_commit.next() - 1,
            commits_in_place: self.shared.group_commit.in_place(),
            checkpoints: state.checkpoints,
            catalog_blocks: state.superblock.catalog.iter().map(|run| run.length).sum::<u64>()
                + state.preallocated.blocks(),
            blocks: space.total,
            free_blocks: space.available(),
            pending_blocks: state.pending_blocks(),
            oldest_request: self.shared.device.oldest_request(),
        }
    }

    /// Whether files that have lost their last name still have blocks. For the servers of mounts.
    #[doc(hidden)]
    pub fn unlinked_files(&self) -> UnlinkedFiles {
        let state = self.shared.state.lock();
        match state.orphans.is_empty() {
            true => UnlinkedFiles::None,
            false if state.has_closed_orphans() => UnlinkedFiles::Closed,
            false => UnlinkedFiles::InUse,
        }
    }

    /// Makes all changes and writes durable, including those in page caches. Blocks the thread; operations in flight on
    /// its own reactors go on meanwhile. In a task of a reactor they do not, and if the task's reactor has a write-back in
    /// flight, this does not return: use [`Self::as_async`] there.
    ///
    /// # Errors
    /// ENOSPC when the catalog is full: remove something, then sync again. EIO when the device or the catalog failed,
    /// now or before; and once after a closed file lost buffered writes.
    pub fn sync(&self) -> Result<(), Error> {
        run_blocking(self.sync_in_mode(WaitMode::Blocking))
    }
}

impl Volume {
    /// The first handle of a volume.
    pub(crate) fn new(shared: Arc<VolumeShared>, threads: Threads) -> Volume {
        let threads = Arc::new(threads);
        let program =
            ProgramHandle { shared: Arc::downgrade(&shared), threads: Arc::downgrade(&threads) };
        Volume { _program: Some(Arc::new(program)), shared, _threads: threads }
    }

    /// A clone for a file, which keeps the volume open but is no handle of the program.
    pub(crate) fn of_file(&self) -> Volume {
        Volume { _program: None, shared: self.shared.clone(), _threads: self._threads.clone() }
    }

    /// Runs a transaction that changes something.
    pub(crate) async fn change<T>(
        &self,
        mode: WaitMode,
        operation: impl FnMut(&mut Transaction<'_>) -> Result<T, Retry>,
    ) -> Result<T, Error> {
        let _change = self.begin_change(mode).await?;
        self.shared.run_transaction(mode, operation).await
    }

    pub(super) fn check_changeable(&self) -> Result<(), Error> {
        self.shared.check_process()?;
        if self.is_read_only() {
            return Err(self.read_only());
        }
        Ok(())
    }

    /// The error of a change where nothing can be changed.
    pub(super) fn read_only(&self) -> Error {
        let what = match (self.is_opened_read_only(), self.shared.size_watch.shrunk()) {
            (true, _) => "the volume is open for reading only",
            (false, Some(line)) => line,
            (false, None) => "a commit has failed, and the volume can only be read; open it again",
        };
        Error::refused(Errno::ROFS, what)
    }

    pub(crate) async fn sync_in_mode(&self, mode: WaitMode) -> Result<(), Error> {
        self.shared.check_process()?;
        if self.is_opened_read_only() {
            return Ok(());
        }
        let written_back = self.write_back_files(mode).await;
        written_back.map_err(|errno| self.sync_error("writing back files", errno))?;
        self.commit_in_mode(mode).await?;
        match self.shared.has_lost_writes.swap(false, Ordering::AcqRel) {
            true => Err(Error::io("writing the changes of a file, which are lost", Errno::IO)),
            false => Ok(()),
        }
    }

    /// Makes all changes of names and attributes durable. Writes nothing back.
    pub(crate) async fn commit_in_mode(&self, mode: WaitMode) -> Result<(), Error> {
        self.shared.check_process()?;
        if self.is_opened_read_only() {
            return Ok(());
        }
        let committed = self.shared.wait_for_commit(mode).await;
        committed.map_err(|errno| self.sync_error("making the volume's changes durable", errno))
    }

    fn sync_error(&self, doing: &str, errno: Errno) -> Error {
        match self.is_device_full() {
            true => Error::io(doing, errno).with_cause(DEVICE_FULL),
            false => Error::io(doing, errno),
        }
    }

    fn open_files(&self) -> Vec<Arc<OpenFile>> {
        self.shared.state.lock().open.values().filter_map(Weak::upgrade).collect()
    }

    fn has_dirty_files(&self) -> bool {
        self.open_files().iter().any(|file| file.lock.has_dirty())
    }

    /// Writes back the dirty bytes of all open files.
    async fn write_back_files(&self, mode: WaitMode) -> Result<(), Errno> {
        let mut saved = Ok(());
        for file in self.open_files() {
            if let Some(save) = file.lock.write_back() {
                saved = saved.and(mode.wait(save).await);
            }
        }
        saved
    }

    /// True if the device was out of space lately.
    pub(crate) fn is_device_full(&self) -> bool {
        self.recent_errors().iter().any(ErrorEvent::is_device_full)
    }

    /// Queues a file for the next commit; requests the commit when many are queued.
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

    /// Marks a range of a file written, for the next commit.
    pub(crate) fn mark_written(
        &self,
        file: &Arc<OpenFile>,
        bytes: Range<u64>,
        begun: TruncateGeneration,
        origin: WriteOrigin,
    ) {
        if file.mark_written(bytes.clone(), begun, origin).is_err() {
            // Under the lock, so that no commit begins in between: it would take the file without the range.
            let state = &mut *self.shared.state.lock();
            self.mark_dirty_locked(state, file);
            file.mark_written(bytes, begun, origin).expect("the file was just queued");
        }
    }

    /// The commit that makes a file durable, if there is one to wait for; with [`SyncScope::Everything`], also names and
    /// attributes.
    pub(crate) fn commit_for(&self, file: &OpenFile, what: SyncScope) -> Option<CommitFuture> {
        if self.is_opened_read_only() {
            return None;
        }
        let group_commit = &self.shared.group_commit;
        if group_commit.is_forked() {
            // Its wait returns ECHILD.
            return Some(group_commit.clone().wait(CommitNumber::MAX));
        }
        let (next, number) = {
            // Commits begin under this lock, so that changes found here are in the next commit or an earlier one.
            let state = self.shared.state.lock();
            let next = group_commit.next();
            let of_file = file.commit_to_await(next, what);
            let has_changes = state.overlay.current_size().changes > 0;
            let of_all = if has_changes { next } else { next - 1 };
            (next, if what == SyncScope::Everything { of_file.max(of_all) } else { of_file })
        };
        // A commit in progress may have flushed before the last writes: wait for the next.
        let number = group_commit.commit_to_await(number)?.max(next);
        Some(group_commit.clone().wait(number))
    }
}
