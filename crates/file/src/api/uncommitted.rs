//! Writes of which only this process knows where their bytes are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::state::file::File;

/// Finds the changes of a file that end with the process, even though the machine runs on: those that give a volume's file
/// blocks, or take some from it, until the volume has committed that, and all on a device that is
/// [cached in this process](uringfs_device::Geometry::cached_in_process). A server of disks whose clients outlive it
/// acknowledges such a change only once it is durable. Other writes are in the page cache of the kernel, or on the device.
///
/// ```
/// # mod uringfs {
/// #     pub use uringfs_file::File;
/// #     pub mod device { pub use uringfs_device::*; }
/// #     pub mod file { pub use uringfs_file::{FileOptions, UncommittedChanges}; }
/// # }
/// use uringfs::File;
/// use uringfs::device::Device;
/// use uringfs::device::backend::memory::Memory;
/// use uringfs::file::{FileOptions, UncommittedChanges};
///
/// let file = File::from_device(Device::new(Memory::new(1 << 20)?)?, FileOptions::new());
/// let changes = UncommittedChanges::default();
/// // A whole device has its blocks where they are.
/// assert!(changes.begin_write(&file, 0, 4096).is_none());
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct UncommittedChanges {
    counts: Arc<ChangeCounts>,
}

#[derive(Debug, Default)]
struct ChangeCounts {
    under_way: AtomicUsize,
    /// All that have failed. Each may have given the file blocks all the same.
    failed: AtomicUsize,
    /// How many of the failed ones a later change has committed with its own.
    settled: AtomicUsize,
}

/// A change that is not committed, from before it begins until [`Self::committed`]. Dropped without that call, it has failed: all
/// writes are changes then, until one that began later is committed.
#[derive(Debug)]
pub struct UncommittedChange {
    counts: Arc<ChangeCounts>,
    failed_before: usize,
    is_committed: bool,
}

impl UncommittedChanges {
    /// Before a write of `length` bytes at `offset`: `Some` if it has to be durable before it is acknowledged, and then
    /// [committed](UncommittedChange::committed).
    pub fn begin_write(&self, file: &File, offset: u64, length: u64) -> Option<UncommittedChange> {
        match !file.geometry().cached_in_process && self.is_in_place(file, offset, length) {
            true => None,
            false => self.begin_change(file),
        }
    }

    /// The same before a change that may give blocks back, such as zeroing.
    pub fn begin_change(&self, file: &File) -> Option<UncommittedChange> {
        let ends_with_process = file.geometry().cached_in_process || file.resizable_map().is_some();
        ends_with_process.then(|| UncommittedChange::begin(&self.counts))
    }

    /// Whether a range has its blocks, committed.
    fn is_in_place(&self, file: &File, offset: u64, length: u64) -> bool {
        let has_blocks = offset
            .checked_add(length)
            .is_some_and(|end| end <= file.len() && file.find_hole(offset..end).is_none());
        // After the look at the blocks: a change that has given them to the range meanwhile is still counted then, or
        // committed.
        has_blocks && self.counts.are_all_committed()
    }
}

impl ChangeCounts {
    fn are_all_committed(&self) -> bool {
        // A change that fails is counted as failed first.
        self.under_way.load(Ordering::Acquire) == 0
            && self.settled.load(Ordering::Acquire) == self.failed.load(Ordering::Acquire)
    }
}

impl UncommittedChange {
    fn begin(counts: &Arc<ChangeCounts>) -> UncommittedChange {
        counts.under_way.fetch_add(1, Ordering::Acquire);
        let failed_before = counts.failed.load(Ordering::Acquire);
        UncommittedChange { counts: counts.clone(), failed_before, is_committed: false }
    }

    /// The change is durable, with all that was done to the file before it began.
    pub fn committed(mut self) {
        self.is_committed = true;
    }
}

impl Drop for UncommittedChange {
    fn drop(&mut self) {
        match self.is_committed {
            true => self.counts.settled.fetch_max(self.failed_before, Ordering::Release),
            false => self.counts.failed.fetch_add(1, Ordering::Release),
        };
        self.counts.under_way.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use uringfs_device::backend::memory::Memory;
    use uringfs_device::{Backend, Device, Errno, Geometry, KernelTarget, Request};

    use super::*;
    use crate::state::options::FileOptions;

    const SIZE: u64 = 1 << 20;

    fn on(backend: impl Backend) -> File {
        File::from_device(Device::new(backend).unwrap(), FileOptions::new())
    }

    #[test]
    fn after_a_change_that_failed_no_write_is_in_place_until_a_later_change_is_committed() {
        let file = on(Memory::new(SIZE).unwrap());
        let changes = UncommittedChanges::default();
        let begin = || UncommittedChange::begin(&changes.counts);
        let is_in_place = || changes.is_in_place(&file, 0, 4096);
        begin().committed();
        assert!(is_in_place());
        let earlier = begin();
        drop(begin());
        assert!(!is_in_place());
        earlier.committed();
        assert!(!is_in_place(), "it need not have committed what failed");
        let later = begin();
        assert!(!is_in_place());
        later.committed();
        assert!(is_in_place());
    }

    #[test]
    fn every_change_ends_with_the_process_whose_memory_is_the_cache() {
        struct Cached(Geometry);
        impl Backend for Cached {
            fn geometry(&self) -> &Geometry {
                &self.0
            }
            fn description(&self) -> String {
                "cached".into()
            }
            fn kernel_target(&self) -> KernelTarget<'_> {
                KernelTarget::InProcess
            }
            fn perform(&self, _: &mut Request) -> Result<u32, Errno> {
                Err(Errno::IO)
            }
        }
        for cached_in_process in [false, true] {
            let memory = Memory::new(SIZE).unwrap();
            let file = on(Cached(Geometry { cached_in_process, ..memory.geometry().clone() }));
            let changes = UncommittedChanges::default();
            assert_eq!(changes.begin_write(&file, 0, 4096).is_some(), cached_in_process);
            assert_eq!(changes.begin_change(&file).is_some(), cached_in_process);
        }
    }
}
