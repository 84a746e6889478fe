//! Waiting for descriptors: readiness, connections, bytes of a socket. The wait
//! owns its descriptor and its memory; dropping the future cancels it.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_ring::{Wait, Waited};

use crate::event_loop::operation::CellFuture;
use crate::io::poller::{Answered, Watch};
use crate::reactor::{Due, Inner, Reactor};
use crate::tasks::timer::TimerKey;
use crate::tasks::waiters::{Answer, CellIndex};

/// Descriptors that one reactor waits for at once: places in its ring, which waits are cancelled in, too.
pub const MAX_WAITS: usize = 1024;

impl Reactor {
    /// Waits this long.
    pub async fn sleep(&self, time: Duration) {
        let inner = self.inner();
        inner.sleep_until(inner.options.clock.after(time), None).await;
    }

    /// Waits until `file` is ready for any of `events`, and answers which.
    ///
    /// # Errors
    /// ETIMEDOUT when the deadline comes first; EAGAIN while the reactor waits for [`MAX_WAITS`] descriptors; what
    /// `poll(2)` says.
    pub async fn poll(
        &self,
        file: &Arc<OwnedFd>,
        events: PollFlags,
        deadline: Option<Instant>,
    ) -> Result<PollFlags, Errno> {
        let wait = Wait::Poll { file: file.clone(), events };
        match wait_until(self.inner(), wait, deadline).await.1? {
            Waited::Ready(events) => Ok(PollFlags::from_bits_truncate(events as u16)),
            other => unreachable!("a poll answers readiness, not {other:?}"),
        }
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// ETIMEDOUT when the deadline comes first; EAGAIN as [`Self::poll`]; what `accept(2)` says.
    pub async fn accept(
        &self,
        listener: &Arc<OwnedFd>,
        deadline: Option<Instant>,
    ) -> Result<OwnedFd, Errno> {
        let wait = Wait::Accept { file: listener.clone() };
        match wait_until(self.inner(), wait, deadline).await.1? {
            Waited::Accepted(socket) => Ok(socket),
            other => unreachable!("an accept answers a connection, not {other:?}"),
        }
    }

    /// Receives bytes of a socket into `buffer` and gives it back with their
    /// number, 0 at the end. Errors are as of [`Self::accept`], with `recv(2)`.
    pub async fn receive(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: Buffer,
        deadline: Option<Instant>,
    ) -> (Buffer, Result<usize, Errno>) {
        let wait = Wait::Receive { file: socket.clone(), buffer };
        moved(wait_until(self.inner(), wait, deadline).await)
    }

    /// Sends bytes of `buffer` and gives it back with the number that went. Errors are as of [`Self::accept`], with
    /// `send(2)`.
    pub async fn send(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: Buffer,
        deadline: Option<Instant>,
    ) -> (Buffer, Result<usize, Errno>) {
        let wait = Wait::Send { file: socket.clone(), buffer };
        moved(wait_until(self.inner(), wait, deadline).await)
    }
}

fn moved((wait, result): (Wait, Result<Waited, Errno>)) -> (Buffer, Result<usize, Errno>) {
    let (Wait::Receive { buffer, .. } | Wait::Send { buffer, .. }) = wait else {
        unreachable!("only these move bytes")
    };
    let result = result.map(|waited| match waited {
        Waited::Moved(bytes) => bytes as usize,
        other => unreachable!("a transfer answers bytes, not {other:?}"),
    });
    (buffer, result)
}

async fn wait_until(
    inner: &Rc<Inner>,
    wait: Wait,
    deadline: Option<Instant>,
) -> (Wait, Result<Waited, Errno>) {
    let mut future = inner.wait_for(wait);
    let timer = deadline.map(|at| inner.timer(at, Due::Wait(future.cell)));
    let answer = poll_fn(|context| future.poll_answer(context)).await;
    inner.forget_wait(future.cell);
    // It was the deadline that cancelled the wait.
    let late = timer.is_some_and(|timer| timer.has_come());
    match answer {
        Answer::Wait(wait, Err(Errno::CANCELED)) if late => (wait, Err(Errno::TIMEDOUT)),
        Answer::Wait(wait, result) => (wait, result),
        Answer::Time => unreachable!("a wait's cell answers a wait"),
    }
}

impl Inner {
    /// Waits for a moment, `operation` as in [`CellFuture`].
    pub(crate) async fn sleep_until(self: &Rc<Self>, at: Instant, operation: Option<u32>) {
        let cell = self.io.borrow_mut().state.cells.open();
        let _timer = self.timer(at, Due::Cell(cell));
        let mut future = CellFuture { inner: self.clone(), cell, operation, taken: false };
        poll_fn(|context| future.poll_answer(context)).await;
    }

    /// Has something happen at a moment, unless the guard is dropped before.
    pub(crate) fn timer(self: &Rc<Self>, at: Instant, due: Due) -> TimerGuard {
        let key = self.timers.borrow_mut().insert(at, due);
        TimerGuard { inner: self.clone(), key }
    }

    /// Begins to wait for a descriptor; cancelled when the future is dropped.
    pub(crate) fn wait_for(self: &Rc<Self>, wait: Wait) -> CellFuture {
        let cell = self.io.borrow_mut().state.cells.open();
        let begun = {
            let io = &mut *self.io.borrow_mut();
            match &mut io.ring {
                _ if self.waits_under_way() >= MAX_WAITS => Err((wait, Err(Errno::AGAIN))),
                Some(ring) => match ring.push_wait(wait, cell as u64) {
                    Ok(handle) => {
                        self.waits.borrow_mut().push((cell, handle));
                        Ok(())
                    }
                    Err(wait) => Err((wait, Err(Errno::AGAIN))),
                },
                None => self.begin_by_epoll(cell, wait),
            }
        };
        if let Err((wait, result)) = begun {
            self.io.borrow_mut().state.answer(cell, Answer::Wait(wait, result));
        }
        CellFuture { inner: self.clone(), cell, operation: None, taken: false }
    }

    fn waits_under_way(&self) -> usize {
        let by_epoll = self.watch.borrow().as_ref().map_or(0, Watch::waits);
        self.waits.borrow().len() + by_epoll
    }

    pub(crate) fn begin_by_epoll(&self, cell: CellIndex, wait: Wait) -> Result<(), Answered> {
        let mut watch = self.watch.borrow_mut();
        if watch.is_none() {
            match Watch::new() {
                Ok(made) => *watch = Some(made),
                Err(error) => return Err((wait, Err(error))),
            }
        }
        watch.as_mut().expect("it was just made").begin(cell, wait)
    }

    pub(crate) fn cancel_wait(&self, cell: CellIndex) {
        let handle = {
            let mut waits = self.waits.borrow_mut();
            let place = waits.iter().position(|(other, _)| *other == cell);
            place.map(|place| waits.swap_remove(place).1)
        };
        let io = &mut *self.io.borrow_mut();
        if let (Some(handle), Some(ring)) = (handle, &mut io.ring) {
            ring.cancel_wait(handle);
        } else if let Some(watch) = &mut *self.watch.borrow_mut()
            && let Some(wait) = watch.cancel(cell)
        {
            io.state.answer(cell, Answer::Wait(wait, Err(Errno::CANCELED)));
        }
    }

    /// A wait has ended: there is nothing left to cancel.
    pub(crate) fn forget_wait(&self, cell: CellIndex) {
        self.waits.borrow_mut().retain(|(other, _)| *other != cell);
    }
}

/// A moment that is to come. Dropped before, nothing happens then.
pub(crate) struct TimerGuard {
    inner: Rc<Inner>,
    key: TimerKey,
}

impl TimerGuard {
    /// True when the moment has come.
    pub(crate) fn has_come(&self) -> bool {
        !self.inner.timers.borrow().contains(self.key)
    }
}

impl Drop for TimerGuard {
    fn drop(&mut self) {
        let removed = self.inner.timers.borrow_mut().remove(self.key);
        if let Some(Due::Cell(cell)) = removed {
            // Its future is gone: the answer that it will not have frees the cell.
            self.inner.io.borrow_mut().state.answer(cell, Answer::Time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn a_dropped_sleep_gives_its_cell_back() {
        let reactor = Reactor::new(crate::ReactorOptions::default()).unwrap();
        for _ in 0..3 {
            let mut sleep = pin!(reactor.sleep(Duration::from_secs(3600)));
            assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        let cells = &mut reactor.inner().io.borrow_mut().state.cells;
        assert_eq!(cells.open(), 0, "none is in use");
    }
}
