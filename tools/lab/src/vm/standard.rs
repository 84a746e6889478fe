//! The standard table: the cost of a 4 KiB random read or write on the raw device, on ext4, on XFS, and by
//! this stack on the raw device and in a volume, there also by batch, for each way to get completions and each depth.

use super::guest::{GuestDevice, PREPARED_MIB, Step, StepResult};
use super::measurement::{COLUMNS, Column, Measurement};
use super::{GuestRunner, reference_figures};
use crate::Error;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

/// A row: reads or overwrites, the depth, the way to get completions.
struct Row {
    name: &'static str,
    rw: &'static str,
    depth: u32,
    polled: bool,
    registered: bool,
}

const fn reads(name: &'static str, depth: u32, polled: bool, registered: bool) -> Row {
    Row { name, rw: "randread", depth, polled, registered }
}

const fn writes(name: &'static str, depth: u32, polled: bool, registered: bool) -> Row {
    Row { name, rw: "randwrite", depth, polled, registered }
}

const ROWS: &[Row] = &[
    reads("reads, polled, registered", 128, true, true),
    reads("reads, not polled, registered", 128, false, true),
    reads("reads, polled, plain", 128, true, false),
    reads("reads, polled, registered", 1, true, true),
    reads("reads, not polled, registered", 1, false, true),
    writes("writes, polled, registered", 128, true, true),
    writes("writes, not polled, registered", 128, false, true),
    writes("writes, polled, registered", 1, true, true),
];

/// The measurements of a row, one per column.
#[derive(Debug)]
struct RowMeasurements {
    measurements: Vec<Measurement>,
    /// Interrupts of the device's queues during the row; `None` for a device without interrupts.
    interrupts: Option<u64>,
}

/// The measurements of the table.
#[derive(Debug)]
pub struct Measurements {
    provenance: Value,
    /// Each device with its rows, in the order of [`ROWS`].
    devices: Vec<(GuestDevice, Vec<RowMeasurements>)>,
}

/// Measures the table on `devices`, in one guest.
pub fn run(runner: &GuestRunner<'_>, devices: &[GuestDevice]) -> Result<Measurements, Error> {
    let mut steps = Vec::new();
    for device in devices {
        for row in ROWS {
            steps.extend(interrupts(*device));
            steps.extend(COLUMNS.iter().map(|column| step(*device, row, column)));
            steps.extend(interrupts(*device));
        }
    }
    let results = runner.count(devices, steps)?;
    let (mut rest, mut measured) = (&results[..], Vec::new());
    for device in devices {
        let readings = 2 * usize::from(interrupts(*device).is_some());
        let results_of_device = rest.split_off(..ROWS.len() * (COLUMNS.len() + readings));
        let rows = results_of_device.expect("one for each step").chunks(COLUMNS.len() + readings);
        measured.push((*device, rows.map(row_measurements).collect::<Result<_, _>>()?));
    }
    Ok(Measurements { provenance: runner.provenance()?, devices: measured })
}

/// The measurements of a row, from the results of its steps: a report per column, between two readings of
/// the interrupts if the device has any.
fn row_measurements(results: &[StepResult]) -> Result<RowMeasurements, Error> {
    let (readings, reads): (Vec<_>, Vec<_>) =
        results.iter().partition(|result| result.step == INTERRUPTS);
    let counts =
        readings.iter().map(|reading| reading.output.parse::<u64>()).collect::<Result<Vec<_>, _>>();
    let counts = counts.map_err(|error| Error::run(INTERRUPTS).because(error))?;
    let interrupts = match counts[..] {
        [before, after] => Some(after.saturating_sub(before)),
        _ => None,
    };
    let measurements = reads
        .into_iter()
        .map(Measurement::list_from_result)
        .collect::<Result<Vec<_>, _>>()?
        .concat();
    Ok(RowMeasurements { measurements, interrupts })
}

/// The name of the step that reads the interrupts.
const INTERRUPTS: &str = "interrupts";

/// The step that reads the interrupts of a device's I/O queues, if it has any.
fn interrupts(device: GuestDevice) -> Option<Step> {
    match device {
        GuestDevice::NullBlk => None,
        GuestDevice::Nvme => {
            // Queue 0 of a controller is the admin queue.
            let program = "/nvme[0-9]+q[1-9]/ { sum += $2 } END { print sum + 0 }";
            let command = ["awk", program, "/proc/interrupts"].map(str::to_owned).to_vec();
            Some(Step { name: INTERRUPTS.into(), command })
        }
    }
}

fn step(device: GuestDevice, row: &Row, column: &Column) -> Step {
    // Enough to hide one-time costs, while the whole table takes about a minute.
    let ios = if row.depth == 1 { 8_192 } else { 32_768 };
    let target = device.target(column.storage);
    let batch = row.depth.min(32);
    let mut command = format!(
        "uringfs bench run --name=x --filename={target} --engine={} --rw={} --overwrite --bs=4k \
         --direct=1 --size={PREPARED_MIB}m --io_size={}k --norandommap --gtod_reduce=1 \
         --iodepth={} --iodepth_batch_submit={batch} --iodepth_batch_complete_min={batch} \
         --iodepth_batch_complete_max={batch} --output-format=json",
        column.engine,
        row.rw,
        ios * 4,
        row.depth,
    );
    if row.polled {
        command += " --hipri";
    }
    if column.batch {
        command += " --batch=on";
    }
    if column.engine == "uringfs" {
        let registered = if row.registered { "on" } else { "off" };
        command += &format!(
            " --set device.queue=ring --set ring.fixed_files={registered} \
             --set ring.fixed_buffers={registered}"
        );
    } else if row.registered {
        command += " --registerfiles --fixedbufs";
    }
    let command = command.split_whitespace().map(str::to_owned).collect();
    let name = format!("{}:{}:{}:{}", device.name(), row.name, row.depth, column.name);
    Step { name: name.replace(", ", "-").replace(' ', "-"), command }
}

/// The measurements as a table.
pub fn table(measured: &Measurements) -> String {
    let mut text = super::heading(&measured.provenance);
    for (device, rows) in &measured.devices {
        text += &format!("\n{}{}\n", device.heading(), device_table(rows));
    }
    text + &reference_figures::text()
}

fn device_table(rows: &[RowMeasurements]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let names = COLUMNS.iter().map(|column| column.name);
    table.set_header(["4 KiB, random", "depth"].into_iter().chain(names).chain(["interrupts"]));
    for (row, row_measurements) in ROWS.iter().zip(rows) {
        let mut words = vec![row.name.to_owned(), row.depth.to_string()];
        words.extend(row_measurements.measurements.iter().map(Measurement::text));
        words.push(row_measurements.interrupts.map_or("-".to_owned(), |count| count.to_string()));
        table.add_row(words);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The measurements as JSON.
pub fn json(measured: &Measurements) -> Value {
    let mut rows = Vec::new();
    for (device, device_rows) in &measured.devices {
        for (row, RowMeasurements { measurements, interrupts }) in ROWS.iter().zip(device_rows) {
            let columns = COLUMNS.iter().zip(measurements);
            let columns = columns.map(|(column, measurement)| {
                measurement.json(column, device.target(column.storage))
            });
            rows.push(json!({
                "device": device.name(),
                "rw": row.rw,
                "depth": row.depth,
                "polled": row.polled,
                "registered": row.registered,
                "exact": *device == GuestDevice::NullBlk,
                "interrupts": interrupts,
                "columns": columns.collect::<Vec<_>>(),
            }));
        }
    }
    let mut document: Map<String, Value> =
        measured.provenance.as_object().cloned().unwrap_or_default();
    document.insert("rows".into(), rows.into());
    document.insert("published".into(), reference_figures::json());
    document.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(step: &str, output: &str) -> StepResult {
        StepResult { step: step.into(), code: 0, output: output.into() }
    }

    #[test]
    fn interrupts_are_counted_if_the_device_has_them() {
        let report = r#"{"jobs": [{
            "jobname": "j", "read": {"total_ios": 1}, "write": {"total_ios": 0},
            "uringfs": {"cpu_ns_per_io": 1, "span_ns": 1, "tier": "", "queue": "", "counters": {}}
        }]}"#;
        let readings = [result(INTERRUPTS, "7"), result("r", report), result(INTERRUPTS, "9")];
        let of = |results: &[StepResult]| {
            let row = row_measurements(results).unwrap();
            (row.measurements.len(), row.interrupts)
        };
        assert_eq!((of(&readings), of(&readings[1..2])), ((1, Some(2)), (1, None)));
        assert!(row_measurements(&[result(INTERRUPTS, "many")]).is_err());
    }

    #[test]
    fn only_the_last_column_is_by_batch() {
        let is_by_batch = |column| {
            let step = step(GuestDevice::NullBlk, &ROWS[0], column);
            (step.command.contains(&"--batch=on".to_owned()), step.name)
        };
        let name = |column: &str| format!("null_blk:reads-polled-registered:128:{column}");
        let [.., volume, batch] = &COLUMNS;
        assert_eq!(is_by_batch(volume), (false, name("uringfs-volume")));
        assert_eq!(is_by_batch(batch), (true, name("uringfs-volume-by-batch")));
    }

    #[test]
    fn a_row_without_interrupts_shows_a_dash() {
        let measurement = Measurement {
            job: "j".into(),
            instructions_per_io: 5.0,
            virtual_ns_per_io: 5.0,
            ios: 1,
            tier: String::new(),
            queue: String::new(),
            counters: Value::Null,
        };
        let rows = |interrupts: &[Option<u64>]| -> Vec<_> {
            let measurements = vec![measurement.clone(); COLUMNS.len()];
            let row = |count: &Option<u64>| RowMeasurements {
                measurements: measurements.clone(),
                interrupts: *count,
            };
            interrupts.iter().map(row).collect()
        };
        let devices =
            vec![(GuestDevice::NullBlk, rows(&[None])), (GuestDevice::Nvme, rows(&[Some(3)]))];
        let measured = Measurements { provenance: json!({}), devices };
        let text = table(&measured);
        let rows: Vec<_> = text.lines().filter(|line| line.contains(ROWS[0].name)).collect();
        assert!(rows[0].trim_end().ends_with('-') && rows[1].trim_end().ends_with('3'), "{text}");
        let json = json(&measured);
        assert_eq!(
            [&json["rows"][0]["interrupts"], &json["rows"][1]["interrupts"]],
            [&Value::Null, &json!(3)]
        );
    }
}
