//! The options of one job: the values of all keys, with fio's defaults.

use super::block_split::BlockShare;
use super::distribution::Distribution;
use super::file_service::FileService;
use super::steady_state::SteadyState;
use super::value::SizeOrPercent;
use super::zones::Zone;
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
    /// fio's name of the pattern.
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

    /// Whether offsets are random.
    pub fn random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandReadWrite)
    }

    /// Whether the pattern has reads.
    pub fn reads(self) -> bool {
        !matches!(self, Self::Write | Self::RandWrite)
    }

    /// Whether the pattern has writes.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::RandRead)
    }
}

/// How blocks are verified: fio's `verify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Not at all, even with a `verify_pattern`.
    Nothing,
    /// By a header with the block's offset, run and pass, and a CRC32C.
    Crc32c,
    /// By the repeated bytes of `verify_pattern`.
    Pattern,
}

/// How space is allocated for new files: fio's `fallocate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallocate {
    /// Not in advance: the file grows as it is written.
    None,
    /// Allocated if the file system supports it; otherwise the file grows.
    Native,
    /// Allocated; otherwise the run fails.
    Posix,
    /// Allocated beyond the end of the file; the file grows as it is written.
    Keep,
    /// Extended to its full length, without allocated space.
    Truncate,
}

/// The block sizes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// Smallest I/O in bytes; all sizes are multiples of it.
    pub min: u64,
    /// Largest I/O in bytes.
    pub max: u64,
}

/// Whether the report has reads and writes apart: fio's `unified_rw_reporting`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnifiedReport {
    /// Apart.
    #[default]
    None,
    /// Only their sum.
    Mixed,
    /// Apart, and their sum.
    Both,
}

/// Whether each write is durable when it completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncWrites {
    /// No.
    #[default]
    No,
    /// O_SYNC.
    Sync,
    /// O_DSYNC.
    Dsync,
}

/// The latencies and rates to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// Submission latency: from the creation of an I/O to its submission.
    pub slat: bool,
    /// Completion latency: from the submission to the completion.
    pub clat: bool,
    /// Total latency: from the creation to the completion.
    pub lat: bool,
    /// Bandwidth samples during the run.
    pub bandwidth: bool,
}

impl Measure {
    /// Whether I/Os need time stamps.
    pub fn latency(self) -> bool {
        self.slat || self.clat || self.lat
    }
}

/// The values of all keys. `Default` has fio's defaults.
#[derive(Debug, Clone)]
pub struct Options {
    /// The job's name, if it differs from the section's.
    pub name: Option<String>,
    /// Free text for the report.
    pub description: Option<String>,
    /// Targets, separated by `:`.
    pub filename: Option<String>,
    /// Directories of the files, separated by `:`.
    pub directory: Option<String>,
    /// Format of the names of files that `filename` does not name.
    pub filename_format: Option<String>,
    /// The volume that holds all files of the job.
    pub volume: Option<String>,
    /// `rw`.
    pub pattern: Pattern,
    /// Percentage of reads, for the mixed patterns.
    pub mix_read: u8,
    /// `bs` of reads and of writes.
    pub block: [BlockRange; 2],
    /// `bssplit` of reads and of writes; empty if all sizes of `block` are equally likely.
    pub block_split: [Vec<BlockShare>; 2],
    /// O_DIRECT.
    pub direct: bool,
    /// `sync`.
    pub sync: SyncWrites,
    /// fio's engine; it has an effect only when fio runs the job.
    pub ioengine: &'static str,

    /// `iodepth`.
    pub depth: u32,
    /// I/Os per submission.
    pub batch_submit: u32,
    /// The fewest completions that a reap waits for.
    pub complete_min: u32,
    /// The most completions that a reap takes. 0 is no limit, unlike with fio.
    pub complete_max: u32,
    /// Once the full depth is reached, reap down to this depth.
    pub depth_low: u32,

    /// Size of the region over all files.
    pub size: Option<SizeOrPercent>,
    /// Size of one file.
    pub file_size: Option<u64>,
    /// Begin of the region in each file.
    pub offset: SizeOrPercent,
    /// Distance between the regions of two threads of the job.
    pub offset_increment: SizeOrPercent,
    /// Bytes to transfer, if not the region once.
    pub io_size: Option<SizeOrPercent>,
    /// `nrfiles`.
    pub files: u32,
    /// Which file is next.
    pub file_service: FileService,
    /// Number of passes.
    pub loops: u64,

    /// `numjobs`: threads that run this job.
    pub jobs: u32,
    /// One report per group of jobs.
    pub group_reporting: bool,
    /// Wait for all jobs before this one.
    pub stonewall: bool,
    /// Begin a new reporting group.
    pub new_group: bool,
    /// The first thread that ends also ends the others of its group.
    pub exit_all: bool,
    /// Delay before the job begins.
    pub start_delay: Duration,
    /// Time to run before the measurement begins.
    pub ramp_time: Duration,
    /// Time limit.
    pub runtime: Option<Duration>,
    /// Repeat the region until `runtime` is over.
    pub time_based: bool,
    /// Pause after each group of I/Os.
    pub think_time: Duration,
    /// I/Os between two pauses; without it and without `think_io_time` one.
    pub think_blocks: Option<u32>,
    /// The first part of a pause, in which the thread does not sleep.
    pub think_spin: Duration,
    /// Time between two pauses; zero is no limit.
    pub think_io_time: Duration,
    /// Bytes per second; 0 is no limit.
    pub rate: [u64; 2],
    /// I/Os per second; 0 is no limit.
    pub rate_iops: [u64; 2],
    /// I/Os with a rate have random distances.
    pub poisson: bool,
    /// `cpus_allowed`; empty allows all.
    pub cpus: Vec<usize>,

    /// Visit each block once before any is visited again.
    pub random_map: bool,
    /// Distribution of random offsets. With one that is not uniform, `random_map` has no effect.
    pub distribution: Distribution,
    /// The zones of reads and of writes, for a zoned distribution.
    pub zones: [Vec<Zone>; 2],
    /// Percentage of I/Os at random offsets; the others follow the last one. Below 100 `random_map` has no
    /// effect.
    pub random_percentage: [u8; 2],
    /// Use the same offsets in each run.
    pub repeatable: bool,
    /// `randseed`.
    pub seed: Option<u64>,
    /// Write zeros.
    pub zero_buffers: bool,
    /// New bytes for each write.
    pub refill_buffers: bool,
    /// Percentage of zeros in written bytes; the others are random.
    pub compress_percentage: Option<u8>,
    /// Bytes to write, repeated, in place of random ones; empty for none.
    pub buffer_pattern: Vec<u8>,

    /// How blocks are verified; `None` is not at all.
    pub verify: Option<Verify>,
    /// Bytes to write, repeated; empty for random bytes.
    pub verify_pattern: Vec<u8>,
    /// Read back the writes of each pass at its end.
    pub do_verify: bool,
    /// Stop at the first wrong block.
    pub verify_fatal: bool,
    /// Writes after which they are read back; 0 is at the end of the pass.
    pub verify_backlog: u32,

    /// Writes between two fsyncs; 0 is no fsync.
    pub fsync: u32,
    /// Writes between two fdatasyncs; 0 is no fdatasync.
    pub fdatasync: u32,
    /// fsync when the job ends.
    pub end_fsync: bool,
    /// fsync before the files are closed.
    pub close_fsync: bool,
    /// How space is allocated for new files.
    pub fallocate: Fallocate,
    /// Drop the files' cached pages before the run.
    pub invalidate: bool,
    /// Read the files before the run.
    pub pre_read: bool,
    /// Remove the files that the run created.
    pub unlink: bool,

    /// `registerfiles`.
    pub register_files: bool,
    /// `fixedbufs`.
    pub fixed_buffers: bool,
    /// `hipri`.
    pub polled: bool,
    /// `sqthread_poll`.
    pub sq_thread_poll: bool,
    /// `force_async`: one request in n goes through a kernel worker.
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
    /// Report percentiles of the submission latency.
    pub slat_percentiles: bool,
    /// Report percentiles of the completion latency.
    pub clat_percentiles: bool,
    /// Report percentiles of the total latency.
    pub lat_percentiles: bool,
    /// The percentiles to report.
    pub percentiles: Cow<'static, [f64]>,
    /// The total latency that ends a job, by direction; zero is none.
    pub max_latency: [Duration; 2],
    /// `unified_rw_reporting`.
    pub unified: UnifiedReport,
    /// The rate that ends the job when it is steady.
    pub steady: Option<SteadyState>,
    /// The time for which it must be; the next full second.
    pub steady_duration: Duration,
    /// The time before that is judged.
    pub steady_ramp: Duration,
    /// Begin of the name of the log of bandwidths; empty is the job's name.
    pub bandwidth_log: Option<String>,
    /// The same for I/Os.
    pub iops_log: Option<String>,
    /// The same for latencies.
    pub latency_log: Option<String>,
    /// The time that a line of a log is for; zero is a line for each I/O.
    pub log_window: Duration,
    /// Logs have the longest latency of a window, not the mean.
    pub log_maximum: bool,
    /// Logs have offsets.
    pub log_offset: bool,

    /// Report the I/O of the disks under the targets.
    pub disk_util: bool,

    /// Keys with a dot, such as `direct.simple_read=off`: switches of the stack, for the engine.
    pub settings: Vec<(String, String)>,
}

/// fio's default percentiles.
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
            block_split: [Vec::new(), Vec::new()],
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
            offset_increment: SizeOrPercent::Bytes(0),
            io_size: None,
            files: 1,
            file_service: FileService::default(),
            loops: 1,
            jobs: 1,
            group_reporting: false,
            stonewall: false,
            new_group: false,
            exit_all: false,
            start_delay: Duration::ZERO,
            ramp_time: Duration::ZERO,
            runtime: None,
            time_based: false,
            think_time: Duration::ZERO,
            think_blocks: None,
            think_spin: Duration::ZERO,
            think_io_time: Duration::ZERO,
            rate: [0; 2],
            rate_iops: [0; 2],
            poisson: false,
            cpus: Vec::new(),
            random_map: true,
            distribution: Distribution::Uniform,
            zones: [Vec::new(), Vec::new()],
            random_percentage: [100; 2],
            repeatable: true,
            seed: None,
            zero_buffers: false,
            refill_buffers: false,
            compress_percentage: None,
            buffer_pattern: Vec::new(),
            verify: None,
            verify_pattern: Vec::new(),
            do_verify: true,
            verify_fatal: false,
            verify_backlog: 0,
            fsync: 0,
            fdatasync: 0,
            end_fsync: false,
            close_fsync: false,
            fallocate: Fallocate::Native,
            invalidate: true,
            pre_read: false,
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
            slat_percentiles: false,
            clat_percentiles: true,
            lat_percentiles: false,
            percentiles: Cow::Borrowed(&PERCENTILES),
            max_latency: [Duration::ZERO; 2],
            unified: UnifiedReport::None,
            steady: None,
            steady_duration: Duration::ZERO,
            steady_ramp: Duration::ZERO,
            bandwidth_log: None,
            iops_log: None,
            latency_log: None,
            log_window: Duration::ZERO,
            log_maximum: false,
            log_offset: false,
            disk_util: true,
            settings: Vec::new(),
        }
    }
}

impl Options {
    /// The latencies and rates to measure; `gtod_reduce` turns all off.
    pub fn measure(&self) -> Measure {
        Measure {
            slat: !(self.no_slat || self.reduce_clock),
            clat: !(self.no_clat || self.reduce_clock),
            lat: !(self.no_lat || self.reduce_clock),
            bandwidth: !(self.no_bandwidth || self.reduce_clock),
        }
    }

    /// The largest I/O in bytes, of the directions that the job uses.
    pub fn largest_block(&self) -> u64 {
        self.blocks_in_use().map(|range| range.max).max().unwrap_or(0)
    }

    /// The smallest I/O in bytes, of the directions that the job uses.
    pub fn smallest_block(&self) -> u64 {
        self.blocks_in_use().map(|range| range.min).min().unwrap_or(0)
    }

    /// The block sizes of the directions that the job uses.
    pub fn blocks_in_use(&self) -> impl Iterator<Item = &BlockRange> {
        let used = [self.pattern.reads(), self.pattern.writes()];
        self.block.iter().zip(used).filter_map(|(range, used)| used.then_some(range))
    }

    /// Checks keys against each other, after all are parsed. As fio does, it clamps batches to the depth
    /// and raises an upper limit that is below its lower limit. Combinations that cannot work are errors.
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
        self.normalize_blocks();
        let used = [self.pattern.reads(), self.pattern.writes()];
        let mut unzoned = self.zones.iter().zip(used).filter(|(zones, _)| zones.is_empty());
        if self.distribution == Distribution::Zoned && unzoned.any(|(_, used)| used) {
            return Err("random_distribution has no zones for a direction of the job".into());
        }
        self.normalize_verify()?;
        // As with fio: what has been read in advance is not dropped.
        self.invalidate &= !self.pre_read;
        if self.max_latency != [Duration::ZERO; 2] && !self.measure().lat {
            return Err("max_latency needs total latencies: no disable_lat or gtod_reduce".into());
        }
        // As with fio: without a duration nothing is judged.
        self.steady = self.steady.filter(|_| !self.steady_duration.is_zero());
        const MAX_STEADY: Duration = Duration::from_secs(86_400);
        if self.steady_duration > MAX_STEADY {
            return Err("steadystate_duration is more than a day".into());
        }
        if self.steady.is_some() && !self.measure().latency() {
            return Err("steadystate needs times of I/Os: no gtod_reduce".into());
        }
        let logs = [&self.bandwidth_log, &self.iops_log, &self.latency_log];
        if logs.iter().any(|log| log.is_some()) && !self.measure().latency() {
            return Err("logs need times of I/Os: no gtod_reduce".into());
        }
        if let Some(SizeOrPercent::Bytes(size)) = self.size
            && size < self.largest_block()
        {
            return Err(format!("size={size} is less than one block of {}", self.largest_block()));
        }
        // The buffers are allocated before the run: depth x block bytes for each thread.
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

    fn normalize_blocks(&mut self) {
        for (range, split) in self.block.iter_mut().zip(&self.block_split) {
            let sizes = || split.iter().map(|share| share.bytes);
            if let (Some(min), Some(max)) = (sizes().min(), sizes().max()) {
                *range = BlockRange { min, max };
            }
        }
        // A block that follows another one may have been visited.
        let used = [self.pattern.reads(), self.pattern.writes()];
        let mut shares = self.random_percentage.iter().zip(used);
        if self.pattern.random() && shares.any(|(percent, used)| used && *percent < 100) {
            self.random_map = false;
        }
    }

    fn normalize_verify(&mut self) -> Result<(), String> {
        // As with fio: a pattern is verified unless the job sets verify=0.
        if self.verify.is_none() && !self.verify_pattern.is_empty() {
            self.verify = Some(Verify::Pattern);
        }
        self.verify = self.verify.filter(|verify| *verify != Verify::Nothing);
        if self.verify.is_none() || !self.do_verify {
            self.verify_backlog = 0;
        }
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
