//! A file in a volume, and the check that a path is a volume.

use super::nvme_namespace::Namespace;
use super::signature;
use crate::Error;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uringfs::device::backend::RemoteTarget;
use uringfs::device::backend::nvme::is_namespace;
use uringfs::{Error as VolumeError, ErrorKind as VolumeErrorKind};

/// A file in a volume, written `TARGET:/path`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeFile {
    /// The file or block device that is the volume, or the URI of the export.
    pub volume: PathBuf,
    /// Absolute path in the volume.
    pub path: PathBuf,
}

impl VolumeFile {
    /// A file in a volume. A relative path begins at the root.
    pub fn new(volume: impl Into<PathBuf>, path: impl AsRef<Path>) -> Self {
        Self { volume: volume.into(), path: Path::new("/").join(path) }
    }

    /// Whether the volume is on an export of an NBD server, or on an image of RBD.
    pub(crate) fn is_remote(&self) -> bool {
        RemoteTarget::uri_length(self.volume.as_os_str().as_bytes()).is_some()
    }

    /// The error of a volume operation on this file: bad input if the volume refused it, else a failed run.
    pub(super) fn to_error(&self, error: VolumeError) -> Error {
        let base = match error.kind() {
            VolumeErrorKind::Refused(_) | VolumeErrorKind::Input => Error::input(self.to_string()),
            _ => Error::run(self.to_string()),
        };
        base.because(error.message())
    }
}

impl fmt::Display for VolumeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.volume.display(), self.path.display())
    }
}

/// Whether a file or device is a volume, by its first bytes.
pub fn is_volume(path: &Path) -> bool {
    if is_namespace(path) {
        let namespace = Namespace::open(path, false).ok();
        let found = namespace.and_then(|namespace| signature::probe_namespace(&namespace).ok()?);
        return found == Some(signature::VOLUME);
    }
    // Another kind of file, such as a pipe, must not be opened.
    let kind = path.metadata().map(|found| found.file_type());
    let may_be = kind.is_ok_and(|kind| {
        use std::os::unix::fs::FileTypeExt;
        kind.is_file() || kind.is_block_device()
    });
    let found = || signature::probe(&std::fs::File::open(path).ok()?).ok()?;
    may_be && found() == Some(signature::VOLUME)
}
