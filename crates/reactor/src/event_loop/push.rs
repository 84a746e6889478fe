//! One request without a task: the transfer that needs nothing but its address.

use std::mem::ManuallyDrop;

use uringfs_buffer::Buffer;
use uringfs_device::{DeviceIndex, Op, Payload, Request, Tag};
use uringfs_ring::Ring;

use crate::event_loop::core::Inner;
use crate::io::dispatch::IoDispatch;
use crate::tasks::completion::{Completed, Token};
use crate::tasks::op_result::OutcomeSender;
use crate::tasks::waiters::cell_tag;

/// Why [`Inner::push_simple`] has not pushed, with the memory.
#[derive(Debug)]
pub enum Unpushed {
    /// It has no one place on the device.
    NoPlace(Buffer),
    /// The queue is full, or the device is not attached here.
    NoRoom(Buffer),
}

impl Inner {
    /// Issues a token operation that is one request, without a task: counts it
    /// in, asks `place` for its address on the device, which reads the map, and
    /// pushes it.
    ///
    /// # Errors
    /// Why it was not pushed, with the buffer.
    #[inline(always)]
    pub fn push_simple(
        &self,
        device: DeviceIndex,
        op: Op,
        buffer: Buffer,
        tag: Tag,
        place: impl FnOnce(&Buffer) -> Option<u64>,
    ) -> Result<(), Unpushed> {
        // Not dropped by a panic on the way, and so kept in registers.
        let buffer = ManuallyDrop::new(buffer);
        let owned = |buffer| ManuallyDrop::into_inner(buffer);
        let io = &mut *self.io.borrow_mut();
        let Some(slot) = io.in_flight.devices.get_mut(device.get()) else {
            return Err(Unpushed::NoRoom(owned(buffer)));
        };
        let epoch_slot = slot.tracker.enter();
        let Some(address) = place(&buffer) else {
            io.in_flight.leave_epoch(device, epoch_slot);
            io.in_flight.publish_epochs();
            return Err(Unpushed::NoPlace(owned(buffer)));
        };
        // Made where it goes, and nowhere else.
        let fast = || FastRequest { device, op, address, tag, epoch_slot };
        let ring = slot.fast_route.ring(&mut io.ring, &mut io.polled);
        if let Some(room) = ring.and_then(Ring::room) {
            room.push(fast().request(Payload::Buffer(owned(buffer))));
            return Ok(());
        }
        // What is answered in memory is looked at here, not joined with what is not.
        match push_slow(io, fast(), Payload::Buffer(owned(buffer))) {
            Ok(()) => Ok(()),
            Err(unpushed) => Err(unpushed),
        }
    }

    /// The same for a read that somebody awaits.
    ///
    /// # Errors
    /// As [`Self::push_simple`], with what was to answer.
    pub fn push_awaited(
        &self,
        device: DeviceIndex,
        op: Op,
        buffer: Buffer,
        sender: OutcomeSender,
        place: impl FnOnce(&Buffer) -> Option<u64>,
    ) -> Result<(), (Unpushed, OutcomeSender)> {
        let index = self.io.borrow_mut().in_flight.cells.open_transfer(sender);
        let pushed = self.push_simple(device, op, buffer, cell_tag(index), place);
        pushed.map_err(|unpushed| {
            (unpushed, self.io.borrow_mut().in_flight.cells.close_transfer(index))
        })
    }

    /// Answers a token at once: what was asked for was there.
    pub fn answer(&self, device: DeviceIndex, token: Token, buffer: Buffer, bytes: u64) {
        let mut request =
            Request::new(device, Op::Read, 0, Payload::Buffer(buffer), Tag(token.get()));
        request.end(Ok(bytes));
        let in_flight = &mut self.io.borrow_mut().in_flight;
        in_flight.completed_inline += 1;
        in_flight.completed.push(Completed::of(request));
    }
}

/// A simple transfer but for its memory.
struct FastRequest {
    device: DeviceIndex,
    op: Op,
    address: u64,
    tag: Tag,
    epoch_slot: u8,
}

impl FastRequest {
    #[inline(always)]
    fn request(self, payload: Payload) -> Request {
        let FastRequest { device, op, address, tag, epoch_slot } = self;
        let mut request = Request::new(device, op, address, payload, tag);
        request.mark = epoch_slot;
        request.set_issued(true);
        request
    }
}

/// Pushes what [`Inner::push_simple`] could not push into the ring at once.
#[inline(never)]
fn push_slow(io: &mut IoDispatch, fast: FastRequest, payload: Payload) -> Result<(), Unpushed> {
    io.push(fast.request(payload)).map_err(|request| {
        io.in_flight.leave_epoch(request.device, request.mark);
        io.in_flight.publish_epochs();
        match request.payload {
            Payload::Buffer(buffer) => Unpushed::NoRoom(buffer),
            Payload::Buffers(_) | Payload::Length(_) => unreachable!("it has one buffer"),
        }
    })
}
