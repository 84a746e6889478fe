//! Runs the cases of an experiment: who goes when, for how long, and what is kept.

use crate::Error;
use crate::engine::{EngineConfig, EngineKind, add_counters};
use crate::job::{JobSet, Parser, UnknownKeys};
use crate::report::entries;
use crate::run::{Live, Overwrite, Results as RunResults, Run};
use crate::stats::{Interval, median, median_interval};
use crate::target::{Target, Volumes, inspect};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// One of the things compared.
#[derive(Debug, Clone)]
pub struct Side {
    /// What the table calls it.
    pub name: String,
    /// How its I/O is done.
    pub config: EngineConfig,
}

impl Side {
    /// An engine by name, with dotted switches.
    pub fn new(name: &str, engine: &str, settings: &[(&str, &str)]) -> Result<Self, Error> {
        let mut config = EngineConfig::new(engine.parse::<EngineKind>()?);
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        config.settings = settings.iter().map(owned).collect();
        Ok(Self { name: name.to_owned(), config })
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
    /// One a row: the fio keys that set it apart.
    pub cases: Vec<Vec<(&'static str, String)>>,
}

/// Where and how long.
pub struct Conditions<'a> {
    /// A file, a block device, or `null:SIZE` and its kin.
    pub target: &'a str,
    /// Time for the whole experiment.
    pub seconds: f64,
    /// Pairs of each case.
    pub pairs: u32,
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
    pub keys: Vec<(&'static str, String)>,
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
    /// One a case.
    pub cases: Vec<CaseResult>,
}

/// Runs all cases.
pub fn run(experiment: &Experiment, conditions: &Conditions<'_>) -> Result<Results, Error> {
    let runs = conditions.pairs as usize * (3 + experiment.sides.beside.len());
    let each = conditions.seconds / (runs * experiment.cases.len().max(1)) as f64;
    let mut cases = Vec::new();
    for (row, case) in experiment.cases.iter().enumerate() {
        let label = format!("{} {}/{}", experiment.name, row + 1, experiment.cases.len());
        cases.push(run_case(experiment, case, conditions, each, &label)?);
    }
    Ok(Results {
        experiment: experiment.name,
        target: conditions.target.to_owned(),
        sides: experiment.sides.clone(),
        cases,
    })
}

fn run_case(
    experiment: &Experiment,
    case: &[(&'static str, String)],
    conditions: &Conditions<'_>,
    seconds: f64,
    label: &str,
) -> Result<CaseResult, Error> {
    let Sides { a, b, control, beside } = &experiment.sides;
    let target = Target::parse(conditions.target);
    let (a, b) = (&by_ring(a, &target), &by_ring(b, &target));
    let set = jobs(experiment, case, &target, seconds)?;
    let beneath = beneath(experiment, case, &target, seconds)?;
    // What stands beside the pair is left out where it cannot reach the target.
    let measure_beside = |side: &Side, into: &mut Measured| {
        let engine = side.config.engine;
        match &beneath {
            _ if engine.reaches(&target) => measure(side, &set, conditions, into),
            Some((below, set)) if engine.reaches(below) => measure(side, set, conditions, into),
            _ => Ok(()),
        }
    };
    let (mut of_a, mut of_b, mut of_control) = <(Measured, Measured, Measured)>::default();
    let mut of_beside = vec![Measured::default(); beside.len()];
    for pair in 0..conditions.pairs {
        conditions.live.say(&format!("{label}, pair {}/{}", pair + 1, conditions.pairs));
        measure_beside(control, &mut of_control)?;
        // Every other pair runs the other way round, so that a drift helps neither.
        if pair % 2 == 0 {
            measure(a, &set, conditions, &mut of_a)?;
            measure(b, &set, conditions, &mut of_b)?;
        } else {
            measure(b, &set, conditions, &mut of_b)?;
            measure(a, &set, conditions, &mut of_a)?;
        }
        for (side, measured) in beside.iter().zip(&mut of_beside) {
            measure_beside(side, measured)?;
        }
    }
    let ratios: Vec<f64> = of_b.iops.iter().zip(&of_a.iops).map(|(b, a)| b / a).collect();
    let equals: Vec<f64> = of_a.iops.windows(2).map(|two| two[1] / two[0]).collect();
    Ok(CaseResult {
        keys: case.to_vec(),
        depth: set.jobs[0].options.depth,
        ratio: median_interval(&ratios, 1),
        noise: median_interval(&equals, 2),
        a: of_a,
        b: of_b,
        control: of_control,
        beside: of_beside,
    })
}

/// The side, over the ring where that reaches the target: the switch is then all that differs,
/// and which queue would be chosen is not what is measured.
fn by_ring(side: &Side, target: &Target) -> Side {
    let mut side = side.clone();
    let below = target.path().map(|path| Target::Path(path.to_owned()));
    let below = below.as_ref().unwrap_or(target);
    if side.config.engine == EngineKind::Uringfs && EngineKind::Ring.reaches(below) {
        side.config.settings.insert(0, ("device.queue".into(), "ring".into()));
    }
    side
}

/// Where a file in a volume cannot be reached, its volume's first bytes are read: as many as the file
/// has. They are never written.
fn beneath(
    experiment: &Experiment,
    case: &[(&'static str, String)],
    target: &Target,
    seconds: f64,
) -> Result<Option<(Target, JobSet)>, Error> {
    let Target::InVolume(file) = target else { return Ok(None) };
    let size = inspect(target, false, &mut Volumes::default())?.size();
    let below = Target::Path(file.volume.clone());
    let mut keys = case.to_vec();
    keys.push(("size", size.to_string()));
    let set = jobs(experiment, &keys, &below, seconds)?;
    let reads = set.jobs.iter().all(|job| !job.options.pattern.writes());
    Ok(reads.then_some((below, set)))
}

/// The job of a case: fio keys, so that it means the same to every engine.
fn jobs(
    experiment: &Experiment,
    case: &[(&'static str, String)],
    target: &Target,
    seconds: f64,
) -> Result<JobSet, Error> {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    parser.argument("name", Some(experiment.name))?;
    // A colon in a path is no separator here: there is one target.
    let named = |path: &Path| path.to_string_lossy().replace(':', r"\:");
    let name = match target {
        Target::Path(path) => named(path),
        Target::InVolume(file) => {
            parser.argument("volume", Some(&file.volume.to_string_lossy()))?;
            named(&file.path)
        }
        Target::Virtual(name) => name.clone(),
    };
    let runtime = format!("{}ms", (seconds * 1e3).max(1.0));
    let fixed = [
        ("filename", name),
        ("time_based", "1".into()),
        ("runtime", runtime),
        ("direct", "1".into()),
        ("gtod_reduce", "1".into()),
    ];
    for (key, value) in fixed.iter().chain(&experiment.keys).chain(case) {
        parser.argument(key, Some(value))?;
    }
    parser.finish()
}

fn measure(
    side: &Side,
    set: &JobSet,
    conditions: &Conditions<'_>,
    into: &mut Measured,
) -> Result<(), Error> {
    let (overwrite, stop) = (conditions.overwrite, conditions.stop);
    let run = Run { set, config: &side.config, overwrite, stop, live: &Live::default() };
    let results = run.run()?;
    if stop.load(Ordering::Relaxed) {
        return Err(Error::interrupted());
    }
    match &results {
        RunResults::Ours(outcome) => {
            for entry in entries(outcome) {
                if let Some(failure) = entry.failure {
                    return Err(Error::run(format!("{}: {}", side.name, failure.what))
                        .because(failure.errno));
                }
                into.iops.push(entry.iops(0) + entry.iops(1));
                into.cpu_ns.push(entry.per_io(entry.cpu_ns()));
                into.queue.clone_from(&entry.engine.queue);
                add_counters(&mut into.counters, &entry.engine.counters);
            }
        }
        RunResults::Fio(_) => {
            let json = crate::report::json(&results);
            let job = &json["jobs"][0];
            let iops = |way: &str| job[way]["iops"].as_f64().unwrap_or(0.0);
            into.iops.push(iops("read") + iops("write"));
            into.cpu_ns.push(job["uringfs"]["cpu_ns_per_io"].as_f64().unwrap_or(0.0));
            into.queue = "fio".into();
        }
    }
    Ok(())
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
        let cases =
            vec![vec![("iodepth", "1".into())], vec![("iodepth", "1".into()), ("bs", "8k".into())]];
        let experiment = Experiment { name: "itself", sides, keys, cases };
        let conditions = Conditions {
            target: &file.path().display().to_string(),
            seconds: 0.4,
            pairs: 3,
            overwrite: Overwrite::Refuse,
            stop: &AtomicBool::new(false),
            live: &Live::default(),
        };
        let results = run(&experiment, &conditions).unwrap();
        assert_eq!(results.cases.len(), 2);
        for case in &results.cases {
            assert_eq!(
                [&case.a, &case.b, &case.control, &case.beside[0]].map(|m| m.iops.len()),
                [3; 4]
            );
            assert!(case.ratio.low <= case.ratio.median && case.ratio.median <= case.ratio.high);
            let mut ratios: Vec<f64> =
                case.b.iops.iter().zip(&case.a.iops).map(|(b, a)| b / a).collect();
            ratios.sort_by(f64::total_cmp);
            assert!(ratios[0] > 0.0 && ratios[2].is_finite(), "{ratios:?}");
            assert_eq!(case.ratio.median, ratios[1]);
        }
        let json = super::super::json(&results);
        assert!(json["cases"][1]["b"]["iops"].as_f64().unwrap() > 0.0);
        assert!(super::super::table(&results).contains("itself"));
    }
}
