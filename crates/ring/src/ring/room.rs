//! The way of a transfer into the ring: its slot, and the entry that stands for it.

use std::hint;

use io_uring::IoUring;
use io_uring::squeue::Entry;

use super::Ring;
use crate::entry::{Direction, TransferEntry, nothing, rare_entry};
use crate::register::FileName;
use crate::slots::Vacant;
use crate::transfer::{Memory, Step, Transfer};

/// Room for one transfer in a ring.
pub struct Room<'r, T: Transfer> {
    pub(super) ring: &'r mut Ring<T>,
    pub(super) slot: Vacant,
}

impl<T: Transfer> Room<'_, T> {
    /// Moves the transfer into its slot and pushes the entry that stands for
    /// it. It reaches the kernel with the next [`Ring::enter`].
    #[inline(always)]
    pub fn push(self, transfer: T) {
        let Ring { transfers, io, queued, files, regions, vectors, counts, .. } = self.ring;
        let file = files.name(transfer.file());
        let (direction, offset, piece) = match transfer.step() {
            Step::Read(offset, Memory::One(piece)) => (Direction::READ, offset, piece),
            Step::Write(offset, Memory::One(piece)) => (Direction::WRITE, offset, piece),
            _ => {
                let (name, transfer) = transfers.fill(self.slot, transfer);
                let step = transfer.step();
                let entry = rare_entry(io, regions, vectors, counts, file, step, name);
                return push_entry(io, queued, entry);
            }
        };
        let (name, _) = transfers.fill(self.slot, transfer);
        if file == FileName::NOTHING {
            return push_entry(io, queued, nothing(name));
        }
        // Each is pushed where it is made: joined, they would be copied.
        match regions.index_of(io, &piece) {
            Some(index) => {
                counts.count(file, true);
                let entry = TransferEntry::fixed(direction, file, offset, &piece, index);
                push_entry(io, queued, entry.named(name));
            }
            None => {
                counts.count(file, false);
                let entry = TransferEntry::plain(direction, file, offset, &piece);
                push_entry(io, queued, entry.named(name));
            }
        }
    }
}

/// Puts an entry into the submission queue, which the caller has seen to have room.
#[inline(always)]
pub(super) fn push_entry(io: &mut IoUring, queued: &mut u32, entry: Entry) {
    let mut queue = io.submission();
    // SAFETY: `queued` entries are in it, and every caller has compared that
    // with its length.
    unsafe { hint::assert_unchecked(!queue.is_full()) };
    // SAFETY: what the entry names is owned by the ring's tables until the
    // kernel has answered for it, or until it has read it (`vectors`).
    let pushed = unsafe { queue.push(&entry) };
    debug_assert!(pushed.is_ok());
    *queued += 1;
}
