//! Reads and writes of a whole buffer, as std's `read_exact_at` and `write_all_at`: several transfers if one is short.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use uringfs_buffer::{Buffer, IoBuf, IoBufMut, TooLong};
use uringfs_device::Errno;

use crate::api::operation::{BufResult, FileOp};
use crate::state::file::File;

impl File {
    /// Reads at `offset` until `buffer` is full: a `Vec` up to its capacity. After an error a `Vec` has the length of what
    /// was read.
    ///
    /// Errors: `UnexpectedEof` at the end of the file, with what there is at the front of the buffer; else as
    /// [`Self::read_at`].
    pub fn read_exact_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> ExactOp<B> {
        ExactOp::new(self, Direction::Read, buffer.lend_for_read(), offset)
    }

    /// Writes all of `buffer` at `offset`.
    ///
    /// Errors: `WriteZero` if a write makes no progress; else as [`Self::write_at`]. After an error a front part of the
    /// bytes may have been written.
    pub fn write_all_at<B: IoBuf>(&self, buffer: B, offset: u64) -> ExactOp<B> {
        ExactOp::new(self, Direction::Write, buffer.lend_for_write(), offset)
    }
}

/// A read or a write of a whole buffer that has not started: await it, or block the thread with [`Self::wait`]. The
/// output is the result and the buffer. One or more [`FileOp`]s, one after the other, which do what is said there about
/// memory and a dropped future.
///
/// ```
/// # mod uringfs { pub use uringfs_file::*; pub use uringfs_device as device; pub use uringfs_file as file; }
/// use uringfs::File;
/// use uringfs::device::Device;
/// use uringfs::device::backend::memory::Memory;
/// use uringfs::file::FileOptions;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = File::from_device(Device::new(Memory::new(1 << 20)?)?, FileOptions::new());
/// file.write_all_at("all of it", 4096).wait().0?;
/// let (read, bytes) = file.read_exact_at(vec![0; 9], 4096).wait();
/// read?;
/// assert_eq!(bytes, b"all of it");
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing happens until it is awaited, or waited for with `.wait()`"]
pub struct ExactOp<B> {
    file: File,
    direction: Direction,
    offset: u64,
    deadline: Option<Instant>,
    is_cancelled: bool,
    state: State,
    output: PhantomData<fn() -> B>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

enum State {
    /// Between two transfers.
    Idle(Parts),
    /// A transfer has the rest of the buffer; the front is here, if there is one.
    InFlight(FileOp<BufResult<usize>>, Option<Buffer>),
    Ended(io::Result<()>, Parts),
    /// The output has been taken.
    Taken,
}

impl<B: IoBuf> ExactOp<B> {
    fn new(
        file: &File,
        direction: Direction,
        lent: Result<Buffer, TooLong>,
        offset: u64,
    ) -> ExactOp<B> {
        let state = match lent {
            Ok(buffer) => State::Idle(Parts { front: None, rest: buffer }),
            Err(TooLong(buffer)) => {
                State::Ended(Err(Errno::INVAL.into()), Parts { front: None, rest: buffer })
            }
        };
        ExactOp {
            file: file.clone(),
            direction,
            offset,
            deadline: None,
            is_cancelled: false,
            state,
            output: PhantomData,
        }
    }

    /// Sets a deadline, as [`FileOp::deadline`]: the result is then `TimedOut`, and a front part may be done.
    pub fn deadline(mut self, deadline: Instant) -> ExactOp<B> {
        self.deadline = Some(deadline);
        self
    }

    /// Cancels it, as [`FileOp::cancel`]: the transfer in flight stops at its next safe step, and no other begins. It
    /// still ends: with ECANCELED, unless all was done before.
    pub fn cancel(&mut self) {
        self.is_cancelled = true;
        if let State::InFlight(transfer, _) = &mut self.state {
            transfer.cancel();
        }
    }

    /// Blocks the thread until it has ended, and returns the result and the buffer. As [`FileOp::wait`].
    pub fn wait(mut self) -> (io::Result<()>, B) {
        loop {
            match self.advance() {
                State::InFlight(transfer, front) => {
                    let (result, rest) = transfer.wait();
                    self.end_transfer(result, front, rest);
                }
                state => {
                    self.state = state;
                    return self.take_output();
                }
            }
        }
    }

    /// Takes the state, after the start of the next transfer if there is one.
    fn advance(&mut self) -> State {
        match mem::replace(&mut self.state, State::Taken) {
            State::Idle(parts) if parts.rest.is_empty() => State::Ended(Ok(()), parts),
            State::Idle(parts) if self.is_cancelled => {
                State::Ended(Err(Errno::CANCELED.into()), parts)
            }
            State::Idle(parts) => {
                let offset = self.offset.saturating_add(parts.done());
                let Parts { front, rest } = parts;
                let transfer = match self.direction {
                    Direction::Read => self.file.read_at(rest, offset),
                    Direction::Write => self.file.write_at(rest, offset),
                };
                let transfer = match self.deadline {
                    Some(deadline) => transfer.deadline(deadline),
                    None => transfer,
                };
                State::InFlight(transfer, front)
            }
            state => state,
        }
    }

    fn end_transfer(&mut self, result: Result<usize, Errno>, front: Option<Buffer>, rest: Buffer) {
        let mut parts = Parts { front, rest };
        self.state = match result {
            Ok(0) => State::Ended(Err(self.direction.no_progress().into()), parts),
            Ok(bytes) => {
                parts.advance(bytes);
                State::Idle(parts)
            }
            Err(errno) => State::Ended(Err(errno.into()), parts),
        };
    }

    fn take_output(&mut self) -> (io::Result<()>, B) {
        match mem::replace(&mut self.state, State::Taken) {
            State::Ended(result, parts) => {
                let done = parts.done() as usize;
                (result, B::take_back(parts.into_whole(), done))
            }
            _ => panic!("it was polled after its end"),
        }
    }
}

impl Direction {
    /// The error of a transfer that moved nothing.
    fn no_progress(self) -> io::ErrorKind {
        match self {
            Direction::Read => io::ErrorKind::UnexpectedEof,
            Direction::Write => io::ErrorKind::WriteZero,
        }
    }
}

impl<B: IoBuf> Future for ExactOp<B> {
    type Output = (io::Result<()>, B);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            self.state = self.advance();
            let State::InFlight(transfer, _) = &mut self.state else {
                return Poll::Ready(self.take_output());
            };
            let (result, rest) = ready!(Pin::new(transfer).poll(context));
            let State::InFlight(_, front) = mem::replace(&mut self.state, State::Taken) else {
                unreachable!("its transfer has just ended");
            };
            self.end_transfer(result, front, rest);
        }
    }
}

impl<B> fmt::Debug for ExactOp<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} of a whole buffer at {} of {:?}", self.direction, self.offset, self.file)
    }
}

/// A buffer in two parts: the bytes that were transferred, and the rest.
struct Parts {
    /// `None` before the first transfer.
    front: Option<Buffer>,
    rest: Buffer,
}

impl Parts {
    fn done(&self) -> u64 {
        self.front.as_ref().map_or(0, |front| front.len() as u64)
    }

    fn advance(&mut self, bytes: usize) {
        let rest = self.rest.split_off(bytes);
        let moved = mem::replace(&mut self.rest, rest);
        match &mut self.front {
            Some(front) => front.join(moved).expect("the parts are of one buffer"),
            None => self.front = Some(moved),
        }
    }

    fn into_whole(self) -> Buffer {
        let Some(mut front) = self.front else { return self.rest };
        // The rest is not the caller's memory if the operation that had it was lost.
        let _ = front.join(self.rest);
        front
    }
}
