//! Buffered writes: bytes are copied to folios and written back later. A folio that is written in part is
//! filled first, unless the device has no data for it. Space on the device is reserved at once, so that ENOSPC
//! is reported at the write; write-back chooses the blocks.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use uringfs_cache::{CacheFull, FOLIO, Fill, FolioWaitResult, LockForWrite, ThrottleWait, WRITER};
use uringfs_device::{Durability, Errno, Payload};
use uringfs_reactor::{Counter, Operation};

use crate::buffered::coherence::begin_buffered;
use crate::buffered::read::start_fills;
use crate::direct::write::{writable_range, write_range};
use crate::io::space_wait::retry_for_space;
use crate::map::mapping::{MappingState, TruncateGeneration};
use crate::state::buffered_handle::BufferedHandleState;
use crate::state::delayed_allocation::DelayedFolios;
use crate::state::dirty::DirtyFile;
use crate::state::file::{File, FileHandle};
use crate::state::file_cache::{FileCache, folios_around};
use crate::state::file_state::{LockMode, RangeGuard};
use crate::state::readahead::ReadaheadWindow;
use crate::writeback::flusher::{Flusher, run_flusher, start_flusher};

/// Longest wait of a write at the dirty limit or for a free folio; then it goes to the device directly.
const THROTTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Folios that are added to the cache in one step.
const MAX_FILL_FOLIOS: u64 = 64;

/// Writes `payload` at `offset`, as [`crate::direct::write::write`].
pub(crate) async fn write(mut operation: Operation, file: File, payload: Payload, offset: u64) {
    let (payload, result) = write_payload(&mut operation, &file, payload, offset).await;
    operation.end_releasing(file, payload, result);
}

async fn write_payload(
    operation: &mut Operation,
    file: &File,
    payload: Payload,
    offset: u64,
) -> (Payload, Result<u64, Errno>) {
    let handle = &*file.handle;
    let (range, _change) = match writable_range(operation, handle, &payload, offset).await {
        Ok((range, _)) if range.is_empty() => return (payload, Ok(0)),
        Ok(writable) => writable,
        Err(error) => return (payload, Err(error)),
    };
    let buffered_handle = handle.cache().expect("a buffered write has a cache");
    let cache = handle.file_cache(buffered_handle);
    let mut buffered = BufferedWrite {
        file,
        buffered_handle,
        cache,
        payload,
        range: range.clone(),
        done: 0,
        generation: 0,
        delayed: DelayedFolios::default(),
    };
    let written = buffered.write(operation).await;
    let BufferedWrite { payload, done, delayed, .. } = buffered;
    drop(delayed);
    match written {
        Ok(WriteOutcome::Cached) => (payload, Ok(done)),
        Ok(WriteOutcome::Bypass) => {
            operation.count(Counter::CacheWriteBypassed);
            let durability = Durability::Volatile;
            let bypass = write_range(operation, handle, payload, range, durability);
            Box::pin(bypass).await
        }
        // A write that copied some bytes succeeds, even if the rest failed.
        Err(_) if done > 0 => (payload, Ok(done)),
        Err(error) => (payload, Err(error)),
    }
}

/// Outcome of a buffered write.
enum WriteOutcome {
    /// All of it is in the cache.
    Cached,
    /// No free folio, or too many dirty ones: all of it has to go to the device.
    Bypass,
}

/// A write in progress.
struct BufferedWrite<'f> {
    file: &'f File,
    buffered_handle: &'f BufferedHandleState,
    cache: &'f FileCache,
    payload: Payload,
    range: Range<u64>,
    done: u64,
    generation: TruncateGeneration,
    /// Reserved space of folios that have no blocks and are not dirty yet.
    delayed: DelayedFolios,
}

impl BufferedWrite<'_> {
    async fn write(&mut self, operation: &mut Operation) -> Result<WriteOutcome, Errno> {
        let handle = &*self.file.handle;
        begin_buffered(self.cache, operation, handle).await?;
        let _guard = lock_folios(operation, handle, &self.range).await?;
        // Again, under the lock: a truncation to 0 before this moment is noticed, and later writers wait.
        begin_buffered(self.cache, operation, handle).await?;
        self.generation = self.cache.generation();
        if self.range.start > handle.size() && !self.zero_tail(operation).await? {
            return Ok(WriteOutcome::Bypass);
        }
        if !handle.map.is_in_place(&self.range) {
            self.delayed = reserve(operation, handle, folios_around(&self.range)).await?;
        }
        while self.done < self.range.end - self.range.start {
            operation.check_cancelled()?;
            if !self.wait_below_dirty_limit(operation).await? {
                return Ok(WriteOutcome::Bypass);
            }
            if self.write_whole_folios(operation) {
                continue;
            }
            let index = (self.range.start + self.done) / FOLIO;
            match self.take_folio(operation, index).await? {
                Some(fill) => self.copy_to(operation, fill),
                None => return Ok(WriteOutcome::Bypass),
            }
        }
        self.buffered_handle.note_end(self.range.end);
        if self.buffered_handle.is_dropbehind() && handle.state.dirty().request_writeback() {
            self.spawn_flusher(operation);
        }
        Ok(WriteOutcome::Cached)
    }

    /// Waits while too many folios are dirty. Returns false if that takes too long, or if waiting cannot help
    /// because write-back fails.
    async fn wait_below_dirty_limit(&self, operation: &mut Operation) -> Result<bool, Errno> {
        let file_folios = self.cache.file_folios();
        if !file_folios.is_at_dirty_limit() {
            return Ok(true);
        }
        operation.count(Counter::CacheThrottled);
        let failures = file_folios.writeback_failures();
        let ended_in_time = self.wait_for(operation, file_folios.wait_below_dirty_limit()).await?;
        let has_failed =
            file_folios.writeback_failures() != failures && file_folios.is_at_dirty_limit();
        Ok(ended_in_time && !has_failed)
    }

    /// Waits until folios have been written back. Returns false if that takes too long.
    async fn wait_for(
        &self,
        operation: &mut Operation,
        below: ThrottleWait,
    ) -> Result<bool, Errno> {
        let dirty = self.file.handle.state.dirty();
        // After a failed write-back, the flusher would otherwise wait for its next interval.
        if dirty.is_any() && dirty.request_writeback() {
            self.spawn_flusher(operation);
        }
        Ok(operation.wait_outside_epoch_timeout(below, THROTTLE_TIMEOUT).await?.is_some())
    }

    /// Adds to the cache the next absent folios that this write covers entirely. Returns whether there were
    /// any.
    fn write_whole_folios(&mut self, operation: &Operation) -> bool {
        let at = self.range.start + self.done;
        let first = at / FOLIO;
        let folios = first..(self.range.end / FOLIO).min(first + MAX_FILL_FOLIOS);
        if !at.is_multiple_of(FOLIO) || folios.is_empty() {
            return false;
        }
        let fills = self.begin_fills(folios).unwrap_or_default();
        let is_any = !fills.is_empty();
        fills.into_iter().for_each(|fill| self.copy_to(operation, fill));
        is_any
    }

    /// Adds absent folios to the cache, to overwrite all of them.
    fn begin_fills(&self, folios: Range<u64>) -> Result<Vec<Fill>, CacheFull> {
        let mut fills = self.cache.file_folios().begin_fill(folios, WRITER)?;
        if self.buffered_handle.is_dropbehind() {
            fills.iter_mut().for_each(Fill::set_dropbehind);
        }
        Ok(fills)
    }

    /// Takes a folio with its content for writing. `None` if the cache has no space for it.
    async fn take_folio(
        &self,
        operation: &mut Operation,
        index: u64,
    ) -> Result<Option<Fill>, Errno> {
        let (handle, file_folios) = (&*self.file.handle, self.cache.file_folios());
        loop {
            operation.check_cancelled()?;
            let has_room = match file_folios.lock_for_write(index) {
                Ok(LockForWrite::Acquired(fill)) => return Ok(Some(fill)),
                Ok(LockForWrite::Locked { holder }) => {
                    let wait = file_folios.wait(index);
                    let waited = match holder == WRITER || holder == operation.reactor_number() {
                        true => Some(operation.wait_outside_epoch(wait).await?),
                        false => {
                            operation
                                .wait_outside_epoch_timeout(wait, self.cache.fill_timeout())
                                .await?
                        }
                    };
                    match waited {
                        Some(FolioWaitResult::Failed(error)) => return Err(error),
                        Some(FolioWaitResult::Ready(_) | FolioWaitResult::LookAgain) => true,
                        None => return Ok(None),
                    }
                }
                Ok(LockForWrite::Absent) if has_no_data(handle, index) => {
                    match self.begin_fills(index..index + 1) {
                        Ok(fills) => {
                            if let Some(mut fill) = fills.into_iter().next() {
                                fill.bytes().fill(0);
                                return Ok(Some(fill));
                            }
                            true
                        }
                        Err(_) => false,
                    }
                }
                Ok(LockForWrite::Absent) => {
                    let window = ReadaheadWindow { folios: index..index + 1, marker: None };
                    let wanted = window.folios.clone();
                    start_fills(operation, self.file, self.cache, window, &wanted).is_ok()
                }
                Err(_) => false,
            };
            if !has_room {
                let Some(cleaned) = file_folios.wait_one_cleaned() else { return Ok(None) };
                if !self.wait_for(operation, cleaned).await? {
                    return Ok(None);
                }
            }
        }
    }

    /// Copies the next bytes of the payload to folios and marks them dirty.
    fn copy_to(&mut self, operation: &Operation, mut fill: Fill) {
        let folios = fill.range();
        let at = self.range.start + self.done;
        let end = folios.end.min(self.range.end);
        let (start_in_fill, end_in_fill) =
            ((at - folios.start) as usize, (end - folios.start) as usize);
        self.payload.copy_to(self.done, &mut fill.bytes()[start_in_fill..end_in_fill]);
        if self.buffered_handle.counts_as_use(self.range.start, self.done) {
            fill.touch(u32::MAX);
        }
        self.done += end - at;
        self.mark_dirty(operation, fill, end);
    }

    /// Zeroes the last folio beyond the file's end before the file grows. Returns false if the cache has no
    /// space for it.
    async fn zero_tail(&mut self, operation: &mut Operation) -> Result<bool, Errno> {
        let handle = &*self.file.handle;
        let size = handle.size();
        let (index, inside) = (size / FOLIO, (size % FOLIO) as usize);
        // The cache has zeros where the device has no data.
        if inside == 0 || has_no_data(handle, index) {
            return Ok(true);
        }
        let Some(mut fill) = self.take_folio(operation, index).await? else { return Ok(false) };
        fill.bytes()[inside..].fill(0);
        self.mark_dirty(operation, fill, size);
        Ok(true)
    }

    /// Marks changed folios dirty, with data up to `end`.
    fn mark_dirty(&mut self, operation: &Operation, fill: Fill, end: u64) {
        let dirty = self.file.handle.state.dirty();
        let range = fill.range();
        operation.count_many(Counter::CacheDirtied, (range.end - range.start) / FOLIO);
        let keep = || -> Arc<dyn DirtyFile> { self.file.direct().handle };
        if dirty.mark_dirty(keep, fill, end, self.generation, &mut self.delayed) {
            self.spawn_flusher(operation);
        }
    }

    /// Starts the flusher. In virtual time it runs on this reactor.
    fn spawn_flusher(&self, operation: &Operation) {
        let FileHandle { state, device_inner, .. } = &*self.file.handle;
        if operation.has_virtual_clock() {
            let flusher = Flusher::new(state);
            operation.spawn_detached(device_inner, |operation| run_flusher(operation, flusher));
        } else {
            start_flusher(state, device_inner);
        }
    }
}

/// Locks the folios of a range; for a write beyond the end, the bytes between the end and the range as well.
async fn lock_folios(
    operation: &mut Operation,
    handle: &FileHandle,
    range: &Range<u64>,
) -> Result<RangeGuard, Errno> {
    loop {
        let start = range.start.min(handle.size());
        let lock = handle.state.lock_range(start..range.end, LockMode::Buffered);
        let guard = operation.wait_outside_epoch(lock).await?;
        if range.start.min(handle.size()) >= start {
            return Ok(guard);
        }
    }
}

/// Reserves space for those folios of a range that have neither blocks nor reserved space.
async fn reserve(
    operation: &mut Operation,
    handle: &FileHandle,
    folios: Range<u64>,
) -> Result<DelayedFolios, Errno> {
    let unreserved = handle.state.dirty().needing_reservation(&handle.map, folios);
    if unreserved.is_empty() {
        return Ok(DelayedFolios::default());
    }
    let bytes = unreserved.len() as u64 * FOLIO;
    let room = retry_for_space(operation, || handle.map.reserve_space(bytes)).await?;
    Ok(DelayedFolios::new(unreserved, room))
}

/// True if the device has no data for a folio.
fn has_no_data(handle: &FileHandle, index: u64) -> bool {
    let start = index * FOLIO;
    let size = handle.map.size();
    if start >= size {
        return true;
    }
    let mapping = handle.map.map(start);
    !matches!(mapping.state, MappingState::Written(_)) && mapping.length >= FOLIO.min(size - start)
}
