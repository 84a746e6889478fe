//! The queue that calibration has chosen for a device.

use crate::interface::kind::QueueKind;

/// The queue chosen for a device.
#[derive(Clone, Debug)]
pub struct QueueChoice {
    /// Never `Auto`.
    pub kind: QueueKind,
    /// One sentence for display, with figures.
    pub reason: String,
    /// Reads a second of each queue at each depth; 0 if reads failed.
    pub figures: Vec<(QueueKind, usize, f64)>,
}
