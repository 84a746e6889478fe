//! The slots of a region that a pool divides into equal buffers: the free ones, the number of parts in use of the
//! others, and who waits for one. Allocating and freeing a slot allocate no memory, and take no lock while nobody waits.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use crossbeam_utils::CachePadded;
use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// No slot: the end of the list.
const NONE: u32 = u32::MAX;
/// In the word of the list's head: someone waits, and the list is empty. Changed only under the lock of the waiters.
const WAITED: u64 = 1 << 32;
/// Added to the head by each change, so that a slot that was taken and freed meanwhile is noticed.
const CHANGE: u64 = 1 << 33;

/// The free slots of a region, and the number of parts of each slot in use.
#[derive(Debug)]
pub(crate) struct Slots {
    length: usize,
    stride: usize,
    slots: Box<[Slot]>,
    /// The first free slot in the low half; [`WAITED`]; and a count of changes. The slot that was freed last is taken
    /// first: its memory is still in the processor's cache.
    head: CachePadded<AtomicU64>,
    waiters: Mutex<Waiters>,
}

#[derive(Debug)]
struct Slot {
    parts: AtomicU32,
    /// The next free slot, or [`NONE`].
    next: AtomicU32,
}

/// Those that wait for a slot, by their tickets: the lowest waits longest.
#[derive(Debug, Default)]
struct Waiters {
    next_ticket: u64,
    waiting: BTreeMap<u64, Waker>,
    /// Slots that were handed over and not yet fetched.
    granted: BTreeMap<u64, u32>,
}

/// A place in the queue of those that wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Slots {
    /// `count` free slots, `stride` bytes apart, of `length` bytes each.
    pub(crate) fn new(length: usize, stride: usize, count: u32) -> Slots {
        let slot = |number: u32| {
            let next = if number + 1 < count { number + 1 } else { NONE };
            Slot { parts: AtomicU32::new(0), next: AtomicU32::new(next) }
        };
        Slots {
            length,
            stride,
            slots: (0..count).map(slot).collect(),
            head: CachePadded::new(AtomicU64::new(0)),
            waiters: Mutex::default(),
        }
    }

    /// Allocates a slot, as one part. Returns its offset in the region, in bytes.
    #[inline]
    pub(crate) fn allocate(&self) -> Option<usize> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let number = head as u32;
            if number == NONE {
                return None;
            }
            // If another thread takes the slot meanwhile, this is wrong, and the exchange fails.
            let next = self.slots[number as usize].next.load(Ordering::Relaxed);
            let taken = changed(head, next);
            let exchanged =
                self.head.compare_exchange_weak(head, taken, Ordering::Acquire, Ordering::Acquire);
            match exchanged {
                Ok(_) => return Some(self.occupy(number)),
                Err(now) => head = now,
            }
        }
    }

    /// Allocates a slot, or waits for one: behind those that wait already, and before any later [`Self::allocate`].
    /// `ticket` is `None` at the first call; while it is not, call [`Self::give_up`] instead of forgetting it.
    pub(crate) fn poll_allocate(
        &self,
        ticket: &mut Option<Ticket>,
        context: &mut Context<'_>,
    ) -> Poll<usize> {
        if ticket.is_none()
            && let Some(offset) = self.allocate()
        {
            return Poll::Ready(offset);
        }
        // Wakers are cloned and dropped without the lock: they may run a user's code.
        let waker = context.waker().clone();
        let mut waiters = self.waiters.lock();
        let own = match ticket {
            Some(Ticket(own)) => *own,
            None => {
                while !self.announce_waiter() {
                    if let Some(offset) = self.allocate() {
                        return Poll::Ready(offset);
                    }
                }
                let own = waiters.next_ticket;
                waiters.next_ticket += 1;
                *ticket = Some(Ticket(own));
                own
            }
        };
        if let Some(number) = waiters.granted.remove(&own) {
            *ticket = None;
            return Poll::Ready(self.offset_of(number));
        }
        let replaced = waiters.waiting.insert(own, waker);
        drop(waiters);
        drop(replaced);
        Poll::Pending
    }

    /// Leaves the queue. A slot that was handed over already goes to the next.
    pub(crate) fn give_up(&self, Ticket(own): Ticket) {
        let mut waiters = self.waiters.lock();
        let waker = waiters.waiting.remove(&own);
        let granted = waiters.granted.remove(&own);
        if waiters.waiting.is_empty() {
            self.head.fetch_and(!WAITED, Ordering::Relaxed);
        }
        drop(waiters);
        drop(waker);
        if let Some(number) = granted {
            self.slots[number as usize].parts.store(0, Ordering::Relaxed);
            self.free(number);
        }
    }

    /// The number of free slots. Looks at every slot.
    pub(crate) fn available(&self) -> usize {
        let is_free = |slot: &&Slot| slot.parts.load(Ordering::Relaxed) == 0;
        self.slots.iter().filter(is_free).count()
    }

    /// Bytes in each slot.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The number of slots.
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// The number of the slot at an offset in the region.
    pub(crate) fn slot_at(&self, offset: usize) -> usize {
        offset / self.stride
    }

    /// True if a slot begins at this offset in the region.
    pub(crate) fn begins_at(&self, offset: usize) -> bool {
        offset.is_multiple_of(self.stride) && offset < self.stride * self.slots.len()
    }

    /// The distance of two slots, and bytes of all of them.
    pub(crate) fn stride_and_bytes(&self) -> (usize, usize) {
        (self.stride, self.stride * self.slots.len())
    }

    fn offset_of(&self, number: u32) -> usize {
        number as usize * self.stride
    }

    pub(crate) fn same_slot(&self, one: usize, other: usize) -> bool {
        self.slot_at(one) == self.slot_at(other)
    }

    pub(crate) fn add_part(&self, offset: usize) {
        self.slots[self.slot_at(offset)].parts.fetch_add(1, Ordering::Relaxed);
    }

    /// The last part frees the slot. Release and acquire order the last accesses
    /// through all parts before the first access of the next owner.
    pub(crate) fn drop_part(&self, offset: usize) {
        let number = self.slot_at(offset);
        let before = self.slots[number].parts.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a slot was freed twice");
        if before == 1 {
            self.free(number as u32);
        }
    }

    /// The offset of a slot that was just taken, as one part.
    #[inline]
    fn occupy(&self, number: u32) -> usize {
        self.slots[number as usize].parts.store(1, Ordering::Relaxed);
        self.offset_of(number)
    }

    /// Puts a slot back, or hands it over if someone waits.
    #[inline]
    fn free(&self, number: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head & WAITED != 0 {
                if self.hand_over(number) {
                    return;
                }
                head = self.head.load(Ordering::Relaxed);
                continue;
            }
            self.slots[number as usize].next.store(head as u32, Ordering::Relaxed);
            let freed = changed(head, number);
            let exchanged =
                self.head.compare_exchange_weak(head, freed, Ordering::Release, Ordering::Relaxed);
            match exchanged {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Gives a slot to the one that waits longest. False if nobody waits any more: then the mark is gone, too.
    #[cold]
    fn hand_over(&self, number: u32) -> bool {
        let mut waiters = self.waiters.lock();
        let Some((ticket, waker)) = waiters.waiting.pop_first() else { return false };
        self.occupy(number);
        waiters.granted.insert(ticket, number);
        if waiters.waiting.is_empty() {
            self.head.fetch_and(!WAITED, Ordering::Relaxed);
        }
        drop(waiters);
        waker.wake();
        true
    }

    /// Marks the empty list, so that no slot is put into it. False if it is not empty. The caller holds the lock of the
    /// waiters, and adds one.
    fn announce_waiter(&self) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        while head as u32 == NONE {
            let exchanged = self.head.compare_exchange_weak(
                head,
                head | WAITED,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match exchanged {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
        false
    }
}

/// The head after a change to the list that keeps the mark.
#[inline]
fn changed(head: u64, first: u32) -> u64 {
    ((head & !u64::from(u32::MAX)) | u64::from(first)).wrapping_add(CHANGE)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use super::*;

    async fn allocate(slots: &Slots) -> usize {
        let mut ticket = None;
        poll_fn(|context| slots.poll_allocate(&mut ticket, context)).await
    }

    fn slots(count: u32) -> Arc<Slots> {
        Arc::new(Slots::new(1, 1, count))
    }

    /// Two threads and the model's own take one slot in turn. If a slot or a wake were lost, one would wait for ever. Three
    /// threads that wait have so many orders that a search with more preemptions takes hours.
    #[test]
    fn loom_a_freed_slot_reaches_every_waiter() {
        const MAX_PREEMPTIONS: usize = 4;
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.map(|bound| bound.min(MAX_PREEMPTIONS));
        model.check(|| {
            let slots = slots(1);
            let take_turn = |slots: &Slots| {
                let offset = loom::future::block_on(allocate(slots));
                assert_eq!(slots.slots[offset].parts.load(Ordering::Relaxed), 1);
                slots.drop_part(offset);
            };
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let slots = slots.clone();
                    loom::thread::spawn(move || take_turn(&slots))
                })
                .collect();
            take_turn(&slots);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!((slots.available(), slots.allocate()), (1, Some(0)));
            assert_eq!(slots.head.load(Ordering::Relaxed) & WAITED, 0);
        });
    }

    #[test]
    fn loom_a_slot_that_is_given_up_goes_to_the_next() {
        loom::model(|| {
            let slots = slots(1);
            let held = slots.allocate().unwrap();
            let freer_slots = slots.clone();
            let freer = loom::thread::spawn(move || freer_slots.drop_part(held));
            let waiter_slots = slots.clone();
            let waiter = loom::thread::spawn(move || {
                let offset = loom::future::block_on(allocate(&waiter_slots));
                waiter_slots.drop_part(offset);
            });
            let mut ticket = None;
            let polled = slots.poll_allocate(&mut ticket, &mut Context::from_waker(Waker::noop()));
            match (polled, ticket) {
                (Poll::Ready(offset), None) => slots.drop_part(offset),
                (Poll::Pending, Some(ticket)) => slots.give_up(ticket),
                other => panic!("{other:?}"),
            }
            freer.join().unwrap();
            waiter.join().unwrap();
            assert_eq!(slots.available(), 1);
        });
    }

    /// One thread takes a slot while the other takes both and frees the first: no slot has two owners, none is lost.
    #[test]
    fn loom_a_slot_has_one_owner() {
        loom::model(|| {
            let slots = slots(2);
            let thread_slots = slots.clone();
            let thread = loom::thread::spawn(move || {
                let (first, second) = (thread_slots.allocate(), thread_slots.allocate());
                first.inspect(|first| thread_slots.drop_part(*first));
                second
            });
            let mut owned: Vec<_> = slots.allocate().into_iter().collect();
            owned.extend(thread.join().unwrap());
            owned.extend(std::iter::from_fn(|| slots.allocate()));
            owned.sort_unstable();
            assert_eq!(owned, [0, 1]);
        });
    }
}
