//! [`Closed`]: the end of a volume, which another thread may wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uringfs_device::Errno;

/// The end of a volume: of its threads, and of its lock on the device.
#[derive(Clone, Default)]
pub(crate) struct Closed(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    has_ended: bool,
    /// The last changes were lost.
    lost: Option<Errno>,
}

impl Closed {
    /// Notes that the last changes are not durable.
    pub(crate) fn set_lost(&self, errno: Errno) {
        self.0.0.lock().lost = Some(errno);
    }

    /// Waits for the end, and returns whether the last changes are durable. `None` after `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Result<(), Errno>> {
        let (state, changed) = &*self.0;
        let (mut state, end) = (state.lock(), Instant::now() + timeout);
        while !state.has_ended {
            if changed.wait_until(&mut state, end).timed_out() {
                break;
            }
        }
        state.has_ended.then(|| state.lost.map_or(Ok(()), Err))
    }
}

/// Reports the end when it is dropped.
#[derive(Default)]
pub(crate) struct ClosedGuard(pub(crate) Closed);

impl Drop for ClosedGuard {
    fn drop(&mut self) {
        let (state, changed) = &*self.0.0;
        state.lock().has_ended = true;
        changed.notify_all();
    }
}
