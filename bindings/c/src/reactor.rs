//! Reactors: a thread's event loop. Queues take operations, a reap returns their completions.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::fmt;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::Duration;

use uringfs::buffer::ForeignBuffers;
use uringfs::device::Payload;
use uringfs::reactor::{Completions, Effect, QueueKind, TakeCompletion};
use uringfs::{Buffer, Completion, Errno, Reactor, ReactorOptions, Token};
use zerocopy::FromZeros;

use crate::error::Failure;
use crate::file::too_long;
use crate::handle::{Handle, HandleState, call, call_free, store, take};
use crate::pointers::store_at;
use crate::sized::{self, Growing};
use crate::switches;
use crate::thread::Owner;

/// A reactor: the event loop of the thread that has created it. Only this thread may use it, and closes it before it
/// ends: other threads get -EPERM.
pub struct ReactorHandle {
    state: HandleState,
    /// The thread that has created it.
    owner: Owner,
    /// Of its own, so that threads share no counter.
    memory: ForeignBuffers,
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
    fn state(&self) -> &HandleState {
        &self.state
    }

    #[inline(always)]
    fn check_caller(&self) -> Result<(), Failure> {
        if self.owner.is_this_thread() { Ok(()) } else { Err(other_thread()) }
    }
}

impl ReactorHandle {
    #[inline(always)]
    pub(crate) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// The caller's memory as the buffer of an operation.
    #[inline(always)]
    pub(crate) fn foreign(&self, address: NonNull<u8>, length: usize) -> Result<Buffer, Failure> {
        // SAFETY: the caller leaves the memory to the operation until it has completed, as the header says.
        unsafe { self.memory.buffer(address, length) }.ok_or_else(too_long)
    }

    /// The same for memory that is only read.
    #[inline(always)]
    pub(crate) fn constant(&self, address: NonNull<u8>, length: usize) -> Result<Buffer, Failure> {
        // SAFETY: as above.
        unsafe { self.memory.read_only(address, length) }.ok_or_else(too_long)
    }

    /// Gives the memory of an operation that has ended to the caller, who knows its address.
    #[inline(always)]
    pub(crate) fn give_back(&self, memory: Payload) {
        match memory {
            Payload::Buffer(buffer) if buffer.is_of_pool() => {
                buffer.into_raw();
            }
            Payload::Buffer(buffer) => self.memory.take_back(buffer),
            Payload::Buffers(_) | Payload::Length(_) => {}
        }
    }
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
    /// Reserved. 0.
    pub reserved: u32,
    /// Switches of reactors, name=value, with commas between them: ring.fixed_buffers=off. They come after the fields
    /// above. NULL: their defaults. They are for measurements.
    pub switches: *const c_char,
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
    /// The number that the operation was queued with.
    pub user_data: u64,
    /// A negative errno after a failure; otherwise the offset of an append, 0 of a flush, the number of bytes of all
    /// others.
    pub result: i64,
    /// A URINGFS_EFFECT_ constant: whether an operation that failed or was cancelled may have reached the device.
    pub effect: u32,
    /// Reserved. 0.
    pub reserved: u32,
}

/// Makes a reactor for this thread. `options` may be NULL. If io_uring is missing or forbidden, other queues serve.
/// Close the reactor before its thread ends: no other thread can.
///
/// Returns 0, or a negative errno: -EINVAL, -EMFILE, -ENFILE, -ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_reactor_create(
    options: *const CReactorOptions,
    reactor: Option<&mut *mut ReactorHandle>,
) -> i32 {
    store(reactor, || {
        let options = sized::read(options)?;
        sized::check_flags(options.reserved, 0, c"uringfs_reactor_options.reserved is not 0")?;
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
        switches::apply(options.switches, ReactorOptions::SWITCHES, |name, value| {
            reactor.set(name, value)
        })?;
        Ok(ReactorHandle {
            state: HandleState::default(),
            owner: Owner::this_thread(),
            memory: ForeignBuffers::default(),
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
/// An operation whose completion it does not return still uses its memory, also after a timeout: reap again, until the
/// completion is there. The wait goes on after a signal. No call of another thread ends it: a thread that others wake
/// sleeps in epoll instead, with uringfs_reactor_fd and an eventfd.
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
    call(reactor, |handle| reap(handle, completions, min, max, timeout_ns))
}

/// Out of line, so that its arguments are in registers: the closure of the call would have them in memory.
#[inline(never)]
fn reap(
    handle: &ReactorHandle,
    completions: *mut CCompletion,
    min: u32,
    max: u32,
    timeout_ns: i64,
) -> Result<i32, Failure> {
    let max = max.min(i32::MAX as u32);
    if min > max || completions.is_null() && max > 0 {
        return Err(Failure::argument(
            c"the array of completions is NULL, or shorter than the minimum",
        ));
    }
    if min == 0 && handle.is_watched.get() {
        handle.reactor.turn().map_err(refused)?;
    }
    match u64::try_from(timeout_ns) {
        Ok(timeout) if min > 0 => {
            reap_within(handle, completions, min, max, Duration::from_nanos(timeout))
        }
        _ => deliver(handle, handle.reactor.completions(min as usize, None), completions, max),
    }
}

/// Out of line: a wait without a timeout, of which there are many, then has none to keep.
#[cold]
#[inline(never)]
fn reap_within(
    handle: &ReactorHandle,
    completions: *mut CCompletion,
    min: u32,
    max: u32,
    timeout: Duration,
) -> Result<i32, Failure> {
    deliver(handle, handle.reactor.completions(min as usize, Some(timeout)), completions, max)
}

/// Stores completions in the array. Returns their number.
#[inline(always)]
fn deliver(
    handle: &ReactorHandle,
    completed: Result<Completions<'_>, Errno>,
    completions: *mut CCompletion,
    max: u32,
) -> Result<i32, Failure> {
    let mut delivery = Delivery { handle, completions };
    let taken = completed.and_then(|completed| completed.take_each(max as usize, &mut delivery));
    Ok(taken.map_err(refused)? as i32)
}

/// Stores completions in an array that has room for them.
struct Delivery<'h> {
    handle: &'h ReactorHandle,
    completions: *mut CCompletion,
}

impl TakeCompletion for Delivery<'_> {
    #[inline(always)]
    fn take(&mut self, number: usize, completion: Completion) {
        let (result, effect) = match completion.result() {
            Ok(moved) => (moved.cast_signed(), URINGFS_EFFECT_DONE),
            Err(errno) => (-i64::from(errno.raw_os_error()), effect_of(completion.effect())),
        };
        let user_data = completion.token().get();
        store_at(self.completions, number, CCompletion { user_data, result, effect, reserved: 0 });
        self.handle.give_back(completion.into_payload());
    }
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

/// Requests the cancellation of the operations in flight with this `user_data`. Each still completes, once: with
/// -ECANCELED, or as if it was not cancelled. Until that completion is reaped it uses its memory.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_reactor_cancel(reactor: Option<&ReactorHandle>, user_data: u64) -> i32 {
    call(reactor, |handle| {
        handle.reactor.cancel(token(user_data)?);
        Ok(0)
    })
}

/// Closes a reactor, in the thread that has created it, and waits until nothing is in flight: then memory of the caller
/// is free to use, and buffers of pools are back in their pools. Completions that were not reaped are lost. NULL is
/// allowed.
///
/// Returns 0, or -EPERM in another thread, where the reactor stays open.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_reactor_close(reactor: *mut ReactorHandle) -> i32 {
    call_free(|| {
        drop(take(reactor)?);
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
