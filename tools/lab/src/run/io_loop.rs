//! The loop of one thread: fill up to the depth in batches, submit, reap, count, in fio's order. It is
//! generic over the engine and over whether latencies are measured. Without latencies it reads only the
//! coarse clock.

mod next_io;
mod passes;
mod pauses;
mod waits_apart;

use uringfs::Errno;

use super::clock::{coarse_ns, exact_ns};
use super::depth_search::{DepthSearch, SearchResult};
use super::failure::Failure;
use super::io_log::{IoLogs, LoggedIo};
use super::io_stats::{DirectionStats, IoStats, batch_class};
use super::iolog_writer::IoLogWriter;
use super::loop_result::LoopResult;
use super::progress::ThreadProgress;
use super::rate_limit::RateLimit;
use super::read_back::ReadBack;
use super::steady::SteadySampler;
use super::usage::Usage;
use crate::engine::{Engine, EngineReport, Io, IoCompletion, ReapBounds};
use crate::fill_pattern::FillPattern;
use crate::job::{DIRECTIONS, Measure, Options};
use crate::workload::{IoOp, NextIo, Workload};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The kinds of pauses, and the indexes of two of them.
const PAUSES: usize = 4;
const READ_BACK: usize = 2;
const WRITE_BACK: usize = 3;

/// Counting this many completions takes less time than reading the clock.
const MAX_FRESH_COMPLETIONS: usize = 4;

/// The observers that few jobs have: they see each completion, or everything that is issued.
#[derive(Debug, Default)]
pub struct Observers {
    /// Logs over time.
    pub logs: Option<IoLogs>,
    /// Ends the job when its rate is steady.
    pub steady: Option<SteadySampler>,
    /// A trace of the I/O.
    pub iolog: Option<IoLogWriter>,
}

/// An I/O in flight.
#[derive(Clone, Copy)]
struct InFlight {
    /// The part that is not transferred yet.
    io: Io,
    length: u32,
    created_ns: u64,
    issued_ns: u64,
}

struct IoLoop<'a, E, const TIMED: bool> {
    engine: &'a mut E,
    workload: &'a mut Workload,
    options: &'a Options,
    progress: &'a ThreadProgress,
    measure: Measure,
    slots: Vec<InFlight>,
    free_slots: Vec<u32>,
    /// Slots pushed since the last submission.
    batch: Vec<u32>,
    done: Vec<IoCompletion>,
    rate_limit: Option<RateLimit>,
    /// Finds the depth, below that of the slots.
    depth_search: Option<DepthSearch>,
    /// The time of the first step of a trace.
    replay_began_ns: u64,
    /// I/Os come directly from the workload: no rate limit, no reading back, no trace.
    is_plain: bool,
    /// The direction of an I/O that the rate limit delays.
    delayed_op: Option<IoOp>,
    fill_pattern: FillPattern,
    passes_left: u64,
    read_back: ReadBack,
    /// When the last reading back began.
    read_back_since_ns: u64,
    /// Completions need more than the counts of every job: [`IoLoop::observe`].
    is_observed: bool,
    /// The total latency that ends the job, by direction.
    max_latency_ns: [u64; DIRECTIONS],
    observers: Observers,
    /// The end of the run; 0 when it is to end now.
    deadline_ns: u64,
    /// The ramp has not ended.
    ramping: bool,
    stats: IoStats,
    /// The last reading of the clock.
    now_ns: u64,
    /// The number of completions of the last reap.
    last_reaped: usize,
    /// A sample was taken, and the thread keeps its results so far.
    status_due: bool,
    /// Writes between two pauses of each kind (0 is none): fsync, fdatasync, reading back, write-back. Writes since the
    /// last one, and whether one is due: then nothing is issued until nothing is in flight and it is over.
    pause_every: [u32; PAUSES],
    writes_since_pause: [u32; PAUSES],
    /// The bytes of each file that were written since the last write-back, if there are any.
    written: Vec<Range<u64>>,
    pause_due: bool,
    exhausted: bool,
    failure: Option<Failure>,
}

/// Runs `workload` on `engine` for all loops of the job, until its time is over, an I/O fails, or `stop` is
/// set. Writes carry `fill_pattern`. Everything in flight is reaped at the end. Publishes the progress to
/// `progress`, and each completion to `observers`.
pub fn run_io_loop<E: Engine>(
    engine: &mut E,
    workload: &mut Workload,
    fill_pattern: FillPattern,
    options: &Options,
    stop: &AtomicBool,
    progress: &ThreadProgress,
    observers: Observers,
) -> LoopResult {
    if options.measure().latency() {
        IoLoop::<E, true>::new(engine, workload, fill_pattern, options, progress, observers)
            .run(stop)
    } else {
        IoLoop::<E, false>::new(engine, workload, fill_pattern, options, progress, observers)
            .run(stop)
    }
}

impl<'a, E: Engine, const TIMED: bool> IoLoop<'a, E, TIMED> {
    fn new(
        engine: &'a mut E,
        workload: &'a mut Workload,
        fill_pattern: FillPattern,
        options: &'a Options,
        progress: &'a ThreadProgress,
        observers: Observers,
    ) -> Self {
        let depth = if E::CAPABILITIES.synchronous { 1 } else { options.depth };
        let idle = Io { slot: 0, file: 0, op: IoOp::Read, offset: 0, length: 0 };
        let idle = InFlight { io: idle, length: 0, created_ns: 0, issued_ns: 0 };
        let now_ns = exact_ns();
        // The times of a trace are its own.
        let rate_limit = match workload.replay().is_some() {
            true => None,
            false => RateLimit::from_options(options, workload.seed(), now_ns),
        };
        let limit = |time: Duration| match time.as_nanos() as u64 {
            0 => u64::MAX,
            nanoseconds => nanoseconds,
        };
        let mut io_loop = Self {
            read_back: ReadBack::new(options, &fill_pattern, workload),
            read_back_since_ns: now_ns,
            is_observed: false,
            max_latency_ns: options.max_latency.map(limit),
            observers,
            deadline_ns: u64::MAX,
            ramping: false,
            engine,
            workload,
            options,
            progress,
            measure: options.measure(),
            slots: vec![idle; depth as usize],
            free_slots: (0..depth).rev().collect(),
            batch: Vec::with_capacity(depth as usize),
            done: Vec::with_capacity(depth as usize),
            is_plain: false,
            rate_limit,
            depth_search: DepthSearch::from_options(options, depth),
            replay_began_ns: now_ns,
            delayed_op: None,
            fill_pattern,
            passes_left: if options.time_based { u64::MAX } else { options.loops - 1 },
            stats: IoStats::default(),
            now_ns,
            last_reaped: 0,
            status_due: false,
            pause_every: [
                options.fsync,
                options.fdatasync,
                options.verify_backlog,
                options.sync_range.every,
            ],
            writes_since_pause: [0; PAUSES],
            written: Vec::new(),
            pause_due: false,
            exhausted: false,
            failure: None,
        };
        io_loop.is_plain = io_loop.is_plain();
        io_loop.begin_stats(now_ns);
        io_loop
    }

    /// Whether I/Os come directly from the workload while nothing is read back.
    fn is_plain(&mut self) -> bool {
        let has_trace = self.workload.replay().is_some() || self.observers.iolog.is_some();
        self.rate_limit.is_none() && self.depth_search.is_none() && !has_trace
    }

    /// Begins the counts anew.
    fn begin_stats(&mut self, now_ns: u64) {
        self.stats = IoStats::begin(now_ns, self.measure.bandwidth);
        let slat = self.options.slat_percentiles && self.measure.slat;
        let slat = TIMED && slat && !E::CAPABILITIES.synchronous;
        let lat = TIMED && self.options.lat_percentiles && self.measure.lat;
        for direction in &mut self.stats.directions {
            direction.slat_histogram = slat.then(Box::default);
            direction.lat_histogram = lat.then(Box::default);
        }
        self.choose_observation();
    }

    fn begin_observers(&mut self, now_ns: u64) {
        self.observers.logs.iter_mut().for_each(|logs| logs.begin(now_ns));
        self.observers.steady.iter_mut().for_each(|steady| steady.begin(now_ns));
        self.depth_search.iter_mut().for_each(|search| search.begin(now_ns));
    }

    /// Decides whether completions are observed, so that other jobs have one test for all of it.
    fn choose_observation(&mut self) {
        let DirectionStats { slat_histogram, lat_histogram, .. } = &self.stats.directions[0];
        self.is_observed = self.read_back.verifies
            || self.observers.logs.is_some()
            || self.observers.steady.is_some()
            || slat_histogram.is_some()
            || lat_histogram.is_some()
            || self.max_latency_ns != [u64::MAX; DIRECTIONS]
            || self.depth_search.is_some()
            || self.rate_limit.as_ref().is_some_and(RateLimit::counts_completions)
            || self.options.pattern.writes_trimmed();
    }

    fn run(mut self, stop: &AtomicBool) -> LoopResult {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let mut started_ns = self.now_ns;
        let ramp_ends = started_ns + nanoseconds(self.options.ramp_time);
        self.ramping = ramp_ends > started_ns;
        if !self.ramping {
            self.begin_observers(started_ns);
        }
        // As with fio, the runtime begins when the loop notices the end of the ramp.
        let runtime = self.options.runtime.filter(|time| !time.is_zero());
        let deadline_from = |ns| runtime.map_or(u64::MAX, |time| ns + nanoseconds(time));
        if !self.ramping {
            self.deadline_ns = deadline_from(started_ns);
        }
        let mut engine_before = match self.options.pre_read {
            true => self.engine.report(),
            false => EngineReport::default(),
        };
        let mut usage = Usage::current_thread();

        self.read_back_only();
        while self.failure.is_none()
            && !stop.load(Ordering::Relaxed)
            && self.now_ns < self.deadline_ns
        {
            match self.options.waits_apart {
                true => self.fill_apart(),
                false => self.fill(),
            }
            let mut restarts = false;
            if self.in_flight() == 0 && self.read_back.is_backlog_over() {
                self.end_backlog();
            } else if self.in_flight() == 0 {
                if self.failure.is_some() || self.exhausted && !self.begin_next_pass() {
                    break;
                }
                let search = self.depth_search.as_mut();
                restarts = search.is_some_and(|search| search.on_idle(exact_ns()));
                self.idle();
            } else if let Err(errno) = self.reap_to_low_water() {
                self.fail(errno, "reap".into());
                break;
            }
            let ramp_is_over = self.ramping && self.now_ns >= ramp_ends;
            if ramp_is_over || restarts {
                // First: it reads the accounts of all threads, which is no part of the measurement.
                engine_before = self.engine.report();
                started_ns = exact_ns();
                if ramp_is_over {
                    self.ramping = false;
                    self.deadline_ns = deadline_from(started_ns);
                }
                self.begin_stats(started_ns);
                self.begin_observers(started_ns);
                self.read_back.restart_clock(started_ns);
                usage = Usage::current_thread();
            }
            if std::mem::take(&mut self.status_due) && !self.ramping {
                self.progress.keep(self.result_since(started_ns, usage, &engine_before));
            }
        }
        self.drain();
        // A complete pass has been synced at its end.
        if !self.exhausted && self.failure.is_none() {
            self.end_pass();
        }
        if let Some(verdict) = self.read_back.verdict() {
            self.set_failure(verdict);
        }
        let mut result = self.result_since(started_ns, usage, &engine_before);
        result.wrong_blocks = self.read_back.into_wrong_blocks();
        // Not before the end of the measurement: it writes what the logs have collected.
        let logs = self.observers.logs.map_or(Ok(()), IoLogs::finish);
        let iolog = self.observers.iolog.map_or(Ok(()), IoLogWriter::finish);
        if let Err(failure) = logs.and(iolog) {
            result.failure.get_or_insert(failure);
        }
        if self.progress.keeps_results() {
            self.progress.keep(result.clone());
        }
        result
    }

    /// The result so far of a measurement that began then, with that usage and report of the engine. It has no wrong blocks.
    fn result_since(&self, started_ns: u64, usage: Usage, engine: &EngineReport) -> LoopResult {
        let read_back_ns = self.read_back.elapsed_ns();
        let runtime_ns = exact_ns() - started_ns;
        let only_reads_back = read_back_ns > 0 && !self.options.pattern.reads();
        let read_ns = if only_reads_back { read_back_ns } else { runtime_ns };
        LoopResult {
            started_ns,
            in_ramp: self.ramping,
            runtime_ns,
            direction_ns: [read_ns, runtime_ns - read_back_ns, runtime_ns - read_back_ns],
            usage: Usage::current_thread().since(usage),
            engine: self.engine.report().since(engine),
            stats: self.stats.clone(),
            found_depth: self.depth_search.as_ref().map(DepthSearch::depth),
            failure: self.failure.clone(),
            wrong_blocks: Vec::new(),
        }
    }

    fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free_slots.len()) as u32
    }

    /// Pushes I/Os while there are free slots, and submits each full batch.
    fn fill(&mut self) {
        // Asking a finished pass for more I/Os would consume random numbers of the next pass.
        if self.exhausted || self.pause_due {
            return;
        }
        if TIMED && (self.last_reaped > MAX_FRESH_COMPLETIONS || self.read_back.verifies) {
            // The clock reading of the reap is stale: counting or verifying took time.
            self.now_ns = exact_ns();
        }
        while let Some(&slot) = self.free_slots.last() {
            let Some(next) = self.next_io() else { break };
            self.free_slots.pop();
            if self.fill_pattern.refills() && next.op == IoOp::Write {
                let buffer = &mut self.engine.buffer(slot)[..next.length as usize];
                self.fill_pattern.fill_at(buffer, next.offset);
                if TIMED {
                    // The time to generate the bytes is no part of the I/O.
                    self.now_ns = exact_ns();
                }
            }
            let NextIo { file, op, offset, length } = next;
            let io = Io { slot, file, op, offset, length };
            let in_flight =
                InFlight { io, length, created_ns: self.now_ns, issued_ns: self.now_ns };
            self.slots[slot as usize] = in_flight;
            if let Err(errno) = self.engine.push(io) {
                self.free_slots.push(slot);
                return self.fail_file(errno, "push".into(), file);
            }
            self.batch.push(slot);
            let full = self.batch.len() >= self.options.batch_submit as usize;
            // The last batch is submitted by the reap, in one system call, unless it needs a time stamp.
            if full && !self.free_slots.is_empty() && !self.submit_batch() {
                return;
            }
            self.count_write(io);
            if self.pause_due {
                break;
            }
        }
        if !self.batch.is_empty() && (!TIMED || E::CAPABILITIES.synchronous) {
            self.count_batch();
        } else if !self.batch.is_empty() {
            self.submit_batch();
        }
    }

    #[inline]
    fn next_io(&mut self) -> Option<NextIo> {
        if !self.is_plain {
            let next = self.next_io_slow();
            if let (Some(next), Some(iolog)) = (&next, &mut self.observers.iolog) {
                iolog.record(next, self.now_ns);
            }
            return next;
        }
        let next = self.workload.next_io();
        self.exhausted |= next.is_none();
        next
    }

    /// Submits the batch and records the time; returns false on failure.
    fn submit_batch(&mut self) -> bool {
        if let Err(errno) = self.engine.submit() {
            self.fail(errno, "submit".into());
            return false;
        }
        if TIMED {
            self.now_ns = exact_ns();
            let has_trims = self.options.pattern.trims();
            for &slot in &self.batch {
                let in_flight = &mut self.slots[slot as usize];
                // An engine trims in its push or submit, which is the time of the trim itself.
                if !has_trims || in_flight.io.op != IoOp::Trim {
                    in_flight.issued_ns = self.now_ns;
                }
            }
        }
        self.count_batch();
        true
    }

    fn count_batch(&mut self) {
        self.stats.submitted(self.batch.len(), self.in_flight());
        self.batch.clear();
    }

    /// Reaps once; if the depth was reached, reaps down to `iodepth_low`. As with fio, what is in flight when the pass has no more I/Os
    /// is reaped at once.
    fn reap_to_low_water(&mut self) -> Result<(), Errno> {
        if self.options.waits_apart {
            return self.reap_apart();
        }
        if self.exhausted {
            return self.reap(u32::MAX);
        }
        let full = self.free_slots.is_empty();
        self.reap(self.options.complete_min)?;
        while full && self.in_flight() > self.options.depth_low {
            self.reap(self.options.complete_min)?;
        }
        Ok(())
    }

    /// Waits for `least` completions, or all that are in flight, and counts them.
    fn reap(&mut self, least: u32) -> Result<(), Errno> {
        let in_flight = self.in_flight() as usize;
        // At least one: there is nothing else to do until a slot is free. While an I/O is delayed, fio's
        // zero (take what is there) would only spin.
        let min = (least as usize).clamp(1, in_flight);
        let bounds = ReapBounds { min, max: (self.options.complete_max as usize).max(min) };
        self.engine.reap(bounds, &mut self.done)?;
        self.count_done()
    }

    /// Counts the completions that a reap has found.
    #[inline]
    fn count_done(&mut self) -> Result<(), Errno> {
        self.now_ns = if TIMED { exact_ns() } else { coarse_ns() };
        self.last_reaped = self.done.len();
        self.stats.complete[batch_class(self.last_reaped)] += 1;
        let mut done = std::mem::take(&mut self.done);
        for one in done.drain(..) {
            self.finish(one);
        }
        self.done = done;
        if TIMED && self.fill_pattern.refills() && self.options.pattern.writes_trimmed() {
            // The buffers of writes were filled.
            self.now_ns = exact_ns();
        }
        if let Some(rates) = self.stats.sample(self.now_ns) {
            self.progress.publish(&self.stats, rates);
            self.status_due = self.progress.keeps_results();
        }
        if self.pause_due {
            self.pause_if_idle();
        }
        Ok(())
    }

    #[inline]
    fn finish(&mut self, done: IoCompletion) {
        let in_flight = &self.slots[done.slot as usize];
        if done.result != Ok(in_flight.io.length) {
            return self.finish_partial_or_failed(done);
        }
        let stats = &mut self.stats.directions[in_flight.io.op as usize];
        stats.bytes += u64::from(in_flight.length);
        stats.ios += 1;
        if TIMED {
            if self.measure.slat && !E::CAPABILITIES.synchronous {
                stats.slat.record(in_flight.issued_ns - in_flight.created_ns);
            }
            if self.measure.clat {
                stats.clat.record(self.now_ns - in_flight.issued_ns);
            }
            if self.measure.lat {
                stats.lat.record(self.now_ns - in_flight.created_ns);
            }
        }
        if self.is_observed {
            self.observe(done.slot);
            if self.write_trimmed(done.slot) {
                return;
            }
        }
        self.free_slots.push(done.slot);
    }

    /// Verifies a read, and measures what few jobs want.
    #[inline(never)]
    fn observe(&mut self, slot: u32) {
        let InFlight { io, length, created_ns, issued_ns } = self.slots[slot as usize];
        if self.read_back.verifies && io.op == IoOp::Read {
            self.verify_read(slot);
        }
        let (done_ns, op) = (self.now_ns, io.op);
        // The last part of the I/O ends where the whole ends.
        let offset = io.offset + u64::from(io.length) - u64::from(length);
        if let Some(steady) = &mut self.observers.steady
            && steady.count(length, done_ns)
        {
            self.deadline_ns = 0;
        }
        let has_ended = !self.read_back.running && !self.is_trimmed_for_write(op);
        if let (true, Some(rate_limit)) = (has_ended, &mut self.rate_limit) {
            rate_limit.count_completion();
        }
        if let Some(logs) = &mut self.observers.logs {
            logs.record(LoggedIo { op, offset, length, created_ns, issued_ns, done_ns });
        }
        // Without time stamps, the coarse clock may be behind the reading at the creation.
        let lat_ns = done_ns.saturating_sub(created_ns);
        let stats = &mut self.stats.directions[op as usize];
        if let Some(histogram) = &mut stats.slat_histogram {
            histogram.record(issued_ns - created_ns);
        }
        if let Some(histogram) = &mut stats.lat_histogram {
            histogram.record(lat_ns);
        }
        let search = self.depth_search.as_mut().map(|search| search.count(lat_ns, done_ns));
        match search {
            Some(SearchResult::Found) => self.deadline_ns = 0,
            Some(SearchResult::Missed) => {
                let (verb, us) = (op.name(), lat_ns / 1000);
                let what = format!(
                    "{verb} of {length} bytes at {offset} took {us} us at depth 1: latency_target"
                );
                self.fail_file(Errno::TIMEDOUT, what, io.file);
            }
            Some(SearchResult::Continues) | None => {}
        }
        if lat_ns > self.max_latency_ns[op as usize] {
            let (verb, us) = (op.name(), lat_ns / 1000);
            let what = format!("{verb} of {length} bytes at {offset} took {us} us: max_latency");
            self.fail_file(Errno::TIMEDOUT, what, io.file);
        }
    }

    /// Writes the block that the slot has trimmed, if the job does so: `trimwrite`. Returns whether the slot is in flight again.
    #[inline(never)]
    fn write_trimmed(&mut self, slot: u32) -> bool {
        let InFlight { io, length, .. } = self.slots[slot as usize];
        let writes = io.op == IoOp::Trim && self.options.pattern.writes_trimmed();
        if !writes || self.failure.is_some() {
            return false;
        }
        let io = Io { op: IoOp::Write, ..io };
        let mut now_ns = self.now_ns;
        if let Some(iolog) = &mut self.observers.iolog {
            let Io { file, op, offset, .. } = io;
            iolog.record(&NextIo { file, op, offset, length }, now_ns);
        }
        if self.fill_pattern.refills() {
            let buffer = &mut self.engine.buffer(slot)[..length as usize];
            self.fill_pattern.fill_at(buffer, io.offset);
            if TIMED {
                // Not the time of the loop: the others of the batch have ended before.
                now_ns = exact_ns();
            }
        }
        self.slots[slot as usize] = InFlight { io, length, created_ns: now_ns, issued_ns: now_ns };
        if let Err(errno) = self.engine.push(io) {
            self.fail_file(errno, "push".into(), io.file);
            return false;
        }
        self.stats.submitted(1, self.in_flight());
        true
    }

    fn verify_read(&mut self, slot: u32) {
        let InFlight { io, length, .. } = self.slots[slot as usize];
        let buffer = &mut self.engine.buffer(slot)[..length as usize];
        let compared = self.read_back.verify(&self.fill_pattern, io, buffer);
        if let (Err(wrong), true) = (compared, self.options.verify_fatal) {
            self.set_failure(wrong);
        }
    }

    /// A short, interrupted or failed completion: issues the rest again, or records the failure.
    #[cold]
    fn finish_partial_or_failed(&mut self, done: IoCompletion) {
        let in_flight = &mut self.slots[done.slot as usize];
        let again = match done.result {
            Ok(0) => None,
            Ok(bytes) => {
                self.stats.directions[in_flight.io.op as usize].short += 1;
                let io = in_flight.io;
                in_flight.io.offset += u64::from(bytes);
                in_flight.io.length -= bytes;
                let rest = in_flight.io;
                self.save_part(io, bytes);
                Some(rest)
            }
            Err(Errno::AGAIN | Errno::INTR) => Some(in_flight.io),
            Err(_) => None,
        };
        let io = self.slots[done.slot as usize].io;
        let errno = match again.map(|io| self.engine.push(io)) {
            Some(Ok(())) => return,
            Some(Err(errno)) => errno,
            None => done.result.err().unwrap_or(Errno::IO),
        };
        let verb = io.op.name();
        let end = match done.result {
            Ok(0) => ", at the end of the target",
            Err(Errno::OPNOTSUPP) if io.op == IoOp::Trim => ", which the target does not have",
            _ => "",
        };
        let Io { file, offset, length, .. } = io;
        self.fail_file(errno, format!("{verb} of {length} bytes at {offset}{end}"), file);
        self.free_slots.push(done.slot);
    }

    /// The rest of an I/O uses its buffer from the beginning: the rest of a write moves there, and the
    /// part that was read is saved if it will be verified.
    fn save_part(&mut self, io: Io, bytes: u32) {
        if io.op == IoOp::Trim {
            return;
        }
        let buffer = &mut self.engine.buffer(io.slot)[..io.length as usize];
        let bytes = bytes as usize;
        if io.op == IoOp::Write {
            buffer.copy_within(bytes.., 0);
        } else if self.read_back.verifies {
            self.read_back.save_part(io.slot, &buffer[..bytes]);
        }
    }

    /// Reaps everything, so that no buffer is in use when the engine is dropped.
    fn drain(&mut self) {
        self.batch.clear();
        while self.in_flight() > 0 {
            let failed_before = self.failure.is_some();
            if let Err(errno) = self.reap(u32::MAX) {
                if !failed_before {
                    self.fail(errno, "reap".into());
                }
                return;
            }
        }
    }

    fn fail(&mut self, errno: Errno, what: String) {
        self.set_failure(Failure::new(errno, what, None));
    }

    fn fail_file(&mut self, errno: Errno, what: String, file: u32) {
        self.set_failure(Failure::new(errno, what, Some(file)));
    }

    #[cold]
    fn set_failure(&mut self, failure: Failure) {
        // The first failure is the cause of the others.
        self.failure.get_or_insert(failure);
    }
}
