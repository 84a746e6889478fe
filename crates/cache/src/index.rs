//! The index: which folio is in which frame. A hash table of chains. A lookup walks a chain without a lock; a change
//! takes the lock of its shard. A shard also holds the waiters for its folios.

use std::sync::Arc;

use uringfs_buffer::prefer_huge_pages;
#[cfg(not(loom))]
use zerocopy::FromZeros;

use crate::folio::{HAS_WAITERS, Key};
use crate::frames::Frames;
use crate::waiter::Waiter;
use uringfs_sync::atomic::{AtomicU32, Ordering};
use uringfs_sync::{Mutex, MutexGuard};

/// Shards of the table.
const SHARDS: usize = 64;
/// The link at a chain's end: all of them, in memory that was never used.
const END: u32 = 0;
/// Steps of a lockless lookup at most. One that is led astray, since a folio on its way moved to another chain, ends.
const MAX_STEPS: u32 = 64;

pub(crate) struct Index {
    /// Links: a frame and 1, or [`END`].
    heads: Box<[AtomicU32]>,
    /// Of a chain's number.
    bits: u32,
    shards: Box<[Mutex<Shard>]>,
}

/// A shard of the table: the waiters for its folios, each with the folio's place: few at any time.
#[derive(Default)]
pub(crate) struct Shard {
    waiting: Vec<(u32, Arc<Waiter>)>,
}

/// The result of registering a waiter.
pub(crate) enum Wanted {
    /// It is held: the waiter is noted.
    Held,
    /// It is not there, or not held: look again.
    Changed,
}

impl Index {
    /// For as many folios.
    pub(crate) fn new(bound: u32) -> Index {
        let count = (bound as usize).next_power_of_two();
        let heads = zeroed(count);
        prefer_huge_pages(&heads);
        let shards = (0..SHARDS.min(count)).map(|_| Mutex::new(Shard::default())).collect();
        Index { heads, bits: count.trailing_zeros(), shards }
    }

    #[inline(always)]
    fn chain(&self, key: Key) -> usize {
        key.chain(self.bits)
    }

    /// The frame of a folio, without a lock. It may miss a folio that is moving at the same time.
    #[inline(always)]
    pub(crate) fn find_lockless(&self, frames: &Frames, key: Key) -> Option<u32> {
        let mut link = self.heads[self.chain(key)].load(Ordering::Acquire);
        for _ in 0..MAX_STEPS {
            let place = link.checked_sub(1)?;
            // It is the one, mostly: while its state is on the way its bytes come, too.
            frames.slab().expect(place);
            let folio = frames.slab().data(place);
            if folio.is(key) {
                return Some(place);
            }
            link = folio.next.load(Ordering::Acquire);
        }
        None
    }

    /// Locks the shard of a folio. The other methods take this shard.
    pub(crate) fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        self.shards[self.chain(key) & (self.shards.len() - 1)].lock()
    }

    /// The frame of a folio, under the lock of its shard.
    pub(crate) fn find(&self, _shard: &Shard, frames: &Frames, key: Key) -> Option<u32> {
        let mut link = self.heads[self.chain(key)].load(Ordering::Relaxed);
        while let Some(place) = link.checked_sub(1) {
            let folio = frames.slab().data(place);
            if folio.is(key) {
                return Some(place);
            }
            link = folio.next.load(Ordering::Relaxed);
        }
        None
    }

    /// Puts a folio there that is not there. It is held.
    pub(crate) fn insert(&self, _shard: &mut Shard, frames: &Frames, key: Key, place: u32) {
        let head = &self.heads[self.chain(key)];
        let (slab, frame) = (frames.slab(), place);
        slab.data(frame).name(key);
        slab.data(frame).next.store(head.load(Ordering::Relaxed), Ordering::Relaxed);
        head.store(place + 1, Ordering::Release);
    }

    /// Takes a folio out, and returns its waiters.
    pub(crate) fn remove(
        &self,
        shard: &mut Shard,
        frames: &Frames,
        key: Key,
        place: u32,
    ) -> Vec<Arc<Waiter>> {
        let next_of = |place| &frames.slab().data(place).next;
        let mut link = &self.heads[self.chain(key)];
        loop {
            let at = link.load(Ordering::Relaxed);
            assert!(at != END, "it is there");
            if at == place + 1 {
                break;
            }
            link = next_of(at - 1);
        }
        link.store(next_of(place).load(Ordering::Relaxed), Ordering::Release);
        shard.take_waiters(place)
    }

    /// Notes a waiter for a folio, if the folio is there and held.
    pub(crate) fn wait(&self, frames: &Frames, key: Key, waiter: &Arc<Waiter>) -> Wanted {
        let shard = &mut *self.shard(key);
        let Some(place) = self.find(shard, frames, key) else { return Wanted::Changed };
        let (slab, frame) = (frames.slab(), place);
        if !slab.set_flags_if_held(frame, HAS_WAITERS) {
            return Wanted::Changed;
        }
        shard.waiting.push((place, waiter.clone()));
        Wanted::Held
    }
}

#[cfg(not(loom))]
fn zeroed(count: usize) -> Box<[AtomicU32]> {
    <[AtomicU32]>::new_box_zeroed_with_elems(count).expect("memory for the index")
}

#[cfg(loom)]
fn zeroed(count: usize) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(END)).collect()
}

impl Shard {
    /// Takes the waiters for the folio at a place.
    pub(crate) fn take_waiters(&mut self, place: u32) -> Vec<Arc<Waiter>> {
        let is_it = |(other, _): &mut (u32, Arc<Waiter>)| *other == place;
        self.waiting.extract_if(.., is_it).map(|(_, waiter)| waiter).collect()
    }
}
