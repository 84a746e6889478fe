//! Zeroing that takes long, on a device that cannot zero by itself.

mod harness;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::Served;
use harness::client::begin;
use uringfs::device::backend::memory::Memory;
use uringfs::device::{Backend, Device, Geometry, Op};
use uringfs::file::FileOptions;
use uringfs::{Errno, File};
use uringfs_device::{KernelTarget, Request as DeviceRequest};
use uringfs_nbd_protocol::transmission::{Command, Request, SimpleReply};
use zerocopy::{FromBytes, IntoBytes};

const REQUESTS: u64 = 32;
const LENGTH: u64 = 1 << 30;
/// ESHUTDOWN.
const SHUTDOWN: u32 = 108;

/// Memory that takes a while for zeros, like a disk to which they are written.
struct Slow {
    memory: Memory,
    geometry: Geometry,
    zeroed: Arc<AtomicU64>,
}

impl Backend for Slow {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn description(&self) -> String {
        "slow memory".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut DeviceRequest) -> Result<u32, Errno> {
        if request.op == Op::WriteZeroes {
            self.zeroed.fetch_add(request.length(), Ordering::SeqCst);
            thread::sleep(Duration::from_millis(1));
        }
        self.memory.perform(request)
    }
}

/// A client that has asked for zeros on all of its disk, of which some are written.
struct Zeroing {
    client: UnixStream,
    served: Served,
    zeroed: Arc<AtomicU64>,
}

impl Zeroing {
    fn begin() -> Zeroing {
        let memory = Memory::new(REQUESTS * LENGTH).unwrap();
        let geometry = Geometry { write_zeroes: false, ..memory.geometry().clone() };
        let zeroed = Arc::<AtomicU64>::default();
        let device = Device::new(Slow { memory, geometry, zeroed: zeroed.clone() }).unwrap();
        let served = Served::new(File::from_device(device, FileOptions::new()));
        let mut client = begin(&served, "disk");
        let request =
            |number| Request::new(Command::WRITE_ZEROES, 0, number, number * LENGTH, LENGTH as u32);
        let requests: Vec<u8> =
            (0..REQUESTS).flat_map(|number| request(number).as_bytes().to_vec()).collect();
        client.write_all(&requests).unwrap();
        wait_until("zeros are written", || zeroed.load(Ordering::SeqCst) > 0);
        Zeroing { client, served, zeroed }
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not so: {what}");
        thread::yield_now();
    }
}

#[test]
fn a_stop_does_not_wait_for_all_zeros() {
    let Zeroing { mut client, mut served, zeroed } = Zeroing::begin();
    served.end();
    assert!(zeroed.load(Ordering::SeqCst) < REQUESTS * LENGTH, "all was zeroed");
    let mut replies = Vec::new();
    // Requests that the server has not read end the connection by an error.
    let _ = client.read_to_end(&mut replies);
    assert!(!replies.is_empty());
    for reply in replies.chunks(size_of::<SimpleReply>()) {
        assert_eq!(SimpleReply::read_from_bytes(reply).unwrap().error.get(), SHUTDOWN);
    }
}

#[test]
fn the_zeroings_of_a_client_that_is_lost_end() {
    let Zeroing { client, served, zeroed } = Zeroing::begin();
    drop(client);
    wait_until("the connection has ended", || served.exports.connections("disk") == 0);
    assert!(zeroed.load(Ordering::SeqCst) < REQUESTS * LENGTH, "all was zeroed");
}
