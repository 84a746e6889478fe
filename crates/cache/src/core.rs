//! The core of a cache: its frames, the index of them, the order in which folios leave, the set of unsaved folios.

use std::sync::Arc;

use uringfs_buffer::{FrameState, Hold, Snapshot};

use crate::dirty::DirtySet;
use crate::eviction::{Answer, Eviction};
use crate::folio::{ACCESS_COUNT, DETACHED, DIRTY, DROPBEHIND, Folio, Key, READAHEAD_MARKER};
use crate::frames::Frames;
use crate::index::Index;
use crate::waiter::{WaitOutcome, Waiter};
use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What all files and handles of a cache share.
pub(crate) struct CacheCore {
    pub(crate) frames: Frames,
    pub(crate) index: Index,
    pub(crate) eviction: Mutex<Eviction>,
    /// Places that eviction knows: it grows with the memory. Changed with its lock held.
    known: AtomicU32,
    /// Snapshots that somebody keeps.
    pub(crate) guards: AtomicU32,
    /// Behind a count of its own: those who wait for its limits hold it, and not the cache.
    pub(crate) dirty: Arc<DirtySet>,
    pub(crate) next_file: AtomicU64,
    /// Folios that came and that eviction took.
    pub(crate) filled: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

impl CacheCore {
    /// For at most `bound` folios.
    pub(crate) fn new(bound: u32) -> CacheCore {
        CacheCore {
            frames: Frames::new(bound),
            index: Index::new(bound),
            eviction: Mutex::new(Eviction::new()),
            known: AtomicU32::new(0),
            guards: AtomicU32::new(0),
            dirty: Arc::new(DirtySet::new(bound)),
            next_file: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Frames for up to `count` folios, in as few rows as can be; other folios leave for them.
    pub(crate) fn take_frames(&self, count: u32) -> Vec<Hold<Folio>> {
        let mut rows = self.frames.take(count);
        let taken: u32 = rows.iter().map(Hold::count).sum();
        if taken < count && self.evict(count - taken) > 0 {
            rows.extend(self.frames.take(count - taken));
        }
        rows
    }

    /// A frame for one folio, which eviction knows from now on; another folio leaves for it.
    pub(crate) fn take_frame(&self, key: Key) -> Option<Hold<Folio>> {
        if let Some(hold) = self.frames.take_one() {
            let mut eviction = self.eviction.lock();
            self.grow(&mut eviction);
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
        Some(hold)
    }

    /// Evicts up to `count` folios, and answers how many.
    pub(crate) fn evict(&self, count: u32) -> u32 {
        let leaving: Vec<_> = {
            let mut eviction = self.eviction.lock();
            (0..count).map_while(|_| self.evict_one(&mut eviction)).collect()
        };
        let evicted = leaving.len() as u32;
        for hold in leaving {
            self.remove_evicted(&hold);
            self.frames.give_back(hold);
        }
        evicted
    }

    /// A folio that eviction chose, held. It is still in the index.
    fn evict_one(&self, eviction: &mut Eviction) -> Option<Hold<Folio>> {
        let mut leaving = None;
        loop {
            let mut is_any_used = false;
            eviction.evict(|place| {
                let answer = self.ask(place, &mut leaving);
                is_any_used |= matches!(answer, Answer::Used);
                answer
            });
            // Those that were used are nearer to leaving when they are asked again.
            if leaving.is_some() || !is_any_used {
                return leaving;
            }
        }
    }

    /// Takes an evicted folio out of the index.
    fn remove_evicted(&self, hold: &Hold<Folio>) {
        let place = hold.first();
        let key = self.frames.slab().data(place).key();
        let waiters = self.index.remove(&mut self.index.shard(key), &self.frames, key, place);
        self.evicted.fetch_add(1, Ordering::Relaxed);
        for waiter in waiters {
            self.notify(&waiter, WaitOutcome::Changed);
        }
    }

    /// Makes all frames with memory known to eviction.
    pub(crate) fn grow(&self, eviction: &mut Eviction) {
        let places = self.frames.reached();
        if places > self.known.load(Ordering::Relaxed) {
            self.known.store(places, Ordering::Relaxed);
            eviction.grow(places);
        }
    }

    /// Whether a folio may leave; it is held then.
    fn ask(&self, place: u32, leaving: &mut Option<Hold<Folio>>) -> Answer {
        let (slab, frame) = (self.frames.slab(), place);
        let state = slab.state(frame);
        if state.is_held() || state.shares() > 0 || state.flags() & DIRTY != 0 {
            return Answer::Busy;
        }
        let [_, twice, thrice] = ACCESS_COUNT;
        if let Some(last) = [thrice, twice].into_iter().find(|touch| state.flags() & touch != 0) {
            slab.clear_flags(frame, last);
            return Answer::Used;
        }
        match slab.hold(frame, |flags| (flags & (twice | DIRTY) == 0).then_some(flags)) {
            None => Answer::Busy,
            Some(hold) => {
                let key = slab.data(frame).key().hash();
                *leaving = Some(hold);
                Answer::Leaves { key }
            }
        }
    }

    /// Counts one dirty folio of a device less, if the flags say dirty.
    pub(crate) fn count_saved(&self, device: u16, flags: u32) {
        if flags & DIRTY != 0 {
            self.dirty.remove(device);
        }
    }

    /// Gives the frame of a folio back that is in the index no more.
    pub(crate) fn forget(&self, place: u32, device: u16, hold: Hold<Folio>) {
        self.count_saved(device, self.frames.slab().state(place).flags());
        self.eviction.lock().remove(place);
        self.frames.give_back(hold);
    }

    /// Ends the wait of one waiter. No lock of the cache may be held: the outcome is given up at once when the waiting
    /// future is gone.
    pub(crate) fn notify(&self, waiter: &Waiter, outcome: WaitOutcome) {
        if let Err(outcome) = waiter.notify(outcome) {
            self.discard(outcome);
        }
    }

    /// Gives up the outcome of a wait that nothing waits for any more.
    pub(crate) fn discard(&self, outcome: WaitOutcome) {
        if let WaitOutcome::Filled { place, snapshot } = outcome {
            self.release(place, snapshot);
        }
    }

    /// Gives up a snapshot, and the frame with the last share of a detached folio.
    pub(crate) fn release(&self, place: u32, snapshot: Snapshot<Folio>) {
        if is_last_share(snapshot.release()) {
            self.reclaim(place);
        }
    }

    /// Frees the frame of a detached folio without shares.
    #[cold]
    pub(crate) fn reclaim(&self, place: u32) {
        let (slab, frame) = (self.frames.slab(), place);
        if let Some(hold) = slab.hold(frame, |flags| (flags & DETACHED != 0).then_some(flags)) {
            self.frames.give_back(hold);
        }
    }

    /// Counts an access to a folio with these flags, and clears its dropbehind flag.
    pub(crate) fn touch(&self, place: u32, flags: u32) {
        let slab = self.frames.slab();
        if let Some(next) = ACCESS_COUNT.into_iter().find(|touch| flags & touch == 0) {
            slab.set_flags(place, next);
        }
        if slab.state(place).flags() & DROPBEHIND != 0 {
            slab.clear_flags(place, DROPBEHIND);
        }
    }

    /// Takes the readahead marker: only one caller finds it set.
    pub(crate) fn take_mark(&self, place: u32) -> bool {
        let (slab, frame) = (self.frames.slab(), place);
        slab.clear_flags(frame, READAHEAD_MARKER).flags() & READAHEAD_MARKER != 0
    }
}

/// Whether a share that was given up was the last one of a detached folio.
#[inline(always)]
pub(crate) fn is_last_share(before: FrameState) -> bool {
    before.flags() & DETACHED != 0 && before.shares() == 1
}
