//! The rounds in guests whose clock counts instructions.

use super::rounds::{Conditions, Measured, Repeats, Rounds};
use super::series::Round;
use crate::compare::{JobFigures, RunNotes, Side, SideSource, add_new, job_notes, job_words};
use crate::engine::{EngineConfig, EngineKind, fio};
use crate::job::{JobSet, UnknownKeys};
use crate::random::Random;
use crate::vm::GuestRunner;
use crate::vm::guest::{GuestDevice, StorageKind};
use crate::vm::jobs::parse_for_volume;
use crate::{Error, ErrorKind};
use std::path::PathBuf;
use std::time::Instant;

/// The only device of guests on which equal runs have equal figures.
const DEVICE: GuestDevice = GuestDevice::NullBlk;

/// The jobs of a side on a file in a volume.
pub(super) fn jobs(side: &Side, files: &[PathBuf], unknown: UnknownKeys) -> Result<JobSet, Error> {
    engine(side)?;
    parse_for_volume(files, DEVICE, unknown, |parser| side.replace_keys(parser))
}

/// Runs the rounds, each in a guest that has just booted.
///
/// # Errors
/// A guest or a job failed. After Ctrl-C there is no error if a round has ended: the result is incomplete.
pub(super) fn measure_rounds(
    runner: &GuestRunner<'_>,
    side: &Side,
    set: &JobSet,
    conditions: &Conditions<'_>,
    repeats: Repeats<'_>,
) -> Result<Measured, Error> {
    let command = side_command(engine(side)?, set);
    let control = control_command(set);
    let began = Instant::now();
    let mut random = Random::new(conditions.seed);
    let mut rounds = Rounds::default();
    let mut run_notes = RunNotes::new(1);
    let measured = rounds.run(conditions.pairs, repeats, |_| {
        let mut turns = [("jobs", &command), ("control", &control)];
        random.shuffle(&mut turns);
        let commands = turns.map(|(name, command)| (name.to_owned(), command.clone()));
        let reports = runner.reports(DEVICE, commands.to_vec())?;
        let mut round = Round::default();
        for ((name, _), report) in turns.iter().zip(&reports) {
            let figures = JobFigures::from_report(report)?;
            run_notes.add(usize::from(*name == "control"), &figures);
            match *name {
                "control" => round.control = figures,
                _ => round.side = figures,
            }
        }
        Ok(round)
    });
    let incomplete = match measured {
        Ok(()) => false,
        Err(error) if error.kind() == ErrorKind::Interrupted && rounds.len() > 0 => true,
        Err(error) => return Err(error),
    };
    let provenance = runner.provenance()?;
    let word = |name: &str| provenance[name].as_str().unwrap_or_default().to_owned();
    let [jobs, second] = rounds.series();
    let mut notes = job_notes(&[set]);
    add_new(&mut notes, run_notes.lines(|_| "control".to_owned()));
    Ok(Measured {
        jobs,
        second,
        pairs: rounds.len(),
        seconds: began.elapsed().as_secs_f64(),
        machine: None,
        processor: format!("{}, {}", word("kernel_package"), word("qemu")),
        files_made: Vec::new(),
        notes,
        incomplete,
    })
}

/// The engine of a side, if the guest has it.
fn engine(side: &Side) -> Result<&EngineConfig, Error> {
    match &side.source {
        SideSource::Engine(config) if config.engine != EngineKind::Fio => Ok(config),
        SideSource::Engine(_) => Err(Error::input("--set: the guest has no fio")),
        SideSource::Program { .. } => Err(Error::input(
            "--set: exec= is for this machine; give the guest's program by --program",
        )),
        SideSource::Files(_) => unreachable!("files are read, not run"),
    }
}

/// `bench run` in a guest.
fn command(engine: &str) -> Vec<String> {
    let words = ["uringfs", "bench", "run", "--overwrite", "--output-format=json"];
    words.map(str::to_owned).into_iter().chain([format!("--engine={engine}")]).collect()
}

fn side_command(config: &EngineConfig, set: &JobSet) -> Vec<String> {
    let mut words = command(config.engine.name());
    words.extend(config.settings.iter().map(|(name, value)| format!("--set={name}={value}")));
    words.extend(set.jobs.iter().flat_map(job_words));
    words
}

/// The bare ring on a device of its own, as it cannot use the volume's.
fn control_command(set: &JobSet) -> Vec<String> {
    let mut words = command(EngineKind::Ring.name());
    let raw = format!("--filename={}", DEVICE.target(StorageKind::Raw));
    let on_raw = |word: String| if word.starts_with("--filename=") { raw.clone() } else { word };
    words.extend(fio::arguments(set).into_iter().map(on_raw));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(keys: &[&str]) -> Side {
        Side::parse(&keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_side_uses_the_volume_and_the_control_the_device() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.fio");
        std::fs::write(&file, "[x]\nrw=randread\nio_size=1m\ndirect.simple_read=on\n").unwrap();
        let side = side(&["completion=worker", "iodepth=4"]);
        let set = jobs(&side, &[file], UnknownKeys::Refuse).unwrap();
        let words = side_command(engine(&side).unwrap(), &set).join(" ");
        for part in [
            "bench run --overwrite",
            "--engine=uringfs --set=completion=worker --name=x",
            "--filename=/dev/nullb3:/file",
            "--iodepth=4",
            "--direct.simple_read=on",
        ] {
            assert!(words.contains(part), "no `{part}` in {words}");
        }
        let words = control_command(&set).join(" ");
        assert!(
            words.contains("--engine=ring --name=x") && words.contains("--filename=/dev/nullb0 "),
            "{words}"
        );
        assert!(!words.contains("nullb3") && !words.contains("simple_read"), "{words}");
    }

    #[test]
    fn fio_is_refused() {
        let error = jobs(&side(&["engine=fio"]), &[], UnknownKeys::Refuse).unwrap_err().to_string();
        assert!(error.contains("no fio"), "{error}");
    }
}
