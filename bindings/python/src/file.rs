//! [`File`]: an open file, read and written by offset.

use std::ffi::OsString;
use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use uringfs::Errno;
use uringfs::buffer::MAX_LENGTH;
use uringfs::file::FallocateSize;

use crate::errors::os_error;
use crate::event_loop::{self, Value};
use crate::handle::Handle;
use crate::memory::{Memory, NewBytes, with_writable};
use crate::ranges::Ranges;
use crate::stat::stat_result;
#[cfg(debug_assertions)]
use crate::thread_reactor::thread_reactor;
use crate::thread_reactor::wait;
use crate::transfer::{AppendOp, append_op, read_fully, write_fully, write_op};

/// Cached bytes that are copied while the GIL is held: to release it takes longer.
const MAX_COPY_WITH_GIL: usize = 64 << 10;

/// Cached bytes that are copied into a new object of zeros: to read into a larger one without them takes less time.
const MAX_ZEROED: usize = 32 << 10;

/// An open file, read and written by offset. Any thread may use it, and operations of several threads run side by
/// side. It closes with its volume at the latest.
#[pyclass(frozen, weakref, module = "uringfs")]
pub(crate) struct File {
    handle: Arc<Handle>,
    /// The Python object of its volume, which closes the volume when it is dropped: not before the file is. The last
    /// field, so that it is dropped after the handle.
    volume: Py<PyAny>,
}

/// See [`File::read_cached_bytes`].
enum CachedBytes<'py> {
    Read(Bound<'py, PyBytes>),
    Missing(NewBytes),
}

impl File {
    pub(crate) fn new(handle: Handle, volume: Py<PyAny>) -> File {
        File { handle: Arc::new(handle), volume }
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Reads cached bytes into a Python object's memory, if all of them are, and few.
    fn read_cached_into(&self, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<Option<usize>> {
        with_writable(buffer, |bytes| match bytes.len() <= MAX_COPY_WITH_GIL {
            true => self.handle.read_cached(bytes, offset),
            false => Ok(None),
        })?
    }

    /// Memory for the bytes of a range as far as it is inside the file, filled if all of them are cached, and few.
    fn read_cached_bytes<'py>(
        &self,
        py: Python<'py>,
        file: &uringfs::File,
        length: usize,
        offset: u64,
    ) -> PyResult<CachedBytes<'py>> {
        let left = file.len().saturating_sub(offset);
        let length = usize::try_from(left).map_or(length, |left| left.min(length));
        if length > MAX_ZEROED {
            return Ok(CachedBytes::Missing(NewBytes::uninitialized(py, length)?));
        }
        let mut bytes = NewBytes::zeroed(py, length)?;
        Ok(match bytes.with_bytes(|bytes| self.handle.read_cached(bytes, offset))? {
            Some(read) => CachedBytes::Read(bytes.finish(py, read)),
            None => CachedBytes::Missing(bytes),
        })
    }

    /// Does the work of a call without the GIL.
    fn detached<T: Send>(&self, py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
        self.handle.guard().call_detached(py, work)
    }

    /// An append of all of a buffer, with the buffer's memory.
    ///
    /// # Errors
    /// ValueError for more than 1 GiB.
    fn begin_append(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        durable: bool,
    ) -> PyResult<(AppendOp, Memory)> {
        let (file, memory) = (self.handle.file()?, Memory::readable(data)?);
        if memory.len() > MAX_LENGTH {
            let (bytes, path) = (memory.len(), self.handle.path().display());
            let what = format!(
                "an append of {bytes} bytes to {path} is over 1 GiB: append the data in parts"
            );
            memory.give_back(py);
            return Err(PyValueError::new_err(what));
        }
        Ok((append_op(&file, &memory, durable), memory))
    }

    fn read_into_memory(
        &self,
        py: Python<'_>,
        file: &uringfs::File,
        memory: Memory,
        offset: u64,
    ) -> PyResult<usize> {
        let read = self.detached(py, || read_fully(file, &memory, offset));
        memory.give_back(py);
        read?.map_err(|errno| self.handle.error(errno))
    }
}

#[pymethods]
impl File {
    /// The path that the file was opened with.
    #[getter]
    fn path(&self) -> OsString {
        self.handle.path().as_os_str().to_owned()
    }

    /// True once the file or its volume is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// The size in bytes.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        Ok(self.handle.file()?.len())
    }

    /// The bytes that its blocks take.
    #[getter]
    fn allocated(&self) -> PyResult<u64> {
        Ok(self.handle.file()?.allocated())
    }

    /// The attributes, as `os.fstat` returns them.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let open = self.handle.get()?;
        let metadata = self.detached(py, || open.volume.metadata_of(&open.file));
        stat_result(py, &metadata?.map_err(|error| os_error(&error))?)
    }

    /// Closes the file. Written bytes reach the device a little later; `sync` waits for them.
    fn close(&self, py: Python<'_>) {
        if !self.handle.guard().is_parent() {
            py.detach(|| self.handle.close());
        }
    }

    /// Reads up to `length` bytes at `offset`: fewer at the end of the file.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        length: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.handle.file()?;
        match self.read_cached_bytes(py, &file, length, offset)? {
            CachedBytes::Read(bytes) => Ok(bytes),
            CachedBytes::Missing(bytes) => {
                let read = self.read_into_memory(py, &file, bytes.memory(py), offset)?;
                Ok(bytes.finish(py, read))
            }
        }
    }

    /// Reads into a writable buffer at `offset`, and returns the number of bytes: fewer than it has at the end of the
    /// file.
    fn readinto_at(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
    ) -> PyResult<usize> {
        if let Some(read) = self.read_cached_into(buffer, offset)? {
            return Ok(read);
        }
        let file = self.handle.file()?;
        self.read_into_memory(py, &file, Memory::writable(buffer)?, offset)
    }

    /// Reads many ranges of at most 1 GiB into one writable buffer, one behind the other, with up to `depth` reads at a
    /// time. `lengths` is one number for all, or as many as there are offsets. Returns the number of bytes. EOFError
    /// when a range ends beyond the end of the file, ValueError for a longer one.
    #[pyo3(signature = (offsets, lengths, out, depth = 64))]
    fn read_ranges(
        &self,
        py: Python<'_>,
        offsets: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        depth: usize,
    ) -> PyResult<usize> {
        let file = self.handle.file()?;
        let (ranges, memory) = (Ranges::new(offsets, lengths)?, Memory::writable(out)?);
        let total = ranges.total();
        if total > memory.len() {
            let (has, path) = (memory.len(), self.handle.path().display());
            let what = format!("{total} bytes of {path} do not fit into a buffer of {has}");
            memory.give_back(py);
            return Err(PyValueError::new_err(what));
        }
        let read = self.detached(py, || ranges.read(&file, &memory, depth.max(1)));
        memory.give_back(py);
        read?.map(|()| total).map_err(|failure| failure.into_error(&self.handle))
    }

    /// Writes all of a buffer at `offset`, and returns the number of bytes. With `durable`, they survive a power cut
    /// when it returns.
    #[pyo3(signature = (data, offset, *, durable = false))]
    fn write_at(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offset: u64,
        durable: bool,
    ) -> PyResult<usize> {
        let (file, memory) = (self.handle.file()?, Memory::readable(data)?);
        let written = self.detached(py, || write_fully(&file, &memory, offset, durable));
        memory.give_back(py);
        written?.map_err(|errno| self.handle.error(errno))
    }

    /// Appends a buffer of at most 1 GiB, and returns its offset. Appends of several threads never overlap. ValueError
    /// for a larger buffer, of which nothing is appended.
    #[pyo3(signature = (data, *, durable = false))]
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>, durable: bool) -> PyResult<u64> {
        let (op, memory) = self.begin_append(py, data, durable)?;
        // With the buffer, which is memory in use, until it is dropped here.
        let offset = self.detached(py, || wait(op)).map(|(offset, _)| offset);
        memory.give_back(py);
        offset?.map_err(|errno| self.handle.error(errno))
    }

    /// Truncates the file, or extends it by a hole.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.handle.finish(py, |file| file.set_len(size))
    }

    /// Makes all completed writes durable, with the file's attributes, or with its size alone.
    #[pyo3(signature = (*, data_only = false))]
    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        let sync = |file: &uringfs::File| match data_only {
            true => file.sync_data(),
            false => file.sync_all(),
        };
        self.handle.finish(py, sync)
    }

    /// Allocates the blocks of a range, so that writes to it need no more space. The file grows if it ends before.
    fn allocate(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.handle.finish(py, |file| file.allocate(offset, length, FallocateSize::Extend))
    }

    /// Makes a range read as zeros, and frees its blocks.
    fn punch_hole(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.handle.finish(py, |file| file.punch_hole(offset, length))
    }

    /// The offset of the next data at or after `offset`; ENXIO when there is none.
    fn seek_data(&self, offset: u64) -> PyResult<u64> {
        let file = self.handle.file()?;
        let found = self.handle.guard().call(|| file.seek_data(offset))?;
        found.map_err(|errno| self.handle.error(errno))
    }

    /// The offset of the next hole at or after `offset`: the end of the file if there is none before.
    fn seek_hole(&self, offset: u64) -> PyResult<u64> {
        let file = self.handle.file()?;
        let found = self.handle.guard().call(|| file.seek_hole(offset))?;
        found.map_err(|errno| self.handle.error(errno))
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    /// Starts `read_at` for this thread's event loop. Returns true and the bytes if these were cached, else false and
    /// the number that `collect` reports.
    fn start_read(
        &self,
        py: Python<'_>,
        length: usize,
        offset: u64,
    ) -> PyResult<(bool, Py<PyAny>)> {
        let file = self.handle.file()?;
        let length = length.min(MAX_LENGTH);
        let bytes = match self.read_cached_bytes(py, &file, length, offset)? {
            CachedBytes::Read(bytes) => return Ok((true, bytes.into_any().unbind())),
            CachedBytes::Missing(bytes) => bytes,
        };
        let memory = bytes.memory(py);
        let buffer = memory.lend(0, memory.len());
        let operation = async move { file.read_at(buffer, offset).await.0.map(|read| read as u64) };
        let id = event_loop::start(operation, Value::Bytes(bytes), &self.handle)?;
        Ok((false, id.into_py_any(py)?))
    }

    /// Starts `readinto_at` for this thread's event loop. Returns true and the number of bytes if these were cached,
    /// else false and the number that `collect` reports.
    fn start_readinto(&self, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<(bool, u64)> {
        if let Some(read) = self.read_cached_into(buffer, offset)? {
            return Ok((true, read as u64));
        }
        let (file, memory) = (self.handle.file()?, Memory::writable(buffer)?);
        let buffer = memory.lend(0, memory.len());
        let operation = async move { file.read_at(buffer, offset).await.0.map(|read| read as u64) };
        let id = event_loop::start(operation, Value::Number, &self.handle)?;
        Ok((false, id))
    }

    /// Starts `write_at` for this thread's event loop, and returns the number that `collect` reports.
    fn start_write(&self, data: &Bound<'_, PyAny>, offset: u64, durable: bool) -> PyResult<u64> {
        let (file, memory) = (self.handle.file()?, Memory::readable(data)?);
        let operation = async move {
            let mut done = 0;
            while done < memory.len() {
                let op = write_op(&file, &memory, offset, done, durable);
                match op.await.0? {
                    0 => return Err(Errno::IO),
                    written => done += written,
                }
            }
            Ok(done as u64)
        };
        event_loop::start(operation, Value::Number, &self.handle)
    }

    /// Starts `append` for this thread's event loop, and returns the number that `collect` reports.
    fn start_append(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        durable: bool,
    ) -> PyResult<u64> {
        let (op, _) = self.begin_append(py, data, durable)?;
        event_loop::start(async move { op.await.0 }, Value::Number, &self.handle)
    }

    /// Starts `sync` for this thread's event loop, and returns the number that `collect` reports.
    fn start_sync(&self, data_only: bool) -> PyResult<u64> {
        let file = self.handle.file()?;
        let op = if data_only { file.sync_data() } else { file.sync_all() };
        let operation = async move { op.await.map(|()| 0) };
        event_loop::start(operation, Value::Number, &self.handle)
    }

    /// Panics in a call, for tests.
    #[cfg(debug_assertions)]
    #[pyo3(name = "_planted_panic")]
    fn planted_panic(&self, py: Python<'_>) -> PyResult<()> {
        self.detached(py, || panic!("planted in a call on a file"))
    }

    /// Panics in an operation of the event loop, for tests.
    #[cfg(debug_assertions)]
    #[pyo3(name = "_start_planted_panic")]
    fn start_planted_panic(&self) -> PyResult<u64> {
        let operation = async { panic!("planted in an operation on a file") };
        event_loop::start(operation, Value::Number, &self.handle)
    }

    /// Plants a panic in whatever drives this thread's reactor next, for tests.
    #[cfg(debug_assertions)]
    #[pyo3(name = "_plant_panic_in_reactor")]
    fn plant_panic_in_reactor(&self) -> PyResult<()> {
        let mut is_next = false;
        let task = std::future::poll_fn(move |context| {
            assert!(!is_next, "planted in the reactor of a thread");
            is_next = true;
            context.waker().wake_by_ref();
            std::task::Poll::<()>::Pending
        });
        drop(thread_reactor()?.spawn(task));
        Ok(())
    }

    /// For the garbage collector: the volume's attributes may refer to the file.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.volume)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed file" } else { "file" };
        format!("<uringfs {state} {:?}>", self.handle.path())
    }
}
