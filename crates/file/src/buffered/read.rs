//! Reads through the page cache. What is there is copied at once. Who finds a folio that somebody fills leaves a
//! callback on it and goes on when that is done; who finds none fills it, and hears only then that it was to stop.
//! What is read ahead is filled by operations of their own. No thread waits, ever.

use std::ops::Range;

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_cache::{FOLIO, Fill, Full, Look, Told, WRITER};
use uringfs_device::{Durability, Op, Payload};
use uringfs_reactor::{Counter, Operation, Outcome, Reactor};

use crate::buffered::blocking_pool;
use crate::buffered::coherence::begin_buffered;
use crate::io::bounce::{blocks_around, copy_to_payload, read_blocks, single_buffer};
use crate::io::transfer::transfer;
use crate::state::cache_handle::{Advice, CacheHandle};
use crate::state::file::{File, FileHandle};
use crate::state::file_cache::FileCache;
use crate::state::readahead::ReadaheadWindow;

/// Folios of a range that is going to be needed that one operation reads.
const MAX_ADVISED_FOLIOS: u64 = 256;

/// Reads what is cache, if all of it is; none where something has to be waited for or begun. In bytes, as a
/// read answers.
#[inline]
pub(crate) fn read_now(handle: &FileHandle, into: &mut [u8], offset: u64) -> Option<usize> {
    let cache_handle = handle.cache.as_ref()?;
    let cache = handle.file_cache(cache_handle);
    if !cache.is_current(handle.map.generation()) {
        return None;
    }
    handle.map.note_read();
    let mut done = 0;
    while done < into.len() {
        let at = offset.checked_add(done as u64)?;
        let size = handle.size();
        let Look::Found(found) = cache.pages().look(at / FOLIO) else {
            return (at >= handle.size()).then_some(done);
        };
        if found.is_marked() {
            return None;
        }
        if cache_handle.counts_as_use(offset, done as u64) {
            found.touch();
        }
        let bytes = bytes_in_file(handle, &found, at, size);
        let count = bytes.len().min(into.len() - done);
        into[done..done + count].copy_from_slice(&bytes[..count]);
        done += count;
        if bytes.len() as u64 + at % FOLIO < FOLIO {
            break;
        }
    }
    let end = offset + done as u64;
    cache_handle.note_end(end);
    if cache_handle.is_dropbehind() {
        cache.drop_behind(offset..end, handle.size());
    }
    Some(done)
}

/// What of folios in a row lies from an offset in the first on and inside the file: as long as it was before they
/// were looked for, since they may have been changed since, and is now, since it may have been cut off.
#[inline(always)]
fn bytes_in_file<'f>(handle: &FileHandle, folios: &'f [u8], at: u64, size: u64) -> &'f [u8] {
    let (start, length) = (at % FOLIO, folios.len() as u64);
    let end = (start + handle.size().min(size).saturating_sub(at)).min(length).max(start);
    &folios[start as usize..end as usize]
}

/// Reads from `offset` on into `payload`: fewer bytes at the end of the file.
pub(crate) async fn read(mut operation: Operation, file: File, payload: Payload, offset: u64) {
    let mut payload = payload;
    let mut done = 0;
    let ended = read_all(&mut operation, &file, &mut payload, offset, &mut done).await;
    if let Some(cache_handle) = &file.handle.cache {
        let end = offset.saturating_add(done);
        cache_handle.note_end(end);
        if cache_handle.is_dropbehind() {
            file.handle.file_cache(cache_handle).drop_behind(offset..end, file.handle.size());
        }
    }
    // Bytes that were copied are bytes that were read.
    let result = if done > 0 { Ok(done) } else { ended.map(|()| 0) };
    operation.end(payload, result);
}

/// Reads into the cache what is going to be needed of a range, or takes out what is not.
pub(crate) async fn advise(
    mut operation: Operation,
    file: File,
    advice: Advice,
    offset: u64,
    length: u64,
) {
    let result = apply_advice(&mut operation, &file, advice, offset, length).await;
    operation.end(Payload::Length(length), result.map(|()| 0));
}

async fn apply_advice(
    operation: &mut Operation,
    file: &File,
    advice: Advice,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    let handle = &*file.handle;
    // Of a file that is requested directly there is nothing to say.
    let Some(cache_handle) = &handle.cache else { return Ok(()) };
    cache_handle.advise(advice);
    let cache = handle.file_cache(cache_handle);
    let end = offset.saturating_add(length);
    match advice {
        Advice::WillNeed => {
            begin_buffered(cache, operation, handle).await?;
            let last = end.min(handle.size()).div_ceil(FOLIO);
            let mut index = offset / FOLIO;
            while index < last {
                operation.check()?;
                let folios = index..last.min(index + MAX_ADVISED_FOLIOS);
                index = folios.end;
                let window = ReadaheadWindow { folios, marker: None };
                if start_fills(operation, file, cache, window, &(0..0)).is_err() {
                    break;
                }
            }
        }
        // What it covers in part somebody may need.
        Advice::DoNotNeed => {
            cache.pages().forget_saved(offset.div_ceil(FOLIO)..end / FOLIO);
        }
        Advice::Normal | Advice::Sequential | Advice::Random => {}
        Advice::NoReuse | Advice::DontCache => {}
    }
    Ok(())
}

/// The same with `buffered.wait=thread`: what is not cached a thread waits for.
pub(crate) async fn read_in_thread(
    operation: Operation,
    payload: Payload,
    read: impl FnOnce(&Reactor, Payload) -> Outcome + Send + 'static,
) {
    operation.count(Counter::CacheThreads);
    let mut operation = operation;
    // Whoever gives up gets its memory back when the thread is done with it.
    let queue = operation.queue_kind();
    let read = blocking_pool::read(payload, queue, read);
    let (payload, result) = operation.uncounted(read).await;
    let stopped = operation.check().map(|()| 0);
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
    let cache_handle = handle.cache.as_ref().expect("it is read through a cache");
    let cache = handle.file_cache(cache_handle);
    begin_buffered(cache, operation, handle).await?;
    handle.map.note_read();
    let length = payload.length();
    let mut one_folio_only = false;
    while *done < length {
        let size = handle.size();
        let Some(at) = offset.checked_add(*done).filter(|at| *at < size) else {
            break;
        };
        let index = at / FOLIO;
        match cache.pages().look(index) {
            Look::Found(found) => {
                let is_marked = found.take_mark();
                if cache_handle.counts_as_use(offset, *done) {
                    found.touch();
                }
                *done += copy(handle, payload, *done, at, &found, size);
                drop(found);
                if is_marked {
                    read_ahead(operation, file, cache_handle, cache, index);
                }
            }
            Look::Busy { by, is_marked } => {
                if is_marked {
                    read_ahead(operation, file, cache_handle, cache, index);
                }
                operation.count(Counter::CacheArmed);
                let wait = cache.pages().wait(index);
                // Whoever changes it waits for nothing, and the device may not have it.
                let waited = match by == operation.reactor_number() || by == WRITER {
                    true => Some(operation.wait_uncounted(wait).await?),
                    false => operation.wait_uncounted_for(wait, cache.fill_timeout()).await?,
                };
                let Some(waited) = waited else {
                    operation.count(Counter::CacheLate);
                    *done +=
                        read_around_cache(operation, handle, payload, *done, at, length - *done)
                            .await?;
                    continue;
                };
                operation.count(Counter::CacheRestarted);
                match waited {
                    Told::Page(page) => {
                        let is_marked = page.take_mark();
                        if cache_handle.counts_as_use(offset, *done) {
                            page.touch_first();
                        }
                        *done += copy(handle, payload, *done, at, &page, size);
                        if is_marked {
                            read_ahead(operation, file, cache_handle, cache, index);
                        }
                    }
                    Told::Failed(error) => return Err(error),
                    Told::Again => one_folio_only = true,
                }
            }
            Look::Absent => {
                operation.check()?;
                let last = (at + (length - *done)).div_ceil(FOLIO);
                let mut window = match one_folio_only {
                    true => ReadaheadWindow { folios: index..index + 1, marker: None },
                    false => cache_handle.readahead.lock().on_miss(index, (last - index) as u32),
                };
                let marker = window.marker.take_if(|mark| *mark < last);
                let Ok(fills) = begin_fills(operation, file, cache, window, &(index..last)) else {
                    operation.count(Counter::CacheBypassed);
                    *done +=
                        read_around_cache(operation, handle, payload, *done, at, length - *done)
                            .await?;
                    continue;
                };
                let filled = fill_first(operation, file, cache_handle, cache, fills, marker).await;
                let Some((mut fill, filled)) = filled else { continue };
                let is_wanted = operation.check();
                if filled.is_ok() && is_wanted.is_ok() {
                    if cache_handle.counts_as_use(offset, *done) {
                        fill.touch((last - index) as u32);
                    }
                    *done += copy(handle, payload, *done, at, fill.bytes(), size);
                }
                let is_one = fill.range().end / FOLIO == index + 1;
                fill.end(filled);
                is_wanted?;
                if is_one {
                    filled?;
                }
                // Where several could not be filled together, each may be by itself.
                one_folio_only |= filled.is_err();
            }
        }
    }
    Ok(())
}

/// Fills the first of what was taken in, if anything was, and has the rest filled beside. A mark that has been reached
/// starts the next window.
async fn fill_first(
    operation: &Operation,
    file: &File,
    cache_handle: &CacheHandle,
    cache: &FileCache,
    fills: Vec<Fill>,
    marker: Option<u64>,
) -> Option<(Fill, Result<(), Errno>)> {
    let mut fills = fills.into_iter();
    let mut fill = fills.next()?;
    let start_others = || {
        fills.for_each(|fill| start_fill(operation, file, fill));
        if let Some(mark) = marker {
            read_ahead(operation, file, cache_handle, cache, mark);
        }
    };
    // Others wait for it, too.
    let filling = fill_from_device(operation, &file.handle, cache, &mut fill, start_others);
    let filled = operation.unstopped(filling).await;
    Some((fill, filled))
}

/// Copies what is requested for of folios in a row, in the first of which it begins.
fn copy(
    handle: &FileHandle,
    payload: &mut Payload,
    done: u64,
    at: u64,
    folios: &[u8],
    size: u64,
) -> u64 {
    let bytes = bytes_in_file(handle, folios, at, size);
    let count = bytes.len().min((payload.length() - done) as usize);
    copy_to_payload(payload, done, &bytes[..count]);
    count as u64
}

/// Starts the next window, since the mark of the one before has been reached.
fn read_ahead(
    operation: &Operation,
    file: &File,
    cache_handle: &CacheHandle,
    cache: &FileCache,
    index: u64,
) {
    let window = cache_handle.readahead.lock().on_marker(index);
    if let Some(window) = window {
        // Where there is no room nothing is read ahead.
        let _ = start_fills(operation, file, cache, window, &(0..0));
    }
}

/// Takes the folios of a window into the cache and has them filled. `wanted` are those that somebody asks for.
pub(crate) fn start_fills(
    operation: &Operation,
    file: &File,
    cache: &FileCache,
    window: ReadaheadWindow,
    wanted: &Range<u64>,
) -> Result<(), Full> {
    let fills = begin_fills(operation, file, cache, window, wanted)?;
    fills.into_iter().for_each(|fill| start_fill(operation, file, fill));
    Ok(())
}

/// Takes the folios of a window into the cache, as far as they are inside the file and not there.
fn begin_fills(
    operation: &Operation,
    file: &File,
    cache: &FileCache,
    window: ReadaheadWindow,
    wanted: &Range<u64>,
) -> Result<Vec<Fill>, Full> {
    let end = file.handle.size().div_ceil(FOLIO).min(window.folios.end);
    let folios = window.folios.start..end.max(window.folios.start);
    let mut fills = cache.pages().fill(folios, operation.reactor_number())?;
    for fill in &mut fills {
        let range = fill.range();
        if file.handle.cache.as_ref().is_some_and(CacheHandle::is_dropbehind) {
            fill.let_pass();
        }
        if let Some(mark) = window.marker.filter(|mark| range.contains(&(mark * FOLIO))) {
            fill.mark(mark * FOLIO);
        }
        let folios = range.start / FOLIO..range.end / FOLIO;
        let requested = folios.end.min(wanted.end).saturating_sub(folios.start.max(wanted.start));
        operation.count_many(Counter::CacheFilled, requested);
        operation.count_many(Counter::CacheAhead, folios.end - folios.start - requested);
    }
    Ok(fills)
}

/// Has folios filled by an operation of its own.
fn start_fill(operation: &Operation, file: &File, mut fill: Fill) {
    let file = file.clone();
    operation.start_beside(&file.handle.core.clone(), async move |operation| {
        let handle = &*file.handle;
        let cache_handle = handle.cache.as_ref().expect("it is read through a cache");
        let result =
            fill_from_device(&operation, handle, handle.file_cache(cache_handle), &mut fill, || {})
                .await;
        fill.end(result);
        operation.end(Payload::Length(0), Ok(0));
    });
}

/// Reads what folios are to hold from the device, and does something `meanwhile`. What of the last lies behind the
/// file's end becomes zeros.
async fn fill_from_device(
    operation: &Operation,
    handle: &FileHandle,
    cache: &FileCache,
    fill: &mut Fill,
    meanwhile: impl FnOnce(),
) -> Result<(), Errno> {
    let range = fill.range();
    let begun = operation.now();
    let block = handle.block_mask + 1;
    let end = handle.map.size().next_multiple_of(block).clamp(range.start, range.end);
    let mut buffer = fill.lend();
    let mut rest = buffer.split_off((end - range.start) as usize);
    rest.fill(0);
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
    // As long as the file is now: where it has grown while it was read, what was written is kept, or thrown away
    // with the folio; where it was cut off it is thrown away.
    let there = handle.map.size().saturating_sub(range.start).min(buffer.len() as u64);
    buffer[there as usize..].fill(0);
    let joined = buffer.join(rest);
    assert!(joined.is_ok(), "they were one buffer");
    fill.take_back(buffer);
    cache.note_fill(operation.now() - begun);
    result
}

/// Reads past the cache, up to a folio's end: the device has what the cache would have, and zeros lie behind what
/// it has of the file.
async fn read_around_cache(
    operation: &Operation,
    handle: &FileHandle,
    payload: &mut Payload,
    done: u64,
    at: u64,
    length: u64,
) -> Result<u64, Errno> {
    let end = (at / FOLIO * FOLIO + FOLIO).min(at + length);
    let blocks = blocks_around(handle.block_mask + 1, at..end);
    let start = blocks.start;
    let mut bytes = match start < handle.map.size() {
        true => read_blocks(operation, handle, blocks).await?,
        false => Buffer::zeroed((blocks.end - start) as usize),
    };
    let there = handle.map.size().saturating_sub(start).min(bytes.len() as u64);
    bytes[there as usize..].fill(0);
    let count = (end - at).min(handle.size().saturating_sub(at));
    let skip = (at - start) as usize;
    copy_to_payload(payload, done, &bytes[skip..skip + count as usize]);
    Ok(count)
}
