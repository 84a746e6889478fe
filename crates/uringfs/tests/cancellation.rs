//! Operations whose futures go away, and operations that are cancelled: the statements of docs/guide/cancellation.md.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use uringfs::device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs::device::{Clock, Device, VirtualClock};
use uringfs::file::FileOptions;
use uringfs::{
    BufferPool, Errno, File, FormatOptions, OpenOptions, Reactor, ReactorOptions, Volume,
};

const SIZE: u64 = 64 << 10;
const LATENCY: Duration = Duration::from_micros(100);

/// A device whose requests take virtual time, as one file, with the reactor of that time.
fn slow_device() -> (Sim, File, Reactor) {
    let clock = Clock::Virtual(VirtualClock::default());
    let options = SimOptions::new(SIZE).latency(LATENCY..=LATENCY).clock(clock.clone());
    let sim = Sim::new(options);
    let file = File::from_device(Device::new(sim.clone()).unwrap(), FileOptions::default());
    let reactor = Reactor::new(ReactorOptions::default().clock(clock)).unwrap();
    // Futures that are polled outside of it are its own from now on.
    reactor.turn().unwrap();
    (sim, file, reactor)
}

/// Starts an operation, and drops its future.
fn start_and_drop(op: impl Future) {
    let mut op = pin!(op);
    assert!(op.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

fn drain(reactor: &Reactor) {
    reactor.reap(usize::MAX, None, &mut Vec::new()).unwrap();
}

#[test]
fn a_dropped_write_is_done_in_full() {
    let (_sim, file, reactor) = slow_device();
    for (offset, length) in [(0, 4096), (5000, 3000)] {
        start_and_drop(file.write_at(vec![7; length], offset));
        drain(&reactor);
        let (_, bytes) = reactor.block_on(file.read_at(vec![0; length], offset));
        assert_eq!(bytes, vec![7; length]);
    }
}

#[test]
fn the_buffer_of_a_dropped_read_returns_to_its_pool() {
    let (_sim, file, reactor) = slow_device();
    let pool = BufferPool::new(4096, 1).unwrap();
    start_and_drop(file.read_at(pool.get().unwrap(), 0));
    assert_eq!(pool.available(), 0, "the device has it");
    drain(&reactor);
    assert_eq!(pool.available(), 1);
}

#[test]
fn a_direct_write_that_was_dropped_may_come_after_a_later_one() {
    let (sim, file, reactor) = slow_device();
    sim.inject(Rule::new(None, When::Nth(1), Fault::Late(10 * LATENCY)));
    start_and_drop(file.write_at(vec![1; 4096], 0));
    let (written, _) = reactor.block_on(file.write_at(vec![2; 4096], 0));
    assert_eq!(written, Ok(4096));
    drain(&reactor);
    let (_, bytes) = reactor.block_on(file.read_at(vec![0; 4096], 0));
    assert_eq!(bytes, [1; 4096]);
}

#[test]
fn a_dropped_append_is_appended_and_a_retry_appends_again() {
    let folder = tempfile::tempdir().unwrap();
    let options = FormatOptions::new().size(64 << 20);
    let volume = Volume::create(folder.path().join("image"), &options).unwrap();
    let log = OpenOptions::new().read(true).write(true).create(true).direct(true);
    let log = log.open(&volume, "/log").unwrap();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    // Futures that are polled outside of it are its own from now on.
    reactor.turn().unwrap();
    start_and_drop(log.append_durably("record"));
    let (offset, _) = reactor.block_on(log.append_durably("record"));
    drain(&reactor);
    assert_eq!((offset, log.len()), (Ok(6), 12));
}

#[test]
fn a_cancelled_operation_says_what_became_of_it() {
    let (_sim, file, reactor) = slow_device();
    reactor.block_on(async {
        for (delay, expected) in [(0, Err(Errno::CANCELED)), (3, Ok(4096))] {
            let mut op = file.write_at(vec![7; 4096], 0);
            let is_done = tokio::select! {
                biased;
                done = &mut op => Some(done),
                () = reactor.sleep(delay * LATENCY) => None,
            };
            let (result, bytes) = match is_done {
                Some(done) => done,
                None => {
                    op.cancel();
                    op.await
                }
            };
            assert_eq!((result, bytes.len()), (expected, 4096));
        }
    });
}

#[test]
fn a_timeout_of_a_borrowed_operation_leaves_it_running() {
    let (_sim, file, reactor) = slow_device();
    reactor.block_on(async {
        let mut op = file.write_at(vec![7; 4096], 0);
        let timed_out = tokio::select! {
            biased;
            _ = &mut op => false,
            () = reactor.sleep(LATENCY / 2) => true,
        };
        assert!(timed_out);
        assert_eq!(op.await.0, Ok(4096));
    });
}
