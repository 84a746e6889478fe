//! Detects a fork: its child must not touch the rings of its parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the process that installed the handler and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that changes in the child of a fork. The child must not touch a ring
/// that was created before: its queues are memory shared with the parent.
#[inline(always)]
pub fn fork_count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Detects that the process is a fork of the one that created this value, and so lacks its other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkDetector {
    forks: u32,
}

impl Default for ForkDetector {
    fn default() -> ForkDetector {
        install_fork_handler();
        ForkDetector { forks: fork_count() }
    }
}

impl ForkDetector {
    /// True in the child of a fork, and in its descendants.
    #[inline(always)]
    pub fn is_forked(self) -> bool {
        self.forks != fork_count()
    }
}

/// Starts to count forks; only the first call has an effect.
pub fn install_fork_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed after a fork.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    });
}
