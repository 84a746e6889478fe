//! [`UblkServer`]: a disk as a block device of this machine, from its start to its removal. [`PreparedServer`]: the same
//! before its start, when it can still be given up.

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags, fsync, open};
use rustix::io::Errno as SystemError;
use uringfs::Errno;
use uringfs::reactor::{RequestCounters, RequestCounts};

use crate::abi::{DeviceInfo, feature};
use crate::channel::CopiedBy;
use crate::control::ControlDevice;
use crate::disk::{Disk, MAX_IO_BYTES, QUEUE_DEPTH};
use crate::driver::disk_path;
use crate::lifecycle::{self, Attached, Wanted};
use crate::operations::ServedFile;
use crate::queue::Queue;
use crate::request::Bounds;
use crate::worker::Worker;

/// How often a server that is to stop looks whether its device is still in use. The kernel does not report that.
const USE_INTERVAL: Duration = Duration::from_millis(100);

/// A disk that is a block device of this machine.
///
/// ```no_run
/// use uringfs::device::Access;
/// use uringfs::File;
/// use uringfs_ublk::{Disk, UblkServer};
///
/// # fn main() -> std::io::Result<()> {
/// let disk = Disk::new(File::open("disk.img", Access::ReadWrite)?).name("disk.img");
/// let server = UblkServer::start(disk)?;
/// println!("{}", server.path().display());
/// server.wait()?; // until server.handle().stop()
/// # Ok(())
/// # }
/// ```
///
/// Dropping it removes the device at once, as a second [`ServerHandle::stop`] does.
pub struct UblkServer {
    disk: Disk,
    path: PathBuf,
    is_recovered: bool,
    device: Option<ServedDevice>,
    control: Arc<Control>,
    /// One for each queue.
    counters: Arc<[RequestCounters]>,
}

/// A device that is made, or taken over from a server that was killed, and serves no requests yet.
///
/// ```no_run
/// use uringfs::device::Access;
/// use uringfs::File;
/// use uringfs_ublk::{Disk, UblkServer};
///
/// # fn main() -> std::io::Result<()> {
/// let disk = |path| Ok::<_, std::io::Error>(Disk::new(File::open(path, Access::ReadWrite)?));
/// // If the second one fails, there is no device.
/// let prepared = [UblkServer::prepare(disk("a.img")?)?, UblkServer::prepare(disk("b.img")?)?];
/// for server in prepared {
///     println!("{}", server.start()?.path().display());
/// }
/// # Ok(())
/// # }
/// ```
///
/// Dropping it deletes the device. One that was taken over waits for the next server again.
pub struct PreparedServer {
    disk: Disk,
    path: PathBuf,
    attached: Option<Attached<OwnedFd>>,
}

/// Stops a [`UblkServer`], and shows what it has counted, from any thread. It keeps nothing open.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    path: PathBuf,
    control: Arc<Control>,
    counters: Arc<[RequestCounters]>,
}

/// Whether a device is mounted, or otherwise in exclusive use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// It is not. Its server ends now.
    Unused,
    /// Its server ends when it no longer is.
    InUse,
}

/// The parts that a device keeps until it is removed.
struct ServedDevice {
    info: DeviceInfo,
    channel: Arc<OwnedFd>,
    workers: Vec<Worker>,
}

/// Messages of the handle and the queues to the thread that waits.
#[derive(Debug, Default)]
struct Control {
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ControlState {
    stop: Stop,
    /// A queue serves nothing any more.
    has_ended: bool,
}

#[derive(Debug, Default)]
enum Stop {
    #[default]
    Never,
    WhenUnused,
    /// With the device, if no other program may use it from now on.
    Now(Option<OwnedFd>),
}

impl Control {
    fn change(&self, change: impl FnOnce(&mut ControlState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }
}

impl UblkServer {
    /// Makes the block device and serves it, in a thread for each queue. If a server of the same [name](Disk::name) was
    /// killed, its device is taken over, with all requests that it has not answered.
    ///
    /// # Errors
    /// Those of [`UblkServer::prepare`] and of [`PreparedServer::start`].
    pub fn start(disk: Disk) -> io::Result<UblkServer> {
        UblkServer::prepare(disk)?.start()
    }

    /// Makes the device, or takes it over, and serves no requests yet. `/dev/ublkbN` appears at the start.
    ///
    /// # Errors
    /// Each in one line that says what to do:
    /// - NotFound: the kernel has no ublk driver, or has not loaded it.
    /// - Unsupported: its driver is older than Linux 6.5, or there is no io_uring.
    /// - PermissionDenied: it takes root (CAP_SYS_ADMIN), or an [unprivileged](Disk::unprivileged) disk.
    /// - ResourceBusy: a server of the same name serves.
    /// - InvalidInput: the device that waits for a server of this name is larger than the file, or can be written and
    ///   the disk cannot.
    pub fn prepare(disk: Disk) -> io::Result<PreparedServer> {
        let mut driver = ControlDevice::open()?;
        let wanted = Wanted {
            name: disk.name.clone(),
            queues: disk.queues,
            queue_depth: QUEUE_DEPTH,
            max_io_bytes: MAX_IO_BYTES,
            unprivileged: disk.unprivileged,
            parameters: disk.parameters(),
        };
        let attached = lifecycle::attach(&mut driver, &wanted)?;
        let path = disk_path(attached.info.device).into();
        Ok(PreparedServer { disk, path, attached: Some(attached) })
    }

    fn start_queues(&mut self, driver: &mut ControlDevice, bounds: Bounds) -> io::Result<()> {
        let device = self.device.as_mut().expect("it was just made");
        let info = device.info;
        let copied_by = match info.flags & feature::USER_COPY {
            0 => CopiedBy::Kernel,
            _ => CopiedBy::Server,
        };
        let outlives_server = info.flags & feature::RECOVERY != 0;
        let file = self.disk.file.clone();
        let file = Arc::new(ServedFile::new(file, self.disk.has_holes(), outlives_server));
        for number in 0..info.queues {
            let queue = Queue {
                number,
                depth: info.queue_depth,
                channel: device.channel.clone(),
                copied_by,
                file: file.clone(),
                bounds,
                counters: self.counters.clone(),
            };
            let control = self.control.clone();
            let on_end = move || control.change(|state| state.has_ended = true);
            // They only make requests cheaper.
            let processors = lifecycle::queue_processors(driver, &info, number).unwrap_or_default();
            let reactor = self.disk.reactor.clone();
            device.workers.push(Worker::start(queue, processors, reactor, on_end)?);
        }
        lifecycle::start(driver, &info, self.is_recovered)
    }

    /// The block device, as `/dev/ublkb0`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the device was taken over from a server that was killed.
    pub fn is_recovered(&self) -> bool {
        self.is_recovered
    }

    /// Something to stop the server with, and to see its counts.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle {
            path: self.path.clone(),
            control: self.control.clone(),
            counters: self.counters.clone(),
        }
    }

    /// Waits until [`ServerHandle::stop`], or until another program stops the device. Then removes the device, after
    /// what programs have written to it has reached the file. It is not durable there: sync the file, or close its
    /// volume.
    ///
    /// # Errors
    /// When what was written could not be written back; when a queue has failed; those of the driver.
    pub fn wait(mut self) -> io::Result<()> {
        let mut state = self.control.state.lock();
        let claim = loop {
            let has_ended = state.has_ended;
            match &mut state.stop {
                _ if has_ended => {
                    state.stop = Stop::Now(None);
                    break None;
                }
                Stop::Never => self.control.changed.wait(&mut state),
                Stop::Now(claim) => {
                    break claim.take().or_else(|| open_disk(&self.path, OFlags::empty()).ok());
                }
                Stop::WhenUnused => match open_disk(&self.path, OFlags::EXCL) {
                    Err(SystemError::BUSY) => {
                        self.control.changed.wait_for(&mut state, USE_INTERVAL);
                    }
                    opened => break opened.ok(),
                },
            }
        };
        drop(state);
        self.remove(claim)
    }

    /// Removes the device. `disk` is it, if it is served still, and can be opened.
    fn remove(&mut self, disk: Option<OwnedFd>) -> io::Result<()> {
        let Some(ServedDevice { info, channel, workers }) = self.device.take() else {
            return Ok(());
        };
        // Once it is stopped, the kernel fails what it would still write back.
        let synced = disk.as_ref().map_or(Ok(()), |disk| {
            let path = self.path.display();
            fsync(disk).map_err(|errno| {
                io::Error::new(
                    errno.kind(),
                    format!("{path}: writing back: {}", Errno::from(errno)),
                )
            })
        });
        let mut driver = ControlDevice::open()?;
        // If that fails, the threads serve it until the process ends.
        lifecycle::stop(&mut driver, &info)?;
        drop(disk);
        let ended: Vec<_> = workers.into_iter().map(Worker::join).collect();
        drop(channel);
        let deleted = lifecycle::delete(&mut driver, &info);
        [synced, deleted].into_iter().chain(ended).collect()
    }
}

impl PreparedServer {
    /// Serves the device, in a thread for each queue.
    ///
    /// # Errors
    /// When there is no memory or no thread; those of the driver. The device is deleted; one that was taken over waits
    /// for the next server, once this process has ended.
    pub fn start(mut self) -> io::Result<UblkServer> {
        let attached = self.attached.take().expect("it has one until it starts");
        let (disk, path) = (self.disk.clone(), self.path.clone());
        let bounds = attached.bounds();
        let Attached { info, channel, is_recovered, .. } = attached;
        let mut server = UblkServer {
            path,
            is_recovered,
            device: Some(ServedDevice { info, channel: Arc::new(channel), workers: Vec::new() }),
            control: Arc::default(),
            counters: (0..info.queues).map(|_| RequestCounters::default()).collect(),
            disk,
        };
        let started =
            ControlDevice::open().and_then(|mut driver| server.start_queues(&mut driver, bounds));
        match started {
            Ok(()) => Ok(server),
            Err(error) => {
                if is_recovered {
                    // It waits for another server. The entries that the kernel has come back when this process ends.
                    server.device = None;
                }
                Err(error)
            }
        }
    }

    /// The block device, as `/dev/ublkb0`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PreparedServer {
    fn drop(&mut self) {
        let Some(attached) = self.attached.take() else { return };
        let given_up =
            ControlDevice::open().and_then(|mut driver| lifecycle::give_up(&mut driver, attached));
        if let Err(error) = given_up {
            tracing::warn!(%error, "a ublk device was not removed cleanly");
        }
    }
}

impl fmt::Debug for PreparedServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PreparedServer")
            .field("path", &self.path)
            .field("disk", &self.disk)
            .finish_non_exhaustive()
    }
}

impl Drop for UblkServer {
    fn drop(&mut self) {
        if self.device.is_some() {
            let (is_served, stop) = {
                let mut state = self.control.state.lock();
                (!state.has_ended, mem::replace(&mut state.stop, Stop::Now(None)))
            };
            let disk = is_served.then(|| open_disk(&self.path, OFlags::empty()).ok()).flatten();
            // The device is claimed no more.
            drop(stop);
            if let Err(error) = self.remove(disk) {
                tracing::warn!(%error, "a ublk device was not removed cleanly");
            }
        }
    }
}

impl fmt::Debug for UblkServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("UblkServer")
            .field("path", &self.path)
            .field("disk", &self.disk)
            .field("is_recovered", &self.is_recovered)
            .finish_non_exhaustive()
    }
}

impl ServerHandle {
    /// Ends [`UblkServer::wait`], as soon as the device is neither mounted nor otherwise in exclusive use. Called
    /// again, it does not wait for that: a file system that is mounted there loses what it has not written.
    pub fn stop(&self) -> DeviceUse {
        let mut device_use = DeviceUse::Unused;
        self.control.change(|state| {
            state.stop = match mem::take(&mut state.stop) {
                Stop::Never => match open_disk(&self.path, OFlags::EXCL) {
                    Err(SystemError::BUSY) => {
                        device_use = DeviceUse::InUse;
                        Stop::WhenUnused
                    }
                    opened => Stop::Now(opened.ok()),
                },
                Stop::WhenUnused => Stop::Now(None),
                now @ Stop::Now(_) => now,
            };
        });
        device_use
    }

    /// The requests of the device so far, since this server has started.
    pub fn counts(&self) -> RequestCounts {
        self.counters.iter().map(RequestCounters::get).sum()
    }
}

/// Removes a block device, as `/dev/ublkb0`, whose server was killed and is not started again. Its requests fail.
///
/// # Errors
/// InvalidInput for another path; NotFound; ResourceBusy if it is being served; those of [`UblkServer::start`].
pub fn remove(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let number = path.to_str().and_then(|path| path.strip_prefix("/dev/ublkb")?.parse().ok());
    let Some(number) = number else {
        let line = format!("{}: not the path of a ublk device, as /dev/ublkb0", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, line));
    };
    lifecycle::remove(&mut ControlDevice::open()?, number)
}

fn open_disk(path: &Path, flags: OFlags) -> Result<OwnedFd, SystemError> {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC | flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_block_device_of_ublk_is_removed() {
        for path in
            ["/dev/ublkc0", "/dev/ublkb", "ublkb0", "/dev/ublkb0/", "/dev/sda", "/dev/ublkb-1"]
        {
            let error = remove(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().starts_with(path), "{error}");
        }
    }

    fn handle(path: &Path) -> ServerHandle {
        ServerHandle { path: path.into(), control: Arc::default(), counters: Arc::new([]) }
    }

    /// An ordinary file is never in exclusive use.
    #[test]
    fn a_device_that_is_not_in_use_is_claimed_when_its_server_is_stopped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let handle = handle(file.path());
        for _ in 0..2 {
            assert_eq!(handle.stop(), DeviceUse::Unused);
            assert!(matches!(handle.control.state.lock().stop, Stop::Now(Some(_))));
        }
    }

    #[test]
    fn a_second_stop_does_not_wait_for_an_unmount() {
        let handle = handle(Path::new("/dev/null/none"));
        handle.control.state.lock().stop = Stop::WhenUnused;
        assert_eq!(handle.stop(), DeviceUse::Unused);
        assert!(matches!(handle.control.state.lock().stop, Stop::Now(None)));
    }
}
