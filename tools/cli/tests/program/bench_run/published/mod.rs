//! The job files of `tools/lab/tests/published`, made small, run with this program and with fio: the same keys in the JSON, the
//! same amounts, and I/Os of the same sizes at the same places, exactly or in distribution. Under `--engine fio` the report
//! is fio's own to the digit.

mod io_log;
mod shrink;

use super::engine_fio::{keeping_fio, parted};
use super::fio_parity::{assert_has_options, assert_same_keys};
use super::invariants::number;
use super::{command, folder, json_of};
use crate::process::ChildProcess;
use io_log::{LoggedIo, assert_same_ios, first_offset, logged_ios};
use serde_json::Value;
use shrink::{ENVIRONMENT, Figures, shrink, variable};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use uringfs_lab::job::{BlockRange, Job, Parser, Pattern, UnknownKeys};

fn published() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/tests/published");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "fio")).collect();
    files.sort();
    assert!(files.len() >= 50, "{}", files.len());
    files
}

/// Checks every file, two at a time; at the end it names all that failed.
fn check_all(check: fn(&Path)) {
    let left = Mutex::new(published().into_iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(path) = left.lock().unwrap().next() else { break };
                    if catch_unwind(AssertUnwindSafe(|| check(&path))).is_err() {
                        failed.lock().unwrap().push(name_of(&path).to_owned());
                    }
                }
            });
        }
    });
    assert_eq!(*failed.lock().unwrap(), [] as [&str; 0]);
}

fn name_of(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

/// Runs this program, or fio, on `job.fio` in a folder.
fn run(mut command: Command) -> Output {
    ChildProcess::start(command.envs(ENVIRONMENT)).end()
}

/// fio may print notes before its JSON.
fn fios_json(folder: &Path, arguments: &[&str]) -> Value {
    let mut fio = Command::new("fio");
    fio.arg("--output-format=json").args(arguments).arg("job.fio").current_dir(folder);
    let output = run(fio);
    assert!(output.status.success(), "{output:?}");
    parted(&String::from_utf8(output.stdout).unwrap()).0
}

fn ours(folder: &Path, engine: &str, arguments: &[&str]) -> Output {
    let words = ["job.fio", engine, "--output-format=json", "--overwrite"];
    run(command(folder, &[&words[..], arguments].concat()))
}

/// Jobs with `direct=0` go through a page cache.
const CACHE: [&str; 2] = ["--set", "buffered.cache_bytes=16777216"];

/// fio's sizes and directions are the same in each run, too, and not only its offsets.
const SAME_EACH_RUN: &str = "--allrandrepeat=1";

fn jobs(folder: &Path) -> Vec<Job> {
    let lookup = |name: &str| variable(name).map(str::to_owned);
    let mut parser = Parser::new(&lookup, UnknownKeys::Refuse);
    parser.file(&folder.join("job.fio")).unwrap();
    parser.finish().unwrap().jobs
}

#[test]
fn published_jobs_parse() {
    for path in published() {
        let mut program = command(path.parent().unwrap(), &["--parse-only"]);
        let output = ChildProcess::start(program.arg(&path).envs(ENVIRONMENT)).end();
        assert!(output.status.success(), "{}: {output:?}", path.display());
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn published_jobs_do_what_they_do_under_fio() {
    check_all(|path| {
        let name = name_of(path);
        // Without the figures that its keys leave out, a job logs no I/Os.
        let wanted: &[Figures] = match shrink::leaves_out_figures(path) {
            true => &[Figures::AsPublished, Figures::All],
            false => &[Figures::All],
        };
        for &figures in wanted {
            let folders = [folder(), folder()];
            folders.iter().for_each(|folder| shrink(path, folder.path(), figures));
            let keys: &[&str] = match figures {
                Figures::AsPublished => &[SAME_EACH_RUN],
                Figures::All => &[SAME_EACH_RUN, "--write_bw_log=ios", "--log_offset=1"],
            };
            let [fios, own] = folders.each_ref().map(|folder| folder.path());
            let theirs = fios_json(fios, keys);
            let report = json_of(&ours(own, "--engine=uringfs", &[&CACHE[..], keys].concat()));
            let jobs = jobs(own);
            assert_same_keys(&theirs, &report, name);
            assert_same_amounts(&theirs, &report, &jobs, name);
            if figures == Figures::All {
                let [theirs, ours] = [fios, own].map(logged_ios);
                assert_same_threads(theirs, ours, &jobs, name);
            }
        }
    });
}

fn assert_same_threads(
    mut theirs: Vec<Vec<LoggedIo>>,
    mut ours: Vec<Vec<LoggedIo>>,
    jobs: &[Job],
    name: &str,
) {
    let threads: u32 = jobs.iter().map(|job| job.options.jobs).sum();
    assert_eq!([theirs.len(), ours.len()], [threads as usize; 2], "{name}: logs");
    for job in jobs {
        let threads = job.options.jobs as usize;
        let [mut theirs, mut ours] =
            [&mut theirs, &mut ours].map(|all| all.drain(..threads).collect::<Vec<_>>());
        theirs.sort_by_key(|ios| first_offset(ios));
        ours.sort_by_key(|ios| first_offset(ios));
        for (theirs, ours) in theirs.iter().zip(&ours) {
            assert!(!ours.is_empty(), "{name}: {}", job.name);
            assert_same_ios(theirs, ours, &job.options, &format!("{name}: {}", job.name));
        }
    }
}

/// Compares I/Os and bytes of each entry of the reports.
fn assert_same_amounts(theirs: &Value, ours: &Value, jobs: &[Job], name: &str) {
    let mut entries = [theirs, ours].map(|report| report["jobs"].as_array().unwrap().clone());
    assert_eq!(entries[0].len(), entries[1].len(), "{name}: entries");
    // fio has the threads of a job in another order.
    let bytes = |entry: &Value| ["read", "write"].map(|way| entry[way]["io_bytes"].as_u64());
    for report in &mut entries {
        for threads in report.chunk_by_mut(|a, b| a["jobname"] == b["jobname"]) {
            threads.sort_by_key(bytes);
        }
    }
    let sizes = || jobs.iter().flat_map(|job| job.options.blocks_in_use());
    let largest = sizes().map(|range| range.max).max().unwrap();
    let is_mixed = |pattern: Pattern| pattern.reads() && pattern.writes();
    let mixed = jobs.iter().any(|job| is_mixed(job.options.pattern));
    let BlockRange { min, max } = *sizes().next().unwrap();
    let one_size =
        jobs.len() == 1 && min == max && sizes().all(|range| range.min == min && range.max == min);
    // The last I/O of each thread may be longer with one program than with the other, if sizes are drawn.
    let drawn = sizes().any(|range| range.min != range.max);
    let threads: u32 = jobs.iter().map(|job| job.options.jobs).sum();
    let slack = if drawn { largest as f64 * f64::from(threads) } else { 0.0 };
    for (theirs, ours) in entries[0].iter().zip(&entries[1]) {
        let job = &ours["jobname"];
        assert_eq!(theirs["jobname"], *job, "{name}");
        assert_eq!(theirs["error"], ours["error"], "{name}: {job}");
        if let Some(options) = theirs.get("job options") {
            assert_has_options(options, &ours["job options"], name);
        }
        let of = |entry: &Value, key: &str| ["read", "write"].map(|way| number(&entry[way], key));
        let bytes = [theirs, ours].map(|entry| of(entry, "io_bytes"));
        let ios = [theirs, ours].map(|entry| of(entry, "total_ios"));
        let sum = |ways: [f64; 2]| ways[0] + ways[1];
        assert!(sum(bytes[1]) > 0.0, "{name}: {job} did nothing");
        assert!((sum(bytes[0]) - sum(bytes[1])).abs() <= slack, "{name}: {job}: bytes {bytes:?}");
        if mixed {
            let shares = ios.map(|ways| ways[0] / sum(ways));
            let share = (shares[0] + shares[1]) / 2.0;
            // Five standard deviations of the difference.
            let most = 5.0 * (share * (1.0 - share) * 2.0 / sum(ios[1])).sqrt();
            assert!((shares[0] - shares[1]).abs() <= most, "{name}: {job}: reads {shares:?}");
            if one_size {
                assert_eq!(sum(ios[0]), sum(ios[1]), "{name}: {job}");
            }
        } else if !drawn {
            assert_eq!((bytes[0], ios[0]), (bytes[1], ios[1]), "{name}: {job}");
        }
    }
}

#[test]
fn under_engine_fio_published_jobs_have_fios_figures_to_the_digit() {
    check_all(|path| {
        let name = name_of(path);
        let folder = folder();
        let here = folder.path();
        shrink(path, here, Figures::AsPublished);
        let output = ours(here, "--engine=fio", &[&keeping_fio(here), SAME_EACH_RUN]);
        let mut report = json_of(&output);
        let (kept, _) = parted(&std::fs::read_to_string(here.join("kept")).unwrap());
        for job in report["jobs"].as_array_mut().unwrap() {
            let own = job.as_object_mut().unwrap().remove("uringfs").unwrap();
            let ios = ["read", "write"].map(|way| number(&job[way], "total_ios"));
            let ios = (ios[0] + ios[1]).max(1.0);
            let cpu = (number(job, "usr_cpu") + number(job, "sys_cpu")) / 100.0;
            let cpu_ns = cpu * number(job, "job_runtime") * 1e6;
            for (key, sum) in
                [("context_switches_per_io", number(job, "ctx")), ("cpu_ns_per_io", cpu_ns)]
            {
                let expected = sum / ios;
                let found = number(&own, key);
                assert!((found - expected).abs() <= 1e-12 * expected, "{name}: {key}: {found}");
            }
        }
        assert_eq!(report, kept, "{name}");
    });
}
