//! A workload on a simulated device in which the n-th request fails, for every n: each error reaches its
//! operation, and interruptions reach none.

use std::pin::Pin;

use uringfs_buffer::{Buffer, BufferPool};
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When, WriteCache};
use uringfs_device::{Errno, Op, VirtualClock};
use uringfs_file::{File, Tokens};
use uringfs_reactor::{CompletionMode, Counter, Effect, OpResult, Reactor, ReactorOptions, Token};

use crate::harness::{file_over, join_all, pattern, reactor_by, reap};

const SIZE: u64 = 1 << 20;
/// Small, so that long transfers are several requests.
const TRANSFER: u32 = 16 << 10;

fn sim() -> Sim {
    Sim::new(SimOptions::new(SIZE).seed(5).max_transfer(TRANSFER).cache(WriteCache::Volatile))
}

/// One operation in a place of its own, 64 KiB for each.
#[derive(Clone, Copy, Debug)]
enum Task {
    SimpleRead,
    Read,
    UnalignedRead,
    Write,
    VectoredWrite,
    UnalignedWrite,
    DurableWrite,
    Sync,
    Discard,
    WriteZeroes,
}

const TASKS: [Task; 10] = [
    Task::SimpleRead,
    Task::Read,
    Task::UnalignedRead,
    Task::Write,
    Task::VectoredWrite,
    Task::UnalignedWrite,
    Task::DurableWrite,
    Task::Sync,
    Task::Discard,
    Task::WriteZeroes,
];

impl Task {
    fn place(self) -> u64 {
        (self as u64) << 16
    }

    /// Runs the operation.
    fn run<'a>(self, file: &'a File) -> Pin<Box<dyn Future<Output = OpResult> + 'a>> {
        let at = self.place();
        let fill = |length| pattern(at, length);
        match self {
            Task::SimpleRead => Box::pin(file.read_at(Buffer::zeroed(4096), at).outcome()),
            Task::Read => Box::pin(file.read_at(Buffer::zeroed(48 << 10), at).outcome()),
            Task::UnalignedRead => Box::pin(file.read_at(Buffer::zeroed(5000), at + 77).outcome()),
            Task::Write => Box::pin(file.write_at(fill(40 << 10), at).outcome()),
            Task::VectoredWrite => {
                let pieces = vec![fill(8192), fill(20 << 10), fill(512)];
                Box::pin(file.write_vectored_at(pieces, at).outcome())
            }
            Task::UnalignedWrite => Box::pin(file.write_at(fill(20_000), at + 100).outcome()),
            Task::DurableWrite => Box::pin(file.write_durably(fill(8192), at).outcome()),
            Task::Sync => Box::pin(file.sync_all().outcome()),
            Task::Discard => Box::pin(file.discard(at, 8192).outcome()),
            Task::WriteZeroes => Box::pin(file.write_zeroes(at + 10, 10_000).outcome()),
        }
    }

    /// Checks what the device holds after it succeeded.
    fn check(self, sim: &Sim, what: &str) {
        let at = self.place();
        let holds = |offset: u64, expected: &[u8]| {
            let mut found = vec![0xee; expected.len()];
            sim.peek(offset, &mut found);
            assert!(found == expected, "{what}: {self:?} left other bytes");
        };
        match self {
            Task::Write => holds(at, &pattern(at, 40 << 10)),
            Task::VectoredWrite => {
                holds(at, &pattern(at, 8192));
                holds(at + 8192, &pattern(at, 20 << 10));
                holds(at + 8192 + (20 << 10), &pattern(at, 512));
            }
            Task::UnalignedWrite => {
                holds(at, &[0; 100]);
                holds(at + 100, &pattern(at, 20_000));
                holds(at + 20_100, &[0; 1000]);
            }
            Task::DurableWrite => holds(at, &pattern(at, 8192)),
            _ => {}
        }
    }
}

fn results(reactor: &Reactor, file: &File, at_once: bool) -> Vec<OpResult> {
    if at_once {
        return reactor.block_on(join_all(TASKS.map(|task| task.run(file)).into()));
    }
    TASKS.iter().map(|task| reactor.block_on(task.run(file))).collect()
}

fn reactors() -> Vec<(String, Reactor)> {
    [CompletionMode::Inline, CompletionMode::Worker]
        .into_iter()
        .map(|completion| {
            let options = ReactorOptions::new().completion(completion);
            (format!("{completion:?}"), Reactor::new(options).unwrap())
        })
        .collect()
}

/// Runs the workload once for each of its requests, with `fault` on that one; `hit` checks the outcomes of each
/// run. Ends when a run is not hit.
fn for_every_request(fault: Fault, hit: impl Fn(&Sim, &[OpResult], u64, &str)) {
    for (mode, reactor) in reactors() {
        for at_once in [false, true] {
            let mut n = 0;
            loop {
                n += 1;
                assert!(n < 200, "the workload makes fewer requests");
                let sim = sim();
                let file = file_over(&sim);
                sim.inject(Rule::new(None, When::Nth(n), fault));
                let resumed = reactor.counters().get(Counter::Resumed);
                let outcomes = results(&reactor, &file, at_once);
                let resumed = reactor.counters().get(Counter::Resumed) - resumed;
                let what = format!("{mode}, at once {at_once}, request {n}, {fault:?}");
                hit(&sim, &outcomes, resumed, &what);
                // If the rule is unspent, the workload has fewer requests.
                let spare = results(&reactor, &file, false);
                let unspent = spare.iter().any(|outcome| outcome.result.is_err());
                if unspent || (resumed == 0 && outcomes.iter().all(|one| one.result.is_ok())) {
                    break;
                }
                for task in TASKS {
                    task.check(&sim, &format!("{what}, done again"));
                }
            }
            assert!(n > 25, "{mode}: only {n} requests");
        }
    }
}

#[test]
fn an_error_reaches_only_its_operation() {
    for error in [Errno::IO, Errno::NODATA] {
        for_every_request(Fault::Error(error), |sim, outcomes, resumed, what| {
            let failed: Vec<_> =
                outcomes.iter().filter(|outcome| outcome.result.is_err()).collect();
            assert!(failed.len() <= 1, "{what}: {failed:?}");
            assert_eq!(resumed, 0, "{what}: a real error is never tried again");
            for outcome in failed {
                assert_eq!(outcome.result, Err(error), "{what}");
                assert_eq!(outcome.effect, Effect::Unknown, "{what}");
            }
            for (task, outcome) in TASKS.iter().zip(outcomes) {
                if outcome.result.is_ok() {
                    assert_eq!(outcome.effect, Effect::Done, "{what}");
                    task.check(sim, what);
                }
            }
        });
    }
}

#[test]
fn interruptions_are_retried() {
    let interruptions =
        [Fault::Error(Errno::INTR), Fault::Error(Errno::AGAIN), Fault::Error(Errno::CANCELED)];
    for fault in interruptions {
        for_every_request(fault, |sim, outcomes, resumed, what| {
            assert!(resumed <= 1, "{what}: resumed {resumed} times");
            for (task, outcome) in TASKS.iter().zip(outcomes) {
                assert!(outcome.result.is_ok(), "{what}: {task:?} {outcome:?}");
                task.check(sim, what);
            }
        });
    }
}

#[test]
fn short_transfers_are_completed() {
    let expected: Vec<_> = {
        let clock = VirtualClock::default();
        let reactor = reactor_by(&clock);
        results(&reactor, &file_over(&sim()), false).iter().map(|outcome| outcome.result).collect()
    };
    for (mode, reactor) in reactors() {
        for rule in [When::Every(2), When::Every(1), When::OneIn(3)] {
            let sim = sim();
            sim.inject(Rule::new(None, rule, Fault::Short));
            let file = file_over(&sim);
            let outcomes = results(&reactor, &file, true);
            for ((task, outcome), expected) in TASKS.iter().zip(&outcomes).zip(&expected) {
                assert_eq!(outcome.result, *expected, "{mode}, {rule:?}: {task:?}");
                task.check(&sim, &mode);
            }
        }
    }
}

#[test]
fn permanent_errors_end_every_operation() {
    let errors = [Errno::IO, Errno::INTR, Errno::AGAIN, Errno::CANCELED, Errno::NOSPC];
    for (mode, reactor) in reactors() {
        for error in errors {
            for from in [1, 2, 5, 9, 17] {
                let sim = sim();
                sim.inject(Rule::new(None, When::From(from), Fault::Error(error)));
                let file = file_over(&sim);
                let outcomes = results(&reactor, &file, true);
                let failed = outcomes.iter().filter(|outcome| outcome.result == Err(error));
                assert!(failed.count() > 0, "{mode}, {error:?} from {from}: {outcomes:?}");
                let others =
                    |outcome: &&OpResult| outcome.result.is_err() && outcome.result != Err(error);
                assert_eq!(outcomes.iter().filter(others).count(), 0, "{mode}: {outcomes:?}");
                sim.clear_faults();
                for (task, outcome) in TASKS.iter().zip(results(&reactor, &file, true)) {
                    assert!(outcome.result.is_ok(), "{mode}: {task:?} after {error:?}");
                    task.check(&sim, &mode);
                }
            }
        }
    }
}

#[test]
fn a_durable_write_awaits_its_flush_and_reports_its_failure() {
    for (mode, reactor) in reactors() {
        let sim = sim();
        let file = file_over(&sim);
        let deferred = || reactor.counters().get(Counter::DeferredFlush);
        let before = deferred();
        let outcome = reactor.block_on(file.write_durably(pattern(1, 4096), 0).outcome());
        assert_eq!((outcome.result, deferred() - before), (Ok(4096), 1), "{mode}");
        assert_eq!(sim.unstable_writes(), 0, "{mode}: nothing a crash could lose");

        sim.inject(Rule::new(Op::Flush, When::Nth(1), Fault::Error(Errno::IO)));
        let outcome = reactor.block_on(file.write_durably(pattern(2, 4096), 0).outcome());
        assert_eq!((outcome.result, outcome.effect), (Err(Errno::IO), Effect::Unknown), "{mode}");

        sim.inject(Rule::new(Op::Flush, When::Nth(1), Fault::Error(Errno::IO)));
        reactor.start(file.write_durably(pattern(3, 4096), 0), Token::new(9)).unwrap();
        let failed = reap(&reactor, 1).remove(0);
        assert_eq!((failed.result(), failed.effect()), (Err(Errno::IO), Effect::Unknown), "{mode}");

        sim.inject(Rule::new(Op::Flush, When::Nth(1), Fault::Error(Errno::IO)));
        assert_eq!(reactor.block_on(file.sync_data()), Err(Errno::IO), "{mode}");
        assert_eq!(reactor.block_on(file.sync_data()), Ok(()), "{mode}");
    }
}

#[test]
fn failed_writes_and_fua_need_no_flush() {
    let (_, reactor) = reactors().remove(0);
    let sim = sim();
    let file = file_over(&sim);
    sim.fail_nth(Op::Write, 1, Errno::IO);
    let before = reactor.counters().get(Counter::DeferredFlush);
    let outcome = reactor.block_on(file.write_durably(pattern(1, 4096), 0).outcome());
    assert_eq!(outcome.result, Err(Errno::IO));
    assert_eq!(reactor.counters().get(Counter::DeferredFlush), before);

    let sim = Sim::new(SimOptions::new(SIZE).cache(WriteCache::VolatileWithFua));
    let file = file_over(&sim);
    for (offset, length) in [(0, 4096), (100, 5000), (0, 64 << 10)] {
        let outcome = reactor.block_on(file.write_durably(pattern(1, length), offset).outcome());
        assert_eq!(outcome.result, Ok(length as u64));
        assert_eq!(sim.unstable_writes(), 0, "{length} bytes at {offset} are durable");
    }
    assert_eq!(reactor.counters().get(Counter::DeferredFlush), before);
}

#[test]
fn a_durable_write_without_fua_that_is_one_request_needs_no_flush() {
    let (_, reactor) = reactors().remove(0);
    let options = SimOptions::new(SIZE).max_transfer(TRANSFER).cache(WriteCache::VolatileWithDsync);
    let sim = Sim::new(options);
    let file = file_over(&sim);
    let flushes = || reactor.counters().get(Counter::DeferredFlush);
    // One request; parts of blocks; several requests.
    for (offset, length, expected) in [(0, 4096, 0), (100, 5000, 1), (0, 64 << 10, 1)] {
        let before = flushes();
        let outcome = reactor.block_on(file.write_durably(pattern(1, length), offset).outcome());
        assert_eq!(outcome.result, Ok(length as u64));
        assert_eq!(flushes() - before, expected, "{length} bytes at {offset}");
        assert_eq!(sim.unstable_writes(), 0, "{length} bytes at {offset} are durable");
    }
}

#[test]
fn failed_operations_return_their_memory() {
    let pool = BufferPool::new(8192, 4).unwrap();
    for (mode, reactor) in reactors() {
        let sim = sim();
        sim.inject(Rule::new(None, When::From(1), Fault::Error(Errno::IO)));
        let file = file_over(&sim);
        for round in 0..20u32 {
            for token in 0..4 {
                let buffer = pool.get().expect("all have come back");
                let offset = if round.is_multiple_of(2) { 0 } else { 13 };
                let started = match token % 2 {
                    0 => reactor.read_at(&file, buffer, offset, Token::new(token)),
                    _ => reactor.write_at(&file, buffer, offset, Token::new(token)),
                };
                started.unwrap();
            }
            for completed in reap(&reactor, 4) {
                assert_eq!(completed.result(), Err(Errno::IO), "{mode}");
                assert_eq!(completed.into_buffer().len(), 8192, "{mode}");
            }
            assert_eq!(pool.available(), 4, "{mode}");
        }
    }
}
