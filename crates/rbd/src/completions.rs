//! [`Completions`]: where operations go when they have ended. Threads of librbd send, one thread receives; no lock is taken on
//! the way.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use uringfs_errno::Errno;
use uringfs_sync::Doorbell;

use crate::io::Memory;

/// An operation that has ended.
#[derive(Debug)]
pub struct Completion<T> {
    /// The value that the caller has given with it.
    pub context: T,
    /// Its memory.
    pub memory: Memory,
    /// The bytes moved, or the error.
    pub result: Result<u64, Errno>,
}

/// Receives the operations of one thread that have ended.
#[derive(Debug)]
pub struct Completions<T> {
    receiver: Receiver<Completion<T>>,
    sender: Sender<Completion<T>>,
    bell: Arc<Bell>,
}

/// Wakes the receiver of [`Completions`], as the end of an operation does.
#[derive(Debug)]
pub struct Waker(Arc<Bell>);

impl Waker {
    /// Makes [`Completions::event`] readable if the receiver has armed it.
    pub fn wake(&self) {
        self.0.ring();
    }
}

/// Wakes the receiver.
#[derive(Debug)]
struct Bell {
    doorbell: Doorbell,
    /// Blocking: a signal that is expected is waited for.
    event: OwnedFd,
    system_calls: AtomicU64,
}

/// The way of an operation back to its caller.
#[derive(Debug)]
pub(crate) struct ReturnPath<T> {
    sender: Sender<Completion<T>>,
    bell: Arc<Bell>,
}

impl<T> Completions<T> {
    /// An empty list.
    ///
    /// # Errors
    /// EMFILE or ENFILE when there are no descriptors left.
    pub fn new() -> Result<Completions<T>, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (sender, receiver) = channel();
        let bell = Bell { doorbell: Doorbell::default(), event, system_calls: 0.into() };
        let bell = Arc::new(bell);
        Ok(Completions { receiver, sender, bell })
    }

    /// The next operation that has ended. Never waits.
    #[inline]
    pub fn next(&self) -> Option<Completion<T>> {
        self.receiver.try_recv().ok()
    }

    /// Makes [`Self::event`] readable as soon as another operation has ended. The caller looks at [`Self::next`] once more
    /// before it sleeps.
    pub fn arm(&self) {
        self.bell.take_signal();
        self.bell.doorbell.arm();
    }

    /// Takes the signal if there is one.
    pub fn take_signal(&self) {
        self.bell.take_signal();
    }

    /// Readable (level-triggered) when an operation has ended since [`Self::arm`].
    pub fn event(&self) -> BorrowedFd<'_> {
        self.bell.event.as_fd()
    }

    /// The system calls so far by which senders have woken the receiver, and by which that has taken their signals.
    pub fn system_calls(&self) -> u64 {
        self.bell.system_calls.load(Ordering::Relaxed)
    }

    /// Wakes the receiver for another reason.
    pub fn waker(&self) -> Waker {
        Waker(self.bell.clone())
    }

    pub(crate) fn return_path(&self) -> ReturnPath<T> {
        ReturnPath { sender: self.sender.clone(), bell: self.bell.clone() }
    }
}

impl<T> Clone for ReturnPath<T> {
    fn clone(&self) -> ReturnPath<T> {
        ReturnPath { sender: self.sender.clone(), bell: self.bell.clone() }
    }
}

impl<T> ReturnPath<T> {
    /// Returns an operation to its caller. If that is gone, the operation is dropped.
    pub(crate) fn send(&self, completion: Completion<T>) {
        if self.sender.send(completion).is_ok() {
            self.bell.ring();
        }
    }
}

impl Bell {
    /// Wakes the receiver if it sleeps.
    fn ring(&self) {
        if self.doorbell.ring() {
            self.system_calls.fetch_add(1, Ordering::Relaxed);
            // The counter cannot overflow: each signal is taken before the next.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Waits at most for the sender that is about to signal.
    fn take_signal(&self) {
        self.doorbell.take(|| {
            self.system_calls.fetch_add(1, Ordering::Relaxed);
            while rustix::io::read(&self.event, &mut [0; 8]) == Err(rustix::io::Errno::INTR) {}
        });
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(completions: &Completions<u32>, seconds: i64) -> bool {
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let event = completions.event();
        poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    }

    #[test]
    fn a_receiver_is_woken_without_an_operation() {
        let completions = Completions::<u32>::new().unwrap();
        let waker = completions.waker();
        waker.wake();
        assert!(!is_readable(&completions, 0));
        completions.arm();
        waker.wake();
        assert!(is_readable(&completions, 0));
        assert!(completions.next().is_none());
        completions.take_signal();
        assert!(!is_readable(&completions, 0));
    }

    fn completion(context: u32) -> Completion<u32> {
        Completion { context, memory: Memory::None, result: Ok(0) }
    }

    #[test]
    fn only_an_armed_receiver_is_signalled_and_once() {
        let completions = Completions::new().unwrap();
        let path = completions.return_path();
        path.send(completion(1));
        assert!(!is_readable(&completions, 0));
        completions.arm();
        assert_eq!(completions.next().unwrap().context, 1);
        assert!(completions.next().is_none());
        path.send(completion(2));
        path.send(completion(3));
        assert!(is_readable(&completions, 0));
        completions.take_signal();
        assert!(!is_readable(&completions, 0));
        let rest: Vec<u32> =
            std::iter::from_fn(|| completions.next()).map(|it| it.context).collect();
        assert_eq!(rest, [2, 3]);
        path.send(completion(4));
        assert!(!is_readable(&completions, 0));
    }

    #[test]
    fn a_receiver_that_sleeps_misses_nothing() {
        const EACH: u32 = 20_000;
        let completions = Completions::new().unwrap();
        let paths = [0; 2].map(|_| completions.return_path());
        std::thread::scope(|scope| {
            for path in &paths {
                scope.spawn(move || (0..EACH).for_each(|number| path.send(completion(number))));
            }
            let mut received = 0;
            while received < 2 * EACH {
                completions.take_signal();
                received += std::iter::from_fn(|| completions.next()).count() as u32;
                completions.arm();
                match completions.next() {
                    Some(_) => received += 1,
                    None if received < 2 * EACH => assert!(is_readable(&completions, 600)),
                    None => {}
                }
            }
            assert_eq!(received, 2 * EACH);
        });
    }
}
