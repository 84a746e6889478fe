//! [`Pin`]: keeps an inode that loses its last name. [`Pins`] finds the pin of an inode, so that all references to an
//! inode share one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::records::inode::InodeNumber;

/// Keeps an inode: without a name it is reclaimed only after its pin is dropped and its file is closed.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) number: InodeNumber,
    /// The file was created without a name and may get its first one (the kernel's `I_LINKABLE`).
    is_linkable: AtomicBool,
    /// Counts the pins that live.
    _live: Arc<()>,
}

impl Pin {
    /// Allows [`Transaction::link`](crate::namespace::transaction::Transaction) to give the file its first name.
    pub(crate) fn set_linkable(&self) {
        self.is_linkable.store(true, Ordering::Relaxed);
    }
}

/// Fewer entries than these are not worth a search for dropped ones.
const MIN_ENTRIES: usize = 64;

/// The pins of a volume.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    pins: HashMap<InodeNumber, Weak<Pin>>,
    live: Arc<()>,
}

impl Pins {
    /// Pins an inode, which exists: the caller has found it under the volume's lock. Forgets dropped pins when the
    /// table would have to grow and when most have been dropped, so that it has about four times as many entries as there
    /// are pins at most.
    pub(crate) fn pin(&mut self, number: InodeNumber) -> Arc<Pin> {
        if let Some(pin) = self.get(number) {
            return pin;
        }
        let live = Arc::strong_count(&self.live) - 1;
        let entries = self.pins.len();
        if entries == self.pins.capacity() || entries > 4 * live + MIN_ENTRIES {
            self.pins.retain(|_, pin| pin.strong_count() > 0);
            self.pins.shrink_to(2 * self.pins.len());
            self.pins.reserve(self.pins.len());
        }
        let (is_linkable, live) = (AtomicBool::new(false), self.live.clone());
        let pin = Arc::new(Pin { number, is_linkable, _live: live });
        self.pins.insert(number, Arc::downgrade(&pin));
        pin
    }

    /// True if an inode is pinned.
    pub(crate) fn contains(&self, number: InodeNumber) -> bool {
        self.pins.get(&number).is_some_and(|pin| pin.strong_count() > 0)
    }

    /// True if an inode without a name may get its first one.
    pub(crate) fn is_linkable(&self, number: InodeNumber) -> bool {
        self.get(number).is_some_and(|pin| pin.is_linkable.load(Ordering::Relaxed))
    }

    /// Records that an inode without a name got its first one. It gets no other once it has lost that one.
    pub(crate) fn clear_linkable(&self, number: InodeNumber) {
        if let Some(pin) = self.get(number) {
            pin.is_linkable.store(false, Ordering::Relaxed);
        }
    }

    fn get(&self, number: InodeNumber) -> Option<Arc<Pin>> {
        self.pins.get(&number).and_then(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_pins_leave_the_table() {
        let mut pins = Pins::default();
        let kept: Vec<_> = (1..=100).map(|number| pins.pin(InodeNumber(number))).collect();
        for number in 101..10_000 {
            pins.pin(InodeNumber(number));
            assert!(!pins.contains(InodeNumber(number)));
        }
        assert!(pins.pins.len() <= 500, "{}", pins.pins.len());
        assert!(kept.iter().all(|pin| pins.contains(pin.number)));
        assert!(Arc::ptr_eq(&kept[0], &pins.pin(InodeNumber(1))));
        drop((0..10_000).map(|number| pins.pin(InodeNumber(number))).collect::<Vec<_>>());
        drop(kept);
        pins.pin(InodeNumber(1));
        assert!(pins.pins.capacity() <= 2 * MIN_ENTRIES, "{}", pins.pins.capacity());
    }
}
