//! The state that all connections of a device share: the server's addresses, the export, and whether writes were lost.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::SocketAddrAny;
use uringfs_errno::Errno;
use uringfs_nbd_protocol::handshake::export_flags;
use uringfs_ring::ForkDetector;

use super::super::without_device::without_device;
use super::export::Export;
use crate::geometry::Geometry;
use crate::request::Request;

/// A server, and the export that the first connection has found there.
pub(super) struct Peer {
    pub(super) name: String,
    /// At least one.
    addresses: Vec<SocketAddrAny>,
    /// The one that the next attempt to connect uses.
    address: AtomicUsize,
    /// At the first connection.
    pub(super) export: Export,
    /// With the size at the first connection.
    pub(super) geometry: Geometry,
    pub(super) timeout: Duration,
    /// The largest size of a connection, in whole blocks.
    size: AtomicU64,
    /// The size that the server last said.
    offered: AtomicU64,
    has_lost_writes: AtomicBool,
    fork_detector: ForkDetector,
}

impl Peer {
    pub(super) fn new(
        name: String,
        addresses: Vec<SocketAddrAny>,
        export: Export,
        geometry: Geometry,
        timeout: Duration,
    ) -> Peer {
        Peer {
            name,
            addresses,
            address: AtomicUsize::new(0),
            export,
            timeout,
            size: geometry.size.into(),
            offered: geometry.size.into(),
            geometry,
            has_lost_writes: AtomicBool::new(false),
            fork_detector: ForkDetector::default(),
        }
    }

    /// The address for the next attempt to connect: the one that worked last, until attempts with it fail.
    pub(super) fn address(&self) -> &SocketAddrAny {
        &self.addresses[self.address.load(Ordering::Relaxed)]
    }

    /// Lets the next attempts use another address, if there is one. Only the main link calls it.
    pub(super) fn use_next_address(&self) {
        let next = (self.address.load(Ordering::Relaxed) + 1) % self.addresses.len();
        self.address.store(next, Ordering::Relaxed);
    }

    /// All addresses, the one for the next attempt first.
    pub(super) fn addresses(&self) -> Vec<SocketAddrAny> {
        let mut addresses = self.addresses.clone();
        addresses.rotate_left(self.address.load(Ordering::Relaxed));
        addresses
    }

    /// The time for one attempt to connect, so that each address gets one within the timeout.
    pub(super) fn attempt_timeout(&self) -> Duration {
        self.timeout / self.addresses.len() as u32
    }

    /// The size in bytes, whole blocks. Connections from before it grew have less.
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// The size that the server said last, which may be less.
    pub(super) fn offered(&self) -> u64 {
        self.offered.load(Ordering::Relaxed)
    }

    /// Notes what another connection is offered.
    ///
    /// # Errors
    /// ESTALE if that is another export. One that has grown is the same, one that has shrunk is not.
    pub(super) fn note_offer(&self, export: &Export) -> Result<(), Errno> {
        let same = Export { size: self.export.size, ..*export };
        if same != self.export || export.size > i64::MAX as u64 {
            return Err(Errno::STALE);
        }
        let offered = export.whole_size();
        self.offered.store(offered, Ordering::Relaxed);
        match self.size.fetch_max(offered, Ordering::Relaxed) > offered {
            true => Err(Errno::STALE),
            false => Ok(()),
        }
    }

    /// The connections belong to the parent.
    pub(super) fn is_forked(&self) -> bool {
        self.fork_detector.is_forked()
    }

    /// Whether a write or a flush on one connection is seen on others.
    pub(super) fn allows_several_connections(&self) -> bool {
        self.export.has(export_flags::CAN_MULTI_CONN)
    }

    /// The result of a step of `request`, if no server is needed for it.
    pub(super) fn check(&self, request: &Request) -> Option<Result<u32, Errno>> {
        if !request.is_cancelled() && self.is_forked() {
            return Some(Err(Errno::CHILD));
        }
        without_device(request, &self.geometry, self.size())
    }

    /// A connection has ended which had acknowledged writes that no flush covered: they may be lost. This stays so until
    /// the device is opened again, since only its user knows what to do.
    pub(super) fn set_lost_writes(&self) {
        self.has_lost_writes.store(true, Ordering::Release);
    }

    /// Writes and flushes fail with EIO.
    pub(super) fn has_lost_writes(&self) -> bool {
        self.has_lost_writes.load(Ordering::Acquire)
    }
}
