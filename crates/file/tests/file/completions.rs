//! Completions taken one at a time: each comes once, what is not taken stays, and the loop may start new operations.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use uringfs_buffer::Buffer;
use uringfs_device::backend::null::Null;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Device, Errno};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{Counter, Reactor, ReactorOptions, Token};

const BLOCKS: u64 = 256;

fn null_file() -> File {
    File::from_device(Device::new(Null::new(BLOCKS * 4096)).unwrap(), FileOptions::default())
}

fn reactor(queue: QueueKind) -> Reactor {
    Reactor::new(ReactorOptions::new().queue(queue)).unwrap()
}

fn read(reactor: &Reactor, file: &File, buffer: Buffer, number: u64) {
    reactor.read_at(file, buffer, number % BLOCKS * 4096, Token::new(number)).unwrap();
}

#[test]
fn each_completion_comes_once_while_the_loop_starts_more() {
    const READS: u64 = 1000;
    for queue in [QueueKind::Ring, QueueKind::Sync, QueueKind::Threads] {
        let (reactor, file) = (reactor(queue), null_file());
        let mut times = vec![0; READS as usize];
        (0..16).for_each(|number| read(&reactor, &file, Buffer::zeroed(4096), number));
        let (mut started, mut ended) = (16, 0);
        while ended < READS {
            for completion in reactor.completions(1, None).unwrap() {
                assert_eq!(completion.result(), Ok(4096));
                times[completion.token().get() as usize] += 1;
                ended += 1;
                if started < READS {
                    read(&reactor, &file, completion.into_buffer(), started);
                    started += 1;
                }
            }
        }
        assert!(times.iter().all(|times| *times == 1), "{queue}: {times:?}");
        assert_eq!(reactor.completions(1, None).unwrap().count(), 0);
    }
}

#[test]
fn what_is_not_taken_stays_for_the_next_call() {
    for queue in [QueueKind::Ring, QueueKind::Sync, QueueKind::Threads] {
        let (reactor, file) = (reactor(queue), null_file());
        (0..8).for_each(|number| read(&reactor, &file, Buffer::zeroed(4096), number));
        let mut tokens = Vec::new();
        while tokens.len() < 8 {
            let missing = 8 - tokens.len();
            let some = reactor.completions(missing, None).unwrap().take(3);
            tokens.extend(some.map(|completion| completion.token().get()));
        }
        tokens.sort_unstable();
        assert_eq!(tokens, Vec::from_iter(0..8), "{queue}");
    }
}

/// The ring completes requests of both, and the caller gets its own.
#[test]
fn operations_that_are_awaited_go_on_during_the_iteration() {
    let (reactor, file) = (reactor(QueueKind::Ring), null_file());
    let awaited = Rc::new(Cell::new(0));
    for _ in 0..4 {
        let (file, awaited) = (file.clone(), awaited.clone());
        reactor.spawn(async move {
            let buffers = vec![Buffer::zeroed(4096), Buffer::zeroed(4096)];
            assert_eq!(file.read_vectored_at(buffers, 0).await.0, Ok(8192));
            awaited.set(awaited.get() + 1);
        });
    }
    let mut tokens = 0;
    for number in 0..1000 {
        read(&reactor, &file, Buffer::zeroed(4096), number);
        tokens += reactor.completions(1, None).unwrap().count();
    }
    assert_eq!((tokens, awaited.get()), (1000, 4));
}

#[test]
fn a_read_on_the_ring_is_taken_where_the_kernel_has_put_it() {
    let (reactor, file) = (reactor(QueueKind::Ring), null_file());
    let read_all = || {
        (0..32).for_each(|number| read(&reactor, &file, Buffer::zeroed(4096), number));
        assert_eq!(reactor.completions(32, None).unwrap().count(), 32);
        reactor.counters().get(Counter::Enters)
    };
    // The first batch also attaches the device and arms the mailbox.
    let before = read_all();
    assert_eq!(read_all() - before, 1, "one system call for the batch");
}

#[test]
fn errors_and_short_transfers_are_completed() {
    let sim = Sim::new(SimOptions::new(1 << 20).seed(7));
    sim.inject(Rule::new(None, When::OneIn(3), Fault::Error(Errno::IO)));
    sim.inject(Rule::new(None, When::OneIn(5), Fault::Short));
    let file = File::from_device(Device::new(sim).unwrap(), FileOptions::default());
    let reactor = Reactor::new(ReactorOptions::new()).unwrap();
    let (mut good, mut failed) = (0, 0);
    (0..300).for_each(|number| read(&reactor, &file, Buffer::zeroed(4096), number));
    while good + failed < 300 {
        for completion in reactor.completions(1, None).unwrap() {
            match completion.result() {
                Ok(4096) => good += 1,
                Err(Errno::IO) => failed += 1,
                other => panic!("seed 7: {other:?}"),
            }
        }
    }
    assert!(good > 100 && failed > 50, "seed 7: {good} and {failed}");
}

#[test]
fn tasks_get_an_error() {
    let reactor = Rc::new(reactor(QueueKind::Ring));
    let inner = Rc::downgrade(&reactor);
    let refused = reactor.spawn(async move {
        let reactor = inner.upgrade().expect("the reactor runs this task");
        reactor.completions(0, None).err()
    });
    assert_eq!(reactor.block_on(refused).unwrap(), Some(Errno::DEADLK));
}

/// The first completion is taken at each call, and the others wait.
#[test]
fn operations_go_on_if_few_completions_are_taken() {
    let (reactor, file) = (reactor(QueueKind::Ring), null_file());
    let is_read = Rc::new(Cell::new(false));
    // The poll on the mailbox is armed and a batch is in flight before the operation begins.
    (0..4).for_each(|number| read(&reactor, &file, Buffer::zeroed(4096), number));
    assert!(reactor.completions(1, None).unwrap().take(1).next().is_some());
    let (its_file, done) = (file.clone(), is_read.clone());
    reactor.spawn(async move {
        let buffers = vec![Buffer::zeroed(4096), Buffer::zeroed(4096)];
        assert_eq!(its_file.read_vectored_at(buffers, 0).await.0, Ok(8192));
        done.set(true);
    });
    for number in 4..1000 {
        read(&reactor, &file, Buffer::zeroed(4096), number);
        assert!(reactor.completions(1, None).unwrap().take(1).next().is_some());
    }
    assert!(is_read.get());
}

/// On a device that completes at once, each submission has new completions.
#[test]
fn an_iteration_ends_though_each_completion_starts_a_read() {
    const DEPTH: u64 = 400;
    let (reactor, file) = (reactor(QueueKind::Ring), null_file());
    (0..DEPTH).for_each(|number| read(&reactor, &file, Buffer::zeroed(4096), number));
    let mut taken = 0;
    for completion in reactor.completions(1, None).unwrap() {
        let number = completion.token().get();
        read(&reactor, &file, completion.into_buffer(), number);
        taken += 1;
        assert!(taken <= DEPTH, "it goes on");
    }
    assert!(taken > 0);
    assert_eq!(reactor.completions(DEPTH as usize, None).unwrap().count(), DEPTH as usize);
}

#[test]
fn a_reap_that_does_not_wait_sees_completions_while_a_timer_runs() {
    for timeout in [None, Some(Duration::ZERO)] {
        let (reactor, file) = (reactor(QueueKind::Ring), null_file());
        let local = reactor.local().clone();
        let timer = reactor.spawn(async move { local.sleep(Duration::from_secs(1000)).await });
        read(&reactor, &file, Buffer::zeroed(4096), 0);
        let (mut completed, min) = (Vec::new(), usize::from(timeout.is_some()));
        while completed.is_empty() {
            reactor.reap(min, timeout, &mut completed).unwrap();
        }
        drop(timer);
    }
}

#[test]
fn awaited_operations_beyond_the_depth_wait_for_room() {
    for queue in [QueueKind::Ring, QueueKind::Sync, QueueKind::Threads] {
        let options = ReactorOptions::new().queue(queue).depth(4);
        let (reactor, file) = (Reactor::new(options).unwrap(), null_file());
        reactor.block_on(async {
            // Those that do not begin with a block are not for the fast path.
            let read = |number: u64| file.read_at(Buffer::zeroed(4096), number * 4096 + number % 2);
            let reads: Vec<_> = (0..64).map(|number| reactor.spawn(read(number))).collect();
            for read in reads {
                assert_eq!(read.await.unwrap().0, Ok(4096), "{queue}");
            }
        });
    }
}
