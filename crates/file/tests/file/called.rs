//! A device that completes within a call: a wait for completions executes what was pushed, when nothing else is in flight. Faults,
//! cancels, removal and what else is under way have the same results as on any other queue.

use std::time::Duration;

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::queue::QueueKind;
use uringfs_device::{
    Backend, Clock, Device, Errno, Geometry, KernelTarget, Op, Request, VirtualClock,
};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{
    Completion, CompletionMode, Counter, Effect, Reactor, ReactorOptions, Token,
};

use crate::harness::{self, TIMEOUT, file_over, pattern, reap};

const SIZE: u64 = 1 << 20;

/// A simulated device without its queue, so that calls execute its requests.
struct Called(Sim);

impl Backend for Called {
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn description(&self) -> String {
        "called".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        self.0.perform(request)
    }
}

fn called(sim: &Sim) -> File {
    File::from_device(Device::new(Called(sim.clone())).unwrap(), FileOptions::default())
}

fn sim() -> Sim {
    Sim::new(SimOptions::new(SIZE).seed(6))
}

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::new().queue(QueueKind::Sync)).unwrap()
}

fn start_read(reactor: &Reactor, file: &File, offset: u64) {
    reactor.read_at(file, Buffer::zeroed(4096), offset, Token::new(offset)).unwrap();
}

/// Waits for one completion, as a caller that waits for the request it has just issued.
fn wait_for_one(reactor: &Reactor) -> Completion {
    let mut completed = Vec::new();
    reactor.reap(1, None, &mut completed).unwrap();
    assert_eq!(completed.len(), 1);
    completed.remove(0)
}

fn count(reactor: &Reactor, counter: Counter) -> u64 {
    reactor.counters().get(counter)
}

#[test]
fn a_wait_executes_what_was_pushed_without_a_system_call() {
    let (sim, reactor) = (sim(), reactor());
    let file = called(&sim);
    for round in 0..10 {
        let offset = round * 4096;
        let written = pattern(round, 4096);
        reactor.write_at(&file, written, offset, Token::new(1)).unwrap();
        assert_eq!(wait_for_one(&reactor).result(), Ok(4096));
        start_read(&reactor, &file, offset);
        let read = wait_for_one(&reactor);
        assert_eq!((read.result(), read.effect()), (Ok(4096), Effect::Done));
        assert_eq!(&read.into_buffer()[..], &pattern(round, 4096)[..]);
    }
    let slow = count(&reactor, Counter::SlowPath);
    assert!(slow < 20, "the first write of a tick is a task");
    assert_eq!(count(&reactor, Counter::Called), 20 - slow);
    assert_eq!(count(&reactor, Counter::Enters), 0);
    // Several at once, too.
    for block in 0..8 {
        start_read(&reactor, &file, block * 4096);
    }
    let tokens: Vec<_> = reap(&reactor, 8).iter().map(|one| one.token().get()).collect();
    assert_eq!(tokens, (0..8).map(|block| block * 4096).collect::<Vec<_>>());
}

#[test]
fn interrupted_and_short_calls_go_on_and_errors_are_returned() {
    let (sim, reactor) = (sim(), reactor());
    let file = called(&sim);
    for (fault, expected) in [
        (Fault::Error(Errno::INTR), Ok(4096)),
        (Fault::Error(Errno::AGAIN), Ok(4096)),
        (Fault::Short, Ok(4096)),
        (Fault::Error(Errno::IO), Err(Errno::IO)),
    ] {
        sim.inject(Rule::new(Op::Read, When::Nth(1), fault));
        let before = sim.faults_hit();
        start_read(&reactor, &file, 4096);
        assert_eq!(wait_for_one(&reactor).result(), expected);
        assert_eq!(sim.faults_hit(), before + 1);
        start_read(&reactor, &file, 0);
        assert_eq!(wait_for_one(&reactor).result(), Ok(4096));
    }
}

#[test]
fn a_request_that_is_cancelled_before_its_call_has_not_started() {
    let (sim, reactor) = (sim(), reactor());
    let file = called(&sim);
    // Attaches the device, and sets the file's modification time.
    reactor.write_at(&file, pattern(1, 4096), 0, Token::new(1)).unwrap();
    assert_eq!(wait_for_one(&reactor).result(), Ok(4096));
    let before = sim.digest();
    reactor.write_at(&file, pattern(2, 4096), 0, Token::new(2)).unwrap();
    reactor.cancel(Token::new(2));
    let cancelled = wait_for_one(&reactor);
    assert_eq!(
        (cancelled.result(), cancelled.effect()),
        (Err(Errno::CANCELED), Effect::NotStarted)
    );
    assert_eq!(sim.digest(), before);
    // After its call there is nothing to cancel.
    start_read(&reactor, &file, 0);
    reactor.submit().unwrap();
    reactor.cancel(Token::new(0));
    let read = wait_for_one(&reactor);
    assert_eq!((read.result(), read.effect()), (Ok(4096), Effect::Done));
}

#[test]
fn a_deadline_of_another_operation_fires_while_calls_go_on() {
    let clock = VirtualClock::default();
    let minute = Duration::from_secs(60);
    let slow = Sim::new(
        SimOptions::new(SIZE).latency(minute..=minute).clock(Clock::Virtual(clock.clone())),
    );
    let (slow_file, fast_file) = (file_over(&slow), called(&sim()));
    let options = ReactorOptions::new().queue(QueueKind::Sync).clock(Clock::Virtual(clock.clone()));
    let reactor = Reactor::new(options).unwrap();
    start_read(&reactor, &fast_file, 0);
    assert_eq!(wait_for_one(&reactor).result(), Ok(4096));
    let executed = count(&reactor, Counter::Called);
    let deadline = Clock::Virtual(clock.clone()).now() + Duration::from_secs(1);
    let late = slow_file.read_at(Buffer::zeroed(4096), 0).deadline(deadline);
    reactor.start(late, Token::new(7)).unwrap();
    for block in 1..4 {
        start_read(&reactor, &fast_file, block * 4096);
        assert_eq!(wait_for_one(&reactor).token().get(), block * 4096);
    }
    // A timer is set and another queue has a request, so these went through the loop.
    assert_eq!(count(&reactor, Counter::Called), executed);
    clock.advance_to(deadline);
    start_read(&reactor, &fast_file, 4096);
    let mut completed = Vec::new();
    while completed.len() < 2 {
        reactor.reap(1, None, &mut completed).unwrap();
    }
    completed.sort_by_key(Completion::token);
    let ended: Vec<_> = completed.iter().map(|one| (one.token().get(), one.result())).collect();
    assert_eq!(ended, [(7, Err(Errno::TIMEDOUT)), (4096, Ok(4096))]);
    let executed = count(&reactor, Counter::Called);
    start_read(&reactor, &fast_file, 0);
    assert_eq!(wait_for_one(&reactor).result(), Ok(4096));
    assert_eq!(count(&reactor, Counter::Called), executed + 1, "nothing else is under way");
}

#[test]
fn a_removed_device_finishes_what_was_pushed_and_takes_no_more() {
    let (sim, reactor) = (sim(), reactor());
    let file = called(&sim);
    start_read(&reactor, &file, 0);
    assert_eq!(wait_for_one(&reactor).result(), Ok(4096));
    start_read(&reactor, &file, 4096);
    file.device().remove();
    assert_eq!(wait_for_one(&reactor).result(), Ok(4096));
    let refused = reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap_err();
    assert_eq!(refused.error, Errno::NODEV);
    // A device that fails all requests.
    let gone = called(&sim);
    start_read(&reactor, &gone, 0);
    sim.detach(Errno::NODEV);
    assert_eq!(wait_for_one(&reactor).result(), Err(Errno::NODEV));
}

#[test]
fn a_message_is_read_while_calls_go_on() {
    let (sim, reactor) = (sim(), reactor());
    let file = called(&sim);
    let handle = reactor.inner().handle();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || handle.run(move |_| sender.send(()).unwrap())).join().unwrap();
    start_read(&reactor, &file, 0);
    assert_eq!(wait_for_one(&reactor).result(), Ok(4096));
    receiver.try_recv().expect("the message came before the read, which went through the loop");
    assert_eq!(count(&reactor, Counter::Called), 0);
}

#[test]
fn the_completion_worker_gets_what_calls_have_executed() {
    let options = ReactorOptions::new().queue(QueueKind::Sync).completion(CompletionMode::Worker);
    let reactor = Reactor::new(options).unwrap();
    let file = called(&sim());
    for block in 0..10 {
        start_read(&reactor, &file, block * 4096);
        let completed = harness::reap_within(&reactor, 1, TIMEOUT);
        assert_eq!(completed[0].result(), Ok(4096));
    }
    assert_eq!(count(&reactor, Counter::CompletedByWorker), 10);
    assert_eq!(count(&reactor, Counter::Called), 0);
}
