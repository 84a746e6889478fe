//! The table of frames, the memory of their chunks, and the steps in which a frame's word changes.

use std::io;
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

/// Frames of one size, and a `T` of the user's for each, which anybody may look at at any time.
pub struct Slab<T> {
    pub(super) frames: Box<[Frame<T>]>,
    pub(super) frame_size: usize,
    chunks: Box<[Chunk]>,
    /// From a frame to its chunk.
    pub(super) chunk_shift: u32,
}

/// The memory of frames in a row.
pub(super) struct Chunk {
    /// Null while there is none. Changes only while all its frames are vacant.
    pub(super) base: AtomicPtr<u8>,
    pub(super) region: Mutex<Option<Arc<Region>>>,
}

/// In one cache line, and two to a line.
#[cfg_attr(not(loom), derive(FromZeros, KnownLayout))]
#[repr(C, align(32))]
pub(super) struct Frame<T> {
    pub(super) state: AtomicU64,
    data: T,
    #[cfg(loom)]
    pub(super) bytes: loom::cell::UnsafeCell<()>,
}

// SAFETY: the cell stands for bytes that are read and written as the word allows: what loom looks at.
#[cfg(loom)]
unsafe impl<T: Sync> Sync for Frame<T> {}

impl<T: Zeroable> Slab<T> {
    /// `count` vacant frames of `frame_size` bytes each, without memory, in chunks of so many. What is known of them
    /// is zeros, and takes memory only once it is used; in huge pages, where there is enough of it.
    ///
    /// # Panics
    /// When there is none, the size is no multiple of a page, or a chunk no power of two.
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
        Slab { frames, frame_size, chunks, chunk_shift: chunk.trailing_zeros() }
    }
}

/// What begins as zeros.
#[cfg(not(loom))]
pub trait Zeroable: FromZeros + KnownLayout<PointerMetadata = ()> {}
#[cfg(not(loom))]
impl<T: FromZeros + KnownLayout<PointerMetadata = ()>> Zeroable for T {}
/// What begins as it is by default: zeros, but that loom has its own.
#[cfg(loom)]
pub trait Zeroable: Default {}
#[cfg(loom)]
impl<T: Default> Zeroable for T {}

#[cfg(not(loom))]
fn zeroed_frames<T: Zeroable>(count: usize) -> Box<[Frame<T>]> {
    let frames = <[Frame<T>]>::new_box_zeroed_with_elems(count);
    frames.expect("memory for what is known of frames")
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

/// Asks the kernel to back a table by huge pages, as far as it covers any: one that is looked at here and there would
/// wait for the walk through page tables each time.
pub fn prefer_huge_pages<T>(table: &[T]) {
    const HUGE_PAGE: usize = 2 << 20;
    let bytes = table.as_ptr_range();
    let start = (bytes.start as usize).next_multiple_of(HUGE_PAGE);
    let end = bytes.end as usize / HUGE_PAGE * HUGE_PAGE;
    if start < end {
        let first = bytes.start.cast::<u8>().wrapping_add(start - bytes.start as usize);
        // SAFETY: inside the table, which is borrowed. Advice only: its content stays what it is.
        let _ = unsafe { madvise(first.cast_mut().cast(), end - start, Advice::LinuxHugepage) };
    }
}

impl<T> Slab<T> {
    /// How many frames.
    pub fn count(&self) -> u32 {
        self.frames.len() as u32
    }

    /// Bytes in a frame.
    #[inline]
    pub fn frame_size(&self) -> usize {
        self.frame_size
    }

    /// The user's data of a frame.
    #[inline(always)]
    pub fn data(&self, frame: u32) -> &T {
        &self.frames[frame as usize].data
    }

    /// How a frame is now.
    #[inline]
    pub fn state(&self, frame: u32) -> FrameState {
        FrameState(self.frames[frame as usize].state.load(Ordering::Acquire))
    }

    /// Sets flags of a frame, however it is, and answers how it was.
    #[inline]
    pub fn set_flags(&self, frame: u32, flags: u32) -> FrameState {
        let flags = u64::from(flags) << FLAG_SHIFT;
        FrameState(self.frames[frame as usize].state.fetch_or(flags, Ordering::AcqRel))
    }

    /// Clears flags of a frame, however it is, and answers how it was.
    #[inline]
    pub fn clear_flags(&self, frame: u32, flags: u32) -> FrameState {
        let flags = u64::from(flags) << FLAG_SHIFT;
        FrameState(self.frames[frame as usize].state.fetch_and(!flags, Ordering::AcqRel))
    }

    /// Sets flags of a frame that is held; answers false, and changes nothing, when it is not.
    pub fn set_flags_if_held(&self, frame: u32, flags: u32) -> bool {
        let flags = u64::from(flags) << FLAG_SHIFT;
        self.update(frame, |state| (state & EXCLUSIVE != 0).then_some(state | flags)).is_some()
    }

    /// Gives a chunk memory, if it has none.
    ///
    /// # Errors
    /// What `mmap` says.
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

    /// Gives a chunk's memory back to the system, if all its frames are vacant. Rings that have it registered keep
    /// its pages until they wait for something the next time.
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

    /// Whether a chunk has memory.
    pub fn is_mapped(&self, chunk: u32) -> bool {
        !self.chunks[chunk as usize].base.load(Ordering::Acquire).is_null()
    }

    /// Which frames are of a chunk.
    pub fn frames_of(&self, chunk: u32) -> Range<u32> {
        let start = chunk << self.chunk_shift;
        start..self.count().min(start + (1 << self.chunk_shift))
    }

    #[inline(always)]
    pub(super) fn chunk(&self, frame: u32) -> &Chunk {
        &self.chunks[(frame >> self.chunk_shift) as usize]
    }

    /// Says that a frame's bytes are going to be read. A few lines are worth it: the processor sees by them how it goes
    /// on, and more of them would be in the way of what is looked at meanwhile.
    #[inline(always)]
    pub fn expect(&self, frame: u32) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..8 {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let address = self.address(frame).cast_const().wrapping_add(64 * line).cast();
            // SAFETY: a hint, of whatever address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = frame;
    }

    pub(super) fn try_allocate_one(&self, frame: u32) -> bool {
        // Who looks whether it may share counts itself in for a moment.
        self.update(frame, |state| {
            (state & ALLOCATED == 0).then_some(state & SHARE_MASK | ALLOCATED | EXCLUSIVE)
        })
        .is_some()
    }

    pub(super) fn free_one(&self, frame: u32) {
        let vacated = self.update(frame, |state| Some(state & SHARE_MASK));
        assert!(vacated.is_some_and(FrameState::is_held), "whoever holds it makes it vacant");
    }

    /// Changes a frame's word as `next` says; answers how it was, or none when `next` gives up.
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
        // SAFETY: inside the chunk's region, which stays while a frame is not vacant, and was zeroed when it was
        // made. The caller shares the frame, or holds it: until then nobody changes it.
        unsafe { slice::from_raw_parts(self.address(frame), self.frame_size) }
    }
}
