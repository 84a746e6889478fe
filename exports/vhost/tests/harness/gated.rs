//! A device that cannot zero by itself, and holds zeros up until its gate is open.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use uringfs::device::backend::memory::Memory;
use uringfs::device::{Backend, Device, Geometry, Op};
use uringfs::file::FileOptions;
use uringfs::{Errno, File};
use uringfs_device::{KernelTarget, Request};

/// The gate of a device. Dropping it opens it.
pub struct Gate(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_open: bool,
    zeroed: u64,
}

impl Gate {
    pub fn open(&self) {
        self.0.state.lock().is_open = true;
        self.0.changed.notify_all();
    }

    /// Waits until zeros are held up.
    pub fn wait(&self) {
        let mut state = self.0.state.lock();
        let is_early = |state: &mut State| state.zeroed == 0;
        let waited = self.0.changed.wait_while_for(&mut state, is_early, Duration::from_secs(60));
        assert!(!waited.timed_out(), "nothing is zeroed");
    }

    /// The bytes that the device was asked to zero.
    pub fn zeroed(&self) -> u64 {
        self.0.state.lock().zeroed
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

struct Gated {
    memory: Memory,
    geometry: Geometry,
    gate: Arc<Shared>,
}

impl Backend for Gated {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn description(&self) -> String {
        "memory with a gate".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        if request.op == Op::WriteZeroes {
            let mut state = self.gate.state.lock();
            state.zeroed += request.length();
            self.gate.changed.notify_all();
            self.gate.changed.wait_while(&mut state, |state| !state.is_open);
        }
        self.memory.perform(request)
    }
}

/// A device of so many bytes as a file, and its gate, which is shut.
pub fn gated(bytes: u64) -> (File, Gate) {
    let (memory, gate) = (Memory::new(bytes).unwrap(), Arc::<Shared>::default());
    let geometry = Geometry { write_zeroes: false, ..memory.geometry().clone() };
    let device = Device::new(Gated { memory, geometry, gate: gate.clone() }).unwrap();
    (File::from_device(device, FileOptions::new()), Gate(gate))
}
