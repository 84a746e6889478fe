//! The content that would survive a power failure now.
//!
//! Bytes are in one of three places: stable; completed but in the volatile
//! cache; or in flight. Every [`Event`] moves some. A crash keeps all that is
//! stable and, of the rest, any subset, each part of it torn at 512 bytes. Since
//! any later write to a sector may be lost while an earlier one is kept, subsets
//! include every order within an epoch.

use std::collections::VecDeque;
use std::sync::Arc;

use super::image::{Image, SECTOR};
use super::random::Random;

/// The most writes the cache holds before the oldest is written to the medium
/// by itself, as any real cache does.
const MAX_CACHED_WRITES: usize = 1 << 16;

/// A change, or a flush.
#[derive(Clone, Debug)]
pub enum Action {
    /// These bytes at this address.
    Write {
        /// Where.
        address: u64,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// Zeros (a discard is recorded as these, too).
    Clear {
        /// Where.
        address: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// Everything completed before it becomes stable.
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

    /// Bytes that recording it keeps in memory.
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

/// The end of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well; a write is in the volatile cache.
    Done,
    /// Well, and stable with its completion: FUA, or a device without a cache.
    Stable,
    /// A flush that answered well and did nothing; a durable write that did
    /// and is only in the cache.
    Lied,
    /// Badly: what it would have changed may have changed, in part or whole.
    /// Of a flush: what it would have made stable can be no longer.
    Failed,
}

/// Something that happened to the device's content, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// The device took a request.
    Begin {
        /// Numbers requests in the order in which they were taken.
        id: u64,
        /// The change.
        action: Action,
    },
    /// The device answered it.
    End {
        /// Which.
        id: u64,
        /// How.
        outcome: Outcome,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Survival {
    Stable,
    /// Stable after the next good flush.
    Cached,
    /// Failed, or belonging to a failed flush: no later flush helps.
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
    /// Of a flush: what completed before it began.
    covers: u64,
}

/// Which of the unsettled writes a crash keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// None of them.
    LoseAll,
    /// All of them.
    KeepAll,
    /// The `i`-th in order if bit `i` is set, whole; later ones than 64 are lost.
    Subset(u64),
    /// Each lost, kept or torn, as this seed has it.
    Seeded(u64),
}

/// The device's content, sorted by what a crash would do to it.
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

    /// The content without the cache.
    pub(super) fn stable(&self) -> &Image {
        &self.stable
    }

    /// Writes whose survival a crash would decide.
    pub(super) fn unsettled(&self) -> usize {
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
                let ended = self.in_flight.remove(index.expect("it began"));
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

    /// Moves what nothing can undo into the stable image.
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

    /// The bytes after a power loss.
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

/// Keeps each sector or not, by the toss of a coin.
pub(super) fn tear(action: &Action, random: &mut Random, image: &mut Image) {
    for sector in 0..action.sectors() {
        if random.below(2) == 1 {
            action.apply_sector(sector, image);
        }
    }
}
