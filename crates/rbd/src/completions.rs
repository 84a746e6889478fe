//! [`Completions`]: where operations go when they have ended. Threads of librbd send, one thread receives; no lock is taken on
//! the way.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use uringfs_errno::Errno;

use crate::io::Memory;

/// An operation that has ended.
#[derive(Debug)]
pub struct Completion<T> {
    /// What the caller has given with it.
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

/// The receiver is awake, and looks by itself.
const AWAKE: u8 = 0;
/// The receiver sleeps, or is about to: the next sender signals it.
const ARMED: u8 = 1;
/// A sender has signalled, or is about to.
const SIGNALLED: u8 = 2;

/// Wakes the receiver.
#[derive(Debug)]
struct Bell {
    state: AtomicU8,
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
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (sender, receiver) = channel();
        let bell = Arc::new(Bell { state: AWAKE.into(), event, system_calls: 0.into() });
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
        self.bell.change(AWAKE, ARMED);
        // Before the look at the list, as senders look at the bell after they have sent: one of both sees the other.
        fence(Ordering::SeqCst);
    }

    /// Ends [`Self::arm`], and takes the signal if there was one.
    pub fn disarm(&self) {
        let is_signalled =
            !self.bell.change(ARMED, AWAKE) && self.bell.state.load(Ordering::Relaxed) == SIGNALLED;
        // A sender that has not signalled yet does so at once; the signal is taken the next time.
        if is_signalled && self.bell.take_signal() {
            self.bell.state.store(AWAKE, Ordering::Relaxed);
        }
    }

    /// Readable (level-triggered) when an operation has ended since [`Self::arm`].
    pub fn event(&self) -> BorrowedFd<'_> {
        self.bell.event.as_fd()
    }

    /// The system calls so far by which senders have woken the receiver, and by which that has taken their signals.
    pub fn system_calls(&self) -> u64 {
        self.bell.system_calls.load(Ordering::Relaxed)
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
            fence(Ordering::SeqCst);
            if self.bell.change(ARMED, SIGNALLED) {
                self.bell.signal();
            }
        }
    }
}

impl Bell {
    fn signal(&self) {
        self.system_calls.fetch_add(1, Ordering::Relaxed);
        // The counter cannot overflow: each signal is taken before the next.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn take_signal(&self) -> bool {
        self.system_calls.fetch_add(1, Ordering::Relaxed);
        rustix::io::read(&self.event, &mut [0; 8]).is_ok()
    }

    /// Returns whether it was in the first state, and is in the second one now.
    fn change(&self, from: u8, to: u8) -> bool {
        // A load alone is what happens mostly.
        self.state.load(Ordering::Relaxed) == from
            && self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
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
        completions.disarm();
        assert!(!is_readable(&completions, 0));
        let rest: Vec<u32> =
            std::iter::from_fn(|| completions.next()).map(|it| it.context).collect();
        assert_eq!(rest, [2, 3]);
        completions.arm();
        completions.disarm();
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
                completions.disarm();
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
