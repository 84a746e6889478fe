//! Who may write where. Overwriters of whole blocks take no lock while nobody
//! excludes them: they load one word. Who writes part of a block excludes them,
//! waits until what was issued before has finished, and then all writers take
//! range locks until the last excluder is done.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use uringfs_device::DeviceIndex;
use uringfs_reactor::{Epoch, Mode, SubmissionLock, quiescence};

/// Who may write where: one for all [`File`](crate::File)s of the same bytes.
#[derive(Debug, Default)]
pub struct WriteLock {
    mode: Mode,
    ranges: Arc<Mutex<Ranges>>,
    submission: SubmissionLock,
}

#[derive(Debug, Default)]
struct Ranges {
    held: Vec<(u64, Range<u64>)>,
    waiting: VecDeque<(u64, Range<u64>, Option<Waker>)>,
    next: u64,
}

impl WriteLock {
    /// True when overwriters of whole blocks need no lock. The caller has
    /// counted itself in, behind a full fence, before it asks.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.mode.is_shared()
    }

    /// Ends the shared mode until the guard is dropped. Overwrites that did not
    /// see it have finished when the epoch has passed.
    pub(crate) fn exclude(self: &Arc<Self>, device: DeviceIndex) -> (Exclusion, Epoch) {
        let epoch = self.mode.exclude(quiescence(device));
        (Exclusion { lock: self.clone() }, epoch)
    }

    /// What writers take with `direct.write_lock=exclusive`.
    pub(crate) fn submission(&self) -> &SubmissionLock {
        &self.submission
    }

    /// Waits for a range of bytes, first come, first served.
    pub(crate) fn range(&self, range: Range<u64>) -> RangeFuture {
        RangeFuture { ranges: self.ranges.clone(), range, id: None }
    }
}

/// Ends the exclusion of overwriters when dropped.
pub(crate) struct Exclusion {
    lock: Arc<WriteLock>,
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        self.lock.mode.include();
    }
}

/// Waits for a range lock.
pub(crate) struct RangeFuture {
    ranges: Arc<Mutex<Ranges>>,
    range: Range<u64>,
    id: Option<u64>,
}

/// A range lock; dropped, it lets the next in.
pub(crate) struct RangeGuard {
    ranges: Arc<Mutex<Ranges>>,
    id: u64,
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    other.start < one.end && one.start < other.end
}

impl Ranges {
    /// True when nobody who came before `id` holds or wants any of `range`.
    fn is_free(&self, id: u64, range: &Range<u64>) -> bool {
        // Those who wait stand in the order in which they came.
        let mut before = self.waiting.iter().take_while(|(before, _, _)| *before < id);
        !self.held.iter().any(|(_, other)| meet(other, range))
            && !before.any(|(_, other, _)| meet(other, range))
    }

    /// Wakes everyone who may go on now that nobody holds or wants `range` who did; each looks again
    /// himself.
    fn wake_free(&mut self, range: &Range<u64>) {
        let free: Vec<usize> = (0..self.waiting.len())
            .filter(|place| {
                let (id, other, _) = &self.waiting[*place];
                meet(other, range) && self.is_free(*id, other)
            })
            .collect();
        for place in free {
            if let Some(waker) = self.waiting[place].2.take() {
                waker.wake();
            }
        }
    }
}

impl Future for RangeFuture {
    type Output = RangeGuard;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RangeGuard> {
        let this = &mut *self;
        let mut ranges = this.ranges.lock();
        let id = *this.id.get_or_insert_with(|| {
            ranges.next += 1;
            let id = ranges.next;
            ranges.waiting.push_back((id, this.range.clone(), None));
            id
        });
        if ranges.is_free(id, &this.range) {
            ranges.waiting.retain(|(other, _, _)| *other != id);
            ranges.held.push((id, this.range.clone()));
            this.id = None;
            return Poll::Ready(RangeGuard { ranges: this.ranges.clone(), id });
        }
        if let Some(entry) = ranges.waiting.iter_mut().find(|(other, _, _)| *other == id) {
            entry.2 = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for RangeFuture {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut ranges = self.ranges.lock();
            ranges.waiting.retain(|(other, _, _)| *other != id);
            ranges.wake_free(&self.range);
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut ranges = self.ranges.lock();
        let held = ranges.held.iter().position(|(id, _)| *id == self.id);
        let (_, range) = ranges.held.swap_remove(held.expect("it is held until now"));
        ranges.wake_free(&range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn ranges_that_do_not_meet_are_held_together() {
        let lock = WriteLock::default();
        let (mut one, mut two) = (pin!(lock.range(0..4096)), pin!(lock.range(4096..8192)));
        let Poll::Ready(_one) = poll(one.as_mut()) else { panic!("free") };
        let Poll::Ready(_two) = poll(two.as_mut()) else { panic!("does not meet the first") };
    }

    #[test]
    fn first_come_first_served() {
        let lock = WriteLock::default();
        let (mut one, mut wide, mut late) =
            (pin!(lock.range(0..10)), pin!(lock.range(0..100)), pin!(lock.range(50..60)));
        let Poll::Ready(held) = poll(one.as_mut()) else { panic!("free") };
        assert!(poll(wide.as_mut()).is_pending());
        assert!(poll(late.as_mut()).is_pending(), "it came after the wide one");
        drop(held);
        assert!(poll(late.as_mut()).is_pending(), "still after the wide one");
        let Poll::Ready(held) = poll(wide.as_mut()) else { panic!("its turn") };
        drop(held);
        assert!(poll(late.as_mut()).is_ready());
    }

    #[test]
    fn a_waiter_that_gives_up_is_out_of_the_way() {
        let lock = WriteLock::default();
        let mut one = pin!(lock.range(0..10));
        let Poll::Ready(_held) = poll(one.as_mut()) else { panic!("free") };
        let mut wide = Box::pin(lock.range(0..100));
        assert!(poll(wide.as_mut()).is_pending());
        let mut late = pin!(lock.range(50..60));
        assert!(poll(late.as_mut()).is_pending());
        drop(wide);
        assert!(poll(late.as_mut()).is_ready());
    }
}
