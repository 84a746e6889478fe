//! Zeroing that takes long, on a device that cannot zero by itself.

mod harness;

use harness::Server;
use harness::front_end::{Driver, Queue, READ, WRITE_OUT, WRITE_ZEROES, data_at, feature};
use harness::gated::{Gate, gated};
use uringfs::ReactorOptions;
use uringfs::reactor::QueueKind;

const OK: u8 = 0;
const ERROR: u8 = 1;
const REQUESTS: u16 = 16;
/// The longest range of a guest.
const MAX_SECTORS: u32 = 1 << 21;
/// Zeros that are written at a time.
const PART: u64 = 1 << 20;

fn serve() -> (Server, Gate, Driver) {
    let (file, gate) = gated(u64::from(REQUESTS) << 30);
    let reactor = ReactorOptions::new().queue(QueueKind::Threads);
    let server = Server::of_file(tempfile::tempdir().unwrap(), file, |disk| disk.reactor(reactor));
    let driver = Driver::new(&server.socket(), feature::WRITE_ZEROES, Queue::split(0, 64));
    (server, gate, driver)
}

fn write_range(driver: &Driver, slot: u16, sector: u64, sectors: u32) {
    let range = [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat();
    driver.memory.write(data_at(slot), &range);
}

#[test]
fn a_stop_waits_for_the_parts_under_way_only() {
    let (server, gate, mut driver) = serve();
    for slot in 0..REQUESTS {
        write_range(&driver, slot, u64::from(slot) * u64::from(MAX_SECTORS), MAX_SECTORS);
        driver.add(slot, WRITE_ZEROES, 0, 16);
    }
    driver.queue.notify();
    gate.wait();
    server.handle().stop();
    gate.open();
    drop(server);
    let mut ended = 0;
    while let Some((slot, _)) = driver.queue.take_used(&driver.memory) {
        assert_eq!(driver.status(slot), ERROR);
        ended += 1;
    }
    assert!(ended > 0);
    let most = u64::from(REQUESTS) * PART;
    assert!(gate.zeroed() <= most, "{} bytes were zeroed", gate.zeroed());
}

#[test]
fn a_range_that_is_longer_than_offered_is_refused() {
    let (_server, gate, mut driver) = serve();
    write_range(&driver, 0, 0, MAX_SECTORS + 1);
    assert_eq!(driver.run(WRITE_ZEROES, 0, 16).0, ERROR);
    assert_eq!(gate.zeroed(), 0);
}

#[test]
fn a_range_is_zeroed_in_parts_and_nothing_beside_it() {
    let (_server, gate, mut driver) = serve();
    gate.open();
    // Some bytes before, at the ends of parts, and behind.
    let sectors = [0, 8, 2048, 2056, 6144, 6152];
    for sector in sectors {
        driver.memory.write(data_at(0), &[7; 4096]);
        assert_eq!(driver.run(WRITE_OUT, sector, 4096).0, OK);
    }
    write_range(&driver, 0, 8, 6144);
    assert_eq!(driver.run(WRITE_ZEROES, 0, 16).0, OK);
    assert_eq!(gate.zeroed(), 3 * PART);
    for sector in sectors {
        assert_eq!(driver.run(READ, sector, 4096).0, OK);
        let expected = if (8..6152).contains(&sector) { 0 } else { 7 };
        assert_eq!(driver.memory.read(data_at(0), 4096), [expected; 4096], "sector {sector}");
    }
}
