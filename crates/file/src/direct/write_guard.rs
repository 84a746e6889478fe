//! Before a write: the lock that it needs, and a place for its bytes. Both are had at once, since what
//! was found before a lock was waited for may have changed by then.

use std::ops::Range;

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_reactor::{Counter, Operation};

use crate::io::bounce::{LONGEST, around, block_of, merge_zeros};
use crate::io::space_wait::{SpaceWait, prepare};
use crate::map::mapping::{Generation, Place, Preparation, Prepared, Promise};
use crate::state::file::Shared;
use crate::state::lock::{Exclusion, RangeGuard, Tail, Writer};
use crate::writeback::runs::lock_saved;

/// What a write has while it moves its bytes.
pub(crate) struct Entry {
    pub(crate) preparation: Preparation,
    /// It goes by blocks of this size, in bytes.
    pub(crate) block: u64,
    pub(crate) begun: Generation,
    held: Held,
}

impl Entry {
    /// The block at `start` as it was written last, if that is known.
    pub(crate) fn take_tail(&mut self, start: u64) -> Option<Tail> {
        let found = self.held.range.as_mut()?.take_tail()?;
        (found.start == start && found.begun == self.begun).then_some(found)
    }

    /// Leaves the block that was written last for whoever writes the rest of it.
    pub(crate) fn leave_tail(&mut self, start: u64, bytes: Buffer) {
        if let Held { range: Some(range), _exclusion: Some(_), .. } = &mut self.held {
            range.leave_tail(Tail { start, begun: self.begun, bytes });
        }
    }
}

/// Locks, given back in this order.
#[derive(Default)]
pub(crate) struct Held {
    /// What the page cache says of these bytes is so no more when they are given back.
    changed: Range<u64>,
    range: Option<RangeGuard>,
    _exclusion: Option<Exclusion>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(range) = &self.range {
            range.invalidate(self.changed.clone());
        }
    }
}

/// How a range is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Beside other writers, over what was written there.
    InPlace,
    /// Beside other writers, into blocks of its own.
    New,
    /// With others kept out: it covers part of a block, or something has to be zeroed first.
    Exclusive,
}

impl Way {
    fn of(shared: &Shared, range: &Range<u64>) -> Way {
        let is_whole = |block| (range.start | range.end) & (block - 1) == 0;
        match shared.map.is_in_place(range) {
            true if is_whole(shared.block_mask + 1) => Way::InPlace,
            false if is_whole(block_of(shared)) && !leaves_a_gap(shared, range.start) => Way::New,
            _ => Way::Exclusive,
        }
    }
}

/// Tells the map that the file is about to be changed, and waits for what that takes.
pub(crate) async fn note_write(operation: &mut Operation, shared: &Shared) -> Result<(), Errno> {
    match shared.map.note_write() {
        None => Ok(()),
        Some(done) => {
            operation.count(Counter::WriteRights);
            operation.wait_uncounted(done).await?
        }
    }
}

/// Lets a write in: beside others where it can, without a lock while nobody excludes them.
pub(crate) async fn enter(
    operation: &mut Operation,
    shared: &Shared,
    range: Range<u64>,
) -> Result<Entry, Errno> {
    let mut patience = SpaceWait::default();
    loop {
        // First: in the shared mode whoever cuts the file waits for this operation.
        let is_shared = shared.lock.is_shared();
        // Before the map is looked at: what was found there goes when the file is emptied.
        let mut begun = shared.map.generation();
        let way = Way::of(shared, &range);
        if way == Way::Exclusive {
            return Box::pin(enter_exclusively(operation, shared, range)).await;
        }
        let held = if is_shared {
            operation.count(match shared.submission {
                None => Counter::WriteShared,
                Some(_) => Counter::WriteAlways,
            });
            Held::default()
        } else {
            operation.count(Counter::WriteRanged);
            let lock = lock_saved(operation, shared, range.clone(), range.clone(), Writer::Beside);
            let guard = Box::pin(lock).await?;
            begun = shared.map.generation();
            if Way::of(shared, &range) != way {
                continue;
            }
            Held { changed: range.clone(), range: Some(guard), _exclusion: None }
        };
        let (preparation, block) = match way {
            Way::InPlace => (Preparation::InPlace, shared.block_mask + 1),
            _ => match shared.map.prepare(range.clone(), &mut Promise::default(), begun)? {
                Prepared::Ready(()) => (Preparation::Allocated, block_of(shared)),
                later => {
                    drop(held);
                    Box::pin(patience.wait(operation, later)).await?;
                    continue;
                }
            },
        };
        return Ok(Entry { preparation, block, begun, held });
    }
}

async fn enter_exclusively(
    operation: &mut Operation,
    shared: &Shared,
    range: Range<u64>,
) -> Result<Entry, Errno> {
    let block = block_of(shared);
    let blocks = around(block, range.clone());
    let why = if blocks == range { Counter::WriteGap } else { Counter::WriteUnaligned };
    let exclusion = exclude(operation, shared, why).await?;
    let mut is_in_place = shared.map.is_in_place(&range);
    let (guard, begun) = loop {
        // What has no place yet may have to zero the end of the last block as well.
        let locked = if is_in_place { blocks.start } else { 0 }..blocks.end;
        let guard = lock_saved(operation, shared, locked.clone(), locked, Writer::Other).await?;
        let begun = shared.map.generation();
        if !is_in_place || shared.map.is_in_place(&range) {
            break (guard, begun);
        }
        is_in_place = false;
    };
    // Where there is a gap, what lies between the end and the range changes, too.
    let changed = blocks.start.min(shared.map.size())..blocks.end;
    let held = Held { changed, range: Some(guard), _exclusion: Some(exclusion) };
    if is_in_place {
        return Ok(Entry { preparation: Preparation::InPlace, block, begun, held });
    }
    if leaves_a_gap(shared, range.start) {
        zero_tail(operation, shared).await?;
    }
    prepare(operation, shared, range, begun).await?;
    Ok(Entry { preparation: Preparation::Allocated, block, begun, held })
}

/// Lets a write in behind the file's end, wherever that is when its turn has come, and answers that. Nobody
/// else writes the file meanwhile; `length` is asked then.
///
/// # Errors
/// EFBIG; as [`enter`].
pub(crate) async fn enter_at_end(
    operation: &mut Operation,
    shared: &Shared,
    length: impl FnOnce() -> u64,
) -> Result<(Entry, u64), Errno> {
    let mut held =
        keep_out(operation, shared, Counter::WriteAppend, u64::MAX, |size| size..size).await?;
    let (begun, offset) = shared.map.end();
    let end = offset.checked_add(length()).filter(|end| *end <= LONGEST).ok_or(Errno::FBIG)?;
    held.changed = offset..end;
    prepare(operation, shared, offset..end, begun).await?;
    let (preparation, block) = (Preparation::Allocated, block_of(shared));
    Ok((Entry { preparation, block, begun, held }, offset))
}

/// Keeps every other writer of the file out; counted as `why`. What was written through the page cache is on the
/// device then, up to `kept`. `changed` says of the file's size what is going to change.
pub(crate) async fn keep_out(
    operation: &mut Operation,
    shared: &Shared,
    why: Counter,
    kept: u64,
    changed: impl FnOnce(u64) -> Range<u64>,
) -> Result<Held, Errno> {
    let exclusion = exclude(operation, shared, why).await?;
    let guard = lock_saved(operation, shared, 0..u64::MAX, 0..kept, Writer::Other).await?;
    let changed = changed(shared.map.size());
    Ok(Held { changed, range: Some(guard), _exclusion: Some(exclusion) })
}

/// Ends the mode in which writers of whole blocks need no lock, and waits for those that are under way, unless
/// it has been ended before.
async fn exclude(
    operation: &mut Operation,
    shared: &Shared,
    why: Counter,
) -> Result<Exclusion, Errno> {
    let (exclusion, epoch) = shared.lock.exclude(shared.index);
    operation.count(why);
    if let Some(epoch) = epoch {
        operation.wait_for_quiescence(epoch).await?;
        // Who writes so once does it again and again, mostly.
        if matches!(why, Counter::WriteAppend | Counter::WriteUnaligned) {
            exclusion.settle();
        }
    }
    Ok(exclusion)
}

/// Keeps those out of a range who do not write whole blocks in place: they come before or after. What of
/// the last block lies before the range, behind the file's end, is zeros then.
pub(crate) async fn keep_range(
    operation: &mut Operation,
    shared: &Shared,
    range: Range<u64>,
) -> Result<Held, Errno> {
    let guard = lock_saved(operation, shared, range.clone(), range.clone(), Writer::Other).await?;
    if !leaves_a_gap(shared, range.start) {
        return Ok(Held { changed: range, range: Some(guard), _exclusion: None });
    }
    drop(guard);
    let changed = |size| range.start.min(size)..range.end;
    let held = keep_out(operation, shared, Counter::WriteGap, u64::MAX, changed).await?;
    zero_tail(operation, shared).await?;
    Ok(held)
}

/// Whether the last block of the file holds, behind its end, bytes that come to light when something
/// is written from `start` on: those that were there when it was cut off.
fn leaves_a_gap(shared: &Shared, start: u64) -> bool {
    let size = shared.map.size();
    start > size && start >= size.next_multiple_of(block_of(shared)) && has_tail(shared, size)
}

fn has_tail(shared: &Shared, size: u64) -> bool {
    !size.is_multiple_of(block_of(shared))
        && matches!(shared.map.map(size).place, Place::Written(_))
}

/// Zeroes what of the last block lies behind the end, before the file becomes longer. Not when it is
/// cut off: so a power cut in between leaves it as it was.
pub(crate) async fn zero_tail(operation: &Operation, shared: &Shared) -> Result<(), Errno> {
    let size = shared.map.size();
    if !shared.map.grows() || !has_tail(shared, size) {
        return Ok(());
    }
    let tail = size..size.next_multiple_of(block_of(shared));
    merge_zeros(operation, shared, block_of(shared), tail).await
}
