//! Frames: equal pieces of memory that many may read while nobody changes them, and that one at a time may change,
//! or lend to a request. So many of them, a chunk, lie together in a region, which comes and goes as a whole.
//!
//! A frame is vacant, held by one, or shared. That and 32 flags, whose meaning is the user's, are one word, so
//! that both change in one step. Nobody waits here: what cannot be had is refused.

use std::io;
use std::ops::{Deref, Range};
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex};

use rustix::mm::{Advice, madvise};
#[cfg(not(loom))]
use zerocopy::{FromZeros, KnownLayout};

use crate::buffer::Buffer;
use crate::region::Region;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};

/// One who shares; the bits below [`SHARES`] count them.
const SHARE: u64 = 1;
const SHARES: u64 = (1 << 24) - 1;
/// Somebody has it, or all may. All zeros is a frame that is vacant: memory that was never used.
const TAKEN: u64 = 1 << 30;
/// One has it alone.
const HELD: u64 = 1 << 31;
/// Where the user's flags begin.
const FLAGS: u32 = 32;

/// Frames of one size, and a `T` of the user's for each, which anybody may look at at any time.
pub struct Slab<T> {
    frames: Box<[Frame<T>]>,
    frame_size: usize,
    chunks: Box<[Chunk]>,
    /// From a frame to its chunk.
    shift: u32,
}

/// The memory of frames in a row.
struct Chunk {
    /// Null while there is none. Changes only while all its frames are vacant.
    base: AtomicPtr<u8>,
    region: Mutex<Option<Arc<Region>>>,
}

/// In one cache line, and two to a line.
#[cfg_attr(not(loom), derive(FromZeros, KnownLayout))]
#[repr(C, align(32))]
struct Frame<T> {
    state: AtomicU64,
    data: T,
    #[cfg(loom)]
    bytes: loom::cell::UnsafeCell<()>,
}

// SAFETY: the cell stands for bytes that are read and written as the word allows: what loom looks at.
#[cfg(loom)]
unsafe impl<T: Sync> Sync for Frame<T> {}

/// What a frame's word said: how it is, and its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameState(u64);

impl FrameState {
    /// The user's flags.
    #[inline]
    pub fn flags(self) -> u32 {
        (self.0 >> FLAGS) as u32
    }

    /// One has it alone.
    #[inline]
    pub fn is_held(self) -> bool {
        self.0 & HELD != 0
    }

    /// Nobody has it, and its bytes are nothing.
    #[inline]
    pub fn is_vacant(self) -> bool {
        self.0 & TAKEN == 0
    }

    /// How many share it; one more may be a look that is about to be given up.
    #[inline]
    pub fn shares(self) -> u32 {
        (self.0 & SHARES) as u32
    }
}

impl<T: Blank> Slab<T> {
    /// `count` vacant frames of `frame_size` bytes each, without memory, in chunks of so many. What is known of them
    /// is zeros, and takes memory only once it is used; in huge pages, where there is enough of it.
    ///
    /// # Panics
    /// When there is none, the size is no multiple of a page, or a chunk no power of two.
    pub fn new(count: u32, frame_size: usize, chunk: u32) -> Slab<T> {
        assert!(count > 0 && frame_size > 0 && frame_size.is_multiple_of(crate::buffer::ALIGNMENT));
        assert!(chunk.is_power_of_two());
        let frames = zeroed_frames(count as usize);
        prefer_huge_pages(&frames);
        let chunks = std::iter::repeat_with(|| Chunk {
            base: AtomicPtr::new(ptr::null_mut()),
            region: Mutex::new(None),
        });
        let chunks = chunks.take(count.div_ceil(chunk) as usize).collect();
        Slab { frames, frame_size, chunks, shift: chunk.trailing_zeros() }
    }
}

/// What begins as zeros.
#[cfg(not(loom))]
pub trait Blank: FromZeros + KnownLayout<PointerMetadata = ()> {}
#[cfg(not(loom))]
impl<T: FromZeros + KnownLayout<PointerMetadata = ()>> Blank for T {}
/// What begins as it is by default: zeros, but that loom has its own.
#[cfg(loom)]
pub trait Blank: Default {}
#[cfg(loom)]
impl<T: Default> Blank for T {}

#[cfg(not(loom))]
fn zeroed_frames<T: Blank>(count: usize) -> Box<[Frame<T>]> {
    let frames = <[Frame<T>]>::new_box_zeroed_with_elems(count);
    frames.expect("memory for what is known of frames")
}

#[cfg(loom)]
fn zeroed_frames<T: Blank>(count: usize) -> Box<[Frame<T>]> {
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
        let flags = u64::from(flags) << FLAGS;
        FrameState(self.frames[frame as usize].state.fetch_or(flags, Ordering::AcqRel))
    }

    /// Clears flags of a frame, however it is, and answers how it was.
    #[inline]
    pub fn clear_flags(&self, frame: u32, flags: u32) -> FrameState {
        let flags = u64::from(flags) << FLAGS;
        FrameState(self.frames[frame as usize].state.fetch_and(!flags, Ordering::AcqRel))
    }

    /// Sets flags of a frame that is held; answers false, and changes nothing, when it is not.
    pub fn set_flags_if_held(&self, frame: u32, flags: u32) -> bool {
        let flags = u64::from(flags) << FLAGS;
        self.change(frame, |state| (state & HELD != 0).then_some(state | flags)).is_some()
    }

    /// A share of a frame, unless one has it alone or nobody does: then it answers how it is.
    #[inline(always)]
    pub fn share(&self, frame: u32) -> Result<Share<'_, T>, FrameState> {
        let word = &self.frames[frame as usize].state;
        let state = word.fetch_add(SHARE, Ordering::Acquire);
        if state & (HELD | TAKEN) != TAKEN || state & SHARES > SHARES / 2 {
            word.fetch_sub(SHARE, Ordering::Relaxed);
            return Err(FrameState(state));
        }
        Ok(Share { slab: self, frame, state: FrameState(state) })
    }

    /// The frame alone, if nobody shares it, with flags as `next` makes them of what they are, in the same step; not
    /// if it makes none. It may be asked several times.
    pub fn hold(
        self: &Arc<Self>,
        frame: u32,
        next: impl Fn(u32) -> Option<u32>,
    ) -> Option<Hold<T>> {
        self.change(frame, |state| {
            let is_free = state & (HELD | TAKEN | SHARES) == TAKEN;
            let flags = next(FrameState(state).flags()).filter(|_| is_free)?;
            Some(TAKEN | HELD | u64::from(flags) << FLAGS)
        })?;
        Some(Hold { slab: self.clone(), first: frame, count: 1, is_lent: false })
    }

    /// Frames in a row that are vacant, with flags cleared; none when one of them is not, or there is no
    /// memory. Their bytes are what their last user left.
    ///
    /// # Panics
    /// When they are not of one chunk.
    pub fn occupy(self: &Arc<Self>, first: u32, count: u32) -> Option<Hold<T>> {
        let chunk = self.chunk(first);
        assert!(ptr::eq(chunk, self.chunk(first + count.max(1) - 1)), "a row is of one chunk");
        let taken = (first..first + count).find(|frame| !self.take_vacant(*frame));
        if taken.is_some() || chunk.base.load(Ordering::Acquire).is_null() {
            (first..taken.unwrap_or(first + count)).for_each(|frame| self.make_vacant(frame));
            return None;
        }
        Some(Hold { slab: self.clone(), first, count, is_lent: false })
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
        let taken = (start..end).find(|frame| !self.take_vacant(*frame));
        if taken.is_none() {
            base.store(ptr::null_mut(), Ordering::Release);
            *region = None;
        }
        (start..taken.unwrap_or(end)).for_each(|frame| self.make_vacant(frame));
        taken.is_none()
    }

    /// Whether a chunk has memory.
    pub fn is_mapped(&self, chunk: u32) -> bool {
        !self.chunks[chunk as usize].base.load(Ordering::Acquire).is_null()
    }

    /// Which frames are of a chunk.
    pub fn frames_of(&self, chunk: u32) -> Range<u32> {
        let start = chunk << self.shift;
        start..self.count().min(start + (1 << self.shift))
    }

    #[inline(always)]
    fn chunk(&self, frame: u32) -> &Chunk {
        &self.chunks[(frame >> self.shift) as usize]
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

    fn take_vacant(&self, frame: u32) -> bool {
        // Who looks whether it may share counts itself in for a moment.
        self.change(frame, |state| (state & TAKEN == 0).then_some(state & SHARES | TAKEN | HELD))
            .is_some()
    }

    fn make_vacant(&self, frame: u32) {
        let vacated = self.change(frame, |state| Some(state & SHARES));
        assert!(vacated.is_some_and(FrameState::is_held), "whoever holds it makes it vacant");
    }

    /// Changes a frame's word as `next` says; answers how it was, or none when `next` gives up.
    fn change(&self, frame: u32, next: impl Fn(u64) -> Option<u64>) -> Option<FrameState> {
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
    fn address(&self, frame: u32) -> *mut u8 {
        let base = self.chunk(frame).base.load(Ordering::Relaxed);
        let in_chunk = frame & ((1 << self.shift) - 1);
        base.wrapping_add(in_chunk as usize * self.frame_size)
    }

    #[inline(always)]
    fn read(&self, frame: u32) -> &[u8] {
        #[cfg(loom)]
        self.frames[frame as usize].bytes.with(|_| ());
        // SAFETY: inside the chunk's region, which stays while a frame is not vacant, and was zeroed when it was
        // made. The caller shares the frame, or holds it: until then nobody changes it.
        unsafe { slice::from_raw_parts(self.address(frame), self.frame_size) }
    }
}

/// A share of a frame: its bytes stay what they are.
pub struct Share<'a, T> {
    slab: &'a Slab<T>,
    frame: u32,
    state: FrameState,
}

impl<T> Share<'_, T> {
    /// How the frame was when the share was taken.
    #[inline]
    pub fn state(&self) -> FrameState {
        self.state
    }

    /// Gives it up, and answers how the frame was just before.
    #[inline(always)]
    pub fn release(self) -> FrameState {
        let frame = &self.slab.frames[self.frame as usize];
        std::mem::forget(self);
        FrameState(frame.state.fetch_sub(SHARE, Ordering::Release))
    }

    /// The same, for as long as it is wanted. `slab` is that of the frame.
    pub fn keep(self, slab: &Arc<Slab<T>>) -> Snapshot<T> {
        assert!(ptr::eq(self.slab, &**slab), "a share of another slab");
        let frame = self.frame;
        std::mem::forget(self);
        Snapshot { slab: slab.clone(), frame, is_released: false }
    }
}

impl<T> Deref for Share<'_, T> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.slab.read(self.frame)
    }
}

impl<T> Drop for Share<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.slab.frames[self.frame as usize].state.fetch_sub(SHARE, Ordering::Release);
    }
}

/// A share that keeps the slab as well.
pub struct Snapshot<T> {
    slab: Arc<Slab<T>>,
    frame: u32,
    is_released: bool,
}

impl<T> Snapshot<T> {
    /// Gives it up, and answers how the frame was just before.
    #[inline]
    pub fn release(mut self) -> FrameState {
        self.is_released = true;
        self.give_up()
    }

    #[inline]
    fn give_up(&self) -> FrameState {
        let frame = &self.slab.frames[self.frame as usize];
        FrameState(frame.state.fetch_sub(SHARE, Ordering::Release))
    }
}

impl<T> Deref for Snapshot<T> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.slab.read(self.frame)
    }
}

impl<T> Drop for Snapshot<T> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_released {
            self.give_up();
        }
    }
}

/// Frames in a row that one has alone. Whoever has them opens them, for all to share, or vacates them;
/// those of a hold that is merely dropped are lost.
#[must_use = "its frames are lost when it is dropped"]
pub struct Hold<T> {
    slab: Arc<Slab<T>>,
    first: u32,
    count: u32,
    /// The bytes are a buffer's.
    is_lent: bool,
}

impl<T> Hold<T> {
    /// The slab.
    pub fn slab(&self) -> &Arc<Slab<T>> {
        &self.slab
    }

    /// The first of its frames.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Keeps the first `at` frames and gives the others away.
    ///
    /// # Panics
    /// When there are not as many, or they are lent.
    pub fn split_off(&mut self, at: u32) -> Hold<T> {
        assert!(at <= self.count && !self.is_lent);
        let tail = Hold {
            slab: self.slab.clone(),
            first: self.first + at,
            count: self.count - at,
            is_lent: false,
        };
        self.count = at;
        tail
    }

    /// Gives each of its frames these flags, and no others.
    pub fn reset_flags(&self, flags: u32) {
        let flags = u64::from(flags) << FLAGS;
        for frame in self.first..self.first + self.count {
            let rest = u64::MAX >> FLAGS;
            self.slab.change(frame, |state| Some(state & rest | flags));
        }
    }

    /// All bytes of all its frames.
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
        // SAFETY: inside the chunk's region, as in `read`; the frames are held by this, which is borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.slab.address(self.first), length) }
    }

    /// The bytes as a buffer, for a request. [`Self::take_back`] ends that; else the frames are lost.
    ///
    /// # Panics
    /// When they are lent already.
    pub fn lend(&mut self) -> Buffer {
        assert!(!self.is_lent, "a buffer has the bytes");
        self.is_lent = true;
        let region = &self.slab.chunk(self.first).region;
        let region = region.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let region = region.as_ref().expect("a frame that is not vacant has memory").clone();
        let start = (self.first & ((1 << self.slab.shift) - 1)) as usize * self.slab.frame_size;
        Buffer::of_slot(region, start, self.count as usize * self.slab.frame_size)
    }

    /// Takes back what was lent.
    ///
    /// # Panics
    /// When it is not that, as a whole.
    pub fn take_back(&mut self, buffer: Buffer) {
        let length = self.count as usize * self.slab.frame_size;
        let is_all = buffer.pointer().as_ptr() == self.slab.address(self.first);
        assert!(self.is_lent && is_all && buffer.len() == length, "not what was lent");
        self.is_lent = false;
    }

    /// Has everybody share it, one frame, with flags as `next` makes them of what they are, and answers how it
    /// was. `next` may be asked several times. As many shares of it are taken as `shares` says.
    ///
    /// # Panics
    /// When it is not one frame, or is lent.
    pub fn open(self, shares: u32, next: impl Fn(u32) -> u32) -> (FrameState, Snapshots<T>) {
        let before = self.open_if(shares, |flags| Some(next(flags)));
        let Ok(before) = before else { unreachable!("it is always opened") };
        before
    }

    /// The same, unless `next` gives none for what the flags are: then it is held yet.
    pub fn open_if(
        self,
        shares: u32,
        next: impl Fn(u32) -> Option<u32>,
    ) -> Result<(FrameState, Snapshots<T>), Hold<T>> {
        assert!(self.count == 1 && !self.is_lent, "one frame is opened");
        let opened = self.slab.change(self.first, |state| {
            let flags = next(FrameState(state).flags())?;
            let shares = (state & SHARES) + u64::from(shares);
            Some(shares | TAKEN | (u64::from(flags) << FLAGS))
        });
        match opened {
            None => Err(self),
            Some(before) => {
                let Hold { slab, first: frame, .. } = self;
                Ok((before, Snapshots { slab, frame, left: shares }))
            }
        }
    }

    /// Makes the frames vacant, with flags cleared.
    ///
    /// # Panics
    /// When they are lent.
    pub fn vacate(self) {
        assert!(!self.is_lent, "a buffer has the bytes");
        (self.first..self.first + self.count).for_each(|frame| self.slab.make_vacant(frame));
    }
}

/// Shares of one frame that were taken together.
pub struct Snapshots<T> {
    slab: Arc<Slab<T>>,
    frame: u32,
    left: u32,
}

impl<T> Iterator for Snapshots<T> {
    type Item = Snapshot<T>;

    fn next(&mut self) -> Option<Snapshot<T>> {
        self.left = self.left.checked_sub(1)?;
        let (slab, frame) = (self.slab.clone(), self.frame);
        Some(Snapshot { slab, frame, is_released: false })
    }
}

impl<T> Drop for Snapshots<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SIZE: usize = 4096;

    fn slab(count: u32) -> Arc<Slab<()>> {
        let slab = Arc::new(Slab::new(count, SIZE, 4));
        slab.map_memory(0).unwrap();
        slab
    }

    #[test]
    fn a_vacant_frame_is_not_shared_and_a_held_one_is_nobody_elses() {
        let slab = slab(2);
        assert!(slab.share(0).err().unwrap().is_vacant());
        let mut hold = slab.occupy(0, 2).unwrap();
        assert!(slab.share(0).err().unwrap().is_held());
        assert!(slab.hold(1, Some).is_none() && slab.occupy(1, 1).is_none());
        hold.bytes().fill(7);
        let second = hold.split_off(1);
        second.vacate();
        hold.open(0, |flags| flags | 4);
        let share = slab.share(0).ok().unwrap();
        assert!(share.iter().all(|byte| *byte == 7) && share.state().flags() == 4);
        assert!(slab.hold(0, Some).is_none(), "it is shared");
        assert_eq!(share.release().shares(), 1);
        assert!(slab.hold(0, |flags| (flags != 4).then_some(flags)).is_none(), "its user says no");
        let held = slab.hold(0, |flags| (flags == 4).then_some(8)).unwrap();
        assert_eq!(slab.state(0).flags(), 8);
        held.vacate();
        assert!(slab.state(0).is_vacant() && slab.state(0).flags() == 0);
    }

    #[test]
    fn what_is_lent_comes_back_as_a_whole() {
        let slab = slab(4);
        let mut hold = slab.occupy(1, 2).unwrap();
        let mut buffer = hold.lend();
        let tail = buffer.split_off(SIZE);
        buffer.fill(1);
        buffer.join(tail).unwrap();
        hold.take_back(buffer);
        assert_eq!((hold.bytes()[0], hold.bytes()[SIZE]), (1, 0));
        hold.vacate();
    }

    #[test]
    #[should_panic(expected = "not what was lent")]
    fn a_part_of_what_was_lent_is_not_taken_for_all() {
        let slab = slab(2);
        let mut hold = slab.occupy(0, 2).unwrap();
        let mut buffer = hold.lend();
        let _tail = buffer.split_off(SIZE);
        hold.take_back(buffer);
    }

    #[test]
    fn snapshots_outlive_the_hold_and_are_counted() {
        let slab = slab(1);
        let mut hold = slab.occupy(0, 1).unwrap();
        hold.bytes()[0] = 9;
        let (_, mut shares) = hold.open(3, |flags| flags);
        let first = shares.next().unwrap();
        drop(shares);
        assert_eq!((slab.state(0).shares(), first[0]), (1, 9));
        let again = slab.share(0).ok().unwrap().keep(&slab);
        assert_eq!(first.release().shares(), 2);
        drop(again);
        assert_eq!(slab.state(0).shares(), 0);
    }

    #[test]
    fn memory_goes_only_when_every_frame_is_vacant() {
        let slab = slab(2);
        let hold = slab.occupy(1, 1).unwrap();
        assert!(!slab.unmap_memory(0) && slab.is_mapped(0));
        hold.vacate();
        assert!(slab.unmap_memory(0) && !slab.is_mapped(0));
        assert!(slab.occupy(0, 1).is_none());
        slab.map_memory(0).unwrap();
        let mut hold = slab.occupy(0, 2).unwrap();
        assert!(hold.bytes().iter().all(|byte| *byte == 0));
        hold.vacate();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Loom sees who touches the bytes beside whom.
    #[test]
    fn loom_nobody_reads_beside_who_changes() {
        loom::model(|| {
            let slab = Arc::new(Slab::<()>::new(1, 4096, 1));
            slab.map_memory(0).unwrap();
            slab.occupy(0, 1).unwrap().open(0, |flags| flags);
            let theirs = slab.clone();
            let writer = loom::thread::spawn(move || {
                let held = theirs.hold(0, Some);
                held.map(|mut hold| {
                    hold.bytes()[0] = 1;
                    hold.open(0, |flags| flags | 1);
                })
                .is_some()
            });
            if let Ok(share) = slab.share(0) {
                assert_eq!(u32::from(share[0]), share.state().flags());
            }
            let has_written = writer.join().unwrap();
            assert_eq!(slab.share(0).ok().unwrap()[0] == 1, has_written);
        });
    }

    #[test]
    fn loom_memory_does_not_go_under_who_occupies() {
        loom::model(|| {
            let slab = Arc::new(Slab::<()>::new(1, 4096, 1));
            slab.map_memory(0).unwrap();
            let theirs = slab.clone();
            let other = loom::thread::spawn(move || theirs.unmap_memory(0));
            if let Some(mut hold) = slab.occupy(0, 1) {
                hold.bytes()[0] = 1;
                hold.vacate();
            }
            let is_gone = other.join().unwrap();
            assert_eq!(slab.is_mapped(0), !is_gone);
        });
    }
}
