//! `exitall`: the first thread of a group that ends, ends the others. Each thread looks at one flag only:
//! that of its group, or that of Ctrl-C.

use super::plan::ThreadPlan;
use crate::job::Job;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// The flags of the groups that have a job with `exitall`.
#[derive(Debug)]
pub struct GroupStops(Vec<(u32, AtomicBool)>);

impl GroupStops {
    /// The flags for these threads.
    pub fn new(jobs: &[Job], threads: &[ThreadPlan]) -> Self {
        let ended = threads.iter().filter(|thread| jobs[thread.job].options.exit_all);
        let mut groups: Vec<u32> = ended.map(|thread| thread.group).collect();
        groups.dedup();
        Self(groups.into_iter().map(|group| (group, AtomicBool::new(false))).collect())
    }

    /// The flag of a group, if it has one.
    pub fn of_group(&self, group: u32) -> Option<&AtomicBool> {
        self.0.iter().find(|(known, _)| *known == group).map(|(_, flag)| flag)
    }

    /// Sets all flags when `stop` is set, until the threads have ended. Without flags it returns at once.
    pub fn forward<T>(&self, stop: &AtomicBool, threads: &[ScopedJoinHandle<'_, T>]) {
        const POLL_INTERVAL: Duration = Duration::from_millis(10);
        while !self.0.is_empty() && threads.iter().any(|thread| !thread.is_finished()) {
            if stop.load(Ordering::Relaxed) {
                return self.0.iter().for_each(|(_, flag)| flag.store(true, Ordering::Relaxed));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
