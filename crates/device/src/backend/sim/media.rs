//! The content that would survive a power loss now.
//!
//! A write is in one of three states: stable; completed, but in the volatile
//! cache; or in flight. [`Event`]s change these states. A crash keeps all stable
//! writes and any subset of the others, each possibly torn at 512 bytes. A later
//! write to a sector may be lost while an earlier one is kept, so the subsets
//! include every order of writes between two flushes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::image::{Image, SECTOR};
use super::random::Random;

/// The most writes in the cache. Beyond that the oldest reaches the medium on its
/// own, as in any real cache.
const MAX_CACHED_WRITES: usize = 1 << 16;

/// A change, or a flush.
#[derive(Clone, Debug)]
pub enum Action {
    /// A write.
    Write {
        /// The address of the first byte.
        address: u64,
        /// The new bytes.
        bytes: Arc<[u8]>,
    },
    /// Zeroing; a discard is recorded like this, too.
    Clear {
        /// The address of the first byte.
        address: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// A flush: all writes that completed before it began become stable.
    Flush,
}

impl Action {
    fn sectors(&self) -> usize {
        match self {
            Action::Write { bytes, .. } => bytes.len().div_ceil(SECTOR),
            Action::Clear { length, .. } => length.div_ceil(SECTOR as u64) as usize,
            Action::Flush => 0,
        }
    }

    /// The bytes of memory that its record occupies.
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Action::Write { bytes, .. } => bytes.len(),
            Action::Clear { .. } | Action::Flush => 0,
        }
    }

    fn apply(&self, image: &mut Image) {
        match self {
            Action::Write { address, bytes } => image.write(*address, bytes),
            Action::Clear { address, length } => image.clear(*address, *length),
            Action::Flush => {}
        }
    }

    fn apply_sector(&self, sector: usize, image: &mut Image) {
        let start = sector * SECTOR;
        match self {
            Action::Write { address, bytes } => {
                let end = bytes.len().min(start + SECTOR);
                image.write(*address + start as u64, &bytes[start..end]);
            }
            Action::Clear { address, length } => {
                let part = (SECTOR as u64).min(length - start as u64);
                image.clear(*address + start as u64, part);
            }
            Action::Flush => {}
        }
    }
}

/// The outcome of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success; a write is in the volatile cache.
    Done,
    /// Success, and stable on completion: FUA, or a device without a cache.
    Stable,
    /// A flush that reported success and did nothing, or a durable write that
    /// reported success and is only in the cache.
    Lied,
    /// Failure. The bytes of a failed write may have changed, in part or in whole.
    /// Writes that a failed flush covered can no longer become stable.
    Failed,
}

/// An event on the device's content.
#[derive(Clone, Debug)]
pub enum Event {
    /// The device accepted a request.
    Begin {
        /// The number of the request, in the order of acceptance.
        id: u64,
        /// The change.
        action: Action,
    },
    /// The device completed a request.
    End {
        /// The number of the request.
        id: u64,
        /// Its outcome.
        outcome: Outcome,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Survival {
    Stable,
    /// In the cache: stable after the next successful flush.
    Cached,
    /// A failed write, or covered by a failed flush: no later flush makes it stable.
    Abandoned,
}

#[derive(Clone)]
struct Completed {
    action: Action,
    order: u64,
    survival: Survival,
}

#[derive(Clone)]
struct InFlight {
    id: u64,
    action: Action,
    /// For a flush: it covers the completed writes of lower order.
    covers: u64,
}

/// The choice of unstable writes that survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// No unstable write survives.
    LoseAll,
    /// All unstable writes survive.
    KeepAll,
    /// The `i`-th write in order survives whole if bit `i` is set; writes after the 64th are lost.
    Subset(u64),
    /// Each write is lost, kept or torn at random, from this seed.
    Seeded(u64),
}

/// The device's content, by the effect of a crash on it.
#[derive(Clone, Default)]
pub(super) struct Media {
    stable: Image,
    completed: VecDeque<Completed>,
    in_flight: Vec<InFlight>,
    order: u64,
}

impl Media {
    pub(super) fn from_image(stable: Image) -> Media {
        Media { stable, ..Media::default() }
    }

    /// The content of the medium, without the cache.
    pub(super) fn stable(&self) -> &Image {
        &self.stable
    }

    /// The number of writes that a crash could lose.
    pub(super) fn unstable_writes(&self) -> usize {
        let in_flight = self.in_flight.iter().filter(|one| !matches!(one.action, Action::Flush));
        self.completed.iter().filter(|one| one.survival != Survival::Stable).count()
            + in_flight.count()
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Begin { id, action } => {
                self.in_flight.push(InFlight {
                    id: *id,
                    action: action.clone(),
                    covers: self.order,
                });
            }
            Event::End { id, outcome } => {
                let index = self.in_flight.iter().position(|one| one.id == *id);
                let ended = self.in_flight.remove(index.expect("the action has begun"));
                match ended.action {
                    Action::Flush => self.end_flush(ended.covers, *outcome),
                    action => self.end_write(action, *outcome),
                }
                self.retire_stable();
            }
        }
    }

    fn end_write(&mut self, action: Action, outcome: Outcome) {
        let survival = match outcome {
            Outcome::Done | Outcome::Lied => Survival::Cached,
            Outcome::Stable => Survival::Stable,
            Outcome::Failed => Survival::Abandoned,
        };
        self.completed.push_back(Completed { action, order: self.order, survival });
        self.order += 1;
    }

    fn end_flush(&mut self, covers: u64, outcome: Outcome) {
        let survival = match outcome {
            Outcome::Done | Outcome::Stable => Survival::Stable,
            Outcome::Failed => Survival::Abandoned,
            Outcome::Lied => return,
        };
        let covered = self.completed.iter_mut().take_while(|one| one.order < covers);
        for one in covered.filter(|one| one.survival == Survival::Cached) {
            one.survival = survival;
        }
    }

    /// Moves the oldest writes into the stable image, while they are stable or the cache is full.
    fn retire_stable(&mut self) {
        loop {
            let full = self.completed.len() > MAX_CACHED_WRITES;
            match self.completed.front() {
                Some(oldest) if oldest.survival == Survival::Stable || full => {
                    if oldest.survival != Survival::Abandoned {
                        oldest.action.apply(&mut self.stable);
                    }
                    self.completed.pop_front();
                }
                _ => return,
            }
        }
    }

    /// The content after a power loss.
    pub(super) fn crash(&self, crash: Crash) -> Image {
        let mut image = self.stable.clone();
        let mut random = match crash {
            Crash::Seeded(seed) => Random::new(seed),
            _ => Random::new(0),
        };
        let completed =
            self.completed.iter().map(|one| (&one.action, one.survival == Survival::Stable));
        let in_flight = self.in_flight.iter().map(|one| (&one.action, false));
        let mut index = 0;
        for (action, stable) in completed.chain(in_flight) {
            if stable {
                action.apply(&mut image);
                continue;
            }
            if matches!(action, Action::Flush) {
                continue;
            }
            match crash {
                Crash::LoseAll => {}
                Crash::KeepAll => action.apply(&mut image),
                Crash::Subset(bits) => {
                    if index < 64 && bits >> index & 1 == 1 {
                        action.apply(&mut image);
                    }
                }
                Crash::Seeded(_) => match random.below(3) {
                    0 => {}
                    1 => action.apply(&mut image),
                    _ => tear(action, &mut random, &mut image),
                },
            }
            index += 1;
        }
        image
    }
}

/// Applies each sector of a write with probability 1/2.
pub(super) fn tear(action: &Action, random: &mut Random, image: &mut Image) {
    for sector in 0..action.sectors() {
        if random.below(2) == 1 {
            action.apply_sector(sector, image);
        }
    }
}
