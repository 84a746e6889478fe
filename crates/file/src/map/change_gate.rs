//! [`ChangeGate`]: holds back the changes of a volume while it is closed, as a frozen file system does.
//!
//! Each change is counted from its beginning to its end, except a fast write: that looks at [`ChangeGate::is_closed`] inside
//! its epoch, so that a caller that closes the gate and then waits for quiescence has waited for it. Write-back is no
//! change; it brings earlier ones to the device.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicU64, Ordering};

const CLOSED: u64 = 1 << 63;

/// Lets changes in while it is open.
#[derive(Default)]
pub struct ChangeGate {
    /// The number of changes in flight, and [`CLOSED`].
    word: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Changes that wait until the gate is open, by their tickets.
    changes: BTreeMap<u64, Waker>,
    tickets: u64,
    /// The caller that waits until no change is in flight.
    closer: Option<Waker>,
}

impl ChangeGate {
    /// True while changes are held back.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Begins a change, which ends when the guard is dropped. `None` while the gate is closed.
    #[inline]
    pub fn try_enter(&self) -> Option<ChangeGuard<'_>> {
        let before = self.word.fetch_add(1, Ordering::AcqRel);
        let guard = ChangeGuard(self);
        (before & CLOSED == 0).then_some(guard)
    }

    /// Waits until the gate is open, then begins a change.
    pub async fn enter(&self) -> ChangeGuard<'_> {
        loop {
            match self.try_enter() {
                Some(guard) => return guard,
                None => self.opened().await,
            }
        }
    }

    /// Waits until the gate is open.
    pub fn opened(&self) -> Opened<'_> {
        Opened { gate: self, ticket: None }
    }

    /// Holds back changes from now on. Those in flight go on: see [`Self::drained`].
    pub fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::SeqCst);
    }

    /// Waits until no change is in flight, or the gate is open again. For one caller.
    pub async fn drained(&self) {
        poll_fn(|context| {
            let last = self.waiting.lock().closer.replace(context.waker().clone());
            // Dropping a waker may run any code, so not under the lock.
            drop(last);
            match self.word.load(Ordering::Acquire) {
                word if word & CLOSED == 0 || word == CLOSED => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
    }

    /// Lets changes in again. The caller wakes those that wait, when it holds no lock.
    #[must_use = "changes wait"]
    pub fn open(&self) -> Vec<Waker> {
        self.word.fetch_and(!CLOSED, Ordering::AcqRel);
        let mut waiting = self.waiting.lock();
        let changes = std::mem::take(&mut waiting.changes).into_values();
        changes.chain(waiting.closer.take()).collect()
    }
}

impl fmt::Debug for ChangeGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeGate").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// A change in flight.
#[derive(Debug)]
#[must_use = "the change ends with it"]
pub struct ChangeGuard<'g>(&'g ChangeGate);

impl Drop for ChangeGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.word.fetch_sub(1, Ordering::AcqRel) == CLOSED | 1 {
            let closer = self.0.waiting.lock().closer.take();
            closer.into_iter().for_each(Waker::wake);
        }
    }
}

/// A wait for an open gate: see [`ChangeGate::opened`].
#[derive(Debug)]
pub struct Opened<'g> {
    gate: &'g ChangeGate,
    ticket: Option<u64>,
}

impl Future for Opened<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let last = {
            let mut waiting = self.gate.waiting.lock();
            // The gate opens before it takes the wakers.
            if !self.gate.is_closed() {
                return Poll::Ready(());
            }
            let ticket = *self.ticket.get_or_insert_with(|| {
                waiting.tickets += 1;
                waiting.tickets
            });
            waiting.changes.insert(ticket, context.waker().clone())
        };
        drop(last);
        Poll::Pending
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let waker = self.gate.waiting.lock().changes.remove(&ticket);
            drop(waker);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::pin::pin;

    use super::*;

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_closed_gate_holds_back_changes_and_drains() {
        let gate = ChangeGate::default();
        let first = gate.try_enter().unwrap();
        gate.close();
        assert!(gate.try_enter().is_none());
        let (mut drained, mut entered) = (pin!(gate.drained()), pin!(gate.enter()));
        assert!(poll(drained.as_mut()).is_pending() && poll(entered.as_mut()).is_pending());
        drop(first);
        assert!(poll(drained).is_ready() && poll(entered.as_mut()).is_pending());
        assert_eq!(gate.open().len(), 1);
        assert!(poll(entered).is_ready());
    }

    #[test]
    fn an_opened_gate_ends_the_wait_for_changes() {
        let gate = ChangeGate::default();
        let _change = gate.try_enter().unwrap();
        gate.close();
        let mut drained = pin!(gate.drained());
        assert!(poll(drained.as_mut()).is_pending());
        assert_eq!(gate.open().len(), 1);
        assert!(poll(drained).is_ready());
    }

    #[test]
    fn a_wait_that_is_given_up_leaves_no_waker() {
        let gate = ChangeGate::default();
        gate.close();
        for _ in 0..3 {
            assert!(poll(pin!(gate.opened())).is_pending());
        }
        assert_eq!(gate.open().len(), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Wake;

    use loom::sync::atomic::{AtomicU64 as Count, Ordering::SeqCst};
    use loom::thread;
    use uringfs_sync::Condvar;

    use super::*;

    #[derive(Default)]
    struct Woken {
        is_woken: Mutex<bool>,
        changed: Condvar,
    }

    impl Wake for Woken {
        fn wake(self: Arc<Woken>) {
            *self.is_woken.lock() = true;
            self.changed.notify_all();
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            let mut is_woken = woken.is_woken.lock();
            while !std::mem::take(&mut *is_woken) {
                woken.changed.wait(&mut is_woken);
            }
        }
    }

    #[test]
    fn loom_a_drained_gate_has_no_change_in_flight_and_loses_no_wake() {
        loom::model(|| {
            let gate = Arc::new(ChangeGate::default());
            let changes = Arc::new(Count::new(0));
            let changer = thread::spawn({
                let (gate, changes) = (gate.clone(), changes.clone());
                move || {
                    let _change = block_on(gate.enter());
                    changes.fetch_add(1, SeqCst);
                    changes.fetch_add(1, SeqCst);
                }
            });
            gate.close();
            block_on(gate.drained());
            let before = changes.load(SeqCst);
            assert!(before == 0 || before == 2);
            thread::yield_now();
            assert_eq!(changes.load(SeqCst), before);
            gate.open().into_iter().for_each(Waker::wake);
            changer.join().unwrap();
            assert_eq!(changes.load(SeqCst), 2);
        });
    }
}
