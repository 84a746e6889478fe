//! The NBD client with nbdkit and qemu-nbd: what they serve is a device.

mod harness;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use harness::nbd_server::NbdServer;
use harness::{Random, TestQueue};
use uringfs_buffer::Buffer;
use uringfs_device::backend::nbd::{Nbd, NbdTarget};
use uringfs_device::{Access, Device, Errno, Op, Payload};

const SIZE: u64 = 8 << 20;
const BLOCK: u64 = 4096;

fn device(target: &NbdTarget) -> Device {
    Device::new(Nbd::open(target, Access::ReadWrite).unwrap()).unwrap()
}

fn open(target: &NbdTarget) -> TestQueue {
    TestQueue::own(device(target))
}

fn buffer(length: u64, byte: u8) -> Payload {
    Payload::Buffer(Buffer::copy_of(&vec![byte; length as usize]))
}

fn flush(tested: &mut TestQueue) -> Result<u64, Errno> {
    let request = tested.request(Op::Flush, 0, Payload::Length(0), 0);
    tested.run(request).1
}

fn write(tested: &mut TestQueue, block: u64, byte: u8) -> Result<u64, Errno> {
    let request = tested.request(Op::Write, block * BLOCK, buffer(BLOCK, byte), 0);
    tested.run(request).1
}

fn read(tested: &mut TestQueue, block: u64) -> u8 {
    let bytes = tested.read(block * BLOCK, BLOCK as usize);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

fn image(folder: &Path) -> String {
    let path = folder.join("image");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Random requests, many at a time, against a model.
fn fill_and_compare(tested: &mut TestQueue, seed: u64) {
    let mut random = Random(seed);
    let mut model = vec![0u8; (SIZE / BLOCK) as usize];
    for _ in 0..40 {
        let mut used = vec![false; model.len()];
        let mut expected = HashMap::new();
        for tag in 0..16 {
            let length = 1 + random.below(40);
            let block = random.below(model.len() as u64 - length);
            let range = block as usize..(block + length) as usize;
            if used[range.clone()].contains(&true) {
                continue;
            }
            used[range.clone()].fill(true);
            let (op, payload) = match random.below(6) {
                0 => (Op::WriteZeroes, Payload::Length(length * BLOCK)),
                1..=2 => {
                    let byte = random.below(256) as u8;
                    model[range].fill(byte);
                    (Op::Write, buffer(length * BLOCK, byte))
                }
                _ => {
                    expected.insert(tag, model[range].to_vec());
                    let buffers: Vec<_> =
                        (0..length).map(|_| Buffer::zeroed(BLOCK as usize)).collect();
                    (Op::Read, Payload::Buffers(buffers.into()))
                }
            };
            if op == Op::WriteZeroes {
                model[block as usize..(block + length) as usize].fill(0);
            }
            let request = tested.request(op, block * BLOCK, payload, tag);
            tested.queue.push(request).unwrap();
        }
        for (request, result) in tested.finish() {
            assert_eq!(result, Ok(request.length()), "seed {seed}: {request:?}");
            let Some(expected) = expected.get(&request.tag.0) else { continue };
            let Payload::Buffers(buffers) = &request.payload else { unreachable!() };
            for (buffer, byte) in buffers.iter().zip(expected) {
                assert!(buffer.iter().all(|found| found == byte), "seed {seed}: {request:?}");
            }
        }
        assert_eq!(flush(tested), Ok(0));
    }
}

#[test]
fn random_requests_match_a_model_on_every_server() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let qcow2 = folder.path().join("image.qcow2");
    let size = SIZE.to_string();
    let created = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2"])
        .args([qcow2.as_os_str(), size.as_ref()])
        .status();
    assert!(created.unwrap().success());
    let commands = [
        format!("nbdkit -f memory {SIZE}"),
        format!(
            "nbdkit -f --filter=blocksize-policy memory {SIZE} blocksize-minimum=4096 \
                 blocksize-preferred=64k blocksize-maximum=64k blocksize-error-policy=error"
        ),
        format!("nbdkit -f --filter=delay memory {SIZE} rdelay=2ms wdelay=1ms"),
        format!(
            "nbdkit -f --filter=nozero --filter=multi-conn memory {SIZE} \
             zeromode=none multi-conn-mode=disable"
        ),
        format!("nbdkit -f file {image}"),
        format!("qemu-nbd -t -e 0 -f raw {image}"),
        format!("qemu-nbd -t -f qcow2 --discard=unmap --detect-zeroes=unmap {}", qcow2.display()),
    ];
    for (seed, command) in commands.into_iter().enumerate() {
        let socket = tempfile::tempdir().unwrap();
        std::fs::write(&image, vec![0; SIZE as usize]).unwrap();
        let server = NbdServer::start(socket.path(), &command);
        println!("{command}");
        let mut tested = open(&server.target(""));
        assert_eq!(tested.device.geometry().size, SIZE);
        fill_and_compare(&mut tested, seed as u64);
    }
}

#[test]
fn properties_of_servers_become_those_of_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let policy = "nbdkit -f --filter=blocksize-policy memory 8M blocksize-minimum=4096 \
                  blocksize-preferred=64k blocksize-maximum=256k";
    let server = NbdServer::start(folder.path(), policy);
    let geometry = device(&server.target("")).geometry().clone();
    assert_eq!(
        (geometry.block_size, geometry.physical_block_size, geometry.max_transfer),
        (4096, 65536, 262144)
    );
    assert!(geometry.volatile_cache && geometry.fua && geometry.write_zeroes);
    assert!(geometry.discard.is_some() && !geometry.read_only && !geometry.rotational);
}

/// The policy fails each request that breaks it, so the device sends none, whatever is asked of it.
#[test]
fn block_sizes_of_a_server_are_kept_to() {
    for (minimum, preferred, maximum) in
        [(1, 4096, 4096), (512, 512, 1 << 20), (1024, 4096, 8192), (4096, 65536, 65536)]
    {
        let folder = tempfile::tempdir().unwrap();
        let command = format!(
            "nbdkit -f --filter=blocksize-policy memory 8M blocksize-minimum={minimum} \
             blocksize-preferred={preferred} blocksize-maximum={maximum} blocksize-error-policy=error"
        );
        let server = NbdServer::start(folder.path(), &command);
        let mut tested = open(&server.target(""));
        let geometry = tested.device.geometry().clone();
        let block = u64::from(geometry.block_size);
        assert_eq!((block, u64::from(geometry.max_transfer)), (minimum.max(512), maximum));
        // The smallest request, one of several steps, and those that are no whole blocks.
        let whole = |length: u64| length.is_multiple_of(block);
        for (address, length) in
            [(block, block), (4096, 3 << 20), (4096, (1 << 20) + block), (512, 512), (4096, 512)]
        {
            let expected = match whole(address) && whole(length) {
                true => Ok(length),
                false => Err(Errno::INVAL),
            };
            let write = tested.request(Op::Write, address, buffer(length, 5), 0);
            assert_eq!(tested.run(write).1, expected, "{minimum}: {length} at {address}");
            let zeroes = tested.request(Op::WriteZeroes, address, Payload::Length(length), 0);
            let (_, zeroed) = tested.run(zeroes);
            assert_eq!(zeroed.is_ok(), expected.is_ok(), "{minimum}: {length} at {address}");
        }
        assert_eq!(tested.read(4096, 3 << 20), vec![0; 3 << 20]);
        assert_eq!(flush(&mut tested), Ok(0));
    }
}

/// The other end of nbdkit's filter `pause`.
fn control(socket: &Path, letter: u8) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(&[letter]).unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [letter.to_ascii_uppercase()]);
}

#[test]
fn a_paused_server_holds_a_request_until_it_goes_on_or_the_time_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let pause = folder.path().join("pause");
    let command = format!("nbdkit -f --filter=pause memory 8M pause-control={}", pause.display());
    let server = NbdServer::start(folder.path(), &command);
    let mut tested = open(&server.target(""));
    assert_eq!(write(&mut tested, 3, 7), Ok(BLOCK));
    assert_eq!(flush(&mut tested), Ok(0));
    control(&pause, b'p');
    let request = tested.request(Op::Write, 3 * BLOCK, buffer(BLOCK, 8), 0);
    tested.queue.push(request).unwrap();
    tested.queue.submit().unwrap();
    tested.turn();
    assert_eq!(tested.queue.in_flight(), 1);
    control(&pause, b'r');
    let (_, result) = tested.finish().pop().expect("it ended");
    assert_eq!((result, read(&mut tested, 3)), (Ok(BLOCK), 8));
    assert_eq!(flush(&mut tested), Ok(0));
    drop(tested);
    // One that stays paused.
    let timeout = Duration::from_millis(300);
    let short = server.target("").with_timeout(timeout);
    let mut tested = open(&short);
    control(&pause, b'p');
    let begin = Instant::now();
    assert_eq!(write(&mut tested, 3, 9), Err(Errno::TIMEDOUT));
    assert!(begin.elapsed() >= timeout);
    control(&pause, b'r');
    let begin = Instant::now();
    while write(&mut tested, 4, 1) == Err(Errno::TIMEDOUT) {
        assert!(begin.elapsed() < Duration::from_secs(20), "the server goes on");
        thread::yield_now();
    }
    assert_eq!((write(&mut tested, 5, 2), read(&mut tested, 5)), (Ok(BLOCK), 2));
}

#[test]
fn errors_of_a_server_reach_the_request_alone() {
    let folder = tempfile::tempdir().unwrap();
    let command = "nbdkit -f --filter=error memory 8M error=ENOSPC error-pwrite-rate=50%";
    let server = NbdServer::start(folder.path(), command);
    let mut tested = open(&server.target(""));
    let results: Vec<_> = (0..100).map(|block| write(&mut tested, block, 7)).collect();
    let failed = results.iter().filter(|result| **result == Err(Errno::NOSPC)).count();
    let done = results.iter().filter(|result| **result == Ok(BLOCK)).count();
    assert!(failed > 10 && done > 10 && failed + done == 100, "{failed} failed, {done} done");
    for (block, result) in results.iter().enumerate() {
        assert_eq!(read(&mut tested, block as u64), if result.is_ok() { 7 } else { 0 });
    }
}

#[test]
fn a_server_that_is_killed_and_started_again_is_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    for command in [format!("nbdkit -f file {image}"), format!("qemu-nbd -t -e 0 -f raw {image}")] {
        let socket = tempfile::tempdir().unwrap();
        let mut server = NbdServer::start(socket.path(), &command);
        let mut tested = open(&server.target(""));
        for round in 1..4 {
            assert_eq!(write(&mut tested, 5, round), Ok(BLOCK));
            assert_eq!(flush(&mut tested), Ok(0));
            server.kill();
            // The request waits until the server is there again.
            let payload = buffer(BLOCK, round + 100);
            let request = tested.request(Op::Write, 6 * BLOCK, payload, 0).durable();
            tested.queue.push(request).unwrap();
            tested.queue.submit().unwrap();
            server.restart();
            let (_, result) = tested.finish().pop().expect("it ended");
            assert_eq!(result, Ok(BLOCK), "{command}");
            assert_eq!((read(&mut tested, 5), read(&mut tested, 6)), (round, round + 100));
        }
        // Not flushed: the next change says that it may be lost.
        assert_eq!(write(&mut tested, 5, 77), Ok(BLOCK));
        server.restart();
        assert_eq!(flush(&mut tested), Err(Errno::IO));
        assert_eq!(write(&mut tested, 7, 1), Err(Errno::IO));
        read(&mut tested, 5);
        let mut again = open(&server.target(""));
        assert_eq!(write(&mut again, 7, 1), Ok(BLOCK));
        assert_eq!(flush(&mut again), Ok(0));
    }
}

#[test]
fn an_image_that_grows_behind_a_server_grows_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let grow = |bytes| {
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        file.set_len(bytes).unwrap();
    };
    // nbdkit asks for the size at each connection.
    let socket = tempfile::tempdir().unwrap();
    let server = NbdServer::start(socket.path(), &format!("nbdkit -f file {image}"));
    let mut tested = open(&server.target(""));
    assert_eq!(write(&mut tested, 0, 1), Ok(BLOCK));
    grow(2 * SIZE);
    assert_eq!(tested.device.refresh_size().unwrap(), 2 * SIZE);
    let last = 2 * SIZE / BLOCK - 1;
    assert_eq!(write(&mut tested, last, 2), Ok(BLOCK));
    assert_eq!((read(&mut tested, 0), read(&mut tested, last)), (1, 2));
    assert_eq!(flush(&mut tested), Ok(0));
    drop(server);
    // qemu-nbd asks when it starts, and takes one client at a time.
    let socket = tempfile::tempdir().unwrap();
    let mut server = NbdServer::start(socket.path(), &format!("qemu-nbd -t -f raw {image}"));
    let mut tested = open(&server.target(""));
    assert_eq!(write(&mut tested, 0, 3), Ok(BLOCK));
    assert_eq!(flush(&mut tested), Ok(0));
    grow(3 * SIZE);
    server.restart();
    assert_eq!(read(&mut tested, 0), 3);
    assert_eq!(tested.device.core().check_size(), 3 * SIZE);
    assert_eq!(write(&mut tested, 3 * SIZE / BLOCK - 1, 4), Ok(BLOCK));
    assert_eq!(flush(&mut tested), Ok(0));
}

#[test]
fn requests_under_load_survive_a_killed_server() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let socket = tempfile::tempdir().unwrap();
    let command = format!("nbdkit -f --filter=delay file {image} rdelay=1ms wdelay=1ms");
    let mut server = NbdServer::start(socket.path(), &command);
    let mut tested = open(&server.target(""));
    for round in 1..6u8 {
        for block in 0..64 {
            let payload = buffer(BLOCK, round);
            let request = tested.request(Op::Write, block * BLOCK, payload, block).durable();
            tested.queue.push(request).unwrap();
        }
        tested.queue.submit().unwrap();
        tested.turn();
        server.restart();
        for (request, result) in tested.finish() {
            assert_eq!(result, Ok(BLOCK), "{request:?}");
        }
        for block in 0..64 {
            assert_eq!(read(&mut tested, block), round);
        }
    }
}

#[test]
fn a_read_only_server_with_one_place_serves_several_queues() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    std::fs::write(&image, vec![9; SIZE as usize]).unwrap();
    let server = NbdServer::start(folder.path(), &format!("qemu-nbd -t -r -e 1 -f raw {image}"));
    let device = Device::new(Nbd::open(&server.target(""), Access::Read).unwrap()).unwrap();
    assert!(device.geometry().read_only);
    for _ in 0..3 {
        assert_eq!(read(&mut TestQueue::own(device.clone()), 17), 9);
    }
    let mut tested = TestQueue::own(device);
    assert_eq!(write(&mut tested, 0, 1), Err(Errno::BADF));
}

#[test]
fn what_a_server_refuses_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let refusal = |command: &str, name: &str, access| {
        let socket = tempfile::tempdir().unwrap();
        let server = NbdServer::start(socket.path(), command);
        let error = Nbd::open(&server.target(name), access).expect_err("refused").to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    let named = format!("qemu-nbd -t -x system -f raw {image}");
    let error = refusal(&named, "sistem", Access::Read);
    assert!(error.ends_with("no export 'sistem', but 'system'; name one of these"), "{error}");
    let policy = "nbdkit -f --filter=blocksize-policy memory 8M blocksize-minimum=8192 \
                  blocksize-preferred=64k blocksize-maximum=1M";
    let error = refusal(policy, "", Access::Read);
    assert!(error.contains("no blocks of less than 8192 bytes"), "{error}");
    assert!(error.ends_with("let it take smaller ones (nbdkit: --filter=blocksize)"), "{error}");
    let error = refusal(&format!("nbdkit -f -r file {image}"), "", Access::ReadWrite);
    assert!(error.contains("read-only"), "{error}");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "user:0123456789abcdef0123456789abcdef\n").unwrap();
    let secure = format!("nbdkit -f --tls=require --tls-psk={} memory 8M", keys.display());
    let error = refusal(&secure, "", Access::Read);
    assert!(error.contains("requires TLS"), "{error}");
}

#[test]
fn a_server_is_reached_over_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let server = NbdServer::start_on_tcp(folder.path(), &format!("nbdkit -f memory {SIZE}"));
    let target = format!("nbd://{}/", server.address());
    let mut tested = open(&NbdTarget::parse(&target).unwrap().unwrap());
    fill_and_compare(&mut tested, 99);
}
