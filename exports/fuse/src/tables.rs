//! The files that the kernel knows by node ID, and those that it has open by handle.
//!
//! A node ID is the file's inode number; the root has 1 in both. The kernel counts its look-ups of each node and returns
//! the count with FORGET; until then the node's [`InodeRef`] keeps the file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use uringfs::volume::{DirectoryPositions, DirectoryStream, InodeRef};
use uringfs::{Errno, File};

use crate::abi::ROOT_ID;
use crate::changes::SyncMarks;

/// Fewer entries than these are not worth a smaller table.
pub(crate) const MIN_ENTRIES: usize = 1024;

/// The most names of a listing that the kernel keeps.
const MAX_KEPT_NAMES: usize = 128;

/// The use that the kernel may make of the listing of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListingCache {
    /// Lists from what it has kept, and keeps what it lists.
    Keep,
    /// Drops what it has kept, and keeps what it lists.
    Renew,
    /// Always asks.
    Off,
}

/// The nodes that the kernel knows.
pub(crate) struct Nodes(Mutex<Option<KnownNodes>>);

struct KnownNodes {
    root: Node,
    others: HashMap<u64, Node>,
}

struct Node {
    inode: InodeRef,
    lookups: u64,
    /// Of a directory that was opened.
    listing: Option<Box<KeptListing>>,
}

/// The listing of a directory. The kernel keeps it if it has few names: most of their attributes came with it (READDIRPLUS), so
/// that it need not look up each name.
///
/// The kernel joins what it keeps from the replies to all who list a directory, and may ask any of them to go on where it ends.
/// So all have the same positions.
#[derive(Default)]
struct KeptListing {
    positions: DirectoryPositions,
    /// The last listing had too many names, or a damaged one.
    is_excluded: bool,
    /// The listing that the kernel has kept is wrong.
    is_stale: bool,
}

impl Node {
    fn new(inode: InodeRef) -> Node {
        Node { inode, lookups: 0, listing: None }
    }
}

impl KnownNodes {
    fn get(&mut self, node: u64) -> Result<&mut Node, Errno> {
        match node {
            ROOT_ID => Ok(&mut self.root),
            _ => self.others.get_mut(&node).ok_or(Errno::STALE),
        }
    }
}

impl Nodes {
    pub(crate) fn new(root: InodeRef) -> Nodes {
        let root = Node::new(root);
        Nodes(Mutex::new(Some(KnownNodes { root, others: HashMap::new() })))
    }

    /// The file of a node.
    ///
    /// # Errors
    /// ESTALE for a node that the kernel does not know, and for all once they are closed.
    pub(crate) fn get(&self, node: u64) -> Result<InodeRef, Errno> {
        let mut known = self.0.lock();
        known.as_mut().ok_or(Errno::STALE)?.get(node).map(|node| node.inode.clone())
    }

    /// A directory that is opened, with the positions of its listing and what the kernel may do with that.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn open_directory(
        &self,
        node: u64,
    ) -> Result<(InodeRef, DirectoryPositions, ListingCache), Errno> {
        let mut known = self.0.lock();
        let node = known.as_mut().ok_or(Errno::STALE)?.get(node)?;
        let listing = node.listing.get_or_insert_default();
        // Also while others have it open.
        listing.is_excluded |= listing.positions.count() > MAX_KEPT_NAMES;
        let cache = match (listing.is_excluded, listing.is_stale) {
            (true, _) => ListingCache::Off,
            (false, true) => ListingCache::Renew,
            (false, false) => ListingCache::Keep,
        };
        // As long as another has it open, the kernel may still add to what it has kept.
        listing.is_stale &= cache != ListingCache::Renew || listing.positions.is_shared();
        Ok((node.inode.clone(), listing.positions.clone(), cache))
    }

    /// Notes that a directory was closed. A long listing leaves no names behind.
    pub(crate) fn close_directory(&self, node: u64) {
        self.with_listing(node, |listing| {
            if !listing.positions.is_shared() {
                let is_long = listing.positions.count() > MAX_KEPT_NAMES;
                if is_long || listing.is_excluded {
                    (listing.positions, listing.is_stale) = (DirectoryPositions::default(), true);
                }
                listing.is_excluded = is_long;
            }
        });
    }

    /// Notes that what the kernel has kept of a directory's listing is wrong, and it does not know that.
    pub(crate) fn listing_changed(&self, directory: u64) {
        self.with_listing(directory, |listing| listing.is_stale = true);
    }

    /// Notes that a name in a directory cannot be read. A kept listing would lack it, without an error.
    pub(crate) fn listing_failed(&self, directory: u64) {
        self.with_listing(directory, |listing| listing.is_excluded = true);
    }

    fn with_listing(&self, directory: u64, work: impl FnOnce(&mut KeptListing)) {
        if let Some(known) = &mut *self.0.lock()
            && let Ok(Node { listing: Some(listing), .. }) = known.get(directory)
        {
            work(listing);
        }
    }

    /// Whether the kernel may have cached something of a node.
    pub(crate) fn knows(&self, node: u64) -> bool {
        let known = self.0.lock();
        let is_known = |known: &KnownNodes| node == ROOT_ID || known.others.contains_key(&node);
        known.as_ref().is_some_and(is_known)
    }

    /// Counts a look-up, whose reply gives the kernel the node.
    pub(crate) fn remember(&self, inode: InodeRef) {
        let number = inode.number().0;
        if number == ROOT_ID {
            return;
        }
        if let Some(known) = &mut *self.0.lock() {
            known.others.entry(number).or_insert_with(|| Node::new(inode)).lookups += 1;
        }
    }

    /// Takes back look-ups.
    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        let mut known = self.0.lock();
        if let Some(nodes) = &mut *known
            && let Entry::Occupied(mut entry) = nodes.others.entry(node)
        {
            let left = entry.get().lookups.saturating_sub(lookups);
            entry.get_mut().lookups = left;
            if left == 0 {
                let forgotten = entry.remove();
                if nodes.others.capacity() > 8 * nodes.others.len() + MIN_ENTRIES {
                    nodes.others.shrink_to(2 * nodes.others.len());
                }
                // Its last reference may free memory.
                drop(known);
                drop(forgotten);
            }
        }
    }

    /// The number of nodes but the root, and of those that the table has room for.
    #[cfg(test)]
    pub(crate) fn len_and_capacity(&self) -> (usize, usize) {
        let known = self.0.lock();
        known.as_ref().map_or((0, 0), |known| (known.others.len(), known.others.capacity()))
    }

    /// Forgets all nodes, and those that come later.
    pub(crate) fn close(&self) {
        let known = self.0.lock().take();
        drop(known);
    }
}

/// An open file. Its handles in the volume are direct or buffered, as [`MountCache`](crate::MountCache) says.
pub(crate) struct OpenFile {
    pub(crate) inode: InodeRef,
    pub(crate) file: File,
    pub(crate) reads: File,
    pub(crate) writes: File,
    /// O_DSYNC and O_SYNC, if it was opened with them.
    pub(crate) sync_flags: u32,
    pub(crate) marks: SyncMarks,
    /// Open for reading and writing: a program may change it through a mapping, which the server learns at the write-back.
    pub(crate) may_be_mapped: bool,
    /// The value of [`Session::capabilities_set`](crate::session::Session) when the file was last seen without
    /// capabilities.
    pub(crate) checked: AtomicU64,
}

/// An open directory. The reader is away while a listing is answered.
pub(crate) type OpenDirectory = Arc<Mutex<Option<DirectoryReader>>>;

/// The place of an open directory's listing.
pub(crate) struct DirectoryReader {
    pub(crate) stream: DirectoryStream,
    /// The kernel keeps what it lists.
    pub(crate) is_kept: bool,
    /// The error that the next listing returns.
    pub(crate) failed: Option<Errno>,
}

/// The files and directories that the kernel has open.
#[derive(Default)]
pub(crate) struct Handles {
    state: Mutex<HandleState>,
}

#[derive(Default)]
struct HandleState {
    next: u64,
    files: HashMap<u64, Arc<OpenFile>>,
    /// The inodes that may be changed through mappings, and how many open files of each allow it.
    mapped: HashMap<u64, usize>,
    directories: HashMap<u64, OpenDirectory>,
    /// Files and directories that are opened from then on are closed at once.
    is_closed: bool,
}

impl Handles {
    pub(crate) fn insert_file(&self, file: OpenFile) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let handle = state.next;
        if !state.is_closed {
            if file.may_be_mapped {
                *state.mapped.entry(file.inode.number().0).or_default() += 1;
            }
            state.files.insert(handle, Arc::new(file));
        }
        handle
    }

    pub(crate) fn insert_directory(&self, stream: DirectoryStream, is_kept: bool) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let handle = state.next;
        if !state.is_closed {
            let reader = DirectoryReader { stream, is_kept, failed: None };
            state.directories.insert(handle, Arc::new(Mutex::new(Some(reader))));
        }
        handle
    }

    /// # Errors
    /// EBADF for a handle that is not an open file's.
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        self.state.lock().files.get(&handle).cloned().ok_or(Errno::BADF)
    }

    /// Whether a program may have changed an inode through a mapping, unknown to the server.
    pub(crate) fn may_be_mapped(&self, inode: &InodeRef) -> bool {
        self.state.lock().mapped.contains_key(&inode.number().0)
    }

    /// # Errors
    /// EBADF for a handle that is not an open directory's.
    pub(crate) fn directory(&self, handle: u64) -> Result<OpenDirectory, Errno> {
        self.state.lock().directories.get(&handle).cloned().ok_or(Errno::BADF)
    }

    pub(crate) fn release_file(&self, handle: u64) {
        let mut state = self.state.lock();
        let released = state.files.remove(&handle);
        if let Some(file) = released.as_ref().filter(|file| file.may_be_mapped)
            && let Entry::Occupied(mut count) = state.mapped.entry(file.inode.number().0)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        drop(state);
        drop(released);
    }

    /// Returns the directory's node.
    pub(crate) fn release_directory(&self, handle: u64) -> Option<u64> {
        let released = self.state.lock().directories.remove(&handle)?;
        let reader = released.lock().take()?;
        Some(reader.stream.directory().number().0)
    }

    /// The handle that was opened last.
    #[cfg(test)]
    pub(crate) fn newest(&self) -> u64 {
        self.state.lock().next
    }

    /// The number of open files and directories.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let state = self.state.lock();
        state.files.len() + state.directories.len()
    }

    /// Closes everything, and what is opened later.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let closed = (std::mem::take(&mut state.files), std::mem::take(&mut state.directories));
        drop(state);
        drop(closed);
    }
}
