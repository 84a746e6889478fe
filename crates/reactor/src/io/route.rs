//! The queue that carries a device's requests.

use uringfs_device::{Queue, Request};
use uringfs_ring::Ring;

use crate::sync::quiescence::{Domain, Tracker};

/// The queue that a device's requests take.
pub(crate) enum QueueRoute {
    /// Over the reactor's ring.
    Ring,
    /// Reads and writes over the IOPOLL ring, the rest over the main ring.
    Polled,
    /// As commands to an NVMe namespace, over the ring of these.
    Nvme,
    /// Over a queue that serves only this device.
    Own(Box<dyn Queue>),
}

/// Where new requests for a device go. The hot path needs nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FastRoute {
    /// Nowhere: the device is not attached, or was removed.
    Closed,
    /// Reads and writes over the reactor's ring.
    Ring,
    /// The same, but a first one is held back, for its caller may wait for it alone, and execute it by a call.
    Held,
    /// Reads and writes over the IOPOLL ring.
    Polled,
    /// Reads and writes as commands, over the ring of these.
    Nvme,
    /// Over a queue that serves only this device: see its attachment.
    OwnQueue,
}

impl FastRoute {
    /// The ring for new reads and writes. `None` also for commands, which take another kind of ring.
    #[inline(always)]
    pub(crate) fn ring<'r>(
        self,
        ring: &'r mut Option<Ring<Request>>,
        iopoll_ring: &'r mut Option<Ring<Request>>,
    ) -> Option<&'r mut Ring<Request>> {
        let at_once = if self == FastRoute::Held { FastRoute::Ring } else { self };
        at_once.ring_at_once(ring, iopoll_ring)
    }

    /// The same. `None` also if a first request is held back.
    #[inline(always)]
    pub(crate) fn ring_at_once<'r>(
        self,
        ring: &'r mut Option<Ring<Request>>,
        iopoll_ring: &'r mut Option<Ring<Request>>,
    ) -> Option<&'r mut Ring<Request>> {
        // In the order of likelihood, and not a match, which becomes a jump table.
        if self == FastRoute::Ring {
            ring.as_mut()
        } else if self == FastRoute::Polled {
            iopoll_ring.as_mut()
        } else {
            None
        }
    }
}

/// The part of a device that the hot path needs.
#[repr(align(64))]
pub(crate) struct DeviceSlot {
    pub(crate) fast_route: FastRoute,
    pub(crate) tracker: Tracker<&'static Domain>,
}
