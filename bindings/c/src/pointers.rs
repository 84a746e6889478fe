//! Strings, memory and arrays of C.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::error::Failure;

/// A string of C. `None` for NULL.
pub(crate) fn string<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    // SAFETY: C passes strings that end with a zero and stay until the function returns.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) })
}

/// A path.
pub(crate) fn path<'a>(pointer: *const c_char) -> Result<&'a Path, Failure> {
    match string(pointer) {
        Some(text) => Ok(Path::new(OsStr::from_bytes(text.to_bytes()))),
        None => Err(Failure::argument(c"a path is NULL")),
    }
}

/// The address of `length` bytes of C, which may be NULL if there are none.
#[inline(always)]
pub(crate) fn address(pointer: *const u8, length: usize) -> Result<NonNull<u8>, Failure> {
    match NonNull::new(pointer.cast_mut()) {
        Some(address) => Ok(address),
        None if length == 0 => Ok(NonNull::dangling()),
        None => Err(Failure::argument(c"the memory is NULL")),
    }
}

/// Stores a string and the zero byte that ends it.
pub(crate) fn store_string(address: NonNull<u8>, text: &[u8]) {
    // SAFETY: the caller has compared the length with that of the memory, which C has passed.
    unsafe { address.copy_from_nonoverlapping(NonNull::from(text).cast(), text.len()) };
    store_at(address.as_ptr(), text.len(), 0);
}

/// Loads an element of an array of C.
#[inline(always)]
pub(crate) fn load_at<T: Copy>(array: *const T, index: usize) -> T {
    // SAFETY: the caller has compared the index with the length that C has passed with the array.
    let element = unsafe { array.add(index) };
    // SAFETY: as above. C has initialized the array.
    unsafe { element.read() }
}

/// Stores a value in an array of C.
#[inline(always)]
pub(crate) fn store_at<T: Copy>(array: *mut T, index: usize, value: T) {
    // SAFETY: the caller has compared the index with the length that C has passed with the array.
    let element = unsafe { array.add(index) };
    // SAFETY: as above. The old bytes are no value that would be dropped.
    unsafe { element.write(value) };
}
