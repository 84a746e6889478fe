//! A run that fails prints one line that names the job and the target, exits with 1, or with 2 if the target is full or gone, and
//! still reports its results.

use super::{ChildProcess, bench, command, folder};
use crate::process::wait_until;
use crate::root::{SmallTmpfs, as_root};
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Expects exit code 1 and one line with all parts. Returns the report.
pub fn failed(output: &Output, parts: &[&str]) -> Value {
    failed_with(1, output, parts)
}

/// The same for another exit code.
pub fn failed_with(code: i32, output: &Output, parts: &[&str]) -> Value {
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    for part in parts {
        assert!(line.contains(part), "no `{part}` in {line}");
    }
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs the program under a limit of 64 blocks per file, at which writes fail as on a full disk.
fn limited(folder: &Path, arguments: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_uringfs");
    let line = format!(
        "trap '' XFSZ; ulimit -f 64; exec {program} bench run --name=x --rw=write {arguments}"
    );
    Command::new("sh").args(["-c", &line]).current_dir(folder).output().unwrap()
}

#[test]
fn a_file_that_cannot_be_laid_out_is_removed() {
    let folder = folder();
    let output = limited(folder.path(), "--engine=psync --size=1m --fallocate=truncate");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains("job `x`: cannot lay out x.0.0 of 1048576 bytes"), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_failed_write_fails_the_run_on_every_engine() {
    for engine in ["psync", "threads", "ring", "uringfs"] {
        let folder = folder();
        std::fs::write(folder.path().join("there"), vec![1; 1 << 20]).unwrap();
        let keys = "--filename=there --overwrite --output-format=json --direct=1";
        let output = limited(folder.path(), &format!("{keys} --engine={engine}"));
        let parts = ["job `x`: there: write of 4096 bytes at ", "File too large"];
        let report = failed(&output, &parts);
        let job = &report["jobs"][0];
        assert_eq!(job["error"], nix::errno::Errno::EFBIG as i32, "{engine}");
        // The writes before the failure are counted.
        assert!(job["write"]["total_ios"].as_u64().unwrap() > 0, "{engine}");
        assert!(job["uringfs"]["failure"].as_str().unwrap().starts_with("there: write"));
        assert_eq!(job["uringfs"]["incomplete"], false);
    }
}

/// One line per job: its threads usually fail for the same reason.
#[test]
fn failed_threads_of_a_job_are_reported_in_one_line() {
    let folder = folder();
    std::fs::write(folder.path().join("there"), vec![1; 1 << 20]).unwrap();
    let keys = "--filename=there --overwrite --output-format=json --engine=psync --numjobs=3";
    failed(
        &limited(folder.path(), keys),
        &["job `x`: there: write of ", "; 2 more of its threads"],
    );
}

/// A job that fails does not fail the next one.
#[test]
fn later_jobs_run_after_a_failed_one() {
    let folder = folder();
    std::fs::write(folder.path().join("there"), vec![1; 1 << 20]).unwrap();
    let keys = "--filename=there --overwrite --output-format=json --engine=psync";
    let next = "--name=y --filename=there --rw=read --stonewall";
    let report = failed(&limited(folder.path(), &format!("{keys} {next}")), &["job `x`"]);
    assert_eq!(report["jobs"][1]["error"], 0);
    assert_eq!(report["jobs"][1]["read"]["total_ios"], 256);
}

#[test]
fn a_file_truncated_during_the_run_fails_every_engine() {
    let end = ", at the end of the target";
    // The library reports an error for a read that ends before the end that the device had at open.
    for (engine, why) in
        [("psync", end), ("threads", end), ("ring", end), ("uringfs", ": Input/output error")]
    {
        let folder = folder();
        std::fs::write(folder.path().join("there"), vec![1; 1 << 20]).unwrap();
        let engine = format!("--engine={engine}");
        let keys = ["--name=x", "--filename=there", "--rw=randread", "--direct=1", "--time_based"];
        let sign = ["--runtime=600", "--name=y", "--filename=sign", "--rw=write", "--size=4k"];
        let more = [&sign[..], &["--output-format=json", &engine]].concat();
        let run = ChildProcess::start(&mut command(folder.path(), &[&keys[..], &more].concat()));
        // No thread of the two jobs begins before all have opened their targets.
        wait_until("the other job's write", || {
            let sign = std::fs::read(folder.path().join("sign")).unwrap_or_default();
            sign.iter().any(|byte| *byte != 0)
        });
        File::options().write(true).open(folder.path().join("there")).unwrap().set_len(0).unwrap();
        let shorter = "(the target has become shorter, or is gone)";
        failed_with(2, &run.end(), &["job `x`: there: read of 4096 bytes at ", why, shorter]);
        // The other job's file, which the run has created.
        assert!(!folder.path().join("sign").exists(), "{engine}");
    }
}

/// The link stands for a disk that is full.
#[test]
fn a_log_that_cannot_be_written_is_removed_with_the_files_of_the_run() {
    let folder = folder();
    let log = folder.path().join("log_iops.1.log");
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    let keys = ["--name=x", "--rw=read", "--size=64k", "--engine=psync", "--output-format=json"];
    let output = bench(folder.path(), &[&keys[..], &["--write_iops_log=log"]].concat());
    let line = "job `x`: write of the log log_iops.1.log: No space left on device (os error 28)\n";
    failed_with(2, &output, &[line]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn as_root_on_a_full_disk_nothing_is_left() {
    if !as_root() {
        return;
    }
    let folder = folder();
    let small = SmallTmpfs::new(&folder.path().join("small"), "1m");
    let left = || std::fs::read_dir(small.path()).unwrap().count();
    let expect = |command: &mut Command, part: &str| {
        let output = ChildProcess::start(command).end();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains(part), "{line}");
        assert_eq!(left(), 0, "{part}");
    };
    let large = ["--name=x", "--rw=read", "--size=4m", "--engine=psync"];
    let part = "job `x`: cannot lay out x.0.0 of 4194304 bytes (the file system is full): ";
    expect(&mut command(small.path(), &large), part);
    // A file that grows until it cannot.
    let write = ["--name=x", "--rw=write", "--size=4m", "--engine=psync", "--fallocate=none"];
    expect(&mut command(small.path(), &write), " (the target is full)");
    let job = "[x]\nrw=read\nfilename=null:1m\nio_size=64k\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    // No room is left for the files that commands write at their end.
    let filler = folder.path().join("small/.filler");
    for (arguments, part) in [
        (&["run", "job.fio", "--output=small/report"][..], "cannot write small/report"),
        (
            &["compare", "job.fio", "--pairs=1", "--html=small/page"],
            "--html small/page: cannot be written: ",
        ),
        (
            &["sweep", "job.fio", "--rounds=1", "--over=bs=4k,8k", "--html=small/page"],
            "--html small/page: cannot be written: ",
        ),
        (&["record", "job.fio", "--pairs=1", "--baseline=small/b"], "small/b: cannot be written"),
    ] {
        let full = std::fs::write(&filler, vec![1; 2 << 20]);
        assert!(full.is_err(), "the file system is full");
        let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
        let output = command.arg("bench").args(arguments).current_dir(folder.path());
        let output = ChildProcess::start(output).end();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains(part), "{line}");
        assert_eq!(left(), 1, "{part}");
        std::fs::remove_file(&filler).unwrap();
    }
}

#[test]
fn an_error_of_a_simulated_device_is_reported() {
    let folder = folder();
    let keys = ["--name=x", "--filename=sim:1m,errors=20,seed=3", "--rw=read"];
    let output = bench(folder.path(), &[&keys[..], &["--output-format=json"]].concat());
    failed(&output, &["job `x`: sim:1m,errors=20,seed=3: read of 4096 bytes at "]);
}

#[test]
fn a_broken_pipe_is_not_an_error() {
    let folder = folder();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = command(folder.path(), &["--name=x", "--filename=null:1m"]);
    let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let output = output.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_report_that_cannot_be_printed_is_an_error() {
    let folder = folder();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let keys = ["--name=x", "--filename=null:1m"];
    let output = command(folder.path(), &keys).stdout(full()).output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.starts_with("uringfs: cannot write to standard output: No space left"), "{line}");
    // The error cannot be printed either: no panic, and the same exit code.
    let status = command(folder.path(), &keys).stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn a_report_that_cannot_be_written_to_its_file_is_printed_instead() {
    let folder = folder();
    let keys = ["--name=x", "--filename=null:1m", "--output=/dev/full"];
    let output = bench(folder.path(), &keys);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.contains("cannot write /dev/full; the report is on standard output"), "{line}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("IOPS="));
}
