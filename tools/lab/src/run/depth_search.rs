//! Finds the highest depth whose latencies meet a target: `latency_target`. The depth is doubled until a window misses the target,
//! then halved into the interval between the last one that met it and the first one that did not, by fio's steps.

use crate::job::Options;

/// The search of one thread. Times are those of the monotonic clock in nanoseconds.
#[derive(Debug)]
pub struct DepthSearch {
    target_ns: u64,
    window_ns: u64,
    /// Percentage of a window's I/Os that must meet the target.
    percentile: f64,
    /// The search never ends.
    goes_on: bool,
    max_depth: u32,
    depth: u32,
    /// The bounds of the search.
    low: u32,
    high: u32,
    /// Windows in a row that met the target at the depth below `high`.
    stable: u32,
    /// The beginning of the window. `None` before the measurement, and while I/Os of another depth are in flight.
    began_ns: Option<u64>,
    /// Nothing is issued until nothing is in flight.
    is_draining: bool,
    /// The last window: that at the depth that was found.
    is_final: bool,
    /// I/Os of the window, and those that missed the target.
    ios: u64,
    late: u64,
}

/// The decision after an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchResult {
    /// Nothing to do.
    Continues,
    /// The depth is found, and its window is over.
    Found,
    /// The target is missed even at depth 1.
    Missed,
}

impl DepthSearch {
    /// The search of a job, if it has one. Its depth is at most `max_depth`.
    pub fn from_options(options: &Options, max_depth: u32) -> Option<Self> {
        let target_ns = options.latency_target.as_nanos() as u64;
        (target_ns > 0).then_some(Self {
            target_ns,
            window_ns: options.latency_window.as_nanos() as u64,
            percentile: options.latency_percentile,
            goes_on: options.latency_run,
            max_depth,
            depth: 1,
            low: 1,
            high: max_depth,
            stable: 0,
            began_ns: None,
            is_draining: false,
            is_final: false,
            ios: 0,
            late: 0,
        })
    }

    /// The current depth.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether an I/O may be issued.
    pub fn allows(&self, in_flight: u32) -> bool {
        !self.is_draining && in_flight < self.depth
    }

    /// Begins the measurement.
    pub fn begin(&mut self, now_ns: u64) {
        self.began_ns = Some(now_ns);
    }

    /// Nothing is in flight: begins a window that waits for that. Returns whether it is the last one, whose I/Os alone count.
    pub fn on_idle(&mut self, now_ns: u64) -> bool {
        if !self.is_draining {
            return false;
        }
        self.is_draining = false;
        self.began_ns = Some(now_ns);
        self.is_final
    }

    /// Counts a completed I/O, with its total latency.
    pub fn count(&mut self, latency_ns: u64, now_ns: u64) -> SearchResult {
        let Some(began_ns) = self.began_ns else { return SearchResult::Continues };
        self.ios += 1;
        if latency_ns > self.target_ns {
            self.late += 1;
            if self.percentile >= 100.0 {
                return self.lower();
            }
        }
        if now_ns.saturating_sub(began_ns) < self.window_ns {
            return SearchResult::Continues;
        }
        let met = (self.ios - self.late) as f64 * 100.0 / self.ios as f64;
        if met >= self.percentile { self.raise(now_ns) } else { self.lower() }
    }

    fn raise(&mut self, now_ns: u64) -> SearchResult {
        /// So many windows in a row raise the upper bound: a target that was missed once may be met.
        const STABLE_WINDOWS: u32 = 3;
        let before = self.depth;
        self.low = before;
        if before + 1 == self.high {
            self.stable += 1;
            if self.stable >= STABLE_WINDOWS {
                self.high += 1;
                self.stable = 0;
            }
        }
        // Without a miss the depth is doubled.
        let raised = match self.high != self.max_depth {
            true => (before + self.high) / 2,
            false => before.saturating_mul(2),
        };
        self.depth = raised.min(self.max_depth);
        if self.depth == before && !self.goes_on {
            if self.is_final {
                return SearchResult::Found;
            }
            self.is_final = true;
            self.drain();
        } else {
            self.begin_window(Some(now_ns));
        }
        SearchResult::Continues
    }

    fn lower(&mut self) -> SearchResult {
        if self.depth == 1 {
            // As with fio: a percentage that is missed goes on, until the run ends.
            if self.percentile >= 100.0 {
                return SearchResult::Missed;
            }
            self.drain();
            return SearchResult::Continues;
        }
        self.high = self.depth;
        if self.depth == self.low {
            self.low -= 1;
        }
        self.depth = (self.depth + self.low) / 2;
        self.stable = 0;
        // Otherwise the I/Os of the higher depth would lower it again.
        self.drain();
        SearchResult::Continues
    }

    fn drain(&mut self) {
        self.is_draining = true;
        self.begin_window(None);
    }

    fn begin_window(&mut self, now_ns: Option<u64>) {
        (self.ios, self.late, self.began_ns) = (0, 0, now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MS: u64 = 1_000_000;

    fn search(percentile: f64, max_depth: u32) -> DepthSearch {
        let options = Options {
            latency_target: Duration::from_millis(10),
            latency_window: Duration::from_millis(1000),
            latency_percentile: percentile,
            ..Options::default()
        };
        let mut search = DepthSearch::from_options(&options, max_depth).unwrap();
        search.begin(0);
        search
    }

    /// Runs windows on a target whose latency is a millisecond for each I/O in flight, but 9 for one I/O of each window. Returns the
    /// depths of the windows, and the result.
    fn depths(search: &mut DepthSearch, windows: usize) -> (Vec<u32>, SearchResult) {
        let (mut now_ns, mut found, mut result) = (0, Vec::new(), SearchResult::Continues);
        'windows: for _ in 0..windows {
            found.push(search.depth());
            assert!(search.allows(search.depth() - 1) && !search.allows(search.depth()));
            let depth = search.depth();
            // 100 I/Os a second and one more, which ends the window.
            for io in 0..101 {
                let latency_ms = if io == 50 { 9 } else { depth };
                result = search.count(u64::from(latency_ms) * MS, now_ns);
                now_ns += 10 * MS;
                if result != SearchResult::Continues {
                    break 'windows;
                }
                if search.depth() != depth || !search.allows(0) {
                    break;
                }
            }
            search.on_idle(now_ns);
        }
        (found, result)
    }

    #[test]
    fn the_highest_depth_that_meets_the_target_is_found() {
        let mut search = search(100.0, 128);
        // Doubled up to 16, which is late; then between 8 and 16, and once more for the counts.
        let (found, result) = depths(&mut search, 100);
        assert_eq!(found, [1, 2, 4, 8, 16, 12, 10, 11, 10, 10]);
        assert_eq!((result, search.depth()), (SearchResult::Found, 10));
    }

    #[test]
    fn the_full_depth_is_found_if_it_meets_the_target() {
        let mut search = search(100.0, 8);
        assert_eq!(depths(&mut search, 100), (vec![1, 2, 4, 8, 8], SearchResult::Found));
    }

    #[test]
    fn a_target_that_one_io_misses_at_depth_1_ends_the_job() {
        let mut search = search(100.0, 8);
        assert_eq!(search.count(11 * MS, 0), SearchResult::Missed);
        // With a percentage it goes on, with the next window.
        let mut search = super::tests::search(90.0, 8);
        assert_eq!(search.count(11 * MS, 5), SearchResult::Continues);
        assert_eq!(search.count(11 * MS, 1000 * MS), SearchResult::Continues);
        assert!(!search.allows(0) && !search.on_idle(1001 * MS) && search.allows(0));
        assert_eq!(search.depth(), 1);
    }

    #[test]
    fn ios_of_a_higher_depth_do_not_count() {
        let mut search = search(100.0, 8);
        search.count(MS, 1000 * MS);
        assert_eq!(search.depth(), 2);
        assert_eq!(search.count(11 * MS, 1001 * MS), SearchResult::Continues);
        assert_eq!((search.depth(), search.allows(0)), (1, false));
        assert_eq!(search.count(11 * MS, 1002 * MS), SearchResult::Continues, "issued before");
        search.on_idle(1003 * MS);
        assert_eq!(search.count(11 * MS, 1004 * MS), SearchResult::Missed);
    }

    #[test]
    fn a_percentage_may_be_late() {
        // One of 100 is 9 ms, which is in time; at depth 11 and more 99 of 100 are late.
        let mut all = search(99.5, 128);
        assert_eq!(depths(&mut all, 100).1, SearchResult::Found);
        assert_eq!(all.depth(), 10);
        let mut one = search(0.5, 128);
        assert_eq!(
            depths(&mut one, 100),
            (vec![1, 2, 4, 8, 16, 32, 64, 128, 128], SearchResult::Found)
        );
    }

    #[test]
    fn latency_run_searches_on() {
        let options = Options {
            latency_target: Duration::from_millis(10),
            latency_window: Duration::from_millis(1000),
            latency_run: true,
            ..Options::default()
        };
        let mut search = DepthSearch::from_options(&options, 128).unwrap();
        search.begin(0);
        let (found, result) = depths(&mut search, 40);
        assert_eq!((found.len(), result), (40, SearchResult::Continues));
        assert!(found[10..].iter().all(|depth| (9..=12).contains(depth)), "{found:?}");
        assert!(DepthSearch::from_options(&Options::default(), 8).is_none());
    }
}
