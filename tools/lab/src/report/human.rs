//! The text report, in fio's layout, line by line.

use super::depth_shares::{BATCHES, DEPTHS, DepthShares};
use super::entry::{Latency, ReportEntry, ReportGroup, entries};
use super::latency_classes::{CLASSES, distribution};
use super::units::{Prefix, TimeScale, bandwidth, number};
use crate::job::{SteadyMeasure, SteadyRate, UnifiedReport};
use crate::run::{DEPTH_CLASSES, Outcome, SteadyWindow};
use crate::stats::{LatencyHistogram, Summary};
use crate::targets::DiskStats;
use std::fmt::{self, Write};
use std::time::UNIX_EPOCH;

/// The whole report.
pub fn report(outcome: &Outcome) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_head(&mut out, outcome).and_then(|()| write_results(&mut out, outcome));
    out
}

/// The results without the lines about the jobs before them.
pub fn results(outcome: &Outcome) -> String {
    let mut out = String::new();
    let _ = write_results(&mut out, outcome);
    out
}

/// The jobs, and the files that were laid out.
fn write_head(out: &mut String, outcome: &Outcome) -> fmt::Result {
    for (group, job) in groups_of_jobs(outcome) {
        let options = &outcome.jobs[job].options;
        let range =
            |index: usize| format!("{}B-{}B", options.block[index].min, options.block[index].max);
        writeln!(
            out,
            "{}: (g={group}): rw={}, bs=(R) {}, (W) {}, (T) {}, ioengine={}, iodepth={}",
            outcome.jobs[job].name,
            options.pattern.name(),
            range(0),
            range(1),
            range(2),
            outcome.engine,
            options.depth,
        )?;
    }
    let threads = outcome.threads.len();
    writeln!(out, "uringfs-{}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "Started {threads} thread{}", if threads == 1 { "" } else { "s" })?;
    for name in &outcome.files_made {
        writeln!(out, "Laid out {name}")?;
    }
    Ok(())
}

fn write_results(out: &mut String, outcome: &Outcome) -> fmt::Result {
    let entries = entries(outcome);
    let when = outcome.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    out.push('\n');
    for entry in &entries {
        write_entry(out, entry, &entries, &super::date::ctime(when.as_secs()))?;
    }
    write_status(out, &entries)?;
    write_disks(out, &outcome.disks)?;
    let notes = outcome.notes.iter().chain(entries.iter().flat_map(|entry| &entry.engine.notes));
    let mut printed: Vec<&String> = Vec::new();
    for note in notes {
        if !printed.contains(&note) {
            printed.push(note);
            writeln!(out, "note: {note}")?;
        }
    }
    if outcome.incomplete {
        writeln!(out, "INCOMPLETE: stopped by Ctrl-C; files made by the run were removed")?;
    }
    Ok(())
}

/// Each job once, with its group: (group, job).
fn groups_of_jobs(outcome: &Outcome) -> Vec<(u32, usize)> {
    let mut list: Vec<_> =
        outcome.threads.iter().map(|thread| (thread.group, thread.job)).collect();
    list.dedup();
    list
}

fn write_entry(
    out: &mut String,
    entry: &ReportEntry<'_>,
    entries: &[ReportEntry<'_>],
    when: &str,
) -> fmt::Result {
    let error = entry.failure.as_ref();
    write!(out, "{}: (groupid={}, jobs={})", entry.job.name, entry.group, entry.threads)?;
    match error {
        None => writeln!(out, ": err= 0: pid={}: {when}", std::process::id())?,
        Some(failure) => writeln!(
            out,
            ": err={:2} ({}: {}): pid={}: {when}",
            failure.errno.raw_os_error(),
            failure.what,
            failure.errno,
            std::process::id()
        )?,
    }
    if let Some(text) = &entry.job.options.description {
        writeln!(out, "  Description  : [{text}]")?;
    }
    for (index, name) in entry.directions() {
        if let Some(group) = ReportGroup::from_entries(entries, entry.group, *index)
            && entry.stats.directions[*index].ios > 0
        {
            write_direction(out, entry, *index, name, &group)?;
        }
    }
    if entry.job.options.unified == UnifiedReport::Both
        && let Some(group) = ReportGroup::mixed(entries, entry.group)
        && entry.stats.ios() > 0
    {
        write_direction(out, &entry.mixed(), 0, "mixed", &group)?;
    }
    write_classes(out, entry)?;
    if entry.stats.sync.summary().count() > 0 {
        writeln!(out, "  fsync/fdatasync/sync_file_range:")?;
        write_times(out, "sync", entry.stats.sync.summary())?;
        // As by fio, whatever percentiles the job wants.
        write_percentiles(out, entry, "sync", &entry.stats.sync)?;
    }
    let cpu = |ns: u64| ns as f64 * 100.0 / entry.thread_time_ns.max(1) as f64;
    writeln!(
        out,
        "  cpu          : usr={:3.2}%, sys={:3.2}%, ctx={}, majf={}, minf={}",
        cpu(entry.usage.user_ns),
        cpu(entry.usage.system_ns),
        entry.usage.context_switches,
        entry.usage.major_faults,
        entry.usage.minor_faults
    )?;
    let depths = DepthShares::new(&entry.stats);
    write_shares(out, "  IO depths    ", DEPTHS, depths.levels)?;
    write_shares(out, "     submit    ", BATCHES, depths.submits)?;
    write_shares(out, "     complete  ", BATCHES, depths.completes)?;
    let [read, write, trim] = &entry.stats.directions;
    writeln!(
        out,
        "     issued rwts: total={},{},{},{} short={},{},{},0 dropped=0,0,0,0",
        read.ios,
        write.ios,
        trim.ios,
        entry.stats.sync.summary().count(),
        read.short,
        write.short,
        trim.short
    )?;
    let options = &entry.job.options;
    writeln!(
        out,
        "     latency   : target={}, window={}, percentile={:.2}%, depth={}",
        options.latency_target.as_nanos(),
        options.latency_window.as_micros(),
        options.latency_percentile,
        entry.depth()
    )?;
    if let Some(window) = entry.steady {
        write_steady(out, window)?;
    }
    write_costs(out, entry)
}

fn write_steady(out: &mut String, window: &SteadyWindow) -> fmt::Result {
    let (judgement, seconds) = window.result();
    let criterion = window.criterion();
    let mean = |sum: u64| sum / (seconds.len() as u64).max(1);
    let attained = if judgement.attained { "yes" } else { "no" };
    let rate = if criterion.rate == SteadyRate::Ios { "iops" } else { "bw" };
    let measure = match criterion.measure {
        SteadyMeasure::Deviation => "mean dev",
        SteadyMeasure::Slope => "slope",
    };
    writeln!(
        out,
        "  steadystate  : attained={attained}, bw={}, iops={}, {rate} {measure}={:.3}{}",
        bandwidth(mean(seconds.iter().map(|second| second.bytes).sum())),
        number(mean(seconds.iter().map(|second| second.ios).sum()), 4, Prefix::Decimal, ""),
        judgement.criterion,
        criterion.unit()
    )
}

fn write_costs(out: &mut String, entry: &ReportEntry<'_>) -> fmt::Result {
    writeln!(
        out,
        "  each I/O     : cpu={:.0}ns, system calls={:.3}, context switches={:.3}",
        entry.per_io(entry.cpu_ns()),
        entry.per_io(entry.engine.system_calls),
        entry.per_io(entry.context_switches())
    )?;
    writeln!(out, "  queue        : {} ({})", entry.engine.queue, entry.engine.tier)?;
    let counters = entry.engine.counters.iter().filter(|(_, value)| *value > 0);
    let counters: Vec<_> = counters.map(|(name, value)| format!("{name}={value}")).collect();
    if counters.is_empty() {
        Ok(())
    } else {
        writeln!(out, "  counters     : {}", counters.join(", "))
    }
}

fn write_direction(
    out: &mut String,
    entry: &ReportEntry<'_>,
    index: usize,
    name: &str,
    group: &ReportGroup,
) -> fmt::Result {
    let stats = &entry.stats.directions[index];
    let rate = entry.bytes_per_second(index);
    writeln!(
        out,
        "  {name}: IOPS={}, BW={}({}/{}msec)",
        number(entry.iops(index) as u64, 4, Prefix::Decimal, ""),
        bandwidth(rate),
        number(stats.bytes, 4, Prefix::Binary, "B"),
        entry.runtime_ms(index)
    )?;
    let latencies = || Latency::ALL.into_iter().zip(["slat", "clat", " lat"]);
    for (latency, name) in latencies() {
        let times = latency.summary(stats);
        if times.count() > 0 {
            write_times(out, name, times)?;
        }
    }
    for (latency, name) in latencies() {
        if let Some(times) = entry.histogram(stats, latency) {
            write_percentiles(out, entry, name.trim(), times)?;
        }
    }
    let (samples, iops) = (&stats.bandwidth, &stats.iops);
    if samples.count() > 0 {
        let (unit, by) = if samples.mean() > 1_048_576.0 { ("MiB", 1024) } else { ("KiB", 1) };
        writeln!(
            out,
            "   bw ({unit:>5}/s): min={:5}, max={:5}, per={:3.2}%, avg={:5.2}, stdev={:5.2}, samples={}",
            samples.min() / by,
            samples.max() / by,
            group.share(samples),
            samples.mean() / by as f64,
            samples.deviation() / by as f64,
            samples.count()
        )?;
        writeln!(
            out,
            "   iops        : min={:5}, max={:5}, avg={:5.2}, stdev={:5.2}, samples={}",
            iops.min(),
            iops.max(),
            iops.mean(),
            iops.deviation(),
            iops.count()
        )?;
    }
    Ok(())
}

/// Writes percentiles: as many per line as fit fio's width, all with the same number of decimals.
fn write_percentiles(
    out: &mut String,
    entry: &ReportEntry<'_>,
    name: &str,
    times: &LatencyHistogram,
) -> fmt::Result {
    let percentiles = entry.percentiles(times);
    let (Some((_, min)), Some((_, max))) = (percentiles.first(), percentiles.last()) else {
        return Ok(());
    };
    let scale = TimeScale::from_range(*min, *max);
    writeln!(out, "    {} percentiles ({}):", name.trim_start(), scale.name())?;
    let decimals = percentiles.iter().map(|(percent, _)| decimals(*percent)).max().unwrap_or(0);
    let width = decimals + 3;
    let one = |(percent, ns): &(f64, u64)| {
        format!("{percent:width$.decimals$}th=[{:5}]", ns.div_ceil(scale.ns()))
    };
    let lines: Vec<String> = percentiles
        .chunks(73 / (decimals + 14))
        .map(|line| format!("     | {}", line.iter().map(one).collect::<Vec<_>>().join(", ")))
        .collect();
    writeln!(out, "{}", lines.join(",\n"))
}

/// The number of decimals of a percentage, at most six.
fn decimals(percent: f64) -> usize {
    let text = format!("{percent:.6}");
    text.trim_end_matches('0').split_once('.').map_or(0, |(_, decimals)| decimals.len())
}

fn write_times(out: &mut String, name: &str, times: &Summary) -> fmt::Result {
    // As fio: the finer unit while the deviation is small.
    let scale = match TimeScale::from_range(times.min(), times.max()) {
        TimeScale::Milliseconds if times.deviation() > 1e6 => TimeScale::Milliseconds,
        TimeScale::Nanoseconds => TimeScale::Nanoseconds,
        _ if times.deviation() > 1e3 => TimeScale::Microseconds,
        _ => TimeScale::Nanoseconds,
    };
    let by = scale.ns();
    writeln!(
        out,
        "    {name} ({}): min={}, max={}, avg={:5.2}, stdev={:5.2}",
        scale.name(),
        number(times.min() / by, 6, Prefix::Decimal, ""),
        number(times.max() / by, 6, Prefix::Decimal, ""),
        times.mean() / by as f64,
        times.deviation() / by as f64
    )
}

fn write_classes(out: &mut String, entry: &ReportEntry<'_>) -> fmt::Result {
    let shares = distribution(&entry.stats);
    for (unit, shares) in [("nsec", &shares.ns[..]), ("usec", &shares.us), ("msec", &shares.ms)] {
        let names = CLASSES.iter().map(|(name, _)| *name).chain(["2000", ">=2000"]);
        let shown: Vec<String> = names
            .zip(shares)
            .filter(|(_, share)| **share > 0.0)
            .map(|(name, share)| format!("{name}={share:.2}%"))
            .collect();
        for line in shown.chunks(5) {
            writeln!(out, "  lat ({unit})   : {}", line.join(", "))?;
        }
    }
    Ok(())
}

fn write_shares(
    out: &mut String,
    title: &str,
    names: [&str; DEPTH_CLASSES],
    shares: [f64; DEPTH_CLASSES],
) -> fmt::Result {
    let share = |(name, share): (&str, f64)| format!("{name}={share:.1}%");
    let shares: Vec<String> = names.into_iter().zip(shares).map(share).collect();
    writeln!(out, "{title}: {}", shares.join(", "))
}

fn write_status(out: &mut String, entries: &[ReportEntry<'_>]) -> fmt::Result {
    let mut groups: Vec<u32> = entries.iter().map(|entry| entry.group).collect();
    groups.dedup();
    for group in groups {
        writeln!(out, "\nRun status group {group} (all jobs):")?;
        let unified = |wanted: UnifiedReport| {
            let mut members = entries.iter().filter(|entry| entry.group == group);
            members.any(|entry| entry.job.options.unified == wanted)
        };
        let first = if unified(UnifiedReport::Mixed) { "  MIXED" } else { "   READ" };
        let both = unified(UnifiedReport::Both).then(|| ReportGroup::mixed(entries, group));
        let sums = [
            (first, ReportGroup::from_entries(entries, group, 0)),
            ("  WRITE", ReportGroup::from_entries(entries, group, 1)),
            ("   TRIM", ReportGroup::from_entries(entries, group, 2)),
            ("  MIXED", both.flatten()),
        ];
        for (name, sum) in sums {
            let Some(sum) = sum else { continue };
            let [first_ms, last_ms] = sum.runtime_ns.map(|ns| ns.div_ceil(1_000_000));
            let (bytes, [low, high]) = (sum.bytes, sum.rates);
            let short = |rate, prefix| number(rate, 4, prefix, "B/s");
            writeln!(
                out,
                "{name}: bw={}, {}-{} ({}-{}), io={} ({}), run={first_ms}-{last_ms}msec",
                bandwidth(sum.bytes_per_second),
                short(low, Prefix::Binary),
                short(high, Prefix::Binary),
                short(low, Prefix::Decimal),
                short(high, Prefix::Decimal),
                number(bytes, 4, Prefix::Binary, "B"),
                number(bytes, 4, Prefix::Decimal, "B"),
            )?;
        }
    }
    Ok(())
}

fn write_disks(out: &mut String, disks: &[DiskStats]) -> fmt::Result {
    if !disks.is_empty() {
        writeln!(out, "\nDisk stats (read/write):")?;
    }
    for DiskStats { name, requests, merges, ticks_ms, in_queue_ms, busy } in disks {
        let pair = |[reads, writes]: &[u64; 2]| format!("{reads}/{writes}");
        writeln!(
            out,
            "  {name}: ios={}, merge={}, ticks={}, in_queue={in_queue_ms}, util={busy:3.2}%",
            pair(requests),
            pair(merges),
            pair(ticks_ms),
        )?;
    }
    Ok(())
}
