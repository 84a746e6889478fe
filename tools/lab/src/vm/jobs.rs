//! Runs the user's work in a guest: fio jobs in each column of the table, and experiments.

use super::GuestRunner;
use super::guest::{GuestDevice, PREPARED_MIB, Step, StorageKind};
use super::measurement::{Column, Measurement, job_columns};
use crate::Error;
use crate::engine::fio;
use crate::experiments;
use crate::job::{JobSet, Parser, SizeOrPercent, UnknownKeys, environment};
use crate::report::Format;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The measurements of some jobs.
#[derive(Debug)]
pub struct Measurements {
    provenance: Value,
    device: GuestDevice,
    /// One list per column, with a measurement for each entry of its report: a thread, or a group.
    columns: Vec<Vec<Measurement>>,
}

/// Runs the jobs of [`parse`] in a guest, one step per column.
///
/// # Errors
/// A job fails.
pub fn run(
    runner: &GuestRunner<'_>,
    device: GuestDevice,
    sets: &[JobSet],
) -> Result<Measurements, Error> {
    let steps = job_columns().zip(sets).map(|(column, set)| step(column, set)).collect();
    let results = runner.count(&[device], steps)?;
    let columns =
        results.iter().map(Measurement::list_from_result).collect::<Result<Vec<_>, _>>()?;
    Ok(Measurements { provenance: runner.provenance()?, device, columns })
}

/// Parses job files for each column, so that all errors in them are known before a guest boots. `${TARGET}`
/// is the column's target, and the default of `filename`. The default of `size` is the written part of the
/// target.
///
/// # Errors
/// A file is not a job file, or a job names another target or a larger size.
pub fn parse(files: &[PathBuf], device: GuestDevice) -> Result<Vec<JobSet>, Error> {
    let mut sets = Vec::new();
    for column in job_columns() {
        let target = device.target(column.storage);
        let lookup = |name: &str| match name {
            "TARGET" => Some(target.to_owned()),
            name => environment(name),
        };
        sets.push(parse_for(files, target, Parser::new(&lookup, UnknownKeys::Refuse))?);
    }
    Ok(sets)
}

/// Parses job files for a file in a volume, as [`parse`] does. `prepare` may give the parser keys that replace those of the files.
pub(crate) fn parse_for_volume(
    files: &[PathBuf],
    device: GuestDevice,
    unknown: UnknownKeys,
    prepare: impl FnOnce(&mut Parser<'_>),
) -> Result<JobSet, Error> {
    let target = device.target(StorageKind::Volume);
    let lookup = |name: &str| match name {
        "TARGET" => Some(target.to_owned()),
        name => environment(name),
    };
    let mut parser = Parser::new(&lookup, unknown);
    prepare(&mut parser);
    parse_for(files, target, parser)
}

fn parse_for(files: &[PathBuf], target: &str, mut parser: Parser<'_>) -> Result<JobSet, Error> {
    parser.argument("filename", Some(target))?;
    parser.argument("size", Some(&format!("{PREPARED_MIB}m")))?;
    for file in files {
        if file == Path::new("-") {
            return Err(Error::input(
                "-: a guest cannot take a job from standard input; give a job file",
            ));
        }
        parser.file(file)?;
    }
    let set = parser.finish()?;
    for job in &set.jobs {
        let options = &job.options;
        if options.filename.as_deref() != Some(target) || options.directory.is_some() {
            return Err(Error::input(format!(
                "job `{}`: names its own target; in a guest use ${{TARGET}}, or no target",
                job.name
            )));
        }
        if matches!(options.size, Some(SizeOrPercent::Bytes(bytes)) if bytes > PREPARED_MIB << 20) {
            return Err(Error::input(format!(
                "job `{}`: size: a target in a guest has {PREPARED_MIB} MiB; give less, or no size",
                job.name
            )));
        }
    }
    Ok(set)
}

/// The step of a column. The guest gets the parsed jobs as keys on a command line.
fn step(column: &Column, set: &JobSet) -> Step {
    let mut command = ["uringfs", "bench", "run", "--overwrite", "--output-format=json"]
        .map(str::to_owned)
        .to_vec();
    command.push(format!("--engine={}", column.engine));
    command.extend(fio::arguments(set));
    if column.engine == "uringfs" {
        let settings = set.jobs.iter().flat_map(|job| &job.options.settings);
        command.extend(settings.map(|(name, value)| format!("--set={name}={value}")));
    }
    Step { name: column.name.replace(", ", "-"), command }
}

/// The jobs' names, each with its measurements in all columns.
fn rows(
    measured: &Measurements,
) -> impl Iterator<Item = (&str, impl Iterator<Item = &Measurement>)> {
    let measurements = |index| measured.columns.iter().filter_map(move |column| column.get(index));
    measured.columns[0]
        .iter()
        .enumerate()
        .map(move |(index, measurement)| (&*measurement.job, measurements(index)))
}

/// The measurements as a table.
pub fn table(measured: &Measurements) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["job"].into_iter().chain(job_columns().map(|column| column.name)));
    for (job, measurements) in rows(measured) {
        table.add_row([job.to_owned()].into_iter().chain(measurements.map(Measurement::text)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{}{}{table}\n", super::heading(&measured.provenance), measured.device.heading())
}

/// The measurements as JSON.
pub fn json(measured: &Measurements) -> Value {
    let jobs = rows(measured).map(|(job, measurements)| {
        let columns = job_columns().zip(measurements).map(|(column, measurement)| {
            measurement.json(column, measured.device.target(column.storage))
        });
        json!({"job": job, "columns": columns.collect::<Vec<_>>()})
    });
    let mut document: Map<String, Value> =
        measured.provenance.as_object().cloned().unwrap_or_default();
    document.insert("device".into(), measured.device.name().into());
    document.insert("jobs".into(), jobs.collect());
    document.into()
}

/// Runs an experiment on the raw device of a guest. Returns its output: text, or JSON.
pub fn experiment(
    runner: &GuestRunner<'_>,
    device: GuestDevice,
    name: &str,
    format: Format,
) -> Result<String, Error> {
    // In a counting guest equal runs have equal figures, so that the fewest pairs of short runs are enough. The times are the guest's.
    const OPTIONS: [&str; 4] = ["--pairs", "6", "--set", "runtime=10ms"];
    const SHORT_RAMP: [&str; 2] = ["--set", "ramp_time=40ms"];
    let found = experiments::find(name)?;
    let target = device.target(StorageKind::Raw);
    let mut command =
        vec!["uringfs", "bench", "experiment", name, "--overwrite", "--target", target];
    command.extend(OPTIONS);
    let mut cases = found.iter().flat_map(|found| &found.cases);
    if cases.all(|case| case.keys.iter().any(|(key, _)| *key == "ramp_time")) {
        command.extend(SHORT_RAMP);
    }
    if format == Format::Json {
        command.push("--json");
    }
    let command = command.into_iter().map(str::to_owned).collect();
    let results = runner.count(&[device], vec![Step { name: name.to_owned(), command }])?;
    let output = results.into_iter().map(|result| result.output).collect::<String>();
    let provenance = runner.provenance()?;
    Ok(match format {
        Format::Normal => format!("{}{}{output}\n", super::heading(&provenance), device.caveat()),
        Format::Json => format!("{:#}\n", with_provenance(&provenance, &output)?),
    })
}

/// The guest's JSON, with the provenance added.
fn with_provenance(provenance: &Value, output: &str) -> Result<Value, Error> {
    let report: Map<String, Value> = serde_json::from_str(output)
        .map_err(|error| Error::run("in the guest: its report is not JSON").because(error))?;
    let mut document = provenance.as_object().cloned().unwrap_or_default();
    document.extend(report);
    Ok(document.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_have_the_provenance() {
        let provenance = json!({"kernel": "6.12"});
        let of = |output: &str| with_provenance(&provenance, output);
        let expected = json!({"kernel": "6.12", "experiments": [{}]});
        assert_eq!(of(r#"{"experiments": [{}]}"#).unwrap(), expected);
        assert!(of("no luck").unwrap_err().to_string().contains("not JSON"));
    }
}
