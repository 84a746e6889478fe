//! The loop of one thread: fill up to the depth in batches, hand over, reap, count. The order is
//! fio's. It is generic over the engine and over whether times are taken, so that a run without
//! latencies pays for none: its only clock moves at the kernel's tick.

use super::clock::{coarse_ns, exact_ns};
use super::failure::Failure;
use super::live::LiveThread;
use super::rate_limit::Pace;
use super::read_back::ReadBack;
use super::tally::{Tally, batch_class};
use super::usage::Usage;
use crate::contents::Contents;
use crate::engine::{Done, Engine, EngineReport, Io, SyncKind, Wanted};
use crate::job::{Measure, Options};
use crate::workload::{IoOp, Step, Workload};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Completions counted in less time than a reading of the clock takes.
const FRESH: usize = 4;

/// What a thread did.
#[derive(Debug)]
pub struct Drove {
    /// Its counts since the ramp.
    pub tally: Tally,
    /// What it cost since the ramp.
    pub usage: Usage,
    /// The end of the ramp, by the monotonic clock.
    pub started_ns: u64,
    /// Since the ramp.
    pub runtime_ns: u64,
    /// How much of that it read and wrote: what reads back does not write, and as with fio a job
    /// that only writes reads while it reads back.
    pub direction_ns: [u64; 2],
    /// The engine's account since the ramp.
    pub engine: EngineReport,
    /// Why it ended early, if it did; or that blocks were wrong.
    pub failure: Option<Failure>,
    /// The first blocks that were wrong.
    pub wrong_blocks: Vec<Failure>,
}

/// An I/O in flight.
#[derive(Clone, Copy)]
struct Flight {
    /// What is still to be moved of it.
    io: Io,
    length: u32,
    made_ns: u64,
    issued_ns: u64,
}

struct Loop<'a, E, const TIMED: bool> {
    engine: &'a mut E,
    workload: &'a mut Workload,
    options: &'a Options,
    live: &'a LiveThread,
    measure: Measure,
    flights: Vec<Flight>,
    free: Vec<u32>,
    /// Slots pushed since the last hand-over.
    batch: Vec<u32>,
    done: Vec<Done>,
    pace: Option<Pace>,
    /// Steps come as the workload has them: nothing is paced or read back.
    plain: bool,
    /// The direction of an I/O that waits for its time.
    held: Option<IoOp>,
    contents: Contents,
    passes_left: u64,
    read_back: ReadBack,
    tally: Tally,
    /// The last reading of the clock.
    now_ns: u64,
    /// Completions of the last reap.
    reaped: usize,
    /// Writes between two syncs of each kind, 0 for none; and since the last.
    sync_every: [u32; 2],
    writes_since_sync: [u32; 2],
    exhausted: bool,
    failure: Option<Failure>,
}

/// Runs `workload` on `engine` as often as the job has loops, writing `contents`; or until the job's
/// time is over, an I/O fails, or `stop` is set. Whatever is in flight then is reaped. How it goes
/// is told to `live`.
pub fn drive<E: Engine>(
    engine: &mut E,
    workload: &mut Workload,
    contents: Contents,
    options: &Options,
    stop: &AtomicBool,
    live: &LiveThread,
) -> Drove {
    if options.measure().latency() {
        Loop::<E, true>::new(engine, workload, contents, options, live).run(stop)
    } else {
        Loop::<E, false>::new(engine, workload, contents, options, live).run(stop)
    }
}

impl<'a, E: Engine, const TIMED: bool> Loop<'a, E, TIMED> {
    fn new(
        engine: &'a mut E,
        workload: &'a mut Workload,
        contents: Contents,
        options: &'a Options,
        live: &'a LiveThread,
    ) -> Self {
        let depth = if E::FACTS.synchronous { 1 } else { options.depth };
        let idle = Io { slot: 0, file: 0, op: IoOp::Read, offset: 0, length: 0 };
        let idle = Flight { io: idle, length: 0, made_ns: 0, issued_ns: 0 };
        let now_ns = exact_ns();
        let pace = Pace::of(options, now_ns);
        Self {
            read_back: ReadBack::new(options, &contents, workload),
            engine,
            workload,
            options,
            live,
            measure: options.measure(),
            flights: vec![idle; depth as usize],
            free: (0..depth).rev().collect(),
            batch: Vec::with_capacity(depth as usize),
            done: Vec::with_capacity(depth as usize),
            plain: pace.is_none(),
            pace,
            held: None,
            contents,
            passes_left: if options.time_based { u64::MAX } else { options.loops - 1 },
            tally: Tally::begin(now_ns, options.measure().bandwidth),
            now_ns,
            reaped: 0,
            sync_every: [options.fsync, options.fdatasync],
            writes_since_sync: [0; 2],
            exhausted: false,
            failure: None,
        }
    }

    fn run(mut self, stop: &AtomicBool) -> Drove {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let mut started_ns = self.now_ns;
        let ramp_ends = started_ns + nanoseconds(self.options.ramp_time);
        let mut ramping = ramp_ends > started_ns;
        // The runtime begins when the ramp has been seen to end, as with fio.
        let runtime = self.options.runtime.filter(|time| !time.is_zero());
        let deadline_from = |ns| runtime.map_or(u64::MAX, |time| ns + nanoseconds(time));
        let mut deadline = if ramping { u64::MAX } else { deadline_from(started_ns) };
        let mut usage = Usage::of_thread();
        let mut engine_before = EngineReport::default();

        while self.failure.is_none() && !stop.load(Ordering::Relaxed) && self.now_ns < deadline {
            self.fill();
            if self.in_flight() == 0 {
                if self.failure.is_some() || self.exhausted && !self.begin_next_pass() {
                    break;
                }
                self.rest();
            } else if let Err(errno) = self.reap_to_low_water() {
                self.fail(errno, "reap".into());
                break;
            }
            if ramping && self.now_ns >= ramp_ends {
                ramping = false;
                started_ns = exact_ns();
                deadline = deadline_from(started_ns);
                self.tally = Tally::begin(started_ns, self.measure.bandwidth);
                self.read_back.restart_clock(started_ns);
                usage = Usage::of_thread();
                engine_before = self.engine.report();
            }
        }
        self.drain();
        // A pass that was done to its end has been synced then.
        if !self.exhausted && self.failure.is_none() {
            self.end_pass();
        }
        if let Some(verdict) = self.read_back.verdict() {
            self.fail_at(verdict);
        }
        let read_back_ns = self.read_back.took_ns();
        let runtime_ns = exact_ns() - started_ns;
        let only_reads_back = read_back_ns > 0 && !self.options.pattern.reads();
        let read_ns = if only_reads_back { read_back_ns } else { runtime_ns };
        Drove {
            started_ns,
            runtime_ns,
            direction_ns: [read_ns, runtime_ns - read_back_ns],
            usage: Usage::of_thread().since(usage),
            engine: self.engine.report().since(&engine_before),
            tally: self.tally,
            failure: self.failure,
            wrong_blocks: self.read_back.into_wrong_blocks(),
        }
    }

    /// What is to be done when the writes of a pass have ended.
    fn end_pass(&mut self) {
        if self.options.end_fsync && self.options.pattern.writes() && !self.read_back.under_way {
            self.sync(SyncKind::Full);
        }
    }

    /// The pass is done and nothing is in flight: begins the one that reads back what it wrote, or
    /// the next loop. False if there is none.
    fn begin_next_pass(&mut self) -> bool {
        self.end_pass();
        if self.failure.is_some() {
            return false;
        }
        if let Some(pass) = self.read_back.begin() {
            *self.workload = pass;
            self.plain = false;
            self.forget_cached();
        } else if self.passes_left == 0 {
            self.read_back.end(&self.contents, None);
            return false;
        } else {
            self.passes_left -= 1;
            self.workload.begin_pass();
            self.contents.begin_pass();
            if self.read_back.under_way {
                // What its reading took is not to be caught up.
                self.pace = Pace::of(self.options, exact_ns());
            }
            self.read_back.end(&self.contents, Some(self.workload));
            self.plain = self.pace.is_none();
        }
        self.exhausted = false;
        true
    }

    /// Has what was written come from the device when it is read back, and not from the page cache.
    fn forget_cached(&mut self) {
        for file in 0..self.workload.files() {
            if let Err(errno) = self.engine.forget_cached(file) {
                return self.fail_file(errno, "sync before reading back".into(), file);
            }
        }
    }

    fn in_flight(&self) -> u32 {
        (self.flights.len() - self.free.len()) as u32
    }

    /// Pushes I/Os while there are free slots, handing over every full batch.
    fn fill(&mut self) {
        // To ask a pass that is done for more would draw from what orders the next.
        if self.exhausted || self.sync_due(0) || self.sync_due(1) {
            return;
        }
        if TIMED && (self.reaped > FRESH || self.read_back.compares) {
            // The reap's reading is stale by what counting so many, or looking at them, took.
            self.now_ns = exact_ns();
        }
        while let Some(&slot) = self.free.last() {
            let Some(step) = self.next_step() else { break };
            self.free.pop();
            if self.contents.are_fresh() && step.op == IoOp::Write {
                let buffer = &mut self.engine.buffer(slot)[..step.length as usize];
                self.contents.write(buffer, step.offset);
                if TIMED {
                    // To make its bytes is no part of the I/O.
                    self.now_ns = exact_ns();
                }
            }
            let Step { file, op, offset, length } = step;
            let io = Io { slot, file, op, offset, length };
            let flight = Flight { io, length, made_ns: self.now_ns, issued_ns: self.now_ns };
            self.flights[slot as usize] = flight;
            if let Err(errno) = self.engine.push(io) {
                self.free.push(slot);
                return self.fail_file(errno, "push".into(), file);
            }
            self.batch.push(slot);
            let full = self.batch.len() >= self.options.batch_submit as usize;
            // The last batch goes with the reap, in one system call, unless it has to be timed.
            if full && !self.free.is_empty() && !self.hand_over() {
                return;
            }
            self.count_write(op);
            if self.sync_due(0) || self.sync_due(1) {
                break;
            }
        }
        if !self.batch.is_empty() && (!TIMED || E::FACTS.synchronous) {
            self.count_batch();
        } else if !self.batch.is_empty() {
            self.hand_over();
        }
    }

    #[inline]
    fn next_step(&mut self) -> Option<Step> {
        if !self.plain {
            return self.next_deliberate_step();
        }
        let step = self.workload.next_step();
        self.exhausted |= step.is_none();
        step
    }

    /// The next step where it has to be its time, or is a read of what was written.
    #[inline(never)]
    fn next_deliberate_step(&mut self) -> Option<Step> {
        if self.read_back.under_way {
            // As with fio it has no pace, which is that of the job's own I/O.
            let step = self.workload.next_read_back();
            self.exhausted |= step.is_none();
            return step;
        }
        let wanted = match self.held.take() {
            Some(op) => op,
            None => self.workload.direction(),
        };
        let mut op = wanted;
        if let Some(pace) = &self.pace {
            if !TIMED {
                // The tick is too coarse to pace by.
                self.now_ns = exact_ns();
            }
            if !pace.admits(op, self.now_ns) {
                match self.beside(wanted) {
                    Some(other) if pace.admits(other, self.now_ns) => op = other,
                    _ => {
                        self.held = Some(wanted);
                        return None;
                    }
                }
            }
        }
        let step = self.workload.step(op);
        match (&step, &mut self.pace) {
            (None, _) => self.exhausted = true,
            (Some(step), Some(pace)) => pace.count(step),
            (Some(_), None) => {}
        }
        step
    }

    /// The direction that goes on while this one waits for its time, as with fio: one the job has a
    /// share of. What is to be read back has to come in the same order again.
    fn beside(&self, op: IoOp) -> Option<IoOp> {
        let both = self.workload.is_mixed() && (1..100).contains(&self.options.mix_read);
        let other = if op == IoOp::Read { IoOp::Write } else { IoOp::Read };
        (both && !self.contents.are_verified()).then_some(other)
    }

    /// Hands over the batch and notes when; false if that failed.
    fn hand_over(&mut self) -> bool {
        if let Err(errno) = self.engine.submit() {
            self.fail(errno, "submit".into());
            return false;
        }
        if TIMED {
            self.now_ns = exact_ns();
            for &slot in &self.batch {
                self.flights[slot as usize].issued_ns = self.now_ns;
            }
        }
        self.count_batch();
        true
    }

    fn count_batch(&mut self) {
        let size = self.batch.len();
        self.tally.issued(size as u64, self.in_flight());
        self.tally.submit[batch_class(size)] += 1;
        self.batch.clear();
    }

    /// Reaps once, and once the depth was reached until it is down to `iodepth_low`.
    fn reap_to_low_water(&mut self) -> Result<(), Errno> {
        let full = self.free.is_empty();
        self.reap()?;
        while full && self.in_flight() > self.options.depth_low {
            self.reap()?;
        }
        Ok(())
    }

    /// Waits for completions and counts them.
    fn reap(&mut self) -> Result<(), Errno> {
        let in_flight = self.in_flight() as usize;
        // One at least: nothing else is to be done until there is a free slot. While a step waits
        // for its time, fio's zero (take what is there) would only spin.
        let min = (self.options.complete_min as usize).clamp(1, in_flight);
        let wanted = Wanted { min, max: (self.options.complete_max as usize).max(min) };
        self.engine.reap(wanted, &mut self.done)?;
        self.now_ns = if TIMED { exact_ns() } else { coarse_ns() };
        self.reaped = self.done.len();
        self.tally.complete[batch_class(self.reaped)] += 1;
        let mut done = std::mem::take(&mut self.done);
        for one in done.drain(..) {
            self.finish(one);
        }
        self.done = done;
        if let Some(rates) = self.tally.sample(self.now_ns) {
            self.live.publish(&self.tally, rates);
        }
        if self.writes_since_sync != [0; 2] {
            self.sync_if_due();
        }
        Ok(())
    }

    #[inline]
    fn finish(&mut self, done: Done) {
        let flight = &self.flights[done.slot as usize];
        if done.result != Ok(flight.io.length) {
            return self.finish_odd(done);
        }
        let tally = &mut self.tally.directions[flight.io.op as usize];
        tally.bytes += u64::from(flight.length);
        tally.ios += 1;
        if TIMED {
            if self.measure.slat && !E::FACTS.synchronous {
                tally.slat.record(flight.issued_ns - flight.made_ns);
            }
            if self.measure.clat {
                tally.clat.record(self.now_ns - flight.issued_ns);
            }
            if self.measure.lat {
                tally.lat.record(self.now_ns - flight.made_ns);
            }
        }
        if self.read_back.compares {
            self.compare(done.slot);
        }
        self.free.push(done.slot);
    }

    #[inline(never)]
    fn compare(&mut self, slot: u32) {
        let Flight { io, length, .. } = self.flights[slot as usize];
        let buffer = &mut self.engine.buffer(slot)[..length as usize];
        let compared = self.read_back.compare(&self.contents, io, buffer);
        if let (Err(wrong), true) = (compared, self.options.verify_fatal) {
            self.fail_at(wrong);
        }
    }

    /// A completion that is not simply all of it: the rest is issued again, or it has failed.
    #[cold]
    fn finish_odd(&mut self, done: Done) {
        let flight = &mut self.flights[done.slot as usize];
        let again = match done.result {
            Ok(0) => None,
            Ok(bytes) => {
                self.tally.directions[flight.io.op as usize].short += 1;
                let io = flight.io;
                flight.io.offset += u64::from(bytes);
                flight.io.length -= bytes;
                let rest = flight.io;
                self.keep_part(io, bytes);
                Some(rest)
            }
            Err(Errno::AGAIN | Errno::INTR) => Some(flight.io),
            Err(_) => None,
        };
        let io = self.flights[done.slot as usize].io;
        let errno = match again.map(|io| self.engine.push(io)) {
            Some(Ok(())) => return,
            Some(Err(errno)) => errno,
            None => done.result.err().unwrap_or(Errno::IO),
        };
        let verb = if io.op == IoOp::Read { "read" } else { "write" };
        let end = if done.result == Ok(0) { ", at the end of the target" } else { "" };
        let Io { file, offset, length, .. } = io;
        self.fail_file(errno, format!("{verb} of {length} bytes at {offset}{end}"), file);
        self.free.push(done.slot);
    }

    /// The rest of an I/O uses its buffer from the beginning: a write's bytes move there, and what
    /// a read has brought is put aside where it will be looked at.
    fn keep_part(&mut self, io: Io, bytes: u32) {
        let buffer = &mut self.engine.buffer(io.slot)[..io.length as usize];
        let bytes = bytes as usize;
        if io.op == IoOp::Write {
            buffer.copy_within(bytes.., 0);
        } else if self.read_back.compares {
            self.read_back.keep_part(io.slot, &buffer[..bytes]);
        }
    }

    /// Counts a write towards the next sync.
    #[inline]
    fn count_write(&mut self, op: IoOp) {
        if op == IoOp::Write && self.sync_every != [0; 2] {
            self.writes_since_sync = self.writes_since_sync.map(|count| count + 1);
        }
    }

    /// Whether a sync is due: nothing is issued until what is in flight has ended and it is done.
    #[inline]
    fn sync_due(&self, index: usize) -> bool {
        let every = self.sync_every[index];
        every != 0 && self.writes_since_sync[index] >= every
    }

    fn sync_if_due(&mut self) {
        for (index, kind) in [SyncKind::Full, SyncKind::Data].into_iter().enumerate() {
            if self.sync_due(index) && self.in_flight() == 0 {
                self.writes_since_sync[index] = 0;
                self.sync(kind);
            }
        }
    }

    fn sync(&mut self, kind: SyncKind) {
        for file in 0..self.workload.files() {
            let begin = exact_ns();
            if let Err(errno) = self.engine.sync(file, kind) {
                return self.fail_file(errno, "sync".into(), file);
            }
            self.tally.sync.record(exact_ns() - begin);
        }
    }

    /// Nothing is in flight and nothing may be issued yet: sleep a little, so that a stop is seen.
    fn rest(&mut self) {
        const LONGEST: Duration = Duration::from_millis(20);
        let now = exact_ns();
        let beside = self.held.and_then(|op| self.beside(op));
        if let (Some(pace), Some(op)) = (&mut self.pace, self.held) {
            pace.quiet(now);
            let either = [Some(op), beside].into_iter().flatten();
            let wait = either.map(|op| pace.wait_ns(op, now)).min().unwrap_or(0);
            std::thread::sleep(Duration::from_nanos(wait).min(LONGEST));
        }
        self.now_ns = exact_ns();
    }

    /// Reaps everything, so that no buffer is in use when the engine goes.
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
        self.fail_at(Failure { errno, what, file: None });
    }

    fn fail_file(&mut self, errno: Errno, what: String, file: u32) {
        self.fail_at(Failure { errno, what, file: Some(file) });
    }

    #[cold]
    fn fail_at(&mut self, failure: Failure) {
        // The first says why; the others follow from it.
        self.failure.get_or_insert(failure);
    }
}
