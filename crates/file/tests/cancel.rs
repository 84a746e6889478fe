//! Cancels and deadlines: each operation ends once, and reports its effect.

mod harness;

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use harness::{Random, file_over, join_all, pattern, reactor_by};
use parking_lot::{Mutex, MutexGuard};
use uringfs_buffer::Buffer;
use uringfs_device::backend::null::Null;
use uringfs_device::backend::sim::{Sim, SimOptions, WriteCache};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Clock, Device, Errno, Payload, VirtualClock};
use uringfs_file::{BufferOutput, File, FileOp, FileOptions, Tokens, WriteLocking};
use uringfs_reactor::{Completion, Effect, OpResult, Reactor, ReactorOptions, SubmitError, Token};

const SIZE: u64 = 1 << 20;
const LATENCY: Duration = Duration::from_millis(10);

/// A partial-block write waits for requests of other reactors of the process, and virtual time does not: one
/// test at a time.
static TIME: Mutex<()> = Mutex::new(());

/// Every request takes 10 ms, any number at once.
fn slow(clock: &VirtualClock) -> Sim {
    let options = SimOptions::new(SIZE).latency(LATENCY..=LATENCY).units(4096);
    Sim::new(options.cache(WriteCache::Volatile).clock(Clock::Virtual(clock.clone())))
}

struct Bench {
    clock: Clock,
    sim: Sim,
    file: File,
    reactor: Reactor,
    _alone: MutexGuard<'static, ()>,
}

fn bench() -> Bench {
    let _alone = TIME.lock();
    let clock = VirtualClock::default();
    let sim = slow(&clock);
    let (file, reactor) = (file_over(&sim), reactor_by(&clock));
    Bench { clock: Clock::Virtual(clock), sim, file, reactor, _alone }
}

/// Starts an operation and returns while it is in flight.
async fn started<R: BufferOutput>(op: &mut FileOp<R>) {
    let pending = poll_fn(|context| Poll::Ready(Pin::new(&mut *op).poll(context).is_pending()));
    assert!(pending.await, "it is in flight");
}

impl Bench {
    /// The outcome with a deadline this far away, and the time it took.
    fn until<R: BufferOutput>(&self, op: FileOp<R>, deadline: Duration) -> (OpResult, Duration) {
        let begin = self.clock.now();
        let outcome = self.reactor.block_on(op.deadline(begin + deadline).outcome());
        (outcome, self.clock.now() - begin)
    }

    /// The outcome of an operation cancelled after `delay`, and the time it took.
    fn cancelled<R: BufferOutput>(
        &self,
        mut op: FileOp<R>,
        delay: Duration,
    ) -> (OpResult, Duration) {
        let begin = self.clock.now();
        let outcome = self.reactor.block_on(async {
            started(&mut op).await;
            self.reactor.sleep(delay).await;
            op.cancel();
            op.outcome().await
        });
        (outcome, self.clock.now() - begin)
    }

    /// Requests that changed or flushed the device.
    fn changes(&self) -> usize {
        self.sim.record().len()
    }
}

fn result_of(outcome: &OpResult) -> (Result<u64, Errno>, Effect) {
    (outcome.result, outcome.effect)
}

#[test]
fn an_operation_cancelled_before_its_start_has_effect_not_started() {
    let bench = bench();
    let mut write = bench.file.write_at(pattern(1, 4096), 0);
    write.cancel();
    let outcome = bench.reactor.block_on(write.outcome());
    assert_eq!(result_of(&outcome), (Err(Errno::CANCELED), Effect::NotStarted));
    assert!(matches!(outcome.payload, Payload::Buffer(buffer) if buffer.len() == 4096));
    assert_eq!(bench.changes(), 0);
}

#[test]
fn an_operation_cancelled_before_its_start_is_refused_by_token() {
    fn refusal<R: BufferOutput>(reactor: &Reactor, mut op: FileOp<R>) -> SubmitError {
        op.cancel();
        reactor.start(op, Token::new(1)).unwrap_err()
    }
    let bench = bench();
    let refused = refusal(&bench.reactor, bench.file.write_at(pattern(1, 4096), 0));
    assert_eq!((refused.error, refused.into_buffer().len()), (Errno::CANCELED, 4096));
    let refused = refusal(&bench.reactor, bench.file.sync_all());
    assert_eq!(refused.error, Errno::CANCELED);
    assert!(matches!(refused.payload, Payload::Length(0)), "{:?}", refused.payload);
    assert_eq!(bench.changes(), 0);
}

#[test]
fn an_operation_past_its_deadline_before_its_start_has_effect_not_started() {
    let bench = bench();
    for (length, offset) in [(4096, 0), (5000, 3), (200 << 10, 0)] {
        let (outcome, took) =
            bench.until(bench.file.write_at(pattern(1, length), offset), Duration::ZERO);
        assert_eq!(result_of(&outcome), (Err(Errno::TIMEDOUT), Effect::NotStarted));
        assert_eq!(took, Duration::ZERO);
    }
    let (outcome, _) = bench.until(bench.file.read_at(Buffer::zeroed(4096), 0), Duration::ZERO);
    assert_eq!(result_of(&outcome), (Err(Errno::TIMEDOUT), Effect::NotStarted));
    assert_eq!(bench.changes(), 0);
}

#[test]
fn an_operation_cancelled_in_flight_has_effect_unknown() {
    let bench = bench();
    let delay = LATENCY / 2;
    let ops = [
        bench.file.write_at(pattern(1, 4096), 0),
        bench.file.write_at(pattern(1, 5000), 100),
        bench.file.write_durably(pattern(1, 4096), 0),
        bench.file.read_at(Buffer::zeroed(4096), 0),
        bench.file.read_at(Buffer::zeroed(5000), 1),
    ];
    for op in ops {
        let (outcome, took) = bench.cancelled(op, delay);
        assert_eq!(result_of(&outcome), (Err(Errno::CANCELED), Effect::Unknown));
        assert_eq!(took, delay, "it does not wait for the device");
    }
    for op in [bench.file.sync_all(), bench.file.discard(0, 8192), bench.file.write_zeroes(0, 8192)]
    {
        let (outcome, took) = bench.cancelled(op, delay);
        assert_eq!(result_of(&outcome), (Err(Errno::CANCELED), Effect::Unknown));
        assert_eq!(took, delay, "it does not wait for the device");
    }
}

#[test]
fn an_operation_past_its_deadline_in_flight_has_effect_unknown() {
    let bench = bench();
    let (outcome, took) = bench.until(bench.file.write_at(pattern(1, 4096), 0), LATENCY / 2);
    assert_eq!(result_of(&outcome), (Err(Errno::TIMEDOUT), Effect::Unknown));
    assert_eq!(took, LATENCY / 2);
    // The write ends after 10 ms, the flush would after 20.
    let (outcome, took) =
        bench.until(bench.file.write_durably(pattern(2, 4096), 0), LATENCY * 3 / 2);
    assert_eq!(result_of(&outcome), (Err(Errno::TIMEDOUT), Effect::Unknown));
    assert_eq!(took, LATENCY * 3 / 2);
    let mut found = [0; 4096];
    bench.sim.peek(0, &mut found);
    assert_eq!(found, pattern(2, 4096)[..], "unknown is not undone");
}

#[test]
fn an_operation_that_ends_in_time_is_done() {
    let bench = bench();
    let (outcome, took) = bench.until(bench.file.write_at(pattern(1, 4096), 0), LATENCY * 2);
    assert_eq!(result_of(&outcome), (Ok(4096), Effect::Done));
    assert_eq!(took, LATENCY);
    let (outcome, took) = bench.until(bench.file.read_at(Buffer::zeroed(4096), 0), LATENCY * 2);
    assert_eq!(result_of(&outcome), (Ok(4096), Effect::Done));
    assert_eq!(took, LATENCY);
    // A cancel after the end changes nothing.
    let mut op = bench.file.write_at(pattern(3, 4096), 4096);
    let outcome = bench.reactor.block_on(async {
        started(&mut op).await;
        bench.reactor.sleep(LATENCY * 2).await;
        op.cancel();
        op.outcome().await
    });
    assert_eq!(result_of(&outcome), (Ok(4096), Effect::Done));
    // A passed deadline does not affect another operation.
    bench.reactor.block_on(bench.reactor.sleep(LATENCY * 10));
    let (result, _) = bench.reactor.block_on(bench.file.read_at(Buffer::zeroed(4096), 0));
    assert_eq!(result, Ok(4096));
}

#[test]
fn a_cancel_by_token_cancels_only_that_token() {
    let bench = bench();
    for token in 0..6 {
        let offset = token * 16_384;
        bench
            .reactor
            .write_at(&bench.file, pattern(token, 8192), offset, Token::new(token))
            .unwrap();
    }
    let mut completed = Vec::new();
    bench.reactor.reap(6, Some(LATENCY / 2), &mut completed).unwrap();
    assert!(completed.is_empty());
    bench.reactor.cancel(Token::new(2));
    bench.reactor.cancel(Token::new(3));
    bench.reactor.cancel(Token::new(77));
    while completed.len() < 6 {
        bench.reactor.reap(1, None, &mut completed).unwrap();
    }
    completed.sort_by_key(|one| one.token());
    for one in &completed {
        let expected = match one.token().get() {
            2 | 3 => (Err(Errno::CANCELED), Effect::Unknown),
            _ => (Ok(8192), Effect::Done),
        };
        assert_eq!((one.result(), one.effect()), expected, "{:?}", one.token());
    }
}

#[test]
fn a_cancelled_lock_waiter_is_not_started() {
    let bench = bench();
    let file = &bench.file;
    bench.reactor.block_on(async {
        // It holds its blocks for three requests.
        let mut first = file.write_at(pattern(1, 9000), 100);
        started(&mut first).await;
        bench.reactor.sleep(LATENCY / 2).await;
        let mut second = file.write_at(pattern(2, 1000), 5000);
        let mut third = file.write_at(pattern(3, 8192), 0);
        started(&mut second).await;
        started(&mut third).await;
        bench.reactor.sleep(LATENCY / 10).await;
        second.cancel();
        third.cancel();
        let (second, third) = (second.outcome().await, third.outcome().await);
        assert_eq!(result_of(&second), (Err(Errno::CANCELED), Effect::NotStarted));
        assert_eq!(result_of(&third), (Err(Errno::CANCELED), Effect::NotStarted));
        let first = first.outcome().await;
        assert_eq!(result_of(&first), (Ok(9000), Effect::Done));
        let (_, found) = file.read_at(Buffer::zeroed(9000), 100).await;
        assert_eq!(found[..], pattern(1, 9000)[..]);
    });
}

/// A queue full of requests of all kinds, and ten thousand cancels at random.
fn ten_thousand_cancels(name: &str, reactor: &Reactor, file: &File, seed: u64) {
    println!("{name}: seed {seed}");
    let mut random = Random(seed);
    let mut issued = 0;
    loop {
        let token = Token::new(issued);
        let offset = random.below(SIZE / 8192) * 8192;
        let refused = match random.below(4) {
            0 => reactor.read_at(file, Buffer::zeroed(4096), offset, token),
            1 => reactor.read_at(file, Buffer::zeroed(3000), offset + 5, token),
            2 => reactor.write_at(file, Buffer::zeroed(4096), offset, token),
            _ => reactor.start(file.sync_data(), token),
        };
        match refused {
            Ok(()) => issued += 1,
            Err(refused) => {
                assert_eq!(refused.error, Errno::AGAIN, "{name}");
                break;
            }
        }
        assert!(issued < 100_000, "{name}: a queue has a bound");
    }
    let mut completed: Vec<Completion> = Vec::new();
    for round in 0..10_000 {
        reactor.cancel(Token::new(random.below(issued)));
        if round % 1000 == 999 {
            reactor.reap(0, None, &mut completed).unwrap();
        }
    }
    while completed.len() < issued as usize {
        let before = completed.len();
        reactor.reap(1, Some(Duration::from_secs(20)), &mut completed).unwrap();
        assert!(completed.len() > before, "{name}: {before} of {issued} have ended");
    }
    reactor.reap(1, None, &mut completed).unwrap();
    let tokens: HashSet<_> = completed.iter().map(|one| one.token()).collect();
    assert_eq!((tokens.len(), completed.len()), (issued as usize, issued as usize), "{name}");
    for one in &completed {
        let done = one.result().is_ok() && one.effect() == Effect::Done;
        let stopped = one.result() == Err(Errno::CANCELED) && one.effect() != Effect::Done;
        assert!(done || stopped, "{name}, seed {seed}: {one:?}");
    }
}

#[test]
fn operations_end_once_under_ten_thousand_cancels() {
    let bench = bench();
    ten_thousand_cancels("sim", &bench.reactor, &bench.file, 21);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![1; SIZE as usize]).unwrap();
    for queue in [QueueKind::Ring, QueueKind::Aio, QueueKind::Sync, QueueKind::Threads] {
        let reactor = Reactor::new(ReactorOptions::new().queue(queue).depth(256)).unwrap();
        let file = File::open(&path, uringfs_device::Access::ReadWrite).unwrap();
        ten_thousand_cancels(queue.name(), &reactor, &file, 22);
    }
    let device = Device::new(Null::new(SIZE)).unwrap();
    let queue = QueueKind::Ring;
    let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
    let file = File::from_device(device.clone(), FileOptions::default());
    ten_thousand_cancels("null", &reactor, &file, 23);
    let options = FileOptions::new().write_lock(WriteLocking::Exclusive);
    ten_thousand_cancels("null, locked", &reactor, &File::from_device(device, options), 24);
}

#[test]
fn awaited_operations_are_cancelled_one_by_one() {
    let bench = bench();
    let ops: Vec<_> = (0..1000u64)
        .map(|number| {
            let offset = number * 1024;
            match number % 3 {
                0 => bench.file.read_at(Buffer::zeroed(512), offset),
                1 => bench.file.read_at(Buffer::zeroed(700), offset + 1),
                _ => bench.file.write_at(pattern(number, 512), offset),
            }
        })
        .collect();
    let reactor = &bench.reactor;
    let cancelled = |mut op: FileOp<_>, number: usize| async move {
        started(&mut op).await;
        reactor.sleep(LATENCY / 2).await;
        if number.is_multiple_of(2) {
            op.cancel();
        }
        op.outcome().await
    };
    let futures: Vec<Pin<Box<dyn Future<Output = OpResult> + '_>>> = ops
        .into_iter()
        .enumerate()
        .map(|(number, op)| -> Pin<Box<dyn Future<Output = OpResult> + '_>> {
            Box::pin(cancelled(op, number))
        })
        .collect();
    let outcomes = reactor.block_on(join_all(futures));
    for (number, outcome) in outcomes.iter().enumerate() {
        if number.is_multiple_of(2) {
            assert_eq!(result_of(outcome), (Err(Errno::CANCELED), Effect::Unknown), "{number}");
        } else {
            assert_eq!(outcome.effect, Effect::Done, "{number}: {outcome:?}");
        }
    }
}

#[test]
fn a_cancel_reaches_the_reactor_of_its_operation() {
    let _alone = TIME.lock();
    let clock = VirtualClock::default();
    let file = file_over(&slow(&clock));
    let (_first, second) = (reactor_by(&clock), reactor_by(&clock));
    for length in [4096, 5000] {
        let mut op = file.read_at(Buffer::zeroed(length), 0);
        let mut completed = Vec::new();
        second.block_on(started(&mut op));
        second.reap(1, Some(LATENCY / 2), &mut completed).unwrap();
        op.cancel();
        let begin = Clock::Virtual(clock.clone()).now();
        second.reap(1, None, &mut completed).unwrap();
        let outcome = second.block_on(op.outcome());
        assert_eq!(outcome.result, Err(Errno::CANCELED), "{length} bytes");
        assert!(Clock::Virtual(clock.clone()).now() - begin < LATENCY / 4, "{length} bytes");
    }
}
