//! Timers, with the machine's clock and with a virtual one.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use uringfs_device::backend::memory::Memory;
use uringfs_device::{Clock, Device, Payload, VirtualClock};
use uringfs_reactor::{Reactor, ReactorOptions, Requester, Token};

const MS: Duration = Duration::from_millis(1);

fn by_virtual_clock() -> (Rc<Reactor>, Clock) {
    let clock = Clock::Virtual(VirtualClock::default());
    let options = ReactorOptions::new().clock(clock.clone());
    (Rc::new(Reactor::new(options).unwrap()), clock)
}

#[test]
fn a_sleep_takes_at_least_its_time() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    for time in [Duration::ZERO, Duration::from_nanos(1), MS, 5 * MS] {
        let begin = Instant::now();
        reactor.block_on(reactor.sleep(time));
        assert!(begin.elapsed() >= time);
    }
}

thread_local! {
    static WAKER_REACTOR: Reactor = Reactor::new(ReactorOptions::default()).unwrap();
}

/// A user's waker that calls into its reactor when it is dropped.
struct CallsBack;

impl Wake for CallsBack {
    fn wake(self: Arc<Self>) {}
}

impl Drop for CallsBack {
    fn drop(&mut self) {
        WAKER_REACTOR.with(|reactor| reactor.counters().list());
    }
}

#[test]
fn a_wakers_drop_may_call_back_into_the_reactor() {
    WAKER_REACTOR.with(|reactor| {
        let mut sleep = Box::pin(reactor.sleep(3600 * 1000 * MS));
        for _ in 0..2 {
            let waker = Waker::from(Arc::new(CallsBack));
            assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(sleep);
    });
}

#[test]
fn virtual_time_passes_exactly_and_at_once() {
    let (reactor, clock) = by_virtual_clock();
    let (begin, real) = (clock.now(), Instant::now());
    let year = Duration::from_secs(365 * 24 * 3600);
    reactor.block_on(async {
        reactor.sleep(year).await;
        assert_eq!(clock.now() - begin, year);
        reactor.sleep(Duration::from_nanos(1)).await;
        assert_eq!(clock.now() - begin, year + Duration::from_nanos(1));
    });
    assert!(real.elapsed() < Duration::from_secs(60));
}

#[test]
fn sleepers_wake_in_the_order_of_their_times() {
    let (reactor, clock) = by_virtual_clock();
    let begin = clock.now();
    let woken = Rc::new(RefCell::new(Vec::new()));
    for number in [5u32, 1, 4, 2, 3, 1, 5] {
        let (reactor_of_task, woken) = (Rc::downgrade(&reactor), woken.clone());
        let clock = clock.clone();
        reactor.spawn(async move {
            let reactor = reactor_of_task.upgrade().expect("the reactor runs this task");
            let sleep = reactor.sleep(number * MS);
            sleep.await;
            assert_eq!(clock.now() - begin, number * MS);
            woken.borrow_mut().push(number);
        });
    }
    reactor.block_on(reactor.sleep(6 * MS));
    assert_eq!(*woken.borrow(), [1, 1, 2, 3, 4, 5, 5]);
}

#[test]
fn a_dropped_sleep_wakes_nothing_and_moves_no_clock() {
    let (reactor, clock) = by_virtual_clock();
    let begin = clock.now();
    reactor.block_on(async {
        for _ in 0..1000 {
            let mut long = pin!(reactor.sleep(3600 * 1000 * MS));
            poll_fn(|context| {
                assert!(long.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        reactor.sleep(MS).await;
    });
    assert_eq!(clock.now() - begin, MS);
    // With a dropped sleep still in the queue, the clock would jump to it.
    let mut completed = Vec::new();
    reactor.reap(1, Some(MS), &mut completed).unwrap();
    assert!(clock.now() - begin <= 2 * MS);
}

#[test]
fn ten_thousand_sleepers_all_wake() {
    let (reactor, clock) = by_virtual_clock();
    let begin = clock.now();
    let woken = Rc::new(RefCell::new(0));
    for number in 0..10_000u32 {
        let (reactor_of_task, woken) = (Rc::downgrade(&reactor), woken.clone());
        reactor.spawn(async move {
            let reactor = reactor_of_task.upgrade().expect("the reactor runs this task");
            reactor.sleep(number.wrapping_mul(7919) % 100 * MS).await;
            *woken.borrow_mut() += 1;
        });
    }
    reactor.block_on(reactor.sleep(100 * MS));
    assert_eq!((*woken.borrow(), clock.now() - begin), (10_000, 100 * MS));
}

#[test]
fn a_timeout_of_reap_with_nothing_in_flight_does_not_wait() {
    let (reactor, clock) = by_virtual_clock();
    let begin = clock.now();
    let mut completed = Vec::new();
    reactor.reap(1, Some(MS), &mut completed).unwrap();
    assert_eq!(clock.now(), begin, "reap waits for no more than is in flight");
}

#[test]
fn the_longest_duration_does_not_overflow() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    reactor.block_on(async {
        let mut sleep = pin!(reactor.sleep(Duration::MAX));
        let mut short = pin!(reactor.sleep(MS));
        poll_fn(|context| {
            assert!(sleep.as_mut().poll(context).is_pending());
            short.as_mut().poll(context)
        })
        .await;
    });
    let device = Device::new(Memory::new(4096).unwrap()).unwrap();
    let inner = reactor.inner();
    let permit = inner.admit_operation(device.core()).unwrap();
    let requester = Requester::Token(Token::new(1));
    inner.start_operation(permit, requester, None, async |operation| {
        operation.sleep(MS).await;
        operation.end(Payload::Length(0), Ok(0));
    });
    let mut completed = Vec::new();
    reactor.reap(1, Some(Duration::MAX), &mut completed).unwrap();
    assert_eq!(completed.len(), 1);
}
