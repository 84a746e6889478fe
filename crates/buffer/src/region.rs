//! A contiguous piece of memory that several buffers share: allocated or
//! mapped as one, freed as one, and registered with a ring as one.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::slots::Slots;

/// How many regions may carry a [`RegionId`] at once; a region beyond that is
/// used without registration.
const MAX_IDS: u32 = 256;
const INDEX_BITS: u32 = 8;
const HUGE_PAGE: usize = 2 << 20;

/// What a region's pages are made of, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Reserved huge pages (`vm.nr_hugepages`).
    HugePages,
    /// Ordinary pages that the kernel was asked to merge into huge ones.
    Transparent,
    /// The allocator's memory.
    Heap,
}

/// Names a region to rings: a small index for the ring's table of registered
/// buffers, and a generation, so that an index used again is not mistaken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId(u32);

impl RegionId {
    /// The id of memory that is not worth registering.
    pub const NONE: RegionId = RegionId(u32::MAX);
    /// What a table holds where it has no region: no memory has this id.
    pub const EMPTY: RegionId = RegionId(u32::MAX - 1);
    /// Bound on [`RegionId::index`].
    pub const COUNT: u32 = MAX_IDS;

    /// Place in a ring's table of registered buffers, below [`Self::COUNT`];
    /// only meaningful for an id other than [`Self::NONE`].
    #[inline]
    pub fn index(self) -> u32 {
        self.0 & (MAX_IDS - 1)
    }
}

/// Free indexes, each with the generation it will carry next.
static FREE_IDS: Mutex<Option<Vec<(u32, u32)>>> = Mutex::new(None);

fn with_free_ids<T>(act: impl FnOnce(&mut Vec<(u32, u32)>) -> T) -> T {
    let mut guard = FREE_IDS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    act(guard.get_or_insert_with(|| (0..MAX_IDS).rev().map(|index| (index, 0)).collect()))
}

fn allocate_id() -> RegionId {
    with_free_ids(|free| free.pop())
        .map_or(RegionId::NONE, |(index, generation)| RegionId(generation << INDEX_BITS | index))
}

fn release_id(id: RegionId) {
    if id == RegionId::NONE {
        return;
    }
    // The largest generation is left out: with the last index it would be NONE.
    let generation = ((id.0 >> INDEX_BITS) + 1) % (u32::MAX >> INDEX_BITS);
    with_free_ids(|free| free.insert(0, (id.index(), generation)));
    DROPPED.fetch_add(1, Ordering::Release);
}

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// A contiguous piece of zeroed memory, freed when the last buffer in it is dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    length: usize,
    backing: Backing,
    alignment: usize,
    id: RegionId,
    /// Dangling for memory that is not worth registering.
    weak: Weak<Region>,
    /// Present when the region is divided into a pool's buffers.
    pub(crate) slots: Option<Slots>,
}

// SAFETY: the region itself only hands out its address; the buffers that own
// disjoint ranges of it, one owner a byte, are what reads and writes.
unsafe impl Send for Region {}
// SAFETY: as above; no method of Region touches the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// `length` bytes from the allocator, aligned to `alignment`, never registered.
    pub(crate) fn heap(length: usize, alignment: usize) -> Region {
        let layout = Layout::from_size_align(length, alignment).expect("bounded by the caller");
        // SAFETY: the caller asks for at least one byte, so the layout is not empty.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let (backing, id) = (Backing::Heap, RegionId::NONE);
        Region { base, length, backing, alignment, id, weak: Weak::new(), slots: None }
    }

    /// At least `length` bytes of mapped memory, huge pages when there.
    ///
    /// # Errors
    /// What `mmap` says when even ordinary pages are refused.
    pub(crate) fn mapped(length: usize, slots: Option<Slots>) -> io::Result<Arc<Region>> {
        let huge_length = length.next_multiple_of(HUGE_PAGE);
        let map = |length, flags| {
            // SAFETY: an anonymous mapping at an address the kernel chooses
            // aliases nothing; this Region unmaps it, once, in its drop.
            unsafe {
                mmap_anonymous(
                    ptr::null_mut(),
                    length,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | flags,
                )
            }
        };
        let (base, length, backing) = match map(huge_length, MapFlags::HUGETLB | MapFlags::POPULATE)
        {
            Ok(base) => (base, huge_length, Backing::HugePages),
            Err(_) => {
                let length = if length >= HUGE_PAGE { huge_length } else { length };
                (map(length, MapFlags::empty())?, length, Backing::Transparent)
            }
        };
        if backing == Backing::Transparent {
            // SAFETY: the range is the mapping made above. Advice only: a
            // kernel without transparent huge pages refuses, and plain pages serve.
            let _ = unsafe { madvise(base, length, Advice::LinuxHugepage) };
        }
        let base = NonNull::new(base.cast()).expect("mmap does not return null");
        Ok(Arc::new_cyclic(|weak| Region {
            base,
            length,
            backing,
            alignment: 0,
            id: allocate_id(),
            weak: weak.clone(),
            slots,
        }))
    }

    /// Address of the first byte, for registration with a ring.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // a region is never empty
    pub fn len(&self) -> usize {
        self.length
    }

    /// How many regions with an id are gone: when there are more, whoever has some registered looks which.
    #[inline]
    pub fn dropped() -> u64 {
        DROPPED.load(Ordering::Acquire)
    }

    /// Tells whether the region is still there, without keeping it.
    pub fn downgrade(&self) -> Weak<Region> {
        self.weak.clone()
    }

    /// What the pages are made of.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// The name that rings know this region by.
    pub fn id(&self) -> RegionId {
        self.id
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.backing == Backing::Heap {
            let layout = Layout::from_size_align(self.length, self.alignment)
                .expect("it was one when the region was made");
            // SAFETY: allocated in `heap` with this very layout; the last
            // buffer that could reach it held this region and is gone.
            unsafe { dealloc(self.base.as_ptr(), layout) };
        } else {
            // SAFETY: mapped in `mapped` with this base and length; no buffer
            // is left. Pages a ring still has registered stay pinned by the
            // kernel and are not reused before it lets go.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
            release_id(self.id);
        }
    }
}
