//! The choice of the queue that carries a device's requests, and its reason.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use uringfs_device::queue::QueueKind;
use uringfs_device::queue::aio::AioQueue;
use uringfs_device::queue::auto::{Candidate, DEPTHS, calibrate};
use uringfs_device::queue::ring::RingQueue;
use uringfs_device::queue::sync::SyncQueue;
use uringfs_device::queue::threads::ThreadsQueue;
use uringfs_device::{Core, Queue, Reach};
use uringfs_ring::RingOptions;

use crate::io::route::Route;
use crate::options::ReactorOptions;

/// Threads that serve one device on the tier of threads.
const MAX_THREADS: usize = 64;

/// How long the queues are tried when a device is first used.
const CALIBRATION: Duration = Duration::from_millis(8);

/// A queue for a device, and why it was taken.
pub(crate) struct Chosen {
    pub(crate) route: Route,
    pub(crate) kind: QueueKind,
    pub(crate) reason: String,
}

/// Chooses how `core`'s requests travel: as the options say, else by trying.
///
/// # Errors
/// When the queue the options name cannot serve the device.
pub(crate) fn choose(
    core: &Arc<Core>,
    options: &ReactorOptions,
    ring: &Result<(), String>,
    polled: bool,
) -> io::Result<Chosen> {
    let depth = options.depth as usize;
    if let Some(queue) = core.backend().own_queue(depth) {
        let reason = "the back end brings a queue of its own".into();
        return Ok(Chosen { route: Route::Own(queue), kind: QueueKind::Auto, reason });
    }
    let reachable = !matches!(core.backend().reach(), Reach::Call);
    let kind = match options.queue {
        QueueKind::Auto => return choose_by_trying(core, options, ring, polled),
        kind => kind,
    };
    if kind == QueueKind::Ring {
        if let Err(why) = ring {
            return Err(io::Error::new(io::ErrorKind::Unsupported, why.clone()));
        }
        if !reachable {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{}: the kernel cannot reach it", core.backend().description()),
            ));
        }
        return Ok(by_ring(polled, "as told".into()));
    }
    let queue = open(core, kind, options)?;
    Ok(Chosen { route: Route::Own(queue), kind, reason: "as told".into() })
}

fn by_ring(polled: bool, reason: String) -> Chosen {
    let route = if polled { Route::Polled } else { Route::Ring };
    Chosen { route, kind: QueueKind::Ring, reason }
}

fn open(core: &Arc<Core>, kind: QueueKind, options: &ReactorOptions) -> io::Result<Box<dyn Queue>> {
    let depth = options.depth as usize;
    Ok(match kind {
        QueueKind::Aio => Box::new(AioQueue::new(core.clone(), depth)?),
        QueueKind::Sync => Box::new(SyncQueue::new(core.clone(), depth)),
        QueueKind::Threads => {
            Box::new(ThreadsQueue::new(core.clone(), depth, depth.min(MAX_THREADS))?)
        }
        QueueKind::Ring | QueueKind::Auto => {
            let ring = RingOptions {
                transfers: options.depth.min(256),
                fixed_files: options.fixed_files,
                fixed_buffers: options.fixed_buffers,
                ..RingOptions::default()
            };
            Box::new(RingQueue::new(core.clone(), &ring)?)
        }
    })
}

fn choose_by_trying(
    core: &Arc<Core>,
    options: &ReactorOptions,
    ring: &Result<(), String>,
    polled: bool,
) -> io::Result<Chosen> {
    let reach = core.backend().reach();
    if polled && ring.is_ok() && !matches!(reach, Reach::Call) {
        return Ok(by_ring(true, "polling was asked for".into()));
    }
    if matches!(reach, Reach::Nothing) && ring.is_ok() {
        return Ok(by_ring(false, "requests that move nothing are the kernel's NOPs".into()));
    }
    let choice = core.choice().get_or_init(|| {
        let mut candidates = Vec::new();
        // Deep enough for what is tried, whatever the depth asked for.
        let depth = options.depth.max(2 * *DEPTHS.iter().max().unwrap_or(&1) as u32);
        let trial = ReactorOptions { depth, ..options.clone() };
        let mut offer = |kind| {
            if let Ok(queue) = open(core, kind, &trial) {
                candidates.push(Candidate { kind, queue });
            }
        };
        if ring.is_ok() && !matches!(reach, Reach::Call) {
            offer(QueueKind::Ring);
        }
        if matches!(reach, Reach::Descriptor(_)) && core.geometry().direct {
            offer(QueueKind::Aio);
        }
        offer(QueueKind::Sync);
        offer(QueueKind::Threads);
        calibrate(core, candidates, &options.clock, CALIBRATION)
    });
    let mut reason = choice.reason.clone();
    if let Err(why) = ring {
        reason = format!("{reason}; {why}");
    }
    Ok(match choice.kind {
        QueueKind::Ring if ring.is_ok() => by_ring(false, reason),
        // It was when another reactor tried; io_uring has been taken away since.
        QueueKind::Ring => {
            let kind = QueueKind::Threads;
            Chosen { route: Route::Own(open(core, kind, options)?), kind, reason }
        }
        kind => Chosen { route: Route::Own(open(core, kind, options)?), kind, reason },
    })
}
