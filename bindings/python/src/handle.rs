//! [`Handle`]: an open file, until it or its volume closes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use uringfs::{Errno, FileOp};

use crate::errors::{closed, data_error, os_error};
use crate::guard::Guard;
use crate::thread_reactor::{detached, wait};

/// Its content closes with the file, or with its volume.
pub(crate) struct Handle {
    open: Mutex<Option<Open>>,
    guard: Arc<Guard>,
}

#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) file: uringfs::File,
    pub(crate) volume: uringfs::Volume,
}

impl Handle {
    pub(crate) fn new(file: uringfs::File, volume: uringfs::Volume, path: PathBuf) -> Handle {
        let open = Mutex::new(Some(Open { file, volume }));
        Handle { open, guard: Arc::new(Guard::new(path)) }
    }

    /// The path that the file was opened with.
    pub(crate) fn path(&self) -> &Path {
        self.guard.path()
    }

    pub(crate) fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.open.lock().is_none()
    }

    /// Reads cached bytes, if all of them are.
    pub(crate) fn read_cached(&self, into: &mut [u8], offset: u64) -> PyResult<Option<usize>> {
        self.guard.check()?;
        match &*self.open.lock() {
            Some(open) => match self.guard.call(|| open.file.try_read_at(into, offset))? {
                Ok(read) => Ok(Some(read)),
                Err(Errno::AGAIN) => Ok(None),
                Err(errno) => Err(data_error(errno, self.path())),
            },
            None => Err(closed("file")),
        }
    }

    /// Closes the file. Operations in flight keep it until they end.
    pub(crate) fn close(&self) {
        let open = self.open.lock().take();
        drop(open);
    }

    pub(crate) fn get(&self) -> PyResult<Open> {
        self.guard.check()?;
        self.open.lock().clone().ok_or_else(|| closed("file"))
    }

    pub(crate) fn file(&self) -> PyResult<uringfs::File> {
        self.get().map(|open| open.file)
    }

    pub(crate) fn error(&self, errno: Errno) -> PyErr {
        if errno == Errno::NOSPC
            && let Some(open) = &*self.open.lock()
        {
            return os_error(&open.volume.shortage());
        }
        operation_error(errno, &self.guard)
    }

    /// Waits for an operation without memory.
    pub(crate) fn finish(
        &self,
        py: Python<'_>,
        op: impl FnOnce(&uringfs::File) -> FileOp<Result<(), Errno>>,
    ) -> PyResult<()> {
        let op = op(&self.file()?);
        self.guard.call_detached(py, || wait(op))?.map_err(|errno| self.error(errno))
    }
}

/// The error of an operation on a file whose handle may be gone. One that has panicked refuses all further calls.
pub(crate) fn operation_error(errno: Errno, guard: &Guard) -> PyErr {
    match errno {
        Errno::NOTRECOVERABLE => guard.poison(),
        errno => data_error(errno, guard.path()),
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        match self.open.get_mut().take() {
            // The parent has the file open; here nothing must end.
            open if self.guard.is_parent() => std::mem::forget(open),
            Some(open) => detached(|| drop(open)),
            None => {}
        }
    }
}
