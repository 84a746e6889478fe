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

use crate::map::file_map::AnyMap;
use crate::map::mapping::{Generation, Place};
use crate::state::delayed_allocation::Promised;

/// An open file, as its dirty folios keep it.
pub(crate) trait DirtyFile: Any + Debug + Send + Sync {
    /// Where its bytes lie.
    fn map(&self) -> &AnyMap;
}

/// Of all openings of a file.
#[derive(Debug, Default)]
pub(crate) struct Unsaved {
    is_any: AtomicBool,
    /// Behind its last byte.
    end: AtomicU64,
    /// How often it could not be saved.
    failures: AtomicU64,
    /// Of how many of these some opening was told.
    told: AtomicU64,
    /// How often something that was to be saved came back, whyever.
    returned: AtomicU64,
    /// Openings through a page cache.
    openings: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    folios: BTreeSet<u64>,
    /// Folios that somebody is saving, with the generation of what is saved: of these `folios` has those that were
    /// changed again meanwhile.
    saving: Vec<(Range<u64>, Generation)>,
    /// Those of `folios` that have no place on the device yet.
    promised: Promised,
    /// That of the file when they were written.
    generation: Generation,
    /// Keeps the file open as long as there are any.
    file: Option<Arc<dyn DirtyFile>>,
    watcher: Watcher,
}

/// Whoever saves when it is time.
#[derive(Debug, Default)]
struct Watcher {
    is_there: bool,
    /// An opening was closed: others, who do not see the cache, may look for what was written.
    is_hurried: bool,
    waker: Option<Waker>,
}

impl State {
    fn is_empty(&self) -> bool {
        self.folios.is_empty() && self.saving.is_empty()
    }

    /// The first of those in a range and those in a row behind it, at most so many.
    fn first_run(&self, folios: Range<u64>, most: u64) -> Option<Range<u64>> {
        if folios.is_empty() {
            return None;
        }
        let mut found = self.folios.range(folios);
        let first = *found.next()?;
        let behind = (first + 1..first + most).zip(found).take_while(|(next, is)| next == *is);
        Some(first..first + 1 + behind.count() as u64)
    }
}

impl Unsaved {
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
    pub(crate) fn failures_told(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    /// The failures that an opening is told of now.
    pub(crate) fn tell_failures(&self) -> u64 {
        let failures = self.failures();
        self.told.fetch_max(failures, Ordering::AcqRel);
        failures
    }

    /// How often something that was to be saved was not.
    pub(crate) fn returned(&self) -> u64 {
        self.returned.load(Ordering::Acquire)
    }

    /// The file, as long as there is something.
    pub(crate) fn file(&self) -> Option<Arc<dyn DirtyFile>> {
        self.state.lock().file.clone()
    }

    /// How many bytes there is room for on the device, and no place yet.
    pub(crate) fn promised_bytes(&self) -> u64 {
        if self.is_any() { self.state.lock().promised.bytes() } else { 0 }
    }

    /// Of some folios of a file those that have no place on the device and no room there. The caller keeps other
    /// writers out.
    pub(crate) fn without_room(&self, map: &AnyMap, folios: Range<u64>) -> BTreeSet<u64> {
        let state = &*self.state.lock();
        let has_room = |index: u64| {
            // What is saved of a file that was emptied gives its room back.
            let is_here = |(run, begun): &(Range<u64>, Generation)| {
                run.contains(&index) && *begun == state.generation
            };
            state.promised.contains(index) || state.saving.iter().any(is_here)
        };
        let (mut found, mut at) = (BTreeSet::new(), folios.start);
        while at < folios.end {
            let mapping = map.map(at * FOLIO);
            let end = (at + (mapping.length / FOLIO).max(1)).min(folios.end);
            if mapping.place == Place::Hole {
                found.extend((at..end).filter(|index| !has_room(*index)));
            }
            at = end;
        }
        found
    }

    /// Where, from an offset on, the first bytes lie.
    pub(crate) fn next(&self, offset: u64) -> Option<u64> {
        if !self.is_any() {
            return None;
        }
        let index = offset / FOLIO;
        let state = self.state.lock();
        let saving =
            state.saving.iter().filter(|(run, _)| run.end > index).map(|(run, _)| run.start);
        let first = saving.chain(state.folios.range(index..).next().copied()).min()?;
        Some(offset.max(first * FOLIO)).filter(|offset| *offset < self.end())
    }

    /// Folios were changed, up to `end`, while the file had been emptied as often as `begun` says: else that came
    /// before. Takes their room of what was promised, and a file from `keep` if none is kept open. Answers whether somebody is to watch it from now on.
    pub(crate) fn changed(
        &self,
        keep: impl FnOnce() -> Arc<dyn DirtyFile>,
        fill: Fill,
        end: u64,
        begun: Generation,
        promised: &mut Promised,
    ) -> bool {
        let range = fill.range();
        let folios = range.start / FOLIO..range.end / FOLIO;
        let promised = promised.take(folios.clone());
        let state = &mut *self.state.lock();
        if state.generation != begun {
            fill.forget();
            return false;
        }
        state.folios.extend(folios);
        state.promised.join(promised);
        state.file.get_or_insert_with(keep);
        self.end.fetch_max(end, Ordering::Release);
        self.is_any.store(true, Ordering::Release);
        fill.end_unsaved();
        !std::mem::replace(&mut state.watcher.is_there, true)
    }

    /// The file was emptied: what there was is to be saved no more.
    pub(crate) fn forget(&self, pages: &Pages, generation: Generation) {
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
    pub(crate) fn cut(&self, size: u64) {
        let state = self.state.lock();
        self.end.fetch_min(size, Ordering::Release);
        self.drop_from(state, size.div_ceil(FOLIO));
    }

    /// Nothing from a folio on is to be saved any more.
    fn drop_from(&self, mut state: MutexGuard<'_, State>, folio: u64) {
        state.folios.split_off(&folio);
        let promised = state.promised.take(folio..u64::MAX);
        self.settle(state);
        // Who gives back asks others' locks.
        drop(promised);
    }

    /// Says so when there is nothing any more, and lets the file go.
    fn settle(&self, mut state: MutexGuard<'_, State>) {
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
    pub(crate) fn first_run(&self, folios: Range<u64>, most: u64) -> Option<Range<u64>> {
        self.state.lock().first_run(folios, most)
    }

    /// Whether somebody is saving any of a range.
    pub(crate) fn is_saving(&self, folios: &Range<u64>) -> bool {
        let meets = |(run, _): &(Range<u64>, _)| run.start < folios.end && folios.start < run.end;
        self.state.lock().saving.iter().any(meets)
    }

    /// Takes the first unsaved folios of a range to save them. The caller keeps other savers out.
    pub(crate) fn take<'u>(
        &'u self,
        pages: &'u Pages,
        folios: Range<u64>,
        most: u64,
    ) -> Option<Saving<'u>> {
        let state = &mut *self.state.lock();
        let run = state.first_run(folios, most)?;
        run.clone().for_each(|index| _ = state.folios.remove(&index));
        let (promised, begun) = (state.promised.take(run.clone()), state.generation);
        state.saving.push((run.clone(), begun));
        Some(Saving { unsaved: self, pages, run, promised, begun, end: SaveEnd::Stopped })
    }

    /// Waits until an opening of the file is closed.
    pub(crate) async fn hurried(&self) {
        poll_fn(|context| {
            let watcher = &mut self.state.lock().watcher;
            if std::mem::take(&mut watcher.is_hurried) {
                return Poll::Ready(());
            }
            watcher.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The file is opened through a page cache.
    pub(crate) fn opened(&self) {
        // Not while somebody gives up what those before have written.
        let _state = self.state.lock();
        self.openings.fetch_add(1, Ordering::AcqRel);
    }

    /// Such an opening is closed: what it has written is to be saved soon. Answers whether somebody is to watch it
    /// for that.
    pub(crate) fn closed(&self) -> bool {
        self.openings.fetch_sub(1, Ordering::AcqRel);
        self.is_any() && self.hurry()
    }

    /// What there is is to be saved soon. Answers whether somebody is to watch it for that.
    pub(crate) fn hurry(&self) -> bool {
        let (waker, was_there) = {
            let watcher = &mut self.state.lock().watcher;
            watcher.is_hurried = true;
            (watcher.waker.take(), std::mem::replace(&mut watcher.is_there, true))
        };
        waker.into_iter().for_each(Waker::wake);
        !was_there
    }

    /// What could not be saved of a file that nobody has open through a page cache any more is lost: the openings that
    /// there are, and its map, hear of it.
    pub(crate) fn give_up(&self, pages: &Pages) {
        let state = self.state.lock();
        if self.openings.load(Ordering::Acquire) > 0 {
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
    pub(crate) fn abandon(&self, file: &Arc<dyn DirtyFile>, pages: &Pages) -> bool {
        let state = self.state.lock();
        // The caller has one, and there is one here.
        let is_ours = Arc::strong_count(file) == 2 && state.saving.is_empty();
        if !is_ours || !file.map().abandon() {
            return false;
        }
        pages.invalidate(0..u64::MAX);
        self.drop_from(state, 0);
        true
    }

    /// Whether nobody need watch it any more: there is nothing, and no opening has been closed since that was seen.
    pub(crate) fn stop_watching(&self) -> bool {
        let state = &mut *self.state.lock();
        let is_done = !state.watcher.is_hurried && state.is_empty();
        state.watcher.is_there = !is_done;
        is_done
    }

    /// Whoever has watched it does not any more.
    pub(crate) fn unwatch(&self) {
        self.state.lock().watcher.is_there = false;
    }
}

/// What became of folios that were to be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SaveEnd {
    /// The device has them.
    Saved,
    /// It could not be done.
    Failed,
    /// Whoever did it was asked to stop, or is gone.
    Stopped,
}

/// Folios that are being saved. Dropped, they are unsaved again, unless that was done.
pub(crate) struct Saving<'u> {
    unsaved: &'u Unsaved,
    pages: &'u Pages,
    run: Range<u64>,
    /// Those of them that have no place yet.
    pub(crate) promised: Promised,
    pub(crate) begun: Generation,
    end: SaveEnd,
}

impl Saving<'_> {
    /// Which.
    pub(crate) fn folios(&self) -> Range<u64> {
        self.run.clone()
    }

    /// Says what became of them.
    pub(crate) fn end(mut self, end: SaveEnd) {
        self.end = end;
    }
}

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        let mut state = self.unsaved.state.lock();
        let place = state.saving.iter().position(|(run, _)| *run == self.run);
        state.saving.swap_remove(place.expect("it is being saved"));
        match self.end {
            // What was changed meanwhile is unsaved again.
            SaveEnd::Saved => {
                let is_same = |index: &u64| !state.folios.contains(index);
                self.run.clone().filter(is_same).for_each(|index| self.pages.saved(index));
            }
            SaveEnd::Failed | SaveEnd::Stopped => {
                self.unsaved.returned.fetch_add(1, Ordering::Release);
                if state.generation == self.begun {
                    state.folios.extend(self.run.clone());
                    state.promised.join(std::mem::take(&mut self.promised));
                }
                if self.end == SaveEnd::Failed {
                    self.unsaved.failures.fetch_add(1, Ordering::Release);
                }
            }
        }
        self.unsaved.settle(state);
        if self.end == SaveEnd::Failed {
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
    fn one_unsaved(unsaved: &Unsaved, generation: Generation) -> Pages {
        let pages = Cache::new(1 << 20).pages(0);
        unsaved.forget(&pages, generation);
        let fill = pages.fill(0..1, WRITER).unwrap().remove(0);
        unsaved.opened();
        assert!(
            unsaved.changed(|| one_file().shared, fill, 100, generation, &mut Promised::default()),
            "nobody watches it yet"
        );
        pages
    }

    #[test]
    fn whoever_says_late_that_the_file_was_emptied_takes_nothing_away() {
        let unsaved = Unsaved::default();
        let pages = one_unsaved(&unsaved, 2);
        for generation in [1, 2] {
            unsaved.forget(&pages, generation);
            assert!(unsaved.is_any() && unsaved.end() == 100, "{generation}");
            assert!(matches!(pages.look(0), Look::Found(_)));
        }
        unsaved.forget(&pages, 3);
        assert!(!unsaved.is_any() && unsaved.file().is_none());
        assert!(matches!(pages.look(0), Look::Absent));
    }

    #[test]
    fn what_was_written_before_the_file_was_emptied_leaves_nothing() {
        let unsaved = Unsaved::default();
        let pages = one_unsaved(&unsaved, 2);
        unsaved.forget(&pages, 3);
        let (fill, file) = (pages.fill(0..1, WRITER).unwrap().remove(0), one_file());
        assert!(!unsaved.changed(|| file.shared, fill, 100, 2, &mut Promised::default()));
        assert!(!unsaved.is_any() && matches!(pages.look(0), Look::Absent));
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
        let unsaved = Unsaved::default();
        let pages = one_unsaved(&unsaved, 2);
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let file = File::with_map(device, Hole, Arc::default(), FileOptions::default());
        let homeless =
            || unsaved.without_room(&file.shared.map, 0..2).into_iter().collect::<Vec<_>>();
        let saving = unsaved.take(&pages, 0..1, 1).unwrap();
        assert_eq!(homeless(), [1]);
        unsaved.forget(&pages, 3);
        assert_eq!(homeless(), [0, 1]);
        drop(saving);
        assert_eq!(homeless(), [0, 1]);
    }

    #[test]
    fn what_cannot_be_saved_is_kept_for_whoever_opens_the_file_meanwhile() {
        let unsaved = Unsaved::default();
        let pages = one_unsaved(&unsaved, 0);
        assert!(!unsaved.closed(), "somebody watches it");
        unsaved.opened();
        unsaved.give_up(&pages);
        assert!(unsaved.is_any() && unsaved.failures() == 0);
        assert!(matches!(pages.look(0), Look::Found(_)));
        assert!(!unsaved.closed());
        unsaved.give_up(&pages);
        assert!(!unsaved.is_any() && unsaved.failures() == 1);
        assert!(matches!(pages.look(0), Look::Absent));
    }
}
