//! fio's terse report, version 3: a line of fields for each entry, separated by semicolons.

use super::depth_shares::DepthShares;
use super::entry::{Latency, ReportEntry, ReportGroup, entries};
use super::latency_classes::distribution;
use crate::job::UnifiedReport;
use crate::run::Outcome;
use crate::stats::Summary;
use crate::targets::DiskStats;
use std::fmt::{self, Write};

/// Fields for percentiles; fio's limit of them.
const PERCENTILES: usize = 20;

/// The lines of all entries.
pub fn report(outcome: &Outcome) -> String {
    let mut out = String::new();
    let entries = entries(outcome);
    for entry in &entries {
        // Writing to a string cannot fail.
        let _ = write_entry(&mut out, entry, &entries, &outcome.disks);
    }
    out
}

fn write_entry(
    out: &mut String,
    entry: &ReportEntry<'_>,
    entries: &[ReportEntry<'_>],
    disks: &[DiskStats],
) -> fmt::Result {
    let error = entry.failure.as_ref().map_or(0, |failure| failure.errno.raw_os_error());
    let version = env!("CARGO_PKG_VERSION");
    write!(out, "3;uringfs-{version};{};{};{error}", entry.job.name, entry.group)?;
    // As with fio: version 3 has no trims.
    for (index, _) in entry.directions().iter().filter(|(index, _)| *index < 2) {
        let group = ReportGroup::from_entries(entries, entry.group, *index);
        write_direction(out, entry, *index, group)?;
    }
    if entry.job.options.unified == UnifiedReport::Both {
        let group = ReportGroup::mixed(entries, entry.group);
        write_direction(out, &entry.mixed(), 0, group)?;
    }
    let usage = &entry.usage;
    let cpu = |ns: u64| ns as f64 * 100.0 / entry.thread_time_ns.max(1) as f64;
    write!(out, ";{:.6}%;{:.6}%", cpu(usage.user_ns), cpu(usage.system_ns))?;
    let switches = usage.context_switches;
    write!(out, ";{switches};{};{}", usage.major_faults, usage.minor_faults)?;
    for share in DepthShares::new(&entry.stats).levels {
        write!(out, ";{share:.1}%")?;
    }
    let shares = distribution(&entry.stats);
    // As by fio, the first class has all that is faster.
    let microseconds = shares.us.iter().enumerate();
    let microseconds =
        microseconds.map(|(class, us)| if class == 0 { us + shares.below_us } else { *us });
    for share in microseconds.chain(shares.ms) {
        write!(out, ";{share:.2}%")?;
    }
    for DiskStats { name, requests, merges, ticks_ms, in_queue_ms, busy } in disks {
        write!(out, ";{name}")?;
        for count in [requests, merges, ticks_ms].into_iter().flatten() {
            write!(out, ";{count}")?;
        }
        write!(out, ";{in_queue_ms};{busy:.2}%")?;
    }
    match &entry.job.options.description {
        Some(description) => writeln!(out, ";{description}"),
        None => writeln!(out),
    }
}

fn write_direction(
    out: &mut String,
    entry: &ReportEntry<'_>,
    index: usize,
    group: Option<ReportGroup>,
) -> fmt::Result {
    let stats = &entry.stats.directions[index];
    let runtime_ms = if stats.ios > 0 { entry.runtime_ms(index) } else { 0 };
    let rate = entry.bytes_per_second(index) >> 10;
    write!(out, ";{};{rate};{};{runtime_ms}", stats.bytes >> 10, entry.iops(index) as u64)?;
    write_microseconds(out, Latency::Submission.summary(stats))?;
    write_microseconds(out, Latency::Completion.summary(stats))?;
    // As with fio: those of the total latency, if the job wants them.
    let total = entry.histogram(stats, Latency::Total);
    let histogram = total.or_else(|| entry.histogram(stats, Latency::Completion));
    let has_times = stats.ios > 0;
    for field in 0..PERCENTILES {
        match histogram.zip(entry.job.options.percentiles.get(field)) {
            Some((times, percent)) => {
                let ns = if has_times { times.percentile(*percent) } else { 0 };
                write!(out, ";{percent:.6}%={}", ns / 1000)?;
            }
            None => write!(out, ";0%=0")?,
        }
    }
    write_microseconds(out, Latency::Total.summary(stats))?;
    let samples = &stats.bandwidth;
    let share = group.map_or(0.0, |group| group.share(samples));
    let (mean, deviation) = (samples.mean(), samples.deviation());
    write!(out, ";{};{};{share:.6}%;{mean:.6};{deviation:.6}", samples.min(), samples.max())
}

fn write_microseconds(out: &mut String, times: &Summary) -> fmt::Result {
    let (mean, deviation) = (times.mean() / 1000.0, times.deviation() / 1000.0);
    write!(out, ";{};{};{mean:.6};{deviation:.6}", times.min() / 1000, times.max() / 1000)
}
