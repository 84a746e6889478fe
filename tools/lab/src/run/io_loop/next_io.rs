//! The next I/O of a job that may have to wait: for a rate, a think time, its time in a trace, a lower depth, or reading back.

use super::super::clock::exact_ns;
use super::IoLoop;
use crate::engine::{Engine, SyncKind};
use crate::job::{ReplayAction, ReplayStep};
use crate::workload::{IoOp, NextIo};
use std::time::Duration;

impl<E: Engine, const TIMED: bool> IoLoop<'_, E, TIMED> {
    /// The next step of a trace that is due. Syncs are done here, when nothing is in flight.
    #[inline(never)]
    fn next_replayed(&mut self) -> Option<NextIo> {
        while let Some(step) = self.workload.replay().and_then(|replay| replay.peek()) {
            self.now_ns = exact_ns();
            if self.replay_wait_ns(step) > 0 {
                return None;
            }
            let kind = match step.action {
                ReplayAction::Io(op) => {
                    self.workload.replay().iter_mut().for_each(|replay| replay.advance());
                    let ReplayStep { file, offset, length, .. } = step;
                    return Some(NextIo { file, op, offset, length });
                }
                ReplayAction::Sync => SyncKind::Full,
                ReplayAction::DataSync => SyncKind::Data,
            };
            if self.in_flight() > 0 || !self.sync_file(step.file, kind) {
                return None;
            }
            self.stats.synced();
            self.workload.replay().iter_mut().for_each(|replay| replay.advance());
        }
        self.exhausted = true;
        None
    }

    /// The time until a step of the trace is due.
    fn replay_wait_ns(&self, step: ReplayStep) -> u64 {
        self.replay_began_ns.saturating_add(step.due_ns).saturating_sub(self.now_ns)
    }

    /// The next I/O of a trace, with a rate limit, or while reading back.
    #[inline(never)]
    pub(super) fn next_io_slow(&mut self) -> Option<NextIo> {
        if self.depth_search.as_ref().is_some_and(|search| !search.allows(self.in_flight())) {
            return None;
        }
        if self.workload.replay().is_some() {
            return self.next_replayed();
        }
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

    /// Nothing is in flight, and nothing may be issued yet: sleeps for a short time, to notice a stop.
    pub(super) fn idle(&mut self) {
        const MAX_SLEEP: Duration = Duration::from_millis(20);
        let now = exact_ns();
        self.now_ns = now;
        if let Some(step) = self.workload.replay().and_then(|replay| replay.peek()) {
            std::thread::sleep(Duration::from_nanos(self.replay_wait_ns(step)).min(MAX_SLEEP));
        }
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
}
