//! A file in a volume, and whether a path is a volume at all.

use super::signature;
use crate::Error;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uringfs::{VolumeError, VolumeErrorKind};

/// A file in a volume, written `TARGET:/path`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeFile {
    /// The file or block device that is the volume.
    pub volume: PathBuf,
    /// From its root on.
    pub path: PathBuf,
}

impl VolumeFile {
    /// A path in a volume; one that does not begin at the root is taken from there.
    pub fn new(volume: impl Into<PathBuf>, path: impl AsRef<Path>) -> Self {
        Self { volume: volume.into(), path: Path::new("/").join(path) }
    }

    pub(super) fn path_bytes(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    /// What the volume says of it: the user's turn where it refuses, else the machine's.
    pub(super) fn to_error(&self, error: VolumeError) -> Error {
        let base = match error.kind() {
            VolumeErrorKind::Refused(_) | VolumeErrorKind::Input => Error::input(self.to_string()),
            _ => Error::run(self.to_string()),
        };
        base.because(error)
    }
}

impl fmt::Display for VolumeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.volume.display(), self.path.display())
    }
}

/// Whether a file or a device is a volume, as far as its first bytes say.
pub fn is_volume(path: &Path) -> bool {
    // What is neither, a pipe say, must not be opened to find out.
    let kind = path.metadata().map(|found| found.file_type());
    let may_be = kind.is_ok_and(|kind| {
        use std::os::unix::fs::FileTypeExt;
        kind.is_file() || kind.is_block_device()
    });
    let found = || signature::probe(&std::fs::File::open(path).ok()?).ok()?;
    may_be && found() == Some(signature::VOLUME)
}
