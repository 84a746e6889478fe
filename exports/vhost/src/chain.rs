//! A chain of descriptors, copied out of guest memory and checked: what one request has to read and to write.

use crate::abi::{DESCRIPTOR_BYTES, Descriptor, PackedDescriptor, descriptor};
use crate::memory::{GuestMemory, Segment};

/// The most entries of a ring.
pub(crate) const MAX_RING_SIZE: u16 = 1024;
/// The most descriptors of a chain, in whatever table.
pub(crate) const MAX_SEGMENTS: usize = 1024;

/// The guest's driver has broken the rules of rings. Nothing more is taken from this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

/// The segments of a request. Reused from one request to the next.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// Names the chain when it is given back.
    pub(crate) id: u16,
    /// Descriptors of the ring that it takes.
    pub(crate) descriptors: u16,
    /// The segments that the device reads.
    pub(crate) readable: Vec<Segment>,
    /// The segments that the device writes.
    pub(crate) writable: Vec<Segment>,
}

impl Chain {
    pub(crate) fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
        self.descriptors = 0;
    }

    /// Appends the segment of a descriptor.
    pub(crate) fn append(&mut self, address: u64, length: u32, flags: u16) -> Result<(), Broken> {
        if self.readable.len() + self.writable.len() == MAX_SEGMENTS {
            return Err(Broken("a chain has too many descriptors"));
        }
        let segment = Segment { address, length };
        if flags & descriptor::WRITE != 0 {
            self.writable.push(segment);
        } else if self.writable.is_empty() {
            self.readable.push(segment);
        } else {
            return Err(Broken("a descriptor to read from follows one to write to"));
        }
        Ok(())
    }

    /// Appends the segments of a table of descriptors in the guest's memory.
    pub(crate) fn append_table(
        &mut self,
        memory: &GuestMemory,
        table: Segment,
        order: TableOrder,
    ) -> Result<(), Broken> {
        let count = table.length as usize / DESCRIPTOR_BYTES;
        if count == 0 || !(table.length as usize).is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(Broken("a table is not one of whole descriptors"));
        }
        if count > MAX_SEGMENTS {
            return Err(Broken("a table has too many descriptors"));
        }
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let (mut index, mut taken) = (0, 0);
        loop {
            let at = table.address.checked_add((index * DESCRIPTOR_BYTES) as u64);
            let read = at.map(|at| memory.read(at, &mut bytes));
            if read != Some(Ok(())) {
                return Err(Broken("a table is not in the guest's memory"));
            }
            let (address, length, flags, next) = match order {
                TableOrder::Linked => {
                    let entry: Descriptor = zerocopy::transmute!(bytes);
                    (entry.address, entry.length, entry.flags.get(), entry.next.get())
                }
                TableOrder::InRow => {
                    let entry: PackedDescriptor = zerocopy::transmute!(bytes);
                    (entry.address, entry.length, entry.flags.get(), 0)
                }
            };
            if flags & descriptor::INDIRECT != 0 {
                return Err(Broken("a table names another"));
            }
            self.append(address.get(), length.get(), flags)?;
            taken += 1;
            index = match order {
                TableOrder::Linked if flags & descriptor::NEXT == 0 => return Ok(()),
                TableOrder::Linked => next.into(),
                TableOrder::InRow => index + 1,
            };
            match order {
                TableOrder::InRow if index == count => return Ok(()),
                TableOrder::Linked if index >= count => {
                    return Err(Broken("a chain leaves its table"));
                }
                TableOrder::Linked if taken == count => return Err(Broken("a chain has a loop")),
                _ => {}
            }
        }
    }
}

/// How the descriptors of a table follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableOrder {
    /// By their field `next`, in split rings.
    Linked,
    /// One after the other, in packed rings.
    InRow,
}
