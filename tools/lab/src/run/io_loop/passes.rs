//! The passes of a job: the end of one, reading it back, and the next.

use super::super::clock::exact_ns;
use super::{IoLoop, READ_BACK};
use crate::engine::{Engine, SyncKind};
use crate::workload::Workload;

impl<E: Engine, const TIMED: bool> IoLoop<'_, E, TIMED> {
    /// Ends the writes of a pass: `end_fsync`, and `fsync_on_close`, which is the same for fio, too. As with fio, these
    /// syncs are not among those of the report.
    pub(super) fn end_pass(&mut self) {
        let syncs = self.options.end_fsync || self.options.close_fsync;
        if syncs && self.options.modifies() && !self.read_back.running {
            for file in 0..self.workload.files() {
                if let Err(errno) = self.engine.sync(file, SyncKind::Full) {
                    return self.fail_file(errno, "sync".into(), file);
                }
            }
        }
    }

    /// After a pass, with nothing in flight: begins reading back its writes, or the next loop. Returns
    /// false if there is neither.
    pub(super) fn begin_next_pass(&mut self) -> bool {
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
            self.is_plain = self.is_plain();
            self.replay_began_ns = exact_ns();
            self.read_back_only();
        }
        self.exhausted = false;
        true
    }

    /// Reads back in place of the pass, if the job does nothing else: `verify_only`.
    pub(super) fn read_back_only(&mut self) {
        if self.options.verify_only
            && let Some(pass) = self.read_back.begin()
        {
            self.begin_reading_back(pass);
        }
    }

    /// Begins reading back from this workload.
    pub(super) fn begin_reading_back(&mut self, pass: Workload) {
        *self.workload = pass;
        self.is_plain = false;
        self.writes_since_pause[READ_BACK] = 0;
        self.choose_observation();
        self.read_back_since_ns = exact_ns();
        self.sync_and_drop_cache();
    }

    /// The writes of the backlog have been read back: goes on after the last of them, which is where the
    /// workload is again.
    pub(super) fn end_backlog(&mut self) {
        self.read_back.end(&self.fill_pattern, Some(self.workload));
        self.choose_observation();
        self.resume_rate_limit();
        self.is_plain = self.is_plain();
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
}
