//! Everything that happened to a simulated device's content, in order, so that
//! a power loss can be tried at every moment of the past.
//!
//! Bounded: beyond its limits the record forgets its beginning, and moments
//! before that can no longer be tried.

use std::collections::VecDeque;

use super::media::{Event, Media};

/// The most events remembered.
const MAX_EVENTS: usize = 1 << 17;
/// The most bytes remembered.
const MAX_BYTES: usize = 512 << 20;

/// The remembered past, and the present it leads to.
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
            let oldest = self.events.pop_front().expect("there are some");
            self.bytes -= memory_bytes(&oldest);
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

fn memory_bytes(event: &Event) -> usize {
    match event {
        Event::Begin { action, .. } => action.memory_bytes(),
        Event::End { .. } => 0,
    }
}
