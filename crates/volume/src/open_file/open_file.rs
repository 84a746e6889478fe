//! A file that is open: where its bytes lie, as readers find it without a lock, and what of that is
//! not committed yet.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use uringfs_file::{Durable, Generation, Glance, Refusal, Window, WriteLock};
use zerocopy::IntoBytes;

use crate::blocks::{BLOCK, Run};
use crate::catalog::Key;
use crate::open_file::extent_cache::Lookaside;
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
    glance: Arc<Glance>,
    notes: CachePadded<Notes>,
    /// Of its other extents, those that were read before.
    lookaside: Lookaside,
    /// How often it was emptied with writers at work.
    emptied: AtomicU64,
    edit: Mutex<Edit>,
}

/// What the next write has to note besides: looked at by each, written when it changes. Apart from what
/// changes more often, and from what reads look at.
struct Notes {
    /// When bytes were last changed, as far as that is known here; 0 has the next write tell.
    modified: AtomicI64,
    /// Writers take away that the file runs as its owner or group, unless they are trusted.
    set_id: AtomicBool,
    /// It may be a program that may do more than whoever runs it, which every writer takes away.
    capability: AtomicBool,
}

/// When bytes were written, which moves the time of change, or has moved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Now,
    /// To the page cache, and now back.
    Before,
}

/// No commit is going to take what changes of a file.
#[derive(Debug)]
pub(crate) struct NotNoted;

/// What of an inode is newer than its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newer {
    size: u64,
    blocks: u64,
    modified: Option<Time>,
    accessed: Option<Time>,
}

impl Newer {
    pub(crate) fn lay_over(&self, inode: &mut Inode) {
        (inode.size, inode.blocks) = (self.size, self.blocks);
        if let Some(modified) = self.modified {
            (inode.modified, inode.changed) = (modified, inode.changed.max(modified));
        }
        inode.accessed = self.accessed.unwrap_or(inode.accessed);
    }
}

/// What has changed since the last commit.
struct Edit {
    /// As the catalog has them, or will when the commit under way has ended.
    committed: ExtentMap,
    /// Blocks of the file whose extents are others now; sorted, apart from each other.
    changed: Vec<Range<u64>>,
    /// The size is another, or how many blocks there are.
    inode: bool,
    modified: Option<Time>,
    accessed: Option<Time>,
    /// Blocks of the file in which to look for its largest written extent: that it was in, and the
    /// first of the last change.
    large: [u64; 2],
    /// What the glance shows.
    window: Window,
    /// Something that was written is not any more.
    is_less: bool,
    /// The last commit that took changes of it.
    taken_by: CommitNumber,
    /// The next one is going to.
    is_noted: bool,
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
        let large = written.max_by_key(|extent| extent.length).map_or(0, |extent| extent.offset);
        let mut edit = Edit {
            committed: extents.clone(),
            changed: Vec::new(),
            inode: false,
            modified: None,
            accessed: None,
            large: [large; 2],
            window: Window::default(),
            is_less: false,
            taken_by,
            is_noted: false,
        };
        let snapshot = Snapshot::new(extents, inode.size);
        edit.window = edit.large_window(&snapshot);
        let glance = Glance::new(edit.window);
        glance.set_unread(inode.is_access_due(Time::now()));
        let notes = Notes {
            modified: AtomicI64::new(0),
            set_id: AtomicBool::new(inode.lent_rights() != 0),
            capability: AtomicBool::new(has_capability),
        };
        OpenFile {
            number,
            lock: Arc::default(),
            snapshot: ArcSwap::from_pointee(snapshot),
            glance: Arc::new(glance),
            notes: CachePadded::new(notes),
            lookaside: Lookaside::new(),
            emptied: AtomicU64::new(0),
            edit: Mutex::new(edit),
        }
    }

    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Where reads look first.
    pub(crate) fn glance(&self) -> &Arc<Glance> {
        &self.glance
    }

    /// The address of a range that is written, inside the size, and lies together.
    ///
    /// # Errors
    /// [`Refusal::Size`] or [`Refusal::Extent`].
    #[inline]
    pub(crate) fn address(&self, offset: u64, end: u64) -> Result<u64, Refusal> {
        self.glance.address(offset, end).map_or_else(|| self.address_elsewhere(offset, end), Ok)
    }

    /// The same where the glance has been asked.
    #[inline]
    pub(crate) fn address_elsewhere(&self, offset: u64, end: u64) -> Result<u64, Refusal> {
        self.lookaside.address(offset, end).map_or_else(|| self.looked_up(offset, end), Ok)
    }

    /// The same by all extents. Notes it for the next, if nobody is changing the file.
    fn looked_up(&self, offset: u64, end: u64) -> Result<u64, Refusal> {
        let snapshot = self.snapshot.load();
        if end > snapshot.size() {
            return Err(Refusal::Size);
        }
        let window = snapshot.window(offset / BLOCK).filter(|window| end <= window.end);
        let window = window.ok_or(Refusal::Extent)?;
        if snapshot.extents.len() > 1 && self.lookaside.has_room(offset) {
            self.note_window(offset);
        }
        Ok(window.address + (offset - window.start))
    }

    #[cold]
    fn note_window(&self, offset: u64) {
        let Some(_edit) = self.edit.try_lock() else { return };
        // It may be another than a moment ago, but not with the lock held.
        let snapshot = self.snapshot.load();
        if let Some(window) = snapshot.window(offset / BLOCK) {
            self.lookaside.note(offset, window, snapshot.extents.len(), snapshot.size());
        }
    }

    /// Whether it has neither bytes nor blocks.
    pub(crate) fn is_empty(&self) -> bool {
        let now = self.snapshot.load();
        now.size() == 0 && now.extents.is_empty()
    }

    /// The commit after which it is durable: `next`, if there is something to take, else the last that
    /// took something. Times alone are taken when everything is to be durable.
    pub(crate) fn durable_with(&self, next: CommitNumber, what: Durable) -> CommitNumber {
        let edit = self.edit.lock();
        let has_data = edit.inode || !edit.changed.is_empty();
        let has_times = what == Durable::Everything && edit.modified.is_some();
        if has_data || has_times { next } else { edit.taken_by }
    }

    /// Bytes, with those that were written through a page cache and are not on the device.
    pub(crate) fn size(&self) -> u64 {
        self.lock.size(|| self.generation(), || self.snapshot.load().size())
    }

    /// What is newer than the inode's record.
    pub(crate) fn newer(&self) -> Newer {
        self.edit.lock().newer(&self.snapshot.load())
    }

    /// Notes that an inode has been changed and put, with all that was newer. Times that reads and writes
    /// have moved since stay newer.
    pub(crate) fn was_put(&self, inode: &Inode, with: &Newer) {
        let notes = &self.notes;
        let edit = &mut *self.edit.lock();
        if edit.modified == with.modified {
            edit.modified = None;
            notes.modified.store(0, Ordering::Relaxed);
        }
        if edit.accessed == with.accessed {
            edit.accessed = None;
        }
        let is_unread = edit.modified.is_some() || inode.is_access_due(Time::now());
        self.glance.set_unread(is_unread);
        notes.set_id.store(inode.lent_rights() != 0, Ordering::Relaxed);
    }

    /// Whether a read now moves the time of access.
    #[inline]
    pub(crate) fn is_access_due(&self) -> bool {
        self.glance.is_unread()
    }

    /// Moves the time of access; false when another read has.
    pub(crate) fn note_access(&self) -> bool {
        let edit = &mut *self.edit.lock();
        let is_due = self.glance.is_unread();
        if is_due {
            self.glance.set_unread(false);
            edit.accessed = Some(Time::now());
        }
        is_due
    }

    /// Whether a write now moves the time of change: the coarse clock has moved since the last.
    #[inline]
    pub(crate) fn is_change_due(&self) -> bool {
        self.notes.modified.load(Ordering::Relaxed) != Time::now().word()
    }

    /// Moves the time of change.
    pub(crate) fn note_change(&self) {
        self.touch(&mut self.edit.lock());
    }

    fn touch(&self, edit: &mut Edit) {
        let now = Time::now();
        edit.modified = Some(now);
        // Once for each time that the clock has moved: else every read after a write had to tell.
        if self.notes.modified.swap(now.word(), Ordering::Relaxed) != now.word() {
            self.glance.set_unread(true);
        }
    }

    /// Whether a writer takes rights away: see `take_rights`.
    #[inline]
    pub(crate) fn lends_rights(&self, to_trusted: bool) -> bool {
        let notes = &self.notes;
        notes.capability.load(Ordering::Relaxed)
            || notes.set_id.load(Ordering::Relaxed) && !to_trusted
    }

    /// Notes whether it may have a capability. With the volume's lock held, under which it gets them.
    pub(crate) fn note_capability(&self, may_have: bool) {
        self.notes.capability.store(may_have, Ordering::Relaxed);
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
        self.change(|map, _, edit| {
            for extent in extents {
                let replaced = map.insert(*extent);
                assert!(replaced.is_empty(), "only holes are allocated");
                edit.note(extent.range());
            }
            edit.inode = true;
        });
    }

    /// Cuts the file off or makes it longer, and answers the blocks it had behind its new end. What
    /// was allocated ahead stays where it becomes longer.
    pub(crate) fn set_size(&self, bytes: u64) -> Vec<Run> {
        self.change(|map, size, edit| {
            let cut = if bytes <= *size { bytes.div_ceil(BLOCK) } else { u64::MAX };
            *size = bytes;
            self.touch(edit);
            edit.inode = true;
            edit.take(map.truncate(cut))
        })
    }

    /// Cuts all of it off, whoever is writing: see [`uringfs_file::Map::generation`].
    pub(crate) fn empty(&self) -> Vec<Run> {
        self.change(|map, size, edit| {
            self.emptied.fetch_add(1, Ordering::Release);
            *size = 0;
            self.touch(edit);
            edit.inode = true;
            edit.take(map.truncate(0))
        })
    }

    pub(crate) fn generation(&self) -> Generation {
        self.emptied.load(Ordering::Acquire)
    }

    /// The generation, and how long the file was in it: who empties the file changes one after the other.
    pub(crate) fn end(&self) -> (Generation, u64) {
        let _edit = self.edit.lock();
        (self.generation(), self.snapshot.load().size())
    }

    /// Makes a range of blocks a hole, and answers those it had there.
    pub(crate) fn remove(&self, blocks: Range<u64>) -> Vec<Run> {
        self.change(|map, _, edit| {
            self.touch(edit);
            edit.inode = true;
            edit.take(map.remove(blocks))
        })
    }

    /// Makes what is written of a range of blocks unwritten.
    pub(crate) fn unwrite(&self, blocks: Range<u64>) {
        self.change(|map, _, edit| {
            self.touch(edit);
            edit.inode = true;
            if map.unwrite(blocks.clone()) > 0 {
                edit.is_less = true;
                edit.note(blocks);
            }
        });
    }

    /// Notes that the next commit is going to take its changes. With the volume's lock held.
    pub(crate) fn note(&self) {
        self.edit.lock().is_noted = true;
    }

    /// Makes a range written, and the file as long, if the next commit is going to take that; unless it has been
    /// emptied since `begun`. Else nothing changes: whoever is to take it has to be told before, since a commit of
    /// names and attributes alone takes the size of an open file, too.
    pub(crate) fn wrote(
        &self,
        bytes: Range<u64>,
        begun: Generation,
        when: Written,
    ) -> Result<(), NotNoted> {
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let edit = &mut *self.edit.lock();
        if self.generation() != begun {
            return Ok(());
        }
        if !edit.is_noted {
            return Err(NotNoted);
        }
        if when == Written::Now {
            self.touch(edit);
        }
        edit.inode = true;
        let now = self.snapshot.load();
        if now.extents.is_written(&blocks) {
            // As small appends find it: whoever has this snapshot may as well see them.
            now.size.fetch_max(bytes.end, Ordering::Release);
            self.show(edit, &now);
            return Ok(());
        }
        drop(now);
        self.change_with(edit, |map, size, edit| {
            if map.convert(blocks.clone()) > 0 {
                edit.note(blocks);
            }
            *size = bytes.end.max(*size);
        });
        Ok(())
    }

    /// Puts written extents where they say, has the file reach to `end` at least, and answers the blocks
    /// that it had there.
    pub(crate) fn replace(&self, extents: &[Extent], end: u64) -> Vec<Run> {
        self.change(|map, size, edit| {
            let mut replaced = Vec::new();
            for extent in extents {
                replaced.extend(map.insert(*extent));
                edit.note(extent.range());
            }
            *size = end.max(*size);
            self.touch(edit);
            edit.inode = true;
            edit.take(replaced)
        })
    }

    fn change<T>(&self, how: impl FnOnce(&mut ExtentMap, &mut u64, &mut Edit) -> T) -> T {
        self.change_with(&mut self.edit.lock(), how)
    }

    fn change_with<T>(
        &self,
        edit: &mut Edit,
        how: impl FnOnce(&mut ExtentMap, &mut u64, &mut Edit) -> T,
    ) -> T {
        let now = self.snapshot.load_full();
        let (mut extents, was) = (now.extents.clone(), now.size());
        let mut size = was;
        let done = how(&mut extents, &mut size, edit);
        let is_less = std::mem::take(&mut edit.is_less) || size < was;
        let snapshot = Arc::new(Snapshot::new(extents, size));
        self.snapshot.store(snapshot.clone());
        if is_less {
            self.lookaside.forget();
        }
        self.show(edit, &snapshot);
        done
    }

    /// Shows readers the largest extent as it is now.
    fn show(&self, edit: &mut Edit, now: &Snapshot) {
        let window = edit.large_window(now);
        if std::mem::replace(&mut edit.window, window) != window {
            self.glance.show(window);
        }
    }

    /// Adds what has changed to a commit: records of extents, and what is newer than the inode's.
    pub(crate) fn collect(&self, changes: &mut Changes, number: CommitNumber) -> Option<Newer> {
        let edit = &mut *self.edit.lock();
        (edit.taken_by, edit.is_noted) = (number, false);
        let now = self.snapshot.load_full();
        // Also what only touches them: it may have been joined or cut.
        let changed: Vec<Range<u64>> = std::mem::take(&mut edit.changed)
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
        for extent in touched(&edit.committed) {
            changes.delete(Key::Extent(self.number.0, extent.offset));
        }
        for extent in touched(&now.extents) {
            let record = ExtentRecord::from(&extent).as_bytes().to_vec();
            changes.put(Key::Extent(self.number.0, extent.offset), record);
        }
        edit.committed = now.extents.clone();
        let newer = edit.newer(&now);
        let is_any = edit.inode || newer.modified.is_some() || newer.accessed.is_some();
        (edit.inode, edit.modified, edit.accessed) = (false, None, None);
        is_any.then_some(newer)
    }
}

impl Edit {
    fn newer(&self, now: &Snapshot) -> Newer {
        let (size, blocks) = (now.size(), now.extents.blocks());
        Newer { size, blocks, modified: self.modified, accessed: self.accessed }
    }

    /// Notes that extents are gone, and answers their blocks.
    fn take(&mut self, extents: Vec<Extent>) -> Vec<Run> {
        self.is_less |= !extents.is_empty();
        extents.iter().for_each(|extent| self.note(extent.range()));
        extents.iter().map(Extent::run).collect()
    }

    /// Notes that a range's extents are others; ranges that meet become one.
    fn note(&mut self, mut blocks: Range<u64>) {
        self.large[1] = blocks.start;
        let first = self.changed.partition_point(|range| range.end < blocks.start);
        let behind = self.changed.partition_point(|range| range.start <= blocks.end);
        for range in &self.changed[first..behind] {
            blocks = blocks.start.min(range.start)..blocks.end.max(range.end);
        }
        self.changed.splice(first..behind, [blocks]);
    }

    /// The largest written extent that is known of.
    fn large_window(&mut self, snapshot: &Snapshot) -> Window {
        let written = self.large.iter().filter_map(|block| snapshot.window(*block));
        let Some(window) = written.max_by_key(|window| window.end - window.start) else {
            return Window::default();
        };
        self.large[0] = window.start / BLOCK;
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
                1 => file.unwrite(blocks),
                2 => _ = file.set_size(below(BLOCKS * BLOCK)),
                _ => {
                    for hole in file.holes(blocks) {
                        let length = hole.end - hole.start;
                        let (offset, state) = (hole.start, State::Unwritten);
                        file.insert(&[Extent { offset, start: next, length, state }]);
                        next += length;
                    }
                    file.note();
                    file.wrote(bytes, file.generation(), Written::Now).unwrap();
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
                assert_eq!(file.address(offset, end).ok(), expected);
                found += u64::from(file.lookaside.address(offset, end).is_some());
            }
        }
        assert!(found > 1000, "{found} of them were found beside the map");
    }

    fn open(inode: &Inode) -> OpenFile {
        OpenFile::new(InodeNumber(2), ExtentMap::new(), inode, false, 0)
    }

    fn wrote(file: &OpenFile) {
        file.note();
        file.wrote(0..4096, 0, Written::Now).unwrap();
    }

    #[test]
    fn generation_and_size_are_those_of_one_moment_while_the_file_is_emptied() {
        let file = open(&Inode::new(FileKind::File, 0o644));
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for generation in 0..20_000 {
                    file.note();
                    file.wrote(0..generation + 1, generation, Written::Now).unwrap();
                    file.empty();
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
        let newer = file.newer();
        newer.lay_over(&mut inode);
        file.note_change();
        assert!(file.note_access());
        (inode.modified, inode.accessed) = (Time::of_nanoseconds(1), Time::of_nanoseconds(2));
        file.was_put(&inode, &newer);
        let now = file.newer();
        assert!(now.modified.is_some() && now.accessed.is_some());
        // Those that were laid over are in the record now.
        file.was_put(&inode, &now);
        let now = file.newer();
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
