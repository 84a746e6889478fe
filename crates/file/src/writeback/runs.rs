//! Write-back of dirty folios, in long runs in the order of the file. A sync does it, direct I/O does it for
//! its range, and the flusher does it in the background.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::LazyLock;

use uringfs_buffer::{Buffer, BufferPool};
use uringfs_cache::{FOLIO, Lookup};
use uringfs_device::{Durability, Errno, Op, Payload};
use uringfs_reactor::{Counter, Operation};

use crate::io::bounce::{block_size_of, bounce, single_buffer};
use crate::io::space_wait::allocate_reserved;
use crate::io::transfer::{Transfer, transfer};
use crate::map::mapping::{WriteKind, WriteOrigin};
use crate::state::dirty::{WritebackOutcome, WritebackRun};
use crate::state::file::{File, FileHandle};
use crate::state::file_cache::{FileCache, bytes_of, folios_around};
use crate::state::file_state::{LockMode, RangeGuard};

/// Folios of one run at most.
const MAX_RUN_FOLIOS: u64 = 2048;
/// Bytes of one write, and writes in flight at once.
const MAX_WRITE_BYTES: u64 = 1 << 20;
const MAX_WRITES_IN_FLIGHT: usize = 4;
/// Buffers for full writes, registered with the rings. Further writes allocate. `None` where the pool cannot be
/// allocated.
static COPY_BUFFERS: LazyLock<Option<BufferPool>> =
    LazyLock::new(|| BufferPool::new(MAX_WRITE_BYTES as usize, 2 * MAX_WRITES_IN_FLIGHT).ok());

/// If the range goes beyond the on-disk size (ext4 `i_disksize`), moves its start down to there. The file grows in
/// order; otherwise stale bytes of its last block, beyond the end, would become visible.
fn extended_down_to_disk_size(handle: &FileHandle, folios: &Range<u64>) -> Range<u64> {
    let last = handle.map.size() / FOLIO;
    let start = if folios.end > last { folios.start.min(last) } else { folios.start };
    start..folios.end
}

/// Writes back the dirty folios of a range of bytes, and waits for folios of the range that other operations write
/// back. After an error it goes on behind the failed run, except that the file does not grow past it.
///
/// # Errors
/// The device's first error. Folios that could not be written stay dirty.
pub(crate) async fn write_back(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
) -> Result<(), Errno> {
    let dirty = handle.state.dirty();
    let Some(cache) = handle.state.existing_cache().filter(|_| dirty.is_any()) else {
        return Ok(());
    };
    let end = dirty.end().max(handle.map.size());
    let folios = folios_around(&(range.start.min(end)..range.end.min(end)));
    let (mut at, mut spare) = (folios.start, Vec::new());
    let (mut redirtied, mut result) = (dirty.redirtied(), Ok(()));
    loop {
        let rest = extended_down_to_disk_size(handle, &(at..folios.end));
        let next = if at < folios.end { dirty.first_run(rest, MAX_RUN_FOLIOS) } else { None };
        let Some(run) = next else {
            // Other operations write back part of the range, or have returned part of it as dirty.
            if dirty.is_in_writeback(&folios) {
                let lock = handle.state.lock_range(bytes_of(&folios), LockMode::Writeback);
                operation.wait_outside_epoch(lock).await?;
            }
            if result.is_err() || dirty.redirtied() == redirtied {
                return result;
            }
            (at, redirtied) = (folios.start, dirty.redirtied());
            continue;
        };
        let run = extended_down_to_disk_size(handle, &run);
        let lock = handle.state.lock_range(bytes_of(&run), LockMode::Writeback);
        let _guard = operation.wait_outside_epoch(lock).await?;
        if extended_down_to_disk_size(handle, &run).start < run.start {
            // The file was truncated during the wait.
            continue;
        }
        let Some(run) = dirty.take_run(cache.file_folios(), run.clone(), MAX_RUN_FOLIOS) else {
            at = at.max(run.end);
            continue;
        };
        let written = run.folios();
        at = at.max(written.end);
        if let Err(error) = write_back_run(operation, handle, cache, run, &mut spare).await {
            result = result.and(Err(error));
            let is_at_end = written.end > handle.map.size() / FOLIO;
            if is_at_end || operation.is_cancellation(error) {
                return result;
            }
        }
    }
}

/// Locks `range`, and writes back the dirty folios of its part `clean` under the lock.
///
/// # Errors
/// As [`write_back`].
pub(crate) async fn lock_and_write_back(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
    clean: Range<u64>,
    mode: LockMode,
) -> Result<RangeGuard, Errno> {
    let dirty = handle.state.dirty();
    loop {
        let locked = match dirty.is_any() {
            true => {
                range
                    .start
                    .min(extended_down_to_disk_size(handle, &folios_around(&clean)).start * FOLIO)
                    ..range.end
            }
            false => range.clone(),
        };
        let guard =
            operation.wait_outside_epoch(handle.state.lock_range(locked.clone(), mode)).await?;
        let Some(cache) = handle.state.existing_cache().filter(|_| dirty.is_any()) else {
            return Ok(guard);
        };
        let folios = extended_down_to_disk_size(handle, &folios_around(&clean));
        if folios.start * FOLIO >= locked.start {
            let mut spare = Vec::new();
            while let Some(run) =
                dirty.take_run(cache.file_folios(), folios.clone(), MAX_RUN_FOLIOS)
            {
                Box::pin(write_back_run(operation, handle, cache, run, &mut spare)).await?;
            }
            return Ok(guard);
        }
    }
}

/// Writes a run back. The caller excludes other write-back of it, and writers that bypass the cache.
async fn write_back_run(
    operation: &mut Operation,
    handle: &FileHandle,
    cache: &FileCache,
    mut run: WritebackRun<'_>,
    spare: &mut Vec<Buffer>,
) -> Result<(), Errno> {
    let result = write_run(operation, handle, cache, &mut run, spare).await;
    let result = match result {
        // It found no blocks or no folios any more: the file was truncated to 0 meanwhile.
        Err(Errno::IO) if handle.map.generation() != run.generation => Ok(()),
        result => result,
    };
    run.end_writeback(match result {
        Ok(()) => WritebackOutcome::Clean,
        Err(error) if operation.is_cancellation(error) => WritebackOutcome::Cancelled,
        Err(_) => WritebackOutcome::Failed,
    });
    result
}

/// Writes a run, in several writes: while some are in flight the next is copied.
async fn write_run(
    operation: &mut Operation,
    handle: &FileHandle,
    cache: &FileCache,
    run: &mut WritebackRun<'_>,
    spare: &mut Vec<Buffer>,
) -> Result<(), Errno> {
    let bytes = bytes_of(&run.folios());
    // Up to the size that the file has once this is written.
    let range = bytes.start..bytes.end.min(handle.size());
    if range.is_empty() || handle.map.generation() != run.generation {
        return Ok(());
    }
    let kind = match handle.map.is_in_place(&range) {
        true => WriteKind::InPlace,
        false => {
            let (generation, reservation) = (run.generation, run.delayed.reservation());
            allocate_reserved(operation, handle, range.clone(), reservation, generation).await?;
            WriteKind::Allocated
        }
    };
    operation.count_many(Counter::CacheWrittenBack, run.folios().end - run.folios().start);
    let operation = &*operation;
    let mut in_flight: VecDeque<Transfer<'_>> = VecDeque::new();
    let (mut at, mut result) = (range.start, Ok(()));
    loop {
        if at < range.end && result.is_ok() && in_flight.len() < MAX_WRITES_IN_FLIGHT {
            let piece = at..range.end.min(at + MAX_WRITE_BYTES);
            at = piece.end;
            match copy_of_range(handle, cache, piece.clone(), spare).await {
                Err(error) => result = Err(error),
                Ok(buffer) => {
                    let payload = Payload::Buffer(buffer);
                    let volatile = Durability::Volatile;
                    let write =
                        transfer(operation, handle, Op::Write, volatile, payload, piece.start);
                    in_flight.push_back(write);
                }
            }
            continue;
        }
        let Some(write) = in_flight.pop_front() else { break };
        let ended = write.await;
        let written = ended.result();
        spare.push(single_buffer(ended.payload));
        result = result.and(written.map(drop));
    }
    result?;
    handle.map.mark_written(kind, range, run.generation, WriteOrigin::Writeback);
    Ok(())
}

/// A copy of a range's folios, padded with zeros to the end of a block.
async fn copy_of_range(
    handle: &FileHandle,
    cache: &FileCache,
    range: Range<u64>,
    spare: &mut Vec<Buffer>,
) -> Result<Buffer, Errno> {
    let length = range.end.next_multiple_of(block_size_of(handle)) - range.start;
    let spare_buffer = spare.pop_if(|buffer| buffer.len() as u64 == length);
    let from_pool = || (length == MAX_WRITE_BYTES).then(|| COPY_BUFFERS.as_ref()?.get()).flatten();
    let mut buffer = spare_buffer.or_else(from_pool).unwrap_or_else(|| bounce(handle, length));
    for (index, into) in folios_around(&range).zip(buffer.chunks_mut(FOLIO as usize)) {
        loop {
            match cache.file_folios().lookup(index) {
                Lookup::Found(found) => break into.copy_from_slice(&found[..into.len()]),
                Lookup::Locked { .. } => drop(cache.file_folios().wait(index).await),
                Lookup::Absent => return Err(Errno::IO),
            }
        }
    }
    buffer[(range.end - range.start) as usize..].fill(0);
    Ok(buffer)
}

/// Writes all dirty folios back.
pub(crate) async fn write_back_all(mut operation: Operation, file: File) {
    let clean = write_back(&mut operation, &file.handle, 0..u64::MAX).await;
    operation.end_releasing(file, Payload::Length(0), clean.map(|()| 0));
}
