//! Runs requests on a queue to their end, as a reactor does: push, submit, reap,
//! wait, and push partly done requests again. Also lists all queues with all back
//! ends, each by name.

#![allow(dead_code)] // each test uses its own part

pub mod ceph;
pub mod loop_device;
pub mod model;
pub mod nbd_peer;
pub mod nbd_server;
pub mod random;

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loop_device::{LoopDevice, is_root};
use nbd_peer::{ALL_FLAGS, CachedDisk, Offer, cached_disk};
pub use random::Random;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uringfs_buffer::Buffer;
use uringfs_device::backend::block::Block;
use uringfs_device::backend::file::{Allocation, File};
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::nbd::Nbd;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::queue::aio::AioQueue;
use uringfs_device::queue::ring::RingQueue;
use uringfs_device::queue::sync::SyncQueue;
use uringfs_device::queue::threads::ThreadsQueue;
use uringfs_device::{
    Access, Clock, Device, DeviceInner, Errno, Op, Payload, Progress, Queue, Ready, Request,
    StepCompletion, Tag, VirtualClock,
};
use uringfs_nbd_protocol::handshake::export_flags;
use uringfs_ring::RingOptions;

/// A device, a queue to it, and its clock.
pub struct TestQueue {
    pub name: String,
    pub device: Device,
    pub queue: Box<dyn Queue>,
    pub clock: VirtualClock,
    /// The disk of the device, or its server, dropped after it.
    disk: Option<Box<dyn Any>>,
}

pub type MakeQueue = fn(Arc<DeviceInner>, usize) -> Box<dyn Queue>;

/// The name of a back end, its constructor, and the queues that serve it.
type BackEnd<'a> = (&'a str, &'a dyn Fn() -> Made, &'a [(&'a str, MakeQueue)]);
type Made = (Device, Option<Box<dyn Any>>);

/// Queues for devices with a descriptor.
pub const KERNEL_QUEUES: &[(&str, MakeQueue)] = &[
    ("sync", |core, depth| Box::new(SyncQueue::new(core, depth))),
    ("threads", |core, depth| Box::new(ThreadsQueue::new(core, depth, 3).unwrap())),
    ("aio", |core, depth| Box::new(AioQueue::new(core, depth).unwrap())),
    ("ring", |core, depth| {
        let options = RingOptions { transfers: depth as u32, ..RingOptions::default() };
        Box::new(RingQueue::new(core, &options).unwrap())
    }),
    ("ring that waits", |core, depth| {
        let options = RingOptions { transfers: depth as u32, ..RingOptions::default() };
        Box::new(RingQueue::new(core, &options).unwrap().waiting())
    }),
];

/// Queues for devices whose bytes are in this process.
const CALL_QUEUES: &[(&str, MakeQueue)] = &[
    ("sync", |core, depth| Box::new(SyncQueue::new(core, depth))),
    ("threads", |core, depth| Box::new(ThreadsQueue::new(core, depth, 3).unwrap())),
];

const OWN_QUEUE: &[(&str, MakeQueue)] =
    &[("own", |core, depth| core.backend().own_queue(depth).unwrap())];

/// Every queue with every back end that moves bytes, each device `size` bytes of
/// zeros. Block devices only for the superuser.
pub fn test_queues(folder: &Path, size: u64, depth: usize) -> Vec<TestQueue> {
    let clock = VirtualClock::default();
    let file = || {
        let name = Random(std::process::id().into()).below(u64::MAX);
        let path = folder.join(format!("{name}"));
        let file = File::create(&path, size, Allocation::Sparse).unwrap();
        std::fs::remove_file(&path).unwrap();
        (Device::new(file).unwrap(), None)
    };
    let block = || {
        let disk = LoopDevice::new(folder, size, &["--direct-io=on"]);
        let device = Device::new(Block::open(&disk.path, Access::ReadWrite).unwrap()).unwrap();
        (device, Some(Box::new(disk) as Box<dyn Any>))
    };
    let memory = || (Device::new(Memory::new(size).unwrap()).unwrap(), None);
    let plain = || (Device::new(Sim::new(SimOptions::new(size))).unwrap(), None);
    let slow = || {
        let micro = std::time::Duration::from_micros;
        let options = SimOptions::new(size).seed(3).latency(micro(10)..=micro(900)).units(4);
        (Device::new(Sim::new(options.clock(Clock::Virtual(clock.clone())))).unwrap(), None)
    };
    let shaky = || {
        let sim = Sim::new(SimOptions::new(size).seed(4).max_transfer(16 << 10));
        sim.inject(Rule::new(None, When::Every(3), Fault::Short));
        sim.inject(Rule::new(None, When::Every(5), Fault::Error(Errno::INTR)));
        sim.inject(Rule::new(None, When::Every(7), Fault::Error(Errno::AGAIN)));
        sim.inject(Rule::new(None, When::OneIn(9), Fault::Error(Errno::CANCELED)));
        (Device::new(sim).unwrap(), None)
    };
    let nbd = |flags| {
        let socket = tempfile::tempdir_in(folder).unwrap();
        let disk = CachedDisk::new(size as usize);
        let offer = Offer::new(size, flags);
        let peer = cached_disk(socket.path(), &disk, offer, Vec::new());
        let device = Device::new(Nbd::open(&peer.target(), Access::ReadWrite).unwrap()).unwrap();
        (device, Some(Box::new((peer, socket)) as Box<dyn Any>))
    };
    let one_connection = || nbd(ALL_FLAGS);
    let several_connections = || nbd(ALL_FLAGS | export_flags::CAN_MULTI_CONN);
    let back_ends: [BackEnd; 10] = [
        ("block device", &block, if is_root() { KERNEL_QUEUES } else { &[] }),
        ("file", &file, KERNEL_QUEUES),
        ("memory", &memory, CALL_QUEUES),
        ("sim", &plain, OWN_QUEUE),
        ("sim in the call", &plain, CALL_QUEUES),
        ("slow sim", &slow, OWN_QUEUE),
        ("shaky sim", &shaky, OWN_QUEUE),
        ("NBD", &one_connection, OWN_QUEUE),
        ("NBD in the call", &one_connection, CALL_QUEUES),
        ("NBD with several connections", &several_connections, OWN_QUEUE),
    ];
    let mut test_queues = Vec::new();
    for (back_end, device, queues) in back_ends {
        for (queue, make) in queues {
            let (device, disk) = device();
            test_queues.push(TestQueue {
                name: format!("{queue} on {back_end}"),
                queue: make(device.core().clone(), depth),
                device,
                clock: clock.clone(),
                disk,
            });
        }
    }
    test_queues
}

impl TestQueue {
    /// The own queue of `device`, for 64 requests.
    pub fn own(device: Device) -> TestQueue {
        let queue = device.core().backend().own_queue(64).expect("it has a queue of its own");
        let name = device.description();
        TestQueue { name, device, queue, clock: VirtualClock::default(), disk: None }
    }

    /// Another queue of `device`, for 64 requests.
    pub fn with(device: Device, make: MakeQueue) -> TestQueue {
        let queue = make(device.core().clone(), 64);
        let name = device.description();
        TestQueue { name, device, queue, clock: VirtualClock::default(), disk: None }
    }

    pub fn request(&self, op: Op, address: u64, payload: Payload, tag: u64) -> Request {
        Request::new(self.device.index(), op, address, payload, Tag(tag))
    }

    /// Submits all pushed requests, and waits until there may be something to reap.
    pub fn turn(&mut self) {
        self.queue.submit().unwrap();
        wait(&*self.queue, &self.clock);
    }

    /// Takes the requests that have ended.
    pub fn reap(&mut self, ended: &mut Vec<(Request, Result<u64, Errno>)>) {
        let bounds = self.device.core().bounds();
        while let Some(StepCompletion { mut request, result }) = self.queue.reap() {
            match request.advance(result, bounds) {
                Progress::Done(result) => ended.push((request, result)),
                Progress::Again => self.queue.push(request).expect("there was room"),
            }
        }
    }

    /// Runs all requests in flight to their end.
    pub fn finish(&mut self) -> Vec<(Request, Result<u64, Errno>)> {
        let mut ended = Vec::new();
        while self.queue.in_flight() > 0 {
            self.turn();
            self.reap(&mut ended);
        }
        assert!(self.queue.reap().is_none());
        assert!(matches!(self.queue.ready(), Ready::Never), "{}", self.name);
        ended
    }

    /// Runs one request to its end.
    pub fn run(&mut self, request: Request) -> (Request, Result<u64, Errno>) {
        self.queue.push(request).expect("there is room");
        self.finish().pop().expect("it ended")
    }

    pub fn read(&mut self, address: u64, length: usize) -> Vec<u8> {
        let payload = Payload::Buffer(Buffer::zeroed(length));
        let (request, result) = self.run(self.request(Op::Read, address, payload, 0));
        assert_eq!(result, Ok(length as u64), "{}: {request:?}", self.name);
        match request.payload {
            Payload::Buffer(buffer) => buffer.to_vec(),
            _ => unreachable!("the request has a buffer"),
        }
    }
}

pub fn poll_in(fd: BorrowedFd<'_>, most: Duration) -> Result<usize, rustix::io::Errno> {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&most))
}

/// Waits until there may be something to reap. Fails the test after ten minutes.
pub fn wait(queue: &dyn Queue, clock: &VirtualClock) {
    match queue.ready() {
        Ready::Never | Ready::Now => {}
        Ready::At(time) => clock.advance_to(time),
        Ready::Readable(fd) => {
            let woken = poll_in(fd, Duration::from_secs(600));
            assert_ne!(woken, Ok(0), "nothing came in ten minutes");
        }
        Ready::ReadableOrAt(fd, at) => {
            let _ = poll_in(fd, at.saturating_duration_since(Instant::now()));
        }
    }
}
