//! [`OpenOptions`]: how a file is opened.

use uringfs_file::FileOptions;

use crate::namespace::credentials::{AtimePolicy, Credentials};

/// Options for opening a file of a volume, set one after the other as with `std::fs::OpenOptions`. Each file is opened
/// for reading, for writing, or for both, through the page cache.
///
/// There is no `append`: [`File::append`](uringfs_file::File::append) appends through any handle for writing.
///
/// ```
/// # use uringfs_volume as uringfs;
/// use uringfs::OpenOptions;
/// # use uringfs::{FormatOptions, Volume};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
///
/// let file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "/data")?;
/// assert!(file.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "each call returns the options, and changes nothing in place"]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) truncate: bool,
    pub(crate) direct: bool,
    pub(crate) mode: u16,
    pub(crate) credentials: Credentials,
    pub(crate) access_time: AtimePolicy,
    pub(crate) file: FileOptions,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// No options. At least [`Self::read`] or [`Self::write`] must be set.
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            direct: false,
            // There is no umask.
            mode: 0o644,
            credentials: Credentials::default(),
            access_time: AtimePolicy::default(),
            file: FileOptions::default(),
        }
    }

    /// Allows reads. Without it they fail with EBADF.
    pub fn read(mut self, read: bool) -> OpenOptions {
        self.read = read;
        self
    }

    /// Allows writes and all other changes. Without it they fail with EBADF.
    pub fn write(mut self, write: bool) -> OpenOptions {
        self.write = write;
        self
    }

    /// Creates the file if it does not exist. Needs [`Self::write`].
    pub fn create(mut self, create: bool) -> OpenOptions {
        self.create = create;
        self
    }

    /// Creates the file, and fails with EEXIST if it exists. Needs [`Self::write`].
    pub fn create_new(mut self, create_new: bool) -> OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Truncates the file to zero. Needs [`Self::write`].
    pub fn truncate(mut self, truncate: bool) -> OpenOptions {
        self.truncate = truncate;
        self
    }

    /// The permissions of a new file; 0o644 if none are given. There is no umask.
    pub fn mode(mut self, mode: u32) -> OpenOptions {
        self.mode = mode as u16;
        self
    }

    /// Bypasses the page cache (`O_DIRECT`, but with any offset and length), as [`File::direct`](uringfs_file::File::direct).
    pub fn direct(mut self, direct: bool) -> OpenOptions {
        self.direct = direct;
        self
    }

    /// The user that opens the file.
    pub fn credentials(mut self, credentials: Credentials) -> OpenOptions {
        self.credentials = credentials;
        self
    }

    /// When reads update the access time.
    pub fn access_time(mut self, access_time: AtimePolicy) -> OpenOptions {
        self.access_time = access_time;
        self
    }

    /// Switches of the file.
    pub fn switches(mut self, switches: FileOptions) -> OpenOptions {
        self.file = switches;
        self
    }

    /// True if it changes the volume.
    pub(crate) fn needs_write(&self) -> bool {
        self.create || self.create_new || self.truncate
    }
}
