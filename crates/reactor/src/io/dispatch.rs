//! A reactor's queues and devices: where a request goes, and what its return
//! means. Knows nothing of tasks; it says whom to tell.

use std::collections::VecDeque;
use std::sync::Arc;

use rustix::io::Errno;
use uringfs_device::queue::ring::{carries, install};
use uringfs_device::{
    Bounds, Completion, Core, DeviceIndex, Failure, Op, Payload, Progress, Ready, Request, Tag,
};
use uringfs_ring::{Ended, Event, Ring, StepResult, fork_count};

use crate::counters::{Counter, Counters};
use crate::io::attachment::Attachment;
use crate::io::route::{Lane, Route, Way};
use crate::io::submission_lock::Guarded;
use crate::options::CompletionMode;
use crate::tasks::completion::Completed;
use crate::tasks::outcome::Outcome;
use crate::tasks::waiters::{
    Answer, CellIndex, Cells, CountedIn, Waiter, cell_of, is_operations, is_token,
};

/// The tag of the ring's watch on the mailbox.
pub(crate) const MAIL_TAG: u64 = u64::MAX;

/// Queues, devices, and what is in flight.
pub(crate) struct Io {
    /// Forks counted when it was made: see [`Self::is_forked`].
    pub(crate) forks: u32,
    pub(crate) ring: Option<Ring<Request>>,
    pub(crate) polled: Option<Ring<Request>>,
    pub(crate) attachments: Vec<Option<Attachment>>,
    /// Devices with queues of their own, by place.
    pub(crate) own: Vec<usize>,
    /// System calls of queues that were there before.
    pub(crate) detached_calls: u64,
    pub(crate) state: State,
}

/// What is in flight and what has come back.
pub(crate) struct State {
    pub(crate) cells: Cells,
    /// Token operations that have ended and not been reaped.
    pub(crate) completed: Vec<Completed>,
    /// Requests of operations that have ended, to be left with them.
    pub(crate) returned: Vec<Request>,
    /// Requests that wait for room in their queue.
    pub(crate) backlog: VecDeque<Request>,
    /// Of requests that failed, what is to be told.
    pub(crate) failed: Vec<(DeviceIndex, Failure)>,
    /// Requests that are submitted with a lock held.
    pub(crate) guarded: Guarded,
    /// By the device's place, kept with `attachments`.
    pub(crate) lanes: Vec<Lane>,
    /// Whom to tell of answered cells.
    pub(crate) told: Vec<Waiter>,
    /// Tasks to poll again, for the same reason.
    pub(crate) woken: Vec<u32>,
    /// Completions on their way to the worker.
    pub(crate) for_worker: Vec<Completion>,
    /// Completions that the worker has and has not given back.
    pub(crate) at_worker: usize,
    pub(crate) mode: CompletionMode,
    pub(crate) mail_arrived: bool,
    /// The last of an epoch has ended, and that is to be published.
    pub(crate) is_unsettled: bool,
    pub(crate) completed_inline: u64,
    pub(crate) resumed: u64,
}

impl Io {
    /// True in the child of a fork, where the queues are the parent's.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != fork_count()
    }

    /// Hands a request to its device's queue; gives it back when that is full,
    /// or when the device is not attached.
    pub(crate) fn push(&mut self, mut request: Request) -> Result<(), Request> {
        request.set_issued(true);
        match self.state.lanes.get(request.device.get()) {
            _ if self.is_forked() => Err(request),
            None | Some(Lane { way: Way::Closed, .. }) => Err(request),
            Some(_) => self.push_on(request),
        }
    }

    /// The same for what the device had taken before it closed.
    pub(crate) fn push_on(&mut self, request: Request) -> Result<(), Request> {
        let Some(Some(attachment)) = self.attachments.get(request.device.get()) else {
            return Err(request);
        };
        if let (Route::Ring, true, Some(ring)) =
            (&attachment.route, carries(request.op), &mut self.ring)
        {
            return ring.push(request);
        }
        self.push_elsewhere(request)
    }

    #[inline(never)]
    fn push_elsewhere(&mut self, request: Request) -> Result<(), Request> {
        let attachment =
            self.attachments[request.device.get()].as_mut().expect("the caller has looked");
        match &mut attachment.route {
            Route::Own(queue) => queue.push(request),
            Route::Polled if matches!(request.op, Op::Read | Op::Write) => match &mut self.polled {
                Some(polled) => polled.push(request),
                None => Err(request),
            },
            Route::Ring | Route::Polled if carries(request.op) => match &mut self.ring {
                Some(ring) => ring.push(request),
                None => Err(request),
            },
            // No ring carries it without blocking, so threads do.
            Route::Ring | Route::Polled => match attachment.side() {
                Ok(queue) => {
                    let place = request.device.get();
                    if !self.own.contains(&place) {
                        self.own.push(place);
                    }
                    queue.push(request)
                }
                Err(error) => {
                    self.state.arrived(request, Err(error), attachment.bounds());
                    Ok(())
                }
            },
        }
    }

    /// Hands over what waited for room, oldest first, as far as each device's
    /// queue has room, and what is submitted with a lock held. True when some of it went.
    pub(crate) fn push_backlog(&mut self) -> bool {
        let mut went = !self.state.guarded.is_empty() && self.submit_guarded();
        let mut full = Vec::new();
        for mut request in std::mem::take(&mut self.state.backlog) {
            let issued = request.is_issued();
            request.set_issued(true);
            let device = request.device;
            if full.contains(&device) {
                request.set_issued(issued);
                self.state.backlog.push_back(request);
                continue;
            }
            match self.push_on(request) {
                Ok(()) => went = true,
                Err(mut request) => {
                    request.set_issued(issued);
                    if self.attachments.get(device.get()).is_some_and(Option::is_some) {
                        full.push(device);
                        self.state.backlog.push_back(request);
                    } else {
                        self.state.arrived(request, Err(Errno::NODEV), UNKNOWN);
                    }
                }
            }
        }
        went
    }

    /// Submits what waits for locks, each lock's requests at once. Those for which a queue has no
    /// room wait on. True when some went.
    pub(crate) fn submit_guarded(&mut self) -> bool {
        let (mut went, mut full) = (false, Vec::new());
        while let Some((lock, requests)) = self.state.guarded.take_first() {
            let held = lock.hold();
            for mut request in requests {
                request.set_issued(true);
                match self.push_on(request) {
                    Ok(()) => went = true,
                    Err(mut request) => {
                        request.set_issued(false);
                        full.push((lock.clone(), request));
                    }
                }
            }
            // What is not taken now is with the next that is submitted, which says why.
            let _ = self.submit_all();
            drop(held);
        }
        full.into_iter().for_each(|(lock, request)| self.state.guarded.add(lock, request));
        went
    }

    /// Takes everything that has come back, without a system call of the ring's.
    #[inline(never)]
    pub(crate) fn collect(&mut self) {
        let Io { ring, attachments, state, .. } = self;
        if let Some(ring) = ring {
            ring.reap(|request, result| {
                state.take(request, result, |device| bounds_of(attachments, device));
            });
            while let Some(event) = ring.event() {
                state.take_event(event);
            }
        }
        if self.polled.is_some() {
            self.collect_polled();
        }
        if !self.own.is_empty() {
            self.collect_own();
        }
        self.tell_failures();
        self.state.settle();
    }

    /// Before anybody hears of it who asked.
    #[inline(always)]
    fn tell_failures(&mut self) {
        if !self.state.failed.is_empty() {
            for (device, failure) in self.state.failed.drain(..) {
                let attachment = self.attachments[device.get()].as_ref();
                attachment.inspect(|attachment| attachment.core.tell_failure(failure));
            }
        }
    }

    #[inline(never)]
    fn collect_polled(&mut self) {
        let Io { polled: Some(polled), attachments, state, .. } = self else { return };
        polled.reap(|request, result| {
            if matches!(result.get(), Err(Errno::OPNOTSUPP | Errno::INVAL)) {
                state.stop_polling(request.device, attachments);
                state.backlog.push_back(request.take());
            } else {
                state.take(request, result, |device| bounds_of(attachments, device));
            }
        });
    }

    fn collect_own(&mut self) {
        for place in &self.own {
            let attachment = self.attachments[*place].as_mut().expect("listed while attached");
            let bounds = attachment.bounds();
            for queue in attachment.own_queues() {
                while let Some(Completion { request, result }) = queue.reap() {
                    if self.state.is_whole(&request, |bytes| result == Ok(bytes)) {
                        self.state.count_whole(&request);
                        self.state.completed.push(Completed::of(request));
                    } else {
                        self.state.arrived(request, result, bounds);
                    }
                }
            }
        }
    }

    /// Takes what the worker gives back.
    pub(crate) fn collect_from_worker(&mut self, completions: Vec<Completion>) {
        self.state.at_worker -= completions.len();
        for Completion { request, result } in completions {
            let bounds = bounds_of(&self.attachments, request.device);
            self.state.finish(request, result, bounds);
        }
        self.tell_failures();
    }

    /// Starts everything pushed to queues of devices' own.
    pub(crate) fn submit_own(&mut self) -> Result<(), Errno> {
        for place in &self.own {
            let attachment = self.attachments[*place].as_mut().expect("listed while attached");
            for queue in attachment.own_queues() {
                queue.submit()?;
            }
        }
        Ok(())
    }

    /// What the queues of devices' own are waiting for.
    pub(crate) fn own_ready(&self) -> impl Iterator<Item = Ready<'_>> {
        self.own
            .iter()
            .filter_map(|place| self.attachments[*place].as_ref())
            .flat_map(|attachment| attachment.own_queues_ref().map(|queue| queue.ready()))
    }

    /// Starts everything pushed.
    pub(crate) fn submit_all(&mut self) -> Result<(), Errno> {
        self.submit_own()?;
        for ring in [&mut self.ring, &mut self.polled].into_iter().flatten() {
            if ring.queued() > 0 {
                ring.enter(0, None)?;
            }
        }
        Ok(())
    }

    /// Asks for requests carrying `tag` to end soon.
    pub(crate) fn cancel(&mut self, tag: Tag) {
        let mark = |request: &mut Request| {
            let matches = request.tag == tag;
            request.cancelled |= matches;
            matches
        };
        for ring in [&mut self.ring, &mut self.polled].into_iter().flatten() {
            ring.cancel(mark);
        }
        for place in &self.own {
            let attachment = self.attachments[*place].as_mut().expect("listed while attached");
            for queue in attachment.own_queues() {
                queue.cancel(tag);
            }
        }
        let (waiting, rest): (VecDeque<_>, VecDeque<_>) =
            self.state.backlog.drain(..).partition(|request| request.tag == tag);
        self.state.backlog = rest;
        for mut request in waiting.into_iter().chain(self.state.guarded.take_tagged(tag)) {
            request.cancelled = true;
            self.state.not_started(request);
        }
        self.state.settle();
    }

    /// Counts out what operations that have panicked left.
    #[cold]
    pub(crate) fn count_out(&mut self, counted_in: impl IntoIterator<Item = CountedIn>) {
        for (device, mark) in counted_in {
            self.state.end(device, mark);
        }
        self.state.settle();
    }

    /// Requests in flight anywhere, the worker included.
    pub(crate) fn in_flight(&self) -> usize {
        let rings = [&self.ring, &self.polled].into_iter().flatten();
        let own = self.own.iter().filter_map(|place| self.attachments[*place].as_ref());
        rings.map(Ring::transfers_in_flight).sum::<usize>()
            + own.map(Attachment::own_in_flight).sum::<usize>()
            + self.state.backlog.len()
            + self.state.guarded.len()
            + self.state.at_worker
            + self.state.for_worker.len()
    }

    /// Puts a device into the rings' tables.
    pub(crate) fn install(&mut self, core: &Arc<Core>) -> std::io::Result<()> {
        if let Some(ring) = &mut self.ring {
            install(ring, core)?;
        }
        if let Some(polled) = &mut self.polled
            && let Err(error) = install(polled, core)
        {
            // Its place is free again for the next try.
            if let Some(ring) = &mut self.ring {
                let _ = ring.remove(core.index().get() as u32);
            }
            return Err(error);
        }
        Ok(())
    }

    /// Sets what is counted elsewhere. `waits` are the calls of `epoll_wait`.
    pub(crate) fn publish(&self, counters: &Counters, waits: u64) {
        counters.set(Counter::CompletedInline, self.state.completed_inline);
        counters.set(Counter::Resumed, self.state.resumed);
        let mut sum = [0; 5];
        for ring in [&self.ring, &self.polled].into_iter().flatten() {
            let ring = ring.counters();
            sum[0] += ring.fixed_files;
            sum[1] += ring.plain_files;
            sum[2] += ring.fixed_buffers;
            sum[3] += ring.plain_buffers;
            sum[4] += ring.enters;
        }
        counters.set(Counter::FixedFiles, sum[0]);
        counters.set(Counter::PlainFiles, sum[1]);
        counters.set(Counter::FixedBuffers, sum[2]);
        counters.set(Counter::PlainBuffers, sum[3]);
        counters.set(Counter::Enters, sum[4]);
        let own = self.own.iter().filter_map(|place| self.attachments[*place].as_ref());
        let calls: u64 = own.map(Attachment::own_system_calls).sum();
        counters.set(Counter::OtherCalls, self.detached_calls + waits + calls);
    }
}

/// Those of a device that is not attached.
const UNKNOWN: Bounds = Bounds { block_size: 1, size: u64::MAX };

fn bounds_of(attachments: &[Option<Attachment>], device: DeviceIndex) -> Bounds {
    attachments[device.get()].as_ref().map_or(UNKNOWN, Attachment::bounds)
}

impl State {
    /// Whether requests wait that no queue has.
    #[inline(always)]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.backlog.is_empty() || !self.guarded.is_empty()
    }

    /// Counts something in that is to be issued to this device, before its map
    /// is read. None when the device is not attached: then nothing is issued.
    pub(crate) fn begin(&mut self, device: DeviceIndex) -> Option<u8> {
        self.lanes.get_mut(device.get()).map(|lane| lane.tracker.begin())
    }

    /// Publishes what has ended, for those who wait for quiescence: once a
    /// batch, and before this thread may turn to something else.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        if std::mem::take(&mut self.is_unsettled) {
            for lane in &mut self.lanes {
                lane.tracker.settle();
            }
        }
    }

    /// Counts it out.
    #[inline(always)]
    pub(crate) fn end(&mut self, device: DeviceIndex, mark: u8) {
        self.is_unsettled |= self.lanes[device.get()].tracker.end(mark);
    }

    /// Takes the end of a step from a ring, of a device with these bounds.
    #[inline(always)]
    fn take(
        &mut self,
        request: Ended<'_, Request>,
        result: StepResult,
        bounds: impl FnOnce(DeviceIndex) -> Bounds,
    ) {
        // A push would make it on the stack and copy it from there.
        if self.is_whole(&request, |bytes| result.is(bytes)) {
            self.count_whole(&request);
            let completed = || Completed::of(request.take());
            self.completed.extend(std::iter::once_with(completed));
        } else if self.is_operations_whole(&request, |bytes| result.is(bytes)) {
            self.returned.extend(std::iter::once_with(|| request.take()));
        } else {
            let bounds = bounds(request.device);
            self.arrived(request.take(), result.get(), bounds);
        }
    }

    /// The device has refused to be polled; its requests go over the other ring.
    #[cold]
    fn stop_polling(&mut self, device: DeviceIndex, attachments: &mut [Option<Attachment>]) {
        let attachment = attachments[device.get()].as_mut();
        attachment.expect("attached while requests are in flight").stop_polling();
        let way = &mut self.lanes[device.get()].way;
        if *way == Way::Polled {
            *way = Way::Ring;
        }
    }

    /// True for the end that nearly every step is: of a token operation of one
    /// request, done in one step, which has `moved` as many bytes as it is asked about.
    #[inline(always)]
    fn is_whole(&self, request: &Request, moved: impl FnOnce(u32) -> bool) -> bool {
        is_token(request.tag) && self.is_in_one_step(request, moved)
    }

    /// The same for an operation's request.
    #[inline(always)]
    fn is_operations_whole(&self, request: &Request, moved: impl FnOnce(u32) -> bool) -> bool {
        is_operations(request.tag) && self.is_in_one_step(request, moved)
    }

    #[inline(always)]
    fn is_in_one_step(&self, request: &Request, moved: impl FnOnce(u32) -> bool) -> bool {
        self.mode == CompletionMode::Inline
            && matches!(&request.payload, Payload::Buffer(buffer) if moved(buffer.len() as u32))
    }

    /// Counts such an end, and the request out.
    #[inline(always)]
    fn count_whole(&mut self, request: &Request) {
        self.completed_inline += 1;
        self.end(request.device, request.mark);
    }

    #[cold]
    fn take_event(&mut self, event: Event) {
        match event {
            Event::Wait { tag: MAIL_TAG, .. } => self.mail_arrived = true,
            Event::Wait { wait, tag, result } => {
                self.answer(tag as CellIndex, Answer::Wait(wait, result));
            }
            Event::Message => {}
        }
    }

    /// A step has ended: finish it here, or send it through the worker.
    #[inline(never)]
    pub(crate) fn arrived(&mut self, request: Request, result: Result<u32, Errno>, bounds: Bounds) {
        match self.mode {
            CompletionMode::Inline => self.finish(request, result, bounds),
            CompletionMode::Worker => self.for_worker.push(Completion { request, result }),
        }
    }

    fn finish(&mut self, mut request: Request, result: Result<u32, Errno>, bounds: Bounds) {
        match request.advance(result, bounds) {
            Progress::Again => {
                self.resumed += 1;
                self.backlog.push_back(request);
            }
            Progress::Done(result) => {
                if let Err(errno) = result {
                    let failed = Failure::of(&request, errno).map(|one| (request.device, one));
                    self.failed.extend(failed);
                }
                request.end(result);
                let is_inline = self.mode == CompletionMode::Inline;
                self.completed_inline += (is_inline && !is_operations(request.tag)) as u64;
                self.hand_back(request);
            }
        }
    }

    /// Hands what has ended to whoever issued it.
    fn hand_back(&mut self, request: Request) {
        if is_operations(request.tag) {
            return self.returned.push(request);
        }
        self.end(request.device, request.mark);
        if is_token(request.tag) {
            return self.completed.push(Completed::of(request));
        }
        // A simple transfer that somebody awaits.
        let cell = self.cells.close_awaited(cell_of(request.tag));
        self.told.push(Waiter::Outcome(cell, Outcome::of(request)));
    }

    /// Ends a request that is in no queue, though one may have had it.
    fn not_started(&mut self, mut request: Request) {
        request.end(Err(Errno::CANCELED));
        self.hand_back(request);
    }

    pub(crate) fn answer(&mut self, cell: CellIndex, answer: Answer) {
        match self.cells.answer(cell, answer, &mut self.woken) {
            Waiter::Nobody => {}
            waiter => self.told.push(waiter),
        }
    }
}
