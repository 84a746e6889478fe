//! [`ExtentMap`]: the device blocks of a file's blocks. Does no I/O.
//!
//! A map is a value. A clone costs one reference count, and later changes of either do not affect
//! the other: a change copies the few chunks on its path and shares the rest. Chunks that are not
//! shared are changed in place, so many changes between two clones copy each chunk once.
//!
//! Readers load a pointer to the map (`open_file`) and borrow the map. A change clones the map
//! under the file's lock, changes the clone, and stores it in the pointer. If each read cloned the
//! map, all reads would write the cache line of its reference count.

mod chunk;
mod tree;

use std::fmt;
use std::ops::Range;

use crate::space::extent::{Extent, ExtentState, InvalidExtent};
use tree::Tree;

/// The extents of a file: in order, without overlaps, and joined where they can be.
#[derive(Clone, Default)]
pub struct ExtentMap {
    tree: Tree,
    extents: u64,
    blocks: u64,
}

/// The content of a block of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentOrHole {
    /// The whole extent that holds the block.
    Extent(Extent),
    /// No extent holds the block.
    Hole {
        /// The first block of the next extent; `u64::MAX` if there is none.
        end: u64,
    },
}

impl ExtentMap {
    /// A map without extents.
    pub fn new() -> ExtentMap {
        ExtentMap::default()
    }

    /// The extent or hole at `block`.
    #[inline]
    pub fn find(&self, block: u64) -> ExtentOrHole {
        let (extents, next) = self.tree.leaf_from(block);
        match extents.first() {
            Some(extent) if extent.offset <= block => ExtentOrHole::Extent(*extent),
            Some(extent) => ExtentOrHole::Hole { end: extent.offset },
            None => ExtentOrHole::Hole { end: next },
        }
    }

    /// Whether one written extent holds a range of blocks.
    pub fn is_written(&self, range: &Range<u64>) -> bool {
        matches!(self.find(range.start), ExtentOrHole::Extent(extent)
            if extent.state == ExtentState::Written && range.end <= extent.end())
    }

    /// The extents in order, from the one that holds `block` or the first after it.
    pub fn iter_from(&self, block: u64) -> Iter<'_> {
        let (leaf, next) = self.tree.leaf_from(block);
        Iter { tree: &self.tree, leaf: leaf.iter(), next }
    }

    /// All extents in order.
    pub fn iter(&self) -> Iter<'_> {
        self.iter_from(0)
    }

    /// Number of extents.
    pub fn len(&self) -> u64 {
        self.extents
    }

    /// Whether there are no extents.
    pub fn is_empty(&self) -> bool {
        self.extents == 0
    }

    /// Blocks of the device that the file has.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Inserts an extent. Returns the extents that it replaces, cut to its range, in order.
    ///
    /// # Panics
    /// If the extent has no blocks.
    pub fn insert(&mut self, extent: Extent) -> Vec<Extent> {
        assert!(extent.length > 0, "an extent without blocks");
        self.replace(extent.range(), Some(extent))
    }

    /// Appends an extent after all others, as records are loaded.
    ///
    /// # Errors
    /// [`InvalidExtent::Order`] when another extent ends after its beginning.
    pub fn push(&mut self, extent: Extent) -> Result<(), InvalidExtent> {
        if self.iter_from(extent.offset).next().is_some() {
            return Err(InvalidExtent::Order);
        }
        self.insert(extent);
        Ok(())
    }

    /// Makes a range of blocks a hole. Returns the removed extents, cut to the range, in order.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<Extent> {
        self.replace(range, None)
    }

    /// Removes all blocks from `end` on. Returns the removed extents.
    pub fn truncate(&mut self, end: u64) -> Vec<Extent> {
        self.remove(end..u64::MAX)
    }

    /// Marks a range as written where it is unwritten. Returns the number of blocks changed.
    pub fn mark_written(&mut self, range: Range<u64>) -> u64 {
        self.set_state(range, ExtentState::Written)
    }

    /// Marks a range as unwritten where it is written. Returns the number of blocks changed.
    pub fn mark_unwritten(&mut self, range: Range<u64>) -> u64 {
        self.set_state(range, ExtentState::Unwritten)
    }

    fn set_state(&mut self, range: Range<u64>, state: ExtentState) -> u64 {
        let others: Vec<Extent> = self
            .iter_from(range.start)
            .map_while(|extent| extent.intersection(&range))
            .filter(|part| part.state != state)
            .collect();
        for part in &others {
            self.insert(Extent { state, ..*part });
        }
        others.iter().map(|part| part.length).sum()
    }

    /// Replaces a range by `with`, or by a hole. Returns what it replaces.
    fn replace(&mut self, range: Range<u64>, with: Option<Extent>) -> Vec<Extent> {
        if range.is_empty() {
            return Vec::new();
        }
        let mut removed = Vec::new();
        let (mut before, mut after) = (None, None);
        // Includes extents that only touch the range, since they may join the new one.
        let (mut touched, mut place) = (0, range.clone());
        for extent in self.iter_from(range.start.saturating_sub(1)) {
            if extent.offset > range.end {
                break;
            }
            touched += 1;
            place = place.start.min(extent.offset)..place.end.max(extent.offset + 1);
            before = before.or(extent.intersection(&(0..range.start)));
            removed.extend(extent.intersection(&range));
            after = extent.intersection(&(range.end..u64::MAX));
        }
        if removed.is_empty() && with.is_none() {
            return removed;
        }
        let mut fresh: Vec<Extent> = Vec::with_capacity(3);
        for extent in [before, with, after].into_iter().flatten() {
            match fresh.last_mut().and_then(|last| Some((last.join(&extent)?, last))) {
                Some((joined, last)) => *last = joined,
                None => fresh.push(extent),
            }
        }
        self.tree.splice(place, &fresh);
        self.extents = self.extents + fresh.len() as u64 - touched;
        self.blocks += with.map_or(0, |extent| extent.length);
        self.blocks -= removed.iter().map(|extent| extent.length).sum::<u64>();
        removed
    }
}

impl PartialEq for ExtentMap {
    fn eq(&self, other: &ExtentMap) -> bool {
        self.extents == other.extents && self.iter().eq(other.iter())
    }
}

impl Eq for ExtentMap {}

impl fmt::Debug for ExtentMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.iter()).finish()
    }
}

/// Extents of a map in order; see [`ExtentMap::iter_from`].
#[derive(Clone)]
pub struct Iter<'a> {
    tree: &'a Tree,
    leaf: std::slice::Iter<'a, Extent>,
    /// The first block of the next leaf.
    next: u64,
}

impl fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Iter").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Iterator for Iter<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        if self.leaf.as_slice().is_empty() && self.next != u64::MAX {
            let (leaf, next) = self.tree.leaf_from(self.next);
            (self.leaf, self.next) = (leaf.iter(), next);
        }
        self.leaf.next().copied()
    }
}
