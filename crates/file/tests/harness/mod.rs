//! Shared by the tests of this crate: repeatable random numbers, back ends by name, and several futures at
//! once.

#![allow(dead_code)] // each test uses its own part

pub mod block_map;
#[path = "../../../device/tests/harness/loop_device.rs"]
pub mod loop_device;
#[path = "../../../device/tests/harness/random.rs"]
mod random;

use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use loop_device::LoopDevice;
#[allow(unused_imports, reason = "each test uses its own part")]
pub use random::{Random, scaled};
use uringfs_buffer::Buffer;
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::null::Null;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Access, Clock, Device, Errno, VirtualClock};
use uringfs_file::{File, FileOptions};
use uringfs_reactor::{Completion, Reactor, ReactorOptions};

/// The back end of a test's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEnd {
    Image,
    /// A loop device; needs root.
    Block,
    Memory,
    /// Moves no bytes: its content is not checked.
    Null,
    Sim,
    /// Blocks of 4096 bytes, small transfers, latency on the clock.
    SlowSim,
    /// Random short, interrupted and cancelled requests.
    ShakySim,
}

/// A device of zeros, with its loop device if it has one.
pub struct Made {
    pub device: Device,
    _disk: Option<LoopDevice>,
}

impl BackEnd {
    pub fn make(self, folder: &Path, size: u64, clock: &VirtualClock) -> Made {
        let mut disk = None;
        let device = match self {
            BackEnd::Image => {
                let path = tempfile::Builder::new().tempfile_in(folder).unwrap().into_temp_path();
                let name = path.to_path_buf();
                path.close().unwrap();
                let file = ImageFile::create(&name, size, Allocation::Sparse).unwrap();
                std::fs::remove_file(name).unwrap();
                Device::new(file)
            }
            BackEnd::Block => {
                let made = LoopDevice::new(folder, size, &["--direct-io=on"]);
                let device = Device::open(&made.path, Access::ReadWrite);
                disk = Some(made);
                device
            }
            BackEnd::Memory => Device::new(Memory::new(size).unwrap()),
            BackEnd::Null => Device::new(Null::new(size)),
            BackEnd::Sim => Device::new(Sim::new(SimOptions::new(size))),
            BackEnd::SlowSim => {
                let micro = Duration::from_micros;
                let options = SimOptions::new(size).seed(3).block_size(4096).units(4);
                let options = options.max_transfer(64 << 10).latency(micro(10)..=micro(900));
                Device::new(Sim::new(options.clock(Clock::Virtual(clock.clone()))))
            }
            BackEnd::ShakySim => {
                let sim = Sim::new(SimOptions::new(size).seed(4).max_transfer(256 << 10));
                sim.inject(Rule::new(None, When::Every(3), Fault::Short));
                sim.inject(Rule::new(None, When::Every(5), Fault::Error(Errno::INTR)));
                sim.inject(Rule::new(None, When::Every(7), Fault::Error(Errno::AGAIN)));
                sim.inject(Rule::new(None, When::OneIn(9), Fault::Error(Errno::CANCELED)));
                Device::new(sim)
            }
        };
        Made { device: device.unwrap(), _disk: disk }
    }

    /// No timeout on virtual time, which may pass while real threads work.
    pub fn timeout(self) -> Option<Duration> {
        if self == BackEnd::SlowSim { None } else { TIMEOUT }
    }

    /// The clock of a reactor for this back end.
    pub fn clock(self, clock: &VirtualClock) -> Clock {
        match self {
            BackEnd::SlowSim => Clock::Virtual(clock.clone()),
            _ => Clock::System,
        }
    }
}

/// A file over a whole simulated device.
pub fn file_over(sim: &Sim) -> File {
    File::from_device(Device::new(sim.clone()).unwrap(), FileOptions::default())
}

/// A reactor with default options and a virtual clock.
pub fn reactor_by(clock: &VirtualClock) -> Reactor {
    let clock = Clock::Virtual(clock.clone());
    Reactor::new(ReactorOptions::new().clock(clock)).unwrap()
}

/// `length` bytes that differ by position and by seed.
pub fn pattern(seed: u64, length: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(length);
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = (seed as usize).wrapping_mul(31).wrapping_add(at / 64).wrapping_add(at) as u8;
    }
    buffer
}

/// Waits for `count` completions. Fails instead of waiting for ever.
pub fn reap(reactor: &Reactor, count: usize) -> Vec<Completion> {
    reap_within(reactor, count, TIMEOUT)
}

/// Timeout of a test for what should come at once.
pub const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

/// As [`reap`], with a timeout of the caller.
pub fn reap_within(reactor: &Reactor, count: usize, timeout: Option<Duration>) -> Vec<Completion> {
    let mut completed = Vec::new();
    reactor.reap(count, timeout, &mut completed).unwrap();
    let found = completed.len();
    assert!(found >= count, "{found} of {count} completions within {timeout:?}");
    completed
}

/// Polls all futures until the last has ended.
pub async fn join_all<T>(futures: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(Some).collect();
    let mut ended: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, end) in futures.iter_mut().zip(&mut ended) {
            if let Some(running) = future
                && let Poll::Ready(value) = running.as_mut().poll(context)
            {
                *end = Some(value);
                *future = None;
            }
        }
        if futures.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ended.into_iter().map(|end| end.expect("all have ended")).collect()
}
