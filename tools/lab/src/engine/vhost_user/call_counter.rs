//! The system calls of a thread, by the kernel's own account: the crate that makes them counts none.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Counts the calls of the thread that has made it.
pub struct CallCounter {
    /// `/proc/thread-self/io`; none if the kernel has no such account.
    account: Option<File>,
    /// Reads of the account, which it contains.
    own_reads: Cell<u64>,
}

/// Calls of a thread since its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallCount {
    /// Calls that write: each notifies the server.
    pub notifications: u64,
    /// Calls that read: each takes an interrupt.
    pub interrupts: u64,
}

impl CallCounter {
    /// Counts the calls of this thread.
    pub fn new() -> Self {
        Self { account: File::open("/proc/thread-self/io").ok(), own_reads: Cell::new(0) }
    }

    /// The calls so far. None where the kernel does not count them.
    pub fn count(&self) -> Option<CallCount> {
        let mut text = [0; 512];
        let length = self.account.as_ref()?.read_at(&mut text, 0).ok()?;
        // This read is not in the account yet.
        let own_reads = self.own_reads.replace(self.own_reads.get() + 1);
        let text = std::str::from_utf8(&text[..length]).ok()?;
        let field = |name| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        let interrupts = field("syscr:")?.saturating_sub(own_reads);
        Some(CallCount { notifications: field("syscw:")?, interrupts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn reads_and_writes_are_counted_without_those_of_the_counter() {
        let counter = CallCounter::new();
        let Some(before) = counter.count() else {
            assert!(!std::path::Path::new("/proc/thread-self/io").exists());
            return;
        };
        let (mut zero, mut null) = (
            File::open("/dev/zero").unwrap(),
            File::options().write(true).open("/dev/null").unwrap(),
        );
        for _ in 0..5 {
            null.write_all(&[1]).unwrap();
            counter.count().unwrap();
        }
        zero.read_exact(&mut [0]).unwrap();
        let after = counter.count().unwrap();
        let calls =
            (after.notifications - before.notifications, after.interrupts - before.interrupts);
        assert_eq!(calls, (5, 1));
    }
}
