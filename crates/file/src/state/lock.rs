//! Who may write where. Overwriters of whole blocks take no lock while nobody
//! excludes them: they load one word. Who writes part of a block excludes them,
//! waits until what was issued before has finished, and then all writers take
//! range locks. It stays so for those who do it again, until some overwriters in
//! a row have found nobody who excludes them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::DeviceIndex;
use uringfs_reactor::{Epoch, Mode, SubmissionLock, quiescence};

use crate::map::mapping::Generation;
use crate::state::append_queue::Appends;
use crate::state::dirty::Unsaved;
use crate::state::file_cache::{Cached, bytes_of, folios_of};

/// Overwriters in a row that take a range lock before they need none again.
const OVERWRITERS: u32 = 8;

/// Who may write where: one for all [`File`](crate::File)s of the same bytes.
#[derive(Debug, Default)]
pub struct WriteLock {
    mode: Mode,
    ranges: Mutex<Ranges>,
    appends: Appends,
    submission: SubmissionLock,
    cached: OnceLock<Cached>,
    unsaved: Unsaved,
}

#[derive(Debug, Default)]
struct Ranges {
    held: Vec<Wanted>,
    /// In the order in which they came.
    waiting: VecDeque<Waiting>,
    next: u64,
    /// Overwriters since somebody excluded them.
    overwriters: u32,
    /// Not while overwriters need no lock, and of nothing that anybody has written since.
    tail: Option<Tail>,
}

/// A range that somebody holds or waits for.
#[derive(Clone, Debug)]
struct Wanted {
    id: u64,
    range: Range<u64>,
    who: Writer,
}

#[derive(Debug)]
struct Waiting {
    wanted: Wanted,
    /// How many are in its way. Counted when they come and go, so that nobody is compared with everybody else.
    blockers: usize,
    waker: Option<Waker>,
}

/// A block of the file as it was written last, of which only a part was: whoever writes the next part need not
/// read it.
#[derive(Debug)]
pub(crate) struct Tail {
    /// Where in the file.
    pub(crate) start: u64,
    pub(crate) begun: Generation,
    pub(crate) bytes: Buffer,
}

impl Tail {
    /// Its bytes of the file.
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes.len() as u64
    }
}

/// Who wants a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// Writes whole blocks in place, or new ones, and would have needed no lock.
    Beside,
    /// Writes through the page cache: what is saved meanwhile is not in its way.
    Buffered,
    /// Saves what was written through the page cache. It waits for those only who have what it wants: some of them
    /// may wait for it.
    Saver,
    /// Anybody else.
    Other,
}

impl Writer {
    fn goes_with(self, other: Writer) -> bool {
        matches!(
            (self, other),
            (Writer::Buffered, Writer::Saver) | (Writer::Saver, Writer::Buffered)
        )
    }
}

impl WriteLock {
    /// True when overwriters of whole blocks need no lock. The caller has
    /// counted itself in, behind a full fence, before it asks.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.mode.is_shared()
    }

    /// Ends the shared mode until the guard is dropped, at least. Overwrites that
    /// did not see it have finished when the epoch has passed: then comes
    /// [`Exclusion::settle`]. Without one they have.
    pub(crate) fn exclude(self: &Arc<Self>, device: DeviceIndex) -> (Exclusion, Option<Epoch>) {
        let epoch = self.mode.exclude(quiescence(device));
        (Exclusion { lock: self.clone() }, epoch)
    }

    /// What writers take with `direct.write_lock=exclusive`.
    pub(crate) fn submission(&self) -> &SubmissionLock {
        &self.submission
    }

    /// What the page cache has of the file: of this cache, unless it is in another one already.
    pub(crate) fn cached(&self, cache: &Cache, device: DeviceIndex) -> &Cached {
        self.cached.get_or_init(|| Cached::new(cache, device))
    }

    /// The same, if it is in one.
    pub(crate) fn in_cache(&self) -> Option<&Cached> {
        self.cached.get()
    }

    /// What was written through it and is not on the device.
    #[inline(always)]
    pub(crate) fn unsaved(&self) -> &Unsaved {
        &self.unsaved
    }

    /// How long the file is: as its map says, or as was written through a page cache since it was emptied so often.
    #[inline]
    pub fn size(&self, generation: impl Fn() -> Generation, size: impl Fn() -> u64) -> u64 {
        // What is saved meanwhile is in the one, then in the other.
        let unsaved = self.unsaved.end();
        let size = size();
        match self.cached.get() {
            Some(cached) if unsaved > size && cached.is_current(generation()) => unsaved,
            _ => size,
        }
    }

    /// Whether something was written to the file through a page cache and is not on its device.
    pub fn has_unsaved(&self) -> bool {
        self.unsaved.is_any()
    }

    /// Ends the shared mode for good. The caller waits as after [`Self::exclude`], and settles then.
    pub(crate) fn mix(&self, device: DeviceIndex) -> Option<Epoch> {
        self.mode.exclude(quiescence(device))
    }

    /// The epoch of [`Self::mix`] has passed.
    pub(crate) fn settle(&self) {
        self.mode.settle();
    }

    /// Who appends.
    pub(crate) fn appends(&self) -> &Appends {
        &self.appends
    }

    /// Waits for a range of bytes, first come, first served; of a file in the page cache for whole folios.
    pub(crate) fn range(self: &Arc<Self>, range: Range<u64>, who: Writer) -> RangeFuture {
        let range = match self.cached.get() {
            Some(_) => bytes_of(&folios_of(&range)),
            None => range,
        };
        RangeFuture { lock: self.clone(), range, who, id: None }
    }
}

/// Ends the exclusion of overwriters when dropped.
pub(crate) struct Exclusion {
    lock: Arc<WriteLock>,
}

impl Exclusion {
    /// The epoch has passed: the next one who excludes has nobody to wait for.
    pub(crate) fn settle(&self) {
        self.lock.mode.settle();
    }
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        self.lock.mode.include();
    }
}

/// Waits for a range lock.
pub(crate) struct RangeFuture {
    lock: Arc<WriteLock>,
    range: Range<u64>,
    who: Writer,
    id: Option<u64>,
}

/// A range lock; dropped, it lets the next in.
pub(crate) struct RangeGuard {
    lock: Arc<WriteLock>,
    id: u64,
    /// What lay in the range, all of it or a part.
    found: Option<Tail>,
    /// What is left for the next.
    left: Option<Tail>,
}

impl RangeGuard {
    /// Takes what the page cache has of these bytes out of it.
    pub(crate) fn invalidate(&self, range: Range<u64>) {
        if let Some(cached) = self.lock.cached.get() {
            cached.invalidate(range);
        }
    }

    /// The block that was written last, if some of it lies in the range and nobody has written it since.
    pub(crate) fn take_tail(&mut self) -> Option<Tail> {
        self.found.take()
    }

    /// Leaves a block of the range for the next. Whoever does excludes overwriters until after.
    pub(crate) fn leave_tail(&mut self, tail: Tail) {
        self.left = Some(tail);
    }
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    other.start < one.end && one.start < other.end
}

impl Wanted {
    /// Whether the two cannot be held at once.
    fn is_in_the_way(&self, other: &Wanted) -> bool {
        meet(&self.range, &other.range) && !self.who.goes_with(other.who)
    }

    /// Whether it waits for another as long as that only waits: if that came before. Who saves does not.
    fn waits_behind(&self, other: &Wanted) -> bool {
        self.who != Writer::Saver && other.id < self.id
    }
}

impl Ranges {
    /// Somebody comes.
    fn join(&mut self, range: Range<u64>, who: Writer) -> u64 {
        self.next += 1;
        let wanted = Wanted { id: self.next, range, who };
        let held = self.held.iter().filter(|other| other.is_in_the_way(&wanted)).count();
        let is_before = |other: &&Waiting| {
            wanted.waits_behind(&other.wanted) && other.wanted.is_in_the_way(&wanted)
        };
        let before = self.waiting.iter().filter(is_before).count();
        self.waiting.push_back(Waiting { wanted, blockers: held + before, waker: None });
        self.next
    }

    fn place(&self, id: u64) -> usize {
        let place = self.waiting.binary_search_by_key(&id, |waiting| waiting.wanted.id);
        place.expect("it waits until now")
    }

    /// Gives one who waits what it waits for, if nobody is in its way; else it is woken when nobody is.
    fn take(&mut self, id: u64, waker: &Waker) -> bool {
        let place = self.place(id);
        if self.waiting[place].blockers > 0 {
            self.waiting[place].waker = Some(waker.clone());
            return false;
        }
        let Some(Waiting { wanted: taken, .. }) = self.waiting.remove(place) else { return false };
        for Waiting { wanted, blockers, .. } in &mut self.waiting {
            // Those behind it have counted it already.
            let is_news = !wanted.waits_behind(&taken) && taken.is_in_the_way(wanted);
            *blockers += usize::from(is_news);
        }
        self.held.push(taken);
        true
    }

    /// One who waited does not any more.
    fn leave(&mut self, id: u64) {
        let place = self.place(id);
        if let Some(Waiting { wanted: left, .. }) = self.waiting.remove(place) {
            self.unblock(|wanted| wanted.waits_behind(&left) && left.is_in_the_way(wanted));
        }
    }

    /// One gives back what it held.
    fn release(&mut self, id: u64) {
        let place = self.held.iter().position(|held| held.id == id);
        let released = self.held.swap_remove(place.expect("it is held until now"));
        self.unblock(|wanted| released.is_in_the_way(wanted));
    }

    /// Wakes those that nobody is in the way of any more.
    fn unblock(&mut self, is_one: impl Fn(&Wanted) -> bool) {
        for Waiting { wanted, blockers, waker } in &mut self.waiting {
            if is_one(wanted) {
                *blockers -= 1;
                if *blockers == 0 {
                    waker.take().into_iter().for_each(Waker::wake);
                }
            }
        }
    }
}

impl Future for RangeFuture {
    type Output = RangeGuard;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RangeGuard> {
        let this = &mut *self;
        let ranges = &mut *this.lock.ranges.lock();
        let id = *this.id.get_or_insert_with(|| ranges.join(this.range.clone(), this.who));
        if ranges.take(id, context.waker()) {
            this.id = None;
            // Also of a part of it: overwriters go by the device's blocks, which may be smaller than the file's.
            let found = ranges.tail.take_if(|tail| meet(&this.range, &tail.range()));
            match this.who {
                Writer::Beside => {
                    ranges.overwriters += 1;
                    if ranges.overwriters >= OVERWRITERS {
                        // Together: nobody leaves one before somebody has excluded overwriters again.
                        ranges.tail = None;
                        this.lock.mode.share();
                    }
                }
                Writer::Other => ranges.overwriters = 0,
                Writer::Buffered | Writer::Saver => {}
            }
            return Poll::Ready(RangeGuard { lock: this.lock.clone(), id, found, left: None });
        }
        Poll::Pending
    }
}

impl Drop for RangeFuture {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.lock.ranges.lock().leave(id);
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let ranges = &mut *self.lock.ranges.lock();
        ranges.tail = self.left.take().or(ranges.tail.take());
        ranges.release(self.id);
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
        let lock = Arc::new(WriteLock::default());
        let (mut one, mut two) =
            (pin!(lock.range(0..4096, Writer::Other)), pin!(lock.range(4096..8192, Writer::Other)));
        let Poll::Ready(_one) = poll(one.as_mut()) else { panic!("free") };
        let Poll::Ready(_two) = poll(two.as_mut()) else { panic!("does not meet the first") };
    }

    #[test]
    fn first_come_first_served() {
        let lock = Arc::new(WriteLock::default());
        let (mut one, mut wide, mut late) = (
            pin!(lock.range(0..10, Writer::Other)),
            pin!(lock.range(0..100, Writer::Other)),
            pin!(lock.range(50..60, Writer::Other)),
        );
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
    fn who_saves_waits_for_those_only_who_have_what_it_wants() {
        let lock = Arc::new(WriteLock::default());
        let want = |who| Box::pin(lock.range(0..10, who));
        let mut first = want(Writer::Buffered);
        let Poll::Ready(writing) = poll(first.as_mut()) else { panic!("free") };
        let (mut other, mut late) = (want(Writer::Other), want(Writer::Buffered));
        assert!(poll(other.as_mut()).is_pending() && poll(late.as_mut()).is_pending());
        // Before those who came before, since the one who writes may wait for it.
        let (mut one, mut two) = (want(Writer::Saver), want(Writer::Saver));
        let Poll::Ready(saving) = poll(one.as_mut()) else { panic!("in nobody's way") };
        assert!(poll(two.as_mut()).is_pending(), "one saves at a time");
        drop(saving);
        let Poll::Ready(saving) = poll(two.as_mut()) else { panic!("its turn") };
        drop(writing);
        assert!(poll(other.as_mut()).is_pending() && poll(late.as_mut()).is_pending());
        drop(saving);
        assert!(poll(late.as_mut()).is_pending());
        let Poll::Ready(_held) = poll(other.as_mut()) else { panic!("its turn") };
        assert!(poll(want(Writer::Saver).as_mut()).is_pending());
    }

    #[test]
    fn a_waiter_that_gives_up_is_out_of_the_way() {
        let lock = Arc::new(WriteLock::default());
        let mut one = pin!(lock.range(0..10, Writer::Other));
        let Poll::Ready(_held) = poll(one.as_mut()) else { panic!("free") };
        let mut wide = Box::pin(lock.range(0..100, Writer::Other));
        assert!(poll(wide.as_mut()).is_pending());
        let mut late = pin!(lock.range(50..60, Writer::Other));
        assert!(poll(late.as_mut()).is_pending());
        drop(wide);
        assert!(poll(late.as_mut()).is_ready());
    }

    /// What is counted is what there is, whoever comes, gets it, gives up or gives it back.
    #[test]
    fn each_who_waits_knows_how_many_are_in_its_way() {
        const WRITERS: [Writer; 4] =
            [Writer::Beside, Writer::Buffered, Writer::Saver, Writer::Other];
        let mut random = 7u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (random >> 33) % bound
        };
        let mut ranges = Ranges::default();
        for _ in 0..20_000 {
            let waiting = ranges.waiting.len() as u64;
            match below(4) {
                0 if waiting < 12 => {
                    let start = below(20);
                    ranges.join(start..start + 1 + below(8), WRITERS[below(4) as usize]);
                }
                1 if waiting > 0 => {
                    let id = ranges.waiting[below(waiting) as usize].wanted.id;
                    ranges.take(id, Waker::noop());
                }
                2 if waiting > 0 && below(3) == 0 => {
                    let id = ranges.waiting[below(waiting) as usize].wanted.id;
                    ranges.leave(id);
                }
                _ if !ranges.held.is_empty() => {
                    let id = ranges.held[below(ranges.held.len() as u64) as usize].id;
                    ranges.release(id);
                }
                _ => {}
            }
            for (place, waiting) in ranges.waiting.iter().enumerate() {
                let is_in_its_way = |other: &&Wanted| other.is_in_the_way(&waiting.wanted);
                let held = ranges.held.iter().filter(is_in_its_way).count();
                let before = ranges.waiting.iter().take(place).map(|other| &other.wanted);
                let before = match waiting.wanted.who {
                    Writer::Saver => 0,
                    _ => before.filter(is_in_its_way).count(),
                };
                assert_eq!(waiting.blockers, held + before, "{waiting:?} of {ranges:?}");
            }
            let all = &ranges.held;
            let is_alone =
                |one: &Wanted| all.iter().filter(|other| other.is_in_the_way(one)).count() <= 1;
            assert!(all.iter().all(|one| one.who == Writer::Saver
                || one.who == Writer::Buffered
                || is_alone(one)));
        }
    }
}
