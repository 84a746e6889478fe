//! Reactors: a thread's event loop. Queues take operations, a reap returns their completions.

use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;
use std::mem;
use std::os::fd::AsRawFd;
use std::time::Duration;

use uringfs::buffer::ForeignMemory;
use uringfs::device::Payload;
use uringfs::reactor::{Effect, QueueKind};
use uringfs::{Errno, Reactor, ReactorOptions, Token};
use zerocopy::FromZeros;

use crate::error::Failure;
use crate::handle::{Handle, Poison, call, call_free, store, take};
use crate::pointers::store_at;
use crate::sized::{self, Growing};

/// A reactor: the event loop of the thread that has created it. Only this thread may use it: other threads get -EPERM.
pub struct ReactorHandle {
    poison: Poison,
    thread: libc::pthread_t,
    /// Of its own, so that threads share no counter.
    memory: ForeignMemory,
    reactor: Reactor,
    /// A loop of the caller watches its descriptor.
    is_watched: Cell<bool>,
}

impl fmt::Debug for ReactorHandle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reactor.fmt(out)
    }
}

impl Handle for ReactorHandle {
    #[inline(always)]
    fn poison(&self) -> &Poison {
        &self.poison
    }

    #[inline(always)]
    fn check_caller(&self) -> Result<(), Failure> {
        if self.thread == this_thread() { Ok(()) } else { Err(other_thread()) }
    }
}

impl ReactorHandle {
    #[inline(always)]
    pub(crate) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    #[inline(always)]
    pub(crate) fn memory(&self) -> &ForeignMemory {
        &self.memory
    }
}

#[inline(always)]
fn this_thread() -> libc::pthread_t {
    // SAFETY: it has no conditions.
    unsafe { libc::pthread_self() }
}

#[cold]
fn other_thread() -> Failure {
    Failure::fixed(Errno::PERM, c"a reactor is used by the thread that has created it alone")
}

/// The queue that carries requests to devices: the fastest on each device, found by measuring.
pub const URINGFS_QUEUE_AUTO: u32 = 0;
/// The queue that carries requests to devices: io_uring.
pub const URINGFS_QUEUE_RING: u32 = 1;
/// The queue that carries requests to devices: Linux AIO.
pub const URINGFS_QUEUE_AIO: u32 = 2;
/// The queue that carries requests to devices: calls that block this thread.
pub const URINGFS_QUEUE_SYNC: u32 = 3;
/// The queue that carries requests to devices: calls that block threads of the queue.
pub const URINGFS_QUEUE_THREADS: u32 = 4;

/// How a reactor is made.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct CReactorOptions {
    /// sizeof this struct. All fields that are not set are 0.
    pub size: u32,
    /// The maximum of operations in flight, 1 to 16384. 0: 1024.
    pub depth: u32,
    /// URINGFS_QUEUE_AUTO or another queue.
    pub queue: u32,
}

// SAFETY: `repr(C)`, the size first, no padding.
unsafe impl Growing for CReactorOptions {
    const FIRST_SIZE: usize = 12;
}

/// The effect of an operation that has succeeded: it was carried out.
pub const URINGFS_EFFECT_DONE: u32 = 0;
/// The effect of an operation that has failed: nothing of it has reached the device.
pub const URINGFS_EFFECT_NOT_STARTED: u32 = 1;
/// The effect of an operation that has failed: some of it may have reached the device.
pub const URINGFS_EFFECT_UNKNOWN: u32 = 2;

/// The completion of an operation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CCompletion {
    /// That of the operation.
    pub user_data: u64,
    /// Bytes that were moved or discarded, of an append its offset, of a flush 0; or a negative errno.
    pub result: i64,
    /// URINGFS_EFFECT_DONE, or what a failed or cancelled operation has done.
    pub effect: u32,
    /// 0.
    pub reserved: u32,
}

/// Makes a reactor for this thread. `options` may be NULL. If io_uring is missing or forbidden, other queues serve.
///
/// Returns 0, or a negative errno: -EINVAL, -EMFILE, -ENFILE, -ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_reactor_create(
    options: *const CReactorOptions,
    reactor: Option<&mut *mut ReactorHandle>,
) -> i32 {
    store(reactor, || {
        let options = sized::read(options)?;
        let queue = match options.queue {
            URINGFS_QUEUE_AUTO => QueueKind::Auto,
            URINGFS_QUEUE_RING => QueueKind::Ring,
            URINGFS_QUEUE_AIO => QueueKind::Aio,
            URINGFS_QUEUE_SYNC => QueueKind::Sync,
            URINGFS_QUEUE_THREADS => QueueKind::Threads,
            _ => {
                return Err(Failure::argument(
                    c"there is no such queue: pass a URINGFS_QUEUE_ constant",
                ));
            }
        };
        let mut reactor = ReactorOptions::new().queue(queue);
        match options.depth {
            0 => {}
            depth @ 1..=16384 => reactor = reactor.depth(depth),
            _ => return Err(Failure::argument(c"the depth of a reactor is 1 to 16384")),
        }
        Ok(ReactorHandle {
            poison: Poison::default(),
            thread: this_thread(),
            memory: ForeignMemory::default(),
            reactor: Reactor::new(reactor)?,
            is_watched: Cell::new(false),
        })
    })
}

/// Hands all queued operations to the devices. uringfs_reactor_reap does that, too.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_reactor_submit(reactor: Option<&ReactorHandle>) -> i32 {
    call(reactor, |handle| match handle.reactor.submit() {
        Ok(()) => Ok(0),
        Err(errno) => Err(refused(errno)),
    })
}

/// Submits what is queued, waits until at least `min` operations have completed, or `timeout_ns` have passed (negative:
/// without end), and takes at most `max` completions into the array. Waits for no more than are in flight. With a `min`
/// of 0 it does not wait.
///
/// Returns the number of completions, or a negative errno: -EINVAL, -EPERM in another thread, -ECHILD in the child of a
/// fork, or the kernel's reason to take no requests at all.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_reactor_reap(
    reactor: Option<&ReactorHandle>,
    completions: *mut CCompletion,
    min: u32,
    max: u32,
    timeout_ns: i64,
) -> i32 {
    call(reactor, |handle| {
        let max = max.min(i32::MAX as u32);
        if min > max || completions.is_null() && max > 0 {
            return Err(Failure::argument(
                c"the array of completions is NULL, or shorter than the minimum",
            ));
        }
        if min == 0 && handle.is_watched.get() {
            handle.reactor.turn().map_err(refused)?;
        }
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        let timeout = if min == 0 { None } else { timeout };
        let mut completed = handle.reactor.completions(min as usize, timeout).map_err(refused)?;
        let mut taken = 0;
        while taken < max {
            let Some(completion) = completed.next() else { break };
            let (result, effect) = match completion.result() {
                Ok(moved) => (moved.cast_signed(), URINGFS_EFFECT_DONE),
                Err(errno) => (-i64::from(errno.raw_os_error()), effect_of(completion.effect())),
            };
            let user_data = completion.token().get();
            store_at(completions, taken, CCompletion { user_data, result, effect, reserved: 0 });
            // The memory is the caller's again.
            match completion.payload() {
                Payload::Buffer(buffer) if buffer.is_of_pool() => mem::forget(completion),
                _ => drop(completion),
            }
            taken += 1;
        }
        Ok(taken.cast_signed())
    })
}

/// A descriptor that is readable when there is something to do, for epoll and the like: then call uringfs_reactor_reap
/// with a `min` of 0, until it returns fewer than `max`. Do the same after each time operations were queued, before the
/// loop sleeps. It belongs to the reactor; do not read or close it.
///
/// Returns the descriptor, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_reactor_fd(reactor: Option<&ReactorHandle>) -> c_int {
    call(reactor, |handle| {
        let descriptor = handle.reactor.fd()?.as_raw_fd();
        handle.is_watched.set(true);
        Ok(descriptor)
    })
}

/// Requests cancellation of the operations in flight with this `user_data`. Each still completes, once, and its effect
/// says what became of it: with -ECANCELED, or as if it was not cancelled.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_reactor_cancel(reactor: Option<&ReactorHandle>, user_data: u64) -> i32 {
    call(reactor, |handle| {
        handle.reactor.cancel(token(user_data)?);
        Ok(0)
    })
}

/// Closes a reactor, in its thread. First it finishes what is in flight; completions that were not reaped are lost, and
/// buffers of pools in them are the pools' again. NULL is allowed.
///
/// Returns 0, or -EPERM in another thread, where the reactor stays open.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_reactor_close(reactor: *mut ReactorHandle) -> i32 {
    call_free(|| {
        let Some(handle) = take(reactor) else { return Ok(0) };
        if let Err(failure) = handle.check_caller() {
            // It stays C's, and its thread's.
            let _ = Box::into_raw(handle);
            return Err(failure);
        }
        drop(handle);
        Ok(0)
    })
}

/// The token of an operation.
#[inline(always)]
pub(crate) fn token(user_data: u64) -> Result<Token, Failure> {
    match user_data >> 63 {
        0 => Ok(Token::new(user_data)),
        _ => {
            Err(Failure::argument(c"user_data is 2^63 or more: these values are the library's own"))
        }
    }
}

/// A reactor that does not take an operation, or cannot wait.
#[cold]
pub(crate) fn refused(errno: Errno) -> Failure {
    match errno {
        Errno::AGAIN => Failure::fixed(
            errno,
            c"as much is in flight as the reactor's depth allows, or as the kernel takes: reap completions first",
        ),
        Errno::NODEV => Failure::fixed(errno, c"the device has been removed"),
        Errno::CHILD => Failure::fixed(errno, c"the reactor is the parent process's: create one after the fork"),
        errno => Failure::of_file("the reactor refuses", errno),
    }
}

#[cold]
fn effect_of(effect: Effect) -> u32 {
    match effect {
        Effect::Done => URINGFS_EFFECT_DONE,
        Effect::NotStarted => URINGFS_EFFECT_NOT_STARTED,
        Effect::Unknown => URINGFS_EFFECT_UNKNOWN,
    }
}
