//! Chooses a queue by measurement: a few milliseconds of reads over each queue that
//! works here. The result comes with one sentence that gives the reason.
//!
//! It only reads, since the device may contain data.

use std::fmt;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{ReadWriteFlags, pread, preadv2};
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_errno::Errno;

use crate::clock::Clock;
use crate::inner::DeviceInner;
use crate::interface::backend::KernelTarget;
use crate::interface::kind::QueueKind;
use crate::interface::queue::{Queue, Ready};
use crate::queue::choice::{MIN_ROUNDS, choose, reason};
use crate::queue::scheduling::{ScheduledTime, SchedulerAccount};
use crate::request::{Op, Payload, Progress, Request, StepCompletion, Tag};

pub use crate::interface::calibration::{
    Calibration, CalibrationOptions, DEPTHS, QueueSamples, RoundSample,
};
pub use crate::queue::choice::rate_of_calls;

/// The size of a read in bytes, unless the device's blocks are larger.
const READ_SIZE: u64 = 4096;
/// The number of rounds without a disturbance that is enough.
const ENOUGH_ROUNDS: usize = 7;
/// The most rounds.
const MAX_ROUNDS: usize = 11;
/// On a slow device, rounds up to the number that can prove something may take this multiple of the time.
const MAX_EXTENSION: u32 = 12;
/// The most reads in one measurement.
const MAX_READS: u64 = 1 << 14;
/// A queue that completes nothing for this long counts as failing.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);
/// A read that takes this long in a call has slept.
const MAX_CALL: Duration = Duration::from_millis(20);
/// A measurement is disturbed if the thread waited for a processor for more than this part of its time.
const MAX_DELAY: f64 = 0.25;
/// The number of reads that test whether reads sleep, and the number of sleeps from which on they do.
const PROBE_READS: u64 = 16;
const MIN_SLEEPS: u64 = 4;

/// A queue to measure, which is dropped afterwards.
pub struct Candidate {
    /// The kind of the queue.
    pub kind: QueueKind,
    /// An empty queue of this kind, with a depth of at least 32.
    pub queue: Box<dyn Queue>,
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Candidate").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Support of a device for `RWF_NOWAIT`, with which io_uring first tries each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NowaitSupport {
    /// Requests with `RWF_NOWAIT` are accepted.
    Supported,
    /// The driver refuses them: io_uring passes each request to a worker thread.
    Refused,
    /// Unknown: the device has no descriptor, or uses the page cache.
    Unknown,
}

/// Tests whether the device's driver accepts requests with `RWF_NOWAIT`.
pub fn probe_nowait(core: &DeviceInner) -> NowaitSupport {
    let geometry = core.geometry();
    let KernelTarget::Descriptor(fd) = core.backend().kernel_target() else {
        return NowaitSupport::Unknown;
    };
    let length = READ_SIZE.max(geometry.block_size as u64);
    let blocks = geometry.size / length;
    if !geometry.direct || blocks == 0 {
        return NowaitSupport::Unknown;
    }
    let mut buffer = Buffer::zeroed(length as usize);
    // A busy device also returns EAGAIN, but not every time.
    let mut results = (0..16).map(|attempt| {
        let address = blocks / 16 * attempt * length;
        // Writes back the dirty pages of the range. With them the next read would return EAGAIN.
        pread(fd, &mut buffer[..], address)?;
        preadv2(fd, &mut [IoSliceMut::new(&mut buffer)], address, ReadWriteFlags::NOWAIT)
    });
    let refusal = |error| matches!(Errno::from(error), Errno::AGAIN | Errno::OPNOTSUPP);
    match results.try_for_each(|result| match result {
        Err(error) if refusal(error) => Ok(()),
        result => Err(result.is_ok()),
    }) {
        Ok(()) => NowaitSupport::Refused,
        Err(true) => NowaitSupport::Supported,
        Err(false) => NowaitSupport::Unknown,
    }
}

/// Whether a read of a device makes the calling thread sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepProbe {
    /// It does, or may: the page cache need not have the bytes.
    Sleeps,
    /// The call completes the read.
    Completes,
    /// The kernel has no account of the thread.
    Unknown,
}

/// Tests whether reads of the device sleep. One that did would hold up everything else that a reactor does.
pub fn probe_sleep(core: &DeviceInner) -> SleepProbe {
    let fd = match core.backend().kernel_target() {
        KernelTarget::Descriptor(fd) => fd,
        // Each is a call that waits for the controller.
        KernelTarget::Nvme(..) => return SleepProbe::Sleeps,
        KernelTarget::Nop | KernelTarget::InProcess => return SleepProbe::Completes,
    };
    let geometry = core.geometry();
    if !geometry.direct {
        return SleepProbe::Sleeps;
    }
    let length = READ_SIZE.max(geometry.block_size as u64);
    let blocks = core.size() / length;
    let account = SchedulerAccount::of_this_thread();
    let mut buffer = Buffer::zeroed(length as usize);
    let Some(before) = account.read() else { return SleepProbe::Unknown };
    for number in 0..PROBE_READS {
        let began = Instant::now();
        if pread(fd, &mut buffer[..], blocks * number / PROBE_READS * length).is_err() {
            return SleepProbe::Unknown;
        }
        if began.elapsed() > MAX_CALL {
            // A second one could hold up the thread for as long.
            return SleepProbe::Sleeps;
        }
        // A lost processor counts as a sleep, too. A machine on which that happens so often in so few reads is too
        // busy to measure small gains.
        if account.read().is_some_and(|now| now.runs >= before.runs + MIN_SLEEPS) {
            return SleepProbe::Sleeps;
        }
    }
    SleepProbe::Completes
}

/// The time that a calibration takes.
#[derive(Clone, Copy, Debug)]
pub struct CalibrationTime {
    /// About the time in total; more on a busy machine, and on a device with slow reads.
    pub budget: Duration,
    /// At this time, if there is one, what was measured until then must do. Only a read in a call may last longer.
    pub deadline: Option<Instant>,
}

/// Reads through each candidate at each of [`DEPTHS`], and chooses by the rule of `choice.rs`. Candidates come in the order
/// of preference. `None` if no read has completed before the deadline.
///
/// # Panics
/// Without a candidate.
pub fn calibrate(
    core: &Arc<DeviceInner>,
    candidates: Vec<Candidate>,
    clock: &Clock,
    time: CalibrationTime,
) -> Option<Calibration> {
    assert!(!candidates.is_empty(), "there is no candidate");
    let unmeasured = |kind: QueueKind, why: &str| {
        Some(Calibration { kind, reason: format!("{kind}: {why}"), measured: Vec::new() })
    };
    let preferred = candidates[0].kind;
    if candidates.len() == 1 {
        return unmeasured(preferred, "no other queue works here");
    }
    let length = READ_SIZE.max(core.geometry().block_size as u64);
    if core.size() < length {
        return unmeasured(preferred, "the device is too small to measure");
    }
    let measured = match measure(core, candidates, clock, time, length) {
        Ok(measured) => measured,
        Err(OutOfTime { first: Some(kind) }) => {
            return unmeasured(kind, "the device is too slow now to measure other queues");
        }
        Err(OutOfTime { first: None }) => return None,
    };
    let choice = choose(&measured);
    let mut reason = reason(&measured, &choice);
    if probe_nowait(core) == NowaitSupport::Refused {
        reason.push_str(
            "; the driver refuses NOWAIT, so io_uring would pass every request to a worker thread",
        );
    }
    Some(Calibration { kind: measured[choice.index].kind, reason, measured })
}

/// The deadline was over before the first round was.
struct OutOfTime {
    /// The first queue that completed a read.
    first: Option<QueueKind>,
}

/// The samples of each candidate, over rounds in which each is measured once.
fn measure(
    core: &Arc<DeviceInner>,
    mut candidates: Vec<Candidate>,
    clock: &Clock,
    CalibrationTime { budget, deadline }: CalibrationTime,
    length: u64,
) -> Result<Vec<QueueSamples>, OutOfTime> {
    let mut meter = RateMeter {
        core,
        clock,
        deadline,
        length,
        buffers: buffers(length as usize),
        state: 0x2545_f491_4f6c_dd1d,
        account: SchedulerAccount::of_this_thread(),
    };
    let slice = budget / (ENOUGH_ROUNDS * candidates.len() * DEPTHS.len()) as u32;
    let mut measured: Vec<_> = candidates
        .iter()
        .map(|candidate| QueueSamples { kind: candidate.kind, rounds: Vec::new() })
        .collect();
    let mut first = None;
    for candidate in &mut candidates {
        // A warm-up that starts threads and touches memory; not counted.
        if meter.rate(&mut *candidate.queue, 1, Duration::ZERO) > 0.0 {
            first = first.or(Some(candidate.kind));
        }
    }
    let began = clock.now();
    for round in 0..MAX_ROUNDS {
        let elapsed = clock.now().saturating_duration_since(began);
        let is_undisturbed =
            |round: &usize| measured.iter().all(|queue| !queue.rounds[*round].is_disturbed);
        let undisturbed = (0..round).filter(is_undisturbed).count();
        if undisturbed >= ENOUGH_ROUNDS
            || undisturbed >= MIN_ROUNDS && elapsed > 2 * budget
            || round > 0 && elapsed > MAX_EXTENSION * budget
        {
            break;
        }
        // Another one is the first in each round: what one leaves behind, such as threads that still look for work,
        // does not always meet the same one.
        for number in 0..candidates.len() {
            let index = (round + number) % candidates.len();
            let sample = meter.sample(&mut candidates[index], slice);
            measured[index].rounds.push(sample);
        }
        if meter.is_late() {
            measured.iter_mut().for_each(|queue| queue.rounds.truncate(round));
            break;
        }
    }
    if measured[0].rounds.is_empty() { Err(OutOfTime { first }) } else { Ok(measured) }
}

/// Buffers of a pool if possible, as fast programs use.
fn buffers(length: usize) -> Vec<Buffer> {
    match BufferPool::new(length, DEPTHS[1]) {
        Ok(pool) => std::iter::from_fn(|| pool.get()).collect(),
        Err(_) => (0..DEPTHS[1]).map(|_| Buffer::zeroed(length)).collect(),
    }
}

struct RateMeter<'a> {
    core: &'a Arc<DeviceInner>,
    clock: &'a Clock,
    deadline: Option<Instant>,
    length: u64,
    buffers: Vec<Buffer>,
    /// The state of the random number generator for addresses (xorshift64).
    state: u64,
    account: SchedulerAccount,
}

impl RateMeter<'_> {
    /// The rates of a candidate at each depth, in a slice of time each.
    fn sample(&mut self, candidate: &mut Candidate, slice: Duration) -> RoundSample {
        let queue = &mut *candidate.queue;
        let (before, began) = (self.account.read(), Instant::now());
        let alone = self.rate(queue, DEPTHS[0], slice);
        // The sync queue works on one request at a time at any depth. On a slow
        // device measuring it would only cost time.
        let is_slow =
            candidate.kind == QueueKind::Sync && alone * slice.as_secs_f64() < DEPTHS[1] as f64;
        let deep = if is_slow { alone } else { self.rate(queue, DEPTHS[1], slice) };
        let elapsed = began.elapsed();
        let is_disturbed = match (self.clock, before, self.account.read()) {
            // Nothing on this machine disturbs virtual time.
            (Clock::Virtual(_), ..) => false,
            (Clock::System, Some(before), Some(after)) => is_disturbed(before, after, elapsed),
            _ => false,
        };
        RoundSample { rates: [alone, deep], is_disturbed }
    }

    fn request(&mut self, buffer: Buffer) -> Request {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let blocks = self.core.size() / self.length;
        let address = self.state % blocks * self.length;
        Request::new(self.core.index(), Op::Read, address, Payload::Buffer(buffer), Tag(0))
    }

    /// True after the deadline: the last rate counts no more, and others are 0.
    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.clock.now() > deadline)
    }

    /// How long to wait for a completion that may never come.
    fn stall_timeout(&self) -> Duration {
        let remaining = |deadline: Instant| deadline.saturating_duration_since(self.clock.now());
        self.deadline.map_or(STALL_TIMEOUT, |deadline| remaining(deadline).min(STALL_TIMEOUT))
    }

    /// Reads per second at this depth; 0 when reads fail or do not complete. As in use, a read that a signal interrupts or
    /// that ends short goes on, and one that is refused for now is repeated a number of times.
    fn rate(&mut self, queue: &mut dyn Queue, depth: usize, slice: Duration) -> f64 {
        let bounds = self.core.bounds();
        let began = self.clock.now();
        let mut last = began;
        let (mut reads, mut going) = (0, true);
        let mut unfinished: Vec<Request> = Vec::new();
        loop {
            if self.is_late() {
                return 0.0;
            }
            while let Some(request) = unfinished.pop() {
                if queue.push(request).is_err() {
                    return 0.0;
                }
            }
            while going && queue.in_flight() < depth {
                let buffer = self.buffers.pop();
                let buffer = buffer.unwrap_or_else(|| Buffer::zeroed(self.length as usize));
                let request = self.request(buffer);
                if queue.push(request).is_err() {
                    return 0.0;
                }
            }
            if queue.submit().is_err() {
                return 0.0;
            }
            let before = reads;
            while let Some(StepCompletion { mut request, result }) = queue.reap() {
                match request.advance(result, bounds) {
                    Progress::Again => {
                        unfinished.push(request);
                        continue;
                    }
                    Progress::Done(Ok(moved)) if moved == self.length => reads += 1,
                    Progress::Done(_) => return 0.0,
                }
                if let Payload::Buffer(buffer) = request.payload {
                    self.buffers.push(buffer);
                }
            }
            let now = self.clock.now();
            if !going && queue.in_flight() + unfinished.len() == 0 {
                let elapsed = (now - began).max(Duration::from_nanos(1));
                return reads as f64 / elapsed.as_secs_f64();
            }
            if reads > before {
                last = now;
                going &= now - began < slice && reads < MAX_READS;
            } else if now - last > STALL_TIMEOUT
                || unfinished.is_empty() && !wait(queue.ready(), self.clock, self.stall_timeout())
            {
                return 0.0;
            }
        }
    }
}

/// Waits until there may be something to reap, or for about `timeout`. False if there never will be.
fn wait(ready: Ready<'_>, clock: &Clock, timeout: Duration) -> bool {
    match (ready, clock) {
        (Ready::Now, _) => true,
        (Ready::Never, _) => false,
        (Ready::At(time), Clock::Virtual(clock)) => {
            clock.advance_to(time);
            true
        }
        (Ready::At(time), Clock::System) => {
            std::thread::sleep(time.saturating_duration_since(clock.now()));
            true
        }
        (Ready::Readable(fd) | Ready::ReadableOrAt(fd, _), _) => {
            let timeout = Timespec {
                tv_sec: timeout.as_secs() as i64,
                tv_nsec: timeout.subsec_nanos().into(),
            };
            let polled = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
            matches!(polled.map_err(Errno::from), Ok(_) | Err(Errno::INTR))
        }
    }
}

/// True if the thread waited for a processor for a good part of the `elapsed` time.
fn is_disturbed(before: ScheduledTime, after: ScheduledTime, elapsed: Duration) -> bool {
    after.delay.saturating_sub(before.delay) > elapsed.mul_f64(MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU64, Ordering};

    use uringfs_ring::nvme::Namespace;

    use super::*;
    use crate::backend::file::File;
    use crate::backend::memory::Memory;
    use crate::interface::backend::Backend;
    use crate::queue::sync::SyncQueue;
    use crate::queue::threads::ThreadsQueue;
    use crate::{Device, Geometry, VirtualClock};

    #[test]
    fn memory_gets_the_sync_queue() {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let core = device.core();
        let candidates = vec![
            Candidate { kind: QueueKind::Sync, queue: Box::new(SyncQueue::new(core.clone(), 32)) },
            Candidate {
                kind: QueueKind::Threads,
                queue: Box::new(ThreadsQueue::new(core.clone(), 32, 2).unwrap()),
            },
        ];
        let time = CalibrationTime { budget: Duration::from_millis(4), deadline: None };
        let calibration = calibrate(core, candidates, &Clock::System, time).unwrap();
        assert_eq!(calibration.kind, QueueKind::Sync, "{}", calibration.reason);
        assert!(calibration.reason.contains("against threads"), "{}", calibration.reason);
        let rounds: Vec<_> = calibration.measured.iter().map(|queue| queue.rounds.len()).collect();
        assert!(rounds.len() == 2 && rounds[0] == rounds[1], "{rounds:?}");
        assert!((1..=MAX_ROUNDS).contains(&rounds[0]), "{rounds:?}");
    }

    #[test]
    fn nowait_support_is_unknown_without_a_descriptor() {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        assert_eq!(probe_nowait(device.core()), NowaitSupport::Unknown);
    }

    #[test]
    fn memory_never_sleeps_and_the_page_cache_may() {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        assert_eq!(probe_sleep(device.core()), SleepProbe::Completes);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd");
        std::fs::write(&path, [1; 5000]).unwrap();
        let file = File::open(&path, crate::Access::Read).unwrap();
        let device = Device::new(file).unwrap();
        assert!(!device.geometry().direct, "a file that ends inside a block");
        assert_eq!(probe_sleep(device.core()), SleepProbe::Sleeps);
    }

    /// Memory that claims to be a namespace.
    struct FakeNamespace {
        character_device: std::fs::File,
        memory: Memory,
    }

    impl Backend for FakeNamespace {
        fn geometry(&self) -> &Geometry {
            self.memory.geometry()
        }

        fn description(&self) -> String {
            "a fake namespace".into()
        }

        fn kernel_target(&self) -> KernelTarget<'_> {
            let namespace = Namespace {
                id: 1,
                block_shift: 9,
                max_transfer: 4096,
                size: 1 << 20,
                read_only: false,
                volatile_cache: true,
            };
            KernelTarget::Nvme(self.character_device.as_fd(), namespace)
        }

        fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
            self.memory.perform(request)
        }
    }

    #[test]
    fn reads_of_a_namespace_sleep() {
        let character_device = std::fs::File::open("/dev/null").unwrap();
        let memory = Memory::new(1 << 20).unwrap();
        let device = Device::new(FakeNamespace { character_device, memory }).unwrap();
        assert_eq!(probe_sleep(device.core()), SleepProbe::Sleeps);
    }

    #[test]
    fn a_measurement_is_disturbed_if_the_thread_waited_for_long() {
        let account = |us| ScheduledTime { delay: Duration::from_micros(us), runs: 1 };
        let elapsed = Duration::from_micros(400);
        assert!(!is_disturbed(account(1000), account(1100), elapsed));
        assert!(is_disturbed(account(1000), account(1101), elapsed));
    }

    /// Reads take a time in virtual time. Of each three, one is interrupted, one ends short, and one is complete.
    struct Unsteady {
        memory: Memory,
        clock: VirtualClock,
        read_time: Duration,
        reads: AtomicU64,
    }

    impl Backend for Unsteady {
        fn geometry(&self) -> &Geometry {
            self.memory.geometry()
        }

        fn description(&self) -> String {
            "unsteady".into()
        }

        fn kernel_target(&self) -> KernelTarget<'_> {
            KernelTarget::InProcess
        }

        fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
            let now = Clock::Virtual(self.clock.clone()).now();
            self.clock.advance_to(now + self.read_time);
            match self.reads.fetch_add(1, Ordering::Relaxed) % 3 {
                0 => Err(Errno::INTR),
                1 => Ok(512.min(request.remaining() as u32)),
                _ => Ok(request.remaining() as u32),
            }
        }
    }

    /// Measures two queues of a device whose reads take this time, until a deadline at 100 ms.
    fn measure_unsteady(read_time: Duration) -> Option<Calibration> {
        let clock = VirtualClock::default();
        let (memory, reads) = (Memory::new(1 << 20).unwrap(), AtomicU64::new(0));
        let device = Unsteady { memory, clock: clock.clone(), read_time, reads };
        let device = Device::new(device).unwrap();
        let candidates = [QueueKind::Sync, QueueKind::Threads].map(|kind| {
            let queue = Box::new(SyncQueue::new(device.core().clone(), 32));
            Candidate { kind, queue }
        });
        let clock = Clock::Virtual(clock);
        let deadline = Some(clock.now() + Duration::from_millis(100));
        let time = CalibrationTime { budget: Duration::from_millis(8), deadline };
        calibrate(device.core(), candidates.into(), &clock, time)
    }

    #[test]
    fn interrupted_and_short_reads_exclude_no_queue() {
        let calibration = measure_unsteady(Duration::from_micros(3)).unwrap();
        let samples = calibration.measured.iter().flat_map(|queue| &queue.rounds);
        let rates: Vec<f64> = samples.flat_map(|round| round.rates).collect();
        assert!(!rates.is_empty() && rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
        assert!(!calibration.reason.contains("failing"), "{}", calibration.reason);
    }

    #[test]
    fn without_a_round_before_the_deadline_the_first_queue_with_a_read_is_taken() {
        // Three steps are a read.
        let calibration = measure_unsteady(Duration::from_millis(20)).unwrap();
        assert_eq!((calibration.kind, calibration.measured.len()), (QueueKind::Sync, 0));
        assert!(calibration.reason.contains("too slow now"), "{}", calibration.reason);
        assert!(measure_unsteady(Duration::from_millis(60)).is_none());
    }

    #[test]
    fn an_empty_device_is_not_measured() {
        let device = Device::new(Memory::new(0).unwrap()).unwrap();
        let sync =
            |kind| Candidate { kind, queue: Box::new(SyncQueue::new(device.core().clone(), 32)) };
        let candidates = vec![sync(QueueKind::Ring), sync(QueueKind::Sync)];
        let time = CalibrationTime { budget: Duration::ZERO, deadline: None };
        let calibration = calibrate(device.core(), candidates, &Clock::System, time).unwrap();
        assert_eq!((calibration.kind, calibration.measured.len()), (QueueKind::Ring, 0));
    }
}
