//! A batch: transfers that are pushed and completed several at once. Work that is equal for all of them is done once:
//! the checks, the look-up of device, file and memory, the entry into the epoch, and the update of the queues' ends.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use uringfs_buffer::Buffer;
use uringfs_device::{DeviceIndex, Errno, Op, Request};
use uringfs_ring::PinnedBatch;

use crate::event_loop::core::{DROPPED, ReactorCore};
use crate::event_loop::turn::OwnWait;
use crate::io::batch_slots::{BatchCompletions, BatchSlots, BatchTransfer};
use crate::tasks::completion::Token;

/// Finds the addresses of a batch's requests on the device.
pub trait LocateBatch {
    /// Checks and loads what is equal for all requests, when they are in the epoch. `length` is that of each, in bytes;
    /// `address_bits` are those that the address of some buffer has. `None` if none is one for the fast path.
    fn begin(self, length: u32, address_bits: u64) -> Option<impl BatchAddresses>;
}

/// The addresses of a batch's requests on the device, by their offsets in the file.
pub trait BatchAddresses {
    /// The address, if it is known without a call. The loop over it has all registers for itself.
    fn known(&self, offset: u64) -> Option<u64>;

    /// The address. `None` if the request is not one for the fast path.
    fn look_up(&self, offset: u64) -> Option<u64>;
}

/// Transfers that are pushed and completed several at once, each with the memory of its slot.
///
/// When it is dropped, transfers in flight go on, and their memory stays until they have ended.
pub struct RequestBatch {
    reactor: Rc<ReactorCore>,
    slots: BatchSlots,
}

impl fmt::Debug for RequestBatch {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("RequestBatch")
            .field("slots", &self.slots())
            .field("length", &self.slots.length)
            .field("in_flight", &self.slots.in_flight)
            .finish_non_exhaustive()
    }
}

impl RequestBatch {
    /// A batch with a slot for each buffer.
    ///
    /// # Errors
    /// `InvalidInput` without buffers, and when they have no bytes, different lengths, or memory that others change.
    pub fn new(reactor: &Rc<ReactorCore>, buffers: Vec<Buffer>) -> io::Result<RequestBatch> {
        let number = reactor.io.borrow_mut().in_flight.batches.open();
        match BatchSlots::new(buffers, number) {
            Ok(slots) => Ok(RequestBatch { reactor: reactor.clone(), slots }),
            Err(error) => {
                drop(reactor.io.borrow_mut().in_flight.batches.close(number));
                Err(error)
            }
        }
    }

    /// The reactor of the batch.
    pub fn reactor(&self) -> &Rc<ReactorCore> {
        &self.reactor
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.slots.pinned.len()
    }

    /// The number of transfers in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight
    }

    /// The buffer of a slot. `None` while its transfer is in flight, and without such a slot.
    #[inline]
    pub fn buffer(&self, slot: u32) -> Option<&Buffer> {
        self.slots.buffer(slot)
    }

    /// The same, to be changed.
    #[inline]
    pub fn buffer_mut(&mut self, slot: u32) -> Option<&mut [u8]> {
        self.slots.buffer_mut(slot).map(|buffer| &mut buffer[..])
    }

    /// Pushes the first of `transfers`, up to the first that is not one for the fast path, or for which there is no
    /// room. Returns their number. Puts all of them in the epoch, then asks `locate` for their addresses.
    #[inline(never)]
    pub fn push_fast(
        &mut self,
        device: DeviceIndex,
        op: Op,
        transfers: &[BatchTransfer],
        locate: impl LocateBatch,
    ) -> usize {
        let RequestBatch { reactor, slots } = self;
        let transfers = slots.without_untaken(transfers);
        let io = &mut *reactor.io.borrow_mut();
        let (Some(first), Some(device_slot)) =
            (transfers.first(), io.in_flight.devices.get_mut(device.get()))
        else {
            return 0;
        };
        let BatchSlots { pinned, length, address_bits, .. } = slots;
        let Some(ring) = device_slot.fast_route.ring(&mut io.ring, &mut io.iopoll_ring) else {
            return 0;
        };
        let Some(mut sqes) = ring.pinned_batch(device.get() as u32, pinned, first.slot) else {
            return 0;
        };
        let count = transfers.len() as u32;
        let epoch_slot = device_slot.tracker.enter_many(count);
        if let Some(addresses) = locate.begin(*length, *address_bits) {
            let renewal = Renewal { device, op, epoch_slot };
            let mut rest = transfers;
            loop {
                let known = push_known(&mut sqes, rest, &addresses, renewal);
                let Some((next, after)) = rest[known..].split_first() else { break };
                let Some(address) = addresses.look_up(next.offset) else { break };
                if sqes.push_each([renewal.of(*next, address)]) == 0 {
                    break;
                }
                rest = after;
            }
        }
        let pushed = sqes.finish();
        if pushed < count {
            io.in_flight.leave_epoch_many(device, epoch_slot, count - pushed);
            io.in_flight.publish_epochs();
        }
        slots.in_flight += pushed as usize;
        pushed as usize
    }

    /// Takes the buffer out of a slot, for a transfer that begins in another way, by this token. Its completion
    /// returns it.
    ///
    /// # Errors
    /// EINVAL without such a slot, EBUSY when its transfer is in flight or its last completion is not taken, ESHUTDOWN
    /// when the reactor was dropped.
    pub fn begin(&mut self, slot: u32) -> Result<(Buffer, Token), Errno> {
        let RequestBatch { reactor, slots } = self;
        if slot as usize >= slots.pinned.len() {
            return Err(Errno::INVAL);
        }
        if reactor.attention.get() & DROPPED != 0 {
            return Err(Errno::SHUTDOWN);
        }
        if slots.is_untaken(slot) {
            return Err(Errno::BUSY);
        }
        let buffer = slots.take(slot).ok_or(Errno::BUSY)?;
        slots.in_flight += 1;
        Ok((buffer, Token::from_tag(slots.tag(slot))))
    }

    /// Returns the buffer of a slot whose transfer was refused after [`Self::begin`].
    pub fn put_back(&mut self, slot: u32, buffer: Buffer) {
        self.slots.put(slot, buffer);
        self.slots.in_flight -= 1;
    }

    /// Requests cancellation of the transfer of a slot. It still completes.
    pub fn cancel(&mut self, slot: u32) {
        if (slot as usize) < self.slots() && self.buffer(slot).is_none() {
            self.reactor.cancel_token(Token::from_tag(self.slots.tag(slot)));
        }
    }

    /// Submits what was pushed, waits until there are at least `min` completions of this batch that were not taken or
    /// `timeout` has passed, and returns these completions. Waits for no more than are in flight.
    ///
    /// # Errors
    /// As [`Reactor::reap`](crate::Reactor::reap).
    #[inline(always)]
    pub fn completions(
        &mut self,
        min: usize,
        timeout: Option<Duration>,
    ) -> Result<BatchCompletions<'_>, Errno> {
        self.slots.forget_taken();
        let wanted = min.min(self.slots.untaken() + self.slots.in_flight);
        if !(timeout.is_none() && self.wait_fast(wanted)?) {
            self.wait_slow(wanted, timeout)?;
        }
        Ok(self.slots.completions())
    }

    /// Waits while only requests on a ring are awaited. False if there is more to do.
    #[inline(always)]
    fn wait_fast(&mut self, wanted: usize) -> Result<bool, Errno> {
        let RequestBatch { reactor, slots } = self;
        reactor.check_process()?;
        if !reactor.io.borrow().in_flight.batches.is_empty() {
            return Ok(false);
        }
        loop {
            let missing = wanted.saturating_sub(slots.untaken());
            if !reactor.enter_fast(missing)? {
                return Ok(false);
            }
            let io = &mut *reactor.io.borrow_mut();
            io.reap_batch(slots);
            if io.in_flight.has_other_completions || !io.in_flight.batches.is_empty() {
                return Ok(false);
            }
            if slots.untaken() >= wanted {
                return Ok(true);
            }
        }
    }

    /// Submits, and runs rounds until there are `wanted` completions or `timeout` has passed.
    #[cold]
    #[inline(never)]
    fn wait_slow(&mut self, wanted: usize, timeout: Option<Duration>) -> Result<(), Errno> {
        let RequestBatch { reactor, slots } = self;
        reactor.check_process()?;
        if reactor.attention.get() & DROPPED != 0 {
            // Its queues are gone. Transfers that had ended before are there.
            slots.collect(&mut reactor.io.borrow_mut().in_flight);
            return if slots.untaken() < wanted { Err(Errno::SHUTDOWN) } else { Ok(()) };
        }
        let clock = &reactor.options.clock;
        let until = timeout.map(|timeout| clock.after(timeout));
        let is_foreign = wanted == 0 && reactor.foreign_fd.get().is_some();
        if !is_foreign {
            reactor.check_not_reentrant()?;
        }
        let _current = reactor.become_current();
        let _own_wait = (!is_foreign).then(|| OwnWait::begin(reactor));
        let mut has_entered = false;
        loop {
            if is_foreign {
                reactor.foreign_turn()?;
                has_entered = true;
            } else {
                reactor.run_rounds();
            }
            let is_idle = {
                let io = &mut *reactor.io.borrow_mut();
                if io.in_flight.has_backlog() {
                    io.push_backlog();
                }
                slots.collect(&mut io.in_flight);
                reactor.outstanding(io) == 0
            };
            let missing = wanted.saturating_sub(slots.untaken());
            let is_late = until.is_some_and(|until| clock.now() >= until);
            if missing > 0 && !is_idle && !is_late {
                reactor.wait_unless_ready(missing, until)?;
            } else if !has_entered {
                // Without a call the kernel neither gets nor completes requests.
                reactor.submit()?;
            } else {
                break;
            }
            has_entered = true;
        }
        let is_any_left = {
            let in_flight = &reactor.io.borrow().in_flight;
            !in_flight.completed.is_empty() || !in_flight.batches.is_empty()
        };
        if is_any_left {
            // No event reports to a foreign loop what was found for others.
            reactor.request_turn();
        }
        Ok(())
    }
}

/// The fields that are equal for the requests of a batch.
#[derive(Clone, Copy)]
struct Renewal {
    device: DeviceIndex,
    op: Op,
    epoch_slot: u16,
}

impl Renewal {
    /// The slot of a transfer, and what prepares its request.
    #[inline(always)]
    fn of(self, transfer: BatchTransfer, address: u64) -> (u32, impl FnOnce(&mut Request)) {
        let Renewal { device, op, epoch_slot } = self;
        (transfer.slot, move |request| request.renew(device, op, address, epoch_slot))
    }
}

/// Pushes the first of `transfers`, as far as their addresses are known. Returns their number. Out of line, and
/// without a call in its loop, so that this has all registers.
#[inline(never)]
fn push_known(
    sqes: &mut PinnedBatch<'_, Request>,
    transfers: &[BatchTransfer],
    addresses: &impl BatchAddresses,
    renewal: Renewal,
) -> usize {
    let of = |transfer: &BatchTransfer| {
        addresses.known(transfer.offset).map(|address| renewal.of(*transfer, address))
    };
    sqes.push_each(transfers.iter().map_while(of))
}

impl Drop for RequestBatch {
    fn drop(&mut self) {
        let ended = self.reactor.io.borrow_mut().in_flight.batches.close(self.slots.number);
        drop(ended);
    }
}
