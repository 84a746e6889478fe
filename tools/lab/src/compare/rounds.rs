//! The rounds of a comparison: their order, their number, and what ends them.

use super::figures::JobFigures;
use super::layout::Layout;
use super::machine::Machine;
use super::measure::measure;
use super::registration::unregistered;
use super::results::{Results, Round};
use super::run_notes::RunNotes;
use super::side::Side;
use crate::Error;
use crate::engine::EngineKind;
use crate::job::{Job, JobSet, Options};
use crate::random::Random;
use crate::run::{Overwrite, Plan, RunProgress};
use crate::stats::{MIN_PAIRS, Stopping};
use crate::targets::Target;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The pairs after which a comparison ends in any case, unless the user gives a number of pairs.
pub const MAX_PAIRS: u32 = 30;

/// The conditions of a comparison.
#[derive(Debug)]
pub struct Conditions<'a> {
    /// Precedes what the progress says, for one of several comparisons; or empty.
    pub label: &'a str,
    /// The names of side `a` and side `b` in errors.
    pub names: [&'a str; 2],
    /// The smallest difference that matters: 0.05 is 5 %. The comparison ends when the interval is no wider.
    pub effect: f64,
    /// The number of pairs; `None` ends with a narrow interval, or after [`MAX_PAIRS`].
    pub pairs: Option<u32>,
    /// No round begins that would probably end later.
    pub max_time: Option<Duration>,
    /// The seed of the order within the rounds.
    pub seed: u64,
    /// Whether existing data may be overwritten.
    pub overwrite: Overwrite,
    /// Set by Ctrl-C; ends the comparison.
    pub stop: &'a AtomicBool,
    /// Receives the progress.
    pub progress: &'a RunProgress,
}

/// The members of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    A,
    Again,
    B,
    Control,
}

impl Member {
    /// Its number in [`RunNotes`].
    fn number(self) -> usize {
        match self {
            Self::A | Self::Again => 0,
            Self::B => 1,
            Self::Control => 2,
        }
    }
}

/// Compares two sides that run jobs of the same names.
///
/// # Errors
/// A side cannot run its jobs, or one failed. After Ctrl-C there is no error if a round has ended: the results are incomplete.
pub fn run(
    (a, a_set): (&Side, &JobSet),
    (b, b_set): (&Side, &JobSet),
    conditions: &Conditions<'_>,
) -> Result<Results, Error> {
    let (stop, progress) = (conditions.stop, conditions.progress);
    let [a_name, b_name] = conditions.names;
    let say = |what: &str| progress.set_activity(&format!("{}{what}", conditions.label));
    let a_plan = a.plan(a_set, conditions.overwrite).map_err(|error| error.at(a_name))?;
    let b_plan = b.plan(b_set, conditions.overwrite).map_err(|error| error.at(b_name))?;
    let mut notes = job_notes(&[a_set, b_set]);
    let control = Control::new(a, a_set);
    if let Err(why) = &control {
        notes.push(format!("no control: {why}"));
    }
    let mut layout = Layout::new([(a_plan, a_set), (b_plan, b_set)]);
    let mut machine = Machine::before();
    let began = Instant::now();
    let mut rounds = Vec::new();
    let mut run_notes = RunNotes::new(2);
    let ring = control.as_ref().map(|control| (&control.side, &control.set));
    let sides: Vec<_> = [(a, a_set), (b, b_set)].into_iter().chain(ring.ok()).collect();
    unregistered(&sides).iter().for_each(|(member, note)| run_notes.add_note(*member, note));
    let mut measured = || -> Result<(), Error> {
        layout.create(stop, progress)?;
        let measure = |member: Member| match member {
            Member::A | Member::Again => {
                measure(&a.source, a_set, stop).map_err(|error| error.at(a_name))
            }
            Member::B => measure(&b.source, b_set, stop).map_err(|error| error.at(b_name)),
            Member::Control => {
                control.as_ref().map_or(Ok(Vec::new()), |control| control.measure(stop))
            }
        };
        let mut members = vec![Member::A, Member::Again, Member::B];
        members.extend(control.is_ok().then_some(Member::Control));
        say("warming up");
        for member in members.iter().filter(|member| **member != Member::Again) {
            run_notes.add(member.number(), &measure(*member)?);
        }
        let mut random = Random::new(conditions.seed);
        let ends = Ends::new(conditions);
        while !ends.after(&rounds) {
            say(&format!("pair {}", rounds.len() + 1));
            random.shuffle(&mut members);
            let mut round = Round::default();
            for member in &members {
                let figures = measure(*member)?;
                run_notes.add(member.number(), &figures);
                match member {
                    Member::A => round.a = figures,
                    Member::Again => round.again = figures,
                    Member::B => round.b = figures,
                    Member::Control => round.control = figures,
                }
            }
            rounds.push(round);
        }
        Ok(())
    };
    let ended = measured();
    let incomplete = layout.end(ended, rounds.len())?;
    machine.finish();
    let named = |members: &[usize]| match members[0] {
        0 => a_name.trim_start_matches('-').to_owned(),
        1 => b_name.trim_start_matches('-').to_owned(),
        _ => "control".to_owned(),
    };
    add_new(&mut notes, run_notes.lines(named));
    let stopping = match conditions.pairs {
        Some(_) => Stopping::Planned,
        None => Stopping::WhenNarrow,
    };
    Ok(Results {
        sides: [a.given.clone(), b.given.clone()],
        jobs: Results::compare(&rounds, stopping, conditions.effect),
        pairs: rounds.len(),
        effect: conditions.effect,
        seed: Some(conditions.seed),
        seconds: began.elapsed().as_secs_f64(),
        machine: Some(machine),
        files_made: layout.names(),
        notes,
        incomplete,
    })
}

/// Warnings of the jobs, each once, notes about rates that are limited, so that equal ones say nothing, and about logs.
pub(crate) fn job_notes(sets: &[&JobSet]) -> Vec<String> {
    let limits = |job: &&Job| {
        let options = &job.options;
        options.rate.iter().chain(&options.rate_iops).any(|rate| *rate != 0)
    };
    let note = |job: &Job| {
        let latencies =
            "its latencies count from the submission of an I/O, not from when it was due";
        format!("job `{}` limits its rate, and {latencies}", job.name)
    };
    let limited = sets.iter().flat_map(|set| &set.jobs).filter(limits).map(note);
    let logs = |job: &&Job| {
        let options = &job.options;
        let Options { bandwidth_log, iops_log, latency_log, iolog_copy, .. } = options;
        [bandwidth_log, iops_log, latency_log, iolog_copy].iter().any(|log| log.is_some())
    };
    let logged = |job: &Job| {
        format!("job `{}` writes logs, and each run replaces those of the one before", job.name)
    };
    let logged = sets.iter().flat_map(|set| &set.jobs).filter(logs).map(logged);
    let mut notes: Vec<String> = Vec::new();
    let warnings = sets.iter().flat_map(|set| set.warnings.clone());
    add_new(&mut notes, warnings.chain(limited).chain(logged));
    notes
}

/// Adds the lines that are not there.
pub(crate) fn add_new(notes: &mut Vec<String>, lines: impl IntoIterator<Item = String>) {
    for line in lines {
        if !notes.contains(&line) {
            notes.push(line);
        }
    }
}

/// The bare ring on the targets of a side.
pub(crate) struct Control {
    side: Side,
    set: JobSet,
}

impl Control {
    /// # Errors
    /// Why there is no control.
    pub fn new(side: &Side, set: &JobSet) -> Result<Self, String> {
        if side.engine() == Some(EngineKind::Ring) {
            return Err("the jobs run on the bare ring".into());
        }
        let mut jobs = set.jobs.clone();
        // A bare ring has no switches.
        jobs.iter_mut().for_each(|job| job.options.settings.clear());
        for job in &jobs {
            let targets = Target::from_job(&job.name, &job.options, 0);
            if let Some(target) = targets.iter().find(|target| !EngineKind::Ring.reaches(target)) {
                return Err(format!("a bare ring cannot use {target}"));
            }
        }
        let set = JobSet { jobs, globals: set.globals.clone(), warnings: Vec::new() };
        Plan::new(&set.jobs, EngineKind::Ring.capabilities(), Overwrite::Allow)
            .map_err(|error| error.to_string())?;
        Ok(Self { side: Side::from_engine(EngineKind::Ring), set })
    }

    /// Runs the jobs once.
    pub fn measure(&self, stop: &AtomicBool) -> Result<Vec<JobFigures>, Error> {
        measure(&self.side.source, &self.set, stop).map_err(|error| error.at("control"))
    }
}

/// Decides when the rounds end.
struct Ends<'a> {
    conditions: &'a Conditions<'a>,
    began: Instant,
}

impl<'a> Ends<'a> {
    fn new(conditions: &'a Conditions<'a>) -> Self {
        Self { conditions, began: Instant::now() }
    }

    fn after(&self, rounds: &[Round]) -> bool {
        let Conditions { pairs, max_time, effect, .. } = self.conditions;
        let n = rounds.len() as u32;
        if is_too_late(self.began, n, *max_time) {
            return true;
        }
        match pairs {
            Some(pairs) => n >= *pairs,
            None if n < MIN_PAIRS as u32 => false,
            None => n >= MAX_PAIRS || Results::is_narrow(rounds, *effect),
        }
    }
}

/// Whether another round would probably end after the limit, with the rounds that have ended since `began`. The first
/// round is never too late.
pub(crate) fn is_too_late(began: Instant, rounds: u32, limit: Option<Duration>) -> bool {
    let elapsed = began.elapsed();
    let Some(round) = elapsed.checked_div(rounds) else { return false };
    limit.is_some_and(|limit| elapsed + round > limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::UnknownKeys;
    use std::sync::atomic::Ordering;

    fn conditions<'a>(stop: &'a AtomicBool, progress: &'a RunProgress) -> Conditions<'a> {
        Conditions {
            label: "",
            names: ["--a", "--b"],
            effect: 0.05,
            pairs: Some(6),
            max_time: None,
            seed: 1,
            overwrite: Overwrite::Refuse,
            stop,
            progress,
        }
    }

    fn compared(
        keys: [&str; 2],
        job: &str,
        change: impl FnOnce(&mut Conditions<'_>),
    ) -> Result<Results, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j.fio");
        std::fs::write(&path, job).unwrap();
        let files = [path];
        let [a, b] = keys.map(|keys| {
            let keys: Vec<_> = keys.split_whitespace().map(str::to_owned).collect();
            let side = Side::parse(&keys).unwrap();
            let folder = folder.path().display().to_string();
            let lookup = move |name: &str| (name == "DIR").then(|| folder.clone());
            let set = side.jobs(&files, &lookup, UnknownKeys::Refuse).unwrap();
            (side, set)
        });
        let (stop, progress) = (AtomicBool::new(false), RunProgress::default());
        let mut conditions = conditions(&stop, &progress);
        change(&mut conditions);
        let results = run((&a.0, &a.1), (&b.0, &b.1), &conditions);
        if let Ok(results) = &results {
            let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
            assert_eq!(left.len(), 1 + results.files_made.len(), "{left:?}");
        }
        results
    }

    /// Jobs with a fixed number of I/Os, so that no test depends on time.
    const JOB: &str = "[global]\nbs=4k\nrw=randread\ndirect=0\n[x]\nfilename=${DIR}/f\nsize=64k\n[y]\nstonewall\n\
                       filename=${DIR}/g\nsize=128k\n";

    #[test]
    fn each_pair_has_both_sides_the_noise_and_the_control() {
        let job = JOB.replace("randread", "randrw");
        let results = compared(["engine=psync", "engine=psync bs=8k"], &job, |_| {}).unwrap();
        assert_eq!((results.pairs, results.incomplete, results.files_made.len()), (6, false, 2));
        assert_eq!(results.jobs.iter().map(|job| job.job.as_str()).collect::<Vec<_>>(), ["x", "y"]);
        for job in &results.jobs {
            let rate = job.rate();
            for sample in [&rate.a, &rate.again, &rate.b, &rate.control] {
                assert!(sample.len() == 6 && sample.iter().all(|rate| *rate > 0.0), "{rate:?}");
            }
            assert!(rate.ratio.low <= rate.ratio.ratio && rate.ratio.ratio <= rate.ratio.high);
            let names: Vec<_> = job.figures.iter().map(|figure| figure.name.as_str()).collect();
            for name in ["read p99", "write p50", "CPU per I/O", "system calls per I/O"] {
                assert!(names.contains(&name), "{names:?}");
            }
            // 4 KiB and 8 KiB blocks of one region: one system call each.
            let calls = job.figures.iter().find(|figure| figure.name == "system calls per I/O");
            assert_eq!(calls.unwrap().ratio.ratio, 1.0);
        }
    }

    #[test]
    fn a_key_without_effect_is_noted_with_its_side() {
        let notes = |keys| {
            let compared = compared(keys, JOB, |conditions| conditions.pairs = Some(1));
            compared.unwrap().notes
        };
        let begins = |notes: &[String], begin: &str| {
            notes.iter().filter(|note| note.starts_with(begin)).count() == 1
        };
        let cached = notes(["engine=psync", "engine=uringfs sqthread_poll=1"]);
        assert!(begins(&cached, "b: direct=0 had no effect: engine uringfs"), "{cached:?}");
        assert!(begins(&cached, "b: sqthread_poll has no effect: engine uringfs"), "{cached:?}");
        let both = notes(["", "force_async=4"]);
        assert!(begins(&both, "direct=0 had no effect: engine uringfs"), "{both:?}");
        assert!(begins(&both, "b: force_async has no effect"), "{both:?}");
        let of_control = "control: files and buffers are not registered, unlike those of engine uringfs; give registerfiles=1";
        assert!(begins(&cached, of_control) && begins(&both, of_control), "{both:?}");
        let depths = notes(["engine=psync", "engine=psync iodepth=32"]);
        assert!(begins(&depths, "b: iodepth has no effect: engine psync"), "{depths:?}");
    }

    #[test]
    fn a_side_that_cannot_run_is_named() {
        let error = compared(["engine=psync", "engine=ring target=null:1m size=2m"], JOB, |_| {});
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("--b: ") && error.contains("null:1m"), "{error}");
    }

    #[test]
    fn existing_files_are_overwritten_only_with_consent() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 1 << 16]).unwrap();
        let target = format!("engine=psync target={}", file.path().display());
        let job = JOB.replace("randread", "write").replace("128k", "64k");
        let error = compared([&target, &target], &job, |_| {}).unwrap_err().to_string();
        assert!(error.contains("--overwrite"), "{error}");
        assert_eq!(std::fs::read(file.path()).unwrap(), vec![7; 1 << 16]);
        let allowed = compared([&target, &target], &job, |conditions| {
            conditions.overwrite = Overwrite::Allow
        });
        assert!(allowed.unwrap().files_made.is_empty());
    }

    #[test]
    fn an_interrupt_removes_the_files() {
        let interrupted = compared(["engine=psync", "engine=psync"], JOB, |conditions| {
            conditions.stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(interrupted.unwrap_err().kind(), crate::ErrorKind::Interrupted);
    }

    #[test]
    fn a_limit_of_time_ends_after_the_first_round() {
        let results = compared(["engine=psync", "engine=psync"], JOB, |conditions| {
            conditions.max_time = Some(Duration::ZERO);
        });
        let results = results.unwrap();
        assert_eq!((results.pairs, results.jobs[0].verdict.name()), (1, "too few runs to say"));
    }

    #[test]
    fn orders_are_random_and_repeat_with_their_seed() {
        let orders = |seed| {
            let mut random = Random::new(seed);
            let mut members = [Member::A, Member::Again, Member::B, Member::Control];
            (0..100)
                .map(|_| {
                    random.shuffle(&mut members);
                    members
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(orders(4), orders(4));
        let first = |member| orders(4).iter().filter(|order| order[0] == member).count();
        // A quarter of 100; four standard deviations are 17.
        assert!(
            [Member::A, Member::Again, Member::B, Member::Control]
                .map(first)
                .iter()
                .all(|n| n.abs_diff(25) < 17)
        );
    }
}
