//! Programs that know only fio's reports and logs read fio's and ours.

use super::fio_parity::fio;
use super::{bench, folder};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const JOB: &str = "[global]\nbs=4k\nsize=1m\n[mix]\nrw=randrw\nrwmixread=70\nnumjobs=2\ngroup_reporting\n\
    [scan]\nstonewall\nrw=read\nnumjobs=2\n[log]\nstonewall\nrw=write\nfsync=32\n\
    [fast]\nstonewall\nrw=randread\ngtod_reduce=1\n";

/// The reports of fio and of this program on one job.
struct Reports {
    folder: tempfile::TempDir,
}

impl Reports {
    fn of_job(job: &str) -> Self {
        let here = folder();
        for name in ["fio", "ours"] {
            let folder = here.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("job.fio"), job).unwrap();
            let arguments = ["job.fio", "--output-format=json", "--output=report.json"];
            let output = match name {
                "fio" => fio(&folder, &arguments),
                _ => bench(&folder, &[&arguments[..], &["--engine=psync"]].concat()),
            };
            assert!(output.status.success(), "{output:?}");
        }
        Self { folder: here }
    }

    fn path(&self, whose: &str) -> PathBuf {
        self.folder.path().join(whose).join("report.json")
    }
}

fn consumer(name: &str, reports: &[&Path], more: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/consumers").join(name);
    let output = Command::new("python3").arg(script).args(reports).args(more).output();
    output.expect("python3 runs; scripts/setup installs it")
}

fn output_text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The words of a text, with every number replaced by `#`.
fn shape(text: &str) -> Vec<Vec<String>> {
    let word = |word: &str| match word.trim_matches(['(', ')', '+', '-', ',']).parse::<f64>() {
        Ok(_) => "#".to_owned(),
        Err(_) => word.to_owned(),
    };
    text.lines().map(|line| line.split_whitespace().map(word).collect()).collect()
}

#[test]
fn a_table_of_jobs_has_the_same_rows() {
    let reports = Reports::of_job(JOB);
    let [fio, ours] = ["fio", "ours"]
        .map(|whose| output_text(consumer("table.py", &[&reports.path(whose)], &[])));
    assert_eq!(shape(&fio), shape(&ours), "{fio}\n{ours}");
    // The header, mix twice, scan of two threads, log, fast, and the disk if there is one.
    assert!(ours.lines().count() >= 7, "{ours}");
}

#[test]
fn histogram_buckets_have_the_same_rows() {
    let reports = Reports::of_job(JOB);
    let [fio, ours] = ["fio", "ours"]
        .map(|whose| output_text(consumer("histogram.py", &[&reports.path(whose)], &[])));
    let rows = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.rsplit_once(',').unwrap().0.to_owned()).collect()
    };
    assert_eq!(rows(&fio), rows(&ours));
    // 32 latency classes and 21 depth classes per job, and the header.
    assert_eq!(rows(&ours).len(), 5 * (32 + 21) + 1);
}

/// The keys that readers of others need of a report: its path in a job, and its type.
struct ReaderKeys {
    /// Of each job.
    job: &'static str,
    /// Of each direction that the reader knows.
    direction: &'static str,
    directions: &'static [&'static str],
}

/// `src/perf` of fstests, which inserts all figures of a job into a table of these columns.
const FSTESTS: ReaderKeys = ReaderKeys {
    job: "jobname:string groupid:integer error:integer eta:integer elapsed:integer usr_cpu:float sys_cpu:float ctx:integer \
          majf:integer minf:integer latency_depth:integer latency_target:integer latency_percentile:float \
          latency_window:integer",
    direction: "io_bytes:integer io_kbytes:integer bw:integer iops:float runtime:integer total_ios:integer \
                short_ios:integer drop_ios:integer lat_ns/min:integer lat_ns/max:integer lat_ns/mean:float \
                lat_ns/stddev:float bw_min:integer bw_max:integer bw_agg:float bw_mean:float bw_dev:float \
                bw_samples:integer iops_min:integer iops_max:integer iops_mean:float iops_stddev:float \
                iops_samples:integer",
    directions: &["read", "write", "trim"],
};

/// `programs/fio/parse` of LKP.
const LKP: ReaderKeys = ReaderKeys {
    job: "latency_us:object latency_us/1000:float latency_ms:object latency_ms/2:float latency_ms/>=2000:float",
    direction: "bw:integer iops:float total_ios:integer clat_ns/mean:float clat_ns/stddev:float \
                clat_ns/percentile/90.000000:integer clat_ns/percentile/95.000000:integer \
                clat_ns/percentile/99.000000:integer slat_ns/mean:float slat_ns/stddev:float",
    directions: &["read", "write"],
};

fn assert_has(value: &Value, keys: &str, whose: &str) {
    for key in keys.split_whitespace() {
        let (path, kind) = key.split_once(':').unwrap();
        let found = value.pointer(&format!("/{path}"));
        let has_kind = found.is_some_and(|found| match kind {
            "integer" => found.is_u64() || found.is_i64(),
            "float" => found.is_f64(),
            "string" => found.is_string(),
            _ => found.is_object(),
        });
        assert!(has_kind, "{whose}: {path} is {found:?}, not {kind}");
    }
}

#[test]
fn readers_of_fstests_and_lkp_find_their_keys() {
    let reports = Reports::of_job(JOB);
    for whose in ["fio", "ours"] {
        let report = std::fs::read_to_string(reports.path(whose)).unwrap();
        // LKP reads from the first brace to the end.
        let report: Value = serde_json::from_str(&report).unwrap();
        assert!(report["time"].is_string(), "{whose}");
        let jobs = report["jobs"].as_array().unwrap();
        for job in jobs {
            assert_has(job, FSTESTS.job, whose);
            FSTESTS
                .directions
                .iter()
                .for_each(|way| assert_has(&job[*way], FSTESTS.direction, whose));
            assert_has(job, LKP.job, whose);
        }
        // It reads the first job alone, which reads and writes.
        LKP.directions.iter().for_each(|way| assert_has(&jobs[0][*way], LKP.direction, whose));
    }
}

/// Runs a program that comes with fio in the folder of our report. Returns what it prints.
fn fio_tool(folder: &Path, name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).current_dir(folder).output();
    output_text(output.unwrap_or_else(|error| panic!("{name} comes with fio: {error}")))
}

#[test]
fn fio_s_own_tools_read_our_bins_and_logs() {
    let folder = folder();
    let job = "[global]\nbs=4k\nsize=256k\nslat_percentiles=1\nlat_percentiles=1\nthinktime=1ms\nwrite_bw_log=out\n\
               write_iops_log=out\n[mix]\nrw=randrw\n[scan]\nrw=read\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    let keys = ["job.fio", "--engine=threads", "--output-format=json+", "--output=report.json"];
    let output = bench(folder.path(), &keys);
    assert!(output.status.success(), "{output:?}");

    let convert = ["report.json", "out.csv"];
    let made = fio_tool(folder.path(), "fio_jsonplus_clat2csv", &convert);
    assert_eq!(made, "out_job0.csv generated\nout_job1.csv generated\n");
    let check = [&convert[..], &["--validate"]].concat();
    let checked = fio_tool(folder.path(), "fio_jsonplus_clat2csv", &check);
    assert_eq!(checked, "out_job0.csv validated\nout_job1.csv validated\n");
    // The last line of a column has all I/Os: reads in the second job.
    let table = std::fs::read_to_string(folder.path().join("out_job1.csv")).unwrap();
    let names: Vec<&str> = table.lines().next().unwrap().split(", ").collect();
    for name in ["read_slat_ns_cumulative", "read_clat_ns_cumulative", "read_lat_ns_cumulative"] {
        let column = names.iter().position(|found| *found == name).unwrap();
        let values = table.lines().skip(1).filter_map(|line| line.split(", ").nth(column));
        let last = values.filter(|value| !value.trim().is_empty()).last();
        assert_eq!(last, Some("64"), "{name}: {table}");
    }

    for (option, figure) in [("-b", "bw"), ("-i", "iops")] {
        let shown = fio_tool(folder.path(), "fio2gnuplot", &[option, "-o", figure]);
        assert!(shown.contains(&format!(" |-> out_{figure}.2.log\n")), "{shown}");
        let global = std::fs::read_to_string(folder.path().join(format!("{figure}.global")));
        let global = global.unwrap();
        assert!(global.ends_with("disks_count=2\n"), "{global}");
        // It leaves out lines of the first millisecond, which few of the 64 of each job are: there is a millisecond between two.
        let counted = global.lines().find_map(|line| line.strip_prefix("values_count="));
        assert!((126..=128).contains(&counted.unwrap().parse().unwrap()), "{global}");
    }
}

#[test]
fn our_run_compares_with_fios() {
    let reports = Reports::of_job(JOB);
    let (fio, ours) = (reports.path("fio"), reports.path("ours"));
    let same = output_text(consumer("compare.py", &[&ours, &ours], &[]));
    assert!(same.lines().count() == 6 * 3 && !same.contains("SLOWER"), "{same}");
    let whatever_it_is = ["1e9"];
    let across = output_text(consumer("compare.py", &[&fio, &ours], &whatever_it_is));
    assert_eq!(across.lines().count(), same.lines().count(), "{across}");
}

/// The same report with one direction of one job four times slower.
fn with_slower(report: &Path, job: &str, way: &str) -> PathBuf {
    let mut changed: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    for side in changed["jobs"].as_array_mut().unwrap() {
        if side["jobname"] == job {
            let side = &mut side[way];
            for rate in ["iops", "bw"] {
                side[rate] = (side[rate].as_f64().unwrap() / 4.0).into();
            }
            if let Some(median) = side["clat_ns"].pointer_mut("/percentile/50.000000") {
                *median = (median.as_u64().unwrap() * 4).into();
            }
        }
    }
    let path = report.with_file_name("slower.json");
    std::fs::write(&path, changed.to_string()).unwrap();
    path
}

#[test]
fn a_slower_run_is_found_in_both_reports() {
    let reports = Reports::of_job(JOB);
    for whose in ["fio", "ours"] {
        let quick = reports.path(whose);
        // A job without a clock has no median.
        for (job, way, rows) in [
            ("log", "write", &["log write iops", "log write bw", "log write p50"][..]),
            ("fast", "read", &["fast read iops", "fast read bw"]),
        ] {
            let slow = with_slower(&quick, job, way);
            let output = consumer("compare.py", &[&quick, &slow], &[]);
            assert_eq!(output.status.code(), Some(3), "{whose}: {output:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            let slower = text.lines().filter(|line| line.ends_with("SLOWER"));
            let found: Vec<&str> = slower.map(|line| line.split_once(':').unwrap().0).collect();
            assert_eq!(found, rows, "{whose}: {text}");
            // In the other order the run became faster.
            let quicker = output_text(consumer("compare.py", &[&slow, &quick], &[]));
            assert!(!quicker.contains("SLOWER"), "{whose}: {quicker}");
        }
    }
}
