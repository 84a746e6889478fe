//! A ring of either kind.

use crate::chain::{Broken, Chain};
use crate::packed_ring::PackedRing;
use crate::split_ring::SplitRing;

/// A ring of either kind.
#[derive(Debug)]
pub(crate) enum Ring {
    Split(SplitRing),
    Packed(PackedRing),
}

impl Ring {
    /// The number of its descriptors.
    pub(crate) fn size(&self) -> u16 {
        match self {
            Ring::Split(ring) => ring.size(),
            Ring::Packed(ring) => ring.size(),
        }
    }

    /// Where it would continue, as the front end keeps it while the ring is stopped.
    pub(crate) fn base(&self) -> u32 {
        match self {
            Ring::Split(ring) => ring.next_available().into(),
            Ring::Packed(ring) => ring.base(),
        }
    }

    /// Takes the next chain and copies it out. False if there is none.
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Result<bool, Broken> {
        match self {
            Ring::Split(ring) => match ring.pop()? {
                Some(head) => ring.read_chain(head, chain).map(|()| true),
                None => Ok(false),
            },
            Ring::Packed(ring) => ring.pop(chain),
        }
    }

    /// Gives a chain back, into which the device has written `written` bytes.
    pub(crate) fn push_used(&mut self, id: u16, descriptors: u16, written: u32) {
        match self {
            Ring::Split(ring) => ring.push_used(id, written),
            Ring::Packed(ring) => ring.push_used(id, descriptors, written),
        }
    }

    /// Asks the driver for notifications, or for none. Returns true if chains are available meanwhile: no notification
    /// comes for them.
    pub(crate) fn set_notified(&mut self, notified: bool) -> Result<bool, Broken> {
        match self {
            Ring::Split(ring) => ring.set_notified(notified),
            Ring::Packed(ring) => Ok(ring.set_notified(notified)),
        }
    }

    /// True if the driver wants an interrupt for what was given back since the last call.
    pub(crate) fn needs_interrupt(&mut self) -> bool {
        match self {
            Ring::Split(ring) => ring.needs_interrupt(),
            Ring::Packed(ring) => ring.needs_interrupt(),
        }
    }
}
