//! Reads through the page cache.
//!
//! 1. **Hit**: [`read_now`] looks each folio up without a lock and shares its frame. A shared frame is never
//!    changed. The bytes are copied, then the size is read, then the share is released. If all folios are cached
//!    the read is complete: no operation, no request.
//! 2. **Miss**: an operation, that of `single_miss` where the read misses one folio and nothing
//!    is read ahead, else [`read`]. A file's first buffered operation enables range locks and waits for
//!    overwrites that have not seen it ([`begin_buffered`]).
//! 3. **Fill**: absent folios are inserted under a fill guard, with neighbouring frames where possible, so that a
//!    readahead window is one request. The reader that missed fills its folio and can be cancelled only
//!    afterwards. Readahead runs as operations of its own.
//! 4. **Wait**: if another reader fills the folio, this one registers a callback; no thread blocks. The end of the
//!    fill wakes each waiter and gives it a share, so that the folio cannot be evicted before the copy. A failed
//!    fill fails each waiter; a run that failed together is retried folio by folio.
//! 5. **Around the cache**: the read goes to the device when no folio can be evicted, or when another reactor's
//!    fill takes more than four times the usual time.
//!
//! With `buffered.wait=thread` a miss is handed to a thread of the blocking pool, which sleeps until the bytes
//! are cached.
//!
//! A direct write, truncate or punch removes the folios of its range when it releases its lock, after bytes and
//! map have changed ([`HeldLocks`](crate::direct::write_guard::HeldLocks)). If it extends the file it also
//! removes them together with the change of the size: the reader takes the size first, and waits for that
//! ([`FileCache::settled_size`]). A folio that is being filled then is marked, and its bytes are dropped. A folio
//! that is being read is detached: look-ups miss it, and the last reader frees its frame.

use std::ops::Range;

use uringfs_buffer::Buffer;
use uringfs_cache::{CacheFull, FOLIO, Fill, FolioWaitResult, Lookup, WRITER};
use uringfs_device::{Durability, Errno, Op, Payload};
use uringfs_reactor::{Counter, OpResult, Operation, Reactor};

use crate::buffered::blocking_pool;
use crate::buffered::coherence::begin_buffered;
use crate::io::bounce::{blocks_around, read_blocks, single_buffer};
use crate::io::transfer::transfer;
use crate::state::buffered_handle::{Advice, BufferedHandleState};
use crate::state::file::{File, FileHandle};
use crate::state::file_cache::FileCache;
use crate::state::readahead::{MarkedFolio, ReadaheadWindow};

/// Folios that one `WillNeed` fill covers at most.
const MAX_ADVISED_FOLIOS: u64 = 256;

/// How [`read_now`] looks folios up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupKind {
    /// Finds every folio that is cached.
    Exact,
    /// Takes no lock, so it may miss a folio that another thread moves at this moment. For a caller that goes on to an
    /// operation after a miss: that one looks again.
    Lockless,
}

/// Memory that cached bytes are copied to: a slice, or a buffer, which may be of memory that others change.
pub(crate) trait CopyTarget {
    fn length(&self) -> usize;

    /// Overwrites the bytes from `start` on with a copy of `bytes`.
    fn copy_from(&mut self, start: usize, bytes: &[u8]);
}

impl CopyTarget for [u8] {
    #[inline(always)]
    fn length(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn copy_from(&mut self, start: usize, bytes: &[u8]) {
        self[start..start + bytes.len()].copy_from_slice(bytes);
    }
}

impl CopyTarget for Buffer {
    #[inline(always)]
    fn length(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn copy_from(&mut self, start: usize, bytes: &[u8]) {
        Buffer::copy_from(self, start, bytes);
    }
}

/// Reads if all bytes are cached. `None` if the read would have to wait or start a fill. Returns the number of
/// bytes, fewer at the end of the file.
#[inline]
pub(crate) fn read_now(
    handle: &FileHandle,
    into: &mut (impl CopyTarget + ?Sized),
    offset: u64,
    lookup: LookupKind,
) -> Option<usize> {
    let buffered_handle = handle.cache_for_reads()?;
    let cache = handle.file_cache(buffered_handle);
    if !cache.is_current(handle.map.generation()) {
        return None;
    }
    handle.map.touch_atime();
    let mut done = 0;
    while done < into.length() {
        let at = offset.checked_add(done as u64)?;
        let size = cache.settled_size(|| handle.size());
        let (folios, index) = (cache.file_folios(), at / FOLIO);
        let found = match lookup {
            LookupKind::Lockless => folios.lookup_lockless(index),
            LookupKind::Exact => match folios.lookup(index) {
                Lookup::Found(found) => Some(found),
                Lookup::Locked { .. } | Lookup::Absent => None,
            },
        };
        let Some(found) = found else {
            return (at >= size).then_some(done);
        };
        if found.has_readahead_marker() {
            return None;
        }
        if buffered_handle.counts_as_use(offset, done as u64) {
            found.touch();
        }
        let bytes = bytes_in_file(handle, &found, at, size);
        let count = bytes.len().min(into.length() - done);
        into.copy_from(done, &bytes[..count]);
        done += count;
        if bytes.len() as u64 + at % FOLIO < FOLIO {
            break;
        }
    }
    let end = offset + done as u64;
    buffered_handle.note_end(end);
    if buffered_handle.is_dropbehind() {
        cache.drop_behind(offset..end, handle.size());
    }
    Some(done)
}

/// The bytes of adjacent folios from offset `at` on that are inside the file. Two sizes limit them: `size`, from
/// before the lookup, since a writer may have moved a folio to a copy and then extended the file; and the current
/// size, since the file may have been truncated.
#[inline(always)]
fn bytes_in_file<'f>(handle: &FileHandle, folios: &'f [u8], at: u64, size: u64) -> &'f [u8] {
    let (start, length) = (at % FOLIO, folios.len() as u64);
    let end = (start + handle.size().min(size).saturating_sub(at)).min(length).max(start);
    &folios[start as usize..end as usize]
}

/// Reads at `offset` into `payload`: fewer bytes at the end of the file.
pub(crate) async fn read(mut operation: Operation, file: File, payload: Payload, offset: u64) {
    let mut payload = payload;
    let mut done = 0;
    let ended = read_all(&mut operation, &file, &mut payload, offset, &mut done).await;
    if let Some(buffered_handle) = file.handle.cache() {
        let end = offset.saturating_add(done);
        buffered_handle.note_end(end);
        if buffered_handle.is_dropbehind() {
            file.handle.file_cache(buffered_handle).drop_behind(offset..end, file.handle.size());
        }
    }
    // A read that copied some bytes succeeds, even if the rest failed.
    let result = if done > 0 { Ok(done) } else { ended.map(|()| 0) };
    operation.end_releasing(file, payload, result);
}

/// Applies advice: fills the cache with a range, or removes the range from it.
pub(crate) async fn advise(
    mut operation: Operation,
    file: File,
    advice: Advice,
    offset: u64,
    length: u64,
) {
    let result = apply_advice(&mut operation, &file, advice, offset, length).await;
    operation.end_releasing(file, Payload::Length(length), result.map(|()| 0));
}

async fn apply_advice(
    operation: &mut Operation,
    file: &File,
    advice: Advice,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    let handle = &*file.handle;
    // A direct handle ignores advice.
    let Some(buffered_handle) = handle.cache() else { return Ok(()) };
    buffered_handle.advise(advice);
    let cache = handle.file_cache(buffered_handle);
    let end = offset.saturating_add(length);
    match advice {
        Advice::WillNeed => {
            begin_buffered(cache, operation, handle).await?;
            let last = end.min(handle.size()).div_ceil(FOLIO);
            let mut index = offset / FOLIO;
            while index < last {
                operation.check_cancelled()?;
                let folios = index..last.min(index + MAX_ADVISED_FOLIOS);
                index = folios.end;
                let window = ReadaheadWindow { folios, marker: None };
                if start_fills(operation, file, cache, window, &(0..0)).is_err() {
                    break;
                }
            }
        }
        // Folios that the range covers in part stay: others may need them.
        Advice::DoNotNeed => {
            cache.file_folios().invalidate_clean(offset.div_ceil(FOLIO)..end / FOLIO);
        }
        Advice::Normal | Advice::Sequential | Advice::Random => {}
        Advice::NoReuse | Advice::DontCache => {}
    }
    Ok(())
}

/// A read with `buffered.wait=thread`: a pool thread waits for the misses.
pub(crate) async fn read_in_thread(
    operation: Operation,
    payload: Payload,
    read: impl FnOnce(&Reactor, Payload) -> OpResult + Send + 'static,
) {
    operation.count(Counter::CacheThreads);
    let mut operation = operation;
    // A cancelled read still gets its memory back when the thread is done with it.
    let queue = operation.queue_kind();
    let read = blocking_pool::read(payload, queue, read);
    let (payload, result) = operation.outside_epoch(read).await;
    let stopped = operation.check_cancelled().map(|()| 0);
    operation.end(payload, stopped.and(result));
}

async fn read_all(
    operation: &mut Operation,
    file: &File,
    payload: &mut Payload,
    offset: u64,
    done: &mut u64,
) -> Result<(), Errno> {
    let handle = &*file.handle;
    let buffered_handle = handle.cache().expect("a buffered read has a cache");
    let cache = handle.file_cache(buffered_handle);
    begin_buffered(cache, operation, handle).await?;
    handle.map.touch_atime();
    let length = payload.length();
    let mut one_folio_only = false;
    while *done < length {
        let size = cache.settled_size(|| handle.size());
        let Some(at) = offset.checked_add(*done).filter(|at| *at < size) else {
            break;
        };
        let index = at / FOLIO;
        match cache.file_folios().lookup(index) {
            Lookup::Found(found) => {
                let is_marked = found.take_readahead_marker();
                if buffered_handle.counts_as_use(offset, *done) {
                    found.touch();
                }
                *done += copy(handle, payload, *done, at, &found, size);
                drop(found);
                if is_marked {
                    let marked = MarkedFolio::Cached;
                    read_ahead(operation, file, buffered_handle, cache, index, marked);
                }
            }
            Lookup::Locked { holder, is_marked } => {
                let marked = MarkedFolio::Awaited;
                if is_marked {
                    read_ahead(operation, file, buffered_handle, cache, index, marked);
                }
                operation.count(Counter::CacheWaits);
                let wait = cache.file_folios().wait(index);
                // A writer never waits while it holds a folio, and the device may not have its bytes: no time limit.
                let waited = match holder == operation.reactor_number() || holder == WRITER {
                    true => Some(operation.wait_outside_epoch(wait).await?),
                    false => {
                        operation.wait_outside_epoch_timeout(wait, cache.fill_timeout()).await?
                    }
                };
                let Some(waited) = waited else {
                    operation.count(Counter::CacheWaitTimeout);
                    let range = at..size.min(at + (length - *done));
                    *done += read_around_cache(operation, handle, payload, *done, range).await?;
                    continue;
                };
                operation.count(Counter::CacheRestarted);
                match waited {
                    FolioWaitResult::Ready(folio) => {
                        let is_marked = folio.take_readahead_marker();
                        if buffered_handle.counts_as_use(offset, *done) {
                            folio.touch_once();
                        }
                        *done += copy(handle, payload, *done, at, &folio, size);
                        if is_marked {
                            read_ahead(operation, file, buffered_handle, cache, index, marked);
                        }
                    }
                    FolioWaitResult::Failed(error) => return Err(error),
                    FolioWaitResult::LookAgain => one_folio_only = true,
                }
            }
            Lookup::Absent => {
                operation.check_cancelled()?;
                let last = (at + (length - *done)).div_ceil(FOLIO);
                let mut window = match one_folio_only {
                    true => ReadaheadWindow { folios: index..index + 1, marker: None },
                    false => buffered_handle.readahead.lock().on_miss(index, (last - index) as u32),
                };
                let marker = window.marker.take_if(|mark| *mark < last);
                let Ok(fills) = begin_fills(operation, file, cache, window, &(index..last)) else {
                    operation.count(Counter::CacheBypassed);
                    let range = at..size.min(at + (length - *done));
                    *done += read_around_cache(operation, handle, payload, *done, range).await?;
                    continue;
                };
                let filled =
                    fill_first(operation, file, buffered_handle, cache, fills, marker).await;
                let Some((mut fill, filled)) = filled else { continue };
                let is_active = operation.check_cancelled();
                if filled.is_ok() && is_active.is_ok() {
                    if buffered_handle.counts_as_use(offset, *done) {
                        fill.touch((last - index) as u32);
                    }
                    *done += copy(handle, payload, *done, at, fill.bytes(), size);
                }
                let is_one = fill.range().end / FOLIO == index + 1;
                fill.end(filled);
                is_active?;
                if is_one {
                    filled?;
                }
                // A fill of several folios has failed: try each by itself.
                one_folio_only |= filled.is_err();
            }
        }
    }
    Ok(())
}

/// Fills the first folios of `fills` here, if there are any, and the others in operations of their own. If the
/// read has reached a marker, the next window starts.
async fn fill_first(
    operation: &Operation,
    file: &File,
    buffered_handle: &BufferedHandleState,
    cache: &FileCache,
    fills: Vec<Fill>,
    marker: Option<u64>,
) -> Option<(Fill, Result<(), Errno>)> {
    let mut fills = fills.into_iter();
    let mut fill = fills.next()?;
    let start_others = || {
        fills.for_each(|fill| start_fill(operation, file, fill));
        if let Some(mark) = marker {
            read_ahead(operation, file, buffered_handle, cache, mark, MarkedFolio::Awaited);
        }
    };
    // Not cancellable: other readers wait for this fill.
    let filling = fill_from_device(operation, &file.handle, cache, &mut fill, start_others);
    let filled = operation.uncancellable(filling).await;
    Some((fill, filled))
}

/// Copies the requested bytes of adjacent folios; they begin in the first.
pub(crate) fn copy(
    handle: &FileHandle,
    payload: &mut Payload,
    done: u64,
    at: u64,
    folios: &[u8],
    size: u64,
) -> u64 {
    let bytes = bytes_in_file(handle, folios, at, size);
    let count = bytes.len().min((payload.length() - done) as usize);
    payload.copy_from(done, &bytes[..count]);
    count as u64
}

/// Starts the next readahead window: the read has reached the marker of the last.
fn read_ahead(
    operation: &Operation,
    file: &File,
    buffered_handle: &BufferedHandleState,
    cache: &FileCache,
    index: u64,
    marked: MarkedFolio,
) {
    let window = buffered_handle.readahead.lock().on_marker(index, marked);
    if let Some(window) = window {
        // Without free folios there is no readahead.
        let _ = start_fills(operation, file, cache, window, &(0..0));
    }
}

/// Adds the absent folios of a window to the cache and starts their fills. `wanted` is the part that a read has
/// requested.
pub(crate) fn start_fills(
    operation: &Operation,
    file: &File,
    cache: &FileCache,
    window: ReadaheadWindow,
    wanted: &Range<u64>,
) -> Result<(), CacheFull> {
    let fills = begin_fills(operation, file, cache, window, wanted)?;
    fills.into_iter().for_each(|fill| start_fill(operation, file, fill));
    Ok(())
}

/// Adds the folios of a window to the cache, as far as they are absent and inside the file.
fn begin_fills(
    operation: &Operation,
    file: &File,
    cache: &FileCache,
    window: ReadaheadWindow,
    wanted: &Range<u64>,
) -> Result<Vec<Fill>, CacheFull> {
    let end = file.handle.size().div_ceil(FOLIO).min(window.folios.end);
    let folios = window.folios.start..end.max(window.folios.start);
    let mut fills = cache.file_folios().begin_fill(folios, operation.reactor_number())?;
    for fill in &mut fills {
        let range = fill.range();
        if file.handle.cache().is_some_and(BufferedHandleState::is_dropbehind) {
            fill.set_dropbehind();
        }
        if let Some(mark) = window.marker.filter(|mark| range.contains(&(mark * FOLIO))) {
            fill.set_readahead_marker(mark * FOLIO);
        }
        let folios = range.start / FOLIO..range.end / FOLIO;
        let requested = folios.end.min(wanted.end).saturating_sub(folios.start.max(wanted.start));
        operation.count_many(Counter::CacheFilled, requested);
        operation.count_many(Counter::CacheReadahead, folios.end - folios.start - requested);
    }
    Ok(fills)
}

/// Fills folios in an operation of its own.
fn start_fill(operation: &Operation, file: &File, mut fill: Fill) {
    let file = file.clone();
    operation.spawn_detached(&file.handle.device_inner.clone(), async move |operation| {
        let handle = &*file.handle;
        let buffered_handle = handle.cache().expect("a buffered read has a cache");
        let result = fill_from_device(
            &operation,
            handle,
            handle.file_cache(buffered_handle),
            &mut fill,
            || {},
        )
        .await;
        fill.end(result);
        operation.end(Payload::Length(0), Ok(0));
    });
}

/// Fills folios from the device, and calls `meanwhile` once the read is issued. Bytes beyond the file's end
/// become zeros.
async fn fill_from_device(
    operation: &Operation,
    handle: &FileHandle,
    cache: &FileCache,
    fill: &mut Fill,
    meanwhile: impl FnOnce(),
) -> Result<(), Errno> {
    let range = fill.range();
    let timing = cache.begin_timing(|| operation.now());
    let block = handle.block_mask + 1;
    let end = handle.map.size().next_multiple_of(block).clamp(range.start, range.end);
    let mut buffer = fill.lend();
    let rest = (end < range.end).then(|| {
        let mut rest = buffer.split_off((end - range.start) as usize);
        rest.fill(0);
        rest
    });
    let (mut buffer, result) = match buffer.is_empty() {
        true => {
            meanwhile();
            (buffer, Ok(()))
        }
        false => {
            let payload = Payload::Buffer(buffer);
            let read =
                transfer(operation, handle, Op::Read, Durability::Volatile, payload, range.start);
            meanwhile();
            let ended = read.await;
            let result = ended.result().map(drop);
            (single_buffer(ended.payload), result)
        }
    };
    // By the current size. If the file has grown during the read, the new bytes are kept, or the writer
    // invalidates the folio. If it was truncated, the truncation invalidates the folio.
    let there = handle.map.size().saturating_sub(range.start).min(buffer.len() as u64);
    buffer[there as usize..].fill(0);
    if let Some(rest) = rest {
        let joined = buffer.join(rest);
        assert!(joined.is_ok(), "they were one buffer");
    }
    fill.take_back(buffer);
    cache.end_timing(timing, || operation.now());
    result
}

/// Reads the beginning of a range from the device, past the cache, up to the end of a folio. The range ends at the file's
/// end as it was before. The device has the bytes that the cache would have, and zeros beyond its own size.
async fn read_around_cache(
    operation: &Operation,
    handle: &FileHandle,
    payload: &mut Payload,
    done: u64,
    range: Range<u64>,
) -> Result<u64, Errno> {
    let at = range.start;
    let end = (at / FOLIO * FOLIO + FOLIO).min(range.end);
    let blocks = blocks_around(handle.block_mask + 1, at..end);
    let start = blocks.start;
    let mut bytes = match start < handle.map.size() {
        true => read_blocks(operation, handle, blocks).await?,
        false => Buffer::zeroed((blocks.end - start) as usize),
    };
    let there = handle.map.size().saturating_sub(start).min(bytes.len() as u64);
    bytes[there as usize..].fill(0);
    // The file may have been truncated meanwhile.
    let count = (end - at).min(handle.size().saturating_sub(at));
    let skip = (at - start) as usize;
    payload.copy_from(done, &bytes[skip..skip + count as usize]);
    Ok(count)
}
