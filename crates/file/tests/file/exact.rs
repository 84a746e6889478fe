//! Reads and writes of a whole buffer.

use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Clock, Device, Errno, VirtualClock};
use uringfs_file::{File, FileOptions};

use crate::harness::{BackEnd, pattern, reactor_by};

const SIZE: u64 = 64 << 10;

#[test]
fn short_transfers_are_continued() {
    let clock = VirtualClock::default();
    let reactor = reactor_by(&clock);
    let made = BackEnd::ShakySim.make(tempfile::tempdir().unwrap().path(), SIZE, &clock);
    let file = File::from_device(made.device, FileOptions::default());
    reactor.block_on(async {
        for round in 0..10 {
            let (written, buffer) = file.write_all_at(pattern(round, 20_000), 700 * round).await;
            written.unwrap();
            assert!(buffer[..] == pattern(round, 20_000)[..]);
            let (read, buffer) = file.read_exact_at(Buffer::zeroed(20_000), 700 * round).await;
            read.unwrap();
            assert!(buffer[..] == pattern(round, 20_000)[..]);
        }
    });
}

#[test]
fn the_end_of_the_file_is_an_error_with_what_there_is() {
    let clock = VirtualClock::default();
    let reactor = reactor_by(&clock);
    let made = BackEnd::Memory.make(tempfile::tempdir().unwrap().path(), SIZE, &clock);
    let file = File::from_device(made.device, FileOptions::default());
    reactor.block_on(async {
        let (written, buffer) = file.write_all_at(pattern(1, 5000), SIZE - 3000).await;
        assert_eq!(written.unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(buffer[..] == pattern(1, 5000)[..]);
        let (read, buffer) = file.read_exact_at(Buffer::zeroed(5000), SIZE - 3000).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buffer.len(), 5000);
        assert!(buffer[..3000] == pattern(1, 5000)[..3000]);
        let (read, buffer) = file.read_exact_at(Buffer::zeroed(0), SIZE).await;
        assert!(read.is_ok() && buffer.is_empty());
    });
}

#[test]
fn a_thread_can_wait_for_all_of_it() {
    let memory = BackEnd::Memory.make(tempfile::tempdir().unwrap().path(), SIZE, &<_>::default());
    let file = File::from_device(memory.device, FileOptions::default());
    let (written, bytes) = file.write_all_at(vec![5; 20_000], 333).wait();
    written.unwrap();
    let (read, bytes) = file.read_exact_at(bytes, 333).wait();
    read.unwrap();
    assert_eq!(bytes, [5; 20_000]);
    let (read, bytes) = file.read_exact_at(bytes, SIZE - 7).wait();
    assert_eq!((read.unwrap_err().kind(), bytes.len()), (ErrorKind::UnexpectedEof, 7));
    assert!(file.read_exact_at(Buffer::zeroed(0), SIZE).wait().0.is_ok());
}

/// A file whose every transfer takes 100 µs and is at most 8 KiB.
fn slow_file(clock: &VirtualClock) -> File {
    let latency = Duration::from_micros(100);
    let options = SimOptions::new(SIZE).latency(latency..=latency).max_transfer(8 << 10);
    let sim = Sim::new(options.clock(Clock::Virtual(clock.clone())));
    File::from_device(Device::new(sim).unwrap(), FileOptions::default())
}

#[test]
fn a_cancelled_write_begins_no_other_transfer() {
    let clock = VirtualClock::default();
    let (reactor, file) = (reactor_by(&clock), slow_file(&clock));
    let mut write = file.write_all_at(vec![9; 32 << 10], 0);
    assert!(Pin::new(&mut write).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    write.cancel();
    let (written, bytes) = reactor.block_on(write);
    assert_eq!(written.unwrap_err().raw_os_error(), Some(Errno::CANCELED.raw_os_error()));
    assert_eq!(bytes.len(), 32 << 10);
    let mut unpolled = file.write_all_at(vec![9; 8 << 10], 8 << 10);
    unpolled.cancel();
    assert!(reactor.block_on(unpolled).0.is_err());
    let (read, bytes) = reactor.block_on(file.read_exact_at(vec![1; 16 << 10], 8 << 10));
    read.unwrap();
    assert_eq!(bytes, [0; 16 << 10]);
}

#[test]
fn a_deadline_ends_a_whole_read() {
    let clock = VirtualClock::default();
    let (reactor, file) = (reactor_by(&clock), slow_file(&clock));
    let deadline = Clock::Virtual(clock.clone()).now() + Duration::from_micros(150);
    let (read, bytes) =
        reactor.block_on(file.read_exact_at(Buffer::zeroed(32 << 10), 0).deadline(deadline));
    assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(bytes.len(), 32 << 10);
}
