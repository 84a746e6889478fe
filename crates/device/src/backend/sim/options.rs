//! Options of a simulated device.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::image::SECTOR;
use crate::clock::Clock;
use crate::geometry::{Discard, Geometry};

/// The longest latency.
pub const MAX_LATENCY: Duration = Duration::from_secs(60);
/// The most requests on which a device works at once.
pub const MAX_UNITS: u32 = 1 << 16;

/// The write cache of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// No cache: completed writes are durable.
    None,
    /// A flush makes completed writes durable; a durable write (FUA) needs no flush.
    VolatileWithFua,
    /// The same, but a durable write is followed by a flush in the same request (`RWF_DSYNC` without FUA).
    VolatileWithDsync,
    /// Only a flush makes completed writes durable.
    Volatile,
}

/// The behaviour of flushes and FUA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    /// Flushes and durable writes make data durable.
    Kept,
    /// Flushes and durable writes report success and make nothing durable.
    Broken,
}

/// How the latencies of requests are spread over their range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Evenly.
    Uniform,
    /// As over a network: most are near the beginning, one in a hundred is beyond the end.
    Exponential,
}

/// The recording of events, which crash images need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// Recorded: each write is copied once more.
    On,
    /// Not recorded, for measurements: there are no crash images.
    Off,
}

/// Options of a simulated device: [`SimOptions::new`] creates defaults, and each method changes
/// one property.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimOptions {
    pub(super) size: u64,
    pub(super) seed: u64,
    pub(super) latency: RangeInclusive<Duration>,
    pub(super) spread: Spread,
    pub(super) units: u32,
    pub(super) object: Option<u64>,
    pub(super) clock: Clock,
    pub(super) block_size: u32,
    pub(super) max_transfer: u32,
    pub(super) cache: WriteCache,
    pub(super) flush_mode: FlushMode,
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
            spread: Spread::Uniform,
            units: 1,
            object: None,
            clock: Clock::System,
            block_size: 512,
            max_transfer: 1 << 20,
            cache: WriteCache::VolatileWithFua,
            flush_mode: FlushMode::Kept,
            recording: Recording::On,
        }
    }

    /// The size of the device in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.size
    }

    /// The seed of all random choices.
    pub fn seed(self, seed: u64) -> SimOptions {
        SimOptions { seed, ..self }
    }

    /// The time that a unit works on a request, drawn from the range by [`Self::spread`]. Throughput is `units` divided by its mean.
    ///
    /// # Panics
    /// For an empty range, and over [`MAX_LATENCY`].
    pub fn latency(self, latency: RangeInclusive<Duration>) -> SimOptions {
        assert!(!latency.is_empty() && *latency.end() <= MAX_LATENCY, "latency {latency:?}");
        SimOptions { latency, ..self }
    }

    /// How latencies are spread over their range.
    pub fn spread(self, spread: Spread) -> SimOptions {
        SimOptions { spread, ..self }
    }

    /// Divides the device into objects of this many bytes, each of which has all the units, like the objects of a distributed
    /// store. Flushes have units of their own.
    ///
    /// # Panics
    /// When it is not a whole number of sectors of 512 bytes, at least one.
    pub fn object(self, bytes: u64) -> SimOptions {
        assert!(bytes > 0 && bytes.is_multiple_of(SECTOR as u64), "objects of {bytes} bytes");
        SimOptions { object: Some(bytes), ..self }
    }

    /// The number of requests on which the device works at once, like the channels
    /// of a flash drive; the others wait. Without latency no request waits.
    ///
    /// # Panics
    /// For 0, and over [`MAX_UNITS`].
    pub fn units(self, units: u32) -> SimOptions {
        assert!((1..=MAX_UNITS).contains(&units), "{units} units");
        SimOptions { units, ..self }
    }

    /// The clock that measures latency.
    pub fn clock(self, clock: Clock) -> SimOptions {
        SimOptions { clock, ..self }
    }

    /// The block size in bytes: a power of two from 512 to 65536.
    ///
    /// # Panics
    /// For any other value, and for one that does not divide the size.
    pub fn block_size(self, block_size: u32) -> SimOptions {
        let is_valid = block_size.is_power_of_two() && (512..=65536).contains(&block_size);
        assert!(is_valid && self.size.is_multiple_of(block_size as u64), "blocks of {block_size}");
        SimOptions { block_size, max_transfer: self.max_transfer.max(block_size), ..self }
    }

    /// The longest read or write in bytes; a longer one is done only up to this length.
    ///
    /// # Panics
    /// When it is not a whole number of blocks, at least one.
    pub fn max_transfer(self, max_transfer: u32) -> SimOptions {
        let is_valid = max_transfer > 0 && max_transfer.is_multiple_of(self.block_size);
        assert!(is_valid, "transfers of {max_transfer} bytes");
        SimOptions { max_transfer, ..self }
    }

    /// The write cache.
    pub fn cache(self, cache: WriteCache) -> SimOptions {
        SimOptions { cache, ..self }
    }

    /// The behaviour of flushes and FUA.
    pub fn flush_mode(self, flush_mode: FlushMode) -> SimOptions {
        SimOptions { flush_mode, ..self }
    }

    /// The recording of events, which crash images need.
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
            volatile_cache: self.cache != WriteCache::None,
            cached_in_process: false,
            fua: matches!(self.cache, WriteCache::None | WriteCache::VolatileWithFua),
            durable_writes: self.cache != WriteCache::Volatile,
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
        if self.spread == Spread::Exponential {
            write!(out, ", exponential")?;
        }
        if let Some(bytes) = self.object {
            write!(out, ", objects of {bytes} bytes")?;
        }
        Ok(())
    }
}
