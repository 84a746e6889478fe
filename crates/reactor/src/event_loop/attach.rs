//! A device in one reactor's tables: which queue its requests take, and why.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use uringfs_device::{Core, DeviceIndex, Request};

use crate::counters::Counter;
use crate::event_loop::core::{CLOSING, Inner, Letter};
use crate::event_loop::waker::ring_bell;
use crate::io::attachment::Attachment;
use crate::io::choose::choose;
use crate::io::route::{Lane, Route, Way};
use crate::sync::domains::domain_at;
use crate::sync::quiescence::Tracker;

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
