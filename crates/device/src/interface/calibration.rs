//! The result of a device's calibration.

use crate::interface::kind::QueueKind;

/// The queue that calibration has chosen for a device, and what it measured.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Never `Auto`.
    pub kind: QueueKind,
    /// One sentence for display, with the rates.
    pub reason: String,
    /// Reads per second of each queue at each depth; 0 if reads failed.
    pub rates: Vec<(QueueKind, usize, f64)>,
}
