//! A reactor inside a foreign event loop: epoll on its descriptor, and `turn()`. The descriptor is readable
//! exactly when there is work.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use uringfs_buffer::Buffer;
use uringfs_device::backend::null::Null;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Device, Errno, VirtualClock};
use uringfs_file::{Batch, File, FileOptions, Tokens};
use uringfs_reactor::{
    BatchTransfer, Completion, CompletionMode, PollEvents, Reactor, ReactorCore, ReactorOptions,
    Token,
};

use crate::harness::{BackEnd, file_over, pattern};

const SIZE: u64 = 1 << 20;

/// A foreign event loop.
struct Loop {
    reactor: Rc<Reactor>,
    epoll: std::os::fd::OwnedFd,
}

impl Loop {
    fn new(options: ReactorOptions) -> Loop {
        Loop::over(Reactor::new(options).unwrap())
    }

    fn over(reactor: Reactor) -> Loop {
        let reactor = Rc::new(reactor);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(1);
        epoll::add(&epoll, reactor.fd().unwrap(), data, epoll::EventFlags::IN).unwrap();
        Loop { reactor, epoll }
    }

    /// Turns whenever the descriptor is readable, until `done`.
    fn run_until(&self, what: &str, mut done: impl FnMut() -> bool) {
        self.reactor.turn().unwrap();
        while !done() {
            let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
            let mut events = Vec::with_capacity(4);
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, Some(&timeout)).map_err(Errno::from) {
                Err(Errno::INTR) => {}
                woken => assert_eq!(woken, Ok(1), "{what}: nothing came in 20 seconds"),
            }
            self.reactor.turn().unwrap();
        }
    }

    /// Reaps completions without waiting.
    fn reap_until(&self, what: &str, count: usize) -> Vec<Completion> {
        let mut completed = Vec::new();
        self.run_until(what, || {
            self.reactor.reap(0, None, &mut completed).unwrap();
            completed.len() >= count
        });
        completed
    }

    fn is_readable(&self) -> bool {
        self.is_readable_within(0)
    }

    fn is_readable_within(&self, seconds: i64) -> bool {
        let fd = self.reactor.fd().unwrap();
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    }
}

/// Every combination of queue and back end that is tested.
fn combinations() -> Vec<(QueueKind, BackEnd)> {
    let mut all: Vec<_> = [QueueKind::Ring, QueueKind::Aio, QueueKind::Sync, QueueKind::Threads]
        .into_iter()
        .map(|queue| (queue, BackEnd::Image))
        .collect();
    all.extend([
        (QueueKind::Threads, BackEnd::Memory),
        (QueueKind::Sync, BackEnd::Memory),
        (QueueKind::Ring, BackEnd::Null),
        (QueueKind::Auto, BackEnd::Sim),
        (QueueKind::Auto, BackEnd::ShakySim),
    ]);
    all
}

#[test]
fn tokens_complete_over_every_queue() {
    let folder = tempfile::tempdir().unwrap();
    for completion in [CompletionMode::Inline, CompletionMode::Worker] {
        for (queue, back_end) in combinations() {
            let what = format!("{queue} on {back_end:?}, {completion:?}");
            let made = back_end.make(folder.path(), SIZE, &VirtualClock::default());
            let file = File::from_device(made.device.clone(), FileOptions::default());
            let outer = Loop::new(ReactorOptions::new().queue(queue).completion(completion));
            for round in 0..20 {
                for token in 0..16 {
                    // Whole blocks and parts of them.
                    let offset = token * 32_768 + round % 2 * 3;
                    let buffer = pattern(token, 8192);
                    outer.reactor.write_at(&file, buffer, offset, Token::new(token)).unwrap();
                }
                for completed in outer.reap_until(&what, 16) {
                    assert_eq!(completed.result(), Ok(8192), "{what}");
                }
                for token in 0..16 {
                    let offset = token * 32_768 + round % 2 * 3;
                    let buffer = Buffer::zeroed(8192);
                    outer.reactor.read_at(&file, buffer, offset, Token::new(token)).unwrap();
                }
                for completed in outer.reap_until(&what, 16) {
                    let expected = pattern(completed.token().get(), 8192);
                    assert_eq!(completed.result(), Ok(8192), "{what}");
                    let found = completed.into_buffer();
                    assert!(found[..] == expected[..] || back_end == BackEnd::Null, "{what}");
                }
            }
        }
    }
}

#[test]
fn retried_requests_need_no_further_push() {
    for fault in [Fault::Short, Fault::Error(Errno::INTR), Fault::Error(Errno::AGAIN)] {
        let sim = Sim::new(SimOptions::new(SIZE));
        sim.inject(Rule::new(None, When::Every(2), fault));
        let file = file_over(&sim);
        let outer = Loop::new(ReactorOptions::default());
        for token in 0..50 {
            outer.reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(token)).unwrap();
            let completed = outer.reap_until(&format!("{fault:?}, {token}"), 1);
            assert_eq!(completed[0].result(), Ok(4096));
        }
    }
}

#[test]
fn spawned_futures_run_on_timers_descriptors_and_messages() {
    let outer = Loop::new(ReactorOptions::default());
    let (reading, mut writing) = std::io::pipe().unwrap();
    let reading: Arc<std::os::fd::OwnedFd> = Arc::new(reading.into());
    let steps = Rc::new(Cell::new(0));
    // The futures hold a weak reference: the reactor outlives them, and `outer` owns it.
    let (reactor, at) = (Rc::downgrade(&outer.reactor), steps.clone());
    outer.reactor.spawn(async move {
        let reactor = reactor.upgrade().expect("it runs this future");
        reactor.sleep(Duration::from_millis(3)).await;
        at.set(1);
        assert_eq!(reactor.poll(&reading, PollEvents::IN, None).await, Ok(PollEvents::IN));
        at.set(2);
    });
    outer.run_until("a timer", || steps.get() == 1);
    writing.write_all(b"x").unwrap();
    outer.run_until("a descriptor", || steps.get() == 2);
    let remote = outer.reactor.inner().handle();
    for round in 0..100 {
        let (send, receive) = std::sync::mpsc::channel();
        let remote = remote.clone();
        let sender = std::thread::spawn(move || remote.run(move |_| send.send(round).unwrap()));
        let mut got = None;
        outer.run_until("a message", || {
            got = receive.try_recv().ok();
            got.is_some()
        });
        assert_eq!(got, Some(round));
        assert!(sender.join().unwrap());
    }
}

#[test]
fn an_idle_reactor_is_not_readable() {
    let folder = tempfile::tempdir().unwrap();
    for (queue, back_end) in combinations() {
        let what = format!("{queue} on {back_end:?}");
        let made = back_end.make(folder.path(), SIZE, &VirtualClock::default());
        let file = File::from_device(made.device.clone(), FileOptions::default());
        let outer = Loop::new(ReactorOptions::new().queue(queue));
        outer.reactor.turn().unwrap();
        assert!(!outer.is_readable(), "{what}: new");
        for _ in 0..5 {
            outer.reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
            assert_eq!(outer.reap_until(&what, 1)[0].result(), Ok(4096));
            outer.reactor.turn().unwrap();
            assert!(!outer.is_readable(), "{what}: after a read");
        }
        let remote = outer.reactor.inner().handle();
        std::thread::spawn(move || remote.run(|_| {})).join().unwrap();
        assert!(outer.is_readable(), "{what}: a message has come");
        outer.reactor.turn().unwrap();
        assert!(!outer.is_readable(), "{what}: it was handled");
    }
}

/// The kernel keeps a message to a ring until the ring is entered, and signals nothing that comes behind it.
#[test]
fn a_message_before_the_descriptor_is_made_hides_none_after_it() {
    let null = Device::new(Null::new(SIZE)).unwrap();
    let file = File::from_device(null, FileOptions::default());
    let reactor = Reactor::new(ReactorOptions::new().queue(QueueKind::Ring)).unwrap();
    // After waits for completions alone the reactor stays announced as asleep.
    let mut completed = Vec::new();
    for token in 0..3 {
        reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(token)).unwrap();
        reactor.reap(1, None, &mut completed).unwrap();
    }
    let remote = reactor.inner().handle();
    let (send, may_send) = channel();
    let (sent, is_sent) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // It sends messages by its ring.
            let own = Reactor::new(ReactorOptions::default()).unwrap();
            own.turn().unwrap();
            for () in may_send {
                assert!(remote.run(|_| {}));
                sent.send(()).unwrap();
            }
        });
        let send = send;
        let send_message = || {
            send.send(()).unwrap();
            is_sent.recv().unwrap();
        };
        send_message();
        let outer = Loop::over(reactor);
        for message in 2..=4 {
            while outer.is_readable() {
                outer.reactor.turn().unwrap();
            }
            send_message();
            assert!(outer.is_readable_within(5), "message {message} has not woken the loop");
        }
    });
}

/// A wait, by what it is for.
type Wait<'w> = (&'static str, Box<dyn FnMut() + 'w>);

/// A foreign loop polls the descriptor after waits of the thread's own, too: a completion or a message that comes then
/// must make it readable.
#[test]
fn a_message_after_a_wait_of_the_threads_own_makes_the_descriptor_readable() {
    let folder = tempfile::tempdir().unwrap();
    let made = BackEnd::Image.make(folder.path(), SIZE, &VirtualClock::default());
    let file = File::from_device(made.device, FileOptions::default());
    let outer = Loop::new(ReactorOptions::new().queue(QueueKind::Ring));
    let reactor = &outer.reactor;
    let mut batch = Batch::new(reactor, [Buffer::zeroed(4096)]).unwrap();
    let read = |token| reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(token)).unwrap();
    let mut waits: [Wait<'_>; 4] = [
        (
            "completions that a turn has found",
            Box::new(|| {
                read(1);
                outer.reactor.submit().unwrap();
                outer.reactor.turn().unwrap();
                assert_eq!(reactor.completions(1, None).unwrap().count(), 1);
            }),
        ),
        (
            "completions",
            Box::new(|| {
                read(2);
                assert_eq!(reactor.completions(1, None).unwrap().count(), 1);
            }),
        ),
        ("block_on", Box::new(|| reactor.block_on(async {}))),
        (
            "a batch",
            Box::new(|| {
                batch.read(&file, &[BatchTransfer { slot: 0, offset: 0 }]).unwrap();
                assert_eq!(batch.completions(1, None).unwrap().count(), 1);
            }),
        ),
    ];
    for (what, wait) in &mut waits {
        reactor.turn().unwrap();
        while outer.is_readable() {
            reactor.turn().unwrap();
        }
        wait();
        let remote = reactor.inner().handle();
        let has_run = Arc::new(AtomicBool::new(false));
        let run = has_run.clone();
        let job = move |_: &Rc<ReactorCore>| run.store(true, Ordering::Relaxed);
        assert!(std::thread::spawn(move || remote.run(job)).join().unwrap());
        while outer.is_readable() {
            reactor.turn().unwrap();
        }
        assert!(has_run.load(Ordering::Relaxed), "after {what}");
    }
}
