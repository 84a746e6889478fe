//! System calls that the crate `io-uring` does not offer in the form needed here:
//! entering by a registered ring descriptor, with a timeout in the same call.

use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::time::Duration;

use libc::{c_int, c_long, c_uint};
use rustix::fs::Timespec;
use rustix::io_uring::{
    IoringEnterFlags, io_uring_enter, io_uring_enter_arg, io_uring_getevents_arg, io_uring_ptr,
};
use uringfs_errno::Errno;

const REGISTER_RING_FDS: c_uint = 20;

/// The way in which `io_uring_enter` names a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingFd {
    /// By its descriptor.
    Descriptor(RawFd),
    /// By its index among the thread's registered rings, which saves the look-up of the descriptor.
    Registered(RawFd),
}

/// The result of a system call, or its error.
pub(crate) fn check(result: c_long) -> Result<u32, Errno> {
    if result < 0 {
        let error = std::io::Error::last_os_error();
        Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    } else {
        Ok(result as u32)
    }
}

/// Submits `submit` entries, lets the kernel finish deferred work, and waits until
/// `wait` completions are available or `timeout` has passed (ETIME). Returns the
/// number of entries that the kernel consumed.
///
/// Inlined down to the system call itself: the kernel overwrites the processor's
/// return stack buffer, so a return after the call is mispredicted, which costs
/// as much as hundreds of instructions.
#[inline(always)]
pub(crate) fn enter(
    ring: RingFd,
    submit: u32,
    wait: u32,
    timeout: Option<Duration>,
) -> Result<u32, Errno> {
    let (number, mut flags) = match ring {
        RingFd::Descriptor(descriptor) => (descriptor, IoringEnterFlags::GETEVENTS),
        RingFd::Registered(index) => {
            (index, IoringEnterFlags::GETEVENTS | IoringEnterFlags::REGISTERED_RING)
        }
    };
    // SAFETY: the ring's own descriptor, or an index among the thread's
    // registered rings, as the flag says; both last as long as the ring.
    let ring = unsafe { BorrowedFd::borrow_raw(number) };
    let entered = match timeout {
        // SAFETY: the entries name memory that the ring's tables own.
        None => unsafe { io_uring_enter(ring, submit, wait, flags) },
        Some(timeout) => {
            flags |= IoringEnterFlags::EXT_ARG;
            let time = Timespec {
                tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
                tv_nsec: timeout.subsec_nanos().into(),
            };
            let argument = io_uring_getevents_arg {
                ts: io_uring_ptr::new(ptr::from_ref(&time).cast_mut().cast()),
                ..Default::default()
            };
            // SAFETY: as above; the argument and the time outlive the call.
            unsafe { io_uring_enter_arg(ring, submit, wait, flags, Some(&argument)) }
        }
    };
    entered.map_err(Errno::from)
}

/// Registers the ring's own descriptor with the calling thread, and returns its index there.
pub(crate) fn register_ring(descriptor: RawFd) -> Result<RawFd, Errno> {
    #[repr(C)]
    struct Update {
        offset: u32,
        reserved: u32,
        data: u64,
    }
    let mut update = Update { offset: u32::MAX, reserved: 0, data: descriptor as u64 };
    // SAFETY: the kernel reads and writes `update`, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            descriptor,
            REGISTER_RING_FDS,
            ptr::from_mut(&mut update),
            1,
        )
    };
    check(result).map(|_| update.offset as RawFd)
}

/// Frees the index from [`register_ring`]. A thread has only 16 of them, and may
/// create many rings in its life.
pub(crate) fn unregister_ring(descriptor: RawFd, index: RawFd) {
    const UNREGISTER_RING_FDS: c_uint = 21;
    let update: [u32; 4] = [index as u32, 0, 0, 0];
    // SAFETY: the kernel reads `update`, laid out as io_uring_rsrc_update, which outlives the call.
    let _ = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            descriptor,
            UNREGISTER_RING_FDS,
            update.as_ptr(),
            1 as c_int,
        )
    };
}
