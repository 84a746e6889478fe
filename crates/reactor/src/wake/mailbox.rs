//! Where threads meet: letters for one reactor, and a bell that is rung only
//! when it sleeps.
//!
//! The owner announces that it is going to sleep and then looks again; a sender
//! leaves its letter and then looks whether the owner sleeps. A full fence
//! stands between the two steps on both sides, so at least one sees the other.

use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicBool, Ordering, fence};

/// Wakes the owner of a mailbox.
pub(crate) trait Bell {
    fn ring(&self);
}

/// Letters to one owner, from any thread.
pub(crate) struct Mailbox<T, B> {
    letters: Mutex<Letters<T>>,
    /// Set while there are letters: all that the awake owner looks at.
    waiting: AtomicBool,
    sleeping: AtomicBool,
    bell: B,
}

struct Letters<T> {
    list: Vec<T>,
    /// The owner is about to go: nothing that is offered is taken any more.
    leaving: bool,
    closed: bool,
}

impl<T, B: Bell> Mailbox<T, B> {
    pub(crate) fn new(bell: B) -> Mailbox<T, B> {
        Mailbox {
            letters: Mutex::new(Letters { list: Vec::new(), leaving: false, closed: false }),
            waiting: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            bell,
        }
    }

    pub(crate) fn bell(&self) -> &B {
        &self.bell
    }

    /// Leaves a letter and wakes the owner if it sleeps. A mailbox whose owner
    /// is gone gives the letter back.
    pub(crate) fn post(&self, letter: T) -> Result<(), T> {
        self.post_with(letter, |bell| bell.ring())
    }

    /// The same, waking a sleeping owner by `wake`.
    pub(crate) fn post_with(&self, letter: T, wake: impl FnOnce(&B)) -> Result<(), T> {
        self.leave(letter, |letters| letters.closed)?;
        self.wake_owner(wake);
        Ok(())
    }

    /// The same for a letter that an owner who is about to go gives back too.
    pub(crate) fn offer(&self, letter: T, wake: impl FnOnce(&B)) -> Result<(), T> {
        self.leave(letter, |letters| letters.leaving || letters.closed)?;
        self.wake_owner(wake);
        Ok(())
    }

    fn leave(&self, letter: T, refuses: impl FnOnce(&Letters<T>) -> bool) -> Result<(), T> {
        let mut letters = self.letters.lock();
        if refuses(&letters) {
            return Err(letter);
        }
        letters.list.push(letter);
        self.waiting.store(true, Ordering::Release);
        Ok(())
    }

    fn wake_owner(&self, wake: impl FnOnce(&B)) {
        fence(Ordering::SeqCst);
        // Several senders may see it asleep; the one that ends it rings.
        let end_sleep = || {
            let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
            self.sleeping.compare_exchange(true, false, acquire, relaxed).is_ok()
        };
        if self.sleeping.load(Ordering::Relaxed) && end_sleep() {
            wake(&self.bell);
        }
    }

    /// The owner takes all letters; costs one load when there are none.
    #[inline]
    pub(crate) fn take(&self, into: &mut Vec<T>) {
        if self.waiting.load(Ordering::Acquire) {
            let mut letters = self.letters.lock();
            self.waiting.store(false, Ordering::Relaxed);
            into.append(&mut letters.list);
        }
    }

    /// The owner gives letters back that it has not read, to be read before all others.
    pub(crate) fn put_back(&self, unread: impl Iterator<Item = T>) {
        let mut letters = self.letters.lock();
        letters.list.splice(..0, unread);
        self.waiting.store(true, Ordering::Release);
    }

    /// True while there are letters.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// The owner is going to wait for the bell. False when it must not: there is mail.
    pub(crate) fn announce_sleep(&self) -> bool {
        // Whoever ends the sleep sees what the bell was told before.
        self.sleeping.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.has_mail() {
            self.sleeping.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The owner is awake again.
    pub(crate) fn announce_awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// The owner is about to go. Senders who offer one letter after the other would else keep it.
    pub(crate) fn refuse_offers(&self) {
        self.letters.lock().leaving = true;
    }

    /// The owner is gone, or about to go.
    pub(crate) fn is_leaving(&self) -> bool {
        let letters = self.letters.lock();
        letters.leaving || letters.closed
    }

    /// Takes no letter from now on, and gives the owner those that nobody is going to read.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut letters = self.letters.lock();
        letters.closed = true;
        std::mem::take(&mut letters.list)
    }

    /// Takes no letter from now on, unless some wait to be read. True when closed.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut letters = self.letters.lock();
        letters.closed |= letters.list.is_empty();
        letters.closed
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Condvar};

    /// A bell that can be slept on.
    #[derive(Default)]
    struct Gong {
        rung: loom::sync::Mutex<bool>,
        changed: Condvar,
    }

    impl Bell for Gong {
        fn ring(&self) {
            *self.rung.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    impl Gong {
        fn sleep(&self) {
            let mut rung = self.rung.lock().unwrap();
            while !*rung {
                rung = self.changed.wait(rung).unwrap();
            }
            *rung = false;
        }
    }

    /// Every letter is read although the owner sleeps whenever it may: a lost
    /// wake would be a deadlock, which loom reports.
    #[test]
    fn loom_no_wake_is_lost() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::<u32, Gong>::new(Gong::default()));
            let senders: Vec<_> = (0..2)
                .map(|letter| {
                    let mailbox = mailbox.clone();
                    loom::thread::spawn(move || mailbox.post(letter).unwrap())
                })
                .collect();
            let mut read = Vec::new();
            while read.len() < 2 {
                mailbox.take(&mut read);
                if read.len() < 2 && mailbox.announce_sleep() {
                    mailbox.bell().sleep();
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

    /// A letter is either read or given back to its sender.
    #[test]
    fn loom_close_loses_no_letter() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::<u32, Gong>::new(Gong::default()));
            let sender = {
                let mailbox = mailbox.clone();
                loom::thread::spawn(move || {
                    let offered = mailbox.offer(1, |bell| bell.ring());
                    [offered, mailbox.post(2)].into_iter().filter(Result::is_err).count()
                })
            };
            mailbox.refuse_offers();
            let mut read = Vec::new();
            while !mailbox.close_if_empty() {
                mailbox.take(&mut read);
            }
            let given_back = sender.join().unwrap();
            assert_eq!(read.len() + given_back, 2);
        });
    }
}
