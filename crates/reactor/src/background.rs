//! The background reactors of the process, for threads that have no reactor.
//!
//! Each such thread has one of them, so the operations that it hands over start in the order in which it does.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::available_parallelism;

use parking_lot::Mutex;
use uringfs_device::Errno;
use uringfs_ring::ForkDetector;

use crate::event_loop::handle::ReactorHandle;
use crate::options::ReactorOptions;
use crate::reactor::Reactor;
use crate::sync::thread_number::number_of_thread;

/// The most background reactors of a process.
const MAX_BACKGROUND_REACTORS: usize = 64;

/// The most that a process has unless it sets their number.
const MAX_DEFAULT: usize = 4;

/// The number of background reactors; 0 until it is set or asked for.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The background reactors that have started, by number.
static BACKGROUND: [Mutex<Option<ReactorHandle>>; MAX_BACKGROUND_REACTORS] =
    [const { Mutex::new(None) }; MAX_BACKGROUND_REACTORS];

/// Sets the number of background reactors of the process: the threads that serve files for threads without a
/// [`Reactor`], and for tasks on other executors. Without this call there is one for each processor, at most 4.
///
/// The threads of the process are spread among them in the order of their first use. A background reactor starts when
/// the first thread needs it, so more than there are threads cost nothing. A thread's later operations follow a changed
/// number, and a reactor that has started stays.
///
/// ```
/// // On a machine whose processors are needed for other work.
/// # mod uringfs { pub use uringfs_reactor as reactor; }
/// uringfs::reactor::set_background_reactors(1);
/// ```
///
/// # Panics
/// When `count` is not from 1 to 64.
pub fn set_background_reactors(count: usize) {
    assert!(
        (1..=MAX_BACKGROUND_REACTORS).contains(&count),
        "a process has 1 to {MAX_BACKGROUND_REACTORS} background reactors, not {count}"
    );
    COUNT.store(count, Ordering::Relaxed);
}

fn count() -> usize {
    match COUNT.load(Ordering::Relaxed) {
        0 => {
            let default = available_parallelism().map_or(1, |count| count.get().min(MAX_DEFAULT));
            // A number that another thread sets meanwhile stays.
            let _ = COUNT.compare_exchange(0, default, Ordering::Relaxed, Ordering::Relaxed);
            COUNT.load(Ordering::Relaxed)
        }
        count => count,
    }
}

/// A handle to the background reactor of this thread.
///
/// The first call starts its thread. The thread sleeps while it has no work, and lives as long as the process.
/// It also ends when the kernel takes no more requests from it, for example after the process has entered a sandbox.
/// The next call then starts another one.
///
/// # Errors
/// The error of creating the thread or its reactor. ECHILD in the child of a fork whose parent has background reactors.
pub fn background_reactor() -> io::Result<ReactorHandle> {
    // Set by the first that starts one.
    static PROCESS: OnceLock<ForkDetector> = OnceLock::new();
    // Only the parent's reactors have the current state of what they serve, above all of page caches.
    if PROCESS.get_or_init(ForkDetector::default).is_forked() {
        return Err(Errno::CHILD.into());
    }
    let mut background = BACKGROUND[number_of_thread() % count()].lock();
    match &*background {
        Some(handle) if !handle.is_gone() => Ok(handle.clone()),
        _ => Ok(background.insert(start_thread()?).clone()),
    }
}

fn start_thread() -> io::Result<ReactorHandle> {
    let (send, receive) = channel();
    let run = move || match Reactor::new(ReactorOptions::default()) {
        Ok(reactor) => {
            // The receiver below waits for this message.
            let _ = send.send(Ok(reactor.inner().handle()));
            serve(&reactor);
        }
        Err(error) => {
            let why = format!("the background reactor cannot start: {error}");
            let _ = send.send(Err(io::Error::new(error.kind(), why)));
        }
    };
    std::thread::Builder::new().name("uringfs-bg".into()).spawn(run).map_err(|error| {
        let why = format!("the thread of the background reactor cannot start: {error}");
        io::Error::new(error.kind(), why)
    })?;
    receive
        .recv()
        .map_err(|_| io::Error::other("the thread of the background reactor has panicked"))?
}

/// Serves until the kernel takes no more requests. A panic comes from a waker, a map or a back end of the user. It has
/// been reported and the caller of the operation has its result, so the loop goes on for the others.
fn serve(reactor: &Reactor) {
    let serve = || reactor.run_until(pending::<Infallible>());
    while catch_unwind(AssertUnwindSafe(serve)).is_err() {}
}
