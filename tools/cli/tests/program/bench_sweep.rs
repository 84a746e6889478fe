//! Tests of `uringfs bench sweep`: cells of engines, fio and keys, the formats, what is refused, and Ctrl-C.

use crate::bench_run::folder;
use crate::process::{ChildProcess, interrupt_when_waiting, make_script_that_waits};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    command.args(["bench", "sweep"]).args(arguments).current_dir(folder);
    command
}

fn sweep(folder: &Path, arguments: &[&str]) -> Output {
    ChildProcess::start(&mut command(folder, arguments)).end()
}

fn printed(folder: &Path, arguments: &[&str]) -> String {
    let output = sweep(folder, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn with_job(job: &str) -> tempfile::TempDir {
    let folder = folder();
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    folder
}

/// A fixed amount of I/O, so that no test depends on time.
const JOB: &str = "[x]\nrw=randread\nbs=4k\nio_size=1m\nfilename=null:1g\n";

#[test]
fn the_cells_are_the_product_of_the_lists() {
    let folder = with_job(JOB);
    let lists = ["--over", "iodepth=1,8", "--over", "engine=uringfs,ring"];
    let report = printed(folder.path(), &[&["job.fio", "--json"][..], &lists].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["schema"], &report["rounds"]), (&json!(1), &json!(6)));
    assert_eq!(report["over"][1], json!({"key": "engine", "values": ["uringfs", "ring"]}));
    let cells = report["jobs"][0]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    for (index, cell) in cells.iter().enumerate() {
        let (depth, engine) = (["1", "8"][index / 2], ["uringfs", "ring"][index % 2]);
        let keys = json!({"iodepth": depth, "engine": engine});
        assert_eq!(cell["keys"], keys);
        for figure in ["rate", "read p50", "read p99", "read p99.9", "CPU per I/O"] {
            let values = cell["figures"][figure]["values"].as_array().unwrap();
            assert!(values.len() == 6 && values.iter().all(Value::is_number), "{figure}: {cell}");
        }
        let gain = &cell["figures"]["rate"]["by_first"];
        match index % 2 {
            0 => assert_eq!(*gain, Value::Null),
            _ => assert!(gain["low"].as_f64().unwrap() <= gain["high"].as_f64().unwrap()),
        }
    }
}

#[test]
fn tables_have_four_formats() {
    let folder = with_job(JOB);
    let run = |format: &str, figure: &str| {
        let arguments =
            ["job.fio", "--rounds=1", "--over=bs=4k,8k", "--over=engine=uringfs,ring", "--set"];
        let options = ["iodepth=2", &format!("--format={format}"), &format!("--figure={figure}")];
        printed(folder.path(), &[&arguments[..], &options].concat())
    };
    let text = run("text", "rate");
    assert!(text.starts_with("rounds: 1, each of 4 cells ") && text.contains("\njob `x`: rate\n"));
    let header = text.lines().find(|line| line.trim_start().starts_with("case ")).unwrap();
    let words: Vec<&str> = header.split_whitespace().collect();
    assert_eq!(words, ["case", "engine=uringfs", "engine=ring", "gain"]);
    let row = text.lines().find(|line| line.trim_start().starts_with("bs=8k ")).unwrap();
    assert!(row.contains("/s") && row.trim_end().ends_with(" %"), "{text}");

    let markdown = run("markdown", "p99");
    let lines: Vec<&str> = markdown.lines().collect();
    let header = "| case | engine=uringfs | engine=ring | change |";
    assert_eq!(lines[..4], ["job `x`: read p99", "", header, "|---|---:|---:|---:|"]);
    assert!(lines[4].starts_with("| bs=4k | ") && lines[5].starts_with("| bs=8k | "), "{markdown}");

    let csv = run("csv", "calls");
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0][..5], ["job", "bs", "engine", "figure", "unit"]);
    assert_eq!(rows[4][..6], ["x", "8k", "ring", "system calls per I/O", "1", "1"]);
    assert!(rows.len() == 5 && rows.iter().all(|row| row.len() == rows[0].len()), "{csv}");
    assert!(rows[4][6].parse::<f64>().unwrap() > 0.0, "{csv}");

    let json: Value = serde_json::from_str(&run("json", "rate")).unwrap();
    assert_eq!(json["rounds"], 1);
}

/// `tools/lab/tests/page` reads such pages strictly, and `scripts/page-test` opens them in a browser.
#[test]
fn a_page_has_the_command_and_every_value() {
    let folder = with_job(&JOB.replace("[x]", "[<script>]"));
    let lists = ["--over=iodepth=1,2", "--over=direct.simple_read=off,on"];
    let more = ["--set", "target=null:2g", "--set=bs=8k", "--html=my page.html", "--json"];
    let arguments = [&["job.fio", "--rounds=2"], &lists[..], &more].concat();
    let report = printed(folder.path(), &arguments);
    let report: Value = serde_json::from_str(&report).unwrap();
    let set = json!([{"key": "target", "value": "null:2g"}, {"key": "bs", "value": "8k"}]);
    assert_eq!(report["set"], set);
    let page = std::fs::read_to_string(folder.path().join("my page.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && !page.contains("<script"), "{page}");
    for part in [
        "&lt;script&gt;",
        "bench sweep job.fio --rounds=2 --over=iodepth=1,2",
        "&#39;--html=my page.html&#39; --json",
        "rate by iodepth, for each direct.simple_read",
        "target=null:2g bs=8k",
    ] {
        assert!(page.contains(part), "no {part} in {page}");
    }
    for cell in report["jobs"][0]["cells"].as_array().unwrap() {
        for value in cell["figures"]["rate"]["values"].as_array().unwrap() {
            let value = value.as_f64().unwrap();
            assert!(page.contains(&format!("<td>{value}</td>")), "no {value} in {page}");
        }
    }
}

/// One file serves all cells, and stays. fio does not count system calls.
#[test]
fn engines_and_fio_are_columns_of_one_table() {
    let folder = with_job("[x]\nrw=randread\nbs=4k\nsize=256k\ndirect=0\n");
    let lists = ["--over", "size=128k,256k", "--over", "engine=uringfs,psync,fio,libaio"];
    let report =
        printed(folder.path(), &[&["job.fio", "--rounds=1", "--json"][..], &lists].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["files_made"], json!(["x.0.0"]));
    assert_eq!(folder.path().join("x.0.0").metadata().unwrap().len(), 256 << 10);
    let cells = report["jobs"][0]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 8);
    for (index, cell) in cells.iter().enumerate() {
        assert!(cell["figures"]["rate"]["median"].as_f64() > Some(0.0), "{cell}");
        let calls = &cell["figures"]["system calls per I/O"]["median"];
        assert_eq!(calls.is_null(), index % 4 >= 2, "{cell}");
    }
}

#[test]
fn unsuitable_sweeps_are_refused_in_one_line() {
    let folder = with_job("[x]\nrw=randread\nbs=4k\nsize=256k\ndirect=0\n");
    for (arguments, part) in [
        (&["job.fio", "--over", "iodepth"][..], "--over iodepth: is not KEY=VALUE"),
        (&["job.fio", "--over", "iodepth=1,0"], "--over iodepth=0: command line: iodepth: "),
        (
            &["job.fio", "--over=bs=4k,8k", "--over=engine=ring,fyo"],
            "--over bs=4k --over engine=fyo: unknown engine",
        ),
        (&["job.fio", "--over=direct.simple_reed=on,off"], "nearest is `direct.simple_read`"),
        (&["job.fio", "--over=iodepth=1,2", "--set=engine=fyo"], "--set: unknown engine"),
        (&["job.fio", "--over=iodepth=1,2", "--over=iodepth=4"], "in two lists"),
        (&["job.fio", "--over=target=new,missing/file"], "--over target=missing/file: "),
        (&["job.fio", "--over=results=a.json,b.json"], "results= is of runs that have ended"),
        (&["job.fio", "--over=iodepth=1,2", "--figure=p90"], "--figure: unknown figure `p90`"),
        (&["job.fio", "--over=iodepth=1,2", "--max-time=-1"], "--max-time -1"),
        (&["-", "--over=iodepth=1,2"], "can be read once"),
        (&["other.fio", "--over=iodepth=1,2"], "uringfs: job file other.fio: "),
        (
            &["job.fio", "--over=iodepth=1,2", "--html=no/page"],
            "--html no/page: there is no directory",
        ),
        (&["job.fio", "--over=iodepth=1,2", "--html=job.fio"], "is a file that the command reads"),
        (&["job.fio", "--over=target=a,b", "--html=b"], "--html b: is a target of job `x`"),
    ] {
        let output = sweep(folder.path(), arguments);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
        assert!(line.contains(part) && line.lines().count() == 1, "{arguments:?}: {line}");
        assert!(output.stdout.is_empty());
    }
    let names = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 1, "nothing was created");
}

/// The second round never ends by itself: the first one is reported.
#[test]
fn an_interrupted_sweep_reports_whole_rounds_and_removes_its_files() {
    let folder = with_job("[x]\nrw=randread\nsize=1m\n");
    // Two cells to warm up, and two of the first round.
    make_script_that_waits(folder.path(), 4);
    let arguments =
        ["job.fio", "--set=engine=psync", "--set=exec=./slow", "--over=bs=4k,8k", "--json"];
    let mut command = command(folder.path(), &arguments);
    let output = interrupt_when_waiting(&mut command, folder.path());
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["incomplete"], &report["rounds"]), (&json!(true), &json!(1)));
    for cell in report["jobs"][0]["cells"].as_array().unwrap() {
        assert_eq!(cell["figures"]["rate"]["values"].as_array().unwrap().len(), 1, "{cell}");
    }
    assert_eq!(report["files_made"], json!([]));
    assert!(!folder.path().join("x.0.0").exists());
}
