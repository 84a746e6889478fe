//! A queue whose reads take far longer in use than they were measured is chosen again. In virtual time: only the reads
//! of the device take any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::Mutex;
use uringfs_buffer::Buffer;
use uringfs_device::backend::memory::Memory;
use uringfs_device::{
    Backend, Clock, Device, Errno, Geometry, KernelTarget, Request, VirtualClock,
};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{Counter, Reactor, ReactorOptions, Token};

/// A device that does one read at a time. How long a read takes depends on the thread that calls it.
struct Paced {
    geometry: Geometry,
    clock: Mutex<VirtualClock>,
    creator: ThreadId,
    times: Arc<ReadTimes>,
}

/// Microseconds of a read in the thread that made the device, and in another.
struct ReadTimes {
    here_us: AtomicU64,
    elsewhere_us: AtomicU64,
    /// How much longer the next read takes in the thread that made the device.
    hang_us: AtomicU64,
    /// The reads so far.
    reads: AtomicU64,
}

impl ReadTimes {
    fn new(here_us: u64, elsewhere_us: u64) -> Arc<ReadTimes> {
        let times = [here_us, elsewhere_us, 0, 0].map(AtomicU64::new);
        let [here_us, elsewhere_us, hang_us, reads] = times;
        Arc::new(ReadTimes { here_us, elsewhere_us, hang_us, reads })
    }
}

impl Backend for Paced {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn description(&self) -> String {
        "paced".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let is_here = thread::current().id() == self.creator;
        let time = if is_here { &self.times.here_us } else { &self.times.elsewhere_us };
        let hang_us = if is_here { self.times.hang_us.swap(0, Ordering::Relaxed) } else { 0 };
        let time_us = time.load(Ordering::Relaxed) + hang_us;
        self.times.reads.fetch_add(1, Ordering::Relaxed);
        let clock = self.clock.lock();
        let now = Clock::Virtual(clock.clone()).now();
        clock.advance_to(now + Duration::from_micros(time_us));
        Ok(request.remaining() as u32)
    }
}

/// A reactor, and a file on such a device.
fn paced(times: &Arc<ReadTimes>) -> (Reactor, File) {
    let clock = VirtualClock::default();
    let backend = Paced {
        geometry: Memory::new(1 << 20).unwrap().geometry().clone(),
        clock: Mutex::new(clock.clone()),
        creator: thread::current().id(),
        times: times.clone(),
    };
    let file = File::from_device(Device::new(backend).unwrap(), FileOptions::default());
    (Reactor::new(ReactorOptions::new().clock(Clock::Virtual(clock))).unwrap(), file)
}

/// Reads `batches` batches of two blocks, and returns the number of times that a queue was chosen again so far.
fn read(reactor: &Reactor, file: &File, batches: usize) -> u64 {
    let mut completed = Vec::new();
    for _ in 0..batches {
        for token in 0..2 {
            reactor.read_at(file, Buffer::zeroed(4096), 4096 * token, Token::new(token)).unwrap();
        }
        reactor.reap(2, None, &mut completed).unwrap();
        assert!(completed.drain(..).all(|read| read.result() == Ok(4096)));
    }
    reactor.counters().get(Counter::ChosenAgain)
}

#[test]
fn calls_that_have_become_slow_are_replaced_by_threads_that_are_not() {
    let times = ReadTimes::new(2, 10);
    let (reactor, file) = paced(&times);
    assert_eq!(read(&reactor, &file, 500), 0);
    assert_eq!(reactor.queue_of(file.device()).unwrap().0, "sync");
    times.here_us.store(100, Ordering::Relaxed);
    assert_eq!(read(&reactor, &file, 200), 1);
    let (queue, reason) = reactor.queue_of(file.device()).unwrap();
    assert_eq!(queue, "threads", "{reason}");
    assert!(reason.contains("measured again (1x)"), "{reason}");
    assert!(reactor.calibration_of(file.device()).is_some_and(|found| found.reason != reason));
    // Nothing is watched any more.
    times.elsewhere_us.store(1000, Ordering::Relaxed);
    assert_eq!(read(&reactor, &file, 200), 1);
}

#[test]
fn a_device_that_is_slow_for_all_keeps_its_queue_and_is_measured_a_few_times() {
    let times = ReadTimes::new(2, 2);
    let (reactor, file) = paced(&times);
    assert_eq!(read(&reactor, &file, 100), 0);
    for (slower_us, chosen_again) in [(5, 1), (20, 2), (80, 3), (320, 3), (1280, 3)] {
        times.here_us.store(slower_us, Ordering::Relaxed);
        times.elsewhere_us.store(slower_us, Ordering::Relaxed);
        assert_eq!(read(&reactor, &file, 3000), chosen_again, "{slower_us} us");
        assert_eq!(reactor.queue_of(file.device()).unwrap().0, "sync");
    }
}

#[test]
fn a_stalled_device_keeps_its_queue_and_holds_up_a_reactor_for_one_read() {
    let times = ReadTimes::new(2, 2);
    let (reactor, file) = paced(&times);
    assert_eq!(read(&reactor, &file, 100), 0);
    times.here_us.store(3_000_000, Ordering::Relaxed);
    times.elsewhere_us.store(3_000_000, Ordering::Relaxed);
    let before = times.reads.load(Ordering::Relaxed);
    // At once, since a call has hung; then again, since these hang as well.
    assert_eq!(read(&reactor, &file, 1), 1);
    assert_eq!(read(&reactor, &file, 79), 3);
    // Two for each batch, and one for each measurement.
    assert_eq!(times.reads.load(Ordering::Relaxed) - before, 163);
    let (queue, reason) = reactor.queue_of(file.device()).unwrap();
    assert_eq!(queue, "sync", "{reason}");
    assert!(reason.contains("now no read has ended in time"), "{reason}");
}

#[test]
fn one_call_that_hangs_makes_its_device_leave_calls() {
    let times = ReadTimes::new(2, 10);
    let (reactor, file) = paced(&times);
    let mut completed = Vec::new();
    let mut read_one = || {
        reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
        reactor.reap(1, None, &mut completed).unwrap();
        assert_eq!(completed.pop().unwrap().result(), Ok(4096));
        let counters = reactor.counters();
        [Counter::Called, Counter::ChosenAgain].map(|counter| counters.get(counter))
    };
    let first = read_one()[0];
    for calls in 1..=100 {
        assert_eq!(read_one(), [first + calls, 0]);
    }
    times.hang_us.store(50_000, Ordering::Relaxed);
    times.here_us.store(100, Ordering::Relaxed);
    assert_eq!(read_one(), [first + 101, 1]);
    // The device was measured again, and calls are slower than threads now.
    assert_eq!(reactor.queue_of(file.device()).unwrap().0, "threads");
    let reads = times.reads.load(Ordering::Relaxed);
    assert_eq!(read_one(), [first + 101, 1]);
    assert_eq!(times.reads.load(Ordering::Relaxed), reads + 1);
}

#[test]
fn a_device_that_is_not_twice_as_slow_keeps_its_queue() {
    let times = ReadTimes::new(10, 10);
    let (reactor, file) = paced(&times);
    assert_eq!(read(&reactor, &file, 100), 0);
    times.here_us.store(19, Ordering::Relaxed);
    assert_eq!(read(&reactor, &file, 500), 0);
}
