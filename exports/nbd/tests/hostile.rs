//! Clients that break the protocol, byte by byte.

mod harness;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use harness::client::{begin, call, client_flags, connect, option, read, receive};
use harness::{Served, memory};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uringfs_nbd::{Export, Exports, Server, ServerOptions};
use uringfs_nbd_protocol::handshake::info::ExportInfo;
use uringfs_nbd_protocol::handshake::{Greeting, OptionCode, OptionHeader, OptionReply, ReplyCode};
use uringfs_nbd_protocol::transmission::{
    CHUNK_MAGIC, Command, Request, SIMPLE_REPLY_MAGIC, SimpleReply,
};
use zerocopy::{FromBytes, IntoBytes};

/// The bytes that the server sends until it closes the connection.
fn rest(mut stream: UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        // It closes a connection that has bytes which it did not read.
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the server hangs");
            bytes
        }
    }
}

fn with_name(name: &str, rest: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), rest].concat()
}

/// The bytes of a client that does everything right.
fn session() -> Vec<u8> {
    let go = with_name("disk", &[0, 0]);
    let write = Request::new(Command::WRITE, 0, 1, 0, 512);
    let read = Request::new(Command::READ, 0, 2, 0, 512);
    let flush = Request::new(Command::FLUSH, 0, 3, 0, 0);
    let disconnect = Request::new(Command::DISC, 0, 4, 0, 0);
    [
        &client_flags()[..],
        &option(OptionCode::STRUCTURED_REPLY, &[]),
        &option(OptionCode::LIST, &[]),
        &option(OptionCode::INFO, &with_name("other", &[0, 0])),
        &option(
            OptionCode::SET_META_CONTEXT,
            &with_name("disk", &[&[0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat()),
        ),
        &option(OptionCode::GO, &go),
        write.as_bytes(),
        &[7; 512],
        read.as_bytes(),
        flush.as_bytes(),
        disconnect.as_bytes(),
    ]
    .concat()
}

/// An honest client is served.
fn check_served(served: &Served) {
    assert_eq!(read(&mut begin(served, "disk"), 4096).len(), 512);
}

#[test]
fn a_client_may_go_at_every_byte() {
    let served = Served::new(memory(1 << 20));
    let session = session();
    for length in 0..=session.len() {
        let mut stream = connect(&served);
        stream.write_all(&session[..length]).unwrap();
        match length % 2 {
            0 => stream.shutdown(Shutdown::Write).unwrap(),
            _ => stream.shutdown(Shutdown::Both).unwrap(),
        }
        let sent = rest(stream);
        if length == session.len() {
            assert!(sent.ends_with(&[0, 0, 0, 0]), "the last reply is the flush's: {sent:?}");
        }
    }
    check_served(&served);
}

#[test]
fn a_session_that_comes_byte_by_byte_is_served() {
    let served = Served::new(memory(1 << 20));
    let mut stream = connect(&served);
    for byte in session() {
        stream.write_all(&[byte]).unwrap();
    }
    let sent = rest(stream);
    let read: Vec<u8> = vec![7; 512];
    assert!(sent.windows(512).any(|window| window == read), "the data of the read");
}

#[test]
fn wrong_options_are_refused_or_end_the_connection() {
    let served = Served::new(memory(1 << 20));
    let huge = u32::MAX.to_be_bytes();
    let answered: [(OptionCode, Vec<u8>, ReplyCode); 16] = [
        (OptionCode(99), vec![], ReplyCode::ERR_UNSUP),
        (OptionCode::STARTTLS, vec![], ReplyCode::ERR_UNSUP),
        (OptionCode(u32::MAX), vec![1; 20000], ReplyCode::ERR_UNSUP),
        (OptionCode::LIST, vec![1], ReplyCode::ERR_INVALID),
        (OptionCode::STRUCTURED_REPLY, vec![1], ReplyCode::ERR_INVALID),
        (OptionCode::INFO, vec![], ReplyCode::ERR_INVALID),
        (OptionCode::INFO, huge.to_vec(), ReplyCode::ERR_INVALID),
        (OptionCode::GO, with_name("disk", &[]), ReplyCode::ERR_INVALID),
        (OptionCode::GO, with_name("disk", &[0, 1]), ReplyCode::ERR_INVALID),
        (OptionCode::GO, with_name("disk", &[0, 0, 0]), ReplyCode::ERR_INVALID),
        (OptionCode::GO, with_name("no", &[0, 0]), ReplyCode::ERR_UNKNOWN),
        (OptionCode::GO, with_name(&"x".repeat(5000), &[0, 0]), ReplyCode::ERR_INVALID),
        // Contexts come after structured replies.
        (OptionCode::SET_META_CONTEXT, with_name("disk", &[0; 4]), ReplyCode::ERR_INVALID),
        (OptionCode::LIST_META_CONTEXT, with_name("disk", &huge), ReplyCode::ERR_INVALID),
        (OptionCode::LIST_META_CONTEXT, with_name("disk", &[0, 0, 0, 1]), ReplyCode::ERR_INVALID),
        (OptionCode::LIST_META_CONTEXT, with_name("no", &[0; 4]), ReplyCode::ERR_UNKNOWN),
    ];
    let mut stream = connect(&served);
    receive::<Greeting>(&mut stream);
    stream.write_all(&client_flags()).unwrap();
    for (code, data, expected) in answered {
        stream.write_all(&option(code, &data)).unwrap();
        let reply: OptionReply = receive(&mut stream);
        assert_eq!((reply.option.get(), reply.reply.get()), (code.0, expected.0), "{data:?}");
        let mut text = vec![0; reply.length.get() as usize];
        stream.read_exact(&mut text).unwrap();
        assert!(!text.is_empty(), "it says why");
    }
    let mut magic = option(OptionCode::LIST, &[]);
    magic[0] = b'i';
    let long = OptionHeader::new(OptionCode::LIST, 1 << 31);
    for ends in [&magic[..], long.as_bytes(), &option(OptionCode::EXPORT_NAME, b"no")] {
        let mut stream = connect(&served);
        receive::<Greeting>(&mut stream);
        stream.write_all(&client_flags()).unwrap();
        stream.write_all(ends).unwrap();
        assert!(rest(stream).is_empty());
    }
    let mut stream = connect(&served);
    receive::<Greeting>(&mut stream);
    stream.write_all(&u32::MAX.to_be_bytes()).unwrap();
    assert!(rest(stream).is_empty(), "it has unknown flags");
    check_served(&served);
}

/// The replies to an option that leaves the handshake going on, up to its last one. `None` if the connection ends.
fn last_reply(stream: &mut UnixStream) -> Option<ReplyCode> {
    loop {
        let mut head = [0; size_of::<OptionReply>()];
        if stream.read_exact(&mut head).is_err() {
            return None;
        }
        let reply = OptionReply::read_from_bytes(&head).unwrap();
        stream.read_exact(&mut vec![0; reply.length.get() as usize]).unwrap();
        match ReplyCode(reply.reply.get()) {
            ReplyCode::SERVER | ReplyCode::INFO | ReplyCode::META_CONTEXT => {}
            last => return Some(last),
        }
    }
}

/// A client that has said hello.
fn greeted(served: &Served) -> UnixStream {
    let mut stream = connect(served);
    receive::<Greeting>(&mut stream);
    stream.write_all(&client_flags()).unwrap();
    stream
}

#[test]
fn options_of_every_length_are_answered() {
    const MAX_OPTION: usize = 24 << 10;
    let served = Served::new(memory(1 << 20));
    let lengths = (0..=64).chain([127, 4095, 4096, 4097, 4102, MAX_OPTION - 1, MAX_OPTION]);
    let lengths: Vec<usize> = lengths.collect();
    for code in (2..=12).chain([u32::MAX]).map(OptionCode) {
        for byte in [0, 1, b'd', 0xff] {
            let mut stream = greeted(&served);
            for length in &lengths {
                stream.write_all(&option(code, &vec![byte; *length])).unwrap();
                let reply = last_reply(&mut stream);
                match (code, reply) {
                    (OptionCode::ABORT, Some(ReplyCode::ACK)) => break,
                    // The name of zeros is that of the only export.
                    (OptionCode::GO, Some(ReplyCode::ACK)) => {
                        assert_eq!((byte, *length), (0, 6));
                        stream = greeted(&served);
                    }
                    (_, Some(_)) => {}
                    (_, None) => panic!("{code:?} of {length} bytes {byte} ends the connection"),
                }
            }
        }
        // One byte too many ends the connection, before the data have come.
        let mut stream = greeted(&served);
        stream.write_all(OptionHeader::new(code, MAX_OPTION as u32 + 1).as_bytes()).unwrap();
        assert_eq!(last_reply(&mut stream), None);
    }
    // The old way to begin has no reply to refuse with.
    for length in lengths {
        let mut stream = greeted(&served);
        stream.write_all(&option(OptionCode::EXPORT_NAME, &vec![b'd'; length])).unwrap();
        let begun = stream.read_exact(&mut [0; size_of::<ExportInfo>() - 2]);
        assert_eq!(begun.is_ok(), length == 0, "{length}");
    }
    check_served(&served);
}

#[test]
fn options_in_every_order_are_answered() {
    let served = Served::new(memory(1 << 20));
    let context = [&[0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat();
    let options = [
        option(OptionCode::LIST, &[]),
        option(OptionCode::STARTTLS, &[]),
        option(OptionCode::STRUCTURED_REPLY, &[]),
        option(OptionCode::INFO, &with_name("disk", &[0, 0])),
        option(OptionCode::LIST_META_CONTEXT, &with_name("disk", &[0; 4])),
        option(OptionCode::SET_META_CONTEXT, &with_name("disk", &context)),
        option(OptionCode(99), b"data"),
    ];
    let go = option(OptionCode::GO, &with_name("disk", &[0, 0]));
    let count = options.len();
    for number in 0..count.pow(4) {
        let order = [0, 1, 2, 3].map(|place| number / count.pow(place) % count);
        let mut stream = greeted(&served);
        // In one piece, as a client that does not wait.
        let mut bytes = order.map(|index| options[index].clone()).concat();
        bytes.extend(&go);
        bytes.extend(Request::new(Command::FLUSH, 0, 9, 0, 0).as_bytes());
        stream.write_all(&bytes).unwrap();
        for index in order {
            assert!(last_reply(&mut stream).is_some(), "{order:?}: {index}");
        }
        assert_eq!(last_reply(&mut stream), Some(ReplyCode::ACK), "{order:?}");
        let mut magic = [0; 4];
        stream.read_exact(&mut magic).unwrap();
        // Structured replies come if they were agreed on.
        let expected = if order.contains(&2) { CHUNK_MAGIC } else { SIMPLE_REPLY_MAGIC };
        assert_eq!(u32::from_be_bytes(magic), expected, "{order:?}");
    }
}

#[test]
fn ranges_that_wrap_are_refused_and_the_rest_is_served() {
    let served = Served::new(memory(1 << 20));
    let mut stream = begin(&served, "disk");
    let commands = [
        Command::READ,
        Command::WRITE,
        Command::TRIM,
        Command::CACHE,
        Command::WRITE_ZEROES,
        Command::BLOCK_STATUS,
    ];
    let offsets =
        [(1 << 20) - 511, 1 << 20, 1 << 32, (1 << 63) - 512, 1 << 63, u64::MAX - 511, u64::MAX];
    let lengths = [512, 513, 1 << 20, 1 << 31, u32::MAX];
    for command in commands {
        for (offset, length) in
            offsets.iter().flat_map(|offset| lengths.map(|length| (*offset, length)))
        {
            // A payload that is longer than any allowed one ends the connection, and has a test of its own.
            let payload = if command == Command::WRITE { length } else { 0 };
            if payload > 1 << 20 {
                continue;
            }
            let request = Request::new(command, 0, offset, offset, length);
            let expected = match command {
                Command::WRITE | Command::WRITE_ZEROES => 28,
                _ => 22,
            };
            let payload = vec![0xee; payload as usize];
            let error = call(&mut stream, request, &payload);
            assert_eq!(error, expected, "{command:?} of {length} bytes at {offset}");
        }
        read(&mut stream, (1 << 20) - 512);
    }
    check_served(&served);
}

/// Each that stays counted would take a place.
#[test]
fn clients_that_go_at_any_byte_leave_their_places() {
    let options = ServerOptions::new().threads(2).max_connections(4);
    let served = Served::with(Export::new("disk", memory(1 << 20)), options);
    let session = session();
    for length in (0..=session.len()).step_by(7) {
        let mut stream = connect(&served);
        // The server has closed it if no place is free yet.
        let _ = stream.write_all(&session[..length]);
    }
    let begun = Instant::now();
    loop {
        let mut all = [(); 4].map(|()| connect(&served));
        let mut greeting = [0; size_of::<Greeting>()];
        if all.iter_mut().all(|stream| stream.read_exact(&mut greeting).is_ok()) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "places are taken");
    }
}

#[test]
fn wrong_requests_are_refused_or_end_the_connection() {
    let served = Served::new(memory(1 << 20));
    let mut stream = begin(&served, "disk");
    let refused = [
        (Request::new(Command::READ, 0, 1, u64::MAX, 512), 22),
        (Request::new(Command::READ, 0, 2, u64::MAX - 511, 512), 22),
        (Request::new(Command::READ, 0, 3, 0, u32::MAX), 22),
        (Request::new(Command::WRITE_ZEROES, 0, 4, 1 << 19, u32::MAX), 28),
        (Request::new(Command::TRIM, 0, 5, 0, u32::MAX), 22),
        (Request::new(Command::BLOCK_STATUS, 0, 6, 0, 512), 22),
        (Request::new(Command(u16::MAX), u16::MAX, 7, u64::MAX, u32::MAX), 22),
    ];
    for (request, error) in refused {
        assert_eq!(call(&mut stream, request, &[]), error);
    }
    // The payload of a write that is refused is no request.
    let write = Request::new(Command::WRITE, 0, 8, 1 << 20, 28);
    let payload = Request::new(Command::WRITE, 0, 9, 0, 28);
    assert_eq!(call(&mut stream, write, payload.as_bytes()), 28);
    let mut magic = Request::new(Command::READ, 0, 1, 0, 512);
    magic.magic = 0.into();
    for ends in [magic, Request::new(Command::WRITE, 0, 1, 0, u32::MAX)] {
        let mut stream = begin(&served, "disk");
        stream.write_all(ends.as_bytes()).unwrap();
        assert!(rest(stream).is_empty());
    }
    check_served(&served);
}

/// Lets the process open descriptors for both ends of many connections.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

#[test]
fn slow_handshakes_hold_up_no_other_client() {
    allow_descriptors();
    let served = Served::new(memory(1 << 20));
    let mut slow: Vec<_> = (0..1000)
        .map(|_| {
            let mut stream = connect(&served);
            stream.write_all(&client_flags()[..3]).unwrap();
            stream
        })
        .collect();
    check_served(&served);
    // None of them was ended before.
    for stream in &mut slow {
        receive::<Greeting>(stream);
        stream.write_all(&client_flags()[3..]).unwrap();
        stream.write_all(&option(OptionCode::ABORT, &[])).unwrap();
        let reply: OptionReply = receive(stream);
        assert_eq!(reply.reply.get(), ReplyCode::ACK.0);
    }
}

#[test]
fn one_connection_more_than_allowed_is_closed() {
    let options = ServerOptions::new().threads(2).max_connections(3);
    let served = Served::with(Export::new("disk", memory(1 << 20)), options);
    let mut open: Vec<_> = (0..3).map(|_| connect(&served)).collect();
    for stream in &mut open {
        receive::<Greeting>(stream);
    }
    assert!(rest(connect(&served)).is_empty());
    // The server sees the end of one some time later.
    drop(open.pop());
    let mut greeting = [0; size_of::<Greeting>()];
    while connect(&served).read(&mut greeting).unwrap() == 0 {}
}

/// Its requests under way are answered and its connections end. Other exports are unaffected.
#[test]
fn an_export_is_removed_while_others_are_busy() {
    let served = Served::new(memory(1 << 20));
    served.exports.add(Export::new("other", memory(1 << 20))).unwrap();
    let (mut removed, mut other) = (begin(&served, "disk"), begin(&served, "other"));
    read(&mut removed, 0);
    read(&mut other, 0);
    assert!(served.exports.remove("disk"));
    assert!(rest(removed).is_empty());
    read(&mut other, 0);
    served.exports.add(Export::new("disk", memory(4096))).unwrap();
    let mut again = begin(&served, "disk");
    read(&mut again, 0);
}

/// Clients that stall in the payload of a write, each of which holds as much memory as a request can have.
fn stall_in_payloads(served: &Served, count: usize) -> Vec<UnixStream> {
    let stall = |_| {
        let mut stream = begin(served, "disk");
        let write = Request::new(Command::WRITE, 0, 1, 0, 32 << 20);
        stream.write_all(&[write.as_bytes(), &[1]].concat()).unwrap();
        stream
    };
    (0..count).map(stall).collect()
}

/// The thread has less memory than all of them ask for.
#[test]
fn clients_that_stall_in_a_payload_hold_up_no_other() {
    let options = ServerOptions::new().threads(1);
    let served = Served::with(Export::new("disk", memory(64 << 20)), options);
    let stalled = stall_in_payloads(&served, 10);
    check_served(&served);
    drop(stalled);
}

/// The first holds up the second until its reply is taken, and then no longer, though the thread's shared memory is taken.
#[test]
fn a_connection_has_its_own_memory_whatever_the_others_hold() {
    const LENGTH: u32 = 200 << 10;
    let options = ServerOptions::new().threads(1);
    let served = Served::with(Export::new("disk", memory(64 << 20)), options);
    let mut stream = begin(&served, "disk");
    let reads = [1, 2].map(|cookie| Request::new(Command::READ, 0, cookie, 0, LENGTH));
    let stalled = stall_in_payloads(&served, 9);
    check_served(&served);
    stream.write_all(reads.as_bytes()).unwrap();
    for _ in reads {
        assert_eq!(receive::<SimpleReply>(&mut stream).error.get(), 0);
        stream.read_exact(&mut vec![0; LENGTH as usize]).unwrap();
    }
    drop(stalled);
}

/// They are far more bytes than a socket takes, and are made as the client takes them.
#[test]
fn the_replies_to_many_options_come_whole() {
    const OPTIONS: usize = 2000;
    let served = Served::new(memory(4096));
    for number in 0..20 {
        served.exports.add(Export::new(format!("other {number}"), memory(4096))).unwrap();
    }
    let mut stream = connect(&served);
    receive::<Greeting>(&mut stream);
    let options = option(OptionCode::LIST, &[]).repeat(OPTIONS);
    let bytes = [&client_flags()[..], &options, &option(OptionCode::ABORT, &[])].concat();
    let mut sending = stream.try_clone().unwrap();
    let sender = thread::spawn(move || sending.write_all(&bytes).unwrap());
    let replies = rest(stream);
    sender.join().unwrap();
    let (mut left, mut acknowledged, mut listed) = (&replies[..], 0, 0);
    while !left.is_empty() {
        let (reply, after) = OptionReply::read_from_prefix(left).unwrap();
        match ReplyCode(reply.reply.get()) {
            ReplyCode::ACK => acknowledged += 1,
            ReplyCode::SERVER => listed += 1,
            other => panic!("{other:?}"),
        }
        left = &after[reply.length.get() as usize..];
    }
    assert_eq!((acknowledged, listed), (OPTIONS + 1, 21 * OPTIONS));
}

/// Requests that arrive after the removal of their export are not served, however fast they come.
#[test]
fn an_export_is_removed_from_a_client_that_never_stops() {
    let exports = Exports::new();
    exports.add(Export::new("disk", memory(1 << 20))).unwrap();
    let mut server = Server::new(exports.clone(), ServerOptions::new()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    server.listen_tcp(listener);
    let stopper = server.stopper();
    let serving = thread::spawn(|| server.serve());
    let mut stream = TcpStream::connect(address).unwrap();
    let mut sending = stream.try_clone().unwrap();
    let hello = [&client_flags()[..], &option(OptionCode::EXPORT_NAME, b"disk")].concat();
    let sender = thread::spawn(move || {
        sending.write_all(&hello).unwrap();
        let reads = Request::new(Command::READ, 0, 1, 0, 512).as_bytes().repeat(100);
        while sending.write_all(&reads).is_ok() {}
    });
    // It is under way.
    stream.read_exact(&mut vec![0; 1 << 20]).unwrap();
    assert!(exports.remove("disk"));
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let end = std::io::copy(&mut stream, &mut std::io::sink());
    assert!(end.is_ok() || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    drop(stream);
    sender.join().unwrap();
    stopper.stop();
    serving.join().unwrap().unwrap();
}
