//! Tests of `uringfs bench run`: exit codes, refused arguments, reports, and comparisons with fio.

mod claims;
mod consumers;
pub mod devices;
mod engine_fio;
mod failed;
mod figures;
mod fio_parity;
mod formats;
mod help;
mod interrupted;
mod invariants;
mod keys;
mod published;
mod refused;
mod status;
mod terminal;
mod verify;
#[cfg(feature = "vhost-user")]
mod vhost_user;
mod volumes;

use super::process::ChildProcess;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};
use std::time::SystemTime;

/// The command `uringfs bench run` in a directory.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    command.args(["bench", "run"]).args(arguments).current_dir(folder);
    command
}

fn bench(folder: &Path, arguments: &[&str]) -> Output {
    ChildProcess::start(&mut command(folder, arguments)).end()
}

pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The files in a directory: their modification times and contents.
pub fn contents(folder: &Path) -> BTreeMap<OsString, (SystemTime, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let read = |entry: std::fs::DirEntry| {
        let found = entry.path().symlink_metadata().unwrap();
        let bytes = if found.is_file() { std::fs::read(entry.path()).unwrap() } else { Vec::new() };
        (entry.file_name(), (found.modified().unwrap(), bytes))
    };
    entries.map(read).collect()
}

/// Expects exit code 2, one line on standard error that contains `part`, and no change in the directory.
pub fn refused(folder: &Path, arguments: &[&str], part: &str) {
    refused_command(folder, command(folder, arguments), part);
}

pub fn refused_command(folder: &Path, mut command: Command, part: &str) {
    let before = contents(folder);
    let output = ChildProcess::start(&mut command).end();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(2 | 6)), "{command:?}: {line}");
    assert!(line.contains(part), "{command:?}: {line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("uringfs: ") && line.len() < 400, "{line}");
    assert!(output.stdout.is_empty(), "{command:?}");
    assert!(contents(folder) == before, "{command:?} wrote something");
}

#[test]
fn a_job_file_runs_on_a_file_that_it_lays_out() {
    let folder = folder();
    let job =
        "[global]\nbs=4k\nsize=1m\n[scan]\nrw=randread\n[fill]\nstonewall\nrw=write\nend_fsync=1\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    let output = bench(folder.path(), &["job.fio", "--engine=psync"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in [
        "scan: (g=0): rw=randread, bs=(R) 4096B-4096B",
        "Laid out scan.0.0",
        "scan: (groupid=0, jobs=1): err= 0",
        "fill: (groupid=1, jobs=1): err= 0",
        "clat percentiles (",
        "issued rwts: total=256,0,0,0",
        "issued rwts: total=0,256,0,0",
        "Run status group 1 (all jobs):",
        "system calls=1.0",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    let scan = std::fs::read(folder.path().join("scan.0.0")).unwrap();
    assert_eq!(scan.len(), 1 << 20);
    assert!(
        scan.chunks(4096).all(|block| block.iter().any(|&byte| byte != 0)),
        "laid out with data"
    );
    let fill = std::fs::read(folder.path().join("fill.0.0")).unwrap();
    assert!(
        fill.chunks(4096).all(|block| block.iter().any(|&byte| byte != 0)),
        "every block written"
    );
}

/// As with fio: a file that is named and missing is laid out with data, also for a job that only reads.
#[test]
fn named_files_that_are_missing_are_laid_out_for_reads() {
    let folder = folder();
    let output = bench(
        folder.path(),
        &["--name=x", "--filename=a:b", "--rw=randread", "--size=1m", "--engine=psync"],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for name in ["a", "b"] {
        let bytes = std::fs::read(folder.path().join(name)).unwrap();
        assert_eq!(bytes.len(), 512 << 10);
        assert!(bytes.chunks(4096).all(|block| block.iter().any(|&byte| byte != 0)), "{name}");
    }
}

#[test]
fn unlink_removes_files_that_the_run_created() {
    let folder = folder();
    let keys = ["--name=x", "--rw=write", "--size=64k", "--unlink=1"];
    let output = bench(folder.path(), &[&keys[..], &["--engine=psync"]].concat());
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_threads_engine_does_the_same_work_at_depth() {
    let folder = folder();
    let keys = "--name=x --rw=randrw --size=1m --iodepth=8 --numjobs=2 --group_reporting --iodepth_batch=4";
    let keys: Vec<&str> =
        keys.split(' ').chain(["--engine=threads", "--output-format=json"]).collect();
    let report = json_of(&bench(folder.path(), &keys));
    let jobs = report["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 1);
    let ios = |way: &str| jobs[0][way]["total_ios"].as_u64().unwrap();
    assert_eq!(ios("read") + ios("write"), 512);
    assert_eq!(jobs[0]["uringfs"]["system_calls_per_io"], 1.0);
    assert_eq!(jobs[0]["read"]["slat_ns"]["N"], ios("read"));
}

/// The report has the system calls of 256 reads through each queue.
#[test]
fn system_calls_of_every_queue_are_reported() {
    let folder = folder();
    let keys = ["--name=x", "--rw=read", "--size=1m", "--output-format=json"];
    // The number of waits for AIO and threads depends on the machine.
    for (queue, most) in [("sync", 1.0), ("aio", f64::INFINITY), ("threads", f64::INFINITY)] {
        let switch = format!("device.queue={queue}");
        let report = json_of(&bench(folder.path(), &[&keys[..], &["--set", &switch]].concat()));
        let job = &report["jobs"][0];
        assert_eq!(job["read"]["total_ios"], 256);
        let calls = job["uringfs"]["system_calls_per_io"].as_f64().unwrap();
        assert!((1.0..=most).contains(&calls), "{queue}: {calls}");
    }
}

#[test]
fn every_example_job_parses() {
    let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/jobs");
    let mut count = 0;
    for entry in std::fs::read_dir(jobs).unwrap() {
        let path = entry.unwrap().path();
        let output = Command::new(env!("CARGO_BIN_EXE_uringfs"))
            .args(["bench", "run", "--showcmd"])
            .arg(&path)
            .envs([("TARGET", "t"), ("QD", "4")])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}: {output:?}", path.display());
        count += 1;
    }
    assert!(count >= 4);
}

/// `scripts/bench/run` measures how near a run comes to its rate.
#[test]
fn a_rate_is_not_exceeded() {
    let folder = folder();
    let keys = ["--name=x", "--rw=read", "--size=1m", "--rate_iops=1000"];
    let report = json_of(&bench(
        folder.path(),
        &[&keys[..], &["--engine=psync", "--output-format=json"]].concat(),
    ));
    let read = &report["jobs"][0]["read"];
    assert_eq!(read["total_ios"], 256);
    // The first is issued at once, each other at the earliest a millisecond after the one before was due.
    assert!(read["runtime"].as_u64().unwrap() >= 255, "{read}");
}
