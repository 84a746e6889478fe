//! The loop of a job with `waits_apart`: it fills the whole depth, submits, and sleeps until completions are there, and counts the time of
//! its work only. So a guest whose clock counts instructions counts those of the I/Os, however long the device takes.

use super::IoLoop;
use crate::engine::{Engine, ReapBounds};
use crate::run::clock::exact_ns;
use std::time::Duration;
use uringfs::Errno;

/// Enough for a device to complete the whole depth, so that the first look finds all of it.
const SLEEP: Duration = Duration::from_millis(10);

impl<E: Engine, const TIMED: bool> IoLoop<'_, E, TIMED> {
    /// Fills the depth and submits all of it. Counted to the end of the last submission.
    pub(super) fn fill_apart(&mut self) {
        let began_ns = exact_ns();
        self.fill();
        if self.in_flight() > 0
            && let Err(errno) = self.engine.submit()
        {
            self.fail(errno, "submit".into());
        }
        self.count_work(began_ns);
    }

    /// Reaps all that is in flight. Looks that find nothing are not counted, nor the time between them.
    pub(super) fn reap_apart(&mut self) -> Result<(), Errno> {
        while self.in_flight() > 0 {
            std::thread::sleep(SLEEP);
            let began_ns = exact_ns();
            let bounds = ReapBounds { min: 0, max: self.slots.len() };
            self.engine.reap(bounds, &mut self.done)?;
            if !self.done.is_empty() {
                self.count_done()?;
                self.count_work(began_ns);
            }
        }
        Ok(())
    }

    /// Counts the time since `began_ns`, less what reading the clock takes.
    fn count_work(&mut self, began_ns: u64) {
        let ended_ns = exact_ns();
        let reading_ns = exact_ns() - ended_ns;
        self.stats.work_ns += (ended_ns - began_ns).saturating_sub(reading_ns);
    }
}
