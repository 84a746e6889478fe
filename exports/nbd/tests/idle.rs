//! The cost of connections that do nothing, and of those that have ended. These tests look at the whole process, and
//! take turns.

mod harness;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use harness::Served;
use harness::client::{begin, call, client_flags, connect, option, read};
use harness::memory;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use uringfs_nbd::{Exports, Server, ServerOptions};
use uringfs_nbd_protocol::handshake::{Greeting, OptionCode};
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

/// A client whose machine has vanished says nothing: only the kernel can find out.
#[test]
fn a_client_over_tcp_that_is_silent_is_asked_whether_it_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = Server::new(Exports::new(), ServerOptions::new().threads(1)).unwrap();
    server.listen_tcp(listener);
    let stopper = server.stopper();
    let serving = thread::spawn(|| server.serve());
    let mut client = TcpStream::connect(address).unwrap();
    client.read_exact(&mut [0; size_of::<Greeting>()]).unwrap();
    // The kernel's timer of the server's side: 2 is that of SO_KEEPALIVE.
    let ports =
        [address, client.local_addr().unwrap()].map(|it| format!("0100007F:{:04X}", it.port()));
    let timer = || {
        let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
        let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let found = sockets.lines().map(fields).find(|fields| fields[1..3] == ports);
        let (kind, left) = found.unwrap()[5]
            .split_once(':')
            .map(|(kind, left)| (kind.to_owned(), u64::from_str_radix(left, 16).unwrap()))
            .unwrap();
        (kind, Duration::from_millis(left * 10))
    };
    let begun = Instant::now();
    // Another timer may run until the kernel knows that the greeting has arrived.
    while !matches!(timer(), (kind, left) if kind == "02" && left <= Duration::from_secs(60)) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", timer());
        thread::yield_now();
    }
    stopper.stop();
    serving.join().unwrap().unwrap();
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
