//! Delayed allocation: dirty folios with reserved space and no blocks. Write-back chooses the blocks, in long
//! runs.

use std::collections::BTreeSet;
use std::ops::Range;

use uringfs_cache::FOLIO;

use crate::map::mapping::SpaceReservation;

/// Dirty folios of one file that have reserved space and no blocks. Dropping them returns their space.
#[derive(Debug, Default)]
pub(crate) struct DelayedFolios {
    folios: BTreeSet<u64>,
    reservation: SpaceReservation,
}

impl DelayedFolios {
    /// `reservation` holds one folio's bytes for each.
    pub(crate) fn new(folios: BTreeSet<u64>, reservation: SpaceReservation) -> DelayedFolios {
        DelayedFolios { folios, reservation }
    }

    pub(crate) fn contains(&self, index: u64) -> bool {
        self.folios.contains(&index)
    }

    /// Their space, for the map that allocates it.
    pub(crate) fn reservation(&mut self) -> &mut SpaceReservation {
        &mut self.reservation
    }

    /// Splits off the folios of a range, with their space.
    pub(crate) fn take(&mut self, folios: Range<u64>) -> DelayedFolios {
        let taken: BTreeSet<u64> = self.folios.range(folios).copied().collect();
        taken.iter().for_each(|index| _ = self.folios.remove(index));
        let reservation = self.reservation.split_off(taken.len() as u64 * FOLIO);
        DelayedFolios { folios: taken, reservation }
    }

    /// Adds folios that are not in the set.
    pub(crate) fn merge(&mut self, other: DelayedFolios) {
        self.folios.extend(other.folios);
        self.reservation.join(other.reservation);
    }
}
