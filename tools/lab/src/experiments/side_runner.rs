//! One side of one case: its target, its job, and the figures of its runs.

use super::case::{Case, CaseJob, Conditions, Side, SideFigures, TargetChoice};
use crate::Error;
use crate::engine::{EngineKind, add_counters};
use crate::job::{JobSet, Options, Parser, UnknownKeys};
use crate::report::entries;
use crate::run::{Overwrite, Plan, Results, Run, RunProgress};
use crate::targets::{Target, TargetInfo, VolumeFile, Volumes, inspect};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// A side, its job, and its figures.
pub(super) struct SideRunner {
    side: Side,
    /// `None` if the side cannot do the case: then it is left out.
    jobs: Option<JobSet>,
    /// Whether the case creates its file. It never overwrites an existing one.
    creates_file: bool,
    pub figures: SideFigures,
}

impl SideRunner {
    /// Chooses the side's target for a case and makes its job.
    ///
    /// # Errors
    /// The file to create exists.
    pub fn new(
        job: &CaseJob<'_>,
        case: &Case,
        side: &Side,
        target: &Target,
    ) -> Result<Self, Error> {
        let own = side.file.clone().map_or_else(|| target.clone(), Target::Path);
        let creates_file = case.target == TargetChoice::NewFile;
        let place = if creates_file { new_file(&own) } else { Some(own.clone()) };
        let mut runner =
            Self { side: side.clone(), jobs: None, creates_file, figures: SideFigures::default() };
        let Some(place) = place else { return Ok(runner) };
        if creates_file && inspect(&place, true, &mut Volumes::default())? != TargetInfo::Missing {
            let line = format!("{place}: exists, but each run creates it; remove it");
            return Err(Error::input(line));
        }
        runner.set_switches(&place, job.conditions.settings);
        let reached = side.config.engine.reaches(&place);
        // An engine that cannot use the target may at most read the volume's device.
        runner.jobs = if reached || side.config.engine == EngineKind::Uringfs {
            let size = if creates_file { Some(new_size(job, &own)?) } else { job.size };
            Some(jobs(job, case, side, &place, size)?)
        } else if creates_file {
            None
        } else {
            jobs_on_volume_device(job, case, side, &place)?
        };
        let uses_fixed_buffers =
            |set: &JobSet| set.jobs.iter().all(|job| job.options.fixed_buffers);
        if side.config.engine == EngineKind::Uringfs
            && !runner.jobs.as_ref().is_some_and(uses_fixed_buffers)
        {
            let off = ("ring.fixed_buffers".into(), "off".into());
            runner.side.config.settings.insert(0, off);
        }
        Ok(runner)
    }

    /// Sets the switches, of which the last one wins: first queue `ring`, if a ring can reach the target, so
    /// that the sides differ only in their own switch and not in the choice of a queue; then the user's; then
    /// the side's own.
    fn set_switches(&mut self, target: &Target, common: &[(String, String)]) {
        let config = &mut self.side.config;
        if config.engine != EngineKind::Uringfs {
            return;
        }
        let below = target.path().map(|path| Target::Path(path.to_owned()));
        let mut settings = Vec::new();
        if EngineKind::Ring.reaches(below.as_ref().unwrap_or(target)) {
            settings.push(("device.queue".into(), "ring".into()));
        }
        settings.extend_from_slice(common);
        settings.append(&mut config.settings);
        config.settings = settings;
    }

    /// The I/O depth of its job.
    pub fn depth(&self) -> u32 {
        self.jobs.as_ref().map_or(0, |set| set.jobs[0].options.depth)
    }

    /// Checks the job without running it.
    pub fn check(&self, conditions: &Conditions<'_>) -> Result<(), Error> {
        let Some(set) = &self.jobs else { return Ok(()) };
        let capabilities = self.side.config.engine.capabilities();
        Plan::new(&set.jobs, capabilities, self.overwrite(conditions)).map(drop)
    }

    /// Never allows overwriting if the case creates its file.
    fn overwrite(&self, conditions: &Conditions<'_>) -> Overwrite {
        if self.creates_file { Overwrite::Refuse } else { conditions.overwrite }
    }

    /// Runs the job once.
    pub fn measure(&mut self, conditions: &Conditions<'_>) -> Result<(), Error> {
        let Some(set) = &self.jobs else { return Ok(()) };
        let overwrite = self.overwrite(conditions);
        let stop = conditions.stop;
        let run = Run {
            set,
            config: &self.side.config,
            overwrite,
            stop,
            progress: &RunProgress::default(),
        };
        let results = run.run()?;
        if stop.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        let (name, into) = (&self.side.name, &mut self.figures);
        match &results {
            Results::Ours(outcome) => {
                for entry in entries(outcome) {
                    if let Some(failure) = entry.failure {
                        return Err(
                            Error::run(format!("{name}: {}", failure.what)).because(failure.errno)
                        );
                    }
                    into.iops.push(entry.iops(0) + entry.iops(1));
                    into.cpu_ns.push(entry.per_io(entry.cpu_ns()));
                    into.switches.push(entry.per_io(entry.context_switches()));
                    into.queue.clone_from(&entry.engine.queue);
                    add_counters(&mut into.counters, &entry.engine.counters);
                }
            }
            Results::Fio(output) => {
                if output.exit_code != 0 {
                    let line = output.stderr_lines.first().map_or("it failed", String::as_str);
                    return Err(Error::run(format!("{name}: fio")).because(line));
                }
                let json = crate::report::json(&results);
                let job = &json["jobs"][0];
                let iops = |way: &str| job[way]["iops"].as_f64().unwrap_or(0.0);
                into.iops.push(iops("read") + iops("write"));
                let cost = |name: &str| job["uringfs"][name].as_f64().unwrap_or(0.0);
                into.cpu_ns.push(cost("cpu_ns_per_io"));
                into.switches.push(cost("context_switches_per_io"));
                into.queue = "fio".into();
            }
        }
        Ok(())
    }
}

/// The new file beside a file: `NAME.new`. `None` if the target is not a file.
pub(super) fn new_file(target: &Target) -> Option<Target> {
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

/// The size of the new file beside a file: that of the file, up to a limit.
fn new_size(job: &CaseJob<'_>, own: &Target) -> Result<u64, Error> {
    const MAX_NEW_FILE_BYTES: u64 = 64 << 20;
    let size = match job.size {
        Some(size) => size,
        None => inspect(own, false, &mut Volumes::default())?.size(),
    };
    Ok(size.min(MAX_NEW_FILE_BYTES))
}

/// The job of an engine that cannot reach a file in a volume: it reads the first bytes of the volume's
/// device, as many as the file has. A job that writes is left out.
fn jobs_on_volume_device(
    job: &CaseJob<'_>,
    case: &Case,
    side: &Side,
    target: &Target,
) -> Result<Option<JobSet>, Error> {
    let Target::InVolume(file) = target else { return Ok(None) };
    let below = Target::Path(file.volume.clone());
    if !side.config.engine.reaches(&below) {
        return Ok(None);
    }
    let size = match job.size {
        Some(size) => size,
        None => inspect(target, false, &mut Volumes::default())?.size(),
    };
    let set = jobs(job, case, side, &below, Some(size))?;
    let reads = set.jobs.iter().all(|job| !job.options.pattern.writes());
    Ok(reads.then_some(set))
}

/// The job of a case, made of fio keys, so that it means the same to each engine.
fn jobs(
    job: &CaseJob<'_>,
    case: &Case,
    side: &Side,
    target: &Target,
    size: Option<u64>,
) -> Result<JobSet, Error> {
    // There is one target, so that a colon in its path is not a separator.
    let named = |path: &Path| path.to_string_lossy().replace(':', r"\:");
    let name = match target {
        Target::Path(path) => named(path),
        Target::InVolume(file) => named(&file.path),
        Target::Virtual(name) => name.clone(),
    };
    let volume = match target {
        Target::InVolume(file) => Some(("volume", file.volume.to_string_lossy().into_owned())),
        _ => None,
    };
    let runtime = format!("{}ms", (job.seconds * 1e3).max(1.0).ceil());
    let fixed = [
        ("filename", name),
        ("ioengine", "io_uring".into()),
        ("time_based", "1".into()),
        ("runtime", runtime),
        ("direct", "1".into()),
        ("gtod_reduce", "1".into()),
    ];
    let size = size.map(|size| ("size", size.to_string()));
    let keys = volume.iter().chain(&fixed).chain(&job.experiment.keys).chain(&size);
    let keys = keys.chain(&case.keys).chain(&side.keys);
    let parse = |more: Option<&(&'static str, String)>| {
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        parser.argument("name", Some(job.experiment.name))?;
        keys.clone().chain(more).try_for_each(|(key, value)| parser.argument(key, Some(value)))?;
        parser.finish()
    };
    let set = parse(None)?;
    if registered_bytes(&set) <= lockable_bytes() {
        Ok(set)
    } else {
        parse(Some(&("fixedbufs", "0".into())))
    }
}

/// The bytes that the threads of all jobs would register.
fn registered_bytes(set: &JobSet) -> u64 {
    let of_job = |options: &Options| {
        let bytes = u64::from(options.jobs) * u64::from(options.depth) * options.largest_block();
        if options.fixed_buffers { bytes } else { 0 }
    };
    set.jobs.iter().map(|job| of_job(&job.options)).sum()
}

/// The bytes that rings can safely register: half of `RLIMIT_MEMLOCK`, because the kernel and other programs
/// of the user also need locked memory. A ring that gets none would fail, and all sides must have the same.
fn lockable_bytes() -> u64 {
    let is_unlimited = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let limit = getrlimit(Resource::Memlock).current;
    if is_unlimited { u64::MAX } else { limit.map_or(u64::MAX, |bytes| bytes / 2) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Fallocate, SizeOrPercent, SyncWrites};
    use std::sync::atomic::AtomicBool;

    /// The runners of an experiment's sides, for the case with this description.
    fn runners(
        name: &str,
        what: &str,
        target: &str,
        settings: &[(String, String)],
    ) -> Vec<SideRunner> {
        let experiment = &super::super::find(name).unwrap()[0];
        let conditions = Conditions {
            target,
            seconds: 1.0,
            pairs: 1,
            settings,
            overwrite: Overwrite::Allow,
            stop: &AtomicBool::new(false),
            progress: &RunProgress::default(),
        };
        let job = CaseJob { experiment, conditions: &conditions, seconds: 0.1, size: None };
        let case = experiment.cases.iter().find(|case| case.what == what).unwrap();
        let sides = &experiment.sides;
        let sides = [&sides.a, &sides.b, &sides.control].into_iter().chain(&sides.beside);
        sides
            .map(|side| SideRunner::new(&job, case, side, &Target::parse(target)).unwrap())
            .collect()
    }

    fn image() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        file
    }

    #[test]
    fn user_switches_come_between_the_ring_and_the_sides_own() {
        let image = image();
        let path = image.path().to_str().unwrap();
        let set = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let common = [set(("device.queue", "aio"))];
        let runners = runners("parallel-write", "", path, &common);
        let switches = &runners[0].side.config.settings;
        let queues = switches.iter().filter(|(name, _)| name == "device.queue");
        assert_eq!(queues.map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["ring", "aio"]);
        assert_eq!(switches.last(), Some(&set(("direct.write_lock", "exclusive"))));
        assert!(runners[2].side.config.settings.is_empty(), "the control has no switches");
    }

    #[test]
    fn unwritten_cases_write_a_new_file_once() {
        let image = image();
        let runners =
            runners("completion", "unwritten, durable", image.path().to_str().unwrap(), &[]);
        assert_eq!(runners.len(), 4);
        for runner in &runners {
            let options = &runner.jobs.as_ref().unwrap().jobs[0].options;
            let name = format!("{}.new", image.path().display());
            assert_eq!(options.filename.as_ref(), Some(&name));
            assert_eq!(options.size, Some(SizeOrPercent::Bytes(1 << 20)));
            assert_eq!(options.fallocate, Fallocate::Posix);
            assert_eq!(options.sync, SyncWrites::Dsync);
            assert!(
                options.unlink && options.random_map && !options.time_based && runner.creates_file
            );
        }
    }

    #[test]
    fn an_existing_file_is_not_overwritten_by_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name);
        std::fs::write(name("f"), vec![0; 1 << 16]).unwrap();
        std::fs::write(name("f.new"), "mine").unwrap();
        let mut experiment = super::super::find("completion").unwrap().remove(0);
        experiment.cases.retain(|case| case.target == TargetChoice::NewFile);
        let target = name("f").display().to_string();
        let conditions = Conditions {
            target: &target,
            seconds: 1.0,
            pairs: 1,
            settings: &[],
            overwrite: Overwrite::Allow,
            stop: &AtomicBool::new(false),
            progress: &RunProgress::default(),
        };
        let error = super::super::run(&experiment, &conditions).unwrap_err().to_string();
        assert!(error.contains("f.new: exists"), "{error}");
        assert_eq!(std::fs::read(name("f.new")).unwrap(), b"mine");
    }

    #[test]
    fn devices_and_virtual_targets_have_no_new_files() {
        assert_eq!(new_file(&Target::Virtual("null:1g".into())), None);
        assert_eq!(new_file(&Target::Path("/dev/null".into())), None);
        let file = Target::InVolume(VolumeFile::new("v", "/d/f"));
        assert_eq!(new_file(&file), Some(Target::InVolume(VolumeFile::new("v", "/d/f.new"))));
    }
}
