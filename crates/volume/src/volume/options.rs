//! [`FormatOptions`] and [`VolumeOptions`]: how a volume is created, and how it is opened.

use uringfs_cache::Cache;

/// Options for creating a volume.
///
/// ```
/// # use uringfs_volume as uringfs;
/// use uringfs::{FormatOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// let options = FormatOptions::new().size(64 << 20).label("scratch");
/// Volume::create(&path, &options)?.close()?;
/// // A second time only if it may overwrite.
/// assert!(Volume::create(&path, &options).is_err());
/// Volume::create(&path, &options.overwrite(true))?.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "each call returns the options, and changes nothing in place"]
pub struct FormatOptions {
    pub(crate) label: String,
    pub(crate) size: Option<u64>,
    pub(crate) overwrite: bool,
    pub(crate) root_owner: Option<(u32, u32)>,
}

impl FormatOptions {
    /// A volume without a label, of the device's size.
    pub fn new() -> FormatOptions {
        FormatOptions::default()
    }

    /// The size in bytes, rounded down to blocks of 4096; else the volume takes the whole device. [`Volume::create`](crate::Volume::create) needs
    /// it for a new file.
    pub fn size(mut self, bytes: u64) -> FormatOptions {
        self.size = Some(bytes);
        self
    }

    /// A name for people, at most 64 bytes.
    pub fn label(mut self, label: impl Into<String>) -> FormatOptions {
        self.label = label.into();
        self
    }

    /// Allows [`Volume::create`](crate::Volume::create) to format a file or a block device that exists. Everything on it is lost.
    /// An existing file keeps its size, which must be at least [`Self::size`].
    pub fn overwrite(mut self, overwrite: bool) -> FormatOptions {
        self.overwrite = overwrite;
        self
    }

    /// The user and the group that own the root directory, whose permissions are 0o755; else those of this process.
    pub fn root_owner(mut self, user: u32, group: u32) -> FormatOptions {
        self.root_owner = Some((user, group));
        self
    }
}

/// Options for opening a volume.
///
/// ```
/// # mod uringfs { pub use uringfs_volume::*; pub use uringfs_cache as cache; }
/// use uringfs::cache::Cache;
/// use uringfs::{FormatOptions, Volume, VolumeOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// # let volume = Volume::create(&path, &FormatOptions::new().size(64 << 20))?;
/// # volume.write("/data", "cached")?;
/// # volume.close()?;
/// let cache = Cache::new(16 << 20);
/// let options = VolumeOptions::new().page_cache(cache.clone()).read_only(true);
/// let volume = options.open(&path)?;
/// assert_eq!(volume.read("/data")?, b"cached");
/// assert_eq!(cache.statistics().filled, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "each call returns the options, and changes nothing in place"]
pub struct VolumeOptions {
    pub(crate) read_only: bool,
    pub(crate) catalog_cache_bytes: usize,
    pub(crate) page_cache: Option<Cache>,
    pub(crate) discard: bool,
}

impl Default for VolumeOptions {
    fn default() -> VolumeOptions {
        VolumeOptions::new()
    }
}

impl VolumeOptions {
    /// For reading and writing, with 64 MiB for the catalog, the page cache of the process, no discards.
    pub fn new() -> VolumeOptions {
        VolumeOptions {
            read_only: false,
            catalog_cache_bytes: 64 << 20,
            page_cache: None,
            discard: false,
        }
    }

    /// Opens the file or the block device for reading only. Readers share a volume.
    pub fn read_only(mut self, read_only: bool) -> VolumeOptions {
        self.read_only = read_only;
        self
    }

    /// Memory for clean metadata: a quarter for pages of the catalog, the rest for single records. A name and its inode take
    /// about 290 bytes, so a million of them 275 MiB. Evicted metadata is read from the device again.
    pub fn catalog_cache_bytes(mut self, bytes: usize) -> VolumeOptions {
        self.catalog_cache_bytes = bytes;
        self
    }

    /// The page cache of files that are not opened [`direct`](crate::OpenOptions::direct). Without this it is the cache of the
    /// process ([`Cache::of_process`]).
    pub fn page_cache(mut self, cache: Cache) -> VolumeOptions {
        self.page_cache = Some(cache);
        self
    }

    /// Discards freed blocks on the device, as a file system mounted with `discard` does: after their commit, when no
    /// read of them is in flight. In a volume in a file this punches holes, and the host's file system allocates again
    /// when the blocks are reused.
    pub fn discard(mut self, discard: bool) -> VolumeOptions {
        self.discard = discard;
        self
    }
}
