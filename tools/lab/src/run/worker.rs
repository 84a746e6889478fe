//! The threads of one batch. Each opens its engine, waits until all threads have, then runs. If an engine
//! cannot be opened, the batch ends before its first I/O.

use super::group_stop::GroupStops;
use super::io_log::IoLogs;
use super::io_loop::{Observers, run_io_loop};
use super::iolog_writer::IoLogWriter;
use super::loop_result::LoopResult;
use super::plan::ThreadPlan;
use super::progress::RunProgress;
use super::steady::{SteadySampler, SteadyWindow};
use super::thread_result::ThreadResult;
use crate::Error;
use crate::engine::{Engine, EngineConfig, Io, IoCompletion, ReapBounds, Setup, WithEngine};
use crate::fill_pattern::FillPattern;
use crate::job::{Job, Options};
use crate::targets::{Namespace, Target, Volumes};
use crate::workload::{IoOp, Workload};
use parking_lot::{Condvar, Mutex};
use rustix::thread::CpuSet;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use uringfs::Errno;
use uringfs::device::backend::nvme::is_namespace;
use uringfs_ring::raw_calls;

/// Threads that run concurrently.
pub struct Batch<'a> {
    /// The jobs of the run.
    pub jobs: &'a [Job],
    /// The engine's switches.
    pub config: &'a EngineConfig,
    /// The open volumes of files in volumes.
    pub volumes: &'a Volumes,
    /// Set by Ctrl-C; ends the run.
    pub stop: &'a AtomicBool,
    /// Receives the progress.
    pub progress: &'a RunProgress,
    /// Index of the first thread among all threads of the run.
    pub first: usize,
    /// The plans of the threads.
    pub threads: &'a [ThreadPlan],
    /// The beginning of the batch.
    pub started: Instant,
    /// A number of this run, written into block headers by `verify`.
    pub run: u64,
}

impl WithEngine for Batch<'_> {
    type Output = Result<Vec<ThreadResult>, Error>;

    fn call<E: Engine>(self) -> Self::Output {
        let barrier = StartBarrier::new(self.threads.len());
        let stops = GroupStops::new(self.jobs, self.threads);
        let windows = SteadyWindow::for_threads(self.jobs, self.threads);
        std::thread::scope(|scope| {
            let mut handles = Vec::new();
            for (index, plan) in self.threads.iter().enumerate() {
                let (batch, barrier, stops) = (&self, &barrier, &stops);
                let thread =
                    std::thread::Builder::new().name(format!("job-{}-{}", plan.job, plan.index));
                let window = windows[index].clone();
                let work = move || batch.run_thread::<E>(plan, index, barrier, stops, window);
                match thread.spawn_scoped(scope, work) {
                    Ok(handle) => handles.push(handle),
                    Err(error) => {
                        // The other threads must not wait for a thread that does not exist.
                        barrier.abort();
                        return Err(Error::run("cannot start a thread").because(error));
                    }
                }
            }
            stops.forward(self.stop, &handles);
            let mut results = Vec::new();
            let mut error = None;
            for handle in handles {
                match handle.join() {
                    Ok(Ok(result)) => results.extend(result),
                    Ok(Err(problem)) => error = error.or(Some(problem)),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            error.map_or(Ok(results), Err)
        })
    }
}

/// Threads wait here until all are ready, or one has failed.
struct StartBarrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
}

struct BarrierState {
    awaited: usize,
    failed: bool,
}

impl StartBarrier {
    fn new(threads: usize) -> Self {
        let state = Mutex::new(BarrierState { awaited: threads, failed: false });
        Self { state, changed: Condvar::new() }
    }

    /// Waits for the others. Returns true if all are ready.
    fn wait(&self, ready: bool) -> bool {
        let mut state = self.state.lock();
        state.awaited -= 1;
        state.failed |= !ready;
        self.changed.notify_all();
        while state.awaited > 0 && !state.failed {
            self.changed.wait(&mut state);
        }
        !state.failed
    }

    fn abort(&self) {
        self.state.lock().failed = true;
        self.changed.notify_all();
    }
}

impl Batch<'_> {
    fn run_thread<E: Engine>(
        &self,
        plan: &ThreadPlan,
        index: usize,
        barrier: &StartBarrier,
        stops: &GroupStops,
        window: Option<Arc<SteadyWindow>>,
    ) -> Result<Option<ThreadResult>, Error> {
        let job = &self.jobs[plan.job];
        let index = self.first + index;
        let mut fill_pattern = FillPattern::new(&job.options, seed(&job.options, plan), self.run);
        // The logs last: a run that cannot begin replaces none.
        let opened = self.open::<E>(plan, index, &mut fill_pattern).and_then(|engine| {
            let logs = IoLogs::create(job, index + 1, E::CAPABILITIES.synchronous)?;
            Ok((engine, logs, create_iolog(&job.options, plan)?))
        });
        let go = barrier.wait(opened.is_ok());
        let (mut engine, logs, iolog) = opened.map_err(|error| error.at(job.label()))?;
        if !go {
            return Ok(None);
        }
        let options = &job.options;
        let mut workload = Workload::new(options, &plan.regions, plan.amount, seed(options, plan));
        if let Some(log) = options.replay_of(plan.index) {
            workload = workload.replaying(Arc::clone(log));
        }
        let sampler = |window: &Arc<_>| SteadySampler::new(Arc::clone(window), options);
        let observers = Observers { logs, steady: window.as_ref().map(sampler), iolog };
        let group_stop = stops.of_group(plan.group);
        let stop = group_stop.unwrap_or(self.stop);
        let mut result = self.progress.while_running(index, |progress| {
            delay(options.start_delay, stop);
            run_io_loop(
                &mut engine,
                &mut workload,
                fill_pattern,
                options,
                stop,
                progress,
                observers,
            )
        });
        if let Some(others) = group_stop {
            others.store(true, Ordering::Relaxed);
        }
        describe_targets(&mut result, plan, options);
        let elapsed_ns = self.started.elapsed().as_nanos() as u64;
        let (job, group) = (plan.job, plan.group);
        Ok(Some(ThreadResult { job, group, elapsed_ns, result, steady: window }))
    }

    fn open<E: Engine>(
        &self,
        plan: &ThreadPlan,
        index: usize,
        fill_pattern: &mut FillPattern,
    ) -> Result<E, Error> {
        let options = &self.jobs[plan.job].options;
        set_affinity(options, index)?;
        set_priority(options)?;
        let settings: Vec<_> =
            options.settings.iter().chain(&self.config.settings).cloned().collect();
        if options.invalidate {
            plan.targets.iter().for_each(Target::drop_page_cache);
        }
        let depth = if E::CAPABILITIES.synchronous { 1 } else { options.depth };
        let mut engine = E::open(&Setup {
            targets: &plan.targets,
            volumes: self.volumes,
            access: ThreadPlan::access(options, E::CAPABILITIES),
            depth,
            block: options.buffer_bytes() as usize,
            options,
            settings: &settings,
        })?;
        if options.pre_read {
            pre_read(&mut engine, plan, options, self.stop)?;
        }
        if options.pattern.writes() {
            (0..depth).for_each(|slot| fill_pattern.fill(engine.buffer(slot)));
        }
        Ok(engine)
    }
}

/// The trace that a thread writes of its I/O, if its job has `write_iolog`.
fn create_iolog(options: &Options, plan: &ThreadPlan) -> Result<Option<IoLogWriter>, Error> {
    let Some(path) = &options.iolog_copy else { return Ok(None) };
    let names = plan.targets.iter().map(Target::to_string).collect();
    IoLogWriter::create(path.as_ref(), names).map(Some)
}

/// Sleeps, until `stop` is set at the latest.
fn delay(delay: Duration, stop: &AtomicBool) {
    const POLL_INTERVAL: Duration = Duration::from_millis(20);
    let until = Instant::now() + delay;
    while let Some(left) = until.checked_duration_since(Instant::now())
        && !left.is_zero()
        && !stop.load(Ordering::Relaxed)
    {
        std::thread::sleep(left.min(POLL_INTERVAL));
    }
}

/// Reads all blocks once, so that they are cached: `pre_read`.
fn pre_read<E: Engine>(
    engine: &mut E,
    plan: &ThreadPlan,
    options: &Options,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let mut done: Vec<IoCompletion> = Vec::new();
    for (file, region) in (0..).zip(&plan.regions) {
        let failed = |errno: Errno| {
            let target = &plan.targets[file as usize];
            Error::run(format!("{target}: read before the run")).because(errno)
        };
        let mut offset = region.begin;
        // Direct I/O reads whole blocks only.
        let end =
            region.begin + region.length / options.smallest_block() * options.smallest_block();
        while offset < end && !stop.load(Ordering::Relaxed) {
            let length = (end - offset).min(options.buffer_bytes()) as u32;
            let io = Io { slot: 0, file, op: IoOp::Read, offset, length };
            engine.push(io).map_err(failed)?;
            while done.is_empty() {
                engine.reap(ReapBounds { min: 1, max: 1 }, &mut done).map_err(failed)?;
            }
            match done.pop().map(|one| one.result) {
                Some(Ok(0)) => return Err(failed(Errno::IO)),
                Some(Ok(bytes)) => offset += u64::from(bytes),
                Some(Err(Errno::AGAIN | Errno::INTR)) | None => {}
                Some(Err(errno)) => return Err(failed(errno)),
            }
        }
    }
    Ok(())
}

/// Adds to failures what the loop does not know: the target's name, and whether it has become shorter.
fn describe_targets(result: &mut LoopResult, plan: &ThreadPlan, options: &Options) {
    for failure in result.failure.iter_mut().chain(&mut result.wrong_blocks) {
        let Some(file) = failure.file else { continue };
        let (target, region) = (&plan.targets[file as usize], plan.regions[file as usize]);
        failure.what = format!("{target}: {}", failure.what);
        // A file that is only written may grow during the run.
        failure.is_lost |= failure.errno == Errno::IO
            && options.pattern.reads()
            && target.path().is_some_and(|path| !reaches(path, region.begin + region.length));
    }
}

/// Whether a file or a device has this length at least.
fn reaches(path: &Path, length: u64) -> bool {
    if is_namespace(path) {
        return Namespace::open(path, false).is_ok_and(|found| found.size() >= length);
    }
    let end = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    end.is_ok_and(|end| end >= length)
}

/// The seed of a thread. It differs between threads, and is the same in each run unless `randrepeat=0`.
fn seed(options: &Options, plan: &ThreadPlan) -> u64 {
    // fio's default seed.
    const DEFAULT: u64 = 0x89;
    let base = match (options.seed, options.repeatable) {
        (Some(seed), _) => seed,
        (None, true) => DEFAULT,
        (None, false) => super::clock::exact_ns(),
    };
    base.wrapping_add(u64::from(plan.index) << 32).wrapping_add(plan.job as u64)
}

/// Gives the thread's I/O the job's priority; threads that it starts have the same.
fn set_priority(options: &Options) -> Result<(), Error> {
    let Some((class, level)) = options.io_priority() else { return Ok(()) };
    raw_calls::set_io_priority(class, level).map_err(|errno| {
        let hint = if errno == Errno::PERM { "; real time is for root" } else { "" };
        Error::input(format!("prioclass={class} prio={level}: the kernel refuses it{hint}"))
            .because(errno)
    })
}

/// Binds the thread to the job's CPUs. As with fio, `split` counts the threads of all jobs of the run.
fn set_affinity(options: &Options, thread: usize) -> Result<(), Error> {
    if options.cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    match options.split_cpus {
        true => set.set(options.cpus[thread % options.cpus.len()]),
        false => options.cpus.iter().for_each(|&processor| set.set(processor)),
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(|errno| {
        Error::input(format!("cpus_allowed: cannot bind thread {thread} to these CPUs"))
            .because(errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Capabilities, EngineKind, EngineReport, SyncKind};
    use crate::job::{Parser, UnknownKeys};
    use crate::run::{Overwrite, Plan};
    use rustix::thread::sched_getaffinity;

    #[test]
    fn split_processors_are_one_for_each_thread() {
        let allowed = sched_getaffinity(None).unwrap();
        let cpus: Vec<usize> =
            (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect();
        let options = Options { cpus: cpus.clone(), split_cpus: true, ..Options::default() };
        for thread in 0..4 {
            let bound = std::thread::scope(|scope| {
                let work = || {
                    set_affinity(&options, thread).unwrap();
                    sched_getaffinity(None).unwrap()
                };
                scope.spawn(work).join().unwrap()
            });
            assert_eq!(bound.count(), 1);
            assert!(bound.is_set(cpus[thread % cpus.len()]));
        }
    }

    /// The processors of each thread that has opened a [`Recorder`].
    static BOUND: Mutex<Vec<Vec<usize>>> = Mutex::new(Vec::new());

    /// An engine that does not open.
    struct Recorder;

    impl Engine for Recorder {
        const CAPABILITIES: Capabilities = Capabilities {
            synchronous: true,
            buffered: true,
            any_alignment: true,
            extends_files: true,
            virtual_targets: true,
            volumes: false,
            inspect: crate::targets::inspect,
            ignored_keys: &[],
        };

        fn open(_setup: &Setup<'_>) -> Result<Self, Error> {
            let bound = sched_getaffinity(None).unwrap();
            BOUND.lock().push((0..CpuSet::MAX_CPU).filter(|&cpu| bound.is_set(cpu)).collect());
            Err(Error::input("it does not open"))
        }

        fn buffer(&mut self, _slot: u32) -> &mut [u8] {
            unreachable!()
        }

        fn push(&mut self, _io: Io) -> Result<(), Errno> {
            unreachable!()
        }

        fn submit(&mut self) -> Result<(), Errno> {
            unreachable!()
        }

        fn reap(&mut self, _: ReapBounds, _: &mut Vec<IoCompletion>) -> Result<(), Errno> {
            unreachable!()
        }

        fn sync(&mut self, _file: u32, _kind: SyncKind) -> Result<(), Errno> {
            unreachable!()
        }

        fn sync_and_drop_cache(&mut self, _file: u32) -> Result<(), Errno> {
            unreachable!()
        }

        fn report(&self) -> EngineReport {
            unreachable!()
        }
    }

    #[test]
    fn split_processors_go_to_the_threads_of_all_jobs_in_turn() {
        let allowed = sched_getaffinity(None).unwrap();
        let cpus: Vec<usize> =
            (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(2).collect();
        let list = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let text = format!(
            "[global]\nfilename=null:1m\ncpus_allowed={list}\ncpus_allowed_policy=split\n\
             [a]\n[b]\n[c]\nstonewall\n"
        );
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        parser.bytes(text.as_bytes(), "test").unwrap();
        let jobs = parser.finish().unwrap().jobs;
        let plan = Plan::new(&jobs, Recorder::CAPABILITIES, Overwrite::Refuse).unwrap();
        let mut first = 0;
        for threads in plan.threads.chunk_by(|a, b| a.batch == b.batch) {
            let batch = Batch {
                jobs: &jobs,
                config: &EngineConfig::new(EngineKind::default()),
                volumes: &Volumes::default(),
                stop: &AtomicBool::new(false),
                progress: &RunProgress::default(),
                first,
                threads,
                started: Instant::now(),
                run: 1,
            };
            batch.call::<Recorder>().unwrap_err();
            let mut bound = std::mem::take(&mut *BOUND.lock());
            let turn = |thread| vec![cpus[thread % cpus.len()]];
            let mut turns: Vec<_> = (first..first + threads.len()).map(turn).collect();
            bound.sort();
            turns.sort();
            assert_eq!(bound, turns, "from thread {first}");
            first += threads.len();
        }
        assert_eq!(first, 3);
    }
}
