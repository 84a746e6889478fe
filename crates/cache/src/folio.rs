//! A folio: what is known of a frame besides its bytes. Its state, its lock and that somebody waits for it are
//! one word, the frame's (see [`uringfs_buffer::Slab`]); these are that word's flags.

#[cfg(not(loom))]
use zerocopy::{FromZeros, KnownLayout};

use uringfs_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes in a folio.
pub const FOLIO: u64 = 4096;

/// The folio has waiters.
pub(crate) const HAS_WAITERS: u32 = 1 << 0;
/// The folio was invalidated while it was held: its content is dropped when the holder opens it.
pub(crate) const STALE: u32 = 1 << 1;
/// The folio has left the index. Its shares keep the bytes, and the last one frees the frame.
pub(crate) const DETACHED: u32 = 1 << 2;
/// Reading it starts the next window of readahead.
pub(crate) const READAHEAD_MARKER: u32 = 1 << 3;
/// The access count (see `eviction`): one, two, three accesses, each flag with those before it, so that setting one
/// twice does no harm.
pub(crate) const ACCESS_COUNT: [u32; 3] = [1 << 4, 1 << 5, 1 << 6];

/// The device does not have its bytes yet: it is not evicted.
pub(crate) const DIRTY: u32 = 1 << 7;

/// It leaves as soon as it is read and clean, unless another reader uses it.
pub(crate) const DROPBEHIND: u32 = 1 << 8;

/// First bit of the filler's number.
pub(crate) const FILLER: u32 = 16;
/// The number of a writer, which waits for nothing while it holds the folio.
pub const WRITER: u16 = u16::MAX;

/// Which bytes of which file a frame has. It changes only while the frame is held.
#[cfg_attr(not(loom), derive(FromZeros, KnownLayout))]
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(crate) struct Folio {
    index: AtomicU64,
    file: AtomicU64,
    /// The link to the next folio in the same chain of the index.
    pub(crate) next: AtomicU32,
}

/// With its state half a cache line.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Folio>() == 24);

/// Names a folio: a file, and how many folios of it lie before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) file: u64,
    pub(crate) index: u64,
}

/// 2^64 by the golden ratio.
const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Key {
    /// Its chain among 2^`bits`: folios in a row have chains in a row, so that those of one file do not meet while it has
    /// fewer than there are chains; further on it begins elsewhere, or what lies far apart would.
    #[inline(always)]
    pub(crate) fn chain(self, bits: u32) -> usize {
        let begin = (self.index >> bits).wrapping_add(self.file << 24).wrapping_mul(ODD);
        (self.index.wrapping_add(begin >> 20) & ((1 << bits) - 1)) as usize
    }

    /// Spread over all bits.
    pub(crate) fn hash(self) -> u64 {
        let mixed = (self.index ^ self.file.rotate_left(40)).wrapping_mul(ODD);
        (mixed ^ mixed >> 32).wrapping_mul(ODD)
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

    pub(crate) fn name(&self, key: Key) {
        self.file.store(key.file, Ordering::Relaxed);
        self.index.store(key.index, Ordering::Relaxed);
    }
}
