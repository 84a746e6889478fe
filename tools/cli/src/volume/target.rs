//! What a TARGET names: a file, a block device, or an export of an NBD server or an image of RBD by its URI.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uringfs::device::backend::RemoteTarget;

/// Whether a target is a URI. Whether it is a good one, says its opening.
pub(super) fn is_uri(target: impl AsRef<OsStr>) -> bool {
    RemoteTarget::uri_length(target.as_ref().as_bytes()).is_some()
}

/// The one name of a target among all that it has: an absolute path without symbolic links, or the canonical URI. `None` if
/// there is no such file, or if the URI is a bad one.
pub(super) fn canonical(target: &Path) -> Option<PathBuf> {
    match RemoteTarget::from_path(target) {
        Some(remote) => Some(remote.ok()?.canonical_name().into()),
        None => target.canonicalize().ok(),
    }
}
