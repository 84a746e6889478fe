//! Submits what is pushed and sleeps until a completion, a message or a timer. The thread sleeps in the ring if all
//! that can complete is in the ring, else in epoll. It parks if nothing is in flight. While commands to NVMe namespaces
//! are in flight it sleeps in their ring, which watches the other one.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use uringfs_device::{Clock, Errno, Ready, Request};
use uringfs_ring::nvme::NvmeRing;
use uringfs_ring::{PollEvents, Ring, Wait};

use crate::counters::Counter;
use crate::event_loop::core::{CONTRADICTED, ReactorCore};
use crate::io::attachment::Attachment;
use crate::io::dispatch::IoDispatch;
use crate::io::in_flight::MAILBOX_TAG;
use crate::io::poller::Poller;
use crate::tasks::waiters::WaitResult;

/// The longest sleep before the thread checks all sources again, in three cases: a wait for several completions, so
/// that messages and other queues never wait for the slowest of a batch; a wait that the mailbox's notifier does not
/// end; a wait for other reactors of the thread.
pub(crate) const RECHECK_INTERVAL: Duration = Duration::from_millis(1);

impl ReactorCore {
    /// Waits as [`Self::wait`]; if tasks are ready, only submits.
    pub(crate) fn wait_unless_ready(
        &self,
        wanted: usize,
        until: Option<Instant>,
    ) -> Result<(), Errno> {
        if self.has_ready() { self.submit() } else { self.wait(wanted, until) }
    }

    /// Submits what is pushed and sleeps until a completion, a message, a timer, or `until`.
    #[inline]
    pub(crate) fn wait(&self, wanted: usize, until: Option<Instant>) -> Result<(), Errno> {
        let io = &mut *self.io.borrow_mut();
        let is_ring_only =
            io.own_queue_devices.is_empty() && !io.has_more_rings && !io.in_flight.has_backlog();
        if is_ring_only && until.is_none() && self.timers.borrow().is_empty() {
            if self.call_alone(io, wanted) {
                return Ok(());
            }
            if self.mailbox_armed.get()
                && let Some(ring) = &mut io.ring
                && ring.transfers_in_flight() > 0
            {
                let wanted = wanted.min(ring.transfers_in_flight());
                let entered = self.enter_and_sleep(ring, wanted);
                self.mailbox.announce_awake();
                return entered;
            }
        }
        self.wait_slow(io, until)
    }

    /// Submits, and waits for `wanted` completions of the ring or for a message. The thread stays announced as asleep, so that
    /// its next sleep of this kind costs less.
    ///
    /// Inlined for the same reason as the system call: see [`Ring::enter`].
    #[inline(always)]
    pub(crate) fn enter_and_sleep(
        &self,
        ring: &mut Ring<Request>,
        wanted: usize,
    ) -> Result<(), Errno> {
        if !self.mailbox.announce_sleep_again() {
            return ring.enter(0, None);
        }
        let timeout = if wanted > 1 { Some(RECHECK_INTERVAL) } else { None };
        ring.enter(wanted as u32, timeout)
    }

    /// The same for the ring of commands to NVMe namespaces, or until `limit` has passed. Without `limit` that ring
    /// watches the other one, which gets the messages.
    #[inline(always)]
    pub(crate) fn sleep_in_nvme_ring(
        &self,
        nvme_ring: &mut NvmeRing<Request>,
        wanted: usize,
        limit: Option<Duration>,
    ) -> Result<(), Errno> {
        if !self.mailbox.announce_sleep() {
            return nvme_ring.enter(0, None);
        }
        let timeout = if wanted > 1 { Some(RECHECK_INTERVAL) } else { limit };
        let entered = nvme_ring.enter(wanted as u32, timeout);
        self.mailbox.announce_awake();
        entered
    }

    /// Submits, and polls for completions: once, or, if it `may_poll_on` and nothing is in flight on the other rings, until
    /// there is one. The kernel polls on whatever else happens meanwhile: a timer, a message, a completion elsewhere.
    fn poll_rings(&self, io: &mut IoDispatch, may_poll_on: bool) -> Result<(), Errno> {
        let IoDispatch { ring, iopoll_ring, nvme_ring, .. } = io;
        let iopoll_ring = iopoll_ring.as_mut().filter(|ring| ring.transfers_in_flight() > 0);
        let nvme_ring = nvme_ring.as_mut().filter(|ring| ring.transfers_in_flight() > 0);
        let is_main_idle = ring.as_ref().is_none_or(|ring| self.is_idle(ring));
        let is_one = is_main_idle && (iopoll_ring.is_none() || nvme_ring.is_none());
        let wanted = (is_one && may_poll_on) as u32;
        if let Some(iopoll_ring) = iopoll_ring {
            iopoll_ring.enter(wanted, None)?;
        }
        if let Some(nvme_ring) = nvme_ring {
            nvme_ring.enter(wanted, None)?;
        }
        match ring {
            Some(ring) if !is_main_idle || ring.queued() > 0 => ring.enter(0, None),
            _ => Ok(()),
        }
    }

    /// Waits for a completion of a command to an NVMe namespace, or of the main ring, or for a message.
    fn wait_for_commands(
        &self,
        ring: &mut Ring<Request>,
        nvme_ring: &mut NvmeRing<Request>,
        mut limit: Option<Duration>,
    ) -> Result<(), Errno> {
        self.arm_mailbox(ring);
        let is_watching = nvme_ring.is_watching();
        if !is_watching {
            // Completions from here on make the notifier readable, which is made now if there is none.
            let _ = ring.notifier();
            ring.silence();
        }
        if !is_watching || ring.queued() > 0 {
            ring.enter(0, None)?;
        }
        if ring.has_completed() {
            return nvme_ring.enter(0, None);
        }
        let is_watching = ring.notifier().is_ok_and(|notifier| nvme_ring.watch(notifier));
        if !is_watching || !self.mailbox_armed.get() {
            // No event reports a message, or a completion of the other ring.
            limit = Some(limit.map_or(RECHECK_INTERVAL, |limit| limit.min(RECHECK_INTERVAL)));
        }
        self.count(Counter::Sleeps);
        self.sleep_in_nvme_ring(nvme_ring, 1, limit)
    }

    /// True if nothing is in flight on the main ring but the wait for messages, for which the loop looks itself: a ring
    /// beside it that polls for completions may then be the only one to be entered.
    pub(crate) fn is_idle(&self, ring: &Ring<Request>) -> bool {
        ring.in_flight() <= self.mailbox_armed.get() as usize
    }

    #[inline(never)]
    pub(crate) fn wait_slow(
        &self,
        io: &mut IoDispatch,
        until: Option<Instant>,
    ) -> Result<(), Errno> {
        if io.in_flight.has_backlog() {
            io.push_backlog();
        }
        self.submit_own(io)?;
        let mut until = [until, self.timers.borrow().next()].into_iter().flatten().min();
        let mut readable = io.ring.is_none();
        let mut now = false;
        for ready in io.own_queues_ready() {
            match ready {
                Ready::Never => {}
                Ready::Now => now = true,
                Ready::At(at) => until = Some(until.map_or(at, |until| until.min(at))),
                Ready::Readable(_) => readable = true,
                Ready::ReadableOrAt(_, at) => {
                    until = Some(until.map_or(at, |until| until.min(at)));
                    readable = true;
                }
            }
        }
        if now {
            return self.enter_all(io);
        }
        if io.polls() {
            let may_poll_on = until.is_none() && !readable && !self.mailbox.has_messages();
            return self.poll_rings(io, may_poll_on);
        }
        if let (Some(ring), Some(nvme_ring)) = (&mut io.ring, &mut io.nvme_ring)
            && nvme_ring.transfers_in_flight() > 0
            && !readable
        {
            let clock = &self.options.clock;
            let limit = until.map(|until| until.saturating_duration_since(clock.now()));
            return self.wait_for_commands(ring, nvme_ring, limit);
        }
        let ring_busy = io.ring.as_ref().is_some_and(|ring| ring.transfers_in_flight() > 0);
        if let Clock::Virtual(clock) = &self.options.clock
            && !ring_busy
            && !readable
            && io.in_flight.at_worker == 0
            && let Some(until) = until
        {
            clock.advance_to(until);
            return self.enter_all(io);
        }
        let is_soon = io.in_flight.at_worker > 0;
        if is_soon && !ring_busy && !readable && self.spin(until) {
            return self.enter_all(io);
        }
        let mut limit =
            until.map(|until| until.saturating_duration_since(self.options.clock.now()));
        if readable {
            return self.wait_in_epoll(io, limit);
        }
        if let Some(nvme_ring) = &mut io.nvme_ring {
            nvme_ring.release_dropped_regions();
        }
        let ring = io.ring.as_mut().expect("a reactor without a ring waits in epoll");
        let armed = self.mailbox_armed.get() as usize;
        if ring.queued() == 0 && ring.in_flight() <= armed {
            ring.release_dropped_regions();
            self.park_for_message(limit);
            return Ok(());
        }
        self.arm_mailbox(ring);
        if !self.mailbox_armed.get() {
            // The ring does not watch the mailbox (no slot, entry or descriptor left): no event reports a message.
            limit = Some(limit.map_or(RECHECK_INTERVAL, |limit| limit.min(RECHECK_INTERVAL)));
        }
        if !self.mailbox.announce_sleep() {
            return ring.enter(0, None);
        }
        self.count(Counter::Sleeps);
        let entered = ring.enter(1, limit);
        self.mailbox.announce_awake();
        entered
    }

    /// Submits to the devices' own queues, and notices those that have become slow.
    pub(crate) fn submit_own(&self, io: &mut IoDispatch) -> Result<(), Errno> {
        io.submit_own()?;
        if io.attached_with_own_queue().any(Attachment::is_choice_contradicted) {
            self.attention.set(self.attention.get() | CONTRADICTED);
        }
        Ok(())
    }

    /// Sleeps until there is a message, or for `limit`. Called when nothing else can happen.
    fn park_for_message(&self, limit: Option<Duration>) {
        let notifier = self.mailbox.notifier();
        notifier.will_park();
        if self.mailbox.announce_sleep() {
            self.count(Counter::Sleeps);
            notifier.park(limit);
            self.mailbox.announce_awake();
        }
        notifier.will_not_park();
    }

    /// Submits what is pushed, and lets the kernel finish what it deferred.
    pub(crate) fn enter_all(&self, io: &mut IoDispatch) -> Result<(), Errno> {
        // The poll request on the mailbox's eventfd has nothing to finish: the loop looks for messages itself.
        let armed = self.mailbox_armed.get() as usize;
        if let Some(ring) = &mut io.ring
            && (ring.queued() > 0 || ring.in_flight() > armed)
        {
            ring.enter(0, None)?;
        }
        if let Some(iopoll_ring) = &mut io.iopoll_ring
            && (iopoll_ring.queued() > 0 || iopoll_ring.in_flight() > 0)
        {
            iopoll_ring.enter(0, None)?;
        }
        match &mut io.nvme_ring {
            Some(nvme_ring) if nvme_ring.transfers_in_flight() > 0 => nvme_ring.enter(0, None),
            _ => Ok(()),
        }
    }

    /// Spins for messages of the completion worker, which responds in less time than a sleep and a wake take. Other
    /// senders take longer (a commit, for example), and may need this core for their work. Spins briefly, at most once
    /// before each sleep: an idle reactor sleeps.
    pub(crate) fn spin(&self, until: Option<Instant>) -> bool {
        let spin = Duration::from_micros(self.options.spin_us.into());
        if spin.is_zero() || matches!(self.options.clock, Clock::Virtual(_)) {
            return self.mailbox.has_messages();
        }
        let begin = Instant::now();
        let end = until.map_or(begin + spin, |until| until.min(begin + spin));
        loop {
            for _ in 0..50 {
                if self.mailbox.has_messages() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= end {
                return false;
            }
            // The worker may need this core.
            std::thread::yield_now();
        }
    }

    /// Makes the ring wake this thread when the mailbox's notifier is signalled.
    pub(crate) fn arm_mailbox(&self, ring: &mut Ring<Request>) {
        if !self.mailbox_armed.get() {
            let file = self.mailbox.notifier().event().clone();
            let wait = Wait::Poll { file, events: PollEvents::IN };
            self.mailbox_armed.set(ring.push_wait(wait, MAILBOX_TAG).is_ok());
        }
    }

    pub(crate) fn wait_in_epoll(
        &self,
        io: &mut IoDispatch,
        limit: Option<Duration>,
    ) -> Result<(), Errno> {
        let mut poller = self.poller.borrow_mut();
        let poller = match &mut *poller {
            Some(poller) => poller,
            none => none.insert(Poller::new()?),
        };
        self.register_sources(poller, io)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        if let Some(ring) = &mut io.ring {
            // Completions from here on make the ring's notifier readable.
            ring.silence();
            ring.enter(0, None)?;
        }
        if let Some(nvme_ring) = &mut io.nvme_ring {
            nvme_ring.silence();
            nvme_ring.enter(0, None)?;
        }
        // Only now: both rings must get what was pushed, however busy the first one is.
        if io.ring.as_ref().is_some_and(Ring::has_completed)
            || io.nvme_ring.as_ref().is_some_and(NvmeRing::has_completed)
        {
            return Ok(());
        }
        // A queue may notice completions only when its descriptor is requested.
        let now = io.own_queues_ready().any(|ready| matches!(ready, Ready::Now));
        if now || !self.mailbox.announce_sleep() {
            return Ok(());
        }
        self.count(Counter::Sleeps);
        let in_flight = &mut io.in_flight;
        let waited = poller.wait(limit, |cell, wait, result| {
            in_flight.complete_wait(cell, WaitResult::Descriptor(wait, result))
        });
        self.mailbox.announce_awake();
        self.mailbox.notifier().reset();
        // The reset is one, too.
        poller.system_calls += 1;
        waited
    }

    pub(crate) fn register_epoll_sources(&self) -> io::Result<()> {
        let mut poller = self.poller.borrow_mut();
        let poller = match &mut *poller {
            Some(poller) => poller,
            none => none.insert(Poller::new()?),
        };
        self.register_sources(poller, &self.io.borrow())
    }

    /// Registers in `poller` everything that may complete.
    pub(crate) fn register_sources(&self, poller: &mut Poller, io: &IoDispatch) -> io::Result<()> {
        poller.register(self.mailbox.notifier().event().as_fd())?;
        if let Some(ring) = &io.ring {
            poller.register(ring.notifier()?)?;
        }
        if let Some(nvme_ring) = &io.nvme_ring {
            poller.register(nvme_ring.notifier()?)?;
        }
        for ready in io.own_queues_ready() {
            if let Ready::Readable(descriptor) | Ready::ReadableOrAt(descriptor, _) = ready {
                poller.register(descriptor)?;
            }
        }
        Ok(())
    }
}
