//! The mailbox: no message is lost, none is read twice, and a sleeping reactor wakes, with io_uring and without.

mod tier;

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tier::on_every_tier;
use uringfs_device::Errno;
use uringfs_reactor::{Counter, PollEvents, Reactor, ReactorCore, ReactorHandle, ReactorOptions};

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

/// A flag with a waker, for one task that waits until it is set.
#[derive(Default)]
struct Flag {
    set: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Flag {
    fn set(&self) {
        self.set.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }

    async fn wait(&self) {
        poll_fn(|context| {
            *self.waker.lock().unwrap() = Some(context.waker().clone());
            if self.set.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[test]
fn a_waker_wakes_from_any_thread() {
    on_every_tier("a_waker_wakes_from_any_thread", |_| {
        let reactor = reactor();
        for round in 0..500u32 {
            let flag = Arc::new(Flag::default());
            let other = flag.clone();
            let setter = std::thread::spawn(move || {
                // Sometimes before the reactor sleeps, sometimes after.
                for _ in 0..round % 50 * 20 {
                    std::hint::spin_loop();
                }
                other.set();
            });
            reactor.block_on(flag.wait());
            setter.join().unwrap();
        }
    });
}

#[test]
fn each_message_is_read_once_and_in_its_senders_order() {
    on_every_tier("each_message_is_read_once_and_in_its_senders_order", |_| {
        const SENDERS: usize = 3;
        const MESSAGES: u64 = 5000;
        let reactor = reactor();
        let owner = std::thread::current().id();
        let read: Arc<[AtomicU64; SENDERS]> = Arc::default();
        let done = Arc::new(Flag::default());
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let (handle, read, done) = (reactor.inner().handle(), read.clone(), done.clone());
                // One of them has a reactor, so it wakes the owner by a message from its ring.
                let own = sender == 0;
                std::thread::spawn(move || {
                    let _own = own.then(self::reactor);
                    for message in 0..MESSAGES {
                        let (read, done) = (read.clone(), done.clone());
                        let sent = handle.run(move |_| {
                            assert_eq!(std::thread::current().id(), owner);
                            let before = read[sender].fetch_add(1, Ordering::Relaxed);
                            assert_eq!(before, message, "sender {sender}");
                            let sum = read.iter().map(|one| one.load(Ordering::Relaxed));
                            if sum.sum::<u64>() == SENDERS as u64 * MESSAGES {
                                done.set();
                            }
                        });
                        assert!(sent);
                        if message % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        reactor.block_on(done.wait());
        for sender in senders {
            sender.join().unwrap();
        }
        assert!(reactor.counters().get(Counter::Messages) >= SENDERS as u64 * MESSAGES);
    });
}

#[test]
fn two_reactors_play_ping_pong() {
    on_every_tier("two_reactors_play_ping_pong", |_| {
        const ROUNDS: u64 = 3000;
        let done = Arc::new(Flag::default());
        let one = reactor();
        let (send, receive) = channel::<ReactorHandle>();
        let other = {
            let done = done.clone();
            std::thread::spawn(move || {
                let reactor = reactor();
                send.send(reactor.inner().handle()).unwrap();
                reactor.block_on(done.wait());
            })
        };
        let there = receive.recv().unwrap();
        let ended = Arc::new(Flag::default());
        fn hit(to: ReactorHandle, from: ReactorHandle, left: u64, ended: Arc<Flag>) {
            let back = to.clone();
            let sent = to.run(move |_| match left {
                0 => ended.set(),
                left => hit(from, back, left - 1, ended),
            });
            assert!(sent);
        }
        hit(there, one.inner().handle(), ROUNDS, ended.clone());
        one.block_on(ended.wait());
        done.set();
        other.join().unwrap();
    });
}

#[test]
fn a_message_is_read_when_no_wait_slot_is_free() {
    on_every_tier("a_message_is_read_when_no_wait_slot_is_free", |_| {
        let reactor = reactor();
        let (reading, _writing) = std::io::pipe().unwrap();
        let reading = Arc::new(OwnedFd::from(reading));
        // More waits than the ring has slots, before it first watches its mailbox.
        let mut polls: Vec<_> =
            (0..1100).map(|_| Box::pin(reactor.poll(&reading, PollEvents::IN, None))).collect();
        for poll in &mut polls {
            let _ = poll.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        assert!(is_read_while_asleep(&reactor, |handle, message| assert!(handle.run(message))));
    });
}

#[test]
fn max_waits_are_taken_and_one_more_gets_eagain() {
    on_every_tier("max_waits_are_taken_and_one_more_gets_eagain", |_| {
        let reactor = Reactor::new(ReactorOptions::new().max_waits(2000)).unwrap();
        // A ring also watches the mailbox.
        reactor.block_on(reactor.sleep(Duration::from_millis(1)));
        let (reading, _writing) = std::io::pipe().unwrap();
        let reading = Arc::new(OwnedFd::from(reading));
        let mut context = Context::from_waker(Waker::noop());
        let mut polls: Vec<_> =
            (0..2000).map(|_| Box::pin(reactor.poll(&reading, PollEvents::IN, None))).collect();
        assert!(polls.iter_mut().all(|poll| poll.as_mut().poll(&mut context).is_pending()));
        let mut more = pin!(reactor.poll(&reading, PollEvents::IN, None));
        assert_eq!(more.as_mut().poll(&mut context), Poll::Ready(Err(Errno::AGAIN)));
    });
}

#[test]
fn a_waker_that_outlives_its_reactor_keeps_no_ring() {
    on_every_tier("a_waker_that_outlives_its_reactor_keeps_no_ring", |_| {
        let rings = || {
            let open = std::fs::read_dir("/proc/self/fd").unwrap();
            let names = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            names.filter(|name| name.to_string_lossy().contains("io_uring")).count()
        };
        let before = rings();
        let reactor = reactor();
        let mut waker = None;
        reactor.block_on(poll_fn(|context| {
            waker = Some(context.waker().clone());
            Poll::Ready(())
        }));
        let handle = reactor.inner().handle();
        drop(reactor);
        assert_eq!(rings(), before);
        waker.unwrap().wake();
        assert!(!handle.run(|_| {}));
    });
}

/// Keeps a reactor reachable, so that the leak checker does not report it.
static KEPT: AtomicPtr<Reactor> = AtomicPtr::new(std::ptr::null_mut());

#[test]
fn a_message_is_read_when_the_senders_ring_cannot_notify() {
    on_every_tier("a_message_is_read_when_the_senders_ring_cannot_notify", |_| {
        let reactor = reactor();
        assert!(is_read_while_asleep(&reactor, |handle, message| {
            // Never dropped: its queue cannot be drained any more.
            KEPT.store(Box::into_raw(Box::new(self::reactor())), Ordering::Relaxed);
            tier::refuse(&[tier::ENTER], Errno::AGAIN);
            assert!(handle.run(message));
        }));
    });
}

/// A sender with a ring wakes other owners by a message to their ring. A turn without requests does not enter that.
#[test]
fn each_message_of_another_reactor_wakes_a_foreign_loop() {
    on_every_tier("each_message_of_another_reactor_wakes_a_foreign_loop", |_| {
        const MESSAGES: usize = 3;
        let reactor = reactor();
        reactor.fd().unwrap();
        while is_readable(&reactor, Duration::ZERO) {
            reactor.turn().unwrap();
        }
        let (handle, read) = (reactor.inner().handle(), Arc::new(AtomicU64::new(0)));
        let (go, may_send) = channel();
        std::thread::scope(|scope| {
            scope.spawn({
                let read = read.clone();
                move || {
                    let own = self::reactor();
                    own.turn().unwrap();
                    for () in may_send {
                        let read = read.clone();
                        assert!(handle.run(move |_| _ = read.fetch_add(1, Ordering::Relaxed)));
                    }
                }
            });
            let go = go;
            for message in 1..=MESSAGES {
                go.send(()).unwrap();
                while read.load(Ordering::Relaxed) < message as u64 {
                    let is_woken = is_readable(&reactor, Duration::from_secs(5));
                    assert!(is_woken, "message {message} has not woken the loop");
                    reactor.turn().unwrap();
                }
                while is_readable(&reactor, Duration::ZERO) {
                    reactor.turn().unwrap();
                }
            }
        });
        assert_eq!(reactor.counters().get(Counter::Enters), 0);
    });
}

/// True when the descriptor for a foreign loop is readable within `timeout`.
fn is_readable(reactor: &Reactor, timeout: Duration) -> bool {
    let fd = reactor.fd().unwrap();
    let timeout = timeout.try_into().unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

/// Lets another thread `send` a message when the reactor sleeps. True when the reactor reads it.
fn is_read_while_asleep(
    reactor: &Reactor,
    send: impl FnOnce(ReactorHandle, Box<dyn FnOnce(&Rc<ReactorCore>) + Send>) + Send,
) -> bool {
    let (flag, handle) = (Arc::new(Flag::default()), reactor.inner().handle());
    let (read, counters) = (flag.clone(), reactor.counters());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The reactor counts a sleep after it has announced it to the mailbox.
            while counters.get(Counter::Sleeps) == 0 {
                std::thread::yield_now();
            }
            send(handle, Box::new(move |_| read.set()));
        });
        let mut timeout = pin!(reactor.sleep(Duration::from_secs(5)));
        let mut wait = pin!(flag.wait());
        // The timeout first: when it ends, any message is read.
        reactor.block_on(poll_fn(|context| match timeout.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(false),
            Poll::Pending => wait.as_mut().poll(context).map(|()| true),
        }))
    })
}

#[test]
fn a_message_reaches_the_right_reactor_of_a_thread() {
    on_every_tier("a_message_reaches_the_right_reactor_of_a_thread", |_| {
        let (first, second) = (reactor(), reactor());
        let (send, receive) = channel();
        let own = std::rc::Rc::as_ptr(second.inner()) as usize;
        let sent = second.inner().handle().run(move |inner| {
            send.send(std::rc::Rc::as_ptr(inner) as usize).unwrap();
        });
        assert!(sent);
        first.turn().unwrap();
        assert!(receive.try_recv().is_err(), "the first reactor read a message for the second");
        let mut completed = Vec::new();
        second.reap(0, None, &mut completed).unwrap();
        assert_eq!(receive.try_recv(), Ok(own));
    });
}

#[test]
fn a_drop_ends_although_every_message_sends_another() {
    on_every_tier("a_drop_ends_although_every_message_sends_another", |_| {
        fn again(handle: ReactorHandle, refused: Arc<AtomicBool>) {
            let (to, flag) = (handle.clone(), refused.clone());
            if !handle.run(move |_| again(to, flag)) {
                refused.store(true, Ordering::Relaxed);
            }
        }
        let (reactor, refused) = (reactor(), Arc::default());
        again(reactor.inner().handle(), Arc::clone(&refused));
        drop(reactor);
        assert!(refused.load(Ordering::Relaxed), "the last message was not returned");
    });
}

#[test]
fn messages_to_a_dropped_reactor_are_returned() {
    on_every_tier("messages_to_a_dropped_reactor_are_returned", |_| {
        for _ in 0..50 {
            let reactor = reactor();
            let handle = reactor.inner().handle();
            let (sent, read) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let sender = {
                let (sent, read) = (sent.clone(), read.clone());
                std::thread::spawn(move || {
                    let deadline = Instant::now() + Duration::from_secs(20);
                    while Instant::now() < deadline {
                        let read = read.clone();
                        if !handle.run(move |_| {
                            read.fetch_add(1, Ordering::Relaxed);
                        }) {
                            return;
                        }
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                    panic!("the reactor was not dropped");
                })
            };
            while sent.load(Ordering::Relaxed) < 20 {
                reactor.turn().unwrap();
            }
            drop(reactor);
            sender.join().unwrap();
            assert_eq!(sent.load(Ordering::Relaxed), read.load(Ordering::Relaxed));
        }
    });
}
