//! Tests of `uringfs bench compare`: sides of every kind, the word, what is refused, and Ctrl-C.

use crate::bench_run::folder;
use crate::process::{ChildProcess, interrupt_when_waiting, make_script, make_script_that_waits};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    command.args(["bench", "compare"]).args(arguments).current_dir(folder);
    command
}

fn compare(folder: &Path, arguments: &[&str]) -> Output {
    ChildProcess::start(&mut command(folder, arguments)).end()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let output = compare(folder, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A fixed amount of I/O, so that no test depends on time.
const JOB: &str = "[x]\nrw=randread\nbs=4k\nsize=256k\ndirect=0\n";

fn with_job(job: &str) -> tempfile::TempDir {
    let folder = folder();
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    folder
}

/// The number of values of a figure on each side.
fn values(job: &Value, figure: &str) -> [usize; 3] {
    ["a", "a_again", "b"].map(|side| job["figures"][figure][side].as_array().unwrap().len())
}

#[test]
fn engines_programs_and_fio_are_sides_of_one_comparison() {
    let folder = with_job(JOB);
    let program = format!("exec={}", env!("CARGO_BIN_EXE_uringfs"));
    let by_our_engines =
        ["rate", "read p50", "read p99", "read p99.9", "CPU per I/O", "system calls per I/O"];
    let by_fio = &by_our_engines[..5];
    for (a, b, figures) in [
        (&["engine=psync"][..], &["engine=threads"][..], &by_our_engines[..]),
        (&[&program, "engine=psync"], &["engine=psync", "bs=8k"], &by_our_engines),
        (&["engine=fio", "ioengine=psync"], &["exec=fio", "ioengine=libaio"], by_fio),
    ] {
        let arguments = [&["job.fio", "--pairs=6", "--a"], a, &["--b"], b].concat();
        let report = json(folder.path(), &arguments);
        let job = &report["jobs"][0];
        assert_eq!((&job["jobname"], &report["schema"]), (&"x".into(), &1.into()));
        for figure in figures {
            assert_eq!(values(job, figure), [6; 3], "{arguments:?}: {figure}");
        }
        let rate = &job["figures"]["rate"];
        assert!(rate["b_by_a"]["low"].as_f64() <= rate["b_by_a"]["high"].as_f64());
        assert_eq!(rate["control"].as_array().unwrap().len(), 6);
        let known = ["faster", "slower", "no difference shown", "too noisy to say"];
        assert!(known.contains(&job["verdict"].as_str().unwrap()), "{job}");
    }
}

/// One file serves both sides: as long as the longer one needs, and with data for the one that reads.
#[test]
fn a_file_is_laid_out_for_both_sides() {
    let folder = with_job("[x]\nbs=4k\nrw=write\nfallocate=none\ndirect=0\n");
    let sides = ["--a", "engine=psync", "size=64k", "--b", "engine=psync", "size=128k", "rw=read"];
    let report = json(folder.path(), &[&["job.fio", "--pairs=1"][..], &sides].concat());
    assert_eq!(report["files_made"], serde_json::json!(["x.0.0"]));
    assert_eq!(folder.path().join("x.0.0").metadata().unwrap().len(), 128 << 10);
    let figures = |side: usize| report["jobs"][0]["figures"]["rate"][["a", "b"][side]][0].as_f64();
    assert!(figures(0) > Some(0.0) && figures(1) > Some(0.0));
}

/// The exclusive lock shows in the counters of its side, whatever the rates are.
#[test]
fn a_switch_shows_in_the_counters_of_one_side() {
    let folder = with_job("[x]\nrw=randwrite\nbs=4k\nsize=1m\n");
    let arguments =
        ["job.fio", "--set", "target=memory:4m", "--pairs=1", "--b", "direct.write_lock=exclusive"];
    let report = json(folder.path(), &arguments);
    let counters = &report["jobs"][0]["counters"];
    // One run of side b, of 256 blocks.
    assert_eq!(counters["b"]["direct.write.exclusive.always"], 256);
    assert_eq!(counters["a"]["direct.write.exclusive.always"].as_u64().unwrap_or(0), 0);
    let text = String::from_utf8(compare(folder.path(), &arguments).stdout).unwrap();
    let only = text.lines().find(|line| line.starts_with("counters of b only: ")).unwrap();
    assert!(only.contains("direct.write.exclusive"), "{text}");
    assert!(text.contains("note: no control: a bare ring cannot use memory:4m"), "{text}");
    assert!(text.contains("too few runs to say: an interval needs 6 of each side"), "{text}");
}

/// Six runs a side, as fio writes them; and two of one side, which are too few for a word.
#[test]
fn reports_of_runs_that_ended_are_compared() {
    let folder = folder();
    let report = |name: &str, rate: u64| {
        let text = format!(
            r#"{{"fio version":"fio-3.33","jobs":[{{"jobname":"x","error":0,"job_runtime":10,"usr_cpu":1.0,"sys_cpu":1.0,"ctx":9,
            "read":{{"iops":{rate},"total_ios":9}},"write":{{"iops":0,"total_ios":0}}}}]}}"#
        );
        std::fs::write(folder.path().join(name), text).unwrap();
    };
    for run in 0..6 {
        report(&format!("old{run}.json"), 1000 + run);
        report(&format!("new{run}.json"), 900 + run);
    }
    let sides = ["--a", "results=old*.json", "--b", "results=new*.json"];
    let text = String::from_utf8(compare(folder.path(), &sides).stdout).unwrap();
    assert!(text.contains("a: 6 files\nb: 6 files\n"), "{text}");
    assert!(text.contains("b is slower: its rate is 10.0 % lower (9.7 % to 10.2 %)"), "{text}");
    let few = ["--a", "results=old1.json", "results=old2.json", "--b", "results=new*.json"];
    let text = String::from_utf8(compare(folder.path(), &few).stdout).unwrap();
    assert!(text.contains("1.0 k/s") && text.contains("too few runs to say"), "{text}");
    let page = page(folder.path(), &[&["--html=page.html"][..], &sides].concat());
    assert!(page.contains("b is slower") && page.contains("rate, run by run"), "{page}");
}

/// Runs a comparison with `--html=page.html`. Returns the page.
fn page(folder: &Path, arguments: &[&str]) -> String {
    let output = compare(folder, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8(output.stdout).unwrap().contains("b: "), "the report is printed");
    let page = std::fs::read_to_string(folder.join("page.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>\n") && page.ends_with("</html>\n"), "{page}");
    page
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_page_replaces_the_page_before_and_names_its_command() {
    let folder = with_job(&JOB.replace("[x]", "[<script>alert(1)]\nfilename=f"));
    std::fs::write(folder.path().join("page.html"), "the page before").unwrap();
    std::os::unix::fs::symlink("page.html", folder.path().join("link.html")).unwrap();
    let arguments = [
        "job.fio",
        "--pairs=6",
        "--html=link.html",
        "--a",
        "engine=psync",
        "--b",
        "engine=psync",
        "bs=8k",
    ];
    let page = page(folder.path(), &arguments);
    let command =
        "bench compare job.fio --pairs=6 --html=link.html --a engine=psync --b engine=psync bs=8k";
    for part in ["job <code>&lt;script&gt;alert(1)</code>", "rate b / a, pair by pair", command] {
        assert!(page.contains(part), "no `{part}` in\n{page}");
    }
    assert!(!page.contains("<script"), "{page}");
    assert_eq!(names(folder.path()), ["f", "job.fio", "link.html", "page.html"]);
    assert!(folder.path().join("link.html").is_symlink());
}

#[test]
fn unsuitable_sides_are_refused_in_one_line() {
    let folder = with_job(JOB);
    std::fs::write(folder.path().join("other.json"), "{}").unwrap();
    std::fs::write(folder.path().join("list.json"), "[]").unwrap();
    for (arguments, part) in [
        (&[][..], "no job"),
        (&["job.fio", "--effect=0"], "--effect needs a percentage"),
        (&["job.fio", "--max-time=-1"], "--max-time -1"),
        (&["job.fio", "--b", "direct.simple_reed=off"], "--b: `direct.simple_reed`"),
        (&["job.fio", "--a", "engine=fyo"], "--a: unknown engine"),
        (&["--a", "engine=fio", "job.fio"], "job files come before --a and --b"),
        (&["job.fio", "--a", "exec=./missing"], "./missing: cannot run it"),
        (&["job.fio", "--a", "target=missing/file", "rw=read"], "missing/file"),
        (&["job.fio", "--a", "results=other.json"], "for both sides or none"),
        (&["--a", "results=other.json", "--b", "results=other.json"], "not a report of fio"),
        (&["--a", "results=no*.json", "--b", "results=other.json"], "no file matches"),
        (
            &["job.fio", "--a", "results=other.json", "--b", "results=other.json"],
            "leave out the job file",
        ),
        (&["-"], "can be read once"),
        (&["job.fio", "--b", "name=y"], "--b: name= renames every job"),
        (&["--a", "results=list.json", "--b", "results=other.json"], "not a report of fio"),
        (&["job.fio", "--html=no/page"], "--html no/page: there is no directory"),
        (&["job.fio", "--html=."], "--html .: is a directory"),
        (&["job.fio", "--html=-"], "--html -: standard output has the report"),
        (&["job.fio", "--html=/dev/null"], "--html /dev/null: is not a regular file"),
        (&["job.fio", "--html=./job.fio"], "--html ./job.fio: is a file that the command reads"),
        (&["job.fio", "--html=x.0.0"], "--html x.0.0: is a target of job `x`"),
        (
            &["--html=list.json", "--a", "results=other.json", "--b", "results=list.json"],
            "--html list.json: is a file that the command reads",
        ),
    ] {
        let output = compare(folder.path(), arguments);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
        assert!(line.contains(part) && line.lines().count() == 1, "{arguments:?}: {line}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(names(folder.path()), ["job.fio", "list.json", "other.json"]);
    assert_eq!(std::fs::read_to_string(folder.path().join("list.json")).unwrap(), "[]");
}

#[test]
fn a_program_that_fails_is_named_with_its_reason() {
    let folder = with_job(JOB);
    let old = folder.path().join("old");
    make_script(
        &old,
        "case $1 in --version) echo uringfs 0.0.1;; *) echo uringfs: unknown key >&2; exit 2;; esac",
    );
    std::fs::write(folder.path().join("page.html"), "the page before").unwrap();
    let output = compare(folder.path(), &["job.fio", "--html=page.html", "--a", "exec=./old"]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "that of the program: {line}");
    assert!(line.contains("--a: uringfs failed: unknown key"), "{line}");
    assert_eq!(names(folder.path()), ["job.fio", "old", "page.html"]);
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert_eq!(page, "the page before");
}

/// The second pair never ends by itself: the first one is reported.
#[test]
fn an_interrupted_comparison_reports_what_there_is_and_removes_its_files() {
    let folder = with_job("[x]\nrw=randread\nbs=4k\nsize=1m\n");
    // The warm-up, and the two runs of the first pair.
    make_script_that_waits(folder.path(), 3);
    let arguments = [
        "job.fio",
        "--pairs=6",
        "--html=page.html",
        "--a",
        "engine=psync",
        "exec=./slow",
        "--b",
        "engine=psync",
        "--json",
    ];
    let mut command = command(folder.path(), &arguments);
    let output = interrupt_when_waiting(&mut command, folder.path());
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["incomplete"], &report["pairs"]), (&true.into(), &1.into()));
    assert_eq!(values(&report["jobs"][0], "rate"), [1; 3]);
    assert!(
        !folder.path().join("x.0.0").exists() && report["files_made"] == Value::Array(Vec::new())
    );
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("Incomplete: stopped after 1 pairs"), "{page}");
}
