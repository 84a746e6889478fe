//! Errors of the library as OSError with errno, message and path, of which Python makes FileNotFoundError and its like.

use std::path::Path;

use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyValueError};
use uringfs::{Errno, Error};

/// Names of the library in its messages, and what a program in Python writes.
const IN_PYTHON: [(&str, &str); 9] = [
    ("`Volume::create`", "`uringfs.Volume.create`"),
    ("`Volume::open`", "`uringfs.Volume(path)`"),
    ("`FormatOptions::overwrite`", "`overwrite=True`"),
    ("`FormatOptions::size`", "`size`"),
    ("use a clone of that handle", "use that `Volume`, also in other threads"),
    ("close that handle first", "close that `Volume` first"),
    ("await or reap", "await"),
    // The other handles of a volume are clones of calls.
    (
        "other handle of the volume (a clone, or the one whose `as_async` was called) is alive: drop it",
        "call of another thread has not returned: wait for it",
    ),
    (
        "other handles of it (clones, or those whose `as_async` was called) are alive: drop them",
        "calls of other threads have not returned: wait for them",
    ),
];

/// The error of a call on names, of a volume, or of an open.
pub(crate) fn os_error(error: &Error) -> PyErr {
    let errno = error.errno().raw_os_error();
    match error.path() {
        Some(path) => PyOSError::new_err((errno, message(error), path.as_os_str().to_owned())),
        None => PyOSError::new_err((errno, message(error))),
    }
}

/// The error of opening a volume. One that is in use can be used through its mount.
pub(crate) fn open_error(error: &Error) -> PyErr {
    let errno = error.errno();
    let path = error.path().map(|path| path.as_os_str().to_owned());
    let mut message = message(error);
    if errno == Errno::BUSY && message.starts_with("another program") {
        message += "; programs that share a volume use its mount: `uringfs mount`";
    }
    PyOSError::new_err((errno.raw_os_error(), message, path))
}

fn message(error: &Error) -> String {
    let message = error.message();
    IN_PYTHON.iter().fold(message, |message, (rust, python)| message.replace(rust, python))
}

/// The error of a call with two paths.
pub(crate) fn os_error_of_two(error: &Error, source: &Path, target: &Path) -> PyErr {
    let errno = error.errno().raw_os_error();
    let (source, target) = (source.as_os_str().to_owned(), target.as_os_str().to_owned());
    // The fourth value has a meaning on Windows only.
    PyOSError::new_err((errno, message(error), source, None::<i32>, target))
}

/// The error of a call with two paths in different volumes, each with its volume.
pub(crate) fn other_volume((source, of): (&Path, &Path), (target, to): (&Path, &Path)) -> PyErr {
    let errno = Errno::XDEV.raw_os_error();
    let what = format!(
        "from the volume {} to the volume {}: copy the content, and remove the file",
        of.display(),
        to.display()
    );
    let (source, target) = (source.as_os_str().to_owned(), target.as_os_str().to_owned());
    PyOSError::new_err((errno, what, source, None::<i32>, target))
}

/// The error of an operation on a file's data.
pub(crate) fn data_error(errno: Errno, path: &Path) -> PyErr {
    let message = match errno {
        Errno::BADF => "the file was opened in a mode that does not allow this".to_owned(),
        errno => Error::from(errno).message(),
    };
    PyOSError::new_err((errno.raw_os_error(), message, path.as_os_str().to_owned()))
}

/// The error of a call on what was closed, as builtin files raise it.
pub(crate) fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("I/O operation on a closed {what}"))
}
