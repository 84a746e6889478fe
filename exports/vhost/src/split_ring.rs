//! A split ring, the device's side: a table of descriptors, a ring of chains that the driver makes available, and a ring of
//! those that the device has used.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::abi::{DESCRIPTOR_BYTES, Descriptor, RingAddresses, UsedElement, descriptor};
use crate::chain::{Broken, Chain, TableOrder};
use crate::in_flight::InFlightTable;
use crate::memory::{Area, GuestMemory, NotMapped, Segment};

/// In the flags of the available ring: the driver wants no interrupt.
const NO_INTERRUPT: u16 = 1;
/// In the flags of the used ring: the device wants no notification.
const NO_NOTIFY: u16 = 1;

/// Offsets in both rings.
const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;

/// A split ring.
#[derive(Debug)]
pub(crate) struct SplitRing {
    memory: Arc<GuestMemory>,
    size: u16,
    has_event_index: bool,
    takes_indirect: bool,
    descriptors: Area,
    available: Area,
    used: Area,
    /// Of the next chain to take.
    next_available: u16,
    /// As far as the driver was when its index was last looked at.
    seen_available: u16,
    /// Of the next chain to give back.
    next_used: u16,
    /// `next_used` when the driver was last interrupted.
    interrupted_at: u16,
    in_flight: Option<InFlightTable>,
    /// Chains that an earlier server has taken and not given back.
    repeated: VecDeque<u16>,
}

impl SplitRing {
    /// The ring at these addresses. `size` is a power of two. With a table of requests in flight that was used before, the
    /// ring continues there, and not at `next_available`.
    ///
    /// # Errors
    /// If part of it is not in the guest's memory or not aligned.
    pub(crate) fn new(
        memory: Arc<GuestMemory>,
        size: u16,
        addresses: &RingAddresses,
        next_available: u16,
        (has_event_index, takes_indirect): (bool, bool),
        in_flight: Option<Area>,
    ) -> Result<SplitRing, NotMapped> {
        let entries = usize::from(size);
        // Each ring ends with the index of an event.
        let available_bytes = ENTRIES + 2 * entries + 2;
        let used_bytes = ENTRIES + size_of::<UsedElement>() * entries + 2;
        let descriptors =
            memory.area_of_user(addresses.descriptors, DESCRIPTOR_BYTES * entries, 16)?;
        let available = memory.area_of_user(addresses.available, available_bytes, 2)?;
        let used = memory.area_of_user(addresses.used, used_bytes, 4)?;
        let next_used = used.load(INDEX, Ordering::Acquire);
        let (in_flight, repeated) =
            in_flight.map(|area| InFlightTable::open(area, size, next_used)).unzip();
        let (next_available, repeated) = match repeated.flatten() {
            Some(repeated) => (next_used.wrapping_add(repeated.len() as u16), repeated.into()),
            None => (next_available, VecDeque::new()),
        };
        Ok(SplitRing {
            memory,
            size,
            has_event_index,
            takes_indirect,
            descriptors,
            available,
            used,
            next_available,
            seen_available: next_available,
            next_used,
            interrupted_at: next_used,
            in_flight,
            repeated,
        })
    }

    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// The index of the next chain to take.
    pub(crate) fn next_available(&self) -> u16 {
        self.next_available
    }

    /// Takes the next chain: its head, or `None` if there is none.
    pub(crate) fn pop(&mut self) -> Result<Option<u16>, Broken> {
        if let Some(head) = self.repeated.pop_front() {
            return Ok(Some(head));
        }
        if self.next_available == self.seen_available && !self.has_available()? {
            return Ok(None);
        }
        let entry = usize::from(self.next_available % self.size);
        let head = self.available.load(ENTRIES + 2 * entry, Ordering::Relaxed);
        if head >= self.size {
            return Err(Broken("the head of a chain is not in the table"));
        }
        self.next_available = self.next_available.wrapping_add(1);
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.take(head);
        }
        Ok(Some(head))
    }

    /// Looks whether the driver has made chains available.
    pub(crate) fn has_available(&mut self) -> Result<bool, Broken> {
        self.seen_available = self.available.load(INDEX, Ordering::Acquire);
        match self.seen_available.wrapping_sub(self.next_available) {
            count if count > self.size => {
                Err(Broken("more chains are available than the ring has entries"))
            }
            count => Ok(count > 0 || !self.repeated.is_empty()),
        }
    }

    /// Copies out the chain with this head.
    pub(crate) fn read_chain(&self, head: u16, chain: &mut Chain) -> Result<(), Broken> {
        chain.clear();
        chain.id = head;
        let mut index = head;
        for _ in 0..self.size {
            chain.descriptors += 1;
            let entry: Descriptor = self.descriptors.read(usize::from(index) * DESCRIPTOR_BYTES);
            let (address, length, flags) =
                (entry.address.get(), entry.length.get(), entry.flags.get());
            if flags & descriptor::INDIRECT != 0 {
                if !self.takes_indirect || flags & descriptor::NEXT != 0 {
                    return Err(Broken("a table is where none may be"));
                }
                return chain.append_table(
                    &self.memory,
                    Segment { address, length },
                    TableOrder::Linked,
                );
            }
            chain.append(address, length, flags)?;
            if flags & descriptor::NEXT == 0 {
                return Ok(());
            }
            index = entry.next.get();
            if index >= self.size {
                return Err(Broken("a chain leaves its table"));
            }
        }
        Err(Broken("a chain has a loop"))
    }

    /// Gives a chain back, into which the device has written `written` bytes.
    pub(crate) fn push_used(&mut self, head: u16, written: u32) {
        match self.in_flight.take() {
            Some(mut in_flight) => {
                in_flight.give_back(head, || self.push(head, written));
                self.in_flight = Some(in_flight);
            }
            None => {
                self.push(head, written);
            }
        }
    }

    /// Returns the new used index.
    fn push(&mut self, head: u16, written: u32) -> u16 {
        let entry = usize::from(self.next_used % self.size);
        let element = UsedElement { id: u32::from(head).into(), length: written.into() };
        self.used.write(ENTRIES + size_of::<UsedElement>() * entry, &element);
        self.next_used = self.next_used.wrapping_add(1);
        self.used.store(INDEX, self.next_used, Ordering::Release);
        self.next_used
    }

    /// Asks the driver for notifications, or for none. Returns true if chains are available meanwhile: no notification
    /// comes for them.
    pub(crate) fn set_notified(&mut self, notified: bool) -> Result<bool, Broken> {
        match (self.has_event_index, notified) {
            (true, true) => {
                let event = ENTRIES + size_of::<UsedElement>() * usize::from(self.size);
                self.used.store(event, self.next_available, Ordering::Relaxed);
            }
            // The driver notifies once for each event that it was asked for.
            (true, false) => return Ok(false),
            (false, true) => self.used.store(FLAGS, 0, Ordering::Relaxed),
            (false, false) => {
                self.used.store(FLAGS, NO_NOTIFY, Ordering::Relaxed);
                return Ok(false);
            }
        }
        // Either the driver sees the request, or its index is seen here.
        fence(Ordering::SeqCst);
        self.has_available()
    }

    /// True if the driver wants an interrupt for what was given back since the last call that returned true.
    pub(crate) fn needs_interrupt(&mut self) -> bool {
        if self.next_used == self.interrupted_at {
            return false;
        }
        // Either the driver sees what was given back, or its wish is seen here.
        fence(Ordering::SeqCst);
        let before = self.interrupted_at;
        self.interrupted_at = self.next_used;
        if !self.has_event_index {
            return self.available.load(FLAGS, Ordering::Relaxed) & NO_INTERRUPT == 0;
        }
        let event = self.available.load(ENTRIES + 2 * usize::from(self.size), Ordering::Relaxed);
        let since_event = self.next_used.wrapping_sub(event).wrapping_sub(1);
        since_event < self.next_used.wrapping_sub(before)
    }
}
