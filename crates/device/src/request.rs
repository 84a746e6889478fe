//! One thing to do to a device: a whole cache line that is filled once, sits in
//! its queue's table while the device works, and comes back with the answer.

use std::fmt;

use rustix::io::Errno;
use uringfs_buffer::Buffer;

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
    /// Everything whose write has completed becomes durable.
    Flush,
    /// The range's content is no longer needed; what reads of it return is undefined.
    Discard,
    /// The range reads as zeros.
    WriteZeroes,
}

/// The guarantee that the completion of a write gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Durability {
    /// The device has the bytes; a flush makes them durable.
    Volatile,
    /// The bytes are durable (FUA, `RWF_DSYNC`). Only for devices whose geometry says `fua`.
    Durable,
}

/// The issuer's id of a request; this layer only carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u64);

/// The bytes of a request, or how many there would be.
#[derive(Debug)]
pub enum Payload {
    /// One piece of memory.
    Buffer(Buffer),
    /// Several pieces, in the order of their addresses on the device; at most
    /// [`MAX_PIECES`].
    Buffers(Box<[Buffer]>),
    /// No memory: the length in bytes of a discard or of zeros; 0 for a flush.
    Length(u64),
}

impl Payload {
    /// Bytes in all.
    #[inline]
    pub fn length(&self) -> u64 {
        match self {
            Payload::Buffer(buffer) => buffer.len() as u64,
            Payload::Buffers(buffers) => buffers.iter().map(|buffer| buffer.len() as u64).sum(),
            Payload::Length(length) => *length,
        }
    }
}

/// The most pieces of memory in one request: the kernel's `UIO_MAXIOV`.
pub const MAX_PIECES: usize = 1024;

/// Steps one after the other that move nothing (EINTR, EAGAIN, a short transfer of
/// 0) before the error is believed.
const MAX_RETRIES: u8 = 100;

/// One request. Owns its memory from push to completion.
#[repr(align(64))]
pub struct Request {
    /// The bytes.
    pub payload: Payload,
    /// The address of the first byte on the device.
    pub address: u64,
    /// The issuer's id of this request.
    pub tag: Tag,
    /// Bytes done so far: a transfer may take several steps.
    done: u64,
    /// Which device.
    pub device: DeviceIndex,
    /// The operation.
    pub op: Op,
    /// The guarantee of its completion.
    pub durability: Durability,
    retries: u8,
    /// Set when its issuer has asked to cancel it: ECANCELED is then an answer
    /// and not an interruption.
    pub cancelled: bool,
    /// A byte of the issuer's own, carried along.
    pub mark: u8,
    state: RequestState,
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum RequestState {
    /// No queue has had it.
    New,
    /// Some queue has had it. If it has ended, then with all its bytes, as
    /// nearly all do: nothing has to be written down.
    Issued,
    /// Ended with the bytes in `done`.
    Short,
    /// Ended with the error in `done`.
    Failed,
    /// The same, before any queue had it.
    Refused,
}

/// The effect of a step's result on its request.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// Push the request again: the rest is still to do.
    Again,
    /// Bytes done, or the error that ended it.
    Done(Result<u64, Errno>),
}

impl Request {
    /// A request for `device`, nothing done yet.
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
            cancelled: false,
            mark: 0,
            state: RequestState::New,
        }
    }

    /// True when some queue has had it.
    #[inline]
    pub fn is_issued(&self) -> bool {
        self.state != RequestState::New && self.state != RequestState::Refused
    }

    /// Notes that it is handed to a queue, or that the queue gave it back.
    #[inline(always)]
    pub fn set_issued(&mut self, issued: bool) {
        self.state = if issued { RequestState::Issued } else { RequestState::New };
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

    /// Its result: bytes done, or the error.
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

    /// True if it ended without an error, but short.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.state == RequestState::Short
    }

    /// The same, durable on completion.
    pub fn durable(mut self) -> Request {
        self.durability = Durability::Durable;
        self
    }

    /// Bytes in all.
    #[inline]
    pub fn length(&self) -> u64 {
        self.payload.length()
    }

    /// Bytes done by earlier steps: the next step begins there.
    #[inline]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Applies a step's result. `moved` is what this step moved, after the
    /// bytes already [`done`](Self::done); `bounds` are the device's. A read is short only where the
    /// device ended when it was opened: one that breaks off before has failed (EIO), since the device
    /// has become shorter, and nothing is known of the rest.
    #[inline]
    pub fn advance(&mut self, moved: Result<u32, Errno>, bounds: Bounds) -> Progress {
        match moved {
            Ok(moved) if self.done + moved as u64 == self.length() || self.is_single_step() => {
                Progress::Done(Ok(self.length()))
            }
            other => self.advance_slow(other, bounds),
        }
    }

    /// Flush, discard and zeroing are done in one step, whatever number they answer.
    fn is_single_step(&self) -> bool {
        !matches!(self.op, Op::Read | Op::Write)
    }

    #[cold]
    fn advance_slow(&mut self, moved: Result<u32, Errno>, bounds: Bounds) -> Progress {
        let retry = |request: &mut Request, error| {
            request.retries += 1;
            if request.retries >= MAX_RETRIES {
                Progress::Done(Err(error))
            } else {
                Progress::Again
            }
        };
        match moved {
            // A device that ends here.
            Ok(0) if self.op == Op::Read => Progress::Done(self.short_read(self.done, bounds)),
            Ok(0) => retry(self, Errno::IO),
            Ok(moved) => {
                let tail = moved % bounds.block_size.max(1);
                if self.op == Op::Read && tail != 0 {
                    // Only the end of a file breaks off inside a block.
                    return Progress::Done(self.short_read(self.done + moved as u64, bounds));
                }
                if moved == tail {
                    return retry(self, Errno::IO);
                }
                self.done += (moved - tail) as u64;
                self.retries = 0;
                Progress::Again
            }
            Err(error @ (Errno::INTR | Errno::AGAIN)) => retry(self, error),
            Err(Errno::CANCELED) if !self.cancelled => retry(self, Errno::CANCELED),
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

/// A step's end: the request, and the bytes this step moved or its error.
/// [`Request::advance`] says whether that was all.
#[derive(Debug)]
pub struct Completion {
    /// The request, memory included.
    pub request: Request,
    /// Bytes this step moved, or its error.
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
        }
        assert_eq!(steps, MAX_RETRIES as usize - 1);
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
    fn an_unrequested_cancel_is_retried() {
        let mut request = read(4096);
        assert_eq!(request.advance(Err(Errno::CANCELED), BOUNDS), Progress::Again);
        request.cancelled = true;
        assert_eq!(
            request.advance(Err(Errno::CANCELED), BOUNDS),
            Progress::Done(Err(Errno::CANCELED))
        );
    }
}
