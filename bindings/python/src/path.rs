//! Paths in a volume: text, `os.PathLike`, or the package's own `Path`, which is no `os.PathLike`, so that `open` of
//! a path in a volume does not open the file of this name outside.

use std::path::PathBuf;

use pyo3::Borrowed;
use pyo3::prelude::*;

/// The text of a `uringfs.Path`.
const TEXT: &str = "_text";
/// Its volume.
const VOLUME: &str = "volume";

/// A path as it was passed to a call of a volume, which may be another one than its own.
pub(crate) struct PathInVolume {
    pub(crate) path: PathBuf,
    /// The volume of a `uringfs.Path`; text has none.
    pub(crate) volume: Option<Py<PyAny>>,
}

impl PathInVolume {
    pub(crate) fn root() -> PathInVolume {
        PathInVolume { path: PathBuf::from("/"), volume: None }
    }
}

impl FromPyObject<'_, '_> for PathInVolume {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<PathInVolume> {
        let error = match object.extract::<PathBuf>() {
            Ok(path) => return Ok(PathInVolume { path, volume: None }),
            Err(error) => error,
        };
        let of_volume = || -> PyResult<PathInVolume> {
            let path = object.getattr(TEXT)?.extract()?;
            Ok(PathInVolume { path, volume: Some(object.getattr(VOLUME)?.unbind()) })
        };
        of_volume().map_err(|_| error)
    }
}
