//! [`Claim`]: makes this process the only user of a block device, until the claim is given to a mount of the device.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use uringfs_errno::Errno;

/// The exclusive claim on a block device (O_EXCL). A descriptor of its own holds it, so that the claim can end before the
/// device is closed: a mount claims its device, too.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    held: Mutex<Option<OwnedFd>>,
}

impl Claim {
    /// A claim on the device `path`, not yet acquired.
    pub(crate) fn new(path: &Path) -> Claim {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Claim { path, held: Mutex::default() }
    }

    /// The path of the device, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Claims the device.
    ///
    /// # Errors
    /// EBUSY if a mount or another program has claimed it; others of `open(2)`.
    pub fn acquire(&self) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let held = &mut *self.held.lock();
        if held.is_none() {
            *held = Some(open(&self.path, flags, Mode::empty())?);
        }
        Ok(())
    }

    /// True if `check` accepts the descriptor that holds the claim, or if there is none.
    pub(crate) fn is_held_by(&self, check: impl FnOnce(BorrowedFd<'_>) -> bool) -> bool {
        self.held.lock().as_ref().is_none_or(|held| check(held.as_fd()))
    }

    /// Ends the claim. Returns false if there was none.
    pub fn release(&self) -> bool {
        self.held.lock().take().is_some()
    }
}
