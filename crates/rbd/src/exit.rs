//! The end of the process. The library's destructors run then, beside its own threads, and these would use what is destroyed. So
//! a process that ends waits for what is being closed. If it leaves a client instance open, it ends without destructors: the
//! cluster forgets a client that has gone.

use std::ffi::{c_int, c_void};
use std::mem;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a process that ends waits for a cluster that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often the handler is registered. After so many connections and images the library has made all that it makes once.
const MAX_REGISTRATIONS: u32 = 16;

static INSTANCES: Instances = Instances::new();

/// The process that has registered the handler.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The client instances that are open, and the objects of the library that are being closed.
struct Instances {
    state: Mutex<State>,
    closed: Condvar,
}

struct State {
    /// The client instances.
    open: usize,
    /// The calls of [`close`] under way.
    closing: usize,
    process_ends: bool,
}

unsafe extern "C" {
    /// As atexit(3). The function gets the status.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Counts a client instance that is open.
pub(crate) fn note_open() {
    INSTANCES.lock().open += 1;
    guard();
}

/// Counts one that is closed.
pub(crate) fn note_closed() {
    INSTANCES.lock().open -= 1;
}

/// Registers the handler of the end once more. The one that is registered last runs first: before the destructors of
/// all that the library has made until now.
pub(crate) fn guard() {
    static REGISTRATIONS: AtomicU32 = AtomicU32::new(0);
    PROCESS.store(process::id(), Ordering::Relaxed);
    if REGISTRATIONS.fetch_add(1, Ordering::Relaxed) < MAX_REGISTRATIONS {
        // SAFETY: the function stays in memory, and ignores its argument.
        unsafe { on_exit(at_exit, ptr::null_mut()) };
    }
}

/// Closes something, unless the process is ending: then it is left as it is, with what the closure owns.
pub(crate) fn close(close: impl FnOnce()) {
    INSTANCES.close(close);
}

extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    // The child of a fork has none of the library's threads, and none that would end what its parent was closing.
    if PROCESS.load(Ordering::Relaxed) != process::id() || INSTANCES.end(PATIENCE) {
        return;
    }
    // SAFETY: null means all streams.
    unsafe { libc::fflush(ptr::null_mut()) };
    // SAFETY: it does not return.
    unsafe { libc::_exit(status) };
}

impl Instances {
    const fn new() -> Instances {
        let state = State { open: 0, closing: 0, process_ends: false };
        Instances { state: Mutex::new(state), closed: Condvar::new() }
    }

    fn close(&self, close: impl FnOnce()) {
        {
            let mut state = self.lock();
            if state.process_ends {
                mem::forget(close);
                return;
            }
            state.closing += 1;
        }
        close();
        self.lock().closing -= 1;
        self.closed.notify_all();
    }

    /// Waits for what is being closed, but not for ever; from now on nothing is closed. Returns whether nothing is open
    /// then.
    fn end(&self, patience: Duration) -> bool {
        let mut state = self.lock();
        state.process_ends = true;
        let is_busy = |state: &mut State| state.closing > 0;
        let waited = self.closed.wait_timeout_while(state, patience, is_busy);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.open == 0 && state.closing == 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn a_process_that_ends_waits_for_what_is_being_closed_and_nothing_is_closed_after_that() {
        let (instances, begun, end) = (Instances::new(), Barrier::new(2), Barrier::new(2));
        instances.lock().open = 1;
        let mut closed = false;
        thread::scope(|scope| {
            scope.spawn(|| {
                instances.close(|| {
                    begun.wait();
                    end.wait();
                    closed = true;
                });
            });
            begun.wait();
            // It does not wait for ever.
            assert!(!instances.end(Duration::ZERO));
            end.wait();
            assert!(!instances.end(Duration::from_secs(600)), "one is open");
            instances.lock().open = 0;
            assert!(instances.end(Duration::from_secs(600)));
        });
        assert!(closed);
        instances.close(|| panic!("closed after the end"));
    }
}
