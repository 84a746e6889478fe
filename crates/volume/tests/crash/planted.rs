//! Devices and writers with faults that must be detected: a dropped flush, data that reach the
//! device after the commit that refers to them, and a block that is reused too early.

use std::sync::{Arc, Mutex};

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::Sim;
use uringfs_device::{
    Backend, Device, DeviceIndex, Errno, Geometry, KernelTarget, Op, Payload, Request, Tag,
};

use crate::model::BLOCK;

/// A fault of the device.
#[derive(Clone, Copy, Debug)]
pub enum Planted {
    Nothing,
    /// This flush, counted from 1, succeeds without effect. So do the flushes that follow it
    /// without a write in between.
    DroppedFlush(usize),
    /// Writes that do not come from the committing thread reach the device after this many flushes.
    LateData {
        flushes: usize,
    },
}

/// A simulated device with a planted fault. Clones are the same device.
#[derive(Clone)]
pub struct Faulty {
    sim: Sim,
    state: Arc<Mutex<State>>,
}

struct State {
    planted: Planted,
    /// Counted from the planting.
    flushes: usize,
    has_written: bool,
    /// Acknowledged writes, each with the number of the flush after which they are written.
    late: Vec<(usize, u64, Vec<u8>)>,
}

impl Faulty {
    pub fn over(sim: Sim) -> Faulty {
        let (planted, late) = (Planted::Nothing, Vec::new());
        let state = State { planted, flushes: 0, has_written: false, late };
        Faulty { sim, state: Arc::new(Mutex::new(state)) }
    }

    pub fn plant(&self, planted: Planted) {
        let state = &mut *self.state.lock().unwrap();
        (state.planted, state.flushes) = (planted, 0);
    }
}

impl Backend for Faulty {
    fn geometry(&self) -> &Geometry {
        self.sim.geometry()
    }

    fn description(&self) -> String {
        "a simulated device with a fault".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let state = &mut *self.state.lock().unwrap();
        match (state.planted, request.op) {
            (Planted::LateData { flushes }, Op::Write) if !is_commit() => {
                let bytes = bytes_of(request).to_vec();
                let length = bytes.len() as u32;
                state.late.push((state.flushes + flushes, request.address, bytes));
                return Ok(length);
            }
            (_, Op::Flush) => {
                state.flushes += usize::from(std::mem::take(&mut state.has_written));
                if matches!(state.planted, Planted::DroppedFlush(nth) if nth == state.flushes) {
                    return Ok(0);
                }
                let flushed = self.sim.perform(request);
                for (_, address, bytes) in state.late.extract_if(.., |it| it.0 <= state.flushes) {
                    write(&self.sim, request.device, address, &bytes);
                }
                return flushed;
            }
            (_, op) => state.has_written |= op != Op::Read,
        }
        let moved = self.sim.perform(request);
        if request.op == Op::Read {
            let address = request.address;
            for (_, start, late) in &state.late {
                overlay(bytes_of(request), address, late, *start);
            }
        }
        moved
    }
}

fn is_commit() -> bool {
    std::thread::current().name() == Some("uringfs-commit")
}

fn bytes_of(request: &mut Request) -> &mut [u8] {
    match &mut request.payload {
        Payload::Buffer(buffer) => buffer,
        payload => panic!("{payload:?} is not one buffer"),
    }
}

/// Copies the part of `late`, which lies at `start`, that overlaps `bytes`, which lie at `address`.
fn overlay(bytes: &mut [u8], address: u64, late: &[u8], start: u64) {
    let from = address.max(start);
    let to = (address + bytes.len() as u64).min(start + late.len() as u64);
    if from < to {
        let (there, here) = ((from - address) as usize, (from - start) as usize);
        let length = (to - from) as usize;
        bytes[there..there + length].copy_from_slice(&late[here..here + length]);
    }
}

fn write(sim: &Sim, device: DeviceIndex, address: u64, bytes: &[u8]) {
    let payload = Payload::Buffer(Buffer::copy_of(bytes));
    let mut request = Request::new(device, Op::Write, address, payload, Tag(0));
    assert_eq!(sim.perform(&mut request), Ok(bytes.len() as u32));
}

/// Finds the block that holds these bytes and overwrites it, as a new owner would.
pub fn reuse_block(sim: &Sim, device: &Device, content: &[u8]) {
    let mut block = [0; BLOCK];
    let blocks = (0..sim.geometry().size).step_by(BLOCK);
    let mut holders = blocks.filter(|address| {
        sim.peek(*address, &mut block);
        block == content
    });
    let address = holders.next().expect("a block holds the bytes");
    write(sim, device.index(), address, &[0xdd; BLOCK]);
}
