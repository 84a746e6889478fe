//! Operations that an event loop awaits. They run as tasks of the thread's reactor, whose descriptor the loop
//! watches: when it is readable, the loop calls `collect`, which returns those that have ended.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

use pyo3::prelude::*;
use uringfs::Errno;

use crate::fork::Process;
use crate::guard::{Guard, catch};
use crate::handle::{Handle, operation_error};
use crate::memory::{NewBytes, release_ended};
use crate::thread_reactor::{run_until, set_has_ended, settle, thread_reactor};

/// The most operations of a thread that are in flight; further ones wait in their order. Half of what a reactor
/// admits, so that calls that block find room beside them.
const MAX_IN_FLIGHT: usize = 512;

/// The value that the caller awaits.
pub(crate) enum Value {
    /// The number that the operation returns: bytes, or an offset.
    Number,
    /// The bytes that it reads.
    Bytes(NewBytes),
}

/// An operation that has not ended.
struct Begun {
    id: u64,
    operation: Pin<Box<dyn Future<Output = Result<u64, Errno>>>>,
    value: Value,
    file: FileOf,
}

/// The file of an operation, which does not keep it open: the operation itself does so until it ends.
struct FileOf {
    handle: Weak<Handle>,
    guard: Arc<Guard>,
}

struct Ended {
    id: u64,
    result: Result<u64, Errno>,
    value: Value,
    file: FileOf,
}

thread_local! {
    static WAITING: RefCell<VecDeque<Begun>> = const { RefCell::new(VecDeque::new()) };
    static ENDED: RefCell<Vec<Ended>> = const { RefCell::new(Vec::new()) };
    static NEXT_ID: Cell<u64> = const { Cell::new(0) };
    /// The tasks that run operations, and the process whose they are.
    static TASKS: Cell<(usize, Option<Process>)> = const { Cell::new((0, None)) };
    /// Wakes [`finish_all`] when a task has ended.
    static TASK_ENDED: Cell<Option<Waker>> = const { Cell::new(None) };
}

/// A task that runs operations, which [`TASKS`] counts.
struct Task {
    process: Process,
}

impl Task {
    fn begin() -> Task {
        let process = Process::current();
        TASKS.set((tasks() + 1, Some(process)));
        Task { process }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let (tasks, Some(process)) = TASKS.get()
            && process == self.process
        {
            TASKS.set((tasks - 1, Some(process)));
            // Not in a thread that ends, which drops its reactor.
            let _ = TASK_ENDED.try_with(|waker| waker.take().map(Waker::wake));
        }
    }
}

/// The tasks that this process has begun in this thread.
fn tasks() -> usize {
    match TASKS.get() {
        (tasks, Some(process)) if !process.is_parent() => tasks,
        _ => 0,
    }
}

/// Starts an operation, and returns the number by which `collect` reports its end.
///
/// # Errors
/// When the process has no file descriptor left for a reactor.
pub(crate) fn start(
    operation: impl Future<Output = Result<u64, Errno>> + 'static,
    value: Value,
    handle: &Arc<Handle>,
) -> PyResult<u64> {
    let reactor = thread_reactor()?;
    let id = NEXT_ID.get();
    NEXT_ID.set(id + 1);
    let file = FileOf { handle: Arc::downgrade(handle), guard: handle.guard().clone() };
    let begun = Begun { id, operation: Box::pin(operation), value, file };
    if tasks() >= MAX_IN_FLIGHT {
        WAITING.with_borrow_mut(|waiting| waiting.push_back(begun));
        return Ok(id);
    }
    // The task goes on by itself.
    drop(reactor.spawn(run(begun, Task::begin())));
    settle(&reactor);
    Ok(id)
}

/// Runs an operation, and then those that wait.
async fn run(begun: Begun, _task: Task) {
    let mut next = Some(begun);
    while let Some(Begun { id, mut operation, value, file }) = next {
        let polled = poll_fn(|context| {
            let polled = catch(|| operation.as_mut().poll(context));
            polled.unwrap_or(Poll::Ready(Err(Errno::NOTRECOVERABLE)))
        });
        let result = polled.await;
        let result = catch(|| drop(operation)).map_or(Err(Errno::NOTRECOVERABLE), |()| result);
        ENDED.with_borrow_mut(|ended| ended.push(Ended { id, result, value, file }));
        set_has_ended(true);
        next = WAITING.with_borrow_mut(VecDeque::pop_front);
    }
}

/// Waits until all operations of this thread have ended; its event loop collects them later. The caller has released
/// the GIL.
pub(crate) fn finish_all() {
    let ended = poll_fn(|context| match tasks() {
        0 => Poll::Ready(()),
        _ => {
            TASK_ENDED.set(Some(context.waker().clone()));
            Poll::Pending
        }
    });
    if tasks() > 0
        && let Ok(reactor) = thread_reactor()
    {
        run_until(&reactor, ended);
    }
}

/// Does what needs no wait. The panic of an operation is the operation's own result; then the rest has its turn.
fn turn() -> std::io::Result<()> {
    let reactor = thread_reactor()?;
    match catch(|| reactor.turn()) {
        Some(turned) => Ok(turned?),
        None => Ok(reactor.turn()?),
    }
}

impl FileOf {
    fn error(&self, errno: Errno) -> PyErr {
        match self.handle.upgrade() {
            Some(handle) => handle.error(errno),
            None => operation_error(errno, &self.guard),
        }
    }
}

/// Waits until all operations of this thread have ended. `collect` returns them.
#[pyfunction]
pub(crate) fn finish(py: Python<'_>) {
    py.detach(finish_all);
}

/// The descriptor of this thread's reactor: readable when `collect` has something to do.
#[pyfunction]
pub(crate) fn descriptor() -> PyResult<i32> {
    Ok(thread_reactor()?.fd()?.as_raw_fd())
}

/// Does what needs no wait, and returns the operations that have ended: each with its number, its value or its error,
/// and whether it is an error.
#[pyfunction]
pub(crate) fn collect(py: Python<'_>) -> PyResult<Vec<(u64, Py<PyAny>, bool)>> {
    py.detach(turn)?;
    release_ended(py);
    let ended = ENDED.take();
    set_has_ended(false);
    let outcome = |Ended { id, result, value, file }: Ended| {
        Ok(match (result, value) {
            (Ok(number), Value::Number) => {
                (id, number.into_pyobject(py)?.into_any().unbind(), false)
            }
            (Ok(read), Value::Bytes(bytes)) => {
                (id, bytes.finish(py, read as usize).into_any().unbind(), false)
            }
            (Err(errno), _) => (id, file.error(errno).into_value(py).into_any(), true),
        })
    };
    ended.into_iter().map(outcome).collect()
}
