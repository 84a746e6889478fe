//! Memory whose requests can be held up or made to panic, and waiting in a thread that gives up some time.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uringfs_device::backend::memory::Memory;
use uringfs_device::{Backend, Device, Errno, Geometry, Reach, Request};

/// More than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Lets requests pass while it is open.
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

    /// Has the next request panic.
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

    fn reach(&self) -> Reach<'_> {
        Reach::Call
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        assert!(!self.gate.panics.swap(false, Ordering::Relaxed), "as a test does");
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

/// Waits in this thread.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let (mut future, most) = (pin!(future), Instant::now() + PATIENCE);
    loop {
        if let Poll::Ready(ended) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return ended;
        }
        assert!(Instant::now() < most, "nobody answers");
        thread::park_timeout(PATIENCE);
    }
}
