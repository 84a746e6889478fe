//! The control of every benchmark: a minimal loop directly over the kernel's
//! interface, without the costs of a library.
//!
//! One buffer a slot, the slot's number as `user_data`, no table of requests in
//! flight, no retries, no handling of short transfers.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use io_uring::IoUring;
use io_uring::squeue::Entry;
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_errno::Errno;

use crate::in_flight::RequestId;
use crate::probe::Features;
use crate::registered::FileSlot;
use crate::segment::IoSegment;
use crate::sqe::{Direction, Sqe, nop_sqe};
use crate::sys::{self, RingFd};

/// Options of a bare ring.
#[derive(Clone, Debug)]
pub struct BareOptions {
    /// Slots: the largest depth.
    pub depth: u32,
    /// Bytes of each slot's buffer.
    pub block_size: u32,
    /// Register the files.
    pub fixed_files: bool,
    /// Register the buffers.
    pub fixed_buffers: bool,
    /// Poll for completions.
    pub polled: bool,
    /// A thread of the kernel polls the submission queue (SQPOLL).
    pub submission_thread: bool,
    /// Every n-th request goes directly to a worker thread of the kernel; 0 for none.
    pub force_async: u32,
}

/// A minimal ring over some files. Without files its requests are NOPs.
pub struct BareRing {
    io: IoUring,
    fd: RingFd,
    /// Keeps the files open.
    _files: Vec<OwnedFd>,
    file_slots: Vec<FileSlot>,
    slots: Vec<Slot>,
    options: BareOptions,
    queued: u32,
    /// Requests until the next one that goes to a worker.
    until_async: u32,
    enters: u64,
}

impl fmt::Debug for BareRing {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("BareRing")
            .field("options", &self.options)
            .field("queued", &self.queued)
            .finish_non_exhaustive()
    }
}

/// The buffer of one request.
struct Slot {
    buffer: Buffer,
    /// The length of the last NOP.
    nop_length: u32,
    /// From push to completion: the kernel may be using the bytes.
    is_in_flight: bool,
}

impl BareRing {
    /// A ring over `files`, which registers files and buffers as the options say.
    ///
    /// # Errors
    /// The kernel's error when it refuses one of the options.
    pub fn new(options: BareOptions, files: &[BorrowedFd<'_>]) -> io::Result<BareRing> {
        let features = Features::probe().map_err(io::Error::other)?;
        let mut builder = IoUring::builder();
        if options.submission_thread {
            const IDLE_MS: u32 = 1000;
            builder.setup_sqpoll(IDLE_MS);
        } else if features.defer_taskrun.is_enabled() {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        if features.no_sqarray.is_enabled() {
            builder.setup_no_sqarray();
        }
        if options.polled {
            builder.setup_iopoll();
        }
        // The kernel's thread frees the entries of a batch when all of it is submitted. By then the caller
        // may have reaped its first completion and pushed a new request.
        let entries = if options.submission_thread { 2 * options.depth } else { options.depth };
        let io = builder.build(entries.next_power_of_two())?;
        let fd = sys::register_ring(io.as_raw_fd())
            .map_or(RingFd::Descriptor(io.as_raw_fd()), RingFd::Registered);
        let files: Vec<OwnedFd> =
            files.iter().map(|file| file.try_clone_to_owned()).collect::<Result<_, _>>()?;
        if options.fixed_files && !files.is_empty() {
            let descriptors: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
            io.submitter().register_files(&descriptors)?;
        }
        let slot_of = |(index, file): (u32, &OwnedFd)| {
            let plain = FileSlot::plain(file.as_raw_fd());
            if options.fixed_files { FileSlot::fixed(index) } else { plain }
        };
        let file_slots = (0..).zip(&files).map(slot_of).collect();
        let pool = BufferPool::new(options.block_size as usize, options.depth as usize)?;
        let slots: Vec<Slot> = std::iter::from_fn(|| pool.get())
            .map(|buffer| Slot { buffer, nop_length: 0, is_in_flight: false })
            .collect();
        if options.fixed_buffers {
            let region = slots[0].buffer.region();
            let vector =
                libc::iovec { iov_base: region.base().as_ptr().cast(), iov_len: region.len() };
            // SAFETY: the buffers hold the region, and are dropped only after the
            // ring has been drained.
            unsafe { io.submitter().register_buffers(&[vector]) }?;
        }
        let until_async = options.force_async;
        Ok(BareRing {
            io,
            fd,
            _files: files,
            file_slots,
            slots,
            options,
            queued: 0,
            until_async,
            enters: 0,
        })
    }

    /// The bytes of a slot that is not in flight.
    ///
    /// # Panics
    /// When it is: the kernel may be using the bytes.
    pub fn buffer(&mut self, slot: u32) -> &mut [u8] {
        let slot = &mut self.slots[slot as usize];
        assert!(!slot.is_in_flight, "the kernel may be using the buffer");
        &mut slot.buffer
    }

    /// Queues a read of `length` bytes into the slot's buffer.
    ///
    /// # Panics
    /// When the slot is in flight, or its buffer is shorter.
    #[inline]
    pub fn push_read(&mut self, slot: u32, file: u32, offset: u64, length: u32) {
        self.push(Direction::READ, slot, file, offset, length);
    }

    /// Queues a write of `length` bytes of the slot's buffer.
    ///
    /// # Panics
    /// When the slot is in flight, or its buffer is shorter.
    #[inline]
    pub fn push_write(&mut self, slot: u32, file: u32, offset: u64, length: u32) {
        self.push(Direction::WRITE, slot, file, offset, length);
    }

    #[inline(always)]
    fn push(&mut self, direction: Direction, slot: u32, file: u32, offset: u64, length: u32) {
        let Slot { buffer, nop_length, is_in_flight } = &mut self.slots[slot as usize];
        assert!(!*is_in_flight, "the slot is in flight");
        assert!(length as usize <= buffer.len());
        *is_in_flight = true;
        let segment = IoSegment { length, ..IoSegment::from_buffer(buffer, 0) };
        let Some(&file) = self.file_slots.get(file as usize) else {
            *nop_length = length;
            let file = self.sometimes_async(FileSlot::NOP);
            return self.queue(nop_sqe(RequestId(slot as u64)).flags(file.flags()));
        };
        let file = self.sometimes_async(file);
        let entry = if self.options.fixed_buffers {
            Sqe::fixed(direction, file, offset, &segment, 0)
        } else {
            Sqe::plain(direction, file, offset, &segment)
        };
        self.queue(entry.with_id(RequestId(slot as u64)));
    }

    #[inline(always)]
    fn queue(&mut self, entry: Entry) {
        // SAFETY: the slot's buffer is dropped after the ring has been drained.
        let pushed = unsafe { self.io.submission().push(&entry) };
        assert!(pushed.is_ok(), "more requests than slots");
        self.queued += 1;
    }

    #[inline(always)]
    fn sometimes_async(&mut self, file: FileSlot) -> FileSlot {
        if self.until_async == 0 {
            return file;
        }
        self.until_async -= 1;
        if self.until_async > 0 {
            return file;
        }
        self.until_async = self.options.force_async;
        file.by_worker()
    }

    /// Submits all queued requests and waits for at least `wait` completions; a signal may end the wait
    /// earlier.
    ///
    /// # Errors
    /// The kernel's error.
    #[inline]
    pub fn enter(&mut self, wait: u32) -> Result<(), Errno> {
        self.enters += 1;
        let entered = if self.options.submission_thread {
            self.wake_and_wait(wait)
        } else {
            match sys::enter(self.fd, self.queued, wait, None) {
                Ok(taken) => {
                    self.queued -= taken;
                    return Ok(());
                }
                Err(error) => Err(error),
            }
        };
        // The kernel returns EINTR only if it consumed no entry.
        if entered == Err(Errno::INTR) { Ok(()) } else { entered }
    }

    /// Wakes the kernel's thread if it sleeps, and waits for completions.
    #[cold]
    fn wake_and_wait(&mut self, wait: u32) -> Result<(), Errno> {
        self.queued = 0;
        let submitted = self.io.submit_and_wait(wait as usize);
        submitted.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// Calls `take` with slot and result of each completion, at most `max`.
    #[inline]
    pub fn reap(&mut self, max: usize, mut take: impl FnMut(u32, Result<u32, Errno>)) {
        let no_file = self.file_slots.is_empty();
        for completion in self.io.completion().take(max) {
            let index = completion.user_data() as u32;
            let slot = &mut self.slots[index as usize];
            slot.is_in_flight = false;
            let result = completion.result();
            let result = if result < 0 {
                Err(Errno::from_raw_os_error(-result))
            } else if no_file {
                // A NOP completes with 0: report all bytes as moved.
                Ok(slot.nop_length)
            } else {
                Ok(result as u32)
            };
            take(index, result);
        }
    }

    /// Calls of `io_uring_enter` so far.
    pub fn enters(&self) -> u64 {
        self.enters
    }
}

impl Drop for BareRing {
    fn drop(&mut self) {
        while self.slots.iter().any(|slot| slot.is_in_flight) {
            if self.enter(1).is_err() {
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
            self.reap(usize::MAX, |_, _| {});
        }
        let _ = self.io.submitter().unregister_files();
        if let RingFd::Registered(index) = self.fd {
            sys::unregister_ring(self.io.as_raw_fd(), index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(depth: u32) -> BareOptions {
        BareOptions {
            depth,
            block_size: 4096,
            fixed_files: false,
            fixed_buffers: false,
            polled: false,
            submission_thread: false,
            force_async: 0,
        }
    }

    fn nop_ring(depth: u32) -> BareRing {
        BareRing::new(options(depth), &[]).unwrap()
    }

    /// True if this process has a thread named `name` and the caller's id: the kernel's threads of a ring
    /// take such a name when they begin to run.
    fn has_thread(name: &str) -> bool {
        let name = format!("{name}-{}", rustix::thread::gettid().as_raw_nonzero());
        std::fs::read_dir("/proc/self/task").unwrap().flatten().any(|task| {
            let found = std::fs::read_to_string(task.path().join("comm"));
            found.is_ok_and(|found| found.trim_end() == name)
        })
    }

    fn run(ring: &mut BareRing, requests: u32) {
        for _ in 0..requests {
            ring.push_read(0, 0, 0, 4096);
            let mut done = 0;
            while done == 0 {
                ring.enter(1).unwrap();
                ring.reap(1, |_, result| {
                    assert_eq!(result, Ok(4096));
                    done += 1;
                });
            }
        }
    }

    #[test]
    fn every_nth_request_goes_to_a_kernel_worker() {
        let mut ring = BareRing::new(BareOptions { force_async: 4, ..options(1) }, &[]).unwrap();
        run(&mut ring, 3);
        assert!(!has_thread("iou-wrk"));
        run(&mut ring, 1);
        assert!(has_thread("iou-wrk"));
    }

    #[test]
    fn the_submission_thread_takes_queued_requests() {
        let with = BareOptions { submission_thread: true, ..options(1) };
        let mut ring = BareRing::new(with, &[]).unwrap();
        run(&mut ring, 100);
        assert!(has_thread("iou-sqp"));
    }

    #[test]
    fn a_completion_frees_its_own_slot_and_reports_the_pushed_length() {
        let mut ring = nop_ring(2);
        ring.push_read(0, 0, 0, 512);
        ring.buffer(1).fill(7);
        ring.enter(1).unwrap();
        let mut reaped = Vec::new();
        ring.reap(2, |slot, result| reaped.push((slot, result)));
        assert_eq!(reaped, [(0, Ok(512))]);
        assert_eq!(ring.buffer(0).len(), 4096);
    }

    #[test]
    #[should_panic(expected = "may be using the buffer")]
    fn the_buffer_of_a_slot_in_flight_is_inaccessible() {
        let mut ring = nop_ring(2);
        ring.push_read(0, 0, 0, 4096);
        ring.buffer(0);
    }

    #[test]
    #[should_panic(expected = "the slot is in flight")]
    fn a_slot_is_not_pushed_twice() {
        let mut ring = nop_ring(2);
        ring.push_read(0, 0, 0, 4096);
        ring.push_read(0, 0, 0, 4096);
    }
}
