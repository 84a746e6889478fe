//! Everything that happened to a simulated device's content, in order, so that
//! a power loss can be tried at every moment of the past.
//!
//! Bounded: beyond its limits the record forgets its beginning, and moments
//! before that can no longer be tried.

use std::collections::VecDeque;

use super::media::{Crash, Event, Media};
use super::random::Random;
use super::{Sim, SimOptions};

/// The most events remembered.
const EVENTS: usize = 1 << 17;
/// The most bytes remembered.
const BYTES: usize = 512 << 20;

/// The remembered past, and the present it leads to.
#[derive(Clone)]
pub(super) struct Record {
    start: Media,
    events: VecDeque<Event>,
    bytes: usize,
    forgotten: u64,
    pub(super) now: Media,
}

impl Record {
    pub(super) fn from(start: Media) -> Record {
        Record { now: start.clone(), start, events: VecDeque::new(), bytes: 0, forgotten: 0 }
    }

    pub(super) fn note(&mut self, event: Event) {
        self.now.apply(&event);
        self.bytes += weight(&event);
        self.events.push_back(event);
        while self.events.len() > EVENTS || self.bytes > BYTES {
            let oldest = self.events.pop_front().expect("there are some");
            self.bytes -= weight(&oldest);
            self.start.apply(&oldest);
            self.forgotten += 1;
        }
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.iter().cloned().collect()
    }

    /// Forgets what led here: the cut points begin now.
    pub(super) fn restart(&mut self) {
        self.forgotten += self.events.len() as u64;
        self.start = self.now.clone();
        self.events.clear();
        self.bytes = 0;
    }
}

fn weight(event: &Event) -> usize {
    match event {
        Event::Begin { action, .. } => action.weight(),
        Event::End { .. } => 0,
    }
}

/// How many of the legal states to try at each cut point.
#[derive(Clone, Copy, Debug)]
pub struct CrashPlan {
    /// With at most this many unsettled writes, every subset of them; at most 16.
    pub exhaustive_up_to: u32,
    /// Otherwise, beside none and all: this many chosen by the seed, torn too.
    pub samples: u32,
    /// What chooses them.
    pub seed: u64,
}

impl Default for CrashPlan {
    fn default() -> CrashPlan {
        CrashPlan { exhaustive_up_to: 4, samples: 4, seed: 0 }
    }
}

/// One legal state after a power loss.
pub struct CrashImage {
    /// After how many recorded events the power failed.
    pub cut: u64,
    /// What the crash kept.
    pub crash: Crash,
    /// The device as it is found afterwards.
    pub sim: Sim,
}

/// Every cut point of a record, with the states that a [`CrashPlan`] chooses.
/// The device may be used on meanwhile: this walks a copy of its past.
pub struct CrashImages {
    record: Record,
    media: Media,
    options: SimOptions,
    plan: CrashPlan,
    random: Random,
    /// Events applied to `media`.
    cut: usize,
    /// Choices left to try at this cut, last first.
    choices: Vec<Crash>,
}

impl CrashImages {
    pub(super) fn of(record: Record, options: SimOptions, plan: CrashPlan) -> CrashImages {
        assert!(plan.exhaustive_up_to <= 16, "2^{} states are too many", plan.exhaustive_up_to);
        let mut images = CrashImages {
            media: record.start.clone(),
            record,
            options,
            plan,
            random: Random::new(plan.seed),
            cut: 0,
            choices: Vec::new(),
        };
        images.choose();
        images
    }

    fn choose(&mut self) {
        let unsettled = self.media.unsettled() as u32;
        if unsettled == 0 {
            self.choices.push(Crash::LoseAll);
            return;
        }
        for _ in 0..self.plan.samples {
            self.choices.push(Crash::Seeded(self.random.next()));
        }
        if unsettled <= self.plan.exhaustive_up_to {
            self.choices.extend((0..1 << unsettled).map(Crash::Subset));
        } else {
            self.choices.extend([Crash::KeepAll, Crash::LoseAll]);
        }
    }
}

impl Iterator for CrashImages {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        while self.choices.is_empty() {
            self.media.apply(self.record.events.get(self.cut)?);
            self.cut += 1;
            self.choose();
        }
        let crash = self.choices.pop()?;
        let image = self.media.crash(crash);
        let cut = self.record.forgotten + self.cut as u64;
        Some(CrashImage { cut, crash, sim: Sim::holding(image, self.options.clone()) })
    }
}
