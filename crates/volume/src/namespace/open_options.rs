//! [`OpenOptions`]: how a file is opened.

#[cfg(doc)]
use uringfs_file::File;
use uringfs_file::FileOptions;

use crate::namespace::credentials::{AccessTime, Credentials};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Made when it is not there, with these permissions.
    pub create: Option<u16>,
    /// EEXIST when it is there.
    pub exclusive: bool,
    /// Emptied.
    pub truncate: bool,
    /// Asked past the page cache (`O_DIRECT`, of any offsets and lengths), as [`File::direct`]; else through it.
    pub direct: bool,
    /// In whose name.
    pub credentials: Credentials,
    /// When the time of access moves.
    pub access_time: AccessTime,
    /// Switches of the file.
    pub file: FileOptions,
}

impl OpenOptions {
    /// Those of a file that is there and is asked past the page cache.
    pub fn direct() -> OpenOptions {
        OpenOptions { direct: true, ..OpenOptions::default() }
    }
}
