//! The extent that most reads of a file need, where they find it at a glance: in a few words beside the
//! pointer to all extents, which most reads then have no need to follow.
//!
//! A sequence lock of atomics. Readers write nothing; one that meets a change under way, or looks for
//! bytes that are elsewhere, asks the map of all extents.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of a file that are written, inside its size, and lie together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// The offset of the first in the file.
    pub(crate) start: u64,
    /// The offset behind the last.
    pub(crate) end: u64,
    /// The address of the first on the device.
    pub(crate) address: u64,
}

/// A window that many look through while one at a time changes it.
pub(crate) struct Glance {
    /// Odd while the others are being changed.
    sequence: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    /// From offsets to addresses, modulo 2^64.
    shift: AtomicU64,
}

impl Glance {
    pub(crate) fn new(window: Window) -> Glance {
        Glance {
            sequence: AtomicU64::new(0),
            start: AtomicU64::new(window.start),
            end: AtomicU64::new(window.end),
            shift: AtomicU64::new(window.shift()),
        }
    }

    /// Where the bytes from `offset` up to `end` lie, if they are in the window.
    #[inline]
    pub(crate) fn address(&self, offset: u64, end: u64) -> Option<u64> {
        let before = self.sequence.load(Ordering::Acquire);
        let is_inside =
            self.start.load(Ordering::Relaxed) <= offset && end <= self.end.load(Ordering::Relaxed);
        let address = offset.wrapping_add(self.shift.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
        (is_inside && is_whole).then_some(address)
    }

    /// Shows another window. One at a time may: whoever holds the file's lock for changes.
    pub(crate) fn show(&self, window: Window) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(window.start, Ordering::Relaxed);
        self.end.store(window.end, Ordering::Relaxed);
        self.shift.store(window.shift(), Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
    }
}

impl Window {
    /// From offsets to addresses, modulo 2^64.
    pub(crate) fn shift(&self) -> u64 {
        self.address.wrapping_sub(self.start)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_the_window_is_found_and_nothing_else() {
        let glance = Glance::new(Window { start: 8192, end: 16384, address: 4096 });
        assert_eq!(glance.address(8192, 16384), Some(4096));
        assert_eq!(glance.address(12288, 12289), Some(8192));
        assert_eq!(glance.address(8191, 8192), None);
        assert_eq!(glance.address(16383, 16385), None);
        glance.show(Window::default());
        assert_eq!(glance.address(8192, 16384), None);
        assert_eq!(glance.address(0, 1), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Whoever mixed the words of two windows would find a third address.
    #[test]
    fn loom_nobody_looks_through_two_windows_at_once() {
        loom::model(|| {
            let windows = [
                Window { start: 0, end: 10, address: 100 },
                Window { start: 5, end: 20, address: 1005 },
            ];
            let glance = loom::sync::Arc::new(Glance::new(windows[0]));
            let theirs = glance.clone();
            let writer = loom::thread::spawn(move || theirs.show(windows[1]));
            match glance.address(6, 8) {
                None => {}
                Some(106) => assert_eq!(glance.address(12, 14).unwrap_or(1012), 1012),
                Some(address) => assert_eq!(address, 1006),
            }
            writer.join().unwrap();
            assert_eq!(glance.address(6, 8), Some(1006));
        });
    }
}
