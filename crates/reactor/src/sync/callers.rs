//! Threads that make one request to a device themselves, without a reactor. Each publishes its epoch in a slot, as a
//! reactor does in its `Member`: see [`Domain`](super::quiescence::Domain).

use crossbeam_utils::CachePadded;

use uringfs_sync::atomic::{AtomicU64, Ordering};

use crate::sync::barrier;

/// The published value when no request is in flight.
pub(crate) const IDLE: u64 = u64::MAX;

/// The number of slots. The slot of a thread follows from its number, so that up to this many threads write no cache line
/// that they share.
#[cfg(not(loom))]
const SLOTS: usize = 64;
#[cfg(loom)]
const SLOTS: usize = 2;

/// The slots that a thread tries, from its own on.
#[cfg(not(loom))]
const TRIED: usize = 4;
#[cfg(loom)]
const TRIED: usize = 1;

/// The slots of a device.
pub(crate) struct Callers {
    slots: Box<[CachePadded<Slot>]>,
}

/// The slot of one thread at a time.
#[derive(Debug)]
struct Slot {
    /// The epoch of the request, or [`IDLE`].
    epoch: AtomicU64,
    /// Requests that were made in this slot and moved all their bytes.
    calls: AtomicU64,
}

/// A request that its thread makes. It leaves its epoch when this is dropped.
#[derive(Debug)]
#[must_use = "the epoch is left when it is dropped"]
pub struct CallerGuard<'d> {
    slot: &'d Slot,
}

impl Callers {
    pub(crate) fn new() -> Callers {
        let slot = || Slot { epoch: AtomicU64::new(IDLE), calls: AtomicU64::new(0) };
        Callers { slots: (0..SLOTS).map(|_| CachePadded::new(slot())).collect() }
    }

    /// Puts a request of the thread with this number in `epoch`. `None` if the slots of the thread are taken.
    #[inline]
    pub(crate) fn enter(&self, thread: usize, epoch: u64) -> Option<CallerGuard<'_>> {
        let tried = (thread..thread + TRIED).map(|index| &*self.slots[index % SLOTS]);
        // Release: a thread that reads this later epoch also sees that the slot's earlier requests have ended.
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let is_taken_now =
            |slot: &&Slot| slot.epoch.compare_exchange(IDLE, epoch, success, failure).is_ok();
        let slot = { tried }.find(is_taken_now)?;
        barrier::light();
        Some(CallerGuard { slot })
    }

    /// The earliest epoch of a request, or [`IDLE`].
    pub(crate) fn earliest(&self) -> u64 {
        let epochs = self.slots.iter().map(|slot| slot.epoch.load(Ordering::Acquire));
        epochs.min().unwrap_or(IDLE)
    }

    /// Requests that moved all their bytes.
    pub(crate) fn calls(&self) -> u64 {
        self.slots.iter().map(|slot| slot.calls.load(Ordering::Relaxed)).sum()
    }
}

impl CallerGuard<'_> {
    /// Counts the request: it has moved all its bytes.
    #[inline]
    pub fn count(&self) {
        // Only the thread in the slot writes it.
        let calls = self.slot.calls.load(Ordering::Relaxed);
        self.slot.calls.store(calls + 1, Ordering::Relaxed);
    }
}

impl Drop for CallerGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.epoch.store(IDLE, Ordering::Release);
    }
}
