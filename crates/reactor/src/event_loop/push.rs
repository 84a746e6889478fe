//! The fast path: one request without a task, for a transfer that needs only its address.

use std::mem::{self, ManuallyDrop};

use uringfs_buffer::Buffer;
use uringfs_device::{DeviceIndex, Durability, Op, Payload, Request, Tag};
use uringfs_ring::Ring;
use uringfs_ring::nvme::NvmeRing;

use crate::event_loop::core::ReactorCore;
use crate::io::dispatch::IoDispatch;
use crate::io::route::FastRoute;
use crate::tasks::completion::Token;
use crate::tasks::op_result::ResultSender;
use crate::tasks::waiters::cell_tag;

/// Why [`ReactorCore::push_fast`] pushed nothing. Each variant returns the buffer.
#[derive(Debug)]
pub enum PushError {
    /// `locate` returned no address: the transfer needs an operation.
    NotEligible(Buffer),
    /// The queue is full, or the device is not attached here.
    QueueFull(Buffer),
}

/// Finds the address of a request on the device. Not a closure: the compiler may leave that out of line, which costs two
/// dozen instructions for each request.
pub trait Locate {
    /// The address for this buffer. `None` if the request is not one for the fast path.
    fn locate(self, buffer: &Buffer) -> Option<u64>;
}

impl ReactorCore {
    /// Issues a token operation that is one request, without a task. Puts the request in the epoch, then asks `locate`
    /// for its address on the device, which reads the map, and pushes the request. A durable write is one for devices whose
    /// geometry says `durable_writes`.
    ///
    /// # Errors
    /// [`PushError`], with the buffer.
    #[inline(always)]
    pub fn push_fast(
        &self,
        device: DeviceIndex,
        (op, durability): (Op, Durability),
        buffer: Buffer,
        tag: Tag,
        locate: impl Locate,
    ) -> Result<(), PushError> {
        // A panic does not drop it, so the compiler keeps it in registers.
        let buffer = ManuallyDrop::new(buffer);
        let owned = |buffer| ManuallyDrop::into_inner(buffer);
        let io = &mut *self.io.borrow_mut();
        let Some(device_slot) = io.in_flight.devices.get_mut(device.get()) else {
            return Err(PushError::QueueFull(owned(buffer)));
        };
        let epoch_slot = device_slot.tracker.enter();
        let Some(address) = locate.locate(&buffer) else {
            io.in_flight.leave_epoch(device, epoch_slot);
            io.in_flight.publish_epochs();
            return Err(PushError::NotEligible(owned(buffer)));
        };
        // Built only where it is used, so that it is never copied.
        let fast = || FastRequest { device, op, durability, address, tag, epoch_slot };
        let ring = device_slot.fast_route.ring_at_once(&mut io.ring, &mut io.iopoll_ring);
        if let Some(sqe) = ring.and_then(Ring::sqe_slot) {
            sqe.push(fast().request(Payload::Buffer(owned(buffer))));
            return Ok(());
        }
        if device_slot.fast_route == FastRoute::Nvme {
            return match push_command(io, fast(), buffer) {
                Ok(()) => Ok(()),
                Err(buffer) => Err(PushError::QueueFull(buffer)),
            };
        }
        // Matched here, so that a result in memory is not merged with the one in registers above.
        match push_held_or_slow(io, fast(), buffer) {
            Ok(()) => Ok(()),
            Err(buffer) => Err(PushError::QueueFull(buffer)),
        }
    }

    /// [`Self::push_fast`] for several requests to one device, with one look at what is equal for them. Stops at the
    /// first that it cannot push, and returns it with the number of those before it.
    #[inline(always)]
    pub fn push_fast_each<L: Locate + Copy>(
        &self,
        device: DeviceIndex,
        op: Op,
        requests: &mut impl Iterator<Item = (Buffer, Tag, L)>,
    ) -> (usize, Option<(Buffer, Tag, L)>) {
        let io = &mut *self.io.borrow_mut();
        let mut target = io.in_flight.devices.get_mut(device.get()).and_then(|device_slot| {
            let route = device_slot.fast_route;
            Some((device_slot, route.ring_at_once(&mut io.ring, &mut io.iopoll_ring)?))
        });
        let mut pushed = 0;
        // One place that takes the next one, so that the compiler inlines it.
        for (buffer, tag, locate) in requests {
            let Some((device_slot, ring)) = &mut target else {
                return (pushed, Some((buffer, tag, locate)));
            };
            let buffer = ManuallyDrop::new(buffer);
            let owned = |buffer| ManuallyDrop::into_inner(buffer);
            let epoch_slot = device_slot.tracker.enter();
            if let Some(address) = locate.locate(&buffer)
                && let Some(sqe) = ring.sqe_slot()
            {
                let durability = Durability::Volatile;
                let fast = FastRequest { device, op, durability, address, tag, epoch_slot };
                sqe.push(fast.request(Payload::Buffer(owned(buffer))));
                pushed += 1;
            } else {
                io.in_flight.leave_epoch(device, epoch_slot);
                io.in_flight.publish_epochs();
                return (pushed, Some((owned(buffer), tag, locate)));
            }
        }
        (pushed, None)
    }

    /// [`Self::push_fast`] for a caller that awaits: its result goes to `sender`.
    ///
    /// # Errors
    /// As [`Self::push_fast`], with the sender.
    pub fn push_fast_awaited(
        &self,
        device: DeviceIndex,
        op: (Op, Durability),
        buffer: Buffer,
        sender: ResultSender,
        locate: impl Locate,
    ) -> Result<(), (PushError, ResultSender)> {
        let index = self.io.borrow_mut().in_flight.cells.open_transfer(sender);
        let pushed = self.push_fast(device, op, buffer, cell_tag(index), locate);
        pushed.map_err(|unpushed| {
            (unpushed, self.io.borrow_mut().in_flight.cells.close_transfer(index))
        })
    }

    /// Completes a token operation at once, without I/O: `bytes` of `buffer` hold the data already.
    pub fn complete_now(&self, device: DeviceIndex, token: Token, buffer: Buffer, bytes: u64) {
        let mut request =
            Request::new(device, Op::Read, 0, Payload::Buffer(buffer), Tag(token.get()));
        request.end(Ok(bytes));
        let in_flight = &mut self.io.borrow_mut().in_flight;
        in_flight.completed_inline += 1;
        in_flight.complete_token(request);
    }
}

/// A request of the fast path, without its memory.
struct FastRequest {
    device: DeviceIndex,
    op: Op,
    durability: Durability,
    address: u64,
    tag: Tag,
    epoch_slot: u16,
}

impl FastRequest {
    #[inline(always)]
    fn request(self, payload: Payload) -> Request {
        let FastRequest { device, op, durability, address, tag, epoch_slot } = self;
        let mut request = Request::new(device, op, address, payload, tag);
        request.durability = durability;
        request.epoch_slot = epoch_slot;
        request.set_issued(true);
        request
    }
}

/// Pushes a request to an NVMe namespace. Returns the buffer when the queue is full. Out of line, so that the other requests do
/// not pay for it.
#[inline(never)]
fn push_command(
    io: &mut IoDispatch,
    fast: FastRequest,
    buffer: ManuallyDrop<Buffer>,
) -> Result<(), Buffer> {
    let payload = Payload::Buffer(ManuallyDrop::into_inner(buffer));
    match io.nvme_ring.as_mut().and_then(NvmeRing::sqe_slot) {
        Some(sqe) => {
            sqe.push(fast.request(payload));
            Ok(())
        }
        None => push_slow(io, fast.request(payload)),
    }
}

/// Holds a request back if the device is called and nothing else is in flight: see [`FastRoute::Held`]. Pushes it
/// otherwise, and returns the buffer when the queue is full.
#[inline(never)]
fn push_held_or_slow(
    io: &mut IoDispatch,
    fast: FastRequest,
    buffer: ManuallyDrop<Buffer>,
) -> Result<(), Buffer> {
    let mut request = fast.request(Payload::Buffer(ManuallyDrop::into_inner(buffer)));
    let fast_route = &mut io.in_flight.devices[request.device.get()].fast_route;
    if *fast_route == FastRoute::Held
        && let Some(ring) = &mut io.ring
    {
        let is_last_uncalled = mem::replace(&mut io.is_last_uncalled, true);
        if ring.transfers_in_flight() == 0 && !is_last_uncalled {
            match ring.hold(request) {
                Ok(()) => return Ok(()),
                Err(unheld) => request = unheld,
            }
        }
        // There are several in flight, or something forbids calls: the next ones need no look at this.
        *fast_route = FastRoute::Ring;
        io.is_last_uncalled = false;
    }
    push_slow(io, request)
}

/// Pushes a request that could not go into the ring at once. Returns the buffer when the queue is full.
#[inline(never)]
fn push_slow(io: &mut IoDispatch, request: Request) -> Result<(), Buffer> {
    io.push(request).map_err(|request| {
        io.in_flight.leave_epoch(request.device, request.epoch_slot);
        io.in_flight.publish_epochs();
        match request.payload {
            Payload::Buffer(buffer) => buffer,
            Payload::Buffers(_) | Payload::Length(_) => {
                unreachable!("a fast request has one buffer")
            }
        }
    })
}
