//! Operations on an [`Image`].

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::iovec;
use uringfs_buffer::{Buffer, RegionId};
use uringfs_errno::Errno;

use crate::cluster::{check, errno_of};
use crate::completions::{Completion, Completions, ReturnPath};
use crate::image::Image;
use crate::io::{Memory, Op};
use crate::library::{Functions, RawCompletion};

/// An operation that librbd has.
struct InProgress<T> {
    context: T,
    memory: Memory,
    path: ReturnPath<T>,
    functions: &'static Functions,
    /// The library reads it again when it fills the memory of a read.
    _segments: Box<[iovec]>,
}

/// Called by a thread of librbd.
unsafe extern "C" fn on_complete<T>(completion: RawCompletion, argument: *mut c_void) {
    // SAFETY: `submit` has made the argument of such a box; librbd calls once.
    let io = unsafe { Box::from_raw(argument.cast::<InProgress<T>>()) };
    let InProgress { context, memory, path, functions, .. } = *io;
    // SAFETY: the completion exists until it is released.
    let result = unsafe { (functions.rbd_aio_get_return_value)(completion) };
    // SAFETY: it is not used any more.
    unsafe { (functions.rbd_aio_release)(completion) };
    let result = if result >= 0 { Ok(result as u64) } else { Err(errno_of(result as i64)) };
    path.send(Completion { context, memory, result });
}

impl Image {
    /// Begins an operation. It comes to `completions` with its memory and `context`, once, in any case. A read or write leaves
    /// out the first `skip` bytes of the memory. The drop of the image waits for all operations.
    ///
    /// # Errors
    /// The library has not taken it; `context` and memory come back. EFAULT for a read into memory that must not be written.
    pub fn submit<T: Send + 'static>(
        &self,
        op: Op,
        memory: Memory,
        skip: u64,
        context: T,
        completions: &Completions<T>,
    ) -> Result<(), (Errno, T, Memory)> {
        let functions = self.functions();
        let is_read_only = |buffer: &Buffer| buffer.region_id() == RegionId::READ_ONLY;
        if matches!(op, Op::Read(_)) && memory.buffers().iter().any(is_read_only) {
            return Err((Errno::FAULT, context, memory));
        }
        let segments = segments(&memory, skip).into_boxed_slice();
        let (first, count) = (segments.as_ptr(), segments.len() as c_int);
        let path = completions.return_path();
        let io = Box::into_raw(Box::new(InProgress {
            context,
            memory,
            path,
            functions,
            _segments: segments,
        }));
        let mut completion = ptr::null_mut();
        // SAFETY: the callback takes such a box.
        let created = unsafe {
            (functions.rbd_aio_create_completion)(io.cast(), on_complete::<T>, &mut completion)
        };
        let begun = check(created).and_then(|_| {
            // SAFETY: the completion is new; the box has the segments and their memory until it is called.
            check(unsafe { self.begin(op, (first, count), completion) }).inspect_err(|_| {
                // SAFETY: the library has not begun, and will not call.
                unsafe { (functions.rbd_aio_release)(completion) }
            })
        });
        begun.map(drop).map_err(|errno| {
            // SAFETY: the library has not begun, so nothing else uses the box.
            let InProgress { context, memory, .. } = *unsafe { Box::from_raw(io) };
            (errno, context, memory)
        })
    }

    /// # Safety
    /// The completion must be new, and the segments and their memory valid until it is called.
    unsafe fn begin(
        &self,
        op: Op,
        (first, count): (*const iovec, c_int),
        completion: RawCompletion,
    ) -> c_int {
        let (functions, image) = (self.functions(), self.raw());
        match op {
            // SAFETY: as this function's.
            Op::Read(offset) => unsafe {
                (functions.rbd_aio_readv)(image, first, count, offset, completion)
            },
            // SAFETY: as this function's.
            Op::Write(offset) => unsafe {
                (functions.rbd_aio_writev)(image, first, count, offset, completion)
            },
            // SAFETY: as this function's.
            Op::Flush => unsafe { (functions.rbd_aio_flush)(image, completion) },
            // SAFETY: as this function's.
            Op::Discard { offset, length } => unsafe {
                (functions.rbd_aio_discard)(image, offset, length, completion)
            },
            // SAFETY: as this function's.
            Op::WriteZeroes { offset, length } => unsafe {
                (functions.rbd_aio_write_zeroes)(image, offset, length as usize, completion, 0, 0)
            },
        }
    }
}

/// The memory after its first `skip` bytes.
fn segments(memory: &Memory, skip: u64) -> Vec<iovec> {
    let mut skip = skip as usize;
    let segment = |buffer: &Buffer| {
        let start = skip.min(buffer.len());
        skip -= start;
        let first = buffer.pointer().as_ptr().wrapping_add(start);
        let length = buffer.len() - start;
        (length > 0).then_some(iovec { iov_base: first.cast(), iov_len: length })
    };
    memory.buffers().iter().filter_map(segment).collect()
}
