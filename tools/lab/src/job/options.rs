//! What one job asks for, in types: the result of all its keys, defaults first, as fio has them.

use super::distribution::Distribution;
use super::value::SizeOrPercent;
use crate::verify::HEADER_BYTES;
use std::borrow::Cow;
use std::time::Duration;

/// The directions and the order of a job's I/O: fio's `rw`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Sequential reads and writes mixed.
    ReadWrite,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random reads and writes mixed.
    RandReadWrite,
}

impl Pattern {
    /// As fio spells them in a report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "rw",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::RandReadWrite => "randrw",
        }
    }

    /// Whether offsets are drawn.
    pub fn random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandReadWrite)
    }

    /// Whether it reads.
    pub fn reads(self) -> bool {
        !matches!(self, Self::Write | Self::RandWrite)
    }

    /// Whether it writes.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::RandRead)
    }
}

/// What tells a wrong block: fio's `verify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Nothing, not even where there is a pattern.
    Nothing,
    /// A header with the block's place, its writer and a CRC32C.
    Crc32c,
    /// The bytes of `verify_pattern`, over and over.
    Pattern,
}

/// How the space of files that are made is come by: fio's `fallocate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallocate {
    /// Not beforehand: the file grows as it is written.
    None,
    /// Allocated, where the file system can; else it grows.
    Native,
    /// Allocated, or the run fails.
    Posix,
    /// Allocated beyond its end, which moves as it is written.
    Keep,
    /// Made as long as it will be, without space.
    Truncate,
}

/// The smallest and largest block of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// Smallest I/O in bytes; sizes are multiples of it.
    pub min: u64,
    /// Largest I/O in bytes.
    pub max: u64,
}

/// Whether writes return before they are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncWrites {
    /// They do.
    #[default]
    No,
    /// O_SYNC.
    Sync,
    /// O_DSYNC.
    Dsync,
}

/// Which times are measured for every I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// From making the I/O to handing it over.
    pub slat: bool,
    /// From handing it over to its completion.
    pub clat: bool,
    /// From making it to its completion.
    pub lat: bool,
    /// Bandwidth samples over the run.
    pub bandwidth: bool,
}

impl Measure {
    /// Whether any I/O needs a time stamp.
    pub fn latency(self) -> bool {
        self.slat || self.clat || self.lat
    }
}

/// Every key's value. `Default` is fio's default.
#[derive(Debug, Clone)]
pub struct Options {
    /// The job's name, unless its section names it.
    pub name: Option<String>,
    /// Free text for the report.
    pub description: Option<String>,
    /// Targets, separated by `:`.
    pub filename: Option<String>,
    /// Where files named by the run go.
    pub directory: Option<String>,
    /// How they are called.
    pub filename_format: Option<String>,
    /// The volume that all of the job's files are in.
    pub volume: Option<String>,
    /// `rw`.
    pub pattern: Pattern,
    /// Reads in a hundred, for the mixed patterns.
    pub mix_read: u8,
    /// `bs` of reads and of writes.
    pub block: [BlockRange; 2],
    /// O_DIRECT.
    pub direct: bool,
    /// `sync`.
    pub sync: SyncWrites,
    /// fio's engine; it counts only when fio itself runs the job.
    pub ioengine: &'static str,

    /// `iodepth`.
    pub depth: u32,
    /// I/Os handed over in one go.
    pub batch_submit: u32,
    /// Completions waited for in one go.
    pub complete_min: u32,
    /// Completions taken in one go; 0, unlike with fio, is whatever has completed.
    pub complete_max: u32,
    /// Reap down to this depth once the depth is reached.
    pub depth_low: u32,

    /// Region of all files together.
    pub size: Option<SizeOrPercent>,
    /// Size of one file.
    pub file_size: Option<u64>,
    /// Where the region begins.
    pub offset: SizeOrPercent,
    /// Bytes to move, when not the region once.
    pub io_size: Option<SizeOrPercent>,
    /// `nrfiles`.
    pub files: u32,
    /// How often to do it all.
    pub loops: u64,

    /// `numjobs`: threads that run this job.
    pub jobs: u32,
    /// One report for a group of jobs.
    pub group_reporting: bool,
    /// Wait for all jobs before this one.
    pub stonewall: bool,
    /// Begin a new reporting group.
    pub new_group: bool,
    /// Wait before beginning.
    pub start_delay: Duration,
    /// Run so long before measuring.
    pub ramp_time: Duration,
    /// End after this time.
    pub runtime: Option<Duration>,
    /// Go on until `runtime`, over the region again and again.
    pub time_based: bool,
    /// Sleep between groups of I/Os.
    pub think_time: Duration,
    /// I/Os between two sleeps.
    pub think_blocks: u32,
    /// Bytes a second; 0 is no limit.
    pub rate: [u64; 2],
    /// I/Os a second; 0 is no limit.
    pub rate_iops: [u64; 2],
    /// `cpus_allowed`; empty is anywhere.
    pub cpus: Vec<usize>,

    /// Visit every block once before any is visited again.
    pub random_map: bool,
    /// How random offsets are drawn; an uneven way visits blocks again and again, map or no map.
    pub distribution: Distribution,
    /// The same offsets in every run.
    pub repeatable: bool,
    /// `randseed`.
    pub seed: Option<u64>,
    /// Write zeros.
    pub zero_buffers: bool,
    /// New bytes for every write.
    pub refill_buffers: bool,
    /// Zeros in a hundred bytes of what is written, the others being random.
    pub compress_percentage: Option<u8>,

    /// What tells a wrong block; none is looked for without it.
    pub verify: Option<Verify>,
    /// Bytes to write over and over; empty for random ones.
    pub verify_pattern: Vec<u8>,
    /// Read back after each pass of writes what it wrote.
    pub do_verify: bool,
    /// Stop at the first wrong block.
    pub verify_fatal: bool,

    /// Writes between two fsyncs; 0 is never.
    pub fsync: u32,
    /// Writes between two fdatasyncs; 0 is never.
    pub fdatasync: u32,
    /// fsync when the job ends.
    pub end_fsync: bool,
    /// How the files the run makes come by their space.
    pub fallocate: Fallocate,
    /// Drop cached pages of the files before the run.
    pub invalidate: bool,
    /// Remove the files the run made.
    pub unlink: bool,

    /// `registerfiles`.
    pub register_files: bool,
    /// `fixedbufs`.
    pub fixed_buffers: bool,
    /// `hipri`.
    pub polled: bool,
    /// `sqthread_poll`.
    pub sq_thread_poll: bool,
    /// `force_async`: every n-th request through a worker.
    pub force_async: u32,

    /// `gtod_reduce`.
    pub reduce_clock: bool,
    /// `disable_slat`.
    pub no_slat: bool,
    /// `disable_clat`.
    pub no_clat: bool,
    /// `disable_lat`.
    pub no_lat: bool,
    /// `disable_bw_measurement`.
    pub no_bandwidth: bool,
    /// Report percentiles.
    pub clat_percentiles: bool,
    /// Which ones.
    pub percentiles: Cow<'static, [f64]>,

    /// Report what the disks under the targets did.
    pub disk_util: bool,

    /// Dotted lines such as `direct.simple_read=off`: switches of the stack, passed to the engine.
    pub settings: Vec<(String, String)>,
}

/// fio's list of percentiles.
pub const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

impl Default for Options {
    fn default() -> Self {
        Self {
            name: None,
            description: None,
            filename: None,
            directory: None,
            filename_format: None,
            volume: None,
            pattern: Pattern::Read,
            mix_read: 50,
            block: [BlockRange { min: 4096, max: 4096 }; 2],
            direct: false,
            sync: SyncWrites::No,
            ioengine: "psync",
            depth: 1,
            batch_submit: 1,
            complete_min: 1,
            complete_max: 0,
            depth_low: 0,
            size: None,
            file_size: None,
            offset: SizeOrPercent::Bytes(0),
            io_size: None,
            files: 1,
            loops: 1,
            jobs: 1,
            group_reporting: false,
            stonewall: false,
            new_group: false,
            start_delay: Duration::ZERO,
            ramp_time: Duration::ZERO,
            runtime: None,
            time_based: false,
            think_time: Duration::ZERO,
            think_blocks: 1,
            rate: [0; 2],
            rate_iops: [0; 2],
            cpus: Vec::new(),
            random_map: true,
            distribution: Distribution::Uniform,
            repeatable: true,
            seed: None,
            zero_buffers: false,
            refill_buffers: false,
            compress_percentage: None,
            verify: None,
            verify_pattern: Vec::new(),
            do_verify: true,
            verify_fatal: false,
            fsync: 0,
            fdatasync: 0,
            end_fsync: false,
            fallocate: Fallocate::Native,
            invalidate: true,
            unlink: false,
            register_files: false,
            fixed_buffers: false,
            polled: false,
            sq_thread_poll: false,
            force_async: 0,
            reduce_clock: false,
            no_slat: false,
            no_clat: false,
            no_lat: false,
            no_bandwidth: false,
            clat_percentiles: true,
            percentiles: Cow::Borrowed(&PERCENTILES),
            disk_util: true,
            settings: Vec::new(),
        }
    }
}

impl Options {
    /// Which times to take; `gtod_reduce` turns them all off.
    pub fn measure(&self) -> Measure {
        Measure {
            slat: !(self.no_slat || self.reduce_clock),
            clat: !(self.no_clat || self.reduce_clock),
            lat: !(self.no_lat || self.reduce_clock),
            bandwidth: !(self.no_bandwidth || self.reduce_clock),
        }
    }

    /// The largest I/O of the directions the job uses.
    pub fn largest_block(&self) -> u64 {
        self.blocks_in_use().map(|range| range.max).max().unwrap_or(0)
    }

    /// The smallest I/O of the directions the job uses.
    pub fn smallest_block(&self) -> u64 {
        self.blocks_in_use().map(|range| range.min).min().unwrap_or(0)
    }

    /// The ranges of the directions the job uses.
    pub fn blocks_in_use(&self) -> impl Iterator<Item = &BlockRange> {
        let used = [self.pattern.reads(), self.pattern.writes()];
        self.block.iter().zip(used).filter_map(|(range, used)| used.then_some(range))
    }

    /// What holds between keys, checked once all are read. Batches beyond the depth are cut to
    /// it, and a bound below what it bounds is raised, as fio does; what cannot work is refused.
    pub(super) fn normalize(&mut self) -> Result<(), String> {
        if self.batch_submit == 0 || self.batch_submit > self.depth {
            self.batch_submit = self.depth;
        }
        self.complete_min = self.complete_min.min(self.depth);
        if self.depth_low == 0 || self.depth_low > self.depth {
            self.depth_low = self.depth;
        }
        if self.complete_max == 0 || self.complete_max > self.depth {
            self.complete_max = self.depth;
        }
        self.complete_max = self.complete_max.max(self.complete_min);
        if self.time_based && self.runtime.is_none_or(|time| time.is_zero()) {
            return Err("time_based needs a runtime".into());
        }
        if self.polled && !self.direct {
            return Err("hipri needs direct=1: only direct I/O is polled".into());
        }
        if self.rate.iter().zip(self.rate_iops).any(|(&rate, iops)| rate != 0 && iops != 0) {
            return Err("rate and rate_iops exclude each other in one direction".into());
        }
        self.normalize_verify()?;
        if let Some(SizeOrPercent::Bytes(size)) = self.size
            && size < self.largest_block()
        {
            return Err(format!("size={size} is less than one block of {}", self.largest_block()));
        }
        // The buffers are made before the run: depth x block is memory, and must be had.
        const MAX_BUFFER_BYTES: u64 = 16 << 30;
        let memory = u64::from(self.depth) * self.largest_block() * u64::from(self.jobs);
        if memory > MAX_BUFFER_BYTES {
            return Err(format!(
                "iodepth x bs x numjobs is {} GiB of buffers; at most 16 GiB",
                memory >> 30
            ));
        }
        Ok(())
    }

    fn normalize_verify(&mut self) -> Result<(), String> {
        // As with fio a pattern is verified unless the job says otherwise.
        if self.verify.is_none() && !self.verify_pattern.is_empty() {
            self.verify = Some(Verify::Pattern);
        }
        self.verify = self.verify.filter(|verify| *verify != Verify::Nothing);
        if self.verify == Some(Verify::Pattern) && self.verify_pattern.is_empty() {
            return Err("verify=pattern needs a verify_pattern".into());
        }
        let smallest = self.smallest_block();
        if self.verify == Some(Verify::Crc32c) && smallest < HEADER_BYTES as u64 {
            return Err(format!(
                "verify=crc32c needs blocks of {HEADER_BYTES} bytes; one is {smallest}"
            ));
        }
        Ok(())
    }
}
