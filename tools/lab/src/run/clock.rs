//! Two clocks: one that is exact, and one that moves only at the kernel's tick but costs a few
//! nanoseconds, for runs that measure no latencies.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock.
#[inline]
pub fn exact_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// The same clock as of the kernel's last tick, up to ten milliseconds ago.
#[inline]
pub fn coarse_ns() -> u64 {
    nanoseconds(ClockId::MonotonicCoarse)
}

#[inline]
fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Both are positive: the monotonic clock begins at boot.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
