//! The two libraries, loaded once in a process, and their functions that are used here.

use std::error::Error;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;

use libc::iovec;
use libloading::os::unix::Library as SharedObject;

/// A client instance.
pub(crate) type Rados = *mut c_void;
/// A pool as a client instance sees it.
pub(crate) type IoContext = *mut c_void;
/// An open image.
pub(crate) type RawImage = *mut c_void;
/// An operation in progress.
pub(crate) type RawCompletion = *mut c_void;

/// Called when an operation has ended.
pub(crate) type OnComplete = unsafe extern "C" fn(RawCompletion, *mut c_void);
/// Called when an image has changed.
pub(crate) type OnUpdate = unsafe extern "C" fn(*mut c_void);
/// Called with what is done and what there is to do.
pub(crate) type OnProgress = unsafe extern "C" fn(u64, u64, *mut c_void) -> c_int;

/// The result of `rbd_stat`. Its last two fields are deprecated.
#[repr(C)]
#[derive(Default)]
pub(crate) struct RawInfo {
    pub(crate) size: u64,
    pub(crate) object_size: u64,
    objects: u64,
    order: c_int,
    prefix: [u8; 24],
    parent_pool: i64,
    parent_name: [[u8; 32]; 3],
}

/// A client that watches an image.
#[repr(C)]
pub(crate) struct RawWatcher {
    pub(crate) address: *mut c_char,
    id: i64,
    cookie: u64,
}

/// A setting of an image.
#[repr(C)]
pub(crate) struct RawSetting {
    pub(crate) name: *mut c_char,
    pub(crate) value: *mut c_char,
    source: c_int,
}

/// The libraries cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError(String);

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl Error for LoadError {}

/// librados and librbd. They stay loaded until the process ends: their threads may outlive an image.
#[derive(Clone, Copy)]
pub struct Library(pub(crate) &'static Functions);

impl fmt::Debug for Library {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("librados and librbd")
    }
}

impl Library {
    /// Loads the libraries, unless they are loaded.
    ///
    /// # Errors
    /// One line that names the library, or the function of it, that is missing.
    pub fn load() -> Result<Library, LoadError> {
        static FUNCTIONS: OnceLock<Result<Functions, LoadError>> = OnceLock::new();
        FUNCTIONS.get_or_init(Functions::load).as_ref().map(Library).map_err(LoadError::clone)
    }
}

fn open(name: &str) -> Result<SharedObject, LoadError> {
    // SAFETY: the library of this name is Ceph's, whose initialisers have no preconditions.
    let opened = unsafe { SharedObject::new(name) };
    opened.map_err(|error| {
        let package = name.split_once(".so.").map_or(String::new(), |(name, version)| format!("{name}{version}"));
        LoadError(format!(
            "the library {name} of Ceph cannot be loaded ({error}); install it (Debian: the package {package})"
        ))
    })
}

/// Declares the functions of each library, and loads them by their names.
macro_rules! functions {
    ($($library:ident = $file:literal {
        $($name:ident: fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)*
    })*) => {
        /// The functions of both libraries, with the types of Ceph's headers.
        pub(crate) struct Functions {
            $($(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl Functions {
            fn load() -> Result<Functions, LoadError> {
                $(let $library = open($file)?;)*
                let functions = Functions {
                    $($($name: {
                        let name = stringify!($name);
                        // SAFETY: the type is that of the function in Ceph's headers.
                        let found = unsafe {
                            $library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(name)
                        };
                        *found.map_err(|_| LoadError(format!(
                            "{} has no function {name}; install Ceph 16 or newer", $file
                        )))?
                    },)*)*
                };
                $(std::mem::forget($library);)*
                Ok(functions)
            }
        }
    };
}

functions! {
    rados = "librados.so.2" {
        rados_create: fn(*mut Rados, *const c_char) -> c_int;
        rados_conf_read_file: fn(Rados, *const c_char) -> c_int;
        rados_conf_parse_env: fn(Rados, *const c_char) -> c_int;
        rados_conf_set: fn(Rados, *const c_char, *const c_char) -> c_int;
        rados_connect: fn(Rados) -> c_int;
        rados_shutdown: fn(Rados);
        rados_get_instance_id: fn(Rados) -> u64;
        rados_getaddrs: fn(Rados, *mut *mut c_char) -> c_int;
        rados_wait_for_latest_osdmap: fn(Rados) -> c_int;
        rados_blocklist_add: fn(Rados, *mut c_char, u32) -> c_int;
        rados_mon_command: fn(
            Rados, *mut *const c_char, usize, *const c_char, usize,
            *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize,
        ) -> c_int;
        rados_buffer_free: fn(*mut c_char);
        rados_ioctx_create: fn(Rados, *const c_char, *mut IoContext) -> c_int;
        rados_ioctx_set_namespace: fn(IoContext, *const c_char);
        rados_ioctx_destroy: fn(IoContext);
    }
    rbd = "librbd.so.1" {
        rbd_open: fn(IoContext, *const c_char, *mut RawImage, *const c_char) -> c_int;
        rbd_open_read_only: fn(IoContext, *const c_char, *mut RawImage, *const c_char) -> c_int;
        rbd_close: fn(RawImage) -> c_int;
        rbd_stat: fn(RawImage, *mut RawInfo, usize) -> c_int;
        rbd_resize2: fn(RawImage, u64, bool, OnProgress, *mut c_void) -> c_int;
        rbd_get_size: fn(RawImage, *mut u64) -> c_int;
        rbd_get_features: fn(RawImage, *mut u64) -> c_int;
        rbd_get_stripe_unit: fn(RawImage, *mut u64) -> c_int;
        rbd_metadata_get: fn(RawImage, *const c_char, *mut c_char, *mut usize) -> c_int;
        rbd_metadata_set: fn(RawImage, *const c_char, *const c_char) -> c_int;
        rbd_lock_acquire: fn(RawImage, c_int) -> c_int;
        rbd_lock_release: fn(RawImage) -> c_int;
        rbd_lock_get_owners: fn(RawImage, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        rbd_lock_get_owners_cleanup: fn(*mut *mut c_char, usize);
        rbd_lock_break: fn(RawImage, c_int, *const c_char) -> c_int;
        rbd_watchers_list: fn(RawImage, *mut RawWatcher, *mut usize) -> c_int;
        rbd_watchers_list_cleanup: fn(*mut RawWatcher, usize);
        rbd_config_image_list: fn(RawImage, *mut RawSetting, *mut c_int) -> c_int;
        rbd_config_image_list_cleanup: fn(*mut RawSetting, c_int);
        rbd_update_watch: fn(RawImage, *mut u64, OnUpdate, *mut c_void) -> c_int;
        rbd_update_unwatch: fn(RawImage, u64) -> c_int;
        rbd_aio_create_completion: fn(*mut c_void, OnComplete, *mut RawCompletion) -> c_int;
        rbd_aio_get_return_value: fn(RawCompletion) -> isize;
        rbd_aio_release: fn(RawCompletion);
        rbd_aio_readv: fn(RawImage, *const iovec, c_int, u64, RawCompletion) -> c_int;
        rbd_aio_writev: fn(RawImage, *const iovec, c_int, u64, RawCompletion) -> c_int;
        rbd_aio_flush: fn(RawImage, RawCompletion) -> c_int;
        rbd_aio_discard: fn(RawImage, u64, u64, RawCompletion) -> c_int;
        rbd_aio_write_zeroes: fn(RawImage, u64, usize, RawCompletion, c_int, c_int) -> c_int;
    }
}
