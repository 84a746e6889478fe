//! The scheduler's account of this thread: how often it began to run, and how long it has waited for a processor. From
//! it calibration learns whether a read sleeps, and whether the machine disturbed a measurement.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Reads the account of the thread that created it.
#[derive(Debug)]
pub(crate) struct SchedulerAccount {
    /// `None` if the kernel has no account.
    file: Option<File>,
}

/// The account at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduledTime {
    /// The time that the thread was ready to run and waited for a processor.
    pub(crate) delay: Duration,
    /// How often the thread began to run: after each sleep, and after other threads had its processor.
    pub(crate) runs: u64,
}

impl SchedulerAccount {
    pub(crate) fn of_this_thread() -> SchedulerAccount {
        SchedulerAccount { file: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// `None` if the kernel has no account.
    pub(crate) fn read(&self) -> Option<ScheduledTime> {
        let mut text = [0; 128];
        let length = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        parse(std::str::from_utf8(&text[..length]).ok()?)
    }
}

/// `schedstat` has the time on a processor and the time in a run queue, both in nanoseconds, and the number of times that
/// the thread ran (proc_pid_schedstat(5)). All are 0 if the kernel keeps no account. The first is also 0 in a new
/// thread: the kernel adds to it when the thread stops, and at its ticks.
fn parse(text: &str) -> Option<ScheduledTime> {
    let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
    let (ran, delay, runs) = (numbers.next()??, numbers.next()??, numbers.next()??);
    (ran > 0 || runs > 0).then_some(ScheduledTime { delay: Duration::from_nanos(delay), runs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_parsed_and_zeros_are_none() {
        let expected = ScheduledTime { delay: Duration::from_nanos(250), runs: 7 };
        assert_eq!(parse("1000 250 7\n"), Some(expected));
        assert_eq!(parse("0 250 7\n"), Some(expected), "a new thread");
        for text in ["0 0 0\n", "", "1 2", "one 2 3"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_thread_that_slept_has_run_more_often() {
        let account = SchedulerAccount::of_this_thread();
        let Some(before) = account.read() else {
            println!("not exercised: a kernel with an account of each thread");
            return;
        };
        // A wait does not sleep if its time has passed before it begins, as happens on a slow machine.
        let (_send, receive) = std::sync::mpsc::channel::<()>();
        let mut after = before;
        for _ in 0..1000 {
            assert!(receive.recv_timeout(Duration::from_millis(1)).is_err());
            after = account.read().unwrap();
            if after.runs >= before.runs + 3 {
                break;
            }
        }
        assert!(after.runs >= before.runs + 3, "{before:?} {after:?}");
        assert!(after.delay >= before.delay);
    }
}
