//! The options of one job: the values of all keys, with fio's defaults.

use super::block_split::BlockShare;
use super::direction::DIRECTIONS;
use super::distribution::Distribution;
use super::file_service::FileService;
use super::iolog::IoLog;
use super::pattern::Pattern;
use super::replay_options::ReplayOptions;
use super::steady_state::SteadyState;
use super::value::SizeOrPercent;
use super::zones::Zone;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

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

/// The I/Os between two think times: fio's `thinktime_blocks_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkBlocks {
    /// Those that have completed.
    Completed,
    /// Those that were issued.
    Issued,
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
    /// `bs` of each direction; once the job is checked, that of `bsrange` or `bssplit` in its place.
    pub block: [BlockRange; DIRECTIONS],
    /// `bsrange` of each direction.
    pub block_range: [Option<BlockRange>; DIRECTIONS],
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
    /// The choice of the next file.
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
    /// The I/Os that `think_blocks` counts.
    pub think_type: ThinkBlocks,
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

    /// `batch`: the engine `uringfs` issues the I/Os of a submission by its batch interface.
    pub batch: bool,
    /// `waits_apart`: count the time of the loop's work apart from its waits.
    pub waits_apart: bool,

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
            block_range: [None; DIRECTIONS],
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
            think_type: ThinkBlocks::Completed,
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
            batch: false,
            waits_apart: false,
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
}
