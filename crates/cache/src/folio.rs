//! A folio: the metadata of a frame. State, lock and waiters flag are one word of the frame (see
//! [`uringfs_buffer::Slab`]); the flags here are bits of that word.

#[cfg(not(loom))]
use zerocopy::{FromZeros, KnownLayout};

use uringfs_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes in a folio.
pub const FOLIO: u64 = 4096;

/// The folio has waiters.
pub(crate) const HAS_WAITERS: u32 = 1 << 0;
/// The folio was invalidated while it was locked: its content is dropped when the holder unlocks it.
pub(crate) const STALE: u32 = 1 << 1;
/// The folio has left the index. Its shares keep the bytes, and the last one frees the frame.
pub(crate) const DETACHED: u32 = 1 << 2;
/// Reading it starts the next window of readahead.
pub(crate) const READAHEAD_MARKER: u32 = 1 << 3;
/// The access count (see `eviction`), in unary: one, two, three accesses. Setting a flag twice does no harm.
pub(crate) const ACCESS_COUNT: [u32; 3] = [1 << 4, 1 << 5, 1 << 6];

/// The device does not have its bytes yet. It is not evicted.
pub(crate) const DIRTY: u32 = 1 << 7;

/// It leaves as soon as it is read and clean, unless another reader uses it.
pub(crate) const DROPBEHIND: u32 = 1 << 8;

/// First bit of the lock holder's number.
pub(crate) const HOLDER_SHIFT: u32 = 16;
/// The number of any writer. A writer waits for nothing while it has the lock.
pub const WRITER: u16 = u16::MAX;

/// The file and index of the folio in a frame. They change only while the folio is locked.
#[cfg_attr(not(loom), derive(FromZeros, KnownLayout))]
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(crate) struct Folio {
    index: AtomicU64,
    file: AtomicU64,
    /// The link to the next folio in the same chain of the index.
    pub(crate) next: AtomicU32,
}

// With the frame's state this is half a cache line.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Folio>() == 24);

/// The key of a folio: its file, and its index in the file, in folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) file: u64,
    pub(crate) index: u64,
}

/// 2^64 divided by the golden ratio.
const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

impl Key {
    /// Its chain among 2^`bits`. Adjacent folios have adjacent chains, so the folios of a file collide only when the
    /// file has more folios than there are chains. Each further span of 2^`bits` folios starts at another chain, so
    /// that folios far apart do not collide systematically.
    #[inline(always)]
    pub(crate) fn chain(self, bits: u32) -> usize {
        let begin = (self.index >> bits).wrapping_add(self.file << 24).wrapping_mul(GOLDEN_RATIO);
        (self.index.wrapping_add(begin >> 20) & ((1 << bits) - 1)) as usize
    }

    /// A hash that varies in all bits.
    pub(crate) fn hash(self) -> u64 {
        let mixed = (self.index ^ self.file.rotate_left(40)).wrapping_mul(GOLDEN_RATIO);
        (mixed ^ mixed >> 32).wrapping_mul(GOLDEN_RATIO)
    }
}

impl Folio {
    #[inline(always)]
    pub(crate) fn is(&self, key: Key) -> bool {
        self.index.load(Ordering::Relaxed) == key.index
            && self.file.load(Ordering::Relaxed) == key.file
    }

    pub(crate) fn key(&self) -> Key {
        let (file, index) = (self.file.load(Ordering::Relaxed), self.index.load(Ordering::Relaxed));
        Key { file, index }
    }

    pub(crate) fn set_key(&self, key: Key) {
        self.file.store(key.file, Ordering::Relaxed);
        self.index.store(key.index, Ordering::Relaxed);
    }
}
