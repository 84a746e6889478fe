//! [`Lease`]: the end of a process that was stopped for too long.
//!
//! A process that is stopped, or whose machine sleeps, notices nothing of a client that takes its image. When it goes on, what
//! librbd has still under way reaches the image if the entry on the blocklist has ended meanwhile, and no code of this library
//! could prevent it. So the kernel kills a process that has not run for the time of its lease: also one that is stopped.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use uringfs_errno::Errno;

use super::periodic::Periodic;

/// How often a lease is renewed in its time.
const RENEWALS: u32 = 4;

/// The lease of a device. It ends with its drop.
pub(super) struct Lease {
    _renewing: Periodic,
}

impl Lease {
    /// Lets the kernel kill this process as soon as it has not run for so long, until the lease is dropped.
    ///
    /// # Errors
    /// EAGAIN if the kernel has no more timers, or no more threads.
    pub(super) fn begin(time: Duration) -> Result<Lease, Errno> {
        let timer = KillTimer::new()?;
        timer.set(time)?;
        let renew = move || {
            // It fails for no timer that exists and for no time.
            let _ = timer.set(time);
        };
        let renewing = Periodic::begin("uringfs-rbd-lease", time / RENEWALS, renew)?;
        Ok(Lease { _renewing: renewing })
    }
}

/// A timer of the kernel that kills this process.
struct KillTimer(libc::timer_t);

// SAFETY: any thread of the process may use a timer.
unsafe impl Send for KillTimer {}

impl KillTimer {
    fn new() -> Result<KillTimer, Errno> {
        // SAFETY: zeros are a valid event; the fields that matter follow.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: both pointers are valid during the call. The clock goes on while the machine sleeps.
        match unsafe { libc::timer_create(libc::CLOCK_BOOTTIME, &mut event, &mut timer) } {
            0 => Ok(KillTimer(timer)),
            _ => {
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN))
            }
        }
    }

    /// Sets the time until the kill.
    fn set(&self, time: Duration) -> Result<(), Errno> {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let first =
            libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let value = libc::itimerspec { it_interval: never, it_value: first };
        // SAFETY: the timer exists, and the value is valid during the call.
        match unsafe { libc::timer_settime(self.0, 0, &value, ptr::null_mut()) } {
            0 => Ok(()),
            _ => {
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
            }
        }
    }
}

impl Drop for KillTimer {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and is not used any more.
        unsafe { libc::timer_delete(self.0) };
    }
}
