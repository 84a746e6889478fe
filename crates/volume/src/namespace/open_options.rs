//! [`OpenOptions`]: how a file is opened.

#[cfg(doc)]
use uringfs_file::File;
use uringfs_file::FileOptions;

use crate::namespace::credentials::{AtimePolicy, Credentials};

/// Options for opening a file. The default opens an existing file through the page cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Creates the file with these permissions, if it does not exist.
    pub create: Option<u16>,
    /// Fails with EEXIST if the file exists.
    pub exclusive: bool,
    /// Truncates the file to zero.
    pub truncate: bool,
    /// Bypasses the page cache (`O_DIRECT`, but with any offset and length), as [`File::direct`].
    pub direct: bool,
    /// The user that opens the file.
    pub credentials: Credentials,
    /// When reads update the access time.
    pub access_time: AtimePolicy,
    /// Switches of the file.
    pub file: FileOptions,
}

impl OpenOptions {
    /// Opens an existing file with direct I/O.
    pub fn direct() -> OpenOptions {
        OpenOptions { direct: true, ..OpenOptions::default() }
    }
}
