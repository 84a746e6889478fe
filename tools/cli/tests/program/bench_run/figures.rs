//! The figures of a report match the jobs.

use super::{bench, folder, json_of};
use serde_json::Value;

fn report_of(job: &str, more: &[&str]) -> Value {
    let folder = folder();
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    let arguments = ["job.fio", "--output-format=json"];
    json_of(&bench(folder.path(), &[&arguments[..], more].concat()))
}

fn figure(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

#[test]
fn the_runtime_excludes_the_ramp() {
    let job =
        "[j]\nrw=read\nfilename=null:1m\ntime_based\nruntime=200ms\nramp_time=1\nthinktime=1ms\n";
    let report = report_of(job, &[]);
    let job = &report["jobs"][0];
    let runtime_ms = figure(job, "job_runtime");
    // `elapsed` is in seconds, rounded up.
    let whole_ms = figure(job, "elapsed") * 1000.0;
    assert!(runtime_ms >= 200.0 && runtime_ms + 1000.0 <= whole_ms, "{report}");
    assert!(figure(&job["read"], "runtime") <= runtime_ms + 1.0, "{report}");
    // Think time is not caught up: with the I/Os of the ramp there would be far too many.
    assert!(figure(&job["read"], "total_ios") <= runtime_ms + 1.0, "{report}");
}

#[test]
fn context_switches_are_counted_per_job() {
    let job = "[global]\nsize=400k\nrw=read\n[thinks]\nthinktime=1ms\n[does]\nstonewall\n";
    let report = report_of(job, &["--engine=psync"]);
    let thinks = figure(&report["jobs"][0], "ctx");
    // One switch for the sleep before each I/O but the first.
    assert!(thinks >= 99.0, "{thinks}");
    assert!(figure(&report["jobs"][1], "ctx") < thinks, "{report}");
    let each = figure(&report["jobs"][0]["uringfs"], "context_switches_per_io");
    assert_eq!(each, thinks / 100.0);
}

/// Each stonewalled job has its own group, and the figures of a group are the sums of its members.
#[test]
fn groups_add_up() {
    let job = "[global]\nbs=4k\nrw=read\nfilename=null:400k\nthinktime=1ms\n\
        [one]\nnumjobs=2\n[other]\nstonewall\nnumjobs=2\nloops=2\n";
    let grouped = report_of(&job.replace("[global]", "[global]\ngroup_reporting"), &[]);
    let each = report_of(job, &[]);
    let jobs = |report: &Value| report["jobs"].as_array().unwrap().clone();
    assert_eq!((jobs(&grouped).len(), jobs(&each).len()), (2, 4));
    for (group, reads) in [(0, 100.0), (1, 200.0)] {
        let of_group = |job: &&Value| job["groupid"] == group;
        let alone: Vec<_> = jobs(&each).into_iter().filter(|job| of_group(&job)).collect();
        assert_eq!(alone.len(), 2);
        assert!(alone.iter().all(|job| figure(&job["read"], "total_ios") == reads), "{each}");
        let together = jobs(&grouped).into_iter().find(|job| of_group(&job)).unwrap();
        let read = &together["read"];
        assert_eq!(figure(read, "total_ios"), 2.0 * reads);
        assert_eq!(figure(read, "io_bytes"), 2.0 * reads * 4096.0);
        // Rates add up: the rate is at least all I/Os over the longest runtime, which is given in
        // whole milliseconds.
        let longest_s = (figure(read, "runtime") + 1.0) / 1000.0;
        assert!(figure(read, "iops") >= 2.0 * reads / longest_s, "{read}");
        assert!(figure(&together, "job_runtime") >= 2.0 * (reads - 1.0), "both threads' time");
    }
}

#[test]
fn the_text_report_lists_groups_and_disks() {
    let folder = folder();
    let job = "[global]\nsize=64k\nrw=read\n[a]\n[b]\n[c]\nstonewall\npercentile_list=50:99.9\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    let text = |more: &[&str]| {
        let arguments = [&["job.fio", "--engine=psync", "--overwrite"], more].concat();
        String::from_utf8(bench(folder.path(), &arguments).stdout).unwrap()
    };
    let shown = text(&[]);
    for part in [
        "\nb: (groupid=0, jobs=1): err= 0: pid=",
        "\n  read: IOPS=",
        "\n    clat (",
        "\n     | 50.0th=[",
        ", 99.9th=[",
        "\n  cpu          : usr=",
        "\nRun status group 0 (all jobs):\n   READ: bw=",
        "io=128KiB (131kB), run=",
        "\nRun status group 1 (all jobs):\n   READ: bw=",
    ] {
        assert!(shown.contains(part), "no `{part}` in {shown}");
    }
    // A directory on tmpfs is on no disk.
    let report: Value = json_of(&bench(folder.path(), &["job.fio", "--output-format=json"]));
    let disks = report.get("disk_util").map(|disks| disks.as_array().unwrap().len());
    assert_eq!(shown.contains("\nDisk stats (read/write):\n  "), disks.is_some());
    assert!(!text(&["--disk_util=0"]).contains("Disk stats"));
}
