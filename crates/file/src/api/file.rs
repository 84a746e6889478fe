//! How a file is opened, and what it answers at once.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use uringfs_cache::{Cache, FOLIO, NoPage, Page};
use uringfs_device::{Access, Device};

use crate::buffered::read as buffered;
use crate::map::file_map::{FileMap, Flat};
use crate::map::mapping::{Map, Mapping, Place};
use crate::state::cache_handle::CacheHandle;
use crate::state::file::File;
use crate::state::lock::WriteLock;
use crate::state::options::FileOptions;
use crate::writeback::flusher::start_flusher;

impl File {
    /// Opens an image file or a block device as one file.
    ///
    /// # Errors
    /// What opening says, with the path and what to do.
    pub fn open(path: impl AsRef<Path>, access: Access) -> io::Result<File> {
        let device = Device::open(path.as_ref(), access)?;
        Ok(File::over(device, FileOptions::default()))
    }

    /// A whole device as one file.
    pub fn over(device: Device, options: FileOptions) -> File {
        File::over_with_lock(device, Arc::default(), options)
    }

    /// The same, beside other such files of this device, which share a lock.
    pub fn over_with_lock(device: Device, state: Arc<WriteLock>, options: FileOptions) -> File {
        let size = device.geometry().size;
        File::new(device, FileMap::Linear(Flat { address: 0, size }), state, options)
    }

    /// The same file through a page cache, where all that ask it so find what one of them has read or written, until
    /// the last of its openings is closed. What is written waits there: it is durable after [`Self::sync`] and its
    /// like, and goes to the device after some seconds, or when there is much of it, or an opening is closed. Whoever
    /// asks the device directly, by way of this volume, or this [`File`] and its clones, finds all of it and is found.
    /// What others write to the same image or device, another process or another [`File::open`], is not seen. A file
    /// is in one cache: that in which it was first. On a device whose blocks are larger than a folio it is asked
    /// directly all the same.
    pub fn buffered(&self, cache: &Cache) -> File {
        let caching = CacheHandle::new(cache, self.handle.options.readahead);
        self.reopen(Some((caching, start_flusher)))
    }

    /// A file on `device` whose bytes lie where `map` says: at addresses that
    /// are multiples of the device's block size. Files of the same bytes share a lock.
    pub fn with_map(
        device: Device,
        map: impl Map,
        state: Arc<WriteLock>,
        options: FileOptions,
    ) -> File {
        let view = map.view();
        File::new(device, FileMap::Mapped(Arc::new(map), view), state, options)
    }

    fn new(device: Device, map: FileMap, state: Arc<WriteLock>, options: FileOptions) -> File {
        File::with_cache(device, map, state, options, None)
    }

    /// Bytes of the device that it has: less than its size where there are holes, more where blocks
    /// were allocated ahead. What was written through the page cache has its own, though it is not known yet which.
    pub fn allocated(&self) -> u64 {
        self.handle.map.allocated() + self.handle.state.dirty().reserved_bytes()
    }

    /// Where data begins, from `offset` on (`SEEK_DATA`). What was allocated and never written is none.
    ///
    /// # Errors
    /// ENXIO behind the file's end, and where no more data comes.
    pub fn seek_data(&self, offset: u64) -> Result<u64, Errno> {
        let size = self.size();
        let mut at = offset;
        let unsaved =
            if offset < size { self.handle.state.dirty().next_dirty(offset) } else { None };
        while at < size {
            let Mapping { length, place } = self.handle.map.map(at);
            if matches!(place, Place::Written(_)) {
                return Ok(unsaved.map_or(at, |unsaved| at.min(unsaved)));
            }
            if length == 0 {
                break;
            }
            at = at.saturating_add(length);
        }
        unsaved.ok_or(Errno::NXIO)
    }

    /// Where a hole begins, from `offset` on (`SEEK_HOLE`): at the file's end, if nowhere before.
    ///
    /// # Errors
    /// ENXIO behind the file's end.
    pub fn seek_hole(&self, offset: u64) -> Result<u64, Errno> {
        let size = self.size();
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let mut at = offset;
        while at < size {
            let Mapping { length, place } = self.handle.map.map(at);
            if matches!(place, Place::Written(_)) {
                at += length;
            } else if self.handle.state.dirty().next_dirty(at) == Some(at) {
                at = (at / FOLIO + 1) * FOLIO;
            } else {
                return Ok(at);
            }
        }
        Ok(size)
    }

    /// Reads what the page cache has, at once and in whatever thread this is (`RWF_NOWAIT`): fewer bytes at the end
    /// of the file.
    ///
    /// # Errors
    /// EAGAIN when some of it is not there, or the file is asked directly.
    pub fn try_read(&self, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
        buffered::read_now(&self.handle, into, offset).ok_or(Errno::AGAIN)
    }

    /// The folio of the page cache in which `offset` lies, without copying it. It is a snapshot: nobody waits for
    /// it, and it says what the file said. What of it lies behind the file's end is undefined. It counts against
    /// the cache's bound until it is dropped.
    ///
    /// # Errors
    /// EAGAIN when it is not there, or the file is asked directly; ENOBUFS when half of the cache is kept so
    /// already: [`Self::try_read`] copies then.
    pub fn page(&self, offset: u64) -> Result<Page, Errno> {
        let Some(caching) = &self.handle.cache else { return Err(Errno::AGAIN) };
        let cached = self.handle.file_cache(caching);
        if !cached.is_current(self.handle.map.generation()) {
            return Err(Errno::AGAIN);
        }
        cached.pages().page(offset / FOLIO).map_err(|why| match why {
            NoPage::Absent => Errno::AGAIN,
            NoPage::TooMany => Errno::NOBUFS,
        })
    }

    /// Which bytes of a range the page cache has, in order (as `cachestat` says how many); none of a file that
    /// is asked directly.
    pub fn cached(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let Some(caching) = &self.handle.cache else { return Vec::new() };
        let end = range.end.min(self.size());
        self.handle.file_cache(caching).pages().cached(range.start.min(end)..end)
    }
}
