//! Options of a simulated device.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::image::SECTOR;
use crate::clock::Clock;
use crate::geometry::{Discard, Geometry};

/// The longest latency.
pub const MAX_LATENCY: Duration = Duration::from_secs(60);
/// The most requests a device works on at once.
pub const MAX_UNITS: u32 = 1 << 16;

/// The cache that completed writes go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// They are durable.
    None,
    /// A flush makes them durable; a durable write (FUA) costs none.
    VolatileWithFua,
    /// A flush makes them durable, and nothing else does.
    Volatile,
}

/// The honesty of flushes and FUA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promises {
    /// They do.
    Kept,
    /// They answer well and make nothing durable.
    Broken,
}

/// The recording of events, for crash images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// It is: each write is copied once more.
    On,
    /// It is not: for measuring. There are no crash images.
    Off,
}

/// Options of a simulated device; made with [`SimOptions::new`], then changed
/// one property at a time.
#[derive(Clone, Debug)]
pub struct SimOptions {
    pub(super) size: u64,
    pub(super) seed: u64,
    pub(super) latency: RangeInclusive<Duration>,
    pub(super) units: u32,
    pub(super) clock: Clock,
    pub(super) block_size: u32,
    pub(super) max_transfer: u32,
    pub(super) cache: Cache,
    pub(super) promises: Promises,
    pub(super) recording: Recording,
}

impl SimOptions {
    /// `size` bytes, 512-byte blocks, volatile cache with FUA, no latency, one
    /// unit, seed 0, recording, the machine's clock.
    ///
    /// # Panics
    /// When `size` is no multiple of 512.
    pub fn new(size: u64) -> SimOptions {
        assert!(size.is_multiple_of(SECTOR as u64), "{size} bytes are not whole sectors");
        SimOptions {
            size,
            seed: 0,
            latency: Duration::ZERO..=Duration::ZERO,
            units: 1,
            clock: Clock::System,
            block_size: 512,
            max_transfer: 1 << 20,
            cache: Cache::VolatileWithFua,
            promises: Promises::Kept,
            recording: Recording::On,
        }
    }

    /// The size of the device.
    pub(crate) fn bytes(&self) -> u64 {
        self.size
    }

    /// The seed of everything random.
    pub fn seed(self, seed: u64) -> SimOptions {
        SimOptions { seed, ..self }
    }

    /// The time that a unit works on a request, drawn evenly from the
    /// range. Throughput is `units` divided by the mean.
    ///
    /// # Panics
    /// For an empty range, and over [`MAX_LATENCY`].
    pub fn latency(self, latency: RangeInclusive<Duration>) -> SimOptions {
        assert!(!latency.is_empty() && *latency.end() <= MAX_LATENCY, "latency {latency:?}");
        SimOptions { latency, ..self }
    }

    /// The requests that the device works on at once, like the channels of a
    /// flash drive; the others wait. Without latency none ever waits.
    ///
    /// # Panics
    /// For 0, and over [`MAX_UNITS`].
    pub fn units(self, units: u32) -> SimOptions {
        assert!((1..=MAX_UNITS).contains(&units), "{units} units");
        SimOptions { units, ..self }
    }

    /// By which latency passes.
    pub fn clock(self, clock: Clock) -> SimOptions {
        SimOptions { clock, ..self }
    }

    /// The block size in bytes: 512 to 65536, a power of two.
    ///
    /// # Panics
    /// For any other, and for one that does not divide the size.
    pub fn block_size(self, block_size: u32) -> SimOptions {
        let is_valid = block_size.is_power_of_two() && (512..=65536).contains(&block_size);
        assert!(is_valid && self.size.is_multiple_of(block_size as u64), "blocks of {block_size}");
        SimOptions { block_size, max_transfer: self.max_transfer.max(block_size), ..self }
    }

    /// The longest read or write in bytes; of a longer one only so much is done.
    ///
    /// # Panics
    /// When it is not a whole number of blocks, at least one.
    pub fn max_transfer(self, max_transfer: u32) -> SimOptions {
        let is_valid = max_transfer > 0 && max_transfer.is_multiple_of(self.block_size);
        assert!(is_valid, "transfers of {max_transfer} bytes");
        SimOptions { max_transfer, ..self }
    }

    /// The cache of completed writes.
    pub fn cache(self, cache: Cache) -> SimOptions {
        SimOptions { cache, ..self }
    }

    /// The honesty of flushes and FUA.
    pub fn promises(self, promises: Promises) -> SimOptions {
        SimOptions { promises, ..self }
    }

    /// The recording that crash images need.
    pub fn recording(self, recording: Recording) -> SimOptions {
        SimOptions { recording, ..self }
    }

    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size,
            block_size: self.block_size,
            physical_block_size: self.block_size.max(4096),
            memory_alignment: SECTOR as u32,
            max_transfer: self.max_transfer,
            volatile_cache: self.cache != Cache::None,
            fua: self.cache != Cache::Volatile,
            discard: Some(Discard { granularity: self.block_size, max_bytes: 1 << 30 }),
            write_zeroes: true,
            read_only: false,
            rotational: false,
            direct: true,
        }
    }
}

impl fmt::Display for SimOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "sim, {} bytes, seed {}", self.size, self.seed)?;
        let (min, max) = (self.latency.start(), self.latency.end());
        if !max.is_zero() {
            write!(out, ", {} units, latency {min:?}", self.units)?;
        }
        if min != max {
            write!(out, " to {max:?}")?;
        }
        Ok(())
    }
}
