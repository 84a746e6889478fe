//! One writer or many readers for a volume. `flock` on the device excludes other processes. A list excludes
//! other volumes of this process, because clones of a [`Device`] share a descriptor and so its `flock`.
//!
//! The devices and files below a device are locked too, for example the file of a loop device, so that a volume is
//! not opened under both names. If the volume's device is only a part of the device below it, as a
//! partition is of its disk, the lock on the lower one is shared: it excludes only openers of the whole.
//!
//! A device without a descriptor, such as an export of an NBD server or an image of RBD, has a lock by its name instead.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{
    FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, major, minor, open, stat,
};
use uringfs_device::backend::RemoteTarget;
use uringfs_device::backend::in_use::backing_stores;
use uringfs_device::backend::nvme::block_device_of;
use uringfs_device::{Device, DeviceIndex, DeviceUse, Errno, UseKind};
use uringfs_reactor::ForkDetector;

pub(crate) use super::named_lock::LockKind;
use super::named_lock::{self, NamedHolder, NamedLock, Others};
use crate::error::{Error, ErrorKind};

/// The longest wait for the lock of a process that has exited. The kernel releases a ring's registered files in
/// the background (`io_ring_exit_work` in io_uring/io_uring.c), once their requests have ended.
const EXITED_HOLDER_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Holds the locks of a volume's device until it is dropped.
pub(crate) struct DeviceLock {
    device: Device,
    /// That of a device without a descriptor which other processes can reach.
    named: Option<NamedLock>,
    /// The files and devices below this one, each with an `flock` of its own that ends with the descriptor.
    below: Vec<Lower>,
    /// Its entries in [`HELD`].
    held: Vec<HeldLock>,
    fork: ForkDetector,
    /// None if the device is used as a whole: its handle has the use then.
    _device_use: Option<DeviceUse>,
}

/// The purpose of a lock, as errors call it.
#[derive(Clone, Copy)]
struct Purpose(&'static str);

const VOLUME: Purpose = Purpose("the volume");
const WHOLE: Purpose = Purpose("it");

/// All locks that this process holds.
static HELD: Mutex<Vec<HeldLock>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, PartialEq, Eq)]
struct HeldLock {
    target: LockTarget,
    kind: LockKind,
    /// The device whose descriptor holds the `flock`.
    device: DeviceIndex,
}

/// The bytes that a device gives access to, whatever path it was opened by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockTarget {
    File {
        device: u64,
        inode: u64,
    },
    Block {
        number: u64,
    },
    /// Memory of this process that belongs to one device.
    Memory(DeviceIndex),
    /// Memory of this process that several devices reach, at this address. The lock's device keeps it allocated.
    SharedMemory(usize),
}

impl DeviceLock {
    /// Acquires the lock. Waits for the lock of a process that has exited.
    ///
    /// # Errors
    /// `Refused` (EBUSY) when another process, or another `Volume` of this one, holds a conflicting lock, and while this
    /// process has the device open for writing as a single file.
    pub(crate) fn acquire(device: &Device, kind: LockKind) -> Result<DeviceLock, Error> {
        let device_use = DeviceUse::begin(device.core(), UseKind::Volume).map_err(|errno| {
            let what =
                "this program has it open for writing as a single file; close that file first";
            Error::refused(errno, what)
        })?;
        DeviceLock::acquire_for(device, kind, VOLUME, Some(device_use))
    }

    /// The lock of a volume, for a device that is used as a whole.
    ///
    /// # Errors
    /// As [`Self::acquire`], except that the device may be open for writing as a single file.
    pub(crate) fn acquire_whole(device: &Device, kind: LockKind) -> Result<DeviceLock, Error> {
        DeviceLock::acquire_for(device, kind, WHOLE, None)
    }

    fn acquire_for(
        device: &Device,
        kind: LockKind,
        purpose: Purpose,
        device_use: Option<DeviceUse>,
    ) -> Result<DeviceLock, Error> {
        let (index, fork) = (device.index(), ForkDetector::default());
        let backend = device.core().backend();
        let mut lock = DeviceLock {
            device: device.clone(),
            named: None,
            below: Vec::new(),
            held: Vec::new(),
            fork,
            _device_use: device_use,
        };
        if let Some(name) = backend.shared_name() {
            let others = match backend.ignores_sharers() {
                true => Others::Ignored,
                false => Others::Respected,
            };
            let acquired = NamedLock::acquire(name, kind, others);
            lock.named = Some(acquired.map_err(|held| open_by(purpose, name, held))?);
            return Ok(lock);
        }
        let Some(descriptor) = backend.identity() else {
            // Only this process reaches its memory: no `flock` is needed.
            let target =
                backend.shared_memory().map_or(LockTarget::Memory(index), LockTarget::SharedMemory);
            let held = HeldLock { target, kind, device: index };
            register(&[held], purpose)?;
            lock.held.push(held);
            return Ok(lock);
        };
        let mut held = Vec::new();
        let mut note = |layer, kind| {
            LockTarget::from_fd(layer)
                .map(|target| held.push(HeldLock { target, kind, device: index }))
        };
        let below = underlying(descriptor, kind, purpose)?;
        note(descriptor, kind)?;
        below.iter().try_for_each(|lower| note(lower.file.as_fd(), lower.kind))?;
        register(&held, purpose)?;
        lock.held = held;
        acquire_flock(descriptor, kind, purpose)?;
        for lower in below {
            acquire_flock(lower.file.as_fd(), lower.kind, purpose)?;
            lock.below.push(lower);
        }
        Ok(lock)
    }

    /// The names of its locks, as [`Holder::lock`]. A device of which the volume uses only a part has none: other parts
    /// may be other volumes.
    pub(crate) fn names(&self) -> Vec<String> {
        let backend = self.device.core().backend();
        let own = match (backend.shared_name(), backend.identity()) {
            (Some(name), _) => Some(name.to_owned()),
            (None, identity) => identity.and_then(name_of_descriptor),
        };
        let below = self.below.iter().filter(|lower| lower.is_whole);
        let below = below.filter_map(|lower| name_of_descriptor(lower.file.as_fd()));
        own.into_iter().chain(below).collect()
    }
}

impl Drop for DeviceLock {
    fn drop(&mut self) {
        if self.fork.is_forked() {
            // Parent and child share the lock, which stays the parent's.
            return;
        }
        if let Some(named) = &self.named {
            named.release();
        }
        let all = &mut *HELD.lock();
        for held in &self.held {
            let line =
                all.iter().position(|other| other == held).expect("each held lock is in the list");
            all.swap_remove(line);
        }
        if all.iter().any(|held| held.device == self.device.index()) {
            return;
        }
        // Not left to the close of the descriptor: a reactor that is not turning may keep that open.
        if let Some(descriptor) = self.device.core().backend().identity() {
            let _ = flock(descriptor, FlockOperation::Unlock);
        }
    }
}

/// Refuses a path whose bytes are, or lie in, a volume that any process has open.
///
/// # Errors
/// `Refused` (EBUSY).
pub(crate) fn require_closed(path: &Path) -> Result<(), Error> {
    if RemoteTarget::from_path(path).is_some() {
        return Holder::find(path)
            .map_or(Ok(()), |holder| Err(open_elsewhere(VOLUME, Some(&holder))));
    }
    // A namespace of an NVMe device is locked by its block device.
    let block_path = block_device_of(path);
    let path = block_path.as_deref().unwrap_or(path);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // A later read or write of the path reports why it cannot be opened.
    let Ok(file) = open(path, flags, Mode::empty()) else { return Ok(()) };
    let below = underlying(file.as_fd(), LockKind::Exclusive, VOLUME)?;
    let below = below.iter().map(|lower| (lower.file.as_fd(), lower.kind));
    for (layer, kind) in below.chain([(file.as_fd(), LockKind::Exclusive)]) {
        check_conflict(&HELD.lock(), LockTarget::from_fd(layer)?, kind, VOLUME)?;
        acquire_flock(layer, kind, VOLUME)?;
    }
    Ok(())
}

/// A file or device below a device.
struct Lower {
    file: OwnedFd,
    kind: LockKind,
    /// The device has all of its bytes, not a part.
    is_whole: bool,
}

/// Opens the files and devices below a device, and selects the kind of lock for each.
fn underlying(
    descriptor: BorrowedFd<'_>,
    kind: LockKind,
    Purpose(subject): Purpose,
) -> Result<Vec<Lower>, Error> {
    let mut found = Vec::new();
    for lower in backing_stores(descriptor) {
        let opened = open(&lower.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let opened = opened.map_err(|errno| {
            Error::io(format!("opening {}, which is below {subject}", lower.path.display()), errno)
        })?;
        let kind = if lower.is_whole { kind } else { LockKind::Shared };
        found.push(Lower { file: opened, kind, is_whole: lower.is_whole });
    }
    Ok(found)
}

/// Acquires an `flock`. Waits for that of a process that has exited.
fn acquire_flock(
    descriptor: BorrowedFd<'_>,
    kind: LockKind,
    purpose: Purpose,
) -> Result<(), Error> {
    let how = match kind {
        LockKind::Shared => FlockOperation::NonBlockingLockShared,
        LockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    let until = Instant::now() + EXITED_HOLDER_TIMEOUT;
    loop {
        match flock(descriptor, how).map_err(Errno::from) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) => {}
            Err(errno) => return Err(Error::io(format!("locking {}", purpose.0), errno)),
        }
        match fstat(descriptor).ok().and_then(|file| Holder::of(&file)) {
            Some(None) if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
            Some(Some(holder)) => return Err(open_elsewhere(purpose, Some(&holder))),
            _ => return Err(open_elsewhere(purpose, None)),
        }
    }
}

/// The error of a lock by a name.
fn open_by(purpose: Purpose, name: &str, (errno, holder): (Errno, Option<NamedHolder>)) -> Error {
    let Purpose(subject) = purpose;
    match holder {
        Some(holder) if holder.process == std::process::id() => {
            let what = format!("this program has {subject} open already; close it there first");
            Error::refused(errno, what)
        }
        Some(holder) => {
            open_elsewhere(purpose, Some(&Holder::new(holder.process, name.to_owned())))
        }
        None => Error::io(format!("locking {subject}"), errno),
    }
}

fn open_elsewhere(Purpose(subject): Purpose, holder: Option<&Holder>) -> Error {
    let process = match holder {
        Some(Holder { process, name: Some(name), .. }) => format!(" ({name}, process {process})"),
        Some(Holder { process, name: None, .. }) => format!(" (process {process})"),
        None => String::new(),
    };
    let what = format!("another program has {subject} open{process}; close it there first");
    Error::new(ErrorKind::Refused(Errno::BUSY), what)
}

/// Adds all of these locks to the list, or none.
fn register(some: &[HeldLock], purpose: Purpose) -> Result<(), Error> {
    let all = &mut *HELD.lock();
    some.iter().try_for_each(|held| check_conflict(all, held.target, held.kind, purpose))?;
    all.extend(some);
    Ok(())
}

fn check_conflict(
    all: &[HeldLock],
    target: LockTarget,
    kind: LockKind,
    Purpose(subject): Purpose,
) -> Result<(), Error> {
    let conflicts = |other: &HeldLock| {
        other.target == target && (other.kind == LockKind::Exclusive || kind == LockKind::Exclusive)
    };
    let Some(holder) = all.iter().find(|held| conflicts(held)) else { return Ok(()) };
    let what = match holder.kind {
        LockKind::Exclusive => {
            format!("this program has {subject} open already; use a clone of that handle")
        }
        LockKind::Shared => {
            format!("this program has {subject} open for reading only; close that handle first")
        }
    };
    Err(Error::refused(Errno::BUSY, what))
}

impl LockTarget {
    fn from_fd(descriptor: BorrowedFd<'_>) -> Result<LockTarget, Error> {
        let status = fstat(descriptor)
            .map_err(|errno| Error::io("identifying the file that the volume is in", errno))?;
        Ok(match FileType::from_raw_mode(status.st_mode) {
            FileType::BlockDevice => LockTarget::Block { number: status.st_rdev },
            _ => LockTarget::File { device: status.st_dev, inode: status.st_ino },
        })
    }
}

/// A running process that has a volume open.
///
/// ```
/// # mod uringfs {
/// #     pub use uringfs_volume::{FormatOptions, Holder, Volume};
/// #     pub mod volume { pub use super::Holder; }
/// # }
/// use uringfs::volume::Holder;
/// use uringfs::{FormatOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("image");
/// let volume = Volume::create(&path, &FormatOptions::new().size(64 << 20))?;
/// let holder = Holder::find(&path).unwrap();
/// assert_eq!(holder.process(), std::process::id());
/// assert_eq!(volume.locks(), [holder.lock()]);
/// volume.close()?;
/// assert!(Holder::find(&path).is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Holder {
    process: u32,
    name: Option<String>,
    lock: String,
}

impl Holder {
    /// The process that has the volume in a file or on a block device open; one of them if there are several. It may have it
    /// open by another link of the file, or by the file of this loop device. `None` if there is none, and if `/proc/locks`
    /// names none: a process of another PID namespace. For the URI of an NBD server's export: a process of this network
    /// namespace that uses this library.
    pub fn find(path: impl AsRef<Path>) -> Option<Holder> {
        let path = path.as_ref();
        if let Some(target) = RemoteTarget::from_path(path) {
            let name = target.ok()?.lock_name()?;
            return named_lock::holder(&name).map(|holder| Holder::new(holder.process, name));
        }
        let block_path = block_device_of(path);
        let path = block_path.as_deref().unwrap_or(path);
        if let Some(holder) = Holder::of(&stat(path).ok()?)? {
            return Some(holder);
        }
        let node = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut below = backing_stores(node.as_fd()).into_iter().filter(|lower| lower.is_whole);
        below.find_map(|lower| Holder::of(&stat(&lower.path).ok()?)?)
    }

    /// The number of the process.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// The name of the lock that it holds: `fe:00:5678`, the file or block device in `/proc/locks`, or the URI of an export.
    /// [`Volume::locks`](crate::Volume::locks) has it in that process.
    pub fn lock(&self) -> &str {
        &self.lock
    }

    /// The process that holds an `flock` of a file. `Some(None)`: no running one does. `None`: it is unknown.
    fn of(file: &Stat) -> Option<Option<Holder>> {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let lock = lock_name(file);
        // A line of /proc/locks: "7: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"
        let mut processes = locks.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let process = words.nth(4)?;
            (words.next()? == lock && is_running(process)).then(|| process.parse().ok())?
        });
        let process = processes.next();
        Some(process.map(|process| Holder::new(process, lock.clone())))
    }

    fn new(process: u32, lock: String) -> Holder {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
        Holder { process, name: name.ok().map(|name| name.trim_end().to_owned()), lock }
    }
}

/// How `/proc/locks` names a file.
fn lock_name(file: &Stat) -> String {
    let device = file.st_dev;
    format!("{:02x}:{:02x}:{}", major(device), minor(device), file.st_ino)
}

fn name_of_descriptor(descriptor: BorrowedFd<'_>) -> Option<String> {
    fstat(descriptor).ok().map(|file| lock_name(&file))
}

fn is_running(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat"));
    // The state follows the name, which ends with the last parenthesis.
    let state = status.ok().and_then(|line| line.rsplit_once(") ")?.1.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
