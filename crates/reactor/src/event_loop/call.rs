//! Requests that the thread which waits for them executes itself, by calls, on devices that complete within calls.
//!
//! - [`ReactorCore::call_alone`] executes one request that was held back from the ring ([`FastRoute::Held`]).
//! - [`ReactorCore::call_fast`] executes all that was pushed to queues of kind `sync`.

use uringfs_device::{DeviceIndex, Errno, KernelTarget, Op};

use crate::counters::Counter;
use crate::event_loop::core::{CONTRADICTED, ReactorCore};
use crate::io::dispatch::IoDispatch;
use crate::io::in_flight::Polled;
use crate::io::route::FastRoute;

impl ReactorCore {
    /// Executes the request that is held back, if a wait for `wanted` completions waits for it alone. False when the
    /// ring is to be entered.
    ///
    /// Inlined down to the system call: see [`uringfs_ring::Ring::enter`].
    #[inline(always)]
    pub(crate) fn call_alone(&self, io: &mut IoDispatch, wanted: usize) -> bool {
        if !io.may_call || wanted != 1 {
            return false;
        }
        let IoDispatch { ring: Some(ring), attachments, in_flight, .. } = io else { return false };
        // The wait for messages, for which the loop looks itself. That other waits have ended shows only when the ring
        // is entered.
        let idle_waits = self.mailbox_armed.get() as usize;
        let Some(request) = ring.held_alone(idle_waits) else {
            if ring.in_flight() == 1 + idle_waits {
                io.hold_next();
            }
            return false;
        };
        // A fast request is no longer than the reads that were measured.
        let (device, is_read) = (request.device, request.op == Op::Read);
        let attachment = attachments[device.get()].as_mut();
        let attachment = attachment.expect("a device is attached while requests are in flight");
        let backend = attachment.device_inner.backend();
        let Some(calls) = &mut attachment.calls else { return false };
        let call = calls.begin_call(is_read);
        let KernelTarget::Descriptor(file) = backend.kernel_target() else { return false };
        let called = ring.call_held(file);
        calls.end_call(call);
        let is_contradicted = calls.is_contradicted();
        let (request, result) = called.expect("a request is held");
        in_flight.take(request, result, Polled::No, attachments);
        // A round hands on the results of tasks, issues the rest of a short step, and tells listeners of a failure
        // before its caller learns of it.
        in_flight.has_other_completions |= !in_flight.failures.is_empty()
            || !in_flight.to_wake.is_empty()
            || in_flight.has_backlog();
        io.is_last_uncalled = false;
        io.held_calls += 1;
        self.count(Counter::Called);
        if is_contradicted {
            self.end_calls(io, device);
        }
        true
    }

    /// Ends calls to the device until it is measured again. If it was measured as often as it may be, calls end for
    /// good when one hangs, and may be slow.
    #[cold]
    #[inline(never)]
    fn end_calls(&self, io: &mut IoDispatch, device: DeviceIndex) {
        let Some(attachment) = &mut io.attachments[device.get()] else { return };
        let is_to_be_measured = attachment.is_choice_contradicted();
        let Some(calls) = &mut attachment.calls else { return };
        if !is_to_be_measured && !calls.has_hung() {
            return calls.allow_slow();
        }
        if is_to_be_measured {
            self.attention.set(self.attention.get() | CONTRADICTED);
        } else {
            attachment.stop_calling();
            self.count(Counter::ChosenAgain);
        }
        let fast_route = &mut io.in_flight.devices[device.get()].fast_route;
        if *fast_route == FastRoute::Held {
            *fast_route = FastRoute::Ring;
        }
        io.update_may_call();
    }

    /// Executes what was pushed, by calls, when the caller waits for completions, and all that may happen are those of
    /// devices that complete within calls: no round of the loop, no queue of the kernel. False when there is more to
    /// do, before the calls or after.
    ///
    /// # Errors
    /// Those of [`Self::submit_own`].
    #[inline(never)]
    pub(crate) fn call_fast(&self) -> Result<bool, Errno> {
        if !self.only_requests_pending() || self.tasks.borrow().operations() > 0 {
            return Ok(false);
        }
        let io = &mut *self.io.borrow_mut();
        // A wait for a descriptor needs a look at the ring, or at epoll.
        let has_waits = match &io.ring {
            Some(ring) => !self.is_idle(ring) || ring.queued() > 0,
            None => self.poller.borrow().as_ref().is_some_and(|poller| poller.waits() > 0),
        };
        if has_waits || !io.has_only_calls() {
            return Ok(false);
        }
        if let Some(ring) = &mut io.ring {
            ring.release_dropped_regions();
        }
        self.submit_own(io)?;
        io.reap_own_queues();
        io.in_flight.publish_epochs();
        self.counters.add(Counter::Called, io.in_flight.completed.len() as u64);
        // The rest of a short step, a failure, and a choice that a call has contradicted are for a round.
        let is_all = !io.in_flight.has_backlog() && !io.in_flight.has_ended_any();
        Ok(is_all && self.attention.get() == 0 && !io.in_flight.completed.is_empty())
    }
}
