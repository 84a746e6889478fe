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
use uringfs_device::{Bounds, Core, DeviceIndex, Queue, Reach, Request};
use uringfs_ring::{Ring, RingOptions};

use crate::counters::Counter;
use crate::descriptor::MAX_WAITS;
use crate::event_loop::turn::CLOSING;
use crate::io::dispatch::{Lane, Route, Way};
use crate::options::ReactorOptions;
use crate::reactor::{Inner, domain_at, ring_bell};
use crate::sync::quiescence::Tracker;
use crate::wake::message::Letter;

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
    bounds: Bounds,
}

impl Attachment {
    pub(crate) fn new(core: Arc<Core>, chosen: Chosen) -> Attachment {
        Attachment {
            bounds: core.geometry().bounds(),
            core,
            route: chosen.route,
            side: None,
            reason: chosen.reason,
            kind: chosen.kind,
            closing: false,
        }
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
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

    pub(crate) fn own_system_calls(&self) -> u64 {
        self.own_queues_ref().map(|queue| queue.system_calls()).sum()
    }

    pub(crate) fn own_in_flight(&self) -> usize {
        self.own_queues_ref().map(|queue| queue.in_flight()).sum()
    }
}

impl Inner {
    /// True when this reactor serves the device already.
    #[inline]
    pub fn is_attached(&self, device: DeviceIndex) -> bool {
        self.io.borrow().attachments.get(device.get()).is_some_and(Option::is_some)
    }

    /// Puts a device into this reactor's tables, if it is not there.
    ///
    /// # Errors
    /// ENODEV when it has been removed; why no queue can serve it.
    pub fn attach(&self, core: &Arc<Core>) -> io::Result<()> {
        let place = core.index().get();
        if self.io.borrow().attachments.get(place).is_some_and(Option::is_some) {
            return Ok(());
        }
        if core.is_closed() {
            return Err(Errno::NODEV.into());
        }
        let polled = self.io.borrow().polled.is_some();
        let chosen = choose(core, &self.options, &self.ring, polled)?;
        let by_ring = matches!(chosen.route, Route::Ring | Route::Polled);
        if !by_ring {
            // What waiting for its queue takes is there before anything is in flight.
            self.watch_everything()?;
        }
        {
            let io = &mut *self.io.borrow_mut();
            if by_ring {
                io.install(core)?;
            }
            if io.attachments.len() <= place {
                io.attachments.resize_with(place + 1, || None);
            }
            while io.state.lanes.len() <= place {
                let index = io.state.lanes.len();
                let tracker = Tracker::new(domain_at(index), self.name.clone());
                io.state.lanes.push(Lane { way: Way::Closed, tracker });
            }
            io.state.lanes[place].way = match chosen.route {
                Route::Ring => Way::Ring,
                Route::Polled => Way::Polled,
                Route::Own(_) => Way::Other,
            };
            io.attachments[place] = Some(Attachment::new(core.clone(), chosen));
            if !by_ring {
                io.own.push(place);
            }
        }
        let letterbox = Arc::downgrade(&self.letterbox);
        core.on_close(Box::new(move |index| {
            // A reactor that is gone holds no device.
            if let Some(letterbox) = letterbox.upgrade() {
                let _ = letterbox.post_with(Letter::Detach(index), ring_bell);
            }
        }));
        Ok(())
    }

    /// Pushes a request, attaching its device at first use; with no room it waits.
    #[allow(clippy::result_large_err)] // the request goes back whole, memory included
    pub(crate) fn issue_or_wait(
        &self,
        core: &Arc<Core>,
        request: Request,
    ) -> Result<(), (Request, Errno)> {
        if let Err(why) = self.attach_for(core) {
            return Err((request, why));
        }
        let io = &mut *self.io.borrow_mut();
        if let Err(mut request) = io.push(request) {
            self.count(Counter::Backlogged);
            request.set_issued(false);
            io.state.backlog.push_back(request);
        }
        Ok(())
    }

    /// Sees to it that a device takes requests here.
    ///
    /// # Errors
    /// What attaching says; ENODEV when it is about to go.
    pub(crate) fn attach_for(&self, core: &Arc<Core>) -> Result<(), Errno> {
        self.attach(core).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let io = self.io.borrow();
        match io.attachments[core.index().get()].as_ref().is_some_and(|one| one.closing) {
            true => Err(Errno::NODEV),
            false => Ok(()),
        }
    }

    /// The device takes no new requests here; it goes when its last has ended.
    pub(crate) fn detach(&self, device: DeviceIndex) {
        let io = &mut *self.io.borrow_mut();
        if let Some(Some(attachment)) = io.attachments.get_mut(device.get()) {
            attachment.closing = true;
            io.state.lanes[device.get()].way = Way::Closed;
        }
    }

    /// Lets go of closed devices that have nothing in flight.
    pub(crate) fn detach_closed(&self) {
        let io = &mut *self.io.borrow_mut();
        let of_backlog = io.state.backlog.iter().map(|request| request.device);
        let waiting: Vec<usize> =
            of_backlog.chain(io.state.guarded.devices()).map(DeviceIndex::get).collect();
        // Which devices these belong to is not known until they are back.
        let at_worker = io.state.at_worker + io.state.for_worker.len() > 0;
        let mut is_any_busy = false;
        for place in 0..io.attachments.len() {
            let Some(attachment) = &io.attachments[place] else { continue };
            if !attachment.closing {
                continue;
            }
            let by_ring = matches!(attachment.route, Route::Ring | Route::Polled);
            let mut busy = at_worker || attachment.own_in_flight() > 0 || waiting.contains(&place);
            // An operation may be between two requests.
            let tracker = &mut io.state.lanes[place].tracker;
            tracker.settle();
            busy |= tracker.is_active();
            if by_ring && !busy {
                for ring in [&mut io.ring, &mut io.polled].into_iter().flatten() {
                    busy |= ring.remove(place as u32) == Err(Errno::BUSY);
                }
            }
            if busy {
                is_any_busy = true;
                continue;
            }
            if let Some(watch) = &mut *self.watch.borrow_mut() {
                // Its queues' descriptors are closed; their numbers may come again.
                watch.forget_lasting();
            }
            io.detached_calls += attachment.own_system_calls();
            io.own.retain(|other| *other != place);
            io.attachments[place] = None;
        }
        let others = self.attention.get() & !CLOSING;
        self.attention.set(if is_any_busy { others | CLOSING } else { others });
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
        QueueKind::Ring if ring.is_ok() => by_ring(false, reason),
        // It was when another reactor tried; io_uring has been taken away since.
        QueueKind::Ring => {
            let kind = QueueKind::Threads;
            Chosen { route: Route::Own(open(core, kind, options)?), kind, reason }
        }
        kind => Chosen { route: Route::Own(open(core, kind, options)?), kind, reason },
    })
}

/// Rings that the options ask for: the one for everything, and the one that polls.
pub(crate) fn make_rings(
    options: &ReactorOptions,
) -> (io::Result<Ring<Request>>, Option<Ring<Request>>) {
    let ring = RingOptions {
        transfers: options.depth,
        // And the mailbox.
        waits: MAX_WAITS as u32 + 1,
        fixed_files: options.fixed_files,
        fixed_buffers: options.fixed_buffers,
        ..RingOptions::default()
    };
    let polled = RingOptions { polled: true, waits: 0, ..ring.clone() };
    let polled = if options.polled { Ring::new(&polled).ok() } else { None };
    (Ring::new(&ring), polled)
}
