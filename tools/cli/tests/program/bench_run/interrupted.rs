//! Ctrl-C and SIGTERM: the run reports its results so far, marked incomplete, removes the files that it
//! created, and exits with 130. A second signal ends the program at once.

use super::{ChildProcess, command, folder};
use crate::process::{children, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs::read_to_string;
use std::path::Path;
use std::process::Output;

fn start(folder: &Path, arguments: &[&str]) -> ChildProcess {
    ChildProcess::start(&mut command(folder, arguments))
}

/// Waits until the first thread of a job has read this many bytes.
fn wait_for_job(run: &ChildProcess, bytes: u64) {
    let tasks = format!("/proc/{}/task", run.id());
    wait_until("the job's thread", || {
        std::fs::read_dir(&tasks).into_iter().flatten().flatten().any(|task| {
            let file = |name| read_to_string(task.path().join(name)).unwrap_or_default();
            file("comm").trim() == "job-0-0" && read_bytes(&file("io")) >= bytes
        })
    });
}

/// Stops a run, and checks what holds for every stopped run.
fn stop(run: ChildProcess, signal: Signal, folder: &Path) -> Output {
    run.signal(signal);
    let output = run.end();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let made = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let made: Vec<_> = made.filter(|name| name != "report" && name != "job.fio").collect();
    assert_eq!(made, [""; 0], "files that the run created");
    output
}

/// The `rchar` of /proc/PID/io.
fn read_bytes(account: &str) -> u64 {
    let first = account.lines().next().and_then(|line| line.split_once(": "));
    first.and_then(|(_, bytes)| bytes.parse().ok()).unwrap_or(0)
}

const LONG: [&str; 3] = ["--name=x", "--time_based", "--runtime=600"];

#[test]
fn either_signal_stops_a_run_and_leaves_its_report() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let folder = folder();
        let keys = ["--rw=randread", "--size=1m", "--engine=psync"];
        let run = start(folder.path(), &[&LONG[..], &keys].concat());
        wait_for_job(&run, 4 << 20);
        let text = String::from_utf8(stop(run, signal, folder.path()).stdout).unwrap();
        assert!(text.contains("INCOMPLETE") && text.contains("read: IOPS="), "{text}");
    }
}

/// The JSON report goes to the file, and contains jobs that never began.
#[test]
fn a_stopped_run_writes_its_output_file() {
    let folder = folder();
    let job = "[global]\nsize=1m\ntime_based\nruntime=600\n[first]\nrw=randread\n[never]\nstonewall\nrw=read\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    let keys = ["job.fio", "--engine=psync", "--output=report", "--output-format=json"];
    let run = start(folder.path(), &keys);
    wait_for_job(&run, 4 << 20);
    let output = stop(run, Signal::SIGINT, folder.path());
    assert!(output.stdout.is_empty());
    let report = read_to_string(folder.path().join("report")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let ios = |job: usize| report["jobs"][job]["read"]["total_ios"].as_u64().unwrap();
    assert!(ios(0) >= 1024 && ios(1) == 0);
    assert_eq!(report["jobs"][1]["jobname"], "never");
    for job in report["jobs"].as_array().unwrap() {
        assert_eq!(job["uringfs"]["incomplete"], true);
        assert_eq!(job["uringfs"]["files_made"], Value::Array(Vec::new()));
    }
}

#[test]
fn a_run_is_stopped_while_it_lays_out_files() {
    let folder = folder();
    let keys = ["--name=x", "--rw=read", "--size=50g", "--output-format=json"];
    let run = start(folder.path(), &keys);
    let file = folder.path().join("x.0.0");
    wait_until("the file", || file.metadata().is_ok_and(|found| found.len() > 0));
    let output = stop(run, Signal::SIGINT, folder.path());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["jobs"][0]["read"]["total_ios"], 0);
    assert_eq!(report["jobs"][0]["uringfs"]["incomplete"], true);
}

#[test]
fn a_run_is_stopped_while_it_ramps_up() {
    let folder = folder();
    let keys = ["--rw=randread", "--size=1m", "--ramp_time=600", "--engine=psync"];
    let run = start(folder.path(), &[&LONG[..], &keys].concat());
    wait_for_job(&run, 4 << 20);
    let text = String::from_utf8(stop(run, Signal::SIGINT, folder.path()).stdout).unwrap();
    assert!(text.contains("INCOMPLETE"), "{text}");
}

/// A thread that sleeps between its I/Os wakes for a stop.
#[test]
fn a_run_that_sleeps_is_stopped() {
    for (key, bytes) in [
        ("--rate_iops=1", 4096),
        ("--rate=1", 4096),
        ("--thinktime=600s", 4096),
        ("--startdelay=600", 0),
    ] {
        let folder = folder();
        let keys = ["--rw=read", "--size=1m", "--engine=psync", key];
        let run = start(folder.path(), &[&LONG[..], &keys].concat());
        wait_for_job(&run, bytes);
        let text = String::from_utf8(stop(run, Signal::SIGINT, folder.path()).stdout).unwrap();
        assert!(text.contains("INCOMPLETE"), "{key}: {text}");
    }
}

/// As with Ctrl-Z and `fg`, which interrupt the waiting system call.
#[test]
fn a_suspended_run_continues() {
    for engine in ["psync", "threads", "ring", "uringfs"] {
        let folder = folder();
        let engine = format!("--engine={engine}");
        let keys = ["--rw=randread", "--size=1m", "--direct=1", &engine];
        let run = start(folder.path(), &[&LONG[..], &keys].concat());
        wait_for_job(&run, 0);
        for _ in 0..50 {
            run.signal(Signal::SIGSTOP);
            wait_until("the run to be suspended or to end", || {
                let stat = read_to_string(format!("/proc/{}/stat", run.id())).unwrap();
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 'Z']))
            });
            run.signal(Signal::SIGCONT);
        }
        let text = String::from_utf8(stop(run, Signal::SIGINT, folder.path()).stdout).unwrap();
        assert!(text.contains("INCOMPLETE"), "{engine}: {text}");
    }
}

/// The first Ctrl-C waits for the I/O in flight, here for a quarter of an hour. If it comes before any I/O
/// is in flight, the run ends normally, with a report, and the test tries again.
#[test]
fn the_second_ctrl_c_ends_the_program_at_once() {
    let folder = folder();
    let target = "--filename=sim:1m,latency=60s,units=1";
    wait_until("an end without a report", || {
        let mut run = start(folder.path(), &["--name=x", target, "--iodepth=16"]);
        wait_for_job(&run, 0);
        let tasks = format!("/proc/{}/task", run.id());
        wait_until("all threads to sleep", || {
            std::fs::read_dir(&tasks).unwrap().flatten().all(|task| {
                let stat = read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S"))
            })
        });
        // The kernel merges a second signal that comes before the first was handled.
        wait_until("the program's end", || {
            run.signal(Signal::SIGINT);
            run.has_ended()
        });
        let output = run.end();
        assert_eq!(output.status.code(), Some(130));
        output.stdout.is_empty()
    });
}

/// The program forwards the signal to fio when only the program receives it.
#[test]
fn fio_is_stopped_and_its_report_is_passed_on() {
    let folder = folder();
    let keys = ["--rw=randread", "--size=1m", "--output-format=json", "--engine=fio"];
    let run = start(folder.path(), &[&LONG[..], &keys].concat());
    wait_until("fio's job, which is a child of fio's", || {
        children(run.id()).into_iter().flat_map(children).any(|job| {
            read_bytes(&read_to_string(format!("/proc/{job}/io")).unwrap_or_default()) > 4 << 20
        })
    });
    let output = stop(run, Signal::SIGTERM, folder.path());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["jobs"][0]["read"]["total_ios"].as_u64().unwrap() >= 1024);
    assert_eq!(report["jobs"][0]["uringfs"]["incomplete"], true);
}
