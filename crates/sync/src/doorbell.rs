//! [`Doorbell`]: when senders must wake a receiver.

use crate::atomic::{AtomicU32, Ordering, fence};

/// The receiver is awake, and looks by itself.
const AWAKE: u32 = 0;
/// The receiver sleeps, or is about to: the next sender signals it.
const ARMED: u32 = 1;
/// A sender has signalled, or is about to.
const SIGNALLED: u32 = 2;

/// Says which sender must signal a receiver that sleeps, so that a signal, which is a system call, is sent only then, and once.
/// The signal itself is the user's, such as a write to an eventfd.
///
/// Senders publish first, then ring. The receiver takes a signal, arms, looks once more at what was published, and only then
/// sleeps.
///
/// ```
/// use uringfs_sync::Doorbell;
///
/// let bell = Doorbell::default();
/// assert!(!bell.ring(), "the receiver is awake");
/// bell.arm();
/// assert!(bell.ring(), "the first sender signals");
/// assert!(!bell.ring());
/// assert!(bell.take(|| println!("read the eventfd")));
/// assert!(!bell.take(|| unreachable!("there is no signal")));
/// ```
#[derive(Debug)]
pub struct Doorbell(AtomicU32);

impl Default for Doorbell {
    fn default() -> Doorbell {
        Doorbell(AtomicU32::new(AWAKE))
    }
}

impl Doorbell {
    /// The receiver is about to sleep. A signal that it has not taken stays, and wakes it.
    pub fn arm(&self) {
        // Not a store: a sender may signal meanwhile, since the receiver may have armed before and not slept.
        let _ = self.0.compare_exchange(AWAKE, ARMED, Ordering::Relaxed, Ordering::Relaxed);
        // Pairs with that in `ring`: either the sender sees ARMED, or the receiver sees what it has published.
        fence(Ordering::SeqCst);
    }

    /// Whether the sender, which has just published something, must signal the receiver.
    #[inline]
    pub fn ring(&self) -> bool {
        fence(Ordering::SeqCst);
        // The load alone is what happens mostly.
        self.0.load(Ordering::Relaxed) == ARMED
            && self
                .0
                .compare_exchange(ARMED, SIGNALLED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// The receiver takes a signal by `receive`, which waits for a sender that has not sent it yet. Returns whether there was one.
    pub fn take(&self, receive: impl FnOnce()) -> bool {
        let is_signalled = self.0.load(Ordering::Acquire) == SIGNALLED;
        if is_signalled {
            receive();
            self.0.store(AWAKE, Ordering::Release);
        }
        is_signalled
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[test]
    fn loom_a_receiver_that_sleeps_is_signalled_by_one_sender() {
        loom::model(|| {
            let shared = Arc::new((Doorbell::default(), AtomicU32::new(0)));
            let senders = [(); 2].map(|()| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (bell, published) = &*shared;
                    published.fetch_add(1, Ordering::Relaxed);
                    bell.ring()
                })
            });
            let (bell, published) = &*shared;
            // The receiver has looked before, and arms again.
            bell.arm();
            let mut taken = u32::from(bell.take(|| {}));
            bell.arm();
            let seen = published.load(Ordering::Relaxed);
            let signals =
                senders.map(|sender| u32::from(sender.join().unwrap())).iter().sum::<u32>();
            // What was not seen before the sleep ends it.
            assert!(seen == 2 || signals > taken, "{seen} seen, {signals} signals, {taken} taken");
            taken += u32::from(bell.take(|| {}));
            assert_eq!(signals, taken);
        });
    }
}
