//! A client of few words.

#![allow(dead_code)] // each test uses its own part

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use uringfs_nbd_protocol::handshake::info::ExportInfo;
use uringfs_nbd_protocol::handshake::{Greeting, OptionCode, OptionHeader, flags};
use uringfs_nbd_protocol::transmission::{Command, Request, SimpleReply};
use zerocopy::{FromBytes, IntoBytes};

use super::Served;

/// A connection whose reads end: with an error after 20 s.
pub fn connect(served: &Served) -> UnixStream {
    let stream = served.connect();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

pub fn receive<T: FromBytes>(stream: &mut UnixStream) -> T {
    let mut bytes = vec![0; size_of::<T>()];
    stream.read_exact(&mut bytes).unwrap();
    T::read_from_bytes(&bytes).unwrap()
}

pub fn option(code: OptionCode, data: &[u8]) -> Vec<u8> {
    [OptionHeader::new(code, data.len() as u32).as_bytes(), data].concat()
}

pub fn client_flags() -> [u8; 4] {
    u32::from(flags::FIXED_NEWSTYLE | flags::NO_ZEROES).to_be_bytes()
}

/// A connection to an export, with simple replies.
pub fn begin(served: &Served, name: &str) -> UnixStream {
    let mut stream = connect(served);
    receive::<Greeting>(&mut stream);
    stream.write_all(&client_flags()).unwrap();
    stream.write_all(&option(OptionCode::EXPORT_NAME, name.as_bytes())).unwrap();
    // Without its first word, and without zeros behind it.
    stream.read_exact(&mut [0; size_of::<ExportInfo>() - 2]).unwrap();
    stream
}

/// Sends a request with its payload, and returns the error number of the reply.
pub fn call(stream: &mut UnixStream, request: Request, payload: &[u8]) -> u32 {
    stream.write_all(&[request.as_bytes(), payload].concat()).unwrap();
    let reply: SimpleReply = receive(stream);
    assert_eq!(reply.cookie, request.cookie);
    reply.error.get()
}

/// Reads 512 bytes, which must succeed.
pub fn read(stream: &mut UnixStream, offset: u64) -> [u8; 512] {
    assert_eq!(call(stream, Request::new(Command::READ, 0, 5, offset, 512), &[]), 0);
    let mut data = [0; 512];
    stream.read_exact(&mut data).unwrap();
    data
}
