//! [`Image`]: an open image.

use std::ffi::CStr;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use uringfs_errno::Errno;

use crate::cluster::{Cluster, c_string, check, text_in};
use crate::exit;
use crate::library::{Functions, IoContext, RawImage, RawInfo, RawSetting};
use crate::size_watch::{self, SizeWatch};

/// How an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reads. Takes no lock.
    Read,
    /// For reads and writes.
    ReadWrite,
}

/// The properties of an image. Sizes in bytes.
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
    watch: Option<SizeWatch>,
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
        exit::guard();
        Ok(opened)
    }

    /// Its properties now.
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
        unsafe { size_watch::size(self.functions(), self.raw) }
    }

    /// Calls `call` with the size in bytes, in a thread of the library, whenever the image has changed: after a resize, for
    /// example.
    ///
    /// # Errors
    /// The library's.
    pub fn watch_size(&mut self, call: impl Fn(u64) + Send + Sync + 'static) -> Result<(), Errno> {
        self.watch = None;
        // SAFETY: the image is closed after the watch.
        self.watch = Some(unsafe { SizeWatch::begin(self.functions(), self.raw, call) }?);
        Ok(())
    }

    /// Enlarges it to this many bytes. If another client has the lock, that one does it.
    ///
    /// # Errors
    /// EINVAL if it is larger than that; EROFS if it is open for reads; the library's.
    pub fn enlarge(&self, size: u64) -> Result<(), Errno> {
        // SAFETY: the image is open.
        unsafe { size_watch::enlarge(self.functions(), self.raw, size) }
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

    pub(crate) fn raw(&self) -> RawImage {
        self.raw
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.cluster.functions()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.cluster.is_forked() {
            // The library's threads are the parent's.
            std::mem::forget(self.watch.take());
            return;
        }
        let (functions, raw, context) = (self.functions(), self.raw, self.context);
        let watch = self.watch.take();
        exit::close(move || {
            drop(watch);
            if !raw.is_null() {
                // SAFETY: the image is open, and not used any more. Waits for operations in progress.
                unsafe { (functions.rbd_close)(raw) };
            }
            // SAFETY: the context exists, and is not used any more.
            unsafe { (functions.rados_ioctx_destroy)(context) };
        });
    }
}
