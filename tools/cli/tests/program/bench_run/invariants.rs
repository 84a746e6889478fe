//! Invariants between the figures of a report. They hold on any machine, even if it stops any process
//! at any time for seconds. `tools/lab/src/run/io_stats.rs` tests the samples over time, with times that
//! the test chooses.

use serde_json::Value;

/// Checks the figures of one job.
pub fn check_job(job: &Value, name: &str) {
    let ios = ["read", "write"].map(|way| number(&job[way], "total_ios"));
    for way in ["read", "write", "trim"] {
        check_direction(&job[way], &format!("{name}: {way}"));
    }
    let sum = |key: &str| -> f64 {
        job[key].as_object().unwrap().values().map(|share| share.as_f64().unwrap()).sum()
    };
    let timed = ["read", "write"].iter().any(|way| number(&job[way]["clat_ns"], "N") > 0.0);
    let classes = sum("latency_ns") + sum("latency_us") + sum("latency_ms");
    // fio shows any share above zero as at least 0.01.
    assert!((classes - if timed { 100.0 } else { 0.0 }).abs() < 1.0, "{name}: classes {classes}");
    let [levels, submits, completes] =
        ["iodepth_level", "iodepth_submit", "iodepth_complete"].map(sum);
    // fio's levels count syncs, but their total does not.
    let syncs = number(&job["sync"], "total_ios") * 100.0 / (ios[0] + ios[1]);
    assert!((99.0..=101.5 + syncs).contains(&levels), "{name}: levels {levels}");
    assert!((submits - 100.0).abs() < 1.0, "{name}: submits {submits}");
    assert!((completes - 100.0).abs() < 1.0, "{name}: completes {completes}");
    let runtime = number(&job["read"], "runtime").max(number(&job["write"], "runtime"));
    assert!(number(job, "elapsed") * 1000.0 >= runtime - 1.0, "{name}: elapsed");
    assert!(number(job, "job_runtime") >= runtime - 1.0, "{name}: job_runtime");
    assert!(number(job, "usr_cpu") >= 0.0 && number(job, "sys_cpu") >= 0.0, "{name}");
    let sync = &job["sync"];
    assert_eq!(sync["total_ios"], sync["lat_ns"]["N"], "{name}: syncs");
    check_latencies(&sync["lat_ns"], &format!("{name}: sync"));
}

fn check_direction(side: &Value, name: &str) {
    let of = |key| number(side, key);
    assert_eq!(of("io_kbytes"), (of("io_bytes") / 1024.0).floor(), "{name}");
    assert_eq!(of("bw"), (of("bw_bytes") / 1024.0).floor(), "{name}");
    assert_eq!(of("total_ios") * 4096.0, of("io_bytes"), "{name}: blocks");
    if of("total_ios") == 0.0 {
        assert_eq!((of("iops"), of("bw_bytes"), of("runtime")), (0.0, 0.0, 0.0), "{name}");
    } else {
        // The runtime is in whole milliseconds, rounded up or down.
        let (runtime, rate) = (of("runtime"), of("iops"));
        let most = if runtime > 1.0 { of("total_ios") * 1e3 / (runtime - 1.0) } else { f64::MAX };
        let least = of("total_ios") * 1e3 / (runtime + 1.0);
        assert!((least..=most).contains(&rate), "{name}: {rate} is not {least} to {most}");
        assert!((of("bw_bytes") / 4096.0 / rate - 1.0).abs() < 0.01, "{name}: bandwidth");
    }
    let [slat, clat, lat] = ["slat_ns", "clat_ns", "lat_ns"].map(|key| &side[key]);
    for (times, key) in [(slat, "slat"), (clat, "clat"), (lat, "lat")] {
        check_latencies(times, &format!("{name}: {key}"));
        assert!([0.0, of("total_ios")].contains(&number(times, "N")), "{name}: {key} N");
    }
    if number(lat, "N") > 0.0 {
        // fio takes the times of the parts one after the other, and may be delayed in between.
        let longer = |part| number(lat, "mean") >= number(part, "mean") * (1.0 - 1e-9);
        assert!(longer(slat) && longer(clat), "{name}: slat and clat are in lat");
    }
    for [min, mean, max] in [["bw_min", "bw_mean", "bw_max"], ["iops_min", "iops_mean", "iops_max"]]
    {
        assert!(of(min) <= of(mean) && of(mean) <= of(max) + 1.0, "{name}: {min}");
    }
    assert!((0.0..=100.0).contains(&of("bw_agg")), "{name}: bw_agg");
}

/// Checks what holds only for our reports, on any machine.
pub fn check_our_job(job: &Value, has_samples: bool, name: &str) {
    for way in ["read", "write"] {
        let side = &job[way];
        let of = |key| number(side, key);
        let [slat, clat, lat] = ["slat_ns", "clat_ns", "lat_ns"].map(|key| &side[key]);
        if number(lat, "N") > 0.0 && number(clat, "N") > 0.0 {
            let parts = number(slat, "mean") + number(clat, "mean");
            let off = (number(lat, "mean") - parts).abs();
            assert!(off <= 1e-9 * parts, "{name}: {way}: slat and clat are lat: {side}");
        }
        let samples = of("bw_samples");
        assert_eq!(samples, of("iops_samples"), "{name}: {way}");
        assert!(samples > 0.0 || !has_samples || of("total_ios") == 0.0, "{name}: {way}: {side}");
        // Each sample covers at least half a second of a thread, and the I/O in it.
        assert!(samples * 500.0 <= number(job, "job_runtime"), "{name}: {way}: {job}");
        assert!(of("bw_mean") * 0.5 <= of("io_bytes") / 1024.0, "{name}: {way}: {side}");
        assert!(of("iops_mean") * 0.5 <= of("total_ios"), "{name}: {way}: {side}");
    }
}

fn check_latencies(times: &Value, name: &str) {
    let of = |key| number(times, key);
    assert!(of("min") <= of("mean") && of("mean") <= of("max"), "{name}: {times}");
    if of("N") == 0.0 {
        assert_eq!((of("max"), of("stddev")), (0.0, 0.0), "{name}");
        assert!(times.get("percentile").is_none(), "{name}: percentiles without I/O");
    }
    let Some(percentiles) = times.get("percentile") else { return };
    let list: Vec<(f64, f64)> = percentiles
        .as_object()
        .unwrap()
        .iter()
        .map(|(percent, ns)| (percent.parse().unwrap(), ns.as_f64().unwrap()))
        .collect();
    assert!(list.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name}: {list:?}");
    // fio's buckets are a sixty-fourth wide.
    let bounds = of("min") * (1.0 - 1.0 / 64.0) - 1.0..=of("max") * (1.0 + 1.0 / 64.0) + 1.0;
    assert!(list.iter().all(|(_, ns)| bounds.contains(ns)), "{name}: {list:?}");
}

pub fn check_disks(report: &Value, name: &str) {
    for disk in report.get("disk_util").and_then(Value::as_array).into_iter().flatten() {
        assert!((0.0..=100.0).contains(&number(disk, "util")), "{name}: {disk}");
        assert!(!disk["name"].as_str().unwrap().is_empty(), "{name}");
    }
}

pub fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} of {value}"))
}
