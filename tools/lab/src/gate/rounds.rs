//! The rounds of a recording or a gate: the jobs of the side and the bare ring, once each, in random order. A gate may measure twice.

use super::series::{JobSeries, Round};
use crate::Error;
use crate::compare::{Control, Layout, Machine, RunNotes, Side, add_new, job_notes, measure};
use crate::job::JobSet;
use crate::random::Random;
use crate::run::{Overwrite, RunProgress};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The conditions of a recording or a gate.
#[derive(Debug)]
pub struct Conditions<'a> {
    /// The number of rounds of a measurement.
    pub pairs: u32,
    /// The seed of the order within the rounds.
    pub seed: u64,
    /// Whether existing data may be overwritten.
    pub overwrite: Overwrite,
    /// Set by Ctrl-C; ends the rounds.
    pub stop: &'a AtomicBool,
    /// Receives the progress.
    pub progress: &'a RunProgress,
}

/// Whether the jobs are to be measured once more, by their figures in the first measurement.
pub(super) type Repeats<'a> = &'a dyn Fn(&[JobSeries]) -> bool;

/// The rounds of the first measurement, and of the second one if there was one.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    first: Vec<Round>,
    second: Vec<Round>,
}

impl Rounds {
    /// Runs `pairs` rounds and, if `repeats` says so, as many again; `round` is given a name of each. After an error the
    /// rounds that have ended are there.
    pub fn run(
        &mut self,
        pairs: u32,
        repeats: Repeats<'_>,
        mut round: impl FnMut(&str) -> Result<Round, Error>,
    ) -> Result<(), Error> {
        for pair in 1..=pairs {
            self.first.push(round(&format!("pair {pair} of {pairs}"))?);
        }
        if repeats(&JobSeries::from_rounds(&self.first)) {
            for pair in 1..=pairs {
                self.second.push(round(&format!("second measurement: pair {pair} of {pairs}"))?);
            }
        }
        Ok(())
    }

    /// The number of rounds that have ended.
    pub fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// The series of the first measurement and of the second.
    pub fn series(&self) -> [Vec<JobSeries>; 2] {
        [&self.first, &self.second].map(|rounds| JobSeries::from_rounds(rounds))
    }
}

/// The measurements of the rounds.
#[derive(Debug)]
pub(super) struct Measured {
    pub jobs: Vec<JobSeries>,
    /// The jobs of the second measurement; empty without one.
    pub second: Vec<JobSeries>,
    /// The rounds of both measurements.
    pub pairs: usize,
    pub seconds: f64,
    /// The machine; `None` in a guest, which is the same on every machine.
    pub machine: Option<Machine>,
    /// The processor, or the guest.
    pub processor: String,
    pub files_made: Vec<String>,
    pub notes: Vec<String>,
    pub incomplete: bool,
}

/// Runs the rounds. The files of the jobs are laid out once, and stay.
///
/// # Errors
/// The jobs cannot run, or one failed. After Ctrl-C there is no error if a round has ended: the result is incomplete.
pub(super) fn measure_rounds(
    side: &Side,
    set: &JobSet,
    conditions: &Conditions<'_>,
    repeats: Repeats<'_>,
) -> Result<Measured, Error> {
    let (stop, progress) = (conditions.stop, conditions.progress);
    let plan = side.plan(set, conditions.overwrite)?;
    let mut notes = job_notes(&[set]);
    let control = Control::new(side, set);
    if let Err(why) = &control {
        notes.push(format!("no control, so that counters alone are judged: {why}"));
    }
    let mut layout = Layout::new([(plan, set)]);
    let mut machine = Machine::before();
    let began = Instant::now();
    let mut rounds = Rounds::default();
    let mut run_notes = RunNotes::new(1);
    let mut measured = || -> Result<(), Error> {
        layout.create(stop, progress)?;
        // The side, and whether it is the control's turn.
        let mut turns = vec![false];
        turns.extend(control.is_ok().then_some(true));
        let run = |is_control: bool| match &control {
            Ok(control) if is_control => control.measure(stop),
            _ => measure(&side.source, set, stop),
        };
        progress.set_activity("warming up");
        for is_control in &turns {
            run_notes.add(usize::from(*is_control), &run(*is_control)?);
        }
        let mut random = Random::new(conditions.seed);
        rounds.run(conditions.pairs, repeats, |name| {
            progress.set_activity(name);
            random.shuffle(&mut turns);
            let mut round = Round::default();
            for is_control in &turns {
                let figures = run(*is_control)?;
                run_notes.add(usize::from(*is_control), &figures);
                match is_control {
                    true => round.control = figures,
                    false => round.side = figures,
                }
            }
            Ok(round)
        })
    };
    let ended = measured();
    let incomplete = layout.end(ended, rounds.len())?;
    machine.finish();
    add_new(&mut notes, run_notes.lines(|_| "control".to_owned()));
    let [jobs, second] = rounds.series();
    Ok(Measured {
        jobs,
        second,
        pairs: rounds.len(),
        seconds: began.elapsed().as_secs_f64(),
        processor: machine.model.clone(),
        machine: Some(machine),
        files_made: layout.names(),
        notes,
        incomplete,
    })
}
