//! Freezes a volume, so that its device can be copied, or a snapshot made of it.

use std::future::pending;
use std::time::{Duration, Instant};

use uringfs_file::ChangeGuard;
use uringfs_reactor::quiescence;
use uringfs_sync::park_on_until;

use crate::core::blocking::WaitMode;
use crate::core::freeze::thawed;
use crate::error::Error;
use crate::volume::volume::Volume;

/// The interval at which a freeze polls the count of changes in flight. Their end sends no wake-up.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

impl Volume {
    /// Makes everything durable, then holds back every change and every write to the device until [`Self::thaw`], or until
    /// `timeout` after this call. So the device can be copied meanwhile: the copy has all that was complete.
    ///
    /// Reads go on. A change waits: a write, a new name, an attribute. So does a sync, if something changed, as the access
    /// time of a file that is read; that is durable after the thaw. Blocks as [`Self::sync`]. It waits for changes in flight
    /// first, and for requests in flight of every reactor and thread.
    ///
    /// ```
    /// # use uringfs_volume as uringfs;
    /// use std::time::Duration;
    /// use uringfs::{FormatOptions, Volume};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// let (path, copy) = (folder.path().join("image"), folder.path().join("copy"));
    /// let volume = Volume::create(&path, &FormatOptions::new().size(64 << 20))?;
    /// volume.write("/list", "one")?;
    /// volume.freeze(Duration::from_secs(30))?;
    /// std::fs::copy(&path, &copy)?;
    /// assert!(volume.thaw(), "it did not last longer than 30 seconds");
    /// volume.write("/list", "two")?;
    /// assert_eq!(Volume::open(&copy)?.read("/list")?, b"one");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EBUSY if it is frozen already; ETIMEDOUT if changes or requests in flight did not end in time; EROFS if nothing can
    /// change anyway; as [`Self::sync`]. After an error it is not frozen.
    pub fn freeze(&self, timeout: Duration) -> Result<(), Error> {
        self.check_changeable()?;
        let freezing = self.shared.freeze.begin(Instant::now() + timeout)?;
        let domain = quiescence(self.device().index());
        let epoch = domain.retire();
        let gate = &self.shared.freeze.gate;
        while freezing.is_active() && !(gate.is_drained() && domain.passed(epoch)) {
            park_on_until(pending::<()>(), Some(Instant::now() + POLL_INTERVAL));
        }
        if !freezing.is_active() {
            return Err(thawed());
        }
        self.sync()?;
        freezing.keep()
    }

    /// Ends a freeze. Returns whether there was one: otherwise the volume had thawed before, and a copy that was made
    /// since is worthless.
    pub fn thaw(&self) -> bool {
        self.shared.freeze.thaw()
    }

    /// Begins a change, which waits while the volume is frozen.
    ///
    /// # Errors
    /// EROFS and EIO if nothing can be changed; ECHILD in the child of a fork.
    pub(crate) async fn begin_change(&self, mode: WaitMode) -> Result<ChangeGuard<'_>, Error> {
        self.check_changeable()?;
        match self.shared.freeze.gate.try_enter() {
            Some(change) => Ok(change),
            None => Ok(mode.wait(self.shared.freeze.gate.enter()).await),
        }
    }
}
