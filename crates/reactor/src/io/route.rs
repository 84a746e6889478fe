//! Which queue carries a device's requests.

use uringfs_device::{Queue, Request};
use uringfs_ring::Ring;

use crate::sync::quiescence::{Domain, Tracker};

/// How a request reaches its device.
pub(crate) enum QueueRoute {
    /// Over the reactor's ring.
    Ring,
    /// Reads and writes over the ring that polls, the rest over the other.
    Polled,
    /// Over a queue of the device's own.
    Own(Box<dyn Queue>),
}

/// Where new requests for a device go: all that the hot path asks of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FastRoute {
    /// Nowhere: it is not attached, or it has closed.
    Closed,
    /// Reads and writes over the reactor's ring.
    Ring,
    /// Reads and writes over the ring that polls.
    Polled,
    /// See its attachment.
    OwnQueue,
}

impl FastRoute {
    /// The ring that new reads and writes go over.
    #[inline(always)]
    pub(crate) fn ring<'r>(
        self,
        ring: &'r mut Option<Ring<Request>>,
        polled: &'r mut Option<Ring<Request>>,
    ) -> Option<&'r mut Ring<Request>> {
        // In this order, which is that of likelihood: a match becomes a table of jumps.
        if self == FastRoute::Ring {
            ring.as_mut()
        } else if self == FastRoute::Polled {
            polled.as_mut()
        } else {
            None
        }
    }
}

/// What the hot path knows of a device.
#[repr(align(64))]
pub(crate) struct DeviceSlot {
    pub(crate) fast_route: FastRoute,
    pub(crate) tracker: Tracker<&'static Domain>,
}
