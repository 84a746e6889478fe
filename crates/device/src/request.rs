//! A request to a device: one cache line, which is filled once, stays in its
//! queue's table while the device works, and returns with the result.

use std::fmt;

use uringfs_buffer::{Buffer, RegionId};
use uringfs_errno::Errno;
use uringfs_ring::Tries;

use crate::geometry::Bounds;
use crate::index::DeviceIndex;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// All completed writes become durable.
    Flush,
    /// The content of the range is no longer needed; later reads of it return undefined bytes.
    Discard,
    /// The range then reads as zeros.
    WriteZeroes,
}

/// The guarantee of a completed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Durability {
    /// The device has the bytes; a flush makes them durable.
    Volatile,
    /// The bytes are durable (FUA, `RWF_DSYNC`). Only for devices whose geometry says `durable_writes`.
    Durable,
}

/// The issuer's id of a request. This crate only carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u64);

/// The memory of a request, or its length if it has none.
#[derive(Debug)]
pub enum Payload {
    /// One segment of memory.
    Buffer(Buffer),
    /// Several segments, in the order of their addresses on the device; at most
    /// [`MAX_SEGMENTS`].
    Buffers(Box<[Buffer]>),
    /// No memory: the length in bytes of a discard or zeroing; 0 for a flush.
    Length(u64),
}

impl Payload {
    /// The total length in bytes.
    #[inline]
    pub fn length(&self) -> u64 {
        match self {
            Payload::Buffer(buffer) => buffer.len() as u64,
            Payload::Buffers(buffers) => buffers.iter().map(|buffer| buffer.len() as u64).sum(),
            Payload::Length(length) => *length,
        }
    }

    /// True if some of the memory must not be written: see [`RegionId::READ_ONLY`].
    pub(crate) fn is_read_only(&self) -> bool {
        let is_read_only = |buffer: &Buffer| buffer.region_id() == RegionId::READ_ONLY;
        match self {
            Payload::Buffer(buffer) => is_read_only(buffer),
            Payload::Buffers(buffers) => buffers.iter().any(is_read_only),
            Payload::Length(_) => false,
        }
    }
}

/// The most segments of memory in one request: the kernel's `UIO_MAXIOV`.
pub const MAX_SEGMENTS: usize = 1024;

/// Set in the number of retries of a request that is cancelled.
const CANCELLED: u8 = 0x80;

/// One request. Owns its memory from push to completion.
#[repr(align(64))]
pub struct Request {
    /// Its memory, or its length.
    pub payload: Payload,
    /// The address of the first byte on the device.
    pub address: u64,
    /// The issuer's id of this request.
    pub tag: Tag,
    /// Bytes done by earlier steps, since a transfer may take several. Once it has ended (`state`): the bytes of a
    /// `Short` request, the errno of a `Failed` or `Refused` one.
    done: u64,
    /// The device.
    pub device: DeviceIndex,
    /// The operation.
    pub op: Op,
    /// The guarantee of its completion.
    pub durability: Durability,
    /// A number of the issuer: the slot of the epoch that the request belongs to. This crate only carries it. As wide
    /// as `device`, so that both are compared at once.
    pub epoch_slot: u16,
    /// Successive steps that moved nothing, and [`CANCELLED`].
    retries: u8,
    state: RequestState,
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum RequestState {
    /// Never given to a queue.
    New,
    /// Given to a queue, and either still there or ended in full: the usual end
    /// needs no update.
    Issued,
    /// Ended with the bytes in `done`.
    Short,
    /// Ended with the error in `done`.
    Failed,
    /// Ended with the error in `done`, without being given to a queue.
    Refused,
}

/// The next action for a request after a step.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// Push the request again, for the rest.
    Again,
    /// It has ended, with the bytes done or the error.
    Done(Result<u64, Errno>),
}

impl Request {
    /// A volatile request for `device`.
    #[inline]
    pub fn new(device: DeviceIndex, op: Op, address: u64, payload: Payload, tag: Tag) -> Request {
        Request {
            payload,
            address,
            tag,
            done: 0,
            device,
            op,
            durability: Durability::Volatile,
            retries: 0,
            epoch_slot: 0,
            state: RequestState::New,
        }
    }

    /// Makes it a new volatile request, which a queue takes, with the same memory and tag. For one that keeps its place
    /// from use to use.
    #[inline(always)]
    pub fn renew(&mut self, device: DeviceIndex, op: Op, address: u64, epoch_slot: u16) {
        (self.address, self.done) = (address, 0);
        (self.device, self.epoch_slot) = (device, epoch_slot);
        (self.op, self.durability) = (op, Durability::Volatile);
        (self.retries, self.state) = (0, RequestState::Issued);
    }

    /// Records that its issuer has cancelled it: set by [`Queue::cancel`](crate::Queue::cancel), and by a reactor that
    /// cancels in its rings. ECANCELED is then its result where [`Self::advance`] would go on or retry; without it
    /// ECANCELED is retried.
    #[inline]
    pub fn cancel(&mut self) {
        self.retries |= CANCELLED;
    }

    /// [`Self::cancel`], if it has this tag. True if it has.
    #[inline]
    pub fn cancel_if_tagged(&mut self, tag: Tag) -> bool {
        let matches = self.tag == tag;
        if matches {
            self.cancel();
        }
        matches
    }

    /// True if it was cancelled.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.retries & CANCELLED != 0
    }

    /// True if it was given to a queue.
    #[inline]
    pub fn is_issued(&self) -> bool {
        self.state != RequestState::New && self.state != RequestState::Refused
    }

    /// Records that a queue takes it, or that the queue returned it.
    #[inline(always)]
    pub fn set_issued(&mut self, issued: bool) {
        self.state = if issued { RequestState::Issued } else { RequestState::New };
    }

    /// Records that its queue gives it back before any step of it: nothing of it has reached the device.
    pub(crate) fn withdraw(&mut self) {
        if self.done == 0 && self.retries & !CANCELLED == 0 {
            self.state = RequestState::New;
        }
    }

    /// Records its result.
    pub fn end(&mut self, result: Result<u64, Errno>) {
        (self.state, self.done) = match result {
            Ok(bytes) if bytes == self.length() => (RequestState::Issued, bytes),
            Ok(bytes) => (RequestState::Short, bytes),
            Err(error) => {
                let state =
                    if self.is_issued() { RequestState::Failed } else { RequestState::Refused };
                (state, error.raw_os_error() as u64)
            }
        };
    }

    /// Its result: the bytes done, or the error.
    #[inline]
    pub fn result(&self) -> Result<u64, Errno> {
        match self.state {
            RequestState::New | RequestState::Issued => Ok(self.length()),
            RequestState::Short => Ok(self.done),
            RequestState::Failed | RequestState::Refused => {
                Err(Errno::from_raw_os_error(self.done as i32))
            }
        }
    }

    /// True if it ended short, without an error.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.state == RequestState::Short
    }

    /// The same request, durable on completion.
    pub fn durable(mut self) -> Request {
        self.durability = Durability::Durable;
        self
    }

    /// The total length in bytes.
    #[inline]
    pub fn length(&self) -> u64 {
        self.payload.length()
    }

    /// The bytes that earlier steps have moved: the next step begins after them. Only for a request that has not
    /// ended; then see [`Self::result`].
    #[inline]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// How often the step that fails now has been tried, or has moved nothing (EINTR, EAGAIN, 0 bytes). After
    /// [`Tries::ALL`] the request fails.
    #[inline]
    pub(crate) fn tries(&self) -> Tries {
        Tries((self.retries & !CANCELLED) + 1)
    }

    /// Counts bytes that were moved outside of a queue, so that the next step begins after them.
    pub(crate) fn skip(&mut self, moved: u32) {
        self.done += u64::from(moved);
    }

    /// Applies the result of a step. `moved` is the number of bytes that this step moved, after those
    /// already [`done`](Self::done); `bounds` are the device's. A read may end short only at the end of
    /// the largest size that the device has had. A read that ends earlier fails with EIO: the device has become
    /// shorter, and the state of the rest is unknown.
    #[inline]
    pub fn advance(&mut self, moved: Result<u32, Errno>, bounds: Bounds) -> Progress {
        match moved {
            Ok(moved) if self.done + moved as u64 == self.length() || self.is_single_step() => {
                Progress::Done(Ok(self.length()))
            }
            other => self.advance_slow(other, bounds),
        }
    }

    /// True for flush, discard and zeroing: they are done in one step, whatever number it returns.
    fn is_single_step(&self) -> bool {
        !matches!(self.op, Op::Read | Op::Write)
    }

    #[cold]
    fn advance_slow(&mut self, moved: Result<u32, Errno>, bounds: Bounds) -> Progress {
        match self.advance_uncancelled(moved, bounds) {
            // Its issuer does not want the rest.
            Progress::Again if self.is_cancelled() => Progress::Done(Err(Errno::CANCELED)),
            progress => progress,
        }
    }

    fn advance_uncancelled(&mut self, moved: Result<u32, Errno>, bounds: Bounds) -> Progress {
        let retry = |request: &mut Request, error| {
            let tries = request.tries();
            request.retries += 1;
            if tries < Tries::ALL { Progress::Again } else { Progress::Done(Err(error)) }
        };
        match moved {
            // The device ends here.
            Ok(0) if self.op == Op::Read => Progress::Done(self.short_read(self.done, bounds)),
            Ok(0) => retry(self, Errno::IO),
            Ok(moved) => {
                let tail = moved % bounds.block_size.max(1);
                if self.op == Op::Read && tail != 0 {
                    // Only the end of a file ends a transfer inside a block.
                    return Progress::Done(self.short_read(self.done + moved as u64, bounds));
                }
                if moved == tail {
                    return retry(self, Errno::IO);
                }
                self.done += (moved - tail) as u64;
                self.retries &= CANCELLED;
                Progress::Again
            }
            Err(error @ (Errno::INTR | Errno::AGAIN)) => retry(self, error),
            Err(Errno::CANCELED) if !self.is_cancelled() => retry(self, Errno::CANCELED),
            Err(error) => Progress::Done(Err(error)),
        }
    }

    /// The result of a read that ends short after `done` bytes.
    fn short_read(&self, done: u64, bounds: Bounds) -> Result<u64, Errno> {
        let there = bounds.size.saturating_sub(self.address).min(self.length());
        if done < there { Err(Errno::IO) } else { Ok(done) }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{:?} {} bytes at {} of {:?} ({} done)",
            self.op,
            self.length(),
            self.address,
            self.device,
            self.done
        )
    }
}

/// A completed step of a request. [`Request::advance`] decides whether the request has ended.
#[derive(Debug)]
pub struct StepCompletion {
    /// The request, memory included.
    pub request: Request,
    /// The bytes that this step moved, or its error.
    pub result: Result<u32, Errno>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { block_size: 512, size: 1 << 20 };

    fn read(length: usize) -> Request {
        let payload = Payload::Buffer(Buffer::zeroed(length));
        Request::new(DeviceIndex::for_tests(0), Op::Read, 0, payload, Tag(0))
    }

    #[test]
    fn a_request_is_one_cache_line() {
        assert_eq!(size_of::<Request>(), 64);
        assert_eq!(size_of::<Option<Request>>(), 64);
    }

    #[test]
    fn short_steps_accumulate() {
        let mut request = read(8192);
        assert_eq!(request.advance(Ok(512), BOUNDS), Progress::Again);
        assert_eq!(request.advance(Err(Errno::INTR), BOUNDS), Progress::Again);
        assert_eq!(request.advance(Ok(4096), BOUNDS), Progress::Again);
        assert_eq!(request.done(), 4608);
        assert_eq!(request.advance(Ok(3584), BOUNDS), Progress::Done(Ok(8192)));
    }

    #[test]
    fn a_read_ends_at_the_end_of_the_device() {
        let ends_at = |size| Bounds { size, ..BOUNDS };
        let mut request = read(8192);
        assert_eq!(request.advance(Ok(4096), ends_at(4196)), Progress::Again);
        assert_eq!(request.advance(Ok(100), ends_at(4196)), Progress::Done(Ok(4196)));
        let mut request = read(8192);
        assert_eq!(request.advance(Ok(0), ends_at(0)), Progress::Done(Ok(0)));
    }

    #[test]
    fn a_short_read_inside_the_device_fails() {
        let failed = Progress::Done(Err(Errno::IO));
        assert_eq!(read(8192).advance(Ok(0), BOUNDS), failed);
        let mut request = read(8192);
        assert_eq!(request.advance(Ok(4096), BOUNDS), Progress::Again);
        assert_eq!(request.advance(Ok(0), BOUNDS), failed);
        assert_eq!(read(8192).advance(Ok(100), BOUNDS), failed);
    }

    #[test]
    fn retries_are_bounded() {
        let mut request = read(4096);
        let mut steps = 0;
        while request.advance(Err(Errno::AGAIN), BOUNDS) == Progress::Again {
            steps += 1;
            assert_eq!(request.tries(), Tries(steps + 1));
        }
        assert_eq!(Tries(steps + 1), Tries::ALL);
    }

    #[test]
    fn progress_resets_the_retry_count() {
        let mut request = read(1 << 20);
        for _ in 0..1000 {
            assert_eq!(request.advance(Err(Errno::INTR), BOUNDS), Progress::Again);
            assert_eq!(request.advance(Ok(512), BOUNDS), Progress::Again);
        }
        assert_eq!(request.done(), 512_000);
    }

    #[test]
    fn a_cancelled_request_is_not_continued() {
        // The rest of a short step, and what a timeout, or a reset of a controller, has cut off.
        for step in [Ok(512), Err(Errno::INTR), Err(Errno::AGAIN)] {
            let mut request = read(8192);
            request.cancel();
            assert_eq!(request.advance(step, BOUNDS), Progress::Done(Err(Errno::CANCELED)));
        }
        let mut request = read(8192);
        request.cancel();
        assert_eq!(request.advance(Ok(8192), BOUNDS), Progress::Done(Ok(8192)));
        assert_eq!(request.advance(Err(Errno::IO), BOUNDS), Progress::Done(Err(Errno::IO)));
    }

    #[test]
    fn an_unrequested_cancel_is_retried() {
        let mut request = read(4096);
        assert_eq!(request.advance(Err(Errno::CANCELED), BOUNDS), Progress::Again);
        request.cancel();
        assert_eq!(
            request.advance(Err(Errno::CANCELED), BOUNDS),
            Progress::Done(Err(Errno::CANCELED))
        );
    }
}
