//! The served files, by name.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use rustix::net::{Shutdown, shutdown};
use uringfs::reactor::{RequestCounters, RequestCounts};
use uringfs::{Errno, File};
use uringfs_nbd_protocol::MAX_STRING;
use uringfs_nbd_protocol::handshake::export_flags;

/// The longest payload of a request, in bytes: 32 MiB, which all clients keep to.
pub(crate) const MAX_PAYLOAD: u32 = 32 << 20;
/// Requests of whole blocks of this size are the fastest.
const PREFERRED_BLOCK: u32 = 4096;

/// A file that is served under a name.
#[derive(Clone, Debug)]
#[must_use]
pub struct Export {
    name: String,
    description: String,
    file: File,
    read_only: bool,
}

impl Export {
    /// A file under a name. It is served as its handle is open: a direct handle bypasses the page cache.
    pub fn new(name: impl Into<String>, file: File) -> Export {
        let read_only = file.geometry().read_only;
        Export { name: name.into(), description: String::new(), file, read_only }
    }

    /// A description of the export, for people: lists of exports show it.
    pub fn description(mut self, description: impl Into<String>) -> Export {
        self.description = description.into();
        self
    }

    /// Refuses every change.
    pub fn read_only(mut self, read_only: bool) -> Export {
        self.read_only = read_only || self.file.geometry().read_only;
        self
    }
}

/// An export with its connections.
pub(crate) struct ServedExport {
    export: Export,
    connections: Mutex<Connections>,
    /// The last connection has ended.
    idle: Condvar,
    is_removed: AtomicBool,
}

#[derive(Default)]
struct Connections {
    /// By their numbers.
    open: HashMap<u64, Connected>,
    next: u64,
    /// Of those that have ended.
    counts: RequestCounts,
}

struct Connected {
    socket: Arc<OwnedFd>,
    counters: Arc<RequestCounters>,
}

impl ServedExport {
    pub(crate) fn name(&self) -> &str {
        &self.export.name
    }

    pub(crate) fn description(&self) -> &str {
        &self.export.description
    }

    pub(crate) fn file(&self) -> &File {
        &self.export.file
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.export.read_only
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.export.file.len()
    }

    /// The same, after a look at the device, which may have grown.
    pub(crate) fn current_size(&self) -> u64 {
        self.export.file.device().core().check_size();
        self.size()
    }

    /// Its [`export_flags`], which clients learn.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let geometry = self.export.file.geometry();
        let mut flags = export_flags::HAS_FLAGS
            | export_flags::SEND_FLUSH
            | export_flags::SEND_FUA
            | export_flags::CAN_MULTI_CONN;
        if structured {
            flags |= export_flags::SEND_DF;
        }
        if self.export.file.is_buffered() {
            flags |= export_flags::SEND_CACHE;
        }
        if geometry.rotational {
            flags |= export_flags::ROTATIONAL;
        }
        match self.export.read_only {
            true => flags | export_flags::READ_ONLY,
            false => {
                flags
                    | export_flags::SEND_TRIM
                    | export_flags::SEND_WRITE_ZEROES
                    | export_flags::SEND_FAST_ZERO
            }
        }
    }

    /// The minimum, the preferred and the maximum length of requests, in bytes.
    pub(crate) fn block_sizes(&self) -> [u32; 3] {
        let block = self.export.file.geometry().block_size;
        // A volume's file may end within a block.
        let minimum = if self.size().is_multiple_of(block.into()) { block } else { 1 };
        [minimum, PREFERRED_BLOCK.max(block), MAX_PAYLOAD]
    }

    /// Notes a connection, until the guard is dropped. `None` if the export was removed.
    pub(crate) fn connect(self: &Arc<Self>, socket: &Arc<OwnedFd>) -> Option<ConnectedGuard> {
        let mut connections = self.connections.lock();
        if self.is_removed() {
            return None;
        }
        let number = connections.next;
        connections.next += 1;
        let counters = Arc::<RequestCounters>::default();
        let connected = Connected { socket: socket.clone(), counters: counters.clone() };
        connections.open.insert(number, connected);
        Some(ConnectedGuard { export: self.clone(), number, counters })
    }

    /// Whether it serves no more requests.
    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Ends its connections: requests under way are answered.
    fn disconnect(&self) {
        let connections = self.connections.lock();
        self.is_removed.store(true, Ordering::Release);
        for Connected { socket, .. } in connections.open.values() {
            let _ = shutdown(socket, Shutdown::Read);
        }
    }
}

/// A connection that uses an export.
pub(crate) struct ConnectedGuard {
    export: Arc<ServedExport>,
    number: u64,
    /// The counts of its requests, which its thread writes.
    pub(crate) counters: Arc<RequestCounters>,
}

impl Drop for ConnectedGuard {
    fn drop(&mut self) {
        let mut connections = self.export.connections.lock();
        connections.open.remove(&self.number);
        connections.counts += self.counters.get();
        if connections.open.is_empty() {
            self.export.idle.notify_all();
        }
    }
}

/// The served files. Clones are the same. Exports come and go while others are in use.
///
/// ```
/// use uringfs::device::Device;
/// use uringfs::device::backend::memory::Memory;
/// use uringfs::file::FileOptions;
/// use uringfs::{Errno, File};
/// use uringfs_nbd::{Export, Exports};
///
/// # fn main() -> std::io::Result<()> {
/// let file = File::from_device(Device::new(Memory::new(1 << 20)?)?, FileOptions::new());
/// let exports = Exports::new();
/// exports.add(Export::new("disk", file.clone()).description("one MiB"))?;
/// assert_eq!(exports.add(Export::new("disk", file)), Err(Errno::EXIST));
/// assert_eq!(exports.names(), ["disk"]);
/// assert!(exports.remove("disk"));
/// assert!(exports.names().is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Exports {
    by_name: Arc<Mutex<BTreeMap<String, Arc<ServedExport>>>>,
}

impl Exports {
    /// No exports.
    pub fn new() -> Exports {
        Exports::default()
    }

    /// Adds an export.
    ///
    /// # Errors
    /// EEXIST when another has its name. ENAMETOOLONG for a name or a description of more than 4096 bytes.
    pub fn add(&self, export: Export) -> Result<(), Errno> {
        if export.name.len().max(export.description.len()) > MAX_STRING {
            return Err(Errno::NAMETOOLONG);
        }
        let mut by_name = self.by_name.lock();
        if by_name.contains_key(&export.name) {
            return Err(Errno::EXIST);
        }
        let name = export.name.clone();
        by_name.insert(
            name,
            Arc::new(ServedExport {
                export,
                connections: Mutex::default(),
                idle: Condvar::new(),
                is_removed: AtomicBool::new(false),
            }),
        );
        Ok(())
    }

    /// Removes an export. Its requests under way are answered, then its connections end. Other exports are unaffected.
    /// Returns false if there is no such export.
    pub fn remove(&self, name: &str) -> bool {
        let removed = self.by_name.lock().remove(name);
        removed.inspect(|export| export.disconnect()).is_some()
    }

    /// The same, and waits until its connections have ended. A client that takes no replies may delay that by a minute.
    ///
    /// A thread that serves must not call it.
    pub fn remove_and_wait(&self, name: &str) -> bool {
        let Some(removed) = self.by_name.lock().remove(name) else { return false };
        removed.disconnect();
        let mut connections = removed.connections.lock();
        removed.idle.wait_while(&mut connections, |connections| !connections.open.is_empty());
        true
    }

    /// The connections to an export; 0 if there is no such export.
    pub fn connections(&self, name: &str) -> usize {
        let export = self.by_name.lock().get(name).cloned();
        export.map_or(0, |export| export.connections.lock().open.len())
    }

    /// The requests of all clients of an export so far; none if there is no such export.
    pub fn counts(&self, name: &str) -> RequestCounts {
        let Some(export) = self.by_name.lock().get(name).cloned() else {
            return RequestCounts::default();
        };
        let connections = export.connections.lock();
        let open = connections.open.values().map(|connected| connected.counters.get());
        open.sum::<RequestCounts>() + connections.counts
    }

    /// The names of all, in their order.
    pub fn names(&self) -> Vec<String> {
        self.by_name.lock().keys().cloned().collect()
    }

    /// All, in the order of their names.
    pub(crate) fn list(&self) -> Vec<Arc<ServedExport>> {
        self.by_name.lock().values().cloned().collect()
    }

    /// The export with a name. Of the empty name it is the only one, if no other has it.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<ServedExport>> {
        let by_name = self.by_name.lock();
        let only = || by_name.values().next().filter(|_| name.is_empty() && by_name.len() == 1);
        by_name.get(name).or_else(only).cloned()
    }
}

impl fmt::Debug for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exports").field(&self.names()).finish()
    }
}
