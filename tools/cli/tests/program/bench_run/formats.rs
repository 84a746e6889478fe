//! The formats `terse` and `json+`, and the sum of reads and writes, compared with those of the installed fio.

use super::fio_parity::{assert_same_keys, fio, paths};
use super::{bench, folder, json_of};
use serde_json::Value;
use std::process::Output;

const JOBS: [&str; 4] = [
    "[j]\nrw=randrw\nnumjobs=2\n",
    "[j]\nrw=randread\npercentile_list=50:99.9\ndescription=some words\n",
    "[a]\nrw=write\nclat_percentiles=0\n[b]\nstonewall\nrw=read\nlat_percentiles=1\n",
    "[j]\nrw=randrw\nunified_rw_reporting=1\ngtod_reduce=1\n",
];

/// Runs fio and this program on a job file, with the same options.
fn both(job: &str, options: &[&str]) -> [Output; 2] {
    let folders = [folder(), folder()];
    let text = format!("[global]\nbs=4k\nsize=1m\n{job}");
    folders.iter().for_each(|f| std::fs::write(f.path().join("job.fio"), &text).unwrap());
    let words = [&["job.fio"], options].concat();
    let ours = bench(folders[1].path(), &[&words[..], &["--engine=psync"]].concat());
    [fio(folders[0].path(), &words), ours]
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A field without its digits: the sign, the point, the unit, the number of decimals.
fn shape(field: &str) -> String {
    let decimals = field
        .split_once('.')
        .map_or(0, |(_, after)| after.chars().take_while(char::is_ascii_digit).count());
    let letters: String = field.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    format!("{letters} {decimals}")
}

#[test]
fn terse_lines_have_fios_fields() {
    for job in JOBS {
        for option in ["--minimal", "--output-format=terse"] {
            let outputs = both(job, &[option]);
            let [theirs, ours] = outputs.each_ref().map(text);
            assert_eq!(theirs.lines().count(), ours.lines().count(), "{theirs}\n{ours}");
            for (theirs, ours) in theirs.lines().zip(ours.lines()) {
                let [theirs, ours] = [theirs, ours].map(|line| line.split(';').collect::<Vec<_>>());
                assert_eq!(theirs.len(), ours.len(), "{theirs:?}\n{ours:?}");
                assert!(ours.len() > 80 && ours[1].starts_with("uringfs-"), "{ours:?}");
                for (index, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
                    // The second is the name of the program.
                    assert!(index == 1 || shape(theirs) == shape(ours), "{index}: {theirs} {ours}");
                }
                // Version, name, group and error.
                assert_eq!((theirs[0], &theirs[2..5]), (ours[0], &ours[2..5]));
            }
        }
    }
}

/// The fields of a terse line that follow from the job alone.
#[test]
fn terse_lines_have_the_figures_of_the_json() {
    let folder = folder();
    let keys = ["--name=x", "--rw=randread", "--size=1m", "--bs=4k", "--engine=psync"];
    let output = bench(folder.path(), &[&keys[..], &["--output-format=terse,json"]].concat());
    let text = text(&output);
    let (line, json) = text.split_once('\n').unwrap();
    let report: Value = serde_json::from_str(json).unwrap();
    let job = &report["jobs"][0];
    let fields: Vec<&str> = line.split(';').collect();
    let number = |at: usize| fields[at].parse::<u64>().unwrap();
    assert_eq!(number(5), 1024, "KiB");
    assert_eq!(number(6), job["read"]["bw"].as_u64().unwrap());
    assert_eq!(number(7), job["read"]["iops"].as_f64().unwrap() as u64);
    assert_eq!(number(8), job["read"]["runtime"].as_u64().unwrap());
    let clat = &job["read"]["clat_ns"];
    assert_eq!(number(13), clat["min"].as_u64().unwrap() / 1000);
    assert_eq!(number(14), clat["max"].as_u64().unwrap() / 1000);
    let median = clat["percentile"]["50.000000"].as_u64().unwrap() / 1000;
    assert_eq!(fields[17 + 6], format!("50.000000%={median}"));
    assert_eq!(number(46), 0, "nothing was written");
}

#[test]
fn json_plus_has_bins_where_fio_has_them() {
    for job in JOBS {
        let outputs = both(job, &["--output-format=json+"]);
        let [theirs, ours] = outputs.each_ref().map(json_of);
        let keys = |report: &Value| -> Vec<String> {
            paths(report).into_keys().filter(|path| !path.contains("/bins/")).collect()
        };
        assert_eq!(keys(&theirs), keys(&ours), "{job}");
        for times in ours["jobs"].as_array().unwrap().iter().map(|job| &job["read"]["clat_ns"]) {
            let Some(bins) = times.get("bins").and_then(Value::as_object) else { continue };
            let sum: u64 = bins.values().map(|count| count.as_u64().unwrap()).sum();
            assert_eq!(sum, times["N"].as_u64().unwrap());
            // fio names a bin by its middle, which is no further from its ends than a 64th of it.
            let bounds = [&times["min"], &times["max"]].map(|bound| bound.as_f64().unwrap());
            let names = bins.keys().map(|name| name.parse::<f64>().unwrap());
            for ns in names {
                assert!(
                    ns >= bounds[0] * (1.0 - 1.0 / 64.0) && ns <= bounds[1] * (1.0 + 1.0 / 64.0)
                );
            }
        }
        // Without the plus there are none.
        let [_, ours] = both(job, &["--output-format=json"]);
        assert!(!paths(&json_of(&ours)).keys().any(|path| path.contains("/bins")));
    }
}

#[test]
fn mixed_reports_have_fios_keys_and_the_sums_of_both_directions() {
    for (reporting, has_parts) in [("mixed", false), ("both", true)] {
        let job = format!("[j]\nrw=randrw\nunified_rw_reporting={reporting}\n");
        let outputs = both(&job, &["--output-format=json"]);
        let [theirs, ours] = outputs.each_ref().map(json_of);
        assert_same_keys(&theirs, &ours, reporting);
        for report in [&theirs, &ours] {
            let job = &report["jobs"][0];
            assert_eq!(job.get("read").is_some(), has_parts, "{reporting}");
            assert_eq!(job["mixed"]["total_ios"], 256, "{reporting}");
            assert_eq!(job["mixed"]["io_bytes"], 1 << 20, "{reporting}");
            assert_eq!(job["mixed"]["clat_ns"]["N"], 256, "{reporting}");
        }
    }
}

#[test]
fn engine_fio_passes_on_terse_lines_and_bins() {
    let folder = folder();
    let keys = ["--name=x", "--rw=randread", "--size=1m", "--engine=fio"];
    let run = |format: &str| {
        let format = format!("--output-format={format}");
        text(&bench(folder.path(), &[&keys[..], &[&format, "--overwrite"]].concat()))
    };
    let all = run("terse,json+,normal");
    let (terse, rest) = all.split_once('\n').unwrap();
    assert!(terse.starts_with("3;fio-") && terse.split(';').nth(2) == Some("x"), "{all}");
    assert!(rest.starts_with("{\n") && rest.contains("\"bins\""), "{all}");
    assert!(rest.contains("\nx: (groupid=0, jobs=1)"), "{all}");
    let json: Value = serde_json::from_str(&run("json")).unwrap();
    assert!(json["jobs"][0]["read"]["clat_ns"].get("bins").is_none(), "{json}");
    assert_eq!(run("terse").lines().count(), 1);
}
