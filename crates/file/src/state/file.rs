//! A file: a device, a map that says where on it the bytes lie, and who may
//! write when. What it can do stands in [`crate::api::operation`].

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use uringfs_cache::{Cache, FOLIO, NoPage, Page};
use uringfs_device::{Access, Core, Device, DeviceIndex, Geometry};
use uringfs_reactor::SubmissionLock;

use crate::buffered::read as buffered;
use crate::map::mapping::{AnyMap, Flat, Map, Mapping, Place};
use crate::state::file_cache::Caching;
use crate::state::lock::WriteLock;
use crate::state::options::{BufferedWait, FileOptions, WriteLocking};
use crate::writeback::flusher::watch_over;

/// The longest simple transfer: a block of the file system's usual size, or the
/// device's, if that is larger. In bytes.
const SIMPLE_LIMIT: u32 = 4096;

/// A file. Clones are the same file; it can be used from any thread.
#[derive(Clone)]
pub struct File {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) device: Device,
    /// The device's, at hand.
    pub(crate) core: Arc<Core>,
    pub(crate) index: DeviceIndex,
    pub(crate) map: AnyMap,
    pub(crate) options: FileOptions,
    pub(crate) lock: Arc<WriteLock>,
    /// Where reads look first; none of a file that is asked directly.
    pub(crate) cache: Option<Caching>,
    /// Offsets, lengths and addresses of direct requests have none of these bits.
    pub(crate) block_mask: u64,
    /// Nor has the memory of these.
    pub(crate) memory_mask: u64,
    /// The longest simple read, in bytes: 0 when it is switched off.
    pub(crate) simple_read_limit: u32,
    /// The longest simple write, in bytes: 0 when nothing may be written, or not without a lock.
    pub(crate) simple_write_limit: u32,
    pub(crate) read_only: bool,
    /// Taken by each write while the kernel is given it: `direct.write_lock=exclusive`.
    pub(crate) submission: Option<SubmissionLock>,
    /// How many failures to save what was written through the page cache this opening was told of.
    failures_seen: AtomicU64,
    /// Through a page cache. The last to be dropped: nobody has the map by this any more then.
    _opening: Option<Opening>,
}

/// One of those that what was written to a file through the page cache is kept for.
struct Opening {
    lock: Arc<WriteLock>,
    core: Arc<Core>,
}

impl Opening {
    fn new(lock: &Arc<WriteLock>, core: &Arc<Core>) -> Opening {
        lock.unsaved().opened();
        Opening { lock: lock.clone(), core: core.clone() }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if self.lock.unsaved().closed() {
            watch_over(&self.lock, &self.core);
        }
    }
}

impl Shared {
    /// Bytes, with what was written through the page cache and is not on the device.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.lock.size(|| self.map.generation(), || self.map.size())
    }

    /// Whether something could not be saved since this opening was told last, or before it without anybody being told.
    pub(crate) fn take_failure(&self) -> bool {
        let failures = self.lock.unsaved().tell_failures();
        let has_failed = self.failures_seen.swap(failures, Ordering::Relaxed) != failures;
        self.map.take_lost_bytes() || has_failed
    }

    /// Whether a read that has to wait for the cache does so in a thread.
    pub(crate) fn waits_in_threads(&self) -> bool {
        self.cache.is_some() && self.options.buffered_wait == BufferedWait::Thread
    }
}

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
    pub fn over_with_lock(device: Device, lock: Arc<WriteLock>, options: FileOptions) -> File {
        let size = device.geometry().size;
        File::new(device, AnyMap::Flat(Flat { address: 0, size }), lock, options)
    }

    /// The same file through a page cache, where all that ask it so find what one of them has read or written, until
    /// the last of its openings is closed. What is written waits there: it is durable after [`Self::sync`] and its
    /// like, and goes to the device after some seconds, or when there is much of it, or an opening is closed. Whoever
    /// asks the device directly, by way of this volume, or this [`File`] and its clones, finds all of it and is found.
    /// What others write to the same image or device, another process or another [`File::open`], is not seen. A file
    /// is in one cache: that in which it was first. On a device whose blocks are larger than a folio it is asked
    /// directly all the same.
    pub fn buffered(&self, cache: &Cache) -> File {
        self.asked(Some(Caching::new(cache, self.shared.options.readahead)))
    }

    /// The same file, asked directly.
    pub fn direct(&self) -> File {
        self.asked(None)
    }

    fn asked(&self, cache: Option<Caching>) -> File {
        let Shared { device, map, lock, options, .. } = &*self.shared;
        File::with_cache(device.clone(), map.clone(), lock.clone(), *options, cache)
    }

    /// A file on `device` whose bytes lie where `map` says: at addresses that
    /// are multiples of the device's block size. Files of the same bytes share a lock.
    pub fn with_map(
        device: Device,
        map: impl Map,
        lock: Arc<WriteLock>,
        options: FileOptions,
    ) -> File {
        let view = map.view();
        File::new(device, AnyMap::Other(Arc::new(map), view), lock, options)
    }

    fn new(device: Device, map: AnyMap, lock: Arc<WriteLock>, options: FileOptions) -> File {
        File::with_cache(device, map, lock, options, None)
    }

    fn with_cache(
        device: Device,
        map: AnyMap,
        lock: Arc<WriteLock>,
        options: FileOptions,
        cache: Option<Caching>,
    ) -> File {
        let geometry = device.geometry();
        // Folios are filled block by block: larger blocks are read directly.
        let cache = cache.filter(|_| u64::from(geometry.block_size) <= FOLIO);
        let limit = SIMPLE_LIMIT.max(geometry.block_size);
        let read_only = geometry.read_only || map.is_read_only();
        let submission = match options.write_lock {
            WriteLocking::Shared => None,
            WriteLocking::Exclusive => Some(lock.submission().clone()),
        };
        let opening = cache.is_some().then(|| Opening::new(&lock, device.core()));
        let shared = Shared {
            _opening: opening,
            block_mask: geometry.block_size as u64 - 1,
            memory_mask: geometry.memory_alignment as u64 - 1,
            simple_read_limit: if options.simple_read && cache.is_none() { limit } else { 0 },
            simple_write_limit: match read_only || submission.is_some() || cache.is_some() {
                true => 0,
                false => limit,
            },
            failures_seen: AtomicU64::new(lock.unsaved().failures_told()),
            core: device.core().clone(),
            index: device.index(),
            read_only,
            submission,
            cache,
            map,
            options,
            lock,
            device,
        };
        File { shared: Arc::new(shared) }
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.shared.size()
    }

    /// Bytes of the device that it has: less than its size where there are holes, more where blocks
    /// were allocated ahead. What was written through the page cache has its own, though it is not known yet which.
    pub fn allocated(&self) -> u64 {
        self.shared.map.allocated() + self.shared.lock.unsaved().promised_bytes()
    }

    /// Where data begins, from `offset` on (`SEEK_DATA`). What was allocated and never written is none.
    ///
    /// # Errors
    /// ENXIO behind the file's end, and where no more data comes.
    pub fn seek_data(&self, offset: u64) -> Result<u64, Errno> {
        let size = self.size();
        let mut at = offset;
        let unsaved = if offset < size { self.shared.lock.unsaved().next(offset) } else { None };
        while at < size {
            let Mapping { length, place } = self.shared.map.map(at);
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
            let Mapping { length, place } = self.shared.map.map(at);
            if matches!(place, Place::Written(_)) {
                at += length;
            } else if self.shared.lock.unsaved().next(at) == Some(at) {
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
        buffered::read_now(&self.shared, into, offset).ok_or(Errno::AGAIN)
    }

    /// The folio of the page cache in which `offset` lies, without copying it. It is a snapshot: nobody waits for
    /// it, and it says what the file said. What of it lies behind the file's end is undefined. It counts against
    /// the cache's bound until it is dropped.
    ///
    /// # Errors
    /// EAGAIN when it is not there, or the file is asked directly; ENOBUFS when half of the cache is kept so
    /// already: [`Self::try_read`] copies then.
    pub fn page(&self, offset: u64) -> Result<Page, Errno> {
        let Some(caching) = &self.shared.cache else { return Err(Errno::AGAIN) };
        let cached = caching.of(&self.shared);
        if !cached.is_current(self.shared.map.generation()) {
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
        let Some(caching) = &self.shared.cache else { return Vec::new() };
        let end = range.end.min(self.size());
        caching.of(&self.shared).pages().cached(range.start.min(end)..end)
    }

    /// The device the bytes lie on.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// What that device is like.
    pub fn geometry(&self) -> &Geometry {
        self.shared.device.geometry()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "File of {} bytes on {:?}", self.size(), self.shared.device)
    }
}
