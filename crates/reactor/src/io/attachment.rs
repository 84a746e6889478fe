//! A device that a reactor serves, with the queues that carry its requests.

use std::sync::Arc;

use uringfs_device::queue::QueueKind;
use uringfs_device::queue::slowdown::SlowdownDetector;
use uringfs_device::queue::threads::ThreadsQueue;
use uringfs_device::{Bounds, DeviceInner, Errno, MeasuredCalibration, Queue};

use crate::io::choose::RoutedQueue;
use crate::io::route::QueueRoute;

/// Threads of a device's side queue, for requests that no ring carries: discards, zeroing.
const SIDE_THREADS: usize = 2;

/// How often the queues of a device are measured at most while it is open: a device that is fast and slow in turns keeps
/// its last queue.
const MAX_MEASUREMENTS: u32 = 4;

/// A device in this reactor's tables.
pub(crate) struct Attachment {
    pub(crate) device_inner: Arc<DeviceInner>,
    pub(crate) route: QueueRoute,
    /// Threads for requests that the ring cannot carry. Made at the first use.
    side_queue: Option<Box<dyn Queue>>,
    /// Why `kind` was chosen.
    pub(crate) reason: String,
    pub(crate) kind: QueueKind,
    /// The measurements by which `kind` was chosen, if it was.
    pub(crate) measured: Option<MeasuredCalibration>,
    /// Watches calls that execute single requests in place of the ring. `None` for a device that is not called so.
    pub(crate) calls: Option<SlowdownDetector>,
    /// The device was removed and takes no new requests.
    pub(crate) closing: bool,
}

impl Attachment {
    pub(crate) fn new(device_inner: Arc<DeviceInner>, chosen: RoutedQueue) -> Attachment {
        Attachment {
            device_inner,
            route: chosen.route,
            side_queue: None,
            reason: chosen.reason,
            kind: chosen.kind,
            measured: chosen.measured,
            calls: chosen.calls,
            closing: false,
        }
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.device_inner.bounds()
    }

    pub(crate) fn side_queue(&mut self) -> Result<&mut Box<dyn Queue>, Errno> {
        if self.side_queue.is_none() {
            let queue = ThreadsQueue::new(self.device_inner.clone(), 64, SIDE_THREADS)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
            self.side_queue = Some(Box::new(queue));
        }
        Ok(self.side_queue.as_mut().expect("it was made above"))
    }

    /// The driver refuses to be polled: its requests take the ring that waits for interrupts.
    pub(crate) fn stop_polling(&mut self) {
        self.route = QueueRoute::Ring;
        self.reason = format!("{}; the driver refused to be polled", self.reason);
    }

    /// Calls have hung, and the device was measured as often as it may be: single requests take the ring from here on.
    pub(crate) fn stop_calling(&mut self) {
        self.calls = None;
        self.reason += "; calls have hung again, so single reads take the ring, too";
    }

    /// True when a queue that was chosen by measuring is to be chosen again: its requests take much longer than measured.
    pub(crate) fn is_choice_contradicted(&self) -> bool {
        let is_slow = match &self.route {
            QueueRoute::Own(queue) => queue.is_slower_than_measured(),
            QueueRoute::Ring => self.calls.as_ref().is_some_and(SlowdownDetector::is_contradicted),
            QueueRoute::Polled | QueueRoute::Nvme => false,
        };
        is_slow && self.measured.as_ref().is_some_and(|measured| measured.times < MAX_MEASUREMENTS)
    }

    /// Takes from a new choice whether single requests are called. The ring, which may have some in flight, stays.
    pub(crate) fn choose_calls_again(&mut self, chosen: RoutedQueue) {
        (self.measured, self.reason, self.calls) = (chosen.measured, chosen.reason, chosen.calls);
        if !matches!(chosen.route, QueueRoute::Ring) {
            self.reason += "; the ring stays, since it is in use";
        }
    }

    /// Replaces the queue, which has nothing in flight. The system calls of the old one are returned.
    pub(crate) fn replace_queue(&mut self, chosen: RoutedQueue) -> u64 {
        let old = std::mem::replace(&mut self.route, chosen.route);
        (self.reason, self.kind, self.measured) = (chosen.reason, chosen.kind, chosen.measured);
        self.calls = chosen.calls;
        match old {
            QueueRoute::Own(queue) => queue.system_calls(),
            QueueRoute::Ring | QueueRoute::Polled | QueueRoute::Nvme => 0,
        }
    }

    /// True if nothing but calls of this thread executes its requests, as they are submitted.
    #[inline]
    pub(crate) fn is_called(&self) -> bool {
        self.kind == QueueKind::Sync
            && matches!(self.route, QueueRoute::Own(_))
            && self.side_queue.is_none()
    }

    pub(crate) fn own_queues(&mut self) -> impl Iterator<Item = &mut Box<dyn Queue>> {
        let own = match &mut self.route {
            QueueRoute::Own(queue) => Some(queue),
            QueueRoute::Ring | QueueRoute::Polled | QueueRoute::Nvme => None,
        };
        own.into_iter().chain(self.side_queue.as_mut())
    }

    pub(crate) fn own_queues_ref(&self) -> impl Iterator<Item = &dyn Queue> {
        let own = match &self.route {
            QueueRoute::Own(queue) => Some(&**queue),
            QueueRoute::Ring | QueueRoute::Polled | QueueRoute::Nvme => None,
        };
        own.into_iter().chain(self.side_queue.as_deref())
    }

    pub(crate) fn own_system_calls(&self) -> u64 {
        self.own_queues_ref().map(|queue| queue.system_calls()).sum()
    }

    pub(crate) fn own_in_flight(&self) -> usize {
        self.own_queues_ref().map(|queue| queue.in_flight()).sum()
    }
}
