//! A file that is open: where its bytes lie, as readers find it without a lock, and what of that is
//! not committed yet.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use uringfs_file::{Durable, Generation, Glance, Window, WriteLock};
use zerocopy::IntoBytes;

use crate::blocks::{BLOCK, Run};
use crate::catalog::Key;
use crate::open_file::extent_cache::ExtentCache;
use crate::records::inode::{Inode, InodeNumber, Time};
use crate::records::overlay::{Changes, CommitNumber};
use crate::space::extent::{Extent, ExtentRecord, State};
use crate::space::extent_map::{ExtentMap, Found};

/// What readers see of a file: replaced, never changed, but that it becomes longer within its written blocks.
pub(crate) struct Snapshot {
    pub(crate) extents: ExtentMap,
    /// Bytes.
    size: AtomicU64,
}

/// A file that somebody has open, or that has changes to commit.
pub(crate) struct OpenFile {
    pub(crate) number: InodeNumber,
    /// Of all who write to it, however often it was opened.
    pub(crate) lock: Arc<WriteLock>,
    snapshot: ArcSwap<Snapshot>,
    /// The largest written extent of the snapshot that is known of, and whether the next read moves the
    /// time of access. Whoever reads looks there first.
    hot_extent: Arc<Glance>,
    write_hints: CachePadded<WriteHints>,
    /// Of its other extents, those that were read before.
    extent_cache: ExtentCache,
    /// How often it was emptied with writers at work.
    truncations: AtomicU64,
    uncommitted: Mutex<UncommittedState>,
}

/// What the next write has to note besides: looked at by each, written when it changes. Apart from what
/// changes more often, and from what reads look at.
struct WriteHints {
    /// When bytes were last changed, as far as that is known here; 0 has the next write tell.
    modified: AtomicI64,
    /// Writers take away that the file runs as its owner or group, unless they are trusted.
    set_id: AtomicBool,
    /// It may be a program that may do more than whoever runs it, which every writer takes away.
    capability: AtomicBool,
}

/// When bytes were written, which moves the time of change, or has moved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOrigin {
    Direct,
    /// To the page cache, and now back.
    Writeback,
}

/// No commit is going to take what changes of a file.
#[derive(Debug)]
pub(crate) struct NotQueued;

/// What of an inode is newer than its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeDelta {
    size: u64,
    blocks: u64,
    modified: Option<Time>,
    accessed: Option<Time>,
}

impl InodeDelta {
    pub(crate) fn apply_to(&self, inode: &mut Inode) {
        (inode.size, inode.blocks) = (self.size, self.blocks);
        if let Some(modified) = self.modified {
            (inode.modified, inode.changed) = (modified, inode.changed.max(modified));
        }
        inode.accessed = self.accessed.unwrap_or(inode.accessed);
    }
}

/// What has changed since the last commit.
struct UncommittedState {
    /// As the catalog has them, or will when the commit under way has ended.
    committed: ExtentMap,
    /// Blocks of the file whose extents are others now; sorted, apart from each other.
    changed: Vec<Range<u64>>,
    /// The size is another, or how many blocks there are.
    is_inode_changed: bool,
    modified: Option<Time>,
    accessed: Option<Time>,
    /// Blocks of the file in which to look for its largest written extent: that it was in, and the
    /// first of the last change.
    largest_hints: [u64; 2],
    /// What the glance shows.
    window: Window,
    /// Something that was written is not any more.
    has_unmapped: bool,
    /// The last commit that took changes of it.
    taken_by: CommitNumber,
    /// The next one is going to.
    is_queued: bool,
}

impl OpenFile {
    /// As the catalog has it.
    ///
    /// `taken_by` is the last commit that can have taken changes of it, when it was open before.
    pub(crate) fn new(
        number: InodeNumber,
        extents: ExtentMap,
        inode: &Inode,
        has_capability: bool,
        taken_by: CommitNumber,
    ) -> OpenFile {
        let written = extents.iter().filter(|extent| extent.state == State::Written);
        let largest_hints =
            written.max_by_key(|extent| extent.length).map_or(0, |extent| extent.offset);
        let mut uncommitted = UncommittedState {
            committed: extents.clone(),
            changed: Vec::new(),
            is_inode_changed: false,
            modified: None,
            accessed: None,
            largest_hints: [largest_hints; 2],
            window: Window::default(),
            has_unmapped: false,
            taken_by,
            is_queued: false,
        };
        let snapshot = Snapshot::new(extents, inode.size);
        uncommitted.window = uncommitted.largest_window(&snapshot);
        let hot_extent = Glance::new(uncommitted.window);
        hot_extent.set_unread(inode.is_access_due(Time::now()));
        let write_hints = WriteHints {
            modified: AtomicI64::new(0),
            set_id: AtomicBool::new(inode.lent_rights() != 0),
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
            uncommitted: Mutex::new(uncommitted),
        }
    }

    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Where reads look first.
    pub(crate) fn hot_extent(&self) -> &Arc<Glance> {
        &self.hot_extent
    }

    /// The address of a range that is written, inside the size, and lies together.
    #[inline]
    pub(crate) fn address(&self, offset: u64, end: u64) -> Option<u64> {
        self.hot_extent.address(offset, end).or_else(|| self.address_beyond_hot_extent(offset, end))
    }

    /// The same where the glance has been asked.
    #[inline]
    pub(crate) fn address_beyond_hot_extent(&self, offset: u64, end: u64) -> Option<u64> {
        self.extent_cache.address(offset, end).or_else(|| self.look_up(offset, end))
    }

    /// The same by all extents. Notes it for the next, if nobody is changing the file.
    fn look_up(&self, offset: u64, end: u64) -> Option<u64> {
        let snapshot = self.snapshot.load();
        let window = snapshot.window(offset / BLOCK).filter(|window| end <= window.end)?;
        if snapshot.extents.len() > 1 && self.extent_cache.has_room(offset) {
            self.cache_extent(offset);
        }
        Some(window.address + (offset - window.start))
    }

    #[cold]
    fn cache_extent(&self, offset: u64) {
        let Some(_uncommitted) = self.uncommitted.try_lock() else { return };
        // It may be another than a moment ago, but not with the lock held.
        let snapshot = self.snapshot.load();
        if let Some(window) = snapshot.window(offset / BLOCK) {
            self.extent_cache.insert(offset, window, snapshot.extents.len(), snapshot.size());
        }
    }

    /// Whether it has neither bytes nor blocks.
    pub(crate) fn is_empty(&self) -> bool {
        let now = self.snapshot.load();
        now.size() == 0 && now.extents.is_empty()
    }

    /// The commit after which it is durable: `next`, if there is something to take, else the last that
    /// took something. Times alone are taken when everything is to be durable.
    pub(crate) fn commit_to_await(&self, next: CommitNumber, what: Durable) -> CommitNumber {
        let uncommitted = self.uncommitted.lock();
        let has_data = uncommitted.is_inode_changed || !uncommitted.changed.is_empty();
        let has_times = what == Durable::Everything && uncommitted.modified.is_some();
        if has_data || has_times { next } else { uncommitted.taken_by }
    }

    /// Bytes, with those that were written through a page cache and are not on the device.
    pub(crate) fn size(&self) -> u64 {
        self.lock.size(|| self.generation(), || self.snapshot.load().size())
    }

    /// What is newer than the inode's record.
    pub(crate) fn inode_delta(&self) -> InodeDelta {
        self.uncommitted.lock().inode_delta(&self.snapshot.load())
    }

    /// Notes that an inode has been changed and put, with all that was newer. Times that reads and writes
    /// have moved since stay newer.
    pub(crate) fn delta_applied(&self, inode: &Inode, with: &InodeDelta) {
        let write_hints = &self.write_hints;
        let uncommitted = &mut *self.uncommitted.lock();
        if uncommitted.modified == with.modified {
            uncommitted.modified = None;
            write_hints.modified.store(0, Ordering::Relaxed);
        }
        if uncommitted.accessed == with.accessed {
            uncommitted.accessed = None;
        }
        let is_unread = uncommitted.modified.is_some() || inode.is_access_due(Time::now());
        self.hot_extent.set_unread(is_unread);
        write_hints.set_id.store(inode.lent_rights() != 0, Ordering::Relaxed);
    }

    /// Whether a read now moves the time of access.
    #[inline]
    pub(crate) fn is_access_due(&self) -> bool {
        self.hot_extent.is_unread()
    }

    /// Moves the time of access; false when another read has.
    pub(crate) fn note_access(&self) -> bool {
        let uncommitted = &mut *self.uncommitted.lock();
        let is_due = self.hot_extent.is_unread();
        if is_due {
            self.hot_extent.set_unread(false);
            uncommitted.accessed = Some(Time::now());
        }
        is_due
    }

    /// Whether a write now moves the time of change: the coarse clock has moved since the last.
    #[inline]
    pub(crate) fn is_change_due(&self) -> bool {
        self.write_hints.modified.load(Ordering::Relaxed) != Time::now().word()
    }

    /// Moves the time of change.
    pub(crate) fn note_change(&self) {
        self.touch(&mut self.uncommitted.lock());
    }

    fn touch(&self, uncommitted: &mut UncommittedState) {
        let now = Time::now();
        uncommitted.modified = Some(now);
        // Once for each time that the clock has moved: else every read after a write had to tell.
        if self.write_hints.modified.swap(now.word(), Ordering::Relaxed) != now.word() {
            self.hot_extent.set_unread(true);
        }
    }

    /// Whether a writer takes rights away: see `strip_privileges`.
    #[inline]
    pub(crate) fn must_strip_privileges(&self, to_superuser: bool) -> bool {
        let write_hints = &self.write_hints;
        write_hints.capability.load(Ordering::Relaxed)
            || write_hints.set_id.load(Ordering::Relaxed) && !to_superuser
    }

    /// Notes whether it may have a capability. With the volume's lock held, under which it gets them.
    pub(crate) fn note_capability(&self, may_have: bool) {
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

    /// Where the file would go on behind `block`: the block after the extent before it.
    pub(crate) fn goal(&self, block: u64) -> Option<u64> {
        let before = block.checked_sub(1)?;
        match self.snapshot.load().extents.find(before) {
            Found::Extent(extent) => Some(extent.start + (block - extent.offset)),
            Found::Hole { .. } => None,
        }
    }

    /// Puts extents where there were holes.
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

    /// Cuts the file off or makes it longer, and answers the blocks it had behind its new end. What
    /// was allocated ahead stays where it becomes longer.
    pub(crate) fn set_size(&self, bytes: u64) -> Vec<Run> {
        self.change(|map, size, uncommitted| {
            let cut = if bytes <= *size { bytes.div_ceil(BLOCK) } else { u64::MAX };
            *size = bytes;
            self.touch(uncommitted);
            uncommitted.is_inode_changed = true;
            uncommitted.unmap(map.truncate(cut))
        })
    }

    /// Cuts all of it off, whoever is writing: see [`uringfs_file::Map::generation`].
    pub(crate) fn truncate_to_zero(&self) -> Vec<Run> {
        self.change(|map, size, uncommitted| {
            self.truncations.fetch_add(1, Ordering::Release);
            *size = 0;
            self.touch(uncommitted);
            uncommitted.is_inode_changed = true;
            uncommitted.unmap(map.truncate(0))
        })
    }

    pub(crate) fn generation(&self) -> Generation {
        self.truncations.load(Ordering::Acquire)
    }

    /// The generation, and how long the file was in it: who empties the file changes one after the other.
    pub(crate) fn end(&self) -> (Generation, u64) {
        let _uncommitted = self.uncommitted.lock();
        (self.generation(), self.snapshot.load().size())
    }

    /// Makes a range of blocks a hole, and answers those it had there.
    pub(crate) fn remove(&self, blocks: Range<u64>) -> Vec<Run> {
        self.change(|map, _, uncommitted| {
            self.touch(uncommitted);
            uncommitted.is_inode_changed = true;
            uncommitted.unmap(map.remove(blocks))
        })
    }

    /// Makes what is written of a range of blocks unwritten.
    pub(crate) fn mark_unwritten(&self, blocks: Range<u64>) {
        self.change(|map, _, uncommitted| {
            self.touch(uncommitted);
            uncommitted.is_inode_changed = true;
            if map.unwrite(blocks.clone()) > 0 {
                uncommitted.has_unmapped = true;
                uncommitted.mark_changed(blocks);
            }
        });
    }

    /// Notes that the next commit is going to take its changes. With the volume's lock held.
    pub(crate) fn queue(&self) {
        self.uncommitted.lock().is_queued = true;
    }

    /// Makes a range written, and the file as long, if the next commit is going to take that; unless it has been
    /// emptied since `begun`. Else nothing changes: whoever is to take it has to be told before, since a commit of
    /// names and attributes alone takes the size of an open file, too.
    pub(crate) fn mark_written(
        &self,
        bytes: Range<u64>,
        begun: Generation,
        origin: WriteOrigin,
    ) -> Result<(), NotQueued> {
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let uncommitted = &mut *self.uncommitted.lock();
        if self.generation() != begun {
            return Ok(());
        }
        if !uncommitted.is_queued {
            return Err(NotQueued);
        }
        if origin == WriteOrigin::Direct {
            self.touch(uncommitted);
        }
        uncommitted.is_inode_changed = true;
        let now = self.snapshot.load();
        if now.extents.is_written(&blocks) {
            // As small appends find it: whoever has this snapshot may as well see them.
            now.size.fetch_max(bytes.end, Ordering::Release);
            self.publish_hot_extent(uncommitted, &now);
            return Ok(());
        }
        drop(now);
        self.change_with(uncommitted, |map, size, uncommitted| {
            if map.convert(blocks.clone()) > 0 {
                uncommitted.mark_changed(blocks);
            }
            *size = bytes.end.max(*size);
        });
        Ok(())
    }

    /// Puts written extents where they say, has the file reach to `end` at least, and answers the blocks
    /// that it had there.
    pub(crate) fn swap_extents(&self, extents: &[Extent], end: u64) -> Vec<Run> {
        self.change(|map, size, uncommitted| {
            let mut replaced = Vec::new();
            for extent in extents {
                replaced.extend(map.insert(*extent));
                uncommitted.mark_changed(extent.range());
            }
            *size = end.max(*size);
            self.touch(uncommitted);
            uncommitted.is_inode_changed = true;
            uncommitted.unmap(replaced)
        })
    }

    fn change<T>(
        &self,
        how: impl FnOnce(&mut ExtentMap, &mut u64, &mut UncommittedState) -> T,
    ) -> T {
        self.change_with(&mut self.uncommitted.lock(), how)
    }

    fn change_with<T>(
        &self,
        uncommitted: &mut UncommittedState,
        how: impl FnOnce(&mut ExtentMap, &mut u64, &mut UncommittedState) -> T,
    ) -> T {
        let now = self.snapshot.load_full();
        let (mut extents, was) = (now.extents.clone(), now.size());
        let mut size = was;
        let done = how(&mut extents, &mut size, uncommitted);
        let has_unmapped = std::mem::take(&mut uncommitted.has_unmapped) || size < was;
        let snapshot = Arc::new(Snapshot::new(extents, size));
        self.snapshot.store(snapshot.clone());
        if has_unmapped {
            self.extent_cache.invalidate();
        }
        self.publish_hot_extent(uncommitted, &snapshot);
        done
    }

    /// Shows readers the largest extent as it is now.
    fn publish_hot_extent(&self, uncommitted: &mut UncommittedState, now: &Snapshot) {
        let window = uncommitted.largest_window(now);
        if std::mem::replace(&mut uncommitted.window, window) != window {
            self.hot_extent.show(window);
        }
    }

    /// Adds what has changed to a commit: records of extents, and what is newer than the inode's.
    pub(crate) fn take_changes(
        &self,
        changes: &mut Changes,
        number: CommitNumber,
    ) -> Option<InodeDelta> {
        let uncommitted = &mut *self.uncommitted.lock();
        (uncommitted.taken_by, uncommitted.is_queued) = (number, false);
        let now = self.snapshot.load_full();
        // Also what only touches them: it may have been joined or cut.
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
        // All that was, before anything that is: one of these may begin where one of those did.
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

impl UncommittedState {
    fn inode_delta(&self, now: &Snapshot) -> InodeDelta {
        let (size, blocks) = (now.size(), now.extents.blocks());
        InodeDelta { size, blocks, modified: self.modified, accessed: self.accessed }
    }

    /// Notes that extents are gone, and answers their blocks.
    fn unmap(&mut self, extents: Vec<Extent>) -> Vec<Run> {
        self.has_unmapped |= !extents.is_empty();
        extents.iter().for_each(|extent| self.mark_changed(extent.range()));
        extents.iter().map(Extent::run).collect()
    }

    /// Notes that a range's extents are others; ranges that meet become one.
    fn mark_changed(&mut self, mut blocks: Range<u64>) {
        self.largest_hints[1] = blocks.start;
        let first = self.changed.partition_point(|range| range.end < blocks.start);
        let behind = self.changed.partition_point(|range| range.start <= blocks.end);
        for range in &self.changed[first..behind] {
            blocks = blocks.start.min(range.start)..blocks.end.max(range.end);
        }
        self.changed.splice(first..behind, [blocks]);
    }

    /// The largest written extent that is known of.
    fn largest_window(&mut self, snapshot: &Snapshot) -> Window {
        let written = self.largest_hints.iter().filter_map(|block| snapshot.window(*block));
        let Some(window) = written.max_by_key(|window| window.end - window.start) else {
            return Window::default();
        };
        self.largest_hints[0] = window.start / BLOCK;
        window
    }
}

impl Snapshot {
    fn new(extents: ExtentMap, size: u64) -> Snapshot {
        Snapshot { extents, size: AtomicU64::new(size) }
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// The written extent that holds `block`, as far as it lies inside the size.
    fn window(&self, block: u64) -> Option<Window> {
        let size = self.size();
        match self.extents.find(block) {
            Found::Extent(extent)
                if extent.state == State::Written && extent.offset * BLOCK < size =>
            {
                Some(Window {
                    start: extent.offset * BLOCK,
                    end: size.min(extent.end() * BLOCK),
                    address: extent.start * BLOCK,
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::inode::FileKind;

    const BLOCKS: u64 = 64;

    /// Each extent lies where no other ever did, so that an address tells which it was.
    #[test]
    fn whatever_is_done_to_a_file_an_address_is_that_of_its_map() {
        let inode = Inode::new(FileKind::File, 0o644);
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
                        let (offset, state) = (hole.start, State::Unwritten);
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
                    Found::Extent(extent)
                        if extent.state == State::Written
                            && end <= snapshot.size().min(extent.end() * BLOCK) =>
                    {
                        Some(offset + extent.start * BLOCK - extent.offset * BLOCK)
                    }
                    _ => None,
                };
                assert_eq!(file.address(offset, end), expected);
                found += u64::from(file.extent_cache.address(offset, end).is_some());
            }
        }
        assert!(found > 1000, "{found} of them were found beside the map");
    }

    fn open(inode: &Inode) -> OpenFile {
        OpenFile::new(InodeNumber(2), ExtentMap::new(), inode, false, 0)
    }

    fn wrote(file: &OpenFile) {
        file.queue();
        file.mark_written(0..4096, 0, WriteOrigin::Direct).unwrap();
    }

    #[test]
    fn generation_and_size_are_those_of_one_moment_while_the_file_is_emptied() {
        let file = open(&Inode::new(FileKind::File, 0o644));
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
    fn what_is_written_while_attributes_are_set_moves_the_time_of_change_all_the_same() {
        let mut inode = Inode::new(FileKind::File, 0o644);
        let file = open(&inode);
        let delta = file.inode_delta();
        delta.apply_to(&mut inode);
        file.note_change();
        assert!(file.note_access());
        (inode.modified, inode.accessed) = (Time::of_nanoseconds(1), Time::of_nanoseconds(2));
        file.delta_applied(&inode, &delta);
        let now = file.inode_delta();
        assert!(now.modified.is_some() && now.accessed.is_some());
        // Those that were laid over are in the record now.
        file.delta_applied(&inode, &now);
        let now = file.inode_delta();
        assert!(now.modified.is_none() && now.accessed.is_none() && file.is_change_due());
    }

    #[test]
    fn while_the_clock_stands_a_read_after_a_write_has_nothing_to_tell() {
        let file = open(&Inode::new(FileKind::File, 0o644));
        let is_due = std::iter::repeat_with(|| {
            let before = Time::now();
            wrote(&file);
            file.note_access();
            wrote(&file);
            (before == Time::now()).then(|| file.is_access_due())
        });
        assert!(!is_due.flatten().next().unwrap());
    }

    #[test]
    fn a_read_after_a_write_moves_the_time_of_access_once_the_clock_has_moved() {
        let file = open(&Inode::new(FileKind::File, 0o644));
        wrote(&file);
        assert!(file.note_access());
        let before = Time::now();
        while Time::now() == before {
            std::hint::spin_loop();
        }
        wrote(&file);
        assert!(file.is_access_due() && file.note_access());
    }
}
