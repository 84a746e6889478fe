//! `uringfs bench run` as a user meets it: exit codes, refusals, reports, and fio beside it.

mod consumers;
mod like_fio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs `uringfs bench run` in a folder.
fn bench(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    command.args(["bench", "run"]).args(arguments).current_dir(folder);
    command.output().unwrap()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// One clear line, exit code 2, and nothing new in the folder.
fn refused(folder: &Path, arguments: &[&str], part: &str) {
    let names = || {
        let mut list: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        list.sort();
        list
    };
    let before = names();
    let output = bench(folder, arguments);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
    assert!(line.contains(part), "{arguments:?}: {line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert_eq!(names(), before, "{arguments:?} wrote something");
}

#[test]
fn a_job_file_runs_on_a_file_it_lays_out_and_names_it() {
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
        "issued rwts: total=0,256,0,1",
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

#[test]
fn unlink_removes_what_the_run_made() {
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

#[test]
fn what_cannot_be_used_is_refused_in_one_line() {
    let folder = folder();
    let here = folder.path();
    std::fs::write(here.join("mine"), [7; 65536]).unwrap();
    std::fs::create_dir(here.join("sub")).unwrap();
    std::fs::write(here.join("bad.fio"), "[j]\nrw=randread\niodpeth=4\n").unwrap();
    std::fs::write(here.join("nul.fio"), b"[j]\n\0\n").unwrap();
    let write = "--rw=write";
    for (arguments, part) in [
        (&["bad.fio"][..], "bad.fio:3: unknown key `iodpeth`; the nearest is `iodepth`"),
        (&["nul.fio"], "nul.fio:2: line has a NUL byte"),
        (&["missing.fio"], "missing.fio"),
        (&["--bs=4k"], "no job"),
        (&["--name=x", "--zzzzzzz=1"], "unknown key `zzzzzzz`"),
        (&["--name=x", "--filename=none", "--rw=read", "--size=1m"], "does not exist"),
        (&["--name=x", "--filename=none", write], "give size="),
        (&["--name=x", "--filename=no/dir", write, "--size=1m"], "directory no does not exist"),
        (&["--name=x", "--filename=sub"], "is a directory"),
        (
            &["--name=x", "--filename=mine", "--size=1m"],
            "is 65536 bytes long, but the job needs 1048576",
        ),
        (&["--name=x", "--filename=mine", "--bs=1m"], "less than one block"),
        (&["--name=x", "--filename=mine", write], "--overwrite"),
        (&["--name=x", "--filename=mine", "--direct=1", "--bs=1000"], "multiples of"),
        (&["--name=x", "--filename=null:1m"], "only engine uringfs"),
        (&["--name=x", "--filename=mine", "--set", "a.b=c"], "has no switches"),
        (&["--name=x", "--output-format=xml"], "neither normal nor json"),
    ] {
        refused(here, &[arguments, &["--engine=psync"]].concat(), part);
    }
    refused(here, &["--name=x", "--engine=psink"], "the nearest is `psync`");
    assert_eq!(std::fs::read(here.join("mine")).unwrap(), [7; 65536]);
}

#[test]
fn overwrite_allows_writing_to_a_file_that_was_there() {
    let folder = folder();
    let path = folder.path().join("mine");
    std::fs::write(&path, [7; 65536]).unwrap();
    let keys = ["--name=x", "--filename=mine", "--rw=write", "--overwrite", "--zero_buffers=1"];
    let output = bench(folder.path(), &[&keys[..], &["--engine=psync"]].concat());
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(std::fs::read(&path).unwrap(), [0; 65536]);
}

#[test]
fn a_full_target_fails_the_run_with_code_1() {
    // /dev/full is no file; a size limit makes a write fail as a full disk does.
    let folder = folder();
    let program = env!("CARGO_BIN_EXE_uringfs");
    let line = format!(
        "trap '' XFSZ; ulimit -f 64; exec {program} bench run --engine=psync --name=x --rw=write --size=1m --fallocate=none"
    );
    let output =
        Command::new("sh").args(["-c", &line]).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot lay out x.0.0"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn ctrl_c_reports_what_there_is_and_removes_what_was_made() {
    let folder = folder();
    let keys = ["--name=x", "--rw=randread", "--size=1m", "--time_based", "--runtime=60"];
    let child = Command::new(env!("CARGO_BIN_EXE_uringfs"))
        .args(["bench", "run", "--engine=psync"])
        .args(keys)
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Once it has read more than its file holds, the run is under way.
    let begin = Instant::now();
    let patience = Duration::from_secs(30);
    let account = format!("/proc/{}/io", child.id());
    let read = || {
        let account = std::fs::read_to_string(&account).unwrap();
        let (_, bytes) = account.lines().next().unwrap().split_once(": ").unwrap();
        bytes.parse::<u64>().unwrap()
    };
    while read() < 4 << 20 && begin.elapsed() < patience {
        std::thread::yield_now();
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(text.contains("INCOMPLETE") && text.contains("read: IOPS="), "{text}");
    assert!(begin.elapsed() < patience);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn showcmd_prints_fios_command_line_and_runs_nothing() {
    let folder = folder();
    let output = bench(
        folder.path(),
        &["--showcmd", "--bs=8k", "--name=x", "--rw=write", "--time_based", "--runtime=1"],
    );
    let line = String::from_utf8(output.stdout).unwrap();
    assert_eq!(line, "fio --name=x --bs=8k --rw=write --time_based --runtime=1\n");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn engine_fio_passes_on_fios_own_report() {
    let folder = folder();
    let keys = ["--name=x", "--rw=randread", "--size=1m", "--ioengine=psync", "--engine=fio"];
    let report = json_of(&bench(folder.path(), &[&keys[..], &["--output-format=json"]].concat()));
    assert!(report["fio version"].as_str().unwrap().starts_with("fio-"));
    assert_eq!(report["jobs"][0]["read"]["total_ios"], 256);
    assert_eq!(report["jobs"][0]["uringfs"]["engine"], "fio");
    let text = bench(folder.path(), &keys);
    assert!(String::from_utf8_lossy(&text.stdout).contains("issued rwts: total=256,0,0,0"));
    refused(folder.path(), &[&keys[..], &["--exec=/no/fio"]].concat(), "cannot run /no/fio");
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

#[test]
fn a_rate_is_held() {
    let folder = folder();
    let keys =
        ["--name=x", "--rw=read", "--size=64k", "--rate_iops=2000", "--time_based", "--runtime=1"];
    let report = json_of(&bench(
        folder.path(),
        &[&keys[..], &["--engine=psync", "--output-format=json"]].concat(),
    ));
    let iops = report["jobs"][0]["read"]["iops"].as_f64().unwrap();
    // Within 1 % on a quiet machine; tests run beside others.
    assert!((1800.0..2050.0).contains(&iops), "{iops}");
}
