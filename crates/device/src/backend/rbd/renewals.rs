//! How soon renewals follow each other.

use std::time::{Duration, Instant};

/// The longest time before a renewal, of several that succeed for nothing.
const MAX_PAUSE_BETWEEN: Duration = Duration::from_secs(5 * 60);

/// The time after which a renewal no longer delays the next.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15 * 60);

/// The attempts to renew the instance of a device that have each made a client, one soon after the other.
#[derive(Default)]
pub(super) struct Renewals {
    /// How many, and when the last one was.
    last: Option<(u32, Instant)>,
}

impl Renewals {
    /// How long the next one is to wait: each client leaves an entry on the blocklist.
    pub(super) fn pause(&self) -> Duration {
        match self.last {
            Some((count, time)) if time.elapsed() < FORGOTTEN_AFTER => {
                Duration::from_secs(1 << count.min(10)).min(MAX_PAUSE_BETWEEN)
            }
            _ => Duration::ZERO,
        }
    }

    /// Notes one. Returns how long the next one is to wait.
    pub(super) fn note(&mut self) -> Duration {
        let count = match self.last {
            Some((count, time)) if time.elapsed() < FORGOTTEN_AFTER => count + 1,
            _ => 0,
        };
        self.last = Some((count, Instant::now()));
        self.pause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_that_follow_each_other_wait_longer_each_time() {
        let mut renewals = Renewals::default();
        let pauses = std::iter::from_fn(|| {
            let pause = renewals.pause().as_secs();
            renewals.note();
            Some(pause)
        });
        assert_eq!(pauses.take(6).collect::<Vec<_>>(), [0, 1, 2, 4, 8, 16]);
        for _ in 0..20 {
            renewals.note();
        }
        assert_eq!(renewals.pause(), MAX_PAUSE_BETWEEN);
    }
}
