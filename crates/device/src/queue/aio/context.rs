//! The kernel's side of Linux AIO: its structures (linux/aio_abi.h, fs/aio.c), its
//! system calls, and the ring of events that it shares.

use std::cell::Cell;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use uringfs_errno::Errno;

/// `IOCB_FLAG_RESFD`: each completion adds 1 to an eventfd.
pub(super) const RESFD: u32 = 1;
/// Marks a shared ring with the layout below (`AIO_RING_MAGIC`).
const RING_MAGIC: u32 = 0xa10a_10a1;

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ControlBlock {
    pub data: u64,
    #[cfg(target_endian = "little")]
    pub key: u32,
    pub rw_flags: i32,
    #[cfg(target_endian = "big")]
    pub key: u32,
    pub opcode: u16,
    pub priority: i16,
    pub file: u32,
    pub memory: u64,
    pub length: u64,
    pub offset: i64,
    pub reserved: u64,
    pub flags: u32,
    pub resfd: u32,
}

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Event {
    pub data: u64,
    pub object: u64,
    pub result: i64,
    pub result2: i64,
}

/// `struct aio_ring` of fs/aio.c: the head of the ring that io_setup maps.
#[repr(C)]
pub(super) struct RingHeader {
    id: u32,
    /// The capacity of the ring, in events.
    length: u32,
    /// Written by the reaping side.
    head: u32,
    /// Written by the kernel.
    tail: u32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    header_length: u32,
}

/// The way to reap completions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaping {
    /// From the shared ring.
    Mapped,
    /// By io_getevents, if the layout of the ring is unknown.
    ByCall,
}

/// An AIO context of the kernel. Its drop waits for everything in flight.
pub(super) struct Context {
    /// The context's id, which is the address of its ring.
    ring: NonNull<RingHeader>,
    pub(super) reaping: Reaping,
    system_calls: Cell<u64>,
}

impl Context {
    pub(super) fn new(depth: u32) -> io::Result<Context> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: io_setup writes one word to where `id` is, during the call.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut id) };
        if result != 0 {
            return Err(explain(io::Error::last_os_error(), depth));
        }
        let ring = NonNull::new(id as *mut RingHeader)
            .ok_or_else(|| io::Error::other("Linux AIO: the kernel gave no context"))?;
        // SAFETY: io_setup has mapped the ring, at least a page, at the address
        // that is the context's id; it stays mapped until io_destroy in this type's drop.
        let header = unsafe { ring.as_ptr().read_volatile() };
        let known = header.magic == RING_MAGIC
            && header.incompatible == 0
            && header.header_length as usize == size_of::<RingHeader>()
            && header.length > 0;
        let reaping = if known { Reaping::Mapped } else { Reaping::ByCall };
        Ok(Context { ring, reaping, system_calls: Cell::new(0) })
    }

    /// System calls to submit, reap or cancel requests.
    pub(super) fn system_calls(&self) -> u64 {
        self.system_calls.get()
    }

    fn count_call(&self) {
        self.system_calls.set(self.system_calls.get() + 1);
    }

    fn id(&self) -> libc::c_ulong {
        self.ring.as_ptr() as libc::c_ulong
    }

    fn head(&self) -> &AtomicU32 {
        // SAFETY: inside the mapped ring, see `new`.
        let field = unsafe { &raw mut (*self.ring.as_ptr()).head };
        // SAFETY: aligned, mapped while `self` lives, and used as an atomic only.
        unsafe { AtomicU32::from_ptr(field) }
    }

    fn tail(&self) -> &AtomicU32 {
        // SAFETY: inside the mapped ring, see `new`.
        let field = unsafe { &raw mut (*self.ring.as_ptr()).tail };
        // SAFETY: as in `head`; the kernel writes it whole.
        unsafe { AtomicU32::from_ptr(field) }
    }

    /// Submits requests. Returns the number that the kernel accepted, or the error of the first.
    ///
    /// # Safety
    /// Each entry points to a control block. No other code may access the memory that
    /// the block names until its event has been taken or this context is dropped.
    /// The vectors that a block names need to last only for the call.
    pub(super) unsafe fn submit(&self, batch: &mut [*mut ControlBlock]) -> Result<usize, Errno> {
        self.count_call();
        // SAFETY: the kernel copies the blocks and their vectors during the
        // call; the caller guarantees the memory after it.
        let taken = unsafe {
            libc::syscall(
                libc::SYS_io_submit,
                self.id(),
                batch.len() as libc::c_long,
                batch.as_mut_ptr(),
            )
        };
        match taken {
            1.. => Ok(taken as usize),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }

    /// Asks the kernel to cancel the request that was submitted with this control block,
    /// which must not have moved. The request still completes with an event.
    pub(super) fn cancel(&self, block: &ControlBlock) {
        let mut event = Event::default();
        self.count_call();
        // SAFETY: the kernel looks up the control block's address among its own
        // and reads its key; it writes only the event.
        let _ = unsafe {
            libc::syscall(libc::SYS_io_cancel, self.id(), ptr::from_ref(block), &raw mut event)
        };
    }

    /// True if there is an event to take, as far as is visible without a system call.
    pub(super) fn has_events(&self) -> bool {
        match self.reaping {
            Reaping::Mapped => {
                self.head().load(Ordering::Relaxed) != self.tail().load(Ordering::Acquire)
            }
            Reaping::ByCall => false,
        }
    }

    #[inline]
    pub(super) fn take(&self) -> Option<Event> {
        if self.reaping == Reaping::ByCall {
            return self.take_by_call();
        }
        let head = self.head().load(Ordering::Relaxed);
        // Acquire: the kernel wrote the event before it moved the tail.
        if head == self.tail().load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: inside the mapped ring, see `new`; the kernel never changes it.
        let length = unsafe { (*self.ring.as_ptr()).length };
        // SAFETY: the events begin where the header ends, in the same mapping.
        let events = unsafe { self.ring.as_ptr().add(1) }.cast::<Event>();
        // SAFETY: the index is below the length of the ring.
        let entry = unsafe { events.add((head % length) as usize) };
        // SAFETY: the kernel wrote the event before the tail passed it, and does not
        // write there again before the head passes it.
        let event = unsafe { entry.read_volatile() };
        // Release: the event is read before the kernel may reuse its entry.
        self.head().store((head + 1) % length, Ordering::Release);
        Some(event)
    }

    fn take_by_call(&self) -> Option<Event> {
        let mut event = Event::default();
        self.count_call();
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most the one requested event, and reads
        // the time, during the call.
        let taken = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.id(),
                0 as libc::c_long,
                1 as libc::c_long,
                &raw mut event,
                &raw const now,
            )
        };
        (taken == 1).then_some(event)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: this value is the only user of the context. The call returns when
        // the last request in flight has completed (fs/aio.c, since 3.15), so the
        // kernel no longer uses their memory, which is dropped later.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id()) };
    }
}

fn explain(error: io::Error, depth: u32) -> io::Error {
    let why = match Errno::from_io_error(&error) {
        Some(Errno::AGAIN) => {
            format!("the limit leaves no room for {depth} requests; raise the sysctl fs.aio-max-nr")
        }
        Some(Errno::NOSYS) => "the kernel was built without it, or a filter forbids it".into(),
        Some(Errno::PERM | Errno::ACCESS) => "a filter (seccomp) forbids it".into(),
        Some(Errno::INVAL) => format!("a depth of {depth} is not possible"),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("Linux AIO: {why}"))
}
