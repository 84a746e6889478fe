//! State that all handles of a file share, above all its write locks.
//!
//! Overwriters of whole blocks take no lock: they load one word (a biased lock). A writer of part of a block
//! revokes the bias and waits until the overwrites in flight have finished; from then on all writers take range
//! locks. The bias comes back after some overwrites in a row that no other writer excluded.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::DeviceIndex;
use uringfs_reactor::{Epoch, SubmissionLock, WriterBias, quiescence};

use crate::map::mapping::TruncateGeneration;
use crate::state::append_queue::AppendQueue;
use crate::state::dirty::DirtySet;
use crate::state::file_cache::{FileCache, bytes_of, folios_around};

/// Overwrites in a row under range locks that restore the bias.
const OVERWRITES_TO_REBIAS: u32 = 8;

/// The state of a file's bytes: one for all [`File`](crate::File)s of the same bytes.
#[derive(Debug, Default)]
pub struct FileState {
    bias: WriterBias,
    ranges: Mutex<RangeLocks>,
    append_queue: AppendQueue,
    submission: SubmissionLock,
    cache: OnceLock<FileCache>,
    dirty: DirtySet,
}

#[derive(Debug, Default)]
struct RangeLocks {
    held: Vec<RangeRequest>,
    /// In order of arrival, which is the order of their ids.
    waiting: VecDeque<WaitingRequest>,
    next: u64,
    /// Overwrites since an exclusive lock.
    overwrites_in_a_row: u32,
    /// `None` while the bias holds, and as soon as the block is written again.
    partial_block: Option<PartialBlock>,
}

/// A range that is held or waited for.
#[derive(Clone, Debug)]
struct RangeRequest {
    id: u64,
    range: Range<u64>,
    mode: LockMode,
}

#[derive(Debug)]
struct WaitingRequest {
    request: RangeRequest,
    /// Number of requests that block it. Counted as they come and go, so that no request is compared with all
    /// others each time.
    blockers: usize,
    waker: Option<Waker>,
}

/// The last block of a write that covered only part of it, as written. The writer of the next part need not
/// read it.
#[derive(Debug)]
pub(crate) struct PartialBlock {
    /// Offset in the file.
    pub(crate) start: u64,
    pub(crate) generation: TruncateGeneration,
    pub(crate) bytes: Buffer,
}

impl PartialBlock {
    /// Its range in the file.
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes.len() as u64
    }
}

/// The kind of access that a range lock is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// An overwrite of whole blocks, or a write to new ones: needs no lock while the bias holds.
    Overwrite,
    /// A buffered write. Compatible with write-back.
    Buffered,
    /// Write-back of dirty folios. It waits only for holders, not for earlier waiters: some of them may wait
    /// for it.
    Writeback,
    /// Any other writer.
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

impl FileState {
    /// True when overwriters of whole blocks need no lock. The caller has entered the epoch before it calls this.
    #[inline]
    pub(crate) fn is_biased(&self) -> bool {
        self.bias.is_biased()
    }

    /// Revokes the bias at least until the guard drops. Overwrites that found the bias on have ended when the
    /// epoch has passed; the caller then calls [`Exclusion::quiesced`]. Without an epoch they have ended
    /// already.
    pub(crate) fn exclude(self: &Arc<Self>, device: DeviceIndex) -> (Exclusion, Option<Epoch>) {
        let epoch = self.bias.exclude(quiescence(device));
        (Exclusion { state: self.clone() }, epoch)
    }

    /// The lock of `direct.write_lock=exclusive`.
    pub(crate) fn submission(&self) -> &SubmissionLock {
        &self.submission
    }

    /// The file's folios. The first caller chooses the cache; the file stays in it.
    pub(crate) fn file_cache(&self, cache: &Cache, device: DeviceIndex) -> &FileCache {
        self.cache.get_or_init(|| FileCache::new(cache, device))
    }

    /// The file's folios, if it is in a cache.
    pub(crate) fn existing_cache(&self) -> Option<&FileCache> {
        self.cache.get()
    }

    /// The dirty folios.
    #[inline(always)]
    pub(crate) fn dirty(&self) -> &DirtySet {
        &self.dirty
    }

    /// Size in bytes: from the map, or from dirty folios of the current truncate generation, whichever is
    /// larger.
    #[doc(hidden)]
    #[inline]
    pub fn size(&self, generation: impl Fn() -> TruncateGeneration, size: impl Fn() -> u64) -> u64 {
        // Read in this order: a byte that is written back in between counts in both. In the other order it would
        // count in neither.
        let dirty_end = self.dirty.end();
        let size = size();
        match self.cache.get() {
            Some(cached) if dirty_end > size && cached.is_current(generation()) => dirty_end,
            _ => size,
        }
    }

    /// True if the file has dirty folios.
    pub fn has_dirty(&self) -> bool {
        self.dirty.is_any()
    }

    /// Revokes the bias for good. The caller waits as after [`Self::exclude`], then calls [`Self::quiesced`].
    pub(crate) fn enable_range_locks(&self, device: DeviceIndex) -> Option<Epoch> {
        self.bias.exclude(quiescence(device))
    }

    /// The epoch of [`Self::enable_range_locks`] has passed.
    pub(crate) fn quiesced(&self) {
        self.bias.quiesced();
    }

    /// The appends in progress.
    pub(crate) fn append_queue(&self) -> &AppendQueue {
        &self.append_queue
    }

    /// Waits for a range of bytes, in order of arrival. For a file in the page cache the range is widened to
    /// whole folios.
    pub(crate) fn lock_range(self: &Arc<Self>, range: Range<u64>, mode: LockMode) -> RangeFuture {
        let range = match self.cache.get() {
            Some(_) => bytes_of(&folios_around(&range)),
            None => range,
        };
        RangeFuture { state: self.clone(), range, mode, id: None }
    }
}

/// Keeps the bias revoked. Its drop ends that.
pub(crate) struct Exclusion {
    state: Arc<FileState>,
}

impl Exclusion {
    /// The epoch has passed: the next exclusion need not wait.
    pub(crate) fn quiesced(&self) {
        self.state.bias.quiesced();
    }
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        self.state.bias.release();
    }
}

/// Waits for a range lock.
pub(crate) struct RangeFuture {
    state: Arc<FileState>,
    range: Range<u64>,
    mode: LockMode,
    id: Option<u64>,
}

/// A range lock. Its drop wakes the next waiters.
pub(crate) struct RangeGuard {
    state: Arc<FileState>,
    id: u64,
    /// A partial block of an earlier writer that overlaps the range.
    inherited_block: Option<PartialBlock>,
    /// A partial block for the next writer.
    left_block: Option<PartialBlock>,
}

impl RangeGuard {
    /// The file's folios, if it is in a cache.
    pub(crate) fn cache(&self) -> Option<&FileCache> {
        self.state.existing_cache()
    }

    /// The partial block of an earlier writer, if it overlaps the range and has not been written since.
    pub(crate) fn take_partial_block(&mut self) -> Option<PartialBlock> {
        self.inherited_block.take()
    }

    /// Keeps a block of the range for the next writer. The caller excludes overwriters until after the drop.
    pub(crate) fn leave_partial_block(&mut self, tail: PartialBlock) {
        self.left_block = Some(tail);
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    other.start < one.end && one.start < other.end
}

impl RangeRequest {
    /// True if the two cannot be held at once.
    fn conflicts(&self, other: &RangeRequest) -> bool {
        overlap(&self.range, &other.range) && !self.mode.is_compatible(other.mode)
    }

    /// True if this request also waits for an `other` that still waits: if `other` came first. Write-back does not.
    fn waits_behind(&self, other: &RangeRequest) -> bool {
        self.mode != LockMode::Writeback && other.id < self.id
    }
}

impl RangeLocks {
    /// Adds a request and counts what blocks it. Returns its id.
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
        place.expect("it is waiting")
    }

    /// Grants a waiting request if nothing blocks it; otherwise stores the waker.
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
            // Requests that wait behind it have counted it already.
            let is_new_blocker = !request.waits_behind(&taken) && taken.conflicts(request);
            *blockers += usize::from(is_new_blocker);
        }
        self.held.push(taken);
        true
    }

    /// Removes a waiting request.
    fn cancel(&mut self, id: u64) {
        let place = self.position(id);
        if let Some(WaitingRequest { request: left, .. }) = self.waiting.remove(place) {
            self.unblock(|request| request.waits_behind(&left) && left.conflicts(request));
        }
    }

    /// Releases a held range.
    fn release(&mut self, id: u64) {
        let place = self.held.iter().position(|held| held.id == id);
        let released = self.held.swap_remove(place.expect("it is held"));
        self.unblock(|request| released.conflicts(request));
    }

    /// Counts one blocker less for the requests that `was_blocked` selects, and wakes those without any.
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
            // A partial overlap counts, too: overwriters use the device's blocks, which may be smaller than the
            // file's.
            let inherited_block =
                ranges.partial_block.take_if(|tail| overlap(&this.range, &tail.range()));
            match this.mode {
                LockMode::Overwrite => {
                    ranges.overwrites_in_a_row += 1;
                    if ranges.overwrites_in_a_row >= OVERWRITES_TO_REBIAS {
                        // Both under one lock: no block is kept until overwriters are excluded again.
                        ranges.partial_block = None;
                        this.state.bias.restore();
                    }
                }
                LockMode::Exclusive => ranges.overwrites_in_a_row = 0,
                LockMode::Buffered | LockMode::Writeback => {}
            }
            return Poll::Ready(RangeGuard {
                state: this.state.clone(),
                id,
                inherited_block,
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
        let state = Arc::new(FileState::default());
        let (mut one, mut two) = (
            pin!(state.lock_range(0..4096, LockMode::Exclusive)),
            pin!(state.lock_range(4096..8192, LockMode::Exclusive)),
        );
        let Poll::Ready(_one) = poll(one.as_mut()) else { panic!("free") };
        let Poll::Ready(_two) = poll(two.as_mut()) else { panic!("does not meet the first") };
    }

    #[test]
    fn first_come_first_served() {
        let state = Arc::new(FileState::default());
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
    fn write_back_waits_for_holders_not_for_earlier_waiters() {
        let state = Arc::new(FileState::default());
        let want = |mode| Box::pin(state.lock_range(0..10, mode));
        let mut first = want(LockMode::Buffered);
        let Poll::Ready(writing) = poll(first.as_mut()) else { panic!("free") };
        let (mut other, mut late) = (want(LockMode::Exclusive), want(LockMode::Buffered));
        assert!(poll(other.as_mut()).is_pending() && poll(late.as_mut()).is_pending());
        // Ahead of earlier waiters, since the writer may wait for it.
        let (mut one, mut two) = (want(LockMode::Writeback), want(LockMode::Writeback));
        let Poll::Ready(run) = poll(one.as_mut()) else { panic!("compatible") };
        assert!(poll(two.as_mut()).is_pending(), "one write-back at a time");
        drop(run);
        let Poll::Ready(run) = poll(two.as_mut()) else { panic!("its turn") };
        drop(writing);
        assert!(poll(other.as_mut()).is_pending() && poll(late.as_mut()).is_pending());
        drop(run);
        assert!(poll(late.as_mut()).is_pending());
        let Poll::Ready(_held) = poll(other.as_mut()) else { panic!("its turn") };
        assert!(poll(want(LockMode::Writeback).as_mut()).is_pending());
    }

    #[test]
    fn a_waiter_that_gives_up_blocks_no_other() {
        let state = Arc::new(FileState::default());
        let mut one = pin!(state.lock_range(0..10, LockMode::Exclusive));
        let Poll::Ready(_held) = poll(one.as_mut()) else { panic!("free") };
        let mut wide = Box::pin(state.lock_range(0..100, LockMode::Exclusive));
        assert!(poll(wide.as_mut()).is_pending());
        let mut late = pin!(state.lock_range(50..60, LockMode::Exclusive));
        assert!(poll(late.as_mut()).is_pending());
        drop(wide);
        assert!(poll(late.as_mut()).is_ready());
    }

    /// The counts agree with a recount, whichever requests arrive, are granted, give up or are released.
    #[test]
    fn each_waiter_knows_the_number_of_its_blockers() {
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
                let blocks_it = |other: &&RangeRequest| other.conflicts(&waiting.request);
                let held = ranges.held.iter().filter(blocks_it).count();
                let before = ranges.waiting.iter().take(place).map(|other| &other.request);
                let before = match waiting.request.mode {
                    LockMode::Writeback => 0,
                    _ => before.filter(blocks_it).count(),
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
