//! The file of a baseline.

use super::rounds::Measured;
use super::series::{CounterSeries, FigureSeries, JobSeries};
use crate::Error;
use crate::compare::{Unit, job_words};
use crate::job::JobSet;
use crate::report::ctime;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::SystemTime;

/// The version of the file that this program writes, and the only one that it reads.
const VERSION: u64 = 1;

/// The content of a recording's file.
#[derive(Debug, Clone, PartialEq)]
pub struct Baseline {
    /// The time of the recording.
    pub recorded: String,
    /// The program that recorded it.
    pub program: String,
    /// The place of the recording: `host`, or `vm` for guests that count instructions.
    pub place: String,
    /// The model of the processor, or the guest.
    pub processor: String,
    /// The keys of the side: its engine, program and switches.
    pub keys: Vec<String>,
    /// Each job as options of a command line.
    pub jobs_words: Vec<Vec<String>>,
    /// The figures of each job.
    pub jobs: Vec<JobSeries>,
}

impl Baseline {
    /// A baseline that is recorded now.
    pub(super) fn new(place: &str, keys: &[String], set: &JobSet, measured: Measured) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            recorded: ctime(now.map_or(0, |time| time.as_secs())),
            program: concat!("uringfs ", env!("CARGO_PKG_VERSION")).into(),
            place: place.into(),
            processor: measured.processor,
            keys: keys.to_vec(),
            jobs_words: set.jobs.iter().map(job_words).collect(),
            jobs: measured.jobs,
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no baseline of this version.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let at = |error: Error| error.at(path.display());
        let bytes = std::fs::read(path)
            .map_err(|error| at(Error::input("cannot be read").because(error)))?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| at(Error::input("is not JSON").because(error)))?;
        Self::from_json(&value).map_err(|problem| at(Error::input(problem)))
    }

    /// Writes a file. An older one is replaced at the end, as a whole.
    ///
    /// # Errors
    /// The file cannot be written; an older one is as it was.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |error| cannot_write(path, error);
        let mut file = file_beside(path).map_err(failed)?;
        file.write_all(format!("{:#}\n", self.json()).as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Whether a baseline can be written there, so that no recording is lost, and nothing but an older one is replaced.
    ///
    /// # Errors
    /// It cannot.
    pub fn check_place(path: &Path) -> Result<(), Error> {
        if path.symlink_metadata().is_ok() {
            // Neither a job file, for example, nor a device.
            Self::read(path).map_err(|error| error.at("a recording replaces only baselines"))?;
        }
        file_beside(path).map(drop).map_err(|error| cannot_write(path, error))
    }

    fn json(&self) -> Value {
        let figure = |figure: &FigureSeries| {
            json!({
                "name": figure.name,
                "unit": figure.unit.name(),
                "values": figure.values,
                "control": figure.control,
            })
        };
        let counters = |job: &JobSeries| {
            let pairs =
                job.counters.iter().map(|counter| (counter.name.clone(), json!(counter.per_io)));
            pairs.collect::<Map<_, _>>()
        };
        let jobs = self.jobs.iter().zip(&self.jobs_words).map(|(job, words)| {
            json!({
                "jobname": job.job,
                "arguments": words,
                "figures": job.figures.iter().map(figure).collect::<Vec<_>>(),
                "counters_per_io": counters(job),
                "has_counters": job.has_counters,
            })
        });
        json!({
            "uringfs_baseline": VERSION,
            "recorded": self.recorded,
            "program": self.program,
            "machine": self.place,
            "processor": self.processor,
            "keys": self.keys,
            "jobs": jobs.collect::<Vec<_>>(),
        })
    }

    /// # Errors
    /// The flaw of the document.
    fn from_json(value: &Value) -> Result<Self, String> {
        match value["uringfs_baseline"].as_u64() {
            Some(VERSION) => {}
            Some(version) => {
                return Err(format!(
                    "has version {version}, and this program reads {VERSION}; record it again"
                ));
            }
            None => return Err("is not a baseline, which bench record writes".into()),
        }
        let text = |value: &Value, name: &str| {
            value[name].as_str().map(str::to_owned).ok_or(format!("has no text `{name}`"))
        };
        let texts = |value: &Value, name: &str| {
            let list = value[name]
                .as_array()
                .map(|list| list.iter().map(|word| word.as_str().map(str::to_owned)));
            list.and_then(Iterator::collect::<Option<Vec<_>>>)
                .ok_or(format!("has no list of texts `{name}`"))
        };
        let list = value["jobs"].as_array().filter(|jobs| !jobs.is_empty()).ok_or("has no jobs")?;
        let (mut jobs, mut jobs_words) = (Vec::new(), Vec::new());
        for job in list {
            let (name, words) = (text(job, "jobname")?, texts(job, "arguments")?);
            let is_known = jobs.iter().any(|other: &JobSeries| other.job == name);
            if is_known || !words.contains(&format!("--name={name}")) {
                let line = "is there twice, or has the arguments of another one";
                return Err(format!("job `{name}`: {line}"));
            }
            jobs_words.push(words);
            jobs.push(job_from_json(job, name)?);
        }
        Ok(Self {
            recorded: text(value, "recorded")?,
            program: text(value, "program")?,
            place: text(value, "machine").and_then(|place| match place.as_str() {
                "host" | "vm" => Ok(place),
                other => Err(format!("has the unknown machine `{other}`")),
            })?,
            processor: text(value, "processor")?,
            keys: texts(value, "keys")?,
            jobs_words,
            jobs,
        })
    }
}

/// A temporary file in the folder of a path.
fn file_beside(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    // As another new file has, not for its owner alone.
    builder.permissions(std::fs::Permissions::from_mode(0o666));
    builder.tempfile_in(folder.unwrap_or(Path::new(".")))
}

fn cannot_write(path: &Path, error: std::io::Error) -> Error {
    Error::input(format!("{}: cannot be written", path.display())).because(error)
}

fn job_from_json(job: &Value, name: String) -> Result<JobSeries, String> {
    let numbers = |value: &Value| -> Result<Vec<f64>, String> {
        // A figure that a run did not have is null.
        let number = |value: &Value| value.as_f64().or(value.is_null().then_some(f64::NAN));
        let list = value.as_array().map(|list| list.iter().map(number));
        list.and_then(Iterator::collect)
            .ok_or_else(|| format!("job `{name}`: a series is not numbers"))
    };
    let mut figures = Vec::new();
    for figure in job["figures"].as_array().into_iter().flatten() {
        let unit = figure["unit"].as_str().and_then(Unit::from_name);
        figures.push(FigureSeries {
            name: figure["name"].as_str().unwrap_or_default().into(),
            unit: unit.ok_or_else(|| format!("job `{name}`: a figure has no unit"))?,
            values: numbers(&figure["values"])?,
            control: numbers(&figure["control"])?,
        });
    }
    if figures.first().is_none_or(|rate| rate.name != "rate" || rate.values.is_empty()) {
        return Err(format!("job `{name}`: has no rate"));
    }
    let pairs = figures[0].values.len();
    let is_whole = |figure: &FigureSeries| {
        figure.values.len() == pairs && [0, pairs].contains(&figure.control.len())
    };
    if !figures.iter().all(is_whole) {
        return Err(format!("job `{name}`: its series have different lengths"));
    }
    let counters = job["counters_per_io"].as_object().into_iter().flatten();
    let counters = counters
        .map(|(name, values)| Ok(CounterSeries { name: name.clone(), per_io: numbers(values)? }));
    let counters: Vec<CounterSeries> = counters.collect::<Result<_, String>>()?;
    let is_counted = |counter: &CounterSeries| {
        counter.per_io.len() == pairs && counter.per_io.iter().all(|count| count.is_finite())
    };
    if let Some(counter) = counters.iter().find(|counter| !is_counted(counter)) {
        return Err(format!("job `{name}`: {} has not one number for each pair", counter.name));
    }
    Ok(JobSeries { counters, has_counters: job["has_counters"] == true, job: name, figures })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline() -> Baseline {
        let figure = FigureSeries {
            name: "rate".into(),
            unit: Unit::PerSecond,
            values: vec![1.0, 2.5],
            control: vec![2.0, 5.0],
        };
        let counter = CounterSeries { name: "ring.enters".into(), per_io: vec![0.5, 0.25] };
        Baseline {
            recorded: "Thu Jan  1 00:00:00 1970".into(),
            program: "uringfs 0.1.0".into(),
            place: "host".into(),
            processor: "a processor".into(),
            keys: vec!["engine=uringfs".into()],
            jobs_words: vec![vec!["--name=x".into(), "--rw=randread".into()]],
            jobs: vec![JobSeries {
                job: "x".into(),
                figures: vec![figure],
                counters: vec![counter],
                has_counters: true,
            }],
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.json");
        baseline().write(&path).unwrap();
        assert_eq!(Baseline::read(&path).unwrap(), baseline());
        // A series with a missing value.
        let mut gap = baseline();
        gap.jobs[0].figures[0].control[1] = f64::NAN;
        gap.write(&path).unwrap();
        assert!(Baseline::read(&path).unwrap().jobs[0].figures[0].control[1].is_nan());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.json");
        let changed = |change: fn(&mut Value)| {
            let mut value = baseline().json();
            change(&mut value);
            value.to_string()
        };
        for (text, part) in [
            ("{".to_owned(), "not JSON"),
            ("{}".to_owned(), "not a baseline"),
            ("[]".to_owned(), "not a baseline"),
            (changed(|value| value["uringfs_baseline"] = json!(2)), "has version 2"),
            (changed(|value| value["jobs"] = json!([])), "no jobs"),
            (changed(|value| value["keys"] = json!([1])), "`keys`"),
            (changed(|value| value["jobs"][0]["figures"] = json!(7)), "no rate"),
            (changed(|value| value["jobs"][0]["figures"][0]["unit"] = json!("?")), "no unit"),
            (
                changed(|value| value["jobs"][0]["figures"][0]["values"] = json!(["x"])),
                "not numbers",
            ),
            (changed(|value| value["jobs"][0]["counters_per_io"] = json!({"n": 1})), "not numbers"),
            (changed(|value| value["machine"] = json!("x")), "unknown machine `x`"),
            (changed(|value| value["jobs"][0]["jobname"] = json!("y")), "arguments of another"),
            (changed(|value| value["jobs"][0]["figures"][0]["control"] = json!([1])), "lengths"),
            (
                changed(|value| value["jobs"][0]["counters_per_io"] = json!({"n": [null, 1]})),
                "one number",
            ),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = Baseline::read(&path).unwrap_err().to_string();
            assert!(error.contains("b.json: ") && error.contains(part), "{text}: {error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Baseline::read(&path).unwrap_err().to_string().contains("b.json: cannot be read"));
        let missing = folder.path().join("no/b.json");
        assert!(baseline().write(&missing).unwrap_err().to_string().contains("cannot be written"));
    }
}
