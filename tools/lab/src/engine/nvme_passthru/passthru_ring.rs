//! A minimal io_uring loop of NVMe commands (`IORING_OP_URING_CMD`, `NVME_URING_CMD_IO`): submission entries of 128 bytes,
//! completions of 32. One buffer a slot, the slot's number as `user_data`; no table of requests in flight, no retries.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;

use io_uring::IoUring;
use io_uring::cqueue::Entry32;
use io_uring::opcode::UringCmd80;
use io_uring::squeue::{Entry128, Flags};
use nix::libc;
use rustix::io_uring::{
    IoringEnterFlags, IoringRegisterOp, io_uring_enter, io_uring_ptr, io_uring_register,
    io_uring_rsrc_update,
};
use uringfs::{Buffer, BufferPool, Errno};
use uringfs_ring::Features;
use uringfs_ring::nvme::NvmeStatus;

use crate::targets::{DataRange, NvmeCommand};

/// `NVME_URING_CMD_IO` of linux/nvme_ioctl.h.
const IO_COMMAND: u32 = 0xc048_4e80;
/// `IORING_URING_CMD_FIXED` of linux/io_uring.h: the memory is in the registered buffer.
const FIXED_BUFFER: u32 = 1;

/// Options of the ring.
#[derive(Clone, Debug)]
pub struct PassthruOptions {
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
}

/// A ring over the character devices of some namespaces.
pub struct PassthruRing {
    io: IoUring<Entry128, Entry32>,
    /// The index of the ring among those that the thread has registered.
    registered: Option<RawFd>,
    /// Keeps the files open.
    _files: Vec<OwnedFd>,
    /// The first word of the entries of each file.
    heads: Vec<u64>,
    slots: Vec<Slot>,
    fixed_buffers: bool,
    queued: u32,
    enters: u64,
    /// The last status of a command that was not 0.
    status: Option<u32>,
}

/// The buffer of one command.
struct Slot {
    buffer: Buffer,
    /// The length of the last transfer, as the completion has none.
    length: u32,
    /// From push to completion: the kernel may be using the bytes.
    is_in_flight: bool,
}

impl PassthruRing {
    /// A ring over `files`, which registers files and buffers as the options say.
    ///
    /// # Errors
    /// The kernel's error when it refuses one of the options.
    pub fn new(options: &PassthruOptions, files: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let features = Features::probe().map_err(io::Error::other)?;
        let mut builder = IoUring::<Entry128, Entry32>::builder();
        if features.defer_taskrun.is_enabled() {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        if features.no_sqarray.is_enabled() {
            builder.setup_no_sqarray();
        }
        if options.polled {
            builder.setup_iopoll();
        }
        let io = builder.build(options.depth.next_power_of_two())?;
        let registered = register_ring(&io).ok();
        let files: Vec<OwnedFd> =
            files.iter().map(|file| file.try_clone_to_owned()).collect::<Result<_, _>>()?;
        if options.fixed_files {
            let descriptors: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
            io.submitter().register_files(&descriptors)?;
        }
        let head_of = |(index, file): (u32, &OwnedFd)| match options.fixed_files {
            true => head(index, Flags::FIXED_FILE),
            false => head(file.as_raw_fd() as u32, Flags::empty()),
        };
        let heads = (0..).zip(&files).map(head_of).collect();
        let pool = BufferPool::new(options.block_size as usize, options.depth as usize)?;
        let slots: Vec<Slot> = std::iter::from_fn(|| pool.get())
            .map(|buffer| Slot { buffer, length: 0, is_in_flight: false })
            .collect();
        if options.fixed_buffers {
            let region = slots[0].buffer.region();
            let vector =
                libc::iovec { iov_base: region.base().as_ptr().cast(), iov_len: region.len() };
            // SAFETY: the buffers hold the region, and are dropped only after the ring has been drained.
            unsafe { io.submitter().register_buffers(&[vector]) }?;
        }
        let fixed_buffers = options.fixed_buffers;
        Ok(Self {
            io,
            registered,
            _files: files,
            heads,
            slots,
            fixed_buffers,
            queued: 0,
            enters: 0,
            status: None,
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

    /// Queues the command that `command` makes of the first `length` bytes of the slot's buffer.
    ///
    /// # Panics
    /// When the slot is in flight, or its buffer is shorter.
    #[inline(always)]
    pub fn push(
        &mut self,
        slot: u32,
        file: u32,
        length: u32,
        command: impl FnOnce(DataRange) -> NvmeCommand,
    ) {
        let head = self.heads[file as usize];
        let Slot { buffer, length: pushed, is_in_flight } = &mut self.slots[slot as usize];
        assert!(!*is_in_flight, "the slot is in flight");
        assert!(length as usize <= buffer.len(), "the buffer is shorter");
        (*is_in_flight, *pushed) = (true, length);
        let address = buffer.pointer().as_ptr() as u64;
        let flags = if self.fixed_buffers { FIXED_BUFFER } else { 0 };
        let entry = Sqe {
            head,
            operation: IO_COMMAND.into(),
            address: 0,
            length_and_flags: u64::from(flags) << 32,
            user_data: slot.into(),
            buffer_index: 0,
            command: command(DataRange { address, length }),
            unused: 0,
        };
        // SAFETY: an `Entry128` is the kernel's structure (`repr(C)`) of integers only, and this one has the same size.
        let entry = unsafe { mem::transmute::<Sqe, Entry128>(entry) };
        // SAFETY: the slot's buffer is dropped after the ring has been drained.
        let pushed = unsafe { self.io.submission().push(&entry) };
        assert!(pushed.is_ok(), "more commands than slots");
        self.queued += 1;
    }

    /// Submits all queued commands and waits for at least `wait` completions; a signal may end the wait earlier.
    ///
    /// # Errors
    /// The kernel's error.
    #[inline]
    pub fn enter(&mut self, wait: u32) -> Result<(), Errno> {
        self.enters += 1;
        let (number, flags) = match self.registered {
            Some(index) => (index, IoringEnterFlags::GETEVENTS | IoringEnterFlags::REGISTERED_RING),
            None => (self.io.as_raw_fd(), IoringEnterFlags::GETEVENTS),
        };
        // SAFETY: the ring's own descriptor, or its index among the thread's registered rings, as the flag says; both last as
        // long as the ring.
        let ring = unsafe { BorrowedFd::borrow_raw(number) };
        // SAFETY: the queued entries name memory of the slots, which outlive them.
        match unsafe { io_uring_enter(ring, self.queued, wait, flags) } {
            Ok(taken) => {
                self.queued -= taken;
                Ok(())
            }
            // The kernel returns EINTR only if it consumed no entry.
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Calls `take` with slot and result of each completion, at most `max`.
    #[inline]
    pub fn reap(&mut self, max: usize, mut take: impl FnMut(u32, Result<u32, Errno>)) {
        for completion in self.io.completion().take(max) {
            let index = completion.user_data() as u32;
            let slot = &mut self.slots[index as usize];
            slot.is_in_flight = false;
            let result = match completion.result() {
                0 => Ok(slot.length),
                errno if errno < 0 => Err(Errno::from_raw_os_error(-errno)),
                status => {
                    self.status = Some(status as u32);
                    Err(NvmeStatus::from_result(status as u32).errno())
                }
            };
            take(index, result);
        }
    }

    /// Calls of `io_uring_enter` so far.
    pub fn enters(&self) -> u64 {
        self.enters
    }

    /// The last status of a command that was not 0.
    pub fn status(&self) -> Option<u32> {
        self.status
    }
}

impl Drop for PassthruRing {
    fn drop(&mut self) {
        while self.slots.iter().any(|slot| slot.is_in_flight) {
            if self.enter(1).is_err() {
                mem::forget(mem::take(&mut self.slots));
                return;
            }
            self.reap(usize::MAX, |_, _| {});
        }
        if let Some(index) = self.registered {
            unregister_ring(&self.io, index);
        }
    }
}

/// A command in the kernel's format: `struct io_uring_sqe` of `<linux/io_uring.h>` in its form of 128 bytes, so that each word is
/// written once. The builder of the crate `io-uring` would copy the command twice.
#[repr(C)]
struct Sqe {
    /// Operation code, flags, priority, file.
    head: u64,
    operation: u64,
    address: u64,
    length_and_flags: u64,
    user_data: u64,
    /// Of the registered buffers there is one.
    buffer_index: u64,
    command: NvmeCommand,
    unused: u64,
}

const _: () = assert!(size_of::<Sqe>() == 128 && mem::offset_of!(Sqe, command) == 48);

/// The first word of the entries of a file, which is a descriptor or an index.
fn head(file: u32, flags: Flags) -> u64 {
    u64::from(file) << 32 | u64::from(flags.bits()) << 8 | u64::from(UringCmd80::CODE)
}

/// Registers the ring's own descriptor with the calling thread, and returns its index there.
fn register_ring(io: &IoUring<Entry128, Entry32>) -> Result<RawFd, Errno> {
    let mut update = io_uring_rsrc_update::default();
    update.offset = u32::MAX;
    update.data = io_uring_ptr::new(ptr::without_provenance_mut(io.as_raw_fd() as usize));
    // SAFETY: the ring's own descriptor, which is open.
    let ring = unsafe { BorrowedFd::borrow_raw(io.as_raw_fd()) };
    let argument = ptr::from_mut(&mut update).cast();
    // SAFETY: the kernel reads and writes `update`, which outlives the call.
    unsafe { io_uring_register(ring, IoringRegisterOp::RegisterRingFds, argument, 1) }?;
    Ok(update.offset as RawFd)
}

/// Frees the index from [`register_ring`]. A thread has only 16 of them.
fn unregister_ring(io: &IoUring<Entry128, Entry32>, index: RawFd) {
    let mut update = io_uring_rsrc_update::default();
    update.offset = index as u32;
    // SAFETY: the ring's own descriptor, which is open.
    let ring = unsafe { BorrowedFd::borrow_raw(io.as_raw_fd()) };
    let argument = ptr::from_mut(&mut update).cast();
    // SAFETY: the kernel reads `update`, which outlives the call.
    let _ = unsafe { io_uring_register(ring, IoringRegisterOp::UnregisterRingFds, argument, 1) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::Transfer;
    use std::os::fd::AsFd;

    fn options() -> PassthruOptions {
        PassthruOptions {
            depth: 2,
            block_size: 4096,
            fixed_files: false,
            fixed_buffers: false,
            polled: false,
        }
    }

    fn read(data: DataRange) -> NvmeCommand {
        NvmeCommand::transfer(Transfer::Read, 1, 0, 8, data)
    }

    /// A file without commands answers EOPNOTSUPP, with registered files and buffers and without.
    #[test]
    fn a_completion_frees_its_own_slot() {
        let file = std::fs::File::open("/dev/zero").unwrap();
        for fixed in [false, true] {
            let options = PassthruOptions { fixed_files: fixed, fixed_buffers: fixed, ..options() };
            let mut ring = PassthruRing::new(&options, &[file.as_fd()]).unwrap();
            for round in 0..3 {
                ring.push(0, 0, 4096, read);
                ring.buffer(1).fill(7);
                ring.enter(1).unwrap();
                let mut reaped = Vec::new();
                ring.reap(2, |slot, result| reaped.push((slot, result)));
                assert_eq!(reaped, [(0, Err(Errno::OPNOTSUPP))], "{round}");
                assert_eq!(ring.buffer(0).len(), 4096);
            }
            assert_eq!((ring.enters(), ring.status()), (3, None));
        }
    }

    #[test]
    #[should_panic(expected = "the slot is in flight")]
    fn a_slot_is_not_pushed_twice() {
        let file = std::fs::File::open("/dev/zero").unwrap();
        let mut ring = PassthruRing::new(&options(), &[file.as_fd()]).unwrap();
        ring.push(0, 0, 4096, read);
        ring.push(0, 0, 4096, read);
    }

    #[test]
    fn the_command_has_the_number_of_the_kernels_header() {
        let command = rustix::ioctl::opcode::read_write::<NvmeCommand>(b'N', 0x80);
        assert_eq!(command, IO_COMMAND);
    }

    #[test]
    fn an_entry_begins_with_code_flags_and_file() {
        assert_eq!(head(5, Flags::FIXED_FILE), 5 << 32 | 1 << 8 | 46);
        assert_eq!(head(7, Flags::empty()), 7 << 32 | 46);
    }
}
