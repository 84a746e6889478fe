//! Inspects the targets of jobs, checks that the jobs can use them, and finds the files to create.

use super::checks::{alignment_hint, check_trims, check_zones, unaligned_trim};
use super::file_to_create::FileToCreate;
use super::overwrite::Overwrite;
use super::regions::{end_of, region_of};
use super::thread_plan::ThreadPlan;
use crate::Error;
use crate::engine::Capabilities;
use crate::job::{Job, Options, SizeOrPercent};
use crate::targets::{Target, TargetInfo, Volumes};
use crate::workload::{Region, check_order};
use std::collections::BTreeMap;

/// Inspects targets, and finds the region of each.
pub(super) struct Planner {
    pub(super) capabilities: Capabilities,
    pub(super) overwrite: Overwrite,
    /// Volumes opened for inspection.
    pub(super) volumes: Volumes,
    /// Inspected targets, by target and whether the job writes.
    pub(super) found: BTreeMap<(Target, bool), TargetInfo>,
    pub(super) missing: BTreeMap<Target, FileToCreate>,
}

impl Planner {
    /// The regions of a thread's targets.
    pub(super) fn regions(
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
        check_order(options, region).map_err(&refuse)?;
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
                    None if options.file_size.is_some() => "lower filesize=",
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
