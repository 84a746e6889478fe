//! Devices that are not on this machine, and have a URI in place of a path.

use std::fmt;
use std::io;
use std::path::Path;

use super::nbd::{Nbd, NbdTarget};
use super::rbd::{Rbd, RbdTarget};
use crate::interface::backend::{Access, Backend};

/// The name of a device that is not on this machine: the URI of an NBD server's export, or of an image of Ceph's RBD.
///
/// ```
/// # mod uringfs { pub use uringfs_device as device; }
/// use uringfs::device::backend::RemoteTarget;
///
/// let target = RemoteTarget::parse("nbd://Host:10809/disk?timeout=5").unwrap().unwrap();
/// assert_eq!(target.canonical_name(), "nbd://host/disk");
/// assert!(RemoteTarget::parse("/dev/vda").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteTarget {
    /// An export of an NBD server.
    Nbd(NbdTarget),
    /// An image of Ceph's RBD.
    Rbd(RbdTarget),
}

impl RemoteTarget {
    /// Parses a URI. `None` if the text has none of the schemes.
    ///
    /// # Errors
    /// One line that says what is wrong and what to write.
    pub fn parse(text: &str) -> Option<Result<RemoteTarget, String>> {
        let nbd = || NbdTarget::parse(text).map(|target| target.map(RemoteTarget::Nbd));
        let rbd = || RbdTarget::parse(text).map(|target| target.map(RemoteTarget::Rbd));
        nbd().or_else(rbd)
    }

    /// As [`Self::parse`], of a path. `None` if it is not UTF-8, as every URI is.
    ///
    /// # Errors
    /// As [`Self::parse`], with the path.
    pub fn from_path(path: &Path) -> Option<io::Result<RemoteTarget>> {
        let text = path.to_str()?;
        let explain = |what| io::Error::new(io::ErrorKind::InvalidInput, format!("{text}: {what}"));
        Some(RemoteTarget::parse(text)?.map_err(explain))
    }

    /// The bytes of the URI at the beginning of `URI:/path`, which names a path in the volume on a device: that path follows
    /// the first `:/` after the scheme and the host. A `:/` of the URI itself is written `%3A/`. `None` if there is no URI.
    ///
    /// ```
    /// # mod uringfs { pub use uringfs_device as device; }
    /// use uringfs::device::backend::RemoteTarget;
    ///
    /// let argument = "nbd+unix:///disk?socket=/run/s:/var/log";
    /// let length = RemoteTarget::uri_length(argument.as_bytes()).unwrap();
    /// assert_eq!(argument.split_at(length), ("nbd+unix:///disk?socket=/run/s", ":/var/log"));
    /// assert_eq!(RemoteTarget::uri_length(b"rbd:rbd/disk:/var/log"), Some("rbd:rbd/disk".len()));
    /// assert_eq!(RemoteTarget::uri_length(b"disk.img:/var/log"), None);
    /// ```
    pub fn uri_length(argument: &[u8]) -> Option<usize> {
        NbdTarget::uri_length(argument).or_else(|| RbdTarget::uri_length(argument))
    }

    /// The same for all URIs of one device.
    pub fn canonical_name(&self) -> String {
        match self {
            RemoteTarget::Nbd(target) => target.canonical().to_string(),
            RemoteTarget::Rbd(target) => target.canonical().to_string(),
        }
    }

    /// The name of its lock, by which the processes of this machine exclude each other. `None` if it is to be taken from them.
    pub fn lock_name(&self) -> Option<String> {
        match self {
            RemoteTarget::Rbd(target) if target.takes_over() => None,
            _ => Some(self.canonical_name()),
        }
    }

    /// Opens the device.
    pub(crate) fn open(&self, access: Access) -> io::Result<Box<dyn Backend>> {
        Ok(match self {
            RemoteTarget::Nbd(target) => Box::new(Nbd::open(target, access)?),
            RemoteTarget::Rbd(target) => Box::new(Rbd::open(target, access)?),
        })
    }
}

impl fmt::Display for RemoteTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteTarget::Nbd(target) => target.fmt(out),
            RemoteTarget::Rbd(target) => target.fmt(out),
        }
    }
}
