//! A transfer without a submission entry, since its owner may execute it by a call: on a device that completes within
//! the call, a single transfer costs less that way. At most one. Entering the ring pushes its entry.

use std::mem::{self, MaybeUninit};
use std::os::fd::BorrowedFd;
use std::slice;

use rustix::io::{pread, pwrite};
use uringfs_buffer::RegionId;

use super::{Ring, push_sqe};
use crate::in_flight::{CompletedTransfer, RequestId};
use crate::registered::FileSlot;
use crate::sqe::slow_sqe;
use crate::transfer::{NextOp, StepResult, Transfer, TransferMemory};

impl<T: Transfer> Ring<T> {
    /// Takes a transfer, as [`Self::push`] does, and until the next [`Self::enter`] the caller may execute it by
    /// [`Self::call_held`] instead.
    ///
    /// # Errors
    /// The transfer, unless it is a read or a write of one segment, of a file with a descriptor, and nothing is held.
    /// Also if the segment is read-only or shared, without a free slot or entry, and in the child of a fork.
    #[inline]
    pub fn hold(&mut self, transfer: T) -> Result<(), T> {
        let (NextOp::Read(_, memory) | NextOp::Write(_, memory)) = transfer.step() else {
            return Err(transfer);
        };
        let is_writable = matches!(
            memory,
            TransferMemory::Single(segment)
                if segment.region_id != RegionId::READ_ONLY && !segment.region_id.is_shared()
        );
        let file = self.files.slot(transfer.file());
        let has_room = self.held == RequestId::NONE && self.queued < self.transfer_limit;
        match self.transfers.free_slot() {
            Some(slot)
                if is_writable
                    && has_room
                    && !matches!(file, FileSlot::ABSENT | FileSlot::NOP)
                    && !self.is_forked() =>
            {
                (self.held, _) = self.transfers.fill(slot, transfer);
                Ok(())
            }
            _ => Err(transfer),
        }
    }

    /// The held transfer, if nothing else is in flight but `idle_waits` waits, and nothing else is to be submitted.
    #[inline(always)]
    pub fn held_alone(&mut self, idle_waits: usize) -> Option<&T> {
        let is_alone = self.queued() == 1 && self.in_flight() == 1 + idle_waits;
        if self.held == RequestId::NONE || !is_alone || self.is_forked() {
            return None;
        }
        self.transfers.get_mut(self.held).map(|transfer| &*transfer)
    }

    /// Executes the held transfer by one system call of this thread. `file` is the descriptor of its file. `None` if
    /// nothing is held.
    ///
    /// Inlined down to the system call, for the reason that [`Self::enter`] has.
    #[inline(always)]
    pub fn call_held(
        &mut self,
        file: BorrowedFd<'_>,
    ) -> Option<(CompletedTransfer<'_, T>, StepResult)> {
        // As before a wait: the thread may make calls for a long time, and dropped regions would stay pinned meanwhile.
        self.regions.unregister_dropped(&self.io);
        let moved = match self.transfers.get_mut(self.held)?.step() {
            NextOp::Read(offset, TransferMemory::Single(memory)) => {
                let (pointer, length) = (memory.pointer.as_ptr(), memory.length as usize);
                // SAFETY: the transfer owns these bytes, and it is in the table, which is borrowed. They are neither
                // read-only nor shared: `hold` has checked it.
                let bytes =
                    unsafe { slice::from_raw_parts_mut::<MaybeUninit<u8>>(pointer.cast(), length) };
                pread(file, bytes, offset).map(|(read, _)| read.len())
            }
            NextOp::Write(offset, TransferMemory::Single(memory)) => {
                let (pointer, length) = (memory.pointer.as_ptr(), memory.length as usize);
                // SAFETY: the same, and a write has initialized bytes.
                let bytes = unsafe { slice::from_raw_parts(pointer, length) };
                pwrite(file, bytes, offset)
            }
            _ => unreachable!("`hold` takes only reads and writes of one segment"),
        };
        // A call moves less than 2^31 bytes.
        let result = moved.map_or_else(|error| -error.raw_os_error(), |bytes| bytes as i32);
        let held = mem::replace(&mut self.held, RequestId::NONE);
        let ended = self.transfers.end(held).expect("a held transfer is in flight");
        Some((ended, StepResult(result)))
    }

    /// Pushes the entry of the held transfer. [`Self::hold`] and [`Self::has_free_entry`] have left one for it.
    #[cold]
    #[inline(never)]
    pub(super) fn push_held(&mut self) {
        let Ring { transfers, io, queued, files, regions, iovec_lists, counters, held, .. } = self;
        let id = mem::replace(held, RequestId::NONE);
        let transfer = &*transfers.get_mut(id).expect("a held transfer is in flight");
        let file = files.slot(transfer.file());
        let entry = slow_sqe(io, regions, iovec_lists, counters, file, transfer.step(), id);
        push_sqe(io, queued, entry);
    }
}
