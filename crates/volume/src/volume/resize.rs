//! Enlarges a volume in use.

use uringfs_device::Errno;

use crate::blocks::BLOCK;
use crate::catalog::Access;
use crate::core::blocking::{WaitMode, run_blocking};
use crate::error::{Error, ErrorKind};
use crate::superblock::MAX_BLOCKS;
use crate::volume::volume::Volume;

impl Volume {
    /// Enlarges the volume to `bytes` while files are read and written. The new size is durable when this returns;
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
    /// // First the file or the device, then the volume.
    /// std::fs::File::options().write(true).open(&path)?.set_len(64 << 20)?;
    /// let volume = Volume::open(&path)?;
    /// volume.resize(64 << 20)?;
    /// assert_eq!(volume.statistics().blocks, (64 << 20) / 4096);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Input` if `bytes` is less than the current size, more than the device or 64 TiB, or no multiple of 4096;
    /// EROFS if the volume is read-only; as [`Volume::sync`].
    pub fn resize(&self, bytes: u64) -> Result<(), Error> {
        run_blocking(self.resize_in_mode(WaitMode::Blocking, bytes))
    }

    pub(crate) async fn resize_in_mode(&self, mode: WaitMode, bytes: u64) -> Result<(), Error> {
        let refused = |why: String| {
            Err(Error::new(ErrorKind::Input, format!("cannot resize to {bytes} bytes: {why}")))
        };
        if self.shared.access == Access::ReadOnly {
            return Err(Error::refused(Errno::ROFS, "the volume is open for reading only"));
        }
        if !bytes.is_multiple_of(BLOCK) || bytes / BLOCK > MAX_BLOCKS {
            return refused("give a multiple of 4096, at most 64 TiB".into());
        }
        if bytes / BLOCK > self.shared.blocks.count() {
            return refused(format!("the device has only {}", self.device().geometry().size));
        }
        let _change = self.begin_change(mode).await?;
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
        self.sync_in_mode(mode).await
    }
}
