//! How the threads of a mount wait for requests.
//!
//! All of their descriptors have one queue. Waking a thread for a request takes longer than answering most. So one
//! thread waits for the queue, and the others are away: a thread that finds the queue never empty for some time calls
//! one of them, which leaves when it finds nothing more to do. A thread that has answered all of its requests spins
//! before it leaves or sleeps, if its last request came within the time of a spin.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uringfs::reactor::PollEvents;
use uringfs::{Errno, Reactor};

use crate::in_flight::RequestCount;

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long a thread takes requests, with the queue never empty, before it calls another. Two threads that share less work
/// spend more time on waking each other.
const BUSY: Duration = Duration::from_micros(300);

/// The threads of a mount that wait for requests, and those that are away.
pub(crate) struct Listeners {
    state: Mutex<ListenersState>,
    is_any_away: AtomicBool,
    spin: bool,
}

struct ListenersState {
    /// The threads that serve.
    listeners: usize,
    /// Of each thread that has left the queue.
    away: Vec<Option<Waker>>,
    /// No thread leaves it any more.
    is_over: bool,
}

impl Listeners {
    /// Of at most `threads` threads. They may `spin`.
    pub(crate) fn new(threads: usize, spin: bool) -> Listeners {
        let state = ListenersState { listeners: 0, away: vec![None; threads], is_over: false };
        Listeners { state: Mutex::new(state), is_any_away: AtomicBool::new(false), spin }
    }

    /// Leaves the queue until the thread is called. Returns false, at once, if no other thread is there.
    async fn leave(&self, thread: usize) -> bool {
        let mut has_left = false;
        poll_fn(|context| {
            let ListenersState { listeners, away, is_over } = &mut *self.state.lock();
            let is_last = away.iter().flatten().count() + 1 >= *listeners;
            match has_left {
                true if away[thread].is_none() => return Poll::Ready(true),
                false if *is_over || is_last => return Poll::Ready(false),
                _ => {}
            }
            has_left = true;
            away[thread] = Some(context.waker().clone());
            self.is_any_away.store(true, Ordering::Relaxed);
            Poll::Pending
        })
        .await
    }

    /// Calls a thread that is away, if there is one.
    fn call(&self) {
        if self.is_any_away.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
            let called = state.away.iter_mut().find_map(Option::take);
            self.is_any_away.store(state.away.iter().any(Option::is_some), Ordering::Relaxed);
            drop(state);
            called.into_iter().for_each(Waker::wake);
        }
    }

    /// Calls all threads, for good.
    fn call_all(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        let called: Vec<_> = state.away.iter_mut().filter_map(Option::take).collect();
        drop(state);
        called.into_iter().for_each(Waker::wake);
    }
}

type Readiness = Result<PollEvents, Errno>;

/// A thread's wait for requests. Once it is dropped, no thread stays away from the queue.
pub(crate) struct Listener<'s> {
    listeners: &'s Listeners,
    thread: usize,
    pub(crate) reactor: &'s Reactor,
    pub(crate) channel: &'s Arc<OwnedFd>,
    pub(crate) in_flight: &'s Rc<RequestCount>,
    ready: Option<Pin<Box<dyn Future<Output = Readiness> + 's>>>,
    /// Since when all requests are answered.
    idle_since: Option<Instant>,
    /// The last request came so soon after those before it were answered that a spin would have found it.
    comes_soon: bool,
    /// When the first request came since the queue was empty.
    busy_since: Option<Instant>,
}

impl<'s> Listener<'s> {
    pub(crate) fn new(
        (listeners, thread): (&'s Listeners, usize),
        reactor: &'s Reactor,
        channel: &'s Arc<OwnedFd>,
        in_flight: &'s Rc<RequestCount>,
    ) -> Listener<'s> {
        listeners.state.lock().listeners += 1;
        Listener {
            listeners,
            thread,
            reactor,
            channel,
            in_flight,
            ready: None,
            idle_since: None,
            comes_soon: false,
            busy_since: None,
        }
    }

    /// Notes a request.
    pub(crate) fn note_request(&mut self) {
        let now = Instant::now();
        if let Some(since) = self.idle_since.take() {
            self.comes_soon = self.listeners.spin && now - since < SPIN;
        }
        let busy_since = self.busy_since.get_or_insert(now);
        if now - *busy_since > BUSY {
            *busy_since = now;
            self.listeners.call();
        }
    }

    /// Waits until the queue, which was empty, is to be read again.
    ///
    /// # Errors
    /// Those of [`Reactor::poll`](uringfs::reactor::LocalReactor::poll).
    pub(crate) async fn wait(&mut self) -> Result<(), Errno> {
        self.busy_since = None;
        if self.in_flight.is_none() {
            let since = self.idle_since.get_or_insert_with(Instant::now);
            if self.comes_soon && since.elapsed() < SPIN {
                // The program that asks next may need this processor.
                thread::yield_now();
                return Ok(());
            }
        }
        self.sleep().await
    }

    /// Sleeps until a request comes, the thread is called, or all are answered and the next is expected soon.
    async fn sleep(&mut self) -> Result<(), Errno> {
        if self.ready.is_none() && self.listeners.leave(self.thread).await {
            (self.idle_since, self.comes_soon) = (None, self.listeners.spin);
            return Ok(());
        }
        let (reactor, channel) = (self.reactor, self.channel);
        let ready = self.ready.get_or_insert_with(|| {
            // A request wakes one of the threads that wait.
            Box::pin(reactor.poll(channel, PollEvents::IN | PollEvents::EXCLUSIVE, None))
        });
        let woken = poll_fn(|context| {
            if let Poll::Ready(ready) = ready.as_mut().poll(context) {
                return Poll::Ready(Some(ready));
            }
            if self.idle_since.is_none() && self.in_flight.poll_none(context).is_ready() {
                self.idle_since = Some(Instant::now());
                if self.comes_soon {
                    return Poll::Ready(None);
                }
            }
            Poll::Pending
        });
        if let Some(ready) = woken.await {
            self.ready = None;
            ready?;
        }
        Ok(())
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.listeners.call_all();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn all_threads_but_one_may_be_away() {
        let listeners = Listeners::new(3, true);
        listeners.state.lock().listeners = 3;
        let context = &mut Context::from_waker(Waker::noop());
        let (mut first, mut second) = (pin!(listeners.leave(2)), pin!(listeners.leave(0)));
        assert!(first.as_mut().poll(context).is_pending());
        assert!(first.as_mut().poll(context).is_pending());
        assert!(second.as_mut().poll(context).is_pending());
        let stays = pin!(listeners.leave(1)).poll(context);
        assert_eq!(stays, Poll::Ready(false), "no other thread is there");
        listeners.call();
        assert!(first.as_mut().poll(context).is_pending());
        assert_eq!(second.as_mut().poll(context), Poll::Ready(true));
        listeners.call();
        assert!(first.as_mut().poll(context).is_ready());
        listeners.call();
        assert!(!listeners.is_any_away.load(Ordering::Relaxed));
        let mut away = pin!(listeners.leave(0));
        assert!(away.as_mut().poll(context).is_pending());
        listeners.call_all();
        assert!(away.as_mut().poll(context).is_ready());
        assert_eq!(
            pin!(listeners.leave(1)).poll(context),
            Poll::Ready(false),
            "the mount has ended"
        );
    }
}
