//! The compared policies, each as a cache of keys: the crate's own, driven as the cache drives it, and small
//! implementations of CLOCK and LRU.

use std::collections::{BTreeMap, HashMap};

use uringfs_cache::eviction::{Eviction, Verdict};

use crate::workload::hash;

/// A cache of a fixed number of folios.
pub trait Policy {
    /// Accesses a folio; returns whether it was cached.
    fn access(&mut self, key: u64) -> bool;
}

/// The share of accesses that missed.
pub fn miss_ratio(mut policy: impl Policy, trace: &[u64]) -> f64 {
    let misses = trace.iter().filter(|key| !policy.access(**key)).count();
    misses as f64 / trace.len() as f64
}

/// [`Eviction`], with accesses counted as its documentation says.
pub struct S3Fifo {
    eviction: Eviction,
    frames: Vec<Frame>,
    resident: HashMap<u64, u32>,
    capacity: u32,
    counts: Counts,
    /// The folio of the last access. All accesses go through one handle.
    last: Option<u64>,
}

/// The accesses that are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// All but those of the folio that the handle accessed last, as the cache does.
    OncePerVisit,
    /// All.
    Each,
}

struct Frame {
    key: u64,
    accesses: u8,
}

impl S3Fifo {
    pub fn new(capacity: u32) -> S3Fifo {
        S3Fifo::with_counts(Counts::OncePerVisit, capacity)
    }

    pub fn with_counts(counts: Counts, capacity: u32) -> S3Fifo {
        let mut eviction = Eviction::new();
        eviction.grow(capacity);
        let (frames, resident) = (Vec::new(), HashMap::new());
        S3Fifo { eviction, frames, resident, capacity, counts, last: None }
    }

    fn evict(&mut self) -> u32 {
        let frames = &mut self.frames;
        let mut try_evict = |frame: u32| {
            let frame = &mut frames[frame as usize];
            match frame.accesses {
                0 | 1 => Verdict::Evicted { key: hash(frame.key) },
                _ => {
                    frame.accesses -= 1;
                    Verdict::Used
                }
            }
        };
        let evicted = (0..).find_map(|_| self.eviction.evict(&mut try_evict));
        let frame = evicted.expect("no folio is busy");
        self.resident.remove(&self.frames[frame as usize].key);
        frame
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, key: u64) -> bool {
        let is_same_visit = self.last.replace(key) == Some(key);
        if let Some(frame) = self.resident.get(&key) {
            if self.counts == Counts::Each || !is_same_visit {
                let accesses = &mut self.frames[*frame as usize].accesses;
                *accesses = (*accesses + 1).min(3);
            }
            return true;
        }
        let inserted = Frame { key, accesses: 1 };
        let frame = if self.frames.len() < self.capacity as usize {
            self.frames.push(inserted);
            self.frames.len() as u32 - 1
        } else {
            let frame = self.evict();
            self.frames[frame as usize] = inserted;
            frame
        };
        self.resident.insert(key, frame);
        self.eviction.insert(frame, hash(key));
        false
    }
}

/// CLOCK, or second chance: a hand goes round, and evicts the first frame that was not used since its last visit.
pub struct Clock {
    frames: Vec<(u64, bool)>,
    resident: HashMap<u64, usize>,
    hand: usize,
    capacity: usize,
}

impl Clock {
    pub fn new(capacity: u32) -> Clock {
        Clock { frames: Vec::new(), resident: HashMap::new(), hand: 0, capacity: capacity as usize }
    }
}

impl Policy for Clock {
    fn access(&mut self, key: u64) -> bool {
        if let Some(frame) = self.resident.get(&key) {
            self.frames[*frame].1 = true;
            return true;
        }
        if self.frames.len() < self.capacity {
            self.resident.insert(key, self.frames.len());
            self.frames.push((key, false));
            return false;
        }
        while std::mem::take(&mut self.frames[self.hand].1) {
            self.hand = (self.hand + 1) % self.capacity;
        }
        self.resident.remove(&self.frames[self.hand].0);
        self.resident.insert(key, self.hand);
        self.frames[self.hand].0 = key;
        self.hand = (self.hand + 1) % self.capacity;
        false
    }
}

/// LRU: evicts the least recently used folio.
pub struct Lru {
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    accesses: u64,
    capacity: usize,
}

impl Lru {
    pub fn new(capacity: u32) -> Lru {
        let (used, order) = (HashMap::new(), BTreeMap::new());
        Lru { used, order, accesses: 0, capacity: capacity as usize }
    }
}

impl Policy for Lru {
    fn access(&mut self, key: u64) -> bool {
        self.accesses += 1;
        let before = self.used.insert(key, self.accesses);
        self.order.insert(self.accesses, key);
        match before {
            Some(before) => {
                self.order.remove(&before);
            }
            None if self.used.len() > self.capacity => {
                let (_, least) = self.order.pop_first().expect("the cache is full");
                self.used.remove(&least);
            }
            None => {}
        }
        before.is_some()
    }
}
