//! What connections cost that do nothing. A program of its own, whose memory is measured.

mod harness;

use std::fs;

use harness::Served;
use harness::client::{begin, call, read};
use harness::memory;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uringfs_nbd_protocol::transmission::{Command, Request};

const CONNECTIONS: usize = 1000;

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn idle_connections_take_little_memory() {
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
