//! The eviction order. It knows folios by their frame numbers, and learns their state from the callback of
//! [`Eviction::evict`]. The cache keeps it behind a mutex.
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: "FIFO queues are all you need for cache eviction", SOSP 2023). A folio
//! enters the small queue, a tenth of all frames. It is evicted at the end of that queue unless it was used again by
//! then: so data that is read once leaves soon, and never displaces data that is read often. Used folios move to the
//! main queue, where each use is worth another round, up to two. The ghost remembers the keys of folios evicted from
//! the small queue; a folio that comes back enters the main queue at once. A hit moves nothing, so it takes no lock.
//!
//! # Access counts
//!
//! A folio's state word holds an access count from 0 to 3. This module does not see it:
//!
//! - A folio that is read ahead starts with 0. A folio that is read on demand starts with 1, however many readers wait
//!   for the fill; the waiting readers add nothing.
//! - A read or write that hits adds 1, up to 3, unless the last access through the same handle ended in the same folio.
//!   So small sequential reads of one folio count once, as in Linux (`filemap_read` in mm/filemap.c and its
//!   `prev_pos`). A hit that finds 3 writes nothing.
//! - [`Verdict`] is the same for both queues: Busy leaves the count as it is; at 2 or 3, one is subtracted and the
//!   folio is Used; below that it is Evicted.
//!
//! So the first access is never a use, whether the folio was read ahead or not, and a scan leaves the main queue alone.
//! No clock is read. The only shared word that a hit writes is the folio's own, at most three times between two looks.
//!
//! # Weakness
//!
//! If a hot set is replaced at once by another, and the interval between two uses of its folios is longer than a
//! folio's time in the small queue, each new folio misses twice, the second time through the ghost. A larger small
//! queue helps there and costs elsewhere. An adaptive one (by ghost hits, or as in ARC) was tried, and lost more on
//! Zipf traces and on loops. `tests/traces` compares with CLOCK and LRU.

mod ghost;
mod queues;

#[cfg(test)]
mod tests;

use ghost::Ghost;
use queues::{Queue, Queues};

/// Bound for the folios that one call of [`Eviction::evict`] looks at.
pub const MAX_LOOKS: usize = 64;

/// Busy folios in a row after which the search changes to the other queue. So a queue full of dirty folios costs
/// little, and does not keep clean folios of the other queue from being evicted.
const MAX_BUSY_IN_A_ROW: usize = 8;

/// Used folios of the main queue in a row after which the small queue evicts one, even below its share. Without this,
/// an insertion at a time when a whole large main queue has been used would wait until each folio was looked at twice.
const MAX_USED_IN_A_ROW: u32 = 1024;

/// Whether a folio could be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Unused, unpinned and clean: the callback has taken the frame, so no other thread can use the folio.
    Evicted {
        /// The key passed to [`Eviction::insert`].
        key: u64,
    },
    /// Accessed since it was inserted or last looked at. The callback has lowered the access count by one.
    Used,
    /// Pinned, dirty, being filled or being written back: it cannot be evicted now.
    Busy,
}

/// The eviction order of all folios.
#[derive(Debug)]
pub struct Eviction {
    queues: Queues,
    ghost: Ghost,
    /// The small queue's share, in folios.
    small_share: u32,
    /// Looks at used folios of the main queue since the last eviction.
    used_in_a_row: u32,
}

impl Eviction {
    /// For no frames yet: see [`Self::grow`].
    pub fn new() -> Eviction {
        Eviction { queues: Queues::new(), ghost: Ghost::new(), small_share: 1, used_in_a_row: 0 }
    }

    /// Makes room for frame numbers below `frames`, and sizes the queues for that many folios: a tenth for the small
    /// queue, the rest for the main queue, and as many keys as that for the ghost. All entries stay. Costs 12 to 16
    /// bytes a frame, though the tables double when they grow.
    pub fn grow(&mut self, frames: u32) {
        self.queues.grow(frames);
        self.small_share = (frames / 10).max(1);
        self.ghost.grow(frames.saturating_sub(self.small_share).max(1));
    }

    /// Adds a folio. `key` is a hash of its file and index, which varies in all bits. A recently evicted folio is
    /// recognized by it.
    pub fn insert(&mut self, frame: u32, key: u64) {
        let queue = if self.ghost.recall(key) { Queue::Main } else { Queue::Small };
        self.queues.push(frame, queue);
    }

    /// Removes a folio without eviction: its file was truncated, or it was invalidated.
    pub fn remove(&mut self, frame: u32) {
        self.queues.unlink(frame);
    }

    /// Calls `try_evict` for up to [`MAX_LOOKS`] folios, and removes the first that it evicts. None when all of them
    /// were used or busy. If some were used, try again: each look lowers their access counts. If all were busy, wait
    /// until one is not.
    pub fn evict(&mut self, mut try_evict: impl FnMut(u32) -> Verdict) -> Option<u32> {
        let mut busy_in_a_row = 0;
        let mut side = Side::Due;
        for _ in 0..MAX_LOOKS {
            let (frame, queue) = self.candidate(side)?;
            let verdict = try_evict(frame);
            self.queues.unlink(frame);
            match verdict {
                Verdict::Evicted { key } => {
                    if queue == Queue::Small {
                        self.ghost.remember(key);
                    }
                    self.used_in_a_row = 0;
                    return Some(frame);
                }
                Verdict::Used => {
                    busy_in_a_row = 0;
                    if queue == Queue::Main {
                        self.used_in_a_row = self.used_in_a_row.saturating_add(1);
                    }
                    self.queues.push(frame, Queue::Main);
                }
                Verdict::Busy => {
                    // To the end of its queue, so that the next search does not find it first.
                    self.queues.push(frame, queue);
                    busy_in_a_row += 1;
                    if busy_in_a_row == MAX_BUSY_IN_A_ROW {
                        busy_in_a_row = 0;
                        side = side.other();
                    }
                }
            }
        }
        None
    }

    /// Folios in both queues.
    pub fn len(&self) -> usize {
        (self.queues.len(Queue::Small) + self.queues.len(Queue::Main)) as usize
    }

    /// Whether both queues are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The oldest folio of the queue to evict from. The small queue is due if it has its share, otherwise the main
    /// queue. If the chosen queue is empty, the other one is used.
    fn candidate(&self, side: Side) -> Option<(u32, Queue)> {
        let is_small_due = self.queues.len(Queue::Small) >= self.small_share
            || self.used_in_a_row >= MAX_USED_IN_A_ROW;
        let [first, second] = match is_small_due == (side == Side::Due) {
            true => [Queue::Small, Queue::Main],
            false => [Queue::Main, Queue::Small],
        };
        [first, second].into_iter().find_map(|queue| Some((self.queues.oldest(queue)?, queue)))
    }
}

impl Default for Eviction {
    fn default() -> Eviction {
        Eviction::new()
    }
}

/// The queue to look at: the one that is due (see [`Eviction::candidate`]), or the other one while that one is busy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Due,
    Other,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Due => Side::Other,
            Side::Other => Side::Due,
        }
    }
}
