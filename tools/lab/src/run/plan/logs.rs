//! The logs and traces that a run may write.

use super::super::io_log::IoLogs;
use super::overwrite::Overwrite;
use super::thread_plan::ThreadPlan;
use crate::Error;
use crate::engine::Capabilities;
use crate::job::{Job, split_names};
use crate::targets::Target;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Refuses logs and traces that would replace what is no log, or that cannot be written.
pub(super) fn check_logs(
    threads: &[ThreadPlan],
    jobs: &[Job],
    capabilities: Capabilities,
    overwrite: Overwrite,
) -> Result<(), Error> {
    let targets = threads.iter().flat_map(|thread| &thread.targets);
    let targets = FileSet::new(targets.filter_map(Target::path).map(Path::to_owned));
    let replayed = jobs.iter().filter_map(|job| job.options.iolog.as_deref());
    let replayed = FileSet::new(replayed.flat_map(split_names).map(PathBuf::from));
    let mut traces = BTreeSet::new();
    for (index, thread) in threads.iter().enumerate() {
        let job = &jobs[thread.job];
        let refuse =
            |what: &str, problem| Error::input(format!("{what}: {problem}")).at(job.label());
        let trace = job.options.iolog_copy.iter().map(|path| (PathBuf::from(path), true));
        let logs = IoLogs::paths(job, index + 1, capabilities.synchronous);
        for (path, is_trace) in logs.map(|path| (path, false)).chain(trace) {
            let problem = match path.parent() {
                _ if targets.contains(&path) => {
                    Some("is a target, which a log would replace; give the log another name")
                }
                Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                    Some("its folder does not exist")
                }
                _ if !is_trace => None,
                _ if !traces.insert(path.clone()) => {
                    Some("two jobs write this trace; give each its own write_iolog=")
                }
                _ if replayed.contains(&path) => {
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

/// Files by their paths, and those that exist by their device and number, too: they may have other paths.
struct FileSet {
    paths: BTreeSet<PathBuf>,
    identities: BTreeSet<(u64, u64)>,
}

impl FileSet {
    fn new(paths: impl Iterator<Item = PathBuf>) -> Self {
        let paths: BTreeSet<PathBuf> = paths.collect();
        let identities = paths.iter().filter_map(|path| identity(path)).collect();
        Self { paths, identities }
    }

    fn contains(&self, path: &Path) -> bool {
        self.paths.contains(path)
            || identity(path).is_some_and(|identity| self.identities.contains(&identity))
    }
}

/// The device and the number of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}
