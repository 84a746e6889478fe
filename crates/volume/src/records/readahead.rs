//! [`GroupReadahead`]: decides when a read of one record takes those of neighbouring inodes with it. Does no I/O.
//!
//! Inodes are numbered as they are created, so a walk of a tree needs neighbours, in the order of their names. The sign
//! of a walk is therefore not that numbers ascend, but a second miss in a group of numbers.

use std::ops::Range;

/// The inodes of a group. Their records fill about seven pages.
pub(crate) const GROUP_INODES: usize = 256;
/// The bytes with which all keys of a group begin.
pub(crate) const GROUP_KEY_BYTES: usize = 7;
/// The groups that are remembered.
const SLOTS: usize = 64;

/// The groups in which a record was missed last. A group has the slot of its number modulo [`SLOTS`], until another
/// group takes it.
#[derive(Debug)]
pub(crate) struct GroupReadahead {
    slots: [Option<(u64, GroupState)>; SLOTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupState {
    /// One record was missed since the group was read.
    Missed,
    /// Reading the group is of no use.
    Excluded,
}

impl Default for GroupReadahead {
    fn default() -> GroupReadahead {
        GroupReadahead { slots: [None; SLOTS] }
    }
}

impl GroupReadahead {
    /// Notes that an inode's record was not in memory. Returns the keys of its group if the group is to be read, too.
    pub(crate) fn miss(&mut self, key: &[u8]) -> Option<Range<Vec<u8>>> {
        let group = group_of(key);
        let slot = self.slot(group);
        match *slot {
            Some((there, GroupState::Missed)) if there == group => {
                *slot = None;
                Some(group_key(group)?..group_key(group + 1)?)
            }
            Some((there, GroupState::Excluded)) if there == group => None,
            _ => {
                *slot = Some((group, GroupState::Missed));
                None
            }
        }
    }

    /// Stops reading the group of a key, until another group takes its slot.
    pub(crate) fn exclude(&mut self, key: &[u8]) {
        let group = group_of(key);
        *self.slot(group) = Some((group, GroupState::Excluded));
    }

    fn slot(&mut self, group: u64) -> &mut Option<(u64, GroupState)> {
        &mut self.slots[group as usize % SLOTS]
    }
}

fn group_of(key: &[u8]) -> u64 {
    key[..GROUP_KEY_BYTES].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The first key of a group; `None` after the last.
fn group_key(group: u64) -> Option<Vec<u8>> {
    let [0, key @ ..] = group.to_be_bytes() else { return None };
    Some(key.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn miss(readahead: &mut GroupReadahead, inode: u64) -> Option<Range<Vec<u8>>> {
        readahead.miss(&inode.to_be_bytes())
    }

    #[test]
    fn the_second_miss_in_a_group_reads_the_group() {
        let mut readahead = GroupReadahead::default();
        assert_eq!(miss(&mut readahead, 0x1203), None);
        assert_eq!(miss(&mut readahead, 0x1301), None);
        let keys = vec![0, 0, 0, 0, 0, 0, 0x12]..vec![0, 0, 0, 0, 0, 0, 0x13];
        assert_eq!(miss(&mut readahead, 0x12ff), Some(keys.clone()));
        for (inode, is_inside) in [(0x11ff, false), (0x1200, true), (0x12ff, true), (0x1300, false)]
        {
            assert_eq!(keys.contains(&u64::to_be_bytes(inode).to_vec()), is_inside, "{inode:x}");
        }
        // The records that were read may have been evicted.
        assert_eq!(miss(&mut readahead, 0x1203), None);
        assert_eq!(miss(&mut readahead, 0x1204), Some(keys));
        assert!(miss(&mut readahead, 0x13ff).is_some());
    }

    #[test]
    fn misses_far_from_each_other_read_no_group() {
        let mut readahead = GroupReadahead::default();
        for step in 0..1000 {
            assert_eq!(miss(&mut readahead, step * 65 * 256), None);
        }
    }

    #[test]
    fn an_excluded_group_is_not_read() {
        let mut readahead = GroupReadahead::default();
        miss(&mut readahead, 7);
        let keys = miss(&mut readahead, 8).unwrap();
        readahead.exclude(&keys.start);
        assert!((0..256).all(|inode| miss(&mut readahead, inode).is_none()));
        assert_eq!(miss(&mut readahead, 256), None);
        assert!(miss(&mut readahead, 257).is_some());
    }

    #[test]
    fn the_last_group_has_no_end_and_is_not_read() {
        let mut readahead = GroupReadahead::default();
        for inode in [u64::MAX - 1, u64::MAX - 256] {
            miss(&mut readahead, inode);
        }
        assert_eq!(miss(&mut readahead, u64::MAX - 1), None);
        assert!(miss(&mut readahead, u64::MAX - 256).is_some());
    }
}
