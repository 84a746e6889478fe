//! Waits for descriptors: readiness, connections, bytes of a socket.
//!
//! - [`LocalReactor::poll`], [`LocalReactor::accept`], [`LocalReactor::receive`], [`LocalReactor::send`],
//!   [`LocalReactor::send_vectored`], each with an optional deadline;
//! - [`run_command`], which a driver defines;
//! - [`LocalReactor::sleep`].
//!
//! A wait owns its descriptor and its memory. Dropping its future cancels it.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uringfs_buffer::Buffer;
use uringfs_device::Errno;
use uringfs_ring::{Command, GatheredSend, PollEvents, Ring, Wait, WaitOutput};

use crate::counters::Counter;
use crate::event_loop::core::{ReactorCore, TimerEvent, current};
use crate::local::LocalReactor;
use crate::tasks::waiters::WaitResult;

impl LocalReactor {
    /// Sleeps for `time` of the reactor's clock.
    pub async fn sleep(&self, time: Duration) {
        let reactor = &self.inner;
        reactor.sleep_until(reactor.options.clock.after(time), None).await;
    }

    /// Waits until `file` is ready for any of `events`, and returns those that it is ready for.
    ///
    /// # Errors
    /// - ETIMEDOUT: the deadline came first.
    /// - EAGAIN: the reactor already waits for [`ReactorOptions::max_waits`](crate::ReactorOptions::max_waits)
    ///   descriptors.
    /// - The errors of `poll(2)`.
    pub async fn poll(
        &self,
        file: &Arc<OwnedFd>,
        events: PollEvents,
        deadline: Option<Instant>,
    ) -> Result<PollEvents, Errno> {
        let wait = Wait::Poll { file: file.clone(), events };
        match wait_until(&self.inner, wait, deadline).await.1? {
            WaitOutput::Ready(events) => Ok(events),
            other => unreachable!("the result of a poll is readiness, not {other:?}"),
        }
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// ETIMEDOUT and EAGAIN as in [`Self::poll`]; the errors of `accept(2)`.
    pub async fn accept(
        &self,
        listener: &Arc<OwnedFd>,
        deadline: Option<Instant>,
    ) -> Result<OwnedFd, Errno> {
        let wait = Wait::Accept { file: listener.clone() };
        match wait_until(&self.inner, wait, deadline).await.1? {
            WaitOutput::Accepted(socket) => Ok(socket),
            other => unreachable!("the result of an accept is a connection, not {other:?}"),
        }
    }

    /// Receives bytes of a socket into `buffer`. Returns the number of bytes, which is 0 at the end of
    /// the stream. Errors: ETIMEDOUT and EAGAIN as in [`Self::poll`]; those of `recv(2)`.
    pub async fn receive(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: Buffer,
        deadline: Option<Instant>,
    ) -> (Result<usize, Errno>, Buffer) {
        let wait = Wait::Receive { file: socket.clone(), buffer };
        bytes_moved(wait_until(&self.inner, wait, deadline).await)
    }

    /// Sends bytes of `buffer`. Returns the number of bytes sent, which may be less than its length.
    /// Errors: ETIMEDOUT and EAGAIN as in [`Self::poll`]; those of `send(2)`.
    pub async fn send(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: Buffer,
        deadline: Option<Instant>,
    ) -> (Result<usize, Errno>, Buffer) {
        let wait = Wait::Send { file: socket.clone(), buffer };
        bytes_moved(wait_until(&self.inner, wait, deadline).await)
    }

    /// Sends bytes of several buffers, one after the other, in one system call: of at most 1024 of them. Returns the number of
    /// bytes sent, which may be less than all. Errors: ETIMEDOUT and EAGAIN as in [`Self::poll`]; those of `sendmsg(2)`.
    pub async fn send_vectored(
        &self,
        socket: &Arc<OwnedFd>,
        buffers: Vec<Buffer>,
        deadline: Option<Instant>,
    ) -> (Result<usize, Errno>, Vec<Buffer>) {
        let send = Box::new(GatheredSend::new(buffers));
        let wait = Wait::SendVectored { file: socket.clone(), send };
        let (wait, result) = wait_until(&self.inner, wait, deadline).await;
        let Wait::SendVectored { send, .. } = wait else { unreachable!("only a send was begun") };
        (result.map(bytes), send.into_buffers())
    }
}

/// Passes a command to the driver of a file, in the ring of the thread's current reactor, which also carries its reads and
/// writes, and waits until it ends. Returns the driver's result.
///
/// # Errors
/// - EOPNOTSUPP: there is no current reactor, or it has no ring with [`ReactorOptions::commands`](crate::ReactorOptions::commands).
/// - EAGAIN as in [`LocalReactor::poll`].
/// - Those of the driver.
pub async fn run_command(command: Box<Command>) -> (Result<u32, Errno>, Box<Command>) {
    let takes_commands = |reactor: &Rc<ReactorCore>| {
        reactor.io.borrow().ring.as_ref().is_some_and(Ring::takes_commands)
    };
    let Some(reactor) = current().filter(takes_commands) else {
        return (Err(Errno::OPNOTSUPP), command);
    };
    let (wait, result) = wait_until(&reactor, Wait::Command(command), None).await;
    reactor.counters.add(Counter::Commands, 1);
    let Wait::Command(command) = wait else { unreachable!("only a command was passed") };
    let result = result.map(|waited| match waited {
        WaitOutput::Ended(value) => value,
        other => unreachable!("the result of a command is a number, not {other:?}"),
    });
    (result, command)
}

fn bytes_moved(
    (wait, result): (Wait, Result<WaitOutput, Errno>),
) -> (Result<usize, Errno>, Buffer) {
    let (Wait::Receive { buffer, .. } | Wait::Send { buffer, .. }) = wait else {
        unreachable!("only a receive and a send move bytes")
    };
    (result.map(bytes), buffer)
}

fn bytes(moved: WaitOutput) -> usize {
    match moved {
        WaitOutput::Moved(bytes) => bytes as usize,
        other => unreachable!("the result of a transfer is a byte count, not {other:?}"),
    }
}

async fn wait_until(
    reactor: &Rc<ReactorCore>,
    wait: Wait,
    deadline: Option<Instant>,
) -> (Wait, Result<WaitOutput, Errno>) {
    let mut future = reactor.wait_for(wait);
    let timer = deadline.map(|at| reactor.timer(at, TimerEvent::WaitDeadline(future.cell)));
    let result = poll_fn(|context| future.poll_result(context)).await;
    reactor.forget_wait(future.cell);
    // The deadline cancelled the wait.
    let late = timer.is_some_and(|timer| timer.has_fired());
    match result {
        WaitResult::Descriptor(wait, Err(Errno::CANCELED)) if late => (wait, Err(Errno::TIMEDOUT)),
        WaitResult::Descriptor(wait, result) => (wait, result),
        WaitResult::Timer => {
            unreachable!("a timer does not complete the cell of a descriptor wait")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn a_dropped_sleep_frees_its_cell() {
        let reactor = crate::Reactor::new(crate::ReactorOptions::default()).unwrap();
        for _ in 0..3 {
            let mut sleep = pin!(reactor.sleep(Duration::from_secs(3600)));
            assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        let cells = &mut reactor.inner().io.borrow_mut().in_flight.cells;
        assert_eq!(cells.open(), 0, "none is in use");
    }
}
