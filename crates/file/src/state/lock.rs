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
use crate::state::append_queue::AppendQueue;
use crate::state::dirty::DirtySet;
use crate::state::file_cache::{FileCache, bytes_of, folios_around};

/// Overwriters in a row that take a range lock before they need none again.
const OVERWRITES_TO_REBIAS: u32 = 8;

/// Who may write where: one for all [`File`](crate::File)s of the same bytes.
#[derive(Debug, Default)]
pub struct WriteLock {
    bias: Mode,
    ranges: Mutex<RangeLocks>,
    append_queue: AppendQueue,
    submission: SubmissionLock,
    cache: OnceLock<FileCache>,
    dirty: DirtySet,
}

#[derive(Debug, Default)]
struct RangeLocks {
    held: Vec<RangeRequest>,
    /// In the order in which they came.
    waiting: VecDeque<WaitingRequest>,
    next: u64,
    /// Overwriters since somebody excluded them.
    overwrites_in_a_row: u32,
    /// Not while overwriters need no lock, and of nothing that anybody has written since.
    partial_block: Option<PartialBlock>,
}

/// A range that somebody holds or waits for.
#[derive(Clone, Debug)]
struct RangeRequest {
    id: u64,
    range: Range<u64>,
    mode: LockMode,
}

#[derive(Debug)]
struct WaitingRequest {
    request: RangeRequest,
    /// How many are in its way. Counted when they come and go, so that nobody is compared with everybody else.
    blockers: usize,
    waker: Option<Waker>,
}

/// A block of the file as it was written last, of which only a part was: whoever writes the next part need not
/// read it.
#[derive(Debug)]
pub(crate) struct PartialBlock {
    /// Where in the file.
    pub(crate) start: u64,
    pub(crate) generation: Generation,
    pub(crate) bytes: Buffer,
}

impl PartialBlock {
    /// Its bytes of the file.
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes.len() as u64
    }
}

/// Who wants a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// Writes whole blocks in place, or new ones, and would have needed no lock.
    Overwrite,
    /// Writes through the page cache: what is saved meanwhile is not in its way.
    Buffered,
    /// Saves what was written through the page cache. It waits for those only who have what it wants: some of them
    /// may wait for it.
    Writeback,
    /// Anybody else.
    Exclusive,
}

impl LockMode {
    fn is_compatible(self, other: LockMode) -> bool {
        matches!(
            (self, other),
            (LockMode::Buffered, LockMode::Writeback) | (LockMode::Writeback, LockMode::Buffered)
        )
    }
}

impl WriteLock {
    /// True when overwriters of whole blocks need no lock. The caller has
    /// counted itself in, behind a full fence, before it asks.
    #[inline]
    pub(crate) fn is_biased(&self) -> bool {
        self.bias.is_shared()
    }

    /// Ends the shared mode until the guard is dropped, at least. Overwrites that
    /// did not see it have finished when the epoch has passed: then comes
    /// [`Exclusion::quiesced`]. Without one they have.
    pub(crate) fn exclude(self: &Arc<Self>, device: DeviceIndex) -> (Exclusion, Option<Epoch>) {
        let epoch = self.bias.exclude(quiescence(device));
        (Exclusion { state: self.clone() }, epoch)
    }

    /// What writers take with `direct.write_lock=exclusive`.
    pub(crate) fn submission(&self) -> &SubmissionLock {
        &self.submission
    }

    /// What the page cache has of the file: of this cache, unless it is in another one already.
    pub(crate) fn file_cache(&self, cache: &Cache, device: DeviceIndex) -> &FileCache {
        self.cache.get_or_init(|| FileCache::new(cache, device))
    }

    /// The same, if it is in one.
    pub(crate) fn existing_cache(&self) -> Option<&FileCache> {
        self.cache.get()
    }

    /// What was written through it and is not on the device.
    #[inline(always)]
    pub(crate) fn dirty(&self) -> &DirtySet {
        &self.dirty
    }

    /// How long the file is: as its map says, or as was written through a page cache since it was emptied so often.
    #[inline]
    pub fn size(&self, generation: impl Fn() -> Generation, size: impl Fn() -> u64) -> u64 {
        // What is saved meanwhile is in the one, then in the other.
        let unsaved = self.dirty.end();
        let size = size();
        match self.cache.get() {
            Some(cached) if unsaved > size && cached.is_current(generation()) => unsaved,
            _ => size,
        }
    }

    /// Whether something was written to the file through a page cache and is not on its device.
    pub fn has_unsaved(&self) -> bool {
        self.dirty.is_any()
    }

    /// Ends the shared mode for good. The caller waits as after [`Self::exclude`], and settles then.
    pub(crate) fn enable_range_locks(&self, device: DeviceIndex) -> Option<Epoch> {
        self.bias.exclude(quiescence(device))
    }

    /// The epoch of [`Self::enable_range_locks`] has passed.
    pub(crate) fn quiesced(&self) {
        self.bias.settle();
    }

    /// Who appends.
    pub(crate) fn append_queue(&self) -> &AppendQueue {
        &self.append_queue
    }

    /// Waits for a range of bytes, first come, first served; of a file in the page cache for whole folios.
    pub(crate) fn lock_range(self: &Arc<Self>, range: Range<u64>, mode: LockMode) -> RangeFuture {
        let range = match self.cache.get() {
            Some(_) => bytes_of(&folios_around(&range)),
            None => range,
        };
        RangeFuture { state: self.clone(), range, mode, id: None }
    }
}

/// Ends the exclusion of overwriters when dropped.
pub(crate) struct Exclusion {
    state: Arc<WriteLock>,
}

impl Exclusion {
    /// The epoch has passed: the next one who excludes has nobody to wait for.
    pub(crate) fn quiesced(&self) {
        self.state.bias.settle();
    }
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        self.state.bias.include();
    }
}

/// Waits for a range lock.
pub(crate) struct RangeFuture {
    state: Arc<WriteLock>,
    range: Range<u64>,
    mode: LockMode,
    id: Option<u64>,
}

/// A range lock; dropped, it lets the next in.
pub(crate) struct RangeGuard {
    state: Arc<WriteLock>,
    id: u64,
    /// What lay in the range, all of it or a part.
    cached_block: Option<PartialBlock>,
    /// What is left for the next.
    left_block: Option<PartialBlock>,
}

impl RangeGuard {
    /// Takes what the page cache has of these bytes out of it.
    pub(crate) fn invalidate(&self, range: Range<u64>) {
        if let Some(cached) = self.state.cache.get() {
            cached.invalidate(range);
        }
    }

    /// The block that was written last, if some of it lies in the range and nobody has written it since.
    pub(crate) fn take_partial_block(&mut self) -> Option<PartialBlock> {
        self.cached_block.take()
    }

    /// Leaves a block of the range for the next. Whoever does excludes overwriters until after.
    pub(crate) fn leave_partial_block(&mut self, tail: PartialBlock) {
        self.left_block = Some(tail);
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    other.start < one.end && one.start < other.end
}

impl RangeRequest {
    /// Whether the two cannot be held at once.
    fn conflicts(&self, other: &RangeRequest) -> bool {
        overlap(&self.range, &other.range) && !self.mode.is_compatible(other.mode)
    }

    /// Whether it waits for another as long as that only waits: if that came before. Who saves does not.
    fn waits_behind(&self, other: &RangeRequest) -> bool {
        self.mode != LockMode::Writeback && other.id < self.id
    }
}

impl RangeLocks {
    /// Somebody comes.
    fn enqueue(&mut self, range: Range<u64>, mode: LockMode) -> u64 {
        self.next += 1;
        let request = RangeRequest { id: self.next, range, mode };
        let held = self.held.iter().filter(|other| other.conflicts(&request)).count();
        let is_before = |other: &&WaitingRequest| {
            request.waits_behind(&other.request) && other.request.conflicts(&request)
        };
        let before = self.waiting.iter().filter(is_before).count();
        self.waiting.push_back(WaitingRequest { request, blockers: held + before, waker: None });
        self.next
    }

    fn position(&self, id: u64) -> usize {
        let place = self.waiting.binary_search_by_key(&id, |waiting| waiting.request.id);
        place.expect("it waits until now")
    }

    /// Gives one who waits what it waits for, if nobody is in its way; else it is woken when nobody is.
    fn try_grant(&mut self, id: u64, waker: &Waker) -> bool {
        let place = self.position(id);
        if self.waiting[place].blockers > 0 {
            self.waiting[place].waker = Some(waker.clone());
            return false;
        }
        let Some(WaitingRequest { request: taken, .. }) = self.waiting.remove(place) else {
            return false;
        };
        for WaitingRequest { request, blockers, .. } in &mut self.waiting {
            // Those behind it have counted it already.
            let is_new_blocker = !request.waits_behind(&taken) && taken.conflicts(request);
            *blockers += usize::from(is_new_blocker);
        }
        self.held.push(taken);
        true
    }

    /// One who waited does not any more.
    fn cancel(&mut self, id: u64) {
        let place = self.position(id);
        if let Some(WaitingRequest { request: left, .. }) = self.waiting.remove(place) {
            self.unblock(|request| request.waits_behind(&left) && left.conflicts(request));
        }
    }

    /// One gives back what it held.
    fn release(&mut self, id: u64) {
        let place = self.held.iter().position(|held| held.id == id);
        let released = self.held.swap_remove(place.expect("it is held until now"));
        self.unblock(|request| released.conflicts(request));
    }

    /// Wakes those that nobody is in the way of any more.
    fn unblock(&mut self, was_blocked: impl Fn(&RangeRequest) -> bool) {
        for WaitingRequest { request, blockers, waker } in &mut self.waiting {
            if was_blocked(request) {
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
        let ranges = &mut *this.state.ranges.lock();
        let id = *this.id.get_or_insert_with(|| ranges.enqueue(this.range.clone(), this.mode));
        if ranges.try_grant(id, context.waker()) {
            this.id = None;
            // Also of a part of it: overwriters go by the device's blocks, which may be smaller than the file's.
            let cached_block =
                ranges.partial_block.take_if(|tail| overlap(&this.range, &tail.range()));
            match this.mode {
                LockMode::Overwrite => {
                    ranges.overwrites_in_a_row += 1;
                    if ranges.overwrites_in_a_row >= OVERWRITES_TO_REBIAS {
                        // Together: nobody leaves one before somebody has excluded overwriters again.
                        ranges.partial_block = None;
                        this.state.bias.share();
                    }
                }
                LockMode::Exclusive => ranges.overwrites_in_a_row = 0,
                LockMode::Buffered | LockMode::Writeback => {}
            }
            return Poll::Ready(RangeGuard {
                state: this.state.clone(),
                id,
                cached_block,
                left_block: None,
            });
        }
        Poll::Pending
    }
}

impl Drop for RangeFuture {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.state.ranges.lock().cancel(id);
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let ranges = &mut *self.state.ranges.lock();
        ranges.partial_block = self.left_block.take().or(ranges.partial_block.take());
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
        let state = Arc::new(WriteLock::default());
        let (mut one, mut two) = (
            pin!(state.lock_range(0..4096, LockMode::Exclusive)),
            pin!(state.lock_range(4096..8192, LockMode::Exclusive)),
        );
        let Poll::Ready(_one) = poll(one.as_mut()) else { panic!("free") };
        let Poll::Ready(_two) = poll(two.as_mut()) else { panic!("does not meet the first") };
    }

    #[test]
    fn first_come_first_served() {
        let state = Arc::new(WriteLock::default());
        let (mut one, mut wide, mut late) = (
            pin!(state.lock_range(0..10, LockMode::Exclusive)),
            pin!(state.lock_range(0..100, LockMode::Exclusive)),
            pin!(state.lock_range(50..60, LockMode::Exclusive)),
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
        let state = Arc::new(WriteLock::default());
        let want = |mode| Box::pin(state.lock_range(0..10, mode));
        let mut first = want(LockMode::Buffered);
        let Poll::Ready(writing) = poll(first.as_mut()) else { panic!("free") };
        let (mut other, mut late) = (want(LockMode::Exclusive), want(LockMode::Buffered));
        assert!(poll(other.as_mut()).is_pending() && poll(late.as_mut()).is_pending());
        // Before those who came before, since the one who writes may wait for it.
        let (mut one, mut two) = (want(LockMode::Writeback), want(LockMode::Writeback));
        let Poll::Ready(saving) = poll(one.as_mut()) else { panic!("in nobody's way") };
        assert!(poll(two.as_mut()).is_pending(), "one saves at a time");
        drop(saving);
        let Poll::Ready(saving) = poll(two.as_mut()) else { panic!("its turn") };
        drop(writing);
        assert!(poll(other.as_mut()).is_pending() && poll(late.as_mut()).is_pending());
        drop(saving);
        assert!(poll(late.as_mut()).is_pending());
        let Poll::Ready(_held) = poll(other.as_mut()) else { panic!("its turn") };
        assert!(poll(want(LockMode::Writeback).as_mut()).is_pending());
    }

    #[test]
    fn a_waiter_that_gives_up_is_out_of_the_way() {
        let state = Arc::new(WriteLock::default());
        let mut one = pin!(state.lock_range(0..10, LockMode::Exclusive));
        let Poll::Ready(_held) = poll(one.as_mut()) else { panic!("free") };
        let mut wide = Box::pin(state.lock_range(0..100, LockMode::Exclusive));
        assert!(poll(wide.as_mut()).is_pending());
        let mut late = pin!(state.lock_range(50..60, LockMode::Exclusive));
        assert!(poll(late.as_mut()).is_pending());
        drop(wide);
        assert!(poll(late.as_mut()).is_ready());
    }

    /// What is counted is what there is, whoever comes, gets it, gives up or gives it back.
    #[test]
    fn each_who_waits_knows_how_many_are_in_its_way() {
        const WRITERS: [LockMode; 4] =
            [LockMode::Overwrite, LockMode::Buffered, LockMode::Writeback, LockMode::Exclusive];
        let mut random = 7u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (random >> 33) % bound
        };
        let mut ranges = RangeLocks::default();
        for _ in 0..20_000 {
            let waiting = ranges.waiting.len() as u64;
            match below(4) {
                0 if waiting < 12 => {
                    let start = below(20);
                    ranges.enqueue(start..start + 1 + below(8), WRITERS[below(4) as usize]);
                }
                1 if waiting > 0 => {
                    let id = ranges.waiting[below(waiting) as usize].request.id;
                    ranges.try_grant(id, Waker::noop());
                }
                2 if waiting > 0 && below(3) == 0 => {
                    let id = ranges.waiting[below(waiting) as usize].request.id;
                    ranges.cancel(id);
                }
                _ if !ranges.held.is_empty() => {
                    let id = ranges.held[below(ranges.held.len() as u64) as usize].id;
                    ranges.release(id);
                }
                _ => {}
            }
            for (place, waiting) in ranges.waiting.iter().enumerate() {
                let is_in_its_way = |other: &&RangeRequest| other.conflicts(&waiting.request);
                let held = ranges.held.iter().filter(is_in_its_way).count();
                let before = ranges.waiting.iter().take(place).map(|other| &other.request);
                let before = match waiting.request.mode {
                    LockMode::Writeback => 0,
                    _ => before.filter(is_in_its_way).count(),
                };
                assert_eq!(waiting.blockers, held + before, "{waiting:?} of {ranges:?}");
            }
            let all = &ranges.held;
            let is_alone =
                |one: &RangeRequest| all.iter().filter(|other| other.conflicts(one)).count() <= 1;
            assert!(all.iter().all(|one| one.mode == LockMode::Writeback
                || one.mode == LockMode::Buffered
                || is_alone(one)));
        }
    }
}
