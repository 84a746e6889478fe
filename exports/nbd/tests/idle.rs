//! What connections cost that do nothing, and those that have ended. These tests look at the whole process, and take turns.

mod harness;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use harness::Served;
use harness::client::{begin, call, client_flags, connect, option, read};
use harness::memory;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use uringfs_nbd_protocol::handshake::OptionCode;
use uringfs_nbd_protocol::transmission::{Command, Request};
use zerocopy::IntoBytes;

const CONNECTIONS: usize = 1000;

static TURN: Mutex<()> = Mutex::new(());

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_server_takes_no_processor_time() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let served = Served::new(memory(1 << 20));
    let mut idle: Vec<_> = (0..100).map(|_| begin(&served, "disk")).collect();
    for _ in 0..5 {
        for stream in &mut idle {
            read(stream, 0);
        }
    }
    // Half of them in the middle of a request, and some in a handshake.
    let head = Request::new(Command::WRITE, 0, 1, 0, 4096);
    idle.iter_mut().step_by(2).for_each(|stream| stream.write_all(head.as_bytes()).unwrap());
    let _greeted: Vec<_> = (0..10).map(|_| connect(&served)).collect();
    let last = &mut idle[99];
    read(last, 0);
    let before = process_time();
    // The server sends nothing in this time.
    last.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert_eq!(last.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let spent = process_time() - before;
    assert!(spent < Duration::from_millis(20), "{spent:?}");
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn connections_that_have_ended_leave_nothing_behind() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let served = Served::new(memory(1 << 20));
    let write = Request::new(Command::WRITE, 0, 1, 0, 64 << 10);
    let bytes = [
        &client_flags()[..],
        &option(OptionCode::LIST, &[]),
        &option(OptionCode::EXPORT_NAME, b"disk"),
        write.as_bytes(),
        &[1; 100],
    ]
    .concat();
    let round = || {
        for length in 0..=bytes.len() {
            connect(&served).write_all(&bytes[..length]).unwrap();
        }
        read(&mut begin(&served, "disk"), 0);
    };
    // The rings of the threads open some descriptors when they need them first.
    let most = descriptors() + 16;
    let wait_for_the_ends = || {
        let begun = Instant::now();
        while served.exports.connections("disk") > 0 || descriptors() > most {
            let found = (served.exports.connections("disk"), descriptors());
            assert!(begun.elapsed() < Duration::from_secs(30), "{found:?}, not {most}");
            thread::yield_now();
        }
    };
    round();
    wait_for_the_ends();
    let memory = resident_bytes();
    (0..10).for_each(|_| round());
    wait_for_the_ends();
    let grown = resident_bytes().saturating_sub(memory);
    assert!(grown < 8 << 20, "{grown} bytes more after {} connections", 10 * bytes.len());
}

#[test]
fn idle_connections_take_little_memory() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let served = Served::new(memory(1 << 20));
    let mut first = begin(&served, "disk");
    read(&mut first, 0);
    let before = resident_bytes();
    let mut idle: Vec<_> = (0..CONNECTIONS).map(|_| begin(&served, "disk")).collect();
    // Busy before, so that their buffers have grown.
    let write = Request::new(Command::WRITE, 0, 1, 0, 256 << 10);
    for stream in &mut idle {
        assert_eq!(call(stream, write, &vec![1; 256 << 10]), 0);
        read(stream, 0);
    }
    let each = (resident_bytes() - before) / CONNECTIONS;
    println!("{each} bytes for each connection");
    assert!(each < 64 << 10, "{each} bytes for each connection");
}
