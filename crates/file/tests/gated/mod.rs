//! A device whose requests can be held up or made to panic, and a blocking wait with a timeout.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uringfs_device::backend::memory::Memory;
use uringfs_device::{Backend, Device, Errno, Geometry, KernelTarget, Request};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Requests pass while it is open.
#[derive(Default)]
pub struct Gate {
    is_closed: Mutex<bool>,
    changed: Condvar,
    panics: AtomicBool,
}

impl Gate {
    pub fn close(&self) {
        *self.is_closed.lock() = true;
    }

    pub fn open(&self) {
        *self.is_closed.lock() = false;
        self.changed.notify_all();
    }

    /// Makes the next request panic.
    pub fn panic_once(&self) {
        self.panics.store(true, Ordering::Relaxed);
    }
}

struct Gated {
    memory: Memory,
    gate: Arc<Gate>,
}

/// A device of `size` bytes, and its gate.
pub fn gated(size: u64) -> (Device, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let memory = Memory::new(size).unwrap();
    (Device::new(Gated { memory, gate: gate.clone() }).unwrap(), gate)
}

impl Backend for Gated {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn description(&self) -> String {
        "memory with a gate".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        assert!(!self.gate.panics.swap(false, Ordering::Relaxed), "deliberate panic of a test");
        let mut is_closed = self.gate.is_closed.lock();
        while *is_closed {
            self.gate.changed.wait(&mut is_closed);
        }
        drop(is_closed);
        self.memory.perform(request)
    }
}

struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until the future ends.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let (mut future, deadline) = (pin!(future), Instant::now() + TIMEOUT);
    loop {
        if let Poll::Ready(ended) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return ended;
        }
        assert!(Instant::now() < deadline, "the future does not end");
        thread::park_timeout(TIMEOUT);
    }
}
