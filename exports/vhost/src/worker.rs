//! The thread of one queue, with its reactor. The session starts and stops the queue; while the guest works, they do not
//! meet.

use std::io;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use uringfs::Reactor;

use crate::disk::ServedDisk;
use crate::queue::{QueueStart, StopSignal, run};

/// The thread of a queue. Dropping it stops the queue and waits for the end of the thread.
#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    is_running: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    is_stopping: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    order: Option<Order>,
    /// The thread, while it waits.
    waker: Option<Waker>,
    /// Where the ring of the stopped queue would continue.
    base: Option<u32>,
    has_ended: bool,
}

#[derive(Debug)]
enum Order {
    Run(Box<QueueStart>),
    End,
}

impl Worker {
    /// Starts the thread. `number` is that of the queue.
    ///
    /// # Errors
    /// When the reactor cannot be made, or the thread.
    pub(crate) fn start(number: usize, disk: &Arc<ServedDisk>) -> io::Result<Worker> {
        let shared = Arc::new(Shared::default());
        let made = Arc::new((Mutex::new(None), Condvar::new()));
        let thread = thread::Builder::new().name(format!("uringfs-vhost-{number}")).spawn({
            let (shared, disk, made) = (shared.clone(), disk.clone(), made.clone());
            move || {
                // A panic must not leave the session waiting.
                let _ended = EndGuard(&shared);
                let reactor = Reactor::new(disk.disk.reactor.clone().serving(true));
                let (reactor, result) = reactor.map_or_else(
                    |error| (None, Err(error)),
                    |reactor| (Some(Rc::new(reactor)), Ok(())),
                );
                *made.0.lock() = Some(result);
                made.1.notify_one();
                if let Some(reactor) = reactor {
                    shared.work(&reactor, &disk, number);
                }
            }
        })?;
        let mut result = made.0.lock();
        made.1.wait_while(&mut result, |result| result.is_none());
        result.take().expect("it was waited for")?;
        Ok(Worker { shared, thread: Some(thread), is_running: false })
    }

    /// Runs a queue.
    pub(crate) fn run(&mut self, start: QueueStart) {
        assert!(!self.is_running, "it runs already");
        self.shared.is_stopping.store(false, Ordering::Relaxed);
        self.shared.order(Order::Run(Box::new(start)));
        self.is_running = true;
    }

    /// Lets the thread look for memory that it has registered and that is gone: while it sleeps, the kernel would keep it.
    pub(crate) fn release_memory(&self) {
        let waker = self.shared.state.lock().waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Stops the queue, when all of its requests have ended. Returns where its ring would continue, if it ran.
    pub(crate) fn stop(&mut self) -> Option<u32> {
        if !mem::take(&mut self.is_running) {
            return None;
        }
        self.shared.is_stopping.store(true, Ordering::Release);
        let mut state = self.shared.state.lock();
        state.waker.take().into_iter().for_each(Waker::wake);
        self.shared
            .changed
            .wait_while(&mut state, |state| state.base.is_none() && !state.has_ended);
        state.base.take()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
        self.shared.order(Order::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn order(&self, order: Order) {
        let mut state = self.state.lock();
        state.order = Some(order);
        state.waker.take().into_iter().for_each(Waker::wake);
    }

    /// The life of the thread.
    fn work(&self, reactor: &Rc<Reactor>, disk: &Arc<ServedDisk>, number: usize) {
        loop {
            let order = reactor.block_on(std::future::poll_fn(|context| {
                let mut state = self.state.lock();
                state.waker = Some(context.waker().clone());
                state.order.take().map_or(Poll::Pending, Poll::Ready)
            }));
            match order {
                Order::Run(start) => {
                    let base = run(reactor, (disk, number), *start, self);
                    self.state.lock().base = Some(base);
                    self.changed.notify_all();
                }
                Order::End => return,
            }
        }
    }
}

impl StopSignal for Shared {
    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn register(&self, waker: &Waker) {
        self.state.lock().waker = Some(waker.clone());
    }
}

struct EndGuard<'s>(&'s Shared);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}
