//! CPU time and context switches of threads that an engine started.

use std::collections::BTreeMap;
use std::fs;
use std::iter::Sum;
use std::ops::Add;
use std::path::Path;

/// The cost of threads since their start, or between two readings. All 0 if the kernel has no schedstat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadCost {
    /// CPU time in nanoseconds.
    pub cpu_ns: u64,
    /// Context switches to these threads.
    pub context_switches: u64,
}

impl ThreadCost {
    /// The cost of a thread of this process, by its thread id.
    pub fn read_thread(id: i32) -> Self {
        Self::read_task(format!("/proc/self/task/{id}").as_ref())
    }

    /// The cost of each thread of this process that `is_wanted`, by its id. It is given the id, and a function that reads the name.
    pub fn read_threads(
        is_wanted: impl Fn(i32, &dyn Fn() -> String) -> bool,
    ) -> BTreeMap<i32, Self> {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let read = |task: fs::DirEntry| {
            let id = task.file_name().to_str()?.parse().ok()?;
            let name = || {
                let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
                name.trim_end().to_owned()
            };
            is_wanted(id, &name).then(|| (id, Self::read_task(&task.path())))
        };
        tasks.filter_map(read).collect()
    }

    /// The cost of the kernel's threads that serve the rings of the calling thread: workers, and one that submits (`SQPOLL`).
    pub fn read_ring_workers() -> Self {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let names = [format!("iou-wrk-{thread}"), format!("iou-sqp-{thread}")];
        Self::read_threads(|_, name| names.contains(&name())).into_values().sum()
    }

    /// `schedstat` has CPU time, time in a run queue, and the number of times that the task ran
    /// (proc_pid_schedstat(5)).
    fn read_task(task: &Path) -> Self {
        let account = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        let mut numbers = account.split_whitespace().map(|number| number.parse().unwrap_or(0));
        Self { cpu_ns: numbers.next().unwrap_or(0), context_switches: numbers.nth(1).unwrap_or(0) }
    }

    /// The difference to an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
        }
    }
}

impl Add for ThreadCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns + other.cpu_ns,
            context_switches: self.context_switches + other.context_switches,
        }
    }
}

impl Sum for ThreadCost {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Self::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn only_threads_with_the_name_are_counted() {
        let (begin, began) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let helper = thread::Builder::new().name("counted".into());
        let helper = helper.spawn(move || {
            // Each sleep is a switch away from the thread and back.
            (0..10).for_each(|_| thread::sleep(Duration::from_millis(1)));
            begin.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = ended.recv();
        });
        let id = began.recv().unwrap();
        let found = ThreadCost::read_threads(|_, name| name() == "counted");
        let counted = found[&id];
        assert!(counted.context_switches >= 10 && counted.cpu_ns > 0, "{counted:?}");
        assert!(ThreadCost::read_thread(id).context_switches >= counted.context_switches);
        assert_eq!(found.len(), 1);
        assert_eq!(ThreadCost::read_ring_workers(), ThreadCost::default(), "no ring");
        drop(end);
        helper.unwrap().join().unwrap();
    }
}
