//! Compares the JSON report with that of the installed fio on the same job: the same key paths with the
//! same types, the same counts, and figures that fulfil the same invariants.

use super::invariants::{check_disks, check_job, check_our_job, number};
use super::{ChildProcess, bench, folder, json_of};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

/// Key paths that only one of the reports may have. Everything else must match.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("/jobs/*/uringfs", "ours has an object of its own"),
    ("/jobs/*/job options/", "fio leaves out flags without a value, and --name"),
    ("/global options/", "as above"),
];

/// A job file for both programs, and how to compare the reports.
struct Case {
    name: &'static str,
    job: &'static str,
    /// The engine of our run. fio uses that of the job file.
    engine: &'static str,
    /// Both programs transfer the same amount.
    fixed: bool,
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "random reads at depth 1", engine: "psync", fixed: true,
        job: "[j]\nrw=randread\n" },
    Case { name: "the same on this stack", engine: "uringfs", fixed: true,
        job: "[j]\nrw=randread\nioengine=libaio\ndirect=1\n" },
    Case { name: "random writes at depth 32", engine: "uringfs", fixed: true,
        job: "[j]\nrw=randwrite\niodepth=32\nioengine=libaio\ndirect=1\niodepth_batch=8\n" },
    Case { name: "the same on threads", engine: "threads", fixed: true,
        job: "[j]\nrw=randwrite\niodepth=32\nioengine=libaio\ndirect=1\n" },
    Case { name: "reads and writes, 70 to 30", engine: "psync", fixed: true,
        job: "[j]\nrw=randrw\nrwmixread=70\ndescription=words\n" },
    Case { name: "two threads", engine: "psync", fixed: true,
        job: "[j]\nrw=read\nnumjobs=2\n" },
    Case { name: "two threads reported as one", engine: "psync", fixed: true,
        job: "[j]\nrw=read\nnumjobs=2\ngroup_reporting\n" },
    Case { name: "one after the other", engine: "psync", fixed: true,
        job: "[global]\nunlink=1\n[a]\nrw=read\n[b]\nstonewall\nrw=write\n[c]\nstonewall\nrw=randread\n" },
    Case { name: "fsync between writes", engine: "psync", fixed: true,
        job: "[j]\nrw=write\nfsync=16\n" },
    Case { name: "no clock", engine: "psync", fixed: true,
        job: "[j]\nrw=write\ngtod_reduce=1\n" },
    Case { name: "no percentiles", engine: "psync", fixed: true,
        job: "[j]\nrw=randread\nclat_percentiles=0\n" },
    Case { name: "other percentiles", engine: "psync", fixed: true,
        job: "[j]\nrw=write\nfsync=64\npercentile_list=99.99:5:50:99.9\n" },
    Case { name: "percentiles of every latency", engine: "psync", fixed: true,
        job: "[j]\nrw=randrw\nlat_percentiles=1\nslat_percentiles=1\n" },
    Case { name: "percentiles of the total latency", engine: "uringfs", fixed: true,
        job: "[j]\nrw=randread\nioengine=libaio\ndirect=1\nclat_percentiles=0\nlat_percentiles=1\nslat_percentiles=1\n" },
    Case { name: "some latencies only", engine: "psync", fixed: true,
        job: "[j]\nrw=write\ndisable_lat=1\ndisable_bw=1\n" },
    Case { name: "no disks", engine: "psync", fixed: true,
        job: "[j]\nrw=read\ndisk_util=0\n" },
    Case { name: "long enough for samples, in a group", engine: "psync", fixed: false,
        job: "[j]\nrw=randrw\nsize=4m\nthinktime=1ms\nramp_time=200ms\nnumjobs=2\ngroup_reporting\n" },
    Case { name: "long enough for samples, each by itself", engine: "uringfs", fixed: true,
        job: "[j]\nrw=randread\nioengine=libaio\ndirect=1\nsize=3m\nthinktime=1ms\nnumjobs=2\n" },
];

fn both(case: &Case) -> (Value, Value) {
    let text = format!("[global]\nbs=4k\nsize=1m\n{}", case.job);
    let folders = [folder(), folder()];
    folders.iter().for_each(|f| std::fs::write(f.path().join("job.fio"), &text).unwrap());
    let [theirs, ours] = folders;
    let engine = format!("--engine={}", case.engine);
    let ours = bench(ours.path(), &["job.fio", &engine, "--output-format=json"]);
    (json_of(&fio(theirs.path(), &["--output-format=json", "job.fio"])), json_of(&ours))
}

pub fn fio(folder: &Path, arguments: &[&str]) -> Output {
    ChildProcess::start(Command::new("fio").args(arguments).current_dir(folder)).end()
}

/// Every key path with its type. All elements of a list are called `*`.
pub fn paths(value: &Value) -> BTreeMap<String, &'static str> {
    fn walk(value: &Value, path: String, found: &mut BTreeMap<String, &'static str>) {
        let kind = match value {
            Value::Object(_) => "object",
            Value::Array(_) => "list",
            Value::Number(number) if number.is_f64() => "float",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            _ => "other",
        };
        let before = found.insert(path.clone(), kind);
        assert!(before.is_none_or(|before| before == kind), "{path} is {before:?} and {kind}");
        match value {
            Value::Object(map) => {
                map.iter().for_each(|(key, value)| walk(value, format!("{path}/{key}"), found));
            }
            Value::Array(list) => {
                list.iter().for_each(|value| walk(value, format!("{path}/*"), found));
            }
            _ => {}
        }
    }
    let mut found = BTreeMap::new();
    walk(value, String::new(), &mut found);
    found.retain(|path, _| !EXCEPTIONS.iter().any(|(begin, _)| path.starts_with(begin)));
    found
}

pub fn assert_same_keys(theirs: &Value, ours: &Value, name: &str) {
    let (theirs, ours) = (paths(theirs), paths(ours));
    for (path, kind) in &theirs {
        assert_eq!(ours.get(path), Some(kind), "{name}: {path} of fio's (left is ours)");
    }
    for path in ours.keys() {
        assert!(theirs.contains_key(path), "{name}: {path} of ours is not fio's");
    }
}

#[test]
fn our_json_has_every_key_of_fio_with_its_type() {
    for case in CASES {
        let name = case.name;
        let (theirs, ours) = both(case);
        assert_same_keys(&theirs, &ours, name);
        let count = |report: &Value| report["jobs"].as_array().unwrap().len();
        assert_eq!(count(&theirs), count(&ours), "{name}: jobs");
        for (index, job) in ours["jobs"].as_array().unwrap().iter().enumerate() {
            let theirs = &theirs["jobs"][index];
            assert_eq!(theirs["jobname"], job["jobname"], "{name}");
            assert_eq!(theirs["groupid"], job["groupid"], "{name}");
            for key in ["latency_depth", "latency_target", "latency_percentile", "error", "desc"] {
                assert_eq!(theirs[key], job[key], "{name}: {key}");
            }
            assert_has_options(&theirs["job options"], &job["job options"], name);
            if case.fixed {
                assert_same_amounts(theirs, job, name);
            }
        }
        // fio's report must pass the same checks as ours.
        for report in [&theirs, &ours] {
            let text = report.to_string();
            assert!(!text.contains(":-") && !text.contains("null,"), "{name}: {text}");
            report["jobs"].as_array().unwrap().iter().for_each(|job| check_job(job, name));
            check_disks(report, name);
        }
        for job in ours["jobs"].as_array().unwrap() {
            // A thread with a millisecond of think time before each I/O has samples however it is
            // delayed: the time after its last sample is less than half a second.
            check_our_job(job, case.job.contains("thinktime"), name);
        }
    }
}

pub fn assert_has_options(theirs: &Value, ours: &Value, name: &str) {
    for (key, value) in theirs.as_object().unwrap() {
        assert_eq!(ours.get(key), Some(value), "{name}: option {key}");
    }
}

fn assert_same_amounts(theirs: &Value, ours: &Value, name: &str) {
    let of_both = |job: &Value, key| number(&job["read"], key) + number(&job["write"], key);
    for key in ["io_bytes", "io_kbytes", "total_ios"] {
        assert_eq!(of_both(theirs, key), of_both(ours, key), "{name}: {key}");
    }
    for job in [theirs, ours] {
        let reads = number(&job["read"], "total_ios") / of_both(job, "total_ios");
        if job["desc"] == "words" {
            assert!((0.62..0.78).contains(&reads), "{name}: {reads} are reads");
        }
    }
    // fio issues a sync with the next write, so it omits the sync after the last write.
    let syncs = [ours, theirs].map(|job| number(&job["sync"], "total_ios"));
    assert!((0.0..=1.0).contains(&(syncs[0] - syncs[1])), "{name}: syncs {syncs:?}");
}

/// The label of each line of a text report, in order. Units, figures and the number of lines of a
/// distribution depend on the run.
fn lines_of(text: &str) -> Vec<String> {
    // Lines that fio does not have.
    const OURS: [&str; 3] = ["each I/O", "queue", "counters"];
    let body = text.find(": (groupid=").and_then(|at| text[..at].rfind("\n\n")).unwrap();
    let label = |line: &str| match line.trim_start().strip_prefix('|') {
        Some(_) => "|".to_owned(),
        None => {
            let indent: String = line.chars().take_while(|letter| *letter == ' ').collect();
            let label = line.split(':').next().unwrap().trim();
            let label = label.split('(').next().unwrap().trim();
            format!("{indent}{label}")
        }
    };
    let mut labels: Vec<String> = text[body..].lines().map(label).collect();
    labels.retain(|label| !OURS.contains(&label.trim()) && !label.starts_with("note"));
    labels.dedup();
    labels
}

#[test]
fn the_text_report_has_fios_lines_in_fios_order() {
    for job in [
        "[j]\nrw=randread\n",
        "[j]\nrw=randrw\nrwmixread=70\ndescription=words\nfsync=16\nnumjobs=2\n",
        "[j]\nrw=randwrite\niodepth=16\nioengine=libaio\ndirect=1\nnumjobs=2\ngroup_reporting\n",
        "[a]\nrw=read\n[b]\nstonewall\nrw=write\ngtod_reduce=1\n[c]\nrw=read\ndisable_lat=1\n",
        "[j]\nrw=write\npercentile_list=5:50:99.99:99.5\ndisk_util=0\n",
        "[j]\nrw=read\nsize=4m\nthinktime=1ms\nclat_percentiles=0\n",
        "[j]\nrw=randread\nioengine=libaio\ndirect=1\nslat_percentiles=1\nlat_percentiles=1\n",
        "[j]\nrw=randrw\nunified_rw_reporting=mixed\nfsync=16\n",
        "[j]\nrw=randrw\nunified_rw_reporting=both\n",
    ] {
        let text = format!("[global]\nbs=4k\nsize=1m\n{job}");
        let folders = [folder(), folder()];
        folders.iter().for_each(|f| std::fs::write(f.path().join("job.fio"), &text).unwrap());
        let theirs = fio(folders[0].path(), &["job.fio"]);
        // Use an engine with a separate submission step if fio's has one.
        let engine = if job.contains("libaio") { "--engine=ring" } else { "--engine=psync" };
        let ours = bench(folders[1].path(), &["job.fio", engine]);
        let [theirs, ours] = [theirs, ours].map(|output| String::from_utf8(output.stdout).unwrap());
        let mut labels = [&theirs, &ours].map(|text| lines_of(text));
        // Any run may become long enough for samples if the machine stalls. This one always is, but
        // the thread in fio that takes the samples may have come too late.
        let long = job.contains("thinktime");
        for samples in ["   bw", "   iops"] {
            let has = |lines: &Vec<String>| lines.iter().any(|line| line == samples);
            assert!(!long || has(&labels[1]), "no `{samples}` in {ours}");
            if !long || !has(&labels[0]) {
                labels.iter_mut().for_each(|lines| lines.retain(|line| line != samples));
            }
        }
        assert_eq!(labels[0], labels[1], "{theirs}\n{ours}");
        assert!(labels[1].len() > 8, "{ours}");
    }
}

/// A limit on file sizes makes writes fail as on a full disk.
#[test]
fn the_json_of_a_failed_job_has_fios_keys() {
    let job = "[j]\nrw=write\nbs=4k\nsize=1m\nfilename=there\n";
    let run = |program: &str| {
        let folder = folder();
        std::fs::write(folder.path().join("job.fio"), job).unwrap();
        std::fs::write(folder.path().join("there"), vec![1; 1 << 20]).unwrap();
        let line =
            format!("trap '' XFSZ; ulimit -f 64; exec {program} --output-format=json job.fio");
        let output = Command::new("sh").args(["-c", &line]).current_dir(folder.path()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        // fio prints the error before its JSON.
        let begin = text.find("{\n").unwrap();
        serde_json::from_str::<Value>(&text[begin..]).unwrap()
    };
    let theirs = run("fio");
    let program = env!("CARGO_BIN_EXE_uringfs");
    let ours = run(&format!("{program} bench run --engine=psync --overwrite"));
    assert_same_keys(&theirs, &ours, "a failing job");
    assert_eq!(theirs["jobs"][0]["error"], nix::errno::Errno::EFBIG as i32);
    assert_eq!(ours["jobs"][0]["error"], theirs["jobs"][0]["error"]);
    assert!(ours["jobs"][0]["uringfs"]["failure"].as_str().unwrap().contains("there"));
}
