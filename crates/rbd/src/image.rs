//! [`Image`]: an open image.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use libc::iovec;
use uringfs_buffer::{Buffer, RegionId};
use uringfs_errno::Errno;

use crate::cluster::{Cluster, c_string, check, errno_of, text_in};
use crate::completions::{Completion, Completions, ReturnPath};
use crate::io::{Memory, Op};
use crate::library::{
    Functions, IoContext, RawCompletion, RawImage, RawInfo, RawSetting, RawWatcher,
};

/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;

/// How an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reads. Takes no lock.
    Read,
    /// For reads and writes.
    ReadWrite,
}

/// What an image is. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Its size.
    pub size: u64,
    /// The size of the objects that it is made of.
    pub object_size: u64,
    /// The bytes that lie in one object before the next one begins; the size of an object unless the image is striped.
    pub stripe_unit: u64,
    /// Its features.
    pub features: Features,
}

/// The features of an image, as bits of Ceph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// One client owns the image for writes.
    pub fn has_exclusive_lock(self) -> bool {
        self.0 & (1 << 2) != 0
    }
}

/// An open image. Any thread may use it.
pub struct Image {
    raw: RawImage,
    context: IoContext,
    cluster: Arc<Cluster>,
    /// The handle of the watch of its size, and what that calls.
    watch: Option<(u64, *mut SizeWatch)>,
}

/// What a watch of an image's size needs.
struct SizeWatch {
    raw: RawImage,
    functions: &'static Functions,
    call: Box<dyn Fn(u64) + Send + Sync>,
}

// SAFETY: librbd's functions on an image may be called from any thread.
unsafe impl Send for Image {}
// SAFETY: as above, also at once; the watch changes only by its owner.
unsafe impl Sync for Image {}

impl fmt::Debug for Image {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "an image, open by {:?}", self.cluster)
    }
}

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; empty for the default one.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The snapshot.
    pub snapshot: Option<String>,
}

/// Why an image cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The pool: ENOENT if there is none of this name.
    Pool(Errno),
    /// The image or its snapshot: ENOENT if there is none of this name.
    Image(Errno),
}

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

/// Called by a thread of librbd.
unsafe extern "C" fn on_update(argument: *mut c_void) {
    // SAFETY: `watch_size` has made the argument; it exists until the watch has ended.
    let watch = unsafe { &*argument.cast::<SizeWatch>() };
    // SAFETY: the watch ends before the image is closed.
    if let Ok(size) = unsafe { size_of_image(watch.functions, watch.raw) } {
        (watch.call)(size);
    }
}

/// # Safety
/// The image must be open.
unsafe fn size_of_image(functions: &Functions, raw: RawImage) -> Result<u64, Errno> {
    let mut size = 0;
    // SAFETY: the library stores a number.
    check(unsafe { (functions.rbd_get_size)(raw, &mut size) })?;
    Ok(size)
}

impl Image {
    /// Opens an image. Waits for as long as its storage daemons do not answer.
    ///
    /// # Errors
    /// As [`OpenError`].
    pub fn open(
        cluster: &Arc<Cluster>,
        name: &ImageName,
        mode: OpenMode,
    ) -> Result<Image, OpenError> {
        let functions = cluster.functions();
        let pool = c_string(name.pool.as_str()).map_err(OpenError::Pool)?;
        let namespace = c_string(name.namespace.as_str()).map_err(OpenError::Pool)?;
        let image = c_string(name.image.as_str()).map_err(OpenError::Image)?;
        let snapshot =
            name.snapshot.as_deref().map(c_string).transpose().map_err(OpenError::Image)?;
        let mut context = ptr::null_mut();
        // SAFETY: the instance is connected, and the pointers are valid during the call.
        check(unsafe {
            (functions.rados_ioctx_create)(cluster.raw(), pool.as_ptr(), &mut context)
        })
        .map_err(OpenError::Pool)?;
        // Closes what is open when it is dropped.
        let mut opened =
            Image { raw: ptr::null_mut(), context, cluster: cluster.clone(), watch: None };
        // SAFETY: the context exists, and the string is valid during the call.
        unsafe { (functions.rados_ioctx_set_namespace)(context, namespace.as_ptr()) };
        let open = match mode {
            OpenMode::Read => functions.rbd_open_read_only,
            OpenMode::ReadWrite => functions.rbd_open,
        };
        let snapshot = snapshot.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: as above; a null snapshot means none.
        let result = unsafe { open(context, image.as_ptr(), &mut opened.raw, snapshot) };
        if result < 0 {
            // The library may have stored something.
            opened.raw = ptr::null_mut();
        }
        check(result).map_err(OpenError::Image)?;
        Ok(opened)
    }

    /// What it is now.
    ///
    /// # Errors
    /// The library's.
    pub fn info(&self) -> Result<ImageInfo, Errno> {
        let (functions, mut info) = (self.functions(), RawInfo::default());
        // SAFETY: the struct of this size is valid during the call.
        check(unsafe { (functions.rbd_stat)(self.raw, &mut info, size_of::<RawInfo>()) })?;
        let (mut stripe_unit, mut features) = (0, 0);
        // SAFETY: the library stores a number.
        check(unsafe { (functions.rbd_get_stripe_unit)(self.raw, &mut stripe_unit) })?;
        // SAFETY: as above.
        check(unsafe { (functions.rbd_get_features)(self.raw, &mut features) })?;
        let RawInfo { size, object_size, .. } = info;
        Ok(ImageInfo { size, object_size, stripe_unit, features: Features(features) })
    }

    /// Its size in bytes now.
    ///
    /// # Errors
    /// The library's.
    pub fn size(&self) -> Result<u64, Errno> {
        // SAFETY: the image is open.
        unsafe { size_of_image(self.functions(), self.raw) }
    }

    /// Takes the exclusive lock, and keeps it until the end of the image.
    ///
    /// # Errors
    /// EROFS or EBUSY while another client has it.
    pub fn acquire_lock(&self) -> Result<(), Errno> {
        // SAFETY: the image is open.
        check(unsafe { (self.functions().rbd_lock_acquire)(self.raw, EXCLUSIVE) }).map(drop)
    }

    /// The holder of the exclusive lock, in the form that [`Self::break_lock`] takes: its address with its nonce.
    ///
    /// # Errors
    /// The library's.
    pub fn lock_owner(&self) -> Result<Option<String>, Errno> {
        let functions = self.functions();
        let (mut mode, mut owners, mut count) = (0, [ptr::null_mut(); 8], 8);
        // SAFETY: the array has as many places as is said.
        let result = unsafe {
            (functions.rbd_lock_get_owners)(self.raw, &mut mode, owners.as_mut_ptr(), &mut count)
        };
        match check(result) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let first = owners[..count].first().map(|owner| {
            // SAFETY: the library's strings end with a NUL.
            unsafe { CStr::from_ptr(*owner) }.to_string_lossy().into_owned()
        });
        // SAFETY: the library has allocated this many strings.
        unsafe { (functions.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(first)
    }

    /// Takes the exclusive lock from its holder, which must be on the blocklist.
    ///
    /// # Errors
    /// EBUSY if another client has it.
    pub fn break_lock(&self, owner: &str) -> Result<(), Errno> {
        let owner = c_string(owner)?;
        // SAFETY: the string is valid during the call.
        check(unsafe { (self.functions().rbd_lock_break)(self.raw, EXCLUSIVE, owner.as_ptr()) })
            .map(drop)
    }

    /// The addresses, each with its nonce, of the clients that have it open for writing, this one included.
    ///
    /// # Errors
    /// The library's.
    pub fn watchers(&self) -> Result<Vec<String>, Errno> {
        let functions = self.functions();
        let mut count = 16;
        loop {
            let mut raw = Vec::with_capacity(count);
            // SAFETY: the vector has room for as many as is said.
            let result =
                unsafe { (functions.rbd_watchers_list)(self.raw, raw.as_mut_ptr(), &mut count) };
            match check(result) {
                Err(Errno::RANGE) => continue,
                other => other?,
            };
            // SAFETY: the library has filled in this many.
            unsafe { raw.set_len(count) };
            let watchers = raw.iter().map(|watcher: &RawWatcher| {
                // SAFETY: the library's strings end with a NUL.
                unsafe { CStr::from_ptr(watcher.address) }.to_string_lossy().into_owned()
            });
            let watchers = watchers.collect();
            // SAFETY: the library has allocated this many.
            unsafe { (functions.rbd_watchers_list_cleanup)(raw.as_mut_ptr(), count) };
            return Ok(watchers);
        }
    }

    /// The value of a setting that holds for this image: that of its own or its pool's configuration, otherwise the client's.
    ///
    /// # Errors
    /// ENOENT if there is none of this name; the library's.
    pub fn setting(&self, name: &str) -> Result<String, Errno> {
        let functions = self.functions();
        let mut count = 128;
        let mut settings: Vec<RawSetting> = Vec::new();
        loop {
            settings.reserve(count as usize);
            // SAFETY: the vector has room for as many as is said.
            let result = unsafe {
                (functions.rbd_config_image_list)(self.raw, settings.as_mut_ptr(), &mut count)
            };
            match check(result) {
                Err(Errno::RANGE) => continue,
                other => other?,
            };
            break;
        }
        // SAFETY: the library has filled in this many.
        unsafe { settings.set_len(count as usize) };
        let found = settings.iter().find_map(|setting| {
            // SAFETY: the library's strings end with a NUL.
            let of = unsafe { CStr::from_ptr(setting.name) };
            // SAFETY: as above.
            let value = unsafe { CStr::from_ptr(setting.value) };
            (of.to_bytes() == name.as_bytes()).then(|| value.to_string_lossy().into_owned())
        });
        // SAFETY: the library has allocated this many.
        unsafe { (functions.rbd_config_image_list_cleanup)(settings.as_mut_ptr(), count) };
        found.ok_or(Errno::NOENT)
    }

    /// A value of the image's metadata.
    ///
    /// # Errors
    /// ENOENT if there is none of this name; ERANGE if it is longer than 1 KiB.
    pub fn metadata(&self, name: &str) -> Result<String, Errno> {
        let (name, mut value) = (c_string(name)?, [0u8; 1024]);
        let mut length = value.len();
        // SAFETY: the name and the buffer of this length are valid during the call.
        let result = unsafe {
            (self.functions().rbd_metadata_get)(
                self.raw,
                name.as_ptr(),
                value.as_mut_ptr().cast(),
                &mut length,
            )
        };
        check(result)?;
        text_in(&value)
    }

    /// Sets a value of the image's metadata.
    ///
    /// # Errors
    /// EROFS for a read-only image; the library's.
    pub fn set_metadata(&self, name: &str, value: &str) -> Result<(), Errno> {
        let (name, value) = (c_string(name)?, c_string(value)?);
        // SAFETY: both strings are valid during the call.
        check(unsafe {
            (self.functions().rbd_metadata_set)(self.raw, name.as_ptr(), value.as_ptr())
        })
        .map(drop)
    }

    /// Calls `call` with the size in bytes, in a thread of the library, whenever the image has changed: after a resize, for
    /// example.
    ///
    /// # Errors
    /// The library's.
    pub fn watch_size(&mut self, call: impl Fn(u64) + Send + Sync + 'static) -> Result<(), Errno> {
        self.end_watch();
        let watch = SizeWatch { raw: self.raw, functions: self.functions(), call: Box::new(call) };
        let (argument, mut handle) = (Box::into_raw(Box::new(watch)), 0);
        // SAFETY: the argument exists until the watch has ended.
        let result = unsafe {
            (self.functions().rbd_update_watch)(self.raw, &mut handle, on_update, argument.cast())
        };
        if let Err(errno) = check(result) {
            // SAFETY: there is no watch that would use it.
            drop(unsafe { Box::from_raw(argument) });
            return Err(errno);
        }
        self.watch = Some((handle, argument));
        Ok(())
    }

    fn end_watch(&mut self) {
        let Some((handle, argument)) = self.watch.take() else { return };
        // SAFETY: the watch exists. The call waits for callbacks in progress.
        let ended = unsafe { (self.functions().rbd_update_unwatch)(self.raw, handle) };
        if ended >= 0 {
            // SAFETY: no callback uses it any more.
            drop(unsafe { Box::from_raw(argument) });
        }
    }

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
        let (functions, image) = (self.functions(), self.raw);
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

    fn functions(&self) -> &'static Functions {
        self.cluster.functions()
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

impl Drop for Image {
    fn drop(&mut self) {
        if self.cluster.is_forked() {
            // The library's threads are the parent's.
            return;
        }
        if !self.raw.is_null() {
            self.end_watch();
            // SAFETY: the image is open, and not used any more. Waits for operations in progress.
            unsafe { (self.functions().rbd_close)(self.raw) };
        }
        // SAFETY: the context exists, and is not used any more.
        unsafe { (self.functions().rados_ioctx_destroy)(self.context) };
    }
}
