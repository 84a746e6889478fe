//! The NBD client with servers that misbehave, stay away or come back different, and the messages that it sends.

mod harness;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use harness::nbd_peer::{ALL_FLAGS, CachedDisk, Conversation, Offer, Peer, cached_disk};
use harness::{Random, TestQueue};
use uringfs_buffer::Buffer;
use uringfs_device::backend::nbd::Nbd;
use uringfs_device::{Access, Device, Errno, Op, Payload, Progress, Request, StepCompletion, Tag};
use uringfs_nbd_protocol::handshake::{OptionCode, ReplyCode, export_flags};
use uringfs_nbd_protocol::transmission::{
    Chunk, ChunkKind, Command, Hole, SimpleReply, chunk_flags, command_flags,
};
use zerocopy::IntoBytes;

const SIZE: u64 = 1 << 20;

/// Short, since tests wait for it.
const TIMEOUT: Duration = Duration::from_millis(300);

fn open(peer: &Peer) -> TestQueue {
    TestQueue::own(device(peer))
}

fn device(peer: &Peer) -> Device {
    let target = peer.target().with_timeout(TIMEOUT);
    Device::new(Nbd::open(&target, Access::ReadWrite).unwrap()).unwrap()
}

fn offer() -> Offer {
    Offer::new(SIZE, ALL_FLAGS)
}

fn blocks(length: usize, byte: u8) -> Payload {
    Payload::Buffer(Buffer::copy_of(&vec![byte; length]))
}

fn read(tested: &mut TestQueue) -> Result<u64, Errno> {
    let request = tested.request(Op::Read, 8192, blocks(4096, 0), 0);
    tested.run(request).1
}

/// Serves zeros.
fn serve_zeros(conversation: &mut Conversation) -> io::Result<()> {
    loop {
        let (request, _) = conversation.request()?;
        match Command(request.command.get()) {
            Command::READ => {
                conversation.data(&request, &vec![0; request.length.get() as usize])?
            }
            Command::DISC => return Ok(()),
            _ => conversation.done(&request)?,
        }
    }
}

/// Waits until the client ends the connection.
fn stay_silent(conversation: &mut Conversation) -> io::Result<()> {
    while conversation.request().is_ok() {}
    Ok(())
}

#[test]
fn a_reply_that_violates_the_protocol_fails_the_requests_in_flight() {
    let done = chunk_flags::DONE;
    let chunk = |kind, flags, cookie, length| {
        move |request: u64| Chunk::new(kind, flags, request ^ cookie, length).as_bytes().to_vec()
    };
    type Reply = Box<dyn Fn(u64) -> Vec<u8> + Send + Sync>;
    let hole = |offset: u64, length: u32, flags| -> Reply {
        Box::new(move |cookie| {
            let hole = Hole { offset: offset.into(), length: length.into() };
            let chunk = Chunk::new(ChunkKind::OFFSET_HOLE, flags, cookie, 12);
            [chunk.as_bytes(), hole.as_bytes()].concat()
        })
    };
    let replies: Vec<Reply> = vec![
        Box::new(|_| vec![0; 64]),
        Box::new(|cookie| SimpleReply::new(0, cookie).as_bytes().to_vec()),
        Box::new(|cookie| SimpleReply::new(0, cookie + 1).as_bytes().to_vec()),
        Box::new(chunk(ChunkKind::NONE, done, 0, 0)),
        Box::new(chunk(ChunkKind::NONE, done, 1, 0)),
        Box::new(chunk(ChunkKind::NONE, done, 1 << 40, 0)),
        Box::new(chunk(ChunkKind::NONE, done, 0, u32::MAX)),
        Box::new(chunk(ChunkKind::OFFSET_DATA, done, 0, u32::MAX)),
        Box::new(chunk(ChunkKind::OFFSET_DATA, done, 0, 3)),
        Box::new(chunk(ChunkKind::BLOCK_STATUS, done, 0, 12)),
        Box::new(chunk(ChunkKind::ERROR, done, 0, u32::MAX)),
        hole(8192, 4097, done),
        hole(8192, 0, done),
        hole(u64::MAX, 4096, done),
        hole(8192, 4095, done),
        Box::new(move |cookie| {
            let one = hole(8192, 4096, 0)(cookie);
            [&one[..], &one[..]].concat()
        }),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (number, reply) in replies.into_iter().enumerate() {
        let peer = Peer::new(folder.path(), move |connection, conversation| {
            conversation.handshake(&offer())?;
            if connection == 0 {
                let (request, _) = conversation.request()?;
                // Data that are long enough, so that a wrong length is not waited for.
                let bytes = [reply(request.cookie.get()), vec![0xff; 100]].concat();
                conversation.send(&bytes)?;
                return stay_silent(conversation);
            }
            serve_zeros(conversation)
        });
        let mut tested = open(&peer);
        let begin = Instant::now();
        assert_eq!(read(&mut tested), Err(Errno::PROTO), "reply {number}");
        assert!(begin.elapsed() < Duration::from_secs(20), "reply {number}");
        assert_eq!(read(&mut tested), Ok(4096), "reply {number}: a new connection");
    }
}

#[test]
fn a_server_that_does_not_reply_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    for has_begun in [false, true] {
        let peer = Peer::new(folder.path(), move |_, conversation| {
            conversation.handshake(&offer())?;
            let (request, _) = conversation.request()?;
            if has_begun {
                let hole = Hole { offset: 8192.into(), length: 512.into() };
                let chunk = Chunk::new(ChunkKind::OFFSET_HOLE, 0, request.cookie.get(), 12);
                conversation.send(&[chunk.as_bytes(), hole.as_bytes()].concat())?;
            }
            stay_silent(conversation)
        });
        let mut tested = open(&peer);
        let begin = Instant::now();
        assert_eq!(read(&mut tested), Err(Errno::TIMEDOUT));
        // One timeout for the first connection, one for others.
        assert!(begin.elapsed() >= 2 * TIMEOUT && peer.connections() >= 2);
    }
}

#[test]
fn requests_fail_while_no_server_is_there_and_succeed_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let disk = CachedDisk::new(SIZE as usize);
    let peer = cached_disk(folder.path(), &disk, offer(), vec![]);
    let mut tested = open(&peer);
    assert_eq!(read(&mut tested), Ok(4096));
    drop(peer);
    let begin = Instant::now();
    assert_eq!(read(&mut tested), Err(Errno::TIMEDOUT));
    assert!(begin.elapsed() >= TIMEOUT);
    // Later requests do not wait again.
    let mut requests = 0;
    let begin = Instant::now();
    while begin.elapsed() < TIMEOUT / 2 {
        assert_eq!(read(&mut tested), Err(Errno::TIMEDOUT));
        requests += 1;
    }
    assert!(requests > 1);
    let _peer = cached_disk(folder.path(), &disk, offer(), vec![]);
    let begin = Instant::now();
    while read(&mut tested) != Ok(4096) {
        assert!(begin.elapsed() < Duration::from_secs(20), "the server is back");
        thread::yield_now();
    }
}

#[test]
fn a_server_that_comes_back_with_another_export_is_refused() {
    let others: [fn(&mut Offer); 3] = [
        |offer| offer.size /= 2,
        |offer| offer.flags |= export_flags::READ_ONLY,
        |offer| offer.block_sizes = Some([4096, 4096, 4096]),
    ];
    let folder = tempfile::tempdir().unwrap();
    for change in others {
        let is_changed = Arc::new(AtomicBool::new(false));
        let changed = is_changed.clone();
        let peer = Peer::new(folder.path(), move |_, conversation| {
            let mut offer = offer();
            if changed.load(Ordering::Relaxed) {
                change(&mut offer);
            }
            conversation.handshake(&offer)?;
            serve_zeros(conversation)
        });
        let mut tested = open(&peer);
        assert_eq!(read(&mut tested), Ok(4096));
        is_changed.store(true, Ordering::Relaxed);
        peer.cut();
        assert_eq!(read(&mut tested), Err(Errno::IO));
        is_changed.store(false, Ordering::Relaxed);
        let begin = Instant::now();
        while read(&mut tested) != Ok(4096) {
            assert!(begin.elapsed() < Duration::from_secs(20), "it is the same again");
            thread::yield_now();
        }
    }
}

#[test]
fn a_server_that_comes_back_with_a_larger_export_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let export = ResizedExport::new(folder.path());
    let mut tested = open(&export.peer);
    assert_eq!(write(&mut tested, SIZE), Err(Errno::NOSPC));
    export.size.store(2 * SIZE, Ordering::Relaxed);
    export.peer.cut();
    assert_eq!(read(&mut tested), Ok(4096));
    assert_eq!(tested.device.core().check_size(), 2 * SIZE);
    assert_eq!(write(&mut tested, 2 * SIZE - 4096), Ok(4096));
    assert!(tested.device.description().ends_with("2097152 bytes"));
    // The larger size is the one to come back with.
    export.size.store(SIZE, Ordering::Relaxed);
    assert_eq!(flush(&mut tested), Ok(0));
    export.peer.cut();
    assert_eq!(read(&mut tested), Err(Errno::IO));
    assert_eq!(tested.device.core().check_size(), SIZE);
}

/// A server refuses what a connection that is older than the growth has not, so another connection is needed. The write
/// that the old one has acknowledged must not be lost with it.
#[test]
fn a_connection_from_before_the_export_grew_is_replaced_after_a_flush() {
    let folder = tempfile::tempdir().unwrap();
    let export = ResizedExport::new(folder.path());
    let mut tested = open(&export.peer);
    assert_eq!(write(&mut tested, 0), Ok(4096));
    assert_eq!(tested.device.refresh_size().unwrap(), SIZE);
    export.size.store(2 * SIZE, Ordering::Relaxed);
    assert_eq!(tested.device.size(), SIZE);
    assert_eq!(tested.device.refresh_size().unwrap(), 2 * SIZE);
    assert_eq!(write(&mut tested, 4096), Ok(4096));
    export.log.lock().unwrap().clear();
    // One of several in flight needs the new bytes. Those after it wait, too.
    for tag in 0..8 {
        let address = if tag == 4 { SIZE } else { tag * 4096 };
        let request = tested.request(Op::Write, address, blocks(4096, 1), tag);
        tested.queue.push(request).unwrap();
    }
    for (request, result) in tested.finish() {
        assert_eq!(result, Ok(4096), "{request:?}");
    }
    let mut log = export.log.lock().unwrap().clone();
    log.retain(|(_, command)| *command != Command::DISC);
    let of = |connection: usize, command| vec![(connection, command); 4];
    assert_eq!(log[..4], of(0, Command::WRITE));
    assert_eq!(log[4], (0, Command::FLUSH));
    assert_eq!(log[5..], of(3, Command::WRITE));
    assert_eq!(flush(&mut tested), Ok(0));
}

#[test]
fn a_flush_that_fails_before_a_connection_is_replaced_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let export = ResizedExport::new(folder.path());
    let mut tested = open(&export.peer);
    assert_eq!(write(&mut tested, 0), Ok(4096));
    export.size.store(2 * SIZE, Ordering::Relaxed);
    assert_eq!(tested.device.refresh_size().unwrap(), 2 * SIZE);
    export.fails_flushes.store(true, Ordering::Relaxed);
    assert_eq!(write(&mut tested, SIZE), Err(Errno::IO));
    export.fails_flushes.store(false, Ordering::Relaxed);
    assert_eq!(flush(&mut tested), Err(Errno::IO));
    let request = tested.request(Op::Read, SIZE, blocks(4096, 0), 0);
    assert_eq!(tested.run(request).1, Ok(4096));
    assert_eq!(flush(&mut tested), Err(Errno::IO));
}

#[test]
fn each_of_several_connections_uses_an_export_that_has_grown() {
    let folder = tempfile::tempdir().unwrap();
    let export = ResizedExport::with_flags(folder.path(), export_flags::CAN_MULTI_CONN);
    let device = device(&export.peer);
    let mut all = [(); 3].map(|()| TestQueue::own(device.clone()));
    // One for all, and one of each.
    for (number, tested) in all.iter_mut().enumerate() {
        while export.peer.connections() < number + 2 {
            assert_eq!(write(tested, 0), Ok(4096));
        }
    }
    export.size.store(2 * SIZE, Ordering::Relaxed);
    assert_eq!(device.refresh_size().unwrap(), 2 * SIZE);
    for tested in &mut all {
        for address in [0, SIZE, SIZE - 4096, 2 * SIZE - 4096] {
            assert_eq!(write(tested, address), Ok(4096), "{address}");
        }
        assert_eq!(flush(tested), Ok(0));
    }
}

#[test]
fn the_connection_of_each_queue_is_replaced_once_the_export_has_grown() {
    let folder = tempfile::tempdir().unwrap();
    let export = ResizedExport::with_flags(folder.path(), export_flags::CAN_MULTI_CONN);
    let device = device(&export.peer);
    let mut all = [(); 3].map(|()| TestQueue::own(device.clone()));
    let connection = |tested: &mut TestQueue, address| {
        assert_eq!(write(tested, address), Ok(4096));
        let log = export.log.lock().unwrap();
        let write = log.iter().rev().find(|(_, command)| *command == Command::WRITE);
        write.expect("a write").0
    };
    let begin = Instant::now();
    for tested in &mut all {
        while connection(tested, 0) == 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "it has a connection of its own");
        }
    }
    let before = export.peer.connections();
    export.size.store(2 * SIZE, Ordering::Relaxed);
    assert_eq!(device.refresh_size().unwrap(), 2 * SIZE);
    // The first requests beyond the old size may go over the connection of all.
    let begin = Instant::now();
    loop {
        let of_new = all.each_mut().map(|tested| connection(tested, 2 * SIZE - 4096));
        let of_old = all.each_mut().map(|tested| connection(tested, 0));
        let [one, two, three] = of_new;
        if of_new == of_old && one != two && two != three && one != three {
            assert!(of_new.iter().all(|connection| *connection > before), "{of_new:?}");
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{of_old:?} and {of_new:?}");
    }
    for tested in &mut all {
        assert_eq!(flush(tested), Ok(0));
    }
    let log = export.log.lock().unwrap();
    for connection in 1..=all.len() {
        let mut of_it = log.iter().filter(|(number, _)| *number == connection).rev();
        let last = [of_it.next(), of_it.next()].map(|entry| entry.map(|(_, command)| *command));
        assert_eq!(last, [Some(Command::DISC), Some(Command::FLUSH)], "a flush comes first");
    }
}

#[test]
fn the_size_of_an_export_is_not_known_while_its_server_takes_no_connection() {
    let folder = tempfile::tempdir().unwrap();
    let peer = Peer::new(folder.path(), move |connection, conversation| {
        if connection > 0 {
            return stay_silent(conversation);
        }
        conversation.handshake(&offer())?;
        serve_zeros(conversation)
    });
    let mut tested = open(&peer);
    let error = tested.device.refresh_size().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(error.to_string().starts_with("nbd+unix:///disk?socket="), "{error}");
    assert_eq!(tested.device.size(), SIZE);
    assert_eq!(read(&mut tested), Ok(4096));
}

/// A server of an export of zeros whose size changes. Each connection has the size that the export had at its
/// handshake, and refuses requests beyond.
struct ResizedExport {
    peer: Peer,
    size: Arc<AtomicU64>,
    fails_flushes: Arc<AtomicBool>,
    /// The connection and the command of each request.
    log: Arc<Mutex<Vec<(usize, Command)>>>,
}

impl ResizedExport {
    fn new(folder: &Path) -> ResizedExport {
        ResizedExport::with_flags(folder, 0)
    }

    fn with_flags(folder: &Path, more: u16) -> ResizedExport {
        let (size, log) = (Arc::new(AtomicU64::new(SIZE)), Arc::<Mutex<Vec<_>>>::default());
        let fails_flushes = Arc::new(AtomicBool::new(false));
        let (now, fails, into) = (size.clone(), fails_flushes.clone(), log.clone());
        let peer = Peer::new(folder, move |connection, conversation| {
            let offer = Offer::new(now.load(Ordering::Relaxed), ALL_FLAGS | more);
            conversation.handshake(&offer)?;
            loop {
                let (request, _) = conversation.request()?;
                let command = Command(request.command.get());
                into.lock().unwrap().push((connection, command));
                let end = request.offset.get() + u64::from(request.length.get());
                match command {
                    Command::DISC => return Ok(()),
                    Command::FLUSH if fails.load(Ordering::Relaxed) => {
                        conversation.fail(&request, 5)?;
                    }
                    _ if end > offer.size => conversation.fail(&request, 28)?,
                    Command::READ => {
                        conversation.data(&request, &vec![0; request.length.get() as usize])?;
                    }
                    _ => conversation.done(&request)?,
                }
            }
        });
        ResizedExport { peer, size, fails_flushes, log }
    }
}

fn write(tested: &mut TestQueue, address: u64) -> Result<u64, Errno> {
    let request = tested.request(Op::Write, address, blocks(4096, 1), 0);
    tested.run(request).1
}

fn flush(tested: &mut TestQueue) -> Result<u64, Errno> {
    let request = tested.request(Op::Flush, 0, Payload::Length(0), 0);
    tested.run(request).1
}

#[test]
fn errors_of_the_server_are_those_of_requests() {
    let folder = tempfile::tempdir().unwrap();
    for structured in [false, true] {
        let peer = Peer::new(folder.path(), move |_, conversation| {
            conversation.handshake(&Offer { structured, ..offer() })?;
            loop {
                let (request, _) = conversation.request()?;
                // The block is the error number.
                conversation.fail(&request, (request.offset.get() / 512) as u32)?;
            }
        });
        let mut tested = open(&peer);
        for (number, errno) in [
            (1, Errno::PERM),
            (5, Errno::IO),
            (12, Errno::NOMEM),
            (22, Errno::INVAL),
            (28, Errno::NOSPC),
            (75, Errno::OVERFLOW),
            (95, Errno::OPNOTSUPP),
            (77, Errno::IO),
        ] {
            for op in [Op::Read, Op::Write] {
                let request = tested.request(op, number * 512, blocks(512, 0), 0);
                assert_eq!(tested.run(request).1, Err(errno), "{op:?} {number}");
            }
        }
        assert_eq!(peer.connections(), 1);
    }
}

#[test]
fn requests_that_a_server_refuses_to_shut_down_go_to_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let peer = Peer::new(folder.path(), move |connection, conversation| {
        conversation.handshake(&offer())?;
        if connection == 0 {
            let (request, _) = conversation.request()?;
            conversation.fail(&request, 108)?;
            return stay_silent(conversation);
        }
        serve_zeros(conversation)
    });
    assert_eq!(read(&mut open(&peer)), Ok(4096));
}

#[test]
fn requests_that_wait_for_a_server_can_be_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let peer = Peer::new(folder.path(), move |connection, conversation| {
        if connection > 0 {
            return stay_silent(conversation);
        }
        conversation.handshake(&offer())?;
        conversation.request().map(drop)
    });
    let mut tested = open(&peer);
    for tag in 0..4 {
        let request = tested.request(Op::Read, 0, blocks(4096, 0), tag);
        tested.queue.push(request).unwrap();
    }
    tested.queue.submit().unwrap();
    while peer.connections() < 2 {
        assert!(tested.queue.reap().is_none());
        tested.turn();
    }
    tested.queue.cancel(Tag(2));
    let StepCompletion { request, result } = tested.queue.reap().expect("it is cancelled");
    assert_eq!((request.tag, request.is_cancelled(), result), (Tag(2), true, Err(Errno::CANCELED)));
    assert_eq!(tested.queue.in_flight(), 3);
    for (_, result) in tested.finish() {
        assert_eq!(result, Err(Errno::TIMEDOUT));
    }
}

/// A message that the server got: command, flags, offset, length.
type Got = (Command, u16, u64, u32);

fn logging(folder: &Path, offer: Offer) -> (Peer, Arc<Mutex<Vec<Got>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let into = log.clone();
    let peer = Peer::new(folder, move |_, conversation| {
        conversation.handshake(&offer)?;
        loop {
            let (request, _) = conversation.request()?;
            let command = Command(request.command.get());
            let (offset, length) = (request.offset.get(), request.length.get());
            into.lock().unwrap().push((command, request.flags.get(), offset, length));
            match command {
                Command::READ => conversation.data(&request, &vec![3; length as usize])?,
                Command::DISC => return Ok(()),
                _ => conversation.done(&request)?,
            }
        }
    });
    (peer, log)
}

#[test]
fn requests_become_the_messages_that_the_server_takes() {
    let folder = tempfile::tempdir().unwrap();
    let got = |offer: &Offer, op, length: u64, is_durable| {
        let (peer, log) = logging(folder.path(), offer.clone());
        let mut tested = open(&peer);
        let payload = match op {
            Op::Read | Op::Write => blocks(length as usize, 9),
            _ => Payload::Length(length),
        };
        let request = tested.request(op, 4096, payload, 0);
        let request = if is_durable { request.durable() } else { request };
        let result = tested.run(request).1;
        drop(tested);
        let log = log.lock().unwrap().clone();
        result.map(|_| log.into_iter().filter(|got| got.0 != Command::DISC).collect::<Vec<_>>())
    };
    let all = Offer { size: 8 << 30, ..offer() };
    let few = Offer { flags: export_flags::HAS_FLAGS, ..all.clone() };
    let (fua, mib) = (command_flags::FUA, 1 << 20);
    let one = |command, flags, length| Ok(vec![(command, flags, 4096, length)]);
    assert_eq!(got(&all, Op::Read, 512, false), one(Command::READ, 0, 512));
    assert_eq!(got(&all, Op::Write, 512, false), one(Command::WRITE, 0, 512));
    assert_eq!(got(&all, Op::Write, 512, true), one(Command::WRITE, fua, 512));
    assert_eq!(got(&few, Op::Write, 512, true), one(Command::WRITE, 0, 512));
    assert_eq!(got(&all, Op::WriteZeroes, 4096, true), one(Command::WRITE_ZEROES, fua, 4096));
    assert_eq!(got(&all, Op::Discard, 4096, false), one(Command::TRIM, 0, 4096));
    assert_eq!(got(&few, Op::Discard, 4096, false), Err(Errno::OPNOTSUPP));
    assert_eq!(got(&few, Op::Flush, 0, false), Ok(vec![]));
    assert_eq!(got(&all, Op::Read, 513, false), Err(Errno::INVAL));
    // Longer ones in pieces.
    let pieces = |command, lengths: &[u32]| {
        let mut offset = 4096;
        let mut got = Vec::new();
        for length in lengths {
            got.push((command, 0, offset, *length));
            offset += u64::from(*length);
        }
        Ok(got)
    };
    let long = 2 * u64::from(mib) + 512;
    assert_eq!(got(&all, Op::Write, long, false), pieces(Command::WRITE, &[mib, mib, 512]));
    assert_eq!(got(&all, Op::Read, long, false), pieces(Command::READ, &[mib, mib, 512]));
    assert_eq!(got(&few, Op::WriteZeroes, long, false), pieces(Command::WRITE, &[mib, mib, 512]));
    let most = 64 * mib;
    let zeroes = got(&all, Op::WriteZeroes, 2 * u64::from(most) + 512, false);
    assert_eq!(zeroes, pieces(Command::WRITE_ZEROES, &[most, most, 512]));
}

#[test]
fn the_end_of_the_device_is_that_of_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (peer, _log) = logging(folder.path(), offer());
    let mut tested = open(&peer);
    let at = |tested: &mut TestQueue, op, address| {
        let request = tested.request(op, address, blocks(8192, 0), 0);
        tested.run(request).1
    };
    assert_eq!(at(&mut tested, Op::Read, SIZE - 4096), Ok(4096));
    assert_eq!(at(&mut tested, Op::Read, SIZE), Ok(0));
    assert_eq!(at(&mut tested, Op::Read, SIZE + 4096), Ok(0));
    assert_eq!(at(&mut tested, Op::Write, SIZE - 4096), Err(Errno::NOSPC));
    assert_eq!(at(&mut tested, Op::Write, u64::MAX - 511), Err(Errno::NOSPC));
}

fn open_error(
    folder: &Path,
    script: impl Fn(&mut Conversation) -> io::Result<()> + Send + Sync + 'static,
    access: Access,
) -> io::Error {
    let peer = Peer::new(folder, move |_, conversation| script(conversation));
    let error = Nbd::open(&peer.target().with_timeout(TIMEOUT), access).expect_err("refused");
    let text = error.to_string();
    assert!(text.starts_with("nbd+unix:///disk?socket=") && !text.contains('\n'), "{text}");
    error
}

#[test]
fn what_cannot_be_opened_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: fn(&mut Offer)| {
        let mut offer = offer();
        change(&mut offer);
        let script = move |conversation: &mut Conversation| conversation.handshake(&offer);
        open_error(folder.path(), script, Access::ReadWrite)
    };
    let read_only = refused(|offer| offer.flags |= export_flags::READ_ONLY);
    assert_eq!(read_only.kind(), io::ErrorKind::ReadOnlyFilesystem);
    assert!(refused(|offer| offer.size = 0).to_string().contains("0 bytes"));
    assert!(
        refused(|offer| offer.block_sizes = Some([3, 5, 7])).to_string().contains("3, 5 and 7")
    );
    let with_code = |code| {
        let script = move |conversation: &mut Conversation| {
            conversation.greet()?;
            loop {
                let (option, _) = conversation.option()?;
                match option {
                    OptionCode::GO => conversation.reply(option, code, b"words of the server")?,
                    OptionCode::LIST => {
                        conversation.reply(option, ReplyCode::SERVER, b"\0\0\0\x05other")?;
                        conversation.reply(option, ReplyCode::ACK, b"")?;
                    }
                    option => conversation.reply(option, ReplyCode::ACK, b"")?,
                }
            }
        };
        open_error(folder.path(), script, Access::Read)
    };
    let unknown = with_code(ReplyCode::ERR_UNKNOWN);
    assert_eq!(unknown.kind(), io::ErrorKind::NotFound);
    assert!(unknown.to_string().ends_with("no export 'disk', but 'other'; name one of these"));
    assert!(with_code(ReplyCode::ERR_TLS_REQD).to_string().contains("requires TLS"));
    assert!(with_code(ReplyCode::ERR_POLICY).to_string().contains("words of the server"));
    let silent = open_error(folder.path(), stay_silent, Access::Read);
    assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
    let closed = open_error(folder.path(), |_| Ok(()), Access::Read);
    assert!(closed.to_string().contains("closed the connection"), "{closed}");
    let foreign =
        open_error(folder.path(), |other| other.send(b"220 mail.example ESMTP\r\n"), Access::Read);
    assert!(foreign.to_string().contains("does not speak NBD"), "{foreign}");
    let socket = folder.path().join("peer.sock");
    let target = uringfs_device::backend::nbd::NbdTarget::unix(&socket, "");
    let refused = Nbd::open(&target, Access::Read).expect_err("no server listens").to_string();
    assert!(refused.contains("no server listens there"), "{refused}");
    std::fs::remove_file(&socket).unwrap();
    let refused = Nbd::open(&target, Access::Read).expect_err("there is no socket").to_string();
    assert!(refused.contains("no server listens there"), "{refused}");
}

#[test]
fn a_second_connection_that_the_server_does_not_take_is_not_needed() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ALL_FLAGS | export_flags::CAN_MULTI_CONN;
    let peer = Peer::new(folder.path(), move |connection, conversation| {
        if connection > 0 {
            return stay_silent(conversation);
        }
        conversation.handshake(&Offer { flags, ..offer() })?;
        serve_zeros(conversation)
    });
    let device = device(&peer);
    for _ in 0..3 {
        let mut tested = TestQueue::own(device.clone());
        for _ in 0..10 {
            assert_eq!(read(&mut tested), Ok(4096));
        }
        while peer.connections() < 2 {
            assert_eq!(read(&mut tested), Ok(4096));
        }
    }
}

#[test]
fn threads_share_connections_that_break() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [ALL_FLAGS, ALL_FLAGS | export_flags::CAN_MULTI_CONN] {
        let disk = CachedDisk::new(SIZE as usize);
        let peer = cached_disk(folder.path(), &disk, Offer { flags, ..offer() }, vec![]);
        let target = peer.target();
        let device = Device::new(Nbd::open(&target, Access::ReadWrite).unwrap()).unwrap();
        let rounds = AtomicU64::new(0);
        thread::scope(|scope| {
            let (device, rounds, peer) = (&device, &rounds, &peer);
            // Each has its part of the disk. Durable writes are never lost.
            for user in 0..4u64 {
                scope.spawn(move || {
                    let mut random = Random(user + 1);
                    let mut tested = TestQueue::own(device.clone());
                    for round in 0..60u8 {
                        let address = user * (SIZE / 4) + random.below(32) * 4096;
                        let length = 4096 * (1 + random.below(16) as usize);
                        let write = tested.request(Op::Write, address, blocks(length, round), 1);
                        let read = tested.request(Op::Read, address, blocks(length, 0xee), 2);
                        let mut results = Vec::new();
                        for request in [write.durable(), read] {
                            let (request, result) = match user {
                                3 => perform(device, request),
                                _ => tested.run(request),
                            };
                            assert_eq!(result, Ok(length as u64), "user {user}, round {round}");
                            results.push(request);
                        }
                        let Payload::Buffer(found) = &results[1].payload else { unreachable!() };
                        assert!(found.iter().all(|byte| *byte == round), "user {user}, {round}");
                        if rounds.fetch_add(1, Ordering::Relaxed) % 25 == 24 {
                            peer.cut();
                        }
                    }
                });
            }
        });
        assert!(peer.connections() > 5);
    }
}

fn perform(device: &Device, mut request: Request) -> (Request, Result<u64, Errno>) {
    let bounds = device.core().bounds();
    loop {
        let moved = device.core().perform(&mut request);
        if let Progress::Done(result) = request.advance(moved, bounds) {
            return (request, result);
        }
    }
}
