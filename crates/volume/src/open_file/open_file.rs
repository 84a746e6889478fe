//! An open file: where its bytes are, for readers without a lock, and its uncommitted changes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use uringfs_file::{
    ExtentWindow, FileState, HotExtent, Refusal, SyncScope, TruncateGeneration, WriteOrigin,
};
use zerocopy::IntoBytes;

use crate::blocks::{BLOCK, Run};
use crate::catalog::Key;
use crate::open_file::extent_cache::ExtentCache;
use crate::open_file::snapshot::Snapshot;
use crate::open_file::uncommitted::{InodeDelta, UncommittedState};
use crate::records::inode::{Inode, InodeNumber, Time};
use crate::records::overlay::{ChangeSet, CommitNumber};
use crate::space::extent::{Extent, ExtentRecord, ExtentState};
use crate::space::extent_map::{ExtentMap, ExtentOrHole};

/// A file that a handle has open, or that has uncommitted changes.
pub(crate) struct OpenFile {
    pub(crate) number: InodeNumber,
    /// The write lock of all handles.
    pub(crate) lock: Arc<FileState>,
    snapshot: ArcSwap<Snapshot>,
    /// The largest known written extent of the snapshot, and whether the next read updates the access time. Readers
    /// look here first.
    hot_extent: Arc<HotExtent>,
    write_hints: CachePadded<WriteHints>,
    /// Other extents that were looked up before.
    extent_cache: ExtentCache,
    /// Truncations to zero that did not wait for writers.
    truncations: AtomicU64,
    /// Blocks reserved for delayed allocation.
    delayed: AtomicU64,
    uncommitted: Mutex<UncommittedState>,
}

/// Checked by each write besides the map. Few writes change it, so it has a cache line apart from
/// fields that change more often, and from those that reads look at.
struct WriteHints {
    /// The last modification time that was set, in nanoseconds of the coarse clock; 0 makes the next write set it.
    modified: AtomicI64,
    /// The change cookie was read since the last change: the next write changes it.
    is_cookie_read: AtomicBool,
    /// The file has set-ID bits, which writes strip unless the writer is the superuser.
    set_id: AtomicBool,
    /// The file may have a `security.capability`, which every write strips.
    capability: AtomicBool,
}

/// The file is not queued for the next commit.
#[derive(Debug)]
pub(crate) struct NotQueued;

impl OpenFile {
    /// Opens a file as the catalog has it.
    ///
    /// `last_commit` is the last commit that may have taken changes, if the file was open before.
    pub(crate) fn new(
        number: InodeNumber,
        extents: ExtentMap,
        inode: &Inode,
        has_capability: bool,
        last_commit: CommitNumber,
    ) -> OpenFile {
        let written = extents.iter().filter(|extent| extent.state == ExtentState::Written);
        let largest = written.max_by_key(|extent| extent.length).map_or(0, |extent| extent.offset);
        let mut uncommitted = UncommittedState {
            committed: extents.clone(),
            changed: Vec::new(),
            is_inode_changed: false,
            modified: None,
            accessed: None,
            change_cookie: None,
            largest_hints: [largest; 2],
            window: ExtentWindow::default(),
            has_unmapped: false,
            last_commit,
            is_queued: false,
        };
        let snapshot = Snapshot::new(extents, inode.size);
        uncommitted.window = uncommitted.largest_window(&snapshot);
        let hot_extent = HotExtent::new(uncommitted.window);
        hot_extent.set_atime_due(inode.atime_due(Time::now()));
        let write_hints = WriteHints {
            modified: AtomicI64::new(0),
            is_cookie_read: AtomicBool::new(false),
            set_id: AtomicBool::new(inode.set_id_bits() != 0),
            capability: AtomicBool::new(has_capability),
        };
        OpenFile {
            number,
            lock: Arc::default(),
            snapshot: ArcSwap::from_pointee(snapshot),
            hot_extent: Arc::new(hot_extent),
            write_hints: CachePadded::new(write_hints),
            extent_cache: ExtentCache::new(),
            truncations: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
            uncommitted: Mutex::new(uncommitted),
        }
    }

    /// Blocks that are reserved for it, and allocated when its dirty folios are written back.
    pub(crate) fn delayed_blocks(&self) -> u64 {
        self.delayed.load(Ordering::Relaxed)
    }

    /// Adds to [`Self::delayed_blocks`].
    pub(crate) fn add_delayed(&self, blocks: u64) {
        self.delayed.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Takes blocks away that are allocated, or given back.
    pub(crate) fn remove_delayed(&self, blocks: u64) {
        self.delayed.fetch_sub(blocks, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// The hot extent, where reads look first.
    pub(crate) fn hot_extent(&self) -> &Arc<HotExtent> {
        &self.hot_extent
    }

    /// The address of a range, if it is written, inside the size and contiguous on the device.
    ///
    /// # Errors
    /// [`Refusal::Size`] or [`Refusal::Extent`].
    #[inline]
    pub(crate) fn address(&self, offset: u64, end: u64) -> Result<u64, Refusal> {
        match self.hot_extent.address(offset, end) {
            Some(address) => Ok(address),
            None => self.address_beyond_hot_extent(offset, end),
        }
    }

    /// [`Self::address`] after a miss of the hot extent.
    #[inline]
    pub(crate) fn address_beyond_hot_extent(&self, offset: u64, end: u64) -> Result<u64, Refusal> {
        self.extent_cache.address(offset, end).map_or_else(|| self.look_up(offset, end), Ok)
    }

    /// Looks a range up in all extents. Caches the extent, unless the file is being changed.
    fn look_up(&self, offset: u64, end: u64) -> Result<u64, Refusal> {
        let snapshot = self.snapshot.load();
        if end > snapshot.size() {
            return Err(Refusal::Size);
        }
        let window = snapshot.window(offset / BLOCK).filter(|window| end <= window.end);
        let window = window.ok_or(Refusal::Extent)?;
        if snapshot.extents.len() > 1 && self.extent_cache.has_room(offset) {
            self.cache_extent(offset);
        }
        Ok(window.address + (offset - window.start))
    }

    #[cold]
    fn cache_extent(&self, offset: u64) {
        let Some(_uncommitted) = self.uncommitted.try_lock() else { return };
        // The file may have changed since the look-up, but cannot while the lock is held.
        let snapshot = self.snapshot.load();
        if let Some(window) = snapshot.window(offset / BLOCK) {
            self.extent_cache.insert(offset, window, snapshot.extents.len(), snapshot.size());
        }
    }

    /// True if the file has neither bytes nor blocks.
    pub(crate) fn is_empty(&self) -> bool {
        let now = self.snapshot.load();
        now.size() == 0 && now.extents.is_empty()
    }

    /// The commit that makes the file durable: `next` if there are changes, else the last that took some. Changed
    /// times count only for [`SyncScope::Everything`].
    pub(crate) fn commit_to_await(&self, next: CommitNumber, what: SyncScope) -> CommitNumber {
        let uncommitted = self.uncommitted.lock();
        let has_data = uncommitted.is_inode_changed || !uncommitted.changed.is_empty();
        let has_times = what == SyncScope::Everything && uncommitted.modified.is_some();
        if has_data || has_times { next } else { uncommitted.last_commit }
    }

    /// The size in bytes, including bytes that are only in the page cache.
    pub(crate) fn size(&self) -> u64 {
        self.lock.size(|| self.generation(), || self.snapshot.load().size())
    }

    /// Fields that are newer than the inode's record.
    pub(crate) fn inode_delta(&self) -> InodeDelta {
        self.uncommitted.lock().inode_delta(&self.snapshot.load())
    }

    /// As [`Self::inode_delta`], for a caller that shows the change cookie: the next change of the content has another one.
    pub(crate) fn shown_delta(&self) -> InodeDelta {
        let uncommitted = self.uncommitted.lock();
        let is_read = &self.write_hints.is_cookie_read;
        // Writers look at it: calls of `stat` without writes in between leave its cache line alone.
        if !is_read.load(Ordering::Relaxed) {
            is_read.store(true, Ordering::Relaxed);
        }
        uncommitted.inode_delta(&self.snapshot.load())
    }

    /// Call when a changed inode was put with the delta `with` applied. Times that moved since then stay in the delta.
    pub(crate) fn delta_applied(&self, inode: &Inode, with: &InodeDelta) {
        let write_hints = &self.write_hints;
        let uncommitted = &mut *self.uncommitted.lock();
        let touched = (uncommitted.modified, uncommitted.change_cookie);
        if touched == (with.modified, with.change_cookie) {
            uncommitted.modified = None;
            write_hints.modified.store(0, Ordering::Relaxed);
        }
        if uncommitted.accessed == with.accessed {
            uncommitted.accessed = None;
        }
        let is_due = uncommitted.modified.is_some() || inode.atime_due(Time::now());
        self.hot_extent.set_atime_due(is_due);
        write_hints.set_id.store(inode.set_id_bits() != 0, Ordering::Relaxed);
    }

    /// True if a read now updates the access time.
    #[inline]
    pub(crate) fn is_atime_due(&self) -> bool {
        self.hot_extent.is_atime_due()
    }

    /// Updates the access time; false if another read did.
    pub(crate) fn update_atime(&self) -> bool {
        let uncommitted = &mut *self.uncommitted.lock();
        let is_due = self.hot_extent.is_atime_due();
        if is_due {
            self.hot_extent.set_atime_due(false);
            uncommitted.accessed = Some(Time::now());
        }
        is_due
    }

    /// True if a write now updates the modification time and the change cookie: the coarse clock has moved since the last
    /// update, or the cookie was read.
    #[inline]
    pub(crate) fn is_touch_due(&self) -> bool {
        let write_hints = &self.write_hints;
        write_hints.is_cookie_read.load(Ordering::Relaxed)
            || write_hints.modified.load(Ordering::Relaxed) != Time::now().wrapping_nanoseconds()
    }

    /// Updates the modification time and the change cookie.
    pub(crate) fn touch(&self) {
        self.touch_locked(&mut self.uncommitted.lock());
    }

    fn touch_locked(&self, uncommitted: &mut UncommittedState) {
        let now = Time::now();
        uncommitted.modified = Some(now);
        uncommitted.change_cookie = Some(match uncommitted.change_cookie {
            Some(cookie) => cookie.wrapping_add(1),
            None => first_cookie(),
        });
        self.write_hints.is_cookie_read.store(false, Ordering::Relaxed);
        // Once per tick of the clock: otherwise every read after a write would update the access time.
        if self.write_hints.modified.swap(now.wrapping_nanoseconds(), Ordering::Relaxed)
            != now.wrapping_nanoseconds()
        {
            self.hot_extent.set_atime_due(true);
        }
    }

    /// True if a write must strip privileges: see `strip_privileges`.
    #[inline]
    pub(crate) fn must_strip_privileges(&self, is_superuser: bool) -> bool {
        let write_hints = &self.write_hints;
        write_hints.capability.load(Ordering::Relaxed)
            || write_hints.set_id.load(Ordering::Relaxed) && !is_superuser
    }

    /// Records whether the file may have a capability. The caller holds the volume's lock, as when one is set.
    pub(crate) fn set_may_have_capability(&self, may_have: bool) {
        self.write_hints.capability.store(may_have, Ordering::Relaxed);
    }

    /// The holes of a range, in blocks of the file.
    pub(crate) fn holes(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let snapshot = self.snapshot.load();
        let (mut at, mut holes) = (blocks.start, Vec::new());
        for extent in snapshot.extents.iter_from(blocks.start) {
            if extent.offset >= blocks.end {
                break;
            }
            if extent.offset > at {
                holes.push(at..extent.offset);
            }
            at = extent.end();
        }
        if at < blocks.end {
            holes.push(at..blocks.end);
        }
        holes
    }

    /// The preferred device block for file block `block`: the one that continues the extent before it.
    pub(crate) fn goal(&self, block: u64) -> Option<u64> {
        let before = block.checked_sub(1)?;
        match self.snapshot.load().extents.find(before) {
            ExtentOrHole::Extent(extent) => Some(extent.start + (block - extent.offset)),
            ExtentOrHole::Hole { .. } => None,
        }
    }

    /// Inserts extents into holes.
    pub(crate) fn insert(&self, extents: &[Extent]) {
        self.change(|map, _, uncommitted| {
            for extent in extents {
                let replaced = map.insert(*extent);
                assert!(replaced.is_empty(), "only holes are allocated");
                uncommitted.mark_changed(extent.range());
            }
            uncommitted.is_inode_changed = true;
        });
    }

    /// Sets the size in bytes. Returns the blocks beyond the end of a smaller file; a larger one keeps blocks that
    /// were allocated ahead.
    pub(crate) fn set_size(&self, bytes: u64) -> Vec<Run> {
        self.change(|map, size, uncommitted| {
            let cut = if bytes <= *size { bytes.div_ceil(BLOCK) } else { u64::MAX };
            *size = bytes;
            self.touch_locked(uncommitted);
            uncommitted.is_inode_changed = true;
            uncommitted.mark_unmapped(map.truncate(cut))
        })
    }

    /// Truncates to zero with writes in flight: see [`uringfs_file::ResizableMap::generation`].
    pub(crate) fn truncate_to_zero(&self) -> Vec<Run> {
        self.change(|map, size, uncommitted| {
            self.truncations.fetch_add(1, Ordering::Release);
            *size = 0;
            self.touch_locked(uncommitted);
            uncommitted.is_inode_changed = true;
            uncommitted.mark_unmapped(map.truncate(0))
        })
    }

    pub(crate) fn generation(&self) -> TruncateGeneration {
        self.truncations.load(Ordering::Acquire)
    }

    /// The truncate generation and the size in it, read together under the lock.
    pub(crate) fn end(&self) -> (TruncateGeneration, u64) {
        let _uncommitted = self.uncommitted.lock();
        (self.generation(), self.snapshot.load().size())
    }

    /// Punches a hole. Returns the blocks it had.
    pub(crate) fn remove(&self, blocks: Range<u64>) -> Vec<Run> {
        self.change(|map, _, uncommitted| {
            self.touch_locked(uncommitted);
            uncommitted.is_inode_changed = true;
            uncommitted.mark_unmapped(map.remove(blocks))
        })
    }

    /// Makes the written blocks of a range unwritten.
    pub(crate) fn mark_unwritten(&self, blocks: Range<u64>) {
        self.change(|map, _, uncommitted| {
            self.touch_locked(uncommitted);
            uncommitted.is_inode_changed = true;
            if map.mark_unwritten(blocks.clone()) > 0 {
                uncommitted.has_unmapped = true;
                uncommitted.mark_changed(blocks);
            }
        });
    }

    /// Queues the file for the next commit. The caller holds the volume's lock.
    pub(crate) fn queue(&self) {
        self.uncommitted.lock().is_queued = true;
    }

    /// Marks a range written and extends the size to its end, if the file is queued for the next commit. Does
    /// nothing if the file was truncated to zero since `generation`.
    ///
    /// # Errors
    /// `NotQueued`, with nothing changed. The file must be queued first, because a commit of names and attributes
    /// also takes the size of an open file.
    pub(crate) fn mark_written(
        &self,
        bytes: Range<u64>,
        generation: TruncateGeneration,
        origin: WriteOrigin,
    ) -> Result<(), NotQueued> {
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let uncommitted = &mut *self.uncommitted.lock();
        if self.generation() != generation {
            return Ok(());
        }
        if !uncommitted.is_queued {
            return Err(NotQueued);
        }
        if origin == WriteOrigin::Direct {
            self.touch_locked(uncommitted);
        }
        uncommitted.is_inode_changed = true;
        let now = self.snapshot.load();
        if now.extents.is_written(&blocks) {
            // The common case of small appends. Holders of the old snapshot may see the larger size, too.
            now.size.fetch_max(bytes.end, Ordering::Release);
            self.publish_hot_extent(uncommitted, &now);
            return Ok(());
        }
        drop(now);
        self.change_with(uncommitted, |map, size, uncommitted| {
            if map.mark_written(blocks.clone()) > 0 {
                uncommitted.mark_changed(blocks);
            }
            *size = bytes.end.max(*size);
        });
        Ok(())
    }

    /// Replaces blocks by written extents and extends the size to at least `end` bytes. Returns the old blocks.
    pub(crate) fn swap_extents(&self, extents: &[Extent], end: u64) -> Vec<Run> {
        self.change(|map, size, uncommitted| {
            let mut replaced = Vec::new();
            for extent in extents {
                replaced.extend(map.insert(*extent));
                uncommitted.mark_changed(extent.range());
            }
            *size = end.max(*size);
            self.touch_locked(uncommitted);
            uncommitted.is_inode_changed = true;
            uncommitted.mark_unmapped(replaced)
        })
    }

    fn change<T>(
        &self,
        edit: impl FnOnce(&mut ExtentMap, &mut u64, &mut UncommittedState) -> T,
    ) -> T {
        self.change_with(&mut self.uncommitted.lock(), edit)
    }

    fn change_with<T>(
        &self,
        uncommitted: &mut UncommittedState,
        edit: impl FnOnce(&mut ExtentMap, &mut u64, &mut UncommittedState) -> T,
    ) -> T {
        let now = self.snapshot.load_full();
        let (mut extents, was) = (now.extents.clone(), now.size());
        let mut size = was;
        let done = edit(&mut extents, &mut size, uncommitted);
        let has_unmapped = std::mem::take(&mut uncommitted.has_unmapped) || size < was;
        let snapshot = Arc::new(Snapshot::new(extents, size));
        self.snapshot.store(snapshot.clone());
        if has_unmapped {
            self.extent_cache.invalidate();
        }
        self.publish_hot_extent(uncommitted, &snapshot);
        done
    }

    /// Publishes the largest extent to readers.
    fn publish_hot_extent(&self, uncommitted: &mut UncommittedState, now: &Snapshot) {
        let window = uncommitted.largest_window(now);
        if std::mem::replace(&mut uncommitted.window, window) != window {
            self.hot_extent.publish(window);
        }
    }

    /// Moves the changes into a commit: puts records of extents, and returns the newer fields of the inode.
    pub(crate) fn take_changes(
        &self,
        changes: &mut ChangeSet,
        number: CommitNumber,
    ) -> Option<InodeDelta> {
        let uncommitted = &mut *self.uncommitted.lock();
        (uncommitted.last_commit, uncommitted.is_queued) = (number, false);
        let now = self.snapshot.load_full();
        // Include adjacent extents, which may have been joined or cut.
        let changed: Vec<Range<u64>> = std::mem::take(&mut uncommitted.changed)
            .into_iter()
            .map(|blocks| blocks.start.saturating_sub(1)..blocks.end.saturating_add(1))
            .collect();
        let touched = |map: &ExtentMap| -> Vec<Extent> {
            let in_range = |blocks: &Range<u64>| {
                let end = blocks.end;
                map.iter_from(blocks.start).take_while(move |extent| extent.offset < end)
            };
            changed.iter().flat_map(in_range).collect()
        };
        // Delete all old records before putting new ones: a new extent may begin where an old one did.
        for extent in touched(&uncommitted.committed) {
            changes.delete(Key::Extent(self.number.0, extent.offset));
        }
        for extent in touched(&now.extents) {
            let record = ExtentRecord::from(&extent).as_bytes().to_vec();
            changes.put(Key::Extent(self.number.0, extent.offset), record);
        }
        uncommitted.committed = now.extents.clone();
        let delta = uncommitted.inode_delta(&now);
        let is_any =
            uncommitted.is_inode_changed || delta.modified.is_some() || delta.accessed.is_some();
        (uncommitted.is_inode_changed, uncommitted.modified, uncommitted.accessed) =
            (false, None, None);
        is_any.then_some(delta)
    }
}

/// The change cookie of the first change after a file was opened: a random number. A cookie that was shown before a power cut,
/// and that no commit took, is not given again.
fn first_cookie() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::inode::FileType;

    const BLOCKS: u64 = 64;

    /// Device blocks are never reused here, so an address identifies the extent it came from.
    #[test]
    fn addresses_match_the_map_after_any_change() {
        let inode = Inode::new(FileType::File, 0o644);
        let file = OpenFile::new(InodeNumber(7), ExtentMap::new(), &inode, false, 0);
        let (mut random, mut next, mut found) = (1_u64, 1 << 20, 0);
        let mut below = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % most
        };
        for _ in 0..20_000 {
            let start = below(BLOCKS);
            let blocks = start..start + 1 + below(6);
            let bytes = blocks.start * BLOCK..blocks.end * BLOCK;
            match below(10) {
                0 => _ = file.remove(blocks),
                1 => file.mark_unwritten(blocks),
                2 => _ = file.set_size(below(BLOCKS * BLOCK)),
                _ => {
                    for hole in file.holes(blocks) {
                        let length = hole.end - hole.start;
                        let (offset, state) = (hole.start, ExtentState::Unwritten);
                        file.insert(&[Extent { offset, start: next, length, state }]);
                        next += length;
                    }
                    file.queue();
                    file.mark_written(bytes, file.generation(), WriteOrigin::Direct).unwrap();
                }
            }
            for _ in 0..8 {
                let offset = below(BLOCKS * BLOCK);
                let end = offset + 1 + below(BLOCK);
                let snapshot = file.snapshot();
                let expected = match snapshot.extents.find(offset / BLOCK) {
                    ExtentOrHole::Extent(extent)
                        if extent.state == ExtentState::Written
                            && end <= snapshot.size().min(extent.end() * BLOCK) =>
                    {
                        Some(offset + extent.start * BLOCK - extent.offset * BLOCK)
                    }
                    _ => None,
                };
                assert_eq!(file.address(offset, end).ok(), expected);
                found += u64::from(file.extent_cache.address(offset, end).is_some());
            }
        }
        assert!(found > 1000, "{found} of them were cached");
    }

    fn open(inode: &Inode) -> OpenFile {
        OpenFile::new(InodeNumber(2), ExtentMap::new(), inode, false, 0)
    }

    fn wrote(file: &OpenFile) {
        file.queue();
        file.mark_written(0..4096, 0, WriteOrigin::Direct).unwrap();
    }

    #[test]
    fn generation_and_size_are_consistent_during_truncation() {
        let file = open(&Inode::new(FileType::File, 0o644));
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for generation in 0..20_000 {
                    file.queue();
                    file.mark_written(0..generation + 1, generation, WriteOrigin::Direct).unwrap();
                    file.truncate_to_zero();
                }
                is_done.store(true, Ordering::Relaxed);
            });
            while !is_done.load(Ordering::Relaxed) {
                let (generation, size) = file.end();
                assert!([0, generation + 1].contains(&size), "{size} bytes in {generation}");
            }
        });
    }

    #[test]
    fn a_write_during_set_attributes_still_updates_its_times() {
        let mut inode = Inode::new(FileType::File, 0o644);
        let file = open(&inode);
        let delta = file.inode_delta();
        delta.apply_to(&mut inode);
        file.touch();
        assert!(file.update_atime());
        (inode.modified, inode.accessed) = (Time::from_nanoseconds(1), Time::from_nanoseconds(2));
        file.delta_applied(&inode, &delta);
        let now = file.inode_delta();
        assert!(now.modified.is_some() && now.accessed.is_some());
        // The record has the times of the delta now.
        file.delta_applied(&inode, &now);
        let now = file.inode_delta();
        assert!(now.modified.is_none() && now.accessed.is_none() && file.is_touch_due());
    }

    #[test]
    fn the_first_change_after_the_change_cookie_was_shown_changes_it() {
        let mut inode = Inode::new(FileType::File, 0o644);
        let file = open(&inode);
        let mut cookies = vec![inode.change_cookie];
        for _ in 0..100 {
            file.touch();
            file.shown_delta().apply_to(&mut inode);
            // Also in the clock tick of the last change.
            assert!(file.is_touch_due() && !cookies.contains(&inode.change_cookie));
            cookies.push(inode.change_cookie);
        }
        let again = open(&inode);
        again.touch();
        again.shown_delta().apply_to(&mut inode);
        assert!(!cookies.contains(&inode.change_cookie));
    }

    #[test]
    fn a_change_during_set_attributes_is_committed_with_its_cookie() {
        let mut inode = Inode::new(FileType::File, 0o644);
        let file = open(&inode);
        file.touch();
        let delta = file.shown_delta();
        delta.apply_to(&mut inode);
        file.touch();
        file.delta_applied(&inode, &delta);
        let committed = file.take_changes(&mut ChangeSet::default(), 1).unwrap();
        let shown = inode.change_cookie;
        committed.apply_to(&mut inode);
        assert_ne!(inode.change_cookie, shown);
    }

    #[test]
    fn a_read_in_the_clock_tick_of_a_write_updates_no_access_time() {
        let file = open(&Inode::new(FileType::File, 0o644));
        let is_due = std::iter::repeat_with(|| {
            let before = Time::now();
            wrote(&file);
            file.update_atime();
            wrote(&file);
            (before == Time::now()).then(|| file.is_atime_due())
        });
        assert!(!is_due.flatten().next().unwrap());
    }

    #[test]
    fn a_read_after_a_write_updates_the_access_time_in_the_next_tick() {
        let file = open(&Inode::new(FileType::File, 0o644));
        wrote(&file);
        assert!(file.update_atime());
        let before = Time::now();
        while Time::now() == before {
            std::hint::spin_loop();
        }
        wrote(&file);
        assert!(file.is_atime_due() && file.update_atime());
    }
}
