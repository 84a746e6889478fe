//! The guards of a slab: a shared frame, borrowed or kept as a snapshot; and exclusive frames, whose bytes may be lent
//! to a request. Nothing waits here: a frame that is not available is refused.

use std::ops::Deref;
use std::ptr;
use std::slice;
use std::sync::Arc;

use super::frames::{Slab, SlabId};
use super::state::{ALLOCATED, EXCLUSIVE, FLAG_SHIFT, FrameState, ONE_SHARE, SHARE_MASK};
use crate::buffer::Buffer;
use uringfs_sync::atomic::Ordering;

impl<T> Slab<T> {
    /// A share of a frame. The error is the state of a frame that is free, has an exclusive owner, or has very many
    /// shares.
    #[inline(always)]
    pub fn try_share(&self, frame: u32) -> Result<SharedFrame<'_, T>, FrameState> {
        let word = &self.frames[frame as usize].state;
        let state = word.fetch_add(ONE_SHARE, Ordering::Acquire);
        if state & (EXCLUSIVE | ALLOCATED) != ALLOCATED || state & SHARE_MASK > SHARE_MASK / 2 {
            word.fetch_sub(ONE_SHARE, Ordering::Relaxed);
            return Err(FrameState(state));
        }
        Ok(SharedFrame { slab: self, frame, state: FrameState(state) })
    }

    /// Exclusive access to an allocated frame without users. `next` computes the new flags from the current ones, and
    /// both change in one step. `None` if `next` returns `None`, or if the frame is free, shared or exclusive. `next`
    /// may run several times.
    pub fn try_exclusive(
        self: &Arc<Self>,
        frame: u32,
        next: impl Fn(u32) -> Option<u32>,
    ) -> Option<ExclusiveFrames<T>> {
        self.update(frame, |state| {
            let has_no_user = state & (EXCLUSIVE | ALLOCATED | SHARE_MASK) == ALLOCATED;
            let flags = next(FrameState(state).flags()).filter(|_| has_no_user)?;
            Some(ALLOCATED | EXCLUSIVE | u64::from(flags) << FLAG_SHIFT)
        })?;
        Some(ExclusiveFrames { slab: self.clone(), first: frame, count: 1, is_lent: false })
    }

    /// Allocates `count` adjacent free frames, with flags cleared. `None` if one of them is not free, or their chunk
    /// has no memory. They still contain the bytes of their last user.
    ///
    /// # Panics
    /// When they are not all in one chunk.
    pub fn allocate(self: &Arc<Self>, first: u32, count: u32) -> Option<ExclusiveFrames<T>> {
        let chunk = self.chunk(first);
        assert!(
            ptr::eq(chunk, self.chunk(first + count.max(1) - 1)),
            "the frames are not in one chunk"
        );
        let taken = (first..first + count).find(|frame| !self.try_allocate_one(*frame));
        if taken.is_some() || chunk.base.load(Ordering::Acquire).is_null() {
            (first..taken.unwrap_or(first + count)).for_each(|frame| self.free_one(frame));
            return None;
        }
        Some(ExclusiveFrames { slab: self.clone(), first, count, is_lent: false })
    }
}

/// A share of a frame. The bytes do not change while it exists.
#[derive(Debug)]
pub struct SharedFrame<'a, T> {
    slab: &'a Slab<T>,
    frame: u32,
    state: FrameState,
}

impl<T> SharedFrame<'_, T> {
    /// The state of the frame just before this share was taken.
    #[inline]
    pub fn state(&self) -> FrameState {
        self.state
    }

    /// Drops the share, and returns the state of the frame just before.
    #[inline(always)]
    pub fn release(self) -> FrameState {
        let frame = &self.slab.frames[self.frame as usize];
        std::mem::forget(self);
        FrameState(frame.state.fetch_sub(ONE_SHARE, Ordering::Release))
    }

    /// Converts the share into one that does not borrow the slab.
    pub fn into_snapshot(self) -> Snapshot {
        let snapshot = Snapshot { slab: self.slab.id, frame: self.frame };
        std::mem::forget(self);
        snapshot
    }
}

impl<T> Deref for SharedFrame<'_, T> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.slab.frame_bytes(self.frame)
    }
}

impl<T> Drop for SharedFrame<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.slab.frames[self.frame as usize].state.fetch_sub(ONE_SHARE, Ordering::Release);
    }
}

/// A share of a frame, apart from its slab: no reference is counted for it. It is read and released through the slab,
/// which the owner keeps. If it is only dropped, the frame stays shared.
#[derive(Debug)]
#[must_use = "its frame stays shared until `Slab::release`"]
pub struct Snapshot {
    slab: SlabId,
    frame: u32,
}

impl Snapshot {
    /// The number of the frame.
    #[inline]
    pub fn frame(&self) -> u32 {
        self.frame
    }
}

impl<T> Slab<T> {
    /// The bytes of a snapshot's frame.
    ///
    /// # Panics
    /// When the snapshot is of another slab.
    #[inline]
    pub fn bytes<'a>(&'a self, snapshot: &'a Snapshot) -> &'a [u8] {
        assert!(snapshot.slab == self.id, "a snapshot of another slab");
        self.frame_bytes(snapshot.frame)
    }

    /// Releases a snapshot, and returns the state of the frame just before.
    ///
    /// # Panics
    /// When the snapshot is of another slab.
    #[inline]
    pub fn release(&self, snapshot: Snapshot) -> FrameState {
        assert!(snapshot.slab == self.id, "a snapshot of another slab");
        let frame = &self.frames[snapshot.frame as usize];
        FrameState(frame.state.fetch_sub(ONE_SHARE, Ordering::Release))
    }
}

/// Adjacent frames with one exclusive owner, which either publishes each frame for sharing or frees them all. Frames
/// are leaked if the guard is only dropped.
#[derive(Debug)]
#[must_use = "its frames are leaked when it is dropped"]
pub struct ExclusiveFrames<T> {
    slab: Arc<Slab<T>>,
    first: u32,
    count: u32,
    /// A buffer owns the bytes for now.
    is_lent: bool,
}

impl<T> ExclusiveFrames<T> {
    /// The slab of the frames.
    pub fn slab(&self) -> &Arc<Slab<T>> {
        &self.slab
    }

    /// The number of its first frame.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The number of frames.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Keeps the first `at` frames and returns the others.
    ///
    /// # Panics
    /// When `at` is past the end, or the frames are lent.
    pub fn split_off(&mut self, at: u32) -> ExclusiveFrames<T> {
        assert!(at <= self.count && !self.is_lent);
        let tail = ExclusiveFrames {
            slab: self.slab.clone(),
            first: self.first + at,
            count: self.count - at,
            is_lent: false,
        };
        self.count = at;
        tail
    }

    /// Replaces the flags of each frame.
    pub fn reset_flags(&self, flags: u32) {
        let flags = u64::from(flags) << FLAG_SHIFT;
        for frame in self.first..self.first + self.count {
            let rest = u64::MAX >> FLAG_SHIFT;
            self.slab.update(frame, |state| Some(state & rest | flags));
        }
    }

    /// All bytes of all frames.
    ///
    /// # Panics
    /// When they are lent.
    pub fn bytes(&mut self) -> &mut [u8] {
        assert!(!self.is_lent, "a buffer has the bytes");
        #[cfg(loom)]
        for frame in self.first..self.first + self.count {
            self.slab.frames[frame as usize].bytes.with_mut(|_| ());
        }
        let length = self.count as usize * self.slab.frame_size;
        // SAFETY: inside the chunk's region, as in `frame_bytes`. This guard owns the frames exclusively, and is
        // borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.slab.address(self.first), length) }
    }

    /// Lends the bytes as a buffer, for a request. [`Self::take_back`] ends the loan; without it the frames are leaked.
    ///
    /// # Panics
    /// When they are already lent.
    pub fn lend(&mut self) -> Buffer {
        assert!(!self.is_lent, "a buffer has the bytes");
        self.is_lent = true;
        let region = &self.slab.chunk(self.first).region;
        let region = region.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let region = region.as_ref().expect("an allocated frame has memory").clone();
        let start =
            (self.first & ((1 << self.slab.chunk_shift) - 1)) as usize * self.slab.frame_size;
        Buffer::from_region(region, start, self.count as usize * self.slab.frame_size)
    }

    /// Takes back the lent buffer.
    ///
    /// # Panics
    /// When `buffer` is not the whole lent buffer.
    pub fn take_back(&mut self, buffer: Buffer) {
        let length = self.count as usize * self.slab.frame_size;
        let is_all = buffer.pointer().as_ptr() == self.slab.address(self.first);
        assert!(self.is_lent && is_all && buffer.len() == length, "not the lent buffer");
        self.is_lent = false;
    }

    /// Takes the first frame out, which keeps its owner: the caller.
    ///
    /// # Panics
    /// When there is none, or the frames are lent.
    pub fn take_first(&mut self) -> ExclusiveFrames<T> {
        let tail = self.split_off(1);
        std::mem::replace(self, tail)
    }

    /// Opens the first frame to sharing; the others stay. `next` computes the new flags from the current ones, and may
    /// run several times. Returns the state just before, and `shares` snapshots of the frame. If `next` returns
    /// `None`, so does this, and the frame stays exclusive.
    ///
    /// # Panics
    /// When there is no frame, or they are lent.
    pub fn publish_first(
        &mut self,
        shares: u32,
        next: impl Fn(u32) -> Option<u32>,
    ) -> Option<(FrameState, Snapshots<'_, T>)> {
        assert!(self.count > 0 && !self.is_lent, "there is a frame, and it is not lent");
        let frame = self.first;
        let before = self.slab.update(frame, |state| {
            let flags = next(FrameState(state).flags())?;
            let shares = (state & SHARE_MASK) + u64::from(shares);
            Some(shares | ALLOCATED | (u64::from(flags) << FLAG_SHIFT))
        })?;
        (self.first, self.count) = (frame + 1, self.count - 1);
        Some((before, Snapshots { slab: &self.slab, frame, remaining: shares }))
    }

    /// Frees the frames and clears their flags.
    ///
    /// # Panics
    /// When they are lent.
    pub fn free(self) {
        assert!(!self.is_lent, "a buffer has the bytes");
        (self.first..self.first + self.count).for_each(|frame| self.slab.free_one(frame));
    }
}

/// Several shares of one frame, taken in one step. Those that are left when it is dropped are released.
#[derive(Debug)]
pub struct Snapshots<'a, T> {
    slab: &'a Slab<T>,
    frame: u32,
    remaining: u32,
}

impl<T> Iterator for Snapshots<'_, T> {
    type Item = Snapshot;

    fn next(&mut self) -> Option<Snapshot> {
        self.remaining = self.remaining.checked_sub(1)?;
        Some(Snapshot { slab: self.slab.id, frame: self.frame })
    }
}

impl<T> Drop for Snapshots<'_, T> {
    fn drop(&mut self) {
        let slab = self.slab;
        for snapshot in self {
            slab.release(snapshot);
        }
    }
}
