//! Writes of which only this process knows where their bytes are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::state::file::File;

/// Finds the changes of a file that end with the process, even though the machine runs on: those that give a volume's file
/// blocks, or take some from it, until the volume has committed that. A server of disks whose clients outlive it acknowledges
/// such a change only once it is durable. Other writes are in the page cache of the kernel, or on the device.
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
/// let file = File::over(Device::new(Memory::new(1 << 20)?)?, FileOptions::new());
/// let changes = UncommittedChanges::default();
/// // A whole device has its blocks where they are.
/// assert!(changes.begin_write(&file, 0, 4096).is_none());
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct UncommittedChanges {
    under_way: Arc<AtomicUsize>,
}

/// A change that is not committed, from before it begins until [`Self::committed`]. One that fails may have given the file blocks
/// all the same: dropped without that call, it makes all later writes changes, too.
#[derive(Debug)]
pub struct UncommittedChange {
    under_way: Arc<AtomicUsize>,
}

impl UncommittedChanges {
    /// Before a write of `length` bytes at `offset`: `Some` if it has to be durable before it is acknowledged, and then
    /// [committed](UncommittedChange::committed).
    pub fn begin_write(&self, file: &File, offset: u64, length: u64) -> Option<UncommittedChange> {
        match self.is_in_place(file, offset, length) {
            true => None,
            false => self.begin_change(file),
        }
    }

    /// The same before a change that may give blocks back, such as zeroing.
    pub fn begin_change(&self, file: &File) -> Option<UncommittedChange> {
        file.resizable_map().map(|_| {
            self.under_way.fetch_add(1, Ordering::Acquire);
            UncommittedChange { under_way: self.under_way.clone() }
        })
    }

    /// Whether a range has its blocks, committed.
    fn is_in_place(&self, file: &File, offset: u64, length: u64) -> bool {
        let has_blocks = offset
            .checked_add(length)
            .is_some_and(|end| end <= file.len() && file.find_hole(offset..end).is_none());
        // After the look at the blocks: a change that has given them to the range meanwhile is still counted then, or
        // committed.
        has_blocks && self.under_way.load(Ordering::Acquire) == 0
    }
}

impl UncommittedChange {
    /// The change is durable.
    pub fn committed(self) {
        self.under_way.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use uringfs_device::Device;
    use uringfs_device::backend::memory::Memory;

    use super::*;
    use crate::state::options::FileOptions;

    #[test]
    fn a_change_that_was_not_committed_leaves_no_write_in_place() {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let file = File::over(device, FileOptions::new());
        let changes = UncommittedChanges::default();
        let begin = || {
            changes.under_way.fetch_add(1, Ordering::Acquire);
            UncommittedChange { under_way: changes.under_way.clone() }
        };
        begin().committed();
        assert!(changes.is_in_place(&file, 0, 4096));
        drop(begin());
        assert!(!changes.is_in_place(&file, 0, 4096));
    }
}
