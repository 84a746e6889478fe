//! The loop of one thread: fill up to the depth in batches, submit, reap, count, in fio's order. It is
//! generic over the engine and over whether latencies are measured. Without latencies it reads only the
//! coarse clock.

use uringfs::Errno;

use super::clock::{coarse_ns, exact_ns};
use super::failure::Failure;
use super::io_log::{IoLogs, LoggedIo};
use super::io_stats::{DirectionStats, IoStats, batch_class};
use super::progress::ThreadProgress;
use super::rate_limit::RateLimit;
use super::read_back::ReadBack;
use super::steady::SteadySampler;
use super::usage::Usage;
use crate::engine::{Engine, EngineReport, Io, IoCompletion, ReapBounds, SyncKind};
use crate::fill_pattern::FillPattern;
use crate::job::{Measure, Options};
use crate::workload::{IoOp, NextIo, Workload};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Counting this many completions takes less time than reading the clock.
const MAX_FRESH_COMPLETIONS: usize = 4;

/// The result of a thread's loop.
#[derive(Debug)]
pub struct LoopResult {
    /// Counts since the ramp.
    pub stats: IoStats,
    /// CPU time, switches and faults since the ramp.
    pub usage: Usage,
    /// The end of the ramp: monotonic clock in nanoseconds.
    pub started_ns: u64,
    /// Time since the ramp.
    pub runtime_ns: u64,
    /// The time of reads and of writes. The time of reading back does not count for writes. As with fio, a job
    /// that only writes has reads only while it reads back.
    pub direction_ns: [u64; 2],
    /// The engine's report since the ramp.
    pub engine: EngineReport,
    /// The failure that ended the loop early, or that blocks were wrong.
    pub failure: Option<Failure>,
    /// The first wrong blocks.
    pub wrong_blocks: Vec<Failure>,
}

/// What few jobs have: it sees each completion.
#[derive(Debug, Default)]
pub struct Observers {
    /// Logs over time.
    pub logs: Option<IoLogs>,
    /// Ends the job when its rate is steady.
    pub steady: Option<SteadySampler>,
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
    /// I/Os come directly from the workload: no rate limit, no reading back.
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
    max_latency_ns: [u64; 2],
    observers: Observers,
    /// The end of the run; 0 when it is to end now.
    deadline_ns: u64,
    stats: IoStats,
    /// The last reading of the clock.
    now_ns: u64,
    /// The number of completions of the last reap.
    last_reaped: usize,
    /// Writes between two pauses of each kind (0 is none): fsync, fdatasync, reading back. Writes since the
    /// last one, and whether one is due: then nothing is issued until nothing is in flight and it is over.
    pause_every: [u32; 3],
    writes_since_pause: [u32; 3],
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
        let rate_limit = RateLimit::from_options(options, now_ns);
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
            engine,
            workload,
            options,
            progress,
            measure: options.measure(),
            slots: vec![idle; depth as usize],
            free_slots: (0..depth).rev().collect(),
            batch: Vec::with_capacity(depth as usize),
            done: Vec::with_capacity(depth as usize),
            is_plain: rate_limit.is_none(),
            rate_limit,
            delayed_op: None,
            fill_pattern,
            passes_left: if options.time_based { u64::MAX } else { options.loops - 1 },
            stats: IoStats::default(),
            now_ns,
            last_reaped: 0,
            pause_every: [options.fsync, options.fdatasync, options.verify_backlog],
            writes_since_pause: [0; 3],
            pause_due: false,
            exhausted: false,
            failure: None,
        };
        io_loop.begin_stats(now_ns);
        io_loop
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
    }

    /// Decides whether completions are observed, so that other jobs have one test for all of it.
    fn choose_observation(&mut self) {
        let DirectionStats { slat_histogram, lat_histogram, .. } = &self.stats.directions[0];
        self.is_observed = self.read_back.verifies
            || self.observers.logs.is_some()
            || self.observers.steady.is_some()
            || slat_histogram.is_some()
            || lat_histogram.is_some()
            || self.max_latency_ns != [u64::MAX; 2];
    }

    fn run(mut self, stop: &AtomicBool) -> LoopResult {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let mut started_ns = self.now_ns;
        let ramp_ends = started_ns + nanoseconds(self.options.ramp_time);
        let mut ramping = ramp_ends > started_ns;
        if !ramping {
            self.begin_observers(started_ns);
        }
        // As with fio, the runtime begins when the loop notices the end of the ramp.
        let runtime = self.options.runtime.filter(|time| !time.is_zero());
        let deadline_from = |ns| runtime.map_or(u64::MAX, |time| ns + nanoseconds(time));
        if !ramping {
            self.deadline_ns = deadline_from(started_ns);
        }
        let mut usage = Usage::current_thread();
        let mut engine_before = match self.options.pre_read {
            true => self.engine.report(),
            false => EngineReport::default(),
        };

        while self.failure.is_none()
            && !stop.load(Ordering::Relaxed)
            && self.now_ns < self.deadline_ns
        {
            self.fill();
            if self.in_flight() == 0 && self.read_back.is_backlog_over() {
                self.end_backlog();
            } else if self.in_flight() == 0 {
                if self.failure.is_some() || self.exhausted && !self.begin_next_pass() {
                    break;
                }
                self.idle();
            } else if let Err(errno) = self.reap_to_low_water() {
                self.fail(errno, "reap".into());
                break;
            }
            if ramping && self.now_ns >= ramp_ends {
                ramping = false;
                started_ns = exact_ns();
                self.deadline_ns = deadline_from(started_ns);
                self.begin_stats(started_ns);
                self.begin_observers(started_ns);
                self.read_back.restart_clock(started_ns);
                usage = Usage::current_thread();
                engine_before = self.engine.report();
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
        let read_back_ns = self.read_back.elapsed_ns();
        let runtime_ns = exact_ns() - started_ns;
        let only_reads_back = read_back_ns > 0 && !self.options.pattern.reads();
        let read_ns = if only_reads_back { read_back_ns } else { runtime_ns };
        let mut result = LoopResult {
            started_ns,
            runtime_ns,
            direction_ns: [read_ns, runtime_ns - read_back_ns],
            usage: Usage::current_thread().since(usage),
            engine: self.engine.report().since(&engine_before),
            stats: self.stats,
            failure: self.failure,
            wrong_blocks: self.read_back.into_wrong_blocks(),
        };
        // Not before the end of the measurement: it writes what the logs have collected.
        if let Some(Err(failure)) = self.observers.logs.map(IoLogs::finish) {
            result.failure.get_or_insert(failure);
        }
        result
    }

    /// Ends the writes of a pass: `end_fsync`, and `fsync_on_close`, which is the same for fio, too.
    fn end_pass(&mut self) {
        let syncs = self.options.end_fsync || self.options.close_fsync;
        if syncs && self.options.pattern.writes() && !self.read_back.running {
            self.sync(SyncKind::Full);
        }
    }

    /// After a pass, with nothing in flight: begins reading back its writes, or the next loop. Returns
    /// false if there is neither.
    fn begin_next_pass(&mut self) -> bool {
        self.end_pass();
        if self.failure.is_some() {
            return false;
        }
        if let Some(pass) = self.read_back.begin() {
            self.begin_reading_back(pass);
        } else if self.passes_left == 0 {
            self.read_back.end(&self.fill_pattern, None);
            return false;
        } else {
            self.passes_left -= 1;
            self.workload.begin_pass();
            self.fill_pattern.begin_pass();
            if self.read_back.running {
                self.resume_rate_limit();
            }
            self.read_back.end(&self.fill_pattern, Some(self.workload));
            self.choose_observation();
            self.is_plain = self.rate_limit.is_none();
        }
        self.exhausted = false;
        true
    }

    /// Begins reading back from this workload.
    fn begin_reading_back(&mut self, pass: Workload) {
        *self.workload = pass;
        self.is_plain = false;
        self.writes_since_pause[2] = 0;
        self.choose_observation();
        self.read_back_since_ns = exact_ns();
        self.sync_and_drop_cache();
    }

    /// The writes of the backlog have been read back: goes on after the last of them, which is where the
    /// workload is again.
    fn end_backlog(&mut self) {
        self.read_back.end(&self.fill_pattern, Some(self.workload));
        self.choose_observation();
        self.resume_rate_limit();
        self.is_plain = self.rate_limit.is_none();
    }

    /// The rate limit goes on after reading back, whose time it must not catch up.
    fn resume_rate_limit(&mut self) {
        self.now_ns = exact_ns();
        if let Some(rate_limit) = &mut self.rate_limit {
            rate_limit.leave_out(self.now_ns.saturating_sub(self.read_back_since_ns));
        }
    }

    /// Writes back and drops the page cache, so that reading back reads the device.
    fn sync_and_drop_cache(&mut self) {
        for file in 0..self.workload.files() {
            if let Err(errno) = self.engine.sync_and_drop_cache(file) {
                return self.fail_file(errno, "sync before reading back".into(), file);
            }
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
            self.count_write(op);
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
            return self.next_io_slow();
        }
        let next = self.workload.next_io();
        self.exhausted |= next.is_none();
        next
    }

    /// The next I/O with a rate limit, or while reading back.
    #[inline(never)]
    fn next_io_slow(&mut self) -> Option<NextIo> {
        if self.read_back.running {
            // As with fio, the rate limit does not apply to reading back.
            if self.read_back.is_backlog_over() {
                return None;
            }
            let next = self.workload.next_read_back();
            self.exhausted |= next.is_none();
            self.read_back.count();
            return next;
        }
        let wanted = match self.delayed_op.take() {
            Some(op) => op,
            None => self.workload.next_direction(),
        };
        let mut op = wanted;
        if let Some(rate_limit) = &self.rate_limit {
            if !TIMED {
                // The coarse clock is too coarse for a rate limit.
                self.now_ns = exact_ns();
            }
            if !rate_limit.allows(op, self.now_ns) {
                match self.other_direction(wanted) {
                    Some(other) if rate_limit.allows(other, self.now_ns) => op = other,
                    _ => {
                        self.delayed_op = Some(wanted);
                        return None;
                    }
                }
            }
        }
        let next = self.workload.next_io_in(op);
        match (&next, &mut self.rate_limit) {
            (None, _) => self.exhausted = true,
            (Some(next), Some(rate_limit)) => rate_limit.count(next),
            (Some(_), None) => {}
        }
        next
    }

    /// The direction that may continue while this one is delayed, as with fio: the job must have a share
    /// of it. Not with verification, which must repeat the order of the I/Os.
    fn other_direction(&self, op: IoOp) -> Option<IoOp> {
        let both = self.workload.is_mixed() && (1..100).contains(&self.options.mix_read);
        let other = if op == IoOp::Read { IoOp::Write } else { IoOp::Read };
        (both && !self.fill_pattern.is_verified()).then_some(other)
    }

    /// Submits the batch and records the time; returns false on failure.
    fn submit_batch(&mut self) -> bool {
        if let Err(errno) = self.engine.submit() {
            self.fail(errno, "submit".into());
            return false;
        }
        if TIMED {
            self.now_ns = exact_ns();
            for &slot in &self.batch {
                self.slots[slot as usize].issued_ns = self.now_ns;
            }
        }
        self.count_batch();
        true
    }

    fn count_batch(&mut self) {
        let size = self.batch.len();
        self.stats.issued(size as u64, self.in_flight());
        self.stats.submit[batch_class(size)] += 1;
        self.batch.clear();
    }

    /// Reaps once; if the depth was reached, reaps down to `iodepth_low`.
    fn reap_to_low_water(&mut self) -> Result<(), Errno> {
        let full = self.free_slots.is_empty();
        self.reap()?;
        while full && self.in_flight() > self.options.depth_low {
            self.reap()?;
        }
        Ok(())
    }

    /// Waits for completions and counts them.
    fn reap(&mut self) -> Result<(), Errno> {
        let in_flight = self.in_flight() as usize;
        // At least one: there is nothing else to do until a slot is free. While an I/O is delayed, fio's
        // zero (take what is there) would only spin.
        let min = (self.options.complete_min as usize).clamp(1, in_flight);
        let bounds = ReapBounds { min, max: (self.options.complete_max as usize).max(min) };
        self.engine.reap(bounds, &mut self.done)?;
        self.now_ns = if TIMED { exact_ns() } else { coarse_ns() };
        self.last_reaped = self.done.len();
        self.stats.complete[batch_class(self.last_reaped)] += 1;
        let mut done = std::mem::take(&mut self.done);
        for one in done.drain(..) {
            self.finish(one);
        }
        self.done = done;
        if let Some(rates) = self.stats.sample(self.now_ns) {
            self.progress.publish(&self.stats, rates);
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
        }
        self.free_slots.push(done.slot);
    }

    /// Verifies a read, and measures what few jobs want.
    #[inline(never)]
    fn observe(&mut self, slot: u32) {
        if self.read_back.verifies {
            self.verify_read(slot);
        }
        let InFlight { io, length, created_ns, issued_ns } = self.slots[slot as usize];
        let (done_ns, op) = (self.now_ns, io.op);
        // The last part of the I/O ends where the whole ends.
        let offset = io.offset + u64::from(io.length) - u64::from(length);
        if let Some(steady) = &mut self.observers.steady
            && steady.count(length, done_ns)
        {
            self.deadline_ns = 0;
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
        if lat_ns > self.max_latency_ns[op as usize] {
            let (verb, us) = (verb(op), lat_ns / 1000);
            let what = format!("{verb} of {length} bytes at {offset} took {us} us: max_latency");
            self.fail_file(Errno::TIMEDOUT, what, io.file);
        }
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
        let verb = verb(io.op);
        let end = if done.result == Ok(0) { ", at the end of the target" } else { "" };
        let Io { file, offset, length, .. } = io;
        self.fail_file(errno, format!("{verb} of {length} bytes at {offset}{end}"), file);
        self.free_slots.push(done.slot);
    }

    /// The rest of an I/O uses its buffer from the beginning: the rest of a write moves there, and the
    /// part that was read is saved if it will be verified.
    fn save_part(&mut self, io: Io, bytes: u32) {
        let buffer = &mut self.engine.buffer(io.slot)[..io.length as usize];
        let bytes = bytes as usize;
        if io.op == IoOp::Write {
            buffer.copy_within(bytes.., 0);
        } else if self.read_back.verifies {
            self.read_back.save_part(io.slot, &buffer[..bytes]);
        }
    }

    /// Counts a write toward the next pause.
    #[inline]
    fn count_write(&mut self, op: IoOp) {
        if op == IoOp::Write && self.pause_every != [0; 3] {
            self.writes_since_pause = self.writes_since_pause.map(|count| count.saturating_add(1));
            self.pause_due = (0..3).any(|kind| self.is_due(kind));
        }
    }

    fn is_due(&self, kind: usize) -> bool {
        let every = self.pause_every[kind];
        every != 0 && self.writes_since_pause[kind] >= every
    }

    /// Syncs, and begins reading back, if that is due and nothing is in flight.
    fn pause_if_idle(&mut self) {
        if self.in_flight() > 0 {
            return;
        }
        self.pause_due = false;
        for (kind, sync) in [SyncKind::Full, SyncKind::Data].into_iter().enumerate() {
            if self.is_due(kind) {
                self.writes_since_pause[kind] = 0;
                self.sync(sync);
            }
        }
        // The time of a sync is no part of the next I/O.
        self.now_ns = if TIMED { exact_ns() } else { self.now_ns };
        if self.is_due(2)
            && let Some(pass) = self.read_back.begin_backlog(self.writes_since_pause[2])
        {
            self.begin_reading_back(pass);
        }
    }

    fn sync(&mut self, kind: SyncKind) {
        for file in 0..self.workload.files() {
            let begin = exact_ns();
            if let Err(errno) = self.engine.sync(file, kind) {
                return self.fail_file(errno, "sync".into(), file);
            }
            self.stats.sync.record(exact_ns() - begin);
        }
    }

    /// Nothing is in flight, and nothing may be issued yet: sleeps for a short time, to notice a stop.
    fn idle(&mut self) {
        const MAX_SLEEP: Duration = Duration::from_millis(20);
        let now = exact_ns();
        let beside = self.delayed_op.and_then(|op| self.other_direction(op));
        if let (Some(rate_limit), Some(op)) = (&mut self.rate_limit, self.delayed_op) {
            rate_limit.on_idle(now);
            let either = [Some(op), beside].into_iter().flatten();
            let wait = either.map(|op| rate_limit.wait_ns(op, now)).min().unwrap_or(0);
            let wait = Duration::from_nanos(wait).min(MAX_SLEEP).as_nanos() as u64;
            match rate_limit.spin_ns(now).min(wait) {
                0 => std::thread::sleep(Duration::from_nanos(wait)),
                spin => {
                    while exact_ns() < now + spin {
                        std::hint::spin_loop();
                    }
                }
            }
        }
        self.now_ns = exact_ns();
    }

    /// Reaps everything, so that no buffer is in use when the engine is dropped.
    fn drain(&mut self) {
        self.batch.clear();
        while self.in_flight() > 0 {
            let failed_before = self.failure.is_some();
            if let Err(errno) = self.reap() {
                if !failed_before {
                    self.fail(errno, "reap".into());
                }
                return;
            }
        }
    }

    fn fail(&mut self, errno: Errno, what: String) {
        self.set_failure(Failure { errno, what, file: None });
    }

    fn fail_file(&mut self, errno: Errno, what: String, file: u32) {
        self.set_failure(Failure { errno, what, file: Some(file) });
    }

    #[cold]
    fn set_failure(&mut self, failure: Failure) {
        // The first failure is the cause of the others.
        self.failure.get_or_insert(failure);
    }
}

/// The name of an operation, for messages.
fn verb(op: IoOp) -> &'static str {
    match op {
        IoOp::Read => "read",
        IoOp::Write => "write",
    }
}
