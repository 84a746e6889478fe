//! The possible states of a simulated device after a power loss at any recorded moment.

use std::fmt;

use super::device::Sim;
use super::media::{Crash, Media};
use super::options::SimOptions;
use super::random::Random;
use super::record::Record;

/// The choice of legal states to try at each cut point.
#[derive(Clone, Copy, Debug)]
pub struct CrashPlan {
    /// With at most this many unstable writes, try every subset of them; at most 16.
    pub exhaustive_up_to: u32,
    /// The number of random states, with torn writes. With more unstable writes than `exhaustive_up_to`, two more
    /// states are tried: one keeps no unstable write, one keeps all.
    pub samples: u32,
    /// The seed of the random states.
    pub seed: u64,
}

impl Default for CrashPlan {
    fn default() -> CrashPlan {
        CrashPlan { exhaustive_up_to: 4, samples: 4, seed: 0 }
    }
}

/// One legal state after a power loss.
#[derive(Debug)]
pub struct CrashImage {
    /// The number of events before the power loss, those included that the record has dropped: what [`Sim::events`]
    /// returned at that moment.
    pub cut: u64,
    /// The choice of unstable writes that survived.
    pub crash: Crash,
    /// The device after the power loss.
    pub sim: Sim,
}

/// Iterates over all cut points of a record, with the states that a [`CrashPlan`] chooses.
/// The device may be used meanwhile: this walks over a copy of its record.
pub struct CrashImages {
    record: Record,
    media: Media,
    options: SimOptions,
    plan: CrashPlan,
    random: Random,
    /// Events applied to `media`.
    cut: usize,
    /// The remaining choices at this cut, last first.
    choices: Vec<Crash>,
}

impl fmt::Debug for CrashImages {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("CrashImages").field("cut", &self.cut).finish_non_exhaustive()
    }
}

impl CrashImages {
    fn new(record: Record, options: SimOptions, plan: CrashPlan) -> CrashImages {
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
        images.choose_crashes();
        images
    }

    fn choose_crashes(&mut self) {
        let unstable_writes = self.media.unstable_writes() as u32;
        if unstable_writes == 0 {
            self.choices.push(Crash::LoseAll);
            return;
        }
        for _ in 0..self.plan.samples {
            self.choices.push(Crash::Seeded(self.random.next()));
        }
        if unstable_writes <= self.plan.exhaustive_up_to {
            self.choices.extend((0..1 << unstable_writes).map(Crash::Subset));
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
            self.choose_crashes();
        }
        let crash = self.choices.pop()?;
        let image = self.media.crash(crash);
        let cut = self.record.forgotten + self.cut as u64;
        Some(CrashImage { cut, crash, sim: Sim::from_image(image, self.options.clone()) })
    }
}

impl Sim {
    /// Possible states after a power loss at any moment since the record began: see
    /// [`Sim::crash_image`]. They have the size that the device has now.
    ///
    /// # Panics
    /// As [`Sim::record`]; when the plan requests more than 2^16 states at a cut point.
    pub fn crash_images(&self, plan: CrashPlan) -> CrashImages {
        let record = self.record_copy();
        CrashImages::new(record, self.options_now(), plan)
    }
}
