//! Tests that look at the whole process. They take turns.

mod harness;

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use harness::Server;
use harness::front_end::{
    Driver, FrontEnd, GUEST, MEMORY_BYTES, NEXT, Queue, READ, USER, code, feature, header_at,
    is_signalled, numbers,
};
use rustix::fs::ftruncate;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use uringfs_vhost::PinMemory;

static TURN: Mutex<()> = Mutex::new(());

fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_disk_takes_no_processor_time() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for packed in [false, true] {
        for features in [0, feature::EVENT_INDEX] {
            let server = Server::new(|disk| disk.queues(2).packed(packed));
            let features = features | if packed { feature::PACKED } else { 0 };
            let queue = if packed { Queue::packed(0, 64) } else { Queue::split(0, 64) };
            let mut driver = Driver::new(&server.socket(), features, queue);
            (0..500).for_each(|_| assert_eq!(driver.run(READ, 0, 512), (0, 513)));
            let before = process_time();
            // Nothing happens in this time.
            assert!(!is_signalled(&driver.queue.error, Duration::from_millis(300)));
            let spent = process_time() - before;
            assert!(spent < Duration::from_millis(20), "{spent:?}");
        }
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings_of_guests() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("uringfs-guest")).count()
}

#[test]
fn sessions_leave_no_descriptor_and_no_memory_behind() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let server = Server::new(|disk| disk);
    let session = |kind: u64| {
        let mut driver = Driver::new(&server.socket(), 0, Queue::split(0, 64));
        assert_eq!(driver.run(READ, 0, 512), (0, 513));
        match kind {
            0 => {}
            1 => driver.queue.publish(&driver.memory, 999),
            2 => {
                // A loop of one descriptor.
                let header = (GUEST + header_at(0), 16, NEXT);
                driver.queue.write_descriptor(&driver.memory, 0, header, 0);
                driver.queue.publish(&driver.memory, 0);
            }
            3 => {
                // A message for one region, with three descriptors.
                let table = numbers(&[1, GUEST, MEMORY_BYTES, USER, 0]);
                let files = [driver.memory.file.as_fd(); 3];
                assert!(driver.front_end.send(code::SET_MEM_TABLE, 1, &table, &files));
                assert!(driver.front_end.is_closed());
            }
            _ => ftruncate(&driver.memory.file, 0).unwrap(),
        }
        driver.queue.notify();
        // The end of the connection is seen when the next session begins.
    };
    let measure = || {
        let _last = Driver::new(&server.socket(), 0, Queue::split(0, 64));
        (descriptors(), mappings_of_guests())
    };
    (0..5).for_each(session);
    let before = measure();
    (0..30).for_each(|round| session(round % 5));
    // The ring of a thread keeps the eventfd that it has just stopped to wait for a little longer.
    let begun = Instant::now();
    while measure() != before {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}, not {before:?}", measure());
        thread::yield_now();
    }
}

#[test]
fn a_front_end_waits_while_the_server_has_no_descriptor_for_it() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let server = Server::new(|disk| disk);
    drop(Driver::new(&server.socket(), 0, Queue::split(0, 64)));
    let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    connect(&socket, &SocketAddrUnix::new(server.socket()).unwrap()).unwrap();
    let front_end = FrontEnd { socket: socket.into() };
    assert!(front_end.send(code::GET_FEATURES, 1, &[], &[]));
    // The server sends nothing in this time, and does not end.
    front_end.socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let received = (&front_end.socket).read(&mut [0]).map_err(|error| error.kind());
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(received, Err(ErrorKind::WouldBlock));
    front_end.socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(front_end.receive().expect("a reply").code, code::GET_FEATURES);
}

/// Memory of this process that the kernel has pinned, in KiB.
fn pinned_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPin:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn pinned_memory_is_released_when_its_guest_has_gone() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (pin_memory, pinned) in [(PinMemory::On, MEMORY_BYTES / 1024), (PinMemory::Off, 0)] {
        let server = Server::new(|disk| disk.pin_memory(pin_memory));
        let before = pinned_kib();
        for _ in 0..3 {
            let mut driver = Driver::new(&server.socket(), 0, Queue::split(0, 64));
            assert_eq!(driver.run(READ, 0, 4096), (0, 4097));
            assert_eq!(pinned_kib(), before + pinned);
            drop(driver);
            // The thread of the queue releases it in its own time.
            let begun = Instant::now();
            while pinned_kib() != before {
                assert!(begun.elapsed() < Duration::from_secs(30), "{} KiB", pinned_kib());
                thread::yield_now();
            }
        }
    }
}
