//! The results of a run.

use super::failure::Failure;
use super::thread_result::ThreadResult;
use crate::engine::fio;
use crate::job::Job;
use crate::targets::DiskStats;
use std::time::SystemTime;

/// The outcome of a run on an engine of ours.
#[derive(Debug)]
pub struct Outcome {
    /// The beginning of the run.
    pub started: SystemTime,
    /// The engine's name.
    pub engine: &'static str,
    /// The jobs that were run.
    pub jobs: Vec<Job>,
    /// The global keys and values, as written.
    pub globals: Vec<(String, String)>,
    /// The threads, in the order of jobs.
    pub threads: Vec<ThreadResult>,
    /// Files that the run created and left.
    pub files_made: Vec<String>,
    /// The I/O of the disks under the targets.
    pub disks: Vec<DiskStats>,
    /// Whether the user stopped the run.
    pub incomplete: bool,
    /// Notes for the user, other than the engine's.
    pub notes: Vec<String>,
    /// Why a volume could not be closed after the run: something of it may not be durable.
    pub close_failure: Option<String>,
}

/// The results of a run.
#[derive(Debug)]
pub enum Results {
    /// Results of an engine of ours.
    Ours(Box<Outcome>),
    /// Output of fio.
    Fio(fio::Output),
}

impl Results {
    /// One line for each failed job, after one line for each of its first wrong blocks; then the line of a volume that could not be
    /// closed, unless a job's line says that its target is gone, which is why it could not be.
    pub fn failures(&self) -> Vec<String> {
        let outcome = match self {
            Self::Ours(outcome) => outcome,
            Self::Fio(output) => return output.stderr_lines.clone(),
        };
        let lines = |threads: &[ThreadResult]| {
            let name = &outcome.jobs[threads[0].job].name;
            let result = || threads.iter().map(|thread| &thread.result);
            let mut failures = result().filter_map(|result| result.failure.as_ref());
            let first = failures.next();
            let more = match failures.count() {
                0 => String::new(),
                more => format!("; {more} more of its threads failed too"),
            };
            // If a job stopped at a wrong block, that block is its failure.
            let wrong = result().flat_map(|result| &result.wrong_blocks);
            let wrong = wrong.filter(|wrong| Some(*wrong) != first);
            let mut lines: Vec<_> = wrong.map(|wrong| format!("job `{name}`: {wrong}")).collect();
            lines.extend(first.map(|first| format!("job `{name}`: {first}{more}")));
            lines
        };
        let of_jobs = outcome.threads.chunk_by(|a, b| a.job == b.job).flat_map(lines);
        let mut failures =
            outcome.threads.iter().filter_map(|thread| thread.result.failure.as_ref());
        let is_told = failures.any(Failure::target_is_gone);
        of_jobs.chain(outcome.close_failure.clone().filter(|_| !is_told)).collect()
    }

    /// The exit code: 0; 1 if a job failed; 2 if one failed because its device is full or gone, or its file has become shorter; 130 if
    /// the user stopped the run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Ours(outcome) if outcome.incomplete => 130,
            Self::Ours(outcome) => {
                let failures =
                    || outcome.threads.iter().filter_map(|thread| thread.result.failure.as_ref());
                match failures().next() {
                    None => u8::from(outcome.close_failure.is_some()),
                    Some(_) if failures().any(|failure| failure.is_lost) => 2,
                    Some(_) => 1,
                }
            }
            Self::Fio(output) => output.exit_code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Parser, UnknownKeys};
    use crate::run::LoopResult;
    use uringfs::Errno;

    /// A job that ended with this error on its file, in a volume that could not be closed.
    fn unclosed(errno: Option<Errno>) -> Results {
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        parser.bytes(b"[one]\n", "test").unwrap();
        let failure = errno.map(|errno| Failure::new(errno, "v:/file: write".into(), Some(0)));
        let result = LoopResult { failure, ..LoopResult::default() };
        Results::Ours(Box::new(Outcome {
            started: SystemTime::UNIX_EPOCH,
            engine: "uringfs",
            jobs: parser.finish().unwrap().jobs,
            globals: Vec::new(),
            threads: vec![ThreadResult { job: 0, group: 0, elapsed_ns: 0, result, steady: None }],
            files_made: Vec::new(),
            disks: Vec::new(),
            incomplete: false,
            notes: Vec::new(),
            close_failure: Some("closing v: Input/output error".into()),
        }))
    }

    #[test]
    fn a_volume_that_cannot_be_closed_has_a_line_unless_its_target_is_gone() {
        for (errno, lines, code) in [
            (None, 1, 1),
            (Some(Errno::IO), 2, 1),
            (Some(Errno::NOSPC), 2, 2),
            (Some(Errno::NODEV), 1, 2),
            (Some(Errno::NXIO), 1, 2),
        ] {
            let results = unclosed(errno);
            assert_eq!(results.failures().len(), lines, "{errno:?}: {:?}", results.failures());
            assert_eq!(results.exit_code(), code, "{errno:?}");
        }
    }
}
