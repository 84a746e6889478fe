//! The result of a device's calibration.

use crate::interface::kind::QueueKind;

/// The measured depths.
pub const DEPTHS: [usize; 2] = [1, 32];

/// The queue that calibration has chosen for a device, and what it measured.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Never `Auto`.
    pub kind: QueueKind,
    /// One sentence for display, with the rates.
    pub reason: String,
    /// The samples of each queue that was measured, preferred queues first. All have the same rounds. Empty if there
    /// was nothing to choose between.
    pub measured: Vec<QueueSamples>,
}

/// The samples of one queue, in the order of the rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSamples {
    /// The kind of the queue.
    pub kind: QueueKind,
    /// One for each round.
    pub rounds: Vec<RoundSample>,
}

/// The rates of one queue in one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundSample {
    /// Reads per second at each of [`DEPTHS`]; 0 if reads failed.
    pub rates: [f64; DEPTHS.len()],
    /// Meanwhile the thread waited for a processor for a good part of the time.
    pub is_disturbed: bool,
}

/// The options of a reactor on which the best queue of a device depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalibrationOptions {
    /// The reactor has a ring.
    pub has_ring: bool,
    /// Devices are registered with the ring.
    pub fixed_files: bool,
    /// Memory is registered with the ring.
    pub fixed_buffers: bool,
    /// Submission entries have 128 bytes.
    pub commands: bool,
}

impl RoundSample {
    /// The depths at which reads are measured.
    pub const DEPTHS: [usize; DEPTHS.len()] = DEPTHS;
}

impl QueueSamples {
    /// The median rate at each of [`DEPTHS`], in reads per second.
    pub fn medians(&self) -> [f64; DEPTHS.len()] {
        std::array::from_fn(|depth| self.rounds.iter().map(|round| round.rates[depth]).collect())
            .map(median)
    }
}

/// The median; the greater of the two in the middle. 0 without values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
