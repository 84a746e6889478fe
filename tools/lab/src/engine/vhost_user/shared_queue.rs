//! The queue of a disk, and the memory that it shares with the server: a block for each slot.
#![allow(unsafe_code)] // Slices of shared memory, and the array that blkio fills with completions.

use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use uringfs::Errno;

use super::super::{Io, IoCompletion, ReapBounds, Setup};
use super::connection::{connect, no_disk};
use crate::Error;
use crate::job::SyncWrites;
use crate::workload::IoOp;

/// The most entries of a ring that QEMU's servers and ours take. Requests beyond wait in blkio.
const MAX_RING_ENTRIES: u32 = 1024;
/// A request has a header, data and a status.
const ENTRIES_PER_REQUEST: u32 = 3;
/// A server that has ended leaves its requests without a completion.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(30);

/// A queue with its memory.
pub struct SharedQueue {
    ring: Ring,
    /// The connection, which has to stay.
    _disk: Blkio,
    memory: MemoryRegion,
    /// Bytes of a slot.
    block: usize,
    /// The lengths of I/Os in flight, by slot.
    in_flight: Vec<Option<u32>>,
    write_flags: ReqFlags,
}

/// The queue, with room for completions.
struct Ring {
    queue: Blkioq,
    completions: Vec<MaybeUninit<Completion>>,
    /// The server did not answer in time, and is not waited for again.
    is_lost: bool,
}

impl SharedQueue {
    /// Connects to the server at `socket`, and starts a queue.
    ///
    /// # Errors
    /// Those of [`connect`]; the server refuses the queue or the memory, or there is none.
    pub fn start(socket: &Path, setup: &Setup<'_>) -> Result<Self, Error> {
        let mut disk = connect(socket, setup.access.writes)?;
        let depth = setup.depth as usize;
        let entries = setup.depth.saturating_mul(ENTRIES_PER_REQUEST).max(1);
        let entries = entries
            .checked_next_power_of_two()
            .map_or(MAX_RING_ENTRIES, |entries| entries.min(MAX_RING_ENTRIES));
        let polled = i32::from(setup.options.polled);
        let mut start = || -> blkio::Result<_> {
            disk.set_i32("num-queues", 1 - polled)?;
            disk.set_i32("num-poll-queues", polled)?;
            disk.set_i32("queue-size", entries as i32)?;
            let started = disk.start()?;
            let memory = disk.alloc_mem_region((depth * setup.block).next_multiple_of(4096))?;
            disk.map_mem_region(&memory)?;
            Ok((started.queues.into_iter().chain(started.poll_queues).next(), memory))
        };
        let (queue, memory) = start().map_err(|error| no_disk(socket, &error))?;
        let queue = queue.ok_or_else(|| Error::run("blkio started no queue"))?;
        let is_durable = setup.options.sync != SyncWrites::No;
        Ok(Self {
            ring: Ring {
                queue,
                completions: (0..depth.max(1)).map(|_| MaybeUninit::uninit()).collect(),
                is_lost: false,
            },
            _disk: disk,
            memory,
            block: setup.block,
            in_flight: vec![None; depth],
            write_flags: if is_durable { ReqFlags::FUA } else { ReqFlags::empty() },
        })
    }

    /// The memory of a slot.
    fn address(&self, slot: u32) -> *mut u8 {
        assert!((slot as usize) < self.in_flight.len(), "there is no such slot");
        std::ptr::with_exposed_provenance_mut(self.memory.addr + slot as usize * self.block)
    }

    /// The buffer of a slot.
    ///
    /// # Panics
    /// When the slot is in flight.
    pub fn buffer(&mut self, slot: u32) -> &mut [u8] {
        assert!(self.in_flight[slot as usize].is_none(), "the slot is in flight");
        // SAFETY: the region has a block for each slot, is mapped as long as the queue lives, and began as zeros. The borrow of
        // the queue keeps the slot out of flight, and a server writes only to what is in flight.
        unsafe { std::slice::from_raw_parts_mut(self.address(slot), self.block) }
    }

    /// Queues an I/O.
    #[inline]
    pub fn push(&mut self, io: Io) {
        let fits = io.op == IoOp::Trim || io.length as usize <= self.block;
        assert!(fits, "the I/O is longer than its slot");
        let before = self.in_flight[io.slot as usize].replace(io.length);
        assert!(before.is_none(), "the slot is in flight");
        let (address, length, slot) = (self.address(io.slot), io.length as usize, io.slot as usize);
        let queue = &mut self.ring.queue;
        match io.op {
            IoOp::Read => queue.read(io.offset, address, length, slot, ReqFlags::empty()),
            IoOp::Write => queue.write(io.offset, address, length, slot, self.write_flags),
            IoOp::Trim => queue.discard(io.offset, io.length.into(), slot, ReqFlags::empty()),
        }
    }

    /// Submits what is queued.
    ///
    /// # Errors
    /// The server cannot be notified.
    pub fn submit(&mut self) -> Result<(), Errno> {
        self.ring.queue.do_io(&mut [], 0, None, None).map(drop).map_err(|error| errno_of(&error))
    }

    /// Submits what is queued, waits, and adds completions to `done`.
    ///
    /// # Errors
    /// TIMEDOUT when the server does not answer.
    pub fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        let in_flight = &mut self.in_flight;
        self.ring.wait(bounds, |slot, result| {
            let length = in_flight[slot].take().expect("only what is in flight completes");
            done.push(IoCompletion { slot: slot as u32, result: result.map(|()| length) });
        })
    }

    /// Makes all writes durable. Nothing may be in flight.
    ///
    /// # Errors
    /// That of the server; TIMEDOUT when it does not answer.
    pub fn flush(&mut self) -> Result<(), Errno> {
        self.ring.queue.flush(usize::MAX, ReqFlags::empty());
        let mut flushed = None;
        // A signal may end a wait.
        while flushed.is_none() {
            self.ring.wait(ReapBounds { min: 1, max: 1 }, |_, result| flushed = Some(result))?;
        }
        flushed.unwrap_or(Ok(()))
    }
}

impl Ring {
    /// Submits, waits, and calls `completed` with the number of each request that has ended, and its result.
    fn wait(
        &mut self,
        bounds: ReapBounds,
        mut completed: impl FnMut(usize, Result<(), Errno>),
    ) -> Result<(), Errno> {
        if self.is_lost {
            return Err(Errno::TIMEDOUT);
        }
        let max = bounds.max.min(self.completions.len());
        let (room, mut left) = (&mut self.completions[..max], COMPLETION_TIMEOUT);
        let count = match self.queue.do_io(room, bounds.min.min(max), Some(&mut left), None) {
            Ok(count) => count,
            Err(error) => match errno_of(&error) {
                Errno::INTR => return Ok(()),
                errno => {
                    self.is_lost = errno == Errno::TIMEDOUT;
                    return Err(errno);
                }
            },
        };
        for completion in &self.completions[..count] {
            // SAFETY: blkio has filled as many as it has returned.
            let completion = unsafe { completion.assume_init_ref() };
            completed(
                completion.user_data,
                match completion.ret {
                    0.. => Ok(()),
                    errno => Err(Errno::from_raw_os_error(-errno)),
                },
            );
        }
        Ok(())
    }
}

fn errno_of(error: &blkio::Error) -> Errno {
    match error.errno() {
        blkio::Errno::TIME => Errno::TIMEDOUT,
        errno => Errno::from_raw_os_error(errno.raw_os_error()),
    }
}
