//! The resource usage of a thread: CPU time, context switches, page faults.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::time::{ClockId, clock_gettime};

/// Resource usage since the thread's start, or between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in nanoseconds, exact.
    pub cpu_ns: u64,
    /// CPU time in user mode, by the kernel's ticks.
    pub user_ns: u64,
    /// CPU time in the kernel, by the kernel's ticks.
    pub system_ns: u64,
    /// Voluntary and involuntary context switches.
    pub context_switches: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// Page faults without I/O.
    pub minor_faults: u64,
}

impl Usage {
    /// The usage of the calling thread since its start.
    pub fn current_thread() -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Self::default() };
        let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
        // getrusage reports the state at the last tick, milliseconds ago.
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

    /// The difference to an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        self.combine(earlier, u64::saturating_sub)
    }

    /// The sum with another thread's usage.
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
