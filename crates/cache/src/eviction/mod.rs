//! Which folio leaves next. Knows folios by the numbers of their frames, and of their state only what it
//! asks; the cache's mutex is around it.
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: "FIFO queues are all you need for cache eviction", SOSP 2023).
//! A folio comes into the small queue, a tenth of all, and leaves from its end unless it was used again by
//! then: so what is read once is soon gone and never pushes out what is read often. Used ones go on to the
//! main queue, where each use is worth another round, up to two. Of those that leave the small queue the
//! ghost remembers the key; one that comes back goes to main at once. A hit moves nothing, so it takes no
//! lock.
//!
//! # What the cache counts
//!
//! Two bits of touches in a folio's state word, which nobody here sees:
//!
//! - A folio that is read ahead comes in with 0; one that somebody waits for with 1, however many wait for
//!   the same fill. They count nothing themselves.
//! - A read or write that finds it adds 1, up to 3, unless the same opening's last access ended in the same
//!   folio: small reads that go through a folio in order are one touch, as in Linux (`filemap_read` in
//!   mm/filemap.c and its `prev_pos`). Whoever finds 3 writes nothing.
//! - [`Answer`] is the same for both queues: Busy leaves the touches as they are; from 2 on one is taken
//!   away, and it is Used; below that it leaves.
//!
//! So the first touch is never a use, whether the folio was read ahead or not, and a scan leaves main alone.
//! No clock is read, and of what is shared only the folio's own word is written: three times until it is
//! asked.
//!
//! # What it is bad at
//!
//! A hot set that is replaced at once by another, whose folios come round more seldom than small lasts: each
//! new one misses twice, the second time by way of the ghost. A larger small queue helps there and costs
//! elsewhere; one that adapts (by ghost hits, or as in ARC) was tried and lost more on Zipf and on loops.
//! `tests/traces` compares with CLOCK and LRU.

mod ghost;
mod queues;

#[cfg(test)]
mod tests;

use ghost::Ghost;
use queues::{Queue, Queues};

/// Folios that one call of [`Eviction::evict`] asks at most.
pub const LOOKS: usize = 64;

/// Busy folios in a row after which the other queue is asked: one that is full of dirty folios does not
/// keep clean ones of the other in memory, and costs little.
const MAX_BUSY_IN_A_ROW: usize = 8;

/// Used folios of main in a row after which small gives one up though it has no more than its share.
/// Without, whoever came when all of a large main had been used would wait until each had been asked twice.
const REPRIEVES: u32 = 1024;

/// What the cache finds when it asks a folio whether it may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It leaves: unused, unpinned, clean, and the asker has taken it, so that nobody finds it any more.
    Leaves {
        /// What [`Eviction::insert`] was told.
        key: u64,
    },
    /// It was touched since it came or was asked last; the asker has taken one touch away.
    Used,
    /// It is pinned, dirty, being filled or written back: it cannot leave now.
    Busy,
}

/// The order in which folios leave.
#[derive(Debug)]
pub struct Eviction {
    queues: Queues,
    ghost: Ghost,
    /// The small queue's share.
    small: u32,
    /// Folios of main that were used since one has left.
    used_in_a_row: u32,
}

impl Eviction {
    /// One of no frames.
    pub fn new() -> Eviction {
        Eviction { queues: Queues::new(), ghost: Ghost::new(), small: 1, used_in_a_row: 0 }
    }

    /// Makes frames below `frames` known, and shares out the queues for this many folios: a tenth to small,
    /// the rest to main, as much again to the ghost. It forgets nothing. From 12 to 16 bytes a frame, though
    /// the tables double as they grow, ahead of what they hold.
    pub fn grow(&mut self, frames: u32) {
        self.queues.grow(frames);
        self.small = (frames / 10).max(1);
        self.ghost.grow(frames.saturating_sub(self.small).max(1));
    }

    /// A folio has come. `key` is a hash of its file and index, all of whose bits vary: one that left not
    /// long ago is known by it.
    pub fn insert(&mut self, frame: u32, key: u64) {
        let queue = if self.ghost.recall(key) { Queue::Main } else { Queue::Small };
        self.queues.push(frame, queue);
    }

    /// A folio has left by itself: its file was truncated, or it was invalidated.
    pub fn remove(&mut self, frame: u32) {
        self.queues.unlink(frame);
    }

    /// Asks up to [`LOOKS`] folios and forgets the first that leaves. None when all of those were used or
    /// busy. With used ones among them, try again: they come a touch nearer to leaving at each look. When all
    /// were busy, better wait until one is not.
    pub fn evict(&mut self, mut ask: impl FnMut(u32) -> Answer) -> Option<u32> {
        let mut busy_in_a_row = 0;
        let mut side = Side::Due;
        for _ in 0..LOOKS {
            let (frame, queue) = self.candidate(side)?;
            let answer = ask(frame);
            self.queues.unlink(frame);
            match answer {
                Answer::Leaves { key } => {
                    if queue == Queue::Small {
                        self.ghost.remember(key);
                    }
                    self.used_in_a_row = 0;
                    return Some(frame);
                }
                Answer::Used => {
                    busy_in_a_row = 0;
                    if queue == Queue::Main {
                        self.used_in_a_row = self.used_in_a_row.saturating_add(1);
                    }
                    self.queues.push(frame, Queue::Main);
                }
                Answer::Busy => {
                    // Behind all others of its queue: whoever comes next does not meet it first.
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

    /// Folios that are in the cache.
    pub fn len(&self) -> usize {
        (self.queues.len(Queue::Small) + self.queues.len(Queue::Main)) as usize
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The oldest of the queue that is to give one up: small when it has its share. Of an empty one nobody
    /// can leave.
    fn candidate(&self, side: Side) -> Option<(u32, Queue)> {
        let is_small_due =
            self.queues.len(Queue::Small) >= self.small || self.used_in_a_row >= REPRIEVES;
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

/// Which queue is asked: the one that has more than its share, or the other while that is busy.
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
