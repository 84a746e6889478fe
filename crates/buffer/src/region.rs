//! A contiguous range of memory that several buffers share. It is allocated or
//! mapped as one, freed as one, and registered with a ring as one.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::io;
use std::mem;
use std::panic::RefUnwindSafe;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::slots::Slots;

/// The most regions with a [`RegionId`] at once. Further regions are used
/// without registration.
const MAX_IDS: u32 = 256;
const INDEX_BITS: u32 = 8;
/// Marks the ids of memory that others change.
const SHARED_BIT: u32 = 1 << 31;
const HUGE_PAGE: usize = 2 << 20;

/// Identifies a region to rings: a small index into the ring's table of registered
/// buffers, and a generation, which distinguishes the users of a reused index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId(u32);

impl RegionId {
    /// The id of memory that is not registered.
    pub const NONE: RegionId = RegionId(!SHARED_BIT);
    /// Marks an empty entry of a table: no region has this id.
    pub const EMPTY: RegionId = RegionId(!SHARED_BIT - 1);
    /// The id of memory that must not be written: that of a value which a write takes. Never registered.
    pub const READ_ONLY: RegionId = RegionId(!SHARED_BIT - 2);
    /// The id of memory that others change, if it is not registered.
    const SHARED: RegionId = RegionId::NONE.of_shared();
    /// The number of indexes: [`RegionId::index`] is below it.
    pub const COUNT: u32 = MAX_IDS;

    /// Index in a ring's table of registered buffers, below [`Self::COUNT`].
    /// Only meaningful for an id other than [`Self::NONE`].
    #[inline]
    pub fn index(self) -> u32 {
        self.0 & (MAX_IDS - 1)
    }

    /// True for memory that others change: see [`SharedMemory`](crate::SharedMemory).
    #[inline]
    pub fn is_shared(self) -> bool {
        self.0 & SHARED_BIT != 0
    }

    /// True for memory that rings do not register.
    pub fn is_unregistered(self) -> bool {
        matches!(self, RegionId::NONE | RegionId::SHARED | RegionId::READ_ONLY)
    }

    const fn of_shared(self) -> RegionId {
        RegionId(self.0 | SHARED_BIT)
    }
}

/// Free indexes, each with its next generation.
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
    if id.is_unregistered() {
        return;
    }
    // Skips the largest generation: with the last indexes it would be one of the special ids.
    let generation = (((id.0 & !SHARED_BIT) >> INDEX_BITS) + 1) % (!SHARED_BIT >> INDEX_BITS);
    with_free_ids(|free| free.insert(0, (id.index(), generation)));
    DROPPED.fetch_add(1, Ordering::Release);
}

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// A contiguous range of zeroed memory, freed when the last buffer in it is dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    length: usize,
    owner: Owner,
    id: RegionId,
    /// Dangling for memory that is not registered.
    weak: Weak<Region>,
    /// Present when the region is divided into a pool's buffers.
    pub(crate) slots: Option<Slots>,
}

/// The origin of the memory, which frees it.
#[derive(Debug)]
enum Owner {
    Allocator { alignment: usize },
    Mapping,
    Value(Box<dyn Any + Send>),
}

// SAFETY: the region itself only hands out its address. Reads and writes go
// through buffers, which own disjoint ranges of it, one owner a byte.
unsafe impl Send for Region {}
// SAFETY: as above; no method of Region touches the bytes.
unsafe impl Sync for Region {}
// As above: the value, too, is used only by the last owner.
impl RefUnwindSafe for Region {}

impl Region {
    /// `length` bytes from the allocator, aligned to `alignment`, never registered.
    pub(crate) fn heap(length: usize, alignment: usize) -> Region {
        let layout = Layout::from_size_align(length, alignment).expect("bounded by the caller");
        // SAFETY: the caller requests at least one byte, so the layout is not empty.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let (owner, id) = (Owner::Allocator { alignment }, RegionId::NONE);
        Region { base, length, owner, id, weak: Weak::new(), slots: None }
    }

    /// The memory of `value`: `length` bytes at `base`, which keep their address as long as it exists.
    pub(crate) fn of_value(
        base: NonNull<u8>,
        length: usize,
        id: RegionId,
        value: Box<dyn Any + Send>,
    ) -> Region {
        Region { base, length, owner: Owner::Value(value), id, weak: Weak::new(), slots: None }
    }

    /// Memory that others change, which `owner` keeps in place. Rings register it if `registered`.
    pub(crate) fn shared(
        base: NonNull<u8>,
        length: usize,
        registered: bool,
        owner: Box<dyn Any + Send>,
    ) -> Arc<Region> {
        let id = if registered { allocate_id() } else { RegionId::NONE };
        Arc::new_cyclic(|weak| Region {
            base,
            length,
            owner: Owner::Value(owner),
            id: id.of_shared(),
            weak: weak.clone(),
            slots: None,
        })
    }

    /// The value whose memory this is.
    pub(crate) fn into_value(mut self) -> Option<Box<dyn Any + Send>> {
        match &mut self.owner {
            Owner::Value(value) => Some(mem::replace(value, Box::new(()))),
            Owner::Allocator { .. } | Owner::Mapping => None,
        }
    }

    /// At least `length` bytes of mapped memory, in transparent huge pages where the kernel has them. Never in those that the
    /// host reserves (`vm.nr_hugepages`): these are other programs', and the first use of one that a control group's limit
    /// does not allow ends in SIGBUS.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(crate) fn mapped(length: usize, slots: Option<Slots>) -> io::Result<Arc<Region>> {
        let length = match length {
            ..HUGE_PAGE => length,
            HUGE_PAGE.. => length.next_multiple_of(HUGE_PAGE),
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: an anonymous mapping at an address the kernel chooses
        // aliases nothing; this Region unmaps it, once, in its drop.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE) }?;
        // SAFETY: the range is the mapping made above. Advice only: a
        // kernel without transparent huge pages refuses, and plain pages serve.
        let _ = unsafe { madvise(base, length, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).expect("mmap does not return null");
        Ok(Arc::new_cyclic(|weak| Region {
            base,
            length,
            owner: Owner::Mapping,
            id: allocate_id(),
            weak: weak.clone(),
            slots,
        }))
    }

    /// Address of the first byte, for registration with a ring.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // only the region of an empty value is empty
    pub fn len(&self) -> usize {
        self.length
    }

    /// The number of dropped regions that had an id. When it grows, a ring checks which of its registered regions
    /// are gone.
    #[inline]
    pub fn dropped() -> u64 {
        DROPPED.load(Ordering::Acquire)
    }

    /// A weak reference, to check whether the region still exists.
    pub fn downgrade(&self) -> Weak<Region> {
        self.weak.clone()
    }

    /// The id of this region in rings.
    #[inline]
    pub fn id(&self) -> RegionId {
        self.id
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.owner {
            Owner::Allocator { alignment } => {
                let layout = Layout::from_size_align(self.length, alignment)
                    .expect("the layout was valid when the region was made");
                // SAFETY: allocated in `heap` with this same layout; the last buffer
                // that could access it held this region and is gone.
                unsafe { dealloc(self.base.as_ptr(), layout) };
            }
            Owner::Mapping => {
                // SAFETY: mapped in `mapped` with this base and length; no buffer
                // is left. Pages that a ring still has registered stay pinned by the
                // kernel and are not reused before the ring unregisters them.
                let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
            }
            // Dropped with the region.
            Owner::Value(_) => {}
        }
        release_id(self.id);
    }
}
