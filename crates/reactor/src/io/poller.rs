//! Waits in epoll: for queues other than the ring, for descriptors on tiers without a ring, and for a foreign event
//! loop, which watches the descriptor of the epoll instance.

use std::collections::HashMap;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFlags, Timespec};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, sendmsg};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use uringfs_device::Errno;
use uringfs_ring::{PollEvents, Wait, WaitOutput};

use crate::tasks::waiters::CellIndex;

/// The data of epoll events that belong to no cell. Smaller data are a cell's index.
const NO_CELL: u64 = 1 << 32;

/// A wait that has ended, with its result.
pub(crate) type EndedWait = (Wait, Result<WaitOutput, Errno>);

/// An epoll instance, with the descriptor waits in it.
pub(crate) struct Poller {
    epoll: OwnedFd,
    timer: Option<OwnedFd>,
    /// Descriptors of queues and rings that stay in the set.
    registered: Vec<RawFd>,
    waits: HashMap<CellIndex, (Wait, OwnedFd)>,
    events: Vec<Event>,
    /// Calls to wait: `epoll_wait`, and the timer's.
    pub(crate) system_calls: u64,
}

impl Poller {
    pub(crate) fn new() -> Result<Poller, Errno> {
        Ok(Poller {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            timer: None,
            registered: Vec::new(),
            waits: HashMap::new(),
            events: Vec::with_capacity(64),
            system_calls: 0,
        })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Makes `descriptor` wake the reactor whenever it is readable. Idempotent.
    pub(crate) fn register(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
        let raw = descriptor.as_raw_fd();
        if !self.registered.contains(&raw) {
            let data = EventData::new_u64(NO_CELL);
            let added = epoll::add(&self.epoll, descriptor, data, EventFlags::IN);
            match added.map_err(Errno::from) {
                Ok(()) | Err(Errno::EXIST) => self.registered.push(raw),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Queues were closed, and their descriptors with them: the next registration adds those that are still open.
    pub(crate) fn forget_registered(&mut self) {
        self.registered.clear();
    }

    /// Begins a wait, or returns it with its result when that is known at once. Duplicates its descriptor, because several
    /// waits may have the same one.
    pub(crate) fn begin(&mut self, cell: CellIndex, mut wait: Wait) -> Result<(), EndedWait> {
        let flags = match &wait {
            Wait::Poll { events, .. } => interest(*events),
            Wait::Accept { .. } | Wait::Receive { .. } => EventFlags::IN,
            Wait::Send { .. } | Wait::SendVectored { .. } => EventFlags::OUT,
            Wait::Command(_) => return Err((wait, Err(Errno::OPNOTSUPP))),
        };
        // A socket operation on any other descriptor fails at once: epoll may never report an event for it.
        let transfers = !matches!(wait, Wait::Poll { .. });
        if transfers && let Err(error) = rustix::net::sockopt::socket_type(wait.file()) {
            return Err((wait, Err(error.into())));
        }
        let own = match wait.file().try_clone() {
            Ok(own) => own,
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
                return Err((wait, Err(errno)));
            }
        };
        let data = EventData::new_u64(cell as u64);
        match epoll::add(&self.epoll, &own, data, flags).map_err(Errno::from) {
            Ok(()) => {}
            // epoll(7): regular files and directories cannot be watched, because they are always ready.
            Err(Errno::PERM) => {
                let result = perform(&mut wait, &own, flags);
                return Err((wait, result));
            }
            Err(error) => return Err((wait, Err(error))),
        }
        self.waits.insert(cell, (wait, own));
        Ok(())
    }

    /// The number of waits in progress.
    pub(crate) fn waits(&self) -> usize {
        self.waits.len()
    }

    /// Ends a wait early and returns it.
    pub(crate) fn cancel(&mut self, cell: CellIndex) -> Option<Wait> {
        let (wait, own) = self.waits.remove(&cell)?;
        let _ = epoll::delete(&self.epoll, &own);
        Some(wait)
    }

    /// Waits until something is ready or `timeout` has passed. Passes each wait that has ended to `ended`.
    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
        mut ended: impl FnMut(CellIndex, Wait, Result<WaitOutput, Errno>),
    ) -> Result<(), Errno> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        self.events.clear();
        self.system_calls += 1;
        let waited = epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref());
        match waited.map_err(Errno::from) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        for place in 0..self.events.len() {
            let event = self.events[place];
            let data = event.data.u64();
            if data >= NO_CELL {
                continue;
            }
            let cell = data as CellIndex;
            let Some((wait, own)) = self.waits.get_mut(&cell) else { continue };
            let result = perform(wait, own, event.flags);
            if !matches!(result, Err(Errno::AGAIN | Errno::INTR))
                && let Some(wait) = self.cancel(cell)
            {
                ended(cell, wait, result);
            }
        }
        Ok(())
    }

    /// Makes the descriptor readable after `after`, or never.
    pub(crate) fn set_timer(&mut self, after: Option<Duration>) -> Result<(), Errno> {
        if self.timer.is_none() {
            if after.is_none() {
                return Ok(());
            }
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
            epoll::add(&self.epoll, &timer, EventData::new_u64(NO_CELL), EventFlags::IN)?;
            self.timer = Some(timer);
        }
        let Some(timer) = &self.timer else { return Ok(()) };
        self.system_calls += 2;
        let _ = rustix::io::read(timer, &mut [0u8; 8]);
        // 0 would disarm the timer.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let value = rustix::time::Timespec {
            tv_sec: after.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: after.subsec_nanos().into(),
        };
        let once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: once, it_value: value };
        rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }
}

fn interest(events: PollEvents) -> EventFlags {
    // The low bits of poll and epoll have the same values.
    EventFlags::from_bits_truncate(events.bits())
}

/// Performs the operation of a wait, without blocking.
fn perform(wait: &mut Wait, own: &OwnedFd, ready: EventFlags) -> Result<WaitOutput, Errno> {
    match wait {
        Wait::Poll { .. } => Ok(WaitOutput::Ready(PollEvents::from_bits(ready.bits()))),
        Wait::Accept { .. } => {
            // Another thread may have taken the connection by now, and a blocking listener must not block this thread.
            let ready = rustix::event::poll(
                &mut [rustix::event::PollFd::new(own, PollFlags::IN)],
                Some(&Timespec { tv_sec: 0, tv_nsec: 0 }),
            )?;
            if ready == 0 {
                return Err(Errno::AGAIN);
            }
            Ok(WaitOutput::Accepted(rustix::net::accept_with(own, SocketFlags::CLOEXEC)?))
        }
        Wait::Receive { buffer, .. } => {
            let (received, _) = rustix::net::recv(own, &mut buffer[..], RecvFlags::DONTWAIT)?;
            Ok(WaitOutput::Moved(received as u32))
        }
        Wait::Send { buffer, .. } => {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            Ok(WaitOutput::Moved(rustix::net::send(own, buffer, flags)? as u32))
        }
        Wait::SendVectored { send, .. } => {
            let vectors: Vec<_> = send.sent().iter().map(|buffer| IoSlice::new(buffer)).collect();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = sendmsg(own, &vectors, &mut SendAncillaryBuffer::default(), flags)?;
            Ok(WaitOutput::Moved(sent as u32))
        }
        Wait::Command(_) => Err(Errno::OPNOTSUPP),
    }
}
