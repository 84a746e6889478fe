//! The beginning of a write: its lock, and blocks for its bytes. Both come from one place, because the map may
//! change while a write waits for its lock.
//!
//! - An overwrite of whole blocks in place needs no lock while the file is biased to such writers: it loads one
//!   word. A write of whole new blocks needs none either, because the map gives it blocks of its own.
//! - A write of part of a block excludes overwrites: [`exclude`] revokes the bias, retires an epoch, and waits
//!   until the overwrites that found the bias on have ended. The waiting operation is outside the epoch
//!   meanwhile; otherwise two would wait for each other. From then on writers take range locks, first come first
//!   served, until eight overwrites in a row meet no exclusion.
//! - With the lock held the map is read again: the file may have been truncated meanwhile.
//! - The write then reads the block at each end that it covers in part, merges, and writes whole blocks. The last
//!   partial block stays in memory with the lock ([`PartialBlock`]) for the write that continues it.
//! - The guard releases the range first, then the exclusion. Reads never wait.
//!
//! With `direct.write_lock=exclusive` every write also takes a lock of the file for as long as the kernel accepts
//! it, like those kernel file systems that treat an overwrite as any other write.

use std::ops::Range;

use uringfs_buffer::Buffer;
use uringfs_device::Errno;
use uringfs_reactor::{Counter, Operation};

use crate::io::bounce::{MAX_FILE_SIZE, block_size_of, blocks_around, merge_zeros};
use crate::io::space_wait::{SpaceWait, allocate};
use crate::map::change_gate::ChangeGuard;
use crate::map::mapping::{
    AllocOutcome, MappingState, SpaceReservation, TruncateGeneration, WriteKind, WriteOrigin,
};
use crate::state::file::FileHandle;
use crate::state::file_state::{Exclusion, LockMode, PartialBlock, RangeGuard};
use crate::writeback::runs::lock_and_write_back;

/// State that a write holds while it moves its bytes.
pub(crate) struct WriteGuard {
    pub(crate) kind: WriteKind,
    /// Unit of the write in bytes: writes of part of a block read it first.
    pub(crate) block: u64,
    pub(crate) generation: TruncateGeneration,
    held: HeldLocks,
}

impl WriteGuard {
    /// The block at `start` as written last, if it is known.
    pub(crate) fn take_partial_block(&mut self, start: u64) -> Option<PartialBlock> {
        let found = self.held.range.as_mut()?.take_partial_block()?;
        (found.start == start && found.generation == self.generation).then_some(found)
    }

    /// Keeps the last block for the writer of its next part.
    pub(crate) fn leave_partial_block(&mut self, start: u64, bytes: Buffer) {
        if let HeldLocks { range: Some(range), _exclusion: Some(_), .. } = &mut self.held {
            range.leave_partial_block(PartialBlock { start, generation: self.generation, bytes });
        }
    }

    /// Marks what the device has written, and extends the file to it.
    pub(crate) fn mark_written(&self, handle: &FileHandle, written: Range<u64>) {
        self.held.publish(handle, written.end, || {
            handle.map.mark_written(self.kind, written, self.generation, WriteOrigin::Direct);
        });
    }
}

/// Locks, released in this order.
#[derive(Default)]
pub(crate) struct HeldLocks {
    /// Bytes whose folios are removed from the page cache on release.
    changed: Range<u64>,
    range: Option<RangeGuard>,
    _exclusion: Option<Exclusion>,
}

impl HeldLocks {
    /// Publishes a change of the map that may extend the file to `end`. A reader that finds the new size in the page cache
    /// finds the new bytes, too.
    pub(crate) fn publish<T>(
        &self,
        handle: &FileHandle,
        end: u64,
        publish: impl FnOnce() -> T,
    ) -> T {
        match self.range.as_ref().and_then(RangeGuard::cache) {
            Some(cache) if end > handle.map.size() => cache.grow(self.changed.clone(), publish),
            _ => publish(),
        }
    }
}

impl Drop for HeldLocks {
    fn drop(&mut self) {
        if let Some(cache) = self.range.as_ref().and_then(RangeGuard::cache) {
            cache.invalidate(self.changed.clone());
        }
    }
}

/// Plan for the write of a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WritePlan {
    /// In parallel with other writers, over written bytes.
    InPlace,
    /// In parallel with other writers, into new blocks.
    NewBlocks,
    /// Excludes other writers: it covers part of a block, or a tail has to be zeroed first.
    Exclusive,
}

impl WritePlan {
    fn for_range(handle: &FileHandle, range: &Range<u64>) -> WritePlan {
        let is_whole = |block| (range.start | range.end) & (block - 1) == 0;
        match handle.map.is_in_place(range) {
            true if is_whole(handle.block_mask + 1) => WritePlan::InPlace,
            false if is_whole(block_size_of(handle)) && !exposes_tail(handle, range.start) => {
                WritePlan::NewBlocks
            }
            _ => WritePlan::Exclusive,
        }
    }
}

/// Begins a change of the file once the volume lets changes in: updates its modification time, and strips privileges where a
/// write has to. The change lasts until its guard is dropped.
pub(crate) async fn prepare_write<'h>(
    operation: &mut Operation,
    handle: &'h FileHandle,
) -> Result<Option<ChangeGuard<'h>>, Errno> {
    let change = match handle.map.change_gate() {
        None => None,
        Some(gate) => match gate.try_enter() {
            Some(change) => Some(change),
            None => Some(Box::pin(operation.wait_outside_epoch(gate.enter())).await?),
        },
    };
    if let Some(done) = handle.map.prepare_write() {
        operation.count(Counter::WriteStripPrivileges);
        operation.wait_outside_epoch(done).await??;
    }
    Ok(change)
}

/// Begins a write, in parallel with other writers where possible, without a lock while the bias holds.
pub(crate) async fn begin_write(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
) -> Result<WriteGuard, Errno> {
    let mut space_wait = SpaceWait::default();
    loop {
        // Loaded first: while the bias holds, a truncation waits for this operation.
        let is_biased = handle.state.is_biased();
        // Read before the map: after a truncation to 0 the map's answer is invalid.
        let mut generation = handle.map.generation();
        let plan = WritePlan::for_range(handle, &range);
        if plan == WritePlan::Exclusive {
            return Box::pin(begin_exclusive_write(operation, handle, range)).await;
        }
        let held = if is_biased {
            operation.count(match handle.submission {
                None => Counter::WriteUnlocked,
                Some(_) => Counter::WriteAlways,
            });
            HeldLocks::default()
        } else {
            operation.count(Counter::WriteRangeLocked);
            let lock = lock_and_write_back(
                operation,
                handle,
                range.clone(),
                range.clone(),
                LockMode::Overwrite,
            );
            let guard = Box::pin(lock).await?;
            generation = handle.map.generation();
            if WritePlan::for_range(handle, &range) != plan {
                continue;
            }
            HeldLocks { changed: range.clone(), range: Some(guard), _exclusion: None }
        };
        let (kind, block) = match plan {
            WritePlan::InPlace => (WriteKind::InPlace, handle.block_mask + 1),
            _ => match handle.map.allocate(
                range.clone(),
                &mut SpaceReservation::default(),
                generation,
            )? {
                AllocOutcome::Ready(()) => (WriteKind::Allocated, block_size_of(handle)),
                later => {
                    drop(held);
                    Box::pin(space_wait.wait(operation, later)).await?;
                    continue;
                }
            },
        };
        return Ok(WriteGuard { kind, block, generation, held });
    }
}

async fn begin_exclusive_write(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
) -> Result<WriteGuard, Errno> {
    let block = block_size_of(handle);
    let blocks = blocks_around(block, range.clone());
    let why = if blocks == range { Counter::WriteGap } else { Counter::WriteUnaligned };
    let exclusion = exclude(operation, handle, why).await?;
    let mut is_in_place = handle.map.is_in_place(&range);
    let (guard, generation) = loop {
        // An allocating write may have to zero the end of the last block as well.
        let locked = if is_in_place { blocks.start } else { 0 }..blocks.end;
        let guard =
            lock_and_write_back(operation, handle, locked.clone(), locked, LockMode::Exclusive)
                .await?;
        let generation = handle.map.generation();
        if !is_in_place || handle.map.is_in_place(&range) {
            break (guard, generation);
        }
        is_in_place = false;
    };
    // Beyond the end, the bytes between the end and the range change, too.
    let changed = blocks.start.min(handle.map.size())..blocks.end;
    let held = HeldLocks { changed, range: Some(guard), _exclusion: Some(exclusion) };
    if is_in_place {
        return Ok(WriteGuard { kind: WriteKind::InPlace, block, generation, held });
    }
    if exposes_tail(handle, range.start) {
        zero_tail(operation, handle).await?;
    }
    allocate(operation, handle, range, generation).await?;
    Ok(WriteGuard { kind: WriteKind::Allocated, block, generation, held })
}

/// Begins a write at the end of the file, excluding all other writers. Returns the guard and the offset.
/// `length` is called once the other writers are excluded.
///
/// # Errors
/// EFBIG; as [`begin_write`].
pub(crate) async fn begin_append(
    operation: &mut Operation,
    handle: &FileHandle,
    length: impl FnOnce() -> u64,
) -> Result<(WriteGuard, u64), Errno> {
    let mut held =
        lock_exclusive(operation, handle, Counter::WriteAppend, u64::MAX, |size| size..size)
            .await?;
    let (generation, offset) = handle.map.generation_and_size();
    let end =
        offset.checked_add(length()).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Errno::FBIG)?;
    held.changed = offset..end;
    allocate(operation, handle, offset..end, generation).await?;
    let (kind, block) = (WriteKind::Allocated, block_size_of(handle));
    Ok((WriteGuard { kind, block, generation, held }, offset))
}

/// Excludes every other writer of the file; counted as `why`. Dirty folios up to `clean_to` are written back.
/// `changed` maps the file's size to the range that will change.
pub(crate) async fn lock_exclusive(
    operation: &mut Operation,
    handle: &FileHandle,
    why: Counter,
    clean_to: u64,
    changed: impl FnOnce(u64) -> Range<u64>,
) -> Result<HeldLocks, Errno> {
    let exclusion = exclude(operation, handle, why).await?;
    let guard =
        lock_and_write_back(operation, handle, 0..u64::MAX, 0..clean_to, LockMode::Exclusive)
            .await?;
    let changed = changed(handle.map.size());
    Ok(HeldLocks { changed, range: Some(guard), _exclusion: Some(exclusion) })
}

/// Revokes the overwriters' bias and waits for overwrites in flight, unless it is revoked already.
async fn exclude(
    operation: &mut Operation,
    handle: &FileHandle,
    why: Counter,
) -> Result<Exclusion, Errno> {
    let (exclusion, epoch) = handle.state.exclude(handle.index);
    operation.count(why);
    if let Some(epoch) = epoch {
        operation.wait_for_quiescence(epoch).await?;
        // A file that was written in this way once usually is again.
        if matches!(why, Counter::WriteAppend | Counter::WriteUnaligned) {
            exclusion.quiesced();
        }
    }
    Ok(exclusion)
}

/// Locks a range against writers that do not overwrite whole blocks in place. If the range lies beyond the end,
/// the last block is zeroed from the end on first.
pub(crate) async fn lock_range(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
) -> Result<HeldLocks, Errno> {
    let guard =
        lock_and_write_back(operation, handle, range.clone(), range.clone(), LockMode::Exclusive)
            .await?;
    if !exposes_tail(handle, range.start) {
        return Ok(HeldLocks { changed: range, range: Some(guard), _exclusion: None });
    }
    drop(guard);
    let changed = |size| range.start.min(size)..range.end;
    let held = lock_exclusive(operation, handle, Counter::WriteGap, u64::MAX, changed).await?;
    zero_tail(operation, handle).await?;
    Ok(held)
}

/// True if the last block holds stale bytes beyond the file's end, from before a truncation, that a write at
/// `start` would make visible.
fn exposes_tail(handle: &FileHandle, start: u64) -> bool {
    let size = handle.map.size();
    start > size && start >= size.next_multiple_of(block_size_of(handle)) && has_tail(handle, size)
}

fn has_tail(handle: &FileHandle, size: u64) -> bool {
    !size.is_multiple_of(block_size_of(handle))
        && matches!(handle.map.map(size).state, MappingState::Written(_))
}

/// Zeroes the last block beyond the end before the file grows. Not at truncation: a power cut between the
/// zeroing and the new size would then lose bytes of the old file.
pub(crate) async fn zero_tail(operation: &Operation, handle: &FileHandle) -> Result<(), Errno> {
    let size = handle.map.size();
    if handle.map.resizable().is_none() || !has_tail(handle, size) {
        return Ok(());
    }
    let tail = size..size.next_multiple_of(block_size_of(handle));
    merge_zeros(operation, handle, block_size_of(handle), tail).await
}
