//! Errors of a volume as those of `object_store`.

use std::error::Error as StdError;
use std::fmt;

use object_store::Error;
use object_store::path::{self, Path};
use uringfs::Errno;

/// The name of the store in messages.
pub(crate) const STORE: &str = "uringfs";

/// The error for an object when a call of the volume has failed.
pub(crate) fn object_error(location: &Path, error: uringfs::Error) -> Error {
    let path = location.to_string();
    match error.errno() {
        Errno::NOENT | Errno::NOTDIR => Error::NotFound { path, source: error.into() },
        Errno::EXIST => Error::AlreadyExists { path, source: error.into() },
        Errno::STALE => Error::Precondition { path, source: error.into() },
        Errno::ROFS | Errno::ACCESS | Errno::PERM => {
            Error::PermissionDenied { path, source: error.into() }
        }
        _ => generic(Failed { path, source: error }),
    }
}

/// The error when the bytes of an object could not be moved.
pub(crate) fn io_error(location: &Path, errno: impl Into<uringfs::Error>) -> Error {
    object_error(location, errno.into())
}

/// An error that is of no other kind.
pub(crate) fn generic(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
    Error::Generic { store: STORE, source: source.into() }
}

pub(crate) fn not_found(location: &Path, what: &'static str) -> Error {
    Error::NotFound { path: location.to_string(), source: what.into() }
}

pub(crate) fn precondition(location: &Path, what: String) -> Error {
    Error::Precondition { path: location.to_string(), source: what.into() }
}

/// The error for the path of the store itself.
pub(crate) fn no_name(location: &Path) -> Error {
    Error::InvalidPath { source: path::Error::EmptySegment { path: location.to_string() } }
}

/// A failure with the object that it is about.
#[derive(Debug)]
struct Failed {
    path: String,
    source: uringfs::Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "object {:?}: {}", self.path, self.source)
    }
}

impl StdError for Failed {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.source)
    }
}

/// The source of the error when an object's name is needed for a directory, or the other way round: in a volume a name
/// is either an object or a prefix of others.
///
/// ```
/// # use object_store::memory::InMemory;
/// use object_store::{Error, ObjectStore, ObjectStoreExt};
/// use uringfs_object_store::{NameConflict, UringfsStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let options = uringfs::FormatOptions::new().size(64 << 20);
/// # let volume = uringfs::AsyncVolume::create(folder.path().join("image"), &options).await?;
/// let store = UringfsStore::new(volume);
/// store.put(&"a".into(), "object".into()).await?;
/// match store.put(&"a/b".into(), "another".into()).await {
///     Err(Error::Generic { source, .. }) => {
///         let conflict = source.downcast_ref::<NameConflict>().expect("a conflict of names");
///         assert_eq!(conflict.existing.as_ref(), "a");
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameConflict {
    /// The path that cannot be used.
    pub location: Path,
    /// The object that is in its way, or one of them.
    pub existing: Path,
}

impl NameConflict {
    pub(crate) fn error(location: &Path, existing: Path) -> Error {
        generic(NameConflict { location: location.clone(), existing })
    }
}

impl fmt::Display for NameConflict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NameConflict { location, existing } = self;
        write!(
            out,
            "{location:?} cannot be an object beside {existing:?}: in a volume a name is either an object or a \
             directory; delete or rename {existing:?}, or choose another path",
            location = location.as_ref(),
            existing = existing.as_ref(),
        )
    }
}

impl StdError for NameConflict {}
