//! Makes comparisons of an experiment's cases: two sides with their jobs, as [`crate::compare`] runs them.

use super::case::{Case, Experiment, NamedSide, TargetChoice};
use super::locked_memory;
use crate::Error;
use crate::compare::Side;
use crate::engine::EngineKind;
use crate::job::{JobSet, Parser, UnknownKeys, find_key};
use crate::run::Overwrite;
use crate::targets::{Target, TargetInfo, VolumeFile, Volumes, inspect};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The time of each run, unless the user sets `runtime`.
const RUNTIME: &str = "300ms";

/// A side, and its jobs.
#[derive(Debug)]
pub(super) struct SideJobs {
    pub side: Side,
    pub set: JobSet,
}

/// One comparison.
#[derive(Debug)]
pub(super) struct Comparison {
    /// The name of its case.
    pub case: String,
    /// The names of side `a` and side `b`.
    pub names: [String; 2],
    /// Whether side `a` is one beside the mechanism, and not the mechanism switched off.
    pub is_beside: bool,
    /// Why `b` may not be faster, although the processors limit it.
    pub why: &'static str,
    /// Whether each run creates its file. It never overwrites an existing one.
    creates_file: bool,
    pub a: SideJobs,
    pub b: SideJobs,
}

impl Comparison {
    /// Whether the runs may overwrite existing data.
    pub fn overwrite(&self, allowed: Overwrite) -> Overwrite {
        if self.creates_file { Overwrite::Refuse } else { allowed }
    }

    /// Checks the jobs without running them.
    pub fn check(&self, allowed: Overwrite) -> Result<(), Error> {
        for (SideJobs { side, set }, name) in [&self.a, &self.b].into_iter().zip(&self.names) {
            let planned = side.plan(set, self.overwrite(allowed)).map(drop);
            planned.map_err(|error| error.at(format!("{}, {name}", self.case)))?;
        }
        Ok(())
    }

    /// The number of threads that do the I/O of a side.
    pub fn threads(&self) -> u32 {
        self.b.set.jobs.iter().map(|job| job.options.jobs).sum()
    }
}

/// The comparisons of an experiment that the target allows. `settings` are keys of all sides, `KEY=VALUE` each, as
/// [`check_settings`] allows them.
///
/// # Errors
/// No case can use the target, a side cannot have a key, or a file that each run creates exists.
pub(super) fn comparisons(
    experiment: &Experiment,
    target: &str,
    settings: &[String],
) -> Result<Vec<Comparison>, Error> {
    let target = Target::parse(target);
    let size = common_size(experiment, &target)?;
    let maker = Maker { experiment, target, size, settings };
    let mut comparisons = Vec::new();
    for case in &experiment.cases {
        let made = maker.comparisons(case);
        comparisons
            .extend(made.map_err(|error| error.at(format!("{}, {}", experiment.name, case.name)))?);
    }
    if comparisons.is_empty() {
        return Err(Error::input(format!(
            "{}: none of its cases can use {}: only a file has a new file beside it",
            experiment.name, maker.target
        )));
    }
    Ok(comparisons)
}

/// Refuses keys that would make another experiment of it.
///
/// # Errors
/// A key chooses an engine or a target, or is one that the experiment, a case or the mechanism sets.
pub(super) fn check_settings(experiment: &Experiment, settings: &[String]) -> Result<(), Error> {
    const OTHERS: [&str; 9] = [
        "engine",
        "exec",
        "results",
        "target",
        "name",
        "filename",
        "directory",
        "volume",
        "unlink",
    ];
    let at_set = |error: Error| error.at("--set");
    Side::parse(settings).map_err(at_set)?;
    let Experiment { off, on, keys, cases, .. } = experiment;
    let sides = off.keys.iter().chain(&on.keys).map(|pair| key_name(pair));
    let of_jobs = keys.iter().chain(cases.iter().flat_map(|case| &case.keys)).map(|(key, _)| *key);
    let own: Vec<&str> = sides.chain(of_jobs).collect();
    for pair in settings {
        let key = key_name(pair);
        // `buffered` is the opposite of `direct`.
        let name = match find_key(key).map_or(key, |key| key.name) {
            "buffered" => "direct",
            name => name,
        };
        let refuse = |why: &str| Err(at_set(Error::input(format!("{key}: {why}"))));
        if OTHERS.contains(&name) {
            return refuse("an experiment has its own sides and targets; use bench compare");
        }
        // A shorter ramp is for short tests.
        if name != "ramp_time" && own.contains(&name) {
            return refuse("the experiment sets it; use bench compare");
        }
    }
    Ok(())
}

/// Whether `KEY=VALUE` has a key of job files, and not a switch of this stack.
pub(super) fn is_job_key(pair: &str) -> bool {
    find_key(key_name(pair)).is_some()
}

/// The key of `KEY=VALUE`.
fn key_name(pair: &str) -> &str {
    pair.split_once('=').map_or(pair, |(key, _)| key)
}

/// The size of the smallest file or target, if sides have files of their own.
fn common_size(experiment: &Experiment, target: &Target) -> Result<Option<u64>, Error> {
    let files = experiment.beside.iter().filter_map(|beside| beside.side.file.clone());
    let targets: Vec<Target> = files.map(Target::Path).chain([target.clone()]).collect();
    if targets.len() == 1 {
        return Ok(None);
    }
    let sizes = targets.iter().map(size_of).collect::<Result<Vec<_>, Error>>()?;
    Ok(sizes.into_iter().min().filter(|size| *size > 0))
}

fn size_of(target: &Target) -> Result<u64, Error> {
    Ok(inspect(target, false, &mut Volumes::default())?.size())
}

/// Makes the sides of an experiment.
struct Maker<'a> {
    experiment: &'a Experiment,
    target: Target,
    /// Bytes used of each target; `None` is all.
    size: Option<u64>,
    settings: &'a [String],
}

impl Maker<'_> {
    /// The mechanism off and on, then each side beside it and on. Sides that cannot use the target are left out.
    fn comparisons(&self, case: &Case) -> Result<Vec<Comparison>, Error> {
        let Experiment { off, on, beside, .. } = self.experiment;
        let raw = self.raw_volume();
        let beside = beside.iter().map(|beside| (&beside.side, beside.why, true));
        let raw = raw.iter().map(|side| {
            (
                side,
                "a bare ring on the bytes of the volume looks up no extent: it is the upper bound",
                true,
            )
        });
        let mut comparisons = Vec::new();
        for (a, why, is_beside) in [(off, case.why, false)].into_iter().chain(beside).chain(raw) {
            let (Some(a_jobs), Some(b_jobs)) =
                (self.side_jobs(case, a)?, self.side_jobs(case, on)?)
            else {
                continue;
            };
            comparisons.push(Comparison {
                case: case.name.clone(),
                names: [a.name.clone(), on.name.clone()],
                is_beside,
                why,
                creates_file: case.target == TargetChoice::NewFile,
                a: a_jobs,
                b: b_jobs,
            });
        }
        Ok(comparisons)
    }

    /// The bare ring, which cannot reach a file in a volume, on the raw bytes of the volume.
    fn raw_volume(&self) -> Option<NamedSide> {
        match &self.target {
            Target::InVolume(file) if !file.is_remote() => {
                Some(NamedSide::new("bare ring, raw volume", EngineKind::Ring, &[]))
            }
            _ => None,
        }
    }

    /// A side with its jobs; `None` if it cannot do the case on the target.
    fn side_jobs(&self, case: &Case, named: &NamedSide) -> Result<Option<SideJobs>, Error> {
        let own = named.file.clone().map_or_else(|| self.target.clone(), Target::Path);
        let creates_file = case.target == TargetChoice::NewFile;
        let place = if creates_file { new_file(&own) } else { Some(own.clone()) };
        let Some(place) = place else { return Ok(None) };
        if named.engine.reaches(&place) {
            let size = match creates_file {
                true => {
                    check_missing(&place)?;
                    Some(self.new_size(&own)?)
                }
                false => self.size,
            };
            return self.side_jobs_at(case, named, &place, size).map(Some);
        }
        // An engine that cannot reach a file in a volume may read the first bytes of the volume, as many as the file has.
        match place {
            Target::InVolume(file) if named.engine == EngineKind::Ring && !creates_file => {
                let size = self.size.map_or_else(|| size_of(&own), Ok)?;
                let jobs =
                    self.side_jobs_at(case, named, &Target::Path(file.volume), Some(size))?;
                let reads = jobs.set.jobs.iter().all(|job| !job.options.pattern.writes());
                Ok(reads.then_some(jobs))
            }
            _ => Ok(None),
        }
    }

    fn side_jobs_at(
        &self,
        case: &Case,
        named: &NamedSide,
        place: &Target,
        size: Option<u64>,
    ) -> Result<SideJobs, Error> {
        let side = self.side(named, place, true)?;
        let mut set = self.jobs(&side, case, place, size, true)?;
        if !locked_memory::is_enough_for(&set) {
            set = self.jobs(&side, case, place, size, false)?;
        }
        if set.jobs.iter().all(|job| job.options.fixed_buffers) {
            return Ok(SideJobs { side, set });
        }
        Ok(SideJobs { side: self.side(named, place, false)?, set })
    }

    /// The side's keys, of which the last one wins: first queue `ring`, if a ring can reach the target, so
    /// that the sides differ only in their own switch and not in the choice of a queue; then the user's; then
    /// the side's own.
    fn side(&self, named: &NamedSide, place: &Target, registers: bool) -> Result<Side, Error> {
        let mut keys = Vec::new();
        if named.engine == EngineKind::Uringfs {
            let below = place.path().map(|path| Target::Path(path.to_owned()));
            if EngineKind::Ring.reaches(below.as_ref().unwrap_or(place)) {
                keys.push("device.queue=ring".to_owned());
            }
            if !registers {
                keys.push("ring.fixed_buffers=off".to_owned());
            }
            keys.extend_from_slice(self.settings);
        } else {
            keys.push(format!("engine={}", named.engine.name()));
            // Switches are of this stack.
            keys.extend(self.settings.iter().filter(|pair| is_job_key(pair)).cloned());
        }
        keys.extend_from_slice(&named.keys);
        Side::parse(&keys)
    }

    /// The jobs of a case, made of fio keys, so that they mean the same to each engine.
    fn jobs(
        &self,
        side: &Side,
        case: &Case,
        place: &Target,
        size: Option<u64>,
        registers: bool,
    ) -> Result<JobSet, Error> {
        // There is one target, so that a colon in its path is not a separator.
        let named = |path: &Path| path.to_string_lossy().replace(':', r"\:");
        let (name, volume) = match place {
            Target::Path(path) => (named(path), None),
            Target::InVolume(file) => (named(&file.path), Some(file.volume.to_string_lossy())),
            Target::Virtual(name) => (name.clone(), None),
        };
        let size = size.map(|size| size.to_string());
        let first = [
            ("filename", Some(name.as_str())),
            ("volume", volume.as_deref()),
            ("ioengine", Some("io_uring")),
            ("time_based", Some("1")),
            ("runtime", Some(RUNTIME)),
            ("gtod_reduce", Some("1")),
            ("size", size.as_deref()),
        ];
        let own = self.experiment.keys.iter().chain(&case.keys);
        let own = own.map(|(key, value)| (*key, Some(value.as_str())));
        let last = ("fixedbufs", (!registers).then_some("0"));
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        side.replace_keys(&mut parser);
        parser.argument("name", Some(self.experiment.name))?;
        for (key, value) in first.into_iter().chain(own).chain([last]) {
            if value.is_some() {
                parser.argument(key, value)?;
            }
        }
        parser.finish()
    }

    /// The size of the new file beside a file: that of the file, up to a limit.
    fn new_size(&self, own: &Target) -> Result<u64, Error> {
        const MAX_NEW_FILE_BYTES: u64 = 64 << 20;
        let size = self.size.map_or_else(|| size_of(own), Ok)?;
        Ok(size.min(MAX_NEW_FILE_BYTES))
    }
}

/// The new file beside a file: `NAME.new`. `None` if the target is not a file.
fn new_file(target: &Target) -> Option<Target> {
    let with_ending = |path: &Path| {
        let mut name = OsString::from(path);
        name.push(".new");
        PathBuf::from(name)
    };
    match target {
        Target::Path(path) if path.is_file() => Some(Target::Path(with_ending(path))),
        Target::InVolume(file) => {
            let path = with_ending(&file.path);
            Some(Target::InVolume(VolumeFile::new(&file.volume, path)))
        }
        Target::Path(_) | Target::Virtual(_) => None,
    }
}

fn check_missing(place: &Target) -> Result<(), Error> {
    match inspect(place, true, &mut Volumes::default())? {
        TargetInfo::Missing => Ok(()),
        _ => Err(Error::input(format!("{place}: exists, but each run creates it; remove it"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::{find, keep_cases};
    use super::*;
    use crate::job::{Fallocate, SizeOrPercent, SyncWrites};

    /// The comparisons of an experiment, with all of its cases or with one.
    fn made(
        name: &str,
        case: &str,
        target: &str,
        settings: &[&str],
    ) -> Result<Vec<Comparison>, String> {
        let mut experiments = find(name).unwrap();
        let settings: Vec<String> = settings.iter().map(|pair| (*pair).to_owned()).collect();
        check_settings(&experiments[0], &settings).map_err(|error| error.to_string())?;
        if !case.is_empty() {
            keep_cases(&mut experiments, &[case.into()]).unwrap();
        }
        comparisons(&experiments[0], target, &settings).map_err(|error| error.to_string())
    }

    fn image() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        file
    }

    #[test]
    fn the_users_keys_come_between_the_ring_and_the_sides_own() {
        let image = image();
        let path = image.path().to_str().unwrap();
        let settings = ["device.queue=aio", "runtime=20ms"];
        let made = made("completion", "in place, depth 1", path, &settings).unwrap();
        let given: Vec<_> = made.iter().map(|made| made.a.side.given.as_str()).collect();
        let off = "device.queue=ring device.queue=aio runtime=20ms completion=worker";
        // psync has no switches.
        assert_eq!(given, [off, "engine=psync runtime=20ms"]);
        for comparison in &made {
            let jobs = [&comparison.a, &comparison.b].map(|side| &side.set.jobs[0]);
            assert!(jobs.iter().all(|job| job.value("runtime") == Some("20ms")), "{jobs:?}");
        }
        assert_eq!(made.iter().map(|made| made.is_beside).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn unwritten_cases_write_a_new_file_once() {
        let image = image();
        let path = image.path().to_str().unwrap();
        let made = made("completion", "unwritten, durable, depth 32", path, &[]).unwrap();
        assert_eq!(made.len(), 2);
        for comparison in &made {
            for side in [&comparison.a, &comparison.b] {
                let options = &side.set.jobs[0].options;
                assert_eq!(options.filename.as_ref(), Some(&format!("{path}.new")));
                assert_eq!(options.size, Some(SizeOrPercent::Bytes(1 << 20)));
                assert_eq!(options.fallocate, Fallocate::Posix);
                assert_eq!(options.sync, SyncWrites::Dsync);
                assert!(options.unlink && options.random_map && !options.time_based);
            }
            assert_eq!(comparison.overwrite(Overwrite::Allow), Overwrite::Refuse);
            comparison.check(Overwrite::Refuse).unwrap();
        }
    }

    #[test]
    fn an_existing_file_is_not_overwritten_by_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name);
        std::fs::write(name("f"), vec![0; 1 << 16]).unwrap();
        std::fs::write(name("f.new"), "mine").unwrap();
        let error = made("completion", "unwritten, depth 1", name("f").to_str().unwrap(), &[]);
        let error = error.unwrap_err();
        assert!(error.starts_with("completion, unwritten, depth 1: "), "{error}");
        assert!(error.contains("f.new: exists"), "{error}");
        assert_eq!(std::fs::read(name("f.new")).unwrap(), b"mine");
    }

    #[test]
    fn devices_and_virtual_targets_have_no_new_files() {
        assert_eq!(new_file(&Target::Virtual("null:1g".into())), None);
        assert_eq!(new_file(&Target::Path("/dev/null".into())), None);
        let file = Target::InVolume(VolumeFile::new("v", "/d/f"));
        assert_eq!(new_file(&file), Some(Target::InVolume(VolumeFile::new("v", "/d/f.new"))));
        let error = made("completion", "unwritten, depth 1", "null:1m", &[]).unwrap_err();
        assert!(error.contains("none of its cases can use null:1m"), "{error}");
        // Neither has psync on a target without a path.
        let made = made("completion", "", "null:1m", &[]).unwrap();
        assert!(made.iter().all(|made| !made.is_beside && !made.case.starts_with("unwritten")));
    }

    #[test]
    fn keys_that_would_make_another_experiment_are_refused() {
        const OWN: &str = "the experiment sets it; use bench compare";
        for (setting, part) in [
            ("engine=ring", "engine: an experiment has its own sides"),
            ("target=/dev/sda", "target: "),
            ("filename=x", "filename: "),
            ("iodepth=7", OWN),
            ("rw=randwrite", OWN),
            ("bs=64k", OWN),
            ("direct=0", OWN),
            ("buffered=1", OWN),
            ("norandommap=0", OWN),
            ("direct.simple_read=on", OWN),
            ("direct.simple_reed=on", "`direct.simple_reed`"),
            ("runtime", "`runtime` is not KEY=VALUE"),
        ] {
            let error = made("simple-read", "", "null:1m", &[setting]).unwrap_err();
            assert!(error.starts_with("--set: ") && error.contains(part), "{setting}: {error}");
        }
    }
}
