//! The table of frames, the memory of their chunks, and the atomic changes of a frame's state word.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex};

use rustix::mm::{Advice, madvise};
#[cfg(not(loom))]
use zerocopy::{FromZeros, KnownLayout};

use super::state::{ALLOCATED, EXCLUSIVE, FLAG_SHIFT, FrameState, SHARE_MASK};
use crate::buffer::ALIGNMENT;
use crate::region::Region;
use uringfs_sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Frames of one size, each with a `T` of the user, which is readable at any time.
pub struct Slab<T> {
    pub(super) frames: Box<[Frame<T>]>,
    pub(super) frame_size: usize,
    chunks: Box<[Chunk]>,
    pub(super) id: SlabId,
    /// A frame's number, shifted right by this, is the number of its chunk.
    pub(super) chunk_shift: u32,
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Slab").field("frames", &self.frames.len()).finish_non_exhaustive()
    }
}

/// Distinguishes the slabs of the process, those that were dropped included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlabId(NonZeroU64);

impl SlabId {
    fn new() -> SlabId {
        // Not loom's: it only counts.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        SlabId(NonZeroU64::new(id).expect("slabs are fewer than 2^64"))
    }
}

/// The memory of adjacent frames.
pub(super) struct Chunk {
    /// Null while there is no memory. Changes only while all frames of the chunk are free.
    pub(super) base: AtomicPtr<u8>,
    pub(super) region: Mutex<Option<Arc<Region>>>,
}

/// Never crosses a cache line; two fit into one.
#[cfg_attr(not(loom), derive(FromZeros, KnownLayout))]
#[repr(C, align(32))]
pub(super) struct Frame<T> {
    pub(super) state: AtomicU64,
    data: T,
    #[cfg(loom)]
    pub(super) bytes: loom::cell::UnsafeCell<()>,
}

// SAFETY: the cell stands for the frame's bytes, which are read and written only as the state word allows. loom checks
// exactly that.
#[cfg(loom)]
unsafe impl<T: Sync> Sync for Frame<T> {}

impl<T: Zeroable> Slab<T> {
    /// `count` free frames of `frame_size` bytes each, without memory, in chunks of `chunk` frames. The table of frames
    /// is zeroed memory that the kernel backs at first use, with huge pages if it is large enough.
    ///
    /// # Panics
    /// When `count` is 0, `frame_size` is no multiple of a page, or `chunk` is no power of two.
    pub fn new(count: u32, frame_size: usize, chunk: u32) -> Slab<T> {
        assert!(count > 0 && frame_size > 0 && frame_size.is_multiple_of(ALIGNMENT));
        assert!(chunk.is_power_of_two());
        let frames = zeroed_frames(count as usize);
        prefer_huge_pages(&frames);
        let chunks = std::iter::repeat_with(|| Chunk {
            base: AtomicPtr::new(ptr::null_mut()),
            region: Mutex::new(None),
        });
        let chunks = chunks.take(count.div_ceil(chunk) as usize).collect();
        let (id, chunk_shift) = (SlabId::new(), chunk.trailing_zeros());
        Slab { frames, frame_size, chunks, id, chunk_shift }
    }
}

/// User data whose initial value is all zeros.
#[cfg(not(loom))]
pub trait Zeroable: FromZeros + KnownLayout<PointerMetadata = ()> {}
#[cfg(not(loom))]
impl<T: FromZeros + KnownLayout<PointerMetadata = ()>> Zeroable for T {}
/// User data whose initial value is its default: zeros, in loom's own types.
#[cfg(loom)]
pub trait Zeroable: Default {}
#[cfg(loom)]
impl<T: Default> Zeroable for T {}

#[cfg(not(loom))]
fn zeroed_frames<T: Zeroable>(count: usize) -> Box<[Frame<T>]> {
    let frames = <[Frame<T>]>::new_box_zeroed_with_elems(count);
    frames.expect("there is memory for the table of frames")
}

#[cfg(loom)]
fn zeroed_frames<T: Zeroable>(count: usize) -> Box<[Frame<T>]> {
    let frame = || Frame {
        state: AtomicU64::new(0),
        data: T::default(),
        bytes: loom::cell::UnsafeCell::new(()),
    };
    std::iter::repeat_with(frame).take(count).collect()
}

/// Advises the kernel to back the whole huge pages within a table by huge pages. Random accesses to a large table
/// would otherwise wait for a page table walk each time.
pub fn prefer_huge_pages<T>(table: &[T]) {
    const HUGE_PAGE: usize = 2 << 20;
    let bytes = table.as_ptr_range();
    let start = (bytes.start as usize).next_multiple_of(HUGE_PAGE);
    let end = bytes.end as usize / HUGE_PAGE * HUGE_PAGE;
    if start < end {
        let first = bytes.start.cast::<u8>().wrapping_add(start - bytes.start as usize);
        // SAFETY: inside the table, which is borrowed. Advice only: the content does not change.
        let _ = unsafe { madvise(first.cast_mut().cast(), end - start, Advice::LinuxHugepage) };
    }
}

impl<T> Slab<T> {
    /// The number of frames.
    pub fn count(&self) -> u32 {
        self.frames.len() as u32
    }

    /// The size of a frame in bytes.
    #[inline]
    pub fn frame_size(&self) -> usize {
        self.frame_size
    }

    /// The user's data of a frame.
    #[inline(always)]
    pub fn data(&self, frame: u32) -> &T {
        &self.frames[frame as usize].data
    }

    /// The current state of a frame.
    #[inline]
    pub fn state(&self, frame: u32) -> FrameState {
        FrameState(self.frames[frame as usize].state.load(Ordering::Acquire))
    }

    /// Sets flags of a frame in any state, and returns the state before.
    #[inline]
    pub fn set_flags(&self, frame: u32, flags: u32) -> FrameState {
        let flags = u64::from(flags) << FLAG_SHIFT;
        FrameState(self.frames[frame as usize].state.fetch_or(flags, Ordering::AcqRel))
    }

    /// Clears flags of a frame in any state, and returns the state before.
    #[inline]
    pub fn clear_flags(&self, frame: u32, flags: u32) -> FrameState {
        let flags = u64::from(flags) << FLAG_SHIFT;
        FrameState(self.frames[frame as usize].state.fetch_and(!flags, Ordering::AcqRel))
    }

    /// Sets flags of a frame that has an exclusive owner. Otherwise changes nothing and returns false.
    pub fn set_flags_if_exclusive(&self, frame: u32, flags: u32) -> bool {
        let flags = u64::from(flags) << FLAG_SHIFT;
        self.update(frame, |state| (state & EXCLUSIVE != 0).then_some(state | flags)).is_some()
    }

    /// Maps memory for a chunk that has none.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn map_memory(&self, chunk: u32) -> io::Result<()> {
        let Chunk { base, region } = &self.chunks[chunk as usize];
        let mut region = region.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if region.is_none() {
            let frames = self.frames_of(chunk);
            let mapped = Region::mapped(frames.len() * self.frame_size, None)?;
            base.store(mapped.base().as_ptr(), Ordering::Release);
            *region = Some(mapped);
        }
        Ok(())
    }

    /// Returns a chunk's memory to the kernel if all its frames are free, and returns true then. Rings that have it
    /// registered keep its pages until the next time that they wait.
    pub fn unmap_memory(&self, chunk: u32) -> bool {
        let Chunk { base, region } = &self.chunks[chunk as usize];
        let mut region = region.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Range { start, end } = self.frames_of(chunk);
        let taken = (start..end).find(|frame| !self.try_allocate_one(*frame));
        if taken.is_none() {
            base.store(ptr::null_mut(), Ordering::Release);
            *region = None;
        }
        (start..taken.unwrap_or(end)).for_each(|frame| self.free_one(frame));
        taken.is_none()
    }

    /// True if the chunk has memory.
    pub fn is_mapped(&self, chunk: u32) -> bool {
        !self.chunks[chunk as usize].base.load(Ordering::Acquire).is_null()
    }

    /// The frames of a chunk.
    pub fn frames_of(&self, chunk: u32) -> Range<u32> {
        let start = chunk << self.chunk_shift;
        start..self.count().min(start + (1 << self.chunk_shift))
    }

    #[inline(always)]
    pub(super) fn chunk(&self, frame: u32) -> &Chunk {
        &self.chunks[(frame >> self.chunk_shift) as usize]
    }

    /// Prefetches the first `lines` cache lines of a frame's bytes. For a copy a few are enough: the hardware prefetcher
    /// continues from them, and more would compete with the loads in between.
    #[inline(always)]
    pub fn prefetch(&self, frame: u32, lines: usize) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..lines {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let address = self.address(frame).cast_const().wrapping_add(64 * line).cast();
            // SAFETY: a hint, valid for any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (frame, lines);
    }

    pub(super) fn try_allocate_one(&self, frame: u32) -> bool {
        // A reader that tries to share counts itself for a moment, so the count of shares is preserved.
        self.update(frame, |state| {
            (state & ALLOCATED == 0).then_some(state & SHARE_MASK | ALLOCATED | EXCLUSIVE)
        })
        .is_some()
    }

    pub(super) fn free_one(&self, frame: u32) {
        let vacated = self.update(frame, |state| Some(state & SHARE_MASK));
        assert!(
            vacated.is_some_and(FrameState::is_exclusive),
            "only an exclusive owner frees a frame"
        );
    }

    /// Replaces a frame's state word by the result of `next`. Returns the state before, or `None` if `next` does.
    pub(super) fn update(
        &self,
        frame: u32,
        next: impl Fn(u64) -> Option<u64>,
    ) -> Option<FrameState> {
        let word = &self.frames[frame as usize].state;
        let mut state = word.load(Ordering::Relaxed);
        loop {
            let new = next(state)?;
            match word.compare_exchange_weak(state, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(FrameState(state)),
                Err(found) => state = found,
            }
        }
    }

    #[inline(always)]
    pub(super) fn address(&self, frame: u32) -> *mut u8 {
        let base = self.chunk(frame).base.load(Ordering::Relaxed);
        let in_chunk = frame & ((1 << self.chunk_shift) - 1);
        base.wrapping_add(in_chunk as usize * self.frame_size)
    }

    #[inline(always)]
    pub(super) fn frame_bytes(&self, frame: u32) -> &[u8] {
        #[cfg(loom)]
        self.frames[frame as usize].bytes.with(|_| ());
        // SAFETY: inside the chunk's region, which stays mapped while a frame is allocated, and was zeroed when it was
        // made. The caller has a share or exclusive access, and until it ends the bytes have no other writer.
        unsafe { slice::from_raw_parts(self.address(frame), self.frame_size) }
    }
}
