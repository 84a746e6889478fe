//! Chooses a queue by measurement: a few milliseconds of reads over each queue that
//! works here. The result comes with one sentence that gives the reason.
//!
//! It only reads, since the device may contain data.

use std::fmt;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{ReadWriteFlags, pread, preadv2};
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_errno::Errno;

use crate::clock::Clock;
use crate::inner::DeviceInner;
use crate::interface::backend::KernelTarget;
use crate::interface::kind::QueueKind;
use crate::interface::queue::{Queue, Ready};
use crate::request::{Op, Payload, Request, StepCompletion, Tag};

pub use crate::interface::calibration::Calibration;

/// The measured depths.
pub const DEPTHS: [usize; 2] = [1, 32];

/// The size of a read in bytes, unless the device's blocks are larger.
const READ_SIZE: u64 = 4096;
/// The most rounds. An odd number, so that the median is one of the measurements.
const MAX_ROUNDS: u32 = 7;
/// The most reads in one measurement.
const MAX_READS: u64 = 1 << 14;
/// A queue that completes nothing for this long counts as failing.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);
/// A rate of at least this part of the best at a depth is good enough there.
const NEAR_BEST: f64 = 0.9;
/// Rates of the ring count so many times. It names registered files and memory, polls, and waits for sockets, so another
/// queue must be clearly faster to be chosen.
const RING_WEIGHT: f64 = 1.05;

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

/// Reads through each candidate at each of [`DEPTHS`], for about `budget` in
/// total (longer on a device with slow reads). Chooses the best over all depths
/// among the candidates that are near the best at every depth. Another queue than the ring is chosen only if it is 5 %
/// faster.
///
/// # Panics
/// Without a candidate.
pub fn calibrate(
    core: &Arc<DeviceInner>,
    candidates: Vec<Candidate>,
    clock: &Clock,
    budget: Duration,
) -> Calibration {
    assert!(!candidates.is_empty(), "there is no candidate");
    let kinds: Vec<_> = candidates.iter().map(|candidate| candidate.kind).collect();
    if let [kind] = kinds[..] {
        let reason = format!("{kind}: no other queue works here");
        return Calibration { kind, reason, rates: Vec::new() };
    }
    let length = READ_SIZE.max(core.geometry().block_size as u64);
    if core.size() < length {
        let reason = format!("{}: the device is too small to measure", kinds[0]);
        return Calibration { kind: kinds[0], reason, rates: Vec::new() };
    }
    let measured = measure(core, candidates, clock, budget, length);
    let chosen = choose(&weighted(&kinds, &measured));
    let rates = kinds.iter().zip(&measured).flat_map(|(kind, rates)| {
        DEPTHS.iter().zip(rates).map(|(depth, rate)| (*kind, *depth, *rate))
    });
    let reason = reason(&kinds, &measured, chosen, probe_nowait(core));
    Calibration { kind: kinds[chosen], reason, rates: rates.collect() }
}

/// Reads per second at each depth.
type Rates = [f64; DEPTHS.len()];

/// The median rates of each candidate, over rounds in which each is measured once.
fn measure(
    core: &Arc<DeviceInner>,
    mut candidates: Vec<Candidate>,
    clock: &Clock,
    budget: Duration,
    length: u64,
) -> Vec<Rates> {
    let mut meter = RateMeter {
        core,
        clock,
        length,
        buffers: buffers(length as usize),
        state: 0x2545_f491_4f6c_dd1d,
    };
    let slices = MAX_ROUNDS * (candidates.len() * DEPTHS.len()) as u32;
    let slice = budget / slices;
    let mut seen = vec![[const { Vec::new() }; DEPTHS.len()]; candidates.len()];
    let began = clock.now();
    for round in 0..MAX_ROUNDS {
        if round > 0 && clock.now().saturating_duration_since(began) > budget {
            break;
        }
        for (candidate, seen) in candidates.iter_mut().zip(&mut seen) {
            let queue = &mut *candidate.queue;
            if round == 0 {
                // A warm-up that starts threads and touches memory; not counted.
                meter.rate(queue, 1, Duration::ZERO);
            }
            let alone = meter.rate(queue, DEPTHS[0], slice);
            seen[0].push(alone);
            // The sync queue works on one request at a time at any depth. On a slow
            // device measuring it would only cost time.
            let slow =
                candidate.kind == QueueKind::Sync && alone * slice.as_secs_f64() < DEPTHS[1] as f64;
            seen[1].push(if slow { alone } else { meter.rate(queue, DEPTHS[1], slice) });
        }
    }
    seen.into_iter().map(|rates| rates.map(median)).collect()
}

/// Buffers of a pool if possible, as fast programs use.
fn buffers(length: usize) -> Vec<Buffer> {
    match BufferPool::new(length, DEPTHS[1]) {
        Ok(pool) => std::iter::from_fn(|| pool.get()).collect(),
        Err(_) => (0..DEPTHS[1]).map(|_| Buffer::zeroed(length)).collect(),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct RateMeter<'a> {
    core: &'a Arc<DeviceInner>,
    clock: &'a Clock,
    length: u64,
    buffers: Vec<Buffer>,
    /// The state of the random number generator for addresses (xorshift64).
    state: u64,
}

impl RateMeter<'_> {
    fn request(&mut self, buffer: Buffer) -> Request {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let blocks = self.core.size() / self.length;
        let address = self.state % blocks * self.length;
        Request::new(self.core.index(), Op::Read, address, Payload::Buffer(buffer), Tag(0))
    }

    /// Reads per second at this depth; 0 when reads fail or do not complete.
    fn rate(&mut self, queue: &mut dyn Queue, depth: usize, slice: Duration) -> f64 {
        let began = self.clock.now();
        let mut last = began;
        let (mut reads, mut going) = (0, true);
        loop {
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
            while let Some(StepCompletion { request, result }) = queue.reap() {
                if let Payload::Buffer(buffer) = request.payload {
                    self.buffers.push(buffer);
                }
                if result != Ok(self.length as u32) {
                    return 0.0;
                }
                reads += 1;
            }
            let now = self.clock.now();
            if !going && queue.in_flight() == 0 {
                let elapsed = (now - began).max(Duration::from_nanos(1));
                return reads as f64 / elapsed.as_secs_f64();
            }
            if reads > before {
                last = now;
                going &= now - began < slice && reads < MAX_READS;
            } else if now - last > STALL_TIMEOUT || !wait(queue.ready(), self.clock) {
                return 0.0;
            }
        }
    }
}

/// Waits until there may be something to reap. False if there never will be.
fn wait(ready: Ready<'_>, clock: &Clock) -> bool {
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
            let timeout = Timespec { tv_sec: STALL_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
            let polled = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
            matches!(polled.map_err(Errno::from), Ok(_) | Err(Errno::INTR))
        }
    }
}

/// The rates with the weight of the ring.
fn weighted(kinds: &[QueueKind], rates: &[Rates]) -> Vec<Rates> {
    let weight = |kind: &QueueKind| if *kind == QueueKind::Ring { RING_WEIGHT } else { 1.0 };
    kinds.iter().zip(rates).map(|(kind, rates)| rates.map(|rate| rate * weight(kind))).collect()
}

/// The best by the geometric mean of its ratios to the best at each depth. Prefers
/// candidates that are near the best at every depth.
fn choose(rates: &[Rates]) -> usize {
    let best: Vec<f64> = (0..DEPTHS.len())
        .map(|depth| rates.iter().map(|rates| rates[depth]).fold(f64::MIN_POSITIVE, f64::max))
        .collect();
    let ratios = |rates: &Rates| {
        let mut ratios = *rates;
        for (ratio, best) in ratios.iter_mut().zip(&best) {
            *ratio /= best;
        }
        ratios
    };
    let rank = |rates: &Rates| {
        let ratios = ratios(rates);
        let near = ratios.iter().all(|ratio| *ratio >= NEAR_BEST);
        (near, ratios.iter().product::<f64>())
    };
    let better = |one: &(bool, f64), other: &(bool, f64)| {
        one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
    };
    let ranked = rates.iter().map(rank).enumerate();
    // The first of equals: candidates are in order of preference.
    ranked.rev().max_by(|one, other| better(&one.1, &other.1)).map_or(0, |(index, _)| index)
}

fn reason(kinds: &[QueueKind], rates: &[Rates], chosen: usize, nowait: NowaitSupport) -> String {
    let rates_text = |index: usize| {
        let [shallow, deep] = rates[index];
        format!("{} and {}", thousands(shallow), thousands(deep))
    };
    let others = (0..kinds.len()).filter(|index| *index != chosen).map(|index| {
        let failed = rates[index] == [0.0; DEPTHS.len()];
        let text = if failed { "failing".into() } else { rates_text(index) };
        format!("{} {text}", kinds[index])
    });
    let mut text = format!(
        "{} does {} reads per second at depths {} and {}, against {}",
        kinds[chosen],
        rates_text(chosen),
        DEPTHS[0],
        DEPTHS[1],
        others.collect::<Vec<_>>().join(", "),
    );
    let overall = |rates: &Rates| rates.iter().product::<f64>();
    if rates.iter().any(|other| overall(other) > overall(&rates[chosen]))
        && kinds[chosen] == QueueKind::Ring
    {
        text.push_str("; another queue must be 5 % faster");
    }
    if nowait == NowaitSupport::Refused {
        text.push_str(
            "; the driver refuses NOWAIT, so io_uring would pass every request to a worker thread",
        );
    }
    text
}

fn thousands(rate: f64) -> String {
    if rate < 10_000.0 { format!("{rate:.0}") } else { format!("{:.0} k", rate / 1000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::backend::memory::Memory;
    use crate::queue::sync::SyncQueue;
    use crate::queue::threads::ThreadsQueue;

    #[test]
    fn the_best_overall_queue_is_chosen() {
        assert_eq!(choose(&[[1.0, 10.0], [1.0, 9.9], [0.2, 2.0]]), 0);
        assert_eq!(choose(&[[0.1, 0.1], [10.0, 9.0]]), 1);
    }

    #[test]
    fn a_queue_far_behind_at_one_depth_is_avoided() {
        // The first is the best overall, but at depth 1 it is a third slower.
        assert_eq!(choose(&[[67.0, 200.0], [100.0, 100.0], [95.0, 185.0]]), 2);
        assert_eq!(choose(&[[67.0, 200.0], [100.0, 100.0]]), 0);
    }

    #[test]
    fn another_queue_than_the_ring_must_be_5_percent_faster() {
        let kinds = [QueueKind::Ring, QueueKind::Aio, QueueKind::Sync];
        let chosen = |aio| choose(&weighted(&kinds, &[[100.0, 400.0], aio, [90.0, 90.0]]));
        assert_eq!(chosen([101.0, 404.0]), 0);
        assert_eq!(chosen([104.0, 416.0]), 0);
        assert_eq!(chosen([106.0, 424.0]), 1);
        // Clearly faster at one depth, and no slower at the other.
        assert_eq!(chosen([100.0, 450.0]), 1);
        let rates = [[100.0, 400.0], [104.0, 416.0]];
        assert_eq!(
            reason(&kinds[..2], &rates, 0, NowaitSupport::Supported),
            "ring does 100 and 400 reads per second at depths 1 and 32, against aio 104 and 416; \
             another queue must be 5 % faster"
        );
    }

    #[test]
    fn the_first_of_equal_queues_is_chosen_even_if_all_fail() {
        assert_eq!(choose(&[[1.0, 1.0], [1.0, 1.0]]), 0);
        assert_eq!(choose(&[[0.0, 0.0], [0.0, 0.0]]), 0);
    }

    #[test]
    fn memory_gets_the_sync_queue() {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let core = device.core();
        let candidates = vec![
            Candidate {
                kind: QueueKind::Threads,
                queue: Box::new(ThreadsQueue::new(core.clone(), 32, 2).unwrap()),
            },
            Candidate { kind: QueueKind::Sync, queue: Box::new(SyncQueue::new(core.clone(), 32)) },
        ];
        let calibration = calibrate(core, candidates, &Clock::System, Duration::from_millis(4));
        assert_eq!(calibration.kind, QueueKind::Sync, "{}", calibration.reason);
        assert_eq!(calibration.rates.len(), 4);
        assert!(calibration.reason.contains("against threads"), "{}", calibration.reason);
    }

    #[test]
    fn nowait_support_is_unknown_without_a_descriptor() {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        assert_eq!(probe_nowait(device.core()), NowaitSupport::Unknown);
    }

    #[test]
    fn the_reason_names_a_driver_that_refuses_nowait() {
        let kinds = [QueueKind::Sync, QueueKind::Ring];
        let rates = [[676_000.0, 670_000.0], [19_000.0, 0.0]];
        assert_eq!(
            reason(&kinds, &rates, 0, NowaitSupport::Refused),
            "sync does 676 k and 670 k reads per second at depths 1 and 32, against ring 19 k and 0; \
             the driver refuses NOWAIT, so io_uring would pass every request to a worker thread"
        );
    }

    #[test]
    fn an_empty_device_is_not_measured() {
        let device = Device::new(Memory::new(0).unwrap()).unwrap();
        let sync =
            |kind| Candidate { kind, queue: Box::new(SyncQueue::new(device.core().clone(), 32)) };
        let candidates = vec![sync(QueueKind::Ring), sync(QueueKind::Sync)];
        let calibration = calibrate(device.core(), candidates, &Clock::System, Duration::ZERO);
        assert_eq!((calibration.kind, calibration.rates.len()), (QueueKind::Ring, 0));
    }
}
