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

use crate::event_loop::core::{Inner, TimerEvent};
use crate::reactor::Reactor;
use crate::tasks::waiters::WaitResult;

impl Reactor {
    /// Waits this long.
    pub async fn sleep(&self, time: Duration) {
        let inner = self.inner();
        inner.sleep_until(inner.options.clock.after(time), None).await;
    }

    /// Waits until `file` is ready for any of `events`, and answers which.
    ///
    /// # Errors
    /// ETIMEDOUT when the deadline comes first; EAGAIN while the reactor waits for [`MAX_WAITS`](crate::MAX_WAITS) descriptors; what
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
        bytes_moved(wait_until(self.inner(), wait, deadline).await)
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
        bytes_moved(wait_until(self.inner(), wait, deadline).await)
    }
}

fn bytes_moved((wait, result): (Wait, Result<Waited, Errno>)) -> (Buffer, Result<usize, Errno>) {
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
    let timer = deadline.map(|at| inner.timer(at, TimerEvent::WaitDeadline(future.cell)));
    let answer = poll_fn(|context| future.poll_result(context)).await;
    inner.forget_wait(future.cell);
    // It was the deadline that cancelled the wait.
    let late = timer.is_some_and(|timer| timer.has_come());
    match answer {
        WaitResult::Descriptor(wait, Err(Errno::CANCELED)) if late => (wait, Err(Errno::TIMEDOUT)),
        WaitResult::Descriptor(wait, result) => (wait, result),
        WaitResult::Timer => unreachable!("a wait's cell answers a wait"),
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
        let cells = &mut reactor.inner().io.borrow_mut().in_flight.cells;
        assert_eq!(cells.open(), 0, "none is in use");
    }
}
