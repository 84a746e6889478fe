//! The core of a cache: its frames, their index, the eviction order, and the counts of dirty folios.

use std::sync::Arc;

use uringfs_buffer::ExclusiveFrames;

use crate::dirty::DirtyAccounting;
use crate::eviction::{Eviction, Verdict};
use crate::folio::{ACCESS_COUNT, DIRTY, Folio, Key};
use crate::frames::Frames;
use crate::index::Index;
use crate::waiter::{WaitOutcome, Waiter};
use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The state that all files and handles of a cache share.
pub(crate) struct CacheCore {
    /// In an `Arc` of its own: snapshots keep the frames alive, and not the cache. Nothing else does, so its count tells
    /// how many there are.
    pub(crate) frames: Arc<Frames>,
    pub(crate) index: Index,
    pub(crate) eviction: Mutex<Eviction>,
    /// Frames that `eviction` has room for; it grows with the memory. Changed only under the lock of `eviction`.
    eviction_frames: AtomicU32,
    /// In an `Arc` of its own: futures that wait for its limits keep it alive, and not the cache.
    pub(crate) dirty: Arc<DirtyAccounting>,
    pub(crate) next_file: AtomicU64,
    /// Folios inserted.
    pub(crate) filled: AtomicU64,
    /// Folios evicted. Changed only under the lock of `eviction`.
    pub(crate) evicted: AtomicU64,
}

impl CacheCore {
    /// For at most `bound` folios.
    pub(crate) fn new(bound: u32) -> CacheCore {
        CacheCore {
            frames: Arc::new(Frames::new(bound)),
            index: Index::new(bound),
            eviction: Mutex::new(Eviction::new()),
            eviction_frames: AtomicU32::new(0),
            dirty: Arc::new(DirtyAccounting::new(bound)),
            next_file: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Frames for up to `count` folios, in as few runs as possible. Evicts other folios if necessary.
    pub(crate) fn allocate_frames(&self, count: u32) -> Vec<ExclusiveFrames<Folio>> {
        let mut runs = self.frames.allocate(count);
        let allocated: u32 = runs.iter().map(ExclusiveFrames::count).sum();
        if allocated < count && self.evict(count - allocated) > 0 {
            runs.extend(self.frames.allocate(count - allocated));
        }
        runs
    }

    /// A frame with these flags for one folio, inserted into the eviction order. Evicts another folio if necessary.
    pub(crate) fn allocate_frame(&self, key: Key, flags: u32) -> Option<ExclusiveFrames<Folio>> {
        if let Some(hold) = self.frames.allocate_one() {
            hold.reset_flags(flags);
            let mut eviction = self.eviction.lock();
            self.grow_eviction(&mut eviction);
            eviction.insert(hold.first(), key.hash());
            return Some(hold);
        }
        let hold = {
            let mut eviction = self.eviction.lock();
            let hold = self.evict_one(&mut eviction)?;
            eviction.insert(hold.first(), key.hash());
            hold
        };
        self.remove_evicted(&hold);
        // Only now: while the evicted folio was in the index, it could be marked stale.
        hold.reset_flags(flags);
        Some(hold)
    }

    /// Evicts up to `count` folios; returns how many.
    pub(crate) fn evict(&self, count: u32) -> u32 {
        let evicted_frames: Vec<_> = {
            let mut eviction = self.eviction.lock();
            (0..count).map_while(|_| self.evict_one(&mut eviction)).collect()
        };
        let evicted = evicted_frames.len() as u32;
        for hold in evicted_frames {
            self.remove_evicted(&hold);
            self.frames.free(hold);
        }
        evicted
    }

    /// The frame of a folio that eviction chose. The folio is still in the index, and others may set flags of it.
    fn evict_one(&self, eviction: &mut Eviction) -> Option<ExclusiveFrames<Folio>> {
        let mut evicted = None;
        loop {
            let mut is_any_used = false;
            eviction.evict(|frame| {
                let verdict = self.try_evict(frame, &mut evicted);
                is_any_used |= matches!(verdict, Verdict::Used);
                verdict
            });
            // Each look lowers the access count of used folios, so another round may find one to evict.
            if evicted.is_some() {
                // Not one addition: the caller holds the lock.
                self.evicted.store(self.evicted.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                return evicted;
            }
            if !is_any_used {
                return None;
            }
        }
    }

    /// Removes an evicted folio from the index.
    fn remove_evicted(&self, hold: &ExclusiveFrames<Folio>) {
        let frame = hold.first();
        let key = self.frames.slab().data(frame).key();
        let waiters = self.index.remove(&mut self.index.shard(key), &self.frames, key, frame);
        for waiter in waiters {
            self.notify(&waiter, WaitOutcome::LookAgain);
        }
    }

    /// Gives the eviction order room for all frames that have memory.
    pub(crate) fn grow_eviction(&self, eviction: &mut Eviction) {
        let frames = self.frames.high_water();
        if frames > self.eviction_frames.load(Ordering::Relaxed) {
            self.eviction_frames.store(frames, Ordering::Relaxed);
            eviction.grow(frames);
        }
    }

    /// Stores the frame in `evicted` if its folio is unused and clean, and is neither locked nor shared.
    fn try_evict(&self, frame: u32, evicted: &mut Option<ExclusiveFrames<Folio>>) -> Verdict {
        let slab = self.frames.slab();
        let state = slab.state(frame);
        if state.is_exclusive() || state.shares() > 0 || state.flags() & DIRTY != 0 {
            return Verdict::Busy;
        }
        let [_, twice, thrice] = ACCESS_COUNT;
        if let Some(last) = [thrice, twice].into_iter().find(|access| state.flags() & access != 0) {
            slab.clear_flags(frame, last);
            return Verdict::Used;
        }
        match slab.try_exclusive(frame, |flags| (flags & (twice | DIRTY) == 0).then_some(flags)) {
            None => Verdict::Busy,
            Some(hold) => {
                let key = slab.data(frame).key().hash();
                *evicted = Some(hold);
                Verdict::Evicted { key }
            }
        }
    }

    /// Counts a folio of the device as clean, if `flags` say that it was dirty.
    pub(crate) fn count_cleaned(&self, device: u16, flags: u32) {
        if flags & DIRTY != 0 {
            self.dirty.remove(device);
        }
    }

    /// Frees the frame of a folio that has left the index.
    pub(crate) fn free_folio(&self, frame: u32, device: u16, hold: ExclusiveFrames<Folio>) {
        self.count_cleaned(device, self.frames.slab().state(frame).flags());
        self.eviction.lock().remove(frame);
        self.frames.free(hold);
    }

    /// Ends the wait of one waiter. The caller holds no lock of the cache: when the waiting future is gone, the
    /// outcome is released here.
    pub(crate) fn notify(&self, waiter: &Waiter, outcome: WaitOutcome) {
        if let Err(outcome) = waiter.notify(outcome) {
            self.discard(outcome);
        }
    }

    /// Releases an outcome that no future waits for.
    pub(crate) fn discard(&self, outcome: WaitOutcome) {
        if let WaitOutcome::Ready(snapshot) = outcome {
            self.frames.release(snapshot);
        }
    }
}
