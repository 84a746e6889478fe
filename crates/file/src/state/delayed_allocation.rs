//! Folios for which there is room on the device, and no place yet: that is found when they are saved, in long runs.

use std::collections::BTreeSet;
use std::ops::Range;

use uringfs_cache::FOLIO;

use crate::map::mapping::Promise;

/// Some of a file. Dropped, their room is given back.
#[derive(Debug, Default)]
pub(crate) struct Promised {
    folios: BTreeSet<u64>,
    room: Promise,
}

impl Promised {
    /// Each with its room.
    pub(crate) fn new(folios: BTreeSet<u64>, room: Promise) -> Promised {
        Promised { folios, room }
    }

    pub(crate) fn contains(&self, index: u64) -> bool {
        self.folios.contains(&index)
    }

    /// How many bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.room.bytes()
    }

    /// Their room, for a map that finds places for all of them.
    pub(crate) fn room(&mut self) -> &mut Promise {
        &mut self.room
    }

    /// Takes those of a range.
    pub(crate) fn take(&mut self, folios: Range<u64>) -> Promised {
        let taken: BTreeSet<u64> = self.folios.range(folios).copied().collect();
        taken.iter().for_each(|index| _ = self.folios.remove(index));
        let room = self.room.split_off(taken.len() as u64 * FOLIO);
        Promised { folios: taken, room }
    }

    /// Adds others, none of which is among them.
    pub(crate) fn join(&mut self, other: Promised) {
        self.folios.extend(other.folios);
        self.room.join(other.room);
    }
}
