//! Reads and writes by token: each moves its buffer into a request, which comes back with the completion.

use super::super::{Io, IoCompletion, ReapBounds};
use crate::workload::IoOp;
use ::uringfs::device::Payload;
use ::uringfs::{Buffer, BufferPool, Errno, File, Reactor, SubmitError, Token, Tokens};

/// The transfers of a job by token.
pub struct TokenTransfers {
    buffers: SlotBuffers,
    /// Writes are to be durable when they complete.
    durable: bool,
}

impl TokenTransfers {
    /// Transfers with the buffers of `pool`, of `block` bytes each: one for each slot.
    pub fn new(pool: &BufferPool, block: usize, depth: u32, durable: bool) -> Self {
        let slots = (0..depth).map(|_| Slot { idle: pool.get(), tail: None }).collect();
        Self { buffers: SlotBuffers { block, slots }, durable }
    }

    /// The buffer of a slot that is not in flight.
    pub fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.buffers.slots[slot as usize].idle.as_mut().expect("the slot is not in flight")
    }

    /// Begins an I/O.
    #[inline(always)]
    pub fn push(&mut self, reactor: &Reactor, files: &[File], io: Io) -> Result<(), Errno> {
        if io.op != IoOp::Read && (self.durable || io.op == IoOp::Trim) {
            return self.push_slow(reactor, files, io);
        }
        let (file, token) = (&files[io.file as usize], Token::new(io.slot.into()));
        let buffer = self.buffers.take(io.slot, io.length);
        // A return in each arm: if they were joined, the result would go through memory.
        match io.op {
            IoOp::Read => match reactor.read_at(file, buffer, io.offset, token) {
                Ok(()) => Ok(()),
                Err(refused) => Err(self.buffers.restore(io.slot, refused)),
            },
            IoOp::Write => match reactor.write_at(file, buffer, io.offset, token) {
                Ok(()) => Ok(()),
                Err(refused) => Err(self.buffers.restore(io.slot, refused)),
            },
            IoOp::Trim => unreachable!("a trim is pushed above"),
        }
    }

    /// A trim, or a durable write.
    #[inline(never)]
    fn push_slow(&mut self, reactor: &Reactor, files: &[File], io: Io) -> Result<(), Errno> {
        let (file, token) = (&files[io.file as usize], Token::new(io.slot.into()));
        if io.op == IoOp::Trim {
            self.buffers.put_aside(io.slot);
            let started = reactor.start(file.discard(io.offset, io.length.into()), token);
            return started.map_err(|refused| {
                self.buffers.bring_back(io.slot);
                refused.error
            });
        }
        let buffer = self.buffers.take(io.slot, io.length);
        let started = reactor.start(file.write_durably(buffer, io.offset), token);
        started.map_err(|refused| self.buffers.restore(io.slot, refused))
    }

    /// Waits, and adds completions to `done`.
    #[inline(always)]
    pub fn reap(
        &mut self,
        reactor: &Reactor,
        bounds: ReapBounds,
        done: &mut Vec<IoCompletion>,
    ) -> Result<(), Errno> {
        let completions = reactor.completions(bounds.min, None)?;
        for completion in completions.take(bounds.max) {
            let slot = completion.token().get() as u32;
            let result = completion.result().map(|bytes| bytes as u32);
            // Before all that may panic, so that the completion is never copied to be dropped.
            match completion.into_payload() {
                Payload::Buffer(buffer) => {
                    if self.buffers.give_back(slot, buffer) != self.buffers.block {
                        self.buffers.rejoin(slot);
                    }
                }
                // A trim has no memory.
                _ => self.buffers.bring_back(slot),
            }
            done.push(IoCompletion { slot, result });
        }
        Ok(())
    }
}

/// The buffers of all slots.
struct SlotBuffers {
    /// Size of each in bytes.
    block: usize,
    slots: Box<[Slot]>,
}

/// The buffer of one slot.
struct Slot {
    /// `None` while the slot is in flight.
    idle: Option<Buffer>,
    /// The part that a shorter I/O does not use; all of it during a trim.
    tail: Option<Buffer>,
}

impl SlotBuffers {
    /// Takes the first `length` bytes of a slot's buffer, until the I/O completes.
    #[inline(always)]
    fn take(&mut self, slot: u32, length: u32) -> Buffer {
        let slot = &mut self.slots[slot as usize];
        if slot.idle.as_ref().is_some_and(|buffer| buffer.len() != length as usize) {
            slot.split_tail(length);
        }
        slot.idle.take().expect("the slot is not in flight")
    }

    /// Puts the buffer of a slot in flight back; returns its length.
    #[inline(always)]
    fn give_back(&mut self, slot: u32, buffer: Buffer) -> usize {
        let place = &mut self.slots[slot as usize].idle;
        assert!(place.is_none(), "the slot is in flight");
        place.insert(buffer).len()
    }

    /// Takes a slot's buffer out of use, until its trim completes.
    #[cold]
    fn put_aside(&mut self, slot: u32) {
        let Slot { idle, tail } = &mut self.slots[slot as usize];
        *tail = Some(idle.take().expect("the slot is not in flight"));
    }

    /// The trim of a slot has ended.
    #[cold]
    #[inline(never)]
    fn bring_back(&mut self, slot: u32) {
        let Slot { idle, tail } = &mut self.slots[slot as usize];
        *idle = tail.take();
    }

    /// Puts the buffer of a refused request back; returns the error.
    #[cold]
    #[inline(never)]
    fn restore(&mut self, slot: u32, refused: SubmitError) -> Errno {
        if let Payload::Buffer(buffer) = refused.payload {
            self.give_back(slot, buffer);
            self.rejoin(slot);
        }
        refused.error
    }

    /// Joins a slot's buffer with its unused part.
    #[cold]
    #[inline(never)]
    fn rejoin(&mut self, slot: u32) {
        let Slot { idle, tail } = &mut self.slots[slot as usize];
        if let (Some(buffer), Some(tail)) = (idle, tail.take()) {
            let joined = buffer.join(tail);
            assert!(joined.is_ok(), "they were one buffer");
        }
    }
}

impl Slot {
    #[cold]
    #[inline(never)]
    fn split_tail(&mut self, length: u32) {
        self.tail = self.idle.as_mut().map(|buffer| buffer.split_off(length as usize));
    }
}
