//! Callers that go away: futures dropped at every step, reactors dropped with requests in flight. Nothing is
//! lost, leaked or left locked.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use uringfs_buffer::{Buffer, BufferPool};
use uringfs_device::backend::sim::{Sim, SimOptions, WriteCache};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Clock, VirtualClock};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{
    CompletionMode, Effect, OpResult, Reactor, ReactorOptions, Token, quiescence,
};

use crate::harness::{BackEnd, file_over, pattern, reactor_by, reap_within};

const SIZE: u64 = 1 << 20;
const BUFFER: usize = 48 << 10;
const BUFFERS: usize = 2;

/// Latencies are longer than a step of the tests' time.
fn slow(clock: &VirtualClock) -> Sim {
    let micro = Duration::from_micros;
    let options = SimOptions::new(SIZE).seed(8).latency(micro(50)..=micro(400)).units(2);
    let options = options.max_transfer(8 << 10).cache(WriteCache::Volatile);
    Sim::new(options.clock(Clock::Virtual(clock.clone())))
}

/// An operation whose result is ignored.
type Erased = Pin<Box<dyn Future<Output = ()>>>;

/// The operation of this number, with memory of the pool; `None` beyond the last.
fn operation(number: usize, file: &File, pool: &BufferPool) -> Option<(&'static str, Erased)> {
    fn erased<T>(future: impl Future<Output = T> + 'static) -> Erased {
        Box::pin(async move { drop(future.await) })
    }
    let get = || pool.get().expect("all have come back");
    let small = || {
        let mut buffer = get();
        drop(buffer.split_off(4096));
        buffer
    };
    let pieces = || {
        let mut head = get();
        let tail = head.split_off(20_480);
        vec![head, tail]
    };
    Some(match number {
        0 => ("simple read", erased(file.read_at(small(), 4096))),
        1 => ("read", erased(file.read_at(get(), 0))),
        2 => ("unaligned read", erased(file.read_at(get(), 100))),
        3 => ("vectored read", erased(file.read_vectored_at(pieces(), 512))),
        4 => ("write", erased(file.write_at(get(), 0))),
        5 => ("unaligned write", erased(file.write_at(get(), 333))),
        6 => ("vectored write", erased(file.write_vectored_at(pieces(), 512))),
        7 => ("durable write", erased(file.write_durably(get(), 4096))),
        8 => ("unaligned durable write", erased(file.write_durably(get(), 4097))),
        9 => ("sync", erased(file.sync_all())),
        10 => ("discard", erased(file.discard(0, 100_000))),
        11 => ("write zeroes", erased(file.write_zeroes(3, 70_000))),
        _ => return None,
    })
}

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits until all operations have ended.
fn drain(reactor: &Reactor) {
    let mut completed = Vec::new();
    reactor.reap(usize::MAX, None, &mut completed).unwrap();
    assert!(completed.is_empty(), "nothing was started by token");
}

/// Checks that memory, locks and counts in flight are back.
fn check_balance(reactor: &Reactor, file: &File, pool: &BufferPool, what: &str) {
    assert_eq!(pool.available(), BUFFERS, "{what}: memory");
    let epoch = quiescence(file.device().index()).retire();
    let thread = std::thread::current();
    let name = format!("the reactor of thread {}", thread.name().unwrap_or_default());
    assert!(
        !quiescence(file.device().index()).holders(epoch).contains(&name),
        "{what}: in the epoch"
    );
    // With a range or the bias still held, these writes would hang.
    let outcome = reactor.block_on(async {
        let (part, _) = file.write_at(Buffer::copy_of(&[1; 100]), 50).await;
        assert_eq!(part, Ok(100), "{what}");
        file.write_at(Buffer::zeroed(SIZE as usize), 0).outcome().await
    });
    assert_eq!((outcome.result, outcome.effect), (Ok(SIZE), Effect::Done), "{what}");
}

#[test]
fn a_future_dropped_at_any_step_leaks_nothing() {
    for completion in [CompletionMode::Inline, CompletionMode::Worker] {
        let clock = VirtualClock::default();
        let file = file_over(&slow(&clock));
        let pool = BufferPool::new(BUFFER, BUFFERS).unwrap();
        let clock = Clock::Virtual(clock);
        let options = ReactorOptions::new().completion(completion).clock(clock);
        let reactor = Reactor::new(options).unwrap();
        // Futures that are polled outside of it are its own from now on.
        reactor.turn().unwrap();
        for number in 0.. {
            let mut steps = 0;
            loop {
                let Some((name, mut future)) = operation(number, &file, &pool) else { return };
                let mut ended = false;
                let mut completed = Vec::new();
                for step in 0..=steps {
                    ended = poll_once(future.as_mut()).is_ready();
                    if ended {
                        break;
                    }
                    if step < steps {
                        let time = Some(Duration::from_micros(40));
                        reactor.reap(1, time, &mut completed).unwrap();
                    }
                }
                drop(future);
                drain(&reactor);
                check_balance(&reactor, &file, &pool, &format!("{name}, {steps} steps"));
                if ended {
                    assert!(steps > 0, "{name} takes several steps");
                    break;
                }
                steps += 1;
                assert!(steps < 1000, "{name} ends");
            }
        }
    }
}

#[test]
fn a_future_dropped_before_its_first_poll_does_nothing() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let file = file_over(&sim);
    let pool = BufferPool::new(BUFFER, BUFFERS).unwrap();
    let reactor = reactor_by(&VirtualClock::default());
    for number in 0.. {
        let Some((_, future)) = operation(number, &file, &pool) else { break };
        drop(future);
        assert_eq!(pool.available(), BUFFERS);
    }
    drain(&reactor);
    assert_eq!(sim.record().len(), 0);
}

#[test]
fn operations_of_spawned_futures_end_with_the_reactor() {
    let clock = VirtualClock::default();
    let sim = slow(&clock);
    let file = file_over(&sim);
    let pool = BufferPool::new(BUFFER, BUFFERS).unwrap();
    for steps in 0..20 {
        let reactor = reactor_by(&clock);
        for place in 0..2u64 {
            let (file, buffer) = (file.clone(), pool.get().unwrap());
            reactor.spawn(async move {
                let mut buffer = buffer;
                loop {
                    (_, buffer) = file.write_at(buffer, place * (BUFFER as u64 + 100) + 7).await;
                }
            });
        }
        let mut completed = Vec::new();
        for _ in 0..steps {
            reactor.reap(1, Some(Duration::from_micros(90)), &mut completed).unwrap();
        }
        drop(reactor);
        assert_eq!(pool.available(), BUFFERS, "after {steps} steps");
    }
    let reactor = reactor_by(&clock);
    check_balance(&reactor, &file, &pool, "at the end");
}

/// Starts aligned and unaligned writes, by token and awaited, on a reactor that is then dropped.
fn drop_under_load(back_end: BackEnd, queue: QueueKind, completion: CompletionMode) {
    let name = format!("{back_end:?}, {queue}, {completion:?}");
    let folder = tempfile::tempdir().unwrap();
    let clock = VirtualClock::default();
    let made = back_end.make(folder.path(), SIZE, &clock);
    let file = File::from_device(made.device.clone(), FileOptions::default());
    let options =
        || ReactorOptions::new().queue(queue).completion(completion).clock(back_end.clock(&clock));
    const SPAN: u64 = 8192;
    const COUNT: u64 = 60;
    let pool = BufferPool::new(SPAN as usize, COUNT as usize).unwrap();
    let unaligned = |place: u64| place % 3 * 50;
    let filled = |place: u64| {
        let mut buffer = pool.get().expect("as many as places");
        drop(buffer.split_off((SPAN - unaligned(place)) as usize));
        buffer.fill(place as u8 + 1);
        buffer
    };
    let reactor = Reactor::new(options()).unwrap();
    // Futures that are polled outside of it are its own from now on.
    reactor.turn().unwrap();
    let mut awaited: Vec<Pin<Box<dyn Future<Output = OpResult>>>> = Vec::new();
    for place in 0..COUNT {
        let offset = place * SPAN + unaligned(place);
        if place.is_multiple_of(2) {
            reactor.write_at(&file, filled(place), offset, Token::new(place)).unwrap();
        } else {
            let mut future: Pin<Box<dyn Future<Output = OpResult>>> =
                Box::pin(file.write_at(filled(place), offset).outcome());
            assert!(poll_once(future.as_mut()).is_pending(), "{name}");
            awaited.push(future);
        }
    }
    reactor.submit().unwrap();
    drop(reactor);
    for future in awaited {
        let Poll::Ready(outcome) = poll_once(pin!(future)) else {
            panic!("{name}: the reactor has gone without a result");
        };
        assert_eq!(outcome.effect, Effect::Done, "{name}: {outcome:?}");
    }
    assert_eq!(pool.available(), COUNT as usize, "{name}");
    let reactor = Reactor::new(options()).unwrap();
    for place in 0..COUNT {
        reactor
            .read_at(&file, Buffer::zeroed(SPAN as usize), place * SPAN, Token::new(place))
            .unwrap();
    }
    for completed in reap_within(&reactor, COUNT as usize, back_end.timeout()) {
        let place = completed.token().get();
        let buffer = completed.into_buffer();
        let (before, after) = buffer.split_at(unaligned(place) as usize);
        assert!(before.iter().all(|byte| *byte == 0), "{name}, place {place}");
        assert!(after.iter().all(|byte| *byte == place as u8 + 1), "{name}, place {place}");
    }
}

#[test]
fn a_dropped_reactor_finishes_its_requests() {
    for completion in [CompletionMode::Inline, CompletionMode::Worker] {
        for queue in [QueueKind::Ring, QueueKind::Aio, QueueKind::Sync, QueueKind::Threads] {
            drop_under_load(BackEnd::Image, queue, completion);
        }
        for queue in [QueueKind::Sync, QueueKind::Threads] {
            drop_under_load(BackEnd::Memory, queue, completion);
        }
        for back_end in [BackEnd::SlowSim, BackEnd::ShakySim] {
            drop_under_load(back_end, QueueKind::Auto, completion);
        }
    }
}

#[test]
fn a_message_during_the_drop_is_finished() {
    for completion in [CompletionMode::Inline, CompletionMode::Worker] {
        let reactor = Reactor::new(ReactorOptions::new().completion(completion)).unwrap();
        let sim = Sim::new(SimOptions::new(SIZE));
        let file = file_over(&sim);
        let remote = reactor.inner().handle();
        let (send, receive) = std::sync::mpsc::channel();
        let again = remote.clone();
        // The message is posted before the drop and handled during it: the operation that it starts is
        // finished. Later senders do not keep the reactor alive; their send fails.
        let sent = remote.run(move |_| {
            let mut future = Box::pin(file.write_at(pattern(1, 5000), 100).outcome());
            assert!(poll_once(future.as_mut()).is_pending());
            assert!(!again.run(|_| panic!("nothing handles this")), "the reactor is about to go");
            send.send(future).unwrap();
        });
        assert!(sent);
        drop(reactor);
        let mut future = receive.try_recv().expect("the message was handled");
        let Poll::Ready(outcome) = poll_once(future.as_mut()) else {
            panic!("{completion:?}: the reactor has gone without a result");
        };
        assert_eq!((outcome.result, outcome.effect), (Ok(5000), Effect::Done), "{completion:?}");
        assert!(!remote.run(|_| {}), "nothing handles this");
    }
}
