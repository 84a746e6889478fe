//! Tasks that misbehave: they wake themselves again and again, panic, or call back into their reactor. Everything else on
//! the reactor continues.

mod tier;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tier::{Tier, on_every_tier};
use uringfs_buffer::Buffer;
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::backend::memory::Memory;
use uringfs_device::queue::QueueKind;
use uringfs_device::{Device, Durability, Errno, Op, Payload};
use uringfs_reactor::{
    JoinError, Operation, Reactor, ReactorOptions, RequestSpec, Requester, Token, current,
    quiescence,
};

const MS: Duration = Duration::from_millis(1);

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

/// Never ends, and wakes itself at each poll.
async fn wake_forever() {
    poll_fn(|context| {
        context.waker().wake_by_ref();
        Poll::<()>::Pending
    })
    .await;
}

fn is_readable(reactor: &Reactor) -> bool {
    let fd = reactor.fd().unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

/// The message of the panic in `act`.
fn panic_of(act: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(act)).expect_err("act must panic");
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).expect("the panic has a message")
}

#[test]
fn a_self_waking_task_starves_neither_block_on_nor_timers() {
    on_every_tier("a_self_waking_task_starves_neither_block_on_nor_timers", |_| {
        let reactor = reactor();
        reactor.spawn(wake_forever());
        reactor.block_on(reactor.sleep(MS));
    });
}

#[test]
fn a_self_waking_task_does_not_block_reap() {
    on_every_tier("a_self_waking_task_does_not_block_reap", |_| {
        let (device, reactor) = (Device::new(Memory::new(1 << 20).unwrap()).unwrap(), reactor());
        reactor.spawn(wake_forever());
        let mut completed = Vec::new();
        reactor.reap(0, None, &mut completed).unwrap();
        start(&reactor, &device, 7, async |operation, device| {
            read(&operation, &device, 0).await;
            operation.end(Payload::Length(0), Ok(1));
        });
        reactor.reap(1, Some(Duration::from_secs(20)), &mut completed).unwrap();
        assert_eq!(completed.pop().map(|completed| completed.token()), Some(Token::new(7)));
        let asleep = start_asleep(&reactor, &device);
        reactor.reap(1, Some(MS), &mut completed).unwrap();
        assert!(completed.is_empty(), "the operation must not end yet");
        asleep.set(true);
    });
}

#[test]
fn a_turn_ends_despite_a_self_waking_task_and_another_is_due() {
    on_every_tier("a_turn_ends_despite_a_self_waking_task_and_another_is_due", |_| {
        let reactor = reactor();
        reactor.spawn(wake_forever());
        reactor.turn().unwrap();
        reactor.fd().unwrap();
        for _ in 0..3 {
            reactor.turn().unwrap();
            assert!(is_readable(&reactor));
        }
    });
}

#[test]
fn a_task_runs_with_its_own_reactor_as_the_current_one() {
    let _first = reactor();
    for by_turn in [false, true] {
        let second = reactor();
        if by_turn {
            second.fd().unwrap();
        }
        let polled = Rc::new(RefCell::new(Vec::new()));
        let (inner, polls) = (second.inner().clone(), polled.clone());
        second.spawn(poll_fn(move |context| {
            let is_own = current().is_some_and(|current| Rc::ptr_eq(&current, &inner));
            polls.borrow_mut().push(is_own);
            context.waker().wake_by_ref();
            if polls.borrow().len() < 3 { Poll::Pending } else { Poll::Ready(()) }
        }));
        while polled.borrow().len() < 3 {
            second.reap(0, None, &mut Vec::new()).unwrap();
        }
        assert_eq!(*polled.borrow(), [true; 3], "by turn: {by_turn}");
    }
}

#[test]
fn a_panicking_task_is_dropped_and_the_others_continue() {
    on_every_tier("a_panicking_task_is_dropped_and_the_others_continue", |_| {
        let reactor = reactor();
        let (left, ended) = (Rc::new(RefCell::new(None::<Waker>)), Rc::new(Cell::new(0)));
        let (its, held) = (left.clone(), ended.clone());
        reactor.spawn(async move {
            let _held = held;
            poll_fn(|context| match its.replace(Some(context.waker().clone())) {
                None => Poll::<()>::Pending,
                Some(_) => panic!("a planted panic"),
            })
            .await;
        });
        for _ in 0..3 {
            let ended = ended.clone();
            reactor.spawn(async move {
                let mut polls = 0;
                poll_fn(|context| {
                    context.waker().wake_by_ref();
                    polls += 1;
                    if polls > 9 { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                ended.set(ended.get() + 1);
            });
        }
        left.borrow().as_ref().expect("the task was polled").wake_by_ref();
        let panicked = || reactor.block_on(reactor.sleep(MS));
        assert_eq!(panic_of(panicked), "a planted panic");
        assert_eq!(Rc::strong_count(&ended), 1 + 3, "the panicking task was not dropped");
        left.borrow().as_ref().expect("the waker was kept").wake_by_ref();
        reactor.block_on(reactor.sleep(MS));
        assert_eq!(ended.get(), 3);
    });
}

#[test]
fn a_join_handle_returns_the_output_of_its_task() {
    let reactor = reactor();
    let at_once = reactor.spawn(async { "at once".to_owned() });
    let later = reactor.spawn(async {
        wake_once().await;
        7
    });
    let handle = reactor.spawn(async move { later.await.map(|number| number + 1) });
    assert_eq!(reactor.block_on(at_once).unwrap(), "at once");
    assert_eq!(reactor.block_on(handle), Ok(Ok(8)));
}

#[test]
fn another_thread_may_await_a_task() {
    let reactor = reactor();
    let handle = reactor.spawn(async {
        wake_once().await;
        7
    });
    let waiting = std::thread::spawn(move || uringfs_sync::park_on(handle));
    reactor.block_on(reactor.sleep(MS));
    assert_eq!(waiting.join().unwrap(), Ok(7));
}

#[test]
fn a_task_continues_without_its_handle() {
    let reactor = reactor();
    let output = Rc::new(Cell::new(0));
    let its = output.clone();
    drop(reactor.spawn(async move {
        wake_once().await;
        its.set(7);
        its
    }));
    reactor.block_on(reactor.sleep(MS));
    assert_eq!((output.get(), Rc::strong_count(&output)), (7, 1));
}

#[test]
fn a_join_handle_says_why_there_is_no_output() {
    let reactor = reactor();
    let panicking = reactor.spawn(async {
        wake_once().await;
        if true {
            panic!("a planted panic");
        }
    });
    let endless = reactor.spawn(wake_forever());
    assert_eq!(panic_of(|| reactor.block_on(reactor.sleep(MS))), "a planted panic");
    assert_eq!(reactor.block_on(panicking), Err(JoinError::Panicked));
    drop(reactor);
    assert_eq!(uringfs_sync::park_on(endless), Err(JoinError::ReactorDropped));
}

#[test]
fn after_a_turn_that_panics_another_turn_is_due() {
    on_every_tier("after_a_turn_that_panics_another_turn_is_due", |_| {
        let reactor = reactor();
        reactor.fd().unwrap();
        let polled = Rc::new(Cell::new(false));
        let its = polled.clone();
        reactor.spawn(async move {
            wake_once().await;
            panic!("a planted panic");
        });
        reactor.spawn(async move {
            wake_once().await;
            its.set(true);
        });
        assert_eq!(panic_of(|| reactor.turn().unwrap()), "a planted panic");
        assert!(is_readable(&reactor), "another turn must be due");
        reactor.turn().unwrap();
        assert!(polled.get());
        assert!(!is_readable(&reactor));
        // The reactor is not inside a turn any more.
        let task = Rc::new(RefCell::new(None::<Waker>));
        let its = task.clone();
        reactor.spawn(poll_fn(move |context| {
            let is_first = its.replace(Some(context.waker().clone())).is_none();
            if is_first { Poll::Pending } else { Poll::Ready(()) }
        }));
        reactor.turn().unwrap();
        task.borrow().as_ref().expect("the task was polled").wake_by_ref();
        assert!(is_readable(&reactor));
    });
}

/// Wakes itself once, and ends at the second poll.
async fn wake_once() {
    let mut polls = 0;
    poll_fn(|context| {
        polls += 1;
        context.waker().wake_by_ref();
        if polls > 1 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn nested_block_on_panics_and_the_outer_one_ends() {
    on_every_tier("nested_block_on_panics_and_the_outer_one_ends", |_| {
        let reactor = Rc::new(reactor());
        let weak = Rc::downgrade(&reactor);
        let refused = Rc::new(RefCell::new(String::new()));
        let text = refused.clone();
        reactor.spawn(async move {
            wake_once().await;
            let reactor = weak.upgrade().expect("the reactor runs this task");
            *text.borrow_mut() = panic_of(|| reactor.block_on(async {}));
        });
        reactor.block_on(async {
            let inner = panic_of(|| reactor.block_on(async {}));
            assert!(inner.contains("block_on"), "{inner}");
            reactor.sleep(MS).await;
        });
        assert!(refused.borrow().contains("block_on"), "{}", refused.borrow());
        // A block_on whose future panicked has ended.
        panic_of(|| reactor.block_on(async { panic!("a planted panic") }));
        reactor.block_on(reactor.sleep(MS));
    });
}

#[test]
fn a_task_that_turns_its_own_reactor_gets_edeadlk() {
    on_every_tier("a_task_that_turns_its_own_reactor_gets_edeadlk", |_| {
        let reactor = Rc::new(reactor());
        let (weak, is_done) = (Rc::downgrade(&reactor), Rc::new(Cell::new(false)));
        let done = is_done.clone();
        reactor.spawn(async move {
            for _ in 0..2 {
                // The task is queued while it calls.
                wake_once().await;
                let reactor = weak.upgrade().expect("the reactor runs this task");
                poll_fn(|context| {
                    context.waker().wake_by_ref();
                    assert_eq!(reactor.turn(), Err(Errno::DEADLK));
                    assert_eq!(reactor.reap(0, None, &mut Vec::new()), Err(Errno::DEADLK));
                    assert_eq!(reactor.reap(1, None, &mut Vec::new()), Err(Errno::DEADLK));
                    Poll::Ready(())
                })
                .await;
            }
            done.set(true);
        });
        reactor.block_on(reactor.sleep(MS));
        assert!(is_done.get());
    });
}

/// Starts an operation that completes with `token`.
fn start<F: Future<Output = ()> + 'static>(
    reactor: &Reactor,
    device: &Device,
    token: u64,
    body: impl FnOnce(Operation, Device) -> F,
) {
    let inner = reactor.inner();
    let permit = inner.admit_operation(device.core()).unwrap();
    let requester = Requester::Token(Token::new(token));
    let device = device.clone();
    inner.start_operation(permit, requester, None, |operation| body(operation, device));
}

/// Starts an operation that ends when the returned cell is set.
fn start_asleep(reactor: &Reactor, device: &Device) -> Rc<Cell<bool>> {
    let may_end = Rc::new(Cell::new(false));
    let its = may_end.clone();
    start(reactor, device, 8, async move |operation: Operation, _| {
        while !its.get() {
            operation.sleep(MS).await;
        }
        operation.end(Payload::Length(0), Ok(0));
    });
    may_end
}

async fn read(operation: &Operation, device: &Device, address: u64) {
    let spec = RequestSpec { op: Op::Read, durability: Durability::Volatile, address };
    let payload = Payload::Buffer(Buffer::zeroed(512));
    let request = operation.request(device.core(), spec, payload).await;
    assert_eq!(request.result(), Ok(512));
}

#[test]
fn a_panicking_operation_returns_eio_and_the_others_end() {
    on_every_tier("a_panicking_operation_returns_eio_and_the_others_end", |_| {
        let (device, reactor) = (Device::new(Memory::new(1 << 20).unwrap()).unwrap(), reactor());
        let mut completed = Vec::new();
        // In either order, when their requests complete together.
        for panicking in [0, 1] {
            for token in 0..4 {
                start(&reactor, &device, token, async move |operation, device| {
                    read(&operation, &device, token * 512).await;
                    assert_ne!(token, panicking, "a planted panic");
                    operation.end(Payload::Length(0), Ok(token));
                });
            }
            let text = panic_of(|| {
                while completed.len() < 4 {
                    reactor.reap(1, None, &mut completed).unwrap();
                }
            });
            assert!(text.contains("a planted panic"), "{text}");
            while completed.len() < 4 {
                reactor.reap(1, None, &mut completed).unwrap();
            }
            completed.sort_by_key(|completed| completed.token());
            for (token, completed) in completed.drain(..).enumerate() {
                let token = token as u64;
                let wanted =
                    if token == panicking { Err(Errno::NOTRECOVERABLE) } else { Ok(token) };
                assert_eq!(completed.result(), wanted);
            }
        }
        let domain = quiescence(device.index());
        assert!(domain.passed(domain.retire()));
    });
}

#[test]
fn a_drop_ends_although_an_operation_panics_during_it() {
    on_every_tier("a_drop_ends_although_an_operation_panics_during_it", |_| {
        let (device, reactor) = (Device::new(Memory::new(1 << 20).unwrap()).unwrap(), reactor());
        let ended = Rc::new(Cell::new(0));
        for token in 0..4 {
            let ended = ended.clone();
            start(&reactor, &device, token, async move |operation, device| {
                read(&operation, &device, token * 512).await;
                assert_ne!(token, 0, "a planted panic");
                ended.set(ended.get() + 1);
                operation.end(Payload::Length(0), Ok(token));
            });
        }
        let text = panic_of(|| drop(reactor));
        assert!(text.contains("a planted panic"), "{text}");
        assert_eq!(ended.get(), 3);
        let domain = quiescence(device.index());
        assert!(domain.passed(domain.retire()));
    });
}

/// Starts an operation that completes with `token` when another operation releases `held`, like a range lock.
fn start_waiting(reactor: &Reactor, device: &Device, token: u64, held: &Held) {
    let held = held.clone();
    start(reactor, device, token, async move |mut operation: Operation, _| {
        let is_free = poll_fn(|context| {
            held.waiter.replace(Some(context.waker().clone()));
            if held.is_free.get() { Poll::Ready(()) } else { Poll::Pending }
        });
        let waited = operation.wait_outside_epoch(is_free).await;
        operation.end(Payload::Length(0), waited.map(|()| 0));
    });
}

/// Starts an operation that holds a lock until its read and a sleep have ended.
fn start_holding(reactor: &Reactor, device: &Device, token: u64) -> Held {
    let held = Held::default();
    let its = held.clone();
    start(reactor, device, token, async move |operation, device| {
        read(&operation, &device, 0).await;
        operation.sleep(5 * MS).await;
        its.is_free.set(true);
        its.waiter.take().inspect(Waker::wake_by_ref);
        operation.end(Payload::Length(0), Ok(0));
    });
    held
}

/// A lock that one operation holds and another one waits for.
#[derive(Clone, Default)]
struct Held {
    is_free: Rc<Cell<bool>>,
    waiter: Rc<RefCell<Option<Waker>>>,
}

#[test]
fn a_drop_turns_the_sibling_that_its_operation_waits_for() {
    on_every_tier("a_drop_turns_the_sibling_that_its_operation_waits_for", |_| {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let (first, second) = (reactor(), reactor());
        let held = start_holding(&second, &device, 1);
        start_waiting(&first, &device, 2, &held);
        drop(first);
        assert!(held.is_free.get());
        let mut completed = Vec::new();
        second.reap(1, None, &mut completed).unwrap();
        assert_eq!(completed.pop().map(|completed| completed.token()), Some(Token::new(1)));
        // The other way round, and inside a future that the sibling runs.
        let (first, second) = (reactor(), second);
        let held = start_holding(&second, &device, 3);
        start_waiting(&first, &device, 4, &held);
        second.block_on(async { drop(first) });
        assert!(held.is_free.get());
    });
}

#[test]
fn a_drop_inside_a_siblings_task_cancels_its_waiting_operations() {
    on_every_tier("a_drop_inside_a_siblings_task_cancels_its_waiting_operations", |_| {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let (first, second) = (reactor(), reactor());
        let held = start_holding(&second, &device, 1);
        start_waiting(&first, &device, 2, &held);
        let is_gone = Rc::new(Cell::new(false));
        let its = is_gone.clone();
        second.spawn(async move {
            drop(first);
            its.set(true);
        });
        assert!(is_gone.get() && !held.is_free.get());
        let mut completed = Vec::new();
        second.reap(1, None, &mut completed).unwrap();
        assert!(held.is_free.get());
    });
}

#[test]
fn requests_that_a_drop_cannot_finish_hold_their_epoch() {
    on_every_tier("requests_that_a_drop_cannot_finish_hold_their_epoch", |tier| {
        if tier != Tier::Ring {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let made = ImageFile::create(&folder.path().join("a"), 1 << 20, Allocation::Written);
        let device = Device::new(made.unwrap()).unwrap();
        let options = ReactorOptions::new().queue(QueueKind::Ring);
        let reactor = Reactor::new(options).unwrap();
        start(&reactor, &device, 1, async move |operation, device| {
            read(&operation, &device, 0).await;
            operation.end(Payload::Length(0), Ok(1));
        });
        let domain = quiescence(device.index());
        let epoch = domain.retire();
        tier::refuse(&[tier::ENTER], Errno::PERM);
        drop(reactor);
        assert!(!domain.passed(epoch), "the kernel has not reported the end of the request");
        // Another device does not get its index either, and with the index its domain.
        let index = device.index();
        drop(device);
        let other = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        assert_ne!(other.index(), index);
    });
}

#[test]
fn a_reap_without_wait_submits_to_a_devices_own_queue() {
    let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
    let options = ReactorOptions::new().queue(QueueKind::Sync);
    let reactor = Reactor::new(options).unwrap();
    start(&reactor, &device, 1, async move |operation, device| {
        read(&operation, &device, 0).await;
        operation.end(Payload::Length(0), Ok(1));
    });
    let mut completed = Vec::new();
    reactor.reap(0, None, &mut completed).unwrap();
    assert_eq!(completed.len(), 1);
}

#[test]
fn requests_of_a_panicked_operation_hold_their_epoch() {
    on_every_tier("requests_of_a_panicked_operation_hold_their_epoch", |_| {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let options = ReactorOptions::new().queue(QueueKind::Sync);
        let reactor = Reactor::new(options).unwrap();
        let text = panic_of(|| {
            start(&reactor, &device, 1, async move |operation, device| {
                let (mut one, mut other) =
                    (pin!(read(&operation, &device, 0)), pin!(read(&operation, &device, 512)));
                poll_fn(|context| {
                    assert!(one.as_mut().poll(context).is_pending());
                    assert!(other.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                panic!("a planted panic");
            });
        });
        assert_eq!(text, "a planted panic");
        let domain = quiescence(device.index());
        let epoch = domain.retire();
        assert!(!domain.passed(epoch), "two requests are in flight");
        let mut completed = Vec::new();
        reactor.reap(1, None, &mut completed).unwrap();
        assert_eq!(completed.pop().map(|it| it.result()), Some(Err(Errno::NOTRECOVERABLE)));
        reactor.reap(0, None, &mut completed).unwrap();
        assert!(domain.passed(epoch));
    });
}
