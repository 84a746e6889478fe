//! What was written to a file through the page cache and its device does not have yet.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Poll, Waker};

use parking_lot::{Mutex, MutexGuard};
use uringfs_cache::{FOLIO, Fill, Pages};

use crate::map::file_map::FileMap;
use crate::map::mapping::{Generation, Place};
use crate::state::delayed_allocation::DelayedFolios;

/// An open file, as its dirty folios keep it.
pub(crate) trait DirtyFile: Any + Debug + Send + Sync {
    /// Where its bytes lie.
    fn map(&self) -> &FileMap;
}

/// Of all openings of a file.
#[derive(Debug, Default)]
pub(crate) struct DirtySet {
    is_any: AtomicBool,
    /// Behind its last byte.
    end: AtomicU64,
    /// How often it could not be saved.
    failures: AtomicU64,
    /// Of how many of these some opening was told.
    failures_reported: AtomicU64,
    /// How often something that was to be saved came back, whyever.
    redirtied: AtomicU64,
    /// Openings through a page cache.
    buffered_handles: AtomicU32,
    state: Mutex<DirtyState>,
}

#[derive(Debug, Default)]
struct DirtyState {
    folios: BTreeSet<u64>,
    /// Folios that somebody is saving, with the generation of what is saved: of these `folios` has those that were
    /// changed again meanwhile.
    in_writeback: Vec<(Range<u64>, Generation)>,
    /// Those of `folios` that have no place on the device yet.
    delayed: DelayedFolios,
    /// That of the file when they were written.
    generation: Generation,
    /// Keeps the file open as long as there are any.
    file: Option<Arc<dyn DirtyFile>>,
    flusher: Flusher,
}

/// Whoever saves when it is time.
#[derive(Debug, Default)]
struct Flusher {
    is_running: bool,
    /// An opening was closed: others, who do not see the cache, may look for what was written.
    is_requested: bool,
    waker: Option<Waker>,
}

impl DirtyState {
    fn is_empty(&self) -> bool {
        self.folios.is_empty() && self.in_writeback.is_empty()
    }

    /// The first of those in a range and those in a row behind it, at most so many.
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
    /// Whether there is anything.
    #[inline(always)]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Behind its last byte; 0 without one.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// How often something could not be saved.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// The failures that an opening is taken to know of when it begins: those that nobody was told of are told to the
    /// next, as Linux does (`errseq_sample`).
    pub(crate) fn failures_reported(&self) -> u64 {
        self.failures_reported.load(Ordering::Acquire)
    }

    /// The failures that an opening is told of now.
    pub(crate) fn report_failures(&self) -> u64 {
        let failures = self.failures();
        self.failures_reported.fetch_max(failures, Ordering::AcqRel);
        failures
    }

    /// How often something that was to be saved was not.
    pub(crate) fn redirtied(&self) -> u64 {
        self.redirtied.load(Ordering::Acquire)
    }

    /// The file, as long as there is something.
    pub(crate) fn file(&self) -> Option<Arc<dyn DirtyFile>> {
        self.state.lock().file.clone()
    }

    /// How many bytes there is room for on the device, and no place yet.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        if self.is_any() { self.state.lock().delayed.bytes() } else { 0 }
    }

    /// Of some folios of a file those that have no place on the device and no room there. The caller keeps other
    /// writers out.
    pub(crate) fn needing_reservation(&self, map: &FileMap, folios: Range<u64>) -> BTreeSet<u64> {
        let state = &*self.state.lock();
        let is_reserved = |index: u64| {
            // What is saved of a file that was emptied gives its room back.
            let is_here = |(run, generation): &(Range<u64>, Generation)| {
                run.contains(&index) && *generation == state.generation
            };
            state.delayed.contains(index) || state.in_writeback.iter().any(is_here)
        };
        let (mut found, mut at) = (BTreeSet::new(), folios.start);
        while at < folios.end {
            let mapping = map.map(at * FOLIO);
            let end = (at + (mapping.length / FOLIO).max(1)).min(folios.end);
            if mapping.place == Place::Hole {
                found.extend((at..end).filter(|index| !is_reserved(*index)));
            }
            at = end;
        }
        found
    }

    /// Where, from an offset on, the first bytes lie.
    pub(crate) fn next_dirty(&self, offset: u64) -> Option<u64> {
        if !self.is_any() {
            return None;
        }
        let index = offset / FOLIO;
        let state = self.state.lock();
        let saving =
            state.in_writeback.iter().filter(|(run, _)| run.end > index).map(|(run, _)| run.start);
        let first = saving.chain(state.folios.range(index..).next().copied()).min()?;
        Some(offset.max(first * FOLIO)).filter(|offset| *offset < self.end())
    }

    /// Folios were changed, up to `end`, while the file had been emptied as often as `generation` says: else that came
    /// before. Takes their room of what was promised, and a file from `keep` if none is kept open. Answers whether somebody is to watch it from now on.
    pub(crate) fn mark_dirty(
        &self,
        keep: impl FnOnce() -> Arc<dyn DirtyFile>,
        fill: Fill,
        end: u64,
        generation: Generation,
        delayed: &mut DelayedFolios,
    ) -> bool {
        let range = fill.range();
        let folios = range.start / FOLIO..range.end / FOLIO;
        let delayed = delayed.take(folios.clone());
        let state = &mut *self.state.lock();
        if state.generation != generation {
            fill.forget();
            return false;
        }
        state.folios.extend(folios);
        state.delayed.merge(delayed);
        state.file.get_or_insert_with(keep);
        self.end.fetch_max(end, Ordering::Release);
        self.is_any.store(true, Ordering::Release);
        fill.end_unsaved();
        !std::mem::replace(&mut state.flusher.is_running, true)
    }

    /// The file was emptied: what there was is to be saved no more.
    pub(crate) fn discard_before(&self, pages: &Pages, generation: Generation) {
        let mut state = self.state.lock();
        // Who comes late knows of an older one.
        if state.generation < generation {
            pages.invalidate(0..u64::MAX);
            state.generation = generation;
            self.end.store(0, Ordering::Release);
            self.drop_from(state, 0);
        }
    }

    /// The file is cut off. The caller keeps writers and savers out.
    pub(crate) fn truncate(&self, size: u64) {
        let state = self.state.lock();
        self.end.fetch_min(size, Ordering::Release);
        self.drop_from(state, size.div_ceil(FOLIO));
    }

    /// Nothing from a folio on is to be saved any more.
    fn drop_from(&self, mut state: MutexGuard<'_, DirtyState>, folio: u64) {
        state.folios.split_off(&folio);
        let delayed = state.delayed.take(folio..u64::MAX);
        self.release_if_clean(state);
        // Who gives back asks others' locks.
        drop(delayed);
    }

    /// Says so when there is nothing any more, and lets the file go.
    fn release_if_clean(&self, mut state: MutexGuard<'_, DirtyState>) {
        if state.is_empty() {
            self.is_any.store(false, Ordering::Release);
            self.end.store(0, Ordering::Release);
            let file = state.file.take();
            // It may be the last one.
            drop(state);
            drop(file);
        }
    }

    /// The first unsaved folios of a range, in a row, at most so many.
    pub(crate) fn first_run(&self, folios: Range<u64>, max_folios: u64) -> Option<Range<u64>> {
        self.state.lock().first_run(folios, max_folios)
    }

    /// Whether somebody is saving any of a range.
    pub(crate) fn is_in_writeback(&self, folios: &Range<u64>) -> bool {
        let overlaps =
            |(run, _): &(Range<u64>, _)| run.start < folios.end && folios.start < run.end;
        self.state.lock().in_writeback.iter().any(overlaps)
    }

    /// Takes the first unsaved folios of a range to save them. The caller keeps other savers out.
    pub(crate) fn take_run<'u>(
        &'u self,
        pages: &'u Pages,
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
            pages,
            run,
            delayed,
            generation,
            end: WritebackEnd::Cancelled,
        })
    }

    /// Waits until an opening of the file is closed.
    pub(crate) async fn flush_requested(&self) {
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

    /// The file is opened through a page cache.
    pub(crate) fn handle_opened(&self) {
        // Not while somebody gives up what those before have written.
        let _state = self.state.lock();
        self.buffered_handles.fetch_add(1, Ordering::AcqRel);
    }

    /// Such an opening is closed: what it has written is to be saved soon. Answers whether somebody is to watch it
    /// for that.
    pub(crate) fn handle_closed(&self) -> bool {
        self.buffered_handles.fetch_sub(1, Ordering::AcqRel);
        self.is_any() && self.flush_soon()
    }

    /// What there is is to be saved soon. Answers whether somebody is to watch it for that.
    pub(crate) fn flush_soon(&self) -> bool {
        let (waker, was_there) = {
            let flusher = &mut self.state.lock().flusher;
            flusher.is_requested = true;
            (flusher.waker.take(), std::mem::replace(&mut flusher.is_running, true))
        };
        waker.into_iter().for_each(Waker::wake);
        !was_there
    }

    /// What could not be saved of a file that nobody has open through a page cache any more is lost: the openings that
    /// there are, and its map, hear of it.
    pub(crate) fn drop_dirty(&self, pages: &Pages) {
        let state = self.state.lock();
        if self.buffered_handles.load(Ordering::Acquire) > 0 {
            return;
        }
        // First: whoever finds nothing unsaved then finds that some is lost.
        if let Some(file) = state.file.as_ref().filter(|_| !state.folios.is_empty()) {
            self.failures.fetch_add(1, Ordering::Release);
            file.map().lost_bytes();
        }
        state.folios.iter().for_each(|index| pages.invalidate(*index..*index + 1));
        self.drop_from(state, 0);
    }

    /// Forgets what was written to a file that nobody can read any more; answers whether it was one.
    pub(crate) fn drop_if_unlinked(&self, file: &Arc<dyn DirtyFile>, pages: &Pages) -> bool {
        let state = self.state.lock();
        // The caller has one, and there is one here.
        let is_ours = Arc::strong_count(file) == 2 && state.in_writeback.is_empty();
        if !is_ours || !file.map().abandon() {
            return false;
        }
        pages.invalidate(0..u64::MAX);
        self.drop_from(state, 0);
        true
    }

    /// Whether nobody need watch it any more: there is nothing, and no opening has been closed since that was seen.
    pub(crate) fn stop_flusher_if_clean(&self) -> bool {
        let state = &mut *self.state.lock();
        let is_done = !state.flusher.is_requested && state.is_empty();
        state.flusher.is_running = !is_done;
        is_done
    }

    /// Whoever has watched it does not any more.
    pub(crate) fn flusher_stopped(&self) {
        self.state.lock().flusher.is_running = false;
    }
}

/// What became of folios that were to be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritebackEnd {
    /// The device has them.
    Clean,
    /// It could not be done.
    Failed,
    /// Whoever did it was asked to stop, or is gone.
    Cancelled,
}

/// Folios that are being saved. Dropped, they are unsaved again, unless that was done.
pub(crate) struct WritebackRun<'u> {
    dirty: &'u DirtySet,
    pages: &'u Pages,
    run: Range<u64>,
    /// Those of them that have no place yet.
    pub(crate) delayed: DelayedFolios,
    pub(crate) generation: Generation,
    end: WritebackEnd,
}

impl WritebackRun<'_> {
    /// Which.
    pub(crate) fn folios(&self) -> Range<u64> {
        self.run.clone()
    }

    /// Says what became of them.
    pub(crate) fn end(mut self, end: WritebackEnd) {
        self.end = end;
    }
}

impl Drop for WritebackRun<'_> {
    fn drop(&mut self) {
        let mut state = self.dirty.state.lock();
        let place = state.in_writeback.iter().position(|(run, _)| *run == self.run);
        state.in_writeback.swap_remove(place.expect("it is being saved"));
        match self.end {
            // What was changed meanwhile is unsaved again.
            WritebackEnd::Clean => {
                let is_same = |index: &u64| !state.folios.contains(index);
                self.run.clone().filter(is_same).for_each(|index| self.pages.saved(index));
            }
            WritebackEnd::Failed | WritebackEnd::Cancelled => {
                self.dirty.redirtied.fetch_add(1, Ordering::Release);
                if state.generation == self.generation {
                    state.folios.extend(self.run.clone());
                    state.delayed.merge(std::mem::take(&mut self.delayed));
                }
                if self.end == WritebackEnd::Failed {
                    self.dirty.failures.fetch_add(1, Ordering::Release);
                }
            }
        }
        self.dirty.release_if_clean(state);
        if self.end == WritebackEnd::Failed {
            self.pages.save_failed();
        }
    }
}

#[cfg(test)]
mod tests {
    use uringfs_cache::{Cache, Look, WRITER};
    use uringfs_device::Device;
    use uringfs_device::backend::memory::Memory;

    use super::*;
    use crate::map::mapping::{Map, Mapping};
    use crate::state::file::File;
    use crate::state::options::FileOptions;

    fn one_file() -> File {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        File::over(device, FileOptions::default())
    }

    /// The first folio of a file in a cache, unsaved, when the file has been emptied so often.
    fn one_dirty(dirty: &DirtySet, generation: Generation) -> Pages {
        let pages = Cache::new(1 << 20).pages(0);
        dirty.discard_before(&pages, generation);
        let fill = pages.fill(0..1, WRITER).unwrap().remove(0);
        dirty.handle_opened();
        assert!(
            dirty.mark_dirty(
                || one_file().handle,
                fill,
                100,
                generation,
                &mut DelayedFolios::default()
            ),
            "nobody watches it yet"
        );
        pages
    }

    #[test]
    fn whoever_says_late_that_the_file_was_emptied_takes_nothing_away() {
        let dirty = DirtySet::default();
        let pages = one_dirty(&dirty, 2);
        for generation in [1, 2] {
            dirty.discard_before(&pages, generation);
            assert!(dirty.is_any() && dirty.end() == 100, "{generation}");
            assert!(matches!(pages.look(0), Look::Found(_)));
        }
        dirty.discard_before(&pages, 3);
        assert!(!dirty.is_any() && dirty.file().is_none());
        assert!(matches!(pages.look(0), Look::Absent));
    }

    #[test]
    fn what_was_written_before_the_file_was_emptied_leaves_nothing() {
        let dirty = DirtySet::default();
        let pages = one_dirty(&dirty, 2);
        dirty.discard_before(&pages, 3);
        let (fill, file) = (pages.fill(0..1, WRITER).unwrap().remove(0), one_file());
        assert!(!dirty.mark_dirty(|| file.handle, fill, 100, 2, &mut DelayedFolios::default()));
        assert!(!dirty.is_any() && matches!(pages.look(0), Look::Absent));
    }

    /// A file that has nothing on its device.
    struct Hole;

    impl Map for Hole {
        fn map(&self, _: u64) -> Mapping {
            Mapping { length: 1 << 30, place: Place::Hole }
        }

        fn size(&self) -> u64 {
            0
        }
    }

    #[test]
    fn what_is_saved_of_an_emptied_file_has_no_room_for_what_is_written_now() {
        let dirty = DirtySet::default();
        let pages = one_dirty(&dirty, 2);
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let file = File::with_map(device, Hole, Arc::default(), FileOptions::default());
        let needing =
            || dirty.needing_reservation(&file.handle.map, 0..2).into_iter().collect::<Vec<_>>();
        let saving = dirty.take_run(&pages, 0..1, 1).unwrap();
        assert_eq!(needing(), [1]);
        dirty.discard_before(&pages, 3);
        assert_eq!(needing(), [0, 1]);
        drop(saving);
        assert_eq!(needing(), [0, 1]);
    }

    #[test]
    fn what_cannot_be_saved_is_kept_for_whoever_opens_the_file_meanwhile() {
        let dirty = DirtySet::default();
        let pages = one_dirty(&dirty, 0);
        assert!(!dirty.handle_closed(), "somebody watches it");
        dirty.handle_opened();
        dirty.drop_dirty(&pages);
        assert!(dirty.is_any() && dirty.failures() == 0);
        assert!(matches!(pages.look(0), Look::Found(_)));
        assert!(!dirty.handle_closed());
        dirty.drop_dirty(&pages);
        assert!(!dirty.is_any() && dirty.failures() == 1);
        assert!(matches!(pages.look(0), Look::Absent));
    }
}
