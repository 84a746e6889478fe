//! Locked folios. The holder of a [`Fill`] reads the bytes of new folios, or changes the bytes of one, and reports the
//! result. Until then, readers of these folios wait.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use uringfs_buffer::{Buffer, ExclusiveFrames};
use uringfs_errno::Errno;

use crate::core::CacheCore;
use crate::folio::{DIRTY, DROPBEHIND, FOLIO, Folio, HAS_WAITERS, Key, READAHEAD_MARKER, STALE};
use crate::waiter::WaitOutcome;

/// The lock on folios that are contiguous in the file and in memory, with the duty to fill or to change them. Dropping
/// it reports EIO.
#[must_use = "readers wait for it"]
pub struct Fill {
    cache: Arc<CacheCore>,
    file: u64,
    device: u16,
    first: u64,
    hold: Option<ExclusiveFrames<Folio>>,
    /// The bytes are lent to a buffer.
    is_lent: bool,
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Fill")
            .field("file", &self.file)
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

impl Fill {
    pub(crate) fn new(
        cache: Arc<CacheCore>,
        file: u64,
        device: u16,
        first: u64,
        hold: ExclusiveFrames<Folio>,
    ) -> Fill {
        Fill { cache, file, device, first, hold: Some(hold), is_lent: false }
    }

    fn hold(&mut self) -> &mut ExclusiveFrames<Folio> {
        self.hold.as_mut().expect("the fill has not ended")
    }

    fn frames(&mut self) -> Range<u32> {
        let hold = self.hold();
        hold.first()..hold.first() + hold.count()
    }

    /// The range in the file, in bytes.
    pub fn range(&self) -> Range<u64> {
        let count = self.hold.as_ref().map_or(0, ExclusiveFrames::count);
        self.first * FOLIO..(self.first + u64::from(count)) * FOLIO
    }

    /// Keeps the first `bytes` bytes, a multiple of the folio size, and returns the rest.
    pub fn split_off(&mut self, bytes: u64) -> Fill {
        assert!(bytes.is_multiple_of(FOLIO) && !self.is_lent);
        let folios = bytes / FOLIO;
        let hold = self.hold().split_off(folios as u32);
        let (cache, first) = (self.cache.clone(), self.first + folios);
        let Fill { file, device, .. } = *self;
        Fill { cache, file, device, first, hold: Some(hold), is_lent: false }
    }

    /// The bytes of all its folios.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.hold().bytes()
    }

    /// Lends the bytes as a buffer, for a request, until [`Self::take_back`].
    pub fn lend(&mut self) -> Buffer {
        self.is_lent = true;
        self.hold().lend()
    }

    /// Takes back the buffer of [`Self::lend`].
    pub fn take_back(&mut self, buffer: Buffer) {
        self.hold().take_back(buffer);
        self.is_lent = false;
    }

    /// Marks the folio at an offset: reading it starts the next window of readahead.
    pub fn set_readahead_marker(&mut self, offset: u64) {
        let frame = self.hold().first() + (offset / FOLIO - self.first) as u32;
        self.hold().slab().set_flags(frame, READAHEAD_MARKER);
    }

    /// Marks the folios as dropbehind. They leave the cache once they are read
    /// ([`FileFolios::drop_behind`](crate::FileFolios::drop_behind)) and clean
    /// ([`FileFolios::mark_clean`](crate::FileFolios::mark_clean)), unless another access uses them first.
    pub fn set_dropbehind(&mut self) {
        for frame in self.frames() {
            self.cache.frames.slab().set_flags(frame, DROPBEHIND);
        }
    }

    /// Counts an access to each of the first `count` folios, as [`FolioRef::touch`](crate::FolioRef::touch) does.
    pub fn touch(&mut self, count: u32) {
        for frame in self.frames().take(count as usize) {
            let flags = self.cache.frames.slab().state(frame).flags();
            self.cache.frames.touch(frame, flags);
        }
    }

    /// Ends the fill, and reports the result to the waiters. After a failed fill of several folios the waiters look
    /// again, since it is unknown which folio failed.
    pub fn end(mut self, result: Result<(), Errno>) {
        self.end_all(result.map(|()| 0));
    }

    /// Removes the folios, which are no longer wanted. Their waiters look again.
    pub fn discard(mut self) {
        let Some(mut rest) = self.hold.take() else { return };
        let mut index = self.first;
        while rest.count() > 0 {
            let key = Key { file: self.file, index };
            self.cache.remove_locked(key, self.device, rest.take_first(), None);
            index += 1;
        }
    }

    /// Ends the fill and marks the folios dirty. They stay until
    /// [`FileFolios::mark_clean`](crate::FileFolios::mark_clean) or
    /// [`FileFolios::invalidate`](crate::FileFolios::invalidate).
    pub fn end_dirty(mut self) {
        self.end_all(Ok(DIRTY));
    }

    /// Ends the fill. The result holds flags to set.
    fn end_all(&mut self, result: Result<u32, Errno>) {
        let Some(mut rest) = self.hold.take() else { return };
        let mut index = self.first;
        let is_one = rest.count() == 1;
        while rest.count() > 0 {
            let key = Key { file: self.file, index };
            match result {
                Ok(flags) => self.cache.publish_first(key, self.device, &mut rest, flags),
                Err(error) => {
                    let error = is_one.then_some(error);
                    self.cache.remove_locked(key, self.device, rest.take_first(), error);
                }
            }
            index += 1;
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if self.is_lent {
            // A request may still write to the frames: leak them, and fail the waiters.
            if let Some(hold) = self.hold.take() {
                for nth in 0..u64::from(hold.count()) {
                    let key = Key { file: self.file, index: self.first + nth };
                    self.cache.leak(key, hold.first() + nth as u32);
                }
            }
        } else {
            self.end_all(Err(Errno::IO));
        }
    }
}

impl CacheCore {
    /// Unlocks the first folio of a run, with `more` flags set, and takes it out of the run. Each waiter receives a
    /// snapshot of it.
    fn publish_first(&self, key: Key, device: u16, run: &mut ExclusiveFrames<Folio>, more: u32) {
        if more & DIRTY != 0 {
            // Count it first: once it is unlocked, it may be written back.
            self.dirty.add(device);
        }
        let is_plain = |flags| (flags & (HAS_WAITERS | STALE) == 0).then_some(flags | more);
        if let Some((before, _)) = run.publish_first(0, is_plain) {
            return self.count_cleaned(device, before.flags() & more);
        }
        let mut shard = self.index.shard(key);
        let frame = run.first();
        let waiters = shard.take_waiters(frame);
        let is_wanted = |flags| (flags & STALE == 0).then_some(flags & !HAS_WAITERS | more);
        if let Some((before, snapshots)) = run.publish_first(waiters.len() as u32, is_wanted) {
            drop(shard);
            self.count_cleaned(device, before.flags() & more);
            for (waiter, snapshot) in waiters.into_iter().zip(snapshots) {
                self.notify(&waiter, WaitOutcome::Ready(snapshot));
            }
            return;
        }
        self.index.remove(&mut shard, &self.frames, key, frame);
        drop(shard);
        self.count_cleaned(device, more);
        self.free_folio(frame, device, run.take_first());
        for waiter in waiters {
            self.notify(&waiter, WaitOutcome::LookAgain);
        }
    }

    /// Removes a locked folio from the cache. Its waiters look again, or receive the error.
    pub(crate) fn remove_locked(
        &self,
        key: Key,
        device: u16,
        hold: ExclusiveFrames<Folio>,
        why: Option<Errno>,
    ) {
        let frame = hold.first();
        let waiters = self.index.remove(&mut self.index.shard(key), &self.frames, key, frame);
        self.free_folio(frame, device, hold);
        for waiter in waiters {
            self.notify(&waiter, why.map_or(WaitOutcome::LookAgain, WaitOutcome::Failed));
        }
    }

    /// Removes a locked folio and leaks its frame. Its waiters receive EIO.
    fn leak(&self, key: Key, frame: u32) {
        let waiters = self.index.remove(&mut self.index.shard(key), &self.frames, key, frame);
        self.eviction.lock().remove(frame);
        for waiter in waiters {
            self.notify(&waiter, WaitOutcome::Failed(Errno::IO));
        }
    }
}
