//! The dirty folios of a file: written to the page cache, not yet on its device.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Poll, Waker};

use parking_lot::{Mutex, MutexGuard};
use uringfs_cache::{FOLIO, FileFolios, Fill};

use crate::map::file_map::FileMap;
use crate::map::mapping::{MappingState, TruncateGeneration};
use crate::state::delayed_allocation::DelayedFolios;

/// The file handle that dirty folios keep open.
pub(crate) trait DirtyFile: Any + Debug + Send + Sync {
    /// The file's map.
    fn map(&self) -> &FileMap;
}

/// One for all handles of a file.
#[derive(Debug, Default)]
pub(crate) struct DirtySet {
    is_any: AtomicBool,
    /// End of the last dirty byte; 0 without one.
    end: AtomicU64,
    /// Failed write-backs.
    failures: AtomicU64,
    /// Of these, the number that some handle has reported.
    failures_reported: AtomicU64,
    /// Runs that write-back returned as dirty, for any reason.
    redirtied: AtomicU64,
    /// Open buffered handles.
    buffered_handles: AtomicU32,
    state: Mutex<DirtyState>,
}

#[derive(Debug, Default)]
struct DirtyState {
    folios: BTreeSet<u64>,
    /// Runs under write-back, with their generation. `folios` also has those of their folios that changed again
    /// meanwhile.
    in_writeback: Vec<(Range<u64>, TruncateGeneration)>,
    /// Those of `folios` without blocks on the device.
    delayed: DelayedFolios,
    /// The file's truncate generation when they were written.
    generation: TruncateGeneration,
    /// Keeps the file open while any folio is dirty.
    file: Option<Arc<dyn DirtyFile>>,
    flusher: FlusherState,
}

/// State of the file's flusher.
#[derive(Debug, Default)]
struct FlusherState {
    is_running: bool,
    /// A write-back was requested: by the close of a handle, a throttled writer or a dropbehind write.
    is_requested: bool,
    waker: Option<Waker>,
}

impl DirtyState {
    fn is_empty(&self) -> bool {
        self.folios.is_empty() && self.in_writeback.is_empty()
    }

    /// The first dirty folios of a range in a row, at most `max_folios`.
    fn first_run(&self, folios: Range<u64>, max_folios: u64) -> Option<Range<u64>> {
        if folios.is_empty() {
            return None;
        }
        let mut found = self.folios.range(folios);
        let first = *found.next()?;
        let behind =
            (first + 1..first + max_folios).zip(found).take_while(|(next, is)| next == *is);
        Some(first..first + 1 + behind.count() as u64)
    }
}

impl DirtySet {
    /// True if any folio is dirty or under write-back.
    #[inline(always)]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// End of the last dirty byte; 0 without one.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Failed write-backs.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Failures that a new handle does not report: those that some handle has reported. The others go to the
    /// next handle that syncs, as in Linux (`errseq_sample`).
    pub(crate) fn failures_reported(&self) -> u64 {
        self.failures_reported.load(Ordering::Acquire)
    }

    /// All failures so far; they count as reported from now on.
    pub(crate) fn report_failures(&self) -> u64 {
        let failures = self.failures();
        self.failures_reported.fetch_max(failures, Ordering::AcqRel);
        failures
    }

    /// Runs that write-back returned as dirty.
    pub(crate) fn redirtied(&self) -> u64 {
        self.redirtied.load(Ordering::Acquire)
    }

    /// The file, while any folio is dirty.
    pub(crate) fn file(&self) -> Option<Arc<dyn DirtyFile>> {
        self.state.lock().file.clone()
    }

    /// The folios of a range that have neither blocks nor reserved space. The caller excludes other writers.
    pub(crate) fn needing_reservation(&self, map: &FileMap, folios: Range<u64>) -> BTreeSet<u64> {
        let state = &*self.state.lock();
        let is_reserved = |index: u64| {
            // A run of an earlier generation returns its space when it ends.
            let is_here = |(run, generation): &(Range<u64>, TruncateGeneration)| {
                run.contains(&index) && *generation == state.generation
            };
            state.delayed.contains(index) || state.in_writeback.iter().any(is_here)
        };
        let (mut found, mut at) = (BTreeSet::new(), folios.start);
        while at < folios.end {
            let mapping = map.map(at * FOLIO);
            let end = (at + (mapping.length / FOLIO).max(1)).min(folios.end);
            if mapping.state == MappingState::Hole {
                found.extend((at..end).filter(|index| !is_reserved(*index)));
            }
            at = end;
        }
        found
    }

    /// Offset of the first dirty byte from `offset` on.
    pub(crate) fn next_dirty(&self, offset: u64) -> Option<u64> {
        if !self.is_any() {
            return None;
        }
        let index = offset / FOLIO;
        let state = self.state.lock();
        let runs =
            state.in_writeback.iter().filter(|(run, _)| run.end > index).map(|(run, _)| run.start);
        let first = runs.chain(state.folios.range(index..).next().copied()).min()?;
        Some(offset.max(first * FOLIO)).filter(|offset| *offset < self.end())
    }

    /// Marks changed folios dirty, with data up to `end`. If the file has been truncated to 0 since
    /// `generation`, the write counts as earlier, and the folios are dropped. Takes the folios' space out of `delayed`,
    /// and a handle from `keep` if none is kept yet. Returns true if the caller has to start a flusher.
    pub(crate) fn mark_dirty(
        &self,
        keep: impl FnOnce() -> Arc<dyn DirtyFile>,
        fill: Fill,
        end: u64,
        generation: TruncateGeneration,
        delayed: &mut DelayedFolios,
    ) -> bool {
        let range = fill.range();
        let folios = range.start / FOLIO..range.end / FOLIO;
        let delayed = delayed.take(folios.clone());
        let state = &mut *self.state.lock();
        if state.generation != generation {
            fill.discard();
            return false;
        }
        state.folios.extend(folios);
        state.delayed.merge(delayed);
        state.file.get_or_insert_with(keep);
        self.end.fetch_max(end, Ordering::Release);
        self.is_any.store(true, Ordering::Release);
        fill.end_dirty();
        !std::mem::replace(&mut state.flusher.is_running, true)
    }

    /// The file was truncated to 0: discards the dirty folios of earlier generations.
    pub(crate) fn discard_before(&self, file_folios: &FileFolios, generation: TruncateGeneration) {
        let mut state = self.state.lock();
        // A late caller has an older generation.
        if state.generation < generation {
            file_folios.invalidate(0..u64::MAX);
            state.generation = generation;
            self.end.store(0, Ordering::Release);
            self.drop_from(state, 0);
        }
    }

    /// Discards the dirty folios beyond `size`. The caller excludes writers and write-back.
    pub(crate) fn truncate(&self, size: u64) {
        let state = self.state.lock();
        self.end.fetch_min(size, Ordering::Release);
        self.drop_from(state, size.div_ceil(FOLIO));
    }

    /// Discards the dirty folios from `folio` on.
    fn drop_from(&self, mut state: MutexGuard<'_, DirtyState>, folio: u64) {
        state.folios.split_off(&folio);
        let delayed = state.delayed.take(folio..u64::MAX);
        self.release_if_clean(state);
        // Without the lock: returning space takes locks of the map.
        drop(delayed);
    }

    /// If nothing is dirty any more, notes that and lets the file go.
    fn release_if_clean(&self, mut state: MutexGuard<'_, DirtyState>) {
        if state.is_empty() {
            self.is_any.store(false, Ordering::Release);
            self.end.store(0, Ordering::Release);
            let file = state.file.take();
            // Without the lock: it may be the last reference to the file.
            drop(state);
            drop(file);
        }
    }

    /// The first dirty folios of a range in a row, at most `max_folios`.
    pub(crate) fn first_run(&self, folios: Range<u64>, max_folios: u64) -> Option<Range<u64>> {
        self.state.lock().first_run(folios, max_folios)
    }

    /// True if any folio of a range is under write-back.
    pub(crate) fn is_in_writeback(&self, folios: &Range<u64>) -> bool {
        let overlaps =
            |(run, _): &(Range<u64>, _)| run.start < folios.end && folios.start < run.end;
        self.state.lock().in_writeback.iter().any(overlaps)
    }

    /// Takes the first dirty folios of a range for write-back. The caller excludes other write-back of the
    /// range.
    pub(crate) fn take_run<'u>(
        &'u self,
        file_folios: &'u FileFolios,
        folios: Range<u64>,
        max_folios: u64,
    ) -> Option<WritebackRun<'u>> {
        let state = &mut *self.state.lock();
        let run = state.first_run(folios, max_folios)?;
        run.clone().for_each(|index| _ = state.folios.remove(&index));
        let (delayed, generation) = (state.delayed.take(run.clone()), state.generation);
        state.in_writeback.push((run.clone(), generation));
        Some(WritebackRun {
            dirty: self,
            file_folios,
            run,
            delayed,
            generation,
            outcome: WritebackOutcome::Cancelled,
        })
    }

    /// Waits until a write-back is requested.
    pub(crate) async fn writeback_requested(&self) {
        poll_fn(|context| {
            let flusher = &mut self.state.lock().flusher;
            if std::mem::take(&mut flusher.is_requested) {
                return Poll::Ready(());
            }
            flusher.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Counts a buffered handle.
    pub(crate) fn handle_opened(&self) {
        // Not while `drop_dirty` decides whether a buffered handle is left.
        let _state = self.state.lock();
        self.buffered_handles.fetch_add(1, Ordering::AcqRel);
    }

    /// A buffered handle closes: requests the write-back of its writes. Returns true if the caller has to start
    /// a flusher.
    pub(crate) fn handle_closed(&self) -> bool {
        self.buffered_handles.fetch_sub(1, Ordering::AcqRel);
        self.is_any() && self.request_writeback()
    }

    /// Requests a write-back. Returns true if the caller has to start a flusher.
    pub(crate) fn request_writeback(&self) -> bool {
        let (waker, was_there) = {
            let flusher = &mut self.state.lock().flusher;
            flusher.is_requested = true;
            (flusher.waker.take(), std::mem::replace(&mut flusher.is_running, true))
        };
        waker.into_iter().for_each(Waker::wake);
        !was_there
    }

    /// Discards dirty folios that could not be written back, if no buffered handle is left to sync them. The
    /// remaining handles and the map report the loss.
    pub(crate) fn drop_dirty(&self, file_folios: &FileFolios) {
        let state = self.state.lock();
        if self.buffered_handles.load(Ordering::Acquire) > 0 {
            return;
        }
        // Counted first, so that a reader that finds the set clean also finds the loss.
        if let Some(file) = state.file.as_ref().filter(|_| !state.folios.is_empty()) {
            self.failures.fetch_add(1, Ordering::Release);
            file.map().note_lost_writes();
        }
        state.folios.iter().for_each(|index| file_folios.invalidate(*index..*index + 1));
        self.drop_from(state, 0);
    }

    /// Discards the dirty folios if the file has no name and no open handle. True if so.
    pub(crate) fn drop_if_unlinked(
        &self,
        file: &Arc<dyn DirtyFile>,
        file_folios: &FileFolios,
    ) -> bool {
        let state = self.state.lock();
        // One reference is the caller's, one is in this set.
        let is_ours = Arc::strong_count(file) == 2 && state.in_writeback.is_empty();
        if !is_ours || !file.map().retire_if_unlinked() {
            return false;
        }
        file_folios.invalidate(0..u64::MAX);
        self.drop_from(state, 0);
        true
    }

    /// Stops the flusher if nothing is dirty and no write-back has been requested since. Returns whether it did.
    pub(crate) fn stop_flusher_if_clean(&self) -> bool {
        let state = &mut *self.state.lock();
        let is_done = !state.flusher.is_requested && state.is_empty();
        state.flusher.is_running = !is_done;
        is_done
    }

    /// The flusher has ended.
    pub(crate) fn flusher_stopped(&self) {
        self.state.lock().flusher.is_running = false;
    }
}

/// How a write-back ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritebackOutcome {
    /// The device has the folios.
    Clean,
    /// A request failed.
    Failed,
    /// The operation was cancelled or dropped.
    Cancelled,
}

/// Folios under write-back. They become dirty again on drop, unless they were written.
pub(crate) struct WritebackRun<'u> {
    dirty: &'u DirtySet,
    file_folios: &'u FileFolios,
    run: Range<u64>,
    /// Those of them without blocks.
    pub(crate) delayed: DelayedFolios,
    pub(crate) generation: TruncateGeneration,
    outcome: WritebackOutcome,
}

impl WritebackRun<'_> {
    /// The range of folios.
    pub(crate) fn folios(&self) -> Range<u64> {
        self.run.clone()
    }

    /// Ends the write-back.
    pub(crate) fn end_writeback(mut self, outcome: WritebackOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for WritebackRun<'_> {
    fn drop(&mut self) {
        let mut state = self.dirty.state.lock();
        let place = state.in_writeback.iter().position(|(run, _)| *run == self.run);
        state.in_writeback.swap_remove(place.expect("it is under write-back"));
        match self.outcome {
            // Folios that changed meanwhile stay dirty.
            WritebackOutcome::Clean => {
                let is_same = |index: &u64| !state.folios.contains(index);
                self.run
                    .clone()
                    .filter(is_same)
                    .for_each(|index| self.file_folios.mark_clean(index));
            }
            WritebackOutcome::Failed | WritebackOutcome::Cancelled => {
                self.dirty.redirtied.fetch_add(1, Ordering::Release);
                if state.generation == self.generation {
                    state.folios.extend(self.run.clone());
                    state.delayed.merge(std::mem::take(&mut self.delayed));
                }
                if self.outcome == WritebackOutcome::Failed {
                    self.dirty.failures.fetch_add(1, Ordering::Release);
                }
            }
        }
        self.dirty.release_if_clean(state);
        if self.outcome == WritebackOutcome::Failed {
            self.file_folios.report_writeback_failure();
        }
    }
}

#[cfg(test)]
mod tests {
    use uringfs_cache::{Cache, Lookup, WRITER};
    use uringfs_device::Device;
    use uringfs_device::backend::memory::Memory;

    use super::*;
    use crate::map::mapping::{Map, Mapping};
    use crate::state::file::File;
    use crate::state::options::FileOptions;

    fn one_file() -> File {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        File::from_device(device, FileOptions::default())
    }

    /// One dirty folio in a cache, of this truncate generation.
    fn one_dirty(dirty: &DirtySet, generation: TruncateGeneration) -> FileFolios {
        let file_folios = Cache::new(1 << 20).file_folios(0);
        dirty.discard_before(&file_folios, generation);
        let fill = file_folios.begin_fill(0..1, WRITER).unwrap().remove(0);
        dirty.handle_opened();
        assert!(
            dirty.mark_dirty(
                || one_file().handle,
                fill,
                100,
                generation,
                &mut DelayedFolios::default()
            ),
            "no flusher runs yet"
        );
        file_folios
    }

    #[test]
    fn a_late_notice_of_a_truncation_discards_nothing_newer() {
        let dirty = DirtySet::default();
        let file_folios = one_dirty(&dirty, 2);
        for generation in [1, 2] {
            dirty.discard_before(&file_folios, generation);
            assert!(dirty.is_any() && dirty.end() == 100, "{generation}");
            assert!(matches!(file_folios.lookup(0), Lookup::Found(_)));
        }
        dirty.discard_before(&file_folios, 3);
        assert!(!dirty.is_any() && dirty.file().is_none());
        assert!(matches!(file_folios.lookup(0), Lookup::Absent));
    }

    #[test]
    fn a_write_from_before_a_truncation_leaves_nothing() {
        let dirty = DirtySet::default();
        let file_folios = one_dirty(&dirty, 2);
        dirty.discard_before(&file_folios, 3);
        let (fill, file) = (file_folios.begin_fill(0..1, WRITER).unwrap().remove(0), one_file());
        assert!(!dirty.mark_dirty(|| file.handle, fill, 100, 2, &mut DelayedFolios::default()));
        assert!(!dirty.is_any() && matches!(file_folios.lookup(0), Lookup::Absent));
    }

    /// A file without blocks.
    struct Hole;

    impl Map for Hole {
        fn map(&self, _: u64) -> Mapping {
            Mapping { length: 1 << 30, state: MappingState::Hole }
        }

        fn size(&self) -> u64 {
            0
        }
    }

    #[test]
    fn write_back_of_a_truncated_file_reserves_no_space_for_new_writes() {
        let dirty = DirtySet::default();
        let file_folios = one_dirty(&dirty, 2);
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let file = File::with_map(device, Hole, Arc::default(), FileOptions::default());
        let needing =
            || dirty.needing_reservation(&file.handle.map, 0..2).into_iter().collect::<Vec<_>>();
        let run = dirty.take_run(&file_folios, 0..1, 1).unwrap();
        assert_eq!(needing(), [1]);
        dirty.discard_before(&file_folios, 3);
        assert_eq!(needing(), [0, 1]);
        drop(run);
        assert_eq!(needing(), [0, 1]);
    }

    #[test]
    fn failed_write_back_stays_dirty_while_a_handle_is_open() {
        let dirty = DirtySet::default();
        let file_folios = one_dirty(&dirty, 0);
        assert!(!dirty.handle_closed(), "a flusher runs");
        dirty.handle_opened();
        dirty.drop_dirty(&file_folios);
        assert!(dirty.is_any() && dirty.failures() == 0);
        assert!(matches!(file_folios.lookup(0), Lookup::Found(_)));
        assert!(!dirty.handle_closed());
        dirty.drop_dirty(&file_folios);
        assert!(!dirty.is_any() && dirty.failures() == 1);
        assert!(matches!(file_folios.lookup(0), Lookup::Absent));
    }
}
