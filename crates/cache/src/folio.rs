//! A folio: what is known of a frame besides its bytes. Its state, its lock and that somebody waits for it are
//! one word, the frame's (see [`uringfs_buffer::Slab`]); these are that word's flags.

#[cfg(not(loom))]
use zerocopy::{FromZeros, KnownLayout};

use uringfs_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes in a folio.
pub const FOLIO: u64 = 4096;

/// Somebody waits until it is held no more.
pub(crate) const WAITED: u32 = 1 << 0;
/// What it is being filled with is not what is to be there any more.
pub(crate) const STALE: u32 = 1 << 1;
/// It is nobody's any more: who shares it yet keeps the bytes, and the last one gives the frame back.
pub(crate) const DETACHED: u32 = 1 << 2;
/// Reading it starts the next window of readahead.
pub(crate) const MARKED: u32 = 1 << 3;
/// How often it was touched (see `eviction`): once, twice, three times, each with those before it, so that to set
/// one twice does no harm.
pub(crate) const TOUCHES: [u32; 3] = [1 << 4, 1 << 5, 1 << 6];

/// The device does not have its bytes: it does not leave by itself.
pub(crate) const UNSAVED: u32 = 1 << 7;

/// It leaves as soon as it has been read and the device has it, unless somebody else uses it.
pub(crate) const PASSING: u32 = 1 << 8;

/// Where the number of whoever fills it begins.
pub(crate) const FILLER: u32 = 16;
/// The number of whoever changes it, and does not wait for anything meanwhile.
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
