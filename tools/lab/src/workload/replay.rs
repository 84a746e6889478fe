//! The position in a trace that is replayed.

use crate::job::{IoLog, ReplayStep};
use std::sync::Arc;

/// The position in a trace.
#[derive(Debug, Clone)]
pub struct Replay {
    log: Arc<IoLog>,
    next: usize,
}

impl Replay {
    /// The beginning of a trace.
    pub fn new(log: Arc<IoLog>) -> Self {
        Self { log, next: 0 }
    }

    /// Goes back to the beginning.
    pub fn begin_pass(&mut self) {
        self.next = 0;
    }

    /// The next step; `None` at the end.
    pub fn peek(&self) -> Option<ReplayStep> {
        self.log.steps.get(self.next).copied()
    }

    /// Goes on to the step after the next.
    pub fn advance(&mut self) {
        self.next += 1;
    }
}
