//! A record of all events on a simulated device's content, in order, so that a
//! test can try a power loss at every moment of the past.
//!
//! Bounded: beyond its limits the record drops its oldest events, and a power loss
//! before them can no longer be tried.

use std::collections::VecDeque;

use super::media::{Event, Media};

/// The most events kept.
const MAX_EVENTS: usize = 1 << 17;
/// The most bytes of written data kept.
const MAX_BYTES: usize = 512 << 20;

/// The recorded events, with the content before them and after them.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) start: Media,
    pub(super) events: VecDeque<Event>,
    bytes: usize,
    pub(super) forgotten: u64,
    pub(super) now: Media,
}

impl Record {
    pub(super) fn new(start: Media) -> Record {
        Record { now: start.clone(), start, events: VecDeque::new(), bytes: 0, forgotten: 0 }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.now.apply(&event);
        self.bytes += memory_bytes(&event);
        self.events.push_back(event);
        while self.events.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            let oldest = self.events.pop_front().expect("the record is not empty");
            self.bytes -= memory_bytes(&oldest);
            self.start.apply(&oldest);
            self.forgotten += 1;
        }
    }

    /// The number of events since the device was made.
    pub(super) fn count(&self) -> u64 {
        self.forgotten + self.events.len() as u64
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.iter().cloned().collect()
    }

    /// Drops all events: the cut points begin now.
    pub(super) fn restart(&mut self) {
        self.forgotten += self.events.len() as u64;
        self.start = self.now.clone();
        self.events.clear();
        self.bytes = 0;
    }
}

fn memory_bytes(event: &Event) -> usize {
    match event {
        Event::Begin { action, .. } => action.memory_bytes(),
        Event::End { .. } => 0,
    }
}
