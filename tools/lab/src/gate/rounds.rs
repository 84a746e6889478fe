//! The rounds of a recording or a gate: the jobs of the side and the bare ring, once each, in random order.

use super::series::{JobSeries, Round};
use crate::Error;
use crate::compare::{Control, Layout, Machine, Side, job_notes, measure};
use crate::job::JobSet;
use crate::random::Random;
use crate::run::{Overwrite, RunProgress};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The conditions of a recording or a gate.
#[derive(Debug)]
pub struct Conditions<'a> {
    /// The number of rounds.
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

/// What the rounds have measured.
#[derive(Debug)]
pub(super) struct Measured {
    pub jobs: Vec<JobSeries>,
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
    let mut rounds = Vec::new();
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
            run(*is_control)?;
        }
        let mut random = Random::new(conditions.seed);
        for pair in 1..=conditions.pairs {
            progress.set_activity(&format!("pair {pair} of {}", conditions.pairs));
            random.shuffle(&mut turns);
            let mut round = Round::default();
            for is_control in &turns {
                let figures = run(*is_control)?;
                match is_control {
                    true => round.control = figures,
                    false => round.side = figures,
                }
            }
            rounds.push(round);
        }
        Ok(())
    };
    let ended = measured();
    let incomplete = layout.end(ended, rounds.len())?;
    machine.finish();
    Ok(Measured {
        jobs: JobSeries::from_rounds(&rounds),
        pairs: rounds.len(),
        seconds: began.elapsed().as_secs_f64(),
        processor: machine.model.clone(),
        machine: Some(machine),
        files_made: layout.names(),
        notes,
        incomplete,
    })
}
