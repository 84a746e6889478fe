//! The end of the process. The library's destructors run then, also while another thread still closes an image, which they
//! would crash. So the process waits for what is being closed, and nothing is closed after that: the cluster forgets a
//! client that has gone.

use std::mem;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a process that ends waits for a cluster that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

static CLOSINGS: Closings = Closings::new();

/// The process that has registered the handler.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// What threads are closing.
struct Closings {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    in_progress: usize,
    process_ends: bool,
}

/// How often the handler is registered. After so many connections and images the library has made all that it makes once.
const MAX_REGISTRATIONS: u32 = 16;

/// Registers the handler of the end once more. That which is registered last runs first: before the destructors of all that
/// the library has made until now.
pub(crate) fn guard() {
    static REGISTRATIONS: AtomicU32 = AtomicU32::new(0);
    PROCESS.store(process::id(), Ordering::Relaxed);
    if REGISTRATIONS.fetch_add(1, Ordering::Relaxed) < MAX_REGISTRATIONS {
        // SAFETY: the function takes no arguments, and stays in memory.
        unsafe { libc::atexit(at_exit) };
    }
}

/// Closes something, unless the process is ending: then it is left as it is, with what the closure owns.
pub(crate) fn close(close: impl FnOnce()) {
    CLOSINGS.close(close);
}

extern "C" fn at_exit() {
    // The child of a fork has no thread that would end what its parent was closing.
    if PROCESS.load(Ordering::Relaxed) == process::id() {
        CLOSINGS.end(PATIENCE);
    }
}

impl Closings {
    const fn new() -> Closings {
        let state = State { in_progress: 0, process_ends: false };
        Closings { state: Mutex::new(state), ended: Condvar::new() }
    }

    fn close(&self, close: impl FnOnce()) {
        {
            let mut state = self.lock();
            if state.process_ends {
                mem::forget(close);
                return;
            }
            state.in_progress += 1;
        }
        close();
        self.lock().in_progress -= 1;
        self.ended.notify_all();
    }

    fn end(&self, patience: Duration) {
        let mut state = self.lock();
        state.process_ends = true;
        let is_busy = |state: &mut State| state.in_progress > 0;
        drop(self.ended.wait_timeout_while(state, patience, is_busy));
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
        let (closings, begun, end) = (Closings::new(), Barrier::new(2), Barrier::new(2));
        let mut closed = false;
        thread::scope(|scope| {
            scope.spawn(|| {
                closings.close(|| {
                    begun.wait();
                    end.wait();
                    closed = true;
                });
            });
            begun.wait();
            // It does not wait for ever.
            closings.end(Duration::ZERO);
            end.wait();
            closings.end(Duration::from_secs(600));
            assert_eq!(closings.lock().in_progress, 0);
        });
        assert!(closed);
        closings.close(|| panic!("closed after the end"));
    }
}
