//! Readahead. A sequential reader has windows of folios read ahead of it, each larger than the one before. The first
//! folio of a window carries a marker; a read of it starts the next window, so a whole window is in flight while the
//! one before is used. Several sequential readers of one handle are tracked separately. Random reads cause no
//! readahead.
//!
//! The sizes are those of the kernel (`mm/readahead.c`) up to 128 KiB. A window becomes longer than that only if its
//! reader came to the one before too early and had to wait: then what is in flight is less than the device moves in
//! the time that it takes to answer. A reader that does not wait gains nothing from longer windows.

use std::ops::Range;

/// Default of `buffered.readahead`: the longest window, in folios.
pub(crate) const DEFAULT_MAX_FOLIOS: u32 = 256;
/// The longest window of a reader that does not wait, in folios.
const MAX_READY_FOLIOS: u32 = 32;
/// Sequential readers tracked per handle.
const MAX_STREAMS: usize = 8;

/// Folios to read now, and the one whose read starts the next window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadaheadWindow {
    pub(crate) folios: Range<u64>,
    pub(crate) marker: Option<u64>,
}

/// How a reader has found the marked folio of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkedFolio {
    /// With its bytes: the window was read in time.
    Cached,
    /// Without them: the reader waits.
    Awaited,
}

/// The sequential readers of one handle.
#[derive(Debug)]
pub(crate) struct Readahead {
    max_folios: u32,
    streams: [Stream; MAX_STREAMS],
    /// The slot of `streams` used last.
    last: usize,
}

/// One sequential reader.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// End of its last window, where the next one begins.
    end: u64,
    /// Folios in that window; 0 as long as all its reads were random.
    size: u32,
    /// The marked folio of that window.
    marker: u64,
}

impl Readahead {
    /// Windows are at most this long, in folios; 0 disables them.
    pub(crate) fn new(max_folios: u32) -> Readahead {
        Readahead { max_folios, streams: [Stream::default(); MAX_STREAMS], last: 0 }
    }

    /// Limits the length of later windows, in folios.
    pub(crate) fn set_max_folios(&mut self, max_folios: u32) {
        self.max_folios = max_folios;
    }

    /// Whether a read of `count` folios whose first, `index`, is not cached is random: then it reads what it needs, and
    /// [`Self::note_random_miss`] notes it. Otherwise [`Self::on_miss`] tells what to read.
    pub(crate) fn is_random_miss(&self, index: u64, count: u32) -> bool {
        if self.max_folios == 0 {
            return true;
        }
        if index == 0 || count > self.max_folios {
            return false;
        }
        // No branch for each stream. Those without a marker have 0.
        let is_of = |stream: &Stream| (stream.end == index) | (stream.marker == index);
        !self.streams.iter().fold(false, |any, stream| any | is_of(stream))
    }

    /// Notes a random read: one that continues it is sequential.
    pub(crate) fn note_random_miss(&mut self, index: u64, count: u32) {
        if self.max_folios > 0 {
            self.last = (self.last + 1) % MAX_STREAMS;
            self.streams[self.last] = Stream { end: index + u64::from(count), size: 0, marker: 0 };
        }
    }

    /// A read of `count` folios found that its first, `index`, is not cached. Returns what to read.
    pub(crate) fn on_miss(&mut self, index: u64, count: u32) -> ReadaheadWindow {
        if self.is_random_miss(index, count) {
            self.note_random_miss(index, count);
            return ReadaheadWindow { folios: index..index + u64::from(count), marker: None };
        }
        // The reader overtook the window, or its folios were evicted before it came: continue with the next
        // window.
        let continues =
            |stream: &Stream| stream.size > 0 && (stream.end == index || stream.marker == index);
        if let Some(at) = self.streams.iter().position(continues) {
            return self.advance(at, index, MarkedFolio::Awaited);
        }
        let follows = |stream: &Stream| stream.size == 0 && stream.end == index && index > 0;
        let known = self.streams.iter().position(follows);
        self.begin(known, index, count)
    }

    /// The marked folio `index` is being read. Returns the next window.
    pub(crate) fn on_marker(&mut self, index: u64, marked: MarkedFolio) -> Option<ReadaheadWindow> {
        let is_marked = |stream: &Stream| stream.size > 0 && stream.marker == index;
        let at = self.streams.iter().position(is_marked).filter(|_| self.max_folios > 0)?;
        let start = self.streams[at].end;
        Some(self.advance(at, start, marked))
    }

    fn begin(&mut self, known: Option<usize>, index: u64, count: u32) -> ReadaheadWindow {
        let size = first_size(count, self.max_folios.min(MAX_READY_FOLIOS));
        let at = known.unwrap_or((self.last + 1) % MAX_STREAMS);
        self.last = at;
        let folios = index..index + u64::from(size.max(count));
        let marker = if size > count { index + u64::from(count) } else { index };
        self.streams[at] = Stream { end: folios.end, size, marker };
        ReadaheadWindow { folios, marker: Some(marker) }
    }

    fn advance(&mut self, at: usize, start: u64, marked: MarkedFolio) -> ReadaheadWindow {
        let (last, max) = (self.streams[at].size, self.max_folios);
        let max = match marked {
            MarkedFolio::Awaited => max,
            MarkedFolio::Cached => max.min(last.max(MAX_READY_FOLIOS)),
        };
        let size = next_size(last, max);
        let folios = start..start + u64::from(size);
        self.streams[at] = Stream { end: folios.end, size, marker: start };
        self.last = at;
        ReadaheadWindow { folios, marker: Some(start) }
    }
}

fn first_size(count: u32, max_folios: u32) -> u32 {
    let size = count.max(1).next_power_of_two();
    if size <= max_folios / 32 {
        size * 4
    } else if size <= max_folios / 4 {
        size * 2
    } else {
        max_folios
    }
}

fn next_size(size: u32, max_folios: u32) -> u32 {
    if size < max_folios / 16 {
        size * 4
    } else if size <= max_folios / 2 {
        size * 2
    } else {
        max_folios
    }
}

#[cfg(test)]
mod tests {
    use super::MarkedFolio::{Awaited, Cached};
    use super::*;

    fn window(folios: Range<u64>, marker: u64) -> ReadaheadWindow {
        ReadaheadWindow { folios, marker: Some(marker) }
    }

    #[test]
    fn windows_grow_to_the_maximum() {
        for marked in [Cached, Awaited] {
            let mut readahead = Readahead::new(32);
            assert_eq!(readahead.on_miss(0, 1), window(0..4, 1));
            assert_eq!(readahead.on_marker(1, marked), Some(window(4..12, 4)));
            assert_eq!(readahead.on_marker(4, marked), Some(window(12..28, 12)));
            assert_eq!(readahead.on_marker(12, marked), Some(window(28..60, 28)));
            assert_eq!(readahead.on_marker(28, marked), Some(window(60..92, 60)));
            assert_eq!(readahead.on_marker(7, marked), None);
        }
    }

    #[test]
    fn only_a_reader_that_waits_has_windows_beyond_the_kernels() {
        let mut readahead = Readahead::new(256);
        assert_eq!(readahead.on_miss(0, 1), window(0..4, 1));
        let mut at = 1;
        let mut sizes = |marked| {
            let mut next = || {
                let found = readahead.on_marker(at, marked).expect("the folio is marked");
                at = found.marker.expect("each window has a marker");
                found.folios.end - found.folios.start
            };
            [next(), next(), next(), next(), next()]
        };
        assert_eq!(sizes(Cached), [8, 16, 32, 32, 32]);
        assert_eq!(sizes(Awaited), [64, 128, 256, 256, 256]);
        assert_eq!(sizes(Cached), [256; 5], "what was found stays");
        assert_eq!(readahead.on_miss(at, 1).folios.start, at, "the reader overtook its window");
    }

    #[test]
    fn random_reads_cause_no_readahead_until_one_continues() {
        let mut readahead = Readahead::new(32);
        for index in [100, 7, 3000, 40] {
            let folios = index..index + 1;
            assert_eq!(readahead.on_miss(index, 1), ReadaheadWindow { folios, marker: None });
        }
        assert!(readahead.is_random_miss(9000, 1) && !readahead.is_random_miss(0, 1));
        readahead.note_random_miss(9000, 1);
        assert!(!readahead.is_random_miss(9001, 1) && !readahead.is_random_miss(41, 1));
        assert_eq!(readahead.on_miss(41, 1), window(41..45, 42));
        assert!(
            [42, 45].into_iter().all(|index| !readahead.is_random_miss(index, 1)),
            "its stream"
        );
        assert_eq!(readahead.on_miss(8, 2), window(8..12, 10));
    }

    #[test]
    fn interleaved_sequential_readers_have_separate_windows() {
        let mut readahead = Readahead::new(32);
        for stream in 0..MAX_STREAMS as u64 {
            readahead.on_miss(stream * 1000 + 5, 1);
        }
        for stream in 0..MAX_STREAMS as u64 {
            let start = stream * 1000 + 6;
            assert_eq!(readahead.on_miss(start, 1), window(start..start + 4, start + 1));
        }
        for stream in 0..MAX_STREAMS as u64 {
            let start = stream * 1000 + 6;
            assert_eq!(
                readahead.on_marker(start + 1, Cached),
                Some(window(start + 4..start + 12, start + 4))
            );
        }
    }

    #[test]
    fn a_long_read_is_its_own_window_and_0_disables_readahead() {
        assert_eq!(Readahead::new(32).on_miss(9, 100), window(9..109, 9));
        let without_readahead = ReadaheadWindow { folios: 9..109, marker: None };
        assert_eq!(Readahead::new(0).on_miss(9, 100), without_readahead);
        assert_eq!((first_size(1, 32), first_size(8, 32), first_size(9, 32)), (4, 16, 32));
    }
}
