//! The cost of this stack's own threads. Job threads share some of them, such as the pool of buffered reads and the threads of a
//! volume, and nothing says for which job thread one works. So each open engine has an equal part of what they all cost
//! while it is open, and the parts of all engines together are what they cost.

use super::ThreadCost;
use parking_lot::Mutex;
use rustix::thread::gettid;
use std::collections::{BTreeMap, BTreeSet};

/// The begin of the threads' names.
const PREFIX: &str = "uringfs-";

/// An engine's part, from when this was made.
#[derive(Debug)]
pub(super) struct StackThreads {
    /// What each engine had then.
    before: Part,
    thread: i32,
}

/// Nanoseconds of CPU time, and context switches.
type Part = [f64; 2];

static ACCOUNT: Mutex<Account> = Mutex::new(Account::new());

#[derive(Debug)]
struct Account {
    engines: usize,
    /// The threads of open engines, which are not the stack's.
    users: BTreeSet<i32>,
    /// The cost of each of the stack's threads at the last reading.
    known: BTreeMap<i32, ThreadCost>,
    /// The part of an engine that was open from the beginning.
    each: Part,
}

impl StackThreads {
    pub fn new() -> Self {
        let thread = gettid().as_raw_nonzero().get();
        let mut account = ACCOUNT.lock();
        account.users.insert(thread);
        account.read();
        account.engines += 1;
        Self { before: account.each, thread }
    }

    /// The engine's part.
    pub fn cost(&self) -> ThreadCost {
        let mut account = ACCOUNT.lock();
        account.read();
        let part = |at: usize| (account.each[at] - self.before[at]).round() as u64;
        ThreadCost { cpu_ns: part(0), context_switches: part(1) }
    }
}

impl Drop for StackThreads {
    fn drop(&mut self) {
        let mut account = ACCOUNT.lock();
        account.read();
        account.engines -= 1;
        account.users.remove(&self.thread);
    }
}

impl Account {
    const fn new() -> Self {
        Self { engines: 0, users: BTreeSet::new(), known: BTreeMap::new(), each: [0.0; 2] }
    }

    fn read(&mut self) {
        let is_one = |id: i32, name: &dyn Fn() -> String| {
            // First the ids: there may be many users, whose names need not be read.
            !self.users.contains(&id) && name().starts_with(PREFIX)
        };
        let now = ThreadCost::read_threads(is_one);
        self.divide(now);
    }

    /// Divides among the open engines what the threads have cost since the last reading. A thread that is new began after it.
    fn divide(&mut self, now: BTreeMap<i32, ThreadCost>) {
        let before = |id| self.known.get(id).copied().unwrap_or_default();
        let spent: ThreadCost = now.iter().map(|(id, cost)| cost.since(before(id))).sum();
        if self.engines > 0 {
            let engines = self.engines as f64;
            self.each[0] += spent.cpu_ns as f64 / engines;
            self.each[1] += spent.context_switches as f64 / engines;
        }
        self.known = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(threads: &[(i32, u64)]) -> BTreeMap<i32, ThreadCost> {
        let cost = |cpu_ns| ThreadCost { cpu_ns, context_switches: cpu_ns / 10 };
        threads.iter().map(|&(id, cpu_ns)| (id, cost(cpu_ns))).collect()
    }

    #[test]
    fn open_engines_have_equal_parts_and_all_parts_are_the_cost() {
        let mut account = Account::new();
        account.divide(reading(&[(1, 1000)]));
        assert_eq!(account.each, [0.0; 2], "before the first engine");
        account.engines = 1;
        account.divide(reading(&[(1, 1100)]));
        account.engines = 2;
        account.divide(reading(&[(1, 1200), (2, 60)]));
        assert_eq!(account.each, [180.0, 18.0], "100, and the half of 160");
        // A thread has ended.
        account.engines = 1;
        account.divide(reading(&[(2, 80)]));
        assert_eq!(account.each, [200.0, 20.0]);
    }
}
