//! Chooses the queue that carries a device's requests, and gives the reason.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use uringfs_device::queue::QueueKind;
use uringfs_device::queue::aio::AioQueue;
use uringfs_device::queue::calibrate::{Candidate, DEPTHS, NowaitSupport, calibrate, probe_nowait};
use uringfs_device::queue::ring::RingQueue;
use uringfs_device::queue::sync::SyncQueue;
use uringfs_device::queue::threads::ThreadsQueue;
use uringfs_device::{DeviceInner, KernelTarget, Queue};
use uringfs_ring::RingOptions;

use crate::io::route::QueueRoute;
use crate::options::ReactorOptions;

/// The maximum of threads for one device in queue `threads`.
const MAX_THREADS: usize = 64;

/// The time that calibration takes at the first use of a device.
const CALIBRATION_TIME: Duration = Duration::from_millis(8);

/// The queue for a device as a route of the reactor, and the reason for the choice.
pub(crate) struct RoutedQueue {
    pub(crate) route: QueueRoute,
    pub(crate) kind: QueueKind,
    pub(crate) reason: String,
}

/// Chooses the queue for `device_inner`'s requests: the one that the options name, else by calibration.
///
/// # Errors
/// When the queue that the options name cannot serve the device.
pub(crate) fn choose_queue(
    device_inner: &Arc<DeviceInner>,
    options: &ReactorOptions,
    ring: &Result<(), String>,
    polled: bool,
) -> io::Result<RoutedQueue> {
    let depth = options.depth as usize;
    if let Some(queue) = device_inner.backend().own_queue(depth) {
        let reason = "the back end has a queue of its own".into();
        return Ok(RoutedQueue { route: QueueRoute::Own(queue), kind: QueueKind::Auto, reason });
    }
    let is_reachable = !matches!(device_inner.backend().kernel_target(), KernelTarget::InProcess);
    let kind = match options.queue {
        QueueKind::Auto => return choose_by_calibration(device_inner, options, ring, polled),
        kind => kind,
    };
    if kind == QueueKind::Ring {
        if let Err(why) = ring {
            return Err(io::Error::new(io::ErrorKind::Unsupported, why.clone()));
        }
        if !is_reachable {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{}: the kernel cannot reach it", device_inner.backend().description()),
            ));
        }
        return Ok(ring_queue(polled, "set by device.queue".into()));
    }
    let queue = open(device_inner, kind, options)?;
    Ok(RoutedQueue { route: QueueRoute::Own(queue), kind, reason: "set by device.queue".into() })
}

fn ring_queue(polled: bool, reason: String) -> RoutedQueue {
    let route = if polled { QueueRoute::Polled } else { QueueRoute::Ring };
    RoutedQueue { route, kind: QueueKind::Ring, reason }
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
                ..RingOptions::default()
            };
            Box::new(RingQueue::new(device_inner.clone(), &ring)?)
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
    if polled && ring.is_ok() && !matches!(reach, KernelTarget::InProcess) {
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
    let calibration = device_inner.calibration().get_or_init(|| {
        let mut candidates = Vec::new();
        // Deep enough for the depths of the calibration, whatever the options say.
        let depth = options.depth.max(2 * *DEPTHS.iter().max().unwrap_or(&1) as u32);
        let trial = ReactorOptions { depth, ..options.clone() };
        let mut offer = |kind| {
            if let Ok(queue) = open(device_inner, kind, &trial) {
                candidates.push(Candidate { kind, queue });
            }
        };
        if ring.is_ok() && !matches!(reach, KernelTarget::InProcess) {
            offer(QueueKind::Ring);
        }
        if matches!(reach, KernelTarget::Descriptor(_)) && device_inner.geometry().direct {
            offer(QueueKind::Aio);
        }
        offer(QueueKind::Sync);
        offer(QueueKind::Threads);
        calibrate(device_inner, candidates, &options.clock, CALIBRATION_TIME)
    });
    let mut reason = calibration.reason.clone();
    if let Err(why) = ring {
        reason = format!("{reason}; {why}");
    }
    Ok(match calibration.kind {
        QueueKind::Ring if ring.is_ok() => ring_queue(false, reason),
        // The ring was available to the reactor that calibrated, and is not to this one.
        QueueKind::Ring => {
            let kind = QueueKind::Threads;
            RoutedQueue { route: QueueRoute::Own(open(device_inner, kind, options)?), kind, reason }
        }
        kind => {
            RoutedQueue { route: QueueRoute::Own(open(device_inner, kind, options)?), kind, reason }
        }
    })
}
