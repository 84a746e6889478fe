//! Tests of `uringfs bench record` and `bench gate`: what fails a gate, what is refused, and Ctrl-C.

use crate::bench_run::folder;
use crate::process::{
    ChildProcess, interrupt_when_waiting, make_script, make_script_that_waits, wait_until,
};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    command.arg("bench").args(arguments).current_dir(folder);
    command
}

fn bench(folder: &Path, arguments: &[&str]) -> Output {
    ChildProcess::start(&mut command(folder, arguments)).end()
}

fn line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// A fixed amount of I/O, so that no test depends on time.
const JOB: &str = "[x]\nrw=randwrite\nbs=4k\nsize=256k\n";

/// A folder with `job.fio`, and its baseline on memory, where no bare ring reaches: then counters alone decide.
fn with_baseline() -> tempfile::TempDir {
    let folder = folder();
    std::fs::write(folder.path().join("job.fio"), JOB).unwrap();
    let arguments =
        ["record", "--baseline=b.json", "job.fio", "--set", "target=memory:4m", "--pairs=6"];
    let output = bench(folder.path(), &arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.ends_with("6 pairs recorded in b.json\n"), "{text}");
    assert!(text.contains("direct.write.unlocked"), "{text}");
    folder
}

#[test]
fn an_exclusive_lock_fails_the_gate_in_one_run() {
    let folder = with_baseline();
    let gate = ["gate", "--baseline=b.json", "--pairs=1"];
    let same = bench(folder.path(), &gate);
    let text = String::from_utf8(same.stdout).unwrap();
    assert_eq!(same.status.code(), Some(0), "{text}");
    assert!(
        text.ends_with("gate passed: nothing got worse; it compared counters alone\n"),
        "{text}"
    );
    let locked = [&gate[..], &["--set", "direct.write_lock=exclusive"]].concat();
    let output = bench(folder.path(), &locked);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let change =
        "FAILED: counter direct.write.exclusive.always: never when recorded, 1.00 per I/O now\n";
    assert!(text.contains(change) && text.ends_with("gate FAILED: 1 job got worse\n"), "{text}");
    let output = bench(folder.path(), &[&locked[..], &["--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["passed"]), (Some(1), &Value::Bool(false)));
    let changed = report["jobs"][0]["changed_counters"].as_array().unwrap();
    assert!(changed.iter().any(|change| change["name"] == "direct.write.unlocked"), "{report}");
}

/// On a file there is a control: rates are judged, too. `io_size` ends each run.
#[test]
fn figures_are_multiples_of_the_bare_rings() {
    let folder = folder();
    let job = "[x]\nrw=randread\nbs=4k\nsize=256k\ndirect=0\nfilename=data\n[y]\nstonewall\nfilename=data\nsize=256k\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    for (engine, counters) in [("psync", false), ("fio", false), ("uringfs", true)] {
        let engine = format!("engine={engine}");
        let set = ["--set", &engine];
        let record = ["record", "--baseline=b.json", "job.fio", "--pairs=6"];
        let output = bench(folder.path(), &[&record[..], &set].concat());
        assert!(output.status.success(), "{engine}: {}", String::from_utf8_lossy(&output.stderr));
        let baseline = std::fs::read_to_string(folder.path().join("b.json")).unwrap();
        let baseline: Value = serde_json::from_str(&baseline).unwrap();
        assert_eq!(baseline["jobs"][1]["has_counters"], counters, "{engine}");
        for series in ["values", "control"] {
            assert_eq!(baseline["jobs"][0]["figures"][0][series].as_array().unwrap().len(), 6);
        }
        // An effect so large that no noise fails it.
        let gate = ["gate", "--baseline=b.json", "job.fio", "--pairs=6", "--effect=100", "--json"];
        let output = bench(folder.path(), &gate);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{report}");
        let rate = &report["jobs"][0]["figures"][0];
        assert!(rate["recorded"].as_f64() > Some(0.0) && rate["now"].as_f64() > Some(0.0));
        // Four judged figures need more pairs than six and six.
        assert!(
            rate["low"].as_f64() < rate["high"].as_f64()
                || report["notes"].to_string().contains("counters alone")
        );
        assert_eq!(report["jobs"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn unknown_keys_of_files_may_be_ignored() {
    let folder = with_baseline();
    std::fs::write(folder.path().join("more.fio"), format!("{JOB}no_such_key=1\n")).unwrap();
    let gate = ["gate", "--baseline=b.json", "more.fio", "--pairs=1"];
    let output = bench(folder.path(), &gate);
    assert!(output.status.code() == Some(2) && line(&output).contains("no_such_key"));
    let output = bench(folder.path(), &[&gate[..], &["--ignore-unknown"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("note: ") && text.contains("no_such_key"), "{text}");
}

/// The script for a pull request, with programs that do not measure: it builds both commits, and passes on its options.
#[test]
fn the_script_for_pull_requests_passes_on_options() {
    let folder = folder();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ci/gate");
    let git = |words: &[&str]| {
        let identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"];
        tool_in(folder.path(), "git", &[&identity[..], words].concat());
    };
    git(&["init", "--quiet"]);
    git(&["commit", "--quiet", "--allow-empty", "--message=first"]);
    make_script(&folder.path().join("measure"), "echo \"$@\" >>\"$CALLS\"");
    let calls = folder.path().join("calls");
    let mut command = Command::new(script);
    command.args(["HEAD", "job.fio"]).current_dir(folder.path()).env("CALLS", &calls);
    command.env("URINGFS", "./measure").env("BUILD", "touch built").env("PROGRAM", "built");
    let output = ChildProcess::start(command.env("OPTIONS", "--overwrite --seed=3")).end();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let calls = std::fs::read_to_string(calls).unwrap();
    let calls: Vec<&str> = calls.lines().collect();
    assert_eq!(calls.len(), 2, "{calls:?}");
    let parts = ["bench record --baseline ", "bench gate --baseline "];
    for (call, part) in calls.into_iter().zip(parts) {
        assert!(call.starts_with(part) && call.contains(" --overwrite --seed=3 "), "{call}");
    }
}

fn tool_in(folder: &Path, program: &str, words: &[&str]) {
    let output = ChildProcess::start(Command::new(program).args(words).current_dir(folder)).end();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn other_jobs_and_files_are_refused_in_one_line() {
    let folder = with_baseline();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("other.json", "{}");
    write("deeper.fio", "[x]\nrw=randwrite\nbs=4k\nsize=256k\niodepth=2\n");
    write("twice.fio", "[x]\nsize=4k\nfilename=null:1m\n[x]\nsize=4k\nfilename=null:1m\n");
    write("sum.fio", "[global]\ngroup_reporting\nsize=4k\nfilename=null:1m\n[x]\n[y]\n");
    write("new.fio", "[y]\nrw=read\nsize=4k\nfilename=null:1m\n");
    let recorded = std::fs::read(folder.path().join("b.json")).unwrap();
    for (arguments, part) in [
        (&["gate", "--baseline=missing"][..], "missing: cannot be read"),
        (&["gate", "--baseline=other.json"], "other.json: is not a baseline"),
        (&["gate", "--baseline=job.fio"], "job.fio: is not JSON"),
        (
            &["gate", "--baseline=b.json", "deeper.fio"],
            "job `x` is not as it was recorded (--iodepth=2)",
        ),
        (&["gate", "--baseline=b.json", "new.fio"], "job `y` is not in the baseline"),
        (&["gate", "--baseline=b.json", "--set", "bs=8k"], "not as it was recorded (--bs=8k)"),
        (&["gate", "--baseline=b.json", "--set", "engine=fyo"], "--set: unknown engine"),
        (&["gate", "--baseline=b.json", "--effect=0"], "--effect needs a percentage"),
        (&["gate", "--baseline=b.json", "--set", "target=no/file"], "no/file"),
        (&["record", "--baseline=no/b.json", "job.fio"], "no/b.json: cannot be written"),
        (&["record", "--baseline=.", "job.fio"], "replaces only baselines: .: cannot be read"),
        (&["record", "--baseline=job.fio", "job.fio"], "only baselines: job.fio: is not JSON"),
        (&["record", "--baseline=b.json", "-"], "give job files"),
        (&["record", "--baseline=b.json", "job.fio", "--set", "results=x"], "results="),
        (&["record", "--baseline=b.json", "missing.fio"], "missing.fio"),
        (&["record", "--baseline=b.json", "twice.fio"], "two jobs have the name `x`"),
        (&["record", "--baseline=b.json", "sum.fio"], "group_reporting sums several jobs"),
    ] {
        let output = bench(folder.path(), arguments);
        let line = line(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
        assert!(line.contains(part) && output.stdout.is_empty(), "{arguments:?}: {line}");
    }
    assert_eq!(std::fs::read(folder.path().join("b.json")).unwrap(), recorded);
}

/// The old baseline stays, and the files of the jobs go.
#[test]
fn an_interrupted_recording_changes_nothing() {
    let folder = with_baseline();
    let old = std::fs::read(folder.path().join("b.json")).unwrap();
    let job = "[x]\nrw=randread\nbs=4k\nsize=256k\ndirect=0\ntime_based\nruntime=1h\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    let child = ChildProcess::start(&mut command(
        folder.path(),
        &["record", "--baseline=b.json", "job.fio"],
    ));
    wait_until("the file is laid out", || folder.path().join("x.0.0").exists());
    child.signal(Signal::SIGINT);
    let output = child.end();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(std::fs::read(folder.path().join("b.json")).unwrap(), old);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// A run that never ends comes after the first whole pair: that pair is reported.
#[test]
fn an_interrupt_reports_whole_pairs_marked_incomplete() {
    let folder = with_baseline();
    let old = std::fs::read(folder.path().join("b.json")).unwrap();
    // The warm-up and the first pair. A run on memory has no control.
    make_script_that_waits(folder.path(), 2);
    for (arguments, part) in [
        (&["gate", "--baseline=b.json"][..], "Incomplete: stopped after 1 pairs\n"),
        (
            &["record", "--baseline=b.json", "job.fio", "--set=target=memory:4m"],
            "Incomplete: stopped after 1 pairs; b.json was not written\n",
        ),
    ] {
        let arguments = [arguments, &["--set=exec=./slow"]].concat();
        let mut command = command(folder.path(), &arguments);
        let output = interrupt_when_waiting(&mut command, folder.path());
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(130), "{text}");
        assert!(text.contains("job `x`\n") && text.ends_with(part), "{text}");
    }
    assert_eq!(std::fs::read(folder.path().join("b.json")).unwrap(), old);
}
