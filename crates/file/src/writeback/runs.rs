//! Writing back: bytes that were written through the page cache go to the device, in long runs in the order of
//! the file. A sync does that; direct I/O does it for its range; and the flusher of each file does it when it is time.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::LazyLock;

use rustix::io::Errno;
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_cache::{FOLIO, Look};
use uringfs_device::{Durability, Op, Payload};
use uringfs_reactor::{Counter, Operation};

use crate::io::bounce::{block_of, bounce, the_one};
use crate::io::space_wait::prepare_promised;
use crate::io::transfer::{Transfer, transfer};
use crate::map::mapping::Preparation;
use crate::state::dirty::{SaveEnd, Saving};
use crate::state::file::{File, Shared};
use crate::state::file_cache::{Cached, bytes_of, folios_of};
use crate::state::lock::{RangeGuard, Writer};

/// Folios that are saved together, at most.
const LONGEST_RUN: u64 = 2048;
/// What of them is one write, in bytes, and how many are under way at once.
const PIECE: u64 = 1 << 20;
const WINDOW: usize = 4;
/// Memory for whole ones, which rings have registered; more have some of their own. None where there is no memory.
static PIECES: LazyLock<Option<BufferPool>> =
    LazyLock::new(|| BufferPool::new(PIECE as usize, 2 * WINDOW).ok());
/// From where on folios are saved before the device's file becomes as long as some of them reach: it grows in
/// order, or what its last block holds behind its end would come to light.
fn in_order(shared: &Shared, folios: &Range<u64>) -> Range<u64> {
    let last = shared.map.size() / FOLIO;
    let start = if folios.end > last { folios.start.min(last) } else { folios.start };
    start..folios.end
}

/// Saves what is unsaved of a range of bytes, and waits for those who are saving some of it.
///
/// # Errors
/// What the device says; all that could not be saved is unsaved yet.
pub(crate) async fn save(
    operation: &mut Operation,
    shared: &Shared,
    range: Range<u64>,
) -> Result<(), Errno> {
    let unsaved = shared.lock.unsaved();
    let Some(cached) = shared.lock.in_cache().filter(|_| unsaved.is_any()) else { return Ok(()) };
    let end = unsaved.end().max(shared.map.size());
    let folios = folios_of(&(range.start.min(end)..range.end.min(end)));
    let (mut at, mut spare) = (folios.start, Vec::new());
    let mut returned = unsaved.returned();
    loop {
        let rest = in_order(shared, &(at..folios.end));
        let next = if at < folios.end { unsaved.first_run(rest, LONGEST_RUN) } else { None };
        let Some(run) = next else {
            // Others are saving some of it, or have given some back meanwhile.
            if unsaved.is_saving(&folios) {
                let lock = shared.lock.range(bytes_of(&folios), Writer::Saver);
                operation.wait_uncounted(lock).await?;
            }
            if unsaved.returned() == returned {
                return Ok(());
            }
            (at, returned) = (folios.start, unsaved.returned());
            continue;
        };
        let run = in_order(shared, &run);
        let lock = shared.lock.range(bytes_of(&run), Writer::Saver);
        let _guard = operation.wait_uncounted(lock).await?;
        match unsaved.take(cached.pages(), run.clone(), LONGEST_RUN) {
            None => at = at.max(run.end),
            Some(saving) => {
                at = at.max(saving.folios().end);
                save_run(operation, shared, cached, saving, &mut spare).await?;
            }
        }
    }
}

/// Waits for a range of bytes, all others kept out, with nothing unsaved of a range inside.
///
/// # Errors
/// As [`save`].
pub(crate) async fn lock_saved(
    operation: &mut Operation,
    shared: &Shared,
    range: Range<u64>,
    saved: Range<u64>,
    who: Writer,
) -> Result<RangeGuard, Errno> {
    let unsaved = shared.lock.unsaved();
    loop {
        let locked = match unsaved.is_any() {
            true => range.start.min(in_order(shared, &folios_of(&saved)).start * FOLIO)..range.end,
            false => range.clone(),
        };
        let guard = operation.wait_uncounted(shared.lock.range(locked.clone(), who)).await?;
        let Some(cached) = shared.lock.in_cache().filter(|_| unsaved.is_any()) else {
            return Ok(guard);
        };
        let folios = in_order(shared, &folios_of(&saved));
        if folios.start * FOLIO >= locked.start {
            let mut spare = Vec::new();
            while let Some(saving) = unsaved.take(cached.pages(), folios.clone(), LONGEST_RUN) {
                Box::pin(save_run(operation, shared, cached, saving, &mut spare)).await?;
            }
            return Ok(guard);
        }
    }
}

/// Writes folios in a row. The caller keeps other savers out, and those who do not write through the cache.
async fn save_run(
    operation: &mut Operation,
    shared: &Shared,
    cached: &Cached,
    mut saving: Saving<'_>,
    spare: &mut Vec<Buffer>,
) -> Result<(), Errno> {
    let result = write_run(operation, shared, cached, &mut saving, spare).await;
    let result = match result {
        // It found no place any more, or no bytes: the file was emptied meanwhile.
        Err(Errno::IO) if shared.map.generation() != saving.begun => Ok(()),
        result => result,
    };
    saving.end(match result {
        Ok(()) => SaveEnd::Saved,
        Err(error) if operation.is_stopped_with(error) => SaveEnd::Stopped,
        Err(_) => SaveEnd::Failed,
    });
    result
}

/// The same, piece by piece: while some are under way the next is copied.
async fn write_run(
    operation: &mut Operation,
    shared: &Shared,
    cached: &Cached,
    saving: &mut Saving<'_>,
    spare: &mut Vec<Buffer>,
) -> Result<(), Errno> {
    let bytes = bytes_of(&saving.folios());
    // As long as the file is when this has been written.
    let range = bytes.start..bytes.end.min(shared.size());
    if range.is_empty() || shared.map.generation() != saving.begun {
        return Ok(());
    }
    let preparation = match shared.map.is_in_place(&range) {
        true => Preparation::InPlace,
        false => {
            let (begun, room) = (saving.begun, saving.promised.room());
            prepare_promised(operation, shared, range.clone(), room, begun).await?;
            Preparation::Allocated
        }
    };
    operation.count_many(Counter::CacheSaved, saving.folios().end - saving.folios().start);
    let operation = &*operation;
    let mut under_way: VecDeque<Transfer<'_>> = VecDeque::new();
    let (mut at, mut result) = (range.start, Ok(()));
    loop {
        if at < range.end && result.is_ok() && under_way.len() < WINDOW {
            let piece = at..range.end.min(at + PIECE);
            at = piece.end;
            match copied(shared, cached, piece.clone(), spare).await {
                Err(error) => result = Err(error),
                Ok(buffer) => {
                    let payload = Payload::Buffer(buffer);
                    let volatile = Durability::Volatile;
                    let write =
                        transfer(operation, shared, Op::Write, volatile, payload, piece.start);
                    under_way.push_back(write);
                }
            }
            continue;
        }
        let Some(write) = under_way.pop_front() else { break };
        let ended = write.await;
        let written = ended.result();
        spare.push(the_one(ended.payload));
        result = result.and(written.map(drop));
    }
    result?;
    shared.map.wrote_back(preparation, range, saving.begun);
    Ok(())
}

/// A copy of what the cache has of a range, up to a block's end, with zeros behind the range.
async fn copied(
    shared: &Shared,
    cached: &Cached,
    range: Range<u64>,
    spare: &mut Vec<Buffer>,
) -> Result<Buffer, Errno> {
    let length = range.end.next_multiple_of(block_of(shared)) - range.start;
    let known = spare.pop_if(|buffer| buffer.len() as u64 == length);
    let whole = || (length == PIECE).then(|| PIECES.as_ref()?.get()).flatten();
    let mut buffer = known.or_else(whole).unwrap_or_else(|| bounce(shared, length));
    for (index, into) in folios_of(&range).zip(buffer.chunks_mut(FOLIO as usize)) {
        loop {
            match cached.pages().look(index) {
                Look::Found(found) => break into.copy_from_slice(&found[..into.len()]),
                Look::Busy { .. } => drop(cached.pages().wait(index).await),
                Look::Absent => return Err(Errno::IO),
            }
        }
    }
    buffer[(range.end - range.start) as usize..].fill(0);
    Ok(buffer)
}

/// Saves all that is unsaved.
pub(crate) async fn save_all(mut operation: Operation, file: File) {
    let saved = save(&mut operation, &file.shared, 0..u64::MAX).await;
    operation.end(Payload::Length(0), saved.map(|()| 0));
}
