//! The standard table: what a 4 KiB random read costs on the raw device, through ext4, through XFS,
//! and through this stack on the raw device, by the way completions are had and by depth.

use super::cell::{COLUMNS, Cell, Column};
use super::guest::{Answer, GuestDevice, PREPARED_MIB, Step};
use super::{Laboratory, published};
use crate::Error;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

/// A way of reading: a row.
struct Row {
    name: &'static str,
    depth: u32,
    polled: bool,
    registered: bool,
}

const ROWS: &[Row] = &[
    Row { name: "polled, registered", depth: 128, polled: true, registered: true },
    Row { name: "not polled, registered", depth: 128, polled: false, registered: true },
    Row { name: "polled, plain", depth: 128, polled: true, registered: false },
    Row { name: "polled, registered", depth: 1, polled: true, registered: true },
    Row { name: "not polled, registered", depth: 1, polled: false, registered: true },
];

/// A row's figures.
struct RowOfCells {
    cells: Vec<Cell>,
    /// Interrupts of the device's queues meanwhile.
    interrupts: u64,
}

/// The table, measured.
pub struct Measured {
    facts: Value,
    /// A device and its rows, in the order of [`ROWS`].
    devices: Vec<(GuestDevice, Vec<RowOfCells>)>,
}

/// Measures every cell on `devices`, in one guest.
pub fn run(laboratory: &Laboratory<'_>, devices: &[GuestDevice]) -> Result<Measured, Error> {
    let mut steps = Vec::new();
    for device in devices {
        for row in ROWS {
            steps.push(interrupts(*device));
            steps.extend(COLUMNS.iter().map(|column| read(*device, row, column)));
            steps.push(interrupts(*device));
        }
    }
    let answers = laboratory.count(devices, steps)?;
    let mut rows = answers.chunks(COLUMNS.len() + 2).map(row_of_cells);
    let mut measured = Vec::new();
    for device in devices {
        let of_device = rows.by_ref().take(ROWS.len()).collect::<Result<_, _>>()?;
        measured.push((*device, of_device));
    }
    Ok(Measured { facts: laboratory.facts()?, devices: measured })
}

/// The answers of a row's steps: the interrupts before, a report a column, the interrupts after.
fn row_of_cells(answers: &[Answer]) -> Result<RowOfCells, Error> {
    let [before, reads @ .., after] = answers else { unreachable!("that many steps were made") };
    let count = |answer: &Answer| {
        answer.output.parse::<u64>().map_err(|error| Error::run("interrupts").because(error))
    };
    let interrupts = count(after)?.saturating_sub(count(before)?);
    let cells = reads.iter().map(Cell::all_of).collect::<Result<Vec<_>, _>>()?.concat();
    Ok(RowOfCells { cells, interrupts })
}

/// A look at the interrupts that a device's queues for I/O have had.
fn interrupts(device: GuestDevice) -> Step {
    // The first queue of an NVMe controller is for its administration.
    let queues = match device {
        GuestDevice::NullBlk => "nullb",
        GuestDevice::Nvme => "nvme[0-9]+q[1-9]",
    };
    let program = format!("/{queues}/ {{ sum += $2 }} END {{ print sum + 0 }}");
    let command = ["awk", &program, "/proc/interrupts"].map(str::to_owned).to_vec();
    Step { name: "interrupts".into(), command }
}

fn read(device: GuestDevice, row: &Row, column: &Column) -> Step {
    // Enough that what happens once does not show, and the whole table takes less than a minute.
    let reads = if row.depth == 1 { 8_192 } else { 32_768 };
    let target = device.target(column.place);
    let batch = row.depth.min(32);
    let mut command = format!(
        "uringfs bench run --name=read --filename={target} --engine={} --rw=randread --bs=4k \
         --direct=1 --size={PREPARED_MIB}m --io_size={}k --norandommap --gtod_reduce=1 \
         --iodepth={} --iodepth_batch_submit={batch} --iodepth_batch_complete_min={batch} \
         --iodepth_batch_complete_max={batch} --output-format=json",
        column.engine,
        reads * 4,
        row.depth,
    );
    if row.polled {
        command += " --hipri";
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

/// For people.
pub fn table(measured: &Measured) -> String {
    let mut text = super::heading(&measured.facts);
    for (device, rows) in &measured.devices {
        text += &format!("\n{}\n{}\n", device.heading(), of_device(rows));
    }
    text + &published::text()
}

fn of_device(rows: &[RowOfCells]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let names = COLUMNS.iter().map(|column| column.name);
    table
        .set_header(["4 KiB random reads", "depth"].into_iter().chain(names).chain(["interrupts"]));
    for (row, row_of_cells) in ROWS.iter().zip(rows) {
        let mut words = vec![row.name.to_owned(), row.depth.to_string()];
        words.extend(row_of_cells.cells.iter().map(Cell::text));
        words.push(row_of_cells.interrupts.to_string());
        table.add_row(words);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// For programs.
pub fn json(measured: &Measured) -> Value {
    let mut rows = Vec::new();
    for (device, of_device) in &measured.devices {
        for (row, RowOfCells { cells, interrupts }) in ROWS.iter().zip(of_device) {
            let columns = COLUMNS.iter().zip(cells);
            let columns =
                columns.map(|(column, cell)| cell.json(column, device.target(column.place)));
            rows.push(json!({
                "device": device.name(),
                "depth": row.depth,
                "polled": row.polled,
                "registered": row.registered,
                "exact": *device == GuestDevice::NullBlk,
                "interrupts": interrupts,
                "columns": columns.collect::<Vec<_>>(),
            }));
        }
    }
    let mut document: Map<String, Value> = measured.facts.as_object().cloned().unwrap_or_default();
    document.insert("rows".into(), rows.into());
    document.insert("published".into(), published::json());
    document.into()
}
