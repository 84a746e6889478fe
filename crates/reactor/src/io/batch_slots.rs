//! The slots of a batch: their memory while it is not in flight, and the completions that the caller has not taken.
//! They come from the kernel's queue in one pass.

use std::fmt;
use std::io;
use std::slice;

use uringfs_buffer::{Buffer, RegionId};
use uringfs_device::{DeviceIndex, Errno, Op, Payload, Request, Tag};
use uringfs_ring::{PinnedSlots, Reaped, Ring};

use crate::io::dispatch::IoDispatch;
use crate::io::in_flight::{InFlight, Polled};
use crate::options::CompletionMode;
use crate::tasks::waiters::batch_tag;

/// A transfer of a batch: between a slot's buffer and a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchTransfer {
    /// The slot whose buffer it uses, counted from 0.
    pub slot: u32,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
}

/// The slots of a batch.
pub(crate) struct BatchSlots {
    pub(crate) number: u32,
    /// The tag of the first slot. Those of the others follow.
    first_tag: u64,
    /// The request of each slot, with its buffer, which stays in place. Empty while its transfer takes another way.
    pub(crate) pinned: PinnedSlots<Request>,
    /// Bytes in each buffer.
    pub(crate) length: u32,
    /// The address bits that some buffer has.
    pub(crate) address_bits: u64,
    /// Room for a completion of each slot. The first `ended_count` are there, of which the caller has taken the first
    /// `taken`.
    ended: Box<[Ended]>,
    ended_count: usize,
    taken: usize,
    pub(crate) in_flight: usize,
}

/// The end of a slot's transfer.
#[derive(Clone, Copy)]
struct Ended {
    slot: u32,
    /// Bytes, or a negative errno.
    result: i32,
}

impl BatchSlots {
    /// Slots with these buffers.
    ///
    /// # Errors
    /// `InvalidInput` without buffers, and when they have no bytes, different lengths, or memory that others change.
    pub(crate) fn new(buffers: Vec<Buffer>, number: u32) -> io::Result<BatchSlots> {
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let length = buffers.first().map_or(0, |buffer| buffer.len());
        if length == 0 {
            return refuse("a batch needs buffers with at least one byte".into());
        }
        if let Some(other) = buffers.iter().find(|buffer| buffer.len() != length) {
            return refuse(format!(
                "the buffers of a batch have one length, but there are some of {length} and of {} bytes",
                other.len()
            ));
        }
        if buffers.iter().any(Buffer::is_shared) {
            return refuse("a batch takes no memory that others change".into());
        }
        if buffers.iter().any(|buffer| buffer.region_id() == RegionId::READ_ONLY) {
            return refuse("a batch takes no memory that must not be written".into());
        }
        if buffers.len() > PinnedSlots::<Request>::MAX {
            return refuse(format!("a batch has at most {} slots", PinnedSlots::<Request>::MAX));
        }
        let address_bits = buffers.iter().fold(0, |bits, buffer| bits | address(buffer));
        let first_tag = batch_tag(number).0;
        Ok(BatchSlots {
            number,
            first_tag,
            ended: vec![Ended { slot: 0, result: 0 }; buffers.len()].into(),
            ended_count: 0,
            pinned: PinnedSlots::new((first_tag..).zip(buffers).map(idle)),
            length: length as u32,
            address_bits,
            taken: 0,
            in_flight: 0,
        })
    }

    /// The tag of the transfers of a slot.
    #[inline(always)]
    pub(crate) fn tag(&self, slot: u32) -> Tag {
        Tag(self.first_tag + u64::from(slot))
    }

    /// The slot of a transfer of this batch.
    fn slot_of(&self, tag: Tag) -> Option<usize> {
        let slot = tag.0.wrapping_sub(self.first_tag) as usize;
        (slot < self.pinned.len()).then_some(slot)
    }

    /// Completions that the caller has not taken.
    #[inline(always)]
    pub(crate) fn untaken(&self) -> usize {
        self.ended_count - self.taken
    }

    /// True if the caller has not taken the completion of the slot's last transfer.
    pub(crate) fn is_untaken(&self, slot: u32) -> bool {
        self.ended[self.taken..self.ended_count].iter().any(|ended| ended.slot == slot)
    }

    /// The first of `transfers`, up to one whose slot has a completion that is not taken: it keeps its bytes until then. So
    /// each slot has at most one transfer that is in flight or not taken.
    #[inline(always)]
    pub(crate) fn without_untaken<'t>(
        &self,
        transfers: &'t [BatchTransfer],
    ) -> &'t [BatchTransfer] {
        if self.untaken() == 0 { transfers } else { self.before_untaken(transfers) }
    }

    #[cold]
    #[inline(never)]
    fn before_untaken<'t>(&self, transfers: &'t [BatchTransfer]) -> &'t [BatchTransfer] {
        let first = transfers.iter().position(|transfer| self.is_untaken(transfer.slot));
        &transfers[..first.unwrap_or(transfers.len())]
    }

    /// Forgets the completions that the caller has taken.
    #[inline(always)]
    pub(crate) fn forget_taken(&mut self) {
        let untaken = self.untaken();
        if untaken > 0 {
            self.ended.copy_within(self.taken..self.ended_count, 0);
        }
        (self.ended_count, self.taken) = (untaken, 0);
    }

    /// The buffer of a slot, if no transfer uses it.
    #[inline(always)]
    pub(crate) fn buffer(&self, slot: u32) -> Option<&Buffer> {
        match &self.pinned.get(slot)?.payload {
            Payload::Buffer(buffer) => Some(buffer),
            Payload::Buffers(_) | Payload::Length(_) => None,
        }
    }

    /// The same, to be changed.
    #[inline(always)]
    pub(crate) fn buffer_mut(&mut self, slot: u32) -> Option<&mut Buffer> {
        match &mut self.pinned.get_mut(slot)?.payload {
            Payload::Buffer(buffer) => Some(buffer),
            Payload::Buffers(_) | Payload::Length(_) => None,
        }
    }

    /// Takes the buffer of a slot, for a transfer that takes another way.
    pub(crate) fn take(&mut self, slot: u32) -> Option<Buffer> {
        match self.pinned.take(slot)?.payload {
            Payload::Buffer(buffer) => Some(buffer),
            Payload::Buffers(_) | Payload::Length(_) => None,
        }
    }

    /// Puts a buffer into a slot whose transfer has taken another way.
    pub(crate) fn put(&mut self, slot: u32, buffer: Buffer) {
        self.address_bits |= address(&buffer);
        self.pinned.put(slot, idle((self.tag(slot).0, buffer)));
    }

    /// The transfer of a slot has ended, in any way.
    #[cold]
    fn end(&mut self, request: Request) {
        let slot = self.slot_of(request.tag).expect("a request of this batch");
        let result = match request.result() {
            Ok(bytes) => bytes as i32,
            Err(errno) => -errno.raw_os_error(),
        };
        let buffer = match request.payload {
            Payload::Buffer(buffer) => buffer,
            // The operation has panicked.
            Payload::Buffers(_) | Payload::Length(_) => Buffer::zeroed(self.length as usize),
        };
        self.put(slot as u32, buffer);
        self.in_flight -= 1;
        self.ended[self.ended_count] = Ended { slot: slot as u32, result };
        self.ended_count += 1;
    }

    /// Ends the transfers that have completed, up to a completion of anything else, which is returned. Those of `whole`
    /// bytes end here, others are moved out of their slots.
    ///
    /// Out of line, so that the loop has the registers for itself.
    #[inline(never)]
    fn reap_own<'r>(
        &mut self,
        ring: &'r mut Ring<Request>,
        whole: u32,
        in_flight: &mut InFlight,
    ) -> Option<Reaped<'r, Request>> {
        let BatchSlots { pinned, ended, ended_count, .. } = self;
        let mut count = *ended_count;
        let other = ring.reap_pinned(pinned, |slot, request, result| {
            let is_whole = result.is(whole);
            if is_whole {
                ended[count] = Ended { slot, result: whole as i32 };
                count += 1;
                in_flight.leave_epoch(request.device, request.epoch_slot);
            }
            is_whole
        });
        *ended_count = count;
        other
    }

    /// Takes what rounds of the loop have found for this batch.
    #[cold]
    #[inline(never)]
    pub(crate) fn collect(&mut self, in_flight: &mut InFlight) {
        for request in in_flight.batches.take(self.number) {
            self.end(request);
        }
    }
}

/// The request of a slot that is not in use, by its tag and buffer.
fn idle((tag, buffer): (u64, Buffer)) -> Request {
    Request::new(DeviceIndex::NONE, Op::Read, 0, Payload::Buffer(buffer), Tag(tag))
}

/// The address of a buffer.
fn address(buffer: &Buffer) -> u64 {
    buffer.pointer().as_ptr() as u64
}

impl IoDispatch {
    /// Ends the transfers of a batch that have completed. All other completions are handled as far as
    /// [`InFlight::take`] does it; then [`InFlight::has_other_completions`] is set.
    #[inline(never)]
    pub(crate) fn reap_batch(&mut self, batch: &mut BatchSlots) {
        // A round reaps these.
        let has_commands = self.has_more_rings && self.commands_in_flight() > 0;
        let IoDispatch { ring, iopoll_ring, attachments, in_flight, .. } = self;
        let is_polled = |ring: &&mut Ring<Request>| ring.transfers_in_flight() > 0;
        let (ring, polled) = match (iopoll_ring.as_mut().filter(is_polled), ring) {
            (Some(iopoll_ring), _) => (iopoll_ring, Polled::Yes),
            (None, Some(ring)) => (ring, Polled::No),
            (None, None) => return,
        };
        // No transfer is as long, so that none stays in its slot if a worker is to get them.
        let whole = match in_flight.mode {
            CompletionMode::Inline => batch.length,
            CompletionMode::Worker => i32::MAX as u32,
        };
        let (transfers, before) = (ring.transfers_in_flight(), batch.ended_count);
        while let Some(reaped) = batch.reap_own(ring, whole, in_flight) {
            if let Reaped::Transfer(request, result) = reaped {
                in_flight.take(request, result, polled, attachments);
            }
        }
        let ended = batch.ended_count - before;
        // Some were moved out of their slots, and a round takes them, or others have ended.
        let is_any_other = transfers - ring.transfers_in_flight() != ended || ring.has_event();
        in_flight.has_other_completions |= is_any_other || has_commands;
        batch.in_flight -= ended;
        in_flight.completed_inline += ended as u64;
        in_flight.publish_epochs();
    }
}

/// Completions of a batch, each with the bytes of its slot: see
/// [`RequestBatch::completions`](crate::RequestBatch::completions).
#[must_use = "completions that are not taken stay for the next call"]
pub struct BatchCompletions<'b> {
    ended: slice::Iter<'b, Ended>,
    ended_count: usize,
    /// Of the batch: set when this is dropped, so that it is no memory that the loop writes.
    taken: &'b mut usize,
    pinned: &'b PinnedSlots<Request>,
}

impl fmt::Debug for BatchCompletions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("BatchCompletions").field("left", &self.ended.len()).finish_non_exhaustive()
    }
}

impl BatchSlots {
    /// The completions that the caller has not taken.
    #[inline(always)]
    pub(crate) fn completions(&mut self) -> BatchCompletions<'_> {
        let BatchSlots { ended, ended_count, taken, pinned, .. } = self;
        let ended = ended[*taken..*ended_count].iter();
        BatchCompletions { ended, ended_count: *ended_count, taken, pinned }
    }
}

impl<'b> Iterator for BatchCompletions<'b> {
    type Item = BatchCompletion<'b>;

    #[inline(always)]
    fn next(&mut self) -> Option<BatchCompletion<'b>> {
        let ended = self.ended.next()?;
        Some(BatchCompletion { ended, pinned: self.pinned })
    }
}

impl Drop for BatchCompletions<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.taken = self.ended_count - self.ended.len();
    }
}

/// The end of a transfer of a batch.
#[derive(Clone, Copy)]
pub struct BatchCompletion<'b> {
    ended: &'b Ended,
    pinned: &'b PinnedSlots<Request>,
}

impl fmt::Debug for BatchCompletion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("BatchCompletion")
            .field("slot", &self.slot())
            .field("result", &self.result())
            .finish_non_exhaustive()
    }
}

impl<'b> BatchCompletion<'b> {
    /// The slot whose transfer has ended.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.ended.slot
    }

    /// The bytes moved, or the error. A read at the end of the file moves fewer than the slot has.
    #[inline(always)]
    pub fn result(&self) -> Result<usize, Errno> {
        match self.ended.result {
            bytes @ 0.. => Ok(bytes as usize),
            error => Err(Errno::from_raw_os_error(-error)),
        }
    }

    /// The bytes of the slot that were moved: none after an error.
    #[inline]
    pub fn bytes(&self) -> &'b [u8] {
        let request = self.pinned.get(self.slot()).expect("the slot is not in flight");
        let Payload::Buffer(buffer) = &request.payload else { unreachable!("each has a buffer") };
        &buffer[..self.result().unwrap_or(0)]
    }
}
