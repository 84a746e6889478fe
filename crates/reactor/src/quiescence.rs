//! Knowing when everything that was in flight at some moment has finished,
//! without counting requests in or out on a shared line.
//!
//! A [`Domain`] has an epoch, which moves when something is retired. Each
//! reactor publishes, on a line of its own, the epoch of the oldest request it
//! has in flight, or that it has none. What was retired at an epoch may be
//! reused when every reactor has published a later one: see [`Domain::passed`].
//!
//! A reactor publishes first, passes a full fence, and reads the map after; whoever
//! retires changes the map first, passes a full fence, and reads what is
//! published after. So a request that is not seen has seen the change.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Mutex, Ordering, fence};

/// Published by a reactor with nothing in flight.
const IDLE: u64 = u64::MAX;

/// The largest number of epochs a reactor tells apart; requests beyond are
/// counted to the newest, which only makes others wait longer.
const MAX_EPOCHS: usize = 200;

/// A moment: what was retired then waits for what was in flight then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

/// Reactors that wait for each other's requests.
pub struct Domain {
    epoch: CachePadded<AtomicU64>,
    members: Mutex<Vec<Arc<Member>>>,
}

/// One reactor's published line.
pub struct Member {
    oldest: CachePadded<AtomicU64>,
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
        Domain { epoch: CachePadded::new(AtomicU64::new(0)), members: Mutex::new(Vec::new()) }
    }

    /// Marks the moment. What the caller took out of the maps before this call
    /// is out of use once [`Self::passed`] says so of the answer.
    pub fn retire(&self) -> Epoch {
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Epoch(epoch)
    }

    /// True when every request issued before `epoch` was retired has finished.
    pub fn passed(&self, epoch: Epoch) -> bool {
        fence(Ordering::SeqCst);
        self.members.lock().iter().all(|member| member.oldest.load(Ordering::Acquire) > epoch.0)
    }

    /// The reactors that `epoch` still waits for, by name.
    pub fn holders(&self, epoch: Epoch) -> Vec<String> {
        self.members
            .lock()
            .iter()
            .filter(|member| member.oldest.load(Ordering::Acquire) <= epoch.0)
            .map(|member| member.name.clone())
            .collect()
    }

    pub(crate) fn join(&self, name: String) -> Arc<Member> {
        let member = Arc::new(Member { oldest: CachePadded::new(AtomicU64::new(IDLE)), name });
        self.members.lock().push(member.clone());
        member
    }

    pub(crate) fn leave(&self, member: &Arc<Member>) {
        self.members.lock().retain(|other| !Arc::ptr_eq(other, member));
    }
}

/// Requests issued in one epoch.
struct Issued {
    epoch: u64,
    in_flight: u32,
}

/// One reactor's requests in flight, by the epoch they were issued in.
pub(crate) struct Tracker {
    member: Arc<Member>,
    /// Oldest first; the first is never empty.
    issued: VecDeque<Issued>,
    /// The mark of the first entry; marks count on, modulo 256.
    first_mark: u8,
}

impl Tracker {
    pub(crate) fn new(member: Arc<Member>) -> Tracker {
        Tracker { member, issued: VecDeque::with_capacity(8), first_mark: 0 }
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Counts a request in, before its map is read. The mark goes with it.
    #[inline]
    pub(crate) fn begin(&mut self, domain: &Domain) -> u8 {
        if let Some(newest) = self.issued.back_mut() {
            let epoch = domain.epoch.load(Ordering::Acquire);
            if newest.epoch == epoch {
                newest.in_flight += 1;
                return self.first_mark.wrapping_add(self.issued.len() as u8 - 1);
            }
        }
        self.begin_epoch(domain)
    }

    #[inline(never)]
    fn begin_epoch(&mut self, domain: &Domain) -> u8 {
        let epoch = domain.epoch.load(Ordering::Acquire);
        if self.issued.is_empty() {
            self.member.oldest.store(epoch, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        if self.issued.len() < MAX_EPOCHS {
            self.issued.push_back(Issued { epoch, in_flight: 0 });
        }
        let newest = self.issued.back_mut().expect("one is there or was just pushed");
        newest.in_flight += 1;
        self.first_mark.wrapping_add(self.issued.len() as u8 - 1)
    }

    /// Counts the request with this mark out.
    #[inline]
    pub(crate) fn end(&mut self, mark: u8) {
        let place = mark.wrapping_sub(self.first_mark) as usize;
        let issued = &mut self.issued[place];
        issued.in_flight -= 1;
        if issued.in_flight == 0 && place == 0 {
            self.advance();
        }
    }

    fn advance(&mut self) {
        while self.issued.front().is_some_and(|oldest| oldest.in_flight == 0) {
            self.issued.pop_front();
            self.first_mark = self.first_mark.wrapping_add(1);
        }
        let oldest = self.issued.front().map_or(IDLE, |oldest| oldest.epoch);
        self.member.oldest.store(oldest, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_flight_holds_back_and_what_came_later_does_not() {
        let domain = Domain::new();
        let mut tracker = Tracker::new(domain.join("one".into()));
        let old = tracker.begin(&domain);
        let epoch = domain.retire();
        let new = tracker.begin(&domain);
        assert!(!domain.passed(epoch));
        assert_eq!(domain.holders(epoch), ["one"]);
        tracker.end(old);
        assert!(domain.passed(epoch));
        tracker.end(new);
        assert!(domain.passed(domain.retire()));
    }

    #[test]
    fn an_idle_reactor_holds_nothing_back() {
        let domain = Domain::new();
        let mut tracker = Tracker::new(domain.join("idle".into()));
        for _ in 0..1000 {
            let mark = tracker.begin(&domain);
            domain.retire();
            tracker.end(mark);
        }
        assert!(domain.passed(domain.retire()));
    }

    #[test]
    fn more_epochs_than_marks_only_wait_longer() {
        let domain = Domain::new();
        let mut tracker = Tracker::new(domain.join("slow".into()));
        let mut marks = Vec::new();
        for _ in 0..1000 {
            marks.push(tracker.begin(&domain));
            domain.retire();
        }
        let epoch = domain.retire();
        for mark in marks {
            assert!(!domain.passed(epoch));
            tracker.end(mark);
        }
        assert!(domain.passed(epoch));
    }

    #[test]
    fn a_reactor_that_left_holds_nothing_back() {
        let domain = Domain::new();
        let mut tracker = Tracker::new(domain.join("gone".into()));
        tracker.begin(&domain);
        let epoch = domain.retire();
        assert!(!domain.passed(epoch));
        domain.leave(tracker.member());
        assert!(domain.passed(epoch));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// A block is in the map, then freed, and used again when its epoch has
    /// passed. A reader that found it in the map never sees its reuse.
    #[test]
    fn loom_a_block_is_not_reused_under_a_reader() {
        loom::model(|| {
            let domain = loom::sync::Arc::new(Domain::new());
            let mapped = loom::sync::Arc::new(AtomicU64::new(1));
            let content = loom::sync::Arc::new(AtomicU64::new(7));
            let reader = {
                let (domain, mapped, content) = (domain.clone(), mapped.clone(), content.clone());
                let mut tracker = Tracker::new(domain.join("reader".into()));
                loom::thread::spawn(move || {
                    for _ in 0..2 {
                        let mark = tracker.begin(&domain);
                        if mapped.load(Ordering::Acquire) == 1 {
                            assert_eq!(content.load(Ordering::Relaxed), 7, "read after reuse");
                        }
                        tracker.end(mark);
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
}
