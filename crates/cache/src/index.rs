//! The index: a hash table of chains from folios to frames. A lookup walks a chain without a lock; a change takes the
//! lock of its shard. A shard also holds the waiters for its folios.

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
/// The link at the end of a chain. Zero, so that fresh memory is a table of empty chains.
const CHAIN_END: u32 = 0;
/// Bound for the steps of a lockless lookup. A folio that moves to another chain can lead a lookup astray; the bound
/// ends it.
const MAX_STEPS: u32 = 64;

pub(crate) struct Index {
    /// Links: a frame number plus 1, or [`CHAIN_END`].
    heads: Box<[AtomicU32]>,
    /// Bits of a chain's number.
    bits: u32,
    shards: Box<[Mutex<Shard>]>,
}

/// A shard of the table. It holds the waiters for its folios, each with the folio's frame; there are few at any time.
#[derive(Default)]
pub(crate) struct Shard {
    waiters: Vec<(u32, Arc<Waiter>)>,
}

/// The result of registering a waiter.
pub(crate) enum Registration {
    /// The folio is locked, and the waiter is registered.
    Waiting,
    /// The folio is absent or not locked: look it up again.
    LookAgain,
}

impl Index {
    /// For up to `bound` folios.
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

    /// The frame of a folio, without a lock. It may miss a folio that is moving at the same time. `lines` is how many
    /// cache lines of its bytes the caller is about to read.
    #[inline(always)]
    pub(crate) fn find_lockless(&self, frames: &Frames, key: Key, lines: usize) -> Option<u32> {
        let mut link = self.heads[self.chain(key)].load(Ordering::Acquire);
        for _ in 0..MAX_STEPS {
            let frame = link.checked_sub(1)?;
            // It is mostly the right one: prefetch its bytes while its state is loaded.
            frames.slab().prefetch(frame, lines);
            let folio = frames.slab().data(frame);
            if folio.is(key) {
                return Some(frame);
            }
            link = folio.next.load(Ordering::Acquire);
        }
        None
    }

    /// Locks the shard of a folio, for the methods that take a shard.
    pub(crate) fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        self.shards[self.chain(key) & (self.shards.len() - 1)].lock()
    }

    /// The frame of a folio, under the lock of its shard.
    pub(crate) fn find(&self, _shard: &Shard, frames: &Frames, key: Key) -> Option<u32> {
        let mut link = self.heads[self.chain(key)].load(Ordering::Relaxed);
        while let Some(frame) = link.checked_sub(1) {
            let folio = frames.slab().data(frame);
            if folio.is(key) {
                return Some(frame);
            }
            link = folio.next.load(Ordering::Relaxed);
        }
        None
    }

    /// Inserts a folio, which is absent until now. It is locked.
    pub(crate) fn insert(&self, _shard: &mut Shard, frames: &Frames, key: Key, frame: u32) {
        let head = &self.heads[self.chain(key)];
        let slab = frames.slab();
        slab.data(frame).set_key(key);
        slab.data(frame).next.store(head.load(Ordering::Relaxed), Ordering::Relaxed);
        head.store(frame + 1, Ordering::Release);
    }

    /// Removes a folio, and returns its waiters.
    pub(crate) fn remove(
        &self,
        shard: &mut Shard,
        frames: &Frames,
        key: Key,
        frame: u32,
    ) -> Vec<Arc<Waiter>> {
        let next_of = |frame| &frames.slab().data(frame).next;
        let mut link = &self.heads[self.chain(key)];
        loop {
            let link_value = link.load(Ordering::Relaxed);
            assert!(link_value != CHAIN_END, "the folio is in its chain");
            if link_value == frame + 1 {
                break;
            }
            link = next_of(link_value - 1);
        }
        link.store(next_of(frame).load(Ordering::Relaxed), Ordering::Release);
        shard.take_waiters(frame)
    }

    /// Registers a waiter for a folio, if the folio is present and locked.
    pub(crate) fn register_waiter(
        &self,
        frames: &Frames,
        key: Key,
        waiter: &Arc<Waiter>,
    ) -> Registration {
        let shard = &mut *self.shard(key);
        let Some(frame) = self.find(shard, frames, key) else { return Registration::LookAgain };
        let slab = frames.slab();
        if !slab.set_flags_if_exclusive(frame, HAS_WAITERS) {
            return Registration::LookAgain;
        }
        shard.waiters.push((frame, waiter.clone()));
        Registration::Waiting
    }
}

#[cfg(not(loom))]
fn zeroed(count: usize) -> Box<[AtomicU32]> {
    <[AtomicU32]>::new_box_zeroed_with_elems(count).expect("memory for the index")
}

#[cfg(loom)]
fn zeroed(count: usize) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(CHAIN_END)).collect()
}

impl Shard {
    /// Removes and returns the waiters for the folio in a frame.
    pub(crate) fn take_waiters(&mut self, frame: u32) -> Vec<Arc<Waiter>> {
        let is_it = |(other, _): &mut (u32, Arc<Waiter>)| *other == frame;
        self.waiters.extract_if(.., is_it).map(|(_, waiter)| waiter).collect()
    }
}
