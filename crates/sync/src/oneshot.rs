//! [`Oneshot`]: a value that one side sets and the other awaits.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::Mutex;

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// A shared cell for one value. Setting the value wakes the task that polled last.
///
/// Wakers are cloned, woken and dropped without the lock: they may run a user's code, which may call this cell again.
#[derive(Debug)]
pub struct Oneshot<T>(Arc<Mutex<Slot<T>>>);

impl<T> Default for Oneshot<T> {
    fn default() -> Oneshot<T> {
        Oneshot(Arc::new(Mutex::new(Slot { value: None, waker: None })))
    }
}

impl<T> Clone for Oneshot<T> {
    fn clone(&self) -> Oneshot<T> {
        Oneshot(self.0.clone())
    }
}

impl<T> Oneshot<T> {
    /// Sets the value and wakes the waiting task. Replaces a value that was not taken yet.
    pub fn set(&self, value: T) {
        let (replaced, waker) = {
            let mut state = self.0.lock();
            (state.value.replace(value), state.waker.take())
        };
        drop(replaced);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the value if it is set.
    pub fn take(&self) -> Option<T> {
        self.0.lock().value.take()
    }

    /// Takes the value, or registers the task, which is woken when the value is set.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<T> {
        // The other side has gone, and has set the value before. While it is there, the value most likely is not.
        if Arc::strong_count(&self.0) == 1
            && let Some(value) = self.take()
        {
            return Poll::Ready(value);
        }
        let waker = context.waker().clone();
        let mut state = self.0.lock();
        if let Some(value) = state.value.take() {
            drop(state);
            return Poll::Ready(value);
        }
        let replaced = state.waker.replace(waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// True when both handles share one cell.
    pub fn ptr_eq(&self, other: &Oneshot<T>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<WakeCounter>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn setting_wakes_the_task_that_polled_last() {
        let (first, last) = (Arc::new(WakeCounter::default()), Arc::new(WakeCounter::default()));
        let cell = Oneshot::default();
        for count in [&first, &last] {
            let waker = Waker::from(count.clone());
            assert_eq!(cell.poll(&mut Context::from_waker(&waker)), Poll::Pending);
        }
        cell.clone().set(7);
        assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (0, 1));
        assert_eq!(cell.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(7));
        assert_eq!(cell.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending);
    }

    /// A waker whose drop polls again, as a user's waker may.
    struct PollsOnDrop(Oneshot<u8>);

    impl Wake for PollsOnDrop {
        fn wake(self: Arc<PollsOnDrop>) {}
    }

    impl Drop for PollsOnDrop {
        fn drop(&mut self) {
            let _ = self.0.poll(&mut Context::from_waker(Waker::noop()));
        }
    }

    #[test]
    fn a_waker_that_polls_on_drop_does_not_deadlock() {
        let cell = Oneshot::default();
        let waker = Waker::from(Arc::new(PollsOnDrop(cell.clone())));
        assert_eq!(cell.poll(&mut Context::from_waker(&waker)), Poll::Pending);
        drop(waker);
        // Replaces and drops the stored waker, whose drop polls.
        assert_eq!(cell.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending);
        cell.set(1);
        assert_eq!(cell.take(), Some(1));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn loom_a_set_during_a_poll_is_not_missed() {
        loom::model(|| {
            let cell = Oneshot::default();
            let setter_cell = cell.clone();
            let setter = loom::thread::spawn(move || setter_cell.set(7));
            let value = loom::future::block_on(std::future::poll_fn(|context| cell.poll(context)));
            assert_eq!(value, 7);
            setter.join().unwrap();
        });
    }
}
