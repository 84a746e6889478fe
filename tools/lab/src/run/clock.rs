//! Two readings of the monotonic clock: an exact one, and a coarse one, which costs a few nanoseconds
//! and serves runs that measure no latencies.

use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock in nanoseconds.
#[inline]
pub fn exact_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// The monotonic clock at the kernel's last tick, up to ten milliseconds ago, in nanoseconds.
#[inline]
pub fn coarse_ns() -> u64 {
    nanoseconds(ClockId::MonotonicCoarse)
}

#[inline]
fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Both fields are positive: the monotonic clock begins at boot.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
