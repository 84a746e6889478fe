//! [`Closed`]: the end of a volume, which another thread may wait for.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uringfs_device::Errno;
use uringfs_sync::park_on_until;

/// The end of a volume: of its threads, and of its lock on the device.
#[derive(Clone, Default)]
pub(crate) struct Closed(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    has_ended: bool,
    /// The last changes were lost.
    lost: Option<Errno>,
    waiting: Vec<Waker>,
}

impl Closed {
    /// Notes that the last changes are not durable.
    pub(crate) fn set_lost(&self, errno: Errno) {
        self.0.lock().lost = Some(errno);
    }

    /// Blocks until the end, and returns whether the last changes are durable. `None` after `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Result<(), Errno>> {
        park_on_until(poll_fn(|context| self.poll(context)), Some(Instant::now() + timeout))
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<(), Errno>> {
        let state = &mut *self.0.lock();
        if state.has_ended {
            return Poll::Ready(state.lost.map_or(Ok(()), Err));
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// Reports the end when it is dropped.
#[derive(Default)]
pub(crate) struct ClosedGuard(pub(crate) Closed);

impl Drop for ClosedGuard {
    fn drop(&mut self) {
        let waiting = {
            let state = &mut *self.0.0.lock();
            state.has_ended = true;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}
