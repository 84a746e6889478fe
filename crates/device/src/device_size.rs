//! The size of a device, which may change while the device is open. Reading it is one load.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A size that has changed counts in whole multiples of this: blocks of volumes, folios of the page cache.
const UNIT: u64 = 4096;

/// A size in bytes. It grows as the back end does, as long as it ends with a whole unit: bytes after an incomplete one
/// may be cached as zeros. Once it has shrunk it does not grow again: what was cut off is lost, even if the device is
/// enlarged afterwards.
#[derive(Debug)]
pub(crate) struct DeviceSize {
    opened: u64,
    now: AtomicU64,
    largest: AtomicU64,
    /// One change at a time.
    changing: Mutex<()>,
}

impl DeviceSize {
    /// The size of a device that was just opened.
    pub(crate) fn new(bytes: u64) -> DeviceSize {
        DeviceSize {
            opened: bytes,
            now: bytes.into(),
            largest: bytes.into(),
            changing: Mutex::new(()),
        }
    }

    /// The size now, as far as it was noticed.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The largest size so far. Bytes between this and [`Self::now`] are lost.
    #[inline]
    pub(crate) fn largest(&self) -> u64 {
        self.largest.load(Ordering::Relaxed)
    }

    /// Notes the size that the back end has. Returns the size that counts.
    pub(crate) fn note(&self, found: u64) -> u64 {
        let found = if found == self.opened { found } else { found - found % UNIT };
        if found == self.now() {
            // The usual case writes nothing: reads of a device load the cache line of its size.
            return found;
        }
        let _changing = self.changing.lock();
        let now = self.now();
        let may_grow = now == self.largest() && now.is_multiple_of(UNIT);
        if found < now || (found > now && may_grow) {
            self.largest.fetch_max(found, Ordering::Relaxed);
            self.now.store(found, Ordering::Relaxed);
        }
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_follows_the_back_end_in_whole_units() {
        let size = DeviceSize::new(8 * UNIT);
        assert_eq!(size.note(8 * UNIT), 8 * UNIT);
        assert_eq!(size.note(10 * UNIT + 512), 10 * UNIT);
        assert_eq!(size.note(12 * UNIT), 12 * UNIT);
        assert_eq!((size.now(), size.largest()), (12 * UNIT, 12 * UNIT));
    }

    #[test]
    fn a_size_that_has_shrunk_does_not_grow_again() {
        let size = DeviceSize::new(8 * UNIT);
        size.note(16 * UNIT);
        assert_eq!(size.note(6 * UNIT), 6 * UNIT);
        assert_eq!(size.note(32 * UNIT), 6 * UNIT);
        assert_eq!(size.note(UNIT), UNIT);
        assert_eq!(size.largest(), 16 * UNIT);
    }

    #[test]
    fn a_size_that_ends_inside_a_unit_does_not_grow() {
        let size = DeviceSize::new(8 * UNIT + 512);
        assert_eq!(size.note(8 * UNIT + 512), 8 * UNIT + 512);
        assert_eq!(size.note(9 * UNIT), 8 * UNIT + 512);
        assert_eq!(size.note(8 * UNIT), 8 * UNIT);
    }
}
