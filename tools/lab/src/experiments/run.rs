//! Checks experiments, and runs their comparisons one after the other.

use super::case::Experiment;
use super::cases::keep_cases;
use super::comparison::{Comparison, check_settings, comparisons};
use crate::compare::{self, JobComparison};
use crate::engine::add_counters;
use crate::job::JobSet;
use crate::run::{Overwrite, RunProgress};
use crate::{Error, ErrorKind};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The conditions of experiments.
#[derive(Debug)]
pub struct Conditions<'a> {
    /// A file, a block device, a file in a volume, or a virtual target such as `null:SIZE`.
    pub target: &'a str,
    /// The names of the cases to run; without any, all run.
    pub cases: &'a [String],
    /// Keys of all sides, `KEY=VALUE` each. Switches are only those of engine `uringfs`.
    pub settings: &'a [String],
    /// The smallest difference that matters: 0.05 is 5 %.
    pub effect: f64,
    /// The number of pairs of each comparison; `None` ends each with a narrow interval.
    pub pairs: Option<u32>,
    /// A limit for all experiments together, of which each comparison gets an equal share.
    pub max_time: Option<Duration>,
    /// The seed of the order within the pairs.
    pub seed: u64,
    /// Whether existing data may be overwritten.
    pub overwrite: Overwrite,
    /// Set by Ctrl-C; ends the experiments.
    pub stop: &'a AtomicBool,
    /// Receives the progress.
    pub progress: &'a RunProgress,
}

/// Experiments that can run: their sides exist, and their targets may be used.
#[derive(Debug)]
pub struct Prepared(Vec<(Experiment, Vec<Comparison>)>);

/// One comparison of an experiment, as it has ended.
#[derive(Debug, Clone)]
pub struct CompletedComparison {
    /// The name of its case.
    pub case: String,
    /// The names of side `a` and side `b`, which is the mechanism switched on.
    pub names: [String; 2],
    /// Whether side `a` is one beside the mechanism, and not the mechanism switched off.
    pub is_beside: bool,
    /// The threads of each side.
    pub threads: u32,
    /// Why `b` may not be faster, although the processors limit it.
    pub why: &'static str,
    /// The comparison.
    pub results: compare::Results,
}

impl CompletedComparison {
    /// The name of its case, and of side `a` if that is not the mechanism switched off.
    pub fn label(&self) -> String {
        match self.is_beside {
            true => format!("{}, beside {}", self.case, self.names[0]),
            false => self.case.clone(),
        }
    }

    /// Its only job; `None` if the sides have none in common.
    pub fn job(&self) -> Option<&JobComparison> {
        self.results.jobs.first()
    }
}

/// The results of an experiment.
#[derive(Debug, Clone)]
pub struct ExperimentResults {
    /// Its name.
    pub experiment: &'static str,
    /// The subject of its comparisons.
    pub about: &'static str,
    /// The target's name.
    pub target: String,
    /// The names of the sides with the mechanism switched off and on.
    pub names: [String; 2],
    /// The comparisons, in the order of the cases.
    pub comparisons: Vec<CompletedComparison>,
    /// See [`Experiment::counters`].
    pub counters: &'static [&'static str],
    /// Whether the user stopped it.
    pub incomplete: bool,
}

impl ExperimentResults {
    /// The counters of the mechanism switched off and on, summed over the cases.
    pub fn counter_sums(&self) -> [Vec<(String, u64)>; 2] {
        let mut sums = [Vec::new(), Vec::new()];
        for comparison in self.comparisons.iter().filter(|comparison| !comparison.is_beside) {
            for job in &comparison.results.jobs {
                sums.iter_mut().zip(&job.counters).for_each(|(sum, own)| add_counters(sum, own));
            }
        }
        sums
    }
}

impl Prepared {
    /// Makes the comparisons of all experiments and inspects their targets. Runs nothing.
    ///
    /// # Errors
    /// No case has such a name, a key would make another experiment, a side cannot run, or must not overwrite its
    /// target.
    pub fn new(
        mut experiments: Vec<Experiment>,
        conditions: &Conditions<'_>,
    ) -> Result<Self, Error> {
        for experiment in &experiments {
            check_settings(experiment, conditions.settings)?;
        }
        keep_cases(&mut experiments, conditions.cases).map_err(|error| error.at("--case"))?;
        let prepare = |experiment: Experiment| -> Result<_, Error> {
            let made = comparisons(&experiment, conditions.target, conditions.settings)?;
            for comparison in &made {
                let checked = comparison.check(conditions.overwrite);
                checked.map_err(|error| error.at(experiment.name))?;
            }
            Ok((experiment, made))
        };
        experiments.into_iter().map(prepare).collect::<Result<_, _>>().map(Self)
    }

    /// The jobs of all sides.
    pub fn job_sets(&self) -> impl Iterator<Item = &JobSet> {
        let comparisons = self.0.iter().flat_map(|(_, comparisons)| comparisons);
        comparisons.flat_map(|comparison| [&comparison.a.set, &comparison.b.set])
    }

    /// Runs all, and hands each experiment to `ended` when it has ended.
    ///
    /// # Errors
    /// A comparison failed, or `ended` did. After Ctrl-C there is no error if a pair has ended: the last results are incomplete.
    pub fn run(
        &self,
        conditions: &Conditions<'_>,
        mut ended: impl FnMut(&ExperimentResults) -> Result<(), Error>,
    ) -> Result<Vec<ExperimentResults>, Error> {
        let mut share =
            Share::new(conditions.max_time, self.0.iter().map(|(_, made)| made.len()).sum());
        let mut load_before = None;
        let mut all: Vec<ExperimentResults> = Vec::new();
        for (experiment, made) in &self.0 {
            let mut results = ExperimentResults {
                experiment: experiment.name,
                about: experiment.about,
                target: conditions.target.to_owned(),
                names: [&experiment.off, &experiment.on].map(|side| side.name.clone()),
                comparisons: Vec::new(),
                counters: experiment.counters,
                incomplete: false,
            };
            for (index, comparison) in made.iter().enumerate() {
                let place = format!("{} {} of {}", experiment.name, index + 1, made.len());
                match run_one(comparison, conditions, share.next_limit(), &place) {
                    Ok(mut completed) => {
                        // Later it is the load of the experiments themselves.
                        if let Some(machine) = &mut completed.results.machine {
                            machine.load_before = *load_before.get_or_insert(machine.load_before);
                        }
                        results.incomplete = completed.results.incomplete;
                        results.comparisons.push(completed);
                    }
                    Err(error) => {
                        let has_some = !(all.is_empty() && results.comparisons.is_empty());
                        if error.kind() != ErrorKind::Interrupted || !has_some {
                            return Err(error);
                        }
                        results.incomplete = true;
                    }
                }
                if results.incomplete {
                    break;
                }
            }
            ended(&results)?;
            let stops = results.incomplete;
            all.push(results);
            if stops {
                break;
            }
        }
        Ok(all)
    }
}

fn run_one(
    comparison: &Comparison,
    conditions: &Conditions<'_>,
    max_time: Option<Duration>,
    place: &str,
) -> Result<CompletedComparison, Error> {
    let Comparison { case, names, is_beside, a, b, .. } = comparison;
    let [a_name, b_name] = names;
    let label = format!("{place} ({case}: {a_name}, {b_name}), ");
    let conditions = compare::Conditions {
        label: &label,
        names: [a_name, b_name],
        effect: conditions.effect,
        pairs: conditions.pairs,
        max_time,
        seed: conditions.seed,
        overwrite: comparison.overwrite(conditions.overwrite),
        stop: conditions.stop,
        progress: conditions.progress,
    };
    let results = compare::run((&a.side, &a.set), (&b.side, &b.set), &conditions);
    let mut results = results.map_err(|error| error.at(format!("{place}, {case}")))?;
    // The experiment has these keys for its rings, and says by switches what this stack registers.
    let of_rings = ["registerfiles", "fixedbufs"].map(|key| format!("{key} has no effect"));
    results.notes.retain(|note| !of_rings.iter().any(|begin| note.contains(begin)));
    Ok(CompletedComparison {
        case: case.clone(),
        names: names.clone(),
        is_beside: *is_beside,
        threads: comparison.threads(),
        why: comparison.why,
        results,
    })
}

/// The time that each comparison gets: an equal share of what is left.
struct Share {
    limit: Option<Duration>,
    began: Instant,
    left: usize,
}

impl Share {
    fn new(limit: Option<Duration>, comparisons: usize) -> Self {
        Self { limit, began: Instant::now(), left: comparisons }
    }

    fn next_limit(&mut self) -> Option<Duration> {
        let among = self.left.max(1) as u32;
        self.left = self.left.saturating_sub(1);
        self.limit.map(|limit| limit.saturating_sub(self.began.elapsed()) / among)
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::{Beside, Case, NamedSide, TargetChoice};
    use super::super::cases::find;
    use super::*;
    use crate::engine::EngineKind;
    use crate::stats::Verdict;
    use std::sync::atomic::Ordering;

    /// An experiment whose cases have a fixed number of I/Os, so that no test depends on time.
    fn itself() -> Experiment {
        let side = |name: &str| NamedSide::new(name, EngineKind::Psync, &["direct=0"]);
        let owned = |keys: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            keys.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
        };
        let case = |name: &str, keys: &[(&'static str, &str)]| Case {
            name: name.into(),
            target: TargetChoice::Target,
            keys: owned(keys),
            why: "they are equal",
        };
        Experiment {
            name: "itself",
            about: "a program and itself",
            off: side("off"),
            on: side("on"),
            beside: vec![Beside { side: side("other"), why: "it is the same" }],
            keys: owned(&[("rw", "randread"), ("bs", "4k"), ("time_based", "0"), ("size", "64k")]),
            cases: vec![case("small", &[]), case("larger", &[("bs", "8k")])],
            kernel_engine: EngineKind::Psync,
            counters: &[],
        }
    }

    /// A target of 1 MiB, and what conditions borrow.
    struct Place {
        file: tempfile::NamedTempFile,
        target: String,
        stop: AtomicBool,
        progress: RunProgress,
    }

    impl Place {
        fn new() -> Self {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(1 << 20).unwrap();
            let target = file.path().display().to_string();
            Self { file, target, stop: AtomicBool::new(false), progress: RunProgress::default() }
        }

        fn conditions(&self, pairs: u32) -> Conditions<'_> {
            Conditions {
                target: &self.target,
                cases: &[],
                settings: &[],
                effect: 0.05,
                pairs: Some(pairs),
                max_time: None,
                seed: 1,
                overwrite: Overwrite::Refuse,
                stop: &self.stop,
                progress: &self.progress,
            }
        }
    }

    #[test]
    fn each_case_compares_off_and_on_and_then_each_side_beside_it() {
        let place = Place::new();
        let conditions = place.conditions(6);
        let prepared = Prepared::new(vec![itself(), itself()], &conditions).unwrap();
        assert_eq!(prepared.job_sets().count(), 16);
        let mut seen = 0;
        let all = prepared.run(&conditions, |_| {
            seen += 1;
            Ok(())
        });
        let all = all.unwrap();
        assert_eq!((all.len(), seen), (2, 2));
        let labels: Vec<_> = all[1].comparisons.iter().map(|done| done.label()).collect();
        assert_eq!(labels, ["small", "small, beside other", "larger", "larger, beside other"]);
        for done in &all[1].comparisons {
            let job = done.job().unwrap();
            assert_eq!((done.results.pairs, done.threads), (6, 1));
            assert!(job.verdict != Verdict::TooFewRuns && job.rate().control.len() == 6);
        }
    }

    #[test]
    fn the_limit_of_time_is_shared_and_each_comparison_has_a_pair() {
        let place = Place::new();
        let conditions = Conditions { max_time: Some(Duration::ZERO), ..place.conditions(6) };
        let prepared = Prepared::new(vec![itself()], &conditions).unwrap();
        let all = prepared.run(&conditions, |_| Ok(())).unwrap();
        let pairs: Vec<_> = all[0].comparisons.iter().map(|done| done.results.pairs).collect();
        assert_eq!(pairs, [1; 4]);
        let first = Share::new(Some(Duration::from_secs(8000)), 4).next_limit().unwrap();
        assert!(first <= Duration::from_secs(2000) && first > Duration::from_secs(1000));
        assert_eq!(Share::new(None, 4).next_limit(), None);
    }

    #[test]
    fn an_interrupt_before_the_first_pair_is_an_error_and_later_keeps_what_there_is() {
        let place = Place::new();
        let conditions = place.conditions(1);
        let prepared = Prepared::new(vec![itself(), itself()], &conditions).unwrap();
        let all = prepared.run(&conditions, |_| {
            place.stop.store(true, Ordering::Relaxed);
            Ok(())
        });
        let all = all.unwrap();
        let kept: Vec<_> = all.iter().map(|it| (it.comparisons.len(), it.incomplete)).collect();
        assert_eq!(kept, [(4, false), (0, true)]);
        let error = prepared.run(&conditions, |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }

    #[test]
    fn keys_of_cases_that_do_not_run_are_refused_too() {
        let place = Place::new();
        let [cases, settings] =
            ["in place, depth 1", "sync=dsync"].map(|word| vec![word.to_owned()]);
        let conditions = Conditions { cases: &cases, settings: &settings, ..place.conditions(1) };
        let error = Prepared::new(find("completion").unwrap(), &conditions).unwrap_err();
        assert!(error.to_string().starts_with("--set: sync: the experiment sets it"), "{error}");
    }

    #[test]
    fn a_failure_names_its_comparison() {
        let place = Place::new();
        place.file.as_file().set_len(5).unwrap();
        let error = Prepared::new(vec![itself()], &place.conditions(1)).unwrap_err().to_string();
        assert!(error.starts_with("itself: small, off: "), "{error}");
    }
}
