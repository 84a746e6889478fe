//! [`ExtentMap`]: where on the device the blocks of a file lie. Does no I/O.
//!
//! A map is a value: a clone costs one count and stays as it is whatever is done to the other, because
//! a change copies the few chunks on the way to it and shares the rest. Chunks that are not shared are
//! changed in place, so that many changes between two clones copy each chunk once.
//!
//! Readers find the map behind a pointer that they only load (`open_file`), and borrow what it points
//! to. Who changes a file takes a clone under the file's lock, changes it, and puts it in the pointer.
//! Cloning the map for each read would write the cache line of its count instead.

mod chunk;
mod tree;

use std::fmt;
use std::ops::Range;

use crate::space::extent::{Extent, InvalidExtent, State};
use tree::Tree;

/// Which extents a file has: in order, none over another, none that goes on where another ends.
#[derive(Clone, Default)]
pub struct ExtentMap {
    tree: Tree,
    extents: u64,
    blocks: u64,
}

/// What is at a block of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The extent that holds it, as a whole.
    Extent(Extent),
    /// No extent, up to block `end`: `u64::MAX` behind the last.
    Hole {
        /// The next block that an extent holds.
        end: u64,
    },
}

impl ExtentMap {
    /// A map of holes.
    pub fn new() -> ExtentMap {
        ExtentMap::default()
    }

    /// What is at `block`.
    #[inline]
    pub fn find(&self, block: u64) -> Found {
        let (extents, next) = self.tree.leaf_from(block);
        match extents.first() {
            Some(extent) if extent.offset <= block => Found::Extent(*extent),
            Some(extent) => Found::Hole { end: extent.offset },
            None => Found::Hole { end: next },
        }
    }

    /// Whether one written extent holds a range of blocks.
    pub fn is_written(&self, range: &Range<u64>) -> bool {
        matches!(self.find(range.start), Found::Extent(extent)
            if extent.state == State::Written && range.end <= extent.end())
    }

    /// The extents in order, from the one that holds `block` or the first behind it.
    pub fn iter_from(&self, block: u64) -> Iter<'_> {
        let (leaf, next) = self.tree.leaf_from(block);
        Iter { tree: &self.tree, leaf: leaf.iter(), next }
    }

    /// All extents in order.
    pub fn iter(&self) -> Iter<'_> {
        self.iter_from(0)
    }

    /// How many extents there are.
    pub fn len(&self) -> u64 {
        self.extents
    }

    /// Whether all of it is a hole.
    pub fn is_empty(&self) -> bool {
        self.extents == 0
    }

    /// Blocks of the device that the file has.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Puts an extent where it says. What lay there is answered, cut to it and in order.
    ///
    /// # Panics
    /// If it has no blocks.
    pub fn insert(&mut self, extent: Extent) -> Vec<Extent> {
        assert!(extent.length > 0, "an extent without blocks");
        self.replace(extent.range(), Some(extent))
    }

    /// Puts an extent behind all others, as they come when a file is read.
    ///
    /// # Errors
    /// [`InvalidExtent::Order`] when another one ends behind its beginning.
    pub fn push(&mut self, extent: Extent) -> Result<(), InvalidExtent> {
        if self.iter_from(extent.offset).next().is_some() {
            return Err(InvalidExtent::Order);
        }
        self.insert(extent);
        Ok(())
    }

    /// Makes a range of blocks of the file a hole. What lay there is answered, cut to it and in order.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<Extent> {
        self.replace(range, None)
    }

    /// Removes all from block `end` on.
    pub fn truncate(&mut self, end: u64) -> Vec<Extent> {
        self.remove(end..u64::MAX)
    }

    /// Makes what is unwritten in a range written, and answers how many blocks that were.
    pub fn convert(&mut self, range: Range<u64>) -> u64 {
        self.set_state(range, State::Written)
    }

    /// Makes what is written in a range unwritten, and answers how many blocks that were.
    pub fn unwrite(&mut self, range: Range<u64>) -> u64 {
        self.set_state(range, State::Unwritten)
    }

    fn set_state(&mut self, range: Range<u64>, state: State) -> u64 {
        let others: Vec<Extent> = self
            .iter_from(range.start)
            .map_while(|extent| extent.part(&range))
            .filter(|part| part.state != state)
            .collect();
        for part in &others {
            self.insert(Extent { state, ..*part });
        }
        others.iter().map(|part| part.length).sum()
    }

    /// Puts `with`, or nothing, in the place of a range, and answers what lay there.
    fn replace(&mut self, range: Range<u64>, with: Option<Extent>) -> Vec<Extent> {
        if range.is_empty() {
            return Vec::new();
        }
        let mut removed = Vec::new();
        let (mut before, mut after) = (None, None);
        // Also what only touches the range, since it may join what comes there.
        let (mut touched, mut place) = (0, range.clone());
        for extent in self.iter_from(range.start.saturating_sub(1)) {
            if extent.offset > range.end {
                break;
            }
            touched += 1;
            place = place.start.min(extent.offset)..place.end.max(extent.offset + 1);
            before = before.or(extent.part(&(0..range.start)));
            removed.extend(extent.part(&range));
            after = extent.part(&(range.end..u64::MAX));
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
    /// Where the next leaf begins.
    next: u64,
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
