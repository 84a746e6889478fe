//! [`Volume`]: names and attributes, and the opening of files. The package's class of the same name derives from it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use uringfs::cache::Cache;
use uringfs::volume::{FileTimes, Follow, Time};
use uringfs::{Error, FormatOptions, OpenOptions, VolumeOptions};

use crate::errors::{closed, open_error, os_error, os_error_of_two, other_volume};
use crate::event_loop;
use crate::file::File;
use crate::guard::{Guard, catch};
use crate::handle::Handle;
use crate::path::PathInVolume;
use crate::stat::stat_result;
use crate::thread_reactor::detached;

/// An open volume.
#[pyclass(frozen, subclass, weakref, module = "uringfs")]
pub(crate) struct Volume {
    open: Mutex<Option<uringfs::Volume>>,
    /// The files that may be open.
    files: Mutex<Vec<Weak<Handle>>>,
    guard: Guard,
}

/// Formats a new file of `size` bytes, or with `overwrite` a file or a block device that exists.
#[pyfunction]
#[pyo3(signature = (path, size, label, overwrite))]
pub(crate) fn create(
    py: Python<'_>,
    path: PathBuf,
    size: Option<u64>,
    label: &str,
    overwrite: bool,
) -> PyResult<()> {
    let options = FormatOptions::new().label(label).overwrite(overwrite);
    let options = match size {
        Some(size) => options.size(size),
        None => options,
    };
    let guard = Guard::new(path);
    let create = || uringfs::Volume::create(guard.path(), &options)?.close();
    let created = guard.call_detached(py, create)?;
    created.map_err(|error| open_error(&error))
}

impl Volume {
    fn get(&self) -> PyResult<uringfs::Volume> {
        self.guard.check()?;
        self.open.lock().clone().ok_or_else(|| closed("volume"))
    }

    /// The volume of a path.
    fn volume_of<'a>(&'a self, py: Python<'a>, path: &'a PathInVolume) -> PyResult<&'a Volume> {
        match &path.volume {
            Some(volume) => Ok(volume.bind(py).cast::<Volume>()?.get()),
            None => Ok(self),
        }
    }

    /// A path in this volume.
    ///
    /// # Errors
    /// ValueError if it is one in another volume.
    fn path_of(&self, py: Python<'_>, path: PathInVolume) -> PyResult<PathBuf> {
        let volume = self.volume_of(py, &path)?;
        if std::ptr::eq(volume, self) {
            return Ok(path.path);
        }
        let (of, own) = (volume.guard.path().display(), self.guard.path().display());
        let path = path.path.display();
        Err(PyValueError::new_err(format!(
            "{path} is a path of the volume {of}, and this is a call of the volume {own}: \
             call the path's volume, or pass the path's text"
        )))
    }

    /// Two paths for a call that cannot go from one volume to another.
    ///
    /// # Errors
    /// EXDEV if they are in different volumes.
    fn paths_of(
        &self,
        py: Python<'_>,
        source: PathInVolume,
        target: PathInVolume,
    ) -> PyResult<(PathBuf, PathBuf)> {
        let volumes = (self.volume_of(py, &source)?, self.volume_of(py, &target)?);
        if !std::ptr::eq(volumes.0, volumes.1) {
            let (of, to) = (volumes.0.guard.path(), volumes.1.guard.path());
            return Err(other_volume((&source.path, of), (&target.path, to)));
        }
        Ok((self.path_of(py, source)?, self.path_of(py, target)?))
    }

    /// Notes a file that the volume's close closes.
    fn add_file(&self, file: &File) {
        let mut files = self.files.lock();
        // Those that are gone, whenever the list would grow.
        if files.len() == files.capacity() {
            files.retain(|file| file.strong_count() > 0);
        }
        files.push(Arc::downgrade(file.handle()));
    }

    /// Calls the volume without the GIL.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&uringfs::Volume) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let volume = self.get()?;
        self.guard.call_detached(py, || call(&volume))?.map_err(|error| os_error(&error))
    }

    /// Calls the volume without the GIL. Its error names both paths.
    fn call_with_two<T: Send>(
        &self,
        py: Python<'_>,
        (source, target): (&Path, &Path),
        call: impl FnOnce(&uringfs::Volume) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let volume = self.get()?;
        let called = self.guard.call_detached(py, || call(&volume))?;
        called.map_err(|error| os_error_of_two(&error, source, target))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        match self.open.get_mut().take() {
            // The parent has it open; here nothing must end.
            open if self.guard.is_parent() => std::mem::forget(open),
            Some(open) => close_dropped(open, self.guard.path()),
            None => {}
        }
    }
}

/// Closes a volume that the program has dropped with all its files. An error is reported as that of a destructor.
fn close_dropped(open: uringfs::Volume, path: &Path) {
    let close = || {
        // Operations whose awaits were cancelled keep their files open, and run in this thread only.
        event_loop::finish_all();
        open.close()
    };
    let closed = detached(|| catch(close));
    if let Some(Err(error)) = closed {
        Python::try_attach(|py| {
            // The one that the thread raises, if that is why the volume is dropped.
            let raised = PyErr::take(py);
            let path = path.as_os_str().into_pyobject(py).ok();
            os_error(&error).write_unraisable(py, path.as_deref());
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

#[pymethods]
impl Volume {
    #[new]
    #[pyo3(signature = (path, *, read_only = false, cache_bytes = None, discard = false))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        read_only: bool,
        cache_bytes: Option<u64>,
        discard: bool,
    ) -> PyResult<Volume> {
        let options = VolumeOptions::new().read_only(read_only).discard(discard);
        let options = match cache_bytes {
            Some(bytes) => options.page_cache(Cache::new(bytes)),
            None => options,
        };
        let guard = Guard::new(path);
        let opened = guard.call_detached(py, || options.open(guard.path()))?;
        let open = Mutex::new(Some(opened.map_err(|error| open_error(&error))?));
        Ok(Volume { open, files: Mutex::default(), guard })
    }

    /// Closes the files, makes all changes durable, and frees the volume for other programs.
    fn close_volume(&self, py: Python<'_>) -> PyResult<()> {
        if self.guard.is_parent() {
            return Ok(());
        }
        let open = self.open.lock().take();
        // After that: a call that opens a file meanwhile either has it here, or finds the volume closed.
        let files = std::mem::take(&mut *self.files.lock());
        let closed = self.guard.call_detached(py, || {
            files.iter().filter_map(Weak::upgrade).for_each(|file| file.close());
            // Operations of this thread's event loop keep their files open, and run in this thread only.
            event_loop::finish_all();
            open.map_or(Ok(()), uringfs::Volume::close)
        });
        closed?.map_err(|error| os_error(&error))
    }

    /// True in the child of a fork, where the volume is its parent's.
    #[getter]
    fn inherited(&self) -> bool {
        self.guard.is_parent()
    }

    /// True once it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.lock().is_none()
    }

    /// The path of its file or block device.
    #[getter]
    fn device_path(&self) -> OsString {
        self.guard.path().as_os_str().to_owned()
    }

    /// The name that it was formatted with.
    #[getter]
    fn label(&self) -> PyResult<String> {
        Ok(self.get()?.label().to_owned())
    }

    /// The 16 bytes that identify it.
    #[getter]
    fn uuid_bytes(&self) -> PyResult<[u8; 16]> {
        Ok(self.get()?.uuid())
    }

    /// True if nothing in it can be changed.
    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.get()?.is_read_only())
    }

    /// Blocks, free, pending and catalog blocks, commits, and checkpoints.
    fn statistics_values(&self) -> PyResult<[u64; 6]> {
        let found = self.get()?.statistics();
        let blocks = [found.blocks, found.free_blocks, found.pending_blocks, found.catalog_blocks];
        let [all, free, pending, catalog] = blocks;
        Ok([all, free, pending, catalog, found.commits, found.checkpoints])
    }

    /// Makes all changes and writes durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, uringfs::Volume::sync)
    }

    /// The text of a path in this volume.
    fn text_of(&self, py: Python<'_>, path: PathInVolume) -> PyResult<OsString> {
        self.path_of(py, path).map(PathBuf::into_os_string)
    }

    /// Opens a file.
    #[pyo3(signature = (path, *, read, write, create, exclusive, truncate, direct, permissions))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords of a Python call")]
    fn open_native(
        this: &Bound<'_, Self>,
        path: PathInVolume,
        read: bool,
        write: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        direct: bool,
        permissions: u32,
    ) -> PyResult<File> {
        let (py, volume) = (this.py(), this.get());
        let path = volume.path_of(py, path)?;
        let options = OpenOptions::new().read(read).write(write).create(create);
        let options = options.create_new(exclusive).truncate(truncate).direct(direct);
        let options = options.mode(permissions);
        let (file, open) =
            volume.call(py, |volume| Ok((options.open(volume, &path)?, volume.clone())))?;
        let file = File::new(Handle::new(file, open, path), this.clone().into_any().unbind());
        volume.add_file(&file);
        // Another thread may have closed the volume meanwhile, without this file.
        if volume.closed() { Err(closed("volume")) } else { Ok(file) }
    }

    /// The names in a directory, sorted by their bytes.
    #[pyo3(signature = (path = PathInVolume::root()), text_signature = "($self, path='/')")]
    fn listdir(&self, py: Python<'_>, path: PathInVolume) -> PyResult<Vec<OsString>> {
        let path = self.path_of(py, path)?;
        self.call(py, |volume| {
            volume.read_dir(&path)?.map(|entry| Ok(entry?.file_name())).collect()
        })
    }

    /// The entries of a directory: name, type as in `st_mode`, and number of the inode.
    fn entries(&self, py: Python<'_>, path: PathInVolume) -> PyResult<Vec<(OsString, u16, u64)>> {
        let path = self.path_of(py, path)?;
        self.call(py, |volume| {
            let entries = volume.read_dir(&path)?.map(|entry| {
                let entry = entry?;
                Ok((entry.file_name(), entry.file_type().mode_bits().0, entry.ino()))
            });
            entries.collect()
        })
    }

    /// The attributes of a file, as `os.stat` returns them.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: PathInVolume,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let path = self.path_of(py, path)?;
        let metadata = self.call(py, |volume| match follow_symlinks {
            true => volume.metadata(&path),
            false => volume.symlink_metadata(&path),
        })?;
        stat_result(py, &metadata)
    }

    /// Creates a directory.
    #[pyo3(signature = (path, mode = 0o755))]
    fn mkdir(&self, py: Python<'_>, path: PathInVolume, mode: u32) -> PyResult<()> {
        let path = self.path_of(py, path)?;
        self.call(py, |volume| volume.create_dir_with_mode(&path, mode))
    }

    /// Creates a directory and those above it, as far as they do not exist.
    fn create_dir_all(&self, py: Python<'_>, path: PathInVolume) -> PyResult<()> {
        let path = self.path_of(py, path)?;
        self.call(py, |volume| volume.create_dir_all(&path))
    }

    /// Renames a file or a directory, and replaces what has the new name.
    fn rename(&self, py: Python<'_>, source: PathInVolume, target: PathInVolume) -> PyResult<()> {
        let (source, target) = self.paths_of(py, source, target)?;
        self.call_with_two(py, (&source, &target), |volume| volume.rename(&source, &target))
    }

    /// Removes a file.
    fn remove(&self, py: Python<'_>, path: PathInVolume) -> PyResult<()> {
        let path = self.path_of(py, path)?;
        self.call(py, |volume| volume.remove_file(&path))
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: PathInVolume) -> PyResult<()> {
        let path = self.path_of(py, path)?;
        self.call(py, |volume| volume.remove_dir(&path))
    }

    /// Removes a directory with everything in it.
    fn rmtree(&self, py: Python<'_>, path: PathInVolume) -> PyResult<()> {
        let path = self.path_of(py, path)?;
        self.call(py, |volume| volume.remove_dir_all(&path))
    }

    /// Creates a symbolic link at `target` with the text `source`.
    fn symlink(&self, py: Python<'_>, source: PathInVolume, target: PathInVolume) -> PyResult<()> {
        let (source, target) = (self.path_of(py, source)?, self.path_of(py, target)?);
        self.call_with_two(py, (&source, &target), |volume| volume.symlink(&source, &target))
    }

    /// The text of a symbolic link.
    fn readlink(&self, py: Python<'_>, path: PathInVolume) -> PyResult<OsString> {
        let path = self.path_of(py, path)?;
        self.call(py, |volume| volume.read_link(&path).map(PathBuf::into_os_string))
    }

    /// Gives a file a further name.
    fn link(&self, py: Python<'_>, source: PathInVolume, target: PathInVolume) -> PyResult<()> {
        let (source, target) = self.paths_of(py, source, target)?;
        self.call_with_two(py, (&source, &target), |volume| volume.hard_link(&source, &target))
    }

    /// Copies the content and the permissions of a file, and returns its size.
    fn copyfile(
        &self,
        py: Python<'_>,
        source: PathInVolume,
        target: PathInVolume,
    ) -> PyResult<u64> {
        let (source, target) = (self.path_of(py, source)?, self.path_of(py, target)?);
        self.call_with_two(py, (&source, &target), |volume| volume.copy(&source, &target))
    }

    /// Panics in a call, for tests.
    #[cfg(debug_assertions)]
    #[pyo3(name = "_planted_panic")]
    fn planted_panic(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |_| panic!("planted in a call on a volume"))
    }

    /// Changes the permissions of a file.
    fn chmod(&self, py: Python<'_>, path: PathInVolume, mode: u32) -> PyResult<()> {
        let path = self.path_of(py, path)?;
        let permissions = (mode & 0o7777) as u16;
        self.call(py, |volume| {
            volume.set_attributes(&path, Follow::Yes, |inode| inode.permissions = permissions)
        })
    }

    /// Sets the times of the last access and of the last change of the content, in nanoseconds since 1970.
    fn utime_ns(&self, py: Python<'_>, path: PathInVolume, times: (i64, i64)) -> PyResult<()> {
        let path = self.path_of(py, path)?;
        let (accessed, modified) = times;
        let times = FileTimes::new()
            .set_accessed(Time::from_nanoseconds(accessed))
            .set_modified(Time::from_nanoseconds(modified));
        self.call(py, |volume| volume.set_times(&path, times))
    }
}
