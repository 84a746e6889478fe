//! How traces are replayed.

/// How a trace is replayed: the keys `replay_...`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplayOptions {
    /// Steps do not wait for their times.
    pub no_stall: bool,
    /// Percentage of the trace's speed.
    pub time_scale: u32,
    /// Offsets are divided by this.
    pub scale: u64,
    /// Offsets are rounded down to multiples of this, a power of two.
    pub align: u64,
    /// The file in place of all those of the trace.
    pub redirect: Option<String>,
    /// The actions that are left out.
    pub skip: ReplaySkip,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        let skip = ReplaySkip::default();
        Self { no_stall: false, time_scale: 100, scale: 1, align: 1, redirect: None, skip }
    }
}

impl ReplayOptions {
    /// An offset of the trace, as it is replayed.
    pub fn offset(&self, offset: u64) -> u64 {
        offset / self.scale / self.align * self.align
    }

    /// The time of a step that is `us` microseconds after the first, in nanoseconds after the first.
    pub fn due_ns(&self, us: u64) -> u64 {
        if self.no_stall { 0 } else { us.saturating_mul(100_000) / u64::from(self.time_scale) }
    }
}

/// The actions of a trace that are left out: `replay_skip`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReplaySkip {
    /// Reads.
    pub reads: bool,
    /// Writes.
    pub writes: bool,
    /// Trims.
    pub trims: bool,
    /// fsync and fdatasync.
    pub syncs: bool,
}
