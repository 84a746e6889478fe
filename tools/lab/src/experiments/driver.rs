//! Runs the cases of an experiment: the order of runs, their time, and the results.

use super::case::{Case, CaseJob, Conditions, Experiment, Side, SideFigures, Sides, TargetChoice};
use super::side_runner::{SideRunner, new_file};
use crate::Error;
use crate::stats::{MedianInterval, median_interval};
use crate::targets::{Target, Volumes, inspect};

/// The result of one case: a row of the table.
#[derive(Debug)]
pub struct CaseResult {
    /// The case.
    pub case: Case,
    /// The I/O depth.
    pub depth: u32,
    /// The off side.
    pub a: SideFigures,
    /// The on side.
    pub b: SideFigures,
    /// The control.
    pub control: SideFigures,
    /// The further sides, in the order of [`Sides::beside`].
    pub beside: Vec<SideFigures>,
    /// The ratio b / a, over the pairs.
    pub ratio: MedianInterval,
    /// The ratio of neighbouring runs of a: the noise of this machine.
    pub noise: MedianInterval,
}

/// The results of an experiment.
#[derive(Debug)]
pub struct ExperimentResults {
    /// The experiment's name.
    pub experiment: &'static str,
    /// The target's name.
    pub target: String,
    /// The sides.
    pub sides: Sides,
    /// One per case that the target allows.
    pub cases: Vec<CaseResult>,
    /// See [`Experiment::counters`].
    pub counters: &'static [&'static str],
}

/// Inspects the targets of all cases and sides, without running anything.
///
/// # Errors
/// A target cannot or must not be used; [`run`] would give this error only when it reaches that target.
pub fn check(experiment: &Experiment, conditions: &Conditions<'_>) -> Result<(), Error> {
    let prepared = PreparedCases::new(experiment, conditions)?;
    let Sides { a, b, control, beside } = &experiment.sides;
    for case in &prepared.cases {
        for side in [a, b, control].into_iter().chain(beside) {
            SideRunner::new(&prepared.job, case, side, &prepared.target)?.check(conditions)?;
        }
    }
    Ok(())
}

/// Runs all cases.
pub fn run(
    experiment: &Experiment,
    conditions: &Conditions<'_>,
) -> Result<ExperimentResults, Error> {
    let prepared = PreparedCases::new(experiment, conditions)?;
    let mut cases = Vec::new();
    for (row, case) in prepared.cases.iter().enumerate() {
        let label = format!("{} {}/{}", experiment.name, row + 1, prepared.cases.len());
        cases.push(run_case(&prepared.job, case, &prepared.target, &label)?);
    }
    Ok(ExperimentResults {
        experiment: experiment.name,
        target: conditions.target.to_owned(),
        sides: experiment.sides.clone(),
        cases,
        counters: experiment.counters,
    })
}

/// The cases that a target allows, and the common part of their jobs.
struct PreparedCases<'a> {
    target: Target,
    cases: Vec<&'a Case>,
    job: CaseJob<'a>,
}

impl<'a> PreparedCases<'a> {
    fn new(experiment: &'a Experiment, conditions: &'a Conditions<'a>) -> Result<Self, Error> {
        let target = Target::parse(conditions.target);
        let is_possible =
            |case: &&Case| case.target == TargetChoice::Target || new_file(&target).is_some();
        let cases: Vec<&Case> = experiment.cases.iter().filter(is_possible).collect();
        let runs = conditions.pairs as usize * (3 + experiment.sides.beside.len());
        let seconds = conditions.seconds / (runs * cases.len().max(1)) as f64;
        let size = common_size(experiment, &target)?;
        Ok(Self { target, cases, job: CaseJob { experiment, conditions, seconds, size } })
    }
}

/// The size of the smallest file or target, if sides have files of their own.
fn common_size(experiment: &Experiment, target: &Target) -> Result<Option<u64>, Error> {
    let files = experiment.sides.beside.iter().filter_map(|side| side.file.clone());
    let targets: Vec<Target> = files.map(Target::Path).chain([target.clone()]).collect();
    if targets.len() == 1 {
        return Ok(None);
    }
    let size = |target| Ok(inspect(target, false, &mut Volumes::default())?.size());
    let sizes = targets.iter().map(size).collect::<Result<Vec<_>, Error>>()?;
    Ok(sizes.into_iter().min().filter(|size| *size > 0))
}

fn run_case(
    job: &CaseJob<'_>,
    case: &Case,
    target: &Target,
    label: &str,
) -> Result<CaseResult, Error> {
    let conditions = job.conditions;
    let runner = |side: &Side| SideRunner::new(job, case, side, target);
    let Sides { a, b, control, beside } = &job.experiment.sides;
    let (mut a, mut b, mut control) = (runner(a)?, runner(b)?, runner(control)?);
    let mut beside = beside.iter().map(runner).collect::<Result<Vec<_>, _>>()?;
    for pair in 0..conditions.pairs {
        conditions.progress.set_activity(&format!(
            "{label}, pair {}/{}",
            pair + 1,
            conditions.pairs
        ));
        control.measure(conditions)?;
        // Every second pair runs in the opposite order, so that a drift favours neither side.
        let (first, second) = if pair % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        first.measure(conditions)?;
        second.measure(conditions)?;
        beside.iter_mut().try_for_each(|side| side.measure(conditions))?;
    }
    let (depth, a, b) = (a.depth(), a.figures, b.figures);
    let ratios: Vec<f64> = b.iops.iter().zip(&a.iops).map(|(b, a)| b / a).collect();
    let noise_ratios: Vec<f64> = a.iops.windows(2).map(|two| two[1] / two[0]).collect();
    Ok(CaseResult {
        case: case.clone(),
        depth,
        ratio: median_interval(&ratios, 1),
        noise: median_interval(&noise_ratios, 2),
        a,
        b,
        control: control.figures,
        beside: beside.into_iter().map(|side| side.figures).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineKind;
    use crate::run::{Overwrite, RunProgress};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn sides_run_in_pairs_and_are_compared_pair_by_pair() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let side = |name: &str| Side::new(name, "psync", &[]).unwrap();
        let sides =
            Sides { a: side("a"), b: side("b"), control: side("c"), beside: vec![side("d")] };
        let keys = vec![("rw", "randread".into()), ("bs", "4k".into()), ("direct", "0".into())];
        let case = |what, keys| Case { what, target: TargetChoice::Target, keys };
        let cases = vec![case("", Vec::new()), case("larger", vec![("bs", "8k".into())])];
        let (kernel_engine, counters) = (EngineKind::Psync, &[][..]);
        let experiment = Experiment { name: "itself", sides, keys, cases, kernel_engine, counters };
        let conditions = Conditions {
            target: &file.path().display().to_string(),
            seconds: 0.4,
            pairs: 6,
            settings: &[],
            overwrite: Overwrite::Refuse,
            stop: &AtomicBool::new(false),
            progress: &RunProgress::default(),
        };
        let results = run(&experiment, &conditions).unwrap();
        assert_eq!(results.cases.len(), 2);
        for case in &results.cases {
            assert_eq!(
                [&case.a, &case.b, &case.control, &case.beside[0]].map(|m| m.iops.len()),
                [6; 4]
            );
            assert!(case.ratio.low <= case.ratio.median && case.ratio.median <= case.ratio.high);
            let mut ratios: Vec<f64> =
                case.b.iops.iter().zip(&case.a.iops).map(|(b, a)| b / a).collect();
            ratios.sort_by(f64::total_cmp);
            assert!(ratios[0] > 0.0 && ratios[5].is_finite(), "{ratios:?}");
            assert_eq!(case.ratio.median, (ratios[2] + ratios[3]) / 2.0);
        }
        let json = super::super::json(&results);
        assert!(json["cases"][1]["b"]["iops"].as_f64().unwrap() > 0.0);
        assert_eq!(json["cases"][1]["case"]["what"], "larger");
        let table = super::super::table(&results);
        assert!(table.contains("itself") && table.contains("larger"), "{table}");
    }
}
