//! The rounds of a sweep: files are laid out once, each cell runs once uncounted, then each round has every cell once.

use super::cell::Cell;
use super::grid::Grid;
use super::results::{Results, Round, jobs};
use crate::Error;
use crate::compare::{
    Layout, Machine, RunNotes, add_new, is_too_late, job_notes, measure, unregistered,
};
use crate::random::Random;
use crate::run::{Overwrite, RunProgress};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The conditions of a sweep.
#[derive(Debug)]
pub struct Conditions<'a> {
    /// The number of rounds.
    pub rounds: u32,
    /// No round but the first begins that would probably end later.
    pub max_time: Option<Duration>,
    /// The seed of the order within the rounds.
    pub seed: u64,
    /// Whether existing data may be overwritten.
    pub overwrite: Overwrite,
    /// Set by Ctrl-C; ends the sweep.
    pub stop: &'a AtomicBool,
    /// Receives the progress.
    pub progress: &'a RunProgress,
}

/// Runs the cells of a grid. All of them are checked before the first one runs.
///
/// # Errors
/// A cell cannot run its jobs, or one failed; the error names the cell. After Ctrl-C there is no error if a round has ended: the
/// results are incomplete.
pub fn run(grid: &Grid, cells: &[Cell], conditions: &Conditions<'_>) -> Result<Results, Error> {
    let (stop, progress) = (conditions.stop, conditions.progress);
    let plan = |cell: &Cell| {
        let plan = cell.side.plan(&cell.set, conditions.overwrite);
        plan.map_err(|error| error.at(&cell.label))
    };
    let plans = cells.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
    let sets: Vec<_> = cells.iter().map(|cell| &cell.set).collect();
    let mut layout = Layout::new(plans.into_iter().zip(sets.iter().copied()));
    let mut machine = Machine::before();
    let began = Instant::now();
    let mut rounds: Vec<Round> = Vec::new();
    let mut run_notes = RunNotes::new(cells.len());
    let sides: Vec<_> = cells.iter().map(|cell| (&cell.side, &cell.set)).collect();
    unregistered(&sides).iter().for_each(|(cell, note)| run_notes.add_note(*cell, note));
    let mut measured = || -> Result<(), Error> {
        layout.create(stop, progress)?;
        let measure = |cell: &Cell| {
            measure(&cell.side.source, &cell.set, stop).map_err(|error| error.at(&cell.label))
        };
        for (index, cell) in cells.iter().enumerate() {
            progress.set_activity(&format!("warming up cell {} of {}", index + 1, cells.len()));
            run_notes.add(index, &measure(cell)?);
        }
        let mut random = Random::new(conditions.seed);
        let mut order: Vec<usize> = (0..cells.len()).collect();
        let began = Instant::now();
        for number in 1..=conditions.rounds {
            if is_too_late(began, number - 1, conditions.max_time) {
                break;
            }
            random.shuffle(&mut order);
            let mut round: Round = vec![Vec::new(); cells.len()];
            for (done, index) in order.iter().enumerate() {
                let all = cells.len();
                progress.set_activity(&format!("round {number}, cell {} of {all}", done + 1));
                round[*index] = measure(&cells[*index])?;
                run_notes.add(*index, &round[*index]);
            }
            rounds.push(round);
        }
        Ok(())
    };
    let ended = measured();
    let incomplete = layout.end(ended, rounds.len())?;
    machine.finish();
    let mut notes = job_notes(&sets);
    let named = |members: &[usize]| {
        let label = &cells[members[0]].label;
        match members.len() {
            1 => label.clone(),
            2 => format!("{label}, and another cell"),
            all => format!("{label}, and {} other cells", all - 1),
        }
    };
    add_new(&mut notes, run_notes.lines(named));
    Ok(Results {
        grid: grid.clone(),
        shared_keys: cells.first().map_or(Vec::new(), |cell| cell.shared_keys.clone()),
        jobs: jobs(&rounds, grid.columns()),
        rounds: rounds.len(),
        seed: conditions.seed,
        seconds: began.elapsed().as_secs_f64(),
        machine,
        files_made: layout.names(),
        notes,
        incomplete,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::job::UnknownKeys;
    use crate::sweep::json;
    use std::sync::atomic::Ordering;

    /// Sweeps `job`, in which `${DIR}` is a folder that has nothing but the job file.
    fn swept(
        lists: &[&str],
        keys: &[&str],
        job: &str,
        change: impl FnOnce(&mut Conditions<'_>),
    ) -> Result<Results, Error> {
        let owned =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j.fio");
        std::fs::write(&path, job).unwrap();
        let directory = folder.path().display().to_string();
        let lookup = |name: &str| (name == "DIR").then(|| directory.clone());
        let grid = Grid::parse(&owned(lists)).unwrap();
        let cells = Cell::all(&grid, &owned(keys), &[path], &lookup, UnknownKeys::Refuse).unwrap();
        let (stop, progress) = (AtomicBool::new(false), RunProgress::default());
        let mut conditions = Conditions {
            rounds: 6,
            max_time: None,
            seed: 1,
            overwrite: Overwrite::Refuse,
            stop: &stop,
            progress: &progress,
        };
        change(&mut conditions);
        let results = run(&grid, &cells, &conditions);
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        let made = results.as_ref().map_or(0, |results| results.files_made.len());
        assert_eq!(left, 1 + made, "files that were laid out");
        results
    }

    /// Jobs with a fixed number of I/Os, so that no test depends on time.
    const JOB: &str = "[global]\nbs=4k\nrw=randread\ndirect=0\n[x]\nfilename=${DIR}/f\nsize=64k\n[y]\nstonewall\n\
                       filename=${DIR}/g\nsize=128k\n";

    #[test]
    fn each_round_has_every_cell() {
        let results = swept(&["bs=4k,8k", "engine=psync,threads"], &[], JOB, |_| {}).unwrap();
        assert_eq!((results.rounds, results.incomplete, results.files_made.len()), (6, false, 2));
        assert_eq!(results.jobs.iter().map(|job| &*job.job).collect::<Vec<_>>(), ["x", "y"]);
        for job in &results.jobs {
            let figure =
                |name: &str| job.figures.iter().find(|figure| figure.name == name).unwrap();
            for name in ["rate", "read p99", "CPU per I/O", "system calls per I/O"] {
                let cells = &figure(name).cells;
                assert!(cells.iter().all(|cell| cell.values.len() == 6), "{name}: {cells:?}");
                let with_gain: Vec<bool> = cells.iter().map(|cell| cell.gain.is_some()).collect();
                assert_eq!(with_gain, [false, true, false, true]);
            }
            assert!(
                figure("rate").cells.iter().all(|cell| cell.values.iter().all(|rate| *rate > 0.0))
            );
            // One `pread` an I/O in each engine.
            assert_eq!(figure("system calls per I/O").cells[0].values, [1.0; 6]);
            let gain = figure("rate").cells[1].gain.unwrap();
            assert!(gain.low <= gain.ratio && gain.ratio <= gain.high, "{gain:?}");
        }
    }

    #[test]
    fn a_key_without_effect_is_noted_with_its_cells() {
        let lists = ["iodepth=1,2,4", "engine=psync,uringfs"];
        let results = swept(&lists, &[], JOB, |conditions| conditions.rounds = 1).unwrap();
        for note in [
            "--over iodepth=1 --over engine=uringfs, and 2 other cells: direct=0 had no effect",
            "--over iodepth=2 --over engine=psync, and another cell: iodepth has no effect",
        ] {
            let begins = results.notes.iter().filter(|line| line.starts_with(note));
            assert_eq!(begins.count(), 1, "{:?}", results.notes);
        }
    }

    #[test]
    fn a_value_of_a_target_needs_no_files() {
        let lists = ["target=null:1m,null:2m"];
        let results = swept(&lists, &[], JOB, |conditions| conditions.rounds = 1).unwrap();
        assert_eq!((results.rounds, results.files_made.len(), results.jobs.len()), (1, 0, 2));
        // The fast path of the library, which every I/O takes.
        let counters = &json(&results)["jobs"][0]["cells"][1]["counters"];
        assert!(counters.as_object().is_some_and(|counters| !counters.is_empty()), "{counters}");
    }

    #[test]
    fn a_cell_that_cannot_run_is_named_before_anything_is_written() {
        let lists = ["engine=psync,ring", "target=${DIR}/f,null:1k"];
        let error = swept(&lists, &[], JOB, |_| {}).unwrap_err().to_string();
        let label = "--over engine=psync --over target=null:1k: ";
        assert!(error.starts_with(label) && error.contains("virtual targets"), "{error}");
    }

    #[test]
    fn files_have_the_size_of_the_largest_cell() {
        let job = "[x]\nbs=4k\nrw=read\ndirect=0\nfilename=${DIR}/f\n";
        let lists = ["size=16k,64k,32k"];
        let results = swept(&lists, &["engine=psync"], job, |conditions| conditions.rounds = 1);
        assert_eq!(results.unwrap().files_made.len(), 1);
    }

    #[test]
    fn existing_files_are_overwritten_only_with_consent() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 1 << 16]).unwrap();
        let target = format!("target={}", file.path().display());
        let job = JOB.replace("128k", "64k");
        let (lists, keys) = (["rw=read,write"], ["engine=psync", &target]);
        let error = swept(&lists, &keys, &job, |_| {}).unwrap_err().to_string();
        assert!(error.contains("--over rw=write: ") && error.contains("--overwrite"), "{error}");
        assert_eq!(std::fs::read(file.path()).unwrap(), vec![7; 1 << 16]);
        let allowed = swept(&lists, &keys, &job, |conditions| {
            conditions.overwrite = Overwrite::Allow;
        });
        assert!(allowed.unwrap().files_made.is_empty());
    }

    #[test]
    fn an_interrupt_before_the_first_round_removes_the_files() {
        let interrupted = swept(&["engine=psync,threads"], &[], JOB, |conditions| {
            conditions.stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(interrupted.unwrap_err().kind(), ErrorKind::Interrupted);
    }

    #[test]
    fn a_limit_of_time_ends_after_the_first_round() {
        let results = swept(&["engine=psync,threads"], &[], JOB, |conditions| {
            conditions.max_time = Some(Duration::ZERO);
        });
        let results = results.unwrap();
        let gain = results.jobs[0].figures[0].cells[1].gain.unwrap();
        assert_eq!((results.rounds, results.incomplete), (1, false));
        assert!(gain.ratio > 0.0 && gain.low.is_nan());
    }
}
