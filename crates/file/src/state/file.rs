//! A file handle: a device, a map, the file's shared state, and how this handle does I/O. The operations are in
//! `api`.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uringfs_cache::FOLIO;
use uringfs_device::{Device, DeviceIndex, DeviceInner, Errno, Geometry};
use uringfs_reactor::SubmissionLock;

use crate::map::file_map::FileMap;
use crate::state::buffered_handle::BufferedHandleState;
use crate::state::dirty::DirtyFile;
use crate::state::file_cache::FileCache;
use crate::state::file_state::FileState;
use crate::state::options::{BufferedWait, FileOptions, WriteLocking};

/// Longest transfer of the fast path in bytes, unless the device's block is larger: the usual block of a file
/// system.
const MAX_FAST_PATH_BYTES: u32 = 4096;

/// A handle to a file. Clones are the same handle; any thread may use it.
///
/// ```
/// # mod uringfs {
/// #     pub use uringfs_buffer::*;
/// #     pub use uringfs_file::*;
/// #     pub use uringfs_reactor::*;
/// #     pub use uringfs_device as device;
/// #     pub use uringfs_file as file;
/// #     pub use uringfs_reactor as reactor;
/// # }
/// use uringfs::device::backend::memory::Memory;
/// use uringfs::device::Device;
/// use uringfs::file::FileOptions;
/// use uringfs::reactor::Counter;
/// use uringfs::{Buffer, File, Reactor, ReactorOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = File::from_device(Device::new(Memory::new(1 << 20)?)?, FileOptions::new());
/// // A thread without a reactor blocks.
/// let (written, buffer) = file.write_at(Buffer::copy_of(b"hello"), 4096).wait();
/// assert_eq!(written?, 5);
/// // A task awaits.
/// let reactor = Reactor::new(ReactorOptions::new())?;
/// let (read, buffer) = reactor.block_on(file.read_at(buffer, 4096));
/// assert_eq!((read?, &buffer[..]), (5, &b"hello"[..]));
/// // Not a whole block, so it was not a read of the fast path.
/// assert_eq!(reactor.counters().get(Counter::SlowPath), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct File {
    pub(crate) handle: Arc<FileHandle>,
}

pub(crate) struct FileHandle {
    pub(crate) device: Device,
    /// Of `device`, without going through `Device`.
    pub(crate) device_inner: Arc<DeviceInner>,
    pub(crate) index: DeviceIndex,
    pub(crate) map: FileMap,
    pub(crate) options: FileOptions,
    pub(crate) state: Arc<FileState>,
    caching: Caching,
    /// Offsets, lengths and addresses of direct requests have none of these bits.
    pub(crate) block_mask: u64,
    /// The memory of direct requests has none of these address bits.
    pub(crate) memory_mask: u64,
    /// Longest read of the fast path in bytes; 0 when it is switched off, or reads are refused.
    pub(crate) fast_read_limit: u32,
    /// Longest write of the fast path in bytes; 0 when writes are refused or need a lock.
    pub(crate) fast_write_limit: u32,
    /// The error of every read, if reads are refused.
    pub(crate) read_refusal: Option<Errno>,
    /// The error of every write, if writes are refused.
    pub(crate) write_refusal: Option<Errno>,
    /// With `direct.write_lock=exclusive`: held while a write is submitted.
    pub(crate) submission: Option<SubmissionLock>,
    /// Write-back failures that this handle has reported or need not report (a sample of `errseq_t`).
    failures_seen: AtomicU64,
    /// Of a buffered handle. The last field, so that it drops after the map: when the flusher starts, dirty folios
    /// may hold the only reference to the map.
    _buffered: Option<BufferedOpenGuard>,
}

/// How a handle uses the page cache.
enum Caching {
    /// Not at all.
    Direct,
    /// For writes: reads are refused. Its own variant, so that the check costs a cached read nothing.
    Writes(BufferedHandleState),
    /// For reads and writes.
    Full(BufferedHandleState),
}

/// Starts the flusher of a file.
pub(crate) type StartFlusher = fn(&Arc<FileState>, &Arc<DeviceInner>);

/// Counts an open buffered handle. Folios whose write-back failed are kept until the last one closes.
struct BufferedOpenGuard {
    state: Arc<FileState>,
    device_inner: Arc<DeviceInner>,
    start_flusher: StartFlusher,
}

impl BufferedOpenGuard {
    fn new(
        state: &Arc<FileState>,
        device_inner: &Arc<DeviceInner>,
        start_flusher: StartFlusher,
    ) -> BufferedOpenGuard {
        state.dirty().handle_opened();
        BufferedOpenGuard {
            state: state.clone(),
            device_inner: device_inner.clone(),
            start_flusher,
        }
    }
}

impl Drop for BufferedOpenGuard {
    fn drop(&mut self) {
        if self.state.dirty().handle_closed() {
            (self.start_flusher)(&self.state, &self.device_inner);
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
    /// The page cache of a buffered handle.
    #[inline]
    pub(crate) fn cache(&self) -> Option<&BufferedHandleState> {
        match &self.caching {
            Caching::Direct => None,
            Caching::Writes(cache) | Caching::Full(cache) => Some(cache),
        }
    }

    /// The same if the handle may read.
    #[inline(always)]
    pub(crate) fn cache_for_reads(&self) -> Option<&BufferedHandleState> {
        match &self.caching {
            Caching::Full(cache) => Some(cache),
            Caching::Direct | Caching::Writes(_) => None,
        }
    }

    /// The file's folios in the handle's cache.
    #[inline(always)]
    pub(crate) fn file_cache(&self, caching: &BufferedHandleState) -> &FileCache {
        self.state.file_cache(&caching.cache, self.index)
    }

    /// Size in bytes, dirty folios included.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.state.size(|| self.map.generation(), || self.map.size())
    }

    /// True if write-back has failed since this handle last reported it, or earlier without any handle
    /// reporting it.
    pub(crate) fn take_failure(&self) -> bool {
        let failures = self.state.dirty().report_failures();
        let has_failed = self.failures_seen.swap(failures, Ordering::Relaxed) != failures;
        self.map.take_lost_writes() || has_failed
    }

    /// True if a read that misses the cache blocks a pool thread.
    pub(crate) fn waits_in_threads(&self) -> bool {
        self.cache().is_some() && self.options.buffered_wait == BufferedWait::Thread
    }
}

impl File {
    /// A direct handle to the same file.
    pub fn direct(&self) -> File {
        self.reopen(None)
    }

    /// The handle that dirty folios keep open.
    pub(crate) fn from_dirty(file: Arc<dyn DirtyFile>) -> File {
        let file: Arc<dyn Any + Send + Sync> = file;
        File { handle: file.downcast().expect("a dirty file is what a `File` holds") }
    }

    /// Another handle to the same file, buffered or direct.
    pub(crate) fn reopen(&self, cache: Option<(BufferedHandleState, StartFlusher)>) -> File {
        let FileHandle { device, map, state, options, .. } = &*self.handle;
        File::with_cache(device.clone(), map.clone(), state.clone(), *options, cache)
    }

    pub(crate) fn with_cache(
        device: Device,
        map: FileMap,
        state: Arc<FileState>,
        options: FileOptions,
        cache: Option<(BufferedHandleState, StartFlusher)>,
    ) -> File {
        let geometry = device.geometry();
        // Folios are filled in whole device blocks. A device with larger blocks has direct handles only.
        let cache = cache.filter(|_| u64::from(geometry.block_size) <= FOLIO);
        let limit = MAX_FAST_PATH_BYTES.max(geometry.block_size);
        let read_refusal = map.read_refusal();
        let write_refusal = match geometry.read_only {
            true => Some(Errno::ROFS),
            false => map.write_refusal(),
        };
        let submission = match options.write_lock {
            WriteLocking::Shared => None,
            WriteLocking::Exclusive => Some(state.submission().clone()),
        };
        let (cache, start_flusher) = cache.unzip();
        let buffered =
            start_flusher.map(|start| BufferedOpenGuard::new(&state, device.core(), start));
        let handle = FileHandle {
            _buffered: buffered,
            block_mask: geometry.block_size as u64 - 1,
            memory_mask: geometry.memory_alignment as u64 - 1,
            fast_read_limit: match read_refusal.is_some() || !options.simple_read || cache.is_some()
            {
                true => 0,
                false => limit,
            },
            fast_write_limit: match write_refusal.is_some()
                || submission.is_some()
                || cache.is_some()
            {
                true => 0,
                false => limit,
            },
            failures_seen: AtomicU64::new(state.dirty().failures_reported()),
            device_inner: device.core().clone(),
            index: device.index(),
            read_refusal,
            write_refusal,
            submission,
            caching: match (cache, read_refusal) {
                (None, _) => Caching::Direct,
                (Some(cache), Some(_)) => Caching::Writes(cache),
                (Some(cache), None) => Caching::Full(cache),
            },
            map,
            options,
            state,
            device,
        };
        File { handle: Arc::new(handle) }
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.handle.size()
    }

    /// True if the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if reads and writes go through the page cache.
    pub fn is_buffered(&self) -> bool {
        self.handle.cache().is_some()
    }

    /// The device of the file.
    pub fn device(&self) -> &Device {
        &self.handle.device
    }

    /// The device's size, alignment and features.
    pub fn geometry(&self) -> &Geometry {
        self.handle.device.geometry()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(out)
    }
}
