//! Tests of `uringfs bench experiment`: its comparisons, its tables and its page, files that it creates, and refusals.

use crate::bench_run::{contents, folder, refused_command};
use crate::process::{ChildProcess, Deadline};
use nix::pty::{Winsize, openpty};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn command(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    command.args(arguments.split(' ')).current_dir(folder);
    command
}

fn run(folder: &Path, arguments: &str) -> Output {
    ChildProcess::start(&mut command(folder, arguments)).end()
}

/// The output of a command that must succeed. Words are separated by spaces.
fn uringfs(folder: &Path, arguments: &str) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The text of short runs of an experiment.
fn text(folder: &Path, arguments: &str) -> String {
    uringfs(folder, &format!("bench experiment {arguments} --set runtime=20ms"))
}

/// The report on one experiment, of one pair of short runs.
fn report(folder: &Path, arguments: &str) -> Value {
    let printed = text(folder, &format!("{arguments} --pairs 1 --json"));
    let document: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&document["schema"], &document["incomplete"]), (&1.into(), &false.into()));
    document["experiments"][0].clone()
}

fn comparisons(report: &Value) -> &Vec<Value> {
    report["comparisons"].as_array().unwrap()
}

/// The names of the sides `a` that are compared, each once.
fn names(report: &Value) -> Vec<&str> {
    let mut names = Vec::new();
    for comparison in comparisons(report) {
        let name = comparison["names"]["a"].as_str().unwrap();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn cases(report: &Value) -> Vec<&str> {
    comparisons(report).iter().map(|found| found["case"].as_str().unwrap()).collect()
}

fn counter(report: &Value, side: &str, name: &str) -> u64 {
    report["counters"][side][name].as_u64().unwrap_or(0)
}

/// A folder with a volume in the file `v`, and in that a file `/f` of 1 MiB.
fn volume() -> TempDir {
    let folder = folder();
    uringfs(folder.path(), "mkfs v --size 32M");
    uringfs(folder.path(), "bench run --name=x --filename=v:/f --rw=write --bs=64k --size=1m");
    folder
}

fn with_file(name: &str, bytes: usize) -> TempDir {
    let folder = folder();
    std::fs::write(folder.path().join(name), vec![7; bytes]).unwrap();
    folder
}

#[test]
fn a_file_in_a_volume_is_compared_with_the_raw_volume() {
    let folder = volume();
    let here = folder.path();
    let before = contents(here);
    let simple = report(here, "simple-read --target v:/f");
    assert_eq!(cases(&simple)[..3], ["depth 1", "depth 1", "depth 32"]);
    assert_eq!(names(&simple), ["slow path", "bare ring, raw volume"]);
    for comparison in comparisons(&simple) {
        let rate = &comparison["jobs"][0]["figures"]["rate"];
        assert!(rate["a"][0].as_f64() > Some(0.0) && rate["b"][0].as_f64() > Some(0.0), "{rate}");
    }
    assert!(counter(&simple, "a", "direct.fast_path.refused.switched_off") > 0);
    assert!(counter(&simple, "b", "direct.fast_path.taken") > 0);
    assert!(contents(here) == before, "reads wrote something");
    // Sides that would write to the raw volume are left out, and so is psync, which cannot reach the file.
    let completion = report(here, "completion --target v:/f --overwrite");
    assert_eq!(names(&completion), ["worker"]);
    assert_eq!(uringfs(here, "ls v:/"), "f\n");
}

#[test]
fn all_experiments_are_checked_before_the_first_one_runs() {
    let folder = with_file("image", 1 << 20);
    // The first experiments only read; a later one writes.
    let program = command(folder.path(), "bench experiment all --target image --pairs 1");
    refused_command(folder.path(), program, "--overwrite");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let folder = with_file("image", 1 << 20);
    for (arguments, part) in [
        ("simple-reed", "simple-read"),
        ("simple-read --target missing", "missing: does not exist; check the name"),
        ("simple-read --case 9", "--case: no case `9` (known: depth 1; depth 32"),
        ("simple-read --set engine=ring", "--set: engine: an experiment has its own sides"),
        ("simple-read --set iodepth=2", "--set: iodepth: the experiment sets it"),
        ("simple-read --set direct.simple_reed=on", "nearest is `direct.simple_read`"),
        ("simple-read --effect 0", "--effect needs a percentage"),
        ("simple-read --beside missing", "missing: "),
        ("simple-read --target image --html image", "--html image: is a target of job"),
        ("simple-read --target image --beside image --html image", "--html image: is a target"),
    ] {
        let program = command(folder.path(), &format!("bench experiment {arguments}"));
        refused_command(folder.path(), program, part);
    }
}

#[test]
fn fewer_than_six_pairs_have_no_verdict() {
    let folder = folder();
    let run = |pairs: &str| {
        let mut program = command(folder.path(), "bench experiment simple-read --target null:1m");
        program.args(["--set", "runtime=5ms", "--case", "depth 1", "--pairs", pairs]);
        let output = ChildProcess::start(&mut program).end();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let few = run("5");
    assert!(few.contains("\ndepth 1: too few runs to say"), "{few}");
    let enough = run("6");
    let words = ["b is faster", "b is slower", "no difference shown", "too noisy to say"];
    let has = |word: &&str| enough.contains(&format!("\ndepth 1: {word}"));
    assert_eq!(words.iter().filter(|word| has(word)).count(), 1, "{enough}");
    assert!(!enough.contains("depth 32"), "only one case: {enough}");
    // Any word but faster has a reason.
    assert_eq!(enough.contains("  why: "), !has(&"b is faster"), "{enough}");
}

#[test]
fn on_a_terminal_a_report_begins_where_the_progress_is_cleared() {
    let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(&size, None).unwrap();
    let folder = folder();
    let words = "bench experiment simple-read --target null:1m --pairs 1 --set runtime=5ms";
    let mut program = command(folder.path(), words);
    program.env("TERM", "xterm").env_remove("NO_COLOR").stdin(Stdio::null());
    program.stdout(terminal.slave.try_clone().unwrap()).stderr(terminal.slave);
    let mut child = program.spawn().unwrap();
    // With the last writer gone, the terminal has an error or an end.
    drop(program);
    let (mut master, deadline) = (File::from(terminal.master), Deadline::new());
    let mut screen = Vec::new();
    let mut some = [0; 4096];
    while deadline.readable(&master)
        && let Ok(length @ 1..) = master.read(&mut some)
    {
        screen.extend_from_slice(&some[..length]);
    }
    let screen = String::from_utf8_lossy(&screen);
    assert!(child.wait().unwrap().success(), "{screen}");
    let (before, _) = screen.split_once("simple-read on null:1m").unwrap();
    // A sequence ends with a letter: `[2K`.
    let line = before.rsplit(['\r', '\n']).next().unwrap();
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default();
    let others = parts.map(|part| part.split_once(char::is_alphabetic).map_or("", |it| it.1));
    let shown: String = [first].into_iter().chain(others).collect();
    assert_eq!(shown.trim(), "", "in one line with the report: {line:?}");
}

#[test]
fn the_published_table_stands_beside_the_measured_one() {
    let folder = folder();
    let printed = text(folder.path(), "simple-read --target null:1m --pairs 1 --html page.html");
    let row = printed.lines().find(|line| line.trim_start().starts_with("depth 512")).unwrap();
    assert!(row.contains("1920 k/s") && row.ends_with("+14.1 % [1]"), "{printed}");
    assert!(printed.lines().all(|line| !line.ends_with(' ')), "{printed}");
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    for part in [
        "published b",
        "+14.1 % [1]",
        "Fengnan Chang",
        "too few runs to say",
        "rate b / a, pair by pair",
        "bench experiment simple-read --target null:1m",
        "samples.json",
    ] {
        assert!(page.contains(part), "no `{part}` in\n{page}");
    }
    assert!(!page.contains("<script"), "{page}");
    let report = report(folder.path(), "fixed-files --target null:1m");
    assert_eq!(report["published"], Value::Array(Vec::new()));
}

#[test]
fn unwritten_files_are_removed() {
    let folder = volume();
    let folder = folder.path();
    std::fs::write(folder.join("beside"), vec![0; 512 << 10]).unwrap();
    let report = report(folder, "completion --target v:/f --overwrite --beside beside");
    let cases = cases(&report);
    for case in ["in place, depth 16", "in place, durable, depth 32", "unwritten, depth 1"] {
        assert_eq!(cases.iter().filter(|found| **found == case).count(), 2, "{cases:?}");
    }
    let names = names(&report);
    assert!(names.len() == 2 && names[1].starts_with("psync, "), "{names:?}");
    assert_eq!(report["counters"]["b"]["completion.worker"], Value::Null);
    assert!(counter(&report, "a", "completion.worker") > 0);
    assert_eq!(uringfs(folder, "ls v:/"), "f\n");
    assert!(!folder.join("beside.new").exists());
}

#[test]
fn counters_that_are_zero_are_printed_too() {
    let folder = with_file("image", 1 << 20);
    let printed = text(folder.path(), "parallel-write --target image --overwrite --pairs 1");
    let counted = |side: &str| {
        let begin = format!("counters of {side}: ");
        printed.lines().find_map(|line| line.strip_prefix(&begin)).unwrap().to_owned()
    };
    let begin =
        "direct.write.unlocked 0, direct.write.range_locked 0, direct.write.exclusive.always ";
    assert!(counted("one lock").starts_with(begin), "{printed}");
    let end = ", direct.write.range_locked 0, direct.write.exclusive 0";
    assert!(counted("in parallel").ends_with(end), "{printed}");
}

#[test]
fn buffered_reads_wait_in_threads_on_one_side_only() {
    let folder = with_file("image", 4 << 20);
    let report = report(folder.path(), "buffered-read --target image --set ramp_time=1ms");
    assert_eq!(names(&report), ["thread", "direct"]);
    for comparison in comparisons(&report) {
        // A waiting thread causes a context switch.
        let switches = &comparison["jobs"][0]["figures"]["context switches per I/O"];
        let is_mechanism = comparison["is_beside"] == false;
        assert!(!is_mechanism || switches["a"][0].as_f64() > Some(0.0), "{switches}");
    }
    let buffered = |side, name: &str| counter(&report, side, &format!("buffered.{name}"));
    assert!(buffered("a", "wait.threads") > 0);
    assert_eq!(buffered("b", "wait.threads"), 0);
    // Each folio is read once, so its reader fills it and no other reader waits.
    assert!(buffered("b", "filled") > 0);
}
