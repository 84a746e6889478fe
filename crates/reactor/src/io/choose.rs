//! Chooses the queue that carries a device's requests, and gives the reason.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use uringfs_device::queue::QueueKind;
use uringfs_device::queue::aio::AioQueue;
use uringfs_device::queue::calibrate::{
    Calibration, CalibrationOptions, CalibrationTime, Candidate, DEPTHS, NowaitSupport, SleepProbe,
    calibrate, probe_nowait, probe_sleep, rate_of_calls,
};
use uringfs_device::queue::ring::RingQueue;
use uringfs_device::queue::slowdown::SlowdownDetector;
use uringfs_device::queue::sync::SyncQueue;
use uringfs_device::queue::threads::ThreadsQueue;
use uringfs_device::{DeviceInner, KernelTarget, MeasuredCalibration, Queue};
use uringfs_ring::RingOptions;

use crate::io::route::QueueRoute;
use crate::options::{CompletionMode, ReactorOptions};

/// The maximum of threads for one device in queue `threads`.
const MAX_THREADS: usize = 64;

/// The time that calibration takes at the first use of a device.
const CALIBRATION_TIME: Duration = Duration::from_millis(8);

/// The most time to measure again, during which nothing else of the reactor goes on.
const MAX_TIME_AGAIN: Duration = Duration::from_millis(250);

/// The queue for a device as a route of the reactor, and the reason for the choice.
pub(crate) struct RoutedQueue {
    pub(crate) route: QueueRoute,
    pub(crate) kind: QueueKind,
    pub(crate) reason: String,
    /// The measurements by which it was chosen, if it was.
    pub(crate) measured: Option<MeasuredCalibration>,
    /// See [`Attachment::calls`](crate::io::attachment::Attachment::calls).
    pub(crate) calls: Option<SlowdownDetector>,
}

/// Chooses the queue for `device_inner`'s requests: the one that the options name, else by calibration. `nvme_ring` says whether
/// there is a ring for the device's commands; `None` if it takes none.
///
/// # Errors
/// When the queue that the options name cannot serve the device.
pub(crate) fn choose_queue(
    device_inner: &Arc<DeviceInner>,
    options: &ReactorOptions,
    ring: &Result<(), String>,
    polled: bool,
    nvme_ring: Option<io::Result<()>>,
) -> io::Result<RoutedQueue> {
    let depth = options.depth as usize;
    if let Some(queue) = device_inner.backend().own_queue(depth) {
        let reason = "the back end has a queue of its own".into();
        return Ok(own_queue(queue, QueueKind::Auto, reason));
    }
    let target = device_inner.backend().kernel_target();
    let no_nvme_ring = match (nvme_ring, options.queue) {
        (Some(Ok(())), QueueKind::Auto | QueueKind::Ring) => {
            let reason = "commands go to the controller without the block layer".into();
            return Ok(RoutedQueue {
                route: QueueRoute::Nvme,
                kind: QueueKind::Ring,
                reason,
                measured: None,
                calls: None,
            });
        }
        (Some(Err(why)), QueueKind::Ring) => return Err(why),
        // Without that ring each request is a call. Without the main one, too, the reason has it already.
        (Some(Err(why)), _) if ring.is_ok() => Some(why),
        _ => None,
    };
    let kind = match options.queue {
        QueueKind::Auto => {
            let mut chosen = choose_by_calibration(device_inner, options, ring, polled)?;
            if let Some(why) = no_nvme_ring {
                chosen.reason += &format!("; no ring for commands: {why}");
            }
            return Ok(chosen);
        }
        kind => kind,
    };
    if kind == QueueKind::Ring {
        if let Err(why) = ring {
            return Err(io::Error::new(io::ErrorKind::Unsupported, why.clone()));
        }
        if !is_ring_target(target) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{}: the kernel cannot reach it", device_inner.backend().description()),
            ));
        }
        return Ok(ring_queue(polled, "set by device.queue".into()));
    }
    Ok(own_queue(open(device_inner, kind, options)?, kind, "set by device.queue".into()))
}

/// True if the reactor's ring reads and writes it.
fn is_ring_target(target: KernelTarget<'_>) -> bool {
    matches!(target, KernelTarget::Descriptor(_) | KernelTarget::Nop)
}

fn ring_queue(polled: bool, reason: String) -> RoutedQueue {
    let route = if polled { QueueRoute::Polled } else { QueueRoute::Ring };
    RoutedQueue { route, kind: QueueKind::Ring, reason, measured: None, calls: None }
}

fn own_queue(queue: Box<dyn Queue>, kind: QueueKind, reason: String) -> RoutedQueue {
    RoutedQueue { route: QueueRoute::Own(queue), kind, reason, measured: None, calls: None }
}

fn open(
    device_inner: &Arc<DeviceInner>,
    kind: QueueKind,
    options: &ReactorOptions,
) -> io::Result<Box<dyn Queue>> {
    let depth = options.depth as usize;
    Ok(match kind {
        QueueKind::Aio => Box::new(AioQueue::new(device_inner.clone(), depth)?),
        QueueKind::Sync => Box::new(SyncQueue::new(device_inner.clone(), depth)),
        QueueKind::Threads => {
            Box::new(ThreadsQueue::new(device_inner.clone(), depth, depth.min(MAX_THREADS))?)
        }
        QueueKind::Ring | QueueKind::Auto => {
            let ring = RingOptions {
                transfers: options.depth.min(256),
                fixed_files: options.fixed_files,
                fixed_buffers: options.fixed_buffers,
                commands: options.commands,
                ..RingOptions::default()
            };
            // As a reactor uses its ring.
            Box::new(RingQueue::new(device_inner.clone(), &ring)?.waiting())
        }
    })
}

fn choose_by_calibration(
    device_inner: &Arc<DeviceInner>,
    options: &ReactorOptions,
    ring: &Result<(), String>,
    polled: bool,
) -> io::Result<RoutedQueue> {
    let reach = device_inner.backend().kernel_target();
    if polled && ring.is_ok() && is_ring_target(reach) {
        return Ok(ring_queue(true, "set by ring.polled".into()));
    }
    if matches!(reach, KernelTarget::Nop) && ring.is_ok() {
        return Ok(ring_queue(false, "requests that move no data are NOPs of the kernel".into()));
    }
    // With another queue the thread would wait for that in epoll, and be woken there for each command and each descriptor.
    let also = match options {
        ReactorOptions { commands: true, .. } => {
            Some("the ring carries the thread's commands, too")
        }
        ReactorOptions { serving: true, .. } => {
            Some("the ring waits for the thread's descriptors, too")
        }
        _ => None,
    };
    if let Some(also) = also
        && ring.is_ok()
        && probe_nowait(device_inner) == NowaitSupport::Supported
    {
        return Ok(ring_queue(false, also.into()));
    }
    choose_measured(device_inner, options, ring)
}

/// Chooses by the device's calibration, which is made now if it was not yet.
fn choose_measured(
    device_inner: &Arc<DeviceInner>,
    options: &ReactorOptions,
    ring: &Result<(), String>,
) -> io::Result<RoutedQueue> {
    let time = CalibrationTime { budget: CALIBRATION_TIME, deadline: None };
    let measure = || {
        measure(device_inner, options, ring.is_ok(), time)
            .expect("a calibration without a deadline has a result")
    };
    let device = device_inner.backend().description();
    let shared = device_inner.calibration(calibration_options(options, ring));
    let mut is_new = false;
    let found = shared.get_or_measure(&device, || {
        is_new = true;
        measure()
    });
    if is_new || suits(&found, device_inner) {
        return measured_queue(found, device_inner, options, ring);
    }
    let own = device_inner.leave_shared_calibration(calibration_options(options, ring));
    let found = own.get_or_measure(&device, measure);
    measured_queue(found, device_inner, options, ring)
}

/// Chooses again when a queue has become slow that was chosen by the calibration `old`. `None` while another thread measures
/// the device: it never waits for one. It measures for a bounded time.
///
/// # Errors
/// When the chosen queue cannot be opened.
pub(crate) fn choose_measured_again(
    old: &MeasuredCalibration,
    device_inner: &Arc<DeviceInner>,
    options: &ReactorOptions,
    ring: &Result<(), String>,
) -> io::Result<Option<RoutedQueue>> {
    let measure = || {
        let deadline = Some(options.clock.now() + MAX_TIME_AGAIN);
        let time = CalibrationTime { budget: CALIBRATION_TIME, deadline };
        measure(device_inner, options, ring.is_ok(), time).unwrap_or_else(|| {
            // The device is stalled: no queue helps.
            let old = (*old.calibration).clone();
            Calibration { reason: format!("{}; now no read has ended in time", old.reason), ..old }
        })
    };
    let device = device_inner.backend().description();
    let shared = device_inner.calibration(calibration_options(options, ring));
    let mut is_new = false;
    let found = shared.measure_again(old.times, &device, || {
        is_new = true;
        measure()
    });
    let Some(mut found) = found else { return Ok(None) };
    if !is_new && !suits(&found, device_inner) {
        let own = device_inner.leave_shared_calibration(calibration_options(options, ring));
        found = own.get_or_measure(&device, measure);
    }
    measured_queue(found, device_inner, options, ring).map(Some)
}

/// False if the calibration, which may be of another file, has chosen calls, and reads of this device sleep: a file may have
/// holes or cached bytes where another one has none.
fn suits(found: &MeasuredCalibration, device_inner: &DeviceInner) -> bool {
    found.calibration.kind != QueueKind::Sync || probe_sleep(device_inner) == SleepProbe::Completes
}

/// The queue that a calibration has chosen.
fn measured_queue(
    found: MeasuredCalibration,
    device_inner: &Arc<DeviceInner>,
    options: &ReactorOptions,
    ring: &Result<(), String>,
) -> io::Result<RoutedQueue> {
    let device = device_inner.backend().description();
    let mut reason = found.calibration.reason.clone();
    if found.device != device {
        reason = format!("{reason}; measured on {}, which is on the same storage", found.device);
    }
    if found.times > 1 {
        let again = found.times - 1;
        reason = format!(
            "{reason}; measured again ({again}x), since reads took over twice as long as measured"
        );
    }
    if let Err(why) = ring {
        reason = format!("{reason}; {why}");
    }
    let kind = found.calibration.kind;
    let rate = slowest_rate(&found.calibration, kind);
    let detector = |rate| SlowdownDetector::new(options.clock.clone(), rate);
    let chosen = match (kind, rate) {
        (QueueKind::Ring, _) => {
            let rate = rate_of_calls(&found.calibration.measured)
                .filter(|_| options.completion == CompletionMode::Inline)
                .filter(|_| probe_sleep(device_inner) == SleepProbe::Completes);
            if rate.is_some() {
                reason += "; a thread that waits for one read alone calls the kernel itself, which is faster";
            }
            RoutedQueue { calls: rate.map(detector), ..ring_queue(false, reason) }
        }
        (QueueKind::Sync, Some(rate)) => {
            let queue = SyncQueue::new(device_inner.clone(), options.depth as usize);
            own_queue(Box::new(queue.with_slowdown_detector(detector(rate))), kind, reason)
        }
        _ => own_queue(open(device_inner, kind, options)?, kind, reason),
    };
    Ok(RoutedQueue { measured: Some(found), ..chosen })
}

/// The options by which the calibration of a device is shared.
fn calibration_options(options: &ReactorOptions, ring: &Result<(), String>) -> CalibrationOptions {
    let ReactorOptions { fixed_files, fixed_buffers, commands, .. } = *options;
    CalibrationOptions { has_ring: ring.is_ok(), fixed_files, fixed_buffers, commands }
}

/// The lowest of the measured rates of a queue, in reads per second.
fn slowest_rate(calibration: &Calibration, kind: QueueKind) -> Option<f64> {
    let measured = calibration.measured.iter().find(|measured| measured.kind == kind)?;
    measured.medians().into_iter().min_by(f64::total_cmp)
}

/// Measures the queues that can serve the device.
fn measure(
    device_inner: &Arc<DeviceInner>,
    options: &ReactorOptions,
    has_ring: bool,
    time: CalibrationTime,
) -> Option<Calibration> {
    let reach = device_inner.backend().kernel_target();
    let mut candidates = Vec::new();
    // Deep enough for the depths of the calibration, whatever the options say.
    let depth = options.depth.max(2 * *DEPTHS.iter().max().unwrap_or(&1) as u32);
    let trial = ReactorOptions { depth, ..options.clone() };
    // In the order of preference.
    let mut offer = |kind| {
        if let Ok(queue) = open(device_inner, kind, &trial) {
            candidates.push(Candidate { kind, queue });
        }
    };
    if has_ring && !matches!(reach, KernelTarget::InProcess) {
        offer(QueueKind::Ring);
    }
    // A read that sleeps would hold up all that the thread has to do.
    let without_calls = match probe_sleep(device_inner) {
        SleepProbe::Completes => {
            offer(QueueKind::Sync);
            None
        }
        SleepProbe::Sleeps => Some("reads of this device sleep, or may"),
        SleepProbe::Unknown => Some("the kernel does not say whether reads of this device sleep"),
    };
    if matches!(reach, KernelTarget::Descriptor(_)) && device_inner.geometry().direct {
        offer(QueueKind::Aio);
    }
    offer(QueueKind::Threads);
    if candidates.is_empty() {
        // Opening threads has failed, and opening them again says why.
        let reason = "threads: no queue can be measured".into();
        return Some(Calibration { kind: QueueKind::Threads, reason, measured: Vec::new() });
    }
    let mut calibration = calibrate(device_inner, candidates, &options.clock, time)?;
    if let Some(why) = without_calls {
        calibration.reason += &format!("; no sync: {why}");
    }
    Some(calibration)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use uringfs_device::backend::memory::Memory;
    use uringfs_device::{Backend, Device, Errno, Geometry, Namespace, Request};

    use super::*;

    /// A file of which nothing can be read, so that it is unknown whether reads sleep.
    struct Unreadable {
        geometry: Geometry,
        file: File,
        name: &'static str,
    }

    impl Backend for Unreadable {
        fn geometry(&self) -> &Geometry {
            &self.geometry
        }

        fn description(&self) -> String {
            self.name.into()
        }

        fn kernel_target(&self) -> KernelTarget<'_> {
            KernelTarget::Descriptor(self.file.as_fd())
        }

        fn perform(&self, _: &mut Request) -> Result<u32, Errno> {
            Err(Errno::BADF)
        }
    }

    /// A namespace of an NVMe device, whose calls go to memory.
    struct FakeNamespace {
        character_device: File,
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
                max_transfer: 1 << 16,
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
    fn the_reason_for_calls_to_a_namespace_says_once_why_there_are_no_commands() {
        let why = "entries of 128 bytes are missing";
        for ring in [Ok(()), Err(why.into())] {
            let namespace = FakeNamespace {
                character_device: File::open("/dev/null").unwrap(),
                memory: Memory::new(1 << 20).unwrap(),
            };
            let device = Device::new(namespace).unwrap();
            let no_commands = Some(Err(io::Error::other(why)));
            let options = ReactorOptions::new();
            let chosen = choose_queue(device.core(), &options, &ring, false, no_commands).unwrap();
            assert_eq!(chosen.reason.matches(why).count(), 1, "{}", chosen.reason);
        }
    }

    #[test]
    fn a_file_whose_reads_may_sleep_shares_no_choice_of_calls() {
        let folder = tempfile::tempdir().unwrap();
        let geometry =
            Geometry { direct: true, ..Memory::new(1 << 20).unwrap().geometry().clone() };
        let [first, second] = ["first", "second"].map(|name| {
            // Open for writing alone.
            let file = File::create(folder.path().join(name)).unwrap();
            Device::new(Unreadable { geometry: geometry.clone(), file, name }).unwrap()
        });
        let (options, ring) = (ReactorOptions::new(), Ok(()));
        let key = calibration_options(&options, &ring);
        let shared = first.core().calibration(key);
        assert!(Arc::ptr_eq(&shared, &second.core().calibration(key)));
        shared.get_or_measure("first", || {
            let (kind, reason) = (QueueKind::Sync, "sync".into());
            Calibration { kind, reason, measured: Vec::new() }
        });
        let chosen = choose_measured(second.core(), &options, &ring).unwrap();
        assert_ne!(chosen.kind, QueueKind::Sync, "{}", chosen.reason);
        assert!(!chosen.reason.contains("measured on"), "{}", chosen.reason);
        // The next reactor finds the same, and the other file keeps its choice.
        let own = second.core().calibration(key).get().unwrap();
        assert!(Arc::ptr_eq(&own.calibration, &chosen.measured.unwrap().calibration));
        assert_eq!(shared.get().unwrap().calibration.kind, QueueKind::Sync);
    }
}
