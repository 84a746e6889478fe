//! Removal of a device while others are busy: it waits only for that device's requests, and its index is reused
//! only after they have ended.

mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{file_over, pattern, reactor_by, reap};
use parking_lot::{Mutex, MutexGuard};
use uringfs_buffer::Buffer;
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::queue::QueueKind;
use uringfs_device::{
    Access, Backend, Clock, Device, Errno, Geometry, KernelTarget, Op, Request, VirtualClock,
};
use uringfs_file::{File, FileOptions, Tokens, WriteLocking};
use uringfs_reactor::{
    Completion, CompletionMode, Counter, Effect, Reactor, ReactorOptions, Token, total,
};

const SIZE: u64 = 1 << 20;

/// Device indexes are of the whole process: one test at a time.
static INDEXES: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    INDEXES.lock()
}

fn slow(clock: &VirtualClock, latency: Duration) -> Sim {
    let options = SimOptions::new(SIZE).latency(latency..=latency);
    Sim::new(options.clock(Clock::Virtual(clock.clone())))
}

/// Reaps everything that ends without time passing.
fn turn(reactor: &Reactor) -> Vec<Completion> {
    let mut completed = Vec::new();
    reactor.reap(0, None, &mut completed).unwrap();
    completed
}

/// The index that the next device gets.
fn next_index() -> usize {
    Device::new(Memory::new(512).unwrap()).unwrap().index().get()
}

#[test]
fn a_removal_waits_only_for_its_own_requests() {
    let _alone = alone();
    let clock = VirtualClock::default();
    let reactor = reactor_by(&clock);
    let (leaving, staying) =
        (slow(&clock, Duration::from_millis(10)), slow(&clock, Duration::from_millis(1)));
    let (leaving, staying) = (file_over(&leaving), file_over(&staying));
    let index = leaving.device().index().get();
    const LEAVING: u64 = 64;
    for token in 0..LEAVING {
        let (buffer, offset) = (Buffer::zeroed(4096), token * 4096);
        match token % 2 {
            0 => reactor.read_at(&leaving, buffer, offset, Token::new(token)).unwrap(),
            _ => reactor.write_at(&leaving, buffer, offset, Token::new(token)).unwrap(),
        }
    }
    turn(&reactor);
    leaving.device().remove();

    let later = reactor.read_at(&leaving, Buffer::zeroed(4096), 0, Token::new(1));
    assert_eq!(later.unwrap_err().error, Errno::NODEV);
    let later = reactor.write_at(&leaving, Buffer::zeroed(4096), 0, Token::new(1));
    assert_eq!(later.unwrap_err().error, Errno::NODEV);
    let later = reactor.block_on(leaving.read_at(Buffer::zeroed(4096), 0).outcome());
    assert_eq!((later.result, later.effect), (Err(Errno::NODEV), Effect::NotStarted));
    drop(leaving);

    // Eight reads at a time on the other device, until the first is gone.
    let (mut gone, mut stayed, mut next) = (0, 0, LEAVING);
    let mut held = 0;
    while gone < LEAVING {
        while held < 8 {
            reactor.read_at(&staying, Buffer::zeroed(4096), 0, Token::new(next)).unwrap();
            (held, next) = (held + 1, next + 1);
        }
        assert_ne!(next_index(), index, "reused with {} requests in flight", LEAVING - gone);
        for completed in reap(&reactor, 1) {
            assert_eq!(completed.result(), Ok(4096));
            if completed.token() < Token::new(LEAVING) {
                gone += 1;
            } else {
                (held, stayed) = (held - 1, stayed + 1);
            }
        }
    }
    assert!(stayed > 8 * LEAVING, "only {stayed} on the other device");
    turn(&reactor);
    assert_eq!(next_index(), index, "it is free when the last has ended, with {held} elsewhere");
    assert!(held > 0);
}

#[test]
fn multi_step_operations_end_once_when_their_device_goes() {
    let _alone = alone();
    for steps in 0..24 {
        let clock = VirtualClock::default();
        let reactor = reactor_by(&clock);
        let sim = slow(&clock, Duration::from_millis(1));
        let write_lock = [WriteLocking::Shared, WriteLocking::Exclusive][steps % 2];
        let options = FileOptions::new().write_lock(write_lock);
        let file = File::from_device(Device::new(sim).unwrap(), options);
        const COUNT: u64 = 16;
        for token in 0..COUNT {
            let buffer = pattern(token, 20_000);
            let offset = token * 64_000 + 17;
            reactor.write_at(&file, buffer, offset, Token::new(token)).unwrap();
        }
        let mut ended = Vec::new();
        for _ in 0..steps / 2 {
            reactor.reap(1, Some(Duration::from_micros(700)), &mut ended).unwrap();
        }
        file.device().remove();
        let missing = COUNT as usize - ended.len();
        ended.extend(reap(&reactor, missing));
        ended.sort_by_key(|completed| completed.token());
        for (token, completed) in ended.iter().enumerate() {
            assert_eq!(completed.token(), Token::new(token as u64));
            match completed.result() {
                Ok(20_000) => assert_eq!(completed.effect(), Effect::Done),
                Err(Errno::NODEV) => {}
                other => panic!("after {} steps, {write_lock:?}: {other:?}", steps / 2),
            }
        }
    }
}

#[test]
fn an_index_is_reused_after_the_last_reactor() {
    let _alone = alone();
    let clock = VirtualClock::default();
    let (one, other) = (reactor_by(&clock), reactor_by(&clock));
    let file = file_over(&slow(&clock, Duration::from_millis(1)));
    let index = file.device().index().get();
    one.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
    other.read_at(&file, Buffer::zeroed(4096), 0, Token::new(2)).unwrap();
    drop(file);
    assert_eq!(reap(&one, 1)[0].result(), Ok(4096));
    turn(&one);
    assert_ne!(next_index(), index, "the other reactor has a request in flight");
    assert_eq!(reap(&other, 1)[0].result(), Ok(4096));
    turn(&other);
    assert_eq!(next_index(), index);
}

#[test]
fn a_reactor_that_ends_releases_its_devices() {
    let _alone = alone();
    let clock = VirtualClock::default();
    let reactor = reactor_by(&clock);
    let file = file_over(&slow(&clock, Duration::from_millis(1)));
    let index = file.device().index().get();
    reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
    drop(file);
    assert_ne!(next_index(), index);
    drop(reactor);
    assert_eq!(next_index(), index);
}

#[test]
fn completions_at_the_worker_hold_their_device() {
    let _alone = alone();
    let sim = Sim::new(SimOptions::new(SIZE));
    sim.inject(Rule::new(Op::Read, When::Nth(1), Fault::Short));
    let options = ReactorOptions::new().completion(CompletionMode::Worker);
    let reactor = Reactor::new(options).unwrap();
    let file = file_over(&sim);
    reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
    reactor.submit().unwrap();
    drop(file);
    // Its first step ends short; the rest needs the device.
    assert_eq!(reap(&reactor, 1)[0].result(), Ok(4096));
}

#[test]
fn a_reused_fixed_file_slot_names_the_new_file() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    for fixed_files in [true, false] {
        let options = ReactorOptions::new().queue(QueueKind::Ring).fixed_files(fixed_files);
        let reactor = Reactor::new(options).unwrap();
        let busy_path = folder.path().join("busy");
        std::fs::write(&busy_path, vec![0xbb; SIZE as usize]).unwrap();
        let busy = File::open(&busy_path, Access::Read).unwrap();
        let mut indexes = Vec::new();
        for round in 0..40u8 {
            std::fs::write(&path, vec![round; 65536]).unwrap();
            let file = File::open(&path, Access::Read).unwrap();
            indexes.push(file.device().index());
            for token in 0..8u64 {
                let (of, offset) =
                    if token.is_multiple_of(2) { (&file, 4096) } else { (&busy, 8192) };
                reactor.read_at(of, Buffer::zeroed(4096), offset, Token::new(token)).unwrap();
            }
            drop(file);
            for completed in reap(&reactor, 8) {
                assert_eq!(completed.result(), Ok(4096));
                let expected = if completed.token().get().is_multiple_of(2) { round } else { 0xbb };
                let buffer = completed.into_buffer();
                assert!(buffer.iter().all(|byte| *byte == expected), "round {round}");
            }
            turn(&reactor);
        }
        indexes.dedup();
        assert!(indexes.len() < 5, "indexes are reused");
    }
}

/// Memory whose requests end only when the reactor has gone to sleep.
struct EndsInSleep {
    memory: Memory,
    sleeps: u64,
}

impl Backend for EndsInSleep {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn description(&self) -> String {
        "memory that takes its time".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while total(Counter::Sleeps) == self.sleeps && Instant::now() < deadline {
            std::thread::yield_now();
        }
        self.memory.perform(request)
    }
}

#[test]
fn a_queue_with_a_reused_descriptor_wakes_its_reactor() {
    let _alone = alone();
    let options = ReactorOptions::new().queue(QueueKind::Threads);
    let reactor = Reactor::new(options).unwrap();
    for round in 0..5 {
        let memory = Memory::new(SIZE).unwrap();
        let device = Device::new(EndsInSleep { memory, sleeps: total(Counter::Sleeps) }).unwrap();
        let file = File::from_device(device, FileOptions::default());
        reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(round)).unwrap();
        assert_eq!(reap(&reactor, 1)[0].result(), Ok(4096), "round {round}");
        drop(file);
        turn(&reactor);
    }
}

#[test]
fn a_slow_device_with_a_full_queue_delays_no_other() {
    let _alone = alone();
    let clock = VirtualClock::default();
    let options = ReactorOptions::new().depth(16).clock(Clock::Virtual(clock.clone()));
    let reactor = Reactor::new(options).unwrap();
    let slow = slow(&clock, Duration::from_secs(50));
    let shaky = Sim::new(SimOptions::new(SIZE).clock(Clock::Virtual(clock.clone())));
    shaky.inject(Rule::new(None, When::Every(2), Fault::Error(Errno::INTR)));
    let (slow, shaky) = (file_over(&slow), file_over(&shaky));
    // Two writes, then reads until the queue is full.
    for token in 0..2 {
        let buffer = Buffer::zeroed(16 << 10);
        let pieces = Device::geometry(slow.device()).max_transfer as usize / buffer.len();
        assert!(pieces > 0);
        reactor.write_at(&slow, buffer, token * 65536, Token::new(token)).unwrap();
    }
    for token in 2..18 {
        let issued = reactor.read_at(&slow, Buffer::zeroed(4096), 0, Token::new(token));
        if issued.is_err() {
            break;
        }
    }
    let begin = Clock::Virtual(clock.clone()).now();
    for token in 100..104 {
        reactor.read_at(&shaky, Buffer::zeroed(4096), 0, Token::new(token)).unwrap();
    }
    let mut completed = Vec::new();
    while completed.iter().filter(|one: &&Completion| one.token() >= Token::new(100)).count() < 4 {
        reactor.reap(1, Some(Duration::from_secs(1)), &mut completed).unwrap();
        let passed = Clock::Virtual(clock.clone()).now() - begin;
        assert!(passed < Duration::from_secs(40), "held back: {completed:?}");
    }
}

#[test]
fn ended_reactors_leak_nothing_in_a_device() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![1; 65536]).unwrap();
    let file = File::open(&path, Access::Read).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let read_once = || {
        let options = ReactorOptions::new().queue(QueueKind::Ring);
        let reactor = Reactor::new(options).unwrap();
        reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
        assert_eq!(reap(&reactor, 1)[0].result(), Ok(4096));
    };
    read_once();
    let before = open();
    for _ in 0..20 {
        read_once();
    }
    assert_eq!(open(), before, "descriptors");
}

#[test]
fn removal_under_load_from_another_thread_loses_nothing() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    for queue in [QueueKind::Ring, QueueKind::Aio, QueueKind::Sync, QueueKind::Threads] {
        let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
        let path = folder.path().join(queue.name());
        std::fs::write(&path, vec![1; SIZE as usize]).unwrap();
        let staying = File::open(&path, Access::Read).unwrap();
        for round in 0..10 {
            let leaving = File::open(&path, Access::Read).unwrap();
            let device = leaving.device().clone();
            let started = Arc::new(AtomicBool::new(false));
            let remover = {
                let started = started.clone();
                std::thread::spawn(move || {
                    while !started.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    device.remove();
                })
            };
            let (mut issued, mut ended, mut refused) = (0u64, 0u64, false);
            let mut completed = Vec::new();
            while !refused || ended < issued {
                for _ in 0..16 {
                    let offset = issued % 200 * 4096;
                    let odd = (issued % 3 == 0) as u64 * 5;
                    let (buffer, token) = (Buffer::zeroed(4096), Token::new(issued));
                    if issued % 2 == 0 || refused {
                        if refused {
                            break;
                        }
                        reactor.read_at(&staying, buffer, offset + odd, token).unwrap();
                        issued += 1;
                        continue;
                    }
                    match reactor.read_at(&leaving, buffer, offset + odd, token) {
                        Ok(()) => issued += 1,
                        Err(error) => {
                            assert_eq!(error.error, Errno::NODEV, "{queue}");
                            refused = true;
                        }
                    }
                }
                started.store(true, Ordering::Release);
                reactor.reap(1, Some(Duration::from_secs(20)), &mut completed).unwrap();
                let is_woken = !completed.is_empty() || ended == issued;
                assert!(is_woken, "{queue}, round {round}: nothing came in 20 seconds");
                for completed in completed.drain(..) {
                    ended += 1;
                    let fine = completed.result() == Ok(4096)
                        || completed.result() == Err(Errno::NODEV)
                            && completed.token().get() % 2 == 1;
                    assert!(fine, "{queue}, round {round}: {completed:?}");
                }
            }
            remover.join().unwrap();
            assert_eq!(ended, issued, "{queue}, round {round}");
        }
    }
}
