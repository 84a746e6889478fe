//! Writes through the page cache: bytes are copied to folios, and go to the device later. What is there of a folio
//! that is written in part is read first, unless there is nothing. Room on the device is kept at once, so that whoever is
//! told of a write has it; where, is found when the bytes are saved.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use uringfs_cache::{FOLIO, Fewer, Fill, Full, Taken, Told, WRITER};
use uringfs_device::{Durability, Payload};
use uringfs_reactor::{Counter, Operation};

use crate::buffered::coherence::enter;
use crate::buffered::read::begin_fill;
use crate::direct::write::{admit, write_admitted};
use crate::io::bounce::copy_out;
use crate::io::space_wait::when_ready;
use crate::map::mapping::{Generation, Place};
use crate::state::cache_handle::Caching;
use crate::state::delayed_allocation::Promised;
use crate::state::dirty::DirtyFile;
use crate::state::file::{File, Shared};
use crate::state::file_cache::{Cached, folios_of};
use crate::state::lock::{RangeGuard, Writer};
use crate::state::readahead::Window;
use crate::writeback::flusher::{Watched, watch, watch_over};

/// How long a write waits for room in the cache before it goes to the device itself.
const PATIENCE: Duration = Duration::from_secs(1);
/// Folios that are taken into the cache at once.
const MOST_AT_ONCE: u64 = 64;

/// Writes `payload` from `offset` on, as [`crate::direct::write::write`].
pub(crate) async fn write(mut operation: Operation, file: File, payload: Payload, offset: u64) {
    let shared = &*file.shared;
    let range = match admit(&mut operation, shared, &payload, offset).await {
        Ok(range) if range.is_empty() => return operation.end(payload, Ok(0)),
        Ok(range) => range,
        Err(error) => return operation.end(payload, Err(error)),
    };
    let caching = shared.cache.as_ref().expect("it is written through a cache");
    let cached = shared.cached_by(caching);
    let mut writing = Writing {
        file: &file,
        caching,
        cached,
        payload,
        range: range.clone(),
        done: 0,
        begun: 0,
        promised: Promised::default(),
    };
    let written = writing.write(&mut operation).await;
    let Writing { payload, done, promised, .. } = writing;
    drop(promised);
    let (payload, result) = match written {
        Ok(Way::Cached) => (payload, Ok(done)),
        Ok(Way::Through) => {
            operation.count(Counter::CacheWrittenThrough);
            let durability = Durability::Volatile;
            let through = write_admitted(&mut operation, shared, payload, range, durability);
            Box::pin(through).await
        }
        // Bytes that are there are bytes that were written.
        Err(_) if done > 0 => (payload, Ok(done)),
        Err(error) => (payload, Err(error)),
    };
    operation.end(payload, result);
}

/// How a write has gone.
enum Way {
    /// It is in the cache.
    Cached,
    /// There is no room: all of it is to go to the device.
    Through,
}

/// A write under way.
struct Writing<'f> {
    file: &'f File,
    caching: &'f Caching,
    cached: &'f Cached,
    payload: Payload,
    range: Range<u64>,
    done: u64,
    begun: Generation,
    /// Room for folios that have no place on the device, and are not changed yet.
    promised: Promised,
}

impl Writing<'_> {
    async fn write(&mut self, operation: &mut Operation) -> Result<Way, Errno> {
        let shared = &*self.file.shared;
        enter(self.cached, operation, shared).await?;
        let _guard = lock(operation, shared, &self.range).await?;
        // With the lock held: whoever has emptied the file meanwhile came before, and those who write it now wait.
        enter(self.cached, operation, shared).await?;
        self.begun = self.cached.generation();
        if self.range.start > shared.size() && !self.zero_tail(operation).await? {
            return Ok(Way::Through);
        }
        if !shared.map.is_in_place(&self.range) {
            self.promised = promise(operation, shared, folios_of(&self.range)).await?;
        }
        while self.done < self.range.end - self.range.start {
            operation.check()?;
            if !self.may_change(operation).await? {
                return Ok(Way::Through);
            }
            if self.fill_whole_ones(operation) {
                continue;
            }
            let index = (self.range.start + self.done) / FOLIO;
            match self.take(operation, index).await? {
                Some(fill) => self.put(operation, fill),
                None => return Ok(Way::Through),
            }
        }
        self.caching.ended(self.range.end);
        if self.caching.is_passing() && shared.lock.unsaved().hurry() {
            self.have_watched(operation);
        }
        Ok(Way::Cached)
    }

    /// Waits while too many folios are unsaved; answers false when that takes too long, or cannot be mended by waiting.
    async fn may_change(&self, operation: &mut Operation) -> Result<bool, Errno> {
        let pages = self.cached.pages();
        if !pages.has_too_many_unsaved() {
            return Ok(true);
        }
        operation.count(Counter::CacheThrottled);
        let failures = pages.save_failures();
        let is_over = self.wait_for(operation, pages.may_change()).await?;
        let has_failed = pages.save_failures() != failures && pages.has_too_many_unsaved();
        Ok(is_over && !has_failed)
    }

    /// Waits until others have saved some; answers false when that takes too long.
    async fn wait_for(&self, operation: &mut Operation, fewer: Fewer) -> Result<bool, Errno> {
        let unsaved = self.file.shared.lock.unsaved();
        // Whoever watches it may be waiting since it could not be saved.
        if unsaved.is_any() && unsaved.hurry() {
            self.have_watched(operation);
        }
        Ok(operation.wait_uncounted_for(fewer, PATIENCE).await?.is_some())
    }

    /// Takes the next folios into the cache, where they are written as a whole and not there; answers whether any
    /// were.
    fn fill_whole_ones(&mut self, operation: &Operation) -> bool {
        let at = self.range.start + self.done;
        let first = at / FOLIO;
        let folios = first..(self.range.end / FOLIO).min(first + MOST_AT_ONCE);
        if !at.is_multiple_of(FOLIO) || folios.is_empty() {
            return false;
        }
        let fills = self.begin(folios).unwrap_or_default();
        let is_any = !fills.is_empty();
        fills.into_iter().for_each(|fill| self.put(operation, fill));
        is_any
    }

    /// Takes folios into the cache that are not there, to write all of them.
    fn begin(&self, folios: Range<u64>) -> Result<Vec<Fill>, Full> {
        let mut fills = self.cached.pages().fill(folios, WRITER)?;
        if self.caching.is_passing() {
            fills.iter_mut().for_each(Fill::let_pass);
        }
        Ok(fills)
    }

    /// Takes a folio to change it, with what it holds; none where there is no room for it.
    async fn take(&self, operation: &mut Operation, index: u64) -> Result<Option<Fill>, Errno> {
        let (shared, pages) = (&*self.file.shared, self.cached.pages());
        loop {
            operation.check()?;
            let has_room = match pages.change(index) {
                Ok(Taken::Held(fill)) => return Ok(Some(fill)),
                Ok(Taken::Busy { by }) => {
                    let wait = pages.wait(index);
                    let told = match by == WRITER || by == operation.reactor_number() {
                        true => Some(operation.wait_uncounted(wait).await?),
                        false => operation.wait_uncounted_for(wait, self.cached.patience()).await?,
                    };
                    match told {
                        Some(Told::Failed(error)) => return Err(error),
                        Some(Told::Page(_) | Told::Again) => true,
                        None => return Ok(None),
                    }
                }
                Ok(Taken::Absent) if is_nothing(shared, index) => {
                    match self.begin(index..index + 1) {
                        Ok(fills) => {
                            if let Some(mut fill) = fills.into_iter().next() {
                                fill.bytes().fill(0);
                                return Ok(Some(fill));
                            }
                            true
                        }
                        Err(_) => false,
                    }
                }
                Ok(Taken::Absent) => {
                    let window = Window { folios: index..index + 1, mark: None };
                    let wanted = window.folios.clone();
                    begin_fill(operation, self.file, self.cached, window, &wanted).is_ok()
                }
                Err(_) => false,
            };
            if !has_room {
                let Some(saved) = pages.one_saved() else { return Ok(None) };
                if !self.wait_for(operation, saved).await? {
                    return Ok(None);
                }
            }
        }
    }

    /// Copies to folios what they are to hold.
    fn put(&mut self, operation: &Operation, mut fill: Fill) {
        let folios = fill.range();
        let at = self.range.start + self.done;
        let end = folios.end.min(self.range.end);
        let (skip, behind) = ((at - folios.start) as usize, (end - folios.start) as usize);
        copy_out(&self.payload, self.done, &mut fill.bytes()[skip..behind]);
        if self.caching.is_counted(self.range.start, self.done) {
            fill.touch(u32::MAX);
        }
        self.done += end - at;
        self.changed(operation, fill, end);
    }

    /// Zeroes what of the folio in which the file ends lies behind its end, before the file becomes longer than
    /// that; answers false where there is no room for it.
    async fn zero_tail(&mut self, operation: &mut Operation) -> Result<bool, Errno> {
        let shared = &*self.file.shared;
        let size = shared.size();
        let (index, inside) = (size / FOLIO, (size % FOLIO) as usize);
        // Where the device has nothing the cache has zeros.
        if inside == 0 || is_nothing(shared, index) {
            return Ok(true);
        }
        let Some(mut fill) = self.take(operation, index).await? else { return Ok(false) };
        fill.bytes()[inside..].fill(0);
        self.changed(operation, fill, size);
        Ok(true)
    }

    /// Folios have been changed, up to `end`.
    fn changed(&mut self, operation: &Operation, fill: Fill, end: u64) {
        let unsaved = self.file.shared.lock.unsaved();
        let range = fill.range();
        operation.count_many(Counter::CacheWritten, (range.end - range.start) / FOLIO);
        let keep = || -> Arc<dyn DirtyFile> { self.file.direct().shared };
        if unsaved.changed(keep, fill, end, self.begun, &mut self.promised) {
            self.have_watched(operation);
        }
    }

    /// Has somebody save what is written when it is time.
    fn have_watched(&self, operation: &Operation) {
        let Shared { lock, core, .. } = &*self.file.shared;
        if operation.is_time_virtual() {
            let watched = Watched::new(lock);
            operation.start_beside(core, |operation| watch(operation, watched));
        } else {
            watch_over(lock, core);
        }
    }
}

/// Waits for the folios of a range, and, where the file becomes longer, for what lies between its end and them.
async fn lock(
    operation: &mut Operation,
    shared: &Shared,
    range: &Range<u64>,
) -> Result<RangeGuard, Errno> {
    loop {
        let start = range.start.min(shared.size());
        let lock = shared.lock.range(start..range.end, Writer::Buffered);
        let guard = operation.wait_uncounted(lock).await?;
        if range.start.min(shared.size()) >= start {
            return Ok(guard);
        }
    }
}

/// Room for those of some folios that have neither that nor a place on the device.
async fn promise(
    operation: &mut Operation,
    shared: &Shared,
    folios: Range<u64>,
) -> Result<Promised, Errno> {
    let homeless = shared.lock.unsaved().without_room(&shared.map, folios);
    if homeless.is_empty() {
        return Ok(Promised::default());
    }
    let bytes = homeless.len() as u64 * FOLIO;
    let room = when_ready(operation, || shared.map.promise(bytes)).await?;
    Ok(Promised::new(homeless, room))
}

/// Whether the device has nothing of a folio.
fn is_nothing(shared: &Shared, index: u64) -> bool {
    let start = index * FOLIO;
    let size = shared.map.size();
    if start >= size {
        return true;
    }
    let mapping = shared.map.map(start);
    !matches!(mapping.place, Place::Written(_)) && mapping.length >= FOLIO.min(size - start)
}
