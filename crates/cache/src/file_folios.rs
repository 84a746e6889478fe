//! The folios of one file: looking them up, bringing them in, changing them, taking them out.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use uringfs_buffer::{FrameState, Hold};

use crate::core::CacheCore;
use crate::dirty::{Fewer, Many};
use crate::fill::Fill;
use crate::folio::{
    ACCESS_COUNT, DETACHED, DIRTY, DROPBEHIND, FILLER, FOLIO, Folio, Key, READAHEAD_MARKER, STALE,
    WRITER,
};
use crate::folio_ref::{Found, Page};
use crate::index::Shard;
use crate::wait::Wait;
use uringfs_sync::atomic::{AtomicU64, Ordering};

/// What is found of a folio.
pub enum Look<'a> {
    /// It is there.
    Found(Found<'a>),
    /// Somebody fills it: [`Pages::wait`] for that.
    Busy {
        /// What [`Pages::fill`] was told of who that is.
        by: u16,
        /// Reading it starts the next window of readahead.
        is_marked: bool,
    },
    /// It is not there: [`Pages::fill`] it.
    Absent,
}

/// What whoever is going to change a folio finds of it.
pub enum Taken {
    /// It is his, with the bytes it had: [`Fill::end_unsaved`] ends that.
    Held(Fill),
    /// Somebody else has it: [`Pages::wait`] for that.
    Busy {
        /// What [`Pages::fill`] was told of who that is, or [`WRITER`].
        by: u16,
    },
    /// It is not there: [`Pages::fill`] it.
    Absent,
}

/// Why there is no snapshot of a folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPage {
    /// It is not in the cache, or being filled.
    Absent,
    /// Half of what the cache may have is kept by snapshots already: copy instead.
    TooMany,
}

/// Folios that may leave the cache are not to be had: all are being filled or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The folios of one file.
pub struct Pages {
    cache: Arc<CacheCore>,
    file: u64,
    device: u16,
    /// Behind the last that ever came.
    end: AtomicU64,
}

impl Pages {
    /// The folios of a file that has none yet.
    pub(crate) fn new(cache: Arc<CacheCore>, file: u64, device: u16) -> Pages {
        Pages { cache, file, device, end: AtomicU64::new(0) }
    }

    fn new_fill(&self, first: u64, hold: Hold<Folio>) -> Fill {
        Fill::new(self.cache.clone(), self.file, self.device, first, hold)
    }

    /// Looks for the `index`th folio. Whoever reads it touches it: [`Found::touch`].
    #[inline(always)]
    pub fn look(&self, index: u64) -> Look<'_> {
        let key = Key { file: self.file, index };
        let frames = &self.cache.frames;
        let Some(place) = self.cache.index.find_lockless(frames, key) else {
            return self.look_again(key);
        };
        let (slab, frame) = (frames.slab(), place);
        match slab.share(frame) {
            Ok(share) => {
                let found = Found::new(&self.cache, place, share);
                // It was found without a lock: its frame may have become another's meanwhile.
                if !slab.data(frame).is(key) {
                    drop(found);
                    return self.look_again(key);
                }
                Look::Found(found)
            }
            Err(_) => self.look_again(key),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_again(&self, key: Key) -> Look<'_> {
        let frames = &self.cache.frames;
        let shard = self.cache.index.shard(key);
        let Some(place) = self.cache.index.find(&shard, frames, key) else { return Look::Absent };
        let (slab, frame) = (frames.slab(), place);
        match slab.share(frame) {
            // It is in the index, which is not changed meanwhile: it is the one.
            Ok(share) => Look::Found(Found::new(&self.cache, place, share)),
            Err(state) => {
                let (by, flags) = ((state.flags() >> FILLER) as u16, state.flags());
                Look::Busy { by, is_marked: flags & READAHEAD_MARKER != 0 }
            }
        }
    }

    /// Waits until whoever fills a folio has.
    pub fn wait(&self, index: u64) -> Wait {
        Wait::new(&self.cache, Key { file: self.file, index })
    }

    /// Takes folios into the cache that are not there, in the order of `indexes`, up to the first that is or
    /// that there is no room for. The caller fills them; others find who it is by a number of its choice.
    ///
    /// # Errors
    /// [`Full`] when there is room for none.
    pub fn fill(&self, indexes: Range<u64>, by: u16) -> Result<Vec<Fill>, Full> {
        let cache = &*self.cache;
        let wanted = (indexes.end - indexes.start).min(u64::from(cache.frames.bound())) as u32;
        if wanted == 1 {
            return Ok(self.fill_one(indexes.start, by)?.into_iter().collect());
        }
        let mut fills: Vec<Fill> = Vec::new();
        let mut index = indexes.start;
        let mut rows = cache.take_frames(wanted).into_iter();
        if rows.len() == 0 {
            return Err(Full);
        }
        let mut came = Vec::with_capacity(wanted as usize);
        for row in rows.by_ref() {
            let (first, count) = (row.first(), row.count());
            let mut taken = 0;
            for frame in first..first + count {
                cache.frames.slab().set_flags(frame, u32::from(by) << FILLER);
            }
            while taken < count && self.insert(index + u64::from(taken), first + taken) {
                came.push((
                    first + taken,
                    Key { file: self.file, index: index + u64::from(taken) },
                ));
                taken += 1;
            }
            let mut row = row;
            let rest = (taken < count).then(|| row.split_off(taken));
            match taken {
                0 => cache.frames.give_back(row),
                _ => fills.push(self.new_fill(index, row)),
            }
            index += u64::from(taken);
            if let Some(rest) = rest {
                cache.frames.give_back(rest);
                break;
            }
        }
        rows.for_each(|row| cache.frames.give_back(row));
        let mut eviction = cache.eviction.lock();
        cache.grow(&mut eviction);
        came.iter().for_each(|(place, key)| eviction.insert(*place, key.hash()));
        drop(eviction);
        cache.filled.fetch_add(came.len() as u64, Ordering::Relaxed);
        self.end.fetch_max(index, Ordering::Relaxed);
        Ok(fills)
    }

    /// The same for one folio: the frame of one that leaves for it becomes its own at once.
    fn fill_one(&self, index: u64, by: u16) -> Result<Option<Fill>, Full> {
        let (cache, key) = (&*self.cache, Key { file: self.file, index });
        let hold = cache.take_frame(key).ok_or(Full)?;
        hold.reset_flags(u32::from(by) << FILLER);
        if !self.insert(index, hold.first()) {
            cache.forget(hold.first(), self.device, hold);
            return Ok(None);
        }
        cache.filled.fetch_add(1, Ordering::Relaxed);
        self.end.fetch_max(index + 1, Ordering::Relaxed);
        Ok(Some(self.new_fill(index, hold)))
    }

    /// Puts a held frame in the index, unless the folio is there.
    fn insert(&self, index: u64, place: u32) -> bool {
        let (cache, key) = (&*self.cache, Key { file: self.file, index });
        let shard = &mut *cache.index.shard(key);
        if cache.index.find(shard, &cache.frames, key).is_some() {
            return false;
        }
        cache.index.insert(shard, &cache.frames, key, place);
        true
    }

    /// Takes a folio to change it: its bytes are copied to another frame if somebody shares it, who keeps the old
    /// ones. Whoever has it waits for nothing until it gives it back.
    ///
    /// # Errors
    /// [`Full`] when there is no room for the copy.
    pub fn change(&self, index: u64) -> Result<Taken, Full> {
        let (cache, key) = (&*self.cache, Key { file: self.file, index });
        let (frames, slab) = (&cache.frames, cache.frames.slab());
        let mut copy: Option<Hold<Folio>> = None;
        let taken = loop {
            let mut shard = cache.index.shard(key);
            let Some(place) = cache.index.find(&shard, frames, key) else { break Taken::Absent };
            // In one step with who it is: whoever took it for one that is being read would look on the device, which
            // may not have what was written last.
            if let Some(hold) = slab.hold(place, |flags| Some(flags | u32::from(WRITER) << FILLER))
            {
                break Taken::Held(self.new_fill(index, hold));
            }
            let share = match slab.share(place) {
                Ok(share) => Found::new(&self.cache, place, share),
                Err(state) => break Taken::Busy { by: (state.flags() >> FILLER) as u16 },
            };
            let Some(mut hold) = copy.take() else {
                drop((shard, share));
                copy = Some(cache.take_frames(1).pop().ok_or(Full)?);
                continue;
            };
            hold.bytes().copy_from_slice(&share);
            let kept = slab.state(place).flags()
                & (DIRTY | READAHEAD_MARKER | DROPBEHIND | ACCESS_COUNT[0]);
            slab.set_flags(hold.first(), u32::from(WRITER) << FILLER | kept);
            self.detach(&mut shard, key, place);
            cache.index.insert(&mut shard, frames, key, hold.first());
            drop(shard);
            let mut eviction = cache.eviction.lock();
            eviction.remove(place);
            cache.grow(&mut eviction);
            eviction.insert(hold.first(), key.hash());
            drop((eviction, share));
            break Taken::Held(self.new_fill(index, hold));
        };
        copy.into_iter().for_each(|hold| frames.give_back(hold));
        Ok(taken)
    }

    /// The device has what a folio says; if it has left meanwhile, nothing happens.
    pub fn saved(&self, index: u64) {
        let (cache, key) = (&*self.cache, Key { file: self.file, index });
        let shard = cache.index.shard(key);
        let Some(place) = cache.index.find(&shard, &cache.frames, key) else { return };
        let before = cache.frames.slab().clear_flags(place, DIRTY);
        drop(shard);
        cache.count_saved(self.device, before.flags());
        if before.flags() & DROPBEHIND != 0 {
            self.take_one_out(key, is_done_passing);
        }
    }

    /// Some that were to be saved could not be.
    pub fn save_failed(&self) {
        self.cache.dirty.failed(self.device);
    }

    /// How often some of the device could not be saved.
    pub fn save_failures(&self) -> u32 {
        self.cache.dirty.failures(self.device)
    }

    /// Whether as many folios of the device are unsaved as may be.
    pub fn has_too_many_unsaved(&self) -> bool {
        self.cache.dirty.has_too_many(self.device)
    }

    /// Waits until no more folios of the device are unsaved than may be, or some cannot be saved.
    pub fn may_change(&self) -> Fewer {
        Fewer::with_room(&self.cache.dirty, self.device)
    }

    /// Waits until one folio less is unsaved than now, of whatever device; none when there is none.
    pub fn one_saved(&self) -> Option<Fewer> {
        let below = self.cache.dirty.count();
        (below > 0).then(|| Fewer::than(&self.cache.dirty, below))
    }

    /// Waits until so many folios of the device are unsaved that it is time to save some.
    pub fn many_unsaved(&self) -> Many {
        Many::of(&self.cache.dirty, self.device)
    }

    /// Takes folios out of the cache: what they said of these bytes is so no more. Pages keep theirs. Nobody
    /// waits: what is being filled is thrown away when that has ended.
    pub fn invalidate(&self, indexes: Range<u64>) {
        self.take_out(indexes, |_| true);
    }

    /// The same, but that those stay which the device does not have, and those somebody is filling or changing.
    pub fn forget_saved(&self, indexes: Range<u64>) {
        self.take_out(indexes, |state| !state.is_held() && state.flags() & DIRTY == 0);
    }

    /// Takes out those of [`Fill::let_pass`] that nobody else has used, and that the device has.
    pub fn forget_passing(&self, indexes: Range<u64>) {
        self.take_out(indexes, is_done_passing);
    }

    /// Answers how many folios or frames it has looked at.
    fn take_out(&self, indexes: Range<u64>, which: impl Fn(FrameState) -> bool) -> u64 {
        let indexes = indexes.start..indexes.end.min(self.end.load(Ordering::Relaxed));
        if indexes.is_empty() {
            return 0;
        }
        let places = u64::from(self.cache.frames.reached());
        let count = indexes.end - indexes.start;
        if count <= places {
            for index in indexes {
                self.take_one_out(Key { file: self.file, index }, &which);
            }
            return count;
        }
        // Fewer frames than folios there might be: each is looked at.
        for place in 0..places as u32 {
            let key = self.cache.frames.slab().data(place).key();
            if key.file == self.file && indexes.contains(&key.index) {
                self.take_one_out(key, &which);
            }
        }
        places
    }

    fn take_one_out(&self, key: Key, which: impl Fn(FrameState) -> bool) {
        let cache = &*self.cache;
        let mut shard = cache.index.shard(key);
        let Some(place) = cache.index.find(&shard, &cache.frames, key) else { return };
        let (slab, frame) = (cache.frames.slab(), place);
        if !which(slab.state(frame)) {
            return;
        }
        let share = loop {
            match slab.share(frame) {
                // Now nobody comes to hold it.
                Ok(share) => break Found::new(&self.cache, place, share),
                Err(_) if slab.set_flags_if_held(frame, STALE) => return,
                Err(_) => {}
            }
        };
        let before = self.detach(&mut shard, key, place);
        drop(shard);
        cache.count_saved(self.device, before);
        cache.eviction.lock().remove(place);
        drop(share);
    }

    /// Takes a folio that the caller shares out of the index, and answers its flags.
    fn detach(&self, shard: &mut Shard, key: Key, place: u32) -> u32 {
        let cache = &*self.cache;
        let before = cache.frames.slab().set_flags(place, DETACHED);
        let waiters = cache.index.remove(shard, &cache.frames, key, place);
        assert!(waiters.is_empty(), "nobody waits for what is not held");
        before.flags()
    }

    /// Which bytes of a range are cached, and not being filled, in order.
    pub fn cached(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        for index in range.start / FOLIO..range.end.div_ceil(FOLIO) {
            let key = Key { file: self.file, index };
            let place =
                self.cache.index.find(&self.cache.index.shard(key), &self.cache.frames, key);
            let is_there = place.is_some_and(|place| {
                let (slab, frame) = (self.cache.frames.slab(), place);
                !slab.state(frame).is_held()
            });
            if is_there {
                let bytes = (index * FOLIO).max(range.start)..((index + 1) * FOLIO).min(range.end);
                match found.last_mut() {
                    Some(last) if last.end == bytes.start => last.end = bytes.end,
                    _ => found.push(bytes),
                }
            }
        }
        found
    }

    /// A snapshot of the `index`th folio, if it is there.
    ///
    /// # Errors
    /// Why there is none.
    pub fn page(&self, index: u64) -> Result<Page, NoPage> {
        let Look::Found(found) = self.look(index) else { return Err(NoPage::Absent) };
        let guards = &self.cache.guards;
        if guards.fetch_add(1, Ordering::Relaxed) >= self.cache.frames.bound().div_ceil(2) {
            guards.fetch_sub(1, Ordering::Relaxed);
            return Err(NoPage::TooMany);
        }
        found.touch();
        Ok(found.keep_counted())
    }
}

fn is_done_passing(state: FrameState) -> bool {
    !state.is_held() && state.flags() & (DROPBEHIND | DIRTY) == DROPBEHIND
}

impl fmt::Debug for Pages {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Pages of file {}", self.file)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.invalidate(0..u64::MAX);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Cache;

    fn fill(pages: &Pages, index: u64) {
        pages.fill(index..index + 1, 0).unwrap().into_iter().for_each(|fill| fill.end(Ok(())));
    }

    #[test]
    fn more_files_than_32_bits_count_have_folios_of_their_own() {
        let cache = Cache::new(1 << 20);
        let first = cache.pages(0);
        fill(&first, 0);
        for before in [u64::from(u32::MAX), u64::from(u32::MAX) << 8] {
            first.cache.next_file.store(before, Ordering::Relaxed);
            for _ in 0..3 {
                let pages = cache.pages(0);
                assert!(matches!(pages.look(0), Look::Absent), "those of file {}", pages.file);
                fill(&pages, 0);
                drop(pages);
                assert!(matches!(first.look(0), Look::Found(_)));
            }
        }
    }

    #[test]
    fn of_a_small_file_in_a_large_cache_few_folios_are_looked_at() {
        let cache = Cache::new(64 << 20);
        let (large, small, empty) = (cache.pages(0), cache.pages(0), cache.pages(0));
        (0..10_000).for_each(|index| fill(&large, index));
        (0..3).for_each(|index| fill(&small, index));
        assert_eq!(small.take_out(2..u64::MAX, |_| true), 1);
        assert_eq!(small.take_out(0..u64::MAX, |_| true), 3);
        assert!((0..3).all(|index| matches!(small.look(index), Look::Absent)));
        assert_eq!(small.take_out(7..u64::MAX, |_| true), 0);
        assert_eq!(empty.take_out(0..u64::MAX, |_| true), 0);
        // Of one with a folio far out no more frames than there are.
        fill(&small, 1 << 40);
        let looked_at = small.take_out(0..u64::MAX, |_| true);
        assert_eq!(looked_at, u64::from(small.cache.frames.reached()));
        assert!(matches!(small.look(1 << 40), Look::Absent));
        assert_eq!(large.take_out(0..u64::MAX, |_| true), 10_000);
        assert_eq!(cache.statistics().used_bytes, 0);
    }
}
