//! A reactor's queues and devices: where a request goes, and how its completions are found. [`InFlight`] says what these
//! mean.

use std::collections::VecDeque;
use std::sync::Arc;

use uringfs_device::queue::ring::{install, supports};
use uringfs_device::{DeviceIndex, DeviceInner, Errno, Op, Ready, Request, StepCompletion, Tag};
use uringfs_ring::nvme::{NvmeRing, NvmeStatus};
use uringfs_ring::{CompletedTransfer, Reaped, Ring, RingCounters, fork_count};

use crate::counters::{Counter, Counters};
use crate::io::attachment::Attachment;
use crate::io::in_flight::{InFlight, Polled, UNKNOWN, bounds_of};
use crate::io::route::{DeviceSlot, FastRoute, QueueRoute};
use crate::options::CompletionMode;
use crate::tasks::completion::Completion;
use crate::tasks::waiters::{EpochHold, is_awaited, is_token};

/// Queues, devices, and what is in flight.
pub(crate) struct IoDispatch {
    /// The number of forks when it was made: see [`Self::is_forked`].
    pub(crate) forks: u32,
    pub(crate) ring: Option<Ring<Request>>,
    pub(crate) iopoll_ring: Option<Ring<Request>>,
    /// For commands to NVMe namespaces. Made for the first of these devices, and dropped after the last one.
    pub(crate) nvme_ring: Option<NvmeRing<Request>>,
    /// There is a ring beside the main one, and a device that uses it.
    pub(crate) has_more_rings: bool,
    pub(crate) attachments: Vec<Option<Attachment>>,
    /// Some device's single requests may be called: see [`Attachment::calls`].
    pub(crate) may_call: bool,
    /// The last request that was held back was not called.
    pub(crate) is_last_uncalled: bool,
    /// The number of these calls.
    pub(crate) held_calls: u64,
    /// The indexes of devices with queues of their own.
    pub(crate) own_queue_devices: Vec<usize>,
    /// System calls of queues that were detached.
    pub(crate) detached_calls: u64,
    /// The counters of rings that were dropped.
    pub(crate) dropped_rings: RingCounters,
    pub(crate) in_flight: InFlight,
}

impl IoDispatch {
    /// True in the child of a fork: the queues belong to the parent.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != fork_count()
    }

    /// Hands a request to its device's queue. Returns it when the queue is full, or the device is not attached or was
    /// removed.
    pub(crate) fn push(&mut self, mut request: Request) -> Result<(), Request> {
        request.set_issued(true);
        match self.in_flight.devices.get(request.device.get()) {
            _ if self.is_forked() => Err(request),
            None | Some(DeviceSlot { fast_route: FastRoute::Closed, .. }) => Err(request),
            Some(_) => self.push_accepted(request),
        }
    }

    /// The same for a request that the device accepted before it was removed.
    pub(crate) fn push_accepted(&mut self, request: Request) -> Result<(), Request> {
        let Some(Some(attachment)) = self.attachments.get(request.device.get()) else {
            return Err(request);
        };
        if let (QueueRoute::Ring, true, Some(ring)) =
            (&attachment.route, supports(request.op), &mut self.ring)
        {
            return ring.push(request);
        }
        self.push_slow(request)
    }

    #[inline(never)]
    fn push_slow(&mut self, request: Request) -> Result<(), Request> {
        let attachment =
            self.attachments[request.device.get()].as_mut().expect("the caller has checked it");
        match &mut attachment.route {
            QueueRoute::Own(queue) => queue.push(request),
            QueueRoute::Polled if matches!(request.op, Op::Read | Op::Write) => {
                match &mut self.iopoll_ring {
                    Some(iopoll_ring) => iopoll_ring.push(request),
                    None => Err(request),
                }
            }
            QueueRoute::Nvme if supports(request.op) => match &mut self.nvme_ring {
                Some(nvme_ring) => nvme_ring.push(request),
                None => Err(request),
            },
            QueueRoute::Ring | QueueRoute::Polled if supports(request.op) => match &mut self.ring {
                Some(ring) => ring.push(request),
                None => Err(request),
            },
            // No ring carries it without blocking, so threads do.
            QueueRoute::Ring | QueueRoute::Polled | QueueRoute::Nvme => {
                match attachment.side_queue() {
                    Ok(queue) => {
                        let index = request.device.get();
                        if !self.own_queue_devices.contains(&index) {
                            self.own_queue_devices.push(index);
                        }
                        queue.push(request)
                    }
                    Err(error) => {
                        self.in_flight.on_step(request, Err(error), attachment.bounds());
                        Ok(())
                    }
                }
            }
        }
    }

    /// Pushes the backlog, oldest first, as far as each device's queue has room, and submits what waits for a lock. True
    /// when some request was pushed.
    pub(crate) fn push_backlog(&mut self) -> bool {
        let mut is_any_pushed = !self.in_flight.locked.is_empty() && self.submit_locked();
        let mut full = Vec::new();
        for mut request in std::mem::take(&mut self.in_flight.backlog) {
            let issued = request.is_issued();
            request.set_issued(true);
            let device = request.device;
            if full.contains(&device) {
                request.set_issued(issued);
                self.in_flight.backlog.push_back(request);
                continue;
            }
            match self.push_accepted(request) {
                Ok(()) => is_any_pushed = true,
                Err(mut request) => {
                    request.set_issued(issued);
                    if self.attachments.get(device.get()).is_some_and(Option::is_some) {
                        full.push(device);
                        self.in_flight.backlog.push_back(request);
                    } else {
                        self.in_flight.on_step(request, Err(Errno::NODEV), UNKNOWN);
                    }
                }
            }
        }
        is_any_pushed
    }

    /// Submits the requests that wait for locks, all those of a lock at once. Requests without room in their queue stay.
    /// True when some request was pushed.
    pub(crate) fn submit_locked(&mut self) -> bool {
        let (mut is_any_pushed, mut full) = (false, Vec::new());
        while let Some((lock, requests)) = self.in_flight.locked.take_first() {
            let held = lock.hold();
            for mut request in requests {
                request.set_issued(true);
                match self.push_accepted(request) {
                    Ok(()) => is_any_pushed = true,
                    Err(mut request) => {
                        request.set_issued(false);
                        full.push((lock.clone(), request));
                    }
                }
            }
            // On a failure the requests stay queued, and the next submission reports it.
            let _ = self.submit_all();
            drop(held);
        }
        full.into_iter().for_each(|(lock, request)| self.in_flight.locked.add(lock, request));
        is_any_pushed
    }

    /// Reaps everything that has completed, without a system call of the ring.
    #[inline(never)]
    pub(crate) fn reap_queues(&mut self) {
        let IoDispatch { ring, attachments, in_flight, .. } = self;
        if let Some(ring) = ring {
            ring.reap(|request, result| in_flight.take(request, result, Polled::No, attachments));
            while let Some(event) = ring.event() {
                in_flight.take_event(event);
            }
            while let Some((request, result)) = ring.moved_out() {
                in_flight.take_unusual(request, result, Polled::No, attachments);
            }
        }
        in_flight.has_other_completions = false;
        if self.has_more_rings {
            self.reap_iopoll_ring();
            self.reap_nvme_ring();
        }
        if !self.own_queue_devices.is_empty() {
            self.reap_own_queues();
        }
        self.report_failures();
        self.in_flight.publish_epochs();
    }

    /// Runs before the callers get the results of these requests.
    #[inline(always)]
    fn report_failures(&mut self) {
        if !self.in_flight.failures.is_empty() {
            for (device, failure) in self.in_flight.failures.drain(..) {
                let attachment = self.attachments[device.get()].as_ref();
                attachment.inspect(|attachment| attachment.device_inner.report_failure(failure));
            }
        }
    }

    /// The most completions of tokens that there can be without new operations.
    #[inline(always)]
    pub(crate) fn tokens_at_most(&self) -> usize {
        let ring = self.ring.as_ref().map_or(0, Ring::transfers_in_flight);
        let others = if self.has_more_rings { self.others_in_flight() } else { 0 };
        ring + others + self.in_flight.completed.len() + self.in_flight.backlog.len()
    }

    /// True if all that is in flight here are requests that calls of this thread execute, and nothing has ended that a round of
    /// the loop hands on.
    #[inline]
    pub(crate) fn has_only_calls(&self) -> bool {
        self.attached_with_own_queue().all(|one| one.is_called() || one.own_in_flight() == 0)
            && self.in_flight.mode == CompletionMode::Inline
            && self.tokens_at_most() == 0
            && !self.in_flight.has_backlog()
            && !self.in_flight.has_ended_any()
    }

    fn others_in_flight(&self) -> usize {
        let polled = self.iopoll_ring.as_ref().map_or(0, Ring::transfers_in_flight);
        polled + self.commands_in_flight()
    }

    /// The next completion of a token in the ring with requests in flight, without a system call. Others on the way are
    /// left to [`Self::reap_queues`]: see [`InFlight::has_other_completions`].
    #[inline(always)]
    pub(crate) fn next_token(&mut self) -> Option<Completion> {
        let mut polled = Polled::No;
        if self.has_more_rings {
            if self.iopoll_ring.as_ref().is_some_and(|ring| ring.transfers_in_flight() > 0) {
                polled = Polled::Yes;
            } else if self.commands_in_flight() > 0 {
                return self.next_command();
            }
        }
        let IoDispatch { ring, iopoll_ring, attachments, in_flight, .. } = self;
        let ring = match polled {
            Polled::Yes => iopoll_ring.as_mut()?,
            Polled::No => ring.as_mut()?,
        };
        loop {
            match ring.reap_one()? {
                Reaped::Transfer(request, result)
                    if in_flight.is_token_done(&request, |bytes| result.is(bytes)) =>
                {
                    in_flight.count_token_done(&request);
                    return Some(Completion::from_whole_step(request.take()));
                }
                Reaped::Transfer(request, result) => {
                    in_flight.take(request, result, polled, attachments);
                }
                Reaped::Event => {}
            }
            in_flight.has_other_completions = true;
        }
    }

    /// The same for commands to NVMe namespaces.
    #[inline(always)]
    fn next_command(&mut self) -> Option<Completion> {
        let IoDispatch { nvme_ring: Some(nvme_ring), attachments, in_flight, .. } = self else {
            return None;
        };
        loop {
            let (request, result) = nvme_ring.reap_one(log_status)?;
            if in_flight.is_token_done(&request, |bytes| result.is(bytes)) {
                in_flight.count_token_done(&request);
                return Some(Completion::from_whole_step(request.take()));
            }
            in_flight.take(request, result, Polled::No, attachments);
            in_flight.has_other_completions = true;
        }
    }

    #[inline(never)]
    fn reap_iopoll_ring(&mut self) {
        let IoDispatch { iopoll_ring: Some(iopoll_ring), attachments, in_flight, .. } = self else {
            return;
        };
        iopoll_ring
            .reap(|request, result| in_flight.take(request, result, Polled::Yes, attachments));
        while let Some((request, result)) = iopoll_ring.moved_out() {
            in_flight.take_unusual(request, result, Polled::Yes, attachments);
        }
    }

    #[inline(never)]
    fn reap_nvme_ring(&mut self) {
        let IoDispatch { nvme_ring: Some(nvme_ring), attachments, in_flight, .. } = self else {
            return;
        };
        let take = |request: CompletedTransfer<'_, Request>, result| {
            in_flight.take(request, result, Polled::No, attachments);
        };
        nvme_ring.reap(take, log_status);
    }

    pub(crate) fn reap_own_queues(&mut self) {
        for index in &self.own_queue_devices {
            let attachment =
                self.attachments[*index].as_mut().expect("it is attached while listed");
            let bounds = attachment.bounds();
            for queue in attachment.own_queues() {
                while let Some(StepCompletion { request, result }) = queue.reap() {
                    let in_flight = &mut self.in_flight;
                    let is_whole =
                        in_flight.is_done_in_one_step(&request, |bytes| result == Ok(bytes));
                    if is_whole && is_token(request.tag) {
                        in_flight.count_token_done(&request);
                        in_flight.completed.push_back(Completion::from_whole_step(request));
                    } else if is_whole && is_awaited(request.tag) {
                        in_flight.count_token_done(&request);
                        in_flight.complete_transfer(request);
                    } else {
                        in_flight.on_step(request, result, bounds);
                    }
                }
            }
        }
    }

    /// Takes the completions that the worker returns.
    pub(crate) fn take_from_worker(&mut self, completions: Vec<StepCompletion>) {
        self.in_flight.at_worker -= completions.len();
        for StepCompletion { request, result } in completions {
            let bounds = bounds_of(&self.attachments, request.device);
            self.in_flight.finish(request, result, bounds);
        }
        self.report_failures();
    }

    /// Submits to the devices' own queues.
    pub(crate) fn submit_own(&mut self) -> Result<(), Errno> {
        for index in &self.own_queue_devices {
            let attachment =
                self.attachments[*index].as_mut().expect("it is attached while listed");
            for queue in attachment.own_queues() {
                queue.submit()?;
            }
        }
        Ok(())
    }

    /// The devices with queues of their own.
    pub(crate) fn attached_with_own_queue(&self) -> impl Iterator<Item = &Attachment> {
        self.own_queue_devices.iter().filter_map(|index| self.attachments[*index].as_ref())
    }

    /// When each of the devices' own queues is ready.
    pub(crate) fn own_queues_ready(&self) -> impl Iterator<Item = Ready<'_>> {
        self.attached_with_own_queue()
            .flat_map(|attachment| attachment.own_queues_ref().map(|queue| queue.ready()))
    }

    /// Submits to all queues.
    pub(crate) fn submit_all(&mut self) -> Result<(), Errno> {
        self.submit_own()?;
        for ring in [&mut self.ring, &mut self.iopoll_ring].into_iter().flatten() {
            if ring.queued() > 0 {
                ring.enter(0, None)?;
            }
        }
        match &mut self.nvme_ring {
            Some(nvme_ring) if nvme_ring.queued() > 0 => nvme_ring.enter(0, None),
            _ => Ok(()),
        }
    }

    /// Requests cancellation of the requests with `tag`. In a forked child it does nothing: the requests are the
    /// parent's, and so are the threads that may have held a queue's lock at the fork.
    pub(crate) fn cancel(&mut self, tag: Tag) {
        if self.is_forked() {
            return;
        }
        let cancel = |request: &mut Request| request.cancel_if_tagged(tag);
        for ring in [&mut self.ring, &mut self.iopoll_ring].into_iter().flatten() {
            ring.cancel(cancel);
        }
        if let Some(nvme_ring) = &mut self.nvme_ring {
            nvme_ring.mark_in_flight(|request| _ = request.cancel_if_tagged(tag));
        }
        for index in &self.own_queue_devices {
            let attachment =
                self.attachments[*index].as_mut().expect("it is attached while listed");
            for queue in attachment.own_queues() {
                queue.cancel(tag);
            }
        }
        let (waiting, rest): (VecDeque<_>, VecDeque<_>) =
            self.in_flight.backlog.drain(..).partition(|request| request.tag == tag);
        self.in_flight.backlog = rest;
        for mut request in waiting.into_iter().chain(self.in_flight.locked.take_tagged(tag)) {
            request.cancel();
            self.in_flight.complete_cancelled(request);
        }
        self.in_flight.publish_epochs();
    }

    /// Leaves the epochs that operations which have panicked were in.
    #[cold]
    pub(crate) fn leave_epochs(&mut self, epoch_holds: impl IntoIterator<Item = EpochHold>) {
        for (device, epoch_slot) in epoch_holds {
            self.in_flight.leave_epoch(device, epoch_slot);
        }
        self.in_flight.publish_epochs();
    }

    /// Holds the next request back of each device that is called: the caller waits for one in flight alone, and may do
    /// so again.
    #[cold]
    #[inline(never)]
    pub(crate) fn hold_next(&mut self) {
        for (attachment, slot) in self.attachments.iter().zip(&mut self.in_flight.devices) {
            let is_called = attachment.as_ref().is_some_and(|one| one.calls.is_some());
            if is_called && slot.fast_route == FastRoute::Ring {
                slot.fast_route = FastRoute::Held;
            }
        }
    }

    /// Looks again whether some device may be called.
    #[cold]
    pub(crate) fn update_may_call(&mut self) {
        self.may_call = self.attachments.iter().flatten().any(|one| one.calls.is_some());
    }

    /// The number of requests in flight anywhere, the worker included.
    pub(crate) fn requests_in_flight(&self) -> usize {
        let rings = [&self.ring, &self.iopoll_ring].into_iter().flatten();
        rings.map(Ring::transfers_pending).sum::<usize>()
            + self.commands_in_flight()
            + self.attached_with_own_queue().map(Attachment::own_in_flight).sum::<usize>()
            + self.in_flight.backlog.len()
            + self.in_flight.locked.len()
            + self.in_flight.at_worker
            + self.in_flight.for_worker.len()
    }

    /// True if requests for the device wait or are in flight outside of the rings, or may be.
    pub(crate) fn has_requests_of(&self, device: usize) -> bool {
        let InFlight { backlog, locked, at_worker, for_worker, .. } = &self.in_flight;
        let waiting = backlog.iter().map(|request| request.device).chain(locked.devices());
        // The devices of completions at the worker are unknown until it returns them.
        *at_worker + for_worker.len() > 0
            || self.attachments[device].as_ref().is_some_and(|one| one.own_in_flight() > 0)
            || waiting.map(DeviceIndex::get).any(|index| index == device)
    }

    /// The number of commands to NVMe namespaces in flight.
    pub(crate) fn commands_in_flight(&self) -> usize {
        self.nvme_ring.as_ref().map_or(0, NvmeRing::transfers_in_flight)
    }

    /// The number of entries of the rings that the kernel does not have yet.
    pub(crate) fn queued(&self) -> usize {
        let rings = [&self.ring, &self.iopoll_ring].into_iter().flatten();
        rings.map(Ring::queued).sum::<usize>() + self.nvme_ring.as_ref().map_or(0, NvmeRing::queued)
    }

    /// True if requests are in flight on a ring that polls for completions.
    pub(crate) fn polls(&self) -> bool {
        self.iopoll_ring.as_ref().is_some_and(|ring| ring.transfers_in_flight() > 0)
            || self.commands_in_flight() > 0
                && self.nvme_ring.as_ref().is_some_and(NvmeRing::is_polled)
    }

    /// True if requests are in flight whose completions no notifier reports: a ring that polls has none, and a new one
    /// reports only completions after its creation.
    pub(crate) fn has_unreported(&self) -> bool {
        let has_notifier = self.nvme_ring.as_ref().is_some_and(NvmeRing::has_notifier);
        self.polls() || self.commands_in_flight() > 0 && !has_notifier
    }

    /// Drops the ring for commands to NVMe namespaces, and the memory that it has registered, when no attached device takes
    /// commands.
    pub(crate) fn drop_unused_nvme_ring(&mut self) {
        let takes_commands = |one: &Attachment| matches!(one.route, QueueRoute::Nvme);
        if !self.attachments.iter().flatten().any(takes_commands) {
            if let Some(nvme_ring) = self.nvme_ring.take() {
                self.dropped_rings += nvme_ring.counters();
            }
            self.has_more_rings = self.iopoll_ring.is_some();
        }
    }

    /// Puts a device into the rings' tables.
    pub(crate) fn install(&mut self, device_inner: &Arc<DeviceInner>) -> std::io::Result<()> {
        if let Some(ring) = &mut self.ring {
            install(ring, device_inner)?;
        }
        if let Some(iopoll_ring) = &mut self.iopoll_ring
            && let Err(error) = install(iopoll_ring, device_inner)
        {
            // Free its index again for the next try.
            if let Some(ring) = &mut self.ring {
                let _ = ring.remove(device_inner.index().get() as u32);
            }
            return Err(error);
        }
        Ok(())
    }

    /// Publishes values that are counted elsewhere. `waits` is the number of calls to wait outside of the rings.
    pub(crate) fn publish_counters(&self, counters: &Counters, waits: u64) {
        counters.set(Counter::CompletedInline, self.in_flight.completed_inline);
        counters.set(Counter::Resumed, self.in_flight.resumed);
        let mut sum = self.dropped_rings;
        let rings = [&self.ring, &self.iopoll_ring].into_iter().flatten().map(Ring::counters);
        for ring in rings.chain(self.nvme_ring.as_ref().map(NvmeRing::counters)) {
            sum += ring;
        }
        counters.set(Counter::FixedFiles, sum.fixed_files);
        counters.set(Counter::PlainFiles, sum.plain_files);
        counters.set(Counter::FixedBuffers, sum.fixed_buffers);
        counters.set(Counter::PlainBuffers, sum.plain_buffers);
        counters.set(Counter::Enters, sum.enters);
        let own = self.attached_with_own_queue();
        let calls: u64 = own.map(Attachment::own_system_calls).sum();
        let calls = self.detached_calls + self.held_calls + waits + calls + sum.notifier_reads;
        counters.set(Counter::OtherCalls, calls);
    }
}

/// Logs what the controller has said of a command: the error of the request says less.
fn log_status(request: &Request, status: NvmeStatus) {
    let (op, address, length) = (request.op, request.address + request.done(), request.remaining());
    tracing::warn!(target: "uringfs", event = "nvme_status", ?op, address, length, "{status}");
}

#[cfg(all(test, not(loom)))]
mod tests {
    use uringfs_buffer::Buffer;
    use uringfs_device::backend::null::Null;
    use uringfs_device::queue::QueueKind;
    use uringfs_device::{Device, Payload};

    use super::*;
    use crate::{Reactor, ReactorOptions};

    /// A foreign loop that sleeps would not notice the end of such a request.
    #[test]
    fn no_notifier_reports_what_is_in_flight_on_the_ring_that_polls() {
        let options = ReactorOptions::new().queue(QueueKind::Ring).polled(true);
        let reactor = Reactor::new(options).unwrap();
        let device = Device::new(Null::new(1 << 20)).unwrap();
        reactor.inner().attach(device.core()).unwrap();
        let io = || reactor.inner().io.borrow_mut();
        let before = io().has_unreported();
        let payload = Payload::Buffer(Buffer::zeroed(4096));
        io().push(Request::new(device.index(), Op::Read, 0, payload, Tag(0))).unwrap();
        let pushed = io().has_unreported();
        // Taken here, since it is in no epoch.
        let end = |io: &mut IoDispatch| {
            let ring = io.iopoll_ring.as_mut().expect("the options demand it");
            ring.enter(1, None).unwrap();
            ring.reap(|request, _| drop(request.take()));
        };
        end(&mut io());
        assert_eq!((before, pushed, io().has_unreported()), (false, true, false));
    }
}
