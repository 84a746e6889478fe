//! A device in one reactor's tables: which queue its requests take, and why.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use uringfs_device::queue::QueueKind;
use uringfs_device::queue::aio::AioQueue;
use uringfs_device::queue::auto::{Candidate, DEPTHS, calibrate};
use uringfs_device::queue::ring::RingQueue;
use uringfs_device::queue::sync::SyncQueue;
use uringfs_device::queue::threads::ThreadsQueue;
use uringfs_device::{Core, Queue, Reach, Request};
use uringfs_ring::{Ring, RingOptions};

use crate::io::Route;
use crate::options::ReactorOptions;

/// Threads that serve one device on the tier of threads.
const MAX_THREADS: usize = 64;
/// Threads for what no ring carries: discards, zeroing.
const SIDE_THREADS: usize = 2;

/// How long the queues are tried when a device is first used.
const CALIBRATION: Duration = Duration::from_millis(8);

/// A device that this reactor serves.
pub(crate) struct Attachment {
    pub(crate) core: Arc<Core>,
    pub(crate) route: Route,
    /// Carries what the ring cannot, in threads; made at first use.
    side: Option<Box<dyn Queue>>,
    /// Which queue was taken, and why.
    pub(crate) reason: String,
    pub(crate) kind: QueueKind,
    /// The device has closed: no new requests.
    pub(crate) closing: bool,
    block_size: u32,
}

impl Attachment {
    pub(crate) fn new(core: Arc<Core>, chosen: Chosen) -> Attachment {
        Attachment {
            block_size: core.geometry().block_size,
            core,
            route: chosen.route,
            side: None,
            reason: chosen.reason,
            kind: chosen.kind,
            closing: false,
        }
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    pub(crate) fn side(&mut self) -> Result<&mut Box<dyn Queue>, Errno> {
        if self.side.is_none() {
            let queue = ThreadsQueue::new(self.core.clone(), 64, SIDE_THREADS)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
            self.side = Some(Box::new(queue));
        }
        Ok(self.side.as_mut().expect("it was just made"))
    }

    /// The device has refused to be polled; it interrupts from now on.
    pub(crate) fn stop_polling(&mut self) {
        self.route = Route::Ring;
        self.reason = format!("{}; polling was refused by the driver", self.reason);
    }

    pub(crate) fn own_queues(&mut self) -> impl Iterator<Item = &mut Box<dyn Queue>> {
        let own = match &mut self.route {
            Route::Own(queue) => Some(queue),
            Route::Ring | Route::Polled => None,
        };
        own.into_iter().chain(self.side.as_mut())
    }

    pub(crate) fn own_queues_ref(&self) -> impl Iterator<Item = &dyn Queue> {
        let own = match &self.route {
            Route::Own(queue) => Some(&**queue),
            Route::Ring | Route::Polled => None,
        };
        own.into_iter().chain(self.side.as_deref())
    }

    pub(crate) fn own_in_flight(&self) -> usize {
        self.own_queues_ref().map(|queue| queue.in_flight()).sum()
    }
}

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
        QueueKind::Ring => by_ring(false, reason),
        kind => Chosen { route: Route::Own(open(core, kind, options)?), kind, reason },
    })
}

/// Rings that the options ask for: the one for everything, and the one that polls.
pub(crate) fn make_rings(
    options: &ReactorOptions,
) -> (io::Result<Ring<Request>>, Option<Ring<Request>>) {
    let ring = RingOptions {
        transfers: options.depth,
        fixed_files: options.fixed_files,
        fixed_buffers: options.fixed_buffers,
        ..RingOptions::default()
    };
    let polled = RingOptions { polled: true, waits: 0, ..ring.clone() };
    let polled = if options.polled { Ring::new(&polled).ok() } else { None };
    (Ring::new(&ring), polled)
}
