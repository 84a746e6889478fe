//! Enlarges a volume in use.

use uringfs_device::Errno;

use crate::blocks::BLOCK;
use crate::catalog::Access;
use crate::core::blocking::{WaitMode, run_blocking};
use crate::core::state::{VolumeState, read_region};
use crate::error::{Error, ErrorKind};
use crate::superblock::{MAX_BLOCKS, REPAIR_ADVICE};
use crate::volume::volume::Volume;

impl Volume {
    /// Enlarges the volume to `bytes` while files are read and written. The file or the device grows first, while the
    /// volume is open or not: its size is read again ([`Device::refresh_size`](uringfs_device::Device::refresh_size)).
    /// The new size is durable when this returns;
    /// after a power cut before that the volume has either size.
    ///
    /// ```
    /// # use uringfs_volume as uringfs;
    /// use uringfs::{FormatOptions, Volume};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("image");
    /// Volume::create(&path, &FormatOptions::new().size(32 << 20))?.close()?;
    /// let volume = Volume::open(&path)?;
    /// // First the file or the device, then the volume.
    /// std::fs::File::options().write(true).open(&path)?.set_len(64 << 20)?;
    /// volume.resize(64 << 20)?;
    /// assert_eq!(volume.statistics().blocks, (64 << 20) / 4096);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Input` if `bytes` is less than the current size, more than the device or 64 TiB, or no multiple of 4096;
    /// EROFS if the volume is read-only; `Damaged` if the record of the last blocks is, and nothing has changed; as [`Volume::sync`].
    pub fn resize(&self, bytes: u64) -> Result<(), Error> {
        // A size that cannot be read again is the one from before.
        let _ = self.device().refresh_size();
        run_blocking(self.grow_to(bytes))
    }

    async fn grow_to(&self, bytes: u64) -> Result<(), Error> {
        let refused = |why: String| {
            Err(Error::new(ErrorKind::Input, format!("cannot resize to {bytes} bytes: {why}")))
        };
        let device_has = || refused(format!("the device has only {}", self.device().size()));
        if self.shared.access == Access::ReadOnly {
            return Err(Error::refused(Errno::ROFS, "the volume is open for reading only"));
        }
        if !bytes.is_multiple_of(BLOCK) || bytes / BLOCK > MAX_BLOCKS {
            return refused("give a multiple of 4096, at most 64 TiB".into());
        }
        if bytes / BLOCK > self.shared.blocks.count() {
            return device_has();
        }
        if bytes / BLOCK == self.statistics().blocks {
            return Ok(());
        }
        let _change = self.begin_change(WaitMode::Blocking).await?;
        self.load_last_region().await?;
        {
            let mut state = self.shared.state.lock();
            let has = state.grow_target.unwrap_or(state.superblock.total_blocks);
            if bytes / BLOCK < has {
                return refused(format!("the volume has {} and cannot shrink", has * BLOCK));
            }
            if bytes / BLOCK == state.superblock.total_blocks {
                return Ok(());
            }
            // Another caller may have requested it, too: one commit makes it durable for both.
            state.grow_target = Some(bytes / BLOCK);
        }
        self.sync_in_mode(WaitMode::Blocking).await?;
        match self.statistics().blocks < bytes / BLOCK {
            true => device_has(),
            false => Ok(()),
        }
    }

    /// Loads the region that grows, so that damage of it refuses the resize, and does not end the volume.
    async fn load_last_region(&self) -> Result<(), Error> {
        let loaded = self.shared.with_retries(WaitMode::Blocking, |state, _| {
            let VolumeState { allocator, overlay, .. } = state;
            allocator.load_incomplete_region(|region| read_region(overlay, region))
        });
        loaded.await.map_err(|error| match error.kind() {
            ErrorKind::Damaged => error.context("cannot resize").with_advice(REPAIR_ADVICE),
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use uringfs_device::Device;
    use uringfs_device::backend::sim::{Sim, SimOptions};

    use super::*;
    use crate::volume::options::FormatOptions;

    #[test]
    fn a_device_that_shrinks_while_the_volume_grows_leaves_it_as_it_was() {
        let device = Device::new(Sim::new(SimOptions::new(16 << 20))).unwrap();
        let volume = Volume::create_on(device, &FormatOptions::new()).unwrap();
        // As if it had been larger when this was requested.
        volume.shared.state.lock().grow_target = Some((32 << 20) / BLOCK);
        volume.sync().unwrap();
        assert_eq!(volume.statistics().blocks, (16 << 20) / BLOCK);
        assert!(!volume.is_read_only());
    }
}
