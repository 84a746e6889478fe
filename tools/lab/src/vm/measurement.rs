//! What is compared side by side in a guest, and the figures of one of them.

use super::guest::{StepResult, StorageKind};
use crate::Error;
use serde_json::{Value, json};

/// What does the I/O, and where: a column of a table.
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// The engine's name.
    pub engine: &'static str,
    /// The target, of whichever device.
    pub storage: StorageKind,
}

/// Those of every table.
pub const COLUMNS: [Column; 5] = [
    Column { name: "ring, raw", engine: "ring", storage: StorageKind::Raw },
    Column { name: "ring, ext4", engine: "ring", storage: StorageKind::Ext4 },
    Column { name: "ring, XFS", engine: "ring", storage: StorageKind::Xfs },
    Column { name: "uringfs, raw", engine: "uringfs", storage: StorageKind::Raw },
    Column { name: "uringfs, volume", engine: "uringfs", storage: StorageKind::Volume },
];

/// The figures of one job in one column.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The job, or the first of a group that is reported as one.
    pub job: String,
    /// CPU time of the job's threads, which the guest's clock counts in instructions.
    pub instructions_per_io: f64,
    /// From the beginning of the first thread to the end of the last, by the guest's clock: threads
    /// of one processor take turns, so that a rate over the longest of them would be too high.
    pub virtual_ns_per_io: f64,
    /// Reads and writes.
    pub ios: u64,
    /// What the kernel gave.
    pub tier: String,
    /// The queue that was taken.
    pub queue: String,
    /// Whatever the engine counts.
    pub counters: Value,
}

impl Measurement {
    /// The cells of a step that ran `bench run` with JSON: one for each line of its report.
    ///
    /// # Errors
    /// What the step printed is no such report, or has a job that did nothing.
    pub fn list_from_result(result: &StepResult) -> Result<Vec<Measurement>, Error> {
        let bad = |what| Error::run(format!("in the guest, {}: {what}", result.step));
        let report: Value = serde_json::from_str(&result.output)
            .map_err(|error| bad("its report is not JSON").because(error))?;
        let measurements = report["jobs"].as_array().into_iter().flatten().map(Self::from_job);
        measurements.collect::<Option<_>>().ok_or_else(|| bad("a job of its report has no figures"))
    }

    fn from_job(job: &Value) -> Option<Measurement> {
        let count = |direction: &str| job[direction]["total_ios"].as_u64();
        let (ios, ours) = (count("read")? + count("write")?, &job["uringfs"]);
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

    /// For people: what the clock counted, all that ran included; before it, where the threads did
    /// not run all the time, what they themselves did.
    pub fn text(&self) -> String {
        // Ticks of the kernel and a thread's beginning are part of the difference.
        const WAITED: f64 = 0.98;
        let (instructions, ns) = (self.instructions_per_io, self.virtual_ns_per_io);
        if instructions > ns * WAITED {
            grouped(ns)
        } else {
            format!("{} in {} ns", grouped(instructions), grouped(ns))
        }
    }

    /// For programs.
    pub fn json(&self, column: &Column, target: &str) -> Value {
        json!({
            "engine": column.engine,
            "target": target,
            "instructions_per_io": self.instructions_per_io,
            "virtual_ns_per_io": self.virtual_ns_per_io,
            "ios": self.ios,
            "queue": self.queue,
            "tier": self.tier,
            "counters": self.counters,
        })
    }
}

/// A whole number with commas.
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
    fn a_report_becomes_a_cell_a_job() {
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
    fn numbers_are_grouped() {
        assert_eq!(
            [7.4, 999.6, 65_536.0, 1_234_567.0].map(grouped),
            ["7", "1,000", "65,536", "1,234,567"]
        );
    }
}
