//! [`PagePin`]: keeps redb from reusing the pages of one commit while a long read is under way. redb
//! copies pages on write, so each later commit takes pages that no commit gives back meanwhile. The
//! catalog therefore releases a pin that would cost too much; the read must then begin again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::redb_error::catch_panic;
use super::snapshot::Snapshot;

/// Holds the pages of one commit until it is dropped, or until the catalog needs them.
pub(crate) struct PagePin(Arc<Held>);

struct Held {
    snapshot: Mutex<Option<Arc<Snapshot>>>,
    /// The pin is released when the catalog gets more blocks than this.
    max_blocks: u64,
    /// A checkpoint has begun since.
    is_expired: AtomicBool,
}

impl PagePin {
    /// Whether the pages were held all the time. If not, what was read from them may be anything.
    pub(crate) fn is_held(&self) -> bool {
        self.0.snapshot.lock().is_some()
    }

    /// Whether the catalog's pages on the device were those of the commit all the time, also those in
    /// which redb keeps its free pages. Later commits reuse these even while the pin is held.
    pub(crate) fn is_newest(&self) -> bool {
        self.is_held() && !self.0.is_expired.load(Ordering::Acquire)
    }
}

impl Held {
    fn release(&self) {
        let snapshot = self.snapshot.lock().take();
        // After a panic redb's locks may be poisoned.
        let _ = catch_panic(|| {
            drop(snapshot);
            Ok(())
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

/// The pins of a catalog.
#[derive(Default)]
pub(super) struct PagePins {
    pins: Mutex<Vec<Weak<Held>>>,
    /// redb may not have used all free pages since [`PagePins::take_held_back`].
    has_held_back: AtomicBool,
}

impl PagePins {
    pub(super) fn add(&self, snapshot: Arc<Snapshot>, max_blocks: u64) -> PagePin {
        let snapshot = Mutex::new(Some(snapshot));
        let held = Arc::new(Held { snapshot, max_blocks, is_expired: AtomicBool::new(false) });
        self.has_held_back.store(true, Ordering::Release);
        let mut pins = self.pins.lock();
        pins.retain(|pin| pin.strong_count() > 0);
        pins.push(Arc::downgrade(&held));
        PagePin(held)
    }

    /// Call before each checkpoint.
    pub(super) fn expire(&self) {
        self.each(|held| held.is_expired.store(true, Ordering::Release));
    }

    pub(super) fn release_all(&self) {
        self.each(Held::release);
    }

    /// Whether there was a pin since the last call, so that there may be pages that the next commit frees.
    pub(super) fn take_held_back(&self) -> bool {
        self.has_held_back.swap(false, Ordering::AcqRel)
    }

    /// Releases the pins that do not allow the catalog to have so many blocks.
    pub(super) fn release_above(&self, blocks: u64) {
        self.each(|held| {
            if blocks > held.max_blocks {
                held.release();
            }
        });
    }

    fn each(&self, change: impl Fn(&Held)) {
        let pins: Vec<_> = self.pins.lock().iter().filter_map(Weak::upgrade).collect();
        pins.iter().for_each(|held| change(held));
    }
}
