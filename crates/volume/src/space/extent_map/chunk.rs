//! The nodes of the tree: a few items in the order of their first blocks. The numbers of these
//! blocks are also in an array of fixed size, so a search takes the same few steps however full it is.

/// An element of a chunk.
pub(super) trait Item: Clone {
    /// The first block of the file that the item covers.
    fn first(&self) -> u64;
}

/// At most `N` items, a power of two, in the order of their first blocks.
pub(super) struct Chunk<T, const N: usize> {
    /// The first block of each item; `u64::MAX` after the last item.
    firsts: [u64; N],
    pub(super) items: Vec<T>,
}

impl<T: Item, const N: usize> Chunk<T, N> {
    pub(super) const CAPACITY: usize = N;

    /// A chunk of at most `N` items.
    pub(super) fn new(items: Vec<T>) -> Chunk<T, N> {
        let mut chunk = Chunk { firsts: [u64::MAX; N], items };
        chunk.index();
        chunk
    }

    /// Index of the last item that does not begin after `block`, a number below `u64::MAX`. 0 if
    /// there is none.
    #[inline]
    pub(super) fn index_of(&self, block: u64) -> usize {
        const { assert!(N.is_power_of_two()) };
        // With constant sizes the compiler unrolls this, without a branch or a bounds check: four
        // instructions a step, where a search of a slice takes ten.
        let mut index = 0;
        let mut half = N / 2;
        while half > 0 {
            index += if self.firsts[index + half] <= block { half } else { 0 };
            half /= 2;
        }
        index
    }

    /// The first block of item `index`, or `u64::MAX`.
    #[inline]
    pub(super) fn first(&self, index: usize) -> u64 {
        self.firsts.get(index).copied().unwrap_or(u64::MAX)
    }

    /// Changes the items. Returns the right part if they exceed the capacity.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut Vec<T>)) -> Option<Chunk<T, N>> {
        let last = self.items.last().map(Item::first);
        change(&mut self.items);
        let right = (self.items.len() > N).then(|| {
            // A tree that grows only at its end gets full chunks.
            let has_grown_at_end = self.items.last().map(Item::first) > last;
            let at = if has_grown_at_end { N } else { self.items.len() / 2 };
            Chunk::new(self.items.split_off(at))
        });
        self.index();
        right
    }

    fn index(&mut self) {
        let (used, free) = self.firsts.split_at_mut(self.items.len());
        for (first, item) in used.iter_mut().zip(&self.items) {
            *first = item.first();
        }
        free.fill(u64::MAX);
    }
}

impl<T: Item, const N: usize> Clone for Chunk<T, N> {
    /// With capacity for the next insertions, which would copy the items again otherwise.
    fn clone(&self) -> Chunk<T, N> {
        let mut items = Vec::with_capacity((self.items.len() + 2).next_multiple_of(8));
        items.extend_from_slice(&self.items);
        Chunk { firsts: self.firsts, items }
    }
}
