//! Reads and writes by batch: the I/Os of one submission begin together, in a call for the reads and one for the
//! writes of a file. Each slot of the loop is a slot of the [`Batch`], whose buffer stays in place.
//!
//! The jobs are those with blocks of one size, of reads and writes that need not be durable: `Options::normalize`
//! refuses others.

use super::super::{Io, IoCompletion, ReapBounds};
use crate::workload::IoOp;
use ::uringfs::{Batch, BatchTransfer, Buffer, BufferPool, Errno, File, Reactor};
use std::io;

/// The transfers of a job by batch.
pub struct BatchTransfers {
    batch: Batch,
    /// Bytes of each transfer.
    block: u32,
    /// The reads, and the writes, that have not begun.
    pending: [Pending; 2],
    /// I/Os that have ended and are not reaped: those for which a reap had no room, those that the batch refused, and
    /// the rests of short ones.
    ended: Vec<IoCompletion>,
    /// Transfers that have begun, and the calls that began them.
    begun: u64,
    calls: u64,
}

/// Transfers of one file that have not begun.
struct Pending {
    file: u32,
    transfers: Vec<BatchTransfer>,
}

impl BatchTransfers {
    /// Transfers with a slot for each buffer of `pool`.
    pub fn new(reactor: &Reactor, pool: &BufferPool) -> io::Result<Self> {
        let batch = Batch::new(reactor, std::iter::from_fn(|| pool.get()))?;
        let block = batch.buffer(0).map_or(0, <[u8]>::len) as u32;
        let pending = || Pending { file: 0, transfers: Vec::with_capacity(batch.slots()) };
        Ok(Self {
            block,
            pending: [pending(), pending()],
            batch,
            ended: Vec::new(),
            begun: 0,
            calls: 0,
        })
    }

    /// The buffer of a slot that is not in flight.
    pub fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.batch.buffer_mut(slot).expect("the slot is not in flight")
    }

    /// Queues an I/O. It begins with the others of its submission.
    #[inline(always)]
    pub fn push(&mut self, reactor: &Reactor, files: &[File], io: Io) -> Result<(), Errno> {
        let pending = &mut self.pending[io.op as usize];
        if io.length != self.block || io.file != pending.file {
            self.push_slow(reactor, files, io);
            return Ok(());
        }
        pending.transfers.push(BatchTransfer { slot: io.slot, offset: io.offset });
        Ok(())
    }

    /// The rest of a short I/O, or the first one of another file.
    #[cold]
    #[inline(never)]
    fn push_slow(&mut self, reactor: &Reactor, files: &[File], io: Io) {
        if io.length != self.block {
            let result = self.do_rest(reactor, &files[io.file as usize], io);
            return self.ended.push(IoCompletion { slot: io.slot, result });
        }
        self.begin_pending(files, io.op);
        let pending = &mut self.pending[io.op as usize];
        pending.file = io.file;
        pending.transfers.push(BatchTransfer { slot: io.slot, offset: io.offset });
    }

    /// Does the rest of a short I/O, which a batch cannot do: it moves whole buffers.
    fn do_rest(&mut self, reactor: &Reactor, file: &File, io: Io) -> Result<u32, Errno> {
        let part = &mut self.buffer(io.slot)[..io.length as usize];
        let mut buffer = Buffer::zeroed(part.len());
        let moved = match io.op {
            IoOp::Read => {
                let (moved, buffer) = reactor.block_on(file.read_at(buffer, io.offset));
                part.copy_from_slice(&buffer);
                moved
            }
            IoOp::Write | IoOp::Trim => {
                buffer.copy_from_slice(part);
                reactor.block_on(file.write_at(buffer, io.offset)).0
            }
        };
        moved.map(|bytes| bytes as u32)
    }

    /// Begins what is pending. It reaches the device with the reactor's next submission.
    #[inline]
    pub fn begin(&mut self, files: &[File]) {
        for op in [IoOp::Read, IoOp::Write] {
            if !self.pending[op as usize].transfers.is_empty() {
                self.begin_pending(files, op);
            }
        }
    }

    /// Begins the pending reads or writes. The loop knows them as in flight already, so that each one that is refused
    /// completes with the error.
    #[inline(never)]
    fn begin_pending(&mut self, files: &[File], op: IoOp) {
        let Pending { file, transfers } = &mut self.pending[op as usize];
        let (file, mut rest) = (&files[*file as usize], &transfers[..]);
        while let Some(first) = rest.first() {
            let begun = match op {
                IoOp::Read => self.batch.read(file, rest),
                IoOp::Write | IoOp::Trim => self.batch.write(file, rest),
            };
            self.calls += 1;
            let taken = match begun {
                Ok(begun) => {
                    self.begun += begun as u64;
                    begun
                }
                Err(errno) => {
                    self.ended.push(IoCompletion { slot: first.slot, result: Err(errno) });
                    1
                }
            };
            rest = &rest[taken..];
        }
        transfers.clear();
    }

    /// Begins what is pending, submits, waits, and adds completions to `done`.
    #[inline(always)]
    pub fn reap(
        &mut self,
        files: &[File],
        bounds: ReapBounds,
        done: &mut Vec<IoCompletion>,
    ) -> Result<(), Errno> {
        self.begin(files);
        let room_ends = done.len() + bounds.max;
        let ended = self.ended.len().min(bounds.max);
        if ended > 0 {
            done.extend(self.ended.drain(..ended));
        }
        // All are taken, also those for which there is no room: as long as some are not, a batch checks each transfer
        // against them.
        for completion in self.batch.completions(bounds.min.saturating_sub(ended), None)? {
            let result = completion.result().map(|bytes| bytes as u32);
            let list = if done.len() < room_ends { &mut *done } else { &mut self.ended };
            list.push(IoCompletion { slot: completion.slot(), result });
        }
        Ok(())
    }

    /// The counters that prove this path: transfers that began through the batch, and the calls that began them.
    pub fn counters(&self) -> [(&'static str, u64); 2] {
        [("batch.transfers", self.begun), ("batch.calls", self.calls)]
    }
}
