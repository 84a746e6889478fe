//! The exclusive lock of an [`Image`], and its watchers.

use std::ffi::{CStr, c_int};
use std::ptr;

use uringfs_errno::Errno;

use crate::cluster::{c_string, check};
use crate::image::Image;
use crate::library::RawWatcher;

/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;

impl Image {
    /// Takes the exclusive lock, and keeps it until the end of the image.
    ///
    /// # Errors
    /// EROFS or EBUSY while another client has it.
    pub fn acquire_lock(&self) -> Result<(), Errno> {
        // SAFETY: the image is open.
        check(unsafe { (self.functions().rbd_lock_acquire)(self.raw(), EXCLUSIVE) }).map(drop)
    }

    /// Gives the exclusive lock back. Waits for the operations in progress; later writes fail with EROFS.
    ///
    /// # Errors
    /// The library's.
    pub fn release_lock(&self) -> Result<(), Errno> {
        // SAFETY: the image is open.
        check(unsafe { (self.functions().rbd_lock_release)(self.raw()) }).map(drop)
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
            (functions.rbd_lock_get_owners)(self.raw(), &mut mode, owners.as_mut_ptr(), &mut count)
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
        check(unsafe { (self.functions().rbd_lock_break)(self.raw(), EXCLUSIVE, owner.as_ptr()) })
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
                unsafe { (functions.rbd_watchers_list)(self.raw(), raw.as_mut_ptr(), &mut count) };
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
}
