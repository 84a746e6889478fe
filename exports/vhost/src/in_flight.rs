//! The table of requests in flight of split rings, in memory that the front end keeps. When the server ends without giving
//! requests back, the next server finds them here and does them again, in their order: the guest notices a pause only.
//!
//! The layout is that of the protocol (`QueueRegionSplit`), so that any server can go on. The numbers have the byte order of
//! the machine.

use std::sync::atomic::{Ordering, fence};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::InFlightArea;
use crate::chain::MAX_RING_SIZE;
use crate::memory::Area;

/// The version of the layout; 0 in a table that was never used.
const VERSION: u16 = 1;
/// The table of each ring begins at a multiple of this.
const ALIGNMENT: usize = 64;

/// The head of a ring's table.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    features: u64,
    version: u16,
    entries: u16,
    /// The chain that was given back last.
    last_used: u16,
    used_index: u16,
}

/// The entry of a chain, by its head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
    in_flight: u8,
    padding: [u8; 5],
    next: u16,
    /// Orders the chains.
    counter: u64,
}

const VERSION_AT: usize = 8;
const LAST_USED_AT: usize = 12;
const USED_INDEX_AT: usize = 14;
const COUNTER_AT: usize = 8;

/// The tables of all rings.
#[derive(Clone, Debug)]
pub(crate) struct InFlightTables {
    area: Area,
    queue_size: u16,
}

/// The table of one ring.
#[derive(Debug)]
pub(crate) struct InFlightTable {
    area: Area,
    counter: u64,
}

fn bytes_of_ring(queue_size: u16) -> usize {
    let bytes = size_of::<Head>() + size_of::<Entry>() * usize::from(queue_size);
    bytes.next_multiple_of(ALIGNMENT)
}

/// The bytes of tables for so many rings, `None` if there are more or longer ones than can be served.
pub(crate) fn bytes_of_tables(area: &InFlightArea, max_queues: usize) -> Option<usize> {
    let is_served = (1..=max_queues).contains(&area.queues.into())
        && (1..=MAX_RING_SIZE).contains(&area.queue_size);
    is_served.then(|| bytes_of_ring(area.queue_size) * usize::from(area.queues))
}

impl InFlightTables {
    /// The tables in an area, which [`bytes_of_tables`] has room for.
    pub(crate) fn new(area: Area, queue_size: u16) -> InFlightTables {
        InFlightTables { area, queue_size }
    }

    /// The table of a ring; none if the front end keeps none for a ring of this size.
    pub(crate) fn of_ring(&self, number: usize, size: u16) -> Option<Area> {
        let bytes = bytes_of_ring(self.queue_size);
        let area = self.area.part(number.checked_mul(bytes)?, bytes)?;
        (size <= self.queue_size).then_some(area)
    }
}

impl InFlightTable {
    /// Opens the table of a ring of `size` entries, whose used index is `used_index`. Returns the chains that are in flight,
    /// oldest first; `None` for a new table.
    pub(crate) fn open(
        area: Area,
        size: u16,
        used_index: u16,
    ) -> (InFlightTable, Option<Vec<u16>>) {
        let head: Head = area.read(0);
        if head.version != VERSION || head.entries != size {
            let head =
                Head { features: 0, version: VERSION, entries: size, last_used: 0, used_index };
            let mut table = InFlightTable { area, counter: 0 };
            (0..size).for_each(|entry| table.set_in_flight(entry, false));
            table.area.write(0, &head);
            return (table, None);
        }
        let mut table = InFlightTable { area, counter: 0 };
        if head.used_index != used_index {
            // The server ended after it gave this chain back.
            if head.last_used < size {
                table.set_in_flight(head.last_used, false);
            }
            table.area.write(USED_INDEX_AT, &used_index);
        }
        let mut in_flight: Vec<(u64, u16)> = (0..size)
            .map(|number| (table.entry(number), number))
            .filter(|(entry, _)| entry.in_flight == 1)
            .map(|(entry, number)| (entry.counter, number))
            .collect();
        in_flight.sort_unstable();
        table.counter = in_flight.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        (table, Some(in_flight.into_iter().map(|(_, number)| number).collect()))
    }

    /// A chain is taken off the ring.
    pub(crate) fn take(&mut self, head: u16) {
        self.area.write(entry_at(head) + COUNTER_AT, &self.counter);
        self.counter = self.counter.wrapping_add(1);
        fence(Ordering::Release);
        self.set_in_flight(head, true);
    }

    /// A chain is given back by `push`, which returns the new used index.
    pub(crate) fn give_back(&mut self, head: u16, push: impl FnOnce() -> u16) {
        self.area.write(LAST_USED_AT, &head);
        fence(Ordering::SeqCst);
        let used_index = push();
        fence(Ordering::SeqCst);
        self.set_in_flight(head, false);
        fence(Ordering::SeqCst);
        self.area.write(USED_INDEX_AT, &used_index);
    }

    fn entry(&self, number: u16) -> Entry {
        self.area.read(entry_at(number))
    }

    fn set_in_flight(&mut self, number: u16, in_flight: bool) {
        self.area.write(entry_at(number), &u8::from(in_flight));
    }
}

fn entry_at(number: u16) -> usize {
    size_of::<Head>() + usize::from(number) * size_of::<Entry>()
}

const _: () = assert!(
    std::mem::offset_of!(Head, version) == VERSION_AT
        && std::mem::offset_of!(Head, last_used) == LAST_USED_AT
        && std::mem::offset_of!(Head, used_index) == USED_INDEX_AT
        && std::mem::offset_of!(Entry, counter) == COUNTER_AT
);

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u16 = 16;

    fn area() -> Area {
        Area::anonymous(bytes_of_ring(SIZE))
    }

    fn open(area: &Area, used_index: u16) -> (InFlightTable, Option<Vec<u16>>) {
        InFlightTable::open(area.clone(), SIZE, used_index)
    }

    #[test]
    fn requests_in_flight_are_found_again_in_their_order() {
        let area = area();
        let (mut table, in_flight) = open(&area, 100);
        assert_eq!(in_flight, None);
        [7, 3, 15, 0].into_iter().for_each(|head| table.take(head));
        table.give_back(3, || 101);
        let (mut table, in_flight) = open(&area, 101);
        assert_eq!(in_flight, Some(vec![7, 15, 0]));
        table.take(3);
        table.give_back(7, || 102);
        assert_eq!(open(&area, 102).1, Some(vec![15, 0, 3]));
    }

    #[test]
    fn a_request_that_was_given_back_before_the_end_is_not_repeated() {
        let area = area();
        let (mut table, _) = open(&area, 5);
        table.take(1);
        table.take(2);
        // The server ends between the two steps.
        table.area.write(LAST_USED_AT, &1_u16);
        assert_eq!(open(&area, 6).1, Some(vec![2]));
        assert_eq!(open(&area, 6).1, Some(vec![2]));
    }

    #[test]
    fn any_content_is_a_table() {
        let area = area();
        for byte in [1_u8, 0x55, 0xff] {
            area.write(0, &[byte; 16 + 16 * SIZE as usize]);
            area.write(VERSION_AT, &[VERSION, SIZE, u16::MAX, 9]);
            let (mut table, in_flight) = open(&area, 10);
            let in_flight = in_flight.unwrap();
            assert!(in_flight.len() <= SIZE.into());
            table.take(0);
            table.give_back(0, || 11);
        }
        area.write(VERSION_AT, &[VERSION, 1024]);
        assert_eq!(open(&area, 0).1, None, "of another ring");
        assert_eq!(open(&area, 0).1, Some(vec![]));
    }

    #[test]
    fn tables_are_as_long_as_their_rings() {
        let bytes = |queues, queue_size| {
            let area = InFlightArea { bytes: 0, offset: 0, queues, queue_size, padding: 0 };
            bytes_of_tables(&area, 4)
        };
        assert_eq!(bytes(2, 128), Some(2 * (2048 + 64)));
        assert_eq!((bytes(0, 128), bytes(5, 128), bytes(1, 0)), (None, None, None));
        assert_eq!((bytes(1, 1025), bytes(4, 1024).is_some()), (None, true));
        let tables = InFlightTables::new(Area::anonymous(bytes(2, 16).unwrap()), 16);
        assert!(tables.of_ring(1, 16).is_some() && tables.of_ring(1, 8).is_some());
        assert!(tables.of_ring(2, 16).is_none() && tables.of_ring(0, 32).is_none());
    }
}
