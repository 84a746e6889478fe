//! Waits of tasks for a descriptor or a time: begin, poll, cancel.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use uringfs_device::Errno;
use uringfs_ring::Wait;

use crate::event_loop::core::{ReactorCore, TimerEvent};
use crate::io::poller::{EndedWait, Poller};
use crate::tasks::timer::TimerKey;
use crate::tasks::waiters::{CellIndex, WaitCell, WaitResult, WakeTarget};

/// Resolves to the result of a cell. Cancels the wait when dropped.
pub(crate) struct CellFuture {
    pub(crate) reactor: Rc<ReactorCore>,
    pub(crate) cell: CellIndex,
    /// The operation whose task polls this future directly. Its task is made ready without a waker.
    pub(crate) operation: Option<u32>,
    pub(crate) taken: bool,
}

impl CellFuture {
    pub(crate) fn poll_result(&mut self, context: &mut Context<'_>) -> Poll<WaitResult> {
        // Cloned and dropped while nothing is borrowed: a user's waker may call back into the reactor.
        let target = match self.operation {
            Some(task) => WakeTarget::Task(task),
            None => WakeTarget::Waker(context.waker().clone()),
        };
        let was = self.reactor.io.borrow_mut().in_flight.cells.poll(self.cell, target);
        match was {
            WaitCell::Ready(result) => {
                self.taken = true;
                Poll::Ready(result)
            }
            _ => Poll::Pending,
        }
    }
}

impl Drop for CellFuture {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let was = self.reactor.io.borrow_mut().in_flight.cells.forget(self.cell);
        if matches!(was, WaitCell::Waiting(_) | WaitCell::WaitingTask(_)) {
            self.reactor.cancel_wait(self.cell);
        } else {
            // The wait has ended. Its handle must not be taken for that of the cell's next wait.
            self.reactor.forget_wait(self.cell);
        }
    }
}

impl ReactorCore {
    /// Sleeps until `at` of the reactor's clock. `operation` as in [`CellFuture`].
    pub(crate) async fn sleep_until(self: &Rc<Self>, at: Instant, operation: Option<u32>) {
        let cell = self.io.borrow_mut().in_flight.cells.open();
        let _timer = self.timer(at, TimerEvent::Sleep(cell));
        let mut future = CellFuture { reactor: self.clone(), cell, operation, taken: false };
        poll_fn(|context| future.poll_result(context)).await;
    }

    /// Fires `event` at `at`, unless the guard is dropped before.
    pub(crate) fn timer(self: &Rc<Self>, at: Instant, event: TimerEvent) -> TimerGuard {
        let key = self.timers.borrow_mut().insert(at, event);
        TimerGuard { reactor: self.clone(), key }
    }

    /// Begins a descriptor wait. Dropping the future cancels it.
    pub(crate) fn wait_for(self: &Rc<Self>, wait: Wait) -> CellFuture {
        let cell = self.io.borrow_mut().in_flight.cells.open();
        let begun = {
            let io = &mut *self.io.borrow_mut();
            match &mut io.ring {
                _ if self.waits_under_way() >= self.options.max_waits as usize => {
                    Err((wait, Err(Errno::AGAIN)))
                }
                Some(ring) => match ring.push_wait(wait, cell as u64) {
                    Ok(handle) => {
                        self.waits.borrow_mut().insert(cell, handle);
                        Ok(())
                    }
                    Err(wait) => Err((wait, Err(Errno::AGAIN))),
                },
                None => self.begin_epoll_wait(cell, wait),
            }
        };
        if let Err((wait, result)) = begun {
            self.io
                .borrow_mut()
                .in_flight
                .complete_wait(cell, WaitResult::Descriptor(wait, result));
        }
        CellFuture { reactor: self.clone(), cell, operation: None, taken: false }
    }

    fn waits_under_way(&self) -> usize {
        let by_epoll = self.poller.borrow().as_ref().map_or(0, Poller::waits);
        self.waits.borrow().count() + by_epoll
    }

    pub(crate) fn begin_epoll_wait(&self, cell: CellIndex, wait: Wait) -> Result<(), EndedWait> {
        let mut poller = self.poller.borrow_mut();
        if poller.is_none() {
            match Poller::new() {
                Ok(made) => *poller = Some(made),
                Err(error) => return Err((wait, Err(error))),
            }
        }
        poller.as_mut().expect("it was made above").begin(cell, wait)
    }

    pub(crate) fn cancel_wait(&self, cell: CellIndex) {
        let handle = self.waits.borrow_mut().remove(cell);
        let io = &mut *self.io.borrow_mut();
        if let (Some(handle), Some(ring)) = (handle, &mut io.ring) {
            ring.cancel_wait(handle);
        } else if let Some(poller) = &mut *self.poller.borrow_mut()
            && let Some(wait) = poller.cancel(cell)
        {
            io.in_flight.complete_wait(cell, WaitResult::Descriptor(wait, Err(Errno::CANCELED)));
        }
    }

    /// The wait has ended: forget its handle.
    pub(crate) fn forget_wait(&self, cell: CellIndex) {
        self.waits.borrow_mut().remove(cell);
    }
}

/// A pending timer. Dropping the guard cancels it.
pub(crate) struct TimerGuard {
    reactor: Rc<ReactorCore>,
    key: TimerKey,
}

impl TimerGuard {
    /// True when the timer has fired.
    pub(crate) fn has_fired(&self) -> bool {
        !self.reactor.timers.borrow().contains(self.key)
    }
}

impl Drop for TimerGuard {
    fn drop(&mut self) {
        let removed = self.reactor.timers.borrow_mut().remove(self.key);
        if let Some(TimerEvent::Sleep(cell)) = removed {
            // The future is gone too: completing the cell frees it.
            self.reactor.io.borrow_mut().in_flight.complete_wait(cell, WaitResult::Timer);
        }
    }
}
