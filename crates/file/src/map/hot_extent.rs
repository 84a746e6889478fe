//! The hot extent of a file: its largest written extent, in three atomics, so that most reads skip the map.
//!
//! It is a sequence lock of atomics. Readers write nothing. A reader goes to the map when the words are
//! changing, when the bytes lie elsewhere, or when an access time update is due. A writer publishes another
//! window before it retires what the previous window named (see [`uringfs_reactor::Domain`]), as with any map.

use std::sync::Arc;

use uringfs_sync::SeqCount;
use uringfs_sync::atomic::{AtomicU64, Ordering};

/// A run of written bytes inside the file's size that is contiguous on the device. Offsets and address in
/// bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentWindow {
    /// File offset of the first byte.
    pub start: u64,
    /// File offset one past the last byte.
    pub end: u64,
    /// Device address of the first byte.
    pub address: u64,
}

/// One window with many readers and one writer at a time. It has cache lines of its own, since every read loads
/// it.
#[derive(Debug)]
#[repr(align(128))]
pub struct HotExtent {
    /// The flag means: the next read has to update the access time.
    sequence: SeqCount,
    start: AtomicU64,
    end: AtomicU64,
    /// The number that, added to a file offset, gives the device address, modulo 2^64.
    shift: AtomicU64,
}

impl HotExtent {
    /// Publishes this window; no access time update is due.
    pub fn new(window: ExtentWindow) -> HotExtent {
        HotExtent {
            sequence: SeqCount::default(),
            start: AtomicU64::new(window.start),
            end: AtomicU64::new(window.end),
            shift: AtomicU64::new(window.shift()),
        }
    }

    /// The address of the bytes `offset..end`, if all of them are in the window.
    #[inline]
    pub fn address(&self, offset: u64, end: u64) -> Option<u64> {
        self.address_unless(SeqCount::WRITING, offset, end)
    }

    /// As [`Self::address`]; `None` also when one of these bits is set.
    #[inline(always)]
    fn address_unless(&self, bits: u64, offset: u64, end: u64) -> Option<u64> {
        self.sequence.read(bits, |_| {
            let is_inside = offset >= self.start.load(Ordering::Relaxed)
                && end <= self.end.load(Ordering::Relaxed);
            is_inside.then(|| offset.wrapping_add(self.shift.load(Ordering::Relaxed)))
        })
    }

    /// The window. Empty when one of these bits is set.
    #[inline(always)]
    fn window_unless(&self, bits: u64) -> ExtentWindow {
        let window = self.sequence.read(bits, |_| {
            let start = self.start.load(Ordering::Relaxed);
            let shift = self.shift.load(Ordering::Relaxed);
            let (end, address) = (self.end.load(Ordering::Relaxed), start.wrapping_add(shift));
            Some(ExtentWindow { start, end, address })
        });
        window.unwrap_or_default()
    }

    /// The window. Empty while it changes.
    #[inline]
    pub fn window(&self) -> ExtentWindow {
        self.window_unless(SeqCount::WRITING)
    }

    /// Replaces the window. The caller holds the file's lock for changes: one writer at a time.
    pub fn publish(&self, window: ExtentWindow) {
        self.sequence.write(|| {
            self.start.store(window.start, Ordering::Relaxed);
            self.end.store(window.end, Ordering::Relaxed);
            self.shift.store(window.shift(), Ordering::Relaxed);
        });
    }

    /// True if the next read has to update the access time.
    #[inline]
    pub fn is_atime_due(&self) -> bool {
        self.sequence.flag()
    }

    /// Sets whether the next read has to update the access time. One writer at a time, as [`Self::publish`].
    pub fn set_atime_due(&self, is_atime_due: bool) {
        self.sequence.set_flag(is_atime_due);
    }
}

impl ExtentWindow {
    /// The number that, added to a file offset, gives the device address, modulo 2^64.
    #[inline]
    pub fn shift(&self) -> u64 {
        self.address.wrapping_sub(self.start)
    }
}

/// Access time policy of one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtimeUpdates {
    /// When an update is due, reads go to the map, which makes it.
    Enabled,
    /// Reads never update it.
    Disabled,
}

/// A file's hot extent, as the reads of one handle see it.
#[derive(Clone, Debug)]
pub struct HotExtentReader {
    hot_extent: Arc<HotExtent>,
    /// With any of these bits set, reads go to the map.
    to_map_bits: u64,
}

impl HotExtentReader {
    /// For one handle, with its policy for access times.
    pub fn new(hot_extent: Arc<HotExtent>, updates: AtimeUpdates) -> HotExtentReader {
        let to_map_bits = match updates {
            AtimeUpdates::Enabled => SeqCount::WRITING | SeqCount::FLAG,
            AtimeUpdates::Disabled => SeqCount::WRITING,
        };
        HotExtentReader { hot_extent, to_map_bits }
    }

    /// The address of `length` bytes at `offset`, if they are in the window and no access time update is due.
    #[inline(always)]
    pub(crate) fn address(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        self.hot_extent.address_unless(self.to_map_bits, offset, end)
    }

    /// The window, if no access time update is due: else an empty one.
    #[inline(always)]
    pub(crate) fn window(&self) -> ExtentWindow {
        self.hot_extent.window_unless(self.to_map_bits)
    }
}

impl Default for HotExtentReader {
    /// An empty window.
    fn default() -> HotExtentReader {
        HotExtentReader::new(
            Arc::new(HotExtent::new(ExtentWindow::default())),
            AtimeUpdates::Disabled,
        )
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const WINDOW: ExtentWindow = ExtentWindow { start: 8192, end: 16384, address: 4096 };

    #[test]
    fn only_bytes_in_the_window_are_found() {
        let hot_extent = Arc::new(HotExtent::new(WINDOW));
        let reader = HotExtentReader::new(hot_extent.clone(), AtimeUpdates::Enabled);
        assert_eq!(reader.window(), WINDOW);
        assert_eq!(hot_extent.address(8192, 16384), Some(4096));
        assert_eq!(hot_extent.address(12288, 12289), Some(8192));
        assert_eq!(hot_extent.address(8191, 8192), None);
        assert_eq!(hot_extent.address(16383, 16385), None);
        hot_extent.publish(ExtentWindow::default());
        assert_eq!(hot_extent.address(8192, 16384), None);
        assert_eq!(hot_extent.address(0, 1), None);
    }

    #[test]
    fn a_due_atime_update_sends_only_updating_reads_to_the_map() {
        let hot_extent = Arc::new(HotExtent::new(WINDOW));
        let updating = HotExtentReader::new(hot_extent.clone(), AtimeUpdates::Enabled);
        let non_updating = HotExtentReader::new(hot_extent.clone(), AtimeUpdates::Disabled);
        for is_atime_due in [false, true, true, false] {
            hot_extent.set_atime_due(is_atime_due);
            hot_extent.publish(WINDOW);
            assert_eq!(hot_extent.is_atime_due(), is_atime_due);
            assert_eq!(updating.address(8192, 1), (!is_atime_due).then_some(4096));
            assert_eq!(updating.window() == WINDOW, !is_atime_due);
            assert_eq!(non_updating.window(), WINDOW);
            assert_eq!(non_updating.address(8192, 1), Some(4096));
            assert_eq!(hot_extent.address(8192, 8193), Some(4096));
        }
    }

    #[test]
    fn an_empty_window_has_no_bytes_and_ranges_do_not_wrap() {
        assert_eq!(HotExtentReader::default().address(0, 1), None);
        assert_eq!(HotExtentReader::default().address(u64::MAX, 1), None);
        let all = ExtentWindow { start: 0, end: u64::MAX, address: 0 };
        let all = HotExtentReader::new(Arc::new(HotExtent::new(all)), AtimeUpdates::Enabled);
        assert_eq!(all.address(u64::MAX - 1, 1), Some(u64::MAX - 1));
        assert_eq!(all.address(u64::MAX - 1, 4096), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    const WINDOWS: [ExtentWindow; 2] = [
        ExtentWindow { start: 0, end: 10, address: 100 },
        ExtentWindow { start: 5, end: 20, address: 1005 },
    ];

    /// A reader that mixed the words of two windows would find a third address.
    #[test]
    fn loom_a_read_never_mixes_two_windows() {
        loom::model(|| {
            let hot_extent = loom::sync::Arc::new(HotExtent::new(WINDOWS[0]));
            let theirs = hot_extent.clone();
            let writer = loom::thread::spawn(move || theirs.publish(WINDOWS[1]));
            match hot_extent.address(6, 8) {
                None => {}
                Some(106) => assert_eq!(hot_extent.address(12, 14).unwrap_or(1012), 1012),
                Some(address) => assert_eq!(address, 1006),
            }
            writer.join().unwrap();
            assert_eq!(hot_extent.address(6, 8), Some(1006));
        });
    }

    /// A reader that trusted the flag alone would use the window before or the window after.
    #[test]
    fn loom_the_atime_flag_belongs_to_its_window() {
        loom::model(|| {
            let hot_extent = Arc::new(HotExtent::new(WINDOWS[0]));
            hot_extent.set_atime_due(true);
            let (theirs, reader) =
                (hot_extent.clone(), HotExtentReader::new(hot_extent, AtimeUpdates::Enabled));
            let writer = loom::thread::spawn(move || {
                theirs.publish(WINDOWS[1]);
                theirs.set_atime_due(false);
                theirs.set_atime_due(true);
                theirs.publish(WINDOWS[0]);
            });
            assert_eq!(reader.address(6, 2).unwrap_or(1006), 1006);
            writer.join().unwrap();
            assert_eq!(reader.address(6, 2), None);
            reader.hot_extent.set_atime_due(false);
            assert_eq!(reader.address(6, 2), Some(106));
        });
    }
}
