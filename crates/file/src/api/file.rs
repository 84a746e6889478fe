//! Opening of files, and calls that complete at once.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use uringfs_cache::{Cache, FOLIO, FolioSnapshot, SnapshotError};
use uringfs_device::{Access, Device, Errno};

use crate::buffered::read as buffered;
use crate::map::file_map::{DeviceMap, FileMap};
use crate::map::mapping::{Map, Mapping, MappingState, ResizableMap};
use crate::state::buffered_handle::BufferedHandleState;
use crate::state::file::File;
use crate::state::file_state::FileState;
use crate::state::options::FileOptions;
use crate::writeback::flusher::start_flusher;

impl File {
    /// Opens an image file or a block device as one file.
    ///
    /// # Errors
    /// The system's error, with the path and what to do. EBUSY for writing what holds a volume that this process has
    /// open; until a handle for writing is closed, this process opens no volume there.
    pub fn open(path: impl AsRef<Path>, access: Access) -> io::Result<File> {
        let device = Device::open_raw(path, access)?;
        Ok(File::from_device(device, FileOptions::default()))
    }

    /// A whole device as one file. It grows with the device, when [`Device::refresh_size`] or a server of disks notices
    /// that; it never gets shorter.
    pub fn from_device(device: Device, options: FileOptions) -> File {
        File::from_device_with_state(device, Arc::default(), options)
    }

    /// As [`Self::from_device`], for several files over one device that share their state.
    pub fn from_device_with_state(
        device: Device,
        state: Arc<FileState>,
        options: FileOptions,
    ) -> File {
        let map = FileMap::Device(DeviceMap::new(&device));
        File::new(device, map, state, options)
    }

    /// A buffered handle to the same file. All buffered handles share its cached folios, until the last of them
    /// closes.
    ///
    /// Writes wait in the cache: they are durable after [`Self::sync_all`] and its like, and go to the device after
    /// some seconds, when many folios are dirty, or when a handle closes. Direct handles made from the same
    /// [`File`] or volume stay coherent with the cache. Writes by others to the same image or device (another
    /// process, another [`File::open`]) are not seen.
    ///
    /// A background reactor writes the dirty folios. Where none can start, as in the child of a fork whose parent has some,
    /// only a sync does, or a direct operation on the range. A closed file keeps its folios until then.
    ///
    /// A file uses one cache, the first that it was opened with. If the device's blocks are larger than a folio,
    /// the handle is direct.
    pub fn buffered(&self, cache: &Cache) -> File {
        let buffered_handle = BufferedHandleState::new(cache, self.handle.options.readahead);
        self.reopen(Some((buffered_handle, start_flusher)))
    }

    /// A file on `device` with its bytes at the addresses of `map`, which are multiples of the device's block
    /// size. Its size and extents are fixed. Files of the same bytes share one [`FileState`].
    #[doc(hidden)]
    pub fn with_map(
        device: Device,
        map: impl Map,
        state: Arc<FileState>,
        options: FileOptions,
    ) -> File {
        File::new(device, FileMap::Fixed(Arc::new(map)), state, options)
    }

    /// The same for a map whose size and extents change.
    #[doc(hidden)]
    pub fn with_resizable_map(
        device: Device,
        map: impl ResizableMap,
        state: Arc<FileState>,
        options: FileOptions,
    ) -> File {
        let hot_extent = map.hot_extent();
        File::new(device, FileMap::Resizable(Arc::new(map), hot_extent), state, options)
    }

    fn new(device: Device, map: FileMap, state: Arc<FileState>, options: FileOptions) -> File {
        File::with_cache(device, map, state, options, None)
    }

    /// The map of a file whose size and extents change.
    #[doc(hidden)]
    pub fn resizable_map(&self) -> Option<&dyn ResizableMap> {
        self.handle.map.resizable()
    }

    /// Allocated space in bytes: less than the size where there are holes, more where blocks were allocated
    /// ahead. Includes space reserved for dirty folios.
    pub fn allocated(&self) -> u64 {
        self.handle.map.allocated()
    }

    /// Offset of the next data at or after `offset` (`SEEK_DATA`). Allocated blocks that were never written are
    /// no data.
    ///
    /// # Errors
    /// ENXIO at or beyond the end of the file, and when there is no more data.
    pub fn seek_data(&self, offset: u64) -> Result<u64, Errno> {
        self.find_data(offset..self.len()).ok_or(Errno::NXIO)
    }

    /// Offset of the next hole at or after `offset` (`SEEK_HOLE`): the end of the file if there is none before.
    ///
    /// # Errors
    /// ENXIO at or beyond the end of the file.
    pub fn seek_hole(&self, offset: u64) -> Result<u64, Errno> {
        let size = self.len();
        if offset >= size {
            return Err(Errno::NXIO);
        }
        Ok(self.find_hole(offset..size).unwrap_or(size))
    }

    /// The first data in a range, which is inside the file. Looks at no more than the range.
    #[doc(hidden)]
    pub fn find_data(&self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        let dirty = self.handle.state.dirty().next_dirty(at).filter(|dirty| *dirty < range.end);
        while at < range.end {
            let Mapping { length, state } = self.handle.map.map(at);
            if matches!(state, MappingState::Written(_)) {
                return Some(dirty.map_or(at, |dirty| at.min(dirty)));
            }
            if length == 0 {
                break;
            }
            at = at.saturating_add(length);
        }
        dirty
    }

    /// The first hole in a range, which is inside the file. Looks at no more than the range.
    #[doc(hidden)]
    pub fn find_hole(&self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            // Read before the map: a byte that is written back in between is in both.
            let is_dirty = self.handle.state.dirty().next_dirty(at) == Some(at);
            let Mapping { length, state } = self.handle.map.map(at);
            if matches!(state, MappingState::Written(_)) {
                at += length;
            } else if is_dirty {
                at = (at / FOLIO + 1) * FOLIO;
            } else {
                return Some(at);
            }
        }
        None
    }

    /// Reads from the page cache without waiting, in any thread (`RWF_NOWAIT`): fewer bytes at the end of the
    /// file.
    ///
    /// # Errors
    /// EAGAIN when some of it is not cached, or the handle is direct. EBADF when the handle may not read.
    pub fn try_read_at(&self, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
        buffered::read_now(&self.handle, into, offset, buffered::LookupKind::Exact)
            .ok_or_else(|| self.handle.read_refusal.unwrap_or(Errno::AGAIN))
    }

    /// A snapshot of the cached folio that contains `offset`, without a copy. It never blocks a writer and does
    /// not change. Its bytes beyond the file's end are undefined. It counts against the size of the cache until
    /// it is dropped.
    ///
    /// # Errors
    /// EAGAIN when it is not cached, or the handle is direct. ENOBUFS when snapshots hold half of the cache already:
    /// use [`Self::try_read_at`], which copies. EBADF when the handle may not read.
    pub fn page(&self, offset: u64) -> Result<FolioSnapshot, Errno> {
        let Some(buffered_handle) = self.handle.cache_for_reads() else {
            return Err(self.handle.read_refusal.unwrap_or(Errno::AGAIN));
        };
        let cached = self.handle.file_cache(buffered_handle);
        if !cached.is_current(self.handle.map.generation()) {
            return Err(Errno::AGAIN);
        }
        cached.file_folios().snapshot(offset / FOLIO).map_err(|why| match why {
            SnapshotError::Absent => Errno::AGAIN,
            SnapshotError::TooMany => Errno::NOBUFS,
        })
    }

    /// The cached parts of a range, in order (compare `cachestat`). Empty for a direct handle.
    pub fn cached(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let Some(buffered_handle) = self.handle.cache() else { return Vec::new() };
        let end = range.end.min(self.len());
        self.handle.file_cache(buffered_handle).file_folios().cached(range.start.min(end)..end)
    }
}
