//! A device of the kernel that completes within calls: the thread that waits for one request alone makes the call
//! itself, and everything else takes the ring. Faults, cancels, removal and what else is under way have the same
//! results as on the ring.

mod harness;

use std::fs;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use harness::pattern;
use parking_lot::Mutex;
use uringfs_buffer::Buffer;
use uringfs_device::backend::memory::Memory;
use uringfs_device::queue::calibrate::{
    Calibration, CalibrationOptions, QueueSamples, RoundSample,
};
use uringfs_device::{
    Backend, Clock, Device, Errno, Failure, FailureListener, Geometry, KernelTarget, QueueKind,
    Request, VirtualClock,
};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{Completion, Counter, Effect, PollEvents, Reactor, ReactorOptions, Token};

const SIZE: u64 = 1 << 20;

/// A file of the kernel that calibration has found to be faster by calls, one read at a time.
struct Fast {
    geometry: Geometry,
    file: fs::File,
    clock: VirtualClock,
    /// How long the next call takes.
    hang_us: Arc<AtomicU64>,
}

impl Backend for Fast {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn description(&self) -> String {
        "fast".into()
    }

    /// It is asked for before each call.
    fn kernel_target(&self) -> KernelTarget<'_> {
        let now = Clock::Virtual(self.clock.clone()).now();
        let hang = Duration::from_micros(self.hang_us.swap(0, Ordering::Relaxed));
        self.clock.advance_to(now + hang);
        KernelTarget::Descriptor(self.file.as_fd())
    }

    fn perform(&self, _: &mut Request) -> Result<u32, Errno> {
        unreachable!("the ring and calls by descriptor execute all of these requests")
    }
}

/// The failures that a device has reported.
#[derive(Default)]
struct Heard(Mutex<Vec<Failure>>);

impl FailureListener for Heard {
    fn on_failure(&self, failure: Failure) {
        self.0.lock().push(failure);
    }
}

struct Fixture {
    reactor: Reactor,
    file: File,
    clock: VirtualClock,
    hang_us: Arc<AtomicU64>,
    heard: Arc<Heard>,
}

impl Fixture {
    fn new(queue: QueueKind, file: fs::File) -> Fixture {
        let (clock, hang_us) = (VirtualClock::default(), Arc::new(AtomicU64::new(0)));
        let fast = Fast {
            geometry: Geometry { direct: true, ..Memory::new(SIZE).unwrap().geometry().clone() },
            file,
            clock: clock.clone(),
            hang_us: hang_us.clone(),
        };
        let device = Device::new(fast).unwrap();
        let heard = Arc::new(Heard::default());
        let listener: Arc<dyn FailureListener> = heard.clone();
        device.core().add_listener(Arc::downgrade(&listener));
        let options = ReactorOptions::new().queue(queue).clock(Clock::Virtual(clock.clone()));
        measure(&device, &options);
        let reactor = Reactor::new(options).unwrap();
        let file = File::from_device(device, FileOptions::default());
        Fixture { reactor, file, clock, hang_us, heard }
    }

    fn start_read(&self, offset: u64) {
        self.reactor.read_at(&self.file, Buffer::zeroed(4096), offset, Token::new(offset)).unwrap();
    }

    fn write(&self, offset: u64, bytes: Buffer) -> Result<u64, Errno> {
        self.reactor.write_at(&self.file, bytes, offset, Token::new(1)).unwrap();
        self.wait().result()
    }

    /// Waits for one completion, as a caller that waits for the request it has just issued.
    fn wait(&self) -> Completion {
        let mut completed = Vec::new();
        self.reactor.reap(1, None, &mut completed).unwrap();
        assert_eq!(completed.len(), 1);
        completed.remove(0)
    }

    fn read(&self, offset: u64) -> Completion {
        self.start_read(offset);
        self.wait()
    }

    /// Requests by call, calls of `io_uring_enter`, and other system calls for requests.
    fn counts(&self) -> [u64; 3] {
        [Counter::Called, Counter::Enters, Counter::OtherCalls]
            .map(|counter| self.reactor.counters().get(counter))
    }

    fn called(&self) -> u64 {
        self.counts()[0]
    }

    fn reason(&self) -> String {
        self.reactor.queue_of(self.file.device()).unwrap().1
    }
}

/// Calls are faster for one read, and the ring for many.
fn measure(device: &Device, options: &ReactorOptions) {
    let samples = |kind, rates| QueueSamples {
        kind,
        rounds: vec![RoundSample { rates, is_disturbed: false }; 7],
    };
    let measured = vec![
        samples(QueueKind::Ring, [100_000.0, 400_000.0]),
        samples(QueueKind::Sync, [150_000.0, 150_000.0]),
    ];
    let ReactorOptions { fixed_files, fixed_buffers, commands, .. } = *options;
    let key = CalibrationOptions { has_ring: true, fixed_files, fixed_buffers, commands };
    let (kind, reason) = (QueueKind::Ring, "samples of the test".into());
    // Not that of the other tests, whose files are on the same storage.
    let calibration = device.core().leave_shared_calibration(key);
    calibration.get_or_measure("fast", || Calibration { kind, reason, measured });
}

/// A file of zeros whose single requests are called, after the first one, which attaches its device.
fn called() -> Fixture {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    let fixture = Fixture::new(QueueKind::Auto, file);
    assert_eq!(fixture.write(0, pattern(0, 4096)), Ok(4096));
    assert!(fixture.reason().contains("calls the kernel itself"), "{}", fixture.reason());
    fixture
}

#[test]
fn a_request_that_its_caller_waits_for_alone_is_one_call() {
    let fixture = called();
    let [called, enters, calls] = fixture.counts();
    for round in 1..=10 {
        let written = pattern(round, 4096);
        assert_eq!(fixture.write(round * 4096, written), Ok(4096));
        let read = fixture.read(round * 4096);
        assert_eq!((read.result(), read.effect()), (Ok(4096), Effect::Done));
        assert_eq!(read.into_buffer()[..], pattern(round, 4096)[..]);
    }
    assert_eq!(fixture.counts(), [called + 20, enters, calls + 20]);
    // The same of a task that awaits.
    fixture.reactor.block_on(async {
        for _ in 0..10 {
            let (read, buffer) = fixture.file.read_at(Buffer::zeroed(4096), 4096).await;
            assert_eq!(read, Ok(4096));
            assert_eq!(buffer[..], pattern(1, 4096)[..]);
        }
    });
    assert_eq!(fixture.counts(), [called + 30, enters, calls + 30]);
}

#[test]
fn several_requests_take_the_ring_and_a_single_one_is_called_again() {
    let fixture = called();
    let [before, enters, _] = fixture.counts();
    for _ in 0..3 {
        fixture.start_read(0);
        fixture.start_read(4096);
        let mut completed = Vec::new();
        fixture.reactor.reap(2, None, &mut completed).unwrap();
        assert!(completed.iter().all(|read| read.result() == Ok(4096)));
    }
    let [called, entered, _] = fixture.counts();
    assert_eq!(called, before);
    assert!(entered > enters);
    // The first one shows that requests come alone again.
    assert_eq!(fixture.read(0).result(), Ok(4096));
    assert_eq!(fixture.read(0).result(), Ok(4096));
    assert_eq!(fixture.called(), before + 1);
    // The caller does not wait for this one.
    fixture.start_read(8192);
    fixture.reactor.submit().unwrap();
    assert_eq!(fixture.wait().result(), Ok(4096));
    assert_eq!(fixture.called(), before + 1);
}

#[test]
fn one_call_that_hangs_makes_the_device_be_measured_again() {
    let fixture = called();
    assert_eq!(fixture.read(0).result(), Ok(4096));
    let before = fixture.called();
    fixture.hang_us.store(50_000, Ordering::Relaxed);
    assert_eq!(fixture.read(0).result(), Ok(4096));
    assert_eq!(fixture.called(), before + 1);
    assert_eq!(fixture.read(0).result(), Ok(4096));
    assert_eq!(fixture.called(), before + 1, "this one took the ring");
    assert_eq!(fixture.reactor.counters().get(Counter::ChosenAgain), 1);
    assert!(fixture.reason().contains("measured again (1x)"), "{}", fixture.reason());
}

#[test]
fn calls_that_have_become_slow_are_measured_again() {
    let fixture = called();
    let chosen_again = || fixture.reactor.counters().get(Counter::ChosenAgain);
    // 10 ms of slow reads in a row contradict.
    for _ in 0..100 {
        assert_eq!(chosen_again(), 0);
        fixture.hang_us.store(100, Ordering::Relaxed);
        assert_eq!(fixture.read(0).result(), Ok(4096));
    }
    assert_eq!(fixture.read(0).result(), Ok(4096));
    assert_eq!(chosen_again(), 1);
    assert!(fixture.reason().contains("measured again (1x)"), "{}", fixture.reason());
}

/// The results of reads, some of them past the end of the file below, and of writes, which it refuses. Each time,
/// listeners know of a failure before its caller does.
fn faults(queue: QueueKind) -> (Vec<Result<u64, Errno>>, Vec<Failure>, u64) {
    let named = tempfile::NamedTempFile::new().unwrap();
    named.as_file().set_len(6144).unwrap();
    let fixture = Fixture::new(queue, fs::File::open(named.path()).unwrap());
    let mut results = Vec::new();
    for offset in [0, 0, 4096, 8192, 0] {
        let read = fixture.read(offset).result();
        results.extend([read, fixture.write(offset, pattern(1, 4096))]);
        let failed = results.iter().filter(|result| result.is_err()).count();
        assert_eq!(fixture.heard.0.lock().len(), failed);
    }
    let heard = fixture.heard.0.lock().clone();
    (results, heard, fixture.called())
}

#[test]
fn faults_are_those_of_the_ring() {
    let (by_calls, by_ring) = (faults(QueueKind::Auto), faults(QueueKind::Ring));
    assert!(by_calls.2 > 5, "{} calls", by_calls.2);
    assert_eq!(by_ring.2, 0);
    assert_eq!((by_calls.0, by_calls.1), (by_ring.0, by_ring.1));
}

#[test]
fn a_request_that_is_cancelled_before_its_caller_waits_ends_once() {
    let fixture = called();
    let before = fixture.called();
    fixture.start_read(0);
    fixture.reactor.cancel(Token::new(0));
    let ended = fixture.wait();
    match ended.result() {
        Ok(4096) => assert_eq!(ended.effect(), Effect::Done),
        Err(Errno::CANCELED) => assert_ne!(ended.effect(), Effect::Done),
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.called(), before, "the ring had it, and the cancel after it");
    assert_eq!(fixture.read(0).result(), Ok(4096));
    // A future that is dropped cancels its read.
    fixture.reactor.block_on(async {
        let mut read = std::pin::pin!(fixture.file.read_at(Buffer::zeroed(4096), 0).into_future());
        let polled = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        assert!(polled.is_pending());
    });
    assert_eq!(fixture.read(4096).result(), Ok(4096));
}

#[test]
fn a_deadline_of_another_operation_fires_while_reads_go_on() {
    let fixture = called();
    let now = || Clock::Virtual(fixture.clock.clone()).now();
    let deadline = now() + Duration::from_secs(1);
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let local = fixture.reactor.local();
    let before = fixture.called();
    fixture.reactor.block_on(async {
        let pipe = Arc::new(pipe);
        let mut wait = std::pin::pin!(local.poll(&pipe, PollEvents::IN, Some(deadline)));
        for reads in 0..1_000_000 {
            let polled =
                std::future::poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await;
            if let Poll::Ready(ended) = polled {
                assert_eq!((ended.err(), reads > 100), (Some(Errno::TIMEDOUT), true));
                return;
            }
            let (read, _) = fixture.file.read_at(Buffer::zeroed(4096), 0).await;
            assert_eq!(read, Ok(4096));
            if reads == 100 {
                fixture.clock.advance_to(deadline);
            }
        }
        panic!("the deadline never fires");
    });
    // A timer was set, and the ring waited for a descriptor.
    assert_eq!(fixture.called(), before);
}

#[test]
fn a_descriptor_that_becomes_ready_is_noticed_while_reads_go_on() {
    let fixture = called();
    let local = fixture.reactor.local();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    fixture.reactor.block_on(async {
        let reader = Arc::new(reader);
        let mut wait = std::pin::pin!(local.poll(&reader, PollEvents::IN, None));
        for reads in 0..1_000_000 {
            let polled =
                std::future::poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await;
            if let Poll::Ready(ready) = polled {
                assert_eq!((ready, reads > 100), (Ok(PollEvents::IN), true));
                return;
            }
            assert_eq!(fixture.file.read_at(Buffer::zeroed(4096), 0).await.0, Ok(4096));
            if reads == 100 {
                rustix::io::write(&writer, &[1]).unwrap();
            }
        }
        panic!("the reactor never notices that the pipe is ready");
    });
}

#[test]
fn a_message_is_read_while_calls_go_on() {
    let fixture = called();
    let handle = fixture.reactor.inner().handle();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || handle.run(move |_| sender.send(()).unwrap())).join().unwrap();
    assert_eq!(fixture.read(0).result(), Ok(4096));
    receiver.try_recv().expect("the message came before the read");
}

#[test]
fn a_removed_device_finishes_what_was_pushed_and_takes_no_more() {
    let fixture = called();
    fixture.start_read(4096);
    fixture.file.device().remove();
    assert_eq!(fixture.wait().result(), Ok(4096));
    let (reactor, file) = (&fixture.reactor, &fixture.file);
    let refused = reactor.read_at(file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap_err();
    assert_eq!(refused.error, Errno::NODEV);
}

#[test]
fn a_reactor_that_is_dropped_waits_for_the_request_that_it_holds() {
    let fixture = called();
    fixture.start_read(4096);
    drop(fixture);
}
