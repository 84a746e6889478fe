//! Requests, rings and configuration, as a driver of the tests sees them.

mod harness;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use harness::front_end::{
    DISCARD, Driver, FLUSH, FrontEnd, GET_ID, GUEST, INDIRECT, Memory, NEED_REPLY, Queue, READ,
    SLOT, STATUS, WRITE, WRITE_OUT, WRITE_ZEROES, code, data_at, descriptor_bytes, feature,
    header_at, numbers, state,
};
use harness::{IMAGE_BYTES, Server};
use uringfs::device::backend::sim::{Sim, SimOptions};
use uringfs::device::{Access, Device};
use uringfs::file::FileOptions;
use uringfs::{File, FormatOptions, OpenOptions, Volume};
use uringfs_vhost::{Disk, VhostServer};

const OK: u8 = 0;
const ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// Both kinds of rings, with every set of features.
fn rings() -> impl Iterator<Item = (bool, u64)> {
    [false, true].into_iter().flat_map(|packed| {
        [0, feature::EVENT_INDEX, feature::INDIRECT, feature::EVENT_INDEX | feature::INDIRECT]
            .map(|features| (packed, features | if packed { feature::PACKED } else { 0 }))
    })
}

fn queue(packed: bool, size: u16) -> Queue {
    if packed { Queue::packed(0, size) } else { Queue::split(0, size) }
}

fn driver(server: &Server, packed: bool, features: u64) -> Driver {
    Driver::new(&server.socket(), features, queue(packed, 64))
}

#[test]
fn rings_of_both_kinds_carry_requests_around_many_times() {
    for (packed, features) in rings() {
        let server = Server::new(|disk| disk.packed(packed));
        let mut driver = driver(&server, packed, features | feature::FLUSH);
        for round in 0..200_u64 {
            let (sector, byte) = (round * 8 % 4096, round as u8);
            driver.memory.write(data_at(0), &[byte; 4096]);
            assert_eq!(driver.run(WRITE_OUT, sector, 4096), (OK, 1), "{packed} {features:x}");
            driver.memory.write(data_at(0), &[0xee; 4096]);
            assert_eq!(driver.run(READ, sector, 4096), (OK, 4097));
            assert_eq!(driver.memory.read(data_at(0), 4096), [byte; 4096]);
            assert_eq!(driver.run(FLUSH, 0, 0), (OK, 1));
        }
    }
}

#[test]
fn many_requests_are_in_flight_in_rings_of_both_kinds() {
    for (packed, features) in rings() {
        let server = Server::new(|disk| disk.packed(packed));
        let mut driver = driver(&server, packed, features);
        let slots = 64 / SLOT;
        for round in 0..20_u8 {
            for slot in 0..slots {
                driver.memory.write(data_at(slot), &[round ^ slot as u8; 4096]);
                driver.add(slot, WRITE_OUT, u64::from(slot) * 8, 4096);
            }
            driver.queue.notify();
            let mut used = driver.queue.wait_used(&driver.memory, slots.into());
            used.sort_unstable();
            assert_eq!(used, (0..slots).map(|slot| (slot, 1)).collect::<Vec<_>>());
            assert!((0..slots).all(|slot| driver.status(slot) == OK));
        }
        let image = fs::read(server.image()).unwrap();
        for slot in 0..usize::from(slots) {
            assert!(image[slot * 4096..][..4096].iter().all(|byte| *byte == 19 ^ slot as u8));
        }
    }
}

#[test]
fn tables_of_descriptors_carry_requests() {
    for packed in [false, true] {
        let server = Server::new(|disk| disk.packed(packed));
        let features = feature::INDIRECT | if packed { feature::PACKED } else { 0 };
        let mut driver = driver(&server, packed, features);
        for round in 0..100_u8 {
            driver.memory.write(data_at(0), &[round; 8192]);
            let mut chain = driver.chain(0, WRITE_OUT, 8, 4096);
            // More segments than the chain of a ring could have.
            let (data, _, _) = chain.remove(1);
            for part in 0..16 {
                chain.insert(1, (data + 512 * part, 512, 0));
            }
            let table: Vec<u8> = chain
                .iter()
                .enumerate()
                .flat_map(|(number, (address, length, flags))| {
                    let is_last = number + 1 == chain.len();
                    let next = if packed || is_last { 0 } else { 1 };
                    descriptor_bytes((*address, *length, flags | next), number as u16 + 1)
                })
                .collect();
            // In a packed ring's table the flags stand last.
            let table = match packed {
                false => table,
                true => table
                    .chunks(16)
                    .flat_map(|entry| [&entry[..12], &[0, 0], &entry[12..14]].concat())
                    .collect(),
            };
            driver.memory.write(0x18_0000, &table);
            driver.queue.add(
                &driver.memory,
                0,
                &[(GUEST + 0x18_0000, table.len() as u32, INDIRECT)],
            );
            driver.queue.notify();
            driver.queue.wait_used(&driver.memory, 1);
            assert_eq!(driver.status(0), OK);
        }
        let image = fs::read(server.image()).unwrap();
        assert!(image[4096..4096 + 8192].iter().all(|byte| *byte == 99));
    }
}

#[test]
fn a_request_may_be_cut_into_segments_anywhere() {
    let server = Server::new(|disk| disk);
    let mut driver = driver(&server, false, 0);
    driver.memory.write(data_at(0), &[5; 1024]);
    driver.chain(0, WRITE_OUT, 2, 1024);
    let header = GUEST + header_at(0);
    // The header and the first bytes of data in one segment would lie apart, so the header is cut instead.
    let chain = [
        (header, 3, 0),
        (header + 3, 13, 0),
        (GUEST + data_at(0), 1024, 0),
        (header + STATUS, 1, WRITE),
    ];
    driver.queue.add(&driver.memory, 0, &chain);
    driver.queue.notify();
    driver.queue.wait_used(&driver.memory, 1);
    assert_eq!(driver.status(0), OK);
    // Data and status of a read in one segment.
    let status = GUEST + data_at(1) + 1024;
    driver.chain(1, READ, 2, 1024);
    let chain = [(GUEST + header_at(1), 16, 0), (GUEST + data_at(1), 1025, WRITE)];
    driver.queue.add(&driver.memory, 1, &chain);
    driver.queue.notify();
    assert_eq!(driver.queue.wait_used(&driver.memory, 1), [(1, 1025)]);
    assert_eq!(driver.memory.read(data_at(1), 1024), [5; 1024]);
    assert_eq!(driver.memory.read(status - GUEST, 1), [OK]);
}

#[test]
fn the_serial_number_is_what_the_disk_was_given() {
    let server = Server::new(|disk| disk.serial("a serial number that is long"));
    let mut driver = driver(&server, false, 0);
    assert_eq!(driver.run(GET_ID, 0, 20), (OK, 21));
    assert_eq!(driver.memory.read(data_at(0), 20), b"a serial number that");
    driver.memory.write(data_at(0), &[9; 20]);
    assert_eq!(driver.run(GET_ID, 0, 8), (OK, 9));
    assert_eq!(driver.memory.read(data_at(0), 10), b"a serial\x09\x09");
    assert_eq!(driver.run(99, 0, 8).0, UNSUPPORTED);
}

#[test]
fn the_configuration_says_what_the_disk_is() {
    let server = Server::new(|disk| disk.queues(3));
    let front_end = FrontEnd::connect(&server.socket());
    front_end.negotiate(0);
    assert_eq!(front_end.ask_number(code::GET_QUEUE_NUM), 3);
    let config = |offset: u32, length: u32| {
        let head = [offset, length, 0].map(u32::to_ne_bytes).concat();
        let payload = [&head[..], &vec![0; length as usize]].concat();
        front_end.ask(code::GET_CONFIG, &payload).payload[12..].to_vec()
    };
    let whole = config(0, 60);
    assert_eq!(whole[..8], (IMAGE_BYTES / 512).to_le_bytes());
    assert_eq!(whole[20..24], 512_u32.to_le_bytes());
    assert_eq!((whole[32], whole[34]), (1, 3));
    assert_eq!(config(32, 1), [1]);
    // Fields of later versions are zeros; beyond the space there is nothing.
    assert_eq!(config(60, 196), vec![0; 196]);
    assert_eq!(config(60, 197), []);
    assert_eq!(config(u32::MAX, 4), []);
}

#[test]
fn a_write_is_durable_as_the_guest_has_agreed() {
    let device = || {
        let sim = Sim::new(SimOptions::new(1 << 20));
        (sim.clone(), File::from_device(Device::new(sim).unwrap(), FileOptions::default()))
    };
    let serve = |file| Server::of_file(tempfile::tempdir().unwrap(), file, |disk| disk);
    // With a write-back cache a flush makes it durable.
    let (sim, file) = device();
    let server = serve(file);
    let mut driver = driver(&server, false, feature::FLUSH);
    assert_eq!(driver.run(WRITE_OUT, 0, 4096), (OK, 1));
    assert!(sim.unstable_writes() > 0);
    assert_eq!(driver.run(FLUSH, 0, 0), (OK, 1));
    assert_eq!(sim.unstable_writes(), 0);
    // The guest cannot turn the cache off: the next server would not know.
    let head = [32_u32, 1, 0].map(u32::to_ne_bytes).concat();
    assert!(!driver.front_end.request(code::SET_CONFIG, &[&head[..], &[0]].concat(), &[]));
    // A guest that cannot flush has no such cache.
    drop((driver, server));
    let (sim, file) = device();
    let server = serve(file);
    let mut driver = self::driver(&server, false, feature::DISCARD | feature::WRITE_ZEROES);
    assert_eq!(driver.run(WRITE_OUT, 0, 4096), (OK, 1));
    assert_eq!(sim.unstable_writes(), 0);
    let range = [&0_u64.to_le_bytes()[..], &8_u32.to_le_bytes(), &[0; 4]].concat();
    driver.memory.write(data_at(0), &range);
    assert_eq!(driver.run(DISCARD, 0, 16), (OK, 1));
    assert!(sim.unstable_writes() > 0);
    assert_eq!(driver.run(WRITE_ZEROES, 0, 16), (OK, 1));
    assert_eq!(sim.unstable_writes(), 0);
}

/// A copy of the image at any moment is what the next server finds if this one is killed then. The guest goes on meanwhile,
/// and repeats nothing that it knows to be done.
fn acknowledges_what_outlives_it(options: OpenOptions) {
    const BYTES: usize = 1 << 17;
    let folder = tempfile::tempdir().unwrap();
    let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
    let volume = Volume::create(&image, &FormatOptions::new().size(64 << 20)).unwrap();
    let options = options.read(true).write(true).create(true);
    let file = options.open(&volume, "/disk").unwrap();
    file.set_len(BYTES as u64).wait().unwrap();
    volume.sync().unwrap();
    let server = Server::of_file(tempfile::tempdir().unwrap(), file, |disk| disk);
    let mut driver = driver(&server, false, feature::FLUSH | feature::WRITE_ZEROES);
    let mut expected = vec![0; BYTES];
    let mut check = |kind, (sector, sectors): (u64, u32), byte: u8| {
        let length = match kind {
            WRITE_OUT => {
                driver.memory.write(data_at(0), &vec![byte; sectors as usize * 512]);
                sectors * 512
            }
            _ => {
                let range = [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &[1, 0, 0, 0]];
                driver.memory.write(data_at(0), &range.concat());
                16
            }
        };
        let at = if kind == WRITE_OUT { sector } else { 0 };
        assert_eq!(driver.run(kind, at, length), (OK, 1));
        expected[sector as usize * 512..][..sectors as usize * 512].fill(byte);
        fs::copy(&image, &copy).unwrap();
        let volume = Volume::open(&copy).unwrap();
        let file = OpenOptions::new().read(true).open(&volume, "/disk").unwrap();
        let (read, found) = file.read_exact_at(vec![0; BYTES], 0).wait();
        read.unwrap();
        assert!(found == expected, "{kind} {sector} {sectors}");
        drop(file);
        volume.close().unwrap();
    };
    // Into a hole, partly into one, in place, and a hole again.
    check(WRITE_OUT, (16, 8), 1);
    check(WRITE_OUT, (12, 8), 2);
    check(WRITE_OUT, (17, 2), 3);
    check(WRITE_ZEROES, (16, 8), 0);
    check(WRITE_OUT, (16, 4), 4);
    drop((driver, server));
    volume.close().unwrap();
}

#[test]
fn what_is_acknowledged_is_there_after_the_server_was_killed() {
    acknowledges_what_outlives_it(OpenOptions::new().direct(true));
}

#[test]
fn so_it_is_if_the_handle_of_the_disk_is_buffered() {
    acknowledges_what_outlives_it(OpenOptions::new());
}

#[test]
fn ranges_are_checked_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let options = FormatOptions::new().size(64 << 20);
    let volume = Volume::create(folder.path().join("volume"), &options).unwrap();
    let options = OpenOptions::new().read(true).write(true).create(true).direct(true);
    let file = options.open(&volume, "/disk").unwrap();
    file.write_at(vec![1; 65536], 0).wait().0.unwrap();
    let server = Server::of_file(tempfile::tempdir().unwrap(), file.clone(), |disk| disk);
    let mut driver = driver(&server, false, feature::DISCARD | feature::WRITE_ZEROES);
    let mut run = |kind, ranges: &[(u64, u32, u32)]| {
        let bytes: Vec<u8> = ranges
            .iter()
            .flat_map(|(sector, sectors, flags)| {
                [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
            })
            .collect();
        driver.memory.write(data_at(0), &bytes);
        driver.run(kind, 0, bytes.len() as u32).0
    };
    assert_eq!(run(DISCARD, &[(0, 8, 0), (16, 8, 0), (5, 0, 0)]), OK);
    assert_eq!(file.allocated(), 65536 - 8192);
    assert_eq!(run(WRITE_ZEROES, &[(32, 8, 1), (40, 1, 0)]), OK);
    assert_eq!(file.allocated(), 65536 - 12288);
    assert_eq!(run(DISCARD, &[(0, 8, 1)]), UNSUPPORTED);
    assert_eq!(run(WRITE_ZEROES, &[(0, 8, 2)]), UNSUPPORTED);
    for range in [(128, 1, 0), (127, 2, 0), (u64::MAX, 1, 0), (0, u32::MAX, 0)] {
        assert_eq!(run(DISCARD, &[range]), ERROR, "{range:?}");
    }
    assert_eq!(run(DISCARD, &[(0, 1, 0); 65]), ERROR);
    assert_eq!(run(DISCARD, &[]), ERROR);
    let (read, bytes) = file.read_at(vec![0; 65536], 0).wait();
    read.unwrap();
    let zeros = bytes.iter().filter(|byte| **byte == 0).count();
    assert_eq!(zeros, 12288 + 512);
    drop((driver, server, file));
    volume.close().unwrap();
}

#[test]
fn a_guest_hears_of_a_new_size() {
    let folder = tempfile::tempdir().unwrap();
    let options = FormatOptions::new().size(64 << 20);
    let volume = Volume::create(folder.path().join("volume"), &options).unwrap();
    let options = OpenOptions::new().read(true).write(true).create(true).direct(true);
    let file = options.open(&volume, "/disk").unwrap();
    file.set_len(1 << 20).wait().unwrap();
    let server = Server::of_file(tempfile::tempdir().unwrap(), file.clone(), |disk| disk);
    let mut driver = driver(&server, false, 0);
    let (channel, of_server) = UnixStream::pair().unwrap();
    let descriptor = [of_server.as_fd()];
    assert!(driver.front_end.request(code::SET_BACKEND_REQ_FD, &[], &descriptor));
    let channel = FrontEnd { socket: channel };
    channel.socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(driver.run(READ, 2048, 512).0, ERROR);
    file.set_len(2 << 20).wait().unwrap();
    server.handle().update_size();
    let message = channel.receive().unwrap();
    assert_eq!((message.code, message.flags, message.payload.len()), (2, 1, 0));
    let head = [0, 8, 0].map(u32::to_ne_bytes).concat();
    let payload = [&head[..], &[0; 8]].concat();
    let config = driver.front_end.ask(code::GET_CONFIG, &payload).payload;
    assert_eq!(config[12..], 4096_u64.to_le_bytes());
    assert_eq!(driver.run(READ, 2048, 512).0, OK);
    drop((driver, server, file));
    volume.close().unwrap();
}

#[test]
fn a_guest_hears_of_an_image_that_has_grown() {
    let server = Server::new(|disk| disk);
    let mut driver = driver(&server, false, 0);
    let (channel, of_server) = UnixStream::pair().unwrap();
    let descriptor = [of_server.as_fd()];
    assert!(driver.front_end.request(code::SET_BACKEND_REQ_FD, &[], &descriptor));
    let channel = FrontEnd { socket: channel };
    channel.socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let sectors = IMAGE_BYTES / 512;
    assert_eq!(driver.run(WRITE_OUT, sectors, 512).0, ERROR);
    let image = std::fs::File::options().write(true).open(server.image()).unwrap();
    image.set_len(2 * IMAGE_BYTES).unwrap();
    server.handle().update_size();
    assert_eq!(channel.receive().unwrap().code, 2, "the configuration has changed");
    assert_eq!(driver.run(WRITE_OUT, sectors, 512).0, OK);
    assert_eq!(driver.run(WRITE_OUT, 2 * sectors, 512).0, ERROR);
    drop(driver);
    // The next front end learns the size when it connects.
    image.set_len(3 * IMAGE_BYTES).unwrap();
    let mut driver = self::driver(&server, false, 0);
    assert_eq!(driver.run(WRITE_OUT, 2 * sectors, 512).0, OK);
    assert_eq!(image.metadata().unwrap().len(), 3 * IMAGE_BYTES);
}

#[test]
fn a_stopped_ring_continues_where_it_was() {
    for packed in [false, true] {
        let server = Server::new(|disk| disk.packed(packed));
        let features = if packed { feature::PACKED } else { 0 };
        let mut driver = driver(&server, packed, features);
        for round in 0..40 {
            assert_eq!(driver.run(WRITE_OUT, round, 512), (OK, 1));
            let base = driver.front_end.stop(0);
            // A request that becomes available meanwhile waits.
            driver.add(0, READ, round, 512);
            driver.front_end.start(&driver.queue, base);
            driver.queue.wait_used(&driver.memory, 1);
            assert_eq!(driver.status(0), OK);
        }
    }
}

#[test]
fn a_disabled_ring_waits() {
    let server = Server::new(|disk| disk);
    let mut driver = driver(&server, false, 0);
    let enable = |driver: &Driver, enabled| {
        let payload = state(0, enabled);
        assert!(driver.front_end.request(code::SET_VRING_ENABLE, &payload, &[]));
    };
    enable(&driver, 0);
    driver.add(0, READ, 0, 512);
    driver.queue.notify();
    assert!(!driver.queue.wait(Duration::from_millis(50)));
    enable(&driver, 1);
    driver.queue.wait_used(&driver.memory, 1);
    assert_eq!(driver.status(0), OK);
}

#[test]
fn memory_comes_and_goes_while_rings_run() {
    let server = Server::new(|disk| disk);
    let mut driver = driver(&server, false, 0);
    let more = Memory::new();
    let at = GUEST + (1 << 30);
    let region = numbers(&[0, at, 4 << 20, 1 << 45, 0]);
    let read_there = |driver: &mut Driver| {
        let mut chain = driver.chain(0, READ, 0, 512);
        chain[1].0 = at;
        driver.queue.add(&driver.memory, 0, &chain);
        driver.queue.notify();
        driver.queue.wait_used(&driver.memory, 1);
        driver.status(0)
    };
    assert_eq!(read_there(&mut driver), ERROR);
    for _ in 0..3 {
        more.write(0, &[7; 512]);
        assert!(driver.front_end.request(code::ADD_MEM_REG, &region, &[more.file.as_fd()]));
        assert_eq!(read_there(&mut driver), OK);
        assert_eq!(more.read(0, 512), [0; 512]);
        assert!(driver.front_end.request(code::REM_MEM_REG, &region, &[]));
        assert_eq!(read_there(&mut driver), ERROR);
    }
    assert!(!driver.front_end.request(code::REM_MEM_REG, &region, &[]));
}

#[test]
fn interrupts_come_only_when_the_driver_wants_them() {
    let server = Server::new(|disk| disk);
    let mut driver = driver(&server, false, 0);
    // VIRTQ_AVAIL_F_NO_INTERRUPT
    driver.memory.store(driver.queue.available(), 1);
    driver.add(0, READ, 0, 512);
    driver.queue.notify();
    while driver.queue.take_used(&driver.memory).is_none() {
        std::thread::yield_now();
    }
    driver.memory.store(driver.queue.available(), 0);
    // The next interrupt is for the second request: the first had none.
    assert!(!driver.queue.wait(Duration::ZERO));
    assert_eq!(driver.run(READ, 0, 512), (OK, 513));
}

/// A server may be killed after it has given a request back, and before it interrupts.
#[test]
fn a_queue_that_starts_interrupts_for_what_was_given_back_before() {
    for packed in [false, true] {
        let server = Server::new(|disk| disk.packed(packed));
        let mut driver = driver(&server, packed, if packed { feature::PACKED } else { 0 });
        // VIRTQ_AVAIL_F_NO_INTERRUPT, RING_EVENT_FLAGS_DISABLE
        let flags = driver.queue.available() + if packed { 2 } else { 0 };
        driver.memory.store(flags, 1);
        driver.add(0, READ, 0, 512);
        driver.queue.notify();
        while driver.queue.take_used(&driver.memory).is_none() {
            std::thread::yield_now();
        }
        let base = driver.front_end.stop(0);
        driver.memory.store(flags, 0);
        assert!(!driver.queue.wait(Duration::ZERO));
        driver.front_end.start(&driver.queue, base);
        assert!(driver.queue.wait(Duration::ZERO), "packed: {packed}");
        // A front end that changes the eventfd may have missed an interrupt by the old one.
        let (index, call) = (numbers(&[0]), [driver.queue.call.as_fd()]);
        assert!(driver.front_end.request(code::SET_VRING_CALL, &index, &call));
        assert!(driver.queue.wait(Duration::ZERO), "packed: {packed}");
    }
}

/// A server that was killed: it has taken requests and not given them back.
#[test]
fn requests_of_a_server_that_ended_are_done_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    uringfs::create_image(&image, IMAGE_BYTES).unwrap();
    let server = Server::new(|disk| disk);
    let mut driver = driver(&server, false, 0);
    let area = [&0_u64.to_ne_bytes()[..], &[0; 8], &1_u16.to_ne_bytes(), &64_u16.to_ne_bytes()];
    let reply = driver.front_end.ask(code::GET_INFLIGHT_FD, &area.concat());
    let [table] = &reply.descriptors[..] else { panic!("one descriptor") };
    let set = |front_end: &FrontEnd| {
        front_end.request(code::SET_INFLIGHT_FD, &reply.payload, &[table.as_fd()])
    };
    assert!(set(&driver.front_end));
    assert_eq!(driver.run(WRITE_OUT, 100, 512), (OK, 1));
    driver.front_end.stop(0);
    // Two requests are available. The table says that the server has taken both, the second before the first.
    driver.memory.write(data_at(1), &[1; 512]);
    driver.memory.write(data_at(2), &[2; 512]);
    driver.add(1, WRITE_OUT, 7, 512);
    driver.add(2, WRITE_OUT, 7, 512);
    let entry = |head: u16, counter: u64| {
        let at = 16 + 16 * u64::from(head);
        rustix::io::pwrite(table, &[1], at).unwrap();
        rustix::io::pwrite(table, &counter.to_ne_bytes(), at + 8).unwrap();
    };
    entry(SLOT, 900);
    entry(2 * SLOT, 800);
    let Driver { front_end, memory, queue } = driver;
    drop((front_end, server));

    let server = Server::new(|disk| disk);
    let front_end = FrontEnd::connect(&server.socket());
    front_end.negotiate(0);
    front_end.add_memory(&memory);
    assert!(set(&front_end));
    // The front end knows only what was given back.
    front_end.start(&queue, 1);
    let mut driver = Driver { front_end, memory, queue };
    let mut used = driver.queue.wait_used(&driver.memory, 2);
    used.sort_unstable();
    assert_eq!(used, [(1, 1), (2, 1)]);
    assert_eq!(driver.front_end.stop(0), 3);
    let bytes = fs::read(server.image()).unwrap();
    assert!([1, 2].contains(&bytes[7 * 512]), "both were done");
    let mut head = [0; 16];
    rustix::io::pread(table, &mut head, 0).unwrap();
    assert_eq!(u16::from_ne_bytes([head[14], head[15]]), 3, "nothing is in flight");
    driver.front_end.start(&driver.queue, 3);
    assert_eq!(driver.run(READ, 100, 512), (OK, 513));
}

#[test]
fn a_socket_has_its_mode_and_belongs_to_one_server() {
    let server = Server::new(|disk| disk);
    let mode = fs::metadata(server.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let disk = || Disk::new(File::open(server.image(), Access::Read).unwrap());
    let error = VhostServer::bind(server.socket(), 0o600, disk()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("is in use"), "{error}");
    let file = server.folder().join("file");
    fs::write(&file, "kept").unwrap();
    assert!(VhostServer::bind(&file, 0o600, disk()).is_err());
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    // A socket that was left behind is replaced.
    let left = server.folder().join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let server = VhostServer::bind(&left, 0o666, disk()).unwrap();
    assert_eq!(fs::metadata(&left).unwrap().permissions().mode() & 0o777, 0o666);
    drop(server);
    assert!(!left.exists());
}

#[test]
fn stop_ends_a_session_under_load() {
    let server = Server::new(|disk| disk);
    let mut driver = driver(&server, false, 0);
    for slot in 0..8 {
        driver.add(slot, READ, 0, 512);
    }
    driver.queue.notify();
    let begun = Instant::now();
    drop(server);
    assert!(begun.elapsed() < Duration::from_secs(10));
    // The requests that have come back have succeeded.
    let taken = driver.memory.load(driver.queue.used() + 2);
    assert!((0..taken).all(|slot| driver.status(slot) == OK));
    assert!(driver.front_end.is_closed());
}

#[test]
fn an_acknowledgement_comes_only_if_it_is_asked_for() {
    let server = Server::new(|disk| disk);
    let front_end = FrontEnd::connect(&server.socket());
    // Before the feature is agreed on, the flag has no meaning.
    assert!(front_end.send(code::SET_OWNER, NEED_REPLY, &[], &[]));
    front_end.negotiate(0);
    assert!(front_end.send(code::SET_OWNER, 1, &[], &[]));
    assert!(front_end.request(code::SET_OWNER, &[], &[]));
}
