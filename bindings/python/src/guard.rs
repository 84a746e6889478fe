//! [`Guard`]: the checks before every call on a volume or a file, and the work of the call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use uringfs::Errno;

use crate::fork::Process;

/// Of an open volume or file: its path, the process that opened it, and whether a call on it has panicked.
pub(crate) struct Guard {
    path: PathBuf,
    process: Process,
    /// A panic left a call in the middle of its work.
    is_poisoned: AtomicBool,
}

impl Guard {
    pub(crate) fn new(path: PathBuf) -> Guard {
        Guard { path, process: Process::current(), is_poisoned: AtomicBool::new(false) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// True in the child of a fork.
    pub(crate) fn is_parent(&self) -> bool {
        self.process.is_parent()
    }

    /// # Errors
    /// ECHILD in the child of a fork, ENOTRECOVERABLE after a panic.
    pub(crate) fn check(&self) -> PyResult<()> {
        self.process.check(&self.path)?;
        match self.is_poisoned.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(self.unrecoverable()),
        }
    }

    /// Does the work of a call.
    ///
    /// # Errors
    /// ENOTRECOVERABLE if it panics, also for all further calls.
    pub(crate) fn call<T>(&self, work: impl FnOnce() -> T) -> PyResult<T> {
        catch(work).ok_or_else(|| self.poison())
    }

    /// Does the work of a call without the GIL.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn call_detached<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> T + Send,
    ) -> PyResult<T> {
        py.detach(|| self.call(work))
    }

    /// Refuses all further calls, since one has panicked. Returns their error.
    pub(crate) fn poison(&self) -> PyErr {
        self.is_poisoned.store(true, Ordering::Relaxed);
        self.unrecoverable()
    }

    fn unrecoverable(&self) -> PyErr {
        let errno = Errno::NOTRECOVERABLE.raw_os_error();
        let what = "a call on it has failed, which is a mistake in uringfs, whose text is on standard error; \
                    close it";
        PyOSError::new_err((errno, what, self.path.as_os_str().to_owned()))
    }
}

/// Does work; `None` if it panics. Standard error has the panic's text.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => Some(value),
        Err(panic) => {
            // Its drop could panic again.
            std::mem::forget(panic);
            None
        }
    }
}
