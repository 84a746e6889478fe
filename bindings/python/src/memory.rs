//! Memory of Python objects as memory of requests. Memory of a request stays exported, or referenced, until the last
//! part of the request is gone, whatever its caller does meanwhile: so a `bytearray` cannot be resized before.
//!
//! Other threads may change such memory at any time. So requests get it as shared memory, of which no slice is made.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use uringfs::Buffer;
use uringfs::buffer::{MAX_LENGTH, Registration, SharedMemory};

/// Memory for requests, with its owner. Clones are the same memory.
#[derive(Clone)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    length: usize,
    /// A [`View`] or an object of type `bytes`.
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: threads use the memory through requests alone, and the owner can be dropped in any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// The memory of an object with a writable, contiguous buffer.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        View::get(object, ffi::PyBUF_WRITABLE).map(Memory::of_view)
    }

    /// The memory of an object with a contiguous buffer, for writes to a file.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        View::get(object, ffi::PyBUF_SIMPLE).map(Memory::of_view)
    }

    fn of_view(view: View) -> Memory {
        let length = usize::try_from(view.raw.len).expect("a buffer's length is not negative");
        let base = NonNull::new(view.raw.buf.cast()).unwrap_or(NonNull::dangling());
        Memory { base, length, owner: Arc::new(view) }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Gives the memory back to its object, once no request has it.
    pub(crate) fn give_back(self, py: Python<'_>) {
        drop(self);
        release_ended(py);
    }

    /// The buffer of a part for one request: at most [`MAX_LENGTH`] bytes of it.
    ///
    /// # Panics
    /// When the part is not inside the memory.
    pub(crate) fn lend(&self, start: usize, length: usize) -> Buffer {
        let end = start.checked_add(length).filter(|end| *end <= self.length);
        assert!(end.is_some(), "{length} bytes at {start} of {}", self.length);
        let length = length.min(MAX_LENGTH);
        // SAFETY: inside the memory, as just checked.
        let base = unsafe { self.base.add(start) };
        let owner = self.owner.clone();
        // SAFETY: the owner keeps the memory. References to it exist only in `with_writable`, and in `NewBytes` before
        // the first request, both while the GIL is held, so not beside a request of this caller; another caller that
        // reads into the same object at the same time races with itself, as with `os.preadv`.
        let shared = unsafe { SharedMemory::new(base, length, Registration::Never, owner) };
        let mut buffers = Vec::with_capacity(1);
        shared.append_to(&mut buffers, 0, length);
        buffers.pop().unwrap_or_else(|| Buffer::zeroed(0))
    }
}

/// The exported buffer of an object, which may not resize its memory meanwhile.
struct View {
    /// In a box, since it may point into itself. Taken at the drop.
    raw: Box<ffi::Py_buffer>,
}

// SAFETY: only its address and length are used without the GIL.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<View> {
        let mut raw = Box::new(ffi::Py_buffer::new());
        // SAFETY: the GIL is held, as `object` shows; the structure is empty and stays where it is.
        let status = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *raw, flags) };
        match status {
            0 => Ok(View { raw }),
            _ => Err(PyErr::fetch(object.py())),
        }
    }
}

/// Views whose requests have ended. The thread that ended the last one may not have had the GIL, or the interpreter
/// may be gone.
static ENDED: Mutex<Vec<View>> = Mutex::new(Vec::new());

impl Drop for View {
    fn drop(&mut self) {
        if !self.raw.obj.is_null() {
            let raw = std::mem::replace(&mut self.raw, Box::new(ffi::Py_buffer::new()));
            ENDED.lock().push(View { raw });
        }
    }
}

/// Gives the memory of ended requests back to its objects.
pub(crate) fn release_ended(_py: Python<'_>) {
    // Not under the lock: the object's code may run, and come here again.
    let ended = std::mem::take(&mut *ENDED.lock());
    for mut view in ended {
        // SAFETY: the GIL is held; the view was filled by `PyObject_GetBuffer`, and is released once: that clears
        // `obj`.
        unsafe { ffi::PyBuffer_Release(&mut *view.raw) };
    }
}

/// Calls `fill` with the writable, contiguous memory of an object, while the GIL is held.
pub(crate) fn with_writable<R>(
    object: &Bound<'_, PyAny>,
    fill: impl FnOnce(&mut [u8]) -> R,
) -> PyResult<R> {
    let mut raw = ffi::Py_buffer::new();
    // SAFETY: the GIL is held, as `object` shows; the structure is empty and stays where it is.
    let status = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut raw, ffi::PyBUF_WRITABLE) };
    if status != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let length = usize::try_from(raw.len).expect("a buffer's length is not negative");
    let base = NonNull::new(raw.buf.cast()).unwrap_or(NonNull::dangling());
    // SAFETY: the export keeps the memory, which is initialized. The GIL keeps other Python code away from it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), length) };
    let result = fill(bytes);
    // SAFETY: it was filled above, and is released once.
    unsafe { ffi::PyBuffer_Release(&mut raw) };
    Ok(result)
}

/// A `bytes` object before others have it.
pub(crate) struct NewBytes {
    object: Py<PyBytes>,
    base: NonNull<u8>,
    length: usize,
}

impl NewBytes {
    /// Of zeros, to be filled by [`Self::with_bytes`] or by requests.
    pub(crate) fn zeroed(py: Python<'_>, length: usize) -> PyResult<NewBytes> {
        let new = NewBytes::uninitialized(py, length)?;
        // SAFETY: the object has this memory, and no other owner.
        unsafe { new.base.write_bytes(0, length) };
        Ok(new)
    }

    /// To be filled by requests; bytes that these do not fill are undefined.
    pub(crate) fn uninitialized(py: Python<'_>, length: usize) -> PyResult<NewBytes> {
        let size = isize::try_from(length)?;
        // SAFETY: the GIL is held; without a source the object is made with undefined bytes.
        let object = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), size) };
        // SAFETY: a new reference, or null with an error set.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
        let object = object.cast_into::<PyBytes>()?;
        // SAFETY: it is an object of type `bytes`.
        let base = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        let base = NonNull::new(base.cast()).expect("an object of type `bytes` has memory");
        Ok(NewBytes { object: object.unbind(), base, length })
    }

    /// Fills the bytes of one that was made of zeros, and that no request has.
    pub(crate) fn with_bytes<R>(&mut self, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: initialized, and no other code has the object.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) };
        fill(bytes)
    }

    /// Its memory for requests. They keep the object.
    pub(crate) fn memory(&self, py: Python<'_>) -> Memory {
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(self.object.clone_ref(py));
        Memory { base: self.base, length: self.length, owner }
    }

    /// The object with its first `filled` bytes, once no request has it.
    pub(crate) fn finish<'py>(&self, py: Python<'py>, filled: usize) -> Bound<'py, PyBytes> {
        let object = self.object.bind(py);
        match filled >= self.length {
            true => object.clone(),
            false => PyBytes::new(py, &object.as_bytes()[..filled]),
        }
    }
}
