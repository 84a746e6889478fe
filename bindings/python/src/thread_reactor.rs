//! The reactor of a thread: operations that the thread waits for run on it, and so do those that its event loop awaits.
//! One for both, since an operation of the loop may hold a lock that a blocking call of the same thread waits for.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;

use pyo3::prelude::*;
use uringfs::file::OpOutput;
use uringfs::{FileOp, Reactor, ReactorOptions};

use crate::fork::Process;
use crate::guard::catch;

thread_local! {
    static REACTOR: RefCell<Option<(Rc<Reactor>, Process)>> = const { RefCell::new(None) };
    /// Says whether `REACTOR` was used in this thread, without using it.
    static HAS_REACTOR: Cell<bool> = const { Cell::new(false) };
    /// Operations of the thread's event loop have ended, and it has not collected them.
    static HAS_ENDED: Cell<bool> = const { Cell::new(false) };
}

/// The reactor of this thread.
///
/// # Errors
/// When the process has no file descriptor left.
pub(crate) fn thread_reactor() -> io::Result<Rc<Reactor>> {
    if HAS_REACTOR.get() {
        let own = REACTOR.with_borrow(|reactor| match reactor {
            Some((reactor, process)) if !process.is_parent() => Some(reactor.clone()),
            _ => None,
        });
        if let Some(reactor) = own {
            return Ok(reactor);
        }
    }
    let reactor = Rc::new(Reactor::new(ReactorOptions::new())?);
    // A thread's values are dropped in the order opposite to that of their first use. So the reactor's own come first
    // here: its drop uses them.
    reactor.block_on(async {});
    HAS_REACTOR.set(true);
    // The reactor of a parent process is dropped here, which does nothing.
    REACTOR.set(Some((reactor.clone(), Process::current())));
    Ok(reactor)
}

/// The panics of other operations of the thread that a wait survives.
pub(crate) const MAX_PANICS: usize = 8;

/// Waits for an operation. The caller has released the GIL.
pub(crate) fn wait<R: OpOutput>(op: FileOp<R>) -> R {
    match thread_reactor() {
        Ok(reactor) => run_until(&reactor, op),
        // A thread that waits for the library's own reactors needs no descriptor.
        Err(_) => op.wait(),
    }
}

/// Runs all operations of this thread until a future has ended. The caller has released the GIL.
pub(crate) fn run_until<F: Future>(reactor: &Reactor, future: F) -> F::Output {
    let mut future = pin!(future);
    // If another operation panics, its own result is ENOTRECOVERABLE, and the wait goes on.
    let waits = (0..MAX_PANICS).find_map(|_| catch(|| reactor.block_on(future.as_mut())));
    let output = waits.unwrap_or_else(|| reactor.block_on(future));
    settle(reactor);
    output
}

/// After a wait on the reactor, during which it may have ended operations of the thread's event loop: makes the
/// loop collect them.
pub(crate) fn settle(reactor: &Reactor) {
    if HAS_ENDED.get() {
        notify_event_loop(reactor);
    }
}

/// Makes the reactor's descriptor readable, if an event loop watches it.
fn notify_event_loop(reactor: &Reactor) {
    reactor.inner().request_turn();
}

/// Notes whether operations of the event loop have ended that it has not collected.
pub(crate) fn set_has_ended(has_ended: bool) {
    HAS_ENDED.set(has_ended);
}

/// Does work that may wait for the device, without the GIL. There may be no interpreter any more.
pub(crate) fn detached<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let mut work = Some(work);
    let mut run = || work.take().map(|work| work());
    let done = Python::try_attach(|py| py.detach(&mut run)).flatten();
    done.or_else(run).expect("the work is done once")
}

/// Ends this thread's reactor, with its operations in flight. The package calls it when the interpreter exits, while
/// everything that a reactor needs is there.
#[pyfunction]
pub(crate) fn drop_reactor() {
    REACTOR.set(None);
}
