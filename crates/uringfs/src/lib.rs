//! Named files on a block device or in one ordinary file, at the device's own speed, from user space, over io_uring.
//!
//! A [`Volume`] holds files under names. Its calls have the names of `std::fs`:
//!
//! ```
//! use uringfs::{FormatOptions, Volume};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("image");
//! let volume = Volume::create(&path, &FormatOptions::new().size(64 << 20))?;
//! volume.create_dir_all("/logs/2026")?;
//! volume.write("/logs/2026/first", "hello")?;
//! assert_eq!(volume.read("/logs/2026/first")?, b"hello");
//! for entry in volume.read_dir("/logs")? {
//!     println!("{}", entry?.path().display());
//! }
//! volume.close()?;
//! assert!(Volume::open(&path)?.exists("/logs/2026")?);
//! # Ok(())
//! # }
//! ```
//!
//! A [`File`] reads and writes at offsets. An operation owns its memory while it runs, a [`Buffer`] or any other
//! [`IoBuf`] such as `Vec<u8>`, and gives it back with the result. Await it on any executor, or block the thread with
//! [`FileOp::wait`]:
//!
//! ```
//! use uringfs::{Buffer, FormatOptions, OpenOptions, Reactor, ReactorOptions, Volume};
//!
//! # fn main() -> uringfs::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
//! let file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "/data")?;
//!
//! let (written, buffer) = file.write_at(Buffer::copy_of(b"blocking"), 0).wait();
//! assert_eq!(written?, buffer.len());
//!
//! let reactor = Reactor::new(ReactorOptions::default())?;
//! reactor.block_on(async {
//!     let (read, buffer) = file.read_exact_at(Buffer::zeroed(8), 0).await;
//!     read?;
//!     assert_eq!(&buffer[..], b"blocking");
//!     file.sync_all().await?;
//!     // The calls on names, without blocking the thread:
//!     volume.as_async().rename("/data", "/renamed").await
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! Servers and databases start operations by [`Token`] on a [`Reactor`], one thread's event loop, and reap them in
//! batches. An image or a device can also be a single file, as here. A small aligned read of a direct file is one
//! request to the device:
//!
//! ```
//! use uringfs::device::Access;
//! use uringfs::{Buffer, File, Reactor, ReactorOptions, Token, Tokens};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("image");
//! uringfs::create_image(&path, 1 << 20)?;
//! let file = File::open(&path, Access::ReadWrite)?;
//! let reactor = Reactor::new(ReactorOptions::default())?;
//! for number in 0..8 {
//!     reactor.read_at(&file, Buffer::zeroed(4096), number * 4096, Token::new(number))?;
//! }
//! let mut completed = Vec::new();
//! while completed.len() < 8 {
//!     reactor.reap(1, None, &mut completed)?;
//! }
//! assert!(completed.iter().all(|completion| completion.result() == Ok(4096)));
//! # Ok(())
//! # }
//! ```
//!
//! Where to go next:
//!
//! - [`OpenOptions`]: direct I/O or the page cache; [`File`]: durable, atomic and appending writes, holes, advice.
//! - [`volume`]: attributes, listings, checks and events; [`AsyncVolume`]: its calls in tasks;
//!   [`InodeRef`](volume::InodeRef): files by reference instead of by path, for file servers.
//! - [`reactor`]: options, counters, and the tier of this machine; [`Reactor::fd`] for a loop of your own.
//! - [`device::backend`]: memory, exports of NBD servers, and simulated devices with faults and power cuts.
//! - `crates/uringfs/examples` in the repository: programs to start from.

use std::io;
use std::path::Path;

pub use uringfs_buffer::{Buffer, BufferPool, IoBuf, IoBufMut};
pub use uringfs_device::Errno;
pub use uringfs_file::{Batch, BufResult, File, FileOp, Tokens};
pub use uringfs_reactor::{BatchTransfer, Completion, Reactor, ReactorOptions, SubmitError, Token};
pub use uringfs_volume::{
    AsyncVolume, Error, ErrorKind, FormatOptions, OpenOptions, Result, Volume, VolumeOptions,
};

/// Volumes: what their calls take and return, checks, and events.
pub mod volume {
    pub use uringfs_volume::{
        AsyncReadDir, AtimePolicy, BlockOwner, CheckOptions, CheckReport, CheckStep, Credentials,
        DirEntry, DirectoryEntry, DirectoryPositions, DirectoryStream, ErrorEvent, EventStream,
        FileTimes, FileType, Finding, Follow, Holder, Identity, Inode, InodeNumber, InodeRef, Link,
        Metadata, ReadDir, Rename, SetXattr, Statistics, Time, UnlinkedFiles, WholeLock,
    };
}

/// The types that the operations of a [`File`] take and return, and its switches.
///
/// Files have holes, which take no space and read as zeros:
///
/// ```
/// use uringfs::file::FallocateSize;
/// use uringfs::{Errno, FormatOptions, OpenOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
/// let options = OpenOptions::new().read(true).write(true).create(true).direct(true);
/// let file = options.open(&volume, "/sparse")?;
/// file.write_at(vec![7; 65536], 0).wait().0?;
/// file.punch_hole(16384, 16384).wait()?;
/// assert_eq!((file.len(), file.allocated()), (65536, 49152));
/// assert_eq!((file.seek_hole(0)?, file.seek_data(16384)?), (16384, 32768));
///
/// // Space for later writes. Until these it reads as zeros and is no data.
/// file.allocate(65536, 65536, FallocateSize::Extend).wait()?;
/// assert_eq!((file.len(), file.allocated()), (131072, 114688));
/// assert_eq!(file.seek_data(65536), Err(Errno::NXIO));
/// # Ok(())
/// # }
/// ```
pub mod file {
    pub use uringfs_file::{
        Advice, BufferOutput, BufferedWait, ExactOp, FallocateSize, FileOptions, FileState,
        MAX_ATOMIC_WRITE_BYTES, OpOutput, UncommittedChange, UncommittedChanges, WriteLocking,
    };
}

/// The options, counters and results of a [`Reactor`], and what the kernel offers to it.
pub mod reactor {
    pub use uringfs_device::queue::QueueKind;
    pub use uringfs_device::queue::calibrate::{Calibration, QueueSamples, RoundSample};
    pub use uringfs_reactor::{
        BatchCompletion, BatchCompletions, Command, CompletionMode, Completions, Counter, Counters,
        Effect, JoinError, JoinHandle, LocalReactor, OpResult, PollEvents, RequestCounters,
        RequestCounts, RequestKind, Require, run_command, set_background_reactors, total,
    };
    pub use uringfs_ring::{Feature, Features};
    // For callers in other languages.
    #[doc(hidden)]
    pub use uringfs_reactor::{ForkDetector, TakeCompletion};
}

/// Devices below files and volumes: files and block devices, memory, exports of NBD servers, and simulated ones.
pub mod device {
    pub use uringfs_device::backend;
    pub use uringfs_device::{
        Access, Backend, Clock, Device, Discard, Geometry, MAX_SEGMENTS, Op, Payload, Target,
        VirtualClock,
    };
}

/// The page cache.
pub mod cache {
    pub use uringfs_cache::{Cache, CacheStatistics, FOLIO, FolioSnapshot};
}

/// Memory of buffers.
pub mod buffer {
    pub use uringfs_buffer::{ALIGNMENT, Acquire, MAX_LENGTH, OpMemory};
    // For servers of guests.
    #[doc(hidden)]
    pub use uringfs_buffer::{Registration, SharedMemory};
    // For callers in other languages.
    #[doc(hidden)]
    pub use uringfs_buffer::{ForeignBuffers, ForeignMemory, RawPool};
}

// Files with a cursor, for code that takes the traits of std, tokio or futures.
pub mod compat;

use cache::Cache;
use device::backend::file::{Allocation, File as ImageFile};
use file::FileOptions;

/// Creates an image: an ordinary file of `size` bytes, filled with zeros, so that every later write is a plain
/// overwrite. This takes as long as writing `size` bytes.
///
/// # Errors
/// When `path` exists, or the file system has no room.
pub fn create_image(path: impl AsRef<Path>, size: u64) -> io::Result<()> {
    ImageFile::create(path.as_ref(), size, Allocation::Written).map(drop)
}

const CACHE_BYTES: (&str, &str) = ("buffered.cache_bytes", "a number of bytes");

/// Every switch of the stack, by its dotted name.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Switches of reactors and their queues.
    pub reactor: ReactorOptions,
    /// Switches of files.
    pub file: FileOptions,
    /// `buffered.cache_bytes`: the size in bytes of the page cache that [`Self::cache`] returns.
    pub cache_bytes: Option<u64>,
}

impl Options {
    /// Sets a switch: `direct.simple_read=off`.
    ///
    /// # Errors
    /// A message with all switches if none has this name, or with the switch's values if `value` is not one.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if self.reactor.set(name, value)? || self.file.set(name, value)? {
            return Ok(());
        }
        if name == CACHE_BYTES.0 {
            let bytes =
                value.parse().map_err(|_| format!("{name} is {}, not `{value}`", CACHE_BYTES.1))?;
            self.cache_bytes = Some(bytes);
            return Ok(());
        }
        let names: Vec<_> = Options::switches().map(|(name, _)| name).collect();
        Err(format!("no switch is called {name:?}; there are {}", names.join(", ")))
    }

    /// The name of every switch, and the values that it takes.
    pub fn switches() -> impl Iterator<Item = (&'static str, &'static str)> {
        ReactorOptions::SWITCHES.iter().chain(FileOptions::SWITCHES).copied().chain([CACHE_BYTES])
    }

    /// A new page cache of [`Self::cache_bytes`]; without that, the page cache of the process.
    pub fn cache(&self) -> Cache {
        self.cache_bytes.map_or_else(Cache::of_process, Cache::new)
    }
}

/// Compiles the code of the README with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
