//! Folios for which there is reservation on the device, and no place yet: that is found when they are saved, in long runs.

use std::collections::BTreeSet;
use std::ops::Range;

use uringfs_cache::FOLIO;

use crate::map::mapping::Promise;

/// Some of a file. Dropped, their room is given back.
#[derive(Debug, Default)]
pub(crate) struct DelayedFolios {
    folios: BTreeSet<u64>,
    reservation: Promise,
}

impl DelayedFolios {
    /// Each with its reservation.
    pub(crate) fn new(folios: BTreeSet<u64>, reservation: Promise) -> DelayedFolios {
        DelayedFolios { folios, reservation }
    }

    pub(crate) fn contains(&self, index: u64) -> bool {
        self.folios.contains(&index)
    }

    /// How many bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Their room, for a map that finds places for all of them.
    pub(crate) fn reservation(&mut self) -> &mut Promise {
        &mut self.reservation
    }

    /// Takes those of a range.
    pub(crate) fn take(&mut self, folios: Range<u64>) -> DelayedFolios {
        let taken: BTreeSet<u64> = self.folios.range(folios).copied().collect();
        taken.iter().for_each(|index| _ = self.folios.remove(index));
        let reservation = self.reservation.split_off(taken.len() as u64 * FOLIO);
        DelayedFolios { folios: taken, reservation }
    }

    /// Adds others, none of which is among them.
    pub(crate) fn merge(&mut self, other: DelayedFolios) {
        self.folios.extend(other.folios);
        self.reservation.join(other.reservation);
    }
}
