//! A queue of timers. Knows no clock.

use std::collections::BTreeMap;
use std::time::Instant;

/// Identifies a timer, to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    at: Instant,
    sequence: u64,
}

/// Timers, earliest first, each with its event.
pub(crate) struct Timers<T> {
    entries: BTreeMap<TimerKey, T>,
    sequence: u64,
}

impl<T> Timers<T> {
    pub(crate) fn new() -> Timers<T> {
        Timers { entries: BTreeMap::new(), sequence: 0 }
    }

    pub(crate) fn insert(&mut self, at: Instant, what: T) -> TimerKey {
        self.sequence += 1;
        let key = TimerKey { at, sequence: self.sequence };
        self.entries.insert(key, what);
        key
    }

    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<T> {
        self.entries.remove(&key)
    }

    pub(crate) fn contains(&self, key: TimerKey) -> bool {
        self.entries.contains_key(&key)
    }

    /// The time of the earliest timer.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.entries.first_key_value().map(|(key, _)| key.at)
    }

    /// The event of one timer that is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<T> {
        let first = self.entries.first_entry()?;
        if first.key().at > now { None } else { Some(first.remove()) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn due_timers_are_taken_in_order_and_once() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::new();
        timers.insert(at(2), 'b');
        let gone = timers.insert(at(1), 'x');
        timers.insert(at(1), 'a');
        timers.insert(at(9), 'c');
        assert_eq!(timers.remove(gone), Some('x'));
        assert_eq!(timers.next(), Some(at(1)));
        let due: Vec<_> = std::iter::from_fn(|| timers.take_due(at(5))).collect();
        assert_eq!(due, ['a', 'b']);
        assert!(!timers.is_empty());
    }
}
