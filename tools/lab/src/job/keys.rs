//! The table of keys: name, aliases, kind of value, meaning. Parsing, the search for the nearest key,
//! and the tests all use this table. The kind carries the setter, so that a value of the wrong kind
//! cannot reach a field.

use super::block_split::{BlockShare, block_shares};
use super::direction::DIRECTIONS;
use super::distribution::Distribution;
use super::file_service::file_service;
use super::options::{
    BlockRange, Fallocate, Options, SyncRange, SyncWrites, ThinkBlocks, UnifiedReport, Verify,
};
use super::pattern::Pattern;
use super::replay_options::ReplaySkip;
use super::steady_state::steady_state;
use super::value::{self, SizeOrPercent, TimeUnit};
use super::zones::zones;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::time::Duration;

/// One key of a job.
#[derive(Debug)]
pub struct Key {
    /// fio's name for it.
    pub name: &'static str,
    /// fio's other names for it.
    pub aliases: &'static [&'static str],
    /// The kind of its values, with the setter.
    pub kind: ValueKind,
    /// Its meaning, in one line.
    pub doc: &'static str,
}

/// The kind of a key's values, with the setter.
#[derive(Debug)]
pub enum ValueKind {
    /// No value, `=0` or `=1`.
    Flag(fn(&mut Options, bool)),
    /// An integer within bounds.
    Count(RangeInclusive<u64>, fn(&mut Options, u64)),
    /// Up to three numbers, for reads, writes and trims.
    Counts(fn(&mut Options) -> &mut [u64; DIRECTIONS]),
    /// Bytes.
    Size(RangeInclusive<u64>, fn(&mut Options, u64)),
    /// Bytes, or a percentage.
    SizeOrPercent(fn(&mut Options, SizeOrPercent)),
    /// Up to three block sizes.
    Blocks,
    /// Up to three ranges of block sizes.
    BlockRanges,
    /// A duration, with the unit of a bare number.
    Time(TimeUnit, fn(&mut Options, Duration)),
    /// One of these words.
    Choice(&'static [&'static str], fn(&mut Options, &'static str)),
    /// Any text that is not empty.
    Text(fn(&mut Options, &str) -> Result<(), String>),
    /// The same; without a value the name of the job, for which the setter gets an empty text.
    TextOrJobName(fn(&mut Options, &str)),
}

/// The largest block. One Linux request carries less.
const MAX_BLOCK_BYTES: u64 = 1 << 30;

/// For keys that are accepted and validated, but have no effect.
const NO_EFFECT: fn(&mut Options, bool) = |_, _| {};

const fn key(
    name: &'static str,
    aliases: &'static [&'static str],
    kind: ValueKind,
    doc: &'static str,
) -> Key {
    Key { name, aliases, kind, doc }
}

/// fio's engines. The value has an effect only when fio runs the job.
#[rustfmt::skip]
const ENGINES: &[&str] = &[
    "psync", "sync", "vsync", "pvsync", "pvsync2", "io_uring", "io_uring_cmd", "libaio", "posixaio",
    "mmap", "splice", "null", "nbd", "rbd", "rados", "http", "nfs", "libiscsi", "libblkio", "xnvme",
    "sg", "net", "netsplice", "rdma", "mtd", "libpmem", "dev-dax", "e4defrag", "falloc", "ftruncate",
    "filecreate", "filestat", "filedelete", "cpuio", "exec",
];

/// fio's kinds of verification.
#[rustfmt::skip]
const VERIFY: &[&str] = &[
    "0", "crc32c", "crc32c-intel", "pattern", "md5", "crc64", "crc32", "crc16", "crc7", "sha1", "sha256", "sha512",
    "sha3-224", "sha3-256", "sha3-384", "sha3-512", "xxhash", "meta",
];

#[rustfmt::skip]
const PATTERNS: &[&str] = &[
    "read", "write", "rw", "readwrite", "randread", "randwrite", "randrw",
    "trim", "randtrim", "trimwrite", "randtrimwrite",
];

/// All keys.
#[rustfmt::skip]
pub static KEYS: &[Key] = &[
    key("name", &[], ValueKind::Text(|o, v| { o.name = Some(v.into()); Ok(()) }), "name of the job"),
    key("description", &[], ValueKind::Text(|o, v| { o.description = Some(v.into()); Ok(()) }), "text for the report"),
    key("filename", &[], ValueKind::Text(|o, v| { o.filename = Some(value::name_list(v)?); Ok(()) }), "targets, separated by `:`"),
    key("directory", &[], ValueKind::Text(|o, v| { o.directory = Some(value::name_list(v)?); Ok(()) }), "directory of the files"),
    key("filename_format", &[], ValueKind::Text(|o, v| { o.filename_format = Some(v.into()); Ok(()) }), "names of files that filename does not name"),
    key("volume", &[], ValueKind::Text(|o, v| { o.volume = Some(v.into()); Ok(()) }), "the volume that the files are in"),
    key("rw", &["readwrite"], ValueKind::Choice(PATTERNS, |o, v| o.pattern = pattern(v)), "direction and order"),
    key("rwmixread", &[], ValueKind::Count(0..=100, |o, v| o.mix_read = v as u8), "percentage of reads"),
    key("rwmixwrite", &[], ValueKind::Count(0..=100, |o, v| o.mix_read = 100 - v as u8), "percentage of writes"),
    key("ioengine", &[], ValueKind::Choice(ENGINES, |o, v| o.ioengine = v), "fio's engine, for --engine fio"),
    key("direct", &[], ValueKind::Flag(|o, v| o.direct = v), "O_DIRECT"),
    key("buffered", &[], ValueKind::Flag(|o, v| o.direct = !v), "the opposite of direct"),
    key("sync", &[], ValueKind::Choice(&["none", "0", "sync", "1", "dsync"], |o, v| o.sync = sync(v)), "O_SYNC or O_DSYNC"),
    key("bs", &["blocksize"], ValueKind::Blocks, "block size"),
    key("bsrange", &["blocksize_range"], ValueKind::BlockRanges, "range of block sizes"),
    key("bssplit", &[], ValueKind::Text(|o, v| { assign(&mut o.block_split, value::per_direction(v, split)?); Ok(()) }), "block sizes with percentages, SIZE/PERCENTAGE:..."),
    key("ba", &["blockalign"], ValueKind::Counts(|o| &mut o.block_align), "random offsets are multiples of this; no map"),

    key("iodepth", &[], ValueKind::Count(1..=65_536, |o, v| o.depth = v as u32), "I/Os in flight"),
    key("iodepth_batch", &["iodepth_batch_submit"], ValueKind::Count(0..=65_536, |o, v| o.batch_submit = v as u32), "I/Os submitted in one go"),
    key("iodepth_batch_complete_min", &["iodepth_batch_complete"], ValueKind::Count(0..=65_536, |o, v| o.complete_min = v as u32), "completions waited for in one go"),
    key("iodepth_batch_complete_max", &[], ValueKind::Count(0..=65_536, |o, v| o.complete_max = v as u32), "completions taken in one go"),
    key("iodepth_low", &[], ValueKind::Count(0..=65_536, |o, v| o.depth_low = v as u32), "reap down to this depth"),

    key("size", &[], ValueKind::SizeOrPercent(|o, v| o.size = Some(v)), "region, all files together"),
    key("filesize", &[], ValueKind::Size(1..=u64::MAX, |o, v| o.file_size = Some(v)), "size of one file"),
    key("file_append", &[], ValueKind::Flag(|o, v| o.append = v), "begin at the end of existing files"),
    key("offset", &["fileoffset"], ValueKind::SizeOrPercent(|o, v| o.offset = v), "where the region begins"),
    key("offset_align", &[], ValueKind::Size(0..=MAX_BLOCK_BYTES, |o, v| o.offset_align = Some(v).filter(|unit| *unit > 0)), "unit of offsets that are percentages"),
    key("offset_increment", &[], ValueKind::SizeOrPercent(|o, v| o.offset_increment = v), "distance of the regions of two threads"),
    key("io_size", &["io_limit"], ValueKind::SizeOrPercent(|o, v| o.io_size = Some(v)), "bytes to move"),
    key("number_ios", &[], ValueKind::Count(0..=u64::MAX, |o, v| o.number_ios = v), "I/Os of a pass at most"),
    key("nrfiles", &["nr_files"], ValueKind::Count(1..=4096, |o, v| o.files = v as u32), "files of each job"),
    key("file_service_type", &[], ValueKind::Text(|o, v| { o.file_service = file_service(v)?; Ok(()) }), "roundrobin, random or sequential, with :IOS; zipf:THETA, pareto:H"),
    key("loops", &[], ValueKind::Count(1..=u64::MAX, |o, v| o.loops = v), "number of passes"),

    key("numjobs", &[], ValueKind::Count(1..=1024, |o, v| o.jobs = v as u32), "threads that run the job"),
    key("thread", &[], ValueKind::Flag(NO_EFFECT), "threads, not processes (always the case)"),
    key("group_reporting", &[], ValueKind::Flag(|o, v| o.group_reporting = v), "one report a group"),
    key("stonewall", &["wait_for_previous"], ValueKind::Flag(|o, v| o.stonewall = v), "wait for all earlier jobs"),
    key("new_group", &[], ValueKind::Flag(|o, v| o.new_group = v), "begin a reporting group"),
    key("exitall", &[], ValueKind::Flag(|o, v| o.exit_all = v), "the first job that ends, ends its group"),
    key("startdelay", &["start_delay"], ValueKind::Time(TimeUnit::Seconds, |o, v| o.start_delay = v), "wait before beginning"),
    key("ramp_time", &[], ValueKind::Time(TimeUnit::Seconds, |o, v| o.ramp_time = v), "run before measuring"),
    key("runtime", &["timeout"], ValueKind::Time(TimeUnit::Seconds, |o, v| o.runtime = Some(v)), "end after"),
    key("time_based", &[], ValueKind::Flag(|o, v| o.time_based = v), "go on until runtime"),
    key("thinktime", &[], ValueKind::Time(TimeUnit::Microseconds, |o, v| o.think_time = v), "sleep between I/Os"),
    key("thinktime_blocks", &[], ValueKind::Count(1..=u32::MAX as u64, |o, v| o.think_blocks = Some(v as u32)), "I/Os between sleeps"),
    key("thinktime_blocks_type", &[], ValueKind::Choice(&["complete", "issue"], |o, v| o.think_type = think_blocks(v)), "which I/Os count for thinktime_blocks: those that have completed, or that were issued"),
    key("thinktime_spin", &[], ValueKind::Time(TimeUnit::Microseconds, |o, v| o.think_spin = v), "the part of a thinktime that takes a processor"),
    key("thinktime_iotime", &[], ValueKind::Time(TimeUnit::Seconds, |o, v| o.think_io_time = v), "time between sleeps"),
    key("rate", &[], ValueKind::Counts(|o| &mut o.rate), "bytes a second at most"),
    key("rate_iops", &[], ValueKind::Counts(|o| &mut o.rate_iops), "I/Os a second at most"),
    key("rate_process", &[], ValueKind::Choice(&["linear", "poisson"], |o, v| o.poisson = v == "poisson"), "distances of I/Os with a rate: equal or random"),
    key("cpus_allowed", &[], ValueKind::Text(|o, v| { o.cpus = value::cpu_list(v)?; Ok(()) }), "processors to run on"),
    key("cpus_allowed_policy", &[], ValueKind::Choice(&["shared", "split"], |o, v| o.split_cpus = v == "split"), "a thread may use all processors of cpus_allowed, or one"),

    key("read_iolog", &[], ValueKind::Text(|o, v| { o.iolog = Some(value::name_list(v)?); Ok(()) }), "traces to replay, fio's iolog of version 2 or 3, separated by `:`"),
    key("replay_no_stall", &[], ValueKind::Flag(|o, v| o.replay_options.no_stall = v), "replay without the trace's times"),
    key("replay_time_scale", &[], ValueKind::Count(1..=1_000_000, |o, v| o.replay_options.time_scale = v as u32), "percentage of the trace's speed"),
    key("replay_scale", &[], ValueKind::Count(0..=u64::MAX, |o, v| o.replay_options.scale = v.max(1)), "divisor of the trace's offsets"),
    key("replay_align", &[], ValueKind::Text(|o, v| { o.replay_options.align = replay_align(v)?; Ok(()) }), "unit of the trace's offsets, a power of two"),
    key("replay_redirect", &[], ValueKind::Text(|o, v| { o.replay_options.redirect = Some(v.into()); Ok(()) }), "the target in place of those of the trace"),
    key("replay_skip", &[], ValueKind::Text(|o, v| { o.replay_options.skip = replay_skip(v)?; Ok(()) }), "what not to replay: read, write, trim, sync, separated by commas"),
    key("write_iolog", &[], ValueKind::Text(|o, v| { o.iolog_copy = Some(v.into()); Ok(()) }), "write the job's I/O as a trace of version 3"),

    key("prio", &[], ValueKind::Count(0..=7, |o, v| o.priority = Some(v as u8)), "level of the I/O's priority, 0 is the highest"),
    key("prioclass", &[], ValueKind::Count(0..=3, |o, v| o.priority_class = v as u8), "class of the I/O's priority: 1 real time, 2 best effort, 3 idle"),

    key("norandommap", &[], ValueKind::Flag(|o, v| o.random_map = !v), "blocks may be visited twice"),
    key("randrepeat", &["allrandrepeat"], ValueKind::Flag(|o, v| o.repeatable = v), "the same offsets every run"),
    key("randseed", &[], ValueKind::Count(0..=u64::MAX, |o, v| o.seed = Some(v)), "seed of the offsets"),
    key("random_distribution", &[], ValueKind::Text(set_distribution), "random, zipf:THETA, pareto:H, zoned:PERCENT/PERCENT:... or zoned_abs:PERCENT/SIZE:..."),
    key("percentage_random", &[], ValueKind::Text(|o, v| { assign(&mut o.random_percentage, value::per_direction(v, percentage)?); Ok(()) }), "percentage of random I/Os in a random job"),
    key("random_generator", &[], ValueKind::Choice(&["tausworthe", "lfsr", "tausworthe64"], |_, _| ()), "fio's random numbers (always a generator of 64 bits)"),
    key("softrandommap", &[], ValueKind::Flag(NO_EFFECT), "go on without a map if there is no memory for it (it needs none)"),
    key("zero_buffers", &[], ValueKind::Flag(|o, v| o.zero_buffers = v), "write zeros"),
    key("refill_buffers", &[], ValueKind::Flag(|o, v| o.refill_buffers = v), "new bytes for every write"),
    key("buffer_compress_percentage", &[], ValueKind::Count(0..=100, |o, v| o.compress_percentage = Some(v as u8)), "percentage of zeros in written bytes"),
    key("buffer_compress_chunk", &[], ValueKind::Size(4..=MAX_BLOCK_BYTES, |o, v| o.compress_chunk = v as u32), "each of these has its own random and zero bytes"),
    key("scramble_buffers", &[], ValueKind::Flag(NO_EFFECT), "change some bytes of each write (never the case)"),
    key("buffer_pattern", &[], ValueKind::Text(|o, v| { o.buffer_pattern = value::pattern(v)?; Ok(()) }), "bytes to write, repeated; not verified"),
    key("mem", &["iomem"], ValueKind::Choice(&["malloc", "mmap", "mmapshared", "mmaphuge", "shm", "shmhuge"], |_, _| ()), "memory of the buffers (always pages of the process)"),
    key("iomem_align", &["mem_align"], ValueKind::Size(0..=4096, |_, _| ()), "alignment of the buffers (always a page)"),

    key("verify", &[], ValueKind::Choice(VERIFY, |o, v| o.verify = Some(verify(v))), "how blocks are verified: by a CRC32C, whatever the checksum, or a pattern"),
    key("verify_pattern", &[], ValueKind::Text(|o, v| { o.verify_pattern = value::pattern(v)?; Ok(()) }), "bytes to write, repeated"),
    key("do_verify", &[], ValueKind::Flag(|o, v| o.do_verify = v), "read back what was written"),
    key("verify_fatal", &[], ValueKind::Flag(|o, v| o.verify_fatal = v), "stop at the first wrong block"),
    key("verify_only", &[], ValueKind::Flag(|o, v| o.verify_only = v), "only read back what an earlier run has written"),
    key("verify_dump", &[], ValueKind::Flag(NO_EFFECT), "write wrong blocks to files (messages name what is wrong instead)"),
    key("verify_async", &[], ValueKind::Count(0..=1024, |_, _| ()), "threads that verify (always that of the job)"),
    key("verify_backlog", &[], ValueKind::Count(0..=u32::MAX as u64, |o, v| o.verify_backlog = v as u32), "writes between readings back"),

    key("fsync", &[], ValueKind::Count(0..=u32::MAX as u64, |o, v| o.fsync = v as u32), "writes between fsyncs"),
    key("fdatasync", &[], ValueKind::Count(0..=u32::MAX as u64, |o, v| o.fdatasync = v as u32), "writes between fdatasyncs"),
    key("sync_file_range", &[], ValueKind::Text(|o, v| { o.sync_range = sync_range(v)?; Ok(()) }), "write-back of what was written: wait_before, write, wait_after, with :WRITES"),
    key("end_fsync", &[], ValueKind::Flag(|o, v| o.end_fsync = v), "fsync at the end"),
    key("fsync_on_close", &[], ValueKind::Flag(|o, v| o.close_fsync = v), "fsync before the files are closed"),
    key("fallocate", &[], ValueKind::Choice(&["none", "0", "native", "posix", "keep", "truncate", "1"], |o, v| o.fallocate = fallocate(v)), "how space for new files is allocated"),
    key("overwrite", &[], ValueKind::Flag(|o, v| o.overwrite = v), "lay out files that are only written, too"),
    key("create_serialize", &[], ValueKind::Flag(NO_EFFECT), "lay out one file after the other (always the case)"),
    key("create_fsync", &[], ValueKind::Flag(NO_EFFECT), "fsync files that are laid out"),
    key("create_on_open", &[], ValueKind::Flag(NO_EFFECT), "create files when they are opened (always before the run)"),
    key("openfiles", &[], ValueKind::Count(1..=u32::MAX as u64, |_, _| ()), "files that are open at a time (always all)"),
    key("fadvise_hint", &[], ValueKind::Choice(&["0", "1", "random", "sequential"], |_, _| ()), "advice to the kernel (never given)"),
    key("invalidate", &[], ValueKind::Flag(|o, v| o.invalidate = v), "drop cached pages first"),
    key("pre_read", &[], ValueKind::Flag(|o, v| o.pre_read = v), "read the files before the run"),
    key("unlink", &[], ValueKind::Flag(|o, v| o.unlink = v), "remove the files the run created"),

    key("registerfiles", &[], ValueKind::Flag(|o, v| o.register_files = v), "register files with the ring"),
    key("fixedbufs", &[], ValueKind::Flag(|o, v| o.fixed_buffers = v), "register buffers with the ring"),
    key("hipri", &[], ValueKind::Flag(|o, v| o.polled = v), "polled completions"),
    key("sqthread_poll", &[], ValueKind::Flag(|o, v| o.sq_thread_poll = v), "a kernel thread submits"),
    key("force_async", &[], ValueKind::Count(0..=65_536, |o, v| o.force_async = v as u32), "every n-th request through a worker"),

    key("cmd_type", &[], ValueKind::Choice(&["nvme"], |_, _| ()), "commands of ioengine=io_uring_cmd (always those of NVMe)"),
    key("batch", &[], ValueKind::Choice(&["off", "0", "on", "1"], |o, v| o.batch = matches!(v, "on" | "1")), "the I/Os of a submission begin by one call, with engine uringfs"),
    key("waits_apart", &[], ValueKind::Flag(|o, v| o.waits_apart = v), "submit the whole depth, sleep, and count the time of the work only"),

    key("gtod_reduce", &[], ValueKind::Flag(|o, v| o.reduce_clock = v), "no time stamps at all"),
    key("clocksource", &[], ValueKind::Choice(&["clock_gettime", "gettimeofday", "cpu"], |_, _| ()), "fio's clock (always clock_gettime)"),
    key("disable_slat", &[], ValueKind::Flag(|o, v| o.no_slat = v), "no submission latency"),
    key("disable_clat", &[], ValueKind::Flag(|o, v| o.no_clat = v), "no completion latency"),
    key("disable_lat", &[], ValueKind::Flag(|o, v| o.no_lat = v), "no total latency"),
    key("disable_bw_measurement", &["disable_bw"], ValueKind::Flag(|o, v| o.no_bandwidth = v), "no bandwidth samples"),
    key("clat_percentiles", &[], ValueKind::Flag(|o, v| o.clat_percentiles = v), "percentiles of clat"),
    key("lat_percentiles", &[], ValueKind::Flag(|o, v| o.lat_percentiles = v), "percentiles of lat"),
    key("slat_percentiles", &[], ValueKind::Flag(|o, v| o.slat_percentiles = v), "percentiles of slat"),
    key("percentile_list", &[], ValueKind::Text(|o, v| { o.percentiles = percentiles(v)?.into(); Ok(()) }), "which percentiles"),
    key("max_latency", &[], ValueKind::Text(|o, v| { assign(&mut o.max_latency, value::per_direction(v, microseconds)?); Ok(()) }), "end the job at a longer latency"),
    key("latency_target", &[], ValueKind::Time(TimeUnit::Microseconds, |o, v| o.latency_target = v), "find the highest depth with latencies up to this"),
    key("latency_window", &[], ValueKind::Time(TimeUnit::Microseconds, |o, v| o.latency_window = v), "the time for which each depth is tried"),
    key("latency_percentile", &[], ValueKind::Text(|o, v| { o.latency_percentile = percentile(v)?; Ok(()) }), "percentage of I/Os that must meet latency_target"),
    key("latency_run", &[], ValueKind::Flag(|o, v| o.latency_run = v), "search for the depth until the run ends"),
    key("steadystate", &["ss"], ValueKind::Text(|o, v| { o.steady = Some(steady_state(v)?); Ok(()) }), "end when iops, iops_slope, bw or bw_slope is below :LIMIT"),
    key("steadystate_duration", &["ss_dur"], ValueKind::Time(TimeUnit::Seconds, |o, v| o.steady_duration = v), "the time for which it must be"),
    key("steadystate_ramp_time", &["ss_ramp"], ValueKind::Time(TimeUnit::Seconds, |o, v| o.steady_ramp = v), "the time before that is judged"),
    key("unified_rw_reporting", &[], ValueKind::Choice(&["none", "0", "mixed", "1", "both", "2"], |o, v| o.unified = unified(v)), "report the sum of reads and writes"),
    key("write_bw_log", &[], ValueKind::TextOrJobName(|o, v| o.bandwidth_log = Some(v.into())), "log of bandwidths, VALUE_bw.N.log"),
    key("write_iops_log", &[], ValueKind::TextOrJobName(|o, v| o.iops_log = Some(v.into())), "log of I/Os, VALUE_iops.N.log"),
    key("write_lat_log", &[], ValueKind::TextOrJobName(|o, v| o.latency_log = Some(v.into())), "logs of latencies, VALUE_lat.N.log, VALUE_clat.N.log, VALUE_slat.N.log"),
    key("log_avg_msec", &[], ValueKind::Count(0..=86_400_000, |o, v| o.log_window = Duration::from_millis(v)), "milliseconds of each line of a log; 0 is a line for each I/O"),
    key("log_max_value", &[], ValueKind::Flag(|o, v| o.log_maximum = v), "log the longest latency, not the mean"),
    key("log_offset", &[], ValueKind::Flag(|o, v| o.log_offset = v), "log offsets"),
    key("disk_util", &[], ValueKind::Flag(|o, v| o.disk_util = v), "report the I/O of the disks"),
];

/// The key of this name or alias.
pub fn find(name: &str) -> Option<&'static Key> {
    /// All names and aliases. Large job files look up many.
    static NAMES: LazyLock<HashMap<&'static str, &'static Key>> = LazyLock::new(|| {
        let names = |key: &'static Key| std::iter::once(&key.name).chain(key.aliases);
        KEYS.iter().flat_map(|key| names(key).map(move |name| (*name, key))).collect()
    });
    NAMES.get(name).copied()
}

impl Key {
    /// Whether `name` is its name or an alias.
    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// Whether its values are 0 and 1.
    pub fn is_flag(&self) -> bool {
        matches!(self.kind, ValueKind::Flag(_))
    }

    /// The value that the key has when it stands alone, if it may. An empty one is the name of the job.
    pub fn value_if_alone(&self) -> Option<&'static str> {
        match self.kind {
            ValueKind::Flag(_) => Some("1"),
            ValueKind::TextOrJobName(_) => Some(""),
            _ => None,
        }
    }

    /// Parses a value and stores it in `options`.
    pub fn apply(&self, options: &mut Options, text: Option<&str>) -> Result<(), String> {
        let text = match (text, &self.kind) {
            (None, ValueKind::Flag(set)) => {
                set(options, true);
                return Ok(());
            }
            (None, ValueKind::TextOrJobName(set)) => {
                set(options, "");
                return Ok(());
            }
            (Some(text), _) if !text.is_empty() => text,
            _ => return Err("needs a value".into()),
        };
        match &self.kind {
            ValueKind::Flag(set) => set(options, flag(text)?),
            ValueKind::Count(bounds, set) => set(options, within(value::count(text)?, bounds)?),
            ValueKind::Counts(field) => {
                let values = value::per_direction(text, value::size)?;
                assign(field(options), values);
            }
            ValueKind::Size(bounds, set) => set(options, within(value::size(text)?, bounds)?),
            ValueKind::SizeOrPercent(set) => set(options, value::size_or_percent(text)?),
            ValueKind::Blocks => {
                let one =
                    |text: &str| block(value::size(text)?).map(|b| BlockRange { min: b, max: b });
                assign(&mut options.block, value::per_direction(text, one)?);
            }
            ValueKind::BlockRanges => {
                let one = |text: &str| {
                    let (low, high) = value::range(text)?;
                    Ok(BlockRange { min: block(low)?, max: block(high)? })
                };
                let ranges = value::per_direction(text, one)?;
                assign(&mut options.block_range, ranges.map(|range| range.map(Some)));
            }
            ValueKind::Time(unit, set) => set(options, value::time(text, *unit)?),
            ValueKind::Choice(words, set) => match words.iter().find(|word| **word == text) {
                Some(word) => set(options, word),
                None => return Err(format!("`{text}` is not one of {}", words.join(", "))),
            },
            ValueKind::Text(set) => set(options, text)?,
            ValueKind::TextOrJobName(set) => set(options, text),
        }
        Ok(())
    }
}

fn flag(text: &str) -> Result<bool, String> {
    match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(format!("`{text}` is neither 0 nor 1")),
    }
}

/// Sets the directions that have a value.
pub(super) fn assign<T>(fields: &mut [T; DIRECTIONS], values: [Option<T>; DIRECTIONS]) {
    for (field, value) in fields.iter_mut().zip(values) {
        if let Some(value) = value {
            *field = value;
        }
    }
}

fn split(text: &str) -> Result<Vec<BlockShare>, String> {
    let shares = block_shares(text)?;
    shares.iter().try_for_each(|share| block(share.bytes).map(drop))?;
    Ok(shares)
}

fn set_distribution(options: &mut Options, text: &str) -> Result<(), String> {
    options.distribution = match zones(text).transpose()? {
        Some(zones) => {
            assign(&mut options.zones, zones);
            Distribution::Zoned
        }
        None => {
            let distribution = value::distribution(text)?;
            options.zones = Default::default();
            distribution
        }
    };
    Ok(())
}

fn sync_range(text: &str) -> Result<SyncRange, String> {
    let (words, every) = text.split_once(':').unwrap_or((text, "1"));
    let mut flags = 0;
    for word in words.split(',') {
        flags |= match word.trim() {
            "wait_before" => 1,
            "write" => 2,
            "wait_after" => 4,
            other => {
                return Err(format!("`{other}` is not one of wait_before, write, wait_after"));
            }
        };
    }
    let every = within(value::count(every)?, &(0..=u32::MAX.into()))? as u32;
    Ok(SyncRange { flags, every })
}

fn replay_align(text: &str) -> Result<u64, String> {
    match value::size(text)? {
        0 => Ok(1),
        unit if unit.is_power_of_two() => Ok(unit),
        unit => Err(format!("{unit} is not a power of two")),
    }
}

fn replay_skip(text: &str) -> Result<ReplaySkip, String> {
    let mut skip = ReplaySkip::default();
    for word in text.split(',') {
        match word.trim() {
            "read" => skip.reads = true,
            "write" => skip.writes = true,
            "trim" => skip.trims = true,
            "sync" => skip.syncs = true,
            other => return Err(format!("`{other}` is not one of read, write, trim, sync")),
        }
    }
    Ok(skip)
}

fn percentage(text: &str) -> Result<u8, String> {
    Ok(within(value::count(text)?, &(0..=100))? as u8)
}

fn microseconds(text: &str) -> Result<Duration, String> {
    value::time(text, TimeUnit::Microseconds)
}

fn think_blocks(word: &str) -> ThinkBlocks {
    match word {
        "issue" => ThinkBlocks::Issued,
        _ => ThinkBlocks::Completed,
    }
}

fn unified(word: &str) -> UnifiedReport {
    match word {
        "mixed" | "1" => UnifiedReport::Mixed,
        "both" | "2" => UnifiedReport::Both,
        _ => UnifiedReport::None,
    }
}

fn block(size: u64) -> Result<u64, String> {
    within(size, &(1..=MAX_BLOCK_BYTES))
}

fn within(value: u64, bounds: &RangeInclusive<u64>) -> Result<u64, String> {
    if bounds.contains(&value) {
        Ok(value)
    } else if *bounds.end() == u64::MAX {
        Err(format!("{value} is out of range: at least {}", bounds.start()))
    } else {
        Err(format!("{value} is out of range: {} to {}", bounds.start(), bounds.end()))
    }
}

fn pattern(word: &str) -> Pattern {
    match word {
        "read" => Pattern::Read,
        "write" => Pattern::Write,
        "randread" => Pattern::RandRead,
        "randwrite" => Pattern::RandWrite,
        "randrw" => Pattern::RandReadWrite,
        "trim" => Pattern::Trim,
        "randtrim" => Pattern::RandTrim,
        "trimwrite" => Pattern::TrimWrite,
        "randtrimwrite" => Pattern::RandTrimWrite,
        _ => Pattern::ReadWrite,
    }
}

fn sync(word: &str) -> SyncWrites {
    match word {
        "sync" | "1" => SyncWrites::Sync,
        "dsync" => SyncWrites::Dsync,
        _ => SyncWrites::No,
    }
}

fn fallocate(word: &str) -> Fallocate {
    match word {
        "none" | "0" => Fallocate::None,
        "posix" | "1" => Fallocate::Posix,
        "keep" => Fallocate::Keep,
        "truncate" => Fallocate::Truncate,
        _ => Fallocate::Native,
    }
}

fn verify(word: &str) -> Verify {
    match word {
        "0" => Verify::Nothing,
        "pattern" => Verify::Pattern,
        _ => Verify::Crc32c,
    }
}

fn percentile(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("`{text}` is not a percentile")),
    }
}

fn percentiles(text: &str) -> Result<Vec<f64>, String> {
    // fio's limit.
    const MAX_PERCENTILES: usize = 20;
    let mut list = Vec::new();
    for part in text.split(':') {
        list.push(percentile(part)?);
    }
    if list.len() > MAX_PERCENTILES {
        return Err(format!("more than {MAX_PERCENTILES} percentiles"));
    }
    list.sort_by(f64::total_cmp);
    Ok(list)
}
