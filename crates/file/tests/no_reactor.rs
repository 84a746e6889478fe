//! Threads without a reactor: their operations run on a background reactor of the process, on any executor.

mod harness;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

use harness::{file_over, pattern};
use parking_lot::Mutex;
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_cache::Cache;
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{File, FileOptions};
use uringfs_reactor::{Counter, Effect, Reactor, ReactorOptions, total};

/// Counters are of the whole process: one test at a time.
static COUNTS: Mutex<()> = Mutex::new(());

/// The waker of a minimal executor.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn memory() -> File {
    File::from_device(Device::new(Memory::new(1 << 20).unwrap()).unwrap(), FileOptions::default())
}

#[test]
fn threads_without_a_reactor_use_the_background_reactor() {
    let _alone = COUNTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let image = File::open(&path, uringfs_device::Access::ReadWrite).unwrap();
    for file in [image, memory(), file_over(&Sim::new(SimOptions::new(1 << 20)))] {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 50;
        let before = total(Counter::Remote);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let file = file.clone();
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let odd = if round % 3 == 0 { 17 } else { 0 };
                        let offset = thread * 65536 + odd;
                        let bytes = pattern(round, 4096);
                        let (written, _) = block_on(file.write_at(bytes, offset));
                        assert_eq!(written, Ok(4096));
                        let (read, found) = block_on(file.read_at(Buffer::zeroed(4096), offset));
                        assert_eq!(read, Ok(4096));
                        assert!(found[..] == pattern(round, 4096)[..]);
                        assert_eq!(block_on(file.sync_data()), Ok(()));
                    }
                });
            }
        });
        assert_eq!(total(Counter::Remote) - before, THREADS * ROUNDS * 3);
    }
}

#[test]
fn a_thread_with_a_reactor_uses_its_own() {
    let _alone = COUNTS.lock();
    let file = memory();
    let before = total(Counter::Remote);
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    reactor.block_on(async {
        let (read, _) = file.read_at(Buffer::zeroed(4096), 0).await;
        assert_eq!(read, Ok(4096));
    });
    assert_eq!(total(Counter::Remote), before);
}

#[test]
fn an_await_beside_an_idle_reactor_uses_the_background_reactor() {
    let _alone = COUNTS.lock();
    let file = memory();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    // It was driven before, but nothing drives it now.
    assert_eq!(reactor.block_on(file.read_at(Buffer::zeroed(4096), 0)).0, Ok(4096));
    reactor.reap(0, None, &mut Vec::new()).unwrap();
    let before = total(Counter::Remote);
    let waiting = block_on(file.read_at(Buffer::zeroed(4096), 0));
    assert_eq!(waiting.0, Ok(4096));
    assert_eq!(total(Counter::Remote) - before, 1);
}

#[test]
fn an_await_beside_a_reactor_of_a_foreign_loop_uses_it() {
    let _alone = COUNTS.lock();
    let file = memory();
    for by_turn in [false, true] {
        let _idle = Reactor::new(ReactorOptions::default()).unwrap();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        if by_turn {
            reactor.turn().unwrap();
        } else {
            reactor.fd().unwrap();
        }
        let before = total(Counter::Remote);
        let mut read = pin!(file.read_at(Buffer::zeroed(4096), 0));
        let outcome = loop {
            match read.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
                Poll::Ready(outcome) => break outcome,
                Poll::Pending => reactor.turn().unwrap(),
            }
        };
        assert_eq!(outcome.0, Ok(4096), "by turn: {by_turn}");
        assert_eq!(total(Counter::Remote), before, "by turn: {by_turn}");
    }
}

#[test]
fn dropped_and_cancelled_operations_return_their_memory() {
    let _alone = COUNTS.lock();
    let file = memory();
    let pool = BufferPool::new(4096, 4).unwrap();
    for round in 0..200u32 {
        let buffer = loop {
            // Memory of a dropped operation comes back when the reactor has finished it.
            match pool.get() {
                Some(buffer) => break buffer,
                None => assert_eq!(block_on(file.sync_data()), Ok(())),
            }
        };
        let mut op = file.write_at(buffer, if round.is_multiple_of(2) { 0 } else { 5 });
        let polled = pin!(&mut op).poll(&mut Context::from_waker(std::task::Waker::noop()));
        if polled.is_ready() {
            continue;
        }
        if round.is_multiple_of(3) {
            drop(op);
            continue;
        }
        op.cancel();
        let outcome = block_on(op.outcome());
        match outcome.result {
            Ok(4096) => assert_eq!(outcome.effect, Effect::Done),
            Err(Errno::CANCELED) => assert_ne!(outcome.effect, Effect::Done),
            other => panic!("round {round}: {other:?}"),
        }
    }
    // Dropped operations end when the reactor has finished them.
    let deadline = Instant::now() + Duration::from_secs(20);
    while pool.available() < 4 {
        assert!(Instant::now() < deadline, "only {} of 4 have come back", pool.available());
        assert_eq!(block_on(file.sync_data()), Ok(()));
    }
}

#[test]
fn errors_are_returned_and_a_removed_device_refuses() {
    let _alone = COUNTS.lock();
    let sim = Sim::new(SimOptions::new(1 << 20));
    let file = file_over(&sim);
    sim.fail_nth(Op::Write, 1, Errno::IO);
    let outcome = block_on(file.write_at(pattern(1, 4096), 0).outcome());
    assert_eq!((outcome.result, outcome.effect), (Err(Errno::IO), Effect::Unknown));
    file.device().remove();
    let outcome = block_on(file.write_at(pattern(1, 4096), 0).outcome());
    assert_eq!((outcome.result, outcome.effect), (Err(Errno::NODEV), Effect::NotStarted));
}

#[test]
fn a_future_may_move_between_threads() {
    let _alone = COUNTS.lock();
    let file = memory();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    // Started on this thread's reactor, awaited on another thread.
    let mut ops: Vec<_> =
        (0..20).map(|at| file.write_at(pattern(at, 5000), at * 8192 + 1)).collect();
    reactor.block_on(std::future::poll_fn(|context| {
        for op in &mut ops {
            let _ = std::pin::Pin::new(op).poll(context).map(|(_, written)| {
                panic!("it takes at least a turn: {written:?}");
            });
        }
        Poll::Ready(())
    }));
    let waiter = std::thread::spawn(move || {
        for op in ops {
            assert_eq!(block_on(op).0, Ok(5000));
        }
    });
    while !waiter.is_finished() {
        let mut completed = Vec::new();
        reactor.reap(usize::MAX, None, &mut completed).unwrap();
        std::thread::yield_now();
    }
    waiter.join().unwrap();
}

#[test]
fn an_operation_that_has_ended_panics_instead_of_waiting_for_ever() {
    let _alone = COUNTS.lock();
    fn assert_panics(again: impl FnOnce()) {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(again)).unwrap_err();
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        assert_eq!(text, Some("it was polled after its end"));
    }
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let direct = memory();
    for file in [direct.buffered(&Cache::new(1 << 20)), direct] {
        for _ in 0..2 {
            // From the second round on the buffered file answers from its cache.
            let mut read = file.read_at(Buffer::zeroed(4096), 0);
            assert_eq!(reactor.block_on(&mut read).0, Ok(4096));
            assert_panics(|| drop(reactor.block_on(&mut read)));
            assert_panics(|| drop(read.wait()));
            let mut read = file.read_at(Buffer::zeroed(4096), 0);
            assert_eq!(block_on(&mut read).0, Ok(4096));
            assert_panics(|| drop(block_on(&mut read)));
        }
    }
    let mut task = reactor.spawn(async { 7 });
    assert_eq!(reactor.block_on(&mut task), Ok(7));
    assert_panics(|| assert!(reactor.block_on(task).is_err()));
}
