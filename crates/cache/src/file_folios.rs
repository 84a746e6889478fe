//! The folios of one file: look up, fill, lock for a write, mark clean, invalidate.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use uringfs_buffer::{ExclusiveFrames, FrameState};

use crate::core::CacheCore;
use crate::dirty::{ThrottleWait, WritebackDue};
use crate::fill::Fill;
use crate::folio::{
    ACCESS_COUNT, DETACHED, DIRTY, DROPBEHIND, FOLIO, Folio, HOLDER_SHIFT, Key, READAHEAD_MARKER,
    STALE, WRITER,
};
use crate::folio_ref::{FolioRef, FolioSnapshot};
use crate::index::Shard;
use crate::wait::FolioWait;
use uringfs_sync::atomic::{AtomicU64, Ordering};

/// Cache lines to prefetch for a copy of a folio, and for a look at its head.
const LINES_OF_A_COPY: usize = 8;
const LINES_OF_A_LOOK: usize = 1;

/// The result of looking up a folio.
#[derive(Debug)]
pub enum Lookup<'a> {
    /// The folio is cached.
    Found(FolioRef<'a>),
    /// The folio is locked, to be filled or changed: [`FileFolios::wait`] for it.
    Locked {
        /// The holder's number, as passed to [`FileFolios::begin_fill`], or [`WRITER`].
        holder: u16,
        /// Reading the folio starts the next window of readahead.
        is_marked: bool,
    },
    /// The folio is not cached: [`FileFolios::begin_fill`] it.
    Absent,
}

/// The result of locking a folio for a write.
#[derive(Debug)]
pub enum LockForWrite {
    /// The caller has the lock, and the folio its current bytes, until [`Fill::end_dirty`].
    Acquired(Fill),
    /// Another caller has the lock: [`FileFolios::wait`] for it.
    Locked {
        /// The holder's number, as passed to [`FileFolios::begin_fill`], or [`WRITER`].
        holder: u16,
    },
    /// The folio is not cached: [`FileFolios::begin_fill`] it.
    Absent,
}

/// Why a snapshot of a folio was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// The folio is not cached, or it is locked.
    Absent,
    /// Snapshots already keep half of the cache's bound: copy instead.
    TooMany,
}

/// No folio can be evicted: all are dirty, locked or being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFull;

/// The folios of one file.
pub struct FileFolios {
    cache: Arc<CacheCore>,
    file: u64,
    device: u16,
    /// One more than the highest index that was ever inserted.
    end: AtomicU64,
}

impl FileFolios {
    /// An empty set of folios.
    pub(crate) fn new(cache: Arc<CacheCore>, file: u64, device: u16) -> FileFolios {
        FileFolios { cache, file, device, end: AtomicU64::new(0) }
    }

    fn new_fill(&self, first: u64, hold: ExclusiveFrames<Folio>) -> Fill {
        Fill::new(self.cache.clone(), self.file, self.device, first, hold)
    }

    /// Looks up the folio at `index`, to copy its bytes. A reader counts the access with [`FolioRef::touch`].
    #[inline(always)]
    pub fn lookup(&self, index: u64) -> Lookup<'_> {
        self.lookup_ahead_of(index, LINES_OF_A_COPY)
    }

    /// [`Self::lookup`] for a caller that is about to read so many cache lines.
    #[inline(always)]
    fn lookup_ahead_of(&self, index: u64, lines: usize) -> Lookup<'_> {
        let key = Key { file: self.file, index };
        let frames = &self.cache.frames;
        let Some(frame) = self.cache.index.find_lockless(frames, key, lines) else {
            return self.find_locked(key);
        };
        let slab = frames.slab();
        match slab.try_share(frame) {
            Ok(share) => {
                let found = FolioRef::new(frames, frame, share);
                // It was found without a lock, so the frame may hold another folio by now.
                if !slab.data(frame).is(key) {
                    drop(found);
                    return self.find_locked(key);
                }
                Lookup::Found(found)
            }
            Err(_) => self.find_locked(key),
        }
    }

    /// [`Self::lookup`] without a lock. `None` also if the folio is locked, or is moving to another frame at this moment.
    #[inline(always)]
    pub fn lookup_lockless(&self, index: u64) -> Option<FolioRef<'_>> {
        let key = Key { file: self.file, index };
        let frames = &self.cache.frames;
        let frame = self.cache.index.find_lockless(frames, key, LINES_OF_A_COPY)?;
        let found = FolioRef::new(frames, frame, frames.slab().try_share(frame).ok()?);
        // It was found without a lock, so the frame may hold another folio by now.
        frames.slab().data(frame).is(key).then_some(found)
    }

    #[cold]
    #[inline(never)]
    fn find_locked(&self, key: Key) -> Lookup<'_> {
        let frames = &self.cache.frames;
        let shard = self.cache.index.shard(key);
        let Some(frame) = self.cache.index.find(&shard, frames, key) else { return Lookup::Absent };
        let slab = frames.slab();
        match slab.try_share(frame) {
            // The lock of the shard keeps the folio in this frame.
            Ok(share) => Lookup::Found(FolioRef::new(frames, frame, share)),
            Err(state) => {
                let (holder, flags) = ((state.flags() >> HOLDER_SHIFT) as u16, state.flags());
                Lookup::Locked { holder, is_marked: flags & READAHEAD_MARKER != 0 }
            }
        }
    }

    /// Waits until a locked folio is unlocked.
    pub fn wait(&self, index: u64) -> FolioWait {
        FolioWait::new(&self.cache, Key { file: self.file, index })
    }

    /// Inserts folios in the order of `indexes`, up to the first that is cached already or has no room. The caller
    /// fills them; until then they are locked. `holder` is a number that the caller chooses. Others see it while a
    /// folio is locked.
    ///
    /// # Errors
    /// [`CacheFull`] when there is no room for the first.
    pub fn begin_fill(&self, indexes: Range<u64>, holder: u16) -> Result<Vec<Fill>, CacheFull> {
        let cache = &*self.cache;
        let wanted = (indexes.end - indexes.start).min(u64::from(cache.frames.bound())) as u32;
        if wanted == 1 {
            return Ok(self.begin_fill_one(indexes.start, holder)?.into_iter().collect());
        }
        let mut fills: Vec<Fill> = Vec::new();
        let mut index = indexes.start;
        let mut runs = cache.allocate_frames(wanted).into_iter();
        if runs.len() == 0 {
            return Err(CacheFull);
        }
        let mut inserted = Vec::with_capacity(wanted as usize);
        for mut run in runs.by_ref() {
            let (first, count) = (run.first(), run.count());
            let mut taken = 0;
            for frame in first..first + count {
                cache.frames.slab().set_flags(frame, u32::from(holder) << HOLDER_SHIFT);
            }
            while taken < count && self.insert(index + u64::from(taken), first + taken) {
                inserted.push((
                    first + taken,
                    Key { file: self.file, index: index + u64::from(taken) },
                ));
                taken += 1;
            }
            let rest = (taken < count).then(|| run.split_off(taken));
            match taken {
                0 => cache.frames.free(run),
                _ => fills.push(self.new_fill(index, run)),
            }
            index += u64::from(taken);
            if let Some(rest) = rest {
                cache.frames.free(rest);
                break;
            }
        }
        runs.for_each(|run| cache.frames.free(run));
        let mut eviction = cache.eviction.lock();
        cache.grow_eviction(&mut eviction);
        inserted.iter().for_each(|(frame, key)| eviction.insert(*frame, key.hash()));
        drop(eviction);
        cache.filled.fetch_add(inserted.len() as u64, Ordering::Relaxed);
        self.end.fetch_max(index, Ordering::Relaxed);
        Ok(fills)
    }

    /// [`Self::begin_fill`] of one folio: `None` if it is cached or locked. If another folio is evicted for it, it takes
    /// over that frame directly.
    ///
    /// # Errors
    /// [`CacheFull`] when there is no room for it.
    pub fn begin_fill_one(&self, index: u64, holder: u16) -> Result<Option<Fill>, CacheFull> {
        let (cache, key) = (&*self.cache, Key { file: self.file, index });
        // Nothing is evicted for a folio that is there.
        if cache.index.find(&cache.index.shard(key), &cache.frames, key).is_some() {
            return Ok(None);
        }
        let flags = u32::from(holder) << HOLDER_SHIFT;
        let hold = cache.allocate_frame(key, flags).ok_or(CacheFull)?;
        if !self.insert(index, hold.first()) {
            cache.free_folio(hold.first(), self.device, hold);
            return Ok(None);
        }
        cache.filled.fetch_add(1, Ordering::Relaxed);
        if self.end.load(Ordering::Relaxed) <= index {
            self.end.fetch_max(index + 1, Ordering::Relaxed);
        }
        Ok(Some(self.new_fill(index, hold)))
    }

    /// Inserts the frame of a locked folio into the index; false when the folio is there already.
    fn insert(&self, index: u64, frame: u32) -> bool {
        let (cache, key) = (&*self.cache, Key { file: self.file, index });
        let shard = &mut *cache.index.shard(key);
        if cache.index.find(shard, &cache.frames, key).is_some() {
            return false;
        }
        cache.index.insert(shard, &cache.frames, key, frame);
        true
    }

    /// Locks a folio for a write. If the frame is shared, the folio moves to a copy, and the shares keep the old frame.
    /// The holder must not wait for anything until it ends the [`Fill`].
    ///
    /// # Errors
    /// [`CacheFull`] when there is no room for the copy.
    pub fn lock_for_write(&self, index: u64) -> Result<LockForWrite, CacheFull> {
        let (cache, key) = (&*self.cache, Key { file: self.file, index });
        let (frames, slab) = (&cache.frames, cache.frames.slab());
        let mut copy: Option<ExclusiveFrames<Folio>> = None;
        let taken = loop {
            let mut shard = cache.index.shard(key);
            let Some(frame) = cache.index.find(&shard, frames, key) else {
                break LockForWrite::Absent;
            };
            // Set the holder's number in the same step. Otherwise another thread could take this lock for that of a
            // fill, wait in vain, and read from the device, which may lack the last write.
            if let Some(hold) =
                slab.try_exclusive(frame, |flags| Some(flags | u32::from(WRITER) << HOLDER_SHIFT))
            {
                break LockForWrite::Acquired(self.new_fill(index, hold));
            }
            let share = match slab.try_share(frame) {
                Ok(share) => FolioRef::new(frames, frame, share),
                Err(state) => {
                    break LockForWrite::Locked { holder: (state.flags() >> HOLDER_SHIFT) as u16 };
                }
            };
            let Some(mut hold) = copy.take() else {
                drop((shard, share));
                copy = Some(cache.allocate_frames(1).pop().ok_or(CacheFull)?);
                continue;
            };
            hold.bytes().copy_from_slice(&share);
            let kept = slab.state(frame).flags()
                & (DIRTY | READAHEAD_MARKER | DROPBEHIND | ACCESS_COUNT[0]);
            slab.set_flags(hold.first(), u32::from(WRITER) << HOLDER_SHIFT | kept);
            self.detach(&mut shard, key, frame);
            cache.index.insert(&mut shard, frames, key, hold.first());
            drop(shard);
            let mut eviction = cache.eviction.lock();
            eviction.remove(frame);
            cache.grow_eviction(&mut eviction);
            eviction.insert(hold.first(), key.hash());
            drop((eviction, share));
            break LockForWrite::Acquired(self.new_fill(index, hold));
        };
        copy.into_iter().for_each(|hold| frames.free(hold));
        Ok(taken)
    }

    /// Marks a folio clean. No effect when it has left the cache.
    pub fn mark_clean(&self, index: u64) {
        let (cache, key) = (&*self.cache, Key { file: self.file, index });
        let shard = cache.index.shard(key);
        let Some(frame) = cache.index.find(&shard, &cache.frames, key) else { return };
        let before = cache.frames.slab().clear_flags(frame, DIRTY);
        drop(shard);
        cache.count_cleaned(self.device, before.flags());
        if before.flags() & DROPBEHIND != 0 {
            self.remove_one(key, is_dropbehind_done);
        }
    }

    /// Reports a failed write-back.
    pub fn report_writeback_failure(&self) {
        self.cache.dirty.add_failure(self.device);
    }

    /// Failed write-backs to the device so far.
    pub fn writeback_failures(&self) -> u32 {
        self.cache.dirty.failures(self.device)
    }

    /// Whether the device has as many dirty folios as allowed.
    pub fn is_at_dirty_limit(&self) -> bool {
        self.cache.dirty.is_at_limit(self.device)
    }

    /// Waits until the device has fewer dirty folios than allowed, or a write-back fails.
    pub fn wait_below_dirty_limit(&self) -> ThrottleWait {
        ThrottleWait::device_limit(&self.cache.dirty, self.device)
    }

    /// Waits until the cache has fewer dirty folios than now, of any device. `None` if no folio is dirty.
    pub fn wait_one_cleaned(&self) -> Option<ThrottleWait> {
        let below = self.cache.dirty.count();
        (below > 0).then(|| ThrottleWait::new(&self.cache.dirty, below))
    }

    /// Waits until it is time to write back dirty folios of the device.
    pub fn writeback_due(&self) -> WritebackDue {
        WritebackDue::new(&self.cache.dirty, self.device)
    }

    /// Removes folios from the cache, since their bytes are no longer those of the file. Snapshots keep theirs. Does
    /// not wait: the content of a locked folio is dropped when it is unlocked.
    pub fn invalidate(&self, indexes: Range<u64>) {
        self.remove_if(indexes, |_| true);
    }

    /// Removes folios from the cache, except dirty ones and locked ones.
    pub fn invalidate_clean(&self, indexes: Range<u64>) {
        self.remove_if(indexes, |state| !state.is_exclusive() && state.flags() & DIRTY == 0);
    }

    /// Removes the folios marked by [`Fill::set_dropbehind`] that are clean and that no other access has used.
    pub fn drop_behind(&self, indexes: Range<u64>) {
        self.remove_if(indexes, is_dropbehind_done);
    }

    /// Removes the folios for which `predicate` holds; returns how many folios or frames it has visited.
    fn remove_if(&self, indexes: Range<u64>, predicate: impl Fn(FrameState) -> bool) -> u64 {
        let indexes = indexes.start..indexes.end.min(self.end.load(Ordering::Relaxed));
        if indexes.is_empty() {
            return 0;
        }
        let frames = u64::from(self.cache.frames.high_water());
        let count = indexes.end - indexes.start;
        if count <= frames {
            for index in indexes {
                self.remove_one(Key { file: self.file, index }, &predicate);
            }
            return count;
        }
        // The range has more indexes than there are frames: visit the frames.
        for frame in 0..frames as u32 {
            let key = self.cache.frames.slab().data(frame).key();
            if key.file == self.file && indexes.contains(&key.index) {
                self.remove_one(key, &predicate);
            }
        }
        frames
    }

    fn remove_one(&self, key: Key, predicate: impl Fn(FrameState) -> bool) {
        let cache = &*self.cache;
        let mut shard = cache.index.shard(key);
        let Some(frame) = cache.index.find(&shard, &cache.frames, key) else { return };
        let slab = cache.frames.slab();
        if !predicate(slab.state(frame)) {
            return;
        }
        let share = loop {
            match slab.try_share(frame) {
                // While it is shared, no other thread can lock it.
                Ok(share) => break FolioRef::new(&self.cache.frames, frame, share),
                Err(_) if slab.set_flags_if_exclusive(frame, STALE) => return,
                Err(_) => {}
            }
        };
        let before = self.detach(&mut shard, key, frame);
        drop(shard);
        cache.count_cleaned(self.device, before);
        cache.eviction.lock().remove(frame);
        drop(share);
    }

    /// Removes a folio that the caller shares from the index; returns its flags.
    fn detach(&self, shard: &mut Shard, key: Key, frame: u32) -> u32 {
        let cache = &*self.cache;
        let before = cache.frames.slab().set_flags(frame, DETACHED);
        let waiters = cache.index.remove(shard, &cache.frames, key, frame);
        assert!(waiters.is_empty(), "a folio that is not locked has no waiters");
        before.flags()
    }

    /// The parts of a byte range that are cached and not locked, in order.
    pub fn cached(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        for index in range.start / FOLIO..range.end.div_ceil(FOLIO) {
            let key = Key { file: self.file, index };
            let frame =
                self.cache.index.find(&self.cache.index.shard(key), &self.cache.frames, key);
            let is_readable =
                frame.is_some_and(|frame| !self.cache.frames.slab().state(frame).is_exclusive());
            if is_readable {
                let bytes = (index * FOLIO).max(range.start)..((index + 1) * FOLIO).min(range.end);
                match found.last_mut() {
                    Some(last) if last.end == bytes.start => last.end = bytes.end,
                    _ => found.push(bytes),
                }
            }
        }
        found
    }

    /// A snapshot of the folio at `index`.
    ///
    /// # Errors
    /// [`SnapshotError`] when the folio is not cached, or there are too many snapshots.
    pub fn snapshot(&self, index: u64) -> Result<FolioSnapshot, SnapshotError> {
        let Lookup::Found(found) = self.lookup_ahead_of(index, LINES_OF_A_LOOK) else {
            return Err(SnapshotError::Absent);
        };
        let frames = &self.cache.frames;
        // All references but the cache's are of snapshots. Threads that do this at once may exceed the bound by one each.
        if Arc::strong_count(frames) > frames.bound().div_ceil(2) as usize {
            return Err(SnapshotError::TooMany);
        }
        found.touch();
        Ok(found.into_snapshot())
    }
}

fn is_dropbehind_done(state: FrameState) -> bool {
    !state.is_exclusive() && state.flags() & (DROPBEHIND | DIRTY) == DROPBEHIND
}

impl fmt::Debug for FileFolios {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "FileFolios of file {}", self.file)
    }
}

impl Drop for FileFolios {
    fn drop(&mut self) {
        self.invalidate(0..u64::MAX);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Cache;

    fn fill(file: &FileFolios, index: u64) {
        file.begin_fill(index..index + 1, 0).unwrap().into_iter().for_each(|fill| fill.end(Ok(())));
    }

    #[test]
    fn files_numbered_beyond_32_bits_have_separate_folios() {
        let cache = Cache::new(1 << 20);
        let first = cache.file_folios(0);
        fill(&first, 0);
        for before in [u64::from(u32::MAX), u64::from(u32::MAX) << 8] {
            first.cache.next_file.store(before, Ordering::Relaxed);
            for _ in 0..3 {
                let file = cache.file_folios(0);
                assert!(matches!(file.lookup(0), Lookup::Absent), "file {} has folios", file.file);
                fill(&file, 0);
                drop(file);
                assert!(matches!(first.lookup(0), Lookup::Found(_)));
            }
        }
    }

    #[test]
    fn removing_a_small_file_from_a_large_cache_visits_few_folios() {
        let cache = Cache::new(64 << 20);
        let (large, small, empty) =
            (cache.file_folios(0), cache.file_folios(0), cache.file_folios(0));
        (0..10_000).for_each(|index| fill(&large, index));
        (0..3).for_each(|index| fill(&small, index));
        assert_eq!(small.remove_if(2..u64::MAX, |_| true), 1);
        assert_eq!(small.remove_if(0..u64::MAX, |_| true), 3);
        assert!((0..3).all(|index| matches!(small.lookup(index), Lookup::Absent)));
        assert_eq!(small.remove_if(7..u64::MAX, |_| true), 0);
        assert_eq!(empty.remove_if(0..u64::MAX, |_| true), 0);
        // A file with one folio far out visits each frame once.
        fill(&small, 1 << 40);
        let visited = small.remove_if(0..u64::MAX, |_| true);
        assert_eq!(visited, u64::from(small.cache.frames.high_water()));
        assert!(matches!(small.lookup(1 << 40), Lookup::Absent));
        assert_eq!(large.remove_if(0..u64::MAX, |_| true), 10_000);
        assert_eq!(cache.statistics().used_bytes, 0);
    }
}
