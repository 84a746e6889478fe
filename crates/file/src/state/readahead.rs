//! Readahead. A sequential reader has windows of folios read ahead of it, each larger than the one before. One
//! folio of a window carries a marker; a read of it starts the next window. Several sequential readers of one
//! handle are tracked separately. Random reads cause no readahead.
//!
//! The sizes are those of the kernel (`mm/readahead.c`).

use std::ops::Range;

/// Default of `buffered.readahead`: the longest window, in folios.
pub(crate) const DEFAULT_MAX_FOLIOS: u32 = 32;
/// Sequential readers tracked per handle.
const MAX_STREAMS: usize = 8;

/// Folios to read now, and the one whose read starts the next window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadaheadWindow {
    pub(crate) folios: Range<u64>,
    pub(crate) marker: Option<u64>,
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

    /// A read of `count` folios found that its first, `index`, is not cached. Returns what to read.
    pub(crate) fn on_miss(&mut self, index: u64, count: u32) -> ReadaheadWindow {
        if self.max_folios == 0 {
            return ReadaheadWindow { folios: index..index + u64::from(count), marker: None };
        }
        // The reader overtook the window, or its folios were evicted before it came: continue with the next
        // window.
        let continues =
            |stream: &Stream| stream.size > 0 && (stream.end == index || stream.marker == index);
        if let Some(at) = self.streams.iter().position(continues) {
            return self.advance(at, index);
        }
        let follows = |stream: &Stream| stream.size == 0 && stream.end == index && index > 0;
        let known = self.streams.iter().position(follows);
        if index == 0 || known.is_some() || count > self.max_folios {
            return self.begin(known, index, count);
        }
        // A random read, unless the next read continues here.
        self.last = (self.last + 1) % MAX_STREAMS;
        self.streams[self.last] = Stream { end: index + u64::from(count), size: 0, marker: 0 };
        ReadaheadWindow { folios: index..index + u64::from(count), marker: None }
    }

    /// The marked folio `index` is being read. Returns the next window.
    pub(crate) fn on_marker(&mut self, index: u64) -> Option<ReadaheadWindow> {
        let is_marked = |stream: &Stream| stream.size > 0 && stream.marker == index;
        let at = self.streams.iter().position(is_marked).filter(|_| self.max_folios > 0)?;
        let start = self.streams[at].end;
        Some(self.advance(at, start))
    }

    fn begin(&mut self, known: Option<usize>, index: u64, count: u32) -> ReadaheadWindow {
        let size = first_size(count, self.max_folios);
        let at = known.unwrap_or((self.last + 1) % MAX_STREAMS);
        self.last = at;
        let folios = index..index + u64::from(size.max(count));
        let marker = if size > count { index + u64::from(count) } else { index };
        self.streams[at] = Stream { end: folios.end, size, marker };
        ReadaheadWindow { folios, marker: Some(marker) }
    }

    fn advance(&mut self, at: usize, start: u64) -> ReadaheadWindow {
        let size = next_size(self.streams[at].size, self.max_folios);
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
    use super::*;

    fn window(folios: Range<u64>, marker: u64) -> ReadaheadWindow {
        ReadaheadWindow { folios, marker: Some(marker) }
    }

    #[test]
    fn windows_grow_to_the_maximum() {
        let mut readahead = Readahead::new(32);
        assert_eq!(readahead.on_miss(0, 1), window(0..4, 1));
        assert_eq!(readahead.on_marker(1), Some(window(4..12, 4)));
        assert_eq!(readahead.on_marker(4), Some(window(12..28, 12)));
        assert_eq!(readahead.on_marker(12), Some(window(28..60, 28)));
        assert_eq!(readahead.on_marker(28), Some(window(60..92, 60)));
        assert_eq!(readahead.on_marker(7), None);
    }

    #[test]
    fn random_reads_cause_no_readahead_until_one_continues() {
        let mut readahead = Readahead::new(32);
        for index in [100, 7, 3000, 40] {
            let folios = index..index + 1;
            assert_eq!(readahead.on_miss(index, 1), ReadaheadWindow { folios, marker: None });
        }
        assert_eq!(readahead.on_miss(41, 1), window(41..45, 42));
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
                readahead.on_marker(start + 1),
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
