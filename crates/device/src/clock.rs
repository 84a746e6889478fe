//! Time: the machine's, or a virtual one that a test advances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A source of time. Clones of a virtual clock show the same time.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The machine's monotonic clock.
    #[default]
    System,
    /// A clock that only a test advances.
    Virtual(VirtualClock),
}

/// A clock that stands still until it is advanced.
#[derive(Clone, Debug)]
pub struct VirtualClock {
    base: Instant,
    elapsed_ns: Arc<AtomicU64>,
}

impl Default for VirtualClock {
    fn default() -> VirtualClock {
        VirtualClock { base: Instant::now(), elapsed_ns: Arc::default() }
    }
}

impl VirtualClock {
    /// Advances to `time`; never backwards.
    pub fn advance_to(&self, time: Instant) {
        let elapsed = time.saturating_duration_since(self.base).as_nanos() as u64;
        self.elapsed_ns.fetch_max(elapsed, Ordering::AcqRel);
    }

    fn now(&self) -> Instant {
        self.base + Duration::from_nanos(self.elapsed_ns.load(Ordering::Acquire))
    }
}

impl Clock {
    /// The current time.
    pub fn now(&self) -> Instant {
        match self {
            Clock::System => Instant::now(),
            Clock::Virtual(clock) => clock.now(),
        }
    }

    /// The time since some moment, in steps of a few milliseconds. Costs a fraction of [`Self::now`].
    pub(crate) fn coarse(&self) -> Duration {
        match self {
            Clock::System => {
                let now = clock_gettime(ClockId::MonotonicCoarse);
                Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
            }
            Clock::Virtual(clock) => Duration::from_nanos(clock.elapsed_ns.load(Ordering::Acquire)),
        }
    }

    /// The instant that is `time` from now; a century from now if `Instant` cannot represent it.
    pub fn after(&self, time: Duration) -> Instant {
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        let now = self.now();
        now.checked_add(time).unwrap_or_else(|| now + CENTURY)
    }
}
