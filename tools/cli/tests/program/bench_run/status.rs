//! `--status-interval`: reports of a run that goes on, and then the last one.

use super::fio_parity::paths;
use super::{ChildProcess, command, folder, refused};
use crate::process::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::path::Path;

/// Runs two jobs, one after the other, until `is_enough` of the file of reports; then stops them. Returns the whole file.
fn reports(folder: &Path, format: &str, is_enough: impl Fn(&str) -> bool) -> String {
    let job = "[global]\nfilename=null:1g\nrw=randrw\ntime_based\nruntime=1h\n[first]\n[second]\nstonewall\n";
    std::fs::write(folder.join("job.fio"), job).unwrap();
    let format = format!("--output-format={format}");
    let keys = ["job.fio", "--status-interval=1", "--output=report", &format];
    let run = ChildProcess::start(&mut command(folder, &keys));
    let report = || std::fs::read_to_string(folder.join("report")).unwrap_or_default();
    wait_until("reports at intervals", || is_enough(&report()));
    run.signal(Signal::SIGINT);
    let output = run.end();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0), "{output:?}");
    report()
}

/// As with fio, whole documents follow each other.
fn documents(text: &str) -> Vec<Value> {
    let stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    // The last one may be being written.
    stream.map_while(Result::ok).collect()
}

#[test]
fn a_document_follows_at_each_interval_and_the_last_at_the_end() {
    let folder = folder();
    let ios =
        |report: &Value, job: usize| report["jobs"][job]["read"]["total_ios"].as_u64().unwrap();
    // The first may come before the first sample.
    let text = reports(folder.path(), "json", |text| {
        documents(text).iter().filter(|report| ios(report, 0) > 0).count() >= 2
    });
    let reports = documents(&text);
    let (last, others) = reports.split_last().unwrap();
    assert!(others.len() >= 2, "{text}");
    for (earlier, later) in reports.iter().zip(&reports[1..]) {
        assert!(ios(earlier, 0) <= ios(later, 0));
        assert_eq!(earlier["jobs"][1]["jobname"], "second");
        assert_eq!(ios(earlier, 1), 0);
        assert_eq!(earlier["jobs"][0]["uringfs"]["incomplete"], false);
    }
    let with_ios = others.iter().filter(|report| ios(report, 0) > 0);
    for report in with_ios {
        let keys = |report: &Value| {
            let mut keys = paths(report);
            keys.retain(|path, _| !path.contains("/percentile/"));
            keys.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(keys(report), keys(last));
        let read = &report["jobs"][0]["read"];
        assert!(
            read["iops"].as_f64().unwrap() > 0.0 && read["runtime"].as_u64() > Some(0),
            "{read}"
        );
        assert!(report["jobs"][0]["usr_cpu"].as_f64() > Some(0.0), "{report}");
    }
    assert_eq!(last["jobs"][0]["uringfs"]["incomplete"], true);
}

#[test]
fn texts_and_terse_lines_follow_at_each_interval() {
    let folder = folder();
    let text = reports(folder.path(), "normal,terse", |text| text.matches("cpu   ").count() >= 4);
    let whole = text.matches("Run status group").count() / 2;
    assert!(whole >= 3, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("3;uringfs-")).count(), 2 * whole);
    // The lines about the jobs are in the last report alone.
    assert_eq!(text.matches("Started 2 threads").count(), 1, "{text}");
    assert_eq!(text.matches("INCOMPLETE").count(), 1, "{text}");
}

#[test]
fn unsuitable_intervals_are_refused() {
    let folder = folder();
    let keys = ["--name=x", "--filename=null:1m"];
    for (option, more, part) in [
        ("--status-interval=500ms", "--engine=uringfs", "`500ms` is less than a second"),
        ("--status-interval=0", "--engine=uringfs", "`0` is less than a second"),
        ("--status-interval=soon", "--engine=uringfs", "--status-interval: `soon`"),
        ("--status-interval=1", "--engine=fio", "engine fio reports at its end"),
    ] {
        refused(folder.path(), &[&keys[..], &[option, more]].concat(), part);
    }
}
