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
use crate::buffered::coherence::enter;
use crate::io::bounce::{around, copy_in, read_blocks, the_one};
use crate::io::transfer::transfer;
use crate::state::cache_handle::{Advice, Caching};
use crate::state::file::{File, Shared};
use crate::state::file_cache::Cached;
use crate::state::readahead::Window;

/// Folios of a range that is going to be needed that one operation reads.
const MOST_AHEAD: u64 = 256;

/// Reads what is cached, if all of it is; none where something has to be waited for or begun. In bytes, as a
/// read answers.
#[inline]
pub(crate) fn read_now(shared: &Shared, into: &mut [u8], offset: u64) -> Option<usize> {
    let caching = shared.cache.as_ref()?;
    let cached = shared.cached_by(caching);
    if !cached.is_current(shared.map.generation()) {
        return None;
    }
    shared.map.note_read();
    let mut done = 0;
    while done < into.len() {
        let at = offset.checked_add(done as u64)?;
        let size = shared.size();
        let Look::Found(found) = cached.pages().look(at / FOLIO) else {
            return (at >= shared.size()).then_some(done);
        };
        if found.is_marked() {
            return None;
        }
        if caching.is_counted(offset, done as u64) {
            found.touch();
        }
        let bytes = inside(shared, &found, at, size);
        let count = bytes.len().min(into.len() - done);
        into[done..done + count].copy_from_slice(&bytes[..count]);
        done += count;
        if bytes.len() as u64 + at % FOLIO < FOLIO {
            break;
        }
    }
    let end = offset + done as u64;
    caching.ended(end);
    if caching.is_passing() {
        cached.passed(offset..end, shared.size());
    }
    Some(done)
}

/// What of folios in a row lies from an offset in the first on and inside the file: as long as it was before they
/// were looked for, since they may have been changed since, and is now, since it may have been cut off.
#[inline(always)]
fn inside<'f>(shared: &Shared, folios: &'f [u8], at: u64, size: u64) -> &'f [u8] {
    let (start, length) = (at % FOLIO, folios.len() as u64);
    let end = (start + shared.size().min(size).saturating_sub(at)).min(length).max(start);
    &folios[start as usize..end as usize]
}

/// Reads from `offset` on into `payload`: fewer bytes at the end of the file.
pub(crate) async fn read(mut operation: Operation, file: File, payload: Payload, offset: u64) {
    let mut payload = payload;
    let mut done = 0;
    let ended = read_all(&mut operation, &file, &mut payload, offset, &mut done).await;
    if let Some(caching) = &file.shared.cache {
        let end = offset.saturating_add(done);
        caching.ended(end);
        if caching.is_passing() {
            file.shared.cached_by(caching).passed(offset..end, file.shared.size());
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
    let result = follow(&mut operation, &file, advice, offset, length).await;
    operation.end(Payload::Length(length), result.map(|()| 0));
}

async fn follow(
    operation: &mut Operation,
    file: &File,
    advice: Advice,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    let shared = &*file.shared;
    // Of a file that is asked directly there is nothing to say.
    let Some(caching) = &shared.cache else { return Ok(()) };
    caching.advise(advice);
    let cached = shared.cached_by(caching);
    let end = offset.saturating_add(length);
    match advice {
        Advice::WillNeed => {
            enter(cached, operation, shared).await?;
            let last = end.min(shared.size()).div_ceil(FOLIO);
            let mut index = offset / FOLIO;
            while index < last {
                operation.check()?;
                let folios = index..last.min(index + MOST_AHEAD);
                index = folios.end;
                let window = Window { folios, mark: None };
                if begin_fill(operation, file, cached, window, &(0..0)).is_err() {
                    break;
                }
            }
        }
        // What it covers in part somebody may need.
        Advice::DoNotNeed => {
            cached.pages().forget_saved(offset.div_ceil(FOLIO)..end / FOLIO);
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
    let shared = &*file.shared;
    let caching = shared.cache.as_ref().expect("it is read through a cache");
    let cached = shared.cached_by(caching);
    enter(cached, operation, shared).await?;
    shared.map.note_read();
    let length = payload.length();
    let mut is_alone = false;
    while *done < length {
        let size = shared.size();
        let Some(at) = offset.checked_add(*done).filter(|at| *at < size) else {
            break;
        };
        let index = at / FOLIO;
        match cached.pages().look(index) {
            Look::Found(found) => {
                let is_marked = found.take_mark();
                if caching.is_counted(offset, *done) {
                    found.touch();
                }
                *done += copy(shared, payload, *done, at, &found, size);
                drop(found);
                if is_marked {
                    read_ahead(operation, file, caching, cached, index);
                }
            }
            Look::Busy { by, is_marked } => {
                if is_marked {
                    read_ahead(operation, file, caching, cached, index);
                }
                operation.count(Counter::CacheArmed);
                let wait = cached.pages().wait(index);
                // Whoever changes it waits for nothing, and the device may not have it.
                let told = match by == operation.reactor_number() || by == WRITER {
                    true => Some(operation.wait_uncounted(wait).await?),
                    false => operation.wait_uncounted_for(wait, cached.patience()).await?,
                };
                let Some(told) = told else {
                    operation.count(Counter::CacheLate);
                    *done +=
                        read_past(operation, shared, payload, *done, at, length - *done).await?;
                    continue;
                };
                operation.count(Counter::CacheRestarted);
                match told {
                    Told::Page(page) => {
                        let is_marked = page.take_mark();
                        if caching.is_counted(offset, *done) {
                            page.touch_first();
                        }
                        *done += copy(shared, payload, *done, at, &page, size);
                        if is_marked {
                            read_ahead(operation, file, caching, cached, index);
                        }
                    }
                    Told::Failed(error) => return Err(error),
                    Told::Again => is_alone = true,
                }
            }
            Look::Absent => {
                operation.check()?;
                let last = (at + (length - *done)).div_ceil(FOLIO);
                let mut window = match is_alone {
                    true => Window { folios: index..index + 1, mark: None },
                    false => caching.readahead.lock().missed(index, (last - index) as u32),
                };
                let reached = window.mark.take_if(|mark| *mark < last);
                let Ok(fills) = take_in(operation, file, cached, window, &(index..last)) else {
                    operation.count(Counter::CacheBypassed);
                    *done +=
                        read_past(operation, shared, payload, *done, at, length - *done).await?;
                    continue;
                };
                let filled = fill_here(operation, file, caching, cached, fills, reached).await;
                let Some((mut fill, filled)) = filled else { continue };
                let is_wanted = operation.check();
                if filled.is_ok() && is_wanted.is_ok() {
                    if caching.is_counted(offset, *done) {
                        fill.touch((last - index) as u32);
                    }
                    *done += copy(shared, payload, *done, at, fill.bytes(), size);
                }
                let is_one = fill.range().end / FOLIO == index + 1;
                fill.end(filled);
                is_wanted?;
                if is_one {
                    filled?;
                }
                // Where several could not be filled together, each may be by itself.
                is_alone |= filled.is_err();
            }
        }
    }
    Ok(())
}

/// Fills the first of what was taken in, if anything was, and has the rest filled beside. A mark that has been reached
/// starts the next window.
async fn fill_here(
    operation: &Operation,
    file: &File,
    caching: &Caching,
    cached: &Cached,
    fills: Vec<Fill>,
    reached: Option<u64>,
) -> Option<(Fill, Result<(), Errno>)> {
    let mut fills = fills.into_iter();
    let mut fill = fills.next()?;
    let beside = || {
        fills.for_each(|fill| start_fill(operation, file, fill));
        if let Some(mark) = reached {
            read_ahead(operation, file, caching, cached, mark);
        }
    };
    // Others wait for it, too.
    let filling = fill_from(operation, &file.shared, cached, &mut fill, beside);
    let filled = operation.unstopped(filling).await;
    Some((fill, filled))
}

/// Copies what is asked for of folios in a row, in the first of which it begins.
fn copy(
    shared: &Shared,
    payload: &mut Payload,
    done: u64,
    at: u64,
    folios: &[u8],
    size: u64,
) -> u64 {
    let bytes = inside(shared, folios, at, size);
    let count = bytes.len().min((payload.length() - done) as usize);
    copy_in(payload, done, &bytes[..count]);
    count as u64
}

/// Starts the next window, since the mark of the one before has been reached.
fn read_ahead(operation: &Operation, file: &File, caching: &Caching, cached: &Cached, index: u64) {
    let window = caching.readahead.lock().reached(index);
    if let Some(window) = window {
        // Where there is no room nothing is read ahead.
        let _ = begin_fill(operation, file, cached, window, &(0..0));
    }
}

/// Takes the folios of a window into the cache and has them filled. `wanted` are those that somebody asks for.
pub(crate) fn begin_fill(
    operation: &Operation,
    file: &File,
    cached: &Cached,
    window: Window,
    wanted: &Range<u64>,
) -> Result<(), Full> {
    let fills = take_in(operation, file, cached, window, wanted)?;
    fills.into_iter().for_each(|fill| start_fill(operation, file, fill));
    Ok(())
}

/// Takes the folios of a window into the cache, as far as they are inside the file and not there.
fn take_in(
    operation: &Operation,
    file: &File,
    cached: &Cached,
    window: Window,
    wanted: &Range<u64>,
) -> Result<Vec<Fill>, Full> {
    let end = file.shared.size().div_ceil(FOLIO).min(window.folios.end);
    let folios = window.folios.start..end.max(window.folios.start);
    let mut fills = cached.pages().fill(folios, operation.reactor_number())?;
    for fill in &mut fills {
        let range = fill.range();
        if file.shared.cache.as_ref().is_some_and(Caching::is_passing) {
            fill.let_pass();
        }
        if let Some(mark) = window.mark.filter(|mark| range.contains(&(mark * FOLIO))) {
            fill.mark(mark * FOLIO);
        }
        let folios = range.start / FOLIO..range.end / FOLIO;
        let asked = folios.end.min(wanted.end).saturating_sub(folios.start.max(wanted.start));
        operation.count_many(Counter::CacheFilled, asked);
        operation.count_many(Counter::CacheAhead, folios.end - folios.start - asked);
    }
    Ok(fills)
}

/// Has folios filled by an operation of its own.
fn start_fill(operation: &Operation, file: &File, mut fill: Fill) {
    let file = file.clone();
    operation.start_beside(&file.shared.core.clone(), async move |operation| {
        let shared = &*file.shared;
        let caching = shared.cache.as_ref().expect("it is read through a cache");
        let result =
            fill_from(&operation, shared, shared.cached_by(caching), &mut fill, || {}).await;
        fill.end(result);
        operation.end(Payload::Length(0), Ok(0));
    });
}

/// Reads what folios are to hold from the device, and does something `meanwhile`. What of the last lies behind the
/// file's end becomes zeros.
async fn fill_from(
    operation: &Operation,
    shared: &Shared,
    cached: &Cached,
    fill: &mut Fill,
    meanwhile: impl FnOnce(),
) -> Result<(), Errno> {
    let range = fill.range();
    let begun = operation.now();
    let block = shared.block_mask + 1;
    let end = shared.map.size().next_multiple_of(block).clamp(range.start, range.end);
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
                transfer(operation, shared, Op::Read, Durability::Volatile, payload, range.start);
            meanwhile();
            let ended = read.await;
            let result = ended.result().map(drop);
            (the_one(ended.payload), result)
        }
    };
    // As long as the file is now: where it has grown while it was read, what was written is kept, or thrown away
    // with the folio; where it was cut off it is thrown away.
    let there = shared.map.size().saturating_sub(range.start).min(buffer.len() as u64);
    buffer[there as usize..].fill(0);
    let joined = buffer.join(rest);
    assert!(joined.is_ok(), "they were one buffer");
    fill.take_back(buffer);
    cached.note_fill(operation.now() - begun);
    result
}

/// Reads past the cache, up to a folio's end: the device has what the cache would have, and zeros lie behind what
/// it has of the file.
async fn read_past(
    operation: &Operation,
    shared: &Shared,
    payload: &mut Payload,
    done: u64,
    at: u64,
    length: u64,
) -> Result<u64, Errno> {
    let end = (at / FOLIO * FOLIO + FOLIO).min(at + length);
    let blocks = around(shared.block_mask + 1, at..end);
    let start = blocks.start;
    let mut bytes = match start < shared.map.size() {
        true => read_blocks(operation, shared, blocks).await?,
        false => Buffer::zeroed((blocks.end - start) as usize),
    };
    let there = shared.map.size().saturating_sub(start).min(bytes.len() as u64);
    bytes[there as usize..].fill(0);
    let count = (end - at).min(shared.size().saturating_sub(at));
    let skip = (at - start) as usize;
    copy_in(payload, done, &bytes[skip..skip + count as usize]);
    Ok(count)
}
