//! Turns jobs into threads with targets and regions. All errors that can be known in advance are found
//! here, before the first byte is written.

use super::io_log::IoLogs;
use super::progress::RunProgress;
use crate::Error;
use crate::engine::Capabilities;
use crate::job::{BlockRange, Fallocate, Job, Options, SizeOrPercent, split_names};
use crate::targets::{Access, CreatedFiles, InitialContent, Target, TargetInfo, Volumes, claim};
use crate::workload::{Amount, IoOp, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use uringfs::device::Access as VolumeAccess;

/// Whether the run may overwrite files and devices that it did not create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overwrite {
    /// No.
    #[default]
    Refuse,
    /// Yes, by the user's choice.
    Allow,
}

/// One thread of one job.
#[derive(Debug)]
pub struct ThreadPlan {
    /// Index of the job in the set.
    pub job: usize,
    /// Index of the thread in the job.
    pub index: u32,
    /// Threads of one batch run concurrently; batches run one after the other.
    pub batch: u32,
    /// The reporting group, whose figures are summed.
    pub group: u32,
    /// The files of the thread.
    pub targets: Vec<Target>,
    /// The region of each file.
    pub regions: Vec<Region>,
    /// The bytes of one pass.
    pub amount: Amount,
}

impl ThreadPlan {
    /// How the files of a job are opened.
    pub fn access(options: &Options, capabilities: Capabilities) -> Access {
        let direct = options.direct || !capabilities.buffered;
        Access { writes: options.modifies(), direct, sync: options.sync }
    }
}

/// All threads, and the files to create for them.
#[derive(Debug)]
pub struct Plan {
    /// The threads, in the order of jobs.
    pub threads: Vec<ThreadPlan>,
    /// The targets of all threads, and of plans that share their files.
    targets: BTreeSet<Target>,
    missing: BTreeMap<Target, FileToCreate>,
    /// The volumes of files in volumes.
    volumes: BTreeMap<PathBuf, VolumeAccess>,
}

/// A file that does not exist yet.
#[derive(Debug, Default)]
struct FileToCreate {
    /// The first job that uses it.
    job: String,
    size: u64,
    read: bool,
    zeros: bool,
    space: Option<Fallocate>,
    /// Whether a write past its end extends it.
    grows: bool,
}

impl FileToCreate {
    fn content(&self) -> InitialContent {
        match (self.space, self.grows) {
            _ if self.read && self.zeros => InitialContent::Zeros,
            _ if self.read => InitialContent::Random,
            (Some(Fallocate::Posix), _) => InitialContent::Allocated,
            (Some(Fallocate::Native), _) => InitialContent::AllocatedIfPossible,
            (Some(Fallocate::Keep), true) => InitialContent::Reserved,
            (Some(Fallocate::Keep), false) => InitialContent::AllocatedIfPossible,
            (Some(Fallocate::None) | None, true) => InitialContent::Empty,
            (Some(Fallocate::None | Fallocate::Truncate) | None, _) => InitialContent::Hole,
        }
    }
}

impl Plan {
    /// Plans the jobs. Inspects all targets, and writes nothing.
    ///
    /// # Errors
    /// A job cannot run, or must not.
    pub fn new(
        jobs: &[Job],
        capabilities: Capabilities,
        overwrite: Overwrite,
    ) -> Result<Self, Error> {
        let mut planner = Planner {
            capabilities,
            overwrite,
            volumes: Volumes::default(),
            found: BTreeMap::new(),
            missing: BTreeMap::new(),
        };
        let mut threads = Vec::new();
        let (mut batch, mut group, mut in_group) = (0, 0, 0);
        for (index, job) in jobs.iter().enumerate() {
            let options = &job.options;
            if options.stonewall && index > 0 {
                batch += 1;
            }
            if (options.stonewall || options.new_group) && in_group > 0 {
                group += 1;
                in_group = 0;
            }
            for thread in 0..options.jobs {
                in_group += 1;
                let targets = Target::from_job(&job.name, options, thread);
                let regions = planner.regions(job, thread, &targets)?;
                let amount = match options.replay_of(thread) {
                    Some(log) if !options.time_based => Amount::Bytes(log.bytes()),
                    _ => amount(options, &regions),
                };
                threads.push(ThreadPlan {
                    job: index,
                    index: thread,
                    batch,
                    group,
                    targets,
                    regions,
                    amount,
                });
            }
        }
        let mut volumes = BTreeMap::new();
        for thread in &threads {
            let writes = jobs[thread.job].options.modifies();
            for target in &thread.targets {
                let Target::InVolume(file) = target else { continue };
                let access = volumes.entry(file.volume.clone()).or_insert(VolumeAccess::Read);
                if writes || planner.missing.contains_key(target) {
                    *access = VolumeAccess::ReadWrite;
                }
            }
        }
        check_logs(&threads, jobs, capabilities, overwrite)?;
        // The files that `unlink` removes are of one run.
        let is_kept = |(job, target): &(usize, &Target)| {
            !jobs[*job].options.unlink || !planner.missing.contains_key(*target)
        };
        let targets = threads
            .iter()
            .flat_map(|thread| thread.targets.iter().map(|target| (thread.job, target)))
            .filter(is_kept)
            .map(|(_, target)| target.clone())
            .collect();
        Ok(Self { threads, targets, missing: planner.missing, volumes })
    }

    /// Opens the volumes of files in volumes.
    pub fn open_volumes(&self) -> Result<Volumes, Error> {
        let mut volumes = Volumes::default();
        // Writers first: the same volume may have another name among the readers.
        for access in [VolumeAccess::ReadWrite, VolumeAccess::Read] {
            for (path, _) in self.volumes.iter().filter(|(_, wanted)| **wanted == access) {
                volumes.open(path, access)?;
            }
        }
        Ok(volumes)
    }

    /// Claims the targets, so that the runs of no other process use them.
    ///
    /// # Errors
    /// Another one does.
    pub fn claim(&self) -> Result<(), Error> {
        claim(self.targets.iter())
    }

    /// Leaves the missing files of jobs with `unlink` to the runs, which create and remove them.
    pub fn leave_out_unlinked(&mut self, jobs: &[Job]) {
        let unlinked = self.threads.iter().filter(|thread| jobs[thread.job].options.unlink);
        for target in unlinked.flat_map(|thread| &thread.targets) {
            self.missing.remove(target);
        }
    }

    /// Takes over the targets of another plan, and its missing files. A file of both is as long as the longer one, and has data if either
    /// reads it.
    pub fn share_files(&mut self, other: Self) {
        self.targets.extend(other.targets);
        for (target, file) in other.missing {
            let shared = self
                .missing
                .entry(target)
                .or_insert_with(|| FileToCreate { zeros: true, ..FileToCreate::default() });
            if shared.job.is_empty() {
                (shared.job, shared.space) = (file.job, file.space);
            }
            shared.size = shared.size.max(file.size);
            shared.read |= file.read;
            shared.zeros &= file.zeros;
            shared.grows |= file.grows;
        }
        for (volume, access) in other.volumes {
            let shared = self.volumes.entry(volume).or_insert(access);
            if access == VolumeAccess::ReadWrite {
                *shared = access;
            }
        }
    }

    /// Creates files with their whole lengths, also those that writes would extend.
    pub fn create_whole_files(&mut self) {
        self.missing.values_mut().for_each(|file| file.grows = false);
    }

    /// Creates the missing files. On an error it removes all of them.
    pub fn lay_out(
        &self,
        volumes: &Volumes,
        stop: &AtomicBool,
        progress: &RunProgress,
    ) -> Result<CreatedFiles, Error> {
        let mut created = CreatedFiles::default();
        for (target, file) in &self.missing {
            let size = file.size.div_ceil(1 << 20);
            progress.set_activity(&format!("Laying out {target} ({size} MiB)"));
            if let Err(error) = created.create(target, file.size, file.content(), volumes, stop) {
                created.remove(volumes);
                return Err(error.at(format!("job `{}`", file.job)));
            }
        }
        Ok(created)
    }
}

/// Refuses logs and traces that would replace what is no log, or that cannot be written.
fn check_logs(
    threads: &[ThreadPlan],
    jobs: &[Job],
    capabilities: Capabilities,
    overwrite: Overwrite,
) -> Result<(), Error> {
    let targets = threads.iter().flat_map(|thread| &thread.targets);
    let targets: BTreeSet<&Path> = targets.filter_map(Target::path).collect();
    let replayed = jobs.iter().filter_map(|job| job.options.iolog.as_deref());
    let replayed: BTreeSet<PathBuf> = replayed.flat_map(split_names).map(PathBuf::from).collect();
    let mut traces = BTreeSet::new();
    for (index, thread) in threads.iter().enumerate() {
        let job = &jobs[thread.job];
        let refuse =
            |what: &str, problem| Error::input(format!("{what}: {problem}")).at(job.label());
        let trace = job.options.iolog_copy.iter().map(|path| (PathBuf::from(path), true));
        let logs = IoLogs::paths(job, index + 1, capabilities.synchronous);
        for (path, is_trace) in logs.map(|path| (path, false)).chain(trace) {
            let is_log = |other: &Path| other == path || is_same_file(other, &path);
            let problem = match path.parent() {
                _ if targets.iter().any(|target| is_log(target)) => {
                    Some("is a target, which a log would replace; give the log another name")
                }
                Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                    Some("its folder does not exist")
                }
                _ if !is_trace => None,
                _ if !traces.insert(path.clone()) => {
                    Some("two jobs write this trace; give each its own write_iolog=")
                }
                _ if replayed.iter().any(|other| is_log(other)) => {
                    Some("is the trace that read_iolog= replays; give the copy another name")
                }
                _ => problem_of_trace(&path, overwrite),
            };
            if let Some(problem) = problem {
                return Err(refuse(&path.display().to_string(), problem));
            }
        }
        let mut names = thread.targets.iter().map(Target::to_string);
        if job.options.iolog_copy.is_some()
            && let Some(name) = names.find(|name| name.contains(char::is_whitespace))
        {
            let problem =
                "a name in a trace ends at a blank; rename the file, or leave write_iolog= out";
            return Err(refuse(&name, problem));
        }
    }
    Ok(())
}

/// The reason why no trace may be written there: only an older trace and an empty file are replaced without `--overwrite`.
fn problem_of_trace(path: &Path, overwrite: Overwrite) -> Option<&'static str> {
    const BEGIN: &[u8] = b"fio version ";
    if !path.metadata().ok()?.is_file() {
        return Some("is no regular file; name a file for write_iolog=");
    }
    let mut begin = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(BEGIN.len() as u64).read_to_end(&mut begin));
    let is_trace = read.is_ok() && (begin.is_empty() || begin == BEGIN);
    (!is_trace && overwrite == Overwrite::Refuse)
        .then_some("exists and is no trace; --overwrite replaces it")
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    identity(a).is_some_and(|found| identity(b) == Some(found))
}

struct Planner {
    capabilities: Capabilities,
    overwrite: Overwrite,
    /// Volumes opened for inspection.
    volumes: Volumes,
    /// Inspected targets, by target and whether the job writes.
    found: BTreeMap<(Target, bool), TargetInfo>,
    missing: BTreeMap<Target, FileToCreate>,
}

impl Planner {
    fn regions(
        &mut self,
        job: &Job,
        thread: u32,
        targets: &[Target],
    ) -> Result<Vec<Region>, Error> {
        let share = |extent: SizeOrPercent| match extent {
            SizeOrPercent::Bytes(bytes) => SizeOrPercent::Bytes(bytes / targets.len() as u64),
            percent => percent,
        };
        let size = job.options.size.map(share);
        let region = |(file, target)| self.region(job, (thread, file), target, size);
        (0..).zip(targets).map(region).collect()
    }

    fn region(
        &mut self,
        job: &Job,
        (thread, file): (u32, u32),
        target: &Target,
        size: Option<SizeOrPercent>,
    ) -> Result<Region, Error> {
        let options = &job.options;
        let refuse = |text: String| Error::input(format!("{target}: {text}")).at(job.label());
        if matches!(target, Target::InVolume(_)) && !self.capabilities.volumes {
            return Err(refuse(
                "only engine uringfs reads and writes files in volumes; use --engine uringfs"
                    .into(),
            ));
        }
        let found =
            self.inspect_once(target, options.modifies()).map_err(|error| error.at(job.label()))?;
        if matches!(target, Target::Virtual(_)) && !self.capabilities.virtual_targets {
            return Err(refuse("this engine has no virtual targets; use --engine uringfs".into()));
        }
        let whole = match found {
            TargetInfo::Missing => {
                let size = self.missing.get(target).map_or(0, |file| file.size);
                size.max(options.file_size.unwrap_or(0))
            }
            _ => found.size(),
        };
        let missing = found == TargetInfo::Missing;
        if options.verify_only && missing && !self.missing.contains_key(target) {
            let text = "does not exist; verify_only needs the file that an earlier run has written";
            return Err(refuse(text.into()));
        }
        let replay = options.replay_of(thread);
        let region = match replay {
            Some(log) => Region { begin: 0, length: log.end_of(file) },
            None if options.append && matches!(found, TargetInfo::File { .. }) => {
                end_of(options, size, whole).map_err(&refuse)?
            }
            None => region_of(options, thread, size, whole, missing).map_err(&refuse)?,
        };
        let extends = self.capabilities.extends_files || matches!(target, Target::InVolume(_));
        let blocks = options.blocks_in_use().flat_map(|range| [range.min, range.max]);
        let offsets = options.block_align.into_iter().chain([region.begin]);
        let unaligned = |unit| match replay {
            Some(log) => log.unaligned(file, unit),
            None => blocks.chain(offsets).find(|value| value % unit != 0),
        };
        self.check_alignment(options, &found, unaligned).map_err(&refuse)?;
        let unaligned_trim = |unit| match replay {
            Some(log) => log.unaligned_trim(file, unit),
            None => unaligned_trim(options, region, unit),
        };
        check_trims(options, target, &found, unaligned_trim).map_err(&refuse)?;
        check_zones(options, region).map_err(&refuse)?;
        match found {
            TargetInfo::Missing => {
                let file = self.missing.entry(target.clone()).or_default();
                if file.job.is_empty() {
                    file.job.clone_from(&job.name);
                }
                file.size =
                    file.size.max(region.begin + region.length).max(options.file_size.unwrap_or(0));
                // A trim needs data.
                let Options { pattern, overwrite, .. } = options;
                file.read |= pattern.reads() || pattern.trims() || *overwrite;
                file.zeros |= options.zero_buffers;
                file.space = Some(options.fallocate);
                file.grows = extends;
            }
            TargetInfo::File { .. } if options.append && extends && !options.pattern.reads() => {
                self.check_overwrite(&found).map_err(&refuse)?;
            }
            _ if options.append && region.begin >= whole => {
                return Err(refuse(
                    "file_append needs rw=write or randwrite, and an engine that extends files, such as psync or ring"
                        .into(),
                ));
            }
            _ if region.begin + region.length > whole => {
                let wanted = region.begin + region.length;
                let hint = match replay {
                    Some(_) => "give replay_scale=, or replay_redirect= with a larger target",
                    None => "lower size=",
                };
                return Err(refuse(format!(
                    "is {whole} bytes long, but the job needs {wanted}; {hint}"
                )));
            }
            _ if options.modifies() => self.check_overwrite(&found).map_err(&refuse)?,
            _ => {}
        }
        Ok(region)
    }

    fn inspect_once(&mut self, target: &Target, writes: bool) -> Result<TargetInfo, Error> {
        let key = (target.clone(), writes);
        if let Some(found) = self.found.get(&key) {
            return Ok(found.clone());
        }
        let found = (self.capabilities.inspect)(target, writes, &mut self.volumes)?;
        self.found.insert(key, found.clone());
        Ok(found)
    }

    fn check_overwrite(&self, found: &TargetInfo) -> Result<(), String> {
        if self.overwrite == Overwrite::Allow {
            return Ok(());
        }
        match found {
            TargetInfo::Device { content: Some(content), .. } => {
                Err(format!("holds {content}; --overwrite destroys it"))
            }
            TargetInfo::File { .. } => {
                Err("exists and the job writes to it; --overwrite allows that".into())
            }
            _ => Ok(()),
        }
    }

    fn check_alignment(
        &self,
        options: &Options,
        found: &TargetInfo,
        unaligned: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<(), String> {
        let unit = found.alignment();
        if !ThreadPlan::access(options, self.capabilities).direct || self.capabilities.any_alignment
        {
            return Ok(());
        }
        match unaligned(unit) {
            Some(value) => Err(format!(
                "direct I/O needs multiples of {unit} bytes, and {value} is not one; {}",
                alignment_hint(options)
            )),
            None => Ok(()),
        }
    }
}

/// How offsets and lengths of a job are changed.
fn alignment_hint(options: &Options) -> &'static str {
    match options.iolog {
        Some(_) => {
            "for an offset give replay_align=, for a length replay_redirect= with a target of smaller blocks"
        }
        None => "change bs=, blockalign= or offset=",
    }
}

/// An offset or a length of a job's trims that is no multiple of `unit`.
fn unaligned_trim(options: &Options, region: Region, unit: u64) -> Option<u64> {
    let BlockRange { min, max } = options.block[IoOp::Trim as usize];
    let values = [min, max, options.block_align[IoOp::Trim as usize], region.begin];
    values.into_iter().find(|value| options.pattern.trims() && value % unit != 0)
}

/// Refuses trims of less than a block, which would fail or do nothing.
fn check_trims(
    options: &Options,
    target: &Target,
    found: &TargetInfo,
    unaligned: impl FnOnce(u64) -> Option<u64>,
) -> Result<(), String> {
    const SECTOR: u64 = 512;
    const VOLUME_BLOCK: u64 = 4096;
    let unit = match target {
        Target::InVolume(_) => VOLUME_BLOCK,
        Target::Path(_) | Target::Virtual(_) => found.alignment().max(SECTOR),
    };
    match unaligned(unit) {
        Some(value) => Err(format!(
            "a trim needs multiples of {unit} bytes, and {value} is not one; {}",
            alignment_hint(options)
        )),
        None => Ok(()),
    }
}

/// Refuses zones that begin beyond the region: fio does, too.
fn check_zones(options: &Options, region: Region) -> Result<(), String> {
    for zones in &options.zones {
        let mut begin = 0u64;
        for zone in zones {
            let SizeOrPercent::Bytes(length) = zone.length else { break };
            if zone.percent > 0 && begin >= region.length {
                return Err(format!(
                    "a zone begins at {begin}, beyond the region of {} bytes; change random_distribution=",
                    region.length
                ));
            }
            begin = begin.saturating_add(length);
        }
    }
    Ok(())
}

/// The region after the end of a file of `whole` bytes: `file_append`.
fn end_of(options: &Options, size: Option<SizeOrPercent>, whole: u64) -> Result<Region, String> {
    let length = size.map_or(whole, |size| size.resolve(whole));
    match whole.checked_add(length) {
        Some(end) if end <= i64::MAX as u64 && length >= options.largest_block() => {
            Ok(Region { begin: whole, length })
        }
        _ => Err(format!("file_append: size= is no length for I/O after {whole} bytes")),
    }
}

/// The region of a job's thread in a file of `whole` bytes.
fn region_of(
    options: &Options,
    thread: u32,
    size: Option<SizeOrPercent>,
    whole: u64,
    missing: bool,
) -> Result<Region, String> {
    // A percentage needs a known size.
    let percent = |extent: &SizeOrPercent| matches!(extent, SizeOrPercent::Percent(_));
    let unknown = missing && whole == 0;
    let offsets = [options.offset, options.offset_increment];
    if unknown && offsets.iter().chain(&size).any(percent) {
        return Err("does not exist, so that a percentage has no meaning; give bytes".into());
    }
    let increment = offsets[1].resolve(whole).checked_mul(thread.into());
    let begin = increment.and_then(|all| all.checked_add(offsets[0].resolve(whole)));
    let begin = begin.and_then(|begin| match offsets.iter().any(percent) {
        // As with fio, a percentage is rounded up to a block, the smallest of all directions.
        true => begin.checked_next_multiple_of(options.offset_unit()),
        false => Some(begin),
    });
    let begin = begin.ok_or("offset reaches beyond what a file can hold")?;
    let rest = whole.saturating_sub(begin);
    let length = match (size, options.file_size) {
        (Some(size), Some(file)) => size.resolve(whole).min(file.saturating_sub(begin)),
        (Some(SizeOrPercent::Bytes(bytes)), None) => bytes,
        (Some(percent), None) => percent.resolve(whole).min(rest),
        (None, Some(file)) => file.saturating_sub(begin),
        (None, None) if unknown => {
            return Err("does not exist; give size= to have it created".into());
        }
        (None, None) => rest,
    };
    let block = options.largest_block();
    if length < block {
        return Err(format!(
            "the region of {length} bytes at {begin} is less than one block of {block}"
        ));
    }
    match begin.checked_add(length) {
        Some(end) if end <= i64::MAX as u64 => Ok(Region { begin, length }),
        _ => Err("offset and size reach beyond what a file can hold".into()),
    }
}

/// The bytes of one pass. A job with `time_based` and `verify` reads back after each pass, so that its
/// passes have an end.
fn amount(options: &Options, regions: &[Region]) -> Amount {
    if options.time_based && !(options.verify.is_some() && options.pattern.writes()) {
        return Amount::Endless;
    }
    let whole = regions.iter().map(|region| region.length).fold(0, u64::saturating_add);
    let once = options.io_size.map_or(whole, |size| size.resolve(whole));
    let most = match options.number_ios {
        0 => u64::MAX - 1,
        ios => ios.saturating_mul(options.largest_block()),
    };
    Amount::Bytes(once.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineKind;
    use crate::job::{Parser, UnknownKeys};
    use crate::workload::Workload;

    /// Plans jobs; `DIR` in their keys is the folder.
    fn plan(folder: &Path, jobs: &str, overwrite: Overwrite) -> Result<Plan, Error> {
        let text = jobs.replace("DIR", folder.to_str().unwrap());
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        parser.bytes(text.as_bytes(), "test").unwrap();
        let jobs = parser.finish().unwrap().jobs;
        Plan::new(&jobs, EngineKind::Psync.capabilities(), overwrite)
    }

    #[test]
    fn a_trace_replaces_only_an_older_trace_that_is_not_replayed() {
        let folder = tempfile::tempdir().unwrap();
        let in_folder = |name: &str| folder.path().join(name);
        std::fs::write(in_folder("data"), [7; 512]).unwrap();
        std::fs::write(in_folder("empty"), "").unwrap();
        std::fs::write(in_folder("trace"), "fio version 3 iolog\n0 /x read 0 512\n").unwrap();
        std::fs::create_dir(in_folder("folder")).unwrap();
        let job = "[j]\nrw=write\nsize=64k\nfilename=DIR/";
        for (keys, problem) in [
            ("x\nwrite_iolog=DIR/data\n", "data: exists and is no trace; --overwrite replaces it"),
            ("x\nwrite_iolog=DIR/folder\n", "folder: is no regular file"),
            ("x y\nwrite_iolog=DIR/new\n", "x y: a name in a trace ends at a blank"),
            (
                "x\nread_iolog=DIR/trace\nreplay_redirect=DIR/x\nwrite_iolog=DIR/trace\n",
                "trace: is the trace that read_",
            ),
            (
                "x\nwrite_iolog=DIR/new\n[k]\nrw=read\nsize=64k\nfilename=DIR/y\nwrite_iolog=DIR/new\n",
                "new: two jobs",
            ),
            ("data\nunlink=1\nwrite_iolog=DIR/data\n", "data: is a target"),
        ] {
            let overwrite = match keys.contains("unlink") {
                true => Overwrite::Allow,
                false => Overwrite::Refuse,
            };
            let keys = format!("{job}{keys}").replace("size=64k", "size=512\nbs=512");
            let error = plan(folder.path(), &keys, overwrite).unwrap_err().to_string();
            assert!(error.contains(problem), "{keys}: {error}");
        }
        for name in ["trace", "empty", "new"] {
            let keys = format!("{job}x\nwrite_iolog=DIR/{name}\n");
            plan(folder.path(), &keys, Overwrite::Refuse).unwrap();
        }
        let keys = format!("{job}x\nwrite_iolog=DIR/data\n");
        plan(folder.path(), &keys, Overwrite::Allow).unwrap();
        assert_eq!(std::fs::read(in_folder("data")).unwrap(), [7; 512], "a plan writes nothing");
    }

    #[test]
    fn the_trims_of_jobs_and_traces_are_whole_sectors() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        std::fs::write(&trace, "fio version 3 iolog\n0 /x read 0 100\n0 /x trim 512 700\n")
            .unwrap();
        for (keys, value) in [
            ("rw=randtrim\nblockalign=4k,4k,100\n", "100"),
            ("rw=trim\nbs=4k,4k,1000\n", "1000"),
            ("read_iolog=DIR/trace\nreplay_redirect=DIR/x\n", "700"),
        ] {
            let keys = format!("[j]\nfilename=DIR/x\nsize=64k\n{keys}");
            let error = plan(folder.path(), &keys, Overwrite::Refuse).unwrap_err().to_string();
            let expected = format!("a trim needs multiples of 512 bytes, and {value} is not one");
            assert!(error.contains(&expected), "{keys}: {error}");
        }
        let keys = "[j]\nread_iolog=DIR/trace\nreplay_redirect=DIR/x\nreplay_skip=trim\n";
        plan(folder.path(), keys, Overwrite::Refuse).unwrap();
    }

    #[test]
    fn the_bytes_of_many_large_files_are_a_bound() {
        let regions = [Region { begin: 0, length: i64::MAX as u64 }; 3];
        let options = Options::default();
        assert_eq!(amount(&options, &regions), Amount::Bytes(u64::MAX - 1));
        let mut workload = Workload::new(&options, &regions, amount(&options, &regions), 1);
        assert!(workload.next_io().is_some());
    }

    #[test]
    fn verify_only_needs_the_file_of_an_earlier_run_or_job() {
        let folder = tempfile::tempdir().unwrap();
        let keys = "rw=write\nsize=64k\nfilename=DIR/x\nverify=crc32c\n";
        let only = format!("[only]\n{keys}verify_only=1\n");
        let error = plan(folder.path(), &only, Overwrite::Refuse).unwrap_err().to_string();
        assert!(error.contains("x: does not exist; verify_only needs"), "{error}");
        plan(folder.path(), &format!("[first]\n{keys}{only}stonewall\n"), Overwrite::Refuse)
            .unwrap();
    }
}
