//! Paths in a volume: text, `os.PathLike`, or the package's own `Path`, which is no `os.PathLike`, so that `open` of
//! a path in a volume does not open the file of this name outside.

use std::path::{Path, PathBuf};

use pyo3::Borrowed;
use pyo3::prelude::*;

/// The text of a `uringfs.Path`.
const TEXT: &str = "_text";

/// A path in a volume.
pub(crate) struct PathInVolume(PathBuf);

impl PathInVolume {
    pub(crate) fn root() -> PathInVolume {
        PathInVolume(PathBuf::from("/"))
    }
}

impl AsRef<Path> for PathInVolume {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl From<PathInVolume> for PathBuf {
    fn from(path: PathInVolume) -> PathBuf {
        path.0
    }
}

impl FromPyObject<'_, '_> for PathInVolume {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<PathInVolume> {
        match object.extract::<PathBuf>() {
            Ok(path) => Ok(PathInVolume(path)),
            Err(error) => match object.getattr(TEXT).and_then(|text| text.extract()) {
                Ok(path) => Ok(PathInVolume(path)),
                Err(_) => Err(error),
            },
        }
    }
}
