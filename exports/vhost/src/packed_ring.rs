//! A packed ring, the device's side: one ring of descriptors, which driver and device overwrite in turn. Two bits of a
//! descriptor say whose it is; their meaning changes each time that a side wraps around.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::abi::{DESCRIPTOR_BYTES, PackedDescriptor, RingAddresses, descriptor};
use crate::chain::{Broken, Chain, TableOrder};
use crate::memory::{Area, GuestMemory, NotMapped, Segment};

/// The area by which a side says which events it wants: offset and wrap counter of a descriptor, then flags.
const EVENT_BYTES: usize = 4;
const EVENT_POSITION: usize = 0;
const EVENT_FLAGS: usize = 2;
/// Its flags: all events, none, the one at the position.
const ALL: u16 = 0;
const NONE: u16 = 1;
const AT_POSITION: u16 = 2;

/// The offset of the flags in a descriptor.
const FLAGS: usize = 14;

/// A packed ring.
#[derive(Debug)]
pub(crate) struct PackedRing {
    memory: Arc<GuestMemory>,
    size: u16,
    has_event_index: bool,
    takes_indirect: bool,
    descriptors: Area,
    driver_events: Area,
    device_events: Area,
    /// Of the next chain to take.
    next_available: Position,
    /// Of the next chain to give back.
    next_used: Position,
    /// Descriptors that were taken and not given back.
    taken: u16,
    /// Descriptors that were given back since the driver was last interrupted.
    given_back: u16,
}

/// A place in the ring, and how often it was passed, odd or even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    index: u16,
    wrap: bool,
}

impl Position {
    /// 15 bits of index, and the wrap counter.
    fn from_bits(bits: u16) -> Position {
        Position { index: bits & 0x7fff, wrap: bits >> 15 == 1 }
    }

    fn bits(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    fn advance(&mut self, descriptors: u16, size: u16) {
        let index = u32::from(self.index) + u32::from(descriptors);
        if index >= size.into() {
            self.wrap = !self.wrap;
        }
        self.index = (index % u32::from(size)) as u16;
    }
}

impl PackedRing {
    /// The ring at these addresses, which continues at `base`: the position of the next chain to take, then that of the next
    /// to give back.
    ///
    /// # Errors
    /// If part of it is not in the guest's memory or not aligned, or a position is not in the ring.
    pub(crate) fn new(
        memory: Arc<GuestMemory>,
        size: u16,
        addresses: &RingAddresses,
        base: u32,
        (has_event_index, takes_indirect): (bool, bool),
    ) -> Result<PackedRing, NotMapped> {
        let bytes = DESCRIPTOR_BYTES * usize::from(size);
        let descriptors = memory.area_of_user(addresses.descriptors, bytes, 16)?;
        let driver_events = memory.area_of_user(addresses.available, EVENT_BYTES, 4)?;
        let device_events = memory.area_of_user(addresses.used, EVENT_BYTES, 4)?;
        let next_available = Position::from_bits(base as u16);
        let next_used = Position::from_bits((base >> 16) as u16);
        if next_available.index >= size || next_used.index >= size {
            return Err(NotMapped);
        }
        Ok(PackedRing {
            memory,
            size,
            has_event_index,
            takes_indirect,
            descriptors,
            driver_events,
            device_events,
            next_available,
            next_used,
            taken: 0,
            given_back: 0,
        })
    }

    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// Where it would continue: see [`Self::new`].
    pub(crate) fn base(&self) -> u32 {
        u32::from(self.next_available.bits()) | u32::from(self.next_used.bits()) << 16
    }

    /// True if the driver has made the descriptor at `position` available.
    fn is_available(&self, position: Position) -> bool {
        let at = usize::from(position.index) * DESCRIPTOR_BYTES + FLAGS;
        let flags = self.descriptors.load(at, Ordering::Acquire);
        let is = |bit| flags & bit != 0;
        is(descriptor::AVAILABLE) == position.wrap && is(descriptor::USED) != position.wrap
    }

    /// Looks whether the driver has made chains available.
    pub(crate) fn has_available(&self) -> bool {
        self.is_available(self.next_available)
    }

    /// Takes the next chain and copies it out. False if there is none.
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Result<bool, Broken> {
        chain.clear();
        if !self.has_available() {
            return Ok(false);
        }
        let mut at = self.next_available;
        loop {
            if self.taken + chain.descriptors == self.size {
                return Err(Broken("more descriptors are available than the ring has"));
            }
            let entry: PackedDescriptor =
                self.descriptors.read(usize::from(at.index) * DESCRIPTOR_BYTES);
            chain.descriptors += 1;
            at.advance(1, self.size);
            let (address, length, flags) =
                (entry.address.get(), entry.length.get(), entry.flags.get());
            if flags & descriptor::INDIRECT != 0 {
                let is_allowed =
                    self.takes_indirect && chain.descriptors == 1 && flags & descriptor::NEXT == 0;
                if !is_allowed {
                    return Err(Broken("a table is where none may be"));
                }
                chain.append_table(&self.memory, Segment { address, length }, TableOrder::InRow)?;
            } else {
                chain.append(address, length, flags)?;
            }
            if flags & descriptor::NEXT == 0 {
                // The last descriptor names the chain.
                chain.id = entry.id.get();
                break;
            }
        }
        self.next_available = at;
        self.taken += chain.descriptors;
        Ok(true)
    }

    /// Gives a chain back, into which the device has written `written` bytes.
    pub(crate) fn push_used(&mut self, id: u16, descriptors: u16, written: u32) {
        let Position { index, wrap } = self.next_used;
        let at = usize::from(index) * DESCRIPTOR_BYTES;
        let (length, flags) = (
            zerocopy::little_endian::U32::new(written),
            match wrap {
                true => descriptor::AVAILABLE | descriptor::USED,
                false => 0,
            },
        );
        self.descriptors.write(at + 8, &length);
        self.descriptors.write(at + 12, &zerocopy::little_endian::U16::new(id));
        let flags = if written > 0 { flags | descriptor::WRITE } else { flags };
        // The driver sees the rest before it sees whose it is.
        self.descriptors.store(at + FLAGS, flags, Ordering::Release);
        self.next_used.advance(descriptors, self.size);
        self.taken -= descriptors;
        self.given_back = self.given_back.saturating_add(descriptors);
    }

    /// Asks the driver for notifications, or for none. Returns true if chains are available meanwhile: no notification
    /// comes for them.
    pub(crate) fn set_notified(&mut self, notified: bool) -> bool {
        if !notified {
            self.device_events.store(EVENT_FLAGS, NONE, Ordering::Relaxed);
            return false;
        }
        if self.has_event_index {
            let position = self.next_available.bits();
            self.device_events.store(EVENT_POSITION, position, Ordering::Relaxed);
            self.device_events.store(EVENT_FLAGS, AT_POSITION, Ordering::Release);
        } else {
            self.device_events.store(EVENT_FLAGS, ALL, Ordering::Relaxed);
        }
        // Either the driver sees the request, or its descriptor is seen here.
        fence(Ordering::SeqCst);
        self.has_available()
    }

    /// True if the driver wants an interrupt for what was given back since the last call.
    pub(crate) fn needs_interrupt(&mut self) -> bool {
        let given_back = std::mem::take(&mut self.given_back);
        if given_back == 0 {
            return false;
        }
        // Either the driver sees what was given back, or its wish is seen here.
        fence(Ordering::SeqCst);
        let flags = self.driver_events.load(EVENT_FLAGS, Ordering::Acquire);
        match flags & 3 {
            NONE => false,
            AT_POSITION if self.has_event_index => {
                let event = self.driver_events.load(EVENT_POSITION, Ordering::Relaxed);
                let event = Position::from_bits(event);
                // How far back the event is, in descriptors.
                let (now, size) = (self.next_used, u32::from(self.size));
                let turns = if event.wrap == now.wrap { 0 } else { size };
                let back = (u32::from(now.index) + turns).checked_sub(u32::from(event.index));
                back.is_some_and(|back| (1..=u32::from(given_back)).contains(&back))
            }
            _ => true,
        }
    }
}
