//! A server that is killed at any moment: the next one goes on with the guest's requests.

mod harness;

use std::env;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use harness::IMAGE_BYTES;
use harness::front_end::{Driver, FrontEnd, Queue, SLOT, WRITE_OUT, code, data_at};
use uringfs::File;
use uringfs::device::Access;
use uringfs_vhost::{Disk, VhostServer};

/// Names the folder of a child that serves.
const CHILD: &str = "URINGFS_TEST_VHOST_FOLDER";
const SIZE: u16 = 64;
const SLOTS: u16 = SIZE / SLOT;

/// Serves until it is killed, in a child of the other test.
#[test]
fn child_serves() {
    let Some(folder) = env::var_os(CHILD) else { return };
    let folder = Path::new(&folder);
    let file = File::open(folder.join("image"), Access::ReadWrite).unwrap();
    VhostServer::bind(folder.join("socket"), 0o600, Disk::new(file)).unwrap().serve().unwrap();
}

struct Server(Child);

impl Server {
    fn start(folder: &Path) -> Server {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "child_serves", "--nocapture"]).env(CHILD, folder);
        let server = Server(command.spawn().unwrap());
        let begun = Instant::now();
        while UnixStream::connect(folder.join("socket")).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the server does not listen");
            std::thread::yield_now();
        }
        server
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The table of requests in flight, which a front end keeps.
struct Table {
    descriptor: OwnedFd,
    payload: Vec<u8>,
}

fn connect(folder: &Path, driver: &mut Driver, table: &Table) {
    driver.front_end = FrontEnd::connect(&folder.join("socket"));
    let front_end = &driver.front_end;
    front_end.negotiate(0);
    front_end.add_memory(&driver.memory);
    let descriptor = [table.descriptor.as_fd()];
    assert!(front_end.request(code::SET_INFLIGHT_FD, &table.payload, &descriptor));
    // As QEMU does after a lost connection.
    let base = driver.memory.load(driver.queue.used() + 2);
    front_end.start(&driver.queue, base.into());
}

#[test]
fn a_guest_survives_servers_that_are_killed() {
    const KILLS: u64 = 12;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    uringfs::create_image(folder.join("image"), IMAGE_BYTES).unwrap();
    let mut server = Server::start(folder);
    let mut driver = Driver::new(&folder.join("socket"), 0, Queue::split(0, SIZE));
    driver.front_end.stop(0);
    let area = [&[0; 16][..], &1_u16.to_ne_bytes(), &SIZE.to_ne_bytes()].concat();
    let mut reply = driver.front_end.ask(code::GET_INFLIGHT_FD, &area);
    let table = Table { descriptor: reply.descriptors.remove(0), payload: reply.payload };
    connect(folder, &mut driver, &table);

    // Each slot writes sectors of its own, and knows what it wrote last.
    let mut written = vec![0_u8; usize::from(SLOTS)];
    let mut in_flight = 0_usize;
    let add = |driver: &mut Driver, slot: u16, written: &mut [u8]| {
        let number = &mut written[usize::from(slot)];
        *number = number.wrapping_add(1);
        driver.memory.write(data_at(slot), &[*number; 4096]);
        driver.add(slot, WRITE_OUT, u64::from(slot) * 8, 4096);
    };
    for slot in 0..SLOTS {
        add(&mut driver, slot, &mut written);
        in_flight += 1;
    }
    driver.queue.notify();
    for kill in 0..KILLS {
        // Some requests come back, then the server is killed with others in its hands.
        let mut done = 0;
        while done < 20 + kill as usize * 3 {
            for (slot, _) in driver.queue.wait_used(&driver.memory, 1) {
                assert_eq!(driver.status(slot), 0);
                add(&mut driver, slot, &mut written);
                done += 1;
            }
            driver.queue.notify();
        }
        server.kill();
        server = Server::start(folder);
        connect(folder, &mut driver, &table);
    }
    while in_flight > 0 {
        let used = driver.queue.wait_used(&driver.memory, 1);
        assert!(used.iter().all(|(slot, _)| driver.status(*slot) == 0));
        in_flight -= used.len();
    }
    assert_eq!(driver.queue.take_used(&driver.memory), None, "none came back twice");
    let image = std::fs::read(folder.join("image")).unwrap();
    for (slot, number) in written.iter().enumerate() {
        let found = &image[slot * 4096..][..4096];
        assert!(found.iter().all(|byte| byte == number), "slot {slot}");
    }
}
