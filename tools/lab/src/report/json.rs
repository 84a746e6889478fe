//! fio's JSON, key by key and in fio's order, so that programs for fio's JSON read ours. Each job has one
//! more object, `uringfs`, with figures that fio does not have.

use super::depth_shares::{BATCHES, DEPTHS, DepthShares};
use super::entry::{Latency, ReportEntry, ReportGroup, entries};
use super::latency_bins::bins;
use super::latency_classes::{CLASSES, distribution};
use crate::engine::{EngineReport, fio};
use crate::job::{UnifiedReport, find_key};
use crate::run::{DEPTH_CLASSES, DirectionStats, Outcome, SecondRates, SteadyWindow};
use crate::stats::{LatencyHistogram, Summary};
use crate::targets::DiskStats;
use serde_json::{Map, Value, json};
use std::time::UNIX_EPOCH;

/// Whether latencies have all their bins: fio's `json+`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bins {
    /// No.
    None,
    /// Those that are not empty.
    All,
}

/// The whole report.
pub fn report(outcome: &Outcome, with: Bins) -> Value {
    let since = outcome.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let entries = entries(outcome);
    let jobs: Vec<Value> =
        entries.iter().map(|entry| job(entry, &entries, outcome, with)).collect();
    let mut report = json!({
        "fio version": concat!("uringfs-", env!("CARGO_PKG_VERSION")),
        "timestamp": since.as_secs(),
        "timestamp_ms": since.as_millis() as u64,
        "time": super::date::ctime(since.as_secs()),
    });
    if !outcome.globals.is_empty() {
        report["global options"] = options(&outcome.globals);
    }
    report["jobs"] = jobs.into();
    if !outcome.disks.is_empty() {
        report["disk_util"] = outcome.disks.iter().map(disk).collect();
    }
    report
}

fn disk(used: &DiskStats) -> Value {
    let [[reads, writes], [read_merges, write_merges], [read_ms, write_ms]] =
        [used.requests, used.merges, used.ticks_ms];
    json!({
        "name": used.name,
        "read_ios": reads,
        "write_ios": writes,
        "read_merges": read_merges,
        "write_merges": write_merges,
        "read_ticks": read_ms,
        "write_ticks": write_ms,
        "in_queue": used.in_queue_ms,
        "util": used.busy,
    })
}

/// fio's report, with the object `uringfs` in each job.
pub fn with_uringfs_object(output: &fio::Output) -> Value {
    let mut report = output.json.clone();
    add_uringfs_objects(&mut report, &output.notes, &output.files_made, output.incomplete);
    report
}

/// Adds the object `uringfs` to each job of a report of fio, with what fio knows.
pub fn add_uringfs_objects(
    report: &mut Value,
    notes: &[String],
    files_made: &[String],
    incomplete: bool,
) {
    let jobs = report.get_mut("jobs").and_then(Value::as_array_mut).into_iter().flatten();
    for job in jobs.filter(|job| job.is_object()) {
        let ios = directions_of(job).iter().filter_map(|way| job[*way]["total_ios"].as_u64());
        let total: u64 = ios.sum();
        let number = |key: &str| job[key].as_f64().unwrap_or(0.0);
        let per_io = |figure: f64| figure / total.max(1) as f64;
        let cpu_ns = (number("usr_cpu") + number("sys_cpu")) / 100.0 * number("job_runtime") * 1e6;
        job["uringfs"] = json!({
            "engine": "fio",
            "counters": {},
            "cpu_ns_per_io": per_io(cpu_ns),
            "span_ns": null,
            "system_calls_per_io": null,
            "context_switches_per_io": per_io(number("ctx")),
            "queue": job["job options"]["ioengine"].as_str().unwrap_or("psync"),
            "tier": "fio",
            "notes": notes,
            "files_made": files_made,
            "incomplete": incomplete,
        });
    }
}

/// The objects of a job of a report that have its I/Os: `mixed` stands alone with `unified_rw_reporting=mixed`, else beside the
/// others or not at all.
pub fn directions_of(job: &Value) -> &'static [&'static str] {
    match job["mixed"].is_object() && !job["read"].is_object() {
        true => &["mixed"],
        false => &["read", "write", "trim"],
    }
}

fn job(
    entry: &ReportEntry<'_>,
    entries: &[ReportEntry<'_>],
    outcome: &Outcome,
    with: Bins,
) -> Value {
    let (shares, depths) = (distribution(&entry.stats), DepthShares::new(&entry.stats));
    let classes = |shares: &[f64]| {
        let names = CLASSES.iter().map(|(name, _)| *name).chain(["2000", ">=2000"]);
        names
            .zip(shares)
            .map(|(name, share)| (name.to_owned(), json!(share)))
            .collect::<Map<_, _>>()
    };
    let cpu = |ns: u64| ns as f64 * 100.0 / entry.thread_time_ns.max(1) as f64;
    let errno = entry.failure.as_ref().map_or(0, |failure| failure.errno.raw_os_error());
    let mut job = json!({
        "jobname": entry.job.name,
        "groupid": entry.group,
        "error": errno,
        // fio's value for a job that has ended.
        "eta": i32::MAX,
        "elapsed": entry.elapsed_ns.div_ceil(1_000_000_000).max(1),
    });
    // As with fio: a section without keys has no object.
    if !entry.last_job.own_keys.is_empty() {
        job["job options"] = options(&entry.last_job.own_keys);
    }
    for (index, name) in entry.directions() {
        let group = ReportGroup::from_entries(entries, entry.group, *index);
        job[*name] = direction(entry, *index, group, with);
    }
    // As with fio: the sum stands alone.
    if entry.job.options.unified != UnifiedReport::Mixed {
        let sync = entry.stats.sync.summary();
        let times = times(entry, sync, entry.sync_histogram(), with);
        job["sync"] = json!({"total_ios": sync.count(), "lat_ns": times});
    }
    if entry.job.options.unified == UnifiedReport::Both {
        let group = ReportGroup::mixed(entries, entry.group);
        job["mixed"] = direction(&entry.mixed(), 0, group, with);
    }
    let rest = json!({
        "job_runtime": entry.thread_time_ns / 1_000_000,
        "usr_cpu": cpu(entry.usage.user_ns),
        "sys_cpu": cpu(entry.usage.system_ns),
        "ctx": entry.usage.context_switches,
        "majf": entry.usage.major_faults,
        "minf": entry.usage.minor_faults,
        "iodepth_level": named(depths.levels, DEPTHS),
        "iodepth_submit": named(depths.submits, BATCHES),
        "iodepth_complete": named(depths.completes, BATCHES),
        "latency_ns": classes(&shares.ns),
        "latency_us": classes(&shares.us),
        "latency_ms": classes(&shares.ms),
        "latency_depth": entry.depth(),
        "latency_target": entry.job.options.latency_target.as_nanos() as u64,
        "latency_percentile": entry.job.options.latency_percentile,
        "latency_window": entry.job.options.latency_window.as_micros() as u64,
    });
    if let (Value::Object(job), Value::Object(rest)) = (&mut job, rest) {
        job.extend(rest);
    }
    if let Some(description) = &entry.job.options.description {
        job["desc"] = json!(description);
    }
    if let Some(window) = entry.steady {
        job["steadystate"] = steady(window);
    }
    job["uringfs"] = uringfs_object(entry, outcome);
    job
}

fn steady(window: &SteadyWindow) -> Value {
    let (judgement, seconds) = window.result();
    let criterion = window.criterion();
    // As by fio, all seconds of the window, also if the job has ended earlier.
    let list = |figure: fn(&SecondRates) -> u64| -> Vec<u64> {
        let known = seconds.iter().map(figure);
        known.chain(std::iter::repeat(0)).take(window.seconds()).collect()
    };
    let (ios, bytes) = (list(|second| second.ios), list(|second| second.bytes));
    let mean = |list: &[u64]| list.iter().sum::<u64>() / (list.len() as u64).max(1);
    json!({
        "ss": criterion.to_string(),
        "duration": window.seconds(),
        "attained": u8::from(judgement.attained),
        "criterion": format!("{:.6}{}", judgement.criterion, criterion.unit()),
        "max_deviation": judgement.deviation,
        "slope": judgement.slope,
        "data": {
            "bw_mean": mean(&bytes),
            "iops_mean": mean(&ios),
            "iops": ios,
            "bw": bytes,
        },
    })
}

fn uringfs_object(entry: &ReportEntry<'_>, outcome: &Outcome) -> Value {
    let EngineReport { queue, tier, system_calls, counters, notes, .. } = &entry.engine;
    let counters: Map<String, Value> =
        counters.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let notes: Vec<&String> = outcome.notes.iter().chain(notes).collect();
    let mut object = json!({
        "engine": outcome.engine,
        "counters": counters,
        "cpu_ns_per_io": entry.per_io(entry.cpu_ns()),
        "span_ns": entry.span_ns.as_ref().map_or(0, |span| span.end - span.start),
        "system_calls_per_io": entry.per_io(*system_calls),
        "context_switches_per_io": entry.per_io(entry.context_switches()),
        "queue": queue,
        "tier": tier,
        "notes": notes,
        "files_made": outcome.files_made,
        "incomplete": outcome.incomplete,
    });
    if entry.stats.work_ns > 0 {
        object["work_ns_per_io"] = json!(entry.per_io(entry.stats.work_ns));
    }
    if let Some(failure) = &entry.failure {
        object["failure"] = json!(failure.to_string());
    }
    object
}

fn direction(
    entry: &ReportEntry<'_>,
    index: usize,
    group: Option<ReportGroup>,
    with: Bins,
) -> Value {
    let stats = &entry.stats.directions[index];
    let used = stats.ios > 0;
    let latencies =
        Latency::ALL.map(|one| times(entry, one.summary(stats), entry.histogram(stats, one), with));
    figures(Figures {
        stats,
        latencies,
        share: group.map_or(0.0, |group| group.share(&stats.bandwidth)),
        bytes_per_second: entry.bytes_per_second(index),
        iops: entry.iops(index),
        runtime_ms: if used { entry.runtime_ms(index) } else { 0 },
    })
}

struct Figures<'a> {
    stats: &'a DirectionStats,
    /// In the order of [`Latency::ALL`].
    latencies: [Value; 3],
    /// Percentage of the group's bandwidth.
    share: f64,
    bytes_per_second: u64,
    iops: f64,
    runtime_ms: u64,
}

fn figures(figures: Figures<'_>) -> Value {
    let Figures { stats, latencies, share, bytes_per_second, iops, runtime_ms } = figures;
    let [slat, clat, lat] = latencies;
    let (bandwidth, rate) = (&stats.bandwidth, &stats.iops);
    json!({
        "io_bytes": stats.bytes,
        "io_kbytes": stats.bytes >> 10,
        "bw_bytes": bytes_per_second,
        "bw": bytes_per_second >> 10,
        "iops": iops,
        "runtime": runtime_ms,
        "total_ios": stats.ios,
        "short_ios": stats.short,
        "drop_ios": 0,
        "slat_ns": slat,
        "clat_ns": clat,
        "lat_ns": lat,
        "bw_min": bandwidth.min(),
        "bw_max": bandwidth.max(),
        "bw_agg": share,
        "bw_mean": bandwidth.mean(),
        "bw_dev": bandwidth.deviation(),
        "bw_samples": bandwidth.count(),
        "iops_min": rate.min(),
        "iops_max": rate.max(),
        "iops_mean": rate.mean(),
        "iops_stddev": rate.deviation(),
        "iops_samples": rate.count(),
    })
}

/// A latency summary, with the percentiles and bins of its histogram.
fn times(
    entry: &ReportEntry<'_>,
    all: &Summary,
    histogram: Option<&LatencyHistogram>,
    with: Bins,
) -> Value {
    let mut value = summary(all);
    let Some(histogram) = histogram else { return value };
    let percentiles = entry.percentiles(histogram);
    if !percentiles.is_empty() {
        let named = percentiles.iter().map(|(percent, ns)| (format!("{percent:.6}"), json!(ns)));
        value["percentile"] = Value::Object(named.collect());
        if with == Bins::All {
            let bins =
                bins(histogram).into_iter().map(|(ns, count)| (ns.to_string(), json!(count)));
            value["bins"] = Value::Object(bins.collect());
        }
    }
    value
}

fn summary(summary: &Summary) -> Value {
    json!({
        "min": summary.min(),
        "max": summary.max(),
        "mean": summary.mean(),
        "stddev": summary.deviation(),
        "N": summary.count(),
    })
}

/// Percentages by the names of their classes.
fn named(shares: [f64; DEPTH_CLASSES], names: [&str; DEPTH_CLASSES]) -> Map<String, Value> {
    let pairs = names.iter().zip(shares);
    pairs.map(|(name, share)| ((*name).to_owned(), json!(share))).collect()
}

/// Keys and values as written, with fio's main name for each key.
fn options(given: &[(String, String)]) -> Value {
    let name = |key: &str| find_key(key).map_or(key, |key| key.name).to_owned();
    given.iter().map(|(key, value)| (name(key), json!(value))).collect::<Map<_, _>>().into()
}
