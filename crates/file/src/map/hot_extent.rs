//! The extent that most reads of a file need, where the simple way finds it at a hot_extent: in a few words
//! that it holds itself, so that most reads ask no map.
//!
//! A sequence lock of atomics. Readers write nothing; one that meets a change under way, or looks for
//! bytes that are elsewhere, or has something to tell, asks the map. Whoever shows another window does so
//! before what the last one showed is retired (see [`uringfs_reactor::Domain`]), as with any map.

use std::sync::Arc;

use uringfs_sync::Sequence;
use uringfs_sync::atomic::{AtomicU64, Ordering};

/// Bytes of a file that are written, inside its size, and lie together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The offset of the first in the file.
    pub start: u64,
    /// The offset behind the last.
    pub end: u64,
    /// The address of the first on the device.
    pub address: u64,
}

/// A window that many look through while one at a time changes it. On cache lines of its own, since every
/// read looks at it.
#[repr(align(128))]
pub struct Glance {
    /// Its flag says that the next read has a time of access to move.
    sequence: Sequence,
    start: AtomicU64,
    end: AtomicU64,
    /// From offsets to addresses, modulo 2^64.
    shift: AtomicU64,
}

impl Glance {
    /// One that shows this window; reads have nothing to tell.
    pub fn new(window: Window) -> Glance {
        Glance {
            sequence: Sequence::default(),
            start: AtomicU64::new(window.start),
            end: AtomicU64::new(window.end),
            shift: AtomicU64::new(window.shift()),
        }
    }

    /// Where the bytes from `offset` up to `end` lie, if they are in the window.
    #[inline]
    pub fn address(&self, offset: u64, end: u64) -> Option<u64> {
        self.address_unless(Sequence::CHANGING, offset, end)
    }

    /// The same, unless one of these bits is set.
    #[inline(always)]
    fn address_unless(&self, bits: u64, offset: u64, end: u64) -> Option<u64> {
        self.sequence.read(bits, |_| {
            let is_inside = offset >= self.start.load(Ordering::Relaxed)
                && end <= self.end.load(Ordering::Relaxed);
            is_inside.then(|| offset.wrapping_add(self.shift.load(Ordering::Relaxed)))
        })
    }

    /// Shows another window. One at a time may change anything here: whoever holds the file's lock for
    /// changes.
    pub fn show(&self, window: Window) {
        self.sequence.change(|| {
            self.start.store(window.start, Ordering::Relaxed);
            self.end.store(window.end, Ordering::Relaxed);
            self.shift.store(window.shift(), Ordering::Relaxed);
        });
    }

    /// Whether the next read has something to tell.
    #[inline]
    pub fn is_unread(&self) -> bool {
        self.sequence.flag()
    }

    /// Notes whether it has. One at a time, as [`Self::show`].
    pub fn set_unread(&self, is_unread: bool) {
        self.sequence.set_flag(is_unread);
    }
}

impl Window {
    /// From offsets to addresses, modulo 2^64.
    #[inline]
    pub fn shift(&self) -> u64 {
        self.address.wrapping_sub(self.start)
    }
}

/// What simple reads of one opening of a file do when the file is unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Ask the map, which may have something to note.
    Tell,
    /// Nothing: they are not noted.
    TellNothing,
}

/// A file's hot_extent, as the reads of one opening look at it.
#[derive(Clone)]
pub struct View {
    hot_extent: Arc<Glance>,
    /// Bits of the hot_extent's state with which the map is asked.
    closed_by: u64,
}

impl View {
    /// The view of an opening.
    pub fn new(hot_extent: Arc<Glance>, reads: Reads) -> View {
        let closed_by = match reads {
            Reads::Tell => Sequence::CHANGING | Sequence::FLAG,
            Reads::TellNothing => Sequence::CHANGING,
        };
        View { hot_extent, closed_by }
    }

    /// Where `length` bytes from `offset` on lie, if a read that finds them here has nothing to tell.
    #[inline(always)]
    pub(crate) fn address(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        self.hot_extent.address_unless(self.closed_by, offset, end)
    }
}

impl Default for View {
    /// Shows nothing.
    fn default() -> View {
        View::new(Arc::new(Glance::new(Window::default())), Reads::TellNothing)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const WINDOW: Window = Window { start: 8192, end: 16384, address: 4096 };

    #[test]
    fn what_lies_in_the_window_is_found_and_nothing_else() {
        let hot_extent = Glance::new(WINDOW);
        assert_eq!(hot_extent.address(8192, 16384), Some(4096));
        assert_eq!(hot_extent.address(12288, 12289), Some(8192));
        assert_eq!(hot_extent.address(8191, 8192), None);
        assert_eq!(hot_extent.address(16383, 16385), None);
        hot_extent.show(Window::default());
        assert_eq!(hot_extent.address(8192, 16384), None);
        assert_eq!(hot_extent.address(0, 1), None);
    }

    #[test]
    fn only_reads_that_tell_find_an_unread_file_closed() {
        let hot_extent = Arc::new(Glance::new(WINDOW));
        let tells = View::new(hot_extent.clone(), Reads::Tell);
        let tells_nothing = View::new(hot_extent.clone(), Reads::TellNothing);
        for is_unread in [false, true, true, false] {
            hot_extent.set_unread(is_unread);
            hot_extent.show(WINDOW);
            assert_eq!(hot_extent.is_unread(), is_unread);
            assert_eq!(tells.address(8192, 1), (!is_unread).then_some(4096));
            assert_eq!(tells_nothing.address(8192, 1), Some(4096));
            assert_eq!(hot_extent.address(8192, 8193), Some(4096));
        }
    }

    #[test]
    fn a_view_of_nothing_has_no_bytes_and_none_reaches_round_the_end() {
        assert_eq!(View::default().address(0, 1), None);
        assert_eq!(View::default().address(u64::MAX, 1), None);
        let all = Window { start: 0, end: u64::MAX, address: 0 };
        let all = View::new(Arc::new(Glance::new(all)), Reads::Tell);
        assert_eq!(all.address(u64::MAX - 1, 1), Some(u64::MAX - 1));
        assert_eq!(all.address(u64::MAX - 1, 4096), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    const WINDOWS: [Window; 2] =
        [Window { start: 0, end: 10, address: 100 }, Window { start: 5, end: 20, address: 1005 }];

    /// Whoever mixed the words of two windows would find a third address.
    #[test]
    fn loom_nobody_looks_through_two_windows_at_once() {
        loom::model(|| {
            let hot_extent = loom::sync::Arc::new(Glance::new(WINDOWS[0]));
            let theirs = hot_extent.clone();
            let writer = loom::thread::spawn(move || theirs.show(WINDOWS[1]));
            match hot_extent.address(6, 8) {
                None => {}
                Some(106) => assert_eq!(hot_extent.address(12, 14).unwrap_or(1012), 1012),
                Some(address) => assert_eq!(address, 1006),
            }
            writer.join().unwrap();
            assert_eq!(hot_extent.address(6, 8), Some(1006));
        });
    }

    /// Whoever took what is noted of reads for all there is to know would look through the window before
    /// or the one after.
    #[test]
    fn loom_who_finds_that_it_was_read_finds_the_window_of_then() {
        loom::model(|| {
            let hot_extent = Arc::new(Glance::new(WINDOWS[0]));
            hot_extent.set_unread(true);
            let (theirs, view) = (hot_extent.clone(), View::new(hot_extent, Reads::Tell));
            let writer = loom::thread::spawn(move || {
                theirs.show(WINDOWS[1]);
                theirs.set_unread(false);
                theirs.set_unread(true);
                theirs.show(WINDOWS[0]);
            });
            assert_eq!(view.address(6, 2).unwrap_or(1006), 1006);
            writer.join().unwrap();
            assert_eq!(view.address(6, 2), None);
            view.hot_extent.set_unread(false);
            assert_eq!(view.address(6, 2), Some(106));
        });
    }
}
