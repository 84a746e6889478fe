//! `--engine fio` passes on the exact output of fio; `--showcmd` prints an equivalent fio command line.

use super::fio_parity::fio;
use super::{bench, folder, json_of, refused};
use crate::process::make_script;
use serde_json::{Map, Value};
use std::path::Path;
use std::process::{Command, Output};
use uringfs_lab::job::KEYS;

const JOB: &str = "[global]\nbs=4k\nsize=1m\nruntime=1\n[mix]\nrw=randrw\nnumjobs=2\ngroup_reporting\n\
    [scan]\nstonewall\nrw=read\niodepth=4\nioengine=libaio\n[log]\nstonewall\nrw=write\nfsync=32\n";

/// A wrapper of fio that also copies its output to the file `kept`.
pub fn keeping_fio(folder: &Path) -> String {
    let path = folder.join("keeping-fio");
    make_script(&path, "fio \"$@\"\ncode=$?\ncp \"$3\" kept\nexit $code");
    format!("--exec={}", path.display())
}

#[test]
fn both_reports_equal_fios_own() {
    let folder = folder();
    let here = folder.path();
    std::fs::write(here.join("job.fio"), JOB).unwrap();
    let arguments = ["job.fio", "--engine=fio", "--output-format=json,normal", &keeping_fio(here)];
    let output = bench(here, &arguments);
    assert!(output.status.success(), "{output:?}");
    let (mut ours, our_text) = parted(&String::from_utf8(output.stdout).unwrap());
    let (theirs, their_text) = parted(&std::fs::read_to_string(here.join("kept")).unwrap());
    for job in ours["jobs"].as_array_mut().unwrap() {
        let own = job.as_object_mut().unwrap().remove("uringfs").unwrap();
        assert_eq!((&own["engine"], &own["incomplete"]), (&"fio".into(), &false.into()));
        assert_eq!(own["system_calls_per_io"], Value::Null);
    }
    assert_eq!(ours, theirs);
    // Every number, as printed.
    assert_eq!(numbers(&ours), numbers(&theirs));
    assert_eq!(our_text, their_text);
    assert!(our_text.contains("\nStarting 4 processes\n\nmix: (groupid=0, jobs=2)"), "{our_text}");
}

/// Splits output into the JSON and the rest.
pub fn parted(printed: &str) -> (Value, String) {
    let mut json = String::new();
    let mut text = String::new();
    let mut inside = false;
    for line in printed.lines() {
        inside |= line == "{";
        let into = if inside { &mut json } else { &mut text };
        *into += line;
        into.push('\n');
        inside &= line != "}";
    }
    (serde_json::from_str(&json).unwrap(), text.trim_start_matches('\n').to_owned())
}

fn numbers(value: &Value) -> Vec<String> {
    match value {
        Value::Number(number) => vec![format!("{:.6}", number.as_f64().unwrap())],
        Value::Array(list) => list.iter().flat_map(numbers).collect(),
        Value::Object(map) => map.values().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn errors_of_fio_are_passed_on() {
    let folder = folder();
    let keys = ["--name=x", "--rw=read", "--size=1m", "--engine=fio"];
    for (more, part) in [
        ("--ioengine=nbd", "uringfs: fio: nbd: uri parameter was not specified"),
        ("--exec=true", "uringfs: fio failed: it printed nothing"),
    ] {
        let output = bench(folder.path(), &[&keys[..], &[more]].concat());
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(line.starts_with(part) && line.lines().count() == 1, "{line}");
    }
    refused(folder.path(), &[&keys[..], &["--exec=/no/fio"]].concat(), "cannot run /no/fio");
}

/// Under `unified_rw_reporting=mixed` fio's JSON has the sum of all directions alone.
#[test]
fn costs_are_per_io_where_the_sum_of_all_directions_stands_alone() {
    let folder = folder();
    let keys = ["--name=x", "--rw=randrw", "--size=4m", "--unified_rw_reporting=mixed"];
    let report = json_of(&bench(
        folder.path(),
        &[&keys[..], &["--engine=fio", "--output-format=json"]].concat(),
    ));
    let job = &report["jobs"][0];
    let number = |value: &Value| value.as_f64().unwrap();
    let ios = number(&job["mixed"]["total_ios"]);
    assert_eq!(ios, 1024.0);
    let cpu_ns = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0
        * number(&job["job_runtime"])
        * 1e6;
    let counted = number(&job["uringfs"]["cpu_ns_per_io"]) * ios;
    assert!((counted - cpu_ns).abs() < 1.0, "{counted} and {cpu_ns}");
    let switches = number(&job["uringfs"]["context_switches_per_io"]) * ios;
    assert!((switches - number(&job["ctx"])).abs() < 0.01, "{switches} of {job}");
}

/// The options of each job, as fio reports them.
fn options_of(report: &Value) -> Vec<Map<String, Value>> {
    let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let of_job = |job: &Value| {
        let mut all = object(&report["global options"]);
        all.extend(object(&job["job options"]));
        all.remove("name");
        // fio leaves out flags without a value if they come from a job file, and not otherwise.
        all.retain(|key, _| KEYS.iter().any(|known| known.name == key && !known.is_flag()));
        all
    };
    report["jobs"].as_array().unwrap().iter().map(of_job).collect()
}

#[test]
fn the_command_line_of_showcmd_is_equivalent() {
    let folder = folder();
    let here = folder.path();
    let job = "[global]\nbs=4k\nsize=64k\nrandseed=5\n[it's a \"job\" & more]\nrw=randread\nblocksize=8k\n\
        description=costs $5 (or 'more') * \\ ?\nthinktime=1us\n[next]\nstonewall\nrw=write\n\
        filename=a b\\:c:d\nio_size=25%\npercentile_list=5:99.9\nfsync=4\n";
    std::fs::write(here.join("job.fio"), job).unwrap();
    let output = bench(here, &["job.fio", "--showcmd"]);
    let line = String::from_utf8(output.stdout).unwrap();
    assert_eq!(std::fs::read_dir(here).unwrap().count(), 1, "it runs nothing");
    let line = line.replacen("fio ", "fio --output-format=json ", 1);
    let typed = Command::new("sh").args(["-c", &line]).current_dir(here).output().unwrap();
    let (typed, filed) =
        (json_of(&typed), json_of(&fio(here, &["--output-format=json", "job.fio"])));
    assert_eq!(options_of(&typed), options_of(&filed));
    let said = |report: &Value, key: &str| -> Vec<Value> {
        let jobs = report["jobs"].as_array().unwrap();
        jobs.iter().map(|job| job[key].clone()).collect()
    };
    for key in ["jobname", "groupid", "desc"] {
        assert_eq!(said(&typed, key), said(&filed, key), "{key}");
    }
    let moved = |report: &Value| report["jobs"][1]["write"]["io_bytes"].clone();
    assert_eq!(moved(&typed), moved(&filed));
}

#[test]
fn fio_takes_every_flag_as_showcmd_prints_it() {
    let folder = folder();
    let mut jobs = Vec::new();
    // fio has no such key.
    let is_own = |name| name == "waits_apart";
    for key in KEYS.iter().filter(|key| key.is_flag() && !is_own(key.name)) {
        for value in ["0", "1"] {
            let given = format!("--{}={value}", key.name);
            let arguments = ["--name=x", "--rw=read", "--size=1m", "--runtime=1", "--direct=1"];
            let ring = "--ioengine=io_uring";
            let output =
                bench(folder.path(), &[&arguments[..], &[ring, &given, "--showcmd"]].concat());
            let line = String::from_utf8(output.stdout).unwrap();
            assert!(line.contains(&given), "{line}");
            jobs.extend(line.trim().split(' ').skip(1).map(str::to_owned));
        }
    }
    let output = parsed(folder.path(), &jobs);
    assert!(output.status.success(), "{output:?}");
}

/// fio takes long to start: it parses all jobs at once, and names what it refuses.
fn parsed(folder: &Path, jobs: &[String]) -> Output {
    let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
    fio(folder, &[&["--parse-only"], &jobs[..]].concat())
}

#[test]
fn fio_takes_values_of_keys_as_showcmd_prints_them() {
    let folder = folder();
    let mut jobs = Vec::new();
    for given in [
        "bssplit=4k/50:8k/50,16k/100",
        "percentage_random=50,60",
        "random_distribution=zoned:60/10:40/90",
        "random_distribution=zoned_abs:60/256k:40/768k",
        "offset_increment=1m",
        "file_service_type=random:8",
        "file_service_type=sequential",
        "file_service_type=zipf:1.2",
        "buffer_pattern=0xdeadbeef",
        "thinktime_spin=5",
        "thinktime_iotime=1s",
        "thinktime_blocks_type=issue",
        "thinktime_blocks_type=complete",
        "rate_process=poisson",
        "max_latency=10ms",
        "verify_backlog=16",
        "unified_rw_reporting=both",
        "mem=malloc",
        "clocksource=clock_gettime",
        "write_bw_log=a",
        "write_iops_log=a",
        "write_lat_log=a",
        "log_avg_msec=100",
        "ba=8k,16k",
        "number_ios=100",
        "cpus_allowed_policy=split",
        "buffer_compress_chunk=4k",
        "random_generator=tausworthe64",
        "openfiles=1",
        "fadvise_hint=sequential",
        "verify=sha3-256",
    ] {
        let given = format!("--{given}");
        let arguments = ["--name=x", "--rw=randrw", "--size=1m", "--thinktime=10"];
        let output = bench(folder.path(), &[&arguments[..], &[&given, "--showcmd"]].concat());
        let line = String::from_utf8(output.stdout).unwrap();
        assert!(line.contains(&given), "{line}");
        jobs.extend(line.trim().split(' ').skip(1).map(str::to_owned));
    }
    let output = parsed(folder.path(), &jobs);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
