//! Messages from any thread to one reactor, which is notified only when it sleeps.
//!
//! The owner announces that it will sleep and then looks again for messages. A sender posts its message and then
//! looks whether the owner sleeps. A full fence stands between the two steps on both sides, so at least one sees
//! the other: no wake is lost, and no system call is spent on an owner that is awake. An owner that sleeps again and again
//! for a moment leaves the announcement as it is, and saves the fence: then the first message costs its sender a system call,
//! even if the owner is awake.
//!
//! Messages wake tasks, run closures, bring a worker's completions, and detach a device: a device that is removed
//! closes at once for new requests, and each reactor drops its hold when its own requests to that device have
//! ended.

use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicBool, Ordering, fence};

/// Wakes the owner of a mailbox.
pub(crate) trait Notify {
    fn notify(&self);
}

/// Messages to one owner, from any thread.
pub(crate) struct Mailbox<T, N> {
    messages: Mutex<Queued<T>>,
    /// Set while there are messages. An awake owner looks only at this.
    waiting: AtomicBool,
    sleeping: AtomicBool,
    notifier: N,
}

struct Queued<T> {
    list: Vec<T>,
    /// The owner is being dropped: it takes no more offered messages.
    closing: bool,
    closed: bool,
}

impl<T, N: Notify> Mailbox<T, N> {
    pub(crate) fn new(notifier: N) -> Mailbox<T, N> {
        Mailbox {
            messages: Mutex::new(Queued { list: Vec::new(), closing: false, closed: false }),
            waiting: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            notifier,
        }
    }

    pub(crate) fn notifier(&self) -> &N {
        &self.notifier
    }

    /// Posts a message and wakes the owner if it sleeps. Returns the message when the mailbox is closed.
    pub(crate) fn post(&self, message: T) -> Result<(), T> {
        self.post_with(message, |notifier| notifier.notify())
    }

    /// The same. Calls `wake` to wake a sleeping owner.
    pub(crate) fn post_with(&self, message: T, wake: impl FnOnce(&N)) -> Result<(), T> {
        self.push(message, |messages| messages.closed)?;
        self.wake_owner(wake);
        Ok(())
    }

    /// Posts a message that the mailbox also returns when its owner is being dropped.
    pub(crate) fn offer(&self, message: T, wake: impl FnOnce(&N)) -> Result<(), T> {
        self.push(message, |messages| messages.closing || messages.closed)?;
        self.wake_owner(wake);
        Ok(())
    }

    fn push(&self, message: T, refuse: impl FnOnce(&Queued<T>) -> bool) -> Result<(), T> {
        let mut messages = self.messages.lock();
        if refuse(&messages) {
            return Err(message);
        }
        messages.list.push(message);
        self.waiting.store(true, Ordering::Release);
        Ok(())
    }

    fn wake_owner(&self, wake: impl FnOnce(&N)) {
        fence(Ordering::SeqCst);
        // Several senders may see the owner asleep. The one that ends the sleep notifies it.
        let end_sleep = || {
            let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
            self.sleeping.compare_exchange(true, false, acquire, relaxed).is_ok()
        };
        if self.sleeping.load(Ordering::Relaxed) && end_sleep() {
            wake(&self.notifier);
        }
    }

    /// Moves all messages into `into`, for the owner. Costs one load when there are none.
    #[inline]
    pub(crate) fn take(&self, into: &mut Vec<T>) {
        if self.waiting.load(Ordering::Acquire) {
            let mut messages = self.messages.lock();
            self.waiting.store(false, Ordering::Relaxed);
            into.append(&mut messages.list);
        }
    }

    /// Puts messages back that the owner has not read, in front of all others.
    pub(crate) fn put_back(&self, unread: impl Iterator<Item = T>) {
        let mut messages = self.messages.lock();
        messages.list.splice(..0, unread);
        self.waiting.store(true, Ordering::Release);
    }

    /// True while there are messages.
    #[inline]
    pub(crate) fn has_messages(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Announces that the owner will wait for the notifier. False when it must not: there are messages.
    pub(crate) fn announce_sleep(&self) -> bool {
        // The sender that ends the sleep sees what the owner set in the notifier before.
        self.sleeping.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.has_messages() {
            self.sleeping.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// [`Self::announce_sleep`] for an owner that has not announced since that it is awake. While that announcement holds
    /// there is nothing to do: any sender that posts ends it, and wakes the owner.
    #[inline(always)]
    pub(crate) fn announce_sleep_again(&self) -> bool {
        match self.sleeping.load(Ordering::Relaxed) {
            true => !self.has_messages(),
            false => self.announce_sleep(),
        }
    }

    /// Announces that the owner is awake again.
    #[inline]
    pub(crate) fn announce_awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Refuses offered messages from now on, because the owner is being dropped. Senders that keep offering would
    /// otherwise keep it alive.
    pub(crate) fn refuse_offers(&self) {
        self.messages.lock().closing = true;
    }

    /// True when the owner is dropped or being dropped.
    pub(crate) fn is_closing(&self) -> bool {
        let messages = self.messages.lock();
        messages.closing || messages.closed
    }

    /// Closes the mailbox and returns the messages that were not read.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut messages = self.messages.lock();
        messages.closed = true;
        std::mem::take(&mut messages.list)
    }

    /// Closes the mailbox unless there are messages to read. True when closed.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut messages = self.messages.lock();
        messages.closed |= messages.list.is_empty();
        messages.closed
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Condvar};

    /// A notifier that a thread can sleep on.
    #[derive(Default)]
    struct TestNotifier {
        notified: loom::sync::Mutex<bool>,
        changed: Condvar,
    }

    impl Notify for TestNotifier {
        fn notify(&self) {
            *self.notified.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    impl TestNotifier {
        fn sleep(&self) {
            let mut notified = self.notified.lock().unwrap();
            while !*notified {
                notified = self.changed.wait(notified).unwrap();
            }
            *notified = false;
        }
    }

    /// Every message is read although the owner sleeps whenever it may. A lost wake would be a deadlock, which loom
    /// reports.
    #[test]
    fn loom_no_wake_is_lost() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::<u32, TestNotifier>::new(TestNotifier::default()));
            let senders: Vec<_> = (0..2)
                .map(|message| {
                    let mailbox = mailbox.clone();
                    loom::thread::spawn(move || mailbox.post(message).unwrap())
                })
                .collect();
            let mut read = Vec::new();
            while read.len() < 2 {
                mailbox.take(&mut read);
                if read.len() < 2 && mailbox.announce_sleep() {
                    mailbox.notifier().sleep();
                    mailbox.announce_awake();
                }
            }
            for sender in senders {
                sender.join().unwrap();
            }
            read.sort_unstable();
            assert_eq!(read, [0, 1]);
        });
    }

    /// The same while the owner leaves its announcement as it is, and other events end some of its sleeps.
    #[test]
    fn loom_no_wake_is_lost_while_the_owner_stays_announced() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::<u32, TestNotifier>::new(TestNotifier::default()));
            let senders: Vec<_> = (0..2)
                .map(|message| {
                    let mailbox = mailbox.clone();
                    loom::thread::spawn(move || mailbox.post(message).unwrap())
                })
                .collect();
            let (mut read, mut other_events) = (Vec::new(), 1);
            while read.len() < 2 {
                mailbox.take(&mut read);
                if read.len() < 2 && mailbox.announce_sleep_again() {
                    match other_events {
                        0 => mailbox.notifier().sleep(),
                        _ => other_events -= 1,
                    }
                }
            }
            for sender in senders {
                sender.join().unwrap();
            }
            read.sort_unstable();
            assert_eq!(read, [0, 1]);
        });
    }

    /// A message is either read or returned to its sender.
    #[test]
    fn loom_close_loses_no_message() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::<u32, TestNotifier>::new(TestNotifier::default()));
            let sender = {
                let mailbox = mailbox.clone();
                loom::thread::spawn(move || {
                    let offered = mailbox.offer(1, |notifier| notifier.notify());
                    [offered, mailbox.post(2)].into_iter().filter(Result::is_err).count()
                })
            };
            mailbox.refuse_offers();
            let mut read = Vec::new();
            while !mailbox.close_if_empty() {
                mailbox.take(&mut read);
            }
            let returned = sender.join().unwrap();
            assert_eq!(read.len() + returned, 2);
        });
    }
}
