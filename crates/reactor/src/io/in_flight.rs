//! Requests and waits in flight, and what the end of a step means: a result for a caller, another step, or a look by a
//! round. Does not poll tasks; it lists those to wake.

use std::collections::VecDeque;
use std::mem;

use uringfs_device::{
    Bounds, DeviceIndex, Errno, Failure, Payload, Progress, Request, StepCompletion,
};
use uringfs_ring::{CompletedTransfer, Event, StepResult};

use crate::io::attachment::Attachment;
use crate::io::route::{DeviceSlot, FastRoute};
use crate::io::submission_lock::LockedSubmissions;
use crate::options::CompletionMode;
use crate::tasks::batches::Batches;
use crate::tasks::completion::Completion;
use crate::tasks::op_result::{OpResult, ResultReceiver};
use crate::tasks::waiters::{
    CellIndex, WaitCells, WaitResult, Waiter, cell_from_tag, is_awaited, is_batch, is_operation,
    is_token,
};

/// The tag of the ring's poll on the mailbox.
pub(crate) const MAILBOX_TAG: u64 = u64::MAX;

/// Whether a request was on the IOPOLL ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polled {
    Yes,
    No,
}

/// Requests and waits in flight, and those that have ended.
pub(crate) struct InFlight {
    pub(crate) cells: WaitCells,
    /// Transfers of batches that have ended and that a round has found.
    pub(crate) batches: Batches,
    /// Token operations that have ended and not been reaped.
    pub(crate) completed: VecDeque<Completion>,
    /// Requests of operations that have ended, for delivery to their operations.
    pub(crate) returned: Vec<Request>,
    /// Requests that wait for room in their queue.
    pub(crate) backlog: VecDeque<Request>,
    /// Failures of requests, to be reported to the devices' listeners.
    pub(crate) failures: Vec<(DeviceIndex, Failure)>,
    /// Requests to be submitted under a lock.
    pub(crate) locked: LockedSubmissions,
    /// By the device's index, like `attachments`.
    pub(crate) devices: Vec<DeviceSlot>,
    /// The waiters of cells that have a result.
    pub(crate) to_wake: Vec<Waiter>,
    /// The tasks that wait for cells that have a result.
    pub(crate) tasks_to_wake: Vec<u32>,
    /// Completions to be sent to the worker.
    pub(crate) for_worker: Vec<StepCompletion>,
    /// The number of completions that the worker has not returned.
    pub(crate) at_worker: usize,
    pub(crate) mode: CompletionMode,
    pub(crate) mailbox_notified: bool,
    /// `next_token` or a batch has found other completions, which a round handles.
    pub(crate) has_other_completions: bool,
    /// Requests that have ended one after the other in one epoch, and are not counted out of it yet.
    pub(crate) ended_run: EpochRun,
    /// The last request of an epoch has ended, and this is not published yet.
    pub(crate) has_ended_epoch: bool,
    pub(crate) completed_inline: u64,
    pub(crate) resumed: u64,
}

/// A number of requests in one epoch.
#[derive(Default)]
pub(crate) struct EpochRun {
    /// See [`epoch_word`].
    epoch: u32,
    requests: u32,
}

/// A device, and the slot of an epoch there, which stand side by side in a request: one word, which is loaded and
/// compared at once.
#[inline(always)]
fn epoch_word(device: DeviceIndex, epoch_slot: u16) -> u32 {
    device.get() as u32 | u32::from(epoch_slot) << 16
}

/// The bounds of a device that is not attached.
pub(crate) const UNKNOWN: Bounds = Bounds { block_size: 1, size: u64::MAX };

pub(crate) fn bounds_of(attachments: &[Option<Attachment>], device: DeviceIndex) -> Bounds {
    attachments[device.get()].as_ref().map_or(UNKNOWN, Attachment::bounds)
}

impl InFlight {
    /// True when requests wait that no queue has.
    #[inline(always)]
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty() || !self.locked.is_empty()
    }

    /// True when something has ended that a round of the loop hands on.
    #[inline]
    pub(crate) fn has_ended_any(&self) -> bool {
        !self.returned.is_empty()
            || !self.to_wake.is_empty()
            || !self.tasks_to_wake.is_empty()
            || !self.failures.is_empty()
            || !self.for_worker.is_empty()
            || self.mailbox_notified
            || self.has_other_completions
            || self.has_ended_epoch
            || self.ended_run.requests > 0
    }

    /// Puts a request for this device in the epoch, before its map is read. `None` when the device is not attached: then
    /// nothing is issued.
    pub(crate) fn enter_epoch(&mut self, device: DeviceIndex) -> Option<u16> {
        self.devices.get_mut(device.get()).map(|slot| slot.tracker.enter())
    }

    /// Publishes the epochs that have ended, for those that wait for quiescence. Once a batch, and before this thread may
    /// turn to something else.
    #[inline(always)]
    pub(crate) fn publish_epochs(&mut self) {
        if self.ended_run.requests > 0 {
            self.end_run();
        }
        if mem::take(&mut self.has_ended_epoch) {
            for slot in &mut self.devices {
                slot.tracker.publish_ended();
            }
        }
    }

    /// Counts a request out of its epoch, at the latest in [`Self::publish_epochs`].
    #[inline(always)]
    pub(crate) fn leave_epoch(&mut self, device: DeviceIndex, epoch_slot: u16) {
        let epoch = epoch_word(device, epoch_slot);
        if self.ended_run.epoch != epoch {
            self.end_run();
            self.ended_run.epoch = epoch;
        }
        self.ended_run.requests += 1;
    }

    #[inline(never)]
    fn end_run(&mut self) {
        let EpochRun { epoch, requests } = self.ended_run;
        self.ended_run.requests = 0;
        if requests > 0 {
            let tracker = &mut self.devices[epoch as u16 as usize].tracker;
            self.has_ended_epoch |= tracker.leave((epoch >> 16) as u16, requests);
        }
    }

    /// The same for several requests.
    #[inline(always)]
    pub(crate) fn leave_epoch_many(&mut self, device: DeviceIndex, epoch_slot: u16, requests: u32) {
        let tracker = &mut self.devices[device.get()].tracker;
        self.has_ended_epoch |= tracker.leave(epoch_slot, requests);
    }

    /// Takes the end of a step on a ring.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        request: CompletedTransfer<'_, Request>,
        result: StepResult,
        polled: Polled,
        attachments: &mut [Option<Attachment>],
    ) {
        if self.is_token_done(&request, |bytes| result.is(bytes)) {
            self.count_token_done(&request);
            self.completed.push_back(Completion::from_whole_step(request.take()));
        } else if self.is_operation_done(&request, |bytes| result.is(bytes)) {
            // `push` would build the request on the stack and copy it from there.
            self.returned.extend(std::iter::once_with(|| request.take()));
        } else if is_awaited(request.tag)
            && self.is_done_in_one_step(&request, |bytes| result.is(bytes))
        {
            self.count_token_done(&request);
            self.complete_transfer(request.take());
        } else {
            self.take_unusual(request.take(), result, polled, attachments);
        }
    }

    /// The same for a step that needs more than to be delivered, of an operation, or of a batch.
    #[cold]
    pub(crate) fn take_unusual(
        &mut self,
        request: Request,
        result: StepResult,
        polled: Polled,
        attachments: &mut [Option<Attachment>],
    ) {
        let result = result.get();
        if polled == Polled::Yes && matches!(result, Err(Errno::OPNOTSUPP | Errno::INVAL)) {
            self.stop_polling(request.device, attachments);
            self.backlog.push_back(request);
        } else {
            let bounds = bounds_of(attachments, request.device);
            self.on_step(request, result, bounds);
        }
    }

    /// The device refuses to be polled: its requests take the other ring.
    #[cold]
    fn stop_polling(&mut self, device: DeviceIndex, attachments: &mut [Option<Attachment>]) {
        let attachment = attachments[device.get()].as_mut();
        attachment.expect("a device is attached while requests are in flight").stop_polling();
        let fast_route = &mut self.devices[device.get()].fast_route;
        if *fast_route == FastRoute::Polled {
            *fast_route = FastRoute::Ring;
        }
    }

    /// True if the step completes a token operation of one request, all in one step, as nearly every step does. `moved`
    /// returns true if the step moved that many bytes.
    #[inline(always)]
    pub(crate) fn is_token_done(&self, request: &Request, moved: impl FnOnce(u32) -> bool) -> bool {
        is_token(request.tag) && self.is_done_in_one_step(request, moved)
    }

    /// The same for an operation's request.
    #[inline(always)]
    fn is_operation_done(&self, request: &Request, moved: impl FnOnce(u32) -> bool) -> bool {
        is_operation(request.tag) && self.is_done_in_one_step(request, moved)
    }

    #[inline(always)]
    pub(crate) fn is_done_in_one_step(
        &self,
        request: &Request,
        moved: impl FnOnce(u32) -> bool,
    ) -> bool {
        self.mode == CompletionMode::Inline
            && matches!(&request.payload, Payload::Buffer(buffer) if moved(buffer.len() as u32))
    }

    /// Counts such a token operation, or an awaited transfer, as completed inline, and its request out of its epoch.
    #[inline(always)]
    pub(crate) fn count_token_done(&mut self, request: &Request) {
        self.completed_inline += 1;
        self.leave_epoch(request.device, request.epoch_slot);
    }

    #[cold]
    pub(crate) fn take_event(&mut self, event: Event) {
        match event {
            Event::Wait { tag: MAILBOX_TAG, .. } => self.mailbox_notified = true,
            Event::Wait { wait, tag, result } => {
                self.complete_wait(tag as CellIndex, WaitResult::Descriptor(wait, result));
            }
            Event::Message => {}
        }
    }

    /// Handles the end of a step: finishes it here, or sends it through the worker.
    #[inline(never)]
    pub(crate) fn on_step(&mut self, request: Request, result: Result<u32, Errno>, bounds: Bounds) {
        match self.mode {
            CompletionMode::Inline => self.finish(request, result, bounds),
            CompletionMode::Worker => self.for_worker.push(StepCompletion { request, result }),
        }
    }

    pub(crate) fn finish(
        &mut self,
        mut request: Request,
        result: Result<u32, Errno>,
        bounds: Bounds,
    ) {
        match request.advance(result, bounds) {
            Progress::Again => {
                self.resumed += 1;
                self.backlog.push_back(request);
            }
            Progress::Done(result) => {
                if let Err(errno) = result {
                    let failed =
                        Failure::from_request(&request, errno).map(|one| (request.device, one));
                    self.failures.extend(failed);
                }
                request.end(result);
                let is_inline = self.mode == CompletionMode::Inline;
                self.completed_inline += (is_inline && !is_operation(request.tag)) as u64;
                self.complete(request);
            }
        }
    }

    /// Returns a request that has ended to its issuer.
    fn complete(&mut self, request: Request) {
        if is_operation(request.tag) {
            return self.returned.push(request);
        }
        self.leave_epoch(request.device, request.epoch_slot);
        if is_token(request.tag) || is_batch(request.tag) {
            return self.complete_token(request);
        }
        self.complete_transfer(request);
    }

    /// Hands on the result of a fast-path transfer that a caller awaits.
    #[inline]
    pub(crate) fn complete_transfer(&mut self, request: Request) {
        let sender = self.cells.close_transfer(cell_from_tag(request.tag));
        self.to_wake.push(Waiter::Result(sender, OpResult::from_request(request)));
    }

    /// Returns the result of an operation that was started by token, to the caller that reaps or to the batch.
    pub(crate) fn complete_token(&mut self, request: Request) {
        if is_token(request.tag) {
            return self.completed.push_back(Completion::from_request(request));
        }
        if let Some(request) = self.batches.end(request) {
            // The batch was dropped. Its memory is dropped when the reactor is no longer borrowed.
            let sender = ResultReceiver::default().sender();
            self.to_wake.push(Waiter::Result(sender, OpResult::from_request(request)));
        }
    }

    /// Completes, as cancelled, a request that is in no queue now. A queue may have had it before.
    pub(crate) fn complete_cancelled(&mut self, mut request: Request) {
        request.end(Err(Errno::CANCELED));
        self.complete(request);
    }

    pub(crate) fn complete_wait(&mut self, cell: CellIndex, result: WaitResult) {
        match self.cells.complete(cell, result, &mut self.tasks_to_wake) {
            Waiter::None => {}
            waiter => self.to_wake.push(waiter),
        }
    }
}
