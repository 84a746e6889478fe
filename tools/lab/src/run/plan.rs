//! Turns jobs into threads with targets and regions. All errors that can be known in advance are found
//! here, before the first byte is written.

use super::io_log::IoLogs;
use super::progress::RunProgress;
use crate::Error;
use crate::engine::Capabilities;
use crate::job::{BlockRange, Fallocate, Job, Options, SizeOrPercent};
use crate::targets::{Access, CreatedFiles, InitialContent, Target, TargetInfo, Volumes, claim};
use crate::workload::{Amount, IoOp, Region};
use std::collections::{BTreeMap, BTreeSet};
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
        // The files of `unlink` are of one run.
        let kept = threads.iter().filter(|thread| !jobs[thread.job].options.unlink);
        let targets = kept.flat_map(|thread| thread.targets.iter().cloned()).collect();
        check_logs(&threads, jobs, capabilities, &targets)?;
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

/// Refuses logs that would replace a target, or that have no folder.
fn check_logs(
    threads: &[ThreadPlan],
    jobs: &[Job],
    capabilities: Capabilities,
    targets: &BTreeSet<Target>,
) -> Result<(), Error> {
    for (index, thread) in threads.iter().enumerate() {
        let job = &jobs[thread.job];
        let trace = job.options.iolog_copy.iter().map(PathBuf::from);
        for path in IoLogs::paths(job, index + 1, capabilities.synchronous).chain(trace) {
            let is_log = |other: &Path| other == path || is_same_file(other, &path);
            let problem = match path.parent() {
                _ if targets.iter().filter_map(Target::path).any(is_log) => {
                    "is a target, which a log would replace; give the log another name"
                }
                Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                    "its folder does not exist"
                }
                _ => continue,
            };
            return Err(Error::input(format!("{}: {problem}", path.display())).at(job.label()));
        }
    }
    Ok(())
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
        check_trims(options, region, target, &found).map_err(&refuse)?;
        check_zones(options, region).map_err(&refuse)?;
        match found {
            TargetInfo::Missing => {
                let file = self.missing.entry(target.clone()).or_default();
                if file.job.is_empty() {
                    file.job.clone_from(&job.name);
                }
                file.size =
                    file.size.max(region.begin + region.length).max(options.file_size.unwrap_or(0));
                // What is trimmed has to be there.
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
                return Err(refuse(format!(
                    "is {whole} bytes long, but the job needs {wanted}; lower size="
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
                "direct I/O needs multiples of {unit} bytes, and {value} is not one; change bs=, blockalign= or offset="
            )),
            None => Ok(()),
        }
    }
}

/// Refuses trims of less than a block, which would fail or do nothing.
fn check_trims(
    options: &Options,
    region: Region,
    target: &Target,
    found: &TargetInfo,
) -> Result<(), String> {
    const SECTOR: u64 = 512;
    const VOLUME_BLOCK: u64 = 4096;
    let unit = match target {
        Target::InVolume(_) => VOLUME_BLOCK,
        Target::Path(_) | Target::Virtual(_) => found.alignment().max(SECTOR),
    };
    let BlockRange { min, max } = options.block[IoOp::Trim as usize];
    match [min, max, region.begin].into_iter().find(|value| value % unit != 0) {
        Some(value) if options.pattern.trims() => Err(format!(
            "a trim needs multiples of {unit} bytes, and {value} is not one; change bs= or offset="
        )),
        _ => Ok(()),
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
    let whole = regions.iter().map(|region| region.length).sum();
    let once = options.io_size.map_or(whole, |size| size.resolve(whole));
    let most = match options.number_ios {
        0 => u64::MAX - 1,
        ios => ios.saturating_mul(options.largest_block()),
    };
    Amount::Bytes(once.min(most))
}
