//! CPU time and context switches of threads that an engine started.

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

    /// The cost of the threads of this process with this name.
    pub fn read_threads_named(name: &str) -> Self {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let has_name = |task: &Path| {
            fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        tasks
            .map(|task| task.path())
            .filter(|task| has_name(task))
            .map(|task| Self::read_task(&task))
            .sum()
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
        let counted = ThreadCost::read_threads_named("counted");
        assert!(counted.context_switches >= 10 && counted.cpu_ns > 0, "{counted:?}");
        assert!(ThreadCost::read_thread(id).context_switches >= counted.context_switches);
        assert_eq!(ThreadCost::read_threads_named("no-such-thread"), ThreadCost::default());
        drop(end);
        helper.unwrap().join().unwrap();
    }
}
