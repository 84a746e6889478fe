//! Programs that know only fio's JSON read fio's reports and ours.

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
