//! Attributes as `os.stat_result`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use uringfs::volume::Metadata;

/// Nanoseconds of a second.
const SECOND: i64 = 1_000_000_000;

/// The attributes with all fields that Linux has: the ten of a tuple, times as integers, as floats and in
/// nanoseconds, and the blocks. The device's number is 0.
pub(crate) fn stat_result<'py>(
    py: Python<'py>,
    metadata: &Metadata,
) -> PyResult<Bound<'py, PyAny>> {
    static STAT_RESULT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = STAT_RESULT
        .get_or_try_init(py, || py.import("os")?.getattr("stat_result").map(Bound::unbind))?;
    let seconds = [metadata.atime(), metadata.mtime(), metadata.ctime()];
    let parts = [metadata.atime_nsec(), metadata.mtime_nsec(), metadata.ctime_nsec()];
    let mut values: Vec<Bound<'py, PyAny>> = Vec::with_capacity(19);
    let integers = [
        u64::from(metadata.mode()),
        metadata.ino(),
        0,
        metadata.nlink(),
        metadata.uid().into(),
        metadata.gid().into(),
        metadata.len(),
    ];
    for value in integers {
        values.push(value.into_pyobject(py)?.into_any());
    }
    for seconds in seconds {
        values.push(seconds.into_pyobject(py)?.into_any());
    }
    for (seconds, nanoseconds) in seconds.into_iter().zip(parts) {
        let time = seconds as f64 + nanoseconds as f64 / SECOND as f64;
        values.push(time.into_pyobject(py)?.into_any());
    }
    for (seconds, nanoseconds) in seconds.into_iter().zip(parts) {
        let time = i128::from(seconds) * i128::from(SECOND) + i128::from(nanoseconds);
        values.push(time.into_pyobject(py)?.into_any());
    }
    for value in [metadata.blksize(), metadata.blocks(), metadata.rdev()] {
        values.push(value.into_pyobject(py)?.into_any());
    }
    class.bind(py).call1((PyTuple::new(py, values)?,))
}
