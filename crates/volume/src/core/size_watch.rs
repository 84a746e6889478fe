//! [`SizeWatch`]: whether the device still has all blocks of the volume. Others may shrink it while it is open.
//!
//! The size is read again where a success would promise what a smaller device cannot keep, and where something went wrong:
//! before and after each commit, after each flush that makes a file durable, and after each failed request. A device that
//! has become too small stops the volume for good, with one line: the part that was cut off is lost, even if the device
//! is enlarged again. Reads of the rest go on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use uringfs_device::{Device, DeviceInner, Errno, Failure, FailureListener};

use crate::blocks::BLOCK;
use crate::core::events::Publisher;
use crate::core::group_commit::GroupCommit;

/// The watch over the device of one volume.
pub(crate) struct SizeWatch {
    /// Not the user's handle, whose drop closes the device: a listener may be dropped anywhere.
    device: Arc<DeviceInner>,
    /// The description of the device.
    name: String,
    /// The blocks of the volume.
    blocks: AtomicU64,
    /// The line of a device that has become too small.
    shrunk: OnceLock<String>,
    group_commit: Arc<GroupCommit>,
    publisher: Arc<Publisher>,
}

impl SizeWatch {
    /// Begins to watch the device of a volume of this many blocks.
    pub(crate) fn begin(
        device: &Device,
        blocks: u64,
        group_commit: Arc<GroupCommit>,
        publisher: Arc<Publisher>,
    ) -> Arc<SizeWatch> {
        let watch = Arc::new(SizeWatch {
            device: device.core().clone(),
            name: device.description(),
            blocks: blocks.into(),
            shrunk: OnceLock::new(),
            group_commit,
            publisher,
        });
        let listener: Weak<SizeWatch> = Arc::downgrade(&watch);
        device.core().add_listener(listener);
        watch
    }

    /// The volume has this many blocks from now on.
    pub(crate) fn set_blocks(&self, blocks: u64) {
        self.blocks.store(blocks, Ordering::Relaxed);
    }

    /// The line of a device that has become too small, if that was noticed.
    #[inline]
    pub(crate) fn shrunk(&self) -> Option<&str> {
        self.shrunk.get().map(String::as_str)
    }

    /// Reads the size of the device again. Does not wait.
    ///
    /// # Errors
    /// EIO if the device has become too small for the volume, which is stopped then.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.shrunk().is_none() {
            let (size, needed) = (self.device.check_size(), self.blocks.load(Ordering::Relaxed));
            if size / BLOCK < needed {
                self.stop(size, needed * BLOCK);
            }
        }
        match self.shrunk() {
            Some(_) => Err(Errno::IO),
            None => Ok(()),
        }
    }

    #[cold]
    fn stop(&self, size: u64, needed: u64) {
        let SizeWatch { name, device, group_commit, publisher, .. } = self;
        let line = format!(
            "{name} has shrunk from {} to {size} bytes, and the volume needs {needed}: it is read-only now; copy what \
             can still be read, or give the device its size again, run uringfs check, and open the volume again",
            device.largest_size()
        );
        if self.shrunk.set(line.clone()).is_ok() {
            publisher.publish_shrunk(&line);
            group_commit.fail();
        }
    }
}

impl FailureListener for SizeWatch {
    fn on_failure(&self, _: Failure) {
        // If it has shrunk, its line says so.
        let _ = self.check();
    }
}
