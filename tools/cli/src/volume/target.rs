//! The meaning of a TARGET: a file, a block device, or an export of an NBD server or an image of RBD by its URI.

use super::exit_codes::with_io_code;
use super::quoting::for_message;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uringfs::device::backend::RemoteTarget;
use uringfs::device::backend::rbd::{RbdAdmin, RbdTarget};
use uringfs_lab::Error;

/// Whether a target is a URI. Opening it shows whether the URI is valid.
pub(super) fn is_uri(target: impl AsRef<OsStr>) -> bool {
    RemoteTarget::uri_length(target.as_ref().as_bytes()).is_some()
}

/// The one name of a target among all that it has: an absolute path without symbolic links, or the canonical URI. `None` if
/// there is no such file, or if the URI is invalid.
pub(super) fn canonical(target: &Path) -> Option<PathBuf> {
    match RemoteTarget::from_path(target) {
        Some(remote) => Some(remote.ok()?.canonical_name().into()),
        None => target.canonicalize().ok(),
    }
}

/// The administration of an image of Ceph's RBD. `None` if the target is something else.
///
/// # Errors
/// The URI is invalid.
pub(super) fn rbd_admin(target: &Path) -> Result<Option<RbdAdmin>, Error> {
    let parsed = RbdTarget::from_path(target).transpose().map_err(|error| cluster_error(&error))?;
    Ok(parsed.map(|target| RbdAdmin::new(&target)))
}

/// The error of a cluster, whose message names the image.
pub(super) fn cluster_error(error: &io::Error) -> Error {
    with_io_code(Error::input(error.to_string()), error)
}

/// The target by which a writer takes an image of Ceph's RBD from the client that has it. `life` is empty, or how long that client
/// is shut out.
///
/// # Errors
/// It is no such image, or the time is invalid.
pub(super) fn with_take_over(target: &Path, life: &str) -> Result<PathBuf, Error> {
    let text = target.to_str().filter(|text| RbdTarget::parse(text).is_some());
    let Some(text) = text else {
        let what =
            "--take-over: only an image of Ceph's RBD (rbd:POOL/IMAGE) is taken from its owner";
        return Err(Error::input(format!("{}: {what}", for_message(target))));
    };
    let separator = if text.contains('?') { '&' } else { '?' };
    let equals = if life.is_empty() { "" } else { "=" };
    let target = PathBuf::from(format!("{text}{separator}take-over{equals}{life}"));
    RbdTarget::from_path(&target).transpose().map_err(|error| cluster_error(&error))?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_taken_by_an_option_of_its_uri() {
        let taken = |target: &str, life: &str| {
            with_take_over(Path::new(target), life).map_err(|error| error.to_string())
        };
        assert_eq!(taken("rbd:rbd/disk", ""), Ok("rbd:rbd/disk?take-over".into()));
        let with_options = Ok("rbd:rbd/disk?id=a&take-over=1h".into());
        assert_eq!(taken("rbd:rbd/disk?id=a", "1h"), with_options);
        assert!(taken("disk.img", "").unwrap_err().contains("only an image of Ceph's RBD"));
        assert!(taken("rbd:rbd/disk", "1").unwrap_err().contains("20s to 50y"));
        assert!(taken("rbd:rbd/disk?take-over", "").unwrap_err().contains("twice"));
    }
}
