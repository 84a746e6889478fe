//! The region with the longest free run. A tree in an array: each node holds the larger of its two
//! children.

/// One number for each region, and the position of the largest.
pub(super) struct MaxTree {
    /// The root is at 1, and the children of `index` at `2 * index` and after it. The second half
    /// holds the regions.
    tree: Vec<u16>,
}

impl MaxTree {
    pub(super) fn new(numbers: impl ExactSizeIterator<Item = u16>) -> MaxTree {
        let leaves = numbers.len().next_power_of_two();
        let mut tree = vec![0; leaves];
        tree.extend(numbers);
        tree.resize(2 * leaves, 0);
        for index in (1..leaves).rev() {
            tree[index] = tree[2 * index].max(tree[2 * index + 1]);
        }
        MaxTree { tree }
    }

    pub(super) fn set(&mut self, region: u32, number: u16) {
        let mut index = self.tree.len() / 2 + region as usize;
        self.tree[index] = number;
        while index > 1 {
            index /= 2;
            let larger = self.tree[2 * index].max(self.tree[2 * index + 1]);
            if self.tree[index] == larger {
                break;
            }
            self.tree[index] = larger;
        }
    }

    /// The first region with the largest number.
    pub(super) fn largest(&self) -> u32 {
        let leaves = self.tree.len() / 2;
        let mut index = 1;
        while index < leaves {
            index *= 2;
            if self.tree[index] < self.tree[index + 1] {
                index += 1;
            }
        }
        (index - leaves) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_region_with_the_largest_number_is_found(
            numbers in proptest::collection::vec(0u16..9, 1..70),
            changes in proptest::collection::vec((0usize..70, 0u16..12), 0..70),
        ) {
            let mut numbers = numbers;
            let mut longest = MaxTree::new(numbers.iter().copied());
            for (region, number) in changes {
                let region = region % numbers.len();
                numbers[region] = number;
                longest.set(region as u32, number);
                let largest = numbers.iter().max().unwrap();
                let first = numbers.iter().position(|number| number == largest).unwrap();
                prop_assert_eq!(longest.largest(), first as u32);
            }
        }
    }
}
