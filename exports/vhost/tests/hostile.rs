//! Front ends and guests that break the rules: their own session or queue ends, and others are unaffected.

mod harness;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use harness::front_end::{
    Descriptor, Driver, FrontEnd, GUEST, INDIRECT, MEMORY_BYTES, Memory, NEXT, Queue, READ, STATUS,
    USER, WRITE, WRITE_OUT, code, data_at, descriptor_bytes, feature, header_at, is_signalled,
    numbers, state,
};
use harness::{IMAGE_BYTES, Server};
use rustix::fs::ftruncate;
use uringfs_vhost::PinMemory;

const OK: u8 = 0;
const ERROR: u8 = 1;
const TIMEOUT: Duration = Duration::from_secs(30);

fn split(server: &Server, features: u64) -> Driver {
    Driver::new(&server.socket(), features, Queue::split(0, 64))
}

/// The server serves an honest guest.
fn check_alive(server: &Server) {
    let mut driver = split(server, 0);
    assert_eq!(driver.run(READ, 0, 512), (OK, 513));
}

/// The queue reports that it is broken, and the next guest is served.
fn check_broken(server: &Server, driver: Driver, what: &str) {
    driver.queue.notify();
    assert!(is_signalled(&driver.queue.error, TIMEOUT), "{what}");
    drop(driver);
    check_alive(server);
}

#[test]
fn a_message_may_end_at_every_byte() {
    let server = Server::new(|disk| disk);
    let memory = Memory::new();
    let table = [&numbers(&[1])[..], &numbers(&[GUEST, MEMORY_BYTES, USER, 0])].concat();
    let messages: [(u32, &[u8], &[BorrowedFd<'_>]); 3] = [
        (code::GET_FEATURES, &[], &[]),
        (code::SET_FEATURES, &[0; 8], &[]),
        (code::SET_MEM_TABLE, &table, &[memory.file.as_fd()]),
    ];
    for (code, payload, files) in messages {
        let head = [code, 1, payload.len() as u32].map(u32::to_ne_bytes).concat();
        let whole = [&head[..], payload].concat();
        for end in 0..=whole.len() {
            let front_end = FrontEnd::connect(&server.socket());
            if end > 0 {
                assert!(front_end.send_raw(&whole[..end], files));
            }
        }
        check_alive(&server);
        // The same bytes one by one are a message.
        let front_end = FrontEnd::connect(&server.socket());
        whole.iter().enumerate().for_each(|(at, byte)| {
            assert!(front_end.send_raw(&[*byte], if at == 0 { files } else { &[] }));
        });
        assert!(front_end.ask_number(code::GET_FEATURES) > 0);
    }
}

#[test]
fn what_is_no_message_ends_the_session() {
    let server = Server::new(|disk| disk);
    let memory = Memory::new();
    let many = vec![memory.file.as_fd(); 9];
    let header =
        |code: u32, flags: u32, length: u32| [code, flags, length].map(u32::to_ne_bytes).concat();
    let cases: [(&str, Vec<u8>, &[BorrowedFd<'_>]); 9] = [
        ("code 0", header(0, 1, 0), &[]),
        ("code 99", header(99, 1, 0), &[]),
        ("code of 32 bits", header(u32::MAX, 1, 0), &[]),
        ("version 0", header(1, 0, 0), &[]),
        ("reply", header(1, 5, 0), &[]),
        ("length", header(1, 1, u32::MAX), &[]),
        ("payload that is due to none", [header(1, 1, 8), vec![0; 8]].concat(), &[]),
        ("descriptor that is due to none", header(1, 1, 0), &many[..1]),
        ("nine descriptors", header(5, 1, 0), &many),
    ];
    for (what, bytes, files) in cases {
        let front_end = FrontEnd::connect(&server.socket());
        assert!(front_end.send_raw(&bytes, files), "{what}");
        assert!(front_end.is_closed(), "{what}");
    }
    check_alive(&server);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let server = Server::new(|disk| disk);
    let driver = split(&server, 0);
    let front_end = &driver.front_end;
    let refused = |what: &str, code: u32, payload: &[u8], files: &[BorrowedFd<'_>]| {
        assert!(!front_end.request(code, payload, files), "{what}");
    };
    for index in [1, 2, 255, 256, u32::MAX] {
        refused("ring", code::SET_VRING_NUM, &state(index, 64), &[]);
        refused("ring", code::SET_VRING_BASE, &state(index, 0), &[]);
        refused("ring", code::SET_VRING_ENABLE, &state(index, 1), &[]);
    }
    for size in [0, 3, 63, 2048, 65536, u32::MAX] {
        refused("size", code::SET_VRING_NUM, &state(0, size), &[]);
    }
    refused("base", code::SET_VRING_BASE, &state(0, 65536), &[]);
    refused("features", code::SET_FEATURES, &numbers(&[u64::MAX]), &[]);
    refused("features", code::SET_FEATURES, &numbers(&[feature::PACKED]), &[]);
    refused("protocol", code::SET_PROTOCOL_FEATURES, &numbers(&[1 << 63]), &[]);
    let null = std::fs::File::open("/dev/zero").unwrap();
    for event in [code::SET_VRING_KICK, code::SET_VRING_CALL, code::SET_VRING_ERR] {
        refused("no eventfd", event, &numbers(&[0]), &[null.as_fd()]);
    }
    refused("no event", code::SET_VRING_KICK, &numbers(&[256]), &[]);
    let addresses = |descriptors: u64, used: u64, available: u64| {
        [&[0; 8][..], &numbers(&[descriptors, used, available, 0])].concat()
    };
    for (what, payload) in [
        ("before", addresses(USER - 16, USER + 0x4000, USER + 0x2000)),
        ("unaligned", addresses(USER + 8, USER + 0x4000, USER + 0x2000)),
        ("unaligned", addresses(USER, USER + 0x4002, USER + 0x2000)),
        ("unaligned", addresses(USER, USER + 0x4000, USER + 0x2001)),
        ("over the end", addresses(USER + MEMORY_BYTES - 512, USER + 0x4000, USER + 0x2000)),
        ("wraps", addresses(u64::MAX - 15, USER + 0x4000, USER + 0x2000)),
        ("null", addresses(0, 0, 0)),
    ] {
        refused(what, code::SET_VRING_ADDR, &payload, &[]);
    }
    let region =
        |guest: u64, bytes: u64, user: u64, offset: u64| numbers(&[0, guest, bytes, user, offset]);
    for (what, payload) in [
        ("overlaps", region(GUEST, 4096, 1 << 50, 0)),
        ("overlaps for the front end", region(1 << 50, 4096, USER, 0)),
        ("empty", region(1 << 50, 0, 1 << 50, 0)),
        ("beyond its file", region(1 << 50, MEMORY_BYTES + 1, 1 << 50, 0)),
        ("offset wraps", region(1 << 50, 4096, 1 << 50, u64::MAX)),
        ("address wraps", region(u64::MAX, 4096, 1 << 50, 0)),
    ] {
        refused(what, code::ADD_MEM_REG, &payload, &[driver.memory.file.as_fd()]);
    }
    let area = |bytes: u64, queues: u16, size: u16| {
        [&numbers(&[bytes, 0])[..], &queues.to_ne_bytes(), &size.to_ne_bytes()].concat()
    };
    for payload in [area(1 << 20, 2, 64), area(1 << 20, 1, 2048), area(64, 1, 64)] {
        refused("table", code::SET_INFLIGHT_FD, &payload, &[driver.memory.file.as_fd()]);
    }
    drop(driver);
    check_alive(&server);
}

/// The descriptors of a request, with a header that is fine.
type Chain = Vec<(Descriptor, u16)>;

#[test]
fn chains_that_break_the_rules_end_their_queue() {
    let server = Server::new(|disk| disk);
    let header = (GUEST + header_at(0), 16, NEXT);
    let data = (GUEST + data_at(0), 512, WRITE | NEXT);
    let status = (GUEST + header_at(0) + STATUS, 1, WRITE);
    let table = |length, flags| vec![((GUEST + 0x18_0000, length, INDIRECT | flags), 1)];
    let cases: Vec<(&str, Chain)> = vec![
        ("loop of one", vec![(header, 0)]),
        ("loop", vec![(header, 1), (data, 0)]),
        ("leaves the table", vec![(header, 64)]),
        ("leaves the table far", vec![(header, u16::MAX)]),
        ("no status", vec![((header.0, 16, 0), 0)]),
        ("empty status", vec![(header, 1), ((status.0, 0, WRITE), 0)]),
        ("status nowhere", vec![(header, 1), ((0, 1, WRITE), 0)]),
        ("status that wraps", vec![(header, 1), ((u64::MAX, 2, WRITE), 0)]),
        ("to read from after to write to", vec![(header, 1), (data, 2), (header, 3), (status, 0)]),
        ("table of no descriptor", table(0, 0)),
        ("table of a part", table(17, 0)),
        ("table that is too long", table(1025 * 16, 0)),
        ("table that is endless", table(!15, 0)),
        ("table and a next descriptor", table(16, NEXT)),
        ("table nowhere", vec![((16, 16, INDIRECT), 0)]),
        ("table that wraps", vec![((u64::MAX - 7, 32, INDIRECT), 0)]),
    ];
    for (what, chain) in cases {
        let mut driver = split(&server, feature::INDIRECT);
        driver.chain(0, READ, 0, 512);
        for (number, (descriptor, next)) in chain.iter().enumerate() {
            driver.queue.write_descriptor(&driver.memory, number as u16, *descriptor, *next);
        }
        driver.queue.publish(&driver.memory, 0);
        check_broken(&server, driver, what);
    }
}

#[test]
fn tables_that_break_the_rules_end_their_queue() {
    let server = Server::new(|disk| disk.packed(true));
    let header = (GUEST + header_at(0), 16, NEXT);
    let status = (GUEST + header_at(0) + STATUS, 1, WRITE);
    let cases: [(&str, &[(Descriptor, u16)]); 4] = [
        ("loop", &[(header, 0), (status, 0)]),
        ("longer loop", &[(header, 1), ((header.0, 1, NEXT), 0)]),
        ("leaves the table", &[(header, 2), (status, 0)]),
        ("table in a table", &[((GUEST, 16, INDIRECT), 0)]),
    ];
    for (what, entries) in cases {
        for has_feature in [true, false] {
            let mut driver = split(&server, if has_feature { feature::INDIRECT } else { 0 });
            driver.chain(0, READ, 0, 512);
            let bytes: Vec<u8> = entries
                .iter()
                .flat_map(|(descriptor, next)| descriptor_bytes(*descriptor, *next))
                .collect();
            driver.memory.write(0x18_0000, &bytes);
            let table = (GUEST + 0x18_0000, bytes.len() as u32, INDIRECT);
            driver.queue.write_descriptor(&driver.memory, 0, table, 0);
            driver.queue.publish(&driver.memory, 0);
            check_broken(&server, driver, what);
        }
    }
}

#[test]
fn a_chain_of_the_ring_and_a_table_has_a_bound() {
    let server = Server::new(|disk| disk);
    let header = (GUEST + header_at(0), 16, NEXT);
    let data = (GUEST + data_at(0), 512, WRITE);
    let status = (GUEST + header_at(0) + STATUS, 1, WRITE);
    // With the header in the ring, the longest chain that is taken, and one descriptor more.
    for (entries, is_taken) in [(1023_u16, true), (1024, false)] {
        let mut driver = split(&server, feature::INDIRECT);
        driver.chain(0, READ, 0, 512);
        let entry = |number: u16| match number == entries - 1 {
            true => descriptor_bytes(status, 0),
            // The data once; all others are empty.
            false if number == 0 => descriptor_bytes((data.0, data.1, WRITE | NEXT), 1),
            false => descriptor_bytes((data.0, 0, WRITE | NEXT), number + 1),
        };
        let table: Vec<u8> = (0..entries).flat_map(entry).collect();
        driver.memory.write(0x18_0000, &table);
        driver.queue.write_descriptor(&driver.memory, 0, header, 1);
        let named = (GUEST + 0x18_0000, table.len() as u32, INDIRECT);
        driver.queue.write_descriptor(&driver.memory, 1, named, 0);
        driver.queue.publish(&driver.memory, 0);
        if is_taken {
            driver.queue.notify();
            assert_eq!(driver.queue.wait_used(&driver.memory, 1), [(0, 513)]);
            assert_eq!(driver.status(0), OK);
        } else {
            check_broken(&server, driver, "too long");
        }
    }
}

#[test]
fn tables_of_packed_rings_that_break_the_rules_end_their_queue() {
    let server = Server::new(|disk| disk.packed(true));
    let header = (GUEST + header_at(0), 16, 0);
    let data = (GUEST + data_at(0), 512, WRITE);
    let status = (GUEST + header_at(0) + STATUS, 1, WRITE);
    let cases: [(&str, &[Descriptor], u32); 7] = [
        ("no descriptor", &[], 0),
        ("a part", &[header, status], 31),
        ("longer than allowed", &[header, status], 1025 * 16),
        ("endless", &[header, status], !15),
        ("no status", &[header], 16),
        ("to read from after to write to", &[header, data, header, status], 64),
        ("table in a table", &[header, (GUEST, 16, INDIRECT)], 32),
    ];
    for (what, entries, bytes) in cases {
        let features = feature::PACKED | feature::INDIRECT;
        let mut driver = Driver::new(&server.socket(), features, Queue::packed(0, 64));
        driver.chain(0, READ, 0, 512);
        let table: Vec<u8> = entries.iter().flat_map(|entry| descriptor_bytes(*entry, 0)).collect();
        driver.memory.write(0x18_0000, &table);
        driver.queue.add(&driver.memory, 0, &[(GUEST + 0x18_0000, bytes, INDIRECT)]);
        check_broken(&server, driver, what);
    }
}

#[test]
fn messages_with_too_few_or_too_many_descriptors_end_their_session() {
    let server = Server::new(|disk| disk);
    let memory = Memory::new();
    let files = [memory.file.as_fd(); 8];
    let region = numbers(&[GUEST, MEMORY_BYTES, USER, 0]);
    let table = |count: u64| {
        let regions = (0..count).flat_map(|_| region.clone());
        numbers(&[count]).into_iter().chain(regions).collect::<Vec<u8>>()
    };
    let added = [&numbers(&[0])[..], &region].concat();
    let in_flight = [&numbers(&[1 << 20, 0])[..], &[1, 0, 64, 0]].concat();
    let no_descriptor = numbers(&[1 << 8]);
    let cases: [(u32, &[u8], usize); 11] = [
        (code::SET_MEM_TABLE, &table(1), 0),
        (code::SET_MEM_TABLE, &table(1), 2),
        (code::SET_MEM_TABLE, &table(2), 1),
        (code::SET_MEM_TABLE, &table(0), 1),
        (code::ADD_MEM_REG, &added, 0),
        (code::ADD_MEM_REG, &added, 2),
        (code::SET_VRING_KICK, &numbers(&[0]), 2),
        (code::SET_VRING_CALL, &no_descriptor, 1),
        (code::SET_INFLIGHT_FD, &in_flight, 0),
        (code::SET_INFLIGHT_FD, &in_flight, 2),
        (code::SET_FEATURES, &numbers(&[0]), 8),
    ];
    for (code, payload, count) in cases {
        let front_end = FrontEnd::connect(&server.socket());
        assert!(front_end.send(code, 1, payload, &files[..count]), "{code} {count}");
        assert!(front_end.is_closed(), "{code} {count}");
    }
    check_alive(&server);
}

#[test]
fn a_ring_that_runs_away_ends_its_queue() {
    let server = Server::new(|disk| disk);
    let mut driver = split(&server, 0);
    driver.queue.publish(&driver.memory, 64);
    check_broken(&server, driver, "head that is not in the table");
    let driver = split(&server, 0);
    driver.memory.store(driver.queue.available() + 2, 65);
    check_broken(&server, driver, "more chains than entries");
    let driver = split(&server, 0);
    driver.memory.store(driver.queue.available() + 2, u16::MAX);
    check_broken(&server, driver, "an index that goes back");
}

#[test]
fn packed_rings_that_break_the_rules_end_their_queue() {
    let server = Server::new(|disk| disk.packed(true));
    let header = (GUEST + header_at(0), 16);
    let available = 1 << 7;
    type Entry = ((u64, u32), u16);
    let cases: [(&str, Vec<Entry>); 4] = [
        ("endless chain", vec![(header, NEXT | available); 64]),
        ("no status", vec![(header, available)]),
        ("table in a chain", vec![(header, NEXT | available), (header, INDIRECT | available)]),
        ("table and a next descriptor", vec![(header, INDIRECT | NEXT | available)]),
    ];
    for (what, entries) in cases {
        let features = feature::PACKED | feature::INDIRECT;
        let driver = Driver::new(&server.socket(), features, Queue::packed(0, 64));
        driver.chain(0, READ, 0, 512);
        for (number, ((address, length), flags)) in entries.into_iter().enumerate().rev() {
            let bytes = descriptor_bytes((address, length, 0), flags);
            driver.memory.write(driver.queue.base() + 16 * number as u64, &bytes);
        }
        check_broken(&server, driver, what);
    }
}

#[test]
fn data_that_are_nowhere_fail_their_request_alone() {
    let server = Server::new(|disk| disk);
    let mut driver = split(&server, 0);
    for (address, length) in [
        (0, 512),
        (GUEST - 256, 512),
        (GUEST + MEMORY_BYTES - 256, 512),
        (u64::MAX - 255, 512),
        (GUEST + data_at(0), !511),
        (GUEST + data_at(0), 1),
        (GUEST + data_at(0), 513),
    ] {
        for kind in [READ, WRITE_OUT] {
            let mut chain = driver.chain(0, kind, 0, 512);
            (chain[1].0, chain[1].1) = (address, length);
            driver.queue.add(&driver.memory, 0, &chain);
            driver.queue.notify();
            driver.queue.wait_used(&driver.memory, 1);
            assert_eq!(driver.status(0), ERROR, "{address:x} {length}");
        }
    }
    for sector in [IMAGE_BYTES / 512, u64::MAX, u64::MAX / 512, 1 << 55] {
        assert_eq!(driver.run(READ, sector, 512), (ERROR, 1));
        assert_eq!(driver.run(WRITE_OUT, sector, 512), (ERROR, 1));
    }
    // A header that is too short, or nowhere.
    for (address, length) in [(GUEST + header_at(0), 15), (8, 16)] {
        let mut chain = driver.chain(0, READ, 0, 512);
        (chain[0].0, chain[0].1) = (address, length);
        driver.queue.add(&driver.memory, 0, &chain);
        driver.queue.notify();
        driver.queue.wait_used(&driver.memory, 1);
        assert_eq!(driver.status(0), ERROR);
    }
    assert_eq!(driver.run(READ, 0, 512), (OK, 513));
}

#[test]
fn headers_that_change_while_they_are_read_name_no_other_sector() {
    let server = Server::new(|disk| disk);
    let mut driver = split(&server, 0);
    let is_over = AtomicBool::new(false);
    let flipped = driver.memory.again();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let kind = [0_u32, 1, 4, 8, 11, 13, 99][(value >> 8) as usize % 7];
                flipped.write(header_at(0), &kind.to_le_bytes());
                let sector = [0, 7, IMAGE_BYTES / 512, u64::MAX][value as usize >> 12 & 3];
                flipped.write(header_at(0) + 8, &sector.to_le_bytes());
            }
        });
        for _ in 0..2000 {
            let (status, _) = driver.run(READ, 0, 512);
            assert!(status <= 2, "{status}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    drop(driver);
    check_alive(&server);
}

#[test]
fn memory_that_shrinks_ends_its_queue() {
    // Pages that the kernel has pinned stay.
    for (pin_memory, status) in [(PinMemory::Off, ERROR), (PinMemory::On, OK)] {
        let server = Server::new(|disk| disk.pin_memory(pin_memory));
        for bytes in [0, 4096, 0x8000, 0x10_0000, 0x20_0000] {
            let mut driver = split(&server, 0);
            assert_eq!(driver.run(READ, 0, 4096), (OK, 4097));
            let enable = |driver: &Driver, enabled| {
                let payload = state(0, enabled);
                assert!(driver.front_end.request(code::SET_VRING_ENABLE, &payload, &[]));
            };
            // The device looks only when the memory has shrunk.
            enable(&driver, 0);
            driver.add(0, READ, 0, 4096);
            ftruncate(&driver.memory.file, bytes).unwrap();
            enable(&driver, 1);
            if bytes <= 0x10_0000 {
                assert!(is_signalled(&driver.queue.error, TIMEOUT), "{bytes}");
            } else {
                // The rings and the request are there, its data are not.
                driver.queue.wait_used(&driver.memory, 1);
                assert_eq!(driver.status(0), status);
            }
            drop(driver);
            check_alive(&server);
        }
    }
}

#[test]
fn any_bytes_may_be_in_the_memory_of_a_ring() {
    const ROUNDS: u64 = 60;
    let server = Server::new(|disk| disk.packed(true).queues(2));
    for round in 0..ROUNDS {
        let mut value = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = move || {
            value ^= value << 13;
            value ^= value >> 7;
            value ^= value << 17;
            value
        };
        let packed = round % 2 == 1;
        let features = feature::INDIRECT
            | if round % 4 < 2 { feature::EVENT_INDEX } else { 0 }
            | if packed { feature::PACKED } else { 0 };
        let queue = if packed { Queue::packed(0, 64) } else { Queue::split(0, 64) };
        let driver = Driver::new(&server.socket(), features, queue);
        for _ in 0..20 {
            // Mostly descriptors that might be some.
            for number in 0..64 {
                let address = GUEST + random() % (MEMORY_BYTES + 4096);
                let length = random() as u32 % 9000;
                let bytes = match packed {
                    false => descriptor_bytes(
                        (address, length, random() as u16 & 7),
                        random() as u16 % 66,
                    ),
                    true => {
                        let flags = random() as u16 & (7 | 1 << 7 | 1 << 15);
                        descriptor_bytes((address, length, random() as u16 % 80), flags)
                    }
                };
                driver.memory.write(driver.queue.base() + 16 * number, &bytes);
            }
            let index = driver.memory.load(driver.queue.used() + 2);
            for entry in 0..64 {
                driver.memory.store(driver.queue.available() + 4 + 2 * entry, random() as u16 % 65);
            }
            driver.memory.store(driver.queue.available() + 2, index.wrapping_add(8));
            driver.queue.notify();
            driver.front_end.ask_number(code::GET_FEATURES);
        }
        drop(driver);
    }
    check_alive(&server);
}
