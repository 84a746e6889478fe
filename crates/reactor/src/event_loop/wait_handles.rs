//! [`WaitHandles`]: the descriptor waits in flight on a ring.

use uringfs_ring::WaitHandle;

use crate::tasks::waiters::CellIndex;

/// The handles of the waits in flight, which cancel them, by cell.
#[derive(Default)]
pub(crate) struct WaitHandles {
    by_cell: Vec<Option<WaitHandle>>,
    count: usize,
}

impl WaitHandles {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn insert(&mut self, cell: CellIndex, handle: WaitHandle) {
        let cell = cell as usize;
        if self.by_cell.len() <= cell {
            self.by_cell.resize(cell + 1, None);
        }
        let old = self.by_cell[cell].replace(handle);
        assert!(old.is_none(), "a cell has one wait at a time");
        self.count += 1;
    }

    pub(crate) fn remove(&mut self, cell: CellIndex) -> Option<WaitHandle> {
        let handle = self.by_cell.get_mut(cell as usize)?.take()?;
        self.count -= 1;
        Some(handle)
    }
}
