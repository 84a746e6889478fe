//! A thread that blocks, in `FileOp::wait` or `Volume::sync` for example, while reactors of its own have operations in
//! flight. The wait may be for what these hold, so the thread drives its reactors meanwhile. Futures that the user
//! spawned do not run, since code that blocks expects none of them in between.

use std::rc::Rc;
use std::task::Context;
use std::time::{Duration, Instant};

use uringfs_buffer::Buffer;
use uringfs_device::{Clock, DeviceIndex, Errno, Payload};
use uringfs_sync::{PollWait, park_thread};

use crate::event_loop::core::{Current, ReactorCore};
use crate::event_loop::siblings::reactors_of_thread;
use crate::event_loop::sleep::RECHECK_INTERVAL;
use crate::event_loop::waker::task_waker;
use crate::sync::domains::quiescence;
use crate::tasks::task::ROOT;

/// Blocks this thread: see [`uringfs_sync::BlockThread`].
pub(crate) fn block_thread(poll: PollWait<'_>, until: Option<Instant>) {
    let reactors: Vec<_> = reactors_of_thread().filter(|reactor| is_drivable(reactor)).collect();
    if reactors.is_empty() || Drives::begin(&reactors).drive(poll, until).is_err() {
        park_thread(poll, until);
    }
}

/// Operations in flight on a device, of all reactors of the process. Requests of the fast path are none.
#[derive(Clone, Copy, Debug)]
pub struct OperationsInFlight {
    /// Their number.
    pub total: u64,
    /// Those of them that make no progress before this thread does: a task of their reactor runs this code.
    pub stuck: u64,
}

/// The operations in flight on `device`.
pub fn operations_in_flight(device: DeviceIndex) -> OperationsInFlight {
    let stuck = reactors_of_thread().filter(|reactor| reactor.is_in_user_code());
    let stuck = stuck.filter_map(|reactor| {
        let io = reactor.io.try_borrow().ok()?;
        io.in_flight.devices.get(device.get()).map(|slot| slot.tracker.operations())
    });
    OperationsInFlight { total: quiescence(device).operations(), stuck: stuck.sum() }
}

/// Shows the buffers of completions that wait to be reaped, which only this thread can do.
pub(crate) fn visit_unreaped(visit: &mut dyn FnMut(&Buffer)) {
    for reactor in reactors_of_thread() {
        let Ok(io) = reactor.io.try_borrow() else { continue };
        for completion in &io.in_flight.completed {
            match completion.payload() {
                Payload::Buffer(buffer) => visit(buffer),
                Payload::Buffers(buffers) => buffers.iter().for_each(&mut *visit),
                Payload::Length(_) => {}
            }
        }
    }
}

/// True if the reactor has operations in flight, and does not run the code that blocks.
fn is_drivable(reactor: &ReactorCore) -> bool {
    let Ok(io) = reactor.io.try_borrow_mut() else { return false };
    !reactor.is_in_user_code() && !io.is_forked() && reactor.outstanding(&io) > 0
}

/// The reactors that a blocked thread drives.
struct Drives<'r> {
    reactors: &'r [Rc<ReactorCore>],
}

impl Drives<'_> {
    fn begin(reactors: &[Rc<ReactorCore>]) -> Drives<'_> {
        reactors.iter().for_each(|reactor| reactor.tasks.borrow_mut().hold_spawned());
        Drives { reactors }
    }

    /// # Errors
    /// Any error of the kernel when it takes no requests at all.
    fn drive(&self, poll: PollWait<'_>, until: Option<Instant>) -> Result<(), Errno> {
        let (first, others) = self.reactors.split_first().expect("there is one to drive");
        let waker = task_waker(ROOT, &first.mailbox);
        loop {
            for other in others {
                let _current = Current::set(other);
                other.run_rounds();
                other.submit()?;
            }
            let _current = Current::set(first);
            first.run_rounds();
            first.root_woken.set(false);
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if poll(&mut Context::from_waker(&waker)) || is_late {
                return Ok(());
            }
            if !first.root_woken.get() {
                first.wait_unless_ready(1, sleep_end(first, others, until))?;
            }
        }
    }
}

impl Drop for Drives<'_> {
    fn drop(&mut self) {
        for reactor in self.reactors {
            reactor.tasks.borrow_mut().release_spawned();
            // The wakes of these were taken here.
            reactor.root_woken.set(true);
            reactor.request_turn();
        }
    }
}

/// When a sleep of `reactor` ends at the latest, by its clock.
fn sleep_end(
    reactor: &ReactorCore,
    others: &[Rc<ReactorCore>],
    until: Option<Instant>,
) -> Option<Instant> {
    let clock = &reactor.options.clock;
    let is_virtual = matches!(clock, Clock::Virtual(_));
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // No event reports that another reactor has something to do, or that a time of the other clock has come.
    let is_rechecked = !others.is_empty() || (is_virtual && left.is_some());
    let recheck = is_rechecked.then_some(RECHECK_INTERVAL);
    let sleep: Option<Duration> = [left, recheck].into_iter().flatten().min();
    sleep.map(|sleep| clock.after(sleep))
}
