//! What a thread has cost the machine so far: CPU time, context switches, page faults.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::time::{ClockId, clock_gettime};

/// A reading, or the difference of two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, in nanoseconds, to the nanosecond.
    pub cpu_ns: u64,
    /// The part of it in the program, as the kernel's ticks tell it.
    pub user_ns: u64,
    /// The part of it in the kernel, likewise.
    pub system_ns: u64,
    /// Voluntary and other context switches.
    pub context_switches: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// Page faults that did not.
    pub minor_faults: u64,
}

impl Usage {
    /// The calling thread's so far.
    pub fn current_thread() -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Self::default() };
        let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
        // What getrusage adds up is of the last tick: milliseconds ago.
        let exact = clock_gettime(ClockId::ThreadCPUTime);
        Self {
            cpu_ns: exact.tv_sec as u64 * 1_000_000_000 + exact.tv_nsec as u64,
            user_ns: unsigned(usage.user_time().num_nanoseconds()),
            system_ns: unsigned(usage.system_time().num_nanoseconds()),
            context_switches: unsigned(
                usage.voluntary_context_switches() + usage.involuntary_context_switches(),
            ),
            major_faults: unsigned(usage.major_page_faults()),
            minor_faults: unsigned(usage.minor_page_faults()),
        }
    }

    /// What came after `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        self.combine(earlier, u64::saturating_sub)
    }

    /// With another thread's added.
    pub fn plus(self, other: Self) -> Self {
        self.combine(other, |a, b| a + b)
    }

    fn combine(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            cpu_ns: f(self.cpu_ns, other.cpu_ns),
            user_ns: f(self.user_ns, other.user_ns),
            system_ns: f(self.system_ns, other.system_ns),
            context_switches: f(self.context_switches, other.context_switches),
            major_faults: f(self.major_faults, other.major_faults),
            minor_faults: f(self.minor_faults, other.minor_faults),
        }
    }
}
