//! Epochs tell when all requests that were in flight at some time have ended, without a shared counter of
//! requests. Like an RCU grace period.
//!
//! A [`Domain`] has an epoch, which advances when something is retired. Each reactor publishes, on a cache line
//! of its own, the epoch of its oldest request in flight, or that it has none. Memory or blocks retired at an
//! epoch may be reused when every reactor has published a later one: see [`Domain::passed`]. A thread that makes one
//! request without a reactor does the same: see [`Domain::enter_call`].
//!
//! A reactor first publishes, passes a fence, and then reads the map. A caller that retires something
//! changes the map first, passes a fence, and then reads what reactors published. So a request that the
//! caller does not see has seen the change. A reactor publishes for each request that it issues alone, a caller retires
//! with a commit or a truncate: so the caller's fence is the one that costs something (see `barrier`).
//!
//! An idle reactor holds nothing back; a busy one holds back what was retired since its oldest request. No
//! other thread can end that for a reactor whose event loop does not run: with `DEFER_TASKRUN` a completion is
//! posted only when its thread enters the kernel, and until then the kernel may still move bytes. So waits are
//! bounded and holds are not: an exclusion fails with EBUSY after 30 s and a warning that names the reactor, an
//! allocation with ENOSPC after a second.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicU64, Ordering};

use crate::sync::barrier;
use crate::sync::callers::{CallerGuard, Callers, IDLE};
use crate::sync::thread_number::number_of_thread;

/// The maximum of epochs that a reactor distinguishes. Requests beyond count into the newest, which only makes others
/// wait longer.
const MAX_EPOCHS: u8 = 200;

/// A point in time. Memory or blocks that were retired then wait for the requests that were in flight then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

/// The reactors that use one device, and the threads that call it. From their epochs a caller sees when all requests issued
/// before a moment have ended.
pub struct Domain {
    epoch: CachePadded<AtomicU64>,
    members: Mutex<Vec<Arc<Member>>>,
    callers: Callers,
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Domain").finish_non_exhaustive()
    }
}

/// The cache line that one reactor publishes.
pub struct Member {
    oldest: CachePadded<AtomicU64>,
    /// Operations that have not ended and whose requesters want their results. Only its reactor changes it.
    operations: AtomicU64,
    name: String,
}

impl Default for Domain {
    fn default() -> Domain {
        Domain::new()
    }
}

impl Domain {
    /// A domain without reactors.
    pub fn new() -> Domain {
        let epoch = CachePadded::new(AtomicU64::new(0));
        Domain { epoch, members: Mutex::new(Vec::new()), callers: Callers::new() }
    }

    /// Starts a new epoch and returns the old one. Memory or blocks that the caller removed from the maps before this
    /// call are unused when [`Self::passed`] returns true for the returned epoch.
    pub fn retire(&self) -> Epoch {
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst);
        barrier::heavy();
        Epoch(epoch)
    }

    /// True when every request issued before `epoch` was retired has ended.
    pub fn passed(&self, epoch: Epoch) -> bool {
        epoch < self.earliest()
    }

    /// The earliest epoch with a request in flight: all epochs before it have [passed](Self::passed).
    pub fn earliest(&self) -> Epoch {
        let members = self.members.lock();
        let of_reactors = members.iter().map(|member| member.oldest.load(Ordering::Acquire)).min();
        Epoch(of_reactors.unwrap_or(IDLE).min(self.callers.earliest()))
    }

    /// The holders that `epoch` still waits for: reactors, by the names of their threads, and threads that call the
    /// device themselves.
    pub fn holders(&self, epoch: Epoch) -> Vec<String> {
        let mut holders: Vec<_> = self
            .members
            .lock()
            .iter()
            .filter(|member| member.oldest.load(Ordering::Acquire) <= epoch.0)
            .map(|member| format!("the reactor of thread {}", member.name))
            .collect();
        if self.callers.earliest() <= epoch.0 {
            holders.push("a thread that waits for its call".into());
        }
        holders
    }

    /// Puts one request in the epoch that this thread makes itself, before its map is read. `None` if too many threads do
    /// that.
    #[inline]
    pub fn enter_call(&self) -> Option<CallerGuard<'_>> {
        self.callers.enter(number_of_thread(), self.epoch.load(Ordering::Acquire))
    }

    /// Requests that threads have made themselves, and that moved all their bytes.
    pub(crate) fn calls(&self) -> u64 {
        self.callers.calls()
    }

    /// The number of operations in flight of all reactors.
    pub fn operations(&self) -> u64 {
        let members = self.members.lock();
        members.iter().map(|member| member.operations.load(Ordering::Relaxed)).sum()
    }

    fn register(&self, name: String) -> Arc<Member> {
        let oldest = CachePadded::new(AtomicU64::new(IDLE));
        let member = Arc::new(Member { oldest, operations: AtomicU64::new(0), name });
        self.members.lock().push(member.clone());
        member
    }

    fn unregister(&self, member: &Arc<Member>) {
        self.members.lock().retain(|other| !Arc::ptr_eq(other, member));
    }
}

/// One reactor's requests in flight, by the epoch in which they were issued.
///
/// Epochs with requests in flight have slots, `first` to `newest`, modulo 256.
/// Counting in and counting out is one addition each. [`Self::publish_ended`], once a
/// batch, checks whether the oldest epoch has ended, and publishes the next one.
pub(crate) struct Tracker<D: Deref<Target = Domain>> {
    domain: D,
    member: Arc<Member>,
    in_flight: Box<[u32; 256]>,
    epochs: Box<[u64; 256]>,
    first: u8,
    newest: u8,
    /// The newest epoch, or [`IDLE`] when nothing is in flight and that is published.
    current: u64,
    keeps_published: bool,
}

impl<D: Deref<Target = Domain>> Tracker<D> {
    pub(crate) fn new(domain: D, name: String) -> Tracker<D> {
        barrier::prepare();
        let (in_flight, epochs) = (Box::new([0; 256]), Box::new([IDLE; 256]));
        let member = domain.register(name);
        let (first, newest, current) = (0, 0, IDLE);
        Tracker {
            domain,
            member,
            in_flight,
            epochs,
            first,
            newest,
            current,
            keeps_published: false,
        }
    }

    /// True while a request is in the epoch, or was since the last [`Self::publish_ended`].
    pub(crate) fn is_active(&self) -> bool {
        self.current != IDLE
    }

    /// The number of this reactor's operations in flight.
    pub(crate) fn operations(&self) -> u64 {
        self.member.operations.load(Ordering::Relaxed)
    }

    /// Counts an operation in.
    #[inline(always)]
    pub(crate) fn begin_operation(&self) {
        self.member.operations.store(self.operations() + 1, Ordering::Relaxed);
    }

    /// Counts an operation out.
    #[inline(always)]
    pub(crate) fn end_operation(&self) {
        self.member.operations.store(self.operations() - 1, Ordering::Relaxed);
    }

    /// Puts a request in the epoch, before its map is read. The request carries the returned slot.
    #[inline(always)]
    pub(crate) fn enter(&mut self) -> u16 {
        self.enter_many(1)
    }

    /// The same for several requests, before the map is read for the first of them.
    #[inline(always)]
    pub(crate) fn enter_many(&mut self, requests: u32) -> u16 {
        let epoch = self.domain.epoch.load(Ordering::Acquire);
        if epoch != self.current {
            self.enter_epoch(epoch);
        }
        let slot = self.newest;
        self.in_flight[slot as usize] += requests;
        slot.into()
    }

    /// Puts the next request in `epoch`, which is not the current one. Nothing in flight is the case of each request
    /// at depth 1.
    #[inline(always)]
    fn enter_epoch(&mut self, epoch: u64) {
        if self.current == IDLE {
            // The one slot that there is, since `first` is `newest` now.
            self.current = epoch;
            self.epochs[self.newest as usize] = epoch;
            // Release: a thread that reads this later epoch also sees that all earlier requests have ended.
            self.member.oldest.store(epoch, Ordering::Release);
            barrier::light();
        } else {
            self.open_slot(epoch);
        }
    }

    #[inline(never)]
    fn open_slot(&mut self, epoch: u64) {
        if self.newest.wrapping_sub(self.first) < MAX_EPOCHS {
            self.current = epoch;
            self.newest = self.newest.wrapping_add(1);
            self.epochs[self.newest as usize] = epoch;
        }
    }

    /// Counts requests with this slot out of their epoch. True when the last of the epoch is among them, so that
    /// [`Self::publish_ended`] has something to do.
    #[inline(always)]
    pub(crate) fn leave(&mut self, slot: u16, requests: u32) -> bool {
        let count = &mut self.in_flight[slot as u8 as usize];
        *count -= requests;
        *count == 0
    }

    /// The requests in flight never end: dropping the tracker leaves their epoch published.
    #[cold]
    pub(crate) fn keep_published(&mut self) {
        self.keeps_published = true;
    }

    /// Publishes the next epoch in flight when the requests of the oldest have all ended.
    #[inline(always)]
    pub(crate) fn publish_ended(&mut self) {
        if self.current == IDLE || self.in_flight[self.first as usize] != 0 {
            return;
        }
        if self.first == self.newest {
            self.current = IDLE;
            self.member.oldest.store(IDLE, Ordering::Release);
        } else {
            self.publish_oldest();
        }
    }

    #[inline(never)]
    fn publish_oldest(&mut self) {
        while self.in_flight[self.first as usize] == 0 {
            if self.first == self.newest {
                self.current = IDLE;
                return self.member.oldest.store(IDLE, Ordering::Release);
            }
            self.first = self.first.wrapping_add(1);
        }
        self.member.oldest.store(self.epochs[self.first as usize], Ordering::Release);
    }
}

impl<D: Deref<Target = Domain>> Drop for Tracker<D> {
    fn drop(&mut self) {
        if !self.keeps_published {
            self.domain.unregister(&self.member);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_waits_for_earlier_requests_and_not_for_later_ones() {
        let domain = Domain::new();
        let mut tracker = Tracker::new(&domain, "one".into());
        let old = tracker.enter();
        let epoch = domain.retire();
        let new = tracker.enter();
        assert!(!domain.passed(epoch));
        assert_eq!(domain.holders(epoch), ["the reactor of thread one"]);
        tracker.leave(old, 1);
        tracker.publish_ended();
        assert!(domain.passed(epoch));
        tracker.leave(new, 1);
        tracker.publish_ended();
        assert!(domain.passed(domain.retire()));
    }

    #[test]
    fn an_idle_reactor_holds_nothing_back() {
        let domain = Domain::new();
        let mut tracker = Tracker::new(&domain, "idle".into());
        for _ in 0..1000 {
            let slot = tracker.enter();
            domain.retire();
            tracker.leave(slot, 1);
            tracker.publish_ended();
        }
        assert!(domain.passed(domain.retire()));
    }

    #[test]
    fn more_epochs_than_slots_only_make_others_wait_longer() {
        let domain = Domain::new();
        let mut tracker = Tracker::new(&domain, "slow".into());
        let mut slots = Vec::new();
        for _ in 0..1000 {
            slots.push(tracker.enter());
            domain.retire();
        }
        let epoch = domain.retire();
        for slot in slots {
            assert!(!domain.passed(epoch));
            tracker.leave(slot, 1);
            tracker.publish_ended();
        }
        assert!(domain.passed(epoch));
    }

    #[test]
    fn an_epoch_waits_for_the_calls_of_threads() {
        let domain = Domain::new();
        let call = domain.enter_call().unwrap();
        let epoch = domain.retire();
        assert!(!domain.passed(epoch));
        assert_eq!(domain.holders(epoch), ["a thread that waits for its call"]);
        let later = domain.enter_call().unwrap();
        call.count();
        drop(call);
        assert!(domain.passed(epoch));
        assert!(domain.holders(epoch).is_empty());
        drop(later);
        assert_eq!(domain.calls(), 1);
    }

    #[test]
    fn a_thread_whose_slots_are_taken_makes_no_call() {
        let domain = Domain::new();
        let calls: Vec<_> = std::iter::from_fn(|| domain.enter_call()).collect();
        assert!(!calls.is_empty());
        drop(calls);
        assert!(domain.enter_call().is_some());
    }

    #[test]
    fn a_dropped_reactor_holds_nothing_back() {
        let domain = Domain::new();
        let mut tracker = Tracker::new(&domain, "gone".into());
        tracker.enter();
        let epoch = domain.retire();
        assert!(!domain.passed(epoch));
        drop(tracker);
        assert!(domain.passed(epoch));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// A block is in the map, then freed, and reused when its epoch has passed. A reader that found it in the map never
    /// sees the reuse.
    #[test]
    fn loom_a_block_is_not_reused_under_a_reader() {
        loom::model(|| {
            let domain = loom::sync::Arc::new(Domain::new());
            let mapped = loom::sync::Arc::new(AtomicU64::new(1));
            let content = loom::sync::Arc::new(AtomicU64::new(7));
            let reader = {
                let (mapped, content) = (mapped.clone(), content.clone());
                let mut tracker = Tracker::new(domain.clone(), "reader".into());
                loom::thread::spawn(move || {
                    for _ in 0..2 {
                        let slot = tracker.enter();
                        if mapped.load(Ordering::Acquire) == 1 {
                            assert_eq!(content.load(Ordering::Relaxed), 7, "read after reuse");
                        }
                        tracker.leave(slot, 1);
                        tracker.publish_ended();
                        tracker.publish_ended();
                    }
                })
            };
            mapped.store(0, Ordering::Release);
            let epoch = domain.retire();
            if domain.passed(epoch) {
                content.store(8, Ordering::Relaxed);
            }
            reader.join().unwrap();
            assert!(domain.passed(epoch), "an idle reader holds nothing back");
        });
    }

    /// The same with a reader that calls the device itself.
    #[test]
    fn loom_a_block_is_not_reused_under_a_call() {
        loom::model(|| {
            let domain = loom::sync::Arc::new(Domain::new());
            let mapped = loom::sync::Arc::new(AtomicU64::new(1));
            let content = loom::sync::Arc::new(AtomicU64::new(7));
            let reader = {
                let (domain, mapped, content) = (domain.clone(), mapped.clone(), content.clone());
                loom::thread::spawn(move || {
                    for _ in 0..2 {
                        let call = domain.enter_call().expect("the slot is free");
                        if mapped.load(Ordering::Acquire) == 1 {
                            assert_eq!(content.load(Ordering::Relaxed), 7, "read after reuse");
                        }
                        drop(call);
                    }
                })
            };
            mapped.store(0, Ordering::Release);
            let epoch = domain.retire();
            if domain.passed(epoch) {
                content.store(8, Ordering::Relaxed);
            }
            reader.join().unwrap();
            assert!(domain.passed(epoch), "a call that has ended holds nothing back");
        });
    }
}
