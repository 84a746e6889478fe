//! Puts devices into a reactor's tables, chooses their queues, and takes closed devices out again.

use std::io;
use std::sync::Arc;

use uringfs_device::queue::{QueueKind, nvme};
use uringfs_device::{DeviceIndex, DeviceInner, Errno, KernelTarget, Request};

use crate::counters::Counter;
use crate::event_loop::core::{CLOSING, CONTRADICTED, Message, ReactorCore};
use crate::event_loop::waker::notify;
use crate::io::attachment::Attachment;
use crate::io::choose::{RoutedQueue, choose_measured_again, choose_queue};
use crate::io::rings::make_nvme_ring;
use crate::io::route::{DeviceSlot, FastRoute, QueueRoute};
use crate::sync::domains::domain_at;
use crate::sync::quiescence::Tracker;

impl ReactorCore {
    /// True when the device is in this reactor's tables.
    #[inline]
    pub fn is_attached(&self, device: DeviceIndex) -> bool {
        self.io.borrow().attachments.get(device.get()).is_some_and(Option::is_some)
    }

    /// Puts a device into this reactor's tables, unless it is there.
    ///
    /// # Errors
    /// ENODEV when the device has been removed; otherwise the reason why no queue can serve it.
    pub fn attach(&self, device_inner: &Arc<DeviceInner>) -> io::Result<()> {
        let index = device_inner.index().get();
        if self.io.borrow().attachments.get(index).is_some_and(Option::is_some) {
            return Ok(());
        }
        if device_inner.is_closed() {
            return Err(Errno::NODEV.into());
        }
        let has_iopoll_ring = self.io.borrow().iopoll_ring.is_some();
        let nvme_ring = match (device_inner.backend().kernel_target(), self.options.queue) {
            (KernelTarget::Nvme(..), QueueKind::Auto | QueueKind::Ring) => {
                Some(self.make_nvme_ring())
            }
            _ => None,
        };
        let (options, ring) = (&self.options, &self.ring_status);
        let chosen = choose_queue(device_inner, options, ring, has_iopoll_ring, nvme_ring)?;
        let by_ring = matches!(chosen.route, QueueRoute::Ring | QueueRoute::Polled);
        let by_nvme_ring = matches!(chosen.route, QueueRoute::Nvme);
        let by_own_queue = matches!(chosen.route, QueueRoute::Own(_));
        if by_own_queue {
            // Create now what a wait for its queue needs, so that it cannot fail later.
            self.register_epoll_sources()?;
            self.register_queue(&chosen.route)?;
        }
        {
            let io = &mut *self.io.borrow_mut();
            if by_ring {
                io.install(device_inner)?;
            }
            if by_nvme_ring {
                let nvme_ring = io.nvme_ring.as_mut().expect("it was made for this device");
                nvme::install(nvme_ring, device_inner)?;
                io.has_more_rings = true;
            }
            if io.attachments.len() <= index {
                io.attachments.resize_with(index + 1, || None);
            }
            while io.in_flight.devices.len() <= index {
                let next = io.in_flight.devices.len();
                let tracker = Tracker::new(domain_at(next), self.name.clone());
                io.in_flight.devices.push(DeviceSlot { fast_route: FastRoute::Closed, tracker });
            }
            io.in_flight.devices[index].fast_route = match chosen.route {
                QueueRoute::Ring if chosen.calls.is_some() => FastRoute::Held,
                QueueRoute::Ring => FastRoute::Ring,
                QueueRoute::Polled => FastRoute::Polled,
                QueueRoute::Nvme => FastRoute::Nvme,
                QueueRoute::Own(_) => FastRoute::OwnQueue,
            };
            io.may_call |= chosen.calls.is_some();
            io.attachments[index] = Some(Attachment::new(device_inner.clone(), chosen));
            if by_own_queue {
                io.own_queue_devices.push(index);
            }
        }
        let mailbox = Arc::downgrade(&self.mailbox);
        device_inner.on_close(Box::new(move |index| {
            // A reactor that was dropped holds no device.
            if let Some(mailbox) = mailbox.upgrade() {
                let _ = mailbox.post_with(Message::Detach(index), notify);
            }
        }));
        Ok(())
    }

    /// Makes the ring for commands to NVMe namespaces, unless it is there.
    ///
    /// # Errors
    /// In one line why there is none. None is made without the main ring, beside which the thread sleeps.
    fn make_nvme_ring(&self) -> io::Result<()> {
        if let Err(why) = &self.ring_status {
            return Err(io::Error::new(io::ErrorKind::Unsupported, why.clone()));
        }
        let io = &mut *self.io.borrow_mut();
        if io.nvme_ring.is_none() {
            io.nvme_ring = Some(make_nvme_ring(&self.options)?);
        }
        Ok(())
    }

    /// Pushes a request. Attaches its device at the first use. A request without room in its queue waits in the backlog.
    #[allow(clippy::result_large_err)] // the request goes back whole, memory included
    pub(crate) fn issue_or_wait(
        &self,
        device_inner: &Arc<DeviceInner>,
        request: Request,
    ) -> Result<(), (Request, Errno)> {
        if let Err(why) = self.attach_for(device_inner) {
            return Err((request, why));
        }
        let io = &mut *self.io.borrow_mut();
        if let Err(mut request) = io.push(request) {
            self.count(Counter::Backlogged);
            request.set_issued(false);
            io.in_flight.backlog.push_back(request);
        }
        Ok(())
    }

    /// Attaches a device, if necessary, and checks that it takes requests here.
    ///
    /// # Errors
    /// Those of [`Self::attach`]; ENODEV when the device is being removed.
    pub(crate) fn attach_for(&self, device_inner: &Arc<DeviceInner>) -> Result<(), Errno> {
        self.attach(device_inner)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let io = self.io.borrow();
        match io.attachments[device_inner.index().get()].as_ref().is_some_and(|one| one.closing) {
            true => Err(Errno::NODEV),
            false => Ok(()),
        }
    }

    /// Refuses new requests for the device. It is detached when its last request has ended.
    pub(crate) fn detach(&self, device: DeviceIndex) {
        let io = &mut *self.io.borrow_mut();
        if let Some(Some(attachment)) = io.attachments.get_mut(device.get()) {
            attachment.closing = true;
            io.in_flight.devices[device.get()].fast_route = FastRoute::Closed;
        }
    }

    /// Chooses the queues again that have become slow, of devices that no other thread measures, and with nothing in
    /// flight here outside of the ring. The others' turn comes later.
    #[cold]
    pub(crate) fn choose_again(&self) {
        let mut is_any_busy = false;
        let devices = self.io.borrow().attachments.len();
        for index in 0..devices {
            let (device_inner, old) = {
                let io = &*self.io.borrow();
                let Some(attachment) = &io.attachments[index] else { continue };
                if !attachment.is_choice_contradicted() || attachment.closing {
                    continue;
                }
                let is_replaced = matches!(attachment.route, QueueRoute::Own(_));
                if is_replaced && io.has_requests_of(index) {
                    is_any_busy = true;
                    continue;
                }
                let old = attachment.measured.clone().expect("a contradicted choice was measured");
                (attachment.device_inner.clone(), old)
            };
            let chosen =
                choose_measured_again(&old, &device_inner, &self.options, &self.ring_status);
            let Some(chosen) = chosen.transpose() else {
                is_any_busy = true;
                continue;
            };
            self.count(Counter::ChosenAgain);
            let replaced = chosen.and_then(|chosen| self.replace_queue(&device_inner, chosen));
            if replaced.is_err() {
                // The old queue works, and stays.
                let attachment = &mut self.io.borrow_mut().attachments[index];
                attachment.as_mut().expect("it was found above").measured = None;
            }
        }
        let others = self.attention.get() & !CONTRADICTED;
        self.attention.set(if is_any_busy { others | CONTRADICTED } else { others });
    }

    /// Replaces the queue of a device that has nothing in flight here. The ring stays, and only its calls are chosen
    /// again.
    ///
    /// # Errors
    /// When the ring has no room for the device, or epoll none for the queue. Then nothing has changed.
    fn replace_queue(
        &self,
        device_inner: &Arc<DeviceInner>,
        chosen: RoutedQueue,
    ) -> io::Result<()> {
        let index = device_inner.index().get();
        let io = &mut *self.io.borrow_mut();
        if let Some(attachment) = &mut io.attachments[index]
            && matches!(attachment.route, QueueRoute::Ring)
        {
            attachment.choose_calls_again(chosen);
            io.update_may_call();
            return Ok(());
        }
        self.register_queue(&chosen.route)?;
        let is_by_ring = matches!(chosen.route, QueueRoute::Ring | QueueRoute::Polled);
        if is_by_ring {
            io.install(device_inner)?;
            // A wait for one request alone makes the next one be held back, if the device is called.
            io.in_flight.devices[index].fast_route = FastRoute::Ring;
            io.may_call |= chosen.calls.is_some();
        }
        let attachment = io.attachments[index].as_mut().expect("the caller has found it");
        io.detached_calls += attachment.replace_queue(chosen);
        if attachment.own_queues_ref().next().is_none() {
            io.own_queue_devices.retain(|other| *other != index);
        }
        if let Some(poller) = &mut *self.poller.borrow_mut() {
            // The old queue's descriptors are closed, and the kernel may reuse their numbers.
            poller.forget_registered();
        }
        Ok(())
    }

    /// Registers a queue in epoll now, so that no wait for it fails later.
    fn register_queue(&self, route: &QueueRoute) -> io::Result<()> {
        if let (QueueRoute::Own(queue), Some(poller)) = (route, &mut *self.poller.borrow_mut())
            && let Some(notifier) = queue.notifier()
        {
            poller.register(notifier)?;
        }
        Ok(())
    }

    /// Detaches closed devices that have nothing in flight.
    pub(crate) fn detach_closed(&self) {
        let io = &mut *self.io.borrow_mut();
        let of_backlog = io.in_flight.backlog.iter().map(|request| request.device);
        let waiting: Vec<usize> =
            of_backlog.chain(io.in_flight.locked.devices()).map(DeviceIndex::get).collect();
        // The devices of these completions are unknown until the worker returns them.
        let at_worker = io.in_flight.at_worker + io.in_flight.for_worker.len() > 0;
        let mut is_any_busy = false;
        io.in_flight.publish_epochs();
        for index in 0..io.attachments.len() {
            let Some(attachment) = &io.attachments[index] else { continue };
            if !attachment.closing {
                continue;
            }
            let by_ring = matches!(attachment.route, QueueRoute::Ring | QueueRoute::Polled);
            let mut busy = at_worker || attachment.own_in_flight() > 0 || waiting.contains(&index);
            // An operation in the epoch may be between two requests.
            let tracker = &mut io.in_flight.devices[index].tracker;
            tracker.publish_ended();
            busy |= tracker.is_active();
            if by_ring && !busy {
                for ring in [&mut io.ring, &mut io.iopoll_ring].into_iter().flatten() {
                    busy |= ring.remove(index as u32) == Err(Errno::BUSY);
                }
            }
            if let (QueueRoute::Nvme, false, Some(nvme_ring)) =
                (&attachment.route, busy, &mut io.nvme_ring)
            {
                busy |= nvme_ring.remove(index as u32) == Err(Errno::BUSY);
            }
            if busy {
                is_any_busy = true;
                continue;
            }
            if let Some(poller) = &mut *self.poller.borrow_mut() {
                // Its queues' descriptors are closed, and the kernel may reuse their numbers.
                poller.forget_registered();
            }
            io.detached_calls += attachment.own_system_calls();
            io.own_queue_devices.retain(|other| *other != index);
            io.attachments[index] = None;
            io.drop_unused_nvme_ring();
            io.update_may_call();
        }
        let others = self.attention.get() & !CLOSING;
        self.attention.set(if is_any_busy { others | CLOSING } else { others });
    }
}
