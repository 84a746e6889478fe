//! Handles of a parent process. A child must not use them: its parent's rings, threads and caches are not its own.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::PyOSError;
use pyo3::{PyResult, pyfunction};
use uringfs::Errno;

/// The number of forks between the process that loaded this module and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Marks all handles as those of the parent; `os.register_at_fork` calls it in the child.
#[pyfunction]
pub(crate) fn mark_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that made a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Process {
        Process(FORKS.load(Ordering::Relaxed))
    }

    pub(crate) fn is_parent(self) -> bool {
        self != Process::current()
    }

    /// # Errors
    /// ECHILD in the child of a fork.
    pub(crate) fn check(self, path: &Path) -> PyResult<()> {
        if !self.is_parent() {
            return Ok(());
        }
        let what = "it was opened before a fork and belongs to the parent process; start workers with the method \
                    'spawn', and open the volume in each";
        Err(PyOSError::new_err((Errno::CHILD.raw_os_error(), what, path.as_os_str().to_owned())))
    }
}
