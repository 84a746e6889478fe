//! The table of keys: name, aliases, kind of value, meaning. Parsing, the search for the nearest key,
//! and the tests all use this table. The kind carries the setter, so that a value of the wrong kind
//! cannot reach a field.

use super::nearest::nearest;
use super::options::{BlockRange, Fallocate, Options, Pattern, SyncWrites, Verify};
use super::value::{self, SizeOrPercent, TimeUnit};
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
    Counts(fn(&mut Options) -> &mut [u64; 2]),
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

const PATTERNS: &[&str] = &["read", "write", "rw", "readwrite", "randread", "randwrite", "randrw"];

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

    key("iodepth", &[], ValueKind::Count(1..=65_536, |o, v| o.depth = v as u32), "I/Os in flight"),
    key("iodepth_batch", &["iodepth_batch_submit"], ValueKind::Count(0..=65_536, |o, v| o.batch_submit = v as u32), "I/Os submitted in one go"),
    key("iodepth_batch_complete_min", &["iodepth_batch_complete"], ValueKind::Count(0..=65_536, |o, v| o.complete_min = v as u32), "completions waited for in one go"),
    key("iodepth_batch_complete_max", &[], ValueKind::Count(0..=65_536, |o, v| o.complete_max = v as u32), "completions taken in one go"),
    key("iodepth_low", &[], ValueKind::Count(0..=65_536, |o, v| o.depth_low = v as u32), "reap down to this depth"),

    key("size", &[], ValueKind::SizeOrPercent(|o, v| o.size = Some(v)), "region, all files together"),
    key("filesize", &[], ValueKind::Size(1..=u64::MAX, |o, v| o.file_size = Some(v)), "size of one file"),
    key("offset", &["fileoffset"], ValueKind::SizeOrPercent(|o, v| o.offset = v), "where the region begins"),
    key("io_size", &["io_limit"], ValueKind::SizeOrPercent(|o, v| o.io_size = Some(v)), "bytes to move"),
    key("nrfiles", &["nr_files"], ValueKind::Count(1..=4096, |o, v| o.files = v as u32), "files of each job"),
    key("loops", &[], ValueKind::Count(1..=u64::MAX, |o, v| o.loops = v), "number of passes"),

    key("numjobs", &[], ValueKind::Count(1..=1024, |o, v| o.jobs = v as u32), "threads that run the job"),
    key("thread", &[], ValueKind::Flag(NO_EFFECT), "threads, not processes (always the case)"),
    key("group_reporting", &[], ValueKind::Flag(|o, v| o.group_reporting = v), "one report a group"),
    key("stonewall", &["wait_for_previous"], ValueKind::Flag(|o, v| o.stonewall = v), "wait for all earlier jobs"),
    key("new_group", &[], ValueKind::Flag(|o, v| o.new_group = v), "begin a reporting group"),
    key("startdelay", &["start_delay"], ValueKind::Time(TimeUnit::Seconds, |o, v| o.start_delay = v), "wait before beginning"),
    key("ramp_time", &[], ValueKind::Time(TimeUnit::Seconds, |o, v| o.ramp_time = v), "run before measuring"),
    key("runtime", &["timeout"], ValueKind::Time(TimeUnit::Seconds, |o, v| o.runtime = Some(v)), "end after"),
    key("time_based", &[], ValueKind::Flag(|o, v| o.time_based = v), "go on until runtime"),
    key("thinktime", &[], ValueKind::Time(TimeUnit::Microseconds, |o, v| o.think_time = v), "sleep between I/Os"),
    key("thinktime_blocks", &[], ValueKind::Count(1..=u32::MAX as u64, |o, v| o.think_blocks = v as u32), "I/Os between sleeps"),
    key("rate", &[], ValueKind::Counts(|o| &mut o.rate), "bytes a second at most"),
    key("rate_iops", &[], ValueKind::Counts(|o| &mut o.rate_iops), "I/Os a second at most"),
    key("cpus_allowed", &[], ValueKind::Text(|o, v| { o.cpus = value::cpu_list(v)?; Ok(()) }), "processors to run on"),

    key("norandommap", &[], ValueKind::Flag(|o, v| o.random_map = !v), "blocks may be visited twice"),
    key("randrepeat", &["allrandrepeat"], ValueKind::Flag(|o, v| o.repeatable = v), "the same offsets every run"),
    key("randseed", &[], ValueKind::Count(0..=u64::MAX, |o, v| o.seed = Some(v)), "seed of the offsets"),
    key("random_distribution", &[], ValueKind::Text(|o, v| { o.distribution = value::distribution(v)?; Ok(()) }), "random, zipf:THETA or pareto:H"),
    key("zero_buffers", &[], ValueKind::Flag(|o, v| o.zero_buffers = v), "write zeros"),
    key("refill_buffers", &[], ValueKind::Flag(|o, v| o.refill_buffers = v), "new bytes for every write"),
    key("buffer_compress_percentage", &[], ValueKind::Count(0..=100, |o, v| o.compress_percentage = Some(v as u8)), "percentage of zeros in written bytes"),

    key("verify", &[], ValueKind::Choice(&["0", "crc32c", "crc32c-intel", "pattern"], |o, v| o.verify = Some(verify(v))), "how blocks are verified"),
    key("verify_pattern", &[], ValueKind::Text(|o, v| { o.verify_pattern = value::pattern(v)?; Ok(()) }), "bytes to write, repeated"),
    key("do_verify", &[], ValueKind::Flag(|o, v| o.do_verify = v), "read back what was written"),
    key("verify_fatal", &[], ValueKind::Flag(|o, v| o.verify_fatal = v), "stop at the first wrong block"),

    key("fsync", &[], ValueKind::Count(0..=u32::MAX as u64, |o, v| o.fsync = v as u32), "writes between fsyncs"),
    key("fdatasync", &[], ValueKind::Count(0..=u32::MAX as u64, |o, v| o.fdatasync = v as u32), "writes between fdatasyncs"),
    key("end_fsync", &[], ValueKind::Flag(|o, v| o.end_fsync = v), "fsync at the end"),
    key("fallocate", &[], ValueKind::Choice(&["none", "0", "native", "posix", "keep", "truncate", "1"], |o, v| o.fallocate = fallocate(v)), "how space for new files is allocated"),
    key("invalidate", &[], ValueKind::Flag(|o, v| o.invalidate = v), "drop cached pages first"),
    key("unlink", &[], ValueKind::Flag(|o, v| o.unlink = v), "remove the files the run created"),

    key("registerfiles", &[], ValueKind::Flag(|o, v| o.register_files = v), "register files with the ring"),
    key("fixedbufs", &[], ValueKind::Flag(|o, v| o.fixed_buffers = v), "register buffers with the ring"),
    key("hipri", &[], ValueKind::Flag(|o, v| o.polled = v), "polled completions"),
    key("sqthread_poll", &[], ValueKind::Flag(|o, v| o.sq_thread_poll = v), "a kernel thread submits"),
    key("force_async", &[], ValueKind::Count(0..=65_536, |o, v| o.force_async = v as u32), "every n-th request through a worker"),

    key("gtod_reduce", &[], ValueKind::Flag(|o, v| o.reduce_clock = v), "no time stamps at all"),
    key("disable_slat", &[], ValueKind::Flag(|o, v| o.no_slat = v), "no submission latency"),
    key("disable_clat", &[], ValueKind::Flag(|o, v| o.no_clat = v), "no completion latency"),
    key("disable_lat", &[], ValueKind::Flag(|o, v| o.no_lat = v), "no total latency"),
    key("disable_bw_measurement", &["disable_bw"], ValueKind::Flag(|o, v| o.no_bandwidth = v), "no bandwidth samples"),
    key("clat_percentiles", &[], ValueKind::Flag(|o, v| o.clat_percentiles = v), "percentiles of clat"),
    key("percentile_list", &[], ValueKind::Text(|o, v| { o.percentiles = percentiles(v)?.into(); Ok(()) }), "which percentiles"),
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

/// The name or alias nearest to an unknown word.
pub fn nearest_key(word: &str) -> Option<&'static str> {
    nearest(
        word,
        KEYS.iter().flat_map(|key| std::iter::once(key.name).chain(key.aliases.iter().copied())),
    )
}

impl Key {
    /// Whether `name` is its name or an alias.
    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// Whether the value may be left out.
    pub fn is_flag(&self) -> bool {
        matches!(self.kind, ValueKind::Flag(_))
    }

    /// Parses a value and stores it in `options`.
    pub fn apply(&self, options: &mut Options, text: Option<&str>) -> Result<(), String> {
        let text = match (text, &self.kind) {
            (None, ValueKind::Flag(set)) => {
                set(options, true);
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
                assign(&mut options.block, value::per_direction(text, one)?);
            }
            ValueKind::Time(unit, set) => set(options, value::time(text, *unit)?),
            ValueKind::Choice(words, set) => match words.iter().find(|word| **word == text) {
                Some(word) => set(options, word),
                None => return Err(format!("`{text}` is not one of {}", words.join(", "))),
            },
            ValueKind::Text(set) => set(options, text)?,
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
fn assign<T: Copy>(fields: &mut [T; 2], values: [Option<T>; 2]) {
    for (field, value) in fields.iter_mut().zip(values) {
        *field = value.unwrap_or(*field);
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

fn percentiles(text: &str) -> Result<Vec<f64>, String> {
    // fio's limit.
    const MAX_PERCENTILES: usize = 20;
    let mut list = Vec::new();
    for part in text.split(':') {
        match part.trim().parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => list.push(percent),
            _ => return Err(format!("`{part}` is not a percentile")),
        }
    }
    if list.len() > MAX_PERCENTILES {
        return Err(format!("more than {MAX_PERCENTILES} percentiles"));
    }
    list.sort_by(f64::total_cmp);
    Ok(list)
}
