//! The system calls that the `io-uring` crate does not make the way we need
//! them: entering by a registered ring descriptor with a timeout in the same
//! call, and noticing a fork.

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{mem, ptr};

use libc::{c_int, c_long, c_uint, c_void};
use rustix::io::Errno;

const ENTER_GETEVENTS: c_uint = 1;
const ENTER_EXT_ARG: c_uint = 8;
const ENTER_REGISTERED_RING: c_uint = 16;
const REGISTER_RING_FDS: c_uint = 20;

/// How a ring is named in `io_uring_enter`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingName {
    /// By its descriptor.
    Descriptor(RawFd),
    /// By its place among the thread's registered rings, which saves the look-up.
    Registered(RawFd),
}

#[repr(C)]
struct GetEventsArg {
    sigmask: u64,
    sigmask_size: u32,
    min_wait_usec: u32,
    timespec: u64,
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

fn answer(result: c_long) -> Result<u32, Errno> {
    if result < 0 {
        let error = std::io::Error::last_os_error();
        Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    } else {
        Ok(result as u32)
    }
}

/// Gives the kernel `submit` entries and waits until `wait` completions are
/// there or `timeout` has passed (ETIME). `reap` lets the kernel finish what
/// was deferred even when nothing is waited for. Answers the entries taken.
#[inline]
pub(crate) fn enter(
    ring: RingName,
    submit: u32,
    wait: u32,
    reap: bool,
    timeout: Option<Duration>,
) -> Result<u32, Errno> {
    let (descriptor, mut flags) = match ring {
        RingName::Descriptor(descriptor) => (descriptor, 0),
        RingName::Registered(place) => (place, ENTER_REGISTERED_RING),
    };
    if reap || wait > 0 {
        flags |= ENTER_GETEVENTS;
    }
    let time;
    let argument;
    let (pointer, size) = match timeout {
        None => (ptr::null::<c_void>(), 0),
        Some(timeout) => {
            flags |= ENTER_EXT_ARG;
            time = Timespec {
                seconds: timeout.as_secs().min(i64::MAX as u64) as i64,
                nanoseconds: timeout.subsec_nanos() as i64,
            };
            argument = GetEventsArg {
                sigmask: 0,
                sigmask_size: 0,
                min_wait_usec: 0,
                timespec: ptr::from_ref(&time) as u64,
            };
            (ptr::from_ref(&argument).cast(), mem::size_of::<GetEventsArg>())
        }
    };
    // SAFETY: the kernel reads the argument, which outlives the call, and the
    // submission queue, whose entries name memory that the ring's table owns.
    let result = unsafe {
        libc::syscall(libc::SYS_io_uring_enter, descriptor, submit, wait, flags, pointer, size)
    };
    answer(result)
}

/// Registers the ring's own descriptor with the calling thread and answers its place.
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
    answer(result).map(|_| update.offset as RawFd)
}

/// Gives the place from [`register_ring`] back. Rings come and go on a
/// thread, and a thread has 16 places.
pub(crate) fn unregister_ring(descriptor: RawFd, place: RawFd) {
    const UNREGISTER_RING_FDS: c_uint = 21;
    let update: [u32; 4] = [place as u32, 0, 0, 0];
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

/// Counts the forks this process descends from since the first ring was made.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Changes in the child of a fork. A ring made before must not be touched
/// there: its queues are memory shared with the parent.
#[inline(always)]
pub fn fork_count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Has forks counted from now on.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed after a fork.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    });
}
