//! [`Session`]: one mounted volume, and [`Task`], a request under way.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use uringfs::volume::{AtimePolicy, UnlinkedFiles};
use uringfs::{Errno, Volume};

use crate::abi::InHeader;
use crate::agreement::Agreement;
use crate::changes::Changes;
use crate::closed::{Closed, ClosedGuard};
use crate::commit::CommitTimer;
use crate::in_flight::InFlight;
use crate::listen::Listeners;
use crate::reply::send;
use crate::request::is_change;
use crate::tables::{Handles, Nodes};

/// The most bytes of one read or write.
pub(crate) const MAX_TRANSFER: u32 = 1 << 20;

/// Where the bytes of files are cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountCache {
    /// In the kernel's page cache, as those of any local file system. Writes also pass through the page cache of the volume,
    /// which gathers them, unless the kernel writes back itself ([`MountOptions::writeback`](crate::MountOptions::writeback)).
    #[default]
    Kernel,
    /// In the page cache of the volume. Each read and write is a request to the server.
    Volume,
    /// Nowhere: each read and write goes to the device. The kernel still caches the bytes that programs map.
    None,
}

/// One mounted volume, which all of its threads share.
pub(crate) struct Session {
    /// None once it is closed.
    volume: Mutex<Option<Volume>>,
    pub(crate) nodes: Nodes,
    pub(crate) handles: Handles,
    pub(crate) cache: MountCache,
    /// How often a file was given capabilities, and 1. A file without them needs no look before a write.
    pub(crate) capabilities_set: AtomicU64,
    pub(crate) commits: CommitTimer,
    pub(crate) changes: Changes,
    pub(crate) closed: Closed,
    pub(crate) listeners: Listeners,
    /// Whether the kernel passes requests over io_uring.
    pub(crate) ring: Agreement,
    pub(crate) takes_io_uring: bool,
    /// Whether the kernel checks permissions by modes and owners.
    pub(crate) default_permissions: bool,
    pub(crate) access_time: AtimePolicy,
    wants_writeback: bool,
    kernel_writes_back: AtomicBool,
    /// Whether programs see the same of a file that one has open uncached and another cached.
    uncached_opens_are_coherent: AtomicBool,
}

impl Session {
    /// A session that `threads` threads serve.
    pub(crate) fn new(volume: Volume, options: SessionOptions, threads: usize) -> Session {
        Session {
            nodes: Nodes::new(volume.root()),
            volume: Mutex::new(Some(volume)),
            handles: Handles::default(),
            cache: options.cache,
            capabilities_set: AtomicU64::new(1),
            commits: CommitTimer::new(options.commit_interval),
            changes: Changes::default(),
            closed: Closed::default(),
            listeners: Listeners::new(threads, options.spin),
            ring: Agreement::new(threads),
            takes_io_uring: options.io_uring,
            default_permissions: options.default_permissions,
            access_time: options.access_time,
            wants_writeback: options.writeback,
            kernel_writes_back: AtomicBool::new(false),
            uncached_opens_are_coherent: AtomicBool::new(false),
        }
    }

    /// # Errors
    /// ESTALE once it is closed.
    pub(crate) fn volume(&self) -> Result<Volume, Errno> {
        self.volume.lock().clone().ok_or(Errno::STALE)
    }

    /// Refuses changes where nothing can be changed, also after an error that has stopped the volume.
    ///
    /// # Errors
    /// EROFS; ESTALE once it is closed.
    pub(crate) fn check_changeable(&self) -> Result<(), Errno> {
        let volume = self.volume.lock();
        match volume.as_ref().ok_or(Errno::STALE)?.is_read_only() {
            true => Err(Errno::ROFS),
            false => Ok(()),
        }
    }

    /// Notes a change that was made and is not replied to yet. Returns how many there were before.
    pub(crate) fn note_change(&self) -> u64 {
        let before = self.changes.note();
        self.commits.note_change();
        before
    }

    /// Makes changes durable from time to time. In the end runs `before`, and closes the volume with all that the kernel still
    /// knows.
    ///
    /// # Errors
    /// Those of [`Volume::close`].
    pub(crate) fn save_and_close(&self, before: impl FnOnce()) -> Result<(), uringfs::Error> {
        let _closed = ClosedGuard(&self.closed);
        self.commits.run(|is_changed| {
            let Ok(volume) = self.volume() else { return false };
            if is_changed || volume.unlinked_files() == UnlinkedFiles::Closed {
                // An fsync of the file reports the error if a sync cannot write its data.
                let _ = volume.sync();
            }
            volume.unlinked_files() != UnlinkedFiles::None
        });
        before();
        let volume = self.volume.lock().take();
        // A client may have frozen it a moment ago.
        volume.as_ref().map(Volume::thaw);
        self.nodes.close();
        self.handles.close();
        volume.map_or(Ok(()), Volume::close)
    }

    /// Whether the kernel gathers writes in its page cache.
    pub(crate) fn kernel_writes_back(&self) -> bool {
        self.kernel_writes_back.load(Ordering::Relaxed)
    }

    /// Agrees with the kernel on its write-back. Returns whether it is asked for.
    pub(crate) fn agree_on_writeback(&self, offered: bool) -> bool {
        let agreed = self.wants_writeback && offered;
        self.kernel_writes_back.store(agreed, Ordering::Relaxed);
        agreed
    }

    /// Whether I/O of a file that is open uncached writes and drops the pages that the kernel has of it.
    pub(crate) fn uncached_opens_are_coherent(&self) -> bool {
        self.uncached_opens_are_coherent.load(Ordering::Relaxed)
    }

    /// Notes whether the kernel offers mappings of files that are open uncached (Linux 6.6). Such a kernel keeps them
    /// coherent.
    pub(crate) fn note_uncached_mappings(&self, offered: bool) {
        self.uncached_opens_are_coherent.store(offered, Ordering::Relaxed);
    }
}

/// The options that a [`Session`] is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionOptions {
    pub(crate) cache: MountCache,
    pub(crate) writeback: bool,
    pub(crate) commit_interval: Duration,
    /// The kernel checks permissions by modes and owners.
    pub(crate) default_permissions: bool,
    pub(crate) access_time: AtimePolicy,
    /// Takes requests over io_uring if the kernel offers it.
    pub(crate) io_uring: bool,
    /// A thread spins for the next request before it sleeps.
    pub(crate) spin: bool,
}

/// A request under way.
pub(crate) struct Task {
    pub(crate) session: Arc<Session>,
    pub(crate) header: InHeader,
    pub(crate) carrier: Carrier,
}

/// The channel or entry that takes the reply to a request.
pub(crate) enum Carrier {
    /// A descriptor, to which it is written.
    Channel(
        Arc<OwnedFd>,
        #[expect(dead_code, reason = "counts the request until it is dropped")] InFlight,
    ),
    /// An entry of a ring, from which it is copied.
    Entry(RefCell<Result<Vec<u8>, Errno>>),
}

impl Task {
    pub(crate) fn reply(&self, result: Result<&[u8], Errno>) {
        self.try_reply(result);
    }

    /// Replies with what the kernel has to give back later. Returns false if it did not take it.
    pub(crate) fn try_reply(&self, result: Result<&[u8], Errno>) -> bool {
        if is_change(self.header.opcode) {
            self.session.note_change();
        }
        match &self.carrier {
            Carrier::Channel(channel, _) => send(channel, self.header.unique, result),
            Carrier::Entry(reply) => {
                *reply.borrow_mut() = result.map(<[u8]>::to_vec);
                true
            }
        }
    }
}

/// The number of an error in a reply.
pub(crate) fn errno(error: uringfs::Error) -> Errno {
    error.errno()
}
