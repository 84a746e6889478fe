//! Full reports while a run goes on: fio's `--status-interval`.

use super::outcome::Results;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Where the results so far go, and how often.
#[derive(Clone, Copy)]
pub struct StatusDumps<'a> {
    /// The time between two.
    pub interval: Duration,
    /// Called with the results so far, by a thread that does nothing else.
    pub dump: &'a (dyn Fn(&Results) + Sync),
}

impl fmt::Debug for StatusDumps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusDumps").field("interval", &self.interval).finish_non_exhaustive()
    }
}

impl StatusDumps<'_> {
    /// Runs `work`, and dumps `results` at each interval until it ends.
    pub(super) fn during<T>(
        self,
        results: impl Fn() -> Results + Sync,
        work: impl FnOnce() -> T,
    ) -> T {
        let (end, ended) = channel::<()>();
        let results = &results;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(self.interval) == Err(RecvTimeoutError::Timeout) {
                    (self.dump)(&results());
                }
            });
            let done = work();
            // As soon as the sender is gone, the thread ends; it does so, too, if the work has panicked.
            drop(end);
            done
        })
    }
}
