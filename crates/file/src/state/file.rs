//! A file: a device, a map that says where on it the bytes lie, and who may
//! write when. What it can do stands in `api`.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uringfs_cache::FOLIO;
use uringfs_device::{Core, Device, DeviceIndex, Geometry};
use uringfs_reactor::SubmissionLock;

use crate::map::file_map::FileMap;
use crate::state::cache_handle::CacheHandle;
use crate::state::dirty::DirtyFile;
use crate::state::file_cache::FileCache;
use crate::state::lock::WriteLock;
use crate::state::options::{BufferedWait, FileOptions, WriteLocking};

/// The longest simple transfer: a block of the file system's usual size, or the
/// device's, if that is larger. In bytes.
const MAX_FAST_PATH_BYTES: u32 = 4096;

/// A file. Clones are the same file; it can be used from any thread.
#[derive(Clone)]
pub struct File {
    pub(crate) handle: Arc<FileHandle>,
}

pub(crate) struct FileHandle {
    pub(crate) device: Device,
    /// The device's, at hand.
    pub(crate) core: Arc<Core>,
    pub(crate) index: DeviceIndex,
    pub(crate) map: FileMap,
    pub(crate) options: FileOptions,
    pub(crate) state: Arc<WriteLock>,
    /// Where reads look first; none of a file that is asked directly.
    pub(crate) cache: Option<CacheHandle>,
    /// Offsets, lengths and addresses of direct requests have none of these bits.
    pub(crate) block_mask: u64,
    /// Nor has the memory of these.
    pub(crate) memory_mask: u64,
    /// The longest simple read, in bytes: 0 when it is switched off.
    pub(crate) fast_read_limit: u32,
    /// The longest simple write, in bytes: 0 when nothing may be written, or not without a lock.
    pub(crate) fast_write_limit: u32,
    pub(crate) read_only: bool,
    /// Taken by each write while the kernel is given it: `direct.write_lock=exclusive`.
    pub(crate) submission: Option<SubmissionLock>,
    /// How many failures to save what was written through the page cache this opening was told of.
    failures_reported: AtomicU64,
    /// Through a page cache. The last to be dropped: nobody has the map by this any more then.
    _buffered: Option<BufferedHandle>,
}

/// Starts the flusher of a file.
pub(crate) type StartFlusher = fn(&Arc<WriteLock>, &Arc<Core>);

/// A buffered handle. Dirty folios are kept until the last one closes.
struct BufferedHandle {
    state: Arc<WriteLock>,
    core: Arc<Core>,
    start_flusher: StartFlusher,
}

impl BufferedHandle {
    fn new(
        state: &Arc<WriteLock>,
        core: &Arc<Core>,
        start_flusher: StartFlusher,
    ) -> BufferedHandle {
        state.dirty().handle_opened();
        BufferedHandle { state: state.clone(), core: core.clone(), start_flusher }
    }
}

impl Drop for BufferedHandle {
    fn drop(&mut self) {
        if self.state.dirty().handle_closed() {
            (self.start_flusher)(&self.state, &self.core);
        }
    }
}

impl DirtyFile for FileHandle {
    fn map(&self) -> &FileMap {
        &self.map
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "File of {} bytes on {:?}", self.size(), self.device)
    }
}

impl FileHandle {
    /// What a cache has of the file.
    #[inline(always)]
    pub(crate) fn file_cache(&self, caching: &CacheHandle) -> &FileCache {
        self.state.file_cache(&caching.cache, self.index)
    }

    /// Bytes, with what was written through the page cache and is not on the device.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.state.size(|| self.map.generation(), || self.map.size())
    }

    /// Whether something could not be saved since this opening was told last, or before it without anybody being told.
    pub(crate) fn take_failure(&self) -> bool {
        let failures = self.state.dirty().report_failures();
        let has_failed = self.failures_reported.swap(failures, Ordering::Relaxed) != failures;
        self.map.take_lost_bytes() || has_failed
    }

    /// Whether a read that has to wait for the cache does so in a thread.
    pub(crate) fn waits_in_threads(&self) -> bool {
        self.cache.is_some() && self.options.buffered_wait == BufferedWait::Thread
    }
}

impl File {
    /// The same file, asked directly.
    pub fn direct(&self) -> File {
        self.reopen(None)
    }

    /// A file kept open by its dirty folios.
    pub(crate) fn from_dirty(file: Arc<dyn DirtyFile>) -> File {
        let file: Arc<dyn Any + Send + Sync> = file;
        File { handle: file.downcast().expect("a dirty file is what a `File` holds") }
    }

    /// The same file, opened through a cache or directly.
    pub(crate) fn reopen(&self, cache: Option<(CacheHandle, StartFlusher)>) -> File {
        let FileHandle { device, map, state, options, .. } = &*self.handle;
        File::with_cache(device.clone(), map.clone(), state.clone(), *options, cache)
    }

    pub(crate) fn with_cache(
        device: Device,
        map: FileMap,
        state: Arc<WriteLock>,
        options: FileOptions,
        cache: Option<(CacheHandle, StartFlusher)>,
    ) -> File {
        let geometry = device.geometry();
        // Folios are filled block by block: larger blocks are read directly.
        let cache = cache.filter(|_| u64::from(geometry.block_size) <= FOLIO);
        let limit = MAX_FAST_PATH_BYTES.max(geometry.block_size);
        let read_only = geometry.read_only || map.is_read_only();
        let submission = match options.write_lock {
            WriteLocking::Shared => None,
            WriteLocking::Exclusive => Some(state.submission().clone()),
        };
        let (cache, start_flusher) = cache.unzip();
        let buffered = start_flusher.map(|start| BufferedHandle::new(&state, device.core(), start));
        let handle = FileHandle {
            _buffered: buffered,
            block_mask: geometry.block_size as u64 - 1,
            memory_mask: geometry.memory_alignment as u64 - 1,
            fast_read_limit: if options.simple_read && cache.is_none() { limit } else { 0 },
            fast_write_limit: match read_only || submission.is_some() || cache.is_some() {
                true => 0,
                false => limit,
            },
            failures_reported: AtomicU64::new(state.dirty().failures_reported()),
            core: device.core().clone(),
            index: device.index(),
            read_only,
            submission,
            cache,
            map,
            options,
            state,
            device,
        };
        File { handle: Arc::new(handle) }
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.handle.size()
    }

    /// The device the bytes lie on.
    pub fn device(&self) -> &Device {
        &self.handle.device
    }

    /// What that device is like.
    pub fn geometry(&self) -> &Geometry {
        self.handle.device.geometry()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(out)
    }
}
