//! Devices and writers that do what must be found: a flush that is dropped, bytes that reach the device after
//! the commit that leads to them, and a block that is used again too early.

use std::sync::{Arc, Mutex};

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::Sim;
use uringfs_device::{
    Backend, Device, DeviceIndex, Errno, Geometry, Op, Payload, Reach, Request, Tag,
};

use crate::model::BLOCK;

/// What a device does wrong.
#[derive(Clone, Copy, Debug)]
pub enum Planted {
    Nothing,
    /// This flush from now on answers well and does nothing, counted from 1; those that follow it without a
    /// write between them are the same.
    DroppedFlush(usize),
    /// What does not come from the thread that commits is written when so many flushes have ended.
    LateData {
        flushes: usize,
    },
}

/// A simulated device in which a fault is planted. Clones are the same device.
#[derive(Clone)]
pub struct Faulty {
    sim: Sim,
    state: Arc<Mutex<State>>,
}

struct State {
    planted: Planted,
    /// Since it was planted.
    flushes: usize,
    has_written: bool,
    /// Writes that were acknowledged, each with the flush behind which they are written.
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

    fn reach(&self) -> Reach<'_> {
        Reach::Call
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
                lay_over(bytes_of(request), address, late, *start);
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
        payload => panic!("{payload:?} is not one piece"),
    }
}

/// Puts what of `late`, which lies at `start`, lies in `bytes`, which lie at `address`.
fn lay_over(bytes: &mut [u8], address: u64, late: &[u8], start: u64) {
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

/// Gives the block that holds these bytes to somebody else, who writes to it.
pub fn use_again(sim: &Sim, device: &Device, content: &[u8]) {
    let mut block = [0; BLOCK];
    let blocks = (0..sim.geometry().size).step_by(BLOCK);
    let mut holders = blocks.filter(|address| {
        sim.peek(*address, &mut block);
        block == content
    });
    let address = holders.next().expect("the block lies somewhere");
    write(sim, device.index(), address, &[0xdd; BLOCK]);
}
