//! What is read before it is asked for. A reader that goes on where it was has windows of folios read ahead of
//! it, each larger than the one before; reading a marked folio of a window starts the next one. Several readers
//! of one opening are told apart. Who reads at random is left alone.
//!
//! The sizes are those of the kernel (`mm/readahead.c`).

use std::ops::Range;

/// The longest window unless it is set, in folios.
pub(crate) const LONGEST: u32 = 32;
/// Readers that are told apart.
const STREAMS: usize = 8;

/// Folios to read now, and which of them starts the next window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) folios: Range<u64>,
    pub(crate) mark: Option<u64>,
}

/// What is known of the readers of one opening.
#[derive(Debug)]
pub(crate) struct Readahead {
    longest: u32,
    streams: [Stream; STREAMS],
    /// The one that was told apart last.
    last: usize,
}

/// A reader that goes on where it was.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Where its last window ends: the next one begins there.
    end: u64,
    /// Folios in that; 0 when it has read at random yet.
    size: u32,
    /// What of that was marked.
    mark: u64,
}

impl Readahead {
    /// Windows of at most `longest` folios; none when it is 0.
    pub(crate) fn new(longest: u32) -> Readahead {
        Readahead { longest, streams: [Stream::default(); STREAMS], last: 0 }
    }

    /// Has the next windows be at most so long.
    pub(crate) fn set_longest(&mut self, longest: u32) {
        self.longest = longest;
    }

    /// `index` is not there, the first of `count` folios that somebody asks for.
    pub(crate) fn missed(&mut self, index: u64, count: u32) -> Window {
        if self.longest == 0 {
            return Window { folios: index..index + u64::from(count), mark: None };
        }
        // Overtaken by its reader, or evicted before it came: the window that would have been next.
        let goes_on =
            |stream: &Stream| stream.size > 0 && (stream.end == index || stream.mark == index);
        if let Some(at) = self.streams.iter().position(goes_on) {
            return self.advance(at, index);
        }
        let follows = |stream: &Stream| stream.size == 0 && stream.end == index && index > 0;
        let known = self.streams.iter().position(follows);
        if index == 0 || known.is_some() || count > self.longest {
            return self.begin(known, index, count);
        }
        // At random, unless the next one goes on here.
        self.last = (self.last + 1) % STREAMS;
        self.streams[self.last] = Stream { end: index + u64::from(count), size: 0, mark: 0 };
        Window { folios: index..index + u64::from(count), mark: None }
    }

    /// The marked folio at `index` is being read.
    pub(crate) fn reached(&mut self, index: u64) -> Option<Window> {
        let is_it = |stream: &Stream| stream.size > 0 && stream.mark == index;
        let at = self.streams.iter().position(is_it).filter(|_| self.longest > 0)?;
        let start = self.streams[at].end;
        Some(self.advance(at, start))
    }

    fn begin(&mut self, known: Option<usize>, index: u64, count: u32) -> Window {
        let size = first_size(count, self.longest);
        let at = known.unwrap_or((self.last + 1) % STREAMS);
        self.last = at;
        let folios = index..index + u64::from(size.max(count));
        let mark = if size > count { index + u64::from(count) } else { index };
        self.streams[at] = Stream { end: folios.end, size, mark };
        Window { folios, mark: Some(mark) }
    }

    fn advance(&mut self, at: usize, start: u64) -> Window {
        let size = next_size(self.streams[at].size, self.longest);
        let folios = start..start + u64::from(size);
        self.streams[at] = Stream { end: folios.end, size, mark: start };
        self.last = at;
        Window { folios, mark: Some(start) }
    }
}

fn first_size(count: u32, longest: u32) -> u32 {
    let size = count.max(1).next_power_of_two();
    if size <= longest / 32 {
        size * 4
    } else if size <= longest / 4 {
        size * 2
    } else {
        longest
    }
}

fn next_size(size: u32, longest: u32) -> u32 {
    if size < longest / 16 {
        size * 4
    } else if size <= longest / 2 {
        size * 2
    } else {
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(folios: Range<u64>, mark: u64) -> Window {
        Window { folios, mark: Some(mark) }
    }

    #[test]
    fn windows_grow_to_the_longest_and_stay() {
        let mut readahead = Readahead::new(32);
        assert_eq!(readahead.missed(0, 1), window(0..4, 1));
        assert_eq!(readahead.reached(1), Some(window(4..12, 4)));
        assert_eq!(readahead.reached(4), Some(window(12..28, 12)));
        assert_eq!(readahead.reached(12), Some(window(28..60, 28)));
        assert_eq!(readahead.reached(28), Some(window(60..92, 60)));
        assert_eq!(readahead.reached(7), None);
    }

    #[test]
    fn who_reads_at_random_is_left_alone_until_it_goes_on() {
        let mut readahead = Readahead::new(32);
        for index in [100, 7, 3000, 40] {
            let folios = index..index + 1;
            assert_eq!(readahead.missed(index, 1), Window { folios, mark: None });
        }
        assert_eq!(readahead.missed(41, 1), window(41..45, 42));
        assert_eq!(readahead.missed(8, 2), window(8..12, 10));
    }

    #[test]
    fn streams_between_one_another_each_have_their_windows() {
        let mut readahead = Readahead::new(32);
        for stream in 0..STREAMS as u64 {
            readahead.missed(stream * 1000 + 5, 1);
        }
        for stream in 0..STREAMS as u64 {
            let start = stream * 1000 + 6;
            assert_eq!(readahead.missed(start, 1), window(start..start + 4, start + 1));
        }
        for stream in 0..STREAMS as u64 {
            let start = stream * 1000 + 6;
            assert_eq!(
                readahead.reached(start + 1),
                Some(window(start + 4..start + 12, start + 4))
            );
        }
    }

    #[test]
    fn a_long_read_has_its_own_folios_and_without_windows_nothing_more() {
        assert_eq!(Readahead::new(32).missed(9, 100), window(9..109, 9));
        let alone = Window { folios: 9..109, mark: None };
        assert_eq!(Readahead::new(0).missed(9, 100), alone);
        assert_eq!((first_size(1, 32), first_size(8, 32), first_size(9, 32)), (4, 16, 32));
    }
}
