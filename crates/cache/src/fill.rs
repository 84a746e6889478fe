//! Folios that came into the cache and have no bytes yet: whoever has them fills them, and says so. Readers of
//! these meanwhile wait.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;
use uringfs_buffer::{Buffer, Hold};

use crate::core::CacheCore;
use crate::folio::{DIRTY, DROPBEHIND, FOLIO, Folio, HAS_WAITERS, Key, READAHEAD_MARKER, STALE};
use crate::waiter::WaitOutcome;

/// A duty: to fill folios that lie in a row in the file and in memory. Dropped, it has failed (EIO).
#[must_use = "readers wait for it"]
pub struct Fill {
    cache: Arc<CacheCore>,
    file: u64,
    device: u16,
    first: u64,
    hold: Option<Hold<Folio>>,
    /// A buffer has the bytes.
    is_lent: bool,
}

impl Fill {
    pub(crate) fn new(
        cache: Arc<CacheCore>,
        file: u64,
        device: u16,
        first: u64,
        hold: Hold<Folio>,
    ) -> Fill {
        Fill { cache, file, device, first, hold: Some(hold), is_lent: false }
    }

    fn hold(&mut self) -> &mut Hold<Folio> {
        self.hold.as_mut().expect("until it is ended")
    }

    fn frames(&mut self) -> Range<u32> {
        let hold = self.hold();
        hold.first()..hold.first() + hold.count()
    }

    /// Which bytes of the file.
    pub fn range(&self) -> Range<u64> {
        let count = self.hold.as_ref().map_or(0, Hold::count);
        self.first * FOLIO..(self.first + u64::from(count)) * FOLIO
    }

    /// Keeps the first `bytes` bytes, whole folios, and gives the others away.
    pub fn split_off(&mut self, bytes: u64) -> Fill {
        assert!(bytes.is_multiple_of(FOLIO) && !self.is_lent);
        let folios = bytes / FOLIO;
        let hold = self.hold().split_off(folios as u32);
        let (cache, first) = (self.cache.clone(), self.first + folios);
        let Fill { file, device, .. } = *self;
        Fill { cache, file, device, first, hold: Some(hold), is_lent: false }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.hold().bytes()
    }

    /// The bytes as a buffer, for a request: [`Self::take_back`] ends that.
    pub fn lend(&mut self) -> Buffer {
        self.is_lent = true;
        self.hold().lend()
    }

    /// Takes back what was lent.
    pub fn take_back(&mut self, buffer: Buffer) {
        self.hold().take_back(buffer);
        self.is_lent = false;
    }

    /// Marks the folio at an offset: whoever reads it starts the next window of readahead.
    pub fn mark(&mut self, offset: u64) {
        let place = self.hold().first() + (offset / FOLIO - self.first) as u32;
        self.hold().slab().set_flags(place, READAHEAD_MARKER);
    }

    /// Has them leave as soon as they have been read ([`Pages::forget_passing`](crate::Pages::forget_passing)) and the device has them
    /// ([`Pages::saved`](crate::Pages::saved)), unless somebody uses them meanwhile.
    pub fn let_pass(&mut self) {
        for frame in self.frames() {
            self.cache.frames.slab().set_flags(frame, DROPBEHIND);
        }
    }

    /// Counts that the first `count` of them are used, as [`Found::touch`](crate::Found::touch).
    pub fn touch(&mut self, count: u32) {
        for frame in self.frames().take(count as usize) {
            let flags = self.cache.frames.slab().state(frame).flags();
            self.cache.touch(frame, flags);
        }
    }

    /// Says that they are filled, or why not. Those who wait are told; of several that could not be filled
    /// together, that they look again, since nobody knows which of them it was.
    pub fn end(mut self, result: Result<(), Errno>) {
        self.end_all(result.map(|()| 0));
    }

    /// Says that nobody wants them any more. Those who wait look again.
    pub fn forget(mut self) {
        let Some(mut rest) = self.hold.take() else { return };
        let mut index = self.first;
        while rest.count() > 0 {
            let tail = rest.split_off(1);
            let key = Key { file: self.file, index };
            self.cache.remove_held(key, self.device, rest, None);
            (rest, index) = (tail, index + 1);
        }
    }

    /// Says that they are filled with what the device does not have: they stay until [`Pages::saved`](crate::Pages::saved) or
    /// [`Pages::invalidate`](crate::Pages::invalidate).
    pub fn end_unsaved(mut self) {
        self.end_all(Ok(DIRTY));
    }

    /// With flags that they have from now on.
    fn end_all(&mut self, result: Result<u32, Errno>) {
        let Some(mut rest) = self.hold.take() else { return };
        let mut index = self.first;
        let is_one = rest.count() == 1;
        while rest.count() > 0 {
            let tail = rest.split_off(1);
            let key = Key { file: self.file, index };
            match result {
                Ok(flags) => self.cache.open(key, self.device, rest, flags),
                Err(error) => {
                    self.cache.remove_held(key, self.device, rest, is_one.then_some(error));
                }
            }
            (rest, index) = (tail, index + 1);
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if self.is_lent {
            // Who knows what writes there yet: the frames are lost, those who wait are told.
            if let Some(hold) = self.hold.take() {
                for frame in 0..u64::from(hold.count()) {
                    let key = Key { file: self.file, index: self.first + frame };
                    self.cache.lose(key, hold.first() + frame as u32);
                }
            }
        } else {
            self.end_all(Err(Errno::IO));
        }
    }
}

impl CacheCore {
    /// Opens a held folio for all to share. Each waiter receives a snapshot of it.
    fn open(&self, key: Key, device: u16, hold: Hold<Folio>, more: u32) {
        if more & DIRTY != 0 {
            // Counted first: as soon as it is open it may be saved.
            self.dirty.add(device);
        }
        let is_plain = |flags| (flags & (HAS_WAITERS | STALE) == 0).then_some(flags | more);
        let hold = match hold.open_if(0, is_plain) {
            Ok((before, _)) => return self.count_saved(device, before.flags() & more),
            Err(hold) => hold,
        };
        let mut shard = self.index.shard(key);
        let place = hold.first();
        let waiters = shard.take_waiters(place);
        let is_wanted = |flags| (flags & STALE == 0).then_some(flags & !HAS_WAITERS | more);
        match hold.open_if(waiters.len() as u32, is_wanted) {
            Ok((before, snapshots)) => {
                drop(shard);
                self.count_saved(device, before.flags() & more);
                for (waiter, snapshot) in waiters.into_iter().zip(snapshots) {
                    self.notify(&waiter, WaitOutcome::Filled { place, snapshot });
                }
            }
            Err(hold) => {
                self.index.remove(&mut shard, &self.frames, key, place);
                drop(shard);
                self.count_saved(device, more);
                self.forget(place, device, hold);
                for waiter in waiters {
                    self.notify(&waiter, WaitOutcome::Changed);
                }
            }
        }
    }

    /// Takes a held folio out of the cache. Its waiters look again, or receive the error.
    pub(crate) fn remove_held(&self, key: Key, device: u16, hold: Hold<Folio>, why: Option<Errno>) {
        let place = hold.first();
        let waiters = self.index.remove(&mut self.index.shard(key), &self.frames, key, place);
        self.forget(place, device, hold);
        for waiter in waiters {
            self.notify(&waiter, why.map_or(WaitOutcome::Changed, WaitOutcome::Failed));
        }
    }

    /// The same for one whose frame nobody can have any more.
    fn lose(&self, key: Key, place: u32) {
        let waiters = self.index.remove(&mut self.index.shard(key), &self.frames, key, place);
        self.eviction.lock().remove(place);
        for waiter in waiters {
            self.notify(&waiter, WaitOutcome::Failed(Errno::IO));
        }
    }
}
