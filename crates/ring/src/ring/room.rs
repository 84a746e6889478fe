//! The way of a transfer into the ring: its slot, and the entry that stands for it.

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode};

use super::Ring;
use crate::entry::rare_entry;
use crate::register::FileName;
use crate::slots::{Name, Vacant};
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
        let Ring { transfers, io, queued, files, regions, vectors, counters, .. } = self.ring;
        let file = files.name(transfer.file());
        // Each entry is pushed where it is built: joined, they would be copied.
        let mut push = |io: &mut IoUring, name: Name, entry: Entry| {
            push_entry(io, queued, entry.user_data(name.0));
        };
        match transfer.step() {
            _ if file == FileName::Nothing => {
                let (name, _) = transfers.fill(self.slot, transfer);
                push(io, name, opcode::Nop::new().build());
            }
            Step::Read(offset, Memory::One(piece)) => {
                let (name, _) = transfers.fill(self.slot, transfer);
                let index = regions.index_of(io, piece);
                counters.count(file, index.is_some());
                match index {
                    Some(index) => push(io, name, piece.read_fixed(file, offset, index)),
                    None => push(io, name, piece.read(file, offset)),
                }
            }
            Step::Write(offset, Memory::One(piece)) => {
                let (name, _) = transfers.fill(self.slot, transfer);
                let index = regions.index_of(io, piece);
                counters.count(file, index.is_some());
                match index {
                    Some(index) => push(io, name, piece.write_fixed(file, offset, index, 0)),
                    None => push(io, name, piece.write(file, offset, 0)),
                }
            }
            _ => {
                let (name, transfer) = transfers.fill(self.slot, transfer);
                let step = transfer.step();
                let entry = rare_entry(io, regions, vectors, counters, file, step);
                push(io, name, entry);
            }
        }
    }
}

/// Puts an entry into the submission queue.
///
/// # Panics
/// When the caller has not left room.
#[inline(always)]
pub(super) fn push_entry(io: &mut IoUring, queued: &mut u32, entry: Entry) {
    // SAFETY: what the entry names is owned by the ring's tables until the
    // kernel has answered for it, or until it has read it (`vectors`).
    let pushed = unsafe { io.submission().push(&entry) };
    assert!(pushed.is_ok(), "the caller left room");
    *queued += 1;
}
