//! What the threads cost that an engine started.

use std::fs;
use std::iter::Sum;
use std::ops::Add;
use std::path::Path;

/// What threads have cost so far, or between two readings. All 0 where the kernel keeps no account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadCost {
    /// CPU time in nanoseconds.
    pub cpu_ns: u64,
    /// How often one of them was switched to.
    pub context_switches: u64,
}

impl ThreadCost {
    /// A thread of this process, by its kernel's number.
    pub fn read_thread(id: i32) -> Self {
        Self::read_task(format!("/proc/self/task/{id}").as_ref())
    }

    /// The threads of this process that are called so.
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

    /// As the scheduler counts it: CPU time, time in a run queue, times that it ran (proc_pid_schedstat(5)).
    fn read_task(task: &Path) -> Self {
        let account = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        let mut numbers = account.split_whitespace().map(|number| number.parse().unwrap_or(0));
        Self { cpu_ns: numbers.next().unwrap_or(0), context_switches: numbers.nth(1).unwrap_or(0) }
    }

    /// What came after `earlier`.
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
    fn threads_of_a_name_are_counted_and_no_others() {
        let (begin, began) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let helper = thread::Builder::new().name("counted".into());
        let helper = helper.spawn(move || {
            // Each time it is switched away from, and to it again.
            (0..10).for_each(|_| thread::sleep(Duration::from_millis(1)));
            begin.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = ended.recv();
        });
        let id = began.recv().unwrap();
        let counted = ThreadCost::read_threads_named("counted");
        assert!(counted.context_switches >= 10 && counted.cpu_ns > 0, "{counted:?}");
        assert!(ThreadCost::read_thread(id).context_switches >= counted.context_switches);
        assert_eq!(ThreadCost::read_threads_named("nobody"), ThreadCost::default());
        drop(end);
        helper.unwrap().join().unwrap();
    }
}
