//! The columns of a guest's tables, and the figures of one job in one column.

use super::guest::{StepResult, StorageKind};
use crate::Error;
use serde_json::{Value, json};

/// A column of a table: an engine on a storage.
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// The engine's name.
    pub engine: &'static str,
    /// The storage; with a device it gives the target.
    pub storage: StorageKind,
    /// Whether the job has `batch=on`.
    pub batch: bool,
}

const fn column(name: &'static str, engine: &'static str, storage: StorageKind) -> Column {
    Column { name, engine, storage, batch: false }
}

/// The columns of the standard table.
pub static COLUMNS: [Column; 6] = [
    column("ring, raw", "ring", StorageKind::Raw),
    column("ring, ext4", "ring", StorageKind::Ext4),
    column("ring, XFS", "ring", StorageKind::Xfs),
    column("uringfs, raw", "uringfs", StorageKind::Raw),
    column("uringfs, volume", "uringfs", StorageKind::Volume),
    Column { batch: true, ..column("uringfs, volume, by batch", "uringfs", StorageKind::Volume) },
];

/// The columns of the tables of the user's jobs, which need not be jobs for batches and choose themselves.
pub fn job_columns() -> impl Iterator<Item = &'static Column> {
    COLUMNS.iter().filter(|column| !column.batch)
}

/// The figures of one job in one column.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The job's name; of a group the first one's.
    pub job: String,
    /// CPU time of the job's threads; the guest's clock counts instructions.
    pub instructions_per_io: f64,
    /// Time from the beginning of the first thread to the end of the last, by the guest's clock. The threads
    /// share one processor, so that a rate over the longest thread would be too high.
    pub virtual_ns_per_io: f64,
    /// The number of reads and writes.
    pub ios: u64,
    /// The engine's tier.
    pub tier: String,
    /// The engine's queue.
    pub queue: String,
    /// The engine's counters.
    pub counters: Value,
}

impl Measurement {
    /// The measurements of a step that ran `bench run` with JSON: one for each entry of its report.
    ///
    /// # Errors
    /// The output is not such a report, or a job has no I/O.
    pub fn list_from_result(result: &StepResult) -> Result<Vec<Measurement>, Error> {
        let bad = |what| Error::run(format!("in the guest, {}: {what}", result.step));
        let report: Value = serde_json::from_str(&result.output)
            .map_err(|error| bad("its report is not JSON").because(error))?;
        let measurements = report["jobs"].as_array().into_iter().flatten().map(Self::from_job);
        measurements.collect::<Option<_>>().ok_or_else(|| bad("a job of its report has no figures"))
    }

    fn from_job(job: &Value) -> Option<Measurement> {
        let count = |direction: &str| job[direction]["total_ios"].as_u64();
        let (ios, ours) =
            (count("read")? + count("write")? + count("trim").unwrap_or(0), &job["uringfs"]);
        let word = |key: &str| Some(ours[key].as_str()?.to_owned());
        (ios > 0).then_some(())?;
        Some(Measurement {
            job: job["jobname"].as_str()?.to_owned(),
            instructions_per_io: ours["cpu_ns_per_io"].as_f64()?,
            virtual_ns_per_io: ours["span_ns"].as_f64()? / ios as f64,
            ios,
            tier: word("tier")?,
            queue: word("queue")?,
            counters: ours["counters"].clone(),
        })
    }

    /// The text for a table: nanoseconds per I/O, of everything that ran. If the threads also waited, it is
    /// `N in T ns`: N instructions of the threads themselves, in a time of T.
    pub fn text(&self) -> String {
        // Timer ticks and the start of a thread account for a small difference.
        const MIN_RUNNING_SHARE: f64 = 0.98;
        let (instructions, ns) = (self.instructions_per_io, self.virtual_ns_per_io);
        if instructions > ns * MIN_RUNNING_SHARE {
            grouped(ns)
        } else {
            format!("{} in {} ns", grouped(instructions), grouped(ns))
        }
    }

    /// The measurement as JSON.
    pub fn json(&self, column: &Column, target: &str) -> Value {
        json!({
            "engine": column.engine,
            "target": target,
            "batch": column.batch,
            "instructions_per_io": self.instructions_per_io,
            "virtual_ns_per_io": self.virtual_ns_per_io,
            "ios": self.ios,
            "queue": self.queue,
            "tier": self.tier,
            "counters": self.counters,
        })
    }
}

/// An integer with thousands separators.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(output: &str) -> StepResult {
        StepResult { step: "s".into(), code: 0, output: output.into() }
    }

    #[test]
    fn a_report_gives_one_measurement_per_job() {
        let report = r#"{"jobs": [{
            "jobname": "j",
            "read": {"total_ios": 30, "iops": 1e6}, "write": {"total_ios": 10, "iops": 1e6},
            "uringfs": {"cpu_ns_per_io": 2500.0, "span_ns": 200000,
                        "tier": "t", "queue": "q", "counters": {"c": 1}}
        }]}"#;
        let measurements = Measurement::list_from_result(&result(report)).unwrap();
        assert_eq!(measurements.len(), 1);
        assert_eq!(measurements[0].job, "j");
        assert_eq!((measurements[0].ios, measurements[0].virtual_ns_per_io), (40, 5000.0));
        assert_eq!(measurements[0].text(), "2,500 in 5,000 ns");
        let nothing = report.replace("30", "0").replace("10,", "0,");
        for bad in ["", "{\"jobs\": [{}]}", &nothing, &report.replace("span_ns", "s")] {
            assert!(Measurement::list_from_result(&result(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_have_thousands_separators() {
        assert_eq!(
            [7.4, 999.6, 65_536.0, 1_234_567.0].map(grouped),
            ["7", "1,000", "65,536", "1,234,567"]
        );
    }
}
