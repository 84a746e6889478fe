//! Detects a fork: its child must not touch the rings of its parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts the forks this process descends from since the first ring was made.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Changes in the child of a fork. A ring made before must not be touched
/// there: its queues are memory shared with the parent.
#[inline(always)]
pub fn fork_count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Tells the child of a fork from the process that it was made in, which has all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkMark {
    forks: u32,
}

impl Default for ForkMark {
    fn default() -> ForkMark {
        watch_forks();
        ForkMark { forks: fork_count() }
    }
}

impl ForkMark {
    /// True in the child of a fork, and in what descends from it.
    #[inline(always)]
    pub fn is_forked(self) -> bool {
        self.forks != fork_count()
    }
}

/// Has forks counted from now on.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed after a fork.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    });
}
