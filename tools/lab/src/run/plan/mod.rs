//! Turns jobs into threads with targets and regions. All errors that can be known in advance are found
//! here, before the first byte is written.

mod checks;
mod file_to_create;
mod logs;
mod overwrite;
mod planner;
mod regions;
mod thread_plan;

pub use overwrite::Overwrite;
pub use thread_plan::ThreadPlan;

use super::progress::RunProgress;
use crate::Error;
use crate::engine::Capabilities;
use crate::job::Job;
use crate::targets::{CreatedFiles, Target, Volumes, claim};
use crate::workload::Amount;
use file_to_create::FileToCreate;
use logs::check_logs;
use planner::Planner;
use regions::amount;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use uringfs::device::Access as VolumeAccess;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineKind;
    use crate::job::{Options, Parser, UnknownKeys};
    use crate::workload::{Region, Workload};
    use std::path::Path;

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
