//! [`ChangeGate`]: holds back the changes of a volume while it is closed, as a frozen file system does.
//!
//! Each change is counted from its beginning to its end, except a fast write: that looks at [`ChangeGate::is_closed`] inside
//! its epoch, so that a caller that closes the gate and then waits for quiescence has waited for it. Write-back is no
//! change; it brings earlier ones to the device.
//!
//! Threads count on cache lines of their own, and the line with the state of the gate is only read while it is open. So
//! changes of different threads write no line that they share.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crossbeam_utils::CachePadded;
use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The number of counts. Threads beyond share them.
const COUNTS: usize = if cfg!(loom) { 2 } else { 16 };

/// Lets changes in while it is open.
#[derive(Default)]
pub struct ChangeGate {
    is_closed: CachePadded<AtomicBool>,
    /// Changes in flight, by the threads that began them.
    counts: [CachePadded<AtomicU64>; COUNTS],
    waiting: Mutex<Waiting>,
}

/// Changes that wait until the gate is open, by their tickets.
#[derive(Default)]
struct Waiting {
    changes: BTreeMap<u64, Waker>,
    tickets: u64,
}

impl ChangeGate {
    /// True while changes are held back.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Begins a change, which ends when the guard is dropped. `None` while the gate is closed.
    #[inline]
    pub fn try_enter(&self) -> Option<ChangeGuard<'_>> {
        let count = &self.counts[count_of_thread()];
        count.fetch_add(1, Ordering::Relaxed);
        let guard = ChangeGuard(count);
        // Either this thread sees that the gate is closed, or the one that has closed it sees the count.
        fence(Ordering::SeqCst);
        (!self.is_closed()).then_some(guard)
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

    /// Holds back changes from now on. Those in flight go on: see [`Self::is_drained`].
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// True once all changes that were in flight when the gate was closed have ended. Their end sends no wake-up: callers poll.
    pub fn is_drained(&self) -> bool {
        // Each count for itself: whatever is added after it was 0 is taken back before it has changed anything.
        self.counts.iter().all(|count| count.load(Ordering::Acquire) == 0)
    }

    /// Lets changes in again. The caller wakes those that wait, when it holds no lock.
    #[must_use = "changes wait"]
    pub fn open(&self) -> Vec<Waker> {
        self.is_closed.store(false, Ordering::Release);
        let mut waiting = self.waiting.lock();
        std::mem::take(&mut waiting.changes).into_values().collect()
    }
}

/// The place of this thread's count.
#[cfg(not(loom))]
#[inline]
fn count_of_thread() -> usize {
    use std::sync::atomic::AtomicUsize;
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static COUNT: usize = THREADS.fetch_add(1, Ordering::Relaxed) % COUNTS);
    COUNT.with(|count| *count)
}

#[cfg(loom)]
fn count_of_thread() -> usize {
    1
}

impl fmt::Debug for ChangeGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeGate").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// A change in flight.
#[derive(Debug)]
#[must_use = "the change ends with it"]
pub struct ChangeGuard<'g>(&'g AtomicU64);

impl Drop for ChangeGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
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
        let mut entered = pin!(gate.enter());
        assert!(!gate.is_drained() && poll(entered.as_mut()).is_pending());
        drop(first);
        assert!(gate.is_drained() && poll(entered.as_mut()).is_pending());
        assert_eq!(gate.open().len(), 1);
        assert!(poll(entered).is_ready());
    }

    #[test]
    fn changes_of_two_threads_are_counted_apart() {
        let gate = ChangeGate::default();
        let counts =
            || gate.counts.iter().filter(|count| count.load(Ordering::Relaxed) > 0).count();
        std::thread::scope(|scope| {
            let change = scope.spawn(|| gate.try_enter().unwrap()).join().unwrap();
            let _other = scope.spawn(|| gate.try_enter().unwrap()).join().unwrap();
            assert_eq!(counts(), 2);
            // A change may end in another thread than the one that began it.
            drop(change);
            assert_eq!(counts(), 1);
        });
        assert!(gate.is_drained());
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
            while !gate.is_drained() {
                thread::yield_now();
            }
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
