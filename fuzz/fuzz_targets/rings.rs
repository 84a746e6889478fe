//! A guest whose ring, tables and requests are the input.

use std::path::Path;

use crate::front_end::{Driver, GUEST, Queue, READ, feature};

/// Places that the input writes to: descriptors, the areas of both sides, a table, and requests.
const PLACES: [u64; 5] = [0, 0x2000, 0x4000, 0x18_0000, 0x10_0000];
/// Addresses in an input are relative to these.
const BASES: [u64; 4] = [GUEST, GUEST + 0x18_0000, GUEST + 0x10_0000, 0];

/// Input: features of the ring, then edits of its memory: a place, an offset, whether the device is notified, then 16 bytes,
/// of which the first 8 may be an address.
pub fn run(socket: &Path, queue: Queue, bytes: &[u8]) {
    let Some((features, mut rest)) = bytes.split_first() else { return };
    let packed = queue.first_base() != 0;
    let features = if packed { feature::PACKED } else { 0 }
        | if features & 1 == 1 { feature::INDIRECT } else { 0 }
        | if features & 2 == 2 { feature::EVENT_INDEX } else { 0 };
    let driver = Driver::new(socket, features, queue);
    while let Some((edit, after)) = rest.split_first_chunk::<20>() {
        rest = after;
        let place = PLACES[usize::from(edit[0]) % PLACES.len()];
        let mut entry: [u8; 16] = edit[4..].try_into().unwrap();
        if edit[2] & 1 == 1 {
            let base = BASES[usize::from(edit[3]) % BASES.len()];
            let offset = u32::from_le_bytes(entry[..4].try_into().unwrap());
            entry[..8].copy_from_slice(&base.wrapping_add(offset.into()).to_le_bytes());
        }
        // Entries, and the numbers before those of the available ring.
        let at = match edit[2] & 2 {
            0 => place + 16 * u64::from(edit[1] % 64),
            _ => place + 2 * u64::from(edit[1] % 64),
        };
        let length = if edit[2] & 4 == 4 { 2 } else { 16 };
        driver.memory.write(at, &entry[..length]);
        if edit[2] & 8 == 8 {
            driver.queue.notify();
        }
    }
    driver.queue.notify();
    // All that was taken comes back before the queue stops.
    driver.front_end.stop(0);
    drop(driver);
    let next = if packed { Queue::packed(0, 16) } else { Queue::split(0, 16) };
    let features = if packed { feature::PACKED } else { 0 };
    let mut driver = Driver::new(socket, features, next);
    assert_eq!(driver.run(READ, 0, 512), (0, 513));
}
