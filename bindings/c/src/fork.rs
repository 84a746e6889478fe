//! Forks: a handle is of no use to the child, which has neither the threads nor the rings of its parent.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the process that has made the first handle and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

type Handler = Option<extern "C" fn()>;

unsafe extern "C" {
    fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Starts to count forks; only the first call has an effect.
pub(crate) fn count_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed after a fork.
        unsafe { pthread_atfork(None, None, Some(count_fork)) };
    });
}

/// A number that is another one in the child of a fork.
#[inline(always)]
pub(crate) fn fork_count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}
