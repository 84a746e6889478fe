//! Compares runs that have ended, from files of fio's JSON. They have no pairs: their order is unknown, and a machine that
//! changed between them counts as a difference.

use super::figures::JobFigures;
use super::results::{FigureComparison, JobComparison, Results};
use super::rounds::add_new;
use super::run_notes::RunNotes;
use crate::Error;
use crate::engine::add_counters;
use crate::report::add_uringfs_objects;
use crate::stats::{MIN_PAIRS, RatioInterval};
use serde_json::Value;
use std::path::PathBuf;

/// Compares the files of two sides, one a run.
///
/// # Errors
/// A file cannot be read, is no report of fio in JSON, or has a job that failed; or no job is in all files.
pub fn compare_results(a: &[PathBuf], b: &[PathBuf], effect: f64) -> Result<Results, Error> {
    let read = |files: &[PathBuf]| files.iter().map(figures).collect::<Result<Vec<_>, _>>();
    let (a_runs, b_runs) = (read(a)?, read(b)?);
    let in_all = |job: &&JobFigures| {
        a_runs.iter().chain(&b_runs).all(|run| run.iter().any(|other| other.job == job.job))
    };
    let jobs: Vec<_> = a_runs.iter().take(1).flatten().filter(in_all).collect();
    if jobs.is_empty() {
        return Err(Error::input("no job is in all files: the sides need jobs of the same names"));
    }
    let compare = |job: &&JobFigures| {
        let of_job = |runs: &[Vec<JobFigures>]| -> Vec<JobFigures> {
            runs.iter().flatten().filter(|other| other.job == job.job).cloned().collect()
        };
        let sides = [of_job(&a_runs), of_job(&b_runs)];
        let figures = job.figures.iter().map(|figure| {
            let [a, b] = [0, 1].map(|side| -> Vec<f64> {
                sides[side].iter().map(|job| job.value(&figure.name)).collect()
            });
            let [a_logs, b_logs] =
                [&a, &b].map(|side| side.iter().map(|value| value.ln()).collect::<Vec<_>>());
            let mut ratio = RatioInterval::of_separate_runs(&a_logs, &b_logs, 0.05);
            if a.len().min(b.len()) < MIN_PAIRS {
                (ratio.low, ratio.high) = (f64::NAN, f64::NAN);
            }
            let none = RatioInterval { ratio: f64::NAN, low: f64::NAN, high: f64::NAN };
            FigureComparison {
                name: figure.name.clone(),
                unit: figure.unit,
                a,
                again: Vec::new(),
                b,
                control: Vec::new(),
                ratio,
                noise: none,
                sign_test: f64::NAN,
            }
        });
        let mut counters = [Vec::new(), Vec::new()];
        for (sum, side) in counters.iter_mut().zip(&sides) {
            side.iter().for_each(|job| add_counters(sum, &job.counters));
        }
        let mut compared = JobComparison::new(job.job.clone(), figures.collect(), counters, effect);
        // Runs that have ended get no more.
        compared.more_pairs = None;
        compared
    };
    let mut notes = vec![
        "separate runs: a change of the machine between them counts as a difference of the sides"
            .to_owned(),
    ];
    let mut run_notes = RunNotes::new(2);
    a_runs.iter().for_each(|run| run_notes.add(0, run));
    b_runs.iter().for_each(|run| run_notes.add(1, run));
    add_new(&mut notes, run_notes.lines(|members| ["a", "b"][members[0]].to_owned()));
    Ok(Results {
        sides: [a, b].map(|files| match files.len() {
            1 => "1 file".to_owned(),
            files => format!("{files} files"),
        }),
        jobs: jobs.iter().map(compare).collect(),
        pairs: a.len().min(b.len()),
        effect,
        seed: None,
        seconds: 0.0,
        machine: None,
        files_made: Vec::new(),
        notes,
        incomplete: false,
    })
}

fn figures(path: &PathBuf) -> Result<Vec<JobFigures>, Error> {
    let at = |error: Error| error.at(path.display());
    let bytes =
        std::fs::read(path).map_err(|error| at(Error::input("cannot be read").because(error)))?;
    let report: Result<Value, _> = serde_json::from_slice(&bytes);
    let mut report = report.map_err(|error| at(Error::input("is not JSON").because(error)))?;
    let has_costs = report["jobs"][0]["uringfs"].is_object();
    if !has_costs {
        add_uringfs_objects(&mut report, &[], &[], false);
    }
    JobFigures::from_report(&report).map_err(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Verdict;

    fn files(folder: &std::path::Path, side: &str, rates: &[f64]) -> Vec<PathBuf> {
        let write = |(index, rate): (usize, &f64)| {
            let path = folder.join(format!("{side}{index}.json"));
            let text = format!(
                r#"{{"jobs":[{{"jobname":"x","error":0,"job_runtime":1000,"usr_cpu":10.0,"sys_cpu":40.0,"ctx":500,
                "read":{{"iops":{rate},"total_ios":1000,"clat_ns":{{"percentile":{{"99.000000":{}}}}}}},"write":{{}}}}]}}"#,
                (1e9 / rate) as u64
            );
            std::fs::write(&path, text).unwrap();
            path
        };
        rates.iter().enumerate().map(write).collect()
    }

    #[test]
    fn files_of_fio_are_compared() {
        let folder = tempfile::tempdir().unwrap();
        let a = files(folder.path(), "a", &[100.0, 101.0, 99.0, 100.5, 99.5, 100.2]);
        let b = files(folder.path(), "b", &[90.0, 91.0, 89.0, 90.5, 89.5, 90.2, 90.1]);
        let results = compare_results(&a, &b, 0.05).unwrap();
        let job = &results.jobs[0];
        assert_eq!((job.verdict, results.pairs), (Verdict::Slower, 6));
        assert!((job.rate().ratio.ratio - 0.9).abs() < 0.005);
        let figure = |name: &str| job.figures.iter().find(|figure| figure.name == name).unwrap();
        assert_eq!(figure("context switches per I/O").a[0], 0.5);
        assert_eq!(figure("CPU per I/O").a[0], 500_000.0);
        assert!(figure("read p99").ratio.low > 1.05);
        let few = compare_results(&a[..5], &b, 0.05).unwrap();
        assert_eq!((few.jobs[0].verdict, few.jobs[0].more_pairs), (Verdict::TooFewRuns, None));
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let good = files(folder.path(), "a", &[1.0]);
        let path = folder.path().join("other");
        for (text, part) in [
            ("{", "not JSON"),
            ("{}", "no jobs"),
            ("[]", "no jobs"),
            (r#"{"jobs":[1]}"#, "no jobs"),
            (r#"{"jobs":[{"jobname":"x","uringfs":{"incomplete":true}}]}"#, "was interrupted"),
            (r#"{"jobs":[{"jobname":"z","read":{"iops":1,"total_ios":1}}]}"#, "no job is in all"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error =
                compare_results(&good, std::slice::from_ref(&path), 0.05).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        std::fs::remove_file(&path).unwrap();
        let error = compare_results(&good, &[path], 0.05).unwrap_err().to_string();
        assert!(error.contains("other: cannot be read"), "{error}");
    }
}
