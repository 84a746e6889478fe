//! The figures of a run, read from a report in fio's JSON. Every source has that: our engines, fio, other builds, files.

use crate::Error;
use crate::engine::add_counters;
use crate::report::directions_of;
use serde_json::Value;

/// The percentiles that are compared.
const PERCENTILES: [&str; 3] = ["50", "99", "99.9"];

/// The unit of a figure, and its better direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// I/Os a second; more is better.
    PerSecond,
    /// Nanoseconds; less is better.
    Nanoseconds,
    /// A number per I/O; less is better.
    PerIo,
}

impl Unit {
    const ALL: [(Self, &str); 3] =
        [(Self::PerSecond, "1/s"), (Self::Nanoseconds, "ns"), (Self::PerIo, "1")];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(unit, _)| *unit == self).map_or("", |(_, name)| name)
    }

    /// The unit of a name in JSON.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(unit, _)| *unit)
    }

    /// An amount, for a table.
    pub fn amount(self, value: f64) -> String {
        match self {
            _ if value.is_nan() => "-".into(),
            Self::PerSecond if value >= 100_000.0 => format!("{:.0} k/s", value / 1e3),
            Self::PerSecond if value >= 1_000.0 => format!("{:.1} k/s", value / 1e3),
            Self::PerSecond => format!("{value:.1} /s"),
            Self::Nanoseconds if value >= 1e7 => format!("{:.1} ms", value / 1e6),
            Self::Nanoseconds if value >= 1e4 => format!("{:.1} us", value / 1e3),
            Self::Nanoseconds => format!("{:.2} us", value / 1e3),
            Self::PerIo => format!("{value:.3}"),
        }
    }
}

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Its name: `rate`, `read p99`.
    pub name: String,
    /// Its unit.
    pub unit: Unit,
    /// Its value.
    pub value: f64,
}

/// The figures of one job in one run.
#[derive(Debug, Clone, Default)]
pub struct JobFigures {
    /// The job's name.
    pub job: String,
    /// The figures; the rate is the first.
    pub figures: Vec<Figure>,
    /// The counters of its engine.
    pub counters: Vec<(String, u64)>,
    /// The I/Os of all threads.
    pub ios: f64,
    /// The notes of its run, each once.
    pub notes: Vec<String>,
}

impl JobFigures {
    /// The figures of all jobs of a report. Threads of one name are one job: rates are added, costs are per I/O of all, and a
    /// percentile is that of the thread where it is greatest.
    ///
    /// # Errors
    /// The report is not fio's JSON, or has a job that failed, was interrupted, or did no I/O.
    pub fn from_report(report: &Value) -> Result<Vec<Self>, Error> {
        let is_report = |jobs: &&Vec<Value>| !jobs.is_empty() && jobs.iter().all(Value::is_object);
        let jobs = report["jobs"].as_array().filter(is_report);
        let jobs =
            jobs.ok_or_else(|| Error::input("is not a report of fio in JSON: it has no jobs"))?;
        let mut all: Vec<Self> = Vec::new();
        for job in jobs {
            let name = job["jobname"].as_str().unwrap_or_default();
            if let Some(error) = job["error"].as_i64().filter(|error| *error != 0) {
                return Err(Error::run(format!("job `{name}` failed (error {error})")));
            }
            if job["uringfs"]["incomplete"] == true {
                return Err(Error::input(format!("job `{name}` was interrupted")));
            }
            let at = all.iter().position(|known| known.job == name).unwrap_or_else(|| {
                all.push(Self { job: name.into(), ..Self::default() });
                all.len() - 1
            });
            all[at].add_thread(job);
        }
        if let Some(idle) = all.iter().find(|job| job.value("rate") <= 0.0) {
            return Err(Error::run(format!("job `{}` did no I/O in a run", idle.job)));
        }
        Ok(all)
    }

    /// The value of a figure; NaN if the job has none of this name.
    pub fn value(&self, name: &str) -> f64 {
        self.figures
            .iter()
            .find(|figure| figure.name == name)
            .map_or(f64::NAN, |figure| figure.value)
    }

    /// The count of a counter; 0 if the job has none of this name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
    }

    fn add_thread(&mut self, job: &Value) {
        let number = |value: &Value| value.as_f64().unwrap_or(0.0);
        let ways = || directions_of(job).iter();
        let ios: f64 = ways().map(|way| number(&job[*way]["total_ios"])).sum();
        let rate: f64 = ways().map(|way| number(&job[*way]["iops"])).sum();
        self.set("rate", Unit::PerSecond, |before| before + rate);
        for way in ways() {
            for percent in PERCENTILES {
                let key = format!("{:.6}", percent.parse::<f64>().unwrap_or_default());
                let Some(ns) = job[*way]["clat_ns"]["percentile"][key].as_f64() else { continue };
                self.set(&format!("{way} p{percent}"), Unit::Nanoseconds, |before| before.max(ns));
            }
        }
        self.ios += ios;
        let share = ios / self.ios.max(1.0);
        let costs = [
            ("CPU per I/O", Unit::Nanoseconds, "cpu_ns_per_io"),
            ("context switches per I/O", Unit::PerIo, "context_switches_per_io"),
            ("system calls per I/O", Unit::PerIo, "system_calls_per_io"),
        ];
        for (name, unit, key) in costs {
            if let Some(cost) = job["uringfs"][key].as_f64() {
                self.set(name, unit, |before| before + (cost - before) * share);
            }
        }
        let counters = job["uringfs"]["counters"].as_object().into_iter().flatten();
        let counters = counters.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)));
        add_counters(&mut self.counters, &counters.collect::<Vec<_>>());
        let notes = job["uringfs"]["notes"].as_array().into_iter().flatten();
        for note in notes.filter_map(Value::as_str) {
            if !self.notes.iter().any(|known| known == note) {
                self.notes.push(note.to_owned());
            }
        }
    }

    /// Changes a figure, which is 0 if it is new.
    fn set(&mut self, name: &str, unit: Unit, change: impl FnOnce(f64) -> f64) {
        match self.figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.value = change(figure.value),
            None => self.figures.push(Figure { name: name.into(), unit, value: change(0.0) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn thread(name: &str, iops: f64, ios: u64, p99: u64, cpu: f64) -> Value {
        json!({
            "jobname": name,
            "error": 0,
            "read": {"iops": iops, "total_ios": ios,
                "clat_ns": {"percentile": {"50.000000": 10, "99.000000": p99, "99.900000": 99}}},
            "write": {"iops": 0.0, "total_ios": 0, "clat_ns": {}},
            "uringfs": {"cpu_ns_per_io": cpu, "counters": {"ring.enters": 2}, "notes": ["a note"]},
        })
    }

    #[test]
    fn threads_of_one_job_are_added() {
        let report = json!({"jobs": [
            thread("x", 100.0, 300, 70, 1000.0),
            thread("y", 5.0, 10, 1, 1.0),
            thread("x", 50.0, 100, 90, 3000.0),
        ]});
        let figures = JobFigures::from_report(&report).unwrap();
        assert_eq!(figures.iter().map(|job| job.job.as_str()).collect::<Vec<_>>(), ["x", "y"]);
        let x = &figures[0];
        assert_eq!(
            (x.value("rate"), x.value("read p99"), x.value("CPU per I/O")),
            (150.0, 90.0, 1500.0)
        );
        assert!(x.value("write p99").is_nan() && x.value("system calls per I/O").is_nan());
        assert_eq!(x.counters, [("ring.enters".to_owned(), 4)]);
        assert_eq!((x.counter("ring.enters"), x.counter("other"), x.ios), (4, 0, 400.0));
        assert_eq!(x.notes, ["a note"]);
    }

    #[test]
    fn a_sum_of_all_directions_is_read_where_it_stands_alone() {
        let mut job = thread("x", 100.0, 300, 70, 1000.0);
        job["mixed"] = job["read"].clone();
        let both = JobFigures::from_report(&json!({"jobs": [job.clone()]})).unwrap();
        assert_eq!((both[0].value("rate"), both[0].ios), (100.0, 300.0));
        for way in ["read", "write"] {
            job.as_object_mut().unwrap().remove(way);
        }
        let alone = JobFigures::from_report(&json!({"jobs": [job]})).unwrap();
        assert_eq!((alone[0].value("rate"), alone[0].ios), (100.0, 300.0));
        assert_eq!((alone[0].value("mixed p99"), alone[0].value("CPU per I/O")), (70.0, 1000.0));
    }

    #[test]
    fn other_json_and_failed_jobs_are_refused() {
        for report in [json!({}), json!([]), json!({"jobs": []}), json!("x")] {
            let error = JobFigures::from_report(&report).unwrap_err().to_string();
            assert!(error.contains("not a report of fio"), "{error}");
        }
        let failed = json!({"jobs": [{"jobname": "x", "error": 5}]});
        assert!(JobFigures::from_report(&failed).unwrap_err().to_string().contains("`x` failed"));
    }
}
