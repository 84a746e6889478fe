//! One request without a task: the transfer that needs nothing but its address.

use std::mem::ManuallyDrop;

use uringfs_buffer::Buffer;
use uringfs_device::{DeviceIndex, Op, Payload, Request, Tag};
use uringfs_ring::Ring;

use crate::event_loop::core::Inner;
use crate::io::dispatch::Io;
use crate::tasks::completion::{Completed, Token};
use crate::tasks::outcome::OutcomeSender;
use crate::tasks::waiters::tag_of_cell;

/// Why [`Inner::push_simple`] has not pushed, with the memory.
#[derive(Debug)]
pub enum Unpushed<R> {
    /// It has no one place on the device, for this reason.
    NoPlace(Buffer, R),
    /// The queue is full, or the device is not attached here.
    NoRoom(Buffer),
}

impl Inner {
    /// Issues a token operation that is one request, without a task: counts it
    /// in, asks `place` for its address on the device, which reads the map, and
    /// pushes it.
    ///
    /// # Errors
    /// Why it was not pushed, with the buffer; where `place` refused, its reason.
    #[inline(always)]
    pub fn push_simple<R>(
        &self,
        device: DeviceIndex,
        op: Op,
        buffer: Buffer,
        tag: Tag,
        place: impl FnOnce(&Buffer) -> Result<u64, R>,
    ) -> Result<(), Unpushed<R>> {
        // Not dropped by a panic on the way, and so kept in registers.
        let buffer = ManuallyDrop::new(buffer);
        let owned = |buffer| ManuallyDrop::into_inner(buffer);
        let io = &mut *self.io.borrow_mut();
        let Some(lane) = io.state.lanes.get_mut(device.get()) else {
            return Err(Unpushed::NoRoom(owned(buffer)));
        };
        let mark = lane.tracker.begin();
        let address = match place(&buffer) {
            Ok(address) => address,
            Err(reason) => {
                io.state.end(device, mark);
                io.state.settle();
                return Err(Unpushed::NoPlace(owned(buffer), reason));
            }
        };
        // Made where it goes, and nowhere else.
        let simple = || Simple { device, op, address, tag, mark };
        let ring = lane.way.ring(&mut io.ring, &mut io.polled);
        if let Some(room) = ring.and_then(Ring::room) {
            room.push(simple().request(Payload::Buffer(owned(buffer))));
            return Ok(());
        }
        // What is answered in memory is looked at here, not joined with what is not.
        match push_elsewhere(io, simple(), Payload::Buffer(owned(buffer))) {
            Ok(()) => Ok(()),
            Err(buffer) => Err(Unpushed::NoRoom(buffer)),
        }
    }

    /// The same for a read that somebody awaits.
    ///
    /// # Errors
    /// As [`Self::push_simple`], with what was to answer.
    pub fn push_awaited<R>(
        &self,
        device: DeviceIndex,
        op: Op,
        buffer: Buffer,
        sender: OutcomeSender,
        place: impl FnOnce(&Buffer) -> Result<u64, R>,
    ) -> Result<(), (Unpushed<R>, OutcomeSender)> {
        let index = self.io.borrow_mut().state.cells.open_awaited(sender);
        let pushed = self.push_simple(device, op, buffer, tag_of_cell(index), place);
        pushed.map_err(|unpushed| (unpushed, self.io.borrow_mut().state.cells.close_awaited(index)))
    }

    /// Answers a token at once: what was asked for was there.
    pub fn answer(&self, device: DeviceIndex, token: Token, buffer: Buffer, bytes: u64) {
        let mut request =
            Request::new(device, Op::Read, 0, Payload::Buffer(buffer), Tag(token.get()));
        request.end(Ok(bytes));
        let state = &mut self.io.borrow_mut().state;
        state.completed_inline += 1;
        state.completed.push(Completed::of(request));
    }
}

/// A simple transfer but for its memory.
struct Simple {
    device: DeviceIndex,
    op: Op,
    address: u64,
    tag: Tag,
    mark: u8,
}

impl Simple {
    #[inline(always)]
    fn request(self, payload: Payload) -> Request {
        let Simple { device, op, address, tag, mark } = self;
        let mut request = Request::new(device, op, address, payload, tag);
        request.mark = mark;
        request.set_issued(true);
        request
    }
}

/// Pushes what [`Inner::push_simple`] could not push into the ring at once; gives the buffer back where
/// there is no room.
#[inline(never)]
fn push_elsewhere(io: &mut Io, simple: Simple, payload: Payload) -> Result<(), Buffer> {
    io.push(simple.request(payload)).map_err(|request| {
        io.state.end(request.device, request.mark);
        io.state.settle();
        match request.payload {
            Payload::Buffer(buffer) => buffer,
            Payload::Buffers(_) | Payload::Length(_) => unreachable!("it has one buffer"),
        }
    })
}
