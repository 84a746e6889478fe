//! Files at a raw device's own speed, from user space, over plain io_uring.
//!
//! A [`Volume`] is a block device or an ordinary file that holds many named files. An image or a device can also be a
//! single [`File`], as below. You use a file with `async`/`await` on any executor, or by token on a [`Reactor`], which
//! is one thread's event loop.
//!
//! ```
//! use uringfs::{Access, Buffer, File, Reactor, ReactorOptions, Token, Tokens};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("image");
//! uringfs::create_image(&path, 1 << 20)?;
//! let file = File::open(&path, Access::ReadWrite)?;
//! let reactor = Reactor::new(ReactorOptions::default())?;
//!
//! // By awaiting:
//! let buffer = reactor.block_on(async {
//!     let (written, buffer) = file.write_at(Buffer::copy_of(&[7; 4096]), 8192).await;
//!     assert_eq!(written?, 4096);
//!     file.sync_data().await?;
//!     Ok::<_, uringfs::Errno>(buffer)
//! })?;
//!
//! // By token:
//! reactor.read_at(&file, buffer, 8192, Token::new(1))?;
//! let mut completed = Vec::new();
//! reactor.reap(1, None, &mut completed)?;
//! let completion = completed.remove(0);
//! assert_eq!(completion.result(), Ok(4096));
//! assert!(completion.into_buffer().iter().all(|byte| *byte == 7));
//! # Ok(())
//! # }
//! ```

use std::io;
use std::path::Path;

pub use uringfs_buffer::{Backing, Buffer, BufferPool};
pub use uringfs_cache::{Cache, CacheStatistics, FOLIO, FolioSnapshot};
pub use uringfs_device::backend;
pub use uringfs_device::queue::QueueKind;
pub use uringfs_device::{
    Access, Clock, Device, Discard, Errno, Geometry, Payload, Target, VirtualClock,
};
pub use uringfs_file::{
    Advice, AllocOutcome, AtimeUpdates, BufferedWait, CommitFuture, ExtentWindow, FallocateSize,
    File, FileExtent, FileOp, FileOptions, FileState, HotExtent, HotExtentReader, LinearMap, Map,
    Mapping, MappingState, OpOutput, OutOfPlaceExtents, Refusal, ResizableMap, SpaceReservation,
    SyncScope, Tokens, TruncateGeneration, WriteLocking, WriteOrigin,
};
pub use uringfs_reactor::{
    Completion, CompletionMode, Counter, Counters, Domain, Effect, Epoch, OpResult, Reactor,
    ReactorHandle, ReactorOptions, Require, SubmitError, Token, quiescence, total,
};
pub use uringfs_ring::{Feature, Features};
pub use uringfs_volume::{
    AsyncReadDir, AsyncVolume, AtimePolicy, BlockOwner, CheckOptions, CheckReport, CheckStep,
    Credentials, DirEntry, Error as VolumeError, ErrorEvent, ErrorKind as VolumeErrorKind,
    EventStream, FileTimes, FileType, Finding, Follow, FormatOptions, Inode, InodeNumber, Metadata,
    OpenOptions, ReadDir, Rename, SetXattr, Statistics, Time, Volume, VolumeOptions,
};

/// Creates an image: an ordinary file of `size` bytes, filled with zeros, so that every later write is a plain
/// overwrite. This takes as long as writing `size` bytes.
///
/// # Errors
/// When `path` exists, or the file system has no room.
pub fn create_image(path: impl AsRef<Path>, size: u64) -> io::Result<()> {
    backend::file::File::create(path.as_ref(), size, backend::file::Allocation::Written).map(drop)
}

const CACHE_BYTES: (&str, &str) = ("buffered.cache_bytes", "a number of bytes");

/// Every switch of the stack, by its dotted name.
#[derive(Clone, Debug, Default)]
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
