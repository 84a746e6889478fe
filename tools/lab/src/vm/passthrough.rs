//! The table of NVMe passthrough: what a 4 KiB random read or write takes by a bare loop and by this stack, on the block device of a namespace and by
//! commands to its character device.
//!
//! QEMU's NVMe device completes when the host gets to it, so a guest that polls for it would count its own spinning. Therefore the jobs have `waits_apart`:
//! each submits its whole depth, sleeps, and counts the instructions from the beginning of the fill to the end of the last submission, and those of the looks
//! that find completions. So no figure has the device's time in it, nor what backs the device.

use super::GuestRunner;
use super::guest::{PREPARED_MIB, Step, StepResult};
use super::machine::Profile;
use crate::Error;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

/// Runs of each cell, interleaved.
const RUNS: usize = 5;
/// From this difference of the greatest and the least run on, as a part of the least, there is no figure.
const MAX_SPREAD: f64 = 0.02;
const DEPTH: u32 = 128;
/// KiB that a run moves: the depth 80 times, of which a ramp of 100 ms leaves out the first few, with the one-time costs.
const IO_KIB: u32 = 80 * DEPTH * 4;

/// A row: reads or overwrites, with registered files and buffers or without. All are polled: an interrupt comes while the job sleeps, and would not be counted.
struct Row {
    name: &'static str,
    rw: &'static str,
    registered: bool,
}

const ROWS: &[Row] = &[
    Row { name: "reads, polled, registered", rw: "randread", registered: true },
    Row { name: "reads, polled, plain", rw: "randread", registered: false },
    Row { name: "writes, polled, registered", rw: "randwrite", registered: true },
];

/// A column: an engine on a namespace of its own. All namespaces are of one controller, and have the same backing.
struct Column {
    name: &'static str,
    engine: &'static str,
    target: &'static str,
}

const COLUMNS: [Column; 4] = [
    Column { name: "ring, block", engine: "ring", target: "/dev/nvme0n1" },
    Column { name: "nvme-passthru", engine: "nvme-passthru", target: "/dev/ng0n2" },
    Column { name: "uringfs volume, block", engine: "uringfs", target: "/dev/nvme0n3:/file" },
    Column { name: "uringfs volume, passthrough", engine: "uringfs", target: "/dev/ng0n4:/file" },
];

/// The script lines that prepare the targets, once the kernel has found all namespaces. Volumes are made by the block devices.
const PREPARE: &str = "for n in 1 2 3 4; do\n\
                           while [ ! -b /dev/nvme0n$n ] || [ ! -c /dev/ng0n$n ]; do sleep 0.1; done\n\
                       done\n\
                       prepare_file /dev/nvme0n1\nprepare_file /dev/nvme0n2\n\
                       prepare_volume /dev/nvme0n3\nprepare_volume /dev/nvme0n4\nsync\n";

/// The runs of one cell.
#[derive(Debug, Clone, PartialEq)]
struct Cell {
    /// Instructions per I/O of each run.
    runs: Vec<f64>,
    /// The engine's queue and tier.
    queue: String,
    tier: String,
    /// The counters of the last run.
    counters: Value,
}

impl Cell {
    /// The difference of the greatest and the least run, as a part of the least.
    fn spread(&self) -> f64 {
        let least = self.runs.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = self.runs.iter().copied().fold(0.0, f64::max);
        (greatest - least) / least
    }

    /// The median, unless the runs differ too much.
    fn figure(&self) -> Option<f64> {
        let mut sorted = self.runs.clone();
        sorted.sort_by(f64::total_cmp);
        (self.spread() < MAX_SPREAD).then(|| sorted[sorted.len() / 2])
    }

    fn text(&self) -> String {
        match self.figure() {
            Some(instructions) => format!("{instructions:.0}"),
            None => format!("no figure: spread {:.1} %", 100.0 * self.spread()),
        }
    }
}

/// The measurements of the table.
#[derive(Debug)]
pub struct Measurements {
    provenance: Value,
    /// The cells of each row.
    rows: Vec<Vec<Cell>>,
}

/// Measures the table in one guest.
///
/// # Errors
/// The guest fails, or a job in it.
pub fn run(runner: &GuestRunner<'_>) -> Result<Measurements, Error> {
    let mut steps = Vec::new();
    for row in ROWS {
        for run in 0..RUNS {
            steps.extend(COLUMNS.iter().map(|column| step(row, column, run)));
        }
    }
    let results = runner.count_in(Profile::CountingWork, &[], PREPARE, steps)?;
    let rows = results.chunks(RUNS * COLUMNS.len()).map(cells).collect::<Result<_, _>>()?;
    Ok(Measurements { provenance: runner.provenance()?, rows })
}

fn step(row: &Row, column: &Column, run: usize) -> Step {
    let Column { engine, target, .. } = column;
    let mut command = format!(
        "uringfs bench run --name=x --filename={target} --engine={engine} --rw={} --overwrite --bs=4k \
         --direct=1 --size={PREPARED_MIB}m --io_size={IO_KIB}k --norandommap --gtod_reduce=1 --hipri \
         --waits_apart --ramp_time=100ms --iodepth={DEPTH} --iodepth_batch_submit={DEPTH} --output-format=json",
        row.rw,
    );
    if *engine == "uringfs" {
        let registered = if row.registered { "on" } else { "off" };
        command += &format!(
            " --set device.queue=ring --set ring.fixed_files={registered} \
             --set ring.fixed_buffers={registered}"
        );
    } else if row.registered {
        command += " --registerfiles --fixedbufs";
    }
    let command = command.split_whitespace().map(str::to_owned).collect();
    let name = format!("{}:{}:{}", row.name, column.name, run + 1);
    Step { name: name.replace(", ", "-").replace(' ', "-"), command }
}

/// The cells of a row, from the results of its steps: run by run, the columns in order.
fn cells(results: &[StepResult]) -> Result<Vec<Cell>, Error> {
    let mut cells: Vec<Cell> = Vec::new();
    for (index, result) in results.iter().enumerate() {
        let one = cell(result)?;
        match cells.get_mut(index % COLUMNS.len()) {
            None => cells.push(one),
            Some(cell) => {
                cell.runs.extend(one.runs);
                cell.counters = one.counters;
            }
        }
    }
    Ok(cells)
}

/// The one run of a step.
fn cell(result: &StepResult) -> Result<Cell, Error> {
    let bad = || Error::run(format!("in the guest, {}: its report has no figures", result.step));
    let report: Value =
        serde_json::from_str(&result.output).map_err(|error| bad().because(error))?;
    let ours = &report["jobs"][0]["uringfs"];
    let word = |key: &str| ours[key].as_str().map(str::to_owned).ok_or_else(bad);
    Ok(Cell {
        runs: vec![ours["work_ns_per_io"].as_f64().ok_or_else(bad)?],
        queue: word("queue")?,
        tier: word("tier")?,
        counters: ours["counters"].clone(),
    })
}

/// The measurements as a table.
pub fn table(measured: &Measurements) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let names = COLUMNS.iter().map(|column| column.name);
    table.set_header([format!("4 KiB, random, depth {DEPTH}").as_str()].into_iter().chain(names));
    for (row, cells) in ROWS.iter().zip(&measured.rows) {
        table.add_row([row.name.to_owned()].into_iter().chain(cells.iter().map(Cell::text)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "{}\nnvme, passthrough: instructions per I/O, those of waits left out; medians of {RUNS} runs, none if they differ by {:.0} % or more\n\
         {table}\n",
        super::heading(&measured.provenance),
        100.0 * MAX_SPREAD
    )
}

/// The measurements as JSON, with their provenance.
pub fn json(measured: &Measurements) -> Value {
    let mut rows = Vec::new();
    for (row, cells) in ROWS.iter().zip(&measured.rows) {
        let columns = COLUMNS.iter().zip(cells).map(|(column, cell)| {
            json!({
                "engine": column.engine,
                "target": column.target,
                "instructions_per_io": cell.figure(),
                "spread": cell.spread(),
                "runs": cell.runs,
                "queue": cell.queue,
                "tier": cell.tier,
                "counters": cell.counters,
            })
        });
        rows.push(json!({
            "rw": row.rw,
            "depth": DEPTH,
            "polled": true,
            "registered": row.registered,
            "columns": columns.collect::<Vec<_>>(),
        }));
    }
    let mut document = measured.provenance.as_object().cloned().unwrap_or_default();
    document.insert("passthrough".into(), rows.into());
    document.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(work: &str) -> StepResult {
        let output = format!(
            r#"{{"jobs": [{{"uringfs": {{"work_ns_per_io": {work}, "queue": "q", "tier": "t", "counters": {{"c": 1}}}}}}]}}"#
        );
        StepResult { step: "s".into(), code: 0, output }
    }

    /// The results of a row whose runs of column `n` take `runs[run] + n`.
    fn results(runs: [u32; RUNS]) -> Vec<StepResult> {
        let columns =
            |run: u32| (0..COLUMNS.len() as u32).map(move |n| result(&(run + n).to_string()));
        runs.into_iter().flat_map(columns).collect()
    }

    #[test]
    fn a_cell_has_the_median_of_its_own_runs() {
        let cells = cells(&results([1000, 1010, 1005, 1002, 1001])).unwrap();
        let figures: Vec<_> = cells.iter().map(Cell::figure).collect();
        assert_eq!(figures, [1002.0, 1003.0, 1004.0, 1005.0].map(Some));
        assert_eq!(cells[0].text(), "1002");
    }

    #[test]
    fn runs_that_differ_by_the_bound_give_no_figure() {
        let cells = cells(&results([1000, 1000, 1020, 1000, 1000])).unwrap();
        assert_eq!(
            (cells[0].figure(), cells[0].text().as_str()),
            (None, "no figure: spread 2.0 %")
        );
        let measured = Measurements { provenance: json!({}), rows: vec![cells] };
        let column = &json(&measured)["passthrough"][0]["columns"][0];
        assert_eq!(
            (&column["instructions_per_io"], &column["runs"][2]),
            (&Value::Null, &json!(1020.0))
        );
        assert!(table(&measured).contains("no figure: spread 2.0 %"));
    }

    #[test]
    fn a_report_without_work_is_an_error() {
        for bad in ["null", "\"much\""] {
            let error = cell(&result(bad)).unwrap_err().to_string();
            assert_eq!(error, "in the guest, s: its report has no figures");
        }
    }

    #[test]
    fn each_run_has_all_columns_before_the_next() {
        let step = step(&ROWS[0], &COLUMNS[3], 4);
        assert_eq!(step.name, "reads-polled-registered:uringfs-volume-passthrough:5");
        let words = ["--waits_apart", "--filename=/dev/ng0n4:/file", "ring.fixed_files=on"];
        assert!(words.iter().all(|word| step.command.iter().any(|other| other == word)));
    }
}
