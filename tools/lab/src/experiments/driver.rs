//! Runs the cases of an experiment: who goes when, for how long, and what is kept.

use super::lane::{Lane, new_file};
use crate::Error;
use crate::engine::{EngineConfig, EngineKind};
use crate::run::{Live, Overwrite};
use crate::stats::{Interval, median, median_interval};
use crate::target::{Target, Volumes, inspect};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// One of the things compared.
#[derive(Debug, Clone)]
pub struct Side {
    /// What the table calls it.
    pub name: String,
    /// How its I/O is done.
    pub config: EngineConfig,
    /// The file that it reads and writes; without one the experiment's target.
    pub file: Option<PathBuf>,
    /// fio keys of this side alone.
    pub keys: Vec<(&'static str, String)>,
}

impl Side {
    /// An engine by name, with dotted switches.
    pub fn new(name: &str, engine: &str, settings: &[(&str, &str)]) -> Result<Self, Error> {
        let mut config = EngineConfig::new(engine.parse::<EngineKind>()?);
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        config.settings = settings.iter().map(owned).collect();
        Ok(Self { name: name.to_owned(), config, file: None, keys: Vec::new() })
    }
}

/// All that are compared in every case.
#[derive(Debug, Clone)]
pub struct Sides {
    /// The off side, as a rule.
    pub a: Side,
    /// The on side.
    pub b: Side,
    /// What both are held against.
    pub control: Side,
    /// Shown beside them.
    pub beside: Vec<Side>,
}

/// A table of cases over the same sides.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is compared.
    pub sides: Sides,
    /// fio keys that hold in every case.
    pub keys: Vec<(&'static str, String)>,
    /// One a row.
    pub cases: Vec<Case>,
    /// What reads and writes the files of the kernel's file systems.
    pub kernel: EngineKind,
    /// The counters that tell which way was taken, each by the beginning of its name.
    pub counters: &'static [&'static str],
}

/// One row of an experiment.
#[derive(Debug, Clone)]
pub struct Case {
    /// What sets it apart besides its depth, in words; empty if nothing does.
    pub what: &'static str,
    /// What it reads or writes.
    pub place: Place,
    /// The fio keys that set it apart.
    pub keys: Vec<(&'static str, String)>,
}

/// What a case reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The target itself.
    Target,
    /// A file beside it, made for each run and removed after it. Beside a device there is none.
    NewFile,
}

/// Where and how long.
pub struct Conditions<'a> {
    /// A file, a block device, or `null:SIZE` and its kin.
    pub target: &'a str,
    /// Time for the whole experiment.
    pub seconds: f64,
    /// Pairs of each case.
    pub pairs: u32,
    /// Dotted switches of all sides that are this stack.
    pub settings: &'a [(String, String)],
    /// What may be written over.
    pub overwrite: Overwrite,
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Shows how it goes.
    pub live: &'a Live,
}

/// What one side did in one case.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// I/Os a second, of every run.
    pub iops: Vec<f64>,
    /// CPU nanoseconds an I/O, of every run.
    pub cpu_ns: Vec<f64>,
    /// Context switches an I/O, of every run.
    pub switches: Vec<f64>,
    /// The queue it went through.
    pub queue: String,
    /// The sums of its counters.
    pub counters: Vec<(String, u64)>,
}

impl Measured {
    /// The median of its runs; none where it cannot reach the target.
    pub fn median(&self) -> Option<f64> {
        if self.iops.is_empty() { None } else { Some(median(&self.iops)) }
    }
}

/// One row.
#[derive(Debug)]
pub struct CaseResult {
    /// What sets it apart.
    pub case: Case,
    /// The depth it ran at.
    pub depth: u32,
    /// The off side.
    pub a: Measured,
    /// The on side.
    pub b: Measured,
    /// The control.
    pub control: Measured,
    /// The others, in the order of [`Sides::beside`].
    pub beside: Vec<Measured>,
    /// b over a, pair by pair.
    pub ratio: Interval,
    /// a over a, from neighbouring runs: what a ratio of equals looks like here.
    pub noise: Interval,
}

/// All rows.
#[derive(Debug)]
pub struct Results {
    /// The experiment's name.
    pub experiment: &'static str,
    /// The target's name.
    pub target: String,
    /// The sides' names.
    pub sides: Sides,
    /// One a case that the target has.
    pub cases: Vec<CaseResult>,
    /// As in [`Experiment::counters`].
    pub counters: &'static [&'static str],
}

/// Looks at the targets of all cases and sides, and refuses what cannot or may not be run.
///
/// # Errors
/// The one that [`run`] would give in the midst of it, of the first such target.
pub fn check(experiment: &Experiment, conditions: &Conditions<'_>) -> Result<(), Error> {
    let prepared = Prepared::new(experiment, conditions)?;
    let Sides { a, b, control, beside } = &experiment.sides;
    for case in &prepared.cases {
        for side in [a, b, control].into_iter().chain(beside) {
            Lane::new(&prepared.job, case, side, &prepared.target)?.check(conditions)?;
        }
    }
    Ok(())
}

/// Runs all cases.
pub fn run(experiment: &Experiment, conditions: &Conditions<'_>) -> Result<Results, Error> {
    let prepared = Prepared::new(experiment, conditions)?;
    let mut cases = Vec::new();
    for (row, case) in prepared.cases.iter().enumerate() {
        let label = format!("{} {}/{}", experiment.name, row + 1, prepared.cases.len());
        cases.push(run_case(&prepared.job, case, &prepared.target, &label)?);
    }
    Ok(Results {
        experiment: experiment.name,
        target: conditions.target.to_owned(),
        sides: experiment.sides.clone(),
        cases,
        counters: experiment.counters,
    })
}

/// The cases that a target has, and what their jobs have in common.
struct Prepared<'a> {
    target: Target,
    cases: Vec<&'a Case>,
    job: CaseJob<'a>,
}

impl<'a> Prepared<'a> {
    fn new(experiment: &'a Experiment, conditions: &'a Conditions<'a>) -> Result<Self, Error> {
        let target = Target::parse(conditions.target);
        let has = |case: &&Case| case.place == Place::Target || new_file(&target).is_some();
        let cases: Vec<&Case> = experiment.cases.iter().filter(has).collect();
        let runs = conditions.pairs as usize * (3 + experiment.sides.beside.len());
        let seconds = conditions.seconds / (runs * cases.len().max(1)) as f64;
        let size = common_size(experiment, &target)?;
        Ok(Self { target, cases, job: CaseJob { experiment, conditions, seconds, size } })
    }
}

/// What the jobs of all cases and sides have in common.
pub(super) struct CaseJob<'a> {
    pub experiment: &'a Experiment,
    pub conditions: &'a Conditions<'a>,
    /// Time for each run.
    pub seconds: f64,
    /// Bytes of each target, if not all of it.
    pub size: Option<u64>,
}

/// As many bytes as the smallest file or target has, where sides have files of their own.
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
    let lane = |side: &Side| Lane::new(job, case, side, target);
    let Sides { a, b, control, beside } = &job.experiment.sides;
    let (mut a, mut b, mut control) = (lane(a)?, lane(b)?, lane(control)?);
    let mut beside = beside.iter().map(lane).collect::<Result<Vec<_>, _>>()?;
    for pair in 0..conditions.pairs {
        conditions.live.say(&format!("{label}, pair {}/{}", pair + 1, conditions.pairs));
        control.measure(conditions)?;
        // Every other pair runs the other way round, so that a drift helps neither.
        let (first, second) = if pair % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        first.measure(conditions)?;
        second.measure(conditions)?;
        beside.iter_mut().try_for_each(|side| side.measure(conditions))?;
    }
    let (depth, a, b) = (a.depth(), a.measured, b.measured);
    let ratios: Vec<f64> = b.iops.iter().zip(&a.iops).map(|(b, a)| b / a).collect();
    let equals: Vec<f64> = a.iops.windows(2).map(|two| two[1] / two[0]).collect();
    Ok(CaseResult {
        case: case.clone(),
        depth,
        ratio: median_interval(&ratios, 1),
        noise: median_interval(&equals, 2),
        a,
        b,
        control: control.measured,
        beside: beside.into_iter().map(|lane| lane.measured).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_run_as_many_pairs_as_asked_and_are_held_against_each_other_pair_by_pair() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let side = |name: &str| Side::new(name, "psync", &[]).unwrap();
        let sides =
            Sides { a: side("a"), b: side("b"), control: side("c"), beside: vec![side("d")] };
        let keys = vec![("rw", "randread".into()), ("bs", "4k".into()), ("direct", "0".into())];
        let case = |what, keys| Case { what, place: Place::Target, keys };
        let cases = vec![case("", Vec::new()), case("larger", vec![("bs", "8k".into())])];
        let (kernel, counters) = (EngineKind::Psync, &[][..]);
        let experiment = Experiment { name: "itself", sides, keys, cases, kernel, counters };
        let conditions = Conditions {
            target: &file.path().display().to_string(),
            seconds: 0.4,
            pairs: 6,
            settings: &[],
            overwrite: Overwrite::Refuse,
            stop: &AtomicBool::new(false),
            live: &Live::default(),
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
