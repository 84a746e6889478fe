//! The options of one job: the values of all keys, with fio's defaults.

use super::block_split::BlockShare;
use super::direction::DIRECTIONS;
use super::distribution::Distribution;
use super::file_service::FileService;
use super::iolog::IoLog;
use super::replay_options::ReplayOptions;
use super::steady_state::SteadyState;
use super::value::SizeOrPercent;
use super::zones::Zone;
use crate::verify::HEADER_BYTES;
use std::borrow::Cow;
use std::sync::Arc;
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
    /// Sequential trims.
    Trim,
    /// Random trims.
    RandTrim,
    /// Sequential trims, each followed by a write of the same block.
    TrimWrite,
    /// Random trims, each followed by a write of the same block.
    RandTrimWrite,
    /// What the traces of `read_iolog` have.
    Replay {
        /// Some I/O reads.
        reads: bool,
        /// Some I/O writes.
        writes: bool,
        /// Some I/O trims.
        trims: bool,
    },
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
            Self::Trim => "trim",
            Self::RandTrim => "randtrim",
            Self::TrimWrite => "trimwrite",
            Self::RandTrimWrite => "randtrimwrite",
            Self::Replay { .. } => "replay",
        }
    }

    /// Whether offsets are random.
    pub fn random(self) -> bool {
        let reads_or_writes =
            matches!(self, Self::RandRead | Self::RandWrite | Self::RandReadWrite);
        reads_or_writes || matches!(self, Self::RandTrim | Self::RandTrimWrite)
    }

    /// Whether the pattern has reads.
    pub fn reads(self) -> bool {
        match self {
            Self::Read | Self::RandRead | Self::ReadWrite | Self::RandReadWrite => true,
            Self::Replay { reads, .. } => reads,
            _ => false,
        }
    }

    /// Whether the pattern has writes.
    pub fn writes(self) -> bool {
        match self {
            Self::Write | Self::RandWrite | Self::ReadWrite | Self::RandReadWrite => true,
            Self::Replay { writes, .. } => writes,
            other => other.writes_trimmed(),
        }
    }

    /// Whether the pattern has trims.
    pub fn trims(self) -> bool {
        match self {
            Self::Trim | Self::RandTrim => true,
            Self::Replay { trims, .. } => trims,
            other => other.writes_trimmed(),
        }
    }

    /// Whether each trim is followed by a write of the same block.
    pub fn writes_trimmed(self) -> bool {
        matches!(self, Self::TrimWrite | Self::RandTrimWrite)
    }

    /// Whether the pattern changes what is on the target: a trim destroys it, as a write does.
    pub fn modifies(self) -> bool {
        self.writes() || self.trims()
    }

    /// The directions whose blocks are chosen. The writes that follow trims have the blocks of the trims.
    pub fn chosen(self) -> [bool; DIRECTIONS] {
        [self.reads(), self.writes() && !self.writes_trimmed(), self.trims()]
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

/// The write-back of what has been written: fio's `sync_file_range`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SyncRange {
    /// The bits of the call: 1 to wait before, 2 to write, 4 to wait after.
    pub flags: u32,
    /// Writes between two calls; 0 is no call.
    pub every: u32,
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
    /// `bs` of each direction.
    pub block: [BlockRange; DIRECTIONS],
    /// `bssplit` of each direction; empty if all sizes of `block` are equally likely.
    pub block_split: [Vec<BlockShare>; DIRECTIONS],
    /// Random offsets of each direction are multiples of this; 0 is the smallest block.
    pub block_align: [u64; DIRECTIONS],
    /// The traces to replay, by the threads in turn: names separated by `:`.
    pub iolog: Option<String>,
    /// The traces; the parser reads them.
    pub replays: Vec<Arc<IoLog>>,
    /// How they are replayed.
    pub replay_options: ReplayOptions,
    /// The file that becomes a trace of the job's I/O.
    pub iolog_copy: Option<String>,
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
    /// Begin the region at the end of each file.
    pub append: bool,
    /// Begin of the region in each file.
    pub offset: SizeOrPercent,
    /// Offsets that are percentages are multiples of this.
    pub offset_align: Option<u64>,
    /// Distance between the regions of two threads of the job.
    pub offset_increment: SizeOrPercent,
    /// Bytes to transfer, if not the region once.
    pub io_size: Option<SizeOrPercent>,
    /// I/Os of a pass at most; 0 is no limit.
    pub number_ios: u64,
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
    pub rate: [u64; DIRECTIONS],
    /// I/Os per second; 0 is no limit.
    pub rate_iops: [u64; DIRECTIONS],
    /// I/Os with a rate have random distances.
    pub poisson: bool,
    /// `cpus_allowed`; empty allows all.
    pub cpus: Vec<usize>,
    /// Class of the I/O's priority: 1 real time, 2 best effort, 3 idle; 0 is none.
    pub priority_class: u8,
    /// Level in the class, 0 to 7; 0 is the highest.
    pub priority: Option<u8>,
    /// Each thread of the job may use one of `cpus`, in turn.
    pub split_cpus: bool,

    /// Visit each block once before any is visited again.
    pub random_map: bool,
    /// Distribution of random offsets. With one that is not uniform, `random_map` has no effect.
    pub distribution: Distribution,
    /// The zones of each direction, for a zoned distribution.
    pub zones: [Vec<Zone>; DIRECTIONS],
    /// Percentage of I/Os at random offsets; the others follow the last one. Below 100 `random_map` has no
    /// effect.
    pub random_percentage: [u8; DIRECTIONS],
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
    /// Bytes of a buffer that are random at first and zero after that.
    pub compress_chunk: u32,
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
    /// Only read back what an earlier run of the job has written.
    pub verify_only: bool,
    /// Writes after which they are read back; 0 is at the end of the pass.
    pub verify_backlog: u32,

    /// Writes between two fsyncs; 0 is no fsync.
    pub fsync: u32,
    /// Writes between two fdatasyncs; 0 is no fdatasync.
    pub fdatasync: u32,
    /// Bits of `sync_file_range`, and the writes between two of them; 0 is none.
    pub sync_range: SyncRange,
    /// fsync when the job ends.
    pub end_fsync: bool,
    /// fsync before the files are closed.
    pub close_fsync: bool,
    /// How space is allocated for new files.
    pub fallocate: Fallocate,
    /// Lay out files that the job only writes, too.
    pub overwrite: bool,
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
    pub max_latency: [Duration; DIRECTIONS],
    /// The total latency by which a depth is found; zero is none.
    pub latency_target: Duration,
    /// The time for which each depth is tried.
    pub latency_window: Duration,
    /// Percentage of I/Os that must meet the target.
    pub latency_percentile: f64,
    /// Go on with the search until the run ends.
    pub latency_run: bool,
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
            block: [BlockRange { min: 4096, max: 4096 }; DIRECTIONS],
            block_split: Default::default(),
            block_align: [0; DIRECTIONS],
            iolog: None,
            replays: Vec::new(),
            replay_options: ReplayOptions::default(),
            iolog_copy: None,
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
            append: false,
            offset: SizeOrPercent::Bytes(0),
            offset_align: None,
            offset_increment: SizeOrPercent::Bytes(0),
            io_size: None,
            number_ios: 0,
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
            rate: [0; DIRECTIONS],
            rate_iops: [0; DIRECTIONS],
            poisson: false,
            cpus: Vec::new(),
            priority_class: 0,
            priority: None,
            split_cpus: false,
            random_map: true,
            distribution: Distribution::Uniform,
            zones: Default::default(),
            random_percentage: [100; DIRECTIONS],
            repeatable: true,
            seed: None,
            zero_buffers: false,
            refill_buffers: false,
            compress_percentage: None,
            compress_chunk: 512,
            buffer_pattern: Vec::new(),
            verify: None,
            verify_pattern: Vec::new(),
            do_verify: true,
            verify_fatal: false,
            verify_only: false,
            verify_backlog: 0,
            fsync: 0,
            fdatasync: 0,
            sync_range: SyncRange::default(),
            end_fsync: false,
            close_fsync: false,
            fallocate: Fallocate::Native,
            overwrite: false,
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
            max_latency: [Duration::ZERO; DIRECTIONS],
            latency_target: Duration::ZERO,
            latency_window: Duration::ZERO,
            latency_percentile: 100.0,
            latency_run: false,
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
    /// Whether the job changes what is on its targets.
    pub fn modifies(&self) -> bool {
        self.pattern.modifies() && !self.verify_only
    }

    /// Class and level of the I/O's priority, if the job sets one. As with fio, a level alone is best effort.
    pub fn io_priority(&self) -> Option<(u8, u8)> {
        const BEST_EFFORT: u8 = 2;
        match (self.priority_class, self.priority) {
            (0, None) => None,
            (0, Some(level)) => Some((BEST_EFFORT, level)),
            (class, level) => Some((class, level.unwrap_or(0))),
        }
    }

    /// The trace that a thread replays, if the job does so.
    pub fn replay_of(&self, thread: u32) -> Option<&Arc<IoLog>> {
        let turn = (thread as usize).checked_rem(self.replays.len())?;
        self.replays.get(turn)
    }

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

    /// Offsets that are percentages are rounded up to a multiple of this: `offset_align`, else the smallest block of all directions,
    /// also of those that the job does not use.
    pub fn offset_unit(&self) -> u64 {
        let smallest = self.block.iter().map(|range| range.min).min();
        self.offset_align.or(smallest).unwrap_or(1)
    }

    /// The size of a buffer in bytes: that of the largest read or write. A trim moves no bytes.
    pub fn buffer_bytes(&self) -> u64 {
        // A job of trims alone reads if it has `pre_read`.
        const MIN_BUFFER_BYTES: u64 = 4096;
        let moved = match self.pattern.writes_trimmed() {
            true => [false, false, true],
            false => [self.pattern.reads(), self.pattern.writes(), false],
        };
        self.blocks_of(moved).map(|range| range.max).max().unwrap_or(MIN_BUFFER_BYTES)
    }

    /// The block sizes of the directions that the job uses.
    pub fn blocks_in_use(&self) -> impl Iterator<Item = &BlockRange> {
        self.blocks_of(self.pattern.chosen())
    }

    fn blocks_of(&self, wanted: [bool; DIRECTIONS]) -> impl Iterator<Item = &BlockRange> {
        self.block.iter().zip(wanted).filter_map(|(range, wanted)| wanted.then_some(range))
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
        if self.iolog_copy.is_some() && self.jobs > 1 {
            return Err("write_iolog names one file; give each thread a job of its own".into());
        }
        self.normalize_blocks();
        self.check_number_of_ios()?;
        let mut unzoned =
            self.zones.iter().zip(self.pattern.chosen()).filter(|(zones, _)| zones.is_empty());
        if self.distribution == Distribution::Zoned && unzoned.any(|(_, used)| used) {
            return Err("random_distribution has no zones for a direction of the job".into());
        }
        self.normalize_verify()?;
        if self.iolog.is_some() && self.verify.is_some() {
            return Err("verify and read_iolog exclude each other: a trace has no bytes".into());
        }
        // As with fio: what has been read in advance is not dropped.
        self.invalidate &= !self.pre_read;
        if self.max_latency != [Duration::ZERO; DIRECTIONS] && !self.measure().lat {
            return Err("max_latency needs total latencies: no disable_lat or gtod_reduce".into());
        }
        if !self.latency_target.is_zero() && !self.measure().lat {
            return Err(
                "latency_target needs total latencies: no disable_lat or gtod_reduce".into()
            );
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
        let memory = u64::from(self.depth) * self.buffer_bytes() * u64::from(self.jobs);
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
        let mut shares = self.random_percentage.iter().zip(self.pattern.chosen());
        if self.pattern.random() && shares.any(|(percent, used)| used && *percent < 100) {
            self.random_map = false;
        }
        // As with fio.
        let mut aligned = self.block_align.iter().zip(&self.block);
        if self.pattern.random() && aligned.any(|(align, range)| ![0, range.min].contains(align)) {
            self.random_map = false;
        }
    }

    /// Checks `number_ios`, whose bytes must be known before the run.
    fn check_number_of_ios(&self) -> Result<(), String> {
        let mut sizes = self.blocks_in_use().flat_map(|range| [range.min, range.max]);
        match self.number_ios {
            0 => Ok(()),
            _ if self.time_based => Err("number_ios and time_based exclude each other".into()),
            _ if sizes.any(|size| size != self.largest_block()) => {
                Err("number_ios needs blocks of one size; give io_size".into())
            }
            _ => Ok(()),
        }
    }

    fn normalize_verify(&mut self) -> Result<(), String> {
        // As with fio: a pattern is verified unless the job sets verify=0.
        if self.verify.is_none() && !self.verify_pattern.is_empty() {
            self.verify = Some(Verify::Pattern);
        }
        self.verify = self.verify.filter(|verify| *verify != Verify::Nothing);
        // A job that does not write verifies in any case.
        self.verify_only &= self.pattern.writes();
        if self.verify_only && (self.verify.is_none() || !self.do_verify || self.time_based) {
            return Err("verify_only needs verify, and neither do_verify=0 nor time_based".into());
        }
        if self.verify.is_none() || !self.do_verify {
            self.verify_backlog = 0;
        }
        if self.verify == Some(Verify::Pattern) && self.verify_pattern.is_empty() {
            return Err("verify=pattern needs a verify_pattern".into());
        }
        // A block that began inside another one would destroy its header.
        let mut aligned = self.block_align.iter().zip(&self.block);
        if self.verify.is_some() && aligned.any(|(align, range)| align % range.min != 0) {
            return Err("verify needs a blockalign that is a multiple of the smallest block".into());
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
