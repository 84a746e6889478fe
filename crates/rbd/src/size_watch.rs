//! [`SizeWatch`]: the size of an image, which others may change.

use std::ffi::{c_int, c_void};
use std::ptr;

use uringfs_errno::Errno;

use crate::cluster::check;
use crate::library::{Functions, RawImage};

/// Calls a function with an image's size whenever the image has changed.
pub(crate) struct SizeWatch {
    handle: u64,
    called: *mut Called,
}

/// The data that the library's call needs.
struct Called {
    raw: RawImage,
    functions: &'static Functions,
    call: Box<dyn Fn(u64) + Send + Sync>,
}

impl SizeWatch {
    /// Begins to watch.
    ///
    /// # Safety
    /// The image must be open until the watch is dropped.
    pub(crate) unsafe fn begin(
        functions: &'static Functions,
        raw: RawImage,
        call: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<SizeWatch, Errno> {
        let called = Box::into_raw(Box::new(Called { raw, functions, call: Box::new(call) }));
        let mut handle = 0;
        // SAFETY: the argument exists until the watch has ended.
        let begun =
            unsafe { (functions.rbd_update_watch)(raw, &mut handle, on_update, called.cast()) };
        check(begun).inspect_err(|_| {
            // SAFETY: there is no watch that would use it.
            drop(unsafe { Box::from_raw(called) });
        })?;
        Ok(SizeWatch { handle, called })
    }
}

impl Drop for SizeWatch {
    fn drop(&mut self) {
        // SAFETY: it exists until the end of this function, if at all.
        let Called { raw, functions, .. } = unsafe { &*self.called };
        // SAFETY: the watch exists. The call waits for callbacks in progress.
        let ended = unsafe { (functions.rbd_update_unwatch)(*raw, self.handle) };
        if ended >= 0 {
            // SAFETY: no callback uses it any more.
            drop(unsafe { Box::from_raw(self.called) });
        }
    }
}

/// Called by a thread of librbd.
unsafe extern "C" fn on_update(argument: *mut c_void) {
    // SAFETY: `begin` has made the argument; it exists until the watch has ended.
    let Called { raw, functions, call } = unsafe { &*argument.cast::<Called>() };
    // SAFETY: the watch ends before the image is closed.
    if let Ok(size) = unsafe { size(functions, *raw) } {
        call(size);
    }
}

/// The size of an image in bytes.
///
/// # Safety
/// The image must be open.
pub(crate) unsafe fn size(functions: &Functions, raw: RawImage) -> Result<u64, Errno> {
    let mut size = 0;
    // SAFETY: the library stores a number.
    check(unsafe { (functions.rbd_get_size)(raw, &mut size) })?;
    Ok(size)
}

/// Enlarges an image.
///
/// # Safety
/// The image must be open.
pub(crate) unsafe fn enlarge(functions: &Functions, raw: RawImage, size: u64) -> Result<(), Errno> {
    let shrinks = false;
    // SAFETY: the callback needs no argument.
    check(unsafe { (functions.rbd_resize2)(raw, size, shrinks, on_progress, ptr::null_mut()) })
        .map(drop)
}

/// Called while an image is resized. Enlarging one takes no time.
unsafe extern "C" fn on_progress(_done: u64, _total: u64, _argument: *mut c_void) -> c_int {
    0
}
