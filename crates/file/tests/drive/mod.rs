//! What the tests of this crate share: draws that repeat, back ends by name,
//! several futures at once, and a back end that waits to be told.

#![allow(dead_code)] // each test uses its own part

#[path = "../../../device/tests/drive/loop_device.rs"]
pub mod loop_device;

use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use loop_device::LoopDevice;
use uringfs_buffer::Buffer;
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::null::Null;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Access, Clock, Device, Errno, VirtualClock};
use uringfs_file::{File, FileOptions};
use uringfs_reactor::{Completed, Reactor, ReactorOptions};

/// How much a test does: in proportion to `PROPTEST_CASES`, of which 256 are usual.
pub fn volume(usual: usize) -> usize {
    const USUAL_CASES: usize = 256;
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    (usual * cases.unwrap_or(USUAL_CASES) / USUAL_CASES).max(1)
}

/// SplitMix64, so that tests draw the same on every machine.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Where a file's bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEnd {
    Image,
    /// A loop device; for the superuser only.
    Block,
    Memory,
    /// Moves nothing: its content is not checked.
    Null,
    Sim,
    /// Blocks of 4096 bytes, small transfers, latency on the clock.
    SlowSim,
    /// Short, interrupted and cancelled at random.
    ShakySim,
}

/// A device of zeros, and what stands behind it.
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

    /// Virtual time may pass while real threads work, so it is no measure of patience.
    pub fn patience(self) -> Option<Duration> {
        if self == BackEnd::SlowSim { None } else { PATIENCE }
    }

    /// The clock that a reactor needs for it.
    pub fn clock(self, clock: &VirtualClock) -> Clock {
        match self {
            BackEnd::SlowSim => Clock::Virtual(clock.clone()),
            _ => Clock::System,
        }
    }
}

/// A file over the whole of a simulated device.
pub fn file_over(sim: &Sim) -> File {
    File::over(Device::new(sim.clone()).unwrap(), FileOptions::default())
}

/// A reactor with the usual options and a virtual clock.
pub fn reactor_by(clock: &VirtualClock) -> Reactor {
    let clock = Clock::Virtual(clock.clone());
    Reactor::new(ReactorOptions { clock, ..ReactorOptions::default() }).unwrap()
}

/// `length` bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, length: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(length);
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = (seed as usize).wrapping_mul(31).wrapping_add(at / 64).wrapping_add(at) as u8;
    }
    buffer
}

/// Waits for `count` completions. A test that would wait for ever fails.
pub fn reap(reactor: &Reactor, count: usize) -> Vec<Completed> {
    reap_within(reactor, count, PATIENCE)
}

/// How long a test waits for what ought to come at once.
pub const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// The same with a patience of the caller's.
pub fn reap_within(reactor: &Reactor, count: usize, patience: Option<Duration>) -> Vec<Completed> {
    let mut completed = Vec::new();
    reactor.reap(count, patience, &mut completed).unwrap();
    let found = completed.len();
    assert!(found >= count, "{found} of {count} completions within {patience:?}");
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
